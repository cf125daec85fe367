//! Perplexity by length, wherever runs serve a table or a figure: Tables 5 to 9 and Figures 2 to 6.

use crate::manifest::runs_folder;
use crate::pages::cells::CellRow;
use crate::pages::description::PageDescription;
use crate::pages::methods::ComparedMethod;
use crate::pages::page::PageItem;
use crate::pages::printed::EvaluatedLength;
use crate::pages::reader::ReproductionFolder;
use crate::pages::values::{SeedValues, TrainedOn, differences};
use kerple_report::page::{Figure, Grid, Row, Section};
use kerple_report::plot::{Axis, Legend, Plot, Point, Series};
use kerple_report::results::{Spread, lowest};
use kerple_report::statistics::{ALPHA, t_test_of_differences};

/// A grid for every text and variant whose runs serve the item, and a figure where it is `drawn`.
pub(in super::super) fn lengths(
    all: &ReproductionFolder,
    page: &PageDescription,
    methods: &[&ComparedMethod],
    drawn: bool,
    item: &mut PageItem,
) {
    let serves = |on: &TrainedOn| all.manifest.of(on.corpus, on.variant).any(|run| run.serves.contains(&item.id));
    let places: Vec<TrainedOn> = TrainedOn::every_text(all).into_iter().filter(serves).collect();
    for on in places {
        let methods: Vec<&ComparedMethod> =
            methods.iter().copied().filter(|method| !on.evaluated(method, &[]).is_empty()).collect();
        let cells = cells(on, page, &item.id, &methods);
        let figure = figure(on, item, &methods, &cells).filter(|_| drawn);
        item.figures.extend(figure);
        item.grids.push(grid(on, &methods, &cells));
        // YaRN is not asked for at the training length
        item.cells.extend(cells.into_iter().flatten().filter(|cell| cell.planned > 0));
    }
    if item.grids.is_empty() {
        item.text.clear();
        item.notes.push("This scale has no runs for it.".to_owned());
    }
}

fn perplexities(on: TrainedOn, method: &ComparedMethod, length: u64) -> SeedValues {
    on.at_length(method, &on.evaluations(method, &[]), length, |row| row.perplexity)
}

/// A row per length, a cell per method.
fn cells(on: TrainedOn, page: &PageDescription, id: &str, methods: &[&ComparedMethod]) -> Vec<Vec<CellRow>> {
    let evaluations: Vec<_> = methods.iter().flat_map(|method| on.evaluations(method, &[])).collect();
    let row = |length: u64| methods.iter().map(|method| cell(on, page, id, method, length)).collect();
    TrainedOn::lengths(&evaluations).into_iter().map(row).collect()
}

fn cell(on: TrainedOn, page: &PageDescription, id: &str, method: &ComparedMethod, length: u64) -> CellRow {
    let planned = on.evaluated(method, &[]);
    let own = perplexities(on, method, length);
    let values: Vec<f64> = own.values().copied().collect();
    let spread = Spread::of(&values);
    let test = method.adapted.as_ref().and_then(|adapted| {
        let other = perplexities(on, page.method(adapted), length);
        let size = own.values().chain(other.values()).fold(0.0, |most: f64, value| most.max(*value));
        t_test_of_differences(&differences(&own, &other), size).ok()
    });
    let at = EvaluatedLength { length, train_len: on.train_len().unwrap_or(length) };
    let training = if on.variant.is_empty() { "128" } else { on.variant };
    let printed = page.printed_lines.value(on.corpus, training, &method.printed, at);
    let is_asked = on.evaluations(method, &[]).iter().any(|facts| facts.lengths.contains(&length));
    let label = planned.first().map_or(&method.label, |run| &run.label);
    let name = method.rope_scaling.as_ref().map_or_else(|| label.clone(), |scaling| format!("{label}, {scaling}"));
    CellRow {
        variant: on.variant.to_owned(),
        multiple: length as f64 / at.train_len as f64,
        perplexity: spread.map(|spread| spread.mean),
        perplexity_deviation: spread.and_then(|spread| spread.deviation),
        pairs: test.map(|test| test.n),
        difference: test.map(|test| test.mean_difference),
        p: test.map(|test| test.p),
        dagger: test.is_some_and(|test| test.first_is_larger(ALPHA)),
        runs: format!("{}/{label}", runs_folder(on.corpus, on.variant)),
        ..CellRow::empty(id, on.corpus, &name, length, if is_asked { planned.len() } else { 0 }, values.len())
    }
    .with_printed(printed)
}

fn grid(on: TrainedOn, methods: &[&ComparedMethod], cells: &[Vec<CellRow>]) -> Grid {
    let head = std::iter::once("tokens".to_owned()).chain(methods.iter().map(|method| method.name.clone()));
    Grid {
        caption: on.title(),
        head: head.collect(),
        rows: cells.iter().map(|cells| row(on, methods, cells)).collect(),
    }
}

fn row(on: TrainedOn, methods: &[&ComparedMethod], cells: &[CellRow]) -> Row {
    let by_seed = methods.iter().zip(cells).map(|(method, cell)| perplexities(on, method, cell.eval_len));
    let best = lowest(&by_seed.collect::<Vec<_>>());
    let cell = |(at, cell): (usize, &CellRow)| cell.perplexity_cell(best.contains(&at), [cell.printed_text.clone()]);
    let name = cells.first().map_or_else(String::new, |cell| {
        EvaluatedLength { length: cell.eval_len, train_len: on.train_len().unwrap_or(cell.eval_len) }.name()
    });
    Row { name, colour: None, cells: cells.iter().enumerate().map(cell).collect() }
}

fn figure(on: TrainedOn, item: &PageItem, methods: &[&ComparedMethod], cells: &[Vec<CellRow>]) -> Option<Figure> {
    let drawn = |value: &f64| value.is_finite() && *value > 0.0;
    let values = || cells.iter().flatten().filter_map(|cell| cell.perplexity).filter(drawn);
    let (low, high) = (values().reduce(f64::min)?, values().reduce(f64::max)?);
    let lengths: Vec<u64> = cells.iter().filter_map(|row| row.first()).map(|cell| cell.eval_len).collect();
    let line = |(at, method): (usize, &&ComparedMethod)| {
        let known = cells.iter().filter_map(|row| row.get(at)?.perplexity.map(|y| (&row[at], y)));
        let point = |(cell, y): (&CellRow, f64)| Point { x: cell.eval_len as f64, y, error: 0.0 };
        let line = Series::line(&method.name, method.colour, []);
        Series { points: known.map(point).collect(), markers: true, dash: usize::from(method.dashed), ..line }
    };
    let title = format!("{}: {}", item.title.split(':').next().unwrap_or_default(), on.title());
    let plot = Plot {
        title: title.clone(),
        description: format!("Perplexities from {low:.1} to {high:.1}."),
        x: Axis::lengths("tokens evaluated", &lengths),
        y: Axis::log("perplexity", low * 0.95, high * 1.05),
        series: methods.iter().enumerate().map(line).filter(|line| !line.points.is_empty()).collect(),
        rule: on.train_len().map(|length| (length as f64, "trained".to_owned())),
        legend: Legend::Ends,
        titled: false,
    };
    Some(Figure {
        id: format!("{}-{}", item.id, runs_folder(on.corpus, on.variant)),
        section: Section::Positions,
        title,
        caption: "Means over seeds, logarithmic axes; dashed: not adapted. A seed chooses the text, which is the same \
                  for all methods, so deviations in the table come mostly from the text."
            .to_owned(),
        plots: vec![plot],
    })
}
