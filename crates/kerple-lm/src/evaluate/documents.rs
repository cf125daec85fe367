//! The documents of an evaluated text: which of them attend to each other, which targets begin one, and how many tokens of its
//! own document each target has before it.

use super::{Protocol, TextWindow};
use crate::error::{Error, Result};
use crate::sequences::EvalText;
use kerple_run::{DocumentMask, OwnContextLoss, Within};

/// Where documents begin in a split, and whether they attend to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextDocuments {
    /// Of documents with tokens, increasing; the first is 0.
    pub(super) starts: Vec<usize>,
    mask: DocumentMask,
}

/// The mask of an evaluation: the requested one, or that of training.
///
/// # Errors
/// A request under a protocol that has one document per window.
pub(super) fn resolve(
    requested: Option<DocumentMask>,
    protocol: Protocol,
    trained: DocumentMask,
) -> Result<DocumentMask> {
    match (protocol, requested) {
        (Protocol::Rolling(_), None) => Ok(DocumentMask::Joined),
        (Protocol::Rolling(_), Some(requested)) => {
            let message =
                format!("--documents {requested} does not apply to {protocol}, which has one document per window");
            Err(Error::refused(message, "omit --documents, or use another --protocol"))
        }
        (_, requested) => Ok(requested.unwrap_or(trained)),
    }
}

/// Refuses a mask for a task.
///
/// # Errors
/// Any request.
pub(crate) fn check_task(requested: Option<DocumentMask>, within: Within) -> Result<()> {
    if !within.is_split() {
        let message = format!("--within {within} is for texts; sequences of tasks do not consist of documents");
        return Err(Error::refused(message, "omit --within"));
    }
    let Some(requested) = requested else { return Ok(()) };
    let message = format!("--documents {requested} is for texts; sequences of tasks do not consist of documents");
    Err(Error::refused(message, "omit --documents"))
}

impl TextDocuments {
    /// Of a split.
    pub fn of(text: &dyn EvalText, mask: DocumentMask) -> TextDocuments {
        let with_tokens = text.documents().into_iter().filter(|document| !document.is_empty());
        let mut starts: Vec<usize> = with_tokens.map(|document| document.start).collect();
        if starts.first() != Some(&0) {
            starts.insert(0, 0);
        }
        TextDocuments { starts, mask }
    }

    /// Whether documents attend to each other.
    pub fn mask(&self) -> DocumentMask {
        self.mask
    }

    /// Whether there are several.
    pub fn are_several(&self) -> bool {
        self.starts.len() > 1
    }

    /// The scored positions of a window, each with the tokens of its own document before the target. With separate documents
    /// the first token of one is not scored: none of its own document is before it.
    pub(super) fn targets(&self, window: &TextWindow) -> impl Iterator<Item = (usize, usize)> + '_ {
        let first = window.start + usize::from(window.prefix.is_none());
        let mut next = self.starts.partition_point(|start| *start <= first + window.score_from);
        let scores_first = self.mask.is_joined();
        (window.score_from..window.len).filter_map(move |position| {
            let place = first + position;
            while self.starts.get(next).is_some_and(|start| *start <= place) {
                next += 1;
            }
            let own = place - self.starts[next - 1];
            (scores_first || own > 0).then_some((position, own))
        })
    }

    /// Where documents begin among the tokens that a window reads: the window itself begins one.
    pub(super) fn starts_in(&self, window: &TextWindow) -> Vec<usize> {
        let after = self.starts.partition_point(|start| *start <= window.start);
        let within = self.starts[after..].iter().take_while(|start| **start < window.start + window.len);
        [0].into_iter().chain(within.map(|start| start - window.start)).collect()
    }

    /// Tokens of the longest sequence whose tokens attend to each other, over all windows.
    pub(super) fn longest(&self, windows: &[TextWindow]) -> usize {
        let of_window = |window: &TextWindow| match self.mask {
            DocumentMask::Joined => window.len,
            DocumentMask::Separate => {
                let bounds: Vec<usize> = self.starts_in(window).into_iter().chain([window.len]).collect();
                bounds.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
            }
        };
        windows.iter().map(of_window).max().unwrap_or(0)
    }
}

