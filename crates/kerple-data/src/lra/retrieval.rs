//! Whether two texts belong together, byte by byte: the first, a separator, the second.
//!
//! Published: pairs of papers of the ACL Anthology Network (AAN), cut at 4000 bytes each; the class
//! is whether one cites the other. The files are `new_aan_pairs.{train,eval,test}.tsv`: a label
//! (0.0 or 1.0), two ids and two texts, separated by tabs, without quotes. Each text takes half of
//! the sequence, less the separator.
//!
//! Without `data.path`, pairs are made up: texts of common words and of words of a subject, where
//! related pairs share the subject. They replace the published data and have the name
//! `lra_retrieval` with `content` "made up".

use super::{check_stop, example, store};
use crate::error::{Error, Result};
use crate::examples::{Example, ExampleId, Examples, PAIR_SEPARATOR, TaskInfo};
use crate::file::{PositionedFile, without_line_end, without_mark};
use crate::hash::{Checksum, hex};
use crate::order::StreamPurpose;
use crate::random::TaskRng;
use crate::split::Split;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// Padding, bytes, the separator.
pub const VOCABULARY: usize = PAIR_SEPARATOR as usize + 1;
const _: () = assert!(PAIR_SEPARATOR as usize == store::BYTES);

/// A longer line is not a pair: the texts of papers are shorter.
const LONGEST_LINE: u64 = 1 << 26;

/// Keys of `task = { kind = "lra_retrieval" }`; all are about pairs that are made up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Retrieval {
    /// Made-up pairs to train on.
    pub train: u64,
    /// Made-up pairs to validate on.
    pub valid: u64,
    /// Made-up pairs to test on.
    pub test: u64,
    /// Subjects that texts are about.
    pub subjects: usize,
    /// Seed of what is made up.
    pub seed: u64,
}

impl Default for Retrieval {
    fn default() -> Retrieval {
        Retrieval { train: 20_000, valid: 2000, test: 2000, subjects: 8, seed: 0 }
    }
}

impl Retrieval {
    pub(super) fn open(&self, facts: TaskInfo, path: Option<&Path>, stop: &AtomicBool) -> Result<Box<dyn Examples>> {
        super::check_counts([self.train, self.valid, self.test])?;
        if !(2..=MOST_SUBJECTS).contains(&self.subjects) {
            let message = format!("data.task.subjects = {} is out of range", self.subjects);
            return Err(Error::refused(message, format!("use 2 to {MOST_SUBJECTS} subjects")));
        }
        match path {
            Some(path) => Ok(Box::new(RetrievalFiles::open(facts, path, stop)?)),
            None => {
                let content = format!("made up {}", facts.content);
                Ok(Box::new(GeneratedPairs { keys: *self, facts: TaskInfo { content, ..facts } }))
            }
        }
    }
}

/// The published files, read where they are.
struct RetrievalFiles {
    facts: TaskInfo,
    splits: [PairFile; 3],
}

/// A file of pairs, and where each lies in it.
struct PairFile {
    file: PositionedFile,
    lines: Vec<(u64, u32)>,
}

impl RetrievalFiles {
    fn open(facts: TaskInfo, folder: &Path, stop: &AtomicBool) -> Result<RetrievalFiles> {
        let mut sum = Checksum::default();
        let mut table = |part: &str| -> Result<PairFile> {
            let path = folder.join(format!("new_aan_pairs.{part}.tsv"));
            let file = PositionedFile::open(&path)?;
            let mut input =
                BufReader::with_capacity(1 << 18, kerple_run::files::open(&path).map_err(Error::io(&path, "open"))?);
            let (mut lines, mut line, mut at, mut number) = (Vec::new(), Vec::new(), 0u64, 0);
            loop {
                check_stop(stop)?;
                line.clear();
                let mut limited = std::io::Read::take(&mut input, LONGEST_LINE + 1);
                let count = limited.read_until(b'\n', &mut line).map_err(Error::io(&path, "read"))? as u64;
                if count == 0 {
                    break;
                }
                number += 1;
                let place = format!(", line {number}");
                if count > LONGEST_LINE {
                    return Err(Error::damaged_at(
                        &path,
                        place,
                        format!("the line has more than {LONGEST_LINE} bytes"),
                        HINT,
                    ));
                }
                let own = if at == 0 { without_mark(&line) } else { &line };
                let start = at + count - own.len() as u64;
                at += count;
                if own.trim_ascii().is_empty() {
                    continue;
                }
                pair(own).map_err(|message| Error::damaged_at(&path, place, message, HINT))?;
                sum.add(without_line_end(own));
                if own.ends_with(b"\n") {
                    sum.add(b"\n");
                }
                lines.push((start, own.len() as u32));
            }
            if lines.is_empty() {
                Err(Error::damaged(&path, "the file contains no pair", HINT))
            } else {
                Ok(PairFile { file, lines })
            }
        };
        let splits = [table("train")?, table("eval")?, table("test")?];
        let content = format!("{} {}", facts.content, hex(sum.finish()));
        Ok(RetrievalFiles { facts: TaskInfo { content, ..facts }, splits })
    }
}

