//! Tables of how far encodings answer.

use super::answers::percent;
use super::{Cell, Grid, Row};
use crate::format::{count, probability};
use crate::results::{AnswerReach, AnswerTable, Results, name_text};
use crate::statistics::reach::threshold;
use crate::statistics::ruler::{RulerSummary, THRESHOLD};
use crate::statistics::{ALPHA, holm, mean};
use std::collections::BTreeSet;

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

/// How far the encoding answers that has the largest mean beyond the training length; nothing where no length exceeds it.
pub(super) fn reach_sentence(table: &AnswerTable) -> Option<String> {
    let with_all_keys = table.reaches.iter().filter(|reach| reach.window.is_none());
    let best = with_all_keys.max_by(|a, b| a.beyond.total_cmp(&b.beyond))?;
    Some(format!("{}: {}.", table.title, reach_words(best, &table.lengths(), table.train_len)))
}

/// `alibi reaches 410 tokens [320, 540], trained at 64 (6 seeds, 6 of 6 learned)`.
fn reach_words(best: &AnswerReach, lengths: &[u64], train_len: u64) -> String {
    let (name, learned, n) = (name_text(best.name()), best.learned, best.n);
    let seeds = format!("{n} {}, {learned} of {n} learned", if n == 1 { "seed" } else { "seeds" });
    if learned == 0 {
        return format!("no run of {name}, which answers most, has learned the task ({seeds})");
    }
    let reach = reach_text(best, lengths);
    let reaches = match best.tokens {
        Some(_) => {
            let (tokens, interval) = reach.split_at(reach.find(['[', '(']).unwrap_or(reach.len()));
            format!("reaches {} tokens {interval}", tokens.trim_end())
        }
        None => "reaches every length in some runs and none in others".to_owned(),
    };
    format!("{name} {}, trained at {} ({seeds})", reaches.trim_end(), count(train_len))
}

/// What the two tables show.
pub(super) const MEANING: &str = "The reach is the median over runs, with its 95 % interval. Runs that do not answer at the training \
     length have not learned the task. They stay in the interval; with fewer than three others there is none. The mean is over octaves \
     from the training length on, with 0 for guessing and 100 for no error. Of all pairs, the mean of the row less that of the column \
     stands below the diagonal, and above it p of a paired two-sided t-test over common seeds, after Holm's correction for all tests \
     of the table. Ranks are by the mean; encodings with a common letter do not differ significantly.";

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

/// The tables of several tasks, one per task so that a mean over tasks counts each once; none where there are fewer than two, or
/// several of one task.
pub(super) fn suite_tables(results: &Results) -> Vec<&AnswerTable> {
    let tables: Vec<&AnswerTable> = results.answers.iter().filter(|table| table.is_of_suite()).collect();
    let contents: BTreeSet<(&str, &str)> = tables.iter().map(|table| (&*table.task, &*table.text)).collect();
    if tables.len() < 2 || contents.len() != tables.len() { Vec::new() } else { tables }
}

/// Tables over several tasks of runs that are trained alike: the reach of each task, and what RULER's table has.
pub(super) fn suite_grids(results: &Results) -> Vec<Grid> {
    let tables = suite_tables(results);
    if tables.is_empty() {
        return Vec::new();
    }
    // a task with several keys has its settings in its name
    let of_task = |name: &str| tables.iter().filter(|table| table.task == name).count();
    let name = |table: &&AnswerTable| if of_task(&table.task) == 1 { table.task.clone() } else { table.title.clone() };
    let tasks: Vec<String> = tables.iter().map(name).collect();
    let named =
        |name: &String| tables.iter().any(|table| table.reaches.iter().any(|reach| reach.name() == (name, None)));
    let names: Vec<&String> = results.encodings.iter().filter(|name| named(name)).collect();
    let dash = || "\u{2013}".to_owned();
    let row = |name: &&String, cells: Vec<String>| Row {
        name: (*name).clone(),
        colour: Some(results.place(name)),
        cells: cells.into_iter().map(Cell::from).collect(),
    };
    let reach = |name: &&String| {
        let of = |table: &&AnswerTable| {
            let found = table.reaches.iter().find(|reach| reach.name() == (name, None));
            found.map_or_else(dash, |reach| reach_text(reach, &table.lengths()))
        };
        row(name, tables.iter().map(of).collect())
    };
    let common = tables.iter().map(|table| BTreeSet::from_iter(table.lengths())).reduce(|a, b| &a & &b);
    let lengths: Vec<u64> = common.unwrap_or_default().into_iter().collect();
    let ruler = |name: &&String| {
        let mean = |length: &u64| {
            let of = |table: &&AnswerTable| Some(100.0 * table.score((name, None), *length)?.accuracy);
            tables.iter().map(of).collect::<Option<Vec<f64>>>().map(|scores| mean(&scores))
        };
        let scores: Vec<f64> = lengths.iter().map(mean).collect::<Option<_>>()?;
        let summary = RulerSummary::of(&scores, THRESHOLD)?;
        let effective = summary.effective.map_or_else(|| format!("< {}", count(lengths[0])), |at| count(lengths[at]));
        let averages = [summary.average_increasing, summary.average_decreasing];
        let shown = scores.iter().chain(&averages).map(|score| format!("{score:.1}"));
        Some(row(name, std::iter::once(effective).chain(shown).collect()))
    };
    let head = |columns: Vec<String>| std::iter::once("encoding".to_owned()).chain(columns).collect();
    let columns = ["effective length".to_owned()].into_iter().chain(lengths.iter().map(|length| count(*length)));
    let rows: Vec<Row> = names.iter().filter_map(ruler).collect();
    let mut grids = vec![Grid {
        caption: "Reach in tokens of each task".to_owned(),
        head: head(tasks),
        rows: names.iter().map(reach).collect(),
    }];
    grids.extend((!rows.is_empty()).then(|| Grid {
        caption: format!(
            "As RULER reports: mean score of {} tasks in %, effective length from {THRESHOLD} %",
            tables.len()
        ),
        head: head(columns.chain(["mean, long count more", "mean, short count more"].map(str::to_owned)).collect()),
        rows,
    }));
    grids
}