/// Sums of losses by own context: of none, and of every power of two to twice that, less one.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct OwnContextSums(Vec<(f64, u64)>);

impl OwnContextSums {
    pub(super) fn add(&mut self, own: usize, loss: f64) {
        let bin = own.checked_ilog2().map_or(0, |octave| octave as usize + 1);
        if self.0.len() <= bin {
            self.0.resize(bin + 1, (0.0, 0));
        }
        let (sum, count) = &mut self.0[bin];
        (*sum, *count) = (*sum + loss, *count + 1);
    }

    /// The means of what has targets.
    pub(super) fn means(&self) -> Vec<OwnContextLoss> {
        let from = |bin: usize| if bin == 0 { 0 } else { 1 << (bin - 1) };
        let scored = self.0.iter().enumerate().filter(|(_, (_, count))| *count > 0);
        scored
            .map(|(bin, &(sum, tokens))| OwnContextLoss { from: from(bin), tokens, nll: sum / tokens as f64 })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn masks_are_refused_where_they_do_not_apply() {
        let [joined, separate] = DocumentMask::ALL;
        assert_eq!(resolve(None, Protocol::Segments, separate).unwrap(), separate);
        assert_eq!(resolve(Some(joined), Protocol::Last(4), separate).unwrap(), joined);
        assert_eq!(resolve(None, Protocol::Rolling(9), separate).unwrap(), joined, "its rows have one mask");
        let error = resolve(Some(separate), Protocol::Rolling(9), joined).unwrap_err();
        let expected = "--documents separate does not apply to rolling:9, which has one document per window";
        assert_eq!(error.to_string(), expected);
        assert_eq!(error.hint(), "omit --documents, or use another --protocol");
        assert!(check_task(None, Within::Split).is_ok());
        let error = check_task(None, Within::Document).unwrap_err().to_string();
        assert!(error.starts_with("--within document is for texts"), "{error}");
        let expected = "--documents joined is for texts; sequences of tasks do not consist of documents";
        assert_eq!(check_task(Some(joined), Within::Split).unwrap_err().to_string(), expected);
    }

    #[test]
    fn own_context_falls_into_octaves() {
        let mut sums = OwnContextSums::default();
        for own in [0, 1, 2, 3, 4, 7, 8, 0, 100] {
            sums.add(own, own as f64);
        }
        let found: Vec<(u64, u64, f64)> = sums.means().iter().map(|bin| (bin.from, bin.tokens, bin.nll)).collect();
        assert_eq!(found, [(0, 2, 0.0), (1, 1, 1.0), (2, 2, 2.5), (4, 2, 5.5), (8, 1, 8.0), (64, 1, 100.0)]);
        assert!(OwnContextSums::default().means().is_empty());
    }

    proptest! {
        /// By the definition, token by token.
        #[test]
        fn targets_know_their_own_documents(
            lens in prop::collection::vec(1usize..9, 1..9), start in 0usize..20, len in 1usize..30, from in 0usize..30,
            fronted: bool, separate: bool,
        ) {
            let mut document_of: Vec<usize> =
                lens.iter().enumerate().flat_map(|(document, len)| vec![document; *len]).collect();
            document_of.resize(80, lens.len());
            let starts = (0..80).filter(|at| *at == 0 || document_of[*at] != document_of[at - 1]).collect();
            let mask = DocumentMask::ALL[usize::from(separate)];
            let documents = TextDocuments { starts, mask };
            let window =
                TextWindow { start, len, score_from: from.min(len - 1), prefix: fronted.then_some(7) };
            let expected: Vec<(usize, usize)> = (window.score_from..len)
                .map(|position| {
                    let place = start + position + usize::from(!fronted);
                    (position, (0..place).filter(|other| document_of[*other] == document_of[place]).count())
                })
                .filter(|(_, own)| !separate || *own > 0)
                .collect();
            prop_assert_eq!(documents.targets(&window).collect::<Vec<_>>(), expected);
            let begins: Vec<usize> =
                (0..len).filter(|at| *at == 0 || document_of[start + at] != document_of[start + at - 1]).collect();
            prop_assert_eq!(documents.starts_in(&window), begins);
        }
    }
}
