//! The contents of the pages, in their order; the templates only lay them out.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{UndefinedBehavior, context};
use serde::Serialize;
use std::collections::BTreeSet;

use self::answers::AnswersPart;
pub use self::answers::percent;
pub use self::figure::{Figure, Section};
use self::grids::{learning, runs, setting_part, speeds};
pub use self::suite::{ReachFigure, TaskHeading};
use crate::error::{Error, Result};
use crate::folder::{INDEX, MARK, TEXT};
use crate::format::{count, deviation, duration, number, one_line};
use crate::plot;
use crate::results::{PerplexityScore, PerplexityTable, Results, RunState, name_text};
use crate::run::tally_runs;

mod answers;
mod figure;
pub mod figures;
pub mod grids;
mod reach;
pub(crate) mod suite;
mod text;

pub use text::table_text;

/// Size of a large plot on a wide and on a narrow page, and of a small one.
pub(crate) const WIDE: (f64, f64) = (900.0, 420.0);
const NARROW: (f64, f64) = (358.0, 320.0);
pub(crate) const SMALL: (f64, f64) = (340.0, 230.0);

/// Facts of the report that no run contains.
#[derive(Clone, Debug)]
pub struct ReportOptions {
    /// Title of the page.
    pub title: String,
    /// Name of the encoding the others are compared with; `kerple_log` if absent and present among the runs.
    pub reference: Option<String>,
    /// Version of the program that makes the report.
    pub commit: Option<String>,
    /// The day of the report.
    pub date: Option<String>,
}

impl Default for ReportOptions {
    fn default() -> ReportOptions {
        ReportOptions { title: "Length extrapolation".into(), reference: None, commit: None, date: None }
    }
}

/// A page, ready to be laid out.
#[derive(Serialize)]
pub(crate) struct ReportPage<'a> {
    title: &'a str,
    headline: String,
    facts: Vec<(&'static str, String)>,
    notes: &'a [String],
    reference: Option<&'a str>,
    sections: Vec<SettingPart>,
    answers: Vec<AnswersPart>,
    suite: Vec<Grid>,
    suite_figures: Vec<FigurePart>,
    tested: Option<String>,
    positions: Vec<FigurePart>,
    kernels: Vec<FigurePart>,
    training: Vec<FigurePart>,
    learning: Vec<Grid>,
    speeds: Vec<Grid>,
    runs: Grid,
}

/// One table of results with what belongs to it.
#[derive(Serialize)]
struct SettingPart {
    title: String,
    meaning: String,
    /// In which keys of the plan this and other settings differ, beside those in the title.
    differs: Vec<String>,
    /// How many, in words; empty where runs stand for themselves.
    seeds: String,
    grids: Vec<Grid>,
    /// What the windowed baseline of the reference says.
    windows: Vec<String>,
    tests: Option<Grid>,
    /// Rows of `tests` with a p-value.
    n_tested: usize,
    figures: Vec<FigurePart>,
}

/// A table as text.
#[derive(Clone, Debug, Serialize)]
pub struct Grid {
    /// What it shows.
    pub caption: String,
    /// Names of the columns, that of the rows' names first.
    pub head: Vec<String>,
    /// The rows, top to bottom.
    pub rows: Vec<Row>,
}

/// A row of a table.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The contents of the first column.
    pub name: String,
    /// Colour of the encoding in the plots, where the row is one.
    pub colour: Option<usize>,
    /// The other columns.
    pub cells: Vec<Cell>,
}

/// A cell of a table.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Cell {
    /// The value.
    pub text: String,
    /// Its deviation.
    pub spread: Option<String>,
    /// Whether no other of its column is better.
    pub best: bool,
    /// Whether the reference is significantly better.
    pub dagger: bool,
    /// Of a claim whether it was confirmed or contradicted.
    pub claim: Option<bool>,
    /// What is said below it.
    pub note: Option<String>,
    /// Where it leads.
    pub link: Option<String>,
}

/// A figure as a page has it.
#[derive(Debug, Serialize)]
pub struct FigurePart {
    id: String,
    title: String,
    caption: String,
    /// The file that holds the figure alone.
    file: String,
    wide: String,
    narrow: String,
    small: Vec<String>,
    /// Drawn at one size only.
    pictures: Vec<String>,
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        Cell { text, ..Cell::default() }
    }
}

