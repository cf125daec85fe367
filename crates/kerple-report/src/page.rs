//! What the pages say, in the order they say it; the templates only lay it out.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{UndefinedBehavior, context};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::figures::{Figure, Section};
use crate::format::{count, deviation, duration, number, probability};
use crate::plot;
use crate::results::{Results, Score, State, Table};
use crate::write::Options;

/// Size of a large plot on a wide and on a narrow page, and of a small one.
pub(crate) const WIDE: (f64, f64) = (900.0, 420.0);
const NARROW: (f64, f64) = (358.0, 320.0);
pub(crate) const SMALL: (f64, f64) = (340.0, 230.0);

/// A page, ready to be laid out.
#[derive(Serialize)]
pub(crate) struct Page<'a> {
    title: &'a str,
    headline: String,
    facts: Vec<(&'static str, String)>,
    notes: &'a [String],
    reference: Option<&'a str>,
    sections: Vec<SettingPart>,
    positions: Vec<FigurePart>,
    kernels: Vec<FigurePart>,
    training: Vec<FigurePart>,
    speeds: Vec<Grid>,
    runs: Grid,
}

/// One table of results with what belongs to it.
#[derive(Serialize)]
struct SettingPart {
    title: String,
    meaning: String,
    seeds: String,
    grids: Vec<Grid>,
    tests: Option<Grid>,
    figures: Vec<FigurePart>,
}

/// A table as text.
#[derive(Serialize)]
struct Grid {
    caption: String,
    head: Vec<String>,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    name: String,
    /// Colour of the encoding in the plots.
    colour: usize,
    cells: Vec<Cell>,
}

#[derive(Default, Serialize)]
struct Cell {
    text: String,
    spread: Option<String>,
    best: bool,
    dagger: bool,
    note: Option<String>,
    link: Option<String>,
}

#[derive(Serialize)]
struct FigurePart {
    id: String,
    title: String,
    caption: String,
    /// The file that holds the figure alone.
    file: String,
    wide: String,
    narrow: String,
    small: Vec<String>,
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        Cell { text, ..Cell::default() }
    }
}

impl<'a> Page<'a> {
    pub(crate) fn new(results: &'a Results, figures: &[Figure], options: &'a Options) -> Page<'a> {
        let part =
            |section: Section| figures.iter().filter(|f| f.section == section).map(figure_part).collect::<Vec<_>>();
        Page {
            title: &options.title,
            headline: headline(results),
            facts: facts(results, options),
            notes: &results.notes,
            reference: results.reference.as_deref(),
            sections: results
                .tables
                .iter()
                .enumerate()
                .map(|(i, table)| setting_part(results, table, part(Section::Table(i))))
                .collect(),
            positions: part(Section::Positions),
            kernels: part(Section::Kernels),
            training: part(Section::Training),
            speeds: speeds(results),
            runs: runs(results),
        }
    }

    /// The page in a template's layout.
    ///
    /// # Errors
    /// [`Error::Render`] if the template is wrong.
    pub(crate) fn render(&self, layout: Layout) -> Result<String> {
        let render = || {
            let mut environment = minijinja::Environment::new();
            environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
            environment.set_undefined_behavior(UndefinedBehavior::Strict);
            environment.add_template(layout.name(), layout.source())?;
            let page_style = include_str!("../templates/page.css");
            let context = context! { page => Serde(self), plot_style => plot::STYLE, page_style };
            environment.get_template(layout.name())?.render(context)
        };
        render().map_err(|error: minijinja::Error| Error::Render { page: layout.name(), reason: format!("{error:#}") })
    }
}

/// The two forms of the page.
#[derive(Clone, Copy)]
pub(crate) enum Layout {
    Html,
    Markdown,
}

impl Layout {
    /// Name of the file. The template engine escapes by its extension.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Layout::Html => "index.html",
            Layout::Markdown => "report.md",
        }
    }

    fn source(self) -> &'static str {
        match self {
            Layout::Html => include_str!("../templates/index.html.jinja"),
            Layout::Markdown => include_str!("../templates/report.md.jinja"),
        }
    }
}

/// The main finding of the first table, in a sentence or two.
fn headline(results: &Results) -> String {
    let found = results.tables.first().and_then(|table| {
        let length = *table.lengths().last()?;
        Some((table, length, table.scores.iter().find(|score| score.length == length && score.best)?))
    });
    let Some((table, length, best)) = found else {
        return "There is not yet a length at which two encodings can be compared.".into();
    };
    let factor = length as f64 / table.setting.train_len as f64;
    let mut text = format!(
        "At {} tokens, {} times the training length, {} has the lowest perplexity of {} encodings: {} (n = {}).",
        count(length),
        number(factor).trim_end_matches('0').trim_end_matches('.'),
        best.encoding,
        table.encodings().len(),
        with_deviation(best.perplexity, best.perplexity_deviation),
        best.n
    );
    let tested: Vec<_> = table.tests.iter().filter(|test| test.length == length && test.p.is_some()).collect();
    if best.n == 1 {
        text.push_str(" With one seed it is not known whether a difference is more than noise.");
    } else if results.reference.as_ref() == Some(&best.encoding) && !tested.is_empty() {
        let beaten = tested.iter().filter(|test| test.dagger).count();
        text.push_str(&format!(
            " It is significantly better than {beaten} of the {} it can be tested against.",
            tested.len()
        ));
    }
    text
}

