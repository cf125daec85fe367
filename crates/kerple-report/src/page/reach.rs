//! Tables of how far encodings answer.

use super::answers::percent;
use super::{Cell, Grid, Row};
use crate::format::{count, probability};
use crate::results::{AnswerReach, AnswerTable, Results, name_text};
use crate::statistics::reach::threshold;

/// Tokens of a reach as they are shown, with the open ends that they may have.
fn tokens(tokens: f64, lengths: &[u64]) -> String {
    let [first, last] = [lengths.first(), lengths.last()].map(|end| end.copied().unwrap_or(0));
    match tokens {
        0.0 => format!("< {}", count(first)),
        tokens if tokens.is_infinite() => format!("> {}", count(last)),
        tokens => count(tokens.round() as u64),
    }
}

/// `410 [320, 540]`, with a round bracket and no number where an interval has no end.
pub(super) fn reach_text(reach: &AnswerReach, lengths: &[u64]) -> String {
    let Some(median) = reach.tokens else { return "some all, some none".to_owned() };
    if reach.learned == 0 {
        return "not learned".to_owned();
    }
    let Some((low, high)) = reach.tokens_low.zip(reach.tokens_high) else { return tokens(median, lengths) };
    let end = |tokens: f64| count(tokens.round() as u64);
    let low = if low < 0.5 { "(0".to_owned() } else { format!("[{}", end(low)) };
    let high = if high.is_infinite() { "\u{221e})".to_owned() } else { format!("{}]", end(high)) };
    format!("{} {low}, {high}", tokens(median, lengths))
}

/// What the two tables show.
pub(super) const MEANING: &str = "The reach is the median over runs, with its 95 % interval. Runs that do not answer at the training \
     length have not learned the task. They stay in the interval; with fewer than three others there is none. The mean is over octaves \
     from the training length on, with 0 for guessing and 100 for no error. Of all pairs, the mean of the row less that of the column \
     stands below the diagonal, and above it p of a paired two-sided t-test over common seeds, after Holm's correction for all tests \
     of the table.";

/// The reach of each encoding; nothing where no length exceeds the training length.
pub(super) fn reach_grid(results: &Results, table: &AnswerTable) -> Option<Grid> {
    let lengths = table.lengths();
    let far = 4 * table.train_len;
    let row = |reach: &AnswerReach| {
        let beyond_far = reach.seeds.iter().filter(|seed| seed.tokens > far as f64).count();
        Row {
            name: name_text(reach.name()),
            colour: Some(results.place(&reach.encoding)),
            cells: vec![
                reach_text(reach, &lengths).into(),
                format!("{} of {}", reach.learned, reach.n).into(),
                format!("{beyond_far} of {}", reach.n).into(),
                percent(reach.beyond).into(),
            ],
        }
    };
    let head = [
        "encoding".to_owned(),
        "reaches, tokens".to_owned(),
        "learned".to_owned(),
        format!("beyond {}", count(far)),
        "mean, guessing = 0".to_owned(),
    ];
    let caption = format!("Reach: up to which length {} % are right", percent(threshold(table.chance)));
    (!table.reaches.is_empty()).then(|| Grid {
        caption,
        head: head.into(),
        rows: table.reaches.iter().map(row).collect(),
    })
}

/// Differences of means below the diagonal, corrected p above it.
pub(super) fn pairs_grid(results: &Results, table: &AnswerTable) -> Option<Grid> {
    let tested = table.pairs.iter().filter(|pair| pair.p.is_some()).count();
    if tested == 0 {
        return None;
    }
    let cell = |row: usize, column: usize| {
        let pair = table.pairs.iter().find(|pair| pair.rows == [row.min(column), row.max(column)]);
        let Some(pair) = pair else { return Cell::from("\u{2013}".to_owned()) };
        let shown = if row > column {
            // of the row's encoding less the column's
            pair.difference.map(|difference| percent(-difference).replace('-', "\u{2212}"))
        } else {
            pair.p_holm.map(probability)
        };
        let best = pair.is_significant();
        Cell { best, note: pair.untestable.clone(), ..Cell::from(shown.unwrap_or_else(|| "\u{2013}".to_owned())) }
    };
    let rows = table.reaches.iter().enumerate().map(|(row, reach)| Row {
        name: name_text(reach.name()),
        colour: Some(results.place(&reach.encoding)),
        cells: (0..table.reaches.len()).map(|column| cell(row, column)).collect(),
    });
    let names = table.reaches.iter().map(|reach| name_text(reach.name()));
    let apart = table.pairs.iter().filter(|pair| pair.is_significant()).count();
    Some(Grid {
        caption: format!("All pairs: {apart} of {tested} differences are significant"),
        head: std::iter::once("encoding".to_owned()).chain(names).collect(),
        rows: rows.collect(),
    })
}
