//! Figures of a search: what was confirmed, and what the rungs had shown of it before.

use super::confirmation::{ComparedArm, SearchResult};
use super::plan::SearchPlan;
use kerple_report::page::{Figure, Section};
use kerple_report::plot::{Axis, Legend, Plot, Series, Tick};

/// What a ratio is, on axes.
const RATIO: &str = "perplexity / that of the reference";

/// The ratio of each finalist with its interval, a finalist a row; nothing where none was tested.
pub(super) fn confirmed(plan: &SearchPlan, result: &SearchResult) -> Option<Figure> {
    let rows: Vec<(&ComparedArm, f64)> = shown(result).collect();
    let line = |(row, (arm, ratio)): (usize, &(&ComparedArm, f64))| {
        let height = (rows.len() - row) as f64;
        let ends = arm.interval.map_or_else(|| vec![*ratio], |(low, high)| vec![low, *ratio, high]);
        // in as many digits as the table
        let points = ends.into_iter().map(|ratio| ((1e4 * ratio).round() / 1e4, height));
        Series { markers: true, ..Series::line(arm.expression.clone(), row, points) }
    };
    let series: Vec<Series> = rows.iter().enumerate().map(line).collect();
    // the reference is inside
    let (low, high) = ends(series.iter().flat_map(|series| &series.points).map(|point| point.x).chain([1.0]));
    let mut y = Axis::linear("finalist", 0.0, rows.len() as f64 + 1.0);
    y.ticks.clear();
    let title = "Confirmed ratios of perplexity".to_owned();
    let plot = Plot {
        title: title.clone(),
        description: format!("Ratios of {} finalists with their intervals.", rows.len()),
        x: Axis::linear(RATIO, low, high),
        y,
        series,
        rule: Some((1.0, plan.rules.reference.clone())),
        legend: Legend::Ends,
        titled: false,
    };
    (!rows.is_empty()).then(|| Figure {
        id: "confirmed".to_owned(),
        section: Section::Kernels,
        title,
        caption: format!(
            "The middle point is the ratio, the ends its 95 % interval, not corrected for the number of finalists. Left of \
             the line an expression is better than {}.",
            plan.rules.reference
        ),
        plots: vec![plot],
    })
}

/// The ratio of each finalist from rung to rung and in the confirmation; nothing where none was tested.
pub(super) fn selected(result: &SearchResult, label: &str) -> Option<Figure> {
    let stages: Vec<&str> = result.rungs.iter().map(|rung| rung.name.as_str()).chain(["confirmation"]).collect();
    let line = |(number, (arm, confirmed)): (usize, (&ComparedArm, f64))| {
        let of = |(at, stage): (usize, &&str)| {
            let rung = arm.selection.iter().find(|of| of.rung == *stage);
            let ratio = if at + 1 == stages.len() { Some(confirmed) } else { rung.and_then(|of| of.ratio) };
            Some((at as f64, ratio?))
        };
        let points: Vec<(f64, f64)> = stages.iter().enumerate().filter_map(of).collect();
        Series { markers: true, ..Series::line(arm.expression.clone(), number, points) }
    };
    let series: Vec<Series> = shown(result).enumerate().map(line).collect();
    let (low, high) = ends(series.iter().flat_map(|series| &series.points).map(|point| point.y));
    let ticks = stages.iter().enumerate().map(|(at, stage)| Tick { at: at as f64, text: (*stage).to_owned() });
    let x = Axis { ticks: ticks.collect(), ..Axis::linear("stage", 0.0, (stages.len() - 1) as f64) };
    let title = format!("Ratios of finalists by stage ({label})");
    let plot = Plot {
        title: title.clone(),
        description: "The ratio of each finalist in each rung and in the confirmation.".to_owned(),
        x,
        y: Axis::linear(RATIO, low, high),
        series,
        rule: None,
        legend: Legend::Ends,
        titled: false,
    };
    (!plot.series.is_empty()).then(|| Figure {
        id: "selection".to_owned(),
        section: Section::Kernels,
        title,
        caption:
            "Only the last stage confirms: its seeds and text are new. A line that rises at its end looked better in \
                  the rungs than it is."
                .to_owned(),
        plots: vec![plot],
    })
}

/// Finalists that have a ratio, best first.
fn shown(result: &SearchResult) -> impl Iterator<Item = (&ComparedArm, f64)> {
    result.finalists.iter().filter_map(|arm| Some((arm, arm.ratio?)))
}

/// Ends of an axis that has these ratios inside.
fn ends(ratios: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = ratios.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
    let room = 0.08 * (high - low).max(1e-6);
    (low - room, high + room)
}
