//! Which plots a report has, from results and runs.

mod kernels;
mod training;

use std::collections::BTreeMap;

use crate::plot::{Axis, Legend, Plot, Point, Series};
use crate::results::{PositionCurve, Results, Setting, Table};

/// Where a figure stands on the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    /// Beside the table of this number.
    Table(usize),
    Positions,
    Kernels,
    Training,
}

/// A plot, or small ones that belong together, with words.
pub(crate) struct Figure {
    pub id: String,
    pub section: Section,
    pub title: String,
    pub caption: String,
    /// One large plot, or small ones that carry their titles.
    pub plots: Vec<Plot>,
}

/// All figures there are data for.
pub(crate) fn figures(runs: &[crate::Run], results: &Results) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (index, table) in results.tables.iter().enumerate() {
        figures.extend(by_length(results, table, index));
    }
    figures.extend(by_position(results));
    figures.extend(kernels::kernels(runs, results));
    figures.extend(kernels::effective_lengths(results));
    figures.extend(kernels::parameters(runs, results));
    figures.extend(training::losses(runs, results));
    figures
}

/// End of the axis that shows what a blown-up curve would hide, as a multiple of the lowest perplexity.
const NEAR: f64 = 1.8;

/// Least and greatest of the finite values.
fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.filter(|value| value.is_finite()).fold(None, |ends, value| {
        let (low, high) = ends.unwrap_or((value, value));
        Some((low.min(value), high.max(value)))
    })
}

/// Perplexity by length, on logarithmic axes, and again without the encodings that blow up if there are such.
fn by_length(results: &Results, table: &Table, index: usize) -> Vec<Figure> {
    let lengths = table.lengths();
    let series: Vec<Series> =
        table.encodings().into_iter().map(|encoding| score_series(results, table, encoding)).collect();
    let reach = series.iter().flat_map(|series| &series.points).flat_map(|p| [p.y, p.y + p.error, p.y - p.error]);
    let Some((low, high)) = range(reach.filter(|&y| y > 0.0)) else { return Vec::new() };
    let means = || series.iter().flat_map(|series| &series.points).map(|point| point.y);
    let (best, worst) = range(means()).unwrap_or((low, high));
    let plot = |y: Axis, description: String| Plot {
        title: "Perplexity by evaluated length".into(),
        description,
        x: Axis::lengths("tokens evaluated", &lengths),
        y,
        series: series.clone(),
        rule: lengths.contains(&table.setting.train_len).then(|| (table.setting.train_len as f64, "trained".into())),
        legend: Legend::Ends,
        titled: false,
    };
    let seeds = table.scores.iter().map(|score| score.n).max().unwrap_or(0);
    let points = match seeds {
        1 => "Points are single seeds".to_owned(),
        _ => format!("Points are means and bars sample deviations over up to {seeds} seeds"),
    };
    let low = low.max(best / 3.0);
    let setting = table.setting.title();
    let mut figures = vec![Figure {
        id: format!("perplexity-{index}"),
        section: Section::Table(index),
        title: "Perplexity by evaluated length".into(),
        caption: format!(
            "Both axes are logarithmic. {points}; a cross at the top is a perplexity that is NaN or infinite."
        ),
        plots: vec![plot(
            Axis::log("perplexity", low * 0.95, high * 1.05),
            format!("{setting}: from {best:.1} to {worst:.1}."),
        )],
    }];
    if worst > 3.0 * best {
        let axis = Axis::linear("perplexity", best * 0.95, best * NEAR);
        figures.push(Figure {
            id: format!("perplexity-{index}-near"),
            section: Section::Table(index),
            title: "The same, near the best".into(),
            caption: format!(
                "The same points on a linear axis that ends at {NEAR} times the lowest perplexity; lines that leave the frame go on above it."
            ),
            plots: vec![plot(axis, format!("{setting}, perplexities up to {NEAR} times the lowest, {best:.1}."))],
        });
    }
    figures
}

fn score_series(results: &Results, table: &Table, encoding: &str) -> Series {
    let scores = table.scores.iter().filter(|score| score.encoding == encoding);
    let points = scores.map(|score| Point {
        x: score.length as f64,
        y: score.perplexity,
        error: score.perplexity_deviation.filter(|deviation| deviation.is_finite()).unwrap_or(0.0),
    });
    Series { points: points.collect(), markers: true, ..Series::line(encoding, results.place(encoding), []) }
}

/// Perplexity by position at the two longest lengths that have it, with and without a window in one plot.
fn by_position(results: &Results) -> Vec<Figure> {
    let mut groups: BTreeMap<(Setting, u64), Vec<&PositionCurve>> = BTreeMap::new();
    for curve in &results.positions {
        let setting = Setting { window: None, ..curve.setting.clone() };
        groups.entry((setting, curve.length)).or_default().push(curve);
    }
    let mut settings: BTreeMap<Setting, Vec<(u64, Vec<&PositionCurve>)>> = BTreeMap::new();
    for ((setting, length), curves) in groups {
        settings.entry(setting).or_default().push((length, curves));
    }
    let longest = settings.into_iter().flat_map(|(setting, lengths)| {
        let skip = lengths.len().saturating_sub(2);
        lengths.into_iter().skip(skip).map(move |(length, curves)| (setting.clone(), length, curves))
    });
    longest
        .enumerate()
        .filter_map(|(index, (setting, length, curves))| position_figure(results, index, &setting, length, &curves))
        .collect()
}

fn position_figure(
    results: &Results,
    index: usize,
    setting: &Setting,
    length: u64,
    curves: &[&PositionCurve],
) -> Option<Figure> {
    let series: Vec<Series> = curves.iter().map(|curve| position_series(results, curve)).collect();
    let (low, high) = range(series.iter().flat_map(|series| &series.points).map(|point| point.y))?;
    let top = high.min(low * 5.0);
    let cut = if high > top { format!(" Values above {top:.0} leave the frame.") } else { String::new() };
    let title = format!("Perplexity by position at {length} tokens");
    let plot = Plot {
        title: title.clone(),
        description: format!("{}: positions 1 to {length}.", setting.title()),
        x: Axis::log("position", 1.0, length as f64),
        y: Axis::log("perplexity", low * 0.95, top * 1.05),
        series,
        rule: (setting.train_len < length).then(|| (setting.train_len as f64, "trained".into())),
        legend: Legend::Ends,
        titled: false,
    };
    Some(Figure {
        id: format!("positions-{index}"),
        section: Section::Positions,
        title,
        caption: format!(
            "{}. The loss is averaged over segments, seeds and bins of equal ratio ({} an octave of positions), then \
             exponentiated. Dashed: attention restricted to a window.{cut}",
            setting.title(),
            crate::results::BINS_AN_OCTAVE
        ),
        plots: vec![plot],
    })
}

fn position_series(results: &Results, curve: &PositionCurve) -> Series {
    // The middle of a bin, in the axis's own measure.
    let points = curve.bins.iter().map(|bin| ((bin.first as f64 * bin.last as f64).sqrt(), bin.perplexity));
    let window = curve.setting.window.map_or_else(String::new, |window| format!(", window {window}"));
    let name = format!("{}{window}", curve.encoding);
    Series { dashed: curve.setting.window.is_some(), ..Series::line(name, results.place(&curve.encoding), points) }
}
