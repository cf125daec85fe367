//! Writing the report's files.

use std::path::{Component, Path, PathBuf};

use serde::Serialize;

use crate::error::{Error, Result};
use crate::folder::{MARK, csv, put, refuse_foreign, remove_former_figures};
use crate::page::figures::figures;
use crate::page::suite::reach_figures;
use crate::page::{Layout, ReportOptions, ReportPage};
use crate::results::{AnswerScore, AnswerTable, PositionCurve, Results, Setting};
use crate::run::Run;
use kerple_run::write_json;

/// What was written.
#[derive(Clone, Debug)]
pub struct WrittenReport {
    /// The page to open.
    pub index: PathBuf,
    /// Every file, the page included.
    pub files: Vec<PathBuf>,
    /// The numbers in them. Folders are relative to the report's.
    pub results: Results,
}

/// Writes `index.html`, `report.md`, `report.json`, `tables/*.csv` and `figures/*.svg` into a folder, and replaces an earlier
/// report there, of whose figures none is left. Each file is whole or absent.
///
/// # Errors
/// [`Error::Refused`] without runs, for an unknown reference, or if the folder contains a page that
/// is not a report; [`Error::Io`] if a file cannot be written.
pub fn write(runs: &[Run], folder: &Path, options: &ReportOptions) -> Result<WrittenReport> {
    let mut results = Results::of(runs, options.reference.as_deref())?;
    refuse_foreign(folder, "report.json")?;
    let figures = figures(runs, &results);
    std::fs::create_dir_all(folder).map_err(Error::io_while("creating", folder))?;
    make_relative(&mut results, folder);
    let mut files = Vec::new();
    for figure in &figures {
        put(folder.join(figure.file()), figure.alone().into_bytes(), &mut files)?;
    }
    let reaches = reach_figures(&results);
    for figure in &reaches {
        put(folder.join(figure.file()), figure.chart.file().into_bytes(), &mut files)?;
    }
    remove_former_figures(folder, &files)?;
    let page = ReportPage::new(&results, (&figures, &reaches), options);
    for layout in [Layout::Html, Layout::Markdown] {
        put(folder.join(layout.name()), page.render(layout)?.into_bytes(), &mut files)?;
    }
    let json = folder.join("report.json");
    write_json(
        &json,
        &ReportJson {
            title: &options.title,
            generator: MARK,
            commit: &options.commit,
            date: &options.date,
            results: &results,
        },
    )?;
    files.push(json);
    for (name, table) in csv_tables(&results)? {
        put(folder.join("tables").join(format!("{name}.csv")), table, &mut files)?;
    }
    Ok(WrittenReport { index: folder.join(Layout::Html.name()), files, results })
}

/// `report.json`.
#[derive(Serialize)]
struct ReportJson<'a> {
    title: &'a str,
    generator: &'a str,
    commit: &'a Option<String>,
    date: &'a Option<String>,
    #[serde(flatten)]
    results: &'a Results,
}

/// Every list of the results as a table, with its name.
fn csv_tables(results: &Results) -> Result<Vec<(&'static str, Vec<u8>)>> {
    let tables = &results.tables;
    let positions = results.positions.iter();
    // a column that some rows have and others lack is no table
    let has_start = tables.iter().any(|table| table.setting.start.is_some());
    let columns = |setting: &Setting| {
        let start = setting.start.clone().or_else(|| has_start.then(String::new));
        Setting { start, ..setting.clone() }
    };
    let mut all = vec![
        (
            "scores",
            csv(
                "scores",
                tables.iter().flat_map(|table| table.scores.iter().map(|row| (columns(&table.setting), row))),
            )?,
        ),
        (
            "tests",
            csv("tests", tables.iter().flat_map(|table| table.tests.iter().map(|row| (columns(&table.setting), row))))?,
        ),
        (
            "evaluations",
            csv(
                "evaluations",
                tables.iter().flat_map(|table| table.evaluations.iter().map(|row| (columns(&table.setting), row))),
            )?,
        ),
        (
            "positions",
            csv(
                "positions",
                positions.flat_map(|curve| {
                    let PositionCurve { eval_len, encoding, window, n, .. } = curve;
                    let what = PositionCurveColumns { eval_len: *eval_len, encoding, window: *window, n: *n };
                    curve.bins.iter().map(move |bin| (columns(&curve.setting), what, bin))
                }),
            )?,
        ),
        ("answers", csv("answers", results.answers.iter().flat_map(answer_rows))?),
        ("speeds", csv("speeds", results.speeds.iter())?),
        ("effective_lengths", csv("effective_lengths", results.effective_lengths.iter())?),
        ("runs", csv("runs", results.runs.iter())?),
    ];
    if !results.learning.is_empty() {
        all.push(("learning", csv("learning", results.learning.iter())?));
        all.push(("learned", csv("learned", results.learned.iter())?));
    }
    if tables.iter().any(|table| !table.own_context.is_empty()) {
        let rows = tables.iter().flat_map(|table| table.own_context.iter().map(|row| (columns(&table.setting), row)));
        all.push(("own_context", csv("own_context", rows)?));
    }
    Ok(all)
}

/// Which table a row of `answers.csv` belongs to.
#[derive(Clone, Copy, Serialize)]
struct AnswerTableColumns<'a> {
    task: &'a str,
    group: &'a str,
    split: &'a str,
    train_len: u64,
    text: &'a str,
    examples: u64,
    text_seed: Option<u64>,
    precision: &'a str,
    device: &'a str,
    simd: Option<&'a str>,
    chance: f64,
}

fn answer_rows(table: &AnswerTable) -> impl Iterator<Item = (AnswerTableColumns<'_>, &AnswerScore)> {
    let &AnswerTable { ref task, ref group, ref split, train_len, ref text, examples, text_seed, chance, .. } = table;
    let (precision, device, simd) = (&table.precision, &table.device, table.simd.as_deref());
    let of = AnswerTableColumns {
        task,
        group,
        split,
        train_len,
        text,
        examples,
        text_seed,
        precision,
        device,
        simd,
        chance,
    };
    table.scores.iter().map(move |score| (of, score))
}

/// Which curve a row of `positions.csv` belongs to.
#[derive(Clone, Copy, Serialize)]
struct PositionCurveColumns<'a> {
    eval_len: u64,
    encoding: &'a str,
    window: Option<u64>,
    n: usize,
}

/// Gives folders as seen from the report, so that report and runs can move together.
fn make_relative(results: &mut Results, report: &Path) {
    let evaluations = results.tables.iter_mut().flat_map(|table| &mut table.evaluations).map(|row| &mut row.run);
    let runs =
        results.runs.iter_mut().flat_map(|row| std::iter::once(&mut row.folder).chain(row.duplicate_of.as_mut()));
    for folder in evaluations.chain(runs) {
        *folder = relative(report, folder);
    }
}

/// `target` as seen from the folder `from`, or as it is where the two have nothing in common.
fn relative(from: &Path, target: &Path) -> PathBuf {
    let (Ok(from), Ok(target)) = (from.canonicalize(), target.canonicalize()) else { return target.to_owned() };
    let shared = from.components().zip(target.components()).take_while(|(a, b)| a == b).count();
    let up = from.components().skip(shared).map(|_| Component::ParentDir);
    let path: PathBuf = up.chain(target.components().skip(shared)).collect();
    if path.as_os_str().is_empty() { PathBuf::from(".") } else { path }
}
