//! Selects documents and assigns them to splits.

use super::runs::SplitRuns;
use super::{PrepareOptions, PrepareProgress};
use crate::error::{Error, Result};
use crate::hash::Checksum;
use crate::music::MusicDocument;
use crate::split::Split;
use crate::text::{DocumentContent, SourceDocument, SourceFile, SourceFormat, SplitNames};
use std::collections::{BTreeMap, HashSet};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use twox_hash::XxHash3_128;

/// A plain text of at least this many bytes is cut into the three splits, wherever it was found.
const LONG: u64 = 32 << 10;

/// Files that are left out are named, up to so many.
const NAMED: usize = 100;

/// A part of a document that is taken. The parts of one document follow each other, [`PartBody::End`] last.
pub(super) struct DocumentPart<'d> {
    pub(super) split: Split,
    pub(super) body: PartBody<'d>,
    /// Index of its file, and its number there.
    pub(super) origin: (usize, usize),
}

pub(super) enum PartBody<'d> {
    Text(&'d str),
    Tokens(&'d [u32]),
    End,
}

/// Takes parts, and says whether it wants more.
pub(super) type PartSink<'s> = dyn FnMut(DocumentPart, &Tally) -> Result<ControlFlow<()>> + 's;

/// What has passed so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) duplicates: u64,
    pub(super) empty: u64,
    pub(super) not_text: u64,
    /// The first of these files, and why they were left out.
    pub(super) skipped: Vec<String>,
    /// What was wrong with documents that were passed over.
    pub(super) bad: Vec<String>,
    /// What was repaired of files that were read.
    pub(super) repaired: Vec<String>,
    pub(super) cut_by_budget: bool,
    /// Number of files that were read, by format.
    pub(super) formats: BTreeMap<String, u64>,
    /// Duplicates in files whose names state a split, by that split.
    duplicates_by_name: BTreeMap<Split, NamedDuplicates>,
    /// Those of them whose equals are in another split, by both; none is several splits, of a text that was cut.
    duplicates_across: BTreeMap<(Split, Option<Split>), NamedDuplicates>,
    /// What the user should know of files that were read.
    pub(super) warnings: Vec<String>,
    /// Documents by how they came into a split.
    hashed: u64,
    cut: u64,
    named: u64,
    documents: u64,
    bytes: u64,
    bytes_read: u64,
}

/// Documents that the name of their file would have put into a split, but that equal earlier ones.
#[derive(Clone, Debug, Default)]
pub(super) struct NamedDuplicates {
    pub(super) documents: u64,
    /// The first file with such a document.
    pub(super) first: PathBuf,
}

impl NamedDuplicates {
    fn count(&mut self, path: &Path) {
        if self.documents == 0 {
            path.clone_into(&mut self.first);
        }
        self.documents += 1;
    }
}

impl Tally {
    /// What to say of documents that one split's files share with another split, where they are counted.
    pub(super) fn across_splits(&self) -> impl Iterator<Item = String> + '_ {
        self.duplicates_across.iter().map(|((named, counted), NamedDuplicates { documents, first })| {
            let counted = counted.map_or("several splits", Split::name);
            format!(
                "{documents} documents of files named for the {} split, the first in {}, equal documents that were \
                 read before for {counted}, and are counted there only",
                named.name(),
                first.display()
            )
        })
    }

    /// The duplicates in files whose names state this split.
    pub(super) fn duplicates_named(&self, split: Split) -> Option<&NamedDuplicates> {
        self.duplicates_by_name.get(&split)
    }

    pub(super) fn progress(&self, phase: &'static str, bytes_total: u64, tokens: u64) -> PrepareProgress {
        let (bytes_read, documents) = (self.bytes_read.min(bytes_total), self.documents);
        PrepareProgress { phase, bytes_read, bytes_total, documents, tokens, memory: 0 }
    }
}

impl DocumentContent {
    /// Bytes of text, or tokens.
    fn size(&self) -> u64 {
        match self {
            DocumentContent::Text(text) => text.len() as u64,
            DocumentContent::Long(text) => text.bytes(),
            DocumentContent::Tokens(tokens) => tokens.len() as u64,
            DocumentContent::Music(score) => score.text().len() as u64,
            DocumentContent::NotText(_) | DocumentContent::Bad(_) => 0,
        }
    }

