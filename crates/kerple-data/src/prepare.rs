//! From text to token shards: one pass over the inputs, or two when a vocabulary is learned first.
//!
//! The folder appears as a whole or not at all. It depends only on the inputs and the options:
//! equal inputs give equal bytes.

mod choose;
mod ends;
mod fidelity;
mod runs;
mod select;
mod staging;
mod write;

use crate::corpus::{CorpusSummary, META, TOKENIZER};
use crate::error::{Error, Result};
use crate::music::Representation;
use crate::split::Split;
use crate::text::{SourceFile, Sources};
use crate::tokenizer::Tokenizer;
use choose::ChosenTokenizer;
use select::{NamedDuplicates, Selection, Tally};
use staging::Staging;
use std::fmt;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use write::CorpusWriter;

/// The options of a preparation.
#[derive(Clone, Debug)]
pub struct PrepareOptions {
    /// The inputs.
    pub inputs: Sources,
    /// The output folder.
    pub out: PathBuf,
    /// `byte`, the path of a `tokenizer.json`, `bpe:N` to learn a byte-level BPE of N tokens, or `remi` or `groove` for the
    /// events of MIDI files.
    ///
    /// Token files need no tokenizer: `byte` keeps them as they are; a path names the tokenizer
    /// that produced them.
    pub tokenizer: String,
    /// The token that ends a document, when a `tokenizer.json` does not have one of the usual names.
    pub eod_token: Option<String>,
    /// Key of the text in JSON lines, column of the text in Parquet.
    pub text_key: Option<String>,
    /// Shares of train, valid and test, in any unit; ignored for files whose names state a split.
    pub split: [f64; 3],
    /// Whether names of files and folders state splits; otherwise the shares apply to everything.
    pub split_by_name: bool,
    /// Stop before the document that would exceed this many bytes of text.
    pub byte_budget: Option<u64>,
    /// Vocabulary size of token files; if absent, their largest token ends it.
    pub vocab_size: Option<usize>,
    /// Altered copies of each training piece, drawn as published; for music only.
    pub augment: u64,
    /// Number of damaged documents to report and skip before the next one is an error: MIDI files,
    /// rows and lines.
    pub max_bad_documents: u64,
    /// Accept a split whose tokens represent less than half of its bytes.
    pub allow_loss: bool,
    /// Replace a prepared corpus with other content; runs that were trained on that one need it.
    pub replace: bool,
    /// Set to stop early; no files remain.
    pub stop: Option<Arc<AtomicBool>>,
}

impl PrepareOptions {
    /// Bytes as tokens, text under `text`, split 90 : 5 : 5.
    pub fn new(inputs: Sources, out: &Path) -> PrepareOptions {
        PrepareOptions {
            inputs,
            out: out.to_owned(),
            tokenizer: "byte".to_owned(),
            eod_token: None,
            text_key: None,
            split: [0.9, 0.05, 0.05],
            split_by_name: true,
            byte_budget: None,
            vocab_size: None,
            augment: 0,
            max_bad_documents: 0,
            allow_loss: false,
            replace: false,
            stop: None,
        }
    }

    fn check_stop(&self) -> Result<()> {
        if self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed)) { Err(Error::Stopped) } else { Ok(()) }
    }
}

/// The progress of a preparation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrepareProgress {
    /// The current phase, e.g. "tokenizing".
    pub phase: &'static str,
    /// Bytes of the input files read in this phase.
    pub bytes_read: u64,
    /// Bytes of all input files.
    pub bytes_total: u64,
    /// Documents taken in this phase.
    pub documents: u64,
    /// Tokens written.
    pub tokens: u64,
    /// Bytes of memory that the phase will take, where that may be much; otherwise 0.
    pub memory: u64,
}

