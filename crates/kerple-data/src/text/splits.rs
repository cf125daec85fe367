//! The splits that names of files and folders state: one rule for every format.
//!
//! A *split word* is `train`, `training`; `valid`, `validation`, `val`, `dev`; `test`, between characters that are not letters.
//!
//! * A data file called nothing else, but for numbers, belongs to the split: `test.jsonl`, `train-00000-of-00002.parquet`.
//! * A name or a folder with one split word among others counts where a sibling differs in that
//!   word alone, so that there is text for training and for evaluation: `wiki.train.raw` next to
//!   `wiki.test.raw`, `train/` next to `test/`.
//! * Any other name with a split word is treated as an ordinary file and listed in the summary:
//!   `dev-ops-guide.jsonl`.

use super::{SourceFile, SourceFormat};
use crate::error::{Error, Result};
use crate::split::Split;
use kerple_run::files::first_of;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

/// Endings of names that data files have; a `test.py` or `dev.md` is a text of its own.
const ENDINGS: [&str; 19] = [
    "jsonl",
    "jsonlines",
    "ndjson",
    "json",
    "parquet",
    "csv",
    "tsv",
    "txt",
    "text",
    "raw",
    "tokens",
    "mid",
    "midi",
    "kar",
    "tar",
    "tgz",
    "gz",
    "zst",
    "zstd",
];

/// Examples of names that a summary shows, at most.
const SHOWN: usize = 4;

/// What the names of the files to read state.
#[derive(Debug, Default)]
pub(crate) struct SplitNames {
    /// Of each file.
    pub(crate) splits: Vec<Option<Split>>,
    /// Files whose names hold a split word that does not count.
    unused: Vec<String>,
    /// Files whose names hold a word that may be validation or test.
    unclear: Vec<String>,
}

impl SplitNames {
    /// Reads the names of all files.
    ///
    /// # Errors
    /// A file whose name states another split than its folder.
    pub(crate) fn read(files: &[SourceFile]) -> Result<SplitNames> {
        let stated: Vec<PathSplits> = files.iter().map(PathSplits::of).collect();
        let mut sets: BTreeMap<&str, BTreeSet<Split>> = BTreeMap::new();
        for (key, split) in stated.iter().flat_map(|stated| stated.name.iter().chain(&stated.folder)) {
            sets.entry(key.as_str()).or_default().insert(*split);
        }
        let complete = |word: &Option<(String, Split)>| {
            let (key, split) = word.as_ref()?;
            let set = &sets[key.as_str()];
            (set.contains(&Split::Train) && set.len() > 1).then_some(*split)
        };
        let mut names = SplitNames::default();
        for (file, stated) in files.iter().zip(&stated) {
            let of_name = stated.alone.or_else(|| complete(&stated.name));
            let of_folder = complete(&stated.folder);
            if let (Some(name), Some(folder)) = (of_name, of_folder)
                && name != folder
            {
                return Err(Error::refused(
                    format!(
                        "{}: the file name states the {} split, but the folder name states the {} split",
                        file.path.display(),
                        name.name(),
                        folder.name()
                    ),
                    "rename one of the two, or split by shares whatever the names state: --split 0.9,0.05,0.05",
                ));
            }
            let split = of_name.or(of_folder);
            if split.is_none() && stated.is_unclear {
                names.unclear.push(file.path.display().to_string());
            }
            if split.is_none() && (stated.name.is_some() || stated.folder.is_some()) {
                names.unused.push(file.path.display().to_string());
            }
            names.splits.push(split);
        }
        Ok(names)
    }

    /// The same where shares were asked for: no name counts.
    pub(crate) fn ignored(files: &[SourceFile]) -> Result<SplitNames> {
        let stated = |file: &SourceFile| {
            let stated = PathSplits::of(file);
            stated.alone.is_some() || stated.name.is_some() || stated.folder.is_some()
        };
        let unused = files.iter().filter(|file| stated(file)).map(|file| file.path.display().to_string()).collect();
        Ok(SplitNames { splits: vec![None; files.len()], unused, unclear: Vec::new() })
    }

