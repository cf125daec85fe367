//! Text that kerple includes: Python Enhancement Proposals in the public domain. `peps/README.md`
//! names their source.

use crate::error::{Error, Result};
use crate::split::Split;
use serde::Deserialize;
use std::fmt::Write;
use std::ops::RangeInclusive;
use std::path::Path;

const PACKED: &[u8] = include_bytes!("peps/peps.jsonl.zst");

/// A proposal.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pep {
    /// Its number.
    pub pep: u32,
    /// Its full text, in reStructuredText.
    pub text: String,
}

/// The proposals, by number.
pub fn all() -> Vec<Pep> {
    let text = zstd::decode_all(PACKED).expect("a test reads all of it");
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).expect("a test reads all of it")).collect()
}

/// Writes the proposals with these numbers to `train.jsonl`, `valid.jsonl` and `test.jsonl` of a
/// folder, eight of ten for training.
///
/// # Errors
/// A folder that cannot be written.
pub fn write(folder: &Path, numbers: RangeInclusive<u32>) -> Result<()> {
    let mut files = Split::ALL.map(|_| String::new());
    for (place, Pep { text, .. }) in all().iter().filter(|pep| numbers.contains(&pep.pep)).enumerate() {
        let line = serde_json::json!({ "text": text });
        writeln!(files[(place % 10).saturating_sub(7)], "{line}").expect("strings can always be written");
    }
    std::fs::create_dir_all(folder).map_err(Error::io(folder, "create"))?;
    for (split, lines) in Split::ALL.iter().zip(files) {
        let path = folder.join(format!("{}.jsonl", split.name()));
        kerple_run::files::replace(&path, lines.as_bytes()).map_err(Error::io(&path, "write"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_proposal_says_that_it_is_in_the_public_domain() {
        let all = all();
        assert!(all.is_sorted_by_key(|pep| pep.pep) && all.len() == 38);
        for Pep { pep, text } in &all {
            let (_, copyright) = text.rsplit_once("Copyright\n").unwrap();
            let words: Vec<&str> = copyright.split_whitespace().collect();
            assert!(words.join(" ").to_lowercase().contains("public domain"), "PEP {pep}: {copyright}");
            let head = text.lines().next().unwrap();
            assert!(head.split_whitespace().eq(["PEP:", &pep.to_string()]), "{head}");
        }
        let bytes: usize = all.iter().map(|pep| pep.text.len()).sum();
        assert!((1_000_000..1_200_000).contains(&bytes), "{bytes}");
    }

    #[test]
    fn eight_of_ten_are_to_train_on_and_none_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), 0..=u32::MAX).unwrap();
        let lines = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap().lines().count();
        assert_eq!(["train.jsonl", "valid.jsonl", "test.jsonl"].map(lines), [32, 3, 3]);
        write(folder.path(), 450..=649).unwrap();
        assert_eq!(["train.jsonl", "valid.jsonl", "test.jsonl"].map(lines), [11, 1, 1]);
    }
}
