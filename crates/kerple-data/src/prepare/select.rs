//! Which documents are taken, and into which split.

use super::{PrepareOptions, Progress};
use crate::error::{Error, Result};
use crate::split::Split;
use crate::text::{Content, Document, Format, SourceFile};
use std::collections::HashSet;
use twox_hash::XxHash3_128;

/// Up to this many plain texts are cut into runs; more are documents to choose among.
const FEW_TEXTS: usize = 20;

/// A document that is taken.
pub(super) struct Selected {
    pub(super) split: Split,
    pub(super) content: Content,
    /// Index of its file, and its number there.
    pub(super) origin: (usize, usize),
}

/// What has passed so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) duplicates: u64,
    pub(super) empty: u64,
    pub(super) not_text: u64,
    pub(super) cut_by_budget: bool,
    documents: u64,
    bytes: u64,
    bytes_read: u64,
}

impl Tally {
    pub(super) fn progress(&self, phase: &'static str, bytes_total: u64, tokens: u64) -> Progress {
        Progress { phase, bytes_read: self.bytes_read.min(bytes_total), bytes_total, documents: self.documents, tokens }
    }
}

impl Content {
    /// Bytes of text, or tokens.
    pub(super) fn size(&self) -> usize {
        match self {
            Content::Text(text) => text.len(),
            Content::Tokens(tokens) => tokens.len(),
            Content::NotText => 0,
        }
    }

    fn hash(&self) -> u128 {
        match self {
            Content::Text(text) => XxHash3_128::oneshot(text.as_bytes()),
            Content::Tokens(tokens) => {
                XxHash3_128::oneshot(&tokens.iter().flat_map(|token| token.to_le_bytes()).collect::<Vec<_>>())
            }
            Content::NotText => 0,
        }
    }
}

#[derive(Debug, PartialEq)]
enum Rule {
    /// By a hash of the text, with these shares.
    Hash([f64; 3]),
    /// By the names of the files; a split that no name mentions takes its share of train.
    Names([f64; 3]),
    /// Every text is cut into three runs.
    Runs([f64; 3]),
}

/// The documents to take from some files.
pub(super) struct Selection<'a> {
    files: &'a [SourceFile],
    text_key: &'a str,
    budget: u64,
    rule: Rule,
}

impl<'a> Selection<'a> {
    pub(super) fn new(options: &'a PrepareOptions, files: &'a [SourceFile]) -> Result<Selection<'a>> {
        let sum: f64 = options.split.iter().sum();
        if options.split.iter().any(|share| !(share.is_finite() && *share > 0.0)) {
            let [train, valid, test] = options.split;
            return Err(Error::refused(
                format!("the shares {train}, {valid}, {test} must all be above 0"),
                "e.g. 0.9,0.05,0.05",
            ));
        }
        let shares = options.split.map(|share| share / sum);
        let names: Option<Vec<Split>> = files.iter().map(SourceFile::named_split).collect();
        let rule = match names {
            Some(names) if names.contains(&Split::Train) => {
                let mut rest = shares;
                for split in [Split::Valid, Split::Test] {
                    if names.contains(&split) {
                        rest[split as usize] = 0.0;
                    }
                }
                rest[0] = 1.0 - rest[1] - rest[2];
                Rule::Names(rest)
            }
            _ if files.len() <= FEW_TEXTS && files.iter().all(|file| matches!(file.format, Format::Text(_))) => {
                Rule::Runs(shares)
            }
            _ => Rule::Hash(shares),
        };
        Ok(Selection { files, text_key: &options.text_key, budget: options.byte_budget.unwrap_or(u64::MAX), rule })
    }

    /// How documents come into splits, in words.
    pub(super) fn describe(&self) -> String {
        let shares = |[train, valid, test]: &[f64; 3]| format!("{train:.4} : {valid:.4} : {test:.4}");
        match &self.rule {
            Rule::Hash(parts) => format!("{}, by a hash of each document", shares(parts)),
            Rule::Runs(parts) => format!("{}, each text cut from beginning to end", shares(parts)),
            Rule::Names([_, 0.0, 0.0]) => "as the names of the files say".to_owned(),
            Rule::Names(parts) => {
                format!("as the names of the files say, and train {} by a hash of each document", shares(parts))
            }
        }
    }

    /// Bytes of all files.
    pub(super) fn bytes_total(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }

    /// Adds where a document was found to what is wrong with it.
    pub(super) fn locate(&self, error: Error, (file, number): (usize, usize)) -> Error {
        match error {
            Error::Refused { message, hint } => self.files[file].wrong(number, message, hint),
            other => other,
        }
    }

    /// Passes every document to take to `sink`, in order.
    pub(super) fn run(&self, sink: &mut dyn FnMut(Selected, &Tally) -> Result<()>) -> Result<Tally> {
        let (mut tally, mut seen) = (Tally::default(), HashSet::new());
        for (index, file) in self.files.iter().enumerate() {
            let (before, mut any) = (tally.bytes_read, false);
            let mut documents = file.documents(self.text_key)?;
            while let Some(document) = documents.next() {
                let Document { number, content } = document?;
                tally.bytes_read = before + documents.bytes_read();
                any |= content.size() > 0;
                if content == Content::NotText {
                    tally.not_text += 1;
                } else if content.size() == 0 {
                    tally.empty += 1;
                } else if tally.bytes + content.size() as u64 > self.budget {
                    tally.cut_by_budget = true;
                    return Ok(tally);
                } else {
                    let hash = content.hash();
                    if !seen.insert(hash) {
                        tally.duplicates += 1;
                        continue;
                    }
                    tally.bytes += content.size() as u64;
                    tally.documents += 1;
                    self.assign(content, hash, (index, number), &mut |selected| sink(selected, &tally))?;
                }
            }
            if !any && !file.found {
                return Err(Error::damaged(&file.path, "there is no text in it", "give another file"));
            }
            tally.bytes_read = before + file.size;
        }
        Ok(tally)
    }

    fn assign(
        &self,
        content: Content,
        hash: u128,
        origin: (usize, usize),
        sink: &mut dyn FnMut(Selected) -> Result<()>,
    ) -> Result<()> {
        match (&self.rule, content) {
            (Rule::Runs(shares), Content::Text(text)) => {
                for (split, run) in Split::ALL.into_iter().zip(runs(&text, shares)) {
                    if !run.is_empty() {
                        sink(Selected { split, content: Content::Text(run.to_owned()), origin })?;
                    }
                }
                Ok(())
            }
            (rule, content) => {
                let named = self.files[origin.0].named_split();
                let split = match (rule, named) {
                    (Rule::Names(_), Some(split @ (Split::Valid | Split::Test))) => split,
                    (Rule::Names(shares) | Rule::Hash(shares) | Rule::Runs(shares), _) => Split::draw(hash, shares),
                };
                sink(Selected { split, content, origin })
            }
        }
    }
}

/// Three runs of a text in the given shares, each ending with a line where one ends nearby.
fn runs<'t>(text: &'t str, [train, valid, _]: &[f64; 3]) -> [&'t str; 3] {
    const NEARBY: usize = 1000;
    let cut = |share: f64| {
        let at = text.floor_char_boundary((share * text.len() as f64) as usize);
        let from = text.floor_char_boundary(at.saturating_sub(NEARBY.min(text.len() / 100)));
        text[from..at].rfind('\n').map_or(at, |line| from + line + 1)
    };
    let (first, second) = (cut(*train), cut(train + valid));
    [&text[..first], &text[first..second.max(first)], &text[second.max(first)..]]
}