    /// What to say of names with a word that may be validation or test, where there is text to train on under its name.
    pub(crate) fn unclear_warning(&self) -> Option<String> {
        let trains = self.splits.contains(&Some(Split::Train));
        (trains && !self.unclear.is_empty()).then(|| {
            format!(
                "names with eval, evaluation or testing may mean validation or test, so their documents are \
                 distributed by shares, training among them: {}; rename them to valid or test",
                first_of(&self.unclear, SHOWN, ", ")
            )
        })
    }

    /// What to say of names that look like splits and are not used.
    pub(crate) fn warning(&self, by_shares: bool) -> Option<String> {
        let why = if by_shares {
            "--split was given"
        } else {
            "no sibling differs in that word alone (docs/texts.md has the rule)"
        };
        let unused = &self.unused;
        (!unused.is_empty()).then(|| {
            format!("names that look like splits are ignored, because {why}: {}", first_of(unused, SHOWN, ", "))
        })
    }
}

/// What one path states: keys are the same for siblings that differ in the split word alone.
struct PathSplits {
    /// By a name that is nothing but a split word and numbers.
    alone: Option<Split>,
    name: Option<(String, Split)>,
    folder: Option<(String, Split)>,
    /// Whether a word of the name, or the name of a folder, may be validation or test.
    is_unclear: bool,
}

impl PathSplits {
    fn of(file: &SourceFile) -> PathSplits {
        // what is not read has no documents that its name could put into a split
        if let SourceFormat::Ignored(_) = file.format {
            return PathSplits { alone: None, name: None, folder: None, is_unclear: false };
        }
        let parent = file.path.parent().unwrap_or(Path::new(""));
        let name = file.path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_lowercase();
        let stem = stem(&name, file.format);
        let words = |name: &str| name.split(|c: char| !c.is_alphanumeric()).any(is_unclear);
        let is_unclear =
            stem.as_deref().is_some_and(words) || folders(parent, file.depth).any(|(_, name)| words(&name));
        let word = stem.and_then(|stem| split_word(&stem));
        let alone = word.as_ref().and_then(|(rest, split)| rest.is_empty().then_some(*split));
        let name =
            word.filter(|_| alone.is_none()).map(|(rest, split)| (format!("{}/*{rest}", parent.display()), split));
        PathSplits { alone, name, folder: folder(parent, file.depth), is_unclear }
    }
}

/// Whether a word is one that datasets use for validation and for test.
fn is_unclear(word: &str) -> bool {
    matches!(word, "eval" | "evaluation" | "testing")
}

/// The folders that were walked and the one that was named, innermost first: their places in the path, and names.
fn folders(parent: &Path, depth: usize) -> impl Iterator<Item = (usize, String)> + '_ {
    let components: Vec<Component> = parent.components().collect();
    let from = components.len().saturating_sub(depth + 1);
    (from..components.len()).rev().filter_map(move |at| Some((at, components[at].as_os_str().to_str()?.to_lowercase())))
}

/// The innermost folder that is called a split word and nothing else, of those that were walked and the one that was named.
fn folder(parent: &Path, depth: usize) -> Option<(String, Split)> {
    folders(parent, depth).find_map(|(at, name)| Some((at, split_of(&name)?))).map(|(at, split)| {
        let before: std::path::PathBuf = parent.components().take(at).collect();
        (format!("{}//", before.display()), split)
    })
}

/// A name without the endings of data files; `None` for other files.
fn stem(name: &str, format: SourceFormat) -> Option<String> {
    if let SourceFormat::TokenFiles = format {
        // `train_text_document`, as Megatron's tools call them
        let document = name.strip_suffix("_document").or(name.strip_suffix("_sentence"));
        return Some(document.and_then(|name| name.rsplit_once('_')).map_or(name, |(stem, _)| stem).to_owned());
    }
    let mut rest = name;
    while let Some((stem, end)) = rest.rsplit_once('.') {
        if !ENDINGS.contains(&end) {
            break;
        }
        rest = stem;
    }
    // a file without an ending is data where it is called a split; one with another ending is not
    (rest.len() < name.len() || !name.contains('.')).then(|| rest.to_owned())
}

