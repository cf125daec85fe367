//! Changes of perplexity with length as lines, a small plot per text and variant, and the cost of a
//! window.

use super::sets::{EvaluatedSet, sets};
use crate::claim::Arm;
use crate::pages::claims::arm_values;
use crate::pages::description::PageDescription;
use crate::pages::names;
use crate::pages::reader::ReproductionFolder;
use crate::pages::values::differences;
use crate::pages::verdict::interval;
use kerple_report::page::{Figure, Section};
use kerple_report::plot::{Axis, Legend, Plot, Point, Series};
use kerple_report::statistics::mean;

/// Where vertical axes begin.
const LOW: f64 = 0.93;
/// Where they may end.
const ENDS: [f64; 6] = [1.1, 1.25, 1.5, 2.0, 3.0, 5.0];

impl EvaluatedSet<'_> {
    /// The changes that are `found` of each arm from the first of the lengths on; nothing before there are any.
    pub(super) fn plot(
        &self,
        all: &ReproductionFolder,
        page: &PageDescription,
        lengths: &[u64],
        found: impl Fn(&Arm, u64) -> Vec<f64>,
    ) -> Option<Plot> {
        let y = axis(format!("times the perplexity at {}", lengths[0]), ENDS[0]);
        let plot = self.lines(all, page, lengths, y, found)?;
        let title = format!("{}{}", self.name(all, page), self.evaluated_how(all));
        Some(Plot { title, description: "Perplexity by length, over that at the shortest.".to_owned(), ..plot })
    }

    /// Perplexities under the window of the set over those with all keys; `None` without a window.
    fn window_plot(&self, all: &ReproductionFolder, page: &PageDescription) -> Option<Plot> {
        self.facts.window?;
        let (name, whole) = all.with_all_keys(self.facts)?;
        let lengths: Vec<u64> = self.lengths(all).into_iter().filter(|length| whole.lengths.contains(length)).collect();
        let found = |arm: &Arm, length: u64| {
            differences(&self.values(all, arm, length), &arm_values(all, &self.corpus.name, arm, name, length))
        };
        let y = Axis::linear("times the perplexity with all keys", 0.8, 1.02);
        let plot = self.lines(all, page, &lengths, y, found)?;
        let description = "Perplexity under a window, over that with all keys.".to_owned();
        Some(Plot { title: format!("{}{}", self.name(all, page), self.evaluated_how(all)), description, ..plot })
    }

    /// A line for every arm, with its interval, of means of differences of log-perplexity as the ratios that they mean.
    fn lines(
        &self,
        all: &ReproductionFolder,
        page: &PageDescription,
        lengths: &[u64],
        y: Axis,
        found: impl Fn(&Arm, u64) -> Vec<f64>,
    ) -> Option<Plot> {
        let (names, labels) = (names::encodings(all, page), labels(all));
        let point = |arm: &Arm, length: u64| {
            let found = found(arm, length);
            let half = interval(&found).map_or(0.0, |(low, high)| (high.exp() - low.exp()) / 2.0);
            (!found.is_empty()).then(|| Point { x: length as f64, y: mean(&found).exp(), error: half })
        };
        let line = |(arm, _): &(Arm, usize)| {
            let colour = labels.iter().position(|label| *label == arm.encoding).unwrap_or(0);
            Series {
                points: lengths.iter().filter_map(|length| point(arm, *length)).collect(),
                band: true,
                markers: true,
                ..Series::line(&names[arm.encoding.as_str()], colour, [])
            }
        };
        let series: Vec<Series> = self.arms.iter().map(line).filter(|line| !line.points.is_empty()).collect();
        let trained = all.train_len(&self.corpus.name, self.variant);
        (!series.is_empty()).then(|| Plot {
            title: String::new(),
            description: String::new(),
            x: Axis::lengths("tokens evaluated", lengths),
            y,
            series,
            rule: trained.map(|length| (length as f64, "trained".into())),
            legend: Legend::Ends,
            titled: true,
        })
    }
}

/// Labels of all encodings: each has its colour in every plot.
pub(super) fn labels(all: &ReproductionFolder) -> Vec<&str> {
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
        caption: format!("Means and 95 % intervals over seeds. Lines that leave the frame continue above {end}."),
        plots,
    })
}

/// What keys beyond a window are worth, a plot for every text; nothing where no window was evaluated.
pub(super) fn window_figure(all: &ReproductionFolder, page: &PageDescription) -> Option<Figure> {
    let plots: Vec<Plot> = sets(all).iter().filter_map(|set| set.window_plot(all, page)).collect();
    (!plots.is_empty()).then(|| Figure {
        id: "window".to_owned(),
        section: Section::Positions,
        title: "Perplexity under a window, over that with all keys".to_owned(),
        caption: "Means and 95 % intervals over seeds. Below 1 a model is better off without the keys beyond the \
                  window. Each layer has this window, so several layers together reach further back."
            .to_owned(),
        plots,
    })
}
