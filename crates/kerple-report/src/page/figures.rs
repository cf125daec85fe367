//! The plots of a report, from results and runs.

pub mod kernels;
mod training;

use std::collections::{BTreeMap, BTreeSet};

use super::{Figure, Section};
use crate::plot::{Axis, Legend, Plot, Point, Series};
use crate::results::{PerplexityTable, PositionCurve, Results, RowName, RunGroup, Setting, name_text};

/// All figures there are data for.
pub(crate) fn figures(runs: &[crate::Run], results: &Results) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (index, table) in results.tables.iter().enumerate() {
        figures.extend(by_length(results, table, index));
    }
    for (index, table) in results.answers.iter().enumerate() {
        figures.extend(super::answers::figures(results, table, index));
    }
    figures.extend(by_position(results));
    for part in parts(runs, results) {
        figures.extend(kernels::kernels(&part));
        figures.extend(kernels::effective_lengths(&part));
        figures.extend(kernels::parameters(&part));
        figures.extend(training::curves(&part));
    }
    figures
}

/// The runs of one group, which are all that may meet in a figure.
struct GroupRuns<'a> {
    results: &'a Results,
    group: &'a RunGroup,
    place: usize,
    runs: Vec<&'a crate::Run>,
}

fn parts<'a>(runs: &'a [crate::Run], results: &'a Results) -> Vec<GroupRuns<'a>> {
    let of_group = |group: &RunGroup| {
        let counted = runs.iter().filter(|run| run.duplicate_of.is_none());
        counted.filter(|run| run.conditions.fingerprint() == group.id).collect()
    };
    let part = |(place, group)| GroupRuns { results, group, place, runs: of_group(group) };
    results.groups.iter().enumerate().map(part).collect()
}

impl GroupRuns<'_> {
    /// Name of a figure's file and anchor.
    fn id(&self, name: &str) -> String {
        if self.place == 0 { name.to_owned() } else { format!("{name}-{}", self.place + 1) }
    }

    /// Title of a figure, with what tells the group from others.
    fn title(&self, title: &str) -> String {
        if self.group.title.is_empty() { title.to_owned() } else { format!("{title}: {}", self.group.title) }
    }
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
fn by_length(results: &Results, table: &PerplexityTable, index: usize) -> Vec<Figure> {
    let lengths = table.lengths();
    let series: Vec<Series> = table.names().into_iter().map(|name| score_series(results, table, name)).collect();
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
    let setting = &table.setting.title;
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
                "The same points on a linear axis that ends at {NEAR} times the lowest perplexity; \
                    lines that leave the frame continue above it."
            ),
            plots: vec![plot(axis, format!("{setting}, perplexities up to {NEAR} times the lowest, {best:.1}."))],
        });
    }
    figures
}

fn score_series(results: &Results, table: &PerplexityTable, name: RowName) -> Series {
    let scores = table.scores.iter().filter(|score| score.name() == name);
    let points = scores.map(|score| Point {
        x: score.eval_len as f64,
        y: score.perplexity,
        error: score.perplexity_deviation.filter(|deviation| deviation.is_finite()).unwrap_or(0.0),
    });
    let line = Series::line(name_text(name), results.place(name.0), []);
    Series { points: points.collect(), markers: true, dash: usize::from(name.1.is_some()), ..line }
}

/// Perplexity by position: a figure for each of the two longest lengths, or one over all lengths where each length has only
/// its last positions scored, which are the same tokens with more and more context.
fn by_position(results: &Results) -> Vec<Figure> {
    let panels = results.tables.iter().flat_map(|table| {
        let setting = &table.setting;
        let mut lengths: BTreeMap<u64, Vec<&PositionCurve>> = BTreeMap::new();
        for curve in results.positions.iter().filter(|curve| curve.setting == *setting) {
            lengths.entry(curve.eval_len).or_default().push(curve);
        }
        let all_in_one = setting.protocol.starts_with("last:") && !lengths.is_empty();
        let panels: Vec<Vec<&PositionCurve>> = match all_in_one {
            true => vec![lengths.into_values().flatten().collect()],
            false => {
                let skip = lengths.len().saturating_sub(2);
                lengths.into_values().skip(skip).collect()
            }
        };
        panels.into_iter().map(move |curves| (setting, curves))
    });
    let figure = |(index, (setting, curves)): (usize, (&Setting, Vec<&PositionCurve>))| {
        position_figure(results, index, setting, &curves)
    };
    panels.enumerate().filter_map(figure).collect()
}

