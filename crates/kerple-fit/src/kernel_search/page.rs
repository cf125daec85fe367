//! A search as pages and tables: `index.html` and `report.md` with what was confirmed, `selection.html` with the rungs and the
//! space, `search.json`, `tables/*.csv` and `figures/*.svg`.

use super::confirmation::{ComparedArm, SearchResult, short};
use super::figures;
use super::plan::SearchPlan;
use super::stages::{RungEntry, RungResult};
use crate::page::{FitPage, FitSection, head, row};
use crate::space::Space;
use kerple_report::folder::{INDEX, TEXT, csv, put, refuse_foreign, remove_former_figures};
use kerple_report::format::probability;
use kerple_report::page::{Figure, Grid, Row, figure_part};
use kerple_run::{Error, Result, write_json};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Name of the page with the rungs.
const SELECTION: &str = "selection.html";
/// How numbers of rungs are labelled, everywhere.
const BIASED: &str = "selection, biased upwards";

/// What was written.
#[derive(Clone, Debug)]
pub struct WrittenSearch {
    /// The page to open.
    pub index: PathBuf,
    /// Every file, the page included.
    pub files: Vec<PathBuf>,
}

/// Writes a result into a folder and replaces an earlier one there. Each file is whole or absent. `program` is what makes it.
///
/// # Errors
/// A folder with pages that kerple did not write; files that cannot be written.
pub fn write(plan: &SearchPlan, result: &SearchResult, folder: &Path, program: &str) -> Result<WrittenSearch> {
    refuse_foreign(folder, "search.json")?;
    std::fs::create_dir_all(folder).map_err(Error::io(folder, "create"))?;
    let (confirmed, selected) = (figures::confirmed(plan, result), figures::selected(result, BIASED));
    let mut files = Vec::new();
    for figure in confirmed.iter().chain(&selected) {
        put(folder.join(figure.file()), figure.alone().into_bytes(), &mut files)?;
    }
    remove_former_figures(folder, &files)?;
    let page = confirmed_page(plan, result, confirmed.as_ref(), program);
    put(folder.join(INDEX), page.html()?.into_bytes(), &mut files)?;
    put(folder.join(TEXT), page.markdown()?.into_bytes(), &mut files)?;
    let selection = selection_page(plan, result, selected.as_ref(), program);
    put(folder.join(SELECTION), selection.html()?.into_bytes(), &mut files)?;
    let json = folder.join("search.json");
    write_json(&json, result)?;
    files.push(json);
    let tables = folder.join("tables");
    put(tables.join("confirmation.csv"), csv("confirmation", compared_rows(result))?, &mut files)?;
    put(tables.join("rungs.csv"), csv("rungs", rung_rows(result))?, &mut files)?;
    put(tables.join("space.csv"), csv("space", plan.space.expressions.iter())?, &mut files)?;
    Ok(WrittenSearch { index: folder.join(INDEX), files })
}

fn facts(plan: &SearchPlan, result: &SearchResult, program: &str) -> Vec<(&'static str, String)> {
    vec![
        ("expressions", result.counts.expressions.to_string()),
        ("runs", result.counts.runs.to_string()),
        ("tests", result.counts.tests.to_string()),
        ("plan", plan.hash.chars().take(12).collect()),
        ("made by", program.to_owned()),
    ]
}

fn confirmed_page(plan: &SearchPlan, result: &SearchResult, figure: Option<&Figure>, program: &str) -> FitPage {
    let confirmation = plan.stages.last().expect("a plan confirms");
    let percent = short(100.0 * plan.rules.margin);
    let confirmed = FitSection {
        id: "confirmation",
        title: "Confirmation".to_owned(),
        text: vec![
            format!(
                "The finalists of the rungs were trained anew: {} updates, {} seeds and the test split, none of which a rung used. \
                 A ratio is the perplexity divided by that of {} at the same seeds; below 1 is better.",
                confirmation.updates,
                confirmation.seeds.len(),
                plan.rules.reference
            ),
            format!(
                "Each finalist has one paired t-test, and Holm's method corrects the {} tests together. \u{201c}Not better by \
                 {percent} %\u{201d} and \u{201c}equal\u{201d} have tests of their own against the margin, corrected in the same way. \
                 Baselines are shown and not tested.",
                plan.rules.tests
            ),
        ],
        grids: vec![Grid {
            caption: "Ratios of perplexity on the test split".to_owned(),
            head: head(&[
                "expression",
                "ratio",
                "95 % interval",
                "p, uncorrected",
                "p, Holm",
                "not better by the margin, p",
                "equal, p",
                "verdict",
                "n",
                "class",
            ]),
            rows: result.finalists.iter().chain(&result.baselines).map(compared_row).collect(),
        }],
        figures: figure.map(figure_part).into_iter().collect(),
        ..FitSection::default()
    };
    let mut tried = result.counts.sentences();
    tried.extend(refused_sentences(&plan.space));
    let tried =
        FitSection { id: "tried", title: "How much was tried".to_owned(), text: tried, ..FitSection::default() };
    FitPage {
        title: "A search for kernels",
        headline: result.headline.clone(),
        facts: facts(plan, result, program),
        sections: vec![confirmed, tried],
        files: &[SELECTION, "search.json", "rows.jsonl", "tables/confirmation.csv", TEXT],
        has_figures: figure.is_some(),
    }
}

