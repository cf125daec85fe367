//! Perplexity by length: Tables 5 to 9 and Figures 2 to 6.

use super::measure::{Method, Place};
use super::methods::*;
use super::printed::Printed;
use crate::manifest::runs_folder;
use crate::pages::Folder;
use crate::pages::cells::CellRow;
use crate::pages::page::Item;
use crate::pages::verdict::differences;
use kerple_report::format::{count, deviation as spread, number};
use kerple_report::page::{Cell, Figure, Grid, Row, Section};
use kerple_report::plot::{Axis, Legend, Plot, Point, Series};
use kerple_report::results::{Spread, lowest};
use kerple_report::statistics::{ALPHA, t_test_of_differences};

/// A table or a figure of perplexities, wherever runs serve it.
struct Shown {
    id: &'static str,
    title: &'static str,
    text: &'static str,
    methods: &'static [Method],
    drawn: bool,
}

const SHOWN: [Shown; 10] = [
    Shown {
        id: "table5",
        title: "Table 5: mean and deviation over seeds",
        text: "The paper has three seeds, and reports p < 0.05 for every DAPE against its base at every length; it does not name the \
               test.",
        methods: &[DAPE_KERPLE, KERPLE, DAPE_ALIBI, ALIBI, DAPE_FIRE, FIRE, T5, ROTARY],
        drawn: false,
    },
    Shown {
        id: "table6",
        title: "Table 6: Transformer-XL and CoPE",
        text: "Encodings that look at the content in other ways.",
        methods: &[DAPE_KERPLE, TRANSFORMER_XL, COPE],
        drawn: false,
    },
    Shown {
        id: "table7",
        title: "Table 7: what adapts",
        text: "The bias alone, the bias through a network that sees nothing else, and DAPE.",
        methods: &[DAPE_KERPLE, BIAS_ONLY, KERPLE],
        drawn: false,
    },
    Shown {
        id: "table8",
        title: "Table 8: 2.7B parameters",
        text: "",
        methods: &[KERNEL3, DAPE_KERPLE, KERPLE, ALIBI, T5, ROTARY],
        drawn: false,
    },
    Shown {
        id: "table9",
        title: "Table 9: 6.7B parameters",
        text: "",
        methods: &[DAPE_KERPLE, KERPLE, ALIBI, T5, ROTARY],
        drawn: false,
    },
    Shown { id: "figure2", title: "Figure 2: all methods", text: "", methods: &ALL, drawn: true },
    Shown { id: "figure3", title: "Figure 3: trained on the longest sequences", text: "", methods: &ALL, drawn: true },
    Shown { id: "figure4", title: "Figure 4: 350M parameters", text: "", methods: &ALL, drawn: true },
    Shown {
        id: "figure5",
        title: "Figure 5: what the network sees",
        text: "Concat: x + f(x, B). Concat_Residual, the usual form: x + B + f(x, B). Add_Residual: x + B + f(x + B). B is Kerple's bias. \
               The second version's layers see as many keys as its name says.",
        methods: &[KERPLE, CONCAT_RESIDUAL, CONCAT, ADD_RESIDUAL, KERNEL3, KERNEL5, KERNEL7],
        drawn: true,
    },
    Shown {
        id: "figure6",
        title: "Figure 6: hidden width",
        text: "DAPE over ALiBi with D hidden units.",
        methods: &[ALIBI, HIDDEN_4, HIDDEN_16, HIDDEN_32, HIDDEN_64],
        drawn: true,
    },
];

/// What every table's dagger means.
const DAGGER: &str = "The last 256 tokens of each text are scored, all tokens where the length is less. \u{2020}: DAPE over the same bias, \
                      over Kerple's where there is none, is significantly better (paired two-sided t-test over the common seeds, \
                      p < 0.05). V2 is the paper on the second version, which trained some of the same again.";

/// The tables and figures, in the order of their numbers.
pub(super) fn items(all: &Folder, printed: &Printed) -> Vec<Item> {
    SHOWN.iter().map(|shown| item(all, shown, printed)).collect()
}

fn item(all: &Folder, shown: &Shown, printed: &Printed) -> Item {
    let text = if shown.text.is_empty() { DAGGER.to_owned() } else { format!("{} {DAGGER}", shown.text) };
    let mut item = Item::new(shown.id, shown.title, &text);
    let serves = |place: &&Place| {
        let mut runs = all.manifest.of(place.corpus, place.variant);
        runs.any(|run| run.serves.iter().any(|id| id == shown.id))
    };
    for place in Place::every(all).iter().filter(serves) {
        let methods: Vec<&Method> = shown.methods.iter().filter(|method| !place.planned(method).is_empty()).collect();
        let cells = cells(place, shown.id, &methods, printed);
        item.figures.extend(figure(place, shown, &methods, &cells).filter(|_| shown.drawn));
        item.grids.push(grid(place, &methods, &cells));
        // YaRN is not asked for at the training length
        item.cells.extend(cells.into_iter().flatten().filter(|cell| cell.planned > 0));
    }
    if item.grids.is_empty() {
        item.text.clear();
        item.notes.push("No run of this scale is for it.".to_owned());
    }
    item
}

/// A row a length, a cell a method.
fn cells(place: &Place, id: &str, methods: &[&Method], printed: &Printed) -> Vec<Vec<CellRow>> {
    let mut lengths: Vec<u64> = methods.iter().flat_map(|method| place.lengths(method)).collect();
    lengths.sort_unstable();
    lengths.dedup();
    let row = |length: u64| methods.iter().map(|method| cell(place, id, (method, length), printed)).collect();
    lengths.into_iter().map(row).collect()
}

