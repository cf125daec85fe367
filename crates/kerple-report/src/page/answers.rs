//! Tables and figures of right answers.

use super::reach::{MEANING, pairs_grid, reach_grid};
use super::{Cell, Figure, FigurePart, Grid, Row, Section};
use crate::format::{count, probability};
use crate::plot::{Axis, Legend, Plot, Point, Series};
use crate::results::{AnswerMean, AnswerShortcut, AnswerTable, AnswerTest, Results, RowName, name_text};
use crate::statistics::LEAST_PAIRS;
use serde::Serialize;

/// One table of answers with what belongs to it.
#[derive(Serialize)]
pub(super) struct AnswersPart {
    title: String,
    meaning: String,
    grid: Grid,
    reach: Option<Grid>,
    reach_meaning: &'static str,
    pairs: Option<Grid>,
    figures: Vec<FigurePart>,
}

/// A share as it is shown: percent with two digits.
pub fn percent(share: f64) -> String {
    format!("{:.2}", 100.0 * share)
}

impl AnswersPart {
    pub(super) fn new(results: &Results, table: &AnswerTable, figures: Vec<FigurePart>) -> AnswersPart {
        let lengths = table.some_lengths();
        let mut head: Vec<String> = [
            "encoding".to_owned(),
            format!("up to {}", count(table.train_len)),
            format!("beyond {}", count(table.train_len)),
            "best seed".to_owned(),
        ]
        .into();
        head.extend(lengths.iter().map(|&length| count(length)));
        let row = |mean: &AnswerMean| {
            let shown = |value: Option<f64>| Cell::from(value.map_or_else(|| "\u{2013}".to_owned(), percent));
            let spread = mean.beyond_deviation.map(percent);
            let dagger = mean.test.as_ref().is_some_and(|test| test.dagger);
            let untested = mean.untestable.as_ref().filter(|_| mean.n >= LEAST_PAIRS);
            let untested = untested.map_or_else(String::new, |reason| format!("; not tested: {reason}"));
            let seeds = match mean.beyond {
                Some(_) if mean.n_beyond < mean.n => format!("n = {} of {}", mean.n_beyond, mean.n),
                _ => format!("n = {}", mean.n),
            };
            let note = Some(format!("{seeds}{}{untested}", mean.test.as_ref().map_or_else(String::new, in_words)));
            let mut cells =
                vec![shown(mean.within), Cell { spread, note, dagger, ..shown(mean.beyond) }, shown(mean.beyond_max)];
            cells.extend(lengths.iter().map(|&length| {
                let score = table.score(mean.name(), length);
                let spread = score.and_then(|score| score.accuracy_deviation).map(percent);
                let best = score.is_some_and(|score| score.best);
                let few = score.filter(|score| score.n < mean.n).map(|score| format!("n = {}", score.n));
                Cell { spread, best, note: few, ..shown(score.map(|score| score.accuracy)) }
            }));
            Row { name: name_text(mean.name()), colour: Some(results.place(&mean.encoding)), cells }
        };
        let mut rows: Vec<Row> = table.means.iter().map(row).collect();
        let guess = vec![Cell::from(percent(table.chance)); lengths.len() + 3];
        rows.push(Row { name: "guessing".to_owned(), colour: None, cells: guess });
        if let Some(shortcut) = &table.shortcut {
            let at = |length: &u64| shortcut.scores.iter().find(|(known, _)| known == length).map(|(_, score)| *score);
            let cells = [None; 3].into_iter().chain(lengths.iter().map(at));
            let shown = |value: Option<f64>| Cell::from(value.map_or_else(|| "\u{2013}".to_owned(), percent));
            let name = format!("rule: {}", shortcut.rule);
            rows.push(Row { name, colour: None, cells: cells.map(shown).collect() });
        }
        let caption = format!("Right answers in percent: means over lengths, and at some of {}", table.lengths().len());
        let grid = Grid { caption, head, rows };
        let tests = table.means.iter().find_map(|mean| mean.test.as_ref()).map_or_else(String::new, |test| {
            format!(
                " Small print: the difference to {0} with its 95 % interval; \u{2020}: {0} has \
                    significantly more right answers beyond the training length (paired two-sided \
                    t-test over the common seeds, p < 0.05 after Holm's correction for all tests of \
                    this table).",
                test.reference
            )
        });
        AnswersPart {
            title: table.title.clone(),
            meaning: format!("{}{tests}", table.meaning()),
            grid,
            reach: reach_grid(results, table),
            reach_meaning: MEANING,
            pairs: pairs_grid(results, table),
            figures,
        }
    }
}

/// Difference, interval and p of a test, in percent, behind the number of seeds.
fn in_words(test: &AnswerTest) -> String {
    let ends = [test.difference, test.difference_low, test.difference_high];
    let [difference, low, high] = ends.map(|share| percent(share).replace('-', "\u{2212}"));
    format!("; {difference} [{low}, {high}], p = {}, {} by Holm", probability(test.p), probability(test.p_holm))
}

