//! The tokenizer of a corpus: bytes, one that a file defines, or one learned from the text.

use super::select::{PartBody, Selection};
use super::{BATCH, PrepareOptions, PrepareProgress};
use crate::corpus::TokenFiles;
use crate::error::{Error, Result};
use crate::machine;
use crate::music::Representation;
use crate::split::Split;
use crate::text::{SourceFile, SourceFormat};
use crate::tokenizer::{LARGEST_VOCABULARY, SMALLEST, TextCuts, TextPieces, Tokenizer, WordCounts};
use std::ops::ControlFlow;
use std::path::Path;

/// A vocabulary is learned from at most this many bytes of the training split.
const LEARNED_FROM: usize = 128 << 20;

/// How the tokens of a corpus come about.
pub(super) struct ChosenTokenizer {
    /// Absent for token files whose tokenizer is unknown.
    pub(super) tokenizer: Option<Tokenizer>,
    pub(super) vocab_size: usize,
    /// About token files.
    pub(super) warnings: Vec<String>,
}

pub(super) fn tokenizer(
    options: &PrepareOptions,
    files: &[SourceFile],
    selection: &Selection,
    progress: &mut dyn FnMut(&PrepareProgress),
) -> Result<ChosenTokenizer> {
    let token_files: Vec<&SourceFile> = files.iter().filter(|file| file.format == SourceFormat::TokenFiles).collect();
    let learned = options.tokenizer.strip_prefix("bpe:");
    if !token_files.is_empty() && (learned.is_some() || options.tokenizer == "byte" && token_files.len() < files.len())
    {
        return Err(Error::refused(
            format!(
                "{} already contains tokens; tokenizer `{}` needs text",
                token_files[0].path.display(),
                options.tokenizer
            ),
            "prepare token files separately, or give the tokenizer.json that produced them",
        ));
    }
    let mut warnings = Vec::new();
    let tokenizer = match (options.tokenizer.as_str(), learned) {
        ("byte", _) if !token_files.is_empty() => None,
        ("byte", _) => Some(Tokenizer::byte()),
        (name, None) if Representation::named(name).is_some() => Representation::named(name).map(Tokenizer::music),
        (_, Some(size)) => {
            let (learned, note) = learn(vocabulary(&options.tokenizer, size)?, options, selection, progress)?;
            warnings.extend(note);
            Some(learned)
        }
        (path, None) => Some(from_file(Path::new(path), options)?),
    };
    let mut vocab_size = tokenizer.as_ref().map_or(0, Tokenizer::vocab_size);
    let limit = tokenizer.as_ref().map(Tokenizer::vocab_size).or(options.vocab_size);
    for file in token_files {
        let files = TokenFiles::open(&file.path)?;
        vocab_size = vocab_size.max(files.vocab_size(files.largest()?, limit)?);
        warnings.extend(files.warnings());
    }
    Ok(ChosenTokenizer { tokenizer, vocab_size, warnings })
}

fn from_file(path: &Path, options: &PrepareOptions) -> Result<Tokenizer> {
    Tokenizer::from_file(path, options.eod_token.as_deref()).map_err(|error| match error {
        Error::Io { path, source, .. } if source.kind() == std::io::ErrorKind::NotFound => Error::refused(
            format!("tokenizer `{}`: no such file", path.display()),
            "use `byte`, `bpe:N`, `remi`, `groove`, or the path of a tokenizer.json",
        ),
        other => other,
    })
}

/// The number of tokens to learn.
fn vocabulary(name: &str, size: &str) -> Result<usize> {
    let refuse = |what: String| {
        let hint = "write bpe:N with the number of tokens, e.g. bpe:4096";
        Err(Error::refused(format!("tokenizer `{name}`: {what}"), hint))
    };
    match size.parse::<u128>() {
        Err(_) => refuse(format!("`{size}` is not a number")),
        Ok(size) if size < SMALLEST as u128 => {
            refuse(format!("at least {SMALLEST} tokens are needed, for the bytes and the end of a document"))
        }
        Ok(size) if size > LARGEST_VOCABULARY as u128 => {
            refuse(format!("a vocabulary has at most {LARGEST_VOCABULARY} tokens"))
        }
        Ok(size) => Ok(size as usize),
    }
}

/// Learns a vocabulary from the training split.
fn learn(
    vocab_size: usize,
    options: &PrepareOptions,
    selection: &Selection,
    progress: &mut dyn FnMut(&PrepareProgress),
) -> Result<(Tokenizer, Option<String>)> {
    let bytes_total = selection.bytes_total();
    let (mut counts, mut batch, mut waiting, mut learned) = (WordCounts::default(), Vec::new(), 0, 0);
    let mut pieces = TextPieces::new(TextCuts::Gaps);
    let tally = selection.run(&mut |part, tally| {
        options.check_stop()?;
        let mut take = |piece: String| {
            waiting += piece.len();
            batch.push(piece);
        };
        match part.body {
            PartBody::Text(text) if part.split == Split::Train => {
                learned += text.len();
                pieces.push(text, &mut take).map_err(|error| selection.locate(error, part.origin))?;
            }
            PartBody::End => take(pieces.finish()),
            PartBody::Text(_) | PartBody::Tokens(_) => {}
        }
        if waiting >= BATCH {
            counts.add(&std::mem::take(&mut batch));
            waiting = 0;
            progress(&tally.progress("counting words", bytes_total, 0));
        }
        Ok(if learned < LEARNED_FROM { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })?;
    batch.push(pieces.finish());
    counts.add(&batch);
    let memory = counts.memory(vocab_size);
    machine::require(
        &format!("tokenizer `{}`: learning from this text", options.tokenizer),
        memory,
        "use a smaller vocabulary, or learn it from less text and pass its tokenizer.json here",
    )?;
    progress(&PrepareProgress { memory: memory as u64, ..tally.progress("learning a vocabulary", bytes_total, 0) });
    Ok((counts.train(vocab_size)?, beginning_note(learned)))
}

/// What to say where a vocabulary was learned from the beginning of a longer text: that many bytes of it.
fn beginning_note(bytes: usize) -> Option<String> {
    let most = LEARNED_FROM >> 20;
    (bytes >= LEARNED_FROM)
        .then(|| format!("the vocabulary was learned from the first {most} MiB of the training text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vocabulary_of_the_beginning_is_said_to_be_one() {
        assert_eq!(beginning_note(LEARNED_FROM - 1), None);
        assert!(beginning_note(LEARNED_FROM).unwrap().ends_with("the first 128 MiB of the training text"));
    }
}
