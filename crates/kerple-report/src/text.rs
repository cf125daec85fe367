//! The table of results for a terminal.

use crate::error::Result;
use crate::format::{count, deviation, number};
use crate::results::{Results, Score, Table};
use crate::run::Run;

/// Encoding by length, perplexity and bits per byte, as plain text; `*` marks the lowest at a length.
///
/// # Errors
/// [`Error::NoRuns`](crate::Error::NoRuns) of no runs.
pub fn table_text(runs: &[Run]) -> Result<String> {
    let results = Results::of(runs, None)?;
    let mut text = String::new();
    for table in &results.tables {
        text.push_str(&format!("{}\n", table.setting.title()));
        text.push_str(&block("perplexity", table, |score| {
            let mark = if score.best {
                "*"
            } else if score.dagger {
                "\u{2020}"
            } else {
                " "
            };
            Some((score.perplexity, score.perplexity_deviation, mark))
        }));
        if table.scores.iter().any(|score| score.bits_per_byte.is_some()) {
            text.push_str(&block("bits per byte", table, |score| {
                let mark = if score.best_bits_per_byte { "*" } else { " " };
                Some((score.bits_per_byte?, score.bits_per_byte_deviation, mark))
            }));
        }
        text.push('\n');
    }
    if results.tables.is_empty() {
        text.push_str("nothing evaluated yet\n\n");
    }
    if results.tables.iter().any(|table| table.scores.iter().any(|score| score.best)) {
        text.push_str("* lowest at the length\n");
    }
    if let Some(reference) =
        results.reference.filter(|_| results.tables.iter().any(|table| table.scores.iter().any(|score| score.dagger)))
    {
        text.push_str(&format!("\u{2020} {reference} is significantly better (paired t-test, p < 0.05)\n"));
    }
    for note in &results.notes {
        text.push_str(&format!("note: {note}\n"));
    }
    Ok(text)
}

/// Mean, deviation and the mark behind them.
type Shown = (f64, Option<f64>, &'static str);

/// Aligned columns: names to the left, numbers to the right.
fn block(quantity: &str, table: &Table, value: impl Fn(&Score) -> Option<Shown>) -> String {
    let lengths = table.lengths();
    let mut lines = vec![
        std::iter::once(quantity.to_owned())
            .chain(lengths.iter().map(|&length| count(length) + " "))
            .collect::<Vec<_>>(),
    ];
    for encoding in table.encodings() {
        let cells = lengths.iter().map(|&length| {
            let score = table.score(encoding, length);
            score.and_then(|score| Some(cell(score, value(score)?))).unwrap_or_else(|| "- ".into())
        });
        lines.push(std::iter::once(encoding.to_owned()).chain(cells).collect());
    }
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..=lengths.len()).map(width).collect();
    let aligned = lines.iter().map(|line| {
        let cells = line[1..].iter().zip(&widths[1..]).map(|(cell, width)| format!("  {cell:>width$}"));
        format!("  {:<first$}{}", line[0], cells.collect::<String>(), first = widths[0]).trim_end().to_owned() + "\n"
    });
    aligned.collect()
}

fn cell(score: &Score, (mean, spread, mark): Shown) -> String {
    let spread = spread
        .filter(|_| mean.is_finite())
        .map_or_else(String::new, |spread| format!(" ± {}", deviation(mean, spread)));
    let partial = if score.n < score.n_expected { format!(" (n={})", score.n) } else { String::new() };
    format!("{}{spread}{partial}{mark}", number(mean))
}
