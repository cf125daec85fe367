//! The numbers that papers printed, as their page descriptions have them.

#[cfg(feature = "music-lra")]
use super::methods::ComparedMethod;
use serde::Deserialize;
use std::collections::BTreeMap;

/// A table of perplexities.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PrintedPerplexities {
    train_len: u64,
    columns: Vec<String>,
    /// Corpus, then length, to the values of the columns.
    rows: BTreeMap<String, BTreeMap<String, String>>,
}

/// One printed value.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PrintedValue {
    /// As it was printed, with a dagger for the paper's mark, or with its source.
    pub text: String,
    /// Mean; absent where it ran out of memory.
    pub mean: Option<f64>,
    /// Deviation over seeds.
    pub deviation: Option<f64>,
    /// Whether the logarithmic kernel was significantly better.
    pub dagger: bool,
}

/// A length evaluated, and the training length that it is a multiple of.
#[derive(Clone, Copy, Debug)]
pub(super) struct EvaluatedLength {
    pub length: u64,
    pub train_len: u64,
}

impl EvaluatedLength {
    /// The length that is the same multiple of another training length.
    fn scaled_to(self, train_len: u64) -> Option<u64> {
        let scaled = self.length.checked_mul(train_len)?;
        scaled.is_multiple_of(self.train_len).then(|| scaled / self.train_len)
    }

    /// `4 096 (32×)`.
    pub(super) fn name(self) -> String {
        let multiple = format!("{:.2}", self.length as f64 / self.train_len as f64);
        let multiple = multiple.trim_end_matches('0').trim_end_matches('.');
        format!("{} ({multiple}\u{d7})", kerple_report::format::count(self.length))
    }
}

impl PrintedPerplexities {
    /// The value of a column at so many times the training length.
    pub(super) fn value(&self, corpus: &str, at: EvaluatedLength, column: &str) -> Option<PrintedValue> {
        let place = self.columns.iter().position(|name| name == column)?;
        let cells = self.rows.get(corpus)?.get(&at.scaled_to(self.train_len)?.to_string())?;
        PrintedValue::parse(cells.split(' ').nth(place)?)
    }
}

impl PrintedValue {
    /// `mean`, `mean±deviation`, either with `*`, or `OOM`; `-` was not printed.
    fn parse(text: &str) -> Option<PrintedValue> {
        if text == "OOM" {
            return Some(PrintedValue { text: "out of memory".to_owned(), mean: None, deviation: None, dagger: false });
        }
        let (number, dagger) = text.strip_suffix('*').map_or((text, false), |number| (number, true));
        let (mean, deviation) = number.split_once('±').map_or((number, None), |(mean, spread)| (mean, Some(spread)));
        let spread = deviation.map(|text| format!(" ± {}{text}", if text.starts_with('.') { "0" } else { "" }));
        Some(PrintedValue {
            text: format!("{mean}{}{}", spread.unwrap_or_default(), if dagger { " †" } else { "" }),
            mean: Some(mean.parse().ok()?),
            deviation: match deviation {
                Some(text) => Some(text.parse().ok()?),
                None => None,
            },
            dagger,
        })
    }
}

/// Where a number of DAPE was printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PrintedSource {
    /// arXiv:2405.14722
    Paper,
    /// arXiv:2410.04798, which trained some of the same again.
    Second,
}

/// Perplexities of DAPE as lines of `text training method length perplexity`, by source.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct PrintedLines(BTreeMap<PrintedSource, Vec<String>>);

impl PrintedLines {
    /// What was printed for a method at so many times the training length; the paper's number comes first. A training is
    /// named by its length, with the size of the model before it where that is not the smallest.
    pub(super) fn value(
        &self,
        corpus: &str,
        training: &str,
        method: &str,
        at: EvaluatedLength,
    ) -> Option<PrintedValue> {
        let theirs: u64 = training.rsplit('_').next()?.parse().unwrap_or(512);
        let length = at.scaled_to(theirs)?.to_string();
        let key = [corpus, training, method, &length];
        let of = |lines: &Vec<String>| -> Option<f64> {
            let mut words = lines.iter().map(|line| line.split(' ').collect::<Vec<_>>());
            words.find(|words| words[..4] == key)?.get(4)?.parse().ok()
        };
        let found: Vec<(PrintedSource, f64)> =
            self.0.iter().filter_map(|(source, lines)| Some((*source, of(lines)?))).collect();
        let text = |(source, value): &(PrintedSource, f64)| match source {
            PrintedSource::Paper => format!("paper: {value:.2}"),
            PrintedSource::Second => format!("V2: {value:.2}"),
        };
        let text = found.iter().map(text).collect::<Vec<String>>().join("; ");
        Some(PrintedValue { text, mean: Some(found.first()?.1), deviation: None, dagger: false })
    }
}

/// Right answers in percent on formal languages, by task.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PrintedHierarchy {
    columns: Vec<String>,
    /// The values of the columns, after `*` where the answer does not depend on the order of the tokens.
    rows: BTreeMap<String, String>,
}

impl PrintedHierarchy {
    /// Right answers in percent that were printed for a column.
    pub(super) fn value(&self, task: &str, column: &str) -> Option<f64> {
        let row = self.rows.get(task)?;
        let place = self.columns.iter().position(|name| name == column)?;
        row.trim_start_matches("* ").split(' ').nth(place)?.parse().ok()
    }

    /// Whether the answer of a task does not depend on the order of its tokens.
    pub(super) fn is_invariant(&self, task: &str) -> bool {
        self.rows.get(task).is_some_and(|row| row.starts_with("* "))
    }
}

