//! Losses over training.

use std::collections::BTreeMap;

use super::{GroupRuns, range};
use crate::page::{Figure, Section};
use crate::plot::{Axis, Legend, Plot, Series};
use crate::run::Run;
use crate::statistics::mean;

/// Points of a line: more cannot be told apart at the width of a page.
const BINS: u64 = 80;

/// Training loss and, where it was measured, validation loss.
pub(super) fn losses(part: &GroupRuns) -> Vec<Figure> {
    let training = collect(part, |run| run.metrics.iter().map(|row| (row.step, row.loss)).collect());
    let validation =
        collect(part, |run| run.metrics.iter().filter_map(|row| Some((row.step, row.val_loss?))).collect());
    let kinds = [("training-loss", "Training loss", training), ("validation-loss", "Validation loss", validation)];
    kinds.into_iter().filter_map(|(id, title, rows)| figure(part, id, title, &rows)).collect()
}

type LossCurves<'a> = BTreeMap<&'a str, Vec<(u64, f64)>>;

fn collect<'a>(part: &GroupRuns<'a>, losses: impl Fn(&Run) -> Vec<(u64, f64)>) -> LossCurves<'a> {
    let mut all = LossCurves::new();
    for &run in &part.runs {
        let losses = losses(run);
        if !losses.is_empty() {
            all.entry(&run.name).or_default().extend(losses);
        }
    }
    all
}

fn figure(part: &GroupRuns, id: &str, title: &str, losses: &LossCurves) -> Option<Figure> {
    let last = losses.values().flatten().map(|(step, _)| *step).max()?;
    let mut series: Vec<Series> = losses
        .iter()
        .map(|(name, losses)| Series::line(*name, part.results.place(name), binned(losses, last)))
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
        y: Axis::linear("nats per token", low - margin, high + margin),
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
fn binned(losses: &[(u64, f64)], last: u64) -> Vec<(f64, f64)> {
    let width = last.div_ceil(BINS).max(1);
    let mut bins: BTreeMap<u64, (Vec<f64>, Vec<f64>)> = BTreeMap::new();
    for &(step, loss) in losses {
        let bin = bins.entry(step.saturating_sub(1) / width).or_default();
        bin.0.push(step as f64);
        bin.1.push(loss);
    }
    bins.values().map(|(steps, losses)| (mean(steps), mean(losses))).collect()
}