    fn hash(&self) -> Result<u128> {
        Ok(match self {
            DocumentContent::Text(text) => XxHash3_128::oneshot(text.as_bytes()),
            DocumentContent::Long(text) => text.hash(),
            DocumentContent::Music(score) => XxHash3_128::oneshot(score.text().as_bytes()),
            DocumentContent::Tokens(tokens) => {
                let mut sum = Checksum::default();
                tokens.each(|block| {
                    block.iter().for_each(|token| sum.add(&token.to_le_bytes()));
                    Ok(())
                })?;
                sum.finish()
            }
            DocumentContent::NotText(_) | DocumentContent::Bad(_) => 0,
        })
    }
}

/// The key of a text unless another is named.
const TEXT_KEY: &str = "text";

/// The documents to take from some files.
///
/// The split of a document depends on the document, the shares and how its own file was given, never on what else there
/// is: more files move nothing from one split into another.
pub(super) struct Selection<'a> {
    files: &'a [SourceFile],
    names: SplitNames,
    by_name: bool,
    /// Whether tokens are bytes.
    bytes_are_tokens: bool,
    text_key: &'a str,
    budget: u64,
    shares: [f64; 3],
    /// The same as they were given.
    given: [f64; 3],
    /// Altered copies of each training piece of music.
    augment: u64,
    /// Damaged documents that may be passed over.
    max_bad_documents: u64,
}

/// How a document comes into a split.
enum SplitRule {
    /// As the name of its file says.
    Named(Split),
    /// By a hash of all of it.
    Hashed,
    /// It is cut from beginning to end.
    Cut,
}