/// How many pairs all tables test, and how many of them remain when Holm's method corrects the whole page.
pub(super) fn tests_sentence(results: &Results) -> Option<String> {
    let tested = || results.answers.iter().flat_map(|table| &table.pairs).filter_map(|pair| Some((pair.n, pair.p?)));
    let p: Vec<f64> = tested().map(|(_, p)| p).collect();
    let (least, most) = (tested().map(|(n, _)| n).min()?, tested().map(|(n, _)| n).max()?);
    let significant = |p: &[f64]| p.iter().filter(|p| **p < ALPHA).count();
    let seeds = if least == most { most.to_string() } else { format!("{least} to {most}") };
    Some(format!(
        "{} differences of pairs were tested on this page, over {seeds} seeds: {} have p < {ALPHA} uncorrected, and {} after \
         Holm's correction for the whole page.",
        p.len(),
        significant(&p),
        significant(&holm(&p))
    ))
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
        cells: (0..table.reaches.len())
            .map(|column| cell(row, column))
            .chain([Cell::from(reach.rank.to_string()), Cell::from(reach.letters.clone())])
            .collect(),
    });
    let names = table.reaches.iter().map(|reach| name_text(reach.name()));
    let apart = table.pairs.iter().filter(|pair| pair.is_significant()).count();
    Some(Grid {
        caption: format!("All pairs: {apart} of {tested} differences are significant"),
        head: std::iter::once("encoding".to_owned())
            .chain(names)
            .chain(["rank", "not distinguished"].map(str::to_owned))
            .collect(),
        rows: rows.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_opens_with_a_reach_its_interval_and_how_many_learned() {
        let words = |tokens: Option<f64>, ends: Option<[f64; 2]>, learned: usize| {
            let reach = AnswerReach {
                encoding: "alibi".to_owned(),
                window: None,
                n: 6,
                learned,
                tokens,
                tokens_low: ends.map(|[low, _]| low),
                tokens_high: ends.map(|[_, high]| high),
                seeds: Vec::new(),
                beyond: 0.5,
                rank: 1,
                letters: "a".to_owned(),
                mean_curve: None,
            };
            reach_words(&reach, &[64, 128, 512], 64)
        };
        assert_eq!(
            words(Some(409.7), Some([320.0, 540.0]), 6),
            "alibi reaches 410 tokens [320, 540], trained at 64 (6 seeds, 6 of 6 learned)"
        );
        assert_eq!(
            words(Some(f64::INFINITY), Some([320.0, f64::INFINITY]), 5),
            "alibi reaches > 512 tokens [320, \u{221e}), trained at 64 (6 seeds, 5 of 6 learned)"
        );
        assert_eq!(words(Some(90.0), None, 2), "alibi reaches 90 tokens, trained at 64 (6 seeds, 2 of 6 learned)");
        assert!(words(None, None, 2).contains("every length in some runs and none in others, trained at 64"));
        let nothing = words(Some(0.0), None, 0);
        assert_eq!(nothing, "no run of alibi, which answers most, has learned the task (6 seeds, 0 of 6 learned)");
    }
}