fn facts(results: &Results, options: &Options) -> Vec<(&'static str, String)> {
    let counted = results.runs.iter().filter(|run| run.duplicate_of.is_none());
    let finished = counted.clone().filter(|run| run.state == State::Finished).count();
    let seconds: f64 = counted.clone().filter_map(|run| run.training_seconds).sum();
    let mut facts = vec![
        ("runs", format!("{} ({finished} finished)", counted.count())),
        ("encodings", results.encodings.len().to_string()),
        ("training time", duration(seconds)),
    ];
    let given = [("machine", &options.machine), ("commit", &options.commit), ("date", &options.date)];
    facts.extend(given.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))));
    facts
}

fn setting_part(results: &Results, table: &Table, figures: Vec<FigurePart>) -> SettingPart {
    let lengths = table.lengths();
    let seeds: Vec<usize> = table.scores.iter().map(|score| score.n).collect();
    let (least, most) = (seeds.iter().min().copied().unwrap_or(0), seeds.iter().max().copied().unwrap_or(0));
    let seeds = if least == most { format!("{most}") } else { format!("{least} to {most}; cells with fewer say so") };
    let perplexity = |score: &Score| Some((score.perplexity, score.perplexity_deviation, score.best));
    let mut grids = vec![score_grid(results, table, &lengths, "Perplexity", perplexity)];
    for (row, name) in grids[0].rows.iter_mut().zip(table.encodings()) {
        for (cell, &length) in row.cells.iter_mut().zip(&lengths) {
            cell.dagger = table.score(name, length).is_some_and(|score| score.dagger);
        }
    }
    if table.scores.iter().any(|score| score.bits_per_byte.is_some()) {
        grids.push(score_grid(results, table, &lengths, "Bits per byte", |score| {
            Some((score.bits_per_byte?, score.bits_per_byte_deviation, score.best_bits_per_byte))
        }));
    }
    if table.scores.iter().any(|score| score.ratio.is_some()) {
        let caption =
            format!("Extrapolation ratio: perplexity over that at the training length, {}", table.setting.train_len);
        grids.push(score_grid(results, table, &lengths, &caption, |score| {
            Some((score.ratio?, score.ratio_deviation, false))
        }));
    }
    SettingPart {
        title: table.setting.title(),
        meaning: table.setting.meaning(),
        seeds,
        grids,
        tests: test_grid(results, table),
        figures,
    }
}

fn score_grid(
    results: &Results,
    table: &Table,
    lengths: &[u64],
    caption: &str,
    value: impl Fn(&Score) -> Option<(f64, Option<f64>, bool)>,
) -> Grid {
    let cell = |score: Option<&Score>| {
        let Some((score, (mean, spread, best))) = score.and_then(|score| Some((score, value(score)?))) else {
            return Cell::from("\u{2013}".to_owned());
        };
        Cell {
            text: number(mean),
            spread: spread.filter(|_| mean.is_finite()).map(|spread| deviation(mean, spread)),
            best,
            note: cell_note(score),
            ..Cell::default()
        }
    };
    let row = |name: &str| Row {
        name: name.to_owned(),
        colour: results.place(name),
        cells: lengths.iter().map(|&length| cell(table.score(name, length))).collect(),
    };
    Grid {
        caption: caption.to_owned(),
        head: std::iter::once("encoding".to_owned()).chain(lengths.iter().map(|&length| count(length))).collect(),
        rows: table.encodings().into_iter().map(row).collect(),
    }
}

/// What is incomplete about a cell, in few words.
fn cell_note(score: &Score) -> Option<String> {
    let mut notes = Vec::new();
    if score.n < score.n_expected {
        notes.push(format!("n = {} of {}", score.n, score.n_expected));
    }
    if score.n_not_finite > 0 {
        notes.push(format!("{} not finite", score.n_not_finite));
    }
    if score.n_unfinished > 0 {
        notes.push(format!("{} unfinished", score.n_unfinished));
    }
    (!notes.is_empty()).then(|| notes.join(", "))
}