const HINT: &str = "give lines with a label, two ids and two texts, separated by tabs";

/// Label and texts of a line.
fn pair(line: &[u8]) -> std::result::Result<(u32, [&[u8]; 2]), String> {
    let line = without_line_end(line);
    let fields: Vec<&[u8]> = line.splitn(5, |byte| *byte == b'\t').collect();
    let [label, _, _, first, second] = fields[..] else {
        return Err(format!("the line has {} fields; expected 5", fields.len()));
    };
    let text = std::str::from_utf8(label).unwrap_or_default();
    match text.trim().parse::<f64>() {
        Ok(0.0) => Ok((0, [first, second])),
        Ok(1.0) => Ok((1, [first, second])),
        _ => Err(format!("the label is `{}`; it must be 0 or 1", String::from_utf8_lossy(label))),
    }
}

/// The sequence of a pair, at most `length` tokens.
fn joined([first, second]: [&[u8]; 2], length: usize) -> Vec<u32> {
    let half = length.saturating_sub(1) / 2;
    let tokens = |text: &[u8]| text.iter().take(half).map(|byte| u32::from(*byte) + 1).collect::<Vec<_>>();
    [tokens(first), vec![PAIR_SEPARATOR], tokens(second)].concat()
}

impl Examples for RetrievalFiles {
    fn facts(&self) -> TaskInfo {
        self.facts.clone()
    }

    fn count(&self, split: Split) -> Option<u64> {
        Some(self.splits[split as usize].lines.len() as u64)
    }

    fn example(&self, place: ExampleId, length: usize) -> Result<Example> {
        let PairFile { file, lines } = &self.splits[place.split as usize];
        let (at, count) = lines[place.index as usize];
        let line = file.read(at..at + u64::from(count))?;
        let (label, texts) = pair(&line).map_err(|message| {
            let again = "another program changed the file; do not write to it while kerple reads it";
            Error::damaged_at(file.path(), format!(", byte {at}"), message, again)
        })?;
        Ok(example(joined(texts, length), label))
    }

    fn answers(&self, _: usize) -> usize {
        1
    }
}

/// Pairs that are drawn when they are asked for.
struct GeneratedPairs {
    keys: Retrieval,
    facts: TaskInfo,
}

/// Words of every text, and then those of each subject alone.
pub(super) const COMMON: usize = 200;
pub(super) const OWN: usize = 40;
/// Words have three syllables, of which there are more than so many subjects need.
const MOST_SUBJECTS: usize = 1000;

/// The letters of a word, by its number: consonants and vowels in turn.
fn word(mut number: usize) -> String {
    let mut letters = String::new();
    for _ in 0..3 {
        letters.push(char::from(b"bdfghklmnprstvz"[number % 15]));
        letters.push(char::from(b"aeiou"[number / 15 % 5]));
        number /= 75;
    }
    letters
}

impl GeneratedPairs {
    /// A text of `bytes` bytes, every other word of which is the subject's own.
    fn text(&self, draw: &mut TaskRng, subject: usize, bytes: usize) -> Vec<u8> {
        let mut text = String::new();
        while text.len() < bytes {
            let own = draw.below(2) == 1;
            text += &word(if own { COMMON + subject * OWN + draw.below(OWN) } else { draw.below(COMMON) });
            text.push(' ');
        }
        text.truncate(bytes);
        text.into_bytes()
    }
}

impl Examples for GeneratedPairs {
    fn facts(&self) -> TaskInfo {
        self.facts.clone()
    }

    fn count(&self, split: Split) -> Option<u64> {
        Some(split.of([self.keys.train, self.keys.valid, self.keys.test]))
    }

    fn example(&self, place: ExampleId, length: usize) -> Result<Example> {
        let mut draw = TaskRng::new(StreamPurpose::Pairs, [self.keys.seed, place.split as u64, place.index]);
        let subjects = self.keys.subjects;
        let (label, first) = (draw.below(2), draw.below(subjects));
        // any other one
        let second = if label == 1 { first } else { (first + 1 + draw.below(subjects - 1)) % subjects };
        let half = length.saturating_sub(1) / 2;
        let texts = [self.text(&mut draw, first, half), self.text(&mut draw, second, half)];
        Ok(example(joined(texts.each_ref().map(Vec::as_slice), length), label as u32))
    }

    fn answers(&self, _: usize) -> usize {
        1
    }
}