pub(super) fn split_of(word: &str) -> Option<Split> {
    match word {
        "train" | "training" => Some(Split::Train),
        "valid" | "validation" | "val" | "dev" => Some(Split::Valid),
        "test" => Some(Split::Test),
        _ => None,
    }
}

/// The one split word of a name, and what else is in it but numbers; `*` marks the place of the word where something is left.
fn split_word(stem: &str) -> Option<(String, Split)> {
    let parts = stem.split(|c: char| !c.is_alphanumeric());
    let mut rest = Vec::new();
    let mut found = None;
    for part in parts.filter(|part| !part.is_empty()) {
        let word = part.trim_end_matches(|c: char| c.is_ascii_digit());
        match split_of(word) {
            // two words say two things
            Some(_) if found.is_some() => return None,
            Some(split) => {
                found = Some(split);
                rest.push("*");
            }
            None if word.is_empty() || word == "of" => {}
            None => rest.push(part),
        }
    }
    let rest = if rest.len() > 1 { rest.join(".") } else { String::new() };
    found.map(|split| (rest, split))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Compression;

    /// Splits of files below `root`, as the walk finds them.
    fn names(paths: &[&str]) -> Result<SplitNames> {
        let file = |path: &&str| SourceFile {
            path: Path::new("root").join(path),
            format: SourceFormat::Text(Compression::None),
            size: 0,
            found: true,
            depth: path.matches('/').count(),
        };
        SplitNames::read(&paths.iter().map(file).collect::<Vec<_>>())
    }

    fn splits(paths: &[&str]) -> String {
        let letter = |split: &Option<Split>| split.map_or("-", |split| &split.name()[..2]);
        names(paths).unwrap().splits.iter().map(letter).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_split_word_alone_or_with_numbers_is_a_split() {
        let alone = ["train.jsonl.zst", "x/VAL.jsonl", "validation.txt", "test", "dev.csv", "training.parquet"];
        assert_eq!(splits(&alone), "tr va va te va tr");
        let numbered = ["train-00001-of-00005.parquet", "test_3.json.gz", "valid00.txt", "train.2.txt"];
        assert_eq!(splits(&numbered), "tr te va tr");
    }

    #[test]
    fn other_words_count_beside_a_sibling_that_differs_in_the_split_word() {
        assert_eq!(splits(&["wiki.train.raw", "wiki.test.raw", "wiki.valid.tokens"]), "tr te va");
        assert_eq!(splits(&["c4-train.00000-of-01024.json.gz", "c4-validation.00000-of-00008.json.gz"]), "tr va");
        assert_eq!(splits(&["train_en.jsonl", "dev_en.jsonl", "dev-ops-guide.jsonl"]), "tr va -");
        for lone in [
            "dev-ops-guide.jsonl",
            "unit_test.txt",
            "test-plan.txt",
            "training-manual.txt",
            "c4-validation.0-of-8.json.gz",
        ] {
            let names = names(&["a.jsonl", lone]).unwrap();
            assert_eq!(names.splits, [None, None], "{lone}");
            assert!(names.warning(false).unwrap().contains(lone));
        }
    }

    #[test]
    fn words_within_words_are_no_splits() {
        let names =
            names(&["testimony.txt", "latest.jsonl", "trainer.rs", "test.py", "dev.md", "contest-2.txt"]).unwrap();
        assert_eq!((names.splits, names.unused.len()), (vec![None; 6], 0));
    }

    #[test]
    fn folders_count_beside_one_to_train_on() {
        assert_eq!(splits(&["train/1.txt", "validation/2.txt", "test/b/3.jsonl", "other/4.txt"]), "tr va te -");
        assert_eq!(splits(&["src/main/a.java", "src/test/b.java"]), "- -");
        assert_eq!(splits(&["en/train/1.txt", "de/test/2.txt"]), "- -");
        let error = names(&["train/test.jsonl", "test/a.jsonl"]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "root/train/test.jsonl: the file name states the test split, but the folder name states the train split"
        );
    }
}
