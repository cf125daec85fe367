//! The numbers printed in the paper, and in the one on its second version.

use serde::Deserialize;
use std::collections::BTreeMap;

/// Everything printed that a reproduction can be held against.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Printed {
    /// Milliseconds a forward pass by encoding, of the three sizes.
    pub table1: BTreeMap<String, [f64; 3]>,
    /// Settings, of the two smaller sizes.
    pub table3: BTreeMap<String, [String; 2]>,
    che: Che,
    /// `text training encoding length perplexity` by source.
    perplexities: BTreeMap<Source, Vec<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Che {
    columns: Vec<String>,
    rows: BTreeMap<String, String>,
}

/// Where a number was printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Source {
    /// arXiv:2405.14722
    Paper,
    /// arXiv:2410.04798, which trained some of the same again.
    Second,
}

/// A printed perplexity.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Value {
    pub mean: f64,
    /// With its source.
    pub text: String,
}

impl Printed {
    pub(super) fn read() -> Printed {
        toml::from_str(include_str!("printed.toml")).expect("a test reads all of it")
    }

    /// Right answers in percent, and whether no order of the tokens changes the answer.
    pub(super) fn che(&self, task: &str, column: &str) -> (Option<f64>, bool) {
        let Some(row) = self.che.rows.get(task) else { return (None, false) };
        let (invariant, row) = row.strip_prefix("* ").map_or((false, row.as_str()), |row| (true, row));
        let place = self.che.columns.iter().position(|name| name == column);
        (place.and_then(|place| row.split(' ').nth(place)?.parse().ok()), invariant)
    }

    /// Tasks there are numbers of.
    #[cfg(test)]
    pub(super) fn che_tasks(&self) -> impl Iterator<Item = &str> {
        self.che.rows.keys().map(String::as_str)
    }

    /// What was printed for an encoding at so many times the training length; the paper's number comes first. A training is
    /// named by its length, with the size of the model before it where that is not the smallest.
    pub(super) fn perplexity(
        &self,
        (text, training, encoding): (&str, &str, &str),
        (length, train_len): (u64, u64),
    ) -> Option<Value> {
        let theirs: u64 = training.rsplit('_').next()?.parse().unwrap_or(512);
        let scaled = length.checked_mul(theirs)?;
        let length = scaled.is_multiple_of(train_len).then(|| scaled / train_len)?.to_string();
        let key = [text, training, encoding, &length];
        let of = |lines: &Vec<String>| -> Option<f64> {
            let mut words = lines.iter().map(|line| line.split(' ').collect::<Vec<_>>());
            words.find(|words| words[..4] == key)?.get(4)?.parse().ok()
        };
        let found: Vec<(Source, f64)> =
            self.perplexities.iter().filter_map(|(source, lines)| Some((*source, of(lines)?))).collect();
        let text = |(source, value): &(Source, f64)| match source {
            Source::Paper => format!("paper: {value:.2}"),
            Source::Second => format!("V2: {value:.2}"),
        };
        let texts: Vec<String> = found.iter().map(text).collect();
        Some(Value { mean: found.first()?.1, text: texts.join("; ") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_printed_perplexity_is_read() {
        let printed = Printed::read();
        let mut values = 0;
        for line in printed.perplexities.values().flatten() {
            let words: Vec<&str> = line.split(' ').collect();
            let [text, training, encoding, length, value] = words[..] else { panic!("{line}") };
            let theirs: u64 = training.rsplit('_').next().unwrap().parse().unwrap_or(512);
            let found = printed.perplexity((text, training, encoding), (length.parse().unwrap(), theirs));
            assert!(found.is_some_and(|found| found.text.contains(value)), "{line}");
            values += 1;
        }
        // of the paper's text, and of the second paper
        assert_eq!(values, 28 + 47);
        assert_eq!((printed.table1.len(), printed.table3.len()), (6, 8));
    }

    #[test]
    fn values_are_found_by_their_multiple_of_the_training_length() {
        let printed = Printed::read();
        let kerple = |length, train_len| printed.perplexity(("arxiv", "128", "kerple"), (length, train_len));
        assert_eq!(kerple(8192, 128).unwrap().text, "paper: 31.93; V2: 12.59");
        assert_eq!(kerple(1024, 16), kerple(8192, 128));
        assert_eq!(kerple(16, 16).unwrap().mean, 8.30);
        assert_eq!(kerple(24, 16), None);
    }
}
