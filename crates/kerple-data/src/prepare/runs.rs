//! Cuts one text, in order, into the three splits.

use crate::error::Result;
use crate::split::Split;

/// A cut looks back for the end of a line by at most this many bytes.
const NEARBY: u64 = 1000;

/// Three runs of a text in given shares, each ending with a line where one ends nearby. Depends on nothing but the text
/// and the shares, and holds no more of the text than lies around a cut.
pub(super) struct SplitRuns {
    /// Where the second and third run should begin, in bytes.
    targets: [u64; 2],
    nearby: u64,
    /// The run being filled.
    current: usize,
    /// Text not passed on yet, and where it begins.
    waiting: String,
    at: u64,
}

impl SplitRuns {
    pub(super) fn new(bytes: u64, [train, valid, _]: &[f64; 3]) -> SplitRuns {
        let target = |share: f64| (share * bytes as f64) as u64;
        let targets = [target(*train), target(train + valid).max(target(*train)).min(bytes)];
        SplitRuns { targets, nearby: NEARBY.min(bytes / 100), current: 0, waiting: String::new(), at: 0 }
    }

    /// Takes the next part of the text and passes on what is certain, never empty.
    pub(super) fn push(&mut self, chunk: &str, sink: &mut dyn FnMut(Split, &str) -> Result<()>) -> Result<()> {
        self.waiting.push_str(chunk);
        while let Some(target) = self.targets.get(self.current) {
            let local = |place: u64| (place.saturating_sub(self.at) as usize).min(self.waiting.len());
            let from = self.waiting.floor_char_boundary(local(target.saturating_sub(self.nearby)));
            if self.at + (self.waiting.len() as u64) < *target {
                return self.pass(from, sink);
            }
            let at = self.waiting.floor_char_boundary(local(*target));
            let cut = self.waiting[from..at].rfind('\n').map_or(at, |line| from + line + 1);
            self.pass(cut, sink)?;
            self.current += 1;
        }
        self.pass(self.waiting.len(), sink)
    }

    fn pass(&mut self, bytes: usize, sink: &mut dyn FnMut(Split, &str) -> Result<()>) -> Result<()> {
        if bytes > 0 {
            sink(Split::ALL[self.current], &self.waiting[..bytes])?;
            self.waiting.drain(..bytes);
            self.at += bytes as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The runs of a text that comes in chunks of a size.
    fn runs(text: &str, shares: &[f64; 3], chunk: usize) -> [String; 3] {
        let mut found: [String; 3] = Default::default();
        let mut runs = SplitRuns::new(text.len() as u64, shares);
        let mut rest = text;
        while !rest.is_empty() {
            let (start, after) = rest.split_at(rest.ceil_char_boundary(chunk));
            rest = after;
            let mut take = |split: Split, part: &str| {
                found[split as usize] += part;
                Ok(())
            };
            runs.push(start, &mut take).unwrap();
        }
        found
    }

    proptest! {
        #[test]
        fn chunks_do_not_matter(
            lines in prop::collection::vec("[a-zé]{0,200}", 0..60), chunk in 1usize..5000, train in 0.1f64..0.9, rest in 0.1f64..0.9,
        ) {
            let text = lines.join("\n");
            let valid = (1.0 - train) * rest;
            let shares = [train, valid, 1.0 - train - valid];
            let whole = runs(&text, &shares, usize::MAX >> 1);
            prop_assert_eq!(&runs(&text, &shares, chunk), &whole);
            prop_assert_eq!(whole.concat(), text.as_str());
            for (run, share) in whole.iter().zip(shares) {
                let (size, expected) = (run.len() as f64, share * text.len() as f64);
                prop_assert!((size - expected).abs() <= text.len() as f64 / 100.0 + 5.0, "{} bytes, not {}", size, expected);
            }
        }
    }

    #[test]
    fn cuts_are_at_line_ends() {
        let text = "line\n".repeat(1000);
        let [train, valid, test] = runs(&text, &[0.9003, 0.05, 0.0497], 77);
        assert!([&train, &valid, &test].iter().all(|run| run.ends_with('\n')), "{} {}", train.len(), valid.len());
        assert_eq!((train.len(), valid.len(), test.len()), (4500, 250, 250));
    }
}
