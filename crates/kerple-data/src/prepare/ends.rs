//! Checks that the end-of-document token ends every document and occurs nowhere else.

use crate::tokenizer::Tokenizer;

/// Counts ends of documents, document by document.
#[derive(Default)]
pub(super) struct EndTokenCounts {
    documents: u64,
    /// Documents with ends inside, and how many there are.
    with_inside: u64,
    inside: u64,
    /// Documents that do not close with their end.
    open: u64,
    /// Ends of the document being read, and its last token.
    count: u64,
    last: Option<u32>,
}

impl EndTokenCounts {
    /// Takes the next tokens of a document; `closes` says whether it is over.
    pub(super) fn take(&mut self, end: u32, tokens: &[u32], closes: bool) {
        self.count += tokens.iter().filter(|token| **token == end).count() as u64;
        self.last = tokens.last().copied().or(self.last);
        if closes {
            let ended = self.last == Some(end);
            let inside = self.count - u64::from(ended);
            self.documents += 1;
            self.open += u64::from(!ended);
            self.inside += inside;
            self.with_inside += u64::from(inside > 0);
            (self.count, self.last) = (0, None);
        }
    }

    /// What to know of the token.
    pub(super) fn warnings(&self, tokenizer: &Tokenizer) -> Vec<String> {
        let EndTokenCounts { documents, with_inside, inside, open, .. } = self;
        let end = tokenizer.end_of_document();
        let name = tokenizer.name(end).map_or_else(|| format!("{end}"), |name| format!("`{name}` ({end})"));
        let mut found = Vec::new();
        if *inside > 0 {
            found.push(format!(
                "the end-of-document token {name} occurs inside {with_inside} of {documents} \
                 documents, {inside} times in total"
            ));
        }
        if *open > 0 {
            found.push(format!("{open} of {documents} documents do not end with the end-of-document token {name}"));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_inside_and_missing_ends_are_counted() {
        let mut ends = EndTokenCounts::default();
        ends.take(0, &[5, 0], false);
        ends.take(0, &[7, 0], true);
        ends.take(0, &[5], false);
        ends.take(0, &[], true);
        ends.take(0, &[4, 0], true);
        assert_eq!((ends.documents, ends.with_inside, ends.inside, ends.open), (3, 1, 1, 1));
        assert_eq!(ends.warnings(&Tokenizer::byte()).len(), 2);
        let mut sound = EndTokenCounts::default();
        sound.take(0, &[4, 0], true);
        assert!(sound.warnings(&Tokenizer::byte()).is_empty());
    }
}