/// What happened to the expressions that are not in the space.
fn refused_sentences(space: &Space) -> Vec<String> {
    let counts = &space.counts;
    vec![format!(
        "{} expressions were written: {} were refused without a proof, {} for their number of parameters, {} had the text and {} \
         the curves of another.",
        counts.written,
        counts.refused_without_proof,
        counts.refused_for_parameters,
        counts.same_text,
        counts.same_curves
    )]
}

fn compared_row(arm: &ComparedArm) -> Row {
    let missing = || "\u{2013}".to_owned();
    let p = |p: Option<f64>| p.map_or_else(missing, probability);
    let mut line = row(
        arm.expression.clone(),
        vec![
            arm.ratio.map_or_else(missing, |ratio| format!("{ratio:.4}")),
            arm.interval.map_or_else(missing, |(low, high)| format!("{low:.4} to {high:.4}")),
            p(arm.p),
            p(arm.p_corrected),
            p(arm.p_better_by_margin),
            p(arm.p_equal),
            arm.verdict.map_or_else(|| "baseline".to_owned(), |verdict| verdict.text().to_owned()),
            arm.n.to_string(),
            arm.class.clone().unwrap_or_else(missing),
        ],
    );
    line.cells[0].note = arm.note.clone();
    line
}

fn selection_page(plan: &SearchPlan, result: &SearchResult, figure: Option<&Figure>, program: &str) -> FitPage {
    let shrunk = FitSection {
        id: "shrinkage",
        title: format!("Shrinkage ({BIASED})"),
        text: vec![
            "What looks best of many is partly lucky. The shrinkage is the difference to the reference in a rung minus the \
             difference in the confirmation, in nats per token. Below 0 means that the rung showed too much."
                .to_owned(),
        ],
        grids: vec![Grid {
            caption: format!("Finalists: ratio to the reference ({BIASED}) and shrinkage, by rung"),
            head: shrinkage_head(result),
            rows: result.finalists.iter().map(shrinkage_row).collect(),
        }],
        figures: figure.map(figure_part).into_iter().collect(),
        ..FitSection::default()
    };
    let rung = |of: &RungResult| Grid {
        caption: format!("{}: {} updates per run ({BIASED})", of.name, of.updates),
        head: head(&["expression", "loss, nats per token", "ratio to the reference", "next stage"]),
        rows: of.entries.iter().map(rung_row).collect(),
    };
    let rungs = FitSection {
        id: "rungs",
        title: format!("Rungs ({BIASED})"),
        text: vec![
            "Means over two seeds on the validation split, best first. Nothing is concluded from these numbers."
                .to_owned(),
        ],
        grids: result.rungs.iter().map(rung).collect(),
        ..FitSection::default()
    };
    let merged = plan.space.merged.iter().map(|merged| row(merged.expression.clone(), vec![merged.kept.clone()]));
    let space = FitSection {
        id: "space",
        title: "Space".to_owned(),
        text: refused_sentences(&plan.space),
        grids: vec![
            Grid {
                caption: "Expressions".to_owned(),
                head: head(&["expression", "functions", "parameters", "class"]),
                rows: plan
                    .space
                    .expressions
                    .iter()
                    .map(|of| row(of.title(), vec![of.size.to_string(), of.parameters.to_string(), of.class.clone()]))
                    .collect(),
            },
            Grid {
                caption: "Expressions whose curves are those of another".to_owned(),
                head: head(&["expression", "kept"]),
                rows: merged.collect(),
            },
        ],
        ..FitSection::default()
    };
    FitPage {
        title: "A search for kernels: selection",
        headline: format!("{BIASED}. What was confirmed is in {INDEX}."),
        facts: facts(plan, result, program),
        sections: vec![shrunk, rungs, space],
        files: &[INDEX, "search.json", "tables/rungs.csv", "tables/space.csv"],
        has_figures: figure.is_some(),
    }
}

