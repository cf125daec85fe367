//! Text to token shards: one pass over the inputs, two when a vocabulary is learned first.
//!
//! The folder appears whole or not at all, and depends on nothing but the inputs and the options: equal inputs give
//! equal bytes.

mod select;
mod staging;

use crate::corpus::{META, ShardWriter, Summary, TOKENIZER, TokenFiles};
use crate::error::{Error, Result};
use crate::split::Split;
use crate::text::{Content, Format, SourceFile, Sources};
use crate::tokenizer::{SMALLEST, Tokenizer, WordCounts};
use crate::tokens::Width;
use rayon::prelude::*;
use select::{Selected, Selection, Tally};
use staging::Staging;
use std::fmt;
use std::path::{Path, PathBuf};

/// What to prepare, and how.
#[derive(Clone, Debug)]
pub struct PrepareOptions {
    /// What to read.
    pub inputs: Sources,
    /// The folder to make.
    pub out: PathBuf,
    /// `byte`, the path of a `tokenizer.json`, or `bpe:N` to learn a byte-level BPE of N tokens.
    ///
    /// Token files need none: `byte` leaves them as they are, a path says which tokenizer they were made with.
    pub tokenizer: String,
    /// The token that ends a document, when a `tokenizer.json` does not have one of the usual names.
    pub end_of_document: Option<String>,
    /// Key of the text in JSON lines, column of the text in Parquet.
    pub text_key: String,
    /// Shares of train, valid and test, in any unit; not used when the names of the files say what they are for.
    pub split: [f64; 3],
    /// Stop before the document that would exceed this many bytes of text.
    pub byte_budget: Option<u64>,
    /// Vocabulary of token files; up to their largest token when absent.
    pub vocab_size: Option<usize>,
}

impl PrepareOptions {
    /// Bytes as tokens, text under `text`, split 90 : 5 : 5.
    pub fn new(inputs: Sources, out: &Path) -> PrepareOptions {
        PrepareOptions {
            inputs,
            out: out.to_owned(),
            tokenizer: "byte".to_owned(),
            end_of_document: None,
            text_key: "text".to_owned(),
            split: [0.9, 0.05, 0.05],
            byte_budget: None,
            vocab_size: None,
        }
    }
}

/// How far a preparation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is being done, e.g. "tokenizing".
    pub phase: &'static str,
    /// Bytes of the input files read in this phase.
    pub bytes_read: u64,
    /// Bytes of all input files.
    pub bytes_total: u64,
    /// Documents taken in this phase.
    pub documents: u64,
    /// Tokens written.
    pub tokens: u64,
}

impl fmt::Display for Progress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Progress { phase, bytes_read, bytes_total, documents, tokens } = self;
        let percent = 100 * bytes_read / bytes_total.max(&1);
        write!(out, "{phase} {percent}% of {:.1} MB, {documents} documents", *bytes_total as f64 / 1e6)?;
        if *tokens > 0 {
            write!(out, ", {:.1} M tokens", *tokens as f64 / 1e6)?;
        }
        Ok(())
    }
}

/// Text is encoded in batches of about this many bytes.
const BATCH: usize = 8 << 20;

/// A vocabulary is learned from at most this many bytes of the training split.
const LEARNED_FROM: usize = 128 << 20;

/// Reads the inputs, tokenizes them and writes a corpus that [`Corpus::open`](crate::Corpus::open) opens.
///
/// Documents go to a split by a hash of their text, or by the names of the files when every one is named for a split;
/// up to 20 plain text files are cut instead, each into three runs. Of equal documents only the first is kept.
///
/// # Errors
/// Inputs that are missing, damaged or too few, options that contradict each other, a folder that may not be written.
pub fn prepare(options: &PrepareOptions, progress: &mut dyn FnMut(&Progress)) -> Result<Summary> {
    let staging = Staging::create(&options.out)?;
    let files = options.inputs.files()?;
    let selection = Selection::new(options, &files)?;
    let (tokenizer, vocab_size) = choose_tokenizer(options, &files, &selection, progress)?;
    let mut writer = Writer::create(staging.folder(), &selection, tokenizer.as_ref(), vocab_size)?;
    let tally = selection.run(&mut |selected, tally| writer.take(selected, tally, progress))?;
    writer.flush(&tally, progress)?;
    let mut summary = Summary::of_ids(vocab_size);
    if let Some(tokenizer) = &tokenizer {
        summary.tokenizer = match options.tokenizer.as_str() {
            kind if kind == "byte" || kind.starts_with("bpe:") => kind.to_owned(),
            _ => "hugging_face".to_owned(),
        };
        summary.tokenizer_fingerprint = tokenizer.fingerprint().clone();
        summary.end_of_document = Some(tokenizer.end_of_document());
    }
    summary.assignment = selection.describe();
    summary.inputs = options.inputs.labels().to_vec();
    (summary.duplicates, summary.empty) = (tally.duplicates, tally.empty);
    (summary.skipped_files, summary.cut_by_budget) = (tally.not_text, tally.cut_by_budget);
    writer.finish(&mut summary)?;
    check_splits(&summary)?;
    staging.write(TOKENIZER, tokenizer.as_ref().map_or("{\"kind\":\"none\"}\n", Tokenizer::definition))?;
    staging.write(META, &summary.to_json())?;
    staging.commit()?;
    Ok(summary)
}