fn test_grid(results: &Results, table: &Table) -> Option<Grid> {
    let reference = table.tests.first()?.reference.as_str();
    let rows = table.tests.iter().map(|test| {
        let interval = test.difference_low.zip(test.difference_high);
        let interval = interval.map_or_else(String::new, |(low, high)| format!("{} to {}", number(low), number(high)));
        let optional =
            |value: Option<f64>, form: fn(f64) -> String| Cell::from(value.map_or_else(|| "\u{2013}".to_owned(), form));
        Row {
            name: test.encoding.clone(),
            colour: results.place(&test.encoding),
            cells: vec![
                count(test.length).into(),
                test.n.to_string().into(),
                optional(test.difference, number),
                Cell { text: interval, note: test.untestable.clone(), ..Cell::default() },
                optional(test.t, number),
                Cell { dagger: test.dagger, ..optional(test.p, probability) },
                optional(test.p_holm, probability),
            ],
        }
    });
    let head = ["encoding", "length", "n", "difference", "95 % interval", "t", "p", "p, Holm"];
    Some(Grid {
        caption: format!("Paired t-tests of perplexity against {reference}"),
        head: head.map(str::to_owned).to_vec(),
        rows: rows.collect(),
    })
}

fn speeds(results: &Results) -> Vec<Grid> {
    let by_length = results.speeds.chunk_by(|a, b| a.train_len == b.train_len);
    by_length
        .map(|speeds| {
            let rows = speeds.iter().map(|speed| Row {
                name: speed.encoding.clone(),
                colour: results.place(&speed.encoding),
                cells: vec![
                    Cell {
                        spread: speed.seconds_deviation.map(|spread| deviation(speed.seconds, spread)),
                        ..number(speed.seconds).into()
                    },
                    format!("{:.3}", speed.relative).into(),
                    speed.n.to_string().into(),
                ],
            });
            let length =
                speeds[0].train_len.map_or_else(String::new, |length| format!(" at {length} tokens a sequence"));
            let baseline = &speeds[0].baseline;
            let why = if baseline == "sinusoidal" { "" } else { ", the fastest, as sinusoidal was not trained" };
            Grid {
                caption: format!("Seconds a training step{length}; relative to {baseline}{why}"),
                head: ["encoding", "seconds a step", "relative", "n"].map(str::to_owned).to_vec(),
                rows: rows.collect(),
            }
        })
        .collect()
}

fn runs(results: &Results) -> Grid {
    let unknown = || "\u{2013}".to_owned();
    let rows = results.runs.iter().map(|run| {
        let folder = run.folder.display().to_string();
        let name = run.folder.file_name().map_or_else(|| folder.clone(), |name| name.to_string_lossy().into_owned());
        let state = match (run.state, &run.duplicate_of) {
            (_, Some(kept)) => Some(format!("duplicate of {}", kept.display())),
            (State::Finished, None) => None,
            (State::Unfinished, None) => Some("unfinished".into()),
            (State::NotStarted, None) => Some("not started".into()),
        };
        let planned = run.planned_steps.filter(|&planned| planned != run.steps);
        let planned = planned.map_or_else(String::new, |planned| format!(" of {}", count(planned)));
        Row {
            name: run.encoding.clone(),
            colour: results.place(&run.encoding),
            cells: vec![
                run.seed.map_or_else(unknown, |seed| seed.to_string()).into(),
                run.train_len.map_or_else(unknown, count).into(),
                Cell { text: format!("{}{planned}", count(run.steps)), note: state, ..Cell::default() },
                run.parameters.map_or_else(unknown, count).into(),
                run.training_seconds.map_or_else(unknown, duration).into(),
                duration(run.evaluation_seconds).into(),
                run.plan.as_ref().map_or_else(unknown, |hash| hash.chars().take(8).collect()).into(),
                Cell { link: Some(href(&folder)), ..name.into() },
            ],
        }
    });
    let head = ["encoding", "seed", "trained at", "steps", "parameters", "training", "evaluation", "plan", "folder"];
    Grid { caption: "Runs".into(), head: head.map(str::to_owned).to_vec(), rows: rows.collect() }
}

fn figure_part(figure: &Figure) -> FigurePart {
    let small = figure.plots.iter().filter(|plot| plot.titled).map(|plot| plot.svg(SMALL.0, SMALL.1)).collect();
    let large = |size: (f64, f64)| {
        figure.plots.iter().find(|plot| !plot.titled).map_or_else(String::new, |plot| plot.svg(size.0, size.1))
    };
    FigurePart {
        id: figure.id.clone(),
        title: figure.title.clone(),
        caption: figure.caption.clone(),
        file: figure.file(),
        wide: large(WIDE),
        narrow: large(NARROW),
        small,
    }
}

fn with_deviation(mean: f64, spread: Option<f64>) -> String {
    spread.map_or_else(|| number(mean), |spread| format!("{} ± {}", number(mean), deviation(mean, spread)))
}

/// A path as a link: what a URL gives another meaning is written in hexadecimal.
fn href(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~=+,".contains(&byte);
    path.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn links_survive_odd_folder_names() {
        assert_eq!(super::href("../runs/a b#1%"), "../runs/a%20b%231%25");
    }
}
