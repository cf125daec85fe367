//! Losses and scores over training.

use std::collections::BTreeMap;

use super::{GroupRuns, range};
use crate::page::{Figure, Section};
use crate::plot::{Axis, Legend, Plot, Series};
use crate::statistics::mean;
use kerple_run::MetricsRow;

/// Points of a line: more cannot be told apart at the width of a page.
const BINS: u64 = 80;

/// Training loss and, where they were measured, validation loss and the score of a task.
pub(super) fn curves(part: &GroupRuns) -> Vec<Figure> {
    let kinds: [(_, _, _, Column); 3] = [
        ("training-loss", "Training loss", "nats per token", |row| Some(row.loss)),
        ("validation-loss", "Validation loss", "nats per token", |row| row.val_loss),
        ("validation-score", "Score at validation", "share of right answers", |row| row.val_score),
    ];
    let figure = |(id, title, unit, value)| figure(part, (id, title, unit), &collect(part, value));
    kinds.into_iter().filter_map(figure).collect()
}

/// What a row of a log has, if it has it.
type Column = fn(&MetricsRow) -> Option<f64>;

/// Steps and values of each name.
type TrainingCurves<'a> = BTreeMap<&'a str, Vec<(u64, f64)>>;

fn collect<'a>(part: &GroupRuns<'a>, value: Column) -> TrainingCurves<'a> {
    let mut all = TrainingCurves::new();
    for &run in &part.runs {
        let mut rows = run.metrics.iter().filter_map(|row| Some((row.step, value(row)?))).peekable();
        if rows.peek().is_some() {
            all.entry(&run.name).or_default().extend(rows);
        }
    }
    all
}

fn figure(part: &GroupRuns, (id, title, unit): (&str, &str, &str), curves: &TrainingCurves) -> Option<Figure> {
    let last = curves.values().flatten().map(|(step, _)| *step).max()?;
    let mut series: Vec<Series> = curves
        .iter()
        .map(|(name, values)| Series::line(*name, part.results.place(name), binned(values, last)))
        .collect();
    series.sort_by_key(|series| series.colour);
    let all = || series.iter().flat_map(|series| &series.points);
    let (low, _) = range(all().map(|point| point.y))?;
    // The fall of the first steps would flatten everything after it.
    let (_, high) =
        range(all().filter(|point| point.x > 0.04 * last as f64).map(|point| point.y)).unwrap_or((low, low));
    let margin = 0.05 * (high - low).max(1e-3);
    let title = part.title(title);
    let plot = Plot {
        title: title.clone(),
        description: format!("By step, up to step {last}."),
        x: Axis::linear("step", 0.0, last as f64),
        y: Axis::linear(unit, low - margin, high + margin),
        series,
        rule: None,
        legend: Legend::Ends,
        titled: false,
    };
    Some(Figure {
        id: part.id(id),
        section: Section::Training,
        title,
        caption: format!(
            "Mean over seeds and over bins of {} steps; the fall of the first 4 % of the steps leaves the frame. A cross is where a line becomes NaN or infinite.",
            last.div_ceil(BINS)
        ),
        plots: vec![plot],
    })
}

/// Means over bins of steps.
fn binned(values: &[(u64, f64)], last: u64) -> Vec<(f64, f64)> {
    let width = last.div_ceil(BINS).max(1);
    let mut bins: BTreeMap<u64, (Vec<f64>, Vec<f64>)> = BTreeMap::new();
    for &(step, value) in values {
        let bin = bins.entry(step.saturating_sub(1) / width).or_default();
        bin.0.push(step as f64);
        bin.1.push(value);
    }
    bins.values().map(|(steps, losses)| (mean(steps), mean(losses))).collect()
}