fn ratio(difference: Option<f64>) -> String {
    difference.map_or_else(|| "\u{2013}".to_owned(), |difference| format!("{:.4}", difference.exp()))
}

fn shrinkage_head(result: &SearchResult) -> Vec<String> {
    let rungs = result.rungs.iter().flat_map(|rung| [format!("{}, ratio", rung.name), "shrinkage".to_owned()]);
    ["expression", "confirmed ratio"].into_iter().map(str::to_owned).chain(rungs).collect()
}

fn shrinkage_row(arm: &ComparedArm) -> Row {
    let shown = |value: Option<f64>| value.map_or_else(|| "\u{2013}".to_owned(), |value| format!("{value:.4}"));
    let rungs = arm.selection.iter().flat_map(|of| [shown(of.ratio), shown(of.shrinkage)]);
    row(arm.expression.clone(), std::iter::once(shown(arm.ratio)).chain(rungs).collect())
}

fn rung_row(entry: &RungEntry) -> Row {
    let fate = match (entry.baseline, entry.goes_on) {
        (true, _) => "baseline",
        (false, true) => "yes",
        (false, false) => "dropped",
    };
    let loss = entry.nll.map_or_else(|| "diverged".to_owned(), |nll| format!("{nll:.4}"));
    row(entry.expression.clone(), vec![loss, ratio(entry.difference), fate.to_owned()])
}

/// A row of `tables/confirmation.csv`.
#[derive(Serialize)]
struct ComparedColumns<'a> {
    expression: &'a str,
    baseline: bool,
    class: Option<&'a str>,
    n: usize,
    nll: Option<f64>,
    ratio: Option<f64>,
    ratio_low: Option<f64>,
    ratio_high: Option<f64>,
    p: Option<f64>,
    p_corrected: Option<f64>,
    p_better_by_margin: Option<f64>,
    p_equal: Option<f64>,
    verdict: Option<&'static str>,
}

fn compared_rows(result: &SearchResult) -> impl Iterator<Item = ComparedColumns<'_>> {
    result.finalists.iter().chain(&result.baselines).map(|arm| ComparedColumns {
        expression: &arm.expression,
        baseline: arm.verdict.is_none(),
        class: arm.class.as_deref(),
        n: arm.n,
        nll: arm.nll,
        ratio: arm.ratio,
        ratio_low: arm.interval.map(|ends| ends.0),
        ratio_high: arm.interval.map(|ends| ends.1),
        p: arm.p,
        p_corrected: arm.p_corrected,
        p_better_by_margin: arm.p_better_by_margin,
        p_equal: arm.p_equal,
        verdict: arm.verdict.map(|verdict| verdict.text()),
    })
}

/// A row of `tables/rungs.csv`.
#[derive(Serialize)]
struct RungColumns<'a> {
    rung: &'a str,
    label: &'static str,
    updates: u64,
    expression: &'a str,
    baseline: bool,
    nll: Option<f64>,
    difference: Option<f64>,
    next_stage: bool,
    shrinkage: Option<f64>,
}

fn rung_rows(result: &SearchResult) -> impl Iterator<Item = RungColumns<'_>> {
    let shrinkage = |rung: &RungResult, expression: &str| {
        let arm = result.finalists.iter().chain(&result.baselines).find(|arm| arm.expression == expression)?;
        arm.selection.iter().find(|of| of.rung == rung.name)?.shrinkage
    };
    result.rungs.iter().flat_map(move |rung| {
        rung.entries.iter().map(move |entry| RungColumns {
            rung: &rung.name,
            label: BIASED,
            updates: rung.updates,
            expression: &entry.expression,
            baseline: entry.baseline,
            nll: entry.nll,
            difference: entry.difference,
            next_stage: entry.goes_on,
            shrinkage: shrinkage(rung, &entry.expression),
        })
    })
}