impl fmt::Display for PrepareProgress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PrepareProgress { phase, bytes_read, bytes_total, documents, tokens, memory } = self;
        let percent = 100 * bytes_read / bytes_total.max(&1);
        write!(out, "{phase} {percent}% of {:.1} MB, {documents} documents", *bytes_total as f64 / 1e6)?;
        if *tokens > 0 {
            write!(out, ", {:.1} M tokens", *tokens as f64 / 1e6)?;
        }
        if *memory > 0 {
            write!(out, ", {:.1} GB of memory", *memory as f64 / 1e9)?;
        }
        Ok(())
    }
}

/// Altered copies of a piece, at most.
const MOST_COPIES: u64 = 1000;

/// Damaged documents that are passed over, at most: each is named in the summary.
const MOST_BAD: u64 = 10_000;

/// Text is encoded in batches of about this many bytes.
const BATCH: usize = 8 << 20;

/// Reads the inputs, tokenizes them and writes a corpus that [`Corpus::open`](crate::Corpus::open) opens.
///
/// A file whose name or folder states a split belongs to it, in every format: `test.jsonl`,
/// `train-00000-of-00002.parquet`, `wiki.test.raw` next to `wiki.train.raw`, `test/` next to
/// `train/`. Of the rest, plain texts of 32 KiB and more, and those named directly, are cut in
/// order into the given shares. A hash of the content assigns every other document to a split,
/// independently of the other inputs. Of equal documents, only the first is kept.
///
/// Memory does not grow with the size of texts; each document costs 16 bytes.
///
/// # Errors
/// Missing, damaged or too few inputs, options that contradict each other, a tokenizer that loses
/// the text, or a folder that cannot be written.
pub fn prepare(options: &PrepareOptions, progress: &mut dyn FnMut(&PrepareProgress)) -> Result<CorpusSummary> {
    #[cfg(not(feature = "music-lra"))]
    crate::without_music_lra::check_tokenizer(&options.tokenizer)?;
    let staging = Staging::create(&options.out)?;
    let (mut files, passed_over) = options.inputs.files()?;
    let music = Representation::named(&options.tokenizer);
    if options.augment > MOST_COPIES {
        return Err(Error::refused(
            format!(
                "--augment {} is out of range; up to {MOST_COPIES} copies of each piece can be made",
                options.augment
            ),
            "use fewer: a piece of pop piano has 13 transpositions",
        ));
    }
    if options.max_bad_documents > MOST_BAD {
        return Err(Error::refused(
            format!(
                "--max-bad-documents {} is out of range; up to {MOST_BAD} damaged documents can be skipped",
                options.max_bad_documents
            ),
            "fix the inputs if they have more damaged documents",
        ));
    }
    match music {
        Some(representation) => files.iter_mut().for_each(|file| file.expect_music(representation)),
        None if options.augment > 0 => {
            return Err(Error::refused(
                format!(
                    "--augment {}: only music is augmented; `{}` is not a tokenizer of music",
                    options.augment, options.tokenizer
                ),
                "omit --augment, or choose --tokenizer remi or groove",
            ));
        }
        None => check_archives(&files)?,
    }
    let selection = Selection::new(options, &files)?;
    let chosen = choose::tokenizer(options, &files, &selection, progress);
    // who stops while a vocabulary is learned is not told what became of it
    options.check_stop()?;
    let ChosenTokenizer { tokenizer, vocab_size, warnings: of_token_files } = chosen?;
    let mut writer = CorpusWriter::create(staging.folder(), &selection, tokenizer.as_ref(), vocab_size)?;
    let tally = selection.run(&mut |part, tally| {
        options.check_stop()?;
        writer.take(part, tally, progress)?;
        if writer.fidelity().is_known() {
            writer.fidelity().verdict(&options.tokenizer)?;
        }
        Ok(ControlFlow::Continue(()))
    })?;
    writer.flush(&tally, progress)?;
    let mut summary = CorpusSummary::of_ids(vocab_size);
    if let Some(tokenizer) = &tokenizer {
        summary.tokenizer = match options.tokenizer.as_str() {
            kind if kind == "byte" || music.is_some() || kind.starts_with("bpe:") => kind.to_owned(),
            _ => "hugging_face".to_owned(),
        };
        summary.tokenizer_fingerprint = tokenizer.fingerprint().clone();
        summary.end_of_document = Some(tokenizer.end_of_document());
        summary.end_of_document_special = Some(tokenizer.end_of_document_is_special());
        summary.end_of_document_because = Some(tokenizer.end_of_document_because().to_owned());
        summary.warnings = tokenizer.warnings();
        summary.warnings.extend(writer.fidelity().verdict(&options.tokenizer)?);
        summary.warnings.extend(writer.ends().warnings(tokenizer));
    }
    summary.warnings.extend(of_token_files);
    summary.assignment = selection.describe(&tally);
    summary.warnings.extend(selection.unused_names());
    summary.warnings.extend(selection.unclear_names());
    summary.warnings.extend(tally.across_splits());
    summary.warnings.extend(tally.warnings.iter().cloned());
    if options.augment > 0 {
        summary.assignment += &format!("; {} altered copies of each training piece", options.augment);
    }
    summary.inputs = options.inputs.labels();
    (summary.duplicates, summary.empty) = (tally.duplicates, tally.empty);
    (summary.skipped_files, summary.passed_over) = (tally.not_text, passed_over);
    summary.skipped.clone_from(&tally.skipped);
    summary.formats = tally.formats.clone();
    summary.damaged.clone_from(&tally.bad);
    summary.repaired.clone_from(&tally.repaired);
    summary.cut_by_budget = tally.cut_by_budget;
    summary.warnings.extend(writer.losses(options)?);
    writer.finish(&mut summary)?;
    check_splits(&summary, &tally, music.is_some())?;
    if !options.replace {
        staging.check_content(&summary)?;
    }
    staging.write(TOKENIZER, tokenizer.as_ref().map_or("{\"kind\":\"none\"}\n", Tokenizer::definition))?;
    staging.write(META, &summary.to_json())?;
    options.check_stop()?;
    staging.commit()?;
    Ok(summary)
}