fn cell(place: &Place, id: &str, (method, length): (&Method, u64), printed: &Printed) -> CellRow {
    let planned = place.planned(method);
    let values: Vec<f64> = place.perplexities(method, length).into_values().collect();
    let spread = Spread::of(&values);
    let test = adapted(method).and_then(|adapted| {
        let (own, other) = (place.perplexities(method, length), place.perplexities(&adapted, length));
        let size = own.values().chain(other.values()).fold(0.0, |most: f64, value| most.max(*value));
        t_test_of_differences(&differences(&own, &other), size).ok()
    });
    let train_len = place.train_len().unwrap_or(length);
    let value = printed.perplexity((place.corpus, place.training(), method.printed), (length, train_len));
    let asked = place.lengths(method).contains(&length);
    let label = planned.first().map_or(method.label, |run| &run.label);
    let name = method.scaling.map_or_else(|| label.to_owned(), |scaling| format!("{label}, {scaling}"));
    CellRow {
        variant: place.variant.to_owned(),
        multiple: length as f64 / train_len as f64,
        perplexity: spread.map(|spread| spread.mean),
        perplexity_deviation: spread.and_then(|spread| spread.deviation),
        pairs: test.map(|test| test.n),
        difference: test.map(|test| test.mean_difference),
        p: test.map(|test| test.p),
        dagger: test.is_some_and(|test| test.first_is_larger(ALPHA)),
        printed: value.as_ref().map(|value| value.mean),
        printed_text: value.map(|value| value.text),
        runs: format!("{}/{label}", runs_folder(place.corpus, place.variant)),
        ..CellRow::empty(id, place.corpus, &name, length, if asked { planned.len() } else { 0 }, values.len())
    }
}

fn grid(place: &Place, methods: &[&Method], cells: &[Vec<CellRow>]) -> Grid {
    let head = std::iter::once("tokens".to_owned()).chain(methods.iter().map(|method| method.name.to_owned()));
    Grid {
        caption: place.title(),
        head: head.collect(),
        rows: cells.iter().map(|cells| row(place, methods, cells)).collect(),
    }
}

fn row(place: &Place, methods: &[&Method], cells: &[CellRow]) -> Row {
    let by_seed = methods.iter().zip(cells).map(|(method, cell)| place.perplexities(method, cell.eval_len));
    let best = lowest(&by_seed.collect::<Vec<_>>());
    let cell = |(at, cell): (usize, &CellRow)| {
        let missing = (cell.n < cell.planned).then(|| format!("{} of {} seeds", cell.n, cell.planned));
        let note = [missing, cell.printed_text.clone()].into_iter().flatten().collect::<Vec<_>>().join("; ");
        Cell {
            text: cell.perplexity.map_or_else(|| "\u{2013}".to_owned(), number),
            spread: cell.perplexity.zip(cell.perplexity_deviation).map(|(mean, own)| spread(mean, own)),
            best: best.contains(&at),
            dagger: cell.dagger,
            note: (!note.is_empty()).then_some(note),
            link: (cell.n > 0).then(|| format!("../{}/", cell.runs)),
            ..Cell::default()
        }
    };
    let name = cells.first().map_or_else(String::new, |cell| {
        let multiple = format!("{:.2}", cell.multiple);
        let multiple = multiple.trim_end_matches('0').trim_end_matches('.');
        format!("{} ({multiple}\u{d7})", count(cell.eval_len))
    });
    Row { name, colour: None, cells: cells.iter().enumerate().map(cell).collect() }
}

fn figure(place: &Place, shown: &Shown, methods: &[&Method], cells: &[Vec<CellRow>]) -> Option<Figure> {
    let drawn = |value: &f64| value.is_finite() && *value > 0.0;
    let values = || cells.iter().flatten().filter_map(|cell| cell.perplexity).filter(drawn);
    let (low, high) = (values().reduce(f64::min)?, values().reduce(f64::max)?);
    let lengths: Vec<u64> = cells.iter().filter_map(|row| row.first()).map(|cell| cell.eval_len).collect();
    let line = |(at, method): (usize, &&Method)| {
        let known = cells.iter().filter_map(|row| row.get(at)?.perplexity.map(|y| (&row[at], y)));
        let point = |(cell, y): (&CellRow, f64)| Point { x: cell.eval_len as f64, y, error: 0.0 };
        let line = Series::line(method.name, method.colour, []);
        Series { points: known.map(point).collect(), markers: true, dash: usize::from(method.dashed), ..line }
    };
    let title = format!("{}: {}", shown.title.split(':').next().unwrap_or_default(), place.title());
    let plot = Plot {
        title: title.clone(),
        description: format!("Perplexities from {low:.1} to {high:.1}."),
        x: Axis::lengths("tokens evaluated", &lengths),
        y: Axis::log("perplexity", low * 0.95, high * 1.05),
        series: methods.iter().enumerate().map(line).filter(|line| !line.points.is_empty()).collect(),
        rule: place.train_len().map(|length| (length as f64, "trained".to_owned())),
        legend: Legend::Ends,
        titled: false,
    };
    Some(Figure {
        id: format!("{}-{}", shown.id, runs_folder(place.corpus, place.variant)),
        section: Section::Positions,
        title,
        caption: "Means over seeds, logarithmic axes; dashed: not adapted. A seed chooses the text, which is the same for all \
                  methods: deviations, in the table, are mostly of the text."
            .to_owned(),
        plots: vec![plot],
    })
}
