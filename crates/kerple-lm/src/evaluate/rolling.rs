//! Documents one by one, every token scored once: what lm-evaluation-harness calls a rolling log-likelihood.
//!
//! ```text
//! t_1 .. t_n   a document, without the token that ends it; p is what stands in front of texts: SpecialTokens::start
//! first        inputs p, t_1 .. t_(S-1)         scores t_1 .. t_S
//! later        the S tokens before the last     scores the next S, or what is left of the document
//! ```
//!
//! A full window after the first has one token of context, and the last window as many as fit.
//! Perplexities are over all documents together: per word, `exp(-sum ll / words)`, where white
//! space separates words, and per byte of the documents' text.

use super::{EvalRequest, ScoredSegments, SegmentCount, TextWindow};
use crate::error::{Error, Result};
use crate::sequences::EvalText;
use kerple_run::Rolled;
use std::ops::Range;

/// The documents that are scored: all, or the first of them where a number was asked for.
///
/// # Errors
/// A request for other lengths than the protocol's, for positions or for more documents than there are, and tokens without a
/// text.
pub(super) fn segments(request: &EvalRequest, text: &dyn EvalText) -> Result<ScoredSegments> {
    let window = request.check_lengths()?;
    let there = text.documents().len();
    let n_segments = match request.n_segments {
        SegmentCount::Exactly(count) if count <= there => count,
        SegmentCount::Exactly(count) => {
            let message = format!("{count} documents were requested, the {} split has {there}", text.split());
            return Err(Error::refused(message, "lower --n-segments, or omit it to score all documents"));
        }
        SegmentCount::UpTo(_) => there,
    };
    if let Some(segment_len) = request.segment_len.filter(|segment_len| *segment_len != window) {
        let message =
            format!("segments of {segment_len} tokens do not apply to {}, which scores documents", request.protocol);
        return Err(Error::refused(message, "omit --segment-len, or use --protocol segments"));
    }
    if request.per_position {
        let message = format!("{} scores windows of documents, whose positions are not comparable", request.protocol);
        return Err(Error::refused(message, "omit --per-position, or use --protocol segments"));
    }
    let tokenizer = text.tokenizer().filter(|tokenizer| !tokenizer.is_music());
    if n_segments == 0 || tokenizer.is_none() {
        let message = format!("{} needs documents of text, the {} split has none", request.protocol, text.split());
        return Err(Error::refused(message, "choose another protocol"));
    }
    let (protocol, within_documents) = (request.protocol, None);
    Ok(ScoredSegments { protocol, segment_len: window, n_segments, seed: 0, within_documents })
}

/// The first documents of a split, without the tokens that end them.
pub(super) fn documents(text: &dyn EvalText, count: usize) -> Result<Vec<Range<usize>>> {
    let end = text.tokenizer().map(|tokenizer| tokenizer.end_of_document());
    let without = |mut range: Range<usize>| {
        if !range.is_empty() && text.read(range.end - 1..range.end)?.first().copied() == end {
            range.end -= 1;
        }
        Ok(range)
    };
    text.documents().into_iter().take(count).map(without).collect()
}

/// The windows of `span` tokens that read documents, longest first.
pub(super) fn windows(documents: &[Range<usize>], span: usize, prefix: u32) -> Vec<TextWindow> {
    let mut windows = Vec::new();
    for Range { start, end } in documents.iter().cloned() {
        let len = end - start;
        if len > 0 {
            windows.push(TextWindow { start, len: len.min(span), score_from: 0, prefix: Some(prefix) });
        }
        for scored in (span..len).step_by(span) {
            let new = span.min(len - scored);
            windows.push(TextWindow::new(start + scored + new - 1 - span, span, span - new));
        }
    }
    // windows of one length are worked on together
    windows.sort_by_key(|window| std::cmp::Reverse(window.len));
    windows
}

/// Sizes of the documents' text, and what follows from their losses: `nll` summed, in nats.
pub(super) fn rolled(text: &dyn EvalText, documents: &[Range<usize>], nll: f64) -> Result<(u64, Rolled)> {
    let (mut bytes, mut words) = (0, 0);
    for document in documents {
        let tokens = text.read(document.clone())?;
        let written = text.tokenizer().map(|tokenizer| tokenizer.decode(&tokens)).unwrap_or_default();
        bytes += written.len() as u64;
        words += count_words(&written);
    }
    let perplexity = |count: u64| (nll / count as f64).exp();
    let (word_perplexity, byte_perplexity) = (perplexity(words), perplexity(bytes));
    Ok((bytes, Rolled { documents: documents.len() as u64, words, start: None, word_perplexity, byte_perplexity }))
}

/// Pieces between runs of white space. White space at an end makes an empty piece there, which counts.
fn count_words(text: &str) -> u64 {
    // the four separators of ASCII are white space to the harness too
    let is_space = |letter: char| letter.is_whitespace() || matches!(letter, '\u{1c}'..='\u{1f}');
    let mut count = 1;
    let mut before = false;
    for letter in text.chars() {
        let space = is_space(letter);
        count += u64::from(space && !before);
        before = space;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words_are_counted_as_the_harness_counts_them() {
        for (text, words) in [("", 1), ("a", 1), ("a b", 2), (" a  b\n", 4), ("\u{1c}", 2), ("a\u{a0}b\u{3000}c", 3)] {
            assert_eq!(count_words(text), words, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn every_token_is_scored_once_with_the_context_there_is_room_for(
            lens in prop::collection::vec(0usize..40, 1..6), span in 1usize..12,
        ) {
            let mut start = 0;
            let documents: Vec<Range<usize>> = lens.iter().map(|len| {
                let document = start..start + len;
                // a token that ends the document lies between
                start = document.end + 1;
                document
            }).collect();
            let windows = windows(&documents, span, 99);
            let mut scored = Vec::new();
            for window in &windows {
                // where the first target lies
                let first = window.start + usize::from(window.prefix.is_none());
                let targets = first + window.score_from..first + window.len;
                let document = documents.iter().find(|document| document.contains(&targets.start)).unwrap();
                prop_assert!(targets.end <= document.end && window.len <= span && window.score_from < window.len);
                prop_assert!(window.prefix.is_some() == (first == document.start) && window.start >= document.start);
                let begins = targets.start - document.start;
                prop_assert_eq!(begins % span, 0);
                if begins > 0 {
                    prop_assert_eq!(window.len, span);
                }
                scored.extend(targets);
            }
            scored.sort_unstable();
            prop_assert_eq!(scored, documents.into_iter().flatten().collect::<Vec<_>>());
        }
    }
}