/// Right answers in the Long Range Arena, by features and method.
#[cfg(feature = "music-lra")]
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PrintedArena {
    tasks: Vec<String>,
    softmax: BTreeMap<String, String>,
    relu: BTreeMap<String, String>,
}

#[cfg(feature = "music-lra")]
impl PrintedArena {
    pub(super) fn value(&self, task: &str, features: &str, method: &ComparedMethod) -> Option<PrintedValue> {
        let rows = if features == "relu" { &self.relu } else { &self.softmax };
        let place = self.tasks.iter().position(|name| name == task)?;
        PrintedValue::parse(rows.get(&method.printed)?.split(' ').nth(place)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::description::PageDescription;

    fn at(length: u64, train_len: u64) -> EvaluatedLength {
        EvaluatedLength { length, train_len }
    }

    #[test]
    fn every_printed_value_of_kerple_is_read() {
        let page = PageDescription::of("kerple").unwrap();
        let mut values = 0;
        for table in page.printed.values() {
            for (corpus, rows) in &table.rows {
                for (length, cells) in rows {
                    assert_eq!(cells.split(' ').count(), table.columns.len(), "{corpus} {length}: {cells}");
                    for column in &table.columns {
                        let found = table.value(corpus, at(length.parse().unwrap(), table.train_len), column);
                        assert!(found.is_some(), "{corpus} {length} {column}");
                        values += 1;
                    }
                }
            }
        }
        // 108 + 36 + 60 + 45 + 54 + 10 + 4
        assert_eq!(values, 317);
    }

    #[test]
    fn values_of_kerple_are_found_by_their_multiple_of_the_training_length() {
        let page = PageDescription::of("kerple").unwrap();
        let value = |table: &str, corpus, at, column| page.printed[table].value(corpus, at, column);
        let found = value("table3", "github", at(4096, 128), "rotary").unwrap();
        assert_eq!((found.mean, found.deviation, found.dagger), (Some(31.3), Some(5.2), true));
        assert_eq!(found.text, "31.3 ± 5.20 †");
        assert_eq!(value("table3", "github", at(128, 128), "kerple_log").unwrap().text, "3.40 ± 0.20");
        assert_eq!(value("table5", "arxiv", at(32, 1), "kerple_log3").unwrap().text, "out of memory");
        assert_eq!(value("table3", "github", at(192, 128), "rotary"), None);
        assert_eq!(value("table3", "github", at(128, 128), "kerple_log3"), None);
    }

    #[test]
    fn every_printed_perplexity_of_dape_is_read() {
        let page = PageDescription::of("dape").unwrap();
        let mut values = 0;
        for line in page.printed_lines.0.values().flatten() {
            let words: Vec<&str> = line.split(' ').collect();
            let [text, training, method, length, value] = words[..] else { panic!("{line}") };
            let theirs: u64 = training.rsplit('_').next().unwrap().parse().unwrap_or(512);
            let found = page.printed_lines.value(text, training, method, at(length.parse().unwrap(), theirs));
            assert!(found.is_some_and(|found| found.text.contains(value)), "{line}");
            values += 1;
        }
        // of the paper's text, and of the second paper
        assert_eq!(values, 28 + 47);
        let kerple = |length, train_len| page.printed_lines.value("arxiv", "128", "kerple", at(length, train_len));
        assert_eq!(kerple(8192, 128).unwrap().text, "paper: 31.93; V2: 12.59");
        assert_eq!(kerple(1024, 16), kerple(8192, 128));
        assert_eq!(kerple(16, 16).unwrap().mean, Some(8.30));
        assert_eq!(kerple(24, 16), None);
    }

    #[test]
    fn every_printed_accuracy_of_dape_is_read() {
        let table = PageDescription::of("dape").unwrap().hierarchy.unwrap();
        for task in table.printed.rows.keys() {
            for method in &table.methods {
                let value = table.printed.value(task, &method.printed);
                assert!(value.is_some_and(|value| (10.0..=100.0).contains(&value)), "{task} {}", method.key);
            }
        }
        assert_eq!(table.printed.rows.len(), 14);
        let invariant: Vec<&String> =
            table.printed.rows.keys().filter(|task| table.printed.is_invariant(task)).collect();
        assert_eq!(invariant, ["bucket_sort", "cycle_navigation", "parity_check"]);
        assert_eq!(table.printed.value("even_pairs", "dape_fire"), Some(100.0));
        assert_eq!(table.printed.value("binary_multiplication", "fire"), None);
    }

    #[test]
    fn every_printed_accuracy_of_spe_is_read() {
        let page = PageDescription::of("spe").unwrap();
        let arena = page.arena.as_ref().unwrap();
        let mut found = Vec::new();
        for features in ["softmax", "relu"] {
            for key in ["ape", "sine_gated", "conv_gated"] {
                let method = page.method(key);
                found.extend(arena.tasks.iter().filter_map(|task| arena.value(task, features, method)));
            }
        }
        // of 24 cells three were never published
        assert_eq!(found.len(), 21);
        assert!(found.iter().all(|value| value.mean.is_some_and(|mean| (9.0..65.0).contains(&mean))));
        assert!(arena.value("text", "relu", page.method("sine_ungated")).is_none(), "only gated codes were published");
        let value = arena.value("retrieval", "relu", page.method("sine_gated")).unwrap();
        assert_eq!((value.mean, value.deviation, value.text.as_str()), (Some(62.39), Some(0.59), "62.39 ± 0.59"));
    }
}
