//! The page of a reproduction.

use super::cells::CellRow;
use super::description::ItemDescription;
use super::reader::ReproductionFolder;
use super::verdict::{ClaimFinding, counted};
use crate::error::Result;
use crate::manifest::PlannedRun;
use kerple_report::folder::{INDEX, TEXT};
use kerple_report::page::{Cell, FigurePart, Grid, Row, figure_part, picture_part, render};
use kerple_report::page::{Figure, ReachFigure};
use kerple_report::plot;
use kerple_report::tally_runs;
use serde::Serialize;

/// How complete a table or figure is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ItemSummary {
    /// `table3`.
    pub id: String,
    /// What it shows.
    pub title: String,
    /// Cells, or curves, that have all their runs.
    pub complete: usize,
    /// Cells, or curves, that are planned.
    pub planned: usize,
}

/// A table or figure.
pub(super) struct PageItem {
    /// `table3`.
    pub id: String,
    pub title: String,
    /// What it shows.
    pub text: String,
    /// What is missing.
    pub notes: Vec<String>,
    pub grids: Vec<Grid>,
    pub figures: Vec<Figure>,
    /// How far encodings answer.
    pub reaches: Vec<ReachFigure>,
    /// Parts that are not plots.
    pub pictures: Vec<Picture>,
    /// The cells of its grids; without cells, `complete` and `planned` count something else.
    pub cells: Vec<CellRow>,
    pub complete: usize,
    pub planned: usize,
}

impl PageItem {
    /// Adds how many of these cells of claims are decided, and what stays when all are corrected together.
    pub(super) fn count<'a>(&mut self, findings: impl Iterator<Item = &'a ClaimFinding>) {
        self.notes.extend(counted(findings));
    }

    pub(super) fn new(description: &ItemDescription) -> PageItem {
        let ItemDescription { id, title, text, .. } = description.clone();
        let (notes, grids, figures, reaches, pictures, cells) = Default::default();
        PageItem { id, title, text, notes, grids, figures, reaches, pictures, cells, complete: 0, planned: 0 }
    }

    pub(super) fn summary(&self) -> ItemSummary {
        let complete = self.cells.iter().filter(|cell| cell.is_complete()).count() + self.complete;
        let (id, title) = (self.id.clone(), self.title.clone());
        ItemSummary { id, title, complete, planned: self.cells.len() + self.planned }
    }
}

/// A picture, or several that belong together, that are drawn at one size only.
pub(super) struct Picture {
    pub id: String,
    pub title: String,
    pub caption: String,
    /// SVG elements.
    pub parts: Vec<String>,
}

impl Picture {
    /// Where it alone is, from the page's folder.
    pub(super) fn file(&self) -> String {
        format!("figures/{}.svg", self.id)
    }

    /// It as a file of its own: several parts in rows, in cells as large as the largest.
    pub(super) fn alone(&self) -> String {
        let sizes = self.parts.iter().map(|part| [length_of(part, "width"), length_of(part, "height")]);
        let [width, height] = sizes.fold([1.0, 1.0], |[w, h]: [f64; 2], [width, height]| [w.max(width), h.max(height)]);
        plot::standalone(&plot::grid(&self.parts, (1200.0 / width) as usize, width, height))
    }

    fn part(&self) -> FigurePart {
        picture_part([&self.id, &self.title, &self.caption, &self.file()], &self.parts)
    }
}

/// A length attribute of the element, in pixels.
fn length_of(svg: &str, name: &str) -> f64 {
    let value = svg.split(&format!(" {name}=\"")).nth(1).and_then(|rest| rest.split('"').next());
    value.and_then(|value| value.parse().ok()).unwrap_or(0.0)
}

/// A page, ready to be laid out.
#[derive(Serialize)]
pub(super) struct PaperPage<'a> {
    title: &'a str,
    about: &'a str,
    facts: Vec<(&'a str, String)>,
    items: Vec<PageSection>,
    runs: Grid,
}

#[derive(Serialize)]
struct PageSection {
    id: String,
    title: String,
    text: String,
    notes: Vec<String>,
    grids: Vec<Grid>,
    figures: Vec<FigurePart>,
}

