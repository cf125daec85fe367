//! Changes of perplexity with length as lines, a small plot for every text and variant.

use super::Set;
use crate::claim::Arm;
use crate::pages::Folder;
use crate::pages::verdict::interval;
use kerple_report::page::{Figure, Section};
use kerple_report::plot::{Axis, Legend, Plot, Point, Series};
use kerple_report::statistics::mean;

/// Where vertical axes begin.
const LOW: f64 = 0.93;
/// Where they may end.
const ENDS: [f64; 6] = [1.1, 1.25, 1.5, 2.0, 3.0, 5.0];

impl Set<'_> {
    /// The changes that are `found` of each arm from the shortest length on; nothing before there are any.
    pub(super) fn plot(&self, all: &Folder, found: impl Fn(&Arm, u64) -> Vec<f64>) -> Option<Plot> {
        let lengths = &self.facts.lengths;
        let point = |arm: &Arm, length: u64| {
            let changes = found(arm, length);
            let half = interval(&changes).map_or(0.0, |(low, high)| (high.exp() - low.exp()) / 2.0);
            (!changes.is_empty()).then(|| Point { x: length as f64, y: mean(&changes).exp(), error: half })
        };
        let labels = labels(all);
        let line = |(arm, _): &(Arm, usize)| Series {
            points: lengths.iter().filter_map(|length| point(arm, *length)).collect(),
            band: true,
            markers: true,
            ..Series::line(&arm.encoding, labels.iter().position(|label| *label == arm.encoding).unwrap_or(0), [])
        };
        let series: Vec<Series> = self.arms.iter().map(line).filter(|line| !line.points.is_empty()).collect();
        let trained = all.train_len(&self.corpus.name, self.variant);
        (!series.is_empty()).then(|| Plot {
            title: format!("{}, {}", self.name(), self.evaluation),
            description: "Perplexity by length, over that at the shortest.".to_owned(),
            x: Axis::lengths("tokens evaluated", lengths),
            y: axis(format!("times the perplexity at {}", lengths[0]), ENDS[0]),
            series,
            rule: trained.map(|length| (length as f64, "trained".into())),
            legend: Legend::Ends,
            titled: true,
        })
    }
}

/// Labels of all encodings: each has its colour in every plot.
fn labels(all: &Folder) -> Vec<&str> {
    let mut labels = Vec::new();
    for run in &all.manifest.runs {
        if !labels.contains(&run.label.as_str()) {
            labels.push(&run.label);
        }
    }
    labels
}

fn axis(label: String, end: f64) -> Axis {
    Axis::linear(label, LOW, end)
}

/// Where axes end so that two thirds of all lines stay in sight: what is compared is near 1, and what fails is far from it.
fn end(plots: &[Plot]) -> f64 {
    let highest = |line: &Series| line.points.iter().map(|point| point.y).fold(0.0, f64::max);
    let lines: Vec<f64> = plots.iter().flat_map(|plot| &plot.series).map(highest).collect();
    let shows = |end: &f64| 3 * lines.iter().filter(|highest| *highest <= end).count() >= 2 * lines.len();
    ENDS.into_iter().find(shows).unwrap_or(ENDS[ENDS.len() - 1])
}

/// The plots of all sets as one figure.
pub(super) fn figure(plots: Vec<Plot>) -> Option<Figure> {
    let end = end(&plots);
    let plots: Vec<Plot> = plots.into_iter().map(|plot| Plot { y: axis(plot.y.label, end), ..plot }).collect();
    (!plots.is_empty()).then(|| Figure {
        id: "change".to_owned(),
        section: Section::Positions,
        title: "Perplexity by length, over that at the shortest".to_owned(),
        caption: format!("Means and 95 % intervals over seeds. Lines that leave the frame go on above {end}."),
        plots,
    })
}