impl<'a> Selection<'a> {
    pub(super) fn new(options: &'a PrepareOptions, files: &'a [SourceFile]) -> Result<Selection<'a>> {
        let sum: f64 = options.split.iter().sum();
        if options.split.iter().any(|share| !(share.is_finite() && *share > 0.0)) {
            let [train, valid, test] = options.split;
            return Err(Error::refused(
                format!("--split {train},{valid},{test}: all shares must be greater than 0"),
                "e.g. --split 0.9,0.05,0.05",
            ));
        }
        if let Some(key) = options.text_key.as_ref().filter(|_| !files.iter().any(SourceFile::has_keys)) {
            return Err(Error::refused(
                format!("--text-key {key}: no input has keys or columns"),
                "omit --text-key: a text file is one document",
            ));
        }
        if !sum.is_finite() {
            let [train, valid, test] = options.split;
            let message = format!("--split {train},{valid},{test}: the shares are too large to add up");
            return Err(Error::refused(message, "e.g. --split 0.9,0.05,0.05"));
        }
        let shares = options.split.map(|share| share / sum);
        let budget = options.byte_budget.unwrap_or(u64::MAX);
        let names = if options.split_by_name { SplitNames::read(files)? } else { SplitNames::ignored(files)? };
        Ok(Selection {
            files,
            names,
            by_name: options.split_by_name,
            bytes_are_tokens: options.tokenizer == "byte",
            text_key: options.text_key.as_deref().unwrap_or(TEXT_KEY),
            budget,
            shares,
            given: options.split,
            augment: options.augment,
            max_bad_documents: options.max_bad_documents,
        })
    }

    fn rule(&self, index: usize, content: &DocumentContent) -> SplitRule {
        let file = &self.files[index];
        let plain = matches!(file.format, SourceFormat::Text(_));
        match self.names.splits[index] {
            Some(split) => SplitRule::Named(split),
            None if plain && (!file.found || content.size() >= LONG) => SplitRule::Cut,
            None => SplitRule::Hashed,
        }
    }

    /// How documents came into splits, in words.
    pub(super) fn describe(&self, tally: &Tally) -> String {
        let [train, valid, test] = self.shares;
        let mut ways = Vec::new();
        if tally.hashed > 0 {
            ways.push("by a hash of each document");
        }
        if tally.cut > 0 {
            ways.push("long texts and texts named on the command line, cut in order from start to end");
        }
        let named = if tally.named > 0 { "files and folders named after a split, by name" } else { "" };
        if ways.is_empty() {
            named.to_owned()
        } else {
            let ways = ways.into_iter().chain(Some(named).filter(|named| !named.is_empty())).collect::<Vec<_>>();
            let [a, b, c] = self.given;
            let is_scaled = (a + b + c - 1.0).abs() > 1e-9;
            let given = if is_scaled { format!(" ({a}, {b}, {c}, scaled to sum to 1)") } else { String::new() };
            format!("{train:.4} : {valid:.4} : {test:.4}{given}, {}", ways.join("; "))
        }
    }

    /// Names that look like splits and are not used.
    pub(super) fn unused_names(&self) -> Option<String> {
        self.names.warning(!self.by_name)
    }

    /// Names that state a split which may be validation or test.
    pub(super) fn unclear_names(&self) -> Option<String> {
        self.names.unclear_warning().filter(|_| self.by_name)
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

    /// A document with U+0000 is damaged where that is the end of documents.
    fn without_nul(&self, file: usize, number: usize, content: DocumentContent) -> DocumentContent {
        match &content {
            DocumentContent::Text(text) if self.bytes_are_tokens && text.contains('\0') => {
                let message =
                    "the text contains U+0000, which the byte tokenizer uses as the end of a document".to_owned();
                let hint = "remove these characters, or choose another tokenizer".to_owned();
                DocumentContent::Bad(self.files[file].wrong(number, message, hint))
            }
            _ => content,
        }
    }

    /// Counts a damaged document, unless there are more than may be passed over.
    fn pass_over(&self, error: Error, tally: &mut Tally) -> Result<()> {
        if (tally.bad.len() as u64) < self.max_bad_documents {
            tally.bad.push(error.to_string());
            return Ok(());
        }
        Err(match error {
            Error::Damaged { path, place, mut message, hint } => {
                if self.max_bad_documents > 0 {
                    message += &format!("; {} damaged documents before it were skipped", self.max_bad_documents);
                }
                let hint = format!("{hint} (`kerple prepare --max-bad-documents N` skips up to N of them)");
                Error::Damaged { path, place, message, hint }
            }
            other => other,
        })
    }

    /// Passes every document to take to `sink`, in order, until it wants no more.
    pub(super) fn run(&self, sink: &mut PartSink) -> Result<Tally> {
        let (mut tally, mut seen) = (Tally::default(), SeenDocuments::default());
        for (index, file) in self.files.iter().enumerate() {
            let (before, mut any, mut counted, mut left_out) = (tally.bytes_read, false, false, false);
            let mut documents = file.documents(self.text_key)?;
            while let Some(document) = documents.next() {
                let SourceDocument { number, content } = document?;
                let content = self.without_nul(index, number, content);
                let size = content.size();
                let over_budget = size > 0 && tally.bytes.saturating_add(size) > self.budget;
                if !(counted || over_budget || matches!(content, DocumentContent::NotText(_))) {
                    *tally.formats.entry(file.kind().to_owned()).or_default() += 1;
                    counted = true;
                }
                if let DocumentContent::Bad(error) = content {
                    self.pass_over(error, &mut tally)?;
                    any = true;
                    continue;
                }
                if let DocumentContent::Music(score) = &content {
                    tally.repaired.extend(score.repaired().cloned());
                }
                tally.bytes_read = before + documents.bytes_read();
                any |= size > 0;
                if let DocumentContent::NotText(why) = &content {
                    left_out = true;
                    tally.not_text += 1;
                    if tally.skipped.len() < NAMED {
                        tally.skipped.push(format!("{}: {why}", file.path.display()));
                    }
                } else if size == 0 {
                    tally.empty += 1;
                } else if over_budget {
                    tally.cut_by_budget = true;
                    return Ok(tally);
                } else {
                    let hash = content.hash()?;
                    let rule = self.rule(index, &content);
                    let split = match rule {
                        SplitRule::Named(split) => Some(split),
                        SplitRule::Hashed => Some(Split::draw(hash, &self.shares)),
                        SplitRule::Cut => None,
                    };
                    if let Some(counted) = seen.insert(hash, split) {
                        tally.duplicates += 1;
                        if let Some(named) = self.names.splits[index] {
                            tally.duplicates_by_name.entry(named).or_default().count(&file.path);
                            if counted != Some(named) {
                                tally.duplicates_across.entry((named, counted)).or_default().count(&file.path);
                            }
                        }
                        continue;
                    }
                    tally.bytes += size;
                    tally.documents += 1;
                    match rule {
                        SplitRule::Named(_) => tally.named += 1,
                        SplitRule::Hashed => tally.hashed += 1,
                        SplitRule::Cut => tally.cut += 1,
                    }
                    let mut document = DocumentPass {
                        origin: (index, number),
                        split: None,
                        tally: &mut tally,
                        sink,
                        augment: self.augment,
                    };
                    let read = || before + documents.bytes_read();
                    if document.pass(&content, split, &self.shares, &read)?.is_break() {
                        return Ok(tally);
                    }
                }
            }
            tally.warnings.extend(documents.warnings());
            if !(counted || left_out) {
                *tally.formats.entry(file.kind().to_owned()).or_default() += 1;
            }
            if !any && !file.found {
                let (message, hint) = file.without_documents();
                return Err(Error::damaged(&file.path, message, hint));
            }
            tally.bytes_read = before + file.size;
        }
        Ok(tally)
    }
}