fn check_splits(summary: &Summary) -> Result<()> {
    let found: u64 = Split::ALL.iter().map(|split| summary.split(*split).documents).sum();
    match Split::ALL.into_iter().find(|split| summary.split(*split).documents == 0) {
        None => Ok(()),
        Some(empty) => Err(Error::refused(
            format!(
                "the {} split is empty: it needs at least 1 document, and {found} different ones were found in all",
                empty.name()
            ),
            "give more documents, larger shares with --split, or files named train, valid and test",
        )),
    }
}

/// The tokenizer, if there is one, and the size of the vocabulary.
fn choose_tokenizer(
    options: &PrepareOptions,
    files: &[SourceFile],
    selection: &Selection,
    progress: &mut dyn FnMut(&Progress),
) -> Result<(Option<Tokenizer>, usize)> {
    let token_files: Vec<&SourceFile> = files.iter().filter(|file| file.format == Format::TokenFiles).collect();
    let learned = options.tokenizer.strip_prefix("bpe:");
    if !token_files.is_empty() && (learned.is_some() || options.tokenizer == "byte" && token_files.len() < files.len())
    {
        return Err(Error::refused(
            format!(
                "{} holds tokens already, tokenizer `{}` needs text",
                token_files[0].path.display(),
                options.tokenizer
            ),
            "prepare token files on their own, or give the tokenizer.json they were made with",
        ));
    }
    let tokenizer = match (options.tokenizer.as_str(), learned) {
        ("byte", _) if !token_files.is_empty() => None,
        ("byte", _) => Some(Tokenizer::byte()),
        (_, Some(size)) => Some(learn(size, options, selection, progress)?),
        (path, None) => Some(Tokenizer::from_file(Path::new(path), options.end_of_document.as_deref()).map_err(
            |error| match error {
                Error::Io { path, source, .. } if source.kind() == std::io::ErrorKind::NotFound => Error::refused(
                    format!("tokenizer `{}`: there is no such file", path.display()),
                    "choose `byte`, `bpe:N`, or the path of a tokenizer.json",
                ),
                other => other,
            },
        )?),
    };
    let mut vocab_size = tokenizer.as_ref().map_or(0, Tokenizer::vocab_size);
    let limit = tokenizer.as_ref().map(Tokenizer::vocab_size).or(options.vocab_size);
    for file in token_files {
        let files = TokenFiles::open(&file.path)?;
        vocab_size = vocab_size.max(files.vocab_size(files.largest()?, limit)?);
    }
    Ok((tokenizer, vocab_size))
}

/// Learns a vocabulary from the training split.
fn learn(
    size: &str,
    options: &PrepareOptions,
    selection: &Selection,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Tokenizer> {
    let hint = "write bpe:N with a number of tokens, e.g. bpe:4096";
    let refuse = |what: String| Error::refused(format!("tokenizer `{}`: {what}", options.tokenizer), hint);
    let vocab_size: usize = size.parse().map_err(|_| refuse(format!("`{size}` is not a number")))?;
    if vocab_size < SMALLEST {
        return Err(refuse(format!("{SMALLEST} tokens are needed for the bytes and the end of a document")));
    }
    let bytes_total = selection.bytes_total();
    let (mut counts, mut batch, mut waiting, mut learned) = (WordCounts::default(), Vec::new(), 0, 0);
    let tally = selection.run(&mut |selected, tally| {
        if let (Split::Train, Content::Text(text)) = (selected.split, selected.content)
            && learned < LEARNED_FROM
        {
            waiting += text.len();
            learned += text.len();
            batch.push(text);
        }
        if waiting >= BATCH {
            counts.add(&std::mem::take(&mut batch));
            waiting = 0;
            progress(&tally.progress("counting words", bytes_total, 0));
        }
        Ok(())
    })?;
    counts.add(&batch);
    progress(&tally.progress("learning a vocabulary", bytes_total, 0));
    counts.train(vocab_size)
}

/// A part of a document.
struct Piece<'d> {
    part: Part<'d>,
    last: bool,
}