/// Refuses archives of texts: the documents in them would be missing.
fn check_archives(files: &[SourceFile]) -> Result<()> {
    match files.iter().find(|file| file.is_found_archive()) {
        None => Ok(()),
        Some(archive) => Err(Error::refused(
            format!(
                "{}: archives are read for MIDI files only, and data would be missing without this one",
                archive.path.display()
            ),
            "unpack it, or move it out of the folder; MIDI files need --tokenizer remi or groove",
        )),
    }
}

fn check_splits(summary: &CorpusSummary, tally: &Tally, is_music: bool) -> Result<()> {
    let Some(empty) = Split::ALL.into_iter().find(|split| summary.split(*split).documents == 0) else {
        return Ok(());
    };
    let name = empty.name();
    // more documents under the name of the split do not help where those there are count in another split
    if let Some(NamedDuplicates { documents, first }) = tally.duplicates_named(empty) {
        return Err(Error::refused(
            format!(
                "the {name} split is empty: {documents} of its documents, the first in {}, equal documents that \
                 were read before for another split and are counted there only",
                first.display()
            ),
            format!(
                "add documents that only the {name} split has; or distribute the distinct documents of all files by \
                 shares: --split 0.8,0.1,0.1"
            ),
        ));
    }
    let found: u64 = Split::ALL.iter().map(|split| summary.split(*split).documents).sum();
    if let (0, Some(first)) = (found, tally.skipped.first()) {
        return Err(Error::refused(
            format!("no document was found; files that were skipped: {}, the first {first}", tally.not_text),
            "give files of text; MIDI files need --tokenizer remi or groove",
        ));
    }
    Err(Error::refused(
        format!(
            "the {name} split is empty: it needs at least 1 document, and {found} distinct documents were found in all"
        ),
        if is_music {
            format!("give more pieces or larger shares with --split; or put some into a folder {name} next to train")
        } else {
            format!(
                "give more documents or larger shares with --split; or name a file {name}.jsonl or \
                 {name}.txt; or name short texts themselves (--input *.txt), which are then cut"
            )
        },
    ))
}