/// Perplexities by position of one setting, figure number `index` of its kind; `None` without values to draw.
pub fn position_figure(
    results: &Results,
    index: usize,
    setting: &Setting,
    curves: &[&PositionCurve],
) -> Option<Figure> {
    let lengths: BTreeSet<u64> = curves.iter().map(|curve| curve.eval_len).collect();
    let (&shortest, &length) = (lengths.first()?, lengths.last()?);
    let series = position_series(results, curves);
    let shown = series.iter().flat_map(|series| &series.points).map(|point| point.y);
    let (low, high) = range(shown.filter(|&y| y > 0.0))?;
    let top = high.min(low * 5.0);
    let cut = if high > top { format!(" Values above {top:.0} leave the frame.") } else { String::new() };
    let (title, which) = match lengths.len() {
        1 => (format!("Perplexity by position at {length} tokens"), String::new()),
        _ => (
            format!("Perplexity by position, {shortest} to {length} tokens"),
            " A point is a bin of positions of one length: every length scores the same tokens, the longer ones with more \
             context."
                .to_owned(),
        ),
    };
    let group = results.groups.iter().find(|group| group.id == setting.group && !group.title.is_empty());
    let title = group.map_or(title.clone(), |group| format!("{title}: {}", group.title));
    let first = curves.iter().flat_map(|curve| curve.bins.first()).map(|bin| bin.first).min()?;
    let seeds = curves.iter().map(|curve| curve.n);
    let seeds = match (seeds.clone().min().unwrap_or(0), seeds.max().unwrap_or(0)) {
        (least, most) if least < most => {
            format!(" Lines are over {least} to {most} seeds, and so over different texts.")
        }
        _ => String::new(),
    };
    let windowed = if curves.iter().any(|curve| curve.window.is_some()) {
        " Dashed: attention restricted to a window."
    } else {
        ""
    };
    let plot = Plot {
        title: title.clone(),
        description: format!("{}: positions up to {length}.", setting.title),
        x: Axis::log("position", first as f64, length as f64),
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
            "{}. The loss is averaged over segments, seeds, and the scored positions of bins of equal ratio ({} an octave of \
             positions), then exponentiated.{which}{seeds}{windowed}{cut}",
            setting.title,
            crate::results::BINS_AN_OCTAVE
        ),
        plots: vec![plot],
    })
}

/// A line for each encoding and window, through the bins of all lengths.
fn position_series(results: &Results, curves: &[&PositionCurve]) -> Vec<Series> {
    let mut lines: BTreeMap<(usize, Option<u64>), Vec<&PositionCurve>> = BTreeMap::new();
    for curve in curves {
        lines.entry((results.place(&curve.encoding), curve.window)).or_default().push(curve);
    }
    let line = |((place, window), curves): ((usize, Option<u64>), Vec<&PositionCurve>)| {
        let bins = curves.iter().flat_map(|curve| &curve.bins);
        // The middle of a bin, in the axis's own measure.
        let mut points: Vec<(f64, f64)> =
            bins.map(|bin| ((bin.first as f64 * bin.last as f64).sqrt(), bin.perplexity)).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let name = name_text((&results.encodings[place], window));
        let markers = curves.len() > 1;
        Series { dash: usize::from(window.is_some()), markers, ..Series::line(name, place, points) }
    };
    lines.into_iter().map(line).collect()
}