impl<'a> ReportPage<'a> {
    pub(crate) fn new(
        results: &'a Results,
        (figures, reaches): (&[Figure], &[ReachFigure]),
        options: &'a ReportOptions,
    ) -> ReportPage<'a> {
        let part = |section: Section| {
            let plots = figures.iter().filter(|figure| figure.section == section).map(figure_part);
            let rows = reaches.iter().filter(|figure| figure.section == section).map(ReachFigure::part);
            plots.chain(rows).collect::<Vec<_>>()
        };
        ReportPage {
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
            answers: results
                .answers
                .iter()
                .enumerate()
                .map(|(i, table)| AnswersPart::new(results, table, part(Section::Answers(i))))
                .collect(),
            suite: reach::suite_grids(results),
            suite_figures: part(Section::Suite),
            tested: reach::tests_sentence(results),
            positions: part(Section::Positions),
            kernels: part(Section::Kernels),
            training: part(Section::Training),
            learning: learning(results),
            speeds: speeds(results),
            runs: runs(results),
        }
    }

    /// The page in a template's layout.
    ///
    /// # Errors
    /// [`Error::Render`] if the template is wrong.
    pub(crate) fn render(&self, layout: Layout) -> Result<String> {
        render(layout.name(), layout.source(), self)
    }
}

/// A page in the layout of a template, whose name says by its extension how text is escaped. The template sees `page`, the styles
/// of pages and plots, the mark of pages that are made here, and the tables and figures that pages share.
///
/// # Errors
/// [`Error::Render`] if the template is wrong.
pub fn render<P: Serialize>(name: &'static str, template: &'static str, page: &P) -> Result<String> {
    let render = || {
        let mut environment = environment()?;
        environment.add_template(name, template)?;
        let page_style = include_str!("../templates/page.css");
        let context = context! { page => Serde(page), plot_style => plot::STYLE, page_style, mark => MARK };
        environment.get_template(name)?.render(context)
    };
    render().map_err(|error: minijinja::Error| Error::Render { page: name, reason: format!("{error:#}") })
}

fn environment() -> std::result::Result<minijinja::Environment<'static>, minijinja::Error> {
    let mut environment = minijinja::Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.add_filter("line", |text: String| markdown_line(&text));
    environment.add_filter("cell", |text: String| markdown_line(&text).replace('|', "\\|"));
    environment.add_template("parts.html", include_str!("../templates/parts.html.jinja"))?;
    environment.add_template("parts.md", include_str!("../templates/parts.md.jinja"))?;
    Ok(environment)
}

/// Text on one line of Markdown: a label may have line ends, and what begins like a tag of HTML would be one.
fn markdown_line(text: &str) -> String {
    let text = one_line(text);
    let mut line = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(character) = rest.next() {
        let begins_tag = rest.peek().is_some_and(|next| next.is_ascii_alphabetic() || "/!?".contains(*next));
        if character == '<' && begins_tag { line.push_str("&lt;") } else { line.push(character) }
    }
    line
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
            Layout::Html => INDEX,
            Layout::Markdown => TEXT,
        }
    }

    fn source(self) -> &'static str {
        match self {
            Layout::Html => include_str!("../templates/index.html.jinja"),
            Layout::Markdown => include_str!("../templates/report.md.jinja"),
        }
    }
}

/// The main finding of the first table with one, in a sentence or two.
fn headline(results: &Results) -> String {
    let marked =
        |table: &PerplexityTable, length: u64| table.scores.iter().any(|score| score.eval_len == length && score.best);
    let found = results
        .tables
        .iter()
        .find_map(|table| Some((table, table.lengths().into_iter().rev().find(|length| marked(table, *length))?)));
    if let Some((table, length)) = found {
        let words = lowest_words(results, table, length);
        // which of several tables it is about
        let setting =
            if results.tables.len() > 1 { format!(" Setting: {}.", table.setting.title) } else { String::new() };
        return words + &setting;
    }
    if let Some(sentence) = results.answers.iter().find_map(answers::headline) {
        let reach = results.answers.iter().find_map(reach::reach_sentence);
        return reach.into_iter().chain([sentence]).collect::<Vec<_>>().join(" ");
    }
    let are_several = |table: &PerplexityTable| {
        let lengths: Vec<u64> = table.scores.iter().map(|score| score.eval_len).collect();
        lengths.iter().collect::<BTreeSet<_>>().len() < lengths.len()
    };
    if results.tables.iter().any(are_several) {
        return "No lowest perplexity is marked: the encodings have no seed in common, or none is finite.".into();
    }
    "No length has two encodings to compare yet.".into()
}

