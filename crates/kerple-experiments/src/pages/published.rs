//! The published numbers of a paper, read from one data file per paper.

use serde::Deserialize;
use std::collections::BTreeMap;

/// Everything printed in the KERPLE paper that a reproduction can be held against.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Kerple {
    /// Raw size by corpus.
    pub table1: BTreeMap<String, String>,
    /// Settings.
    pub table2: BTreeMap<String, String>,
    pub table3: Printed,
    /// Seconds a step by encoding, those of Table 7 too.
    pub table4: BTreeMap<String, f64>,
    pub table5: Printed,
    pub table6: Printed,
    /// Settings of the larger model.
    pub table8: BTreeMap<String, String>,
    pub table9: Printed,
    pub table9_large: Printed,
    pub table10_short: Printed,
    pub table10_long: Printed,
}

/// A table of perplexities.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Printed {
    train_len: u64,
    columns: Vec<String>,
    /// Corpus, then length, to the values of the columns.
    rows: BTreeMap<String, BTreeMap<String, String>>,
}

/// One printed value.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Value {
    /// As it was printed, with a dagger for the paper's mark.
    pub text: String,
    /// Mean; absent where it ran out of memory.
    pub mean: Option<f64>,
    /// Deviation over seeds.
    pub deviation: Option<f64>,
    /// Whether the logarithmic kernel was significantly better.
    pub dagger: bool,
}

/// The data of the KERPLE paper.
pub(super) fn kerple() -> Kerple {
    toml::from_str(include_str!("kerple.toml")).expect("a test reads all of it")
}

impl Printed {
    /// The value of a column at so many times the training length.
    pub(super) fn value(&self, corpus: &str, (length, train_len): (u64, u64), column: &str) -> Option<Value> {
        let place = self.columns.iter().position(|name| name == column)?;
        let scaled = length.checked_mul(self.train_len)?;
        let length = scaled.is_multiple_of(train_len).then(|| scaled / train_len)?;
        let cells = self.rows.get(corpus)?.get(&length.to_string())?;
        Value::parse(cells.split(' ').nth(place)?)
    }
}

impl Value {
    /// `mean`, `mean±deviation`, either with `*`, or `OOM`.
    fn parse(text: &str) -> Option<Value> {
        if text == "OOM" {
            return Some(Value { text: "out of memory".to_owned(), mean: None, deviation: None, dagger: false });
        }
        let (number, dagger) = text.strip_suffix('*').map_or((text, false), |number| (number, true));
        let (mean, deviation) = number.split_once('±').map_or((number, None), |(mean, spread)| (mean, Some(spread)));
        let spread = deviation.map(|text| format!(" ± {}{text}", if text.starts_with('.') { "0" } else { "" }));
        Some(Value {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_printed_value_is_read() {
        let data = kerple();
        let mut values = 0;
        for table in [
            &data.table3,
            &data.table5,
            &data.table6,
            &data.table9,
            &data.table9_large,
            &data.table10_short,
            &data.table10_long,
        ] {
            for (corpus, rows) in &table.rows {
                for (length, cells) in rows {
                    assert_eq!(cells.split(' ').count(), table.columns.len(), "{corpus} {length}: {cells}");
                    for column in &table.columns {
                        let found = table.value(corpus, (length.parse().unwrap(), table.train_len), column);
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
    fn values_are_found_by_their_multiple_of_the_training_length() {
        let found = kerple().table3.value("github", (4096, 128), "rotary").unwrap();
        assert_eq!((found.mean, found.deviation, found.dagger), (Some(31.3), Some(5.2), true));
        assert_eq!(found.text, "31.3 ± 5.20 †");
        assert_eq!(kerple().table3.value("github", (128, 128), "kerple_log").unwrap().text, "3.40 ± 0.20");
        assert_eq!(kerple().table5.value("arxiv", (32, 1), "kerple_log3").unwrap().text, "out of memory");
        assert_eq!(kerple().table3.value("github", (192, 128), "rotary"), None);
        assert_eq!(kerple().table3.value("github", (128, 128), "kerple_log3"), None);
    }
}