/// Accuracy by length, and by depth at the longest length.
pub(super) fn figures(results: &Results, table: &AnswerTable, index: usize) -> Vec<Figure> {
    let mut figures = vec![by_length(results, table, index)];
    figures.extend(by_depth(results, table, index));
    figures
}

fn plot(title: &str, table: &AnswerTable, x: Axis, mut series: Vec<Series>, ends: [f64; 2]) -> Plot {
    let places = series.len();
    let chance = ends.map(|x| (x, 100.0 * table.chance));
    series.push(Series { dash: 1, ..Series::line("guessing", places, chance) });
    Plot {
        title: title.to_owned(),
        description: format!("{}: right answers in percent, guessing has {} %.", table.title, percent(table.chance)),
        x,
        y: Axis::linear("right answers, %", 0.0, 100.0),
        series,
        rule: None,
        legend: Legend::Ends,
        titled: false,
    }
}

fn by_length(results: &Results, table: &AnswerTable, index: usize) -> Figure {
    let lengths = table.lengths();
    let ends = [lengths.first(), lengths.last()].map(|end| end.copied().unwrap_or(1) as f64);
    let line = |name: RowName| {
        let scores = table.scores.iter().filter(|score| score.name() == name);
        let points = scores.map(|score| Point {
            x: score.eval_len as f64,
            y: 100.0 * score.accuracy,
            error: 100.0 * score.accuracy_deviation.filter(|deviation| deviation.is_finite()).unwrap_or(0.0),
        });
        let line = Series::line(name_text(name), results.place(name.0), []);
        Series { points: points.collect(), markers: lengths.len() <= 40, dash: usize::from(name.1.is_some()), ..line }
    };
    let mut series: Vec<Series> = table.means.iter().map(|mean| line(mean.name())).collect();
    let mut caption = "Points are means over seeds, bars their sample deviation; dashed: guessing.".to_owned();
    if let Some(AnswerShortcut { rule, scores }) = &table.shortcut {
        let points = scores.iter().map(|(length, score)| (*length as f64, 100.0 * score));
        series.push(Series { dash: 2, ..Series::line(format!("rule: {rule}"), series.len() + 1, points) });
        caption += &format!(" Dotted: a rule that skips the task ({rule}), on the same sequences.");
    }
    let title = "Right answers by length";
    let axis = Axis::linear("tokens of a sequence", ends[0].min(0.0), ends[1]);
    let plot =
        Plot { rule: Some((table.train_len as f64, "trained".into())), ..plot(title, table, axis, series, ends) };
    Figure {
        id: format!("answers-{index}"),
        section: Section::Answers(index),
        title: format!("{title}: {}", table.title),
        caption,
        plots: vec![plot],
    }
}

fn by_depth(results: &Results, table: &AnswerTable, index: usize) -> Option<Figure> {
    let longest = table.depths.iter().map(|depths| depths.eval_len).max()?;
    let here = table.depths.iter().filter(|depths| depths.eval_len == longest);
    let series = here.map(|depths| {
        let parts = depths.accuracy.len() as f64;
        let points = depths.accuracy.iter().enumerate();
        let points = points.map(|(at, share)| (100.0 * (at as f64 + 0.5) / parts, 100.0 * share));
        let name = (depths.encoding.as_str(), depths.window);
        let line = Series::line(name_text(name), results.place(name.0), points);
        Series { markers: true, dash: usize::from(name.1.is_some()), ..line }
    });
    let title = format!("Right answers by the place of the key, {} tokens", count(longest));
    let axis = Axis::linear("place of the key, % of the sequence", 0.0, 100.0);
    Some(Figure {
        id: format!("answers-{index}-depth"),
        section: Section::Answers(index),
        title: format!("{title}: {}", table.title),
        caption: "0 % is the start of the sequence, where the key is farthest from the question.".to_owned(),
        plots: vec![plot(&title, table, axis, series.collect(), [0.0, 100.0])],
    })
}

/// The main finding of a table, where two encodings can be compared.
pub(super) fn headline(table: &AnswerTable) -> Option<String> {
    let is_known = |mean: &&AnswerMean| mean.beyond.is_some_and(f64::is_finite);
    let mut means: Vec<&AnswerMean> = table.means.iter().filter(is_known).collect();
    means.sort_by(|a, b| b.beyond.unwrap_or(0.0).total_cmp(&a.beyond.unwrap_or(0.0)));
    let [best, _, ..] = means[..] else { return None };
    Some(format!(
        "{}: beyond the training length of {}, {} has the most right answers of {} encodings: {} % (n = {}), guessing has {} %.",
        table.title,
        table.train_len,
        name_text(best.name()),
        means.len(),
        percent(best.beyond?),
        best.n_beyond,
        percent(table.chance)
    ))
}
