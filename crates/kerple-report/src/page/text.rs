//! The tables of results for a terminal.

use super::answers::percent;
use super::reach::reach_text;
use super::{Cell, Grid, Row};
use crate::format::{count, deviation, number, one_line};
use crate::results::{AnswerMean, AnswerTable, PerplexityScore, PerplexityTable, Results, name_text};

/// Encoding by length, perplexity and bits per byte, as plain text; `*` marks the lowest at a length.
pub fn table_text(results: &Results) -> String {
    let mut text = String::new();
    for table in &results.tables {
        text.push_str(&format!("{}\n", table.setting.title));
        text.push_str(&block("perplexity", table, |score| {
            let mark = if score.best {
                "*"
            } else if score.dagger {
                "\u{2020}"
            } else {
                " "
            };
            Some(MarkedMean { mean: score.perplexity, spread: score.perplexity_deviation, mark })
        }));
        if table.scores.iter().any(|score| score.bits_per_byte.is_some()) {
            text.push_str(&block("bits per byte", table, |score| {
                let mark = if score.best_bits_per_byte { "*" } else { " " };
                Some(MarkedMean { mean: score.bits_per_byte?, spread: score.bits_per_byte_deviation, mark })
            }));
        }
        text.push('\n');
    }
    for table in &results.answers {
        text.push_str(&format!("{}: right answers in percent, guessing has {}\n", table.title, percent(table.chance)));
        text.push_str(&answers_block(table));
        text.push('\n');
    }
    for grid in super::grids::learning(results) {
        text.push_str(&format!("{}\n{}\n", grid.caption, grid_block(&grid)));
    }
    if results.tables.is_empty() && results.answers.is_empty() {
        text.push_str("nothing evaluated yet\n\n");
    }
    if results.tables.iter().any(|table| table.scores.iter().any(|score| score.best)) {
        text.push_str("* lowest at the length\n");
    }
    if results.answers.iter().any(|table| table.scores.iter().any(|score| score.best)) {
        text.push_str("* most right answers at the length\n");
    }
    if let Some(reference) = results
        .reference
        .as_ref()
        .filter(|_| results.tables.iter().any(|table| table.scores.iter().any(|score| score.dagger)))
    {
        text.push_str(&format!("\u{2020} {reference} is significantly better (paired t-test, p < 0.05)\n"));
    }
    for note in &results.notes {
        text.push_str(&format!("note: {note}\n"));
    }
    text
}

/// A table of a page whose cells have no marks.
fn grid_block(grid: &Grid) -> String {
    let row = |row: &Row| {
        let cell = |cell: &Cell| {
            cell.note.as_ref().map_or_else(|| cell.text.clone(), |note| format!("{} ({note})", cell.text))
        };
        std::iter::once(row.name.clone()).chain(row.cells.iter().map(cell)).collect()
    };
    columns(&grid.head[0], grid.head[1..].to_vec(), grid.rows.iter().map(row).collect())
}

/// Means within and beyond the training length, and some lengths.
fn answers_block(table: &AnswerTable) -> String {
    let (all, lengths) = (table.lengths(), table.some_lengths());
    let shown = |share: Option<f64>| share.map_or_else(|| "- ".to_owned(), |share| percent(share) + " ");
    let row = |mean: &AnswerMean| {
        let at = lengths.iter().map(|&length| {
            let score = table.score(mean.name(), length);
            let mark = if score.is_some_and(|score| score.best) { "*" } else { " " };
            score.map_or_else(|| "- ".to_owned(), |score| percent(score.accuracy) + mark)
        });
        let reach = table.reaches.iter().find(|reach| reach.name() == mean.name());
        let reach = reach.map_or_else(|| "- ".to_owned(), |reach| reach_text(reach, &all) + " ");
        [name_text(mean.name()), shown(mean.within), shown(mean.beyond), reach].into_iter().chain(at).collect()
    };
    let head = [format!("up to {} ", table.train_len), format!("beyond {} ", table.train_len), "reaches ".to_owned()];
    let head = head.into_iter().chain(lengths.iter().map(|&length| count(length) + " "));
    columns("right %", head.collect(), table.means.iter().map(row).collect())
}

/// A mean, its sample deviation and the mark after them.
struct MarkedMean {
    mean: f64,
    spread: Option<f64>,
    mark: &'static str,
}

fn block(quantity: &str, table: &PerplexityTable, value: impl Fn(&PerplexityScore) -> Option<MarkedMean>) -> String {
    let lengths = table.lengths();
    let row = |name| {
        let cells = lengths.iter().map(|&length| {
            let score = table.score(name, length);
            score.and_then(|score| Some(cell(score, value(score)?))).unwrap_or_else(|| "- ".into())
        });
        std::iter::once(name_text(name)).chain(cells).collect()
    };
    aligned(quantity, &lengths, table.names().into_iter().map(row).collect())
}

/// Aligned columns: names to the left, numbers to the right, each with room for a mark.
fn aligned(quantity: &str, lengths: &[u64], rows: Vec<Vec<String>>) -> String {
    columns(quantity, lengths.iter().map(|&length| count(length) + " ").collect(), rows)
}

/// Characters in a line of a terminal that was never made wider.
const LINE: usize = 80;

/// The rows as columns; those that no longer fit into a line follow in another block, under the same names.
fn columns(quantity: &str, head: Vec<String>, rows: Vec<Vec<String>>) -> String {
    let count = head.len();
    let head = std::iter::once(quantity.to_owned()).chain(head);
    let rows = rows.into_iter().map(|row| row.iter().map(|cell| one_line(cell)).collect());
    let lines: Vec<Vec<String>> = std::iter::once(head.collect()).chain(rows).collect();
    let width = |column: usize| 2 + lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..=count).map(width).collect();
    let mut text = String::new();
    let mut first = 1;
    while first <= count {
        let mut end = first + 1;
        while end <= count && widths[0] + widths[first..=end].iter().sum::<usize>() <= LINE {
            end += 1;
        }
        for line in &lines {
            let names = widths[0] - 2;
            let cells = line[first..end].iter().zip(&widths[first..end]);
            let cells: String = cells.map(|(cell, width)| format!("{cell:>width$}")).collect();
            text += format!("  {:<names$}{cells}", line[0]).trim_end();
            text.push('\n');
        }
        first = end;
    }
    text
}

fn cell(score: &PerplexityScore, MarkedMean { mean, spread, mark }: MarkedMean) -> String {
    let spread = spread
        .filter(|_| mean.is_finite())
        .map_or_else(String::new, |spread| format!(" ± {}", deviation(mean, spread)));
    let partial = if score.n < score.n_expected { format!(" (n={})", score.n) } else { String::new() };
    format!("{}{spread}{partial}{mark}", number(mean))
}