/// Which encoding has the lowest perplexity at a length, and whether the tests say more.
fn lowest_words(results: &Results, table: &PerplexityTable, length: u64) -> String {
    let here: Vec<&PerplexityScore> = table.scores.iter().filter(|score| score.eval_len == length).collect();
    let bests: Vec<&PerplexityScore> = here.iter().copied().filter(|score| score.best).collect();
    let factor = length as f64 / table.setting.train_len as f64;
    let factor = number(factor);
    // of a number without decimals the last zeros count
    let factor = if factor.contains('.') { factor.trim_end_matches('0').trim_end_matches('.') } else { &factor };
    let at = format!("At {} tokens, {factor} times the training length,", count(length));
    let encodings = here.iter().filter(|score| score.window.is_none()).count();
    let unfinished = if here.iter().any(|score| score.n_unfinished > 0) { " Some runs are unfinished." } else { "" };
    let [best] = bests[..] else {
        let names: Vec<String> = bests.iter().map(|score| name_text(score.name())).collect();
        return format!(
            "{at} {} share the lowest perplexity of {encodings} encodings.{unfinished}",
            names.join(" and ")
        );
    };
    // the lowest is so on the seeds that all have, and its mean is over its own
    let common = if here.iter().any(|score| score.n != best.n) { " on their common seeds" } else { "" };
    let mut text = format!(
        "{at} {} has the lowest perplexity of {encodings} encodings{common}: {} (n = {}).",
        name_text(best.name()),
        with_deviation(best.perplexity, best.perplexity_deviation),
        best.n
    );
    let tested: Vec<_> = table
        .tests
        .iter()
        .filter(|test| test.eval_len == length && test.window.is_none() && test.p.is_some())
        .collect();
    if best.n == 1 {
        text.push_str(" One seed does not show whether a difference exceeds the noise.");
    } else if results.reference.as_deref().map(|name| (name, None)) == Some(best.name()) && !tested.is_empty() {
        let beaten = tested.iter().filter(|test| test.dagger).count();
        text.push_str(&format!(
            " It is significantly better than {beaten} of the {} it can be tested against.",
            tested.len()
        ));
    }
    text + unfinished
}

fn facts(results: &Results, options: &ReportOptions) -> Vec<(&'static str, String)> {
    let counted = results.runs.iter().filter(|run| run.duplicate_of.is_none());
    let finished = counted.clone().filter(|run| run.state == RunState::Finished).count();
    let seconds: Vec<f64> = counted.clone().filter_map(|run| run.training_seconds).collect();
    let time = if seconds.is_empty() { "not recorded".to_owned() } else { duration(seconds.iter().sum()) };
    let mut facts = vec![
        ("runs", format!("{} ({finished} finished)", counted.clone().count())),
        ("encodings", results.encodings.len().to_string()),
        ("training time", time),
    ];
    facts.push(("trained on", tally_runs(counted.clone().map(|run| run.machines.clone()))));
    facts.push(("evaluated with", tally_runs(counted.clone().map(|run| run.evaluated_in.clone()))));
    facts.push(("programs", tally_runs(counted.map(|run| run.programs.clone()))));
    let given = [("report by", &options.commit), ("date", &options.date)];
    facts.extend(given.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))));
    facts
}

/// A figure, drawn at the sizes of a page.
pub fn figure_part(figure: &Figure) -> FigurePart {
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
        small: figure.small().0,
        pictures: Vec::new(),
    }
}

/// A figure of pictures that are drawn at one size: its id, title, caption and file, and the pictures.
pub fn picture_part([id, title, caption, file]: [&str; 4], pictures: &[String]) -> FigurePart {
    let [id, title, caption, file] = [id, title, caption, file].map(str::to_owned);
    let (wide, narrow, small) = Default::default();
    FigurePart { id, title, caption, file, wide, narrow, small, pictures: pictures.to_vec() }
}

fn with_deviation(mean: f64, spread: Option<f64>) -> String {
    spread.map_or_else(|| number(mean), |spread| format!("{} ± {}", number(mean), deviation(mean, spread)))
}