/// The documents so far, by their hashes: of each split, and of texts that were cut.
#[derive(Default)]
struct SeenDocuments([HashSet<u128>; 4]);

impl SeenDocuments {
    /// Takes a document of a split, or returns where an equal one was counted.
    fn insert(&mut self, hash: u128, split: Option<Split>) -> Option<Option<Split>> {
        let known = self.0.iter().position(|seen| seen.contains(&hash));
        if let Some(place) = known {
            return Some(Split::ALL.get(place).copied());
        }
        self.0[split.map_or(Split::ALL.len(), |split| split as usize)].insert(hash);
        None
    }
}

/// A document on its way.
struct DocumentPass<'d, 's> {
    origin: (usize, usize),
    /// The split that is being filled.
    split: Option<Split>,
    tally: &'d mut Tally,
    sink: &'d mut PartSink<'s>,
    augment: u64,
}

impl DocumentPass<'_, '_> {
    /// Passes a document on to its split; without one it is cut by the shares.
    fn pass(
        &mut self,
        content: &DocumentContent,
        split: Option<Split>,
        shares: &[f64; 3],
        read: &dyn Fn() -> u64,
    ) -> Result<ControlFlow<()>> {
        let mut flow = ControlFlow::Continue(());
        let mut runs = SplitRuns::new(content.size(), shares);
        let mut text = |chunk: &str| {
            self.tally.bytes_read = read();
            match split {
                _ if flow.is_break() => {}
                Some(split) => flow = self.part(split, PartBody::Text(chunk))?,
                None => runs.push(chunk, &mut |split, run| {
                    if flow.is_continue() {
                        flow = self.part(split, PartBody::Text(run))?;
                    }
                    Ok(())
                })?,
            }
            Ok(())
        };
        match content {
            DocumentContent::Text(whole) => chunks(whole).try_for_each(&mut text)?,
            DocumentContent::Long(long) => long.stream(&mut text)?,
            DocumentContent::Tokens(tokens) => {
                let split = split.unwrap_or(Split::Train);
                tokens.each(|block| {
                    flow = self.part(split, PartBody::Tokens(block))?;
                    Ok(())
                })?;
            }
            DocumentContent::Music(score) => flow = self.music(score, split.unwrap_or(Split::Train))?,
            DocumentContent::NotText(_) | DocumentContent::Bad(_) => {}
        }
        match flow {
            ControlFlow::Continue(()) => self.end(),
            stopped => Ok(stopped),
        }
    }

    /// A piece and, to train on, its altered copies, each a document of its own.
    fn music(&mut self, score: &MusicDocument, split: Split) -> Result<ControlFlow<()>> {
        let mut flow = self.part(split, PartBody::Text(score.text()))?;
        let copies = if split == Split::Train { self.augment } else { 0 };
        for number in 0..copies {
            if flow.is_break() || self.end()?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            let text = score.copy(number)?;
            // what is left of a piece may have no notes
            if !text.is_empty() {
                flow = self.part(split, PartBody::Text(&text))?;
            }
        }
        Ok(flow)
    }

    fn part(&mut self, split: Split, body: PartBody) -> Result<ControlFlow<()>> {
        if self.split.is_some_and(|current| current != split) && self.end()?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
        self.split = Some(split);
        (self.sink)(DocumentPart { split, body, origin: self.origin }, self.tally)
    }

    fn end(&mut self) -> Result<ControlFlow<()>> {
        match self.split.take() {
            Some(split) => (self.sink)(DocumentPart { split, body: PartBody::End, origin: self.origin }, self.tally),
            None => Ok(ControlFlow::Continue(())),
        }
    }
}

/// A text in parts of about a megabyte, so that what is made of it is never held all at once.
fn chunks(mut text: &str) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        let (chunk, rest) = text.split_at(text.floor_char_boundary(1 << 20));
        text = rest;
        Some(chunk).filter(|chunk| !chunk.is_empty())
    })
}
