//! Figures of a paper, drawn like those of the report.

use super::page::PageItem;
use super::reader::ReproductionFolder;
use kerple_report::page::figures::kernels::{effective_length_figure, panels_of};
use kerple_report::page::figures::position_figure;
use kerple_report::page::grids::windows;
use kerple_report::page::{Figure, Section};
use kerple_report::plot::Series;
use kerple_report::results::{EffectiveLength, PositionCurve};
use std::collections::BTreeSet;

/// The corpus whose kernels and positions the paper shows.
const SHOWN: &str = "github";

/// What an encoding learned, on every text, by the run of the least seed.
pub(super) fn kernels(all: &ReproductionFolder, label: &str, item: &mut PageItem) {
    let (id, title) = (item.id.clone(), item.title.clone());
    let mut plots = Vec::new();
    for corpus in &all.manifest.corpora {
        if all.manifest.of(&corpus.name, "").any(|run| run.label == label && serves(&run.serves, &id)) {
            item.planned += 1;
        }
        let runs = all.runs_of(&corpus.name, "").into_iter().flat_map(|group| &group.runs);
        // a run without evaluations is not at its end
        let done = runs.filter(|run| run.label() == label && !run.evaluations.is_empty());
        let Some(run) = done.min_by_key(|run| run.seed()) else { continue };
        item.complete += usize::from(run.steps_done() >= run.last_step().unwrap_or(0));
        let seed = run.seed().map_or_else(String::new, |seed| format!(", seed {seed}"));
        plots.extend(panels_of(run, &format!("{}{seed}", corpus.title)));
    }
    if item.complete < item.planned {
        item.notes.push(format!("{} of {} texts are trained so far.", item.complete, item.planned));
    }
    if !plots.is_empty() {
        item.figures.push(Figure {
            id,
            section: Section::Kernels,
            title,
            caption: "One line per head; the bias is added to the scores after the 1/\u{221a}D scale. Biases below \
                      \u{2212}12, which leave weights of less than 6e\u{2212}6, are not shown. The paper shows \
                      GitHub."
                .to_owned(),
            plots,
        });
    }
}

fn serves(list: &[String], id: &str) -> bool {
    list.iter().any(|name| name == id)
}

/// Perplexity by position of some encodings and of the logarithmic kernel under a window, at one of the two lengths there are.
pub(super) fn positions(all: &ReproductionFolder, nth: usize, item: &mut PageItem) {
    let id = item.id.clone();
    let Some(facts) = all.manifest.evaluations.get("positions") else { return };
    let Some(&length) = facts.lengths.get(nth) else { return };
    let curves_of =
        |run: &crate::manifest::PlannedRun| run.evaluate.iter().filter(|name| name.starts_with("positions")).count();
    let planned: Vec<_> = all.manifest.of(SHOWN, "").filter(|run| serves(&run.serves, &id)).collect();
    item.planned = planned.iter().map(|run| curves_of(run)).sum();
    let labels: BTreeSet<&str> = planned.iter().map(|run| run.label.as_str()).collect();
    let Some(group) = all.runs_of(SHOWN, "") else {
        item.notes.push("no run has been evaluated yet".to_owned());
        return;
    };
    let all_curves = group.results.positions.iter();
    let curves: Vec<&PositionCurve> = all_curves
        .filter(|curve| curve.eval_len == length && labels.contains(curve.encoding.as_str()))
        .filter(|curve| curve.setting.protocol == facts.protocol && curve.setting.text_segment_len == facts.span)
        .collect();
    item.complete = curves.iter().map(|curve| curve.n).sum::<usize>().min(item.planned);
    if item.complete < item.planned {
        item.notes.push(format!("{} of {} evaluations are done.", item.complete, item.planned));
    }
    let Some(setting) = curves.first().map(|curve| &curve.setting) else { return };
    if facts.lengths.iter().max() == Some(&length) {
        let table = group.results.tables.iter().find(|table| table.setting == *setting);
        item.text = table.map_or_else(String::new, |table| windows(table).join(" "));
    }
    let figure = position_figure(&group.results, nth, setting, &curves);
    item.figures.extend(figure.map(|figure| Figure { id, title: item.title.clone(), ..figure }));
}

/// Heads with at most an effective length: a staircase for every text and kernel, mean over seeds.
pub(super) fn effective_lengths(all: &ReproductionFolder, item: &mut PageItem) {
    const KERNELS: [(&str, &str); 2] = [("kerple_log", "log"), ("kerple_power", "power")];
    let (id, title) = (item.id.clone(), item.title.clone());
    let farthest = 20_480.0;
    let (mut series, mut most) = (Vec::new(), 1);
    for (at, (label, name)) in KERNELS.iter().enumerate() {
        for (place, corpus) in all.manifest.corpora.iter().enumerate() {
            if all.manifest.of(&corpus.name, "").any(|run| run.label == *label && serves(&run.serves, &id)) {
                item.planned += 1;
            }
            let Some(group) = all.runs_of(&corpus.name, "") else { continue };
            let finished = |row: &&EffectiveLength| {
                let mut of = group.runs.iter().filter(|run| run.name == row.encoding && run.seed() == row.seed);
                row.encoding == *label && of.any(|run| !run.evaluations.is_empty())
            };
            let heads: Vec<&EffectiveLength> = group.results.effective_lengths.iter().filter(finished).collect();
            if heads.is_empty() {
                continue;
            }
            item.complete += 1;
            most = most.max(heads.iter().map(|head| head.head + 1).max().unwrap_or(1));
            let runs = heads.iter().map(|head| head.seed).collect::<BTreeSet<_>>().len() as f64;
            let reached = heads.iter().filter_map(|head| Some(head.effective_length?.max(1) as f64));
            let (name, ends) = (format!("{name}, {}", corpus.title), [1.0, farthest]);
            series.push(Series { dash: usize::from(at > 0), ..Series::staircase(name, place, reached, ends, runs) });
        }
    }
    if item.complete < item.planned {
        item.notes.push(format!("{} of {} curves have runs.", item.complete, item.planned));
    }
    if series.is_empty() {
        return;
    }
    let more = " The paper's axis is linear. Dashed: power.";
    item.figures.push(effective_length_figure(id, title, (farthest, most), series, more));
}