impl<'a> PaperPage<'a> {
    pub(super) fn new(
        all: &'a ReproductionFolder,
        items: &[PageItem],
        facts: &'a [(&'static str, String)],
    ) -> PaperPage<'a> {
        let part = |item: &PageItem| {
            let ItemSummary { complete, planned, .. } = item.summary();
            let mut notes = item.notes.clone();
            if !item.cells.is_empty() && complete < planned {
                notes.insert(0, format!("{complete} of {planned} cells have all their seeds."));
            }
            PageSection {
                id: item.id.clone(),
                title: item.title.clone(),
                text: item.text.clone(),
                notes,
                grids: item.grids.clone(),
                figures: (item.reaches.iter().map(ReachFigure::part))
                    .chain(item.figures.iter().map(figure_part))
                    .chain(item.pictures.iter().map(Picture::part))
                    .collect(),
            }
        };
        let done = all.manifest.runs.iter().filter(|run| is_done(all, run)).count();
        let mut head =
            vec![("scale", all.manifest.scale.clone()), ("runs", format!("{done} of {}", all.manifest.runs.len()))];
        if all.over_other_texts > 0 {
            head.push(("rows over other texts, left out", all.over_other_texts.to_string()));
        }
        if all.in_other_numerics > 0 {
            head.push((
                "rows of another precision, device or instruction set, left out",
                all.in_other_numerics.to_string(),
            ));
        }
        let found: Vec<&kerple_report::Run> = all.groups.values().flat_map(|group| &group.runs).collect();
        let seconds = |run: &&kerple_report::Run| {
            run.training_seconds().unwrap_or(0.0) + run.evaluations.iter().map(|row| row.seconds).sum::<f64>()
        };
        if !found.is_empty() {
            head.push(("trained on", tally_runs(found.iter().map(|run| run.machines()))));
            head.push(("evaluated with", tally_runs(found.iter().map(|run| run.evaluated_in()))));
            let partly = found.iter().filter(|run| run.trained_in().len() > 1).count();
            if partly > 0 {
                head.push(("trained partly on other instruction sets or devices", format!("{partly} runs")));
            }
            head.push(("programs", tally_runs(found.iter().map(|run| run.programs()))));
            head.push(("training and evaluation", kerple_report::format::duration(found.iter().map(seconds).sum())));
        }
        head.extend(facts.iter().cloned());
        PaperPage {
            title: &all.manifest.title,
            about: &all.manifest.about,
            facts: head,
            items: items.iter().map(part).collect(),
            runs: runs(all),
        }
    }

    /// The files of the page with their names.
    ///
    /// # Errors
    /// A template that is wrong.
    pub(super) fn render(&self) -> Result<[(&'static str, String); 2]> {
        let html = render(INDEX, include_str!("../../templates/paper.html.jinja"), self)?;
        let markdown = render(TEXT, include_str!("../../templates/paper.md.jinja"), self)?;
        Ok([(INDEX, html), (TEXT, markdown)])
    }
}

fn found<'a>(all: &'a ReproductionFolder, run: &PlannedRun) -> Option<&'a kerple_report::Run> {
    let group = all.runs_of(&run.corpus, &run.variant)?;
    group.runs.iter().find(|found| found.label() == run.label && found.seed() == Some(run.seed))
}

fn is_done(all: &ReproductionFolder, run: &PlannedRun) -> bool {
    let is_measured = |found: &kerple_report::Run| {
        (run.evaluate.is_empty() || !found.evaluations.is_empty()) && found.probes.len() >= run.probe.len()
    };
    found(all, run).is_some_and(|found| is_measured(found) && Some(found.steps_done()) >= found.last_step())
}

/// Every planned run, with where it is and how far it got.
fn runs(all: &ReproductionFolder) -> Grid {
    let row = |run: &PlannedRun| {
        let found = found(all, run);
        let state = match found {
            None => "not started".to_owned(),
            Some(_) if is_done(all, run) => "done".to_owned(),
            Some(run) => format!("{} of {} updates", run.steps_done(), run.planned_steps().unwrap_or(0)),
        };
        // that of the rows, also where keys were renamed since
        let hash = found.and_then(|found| match &run.plan_hash {
            Some(renamed) => Some(renamed.computed_under.as_str()),
            None => found.plan_hash(),
        });
        let folder = run.folder.display().to_string();
        let link = found.map(|_| format!("../{folder}/"));
        let text = |value: Option<String>| Cell::from(value.unwrap_or_else(|| "\u{2013}".to_owned()));
        Row {
            name: folder.clone(),
            colour: None,
            cells: vec![
                Cell { link, ..state.into() },
                text(hash.map(|hash| hash.chars().take(12).collect())),
                text(found.map(|run| tally_runs(std::iter::once(run.programs())))),
                text(found.and_then(|run| run.training_seconds()).map(kerple_report::format::duration)),
                run.serves.join(", ").into(),
            ],
        }
    };
    let head = ["run", "state", "plan", "programs", "training", "needed by"].map(str::to_owned).into();
    Grid { caption: "Runs".to_owned(), head, rows: all.manifest.runs.iter().map(row).collect() }
}