enum Part<'d> {
    Text(&'d str),
    Tokens(&'d [u32]),
}

/// Encodes batches of documents and writes them to the three shards.
struct Writer<'t> {
    selection: &'t Selection<'t>,
    tokenizer: Option<&'t Tokenizer>,
    shards: [ShardWriter; 3],
    bytes: [u64; 3],
    batch: Vec<Selected>,
    waiting: usize,
    bytes_total: u64,
}

impl Writer<'_> {
    fn create<'t>(
        folder: &Path,
        selection: &'t Selection<'t>,
        tokenizer: Option<&'t Tokenizer>,
        vocab_size: usize,
    ) -> Result<Writer<'t>> {
        let shard = |split: Split| ShardWriter::create(folder, split, Width::of(vocab_size));
        let shards = [shard(Split::Train)?, shard(Split::Valid)?, shard(Split::Test)?];
        let bytes_total = selection.bytes_total();
        Ok(Writer { selection, tokenizer, shards, bytes: [0; 3], batch: Vec::new(), waiting: 0, bytes_total })
    }

    fn take(&mut self, selected: Selected, tally: &Tally, progress: &mut dyn FnMut(&Progress)) -> Result<()> {
        self.waiting += selected.content.size();
        self.batch.push(selected);
        if self.waiting >= BATCH { self.flush(tally, progress) } else { Ok(()) }
    }

    /// Encodes what is waiting on all cores and writes it in order.
    fn flush(&mut self, tally: &Tally, progress: &mut dyn FnMut(&Progress)) -> Result<()> {
        let batch = std::mem::take(&mut self.batch);
        let waiting = std::mem::take(&mut self.waiting).max(1);
        let jobs: Vec<(&Selected, Piece)> = batch.iter().flat_map(|document| self.pieces(document)).collect();
        // one huge document must not be in memory twice
        let at_once = (jobs.len() * 2 * BATCH).div_ceil(waiting).max(1);
        for group in jobs.chunks(at_once) {
            let encoded: Vec<Result<Vec<u32>>> = group.par_iter().map(|(_, piece)| self.encode(piece)).collect();
            for ((document, piece), tokens) in group.iter().zip(encoded) {
                let split = document.split as usize;
                let tokens = tokens.map_err(|error| self.selection.locate(error, document.origin))?;
                self.shards[split].extend(&tokens)?;
                if piece.last {
                    self.bytes[split] += self.text_bytes(&document.content);
                    self.shards[split].end_document();
                }
            }
        }
        let tokens = self.shards.iter().map(ShardWriter::tokens).sum();
        progress(&tally.progress("tokenizing", self.bytes_total, tokens));
        Ok(())
    }

    /// The parts of a document that are encoded on their own.
    fn pieces<'d>(&self, document: &'d Selected) -> Vec<(&'d Selected, Piece<'d>)> {
        let parts = match (&document.content, self.tokenizer) {
            (Content::Text(text), Some(tokenizer)) => tokenizer.pieces(text).into_iter().map(Part::Text).collect(),
            (Content::Tokens(tokens), _) => vec![Part::Tokens(tokens)],
            _ => Vec::new(),
        };
        let count = parts.len();
        let piece = |(at, part)| (document, Piece { part, last: at + 1 == count });
        parts.into_iter().enumerate().map(piece).collect()
    }

    /// The tokens of a piece, with the end of the document after the last piece of a text.
    fn encode(&self, piece: &Piece) -> Result<Vec<u32>> {
        match (&piece.part, self.tokenizer) {
            (Part::Text(text), Some(tokenizer)) => {
                let mut tokens = tokenizer.encode(text)?;
                tokens.extend(piece.last.then_some(tokenizer.end_of_document()));
                Ok(tokens)
            }
            (Part::Tokens(tokens), _) => Ok(tokens.to_vec()),
            (Part::Text(_), None) => unreachable!("text is refused where there is no tokenizer"),
        }
    }

    fn text_bytes(&self, content: &Content) -> u64 {
        match (content, self.tokenizer) {
            (Content::Text(text), _) => text.len() as u64,
            (Content::Tokens(tokens), Some(tokenizer)) => {
                tokens.iter().map(|token| tokenizer.token_bytes(*token) as u64).sum()
            }
            _ => 0,
        }
    }

    fn finish(self, summary: &mut Summary) -> Result<()> {
        let mut stored = Vec::new();
        for ((counts, shard), bytes) in summary.splits_mut().into_iter().zip(self.shards).zip(self.bytes) {
            (counts.documents, counts.tokens, counts.bytes) = (shard.documents(), shard.tokens(), bytes);
            stored.push(shard.finish()?);
        }
        summary.seal(stored.try_into().expect("there are three shards"));
        Ok(())
    }
}
