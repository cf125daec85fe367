//! A fit as pages and tables: `fit.json`, `index.html`, `report.md`, `tables/*.csv` and `figures/*.svg`.

use crate::curve::Curve;
use crate::input::CurveSource;
use crate::report::{CurveFits, CurveVerdict, FitReport, RankedFamily, SourceFits, short_kernel};
use kerple_core::calculus::expr::Expr;
use kerple_report::folder::{INDEX, TEXT, csv, put, refuse_foreign, remove_former_figures};
use kerple_report::format::number;
use kerple_report::page::{Cell, Figure, FigurePart, Grid, Row, Section, figure_part, render};
use kerple_report::plot::{Axis, Legend, Plot, Series};
use kerple_run::{Error, Result, write_json};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Most small curves on the page.
const MOST_SMALL: usize = 48;
/// Points of a drawn curve.
const DRAWN: usize = 160;
/// How far beyond its distances a curve is drawn, as a factor.
const BEYOND: f64 = 4.0;

/// Facts that no fit contains.
#[derive(Clone, Debug, Default)]
pub struct PageFacts {
    /// The program that makes the page.
    pub program: String,
    /// Seconds that reading and fitting took.
    pub seconds: f64,
}

/// What was written.
#[derive(Clone, Debug)]
pub struct WrittenFit {
    /// The page to open.
    pub index: PathBuf,
    /// Every file, the page included.
    pub files: Vec<PathBuf>,
}

/// A page, ready to be laid out.
#[derive(Serialize)]
pub(crate) struct FitPage {
    pub title: &'static str,
    pub headline: String,
    pub facts: Vec<(&'static str, String)>,
    pub sections: Vec<FitSection>,
    /// Files with the same numbers.
    pub files: &'static [&'static str],
    /// Whether there are files of figures too.
    pub has_figures: bool,
}

#[derive(Default, Serialize)]
pub(crate) struct FitSection {
    pub id: &'static str,
    pub title: String,
    pub text: Vec<String>,
    pub grids: Vec<Grid>,
    /// Keys of run files.
    pub keys: Vec<String>,
    pub figures: Vec<FigurePart>,
}

impl FitPage {
    pub(crate) fn html(&self) -> Result<String> {
        render(INDEX, include_str!("../templates/fit.html.jinja"), self)
    }

    pub(crate) fn markdown(&self) -> Result<String> {
        render(TEXT, include_str!("../templates/fit.md.jinja"), self)
    }
}

/// Writes a fit into a folder and replaces an earlier one there. Each file is whole or absent.
///
/// # Errors
/// A folder with pages that kerple did not write; files that cannot be written.
pub fn write(report: &FitReport, sources: &[CurveSource], folder: &Path, facts: &PageFacts) -> Result<WrittenFit> {
    refuse_foreign(folder, "fit.json")?;
    std::fs::create_dir_all(folder).map_err(Error::io(folder, "create"))?;
    let figures = figures(report, sources);
    let mut files = Vec::new();
    for figure in &figures {
        put(folder.join(figure.file()), figure.alone().into_bytes(), &mut files)?;
    }
    remove_former_figures(folder, &files)?;
    let page = page(report, &figures, facts);
    put(folder.join(INDEX), page.html()?.into_bytes(), &mut files)?;
    put(folder.join(TEXT), page.markdown()?.into_bytes(), &mut files)?;
    let json = folder.join("fit.json");
    write_json(&json, report)?;
    files.push(json);
    let tables = folder.join("tables");
    put(tables.join("curves.csv"), csv("curves", curve_rows(report))?, &mut files)?;
    put(tables.join("families.csv"), csv("families", family_rows(report))?, &mut files)?;
    Ok(WrittenFit { index: folder.join(INDEX), files })
}

fn page(report: &FitReport, figures: &[Figure], facts: &PageFacts) -> FitPage {
    let options = &report.options;
    let curves: usize = report.sources.iter().map(|source| source.curves.len()).sum();
    let by = serde_json::to_value(options.by)
        .map_or_else(|_| String::new(), |by| by.as_str().unwrap_or_default().to_owned());
    let mut sections = vec![families_section(report), curves_section(report), certificates_section(report)];
    if report.sources.iter().any(|source| !source.layers.is_empty()) {
        sections.insert(0, layers_section(report));
    }
    let pictures = FitSection {
        id: "figures",
        title: "Curves and fits".to_owned(),
        text: vec![
            "Lines are the curves without their level; a fit has the colour of its family, and is dashed where other \
             families are not distinguished from it."
                .to_owned(),
        ],
        figures: figures.iter().map(figure_part).collect(),
        ..FitSection::default()
    };
    sections.insert(1, pictures);
    FitPage {
        title: "Kernels fitted to curves",
        headline: report.summary(),
        facts: vec![
            ("curves", curves.to_string()),
            ("families", options.families.join(", ")),
            ("ranked by", by),
            ("residuals", options.noise.clone()),
            ("made by", facts.program.clone()),
            ("time", kerple_report::format::duration(facts.seconds)),
        ],
        sections,
        files: &["fit.json", "tables/curves.csv", "tables/families.csv", TEXT],
        has_figures: true,
    }
}

pub(crate) fn row(name: impl Into<String>, cells: Vec<String>) -> Row {
    Row { name: name.into(), colour: None, cells: cells.into_iter().map(Cell::from).collect() }
}

pub(crate) fn head(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn layers_section(report: &FitReport) -> FitSection {
    let mut section = FitSection {
        id: "layers",
        title: "Layers".to_owned(),
        text: vec![
            if report.options.per_head {
                "Each head has a family of its own, of those that its curve does not exclude. The keys below start a run \
                 where one expression has all of a layer as special cases."
            } else {
                "One expression for all heads of a layer: the family with the least sum of the criterion. The keys \
                 below start a run from the fit."
            }
            .to_owned(),
        ],
        ..FitSection::default()
    };
    for source in report.sources.iter().filter(|source| !source.layers.is_empty()) {
        let rows = source.layers.iter().map(|layer| {
            let (heads, near) = layer.heads;
            let counts = [heads, near, layer.without_kernel].map(|count| count.to_string());
            let mut line = row(layer.name(), [vec![layer.expression()], counts.to_vec()].concat());
            line.cells[0].note = layer.note.clone();
            line
        });
        section.grids.push(Grid {
            caption: source.name.clone(),
            head: head(&["layer", "expression", "heads", "heads that do not exclude it", "heads without a kernel"]),
            rows: rows.collect(),
        });
        let starts: Vec<&str> = source.warm_starts().collect();
        section.keys.push(starts.join("\n\n"));
    }
    section
}

fn families_section(report: &FitReport) -> FitSection {
    let all = || report.sources.iter().flat_map(|source| &source.curves);
    let count = |name: &str, alone: bool| {
        let is_best = |curve: &&CurveFits| {
            curve.verdict == CurveVerdict::Kernel && curve.families[0].family == name && (curve.told_apart || !alone)
        };
        all().filter(is_best).count()
    };
    let within = |name: &str| {
        all().filter(|curve| curve.families[..curve.not_told_apart].iter().any(|fit| fit.family == name)).count()
    };
    let rows = report.options.families.iter().enumerate().map(|(number, name)| Row {
        colour: Some(number),
        ..row(
            name.clone(),
            vec![count(name, false).to_string(), count(name, true).to_string(), within(name).to_string()],
        )
    });
    FitSection {
        id: "families",
        title: "Families".to_owned(),
        text: vec![format!(
            "Families whose criterion is within {} of the best are not distinguished: the curve does not show which is true.",
            report.options.told_apart
        )],
        grids: vec![Grid {
            caption: "How many curves each family describes".to_owned(),
            head: head(&["family", "best", "best and distinguished", "not distinguished from the best"]),
            rows: rows.collect(),
        }],
        ..FitSection::default()
    }
}

fn curves_section(report: &FitReport) -> FitSection {
    let grid = |source: &SourceFits| Grid {
        caption: source.name.clone(),
        head: head(&["curve", "kernel", "not distinguished from", "rho", "far", "reach, learned", "reach, fitted"]),
        rows: source.curves.iter().map(curve_row).collect(),
    };
    FitSection {
        id: "curves",
        title: "Curves".to_owned(),
        text: vec![
            "rho is the correlation of neighbouring residuals. far is the root mean square error past half of the \
             distances of a fit to the first half. The reach is the distance at which a curve is 2 below its first value."
                .to_owned(),
        ],
        grids: report.sources.iter().map(grid).collect(),
        ..FitSection::default()
    }
}

fn curve_row(curve: &CurveFits) -> Row {
    let missing = || "–".to_owned();
    let others: Vec<&str> =
        curve.families.iter().take(curve.not_told_apart).skip(1).map(|fit| fit.family.as_str()).collect();
    let best = curve.families.first().filter(|_| curve.verdict == CurveVerdict::Kernel);
    let mut line = row(
        curve.name.clone(),
        vec![
            best.map_or_else(missing, short_kernel),
            if others.is_empty() { missing() } else { others.join(", ") },
            format!("{:.2}", curve.rho),
            best.and_then(|fit| fit.far[0]).map_or_else(missing, number),
            curve.reach_learned.map_or_else(missing, |d| d.to_string()),
            curve.reach_fitted.map_or_else(missing, |d| d.to_string()),
        ],
    );
    line.cells[0].note = curve.note.clone();
    line
}

fn certificates_section(report: &FitReport) -> FitSection {
    let mut seen: Vec<&RankedFamily> = Vec::new();
    for fit in report.sources.iter().flat_map(|source| &source.curves).flat_map(|curve| &curve.families) {
        if !seen.iter().any(|other| other.family == fit.family) {
            seen.push(fit);
        }
    }
    seen.sort_by_key(|fit| report.options.families.iter().position(|name| *name == fit.family));
    let rows = seen.iter().map(|fit| {
        let class = fit.certificate.class.clone();
        row(fit.family.clone(), vec![fit.expression.clone(), class, fit.certificate.facts.join("; ")])
    });
    FitSection {
        id: "certificates",
        title: "Certificates".to_owned(),
        text: vec!["What the rules prove of each expression, for all values of its parameters.".to_owned()],
        grids: vec![Grid {
            caption: "Proofs".to_owned(),
            head: head(&["family", "expression", "class", "facts"]),
            rows: rows.collect(),
        }],
        ..FitSection::default()
    }
}

fn figures(report: &FitReport, sources: &[CurveSource]) -> Vec<Figure> {
    let all: Vec<(&Curve, &CurveFits)> =
        sources.iter().zip(&report.sources).flat_map(|(source, fits)| source.curves.iter().zip(&fits.curves)).collect();
    let colour = |name: &str| report.options.families.iter().position(|family| family == name).unwrap_or(0);
    let small: Vec<Plot> =
        all.iter().take(MOST_SMALL).map(|(curve, fits)| plot(curve, fits, colour, 1.0, true)).collect();
    let shown =
        if all.len() > MOST_SMALL { format!(" The first {MOST_SMALL} of {}.", all.len()) } else { String::new() };
    let mut figures = vec![Figure {
        id: "curves".to_owned(),
        section: Section::Kernels,
        title: "Every curve and its best fit".to_owned(),
        caption: format!("Over distance, on the scale of log(1 + d).{shown}"),
        plots: small,
    }];
    let misfit = |fits: &CurveFits| {
        let best = fits.families.first().filter(|_| fits.verdict == CurveVerdict::Kernel)?;
        let spread = fits.range.1 - fits.range.0;
        Some((best.rss / fits.n as f64).sqrt() / spread)
    };
    let worst = all.iter().filter_map(|pair| Some((misfit(pair.1)?, pair))).max_by(|x, y| x.0.total_cmp(&y.0));
    if let Some((share, (curve, fits))) = worst {
        figures.push(Figure {
            id: "worst".to_owned(),
            section: Section::Kernels,
            title: format!("The curve that is described worst: {}", fits.name),
            caption: format!(
                "The residual of {} is {} percent of the curve's range. Beyond the last distance the fit is dashed.",
                fits.families[0].family,
                number(100.0 * share)
            ),
            plots: vec![plot(curve, fits, colour, BEYOND, false)],
        });
    }
    figures
}

/// A curve with its best fit, drawn up to `beyond` times its furthest distance.
fn plot(curve: &Curve, fits: &CurveFits, colour: impl Fn(&str) -> usize, beyond: f64, titled: bool) -> Plot {
    let furthest = curve.furthest();
    let steps = curve.len().div_ceil(DRAWN).max(1);
    let at = |i: usize| (curve.support().furthest(i), curve.values()[i] - fits.level);
    let learned: Vec<(f64, f64)> =
        (0..curve.len()).filter(|i| i % steps == 0 || *i + 1 == curve.len()).map(at).collect();
    let mut series = vec![Series::line("curve", 7, learned)];
    if let Some(best) = fits.families.first().filter(|_| fits.verdict == CurveVerdict::Kernel)
        && let Ok(kernel) = Expr::parse_unproven(&best.kernel)
    {
        let drawn = |from: f64, to: f64| {
            let (low, high) = (from.ln_1p(), to.ln_1p());
            let d = move |i: usize| (low + (high - low) * i as f64 / (DRAWN - 1) as f64).exp_m1();
            (0..DRAWN).map(d).map(|d| (d, kernel.at(&[], d))).collect::<Vec<(f64, f64)>>()
        };
        let number = colour(&best.family);
        let mut line = Series::line(best.family.clone(), number, drawn(0.0, furthest));
        line.dash = usize::from(!fits.told_apart);
        series.push(line);
        if beyond > 1.0 {
            let mut further = Series::line("beyond", number, drawn(furthest, beyond * furthest));
            further.dash = 2;
            series.push(further);
        }
    }
    let values = || series.iter().flat_map(|series| &series.points).map(|point| point.y);
    let (low, high) = values().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), y| (l.min(y), h.max(y)));
    let high = if high > low { high } else { low + 1.0 };
    Plot {
        title: fits.name.clone(),
        description: format!("{} over distance, and its best fit.", fits.name),
        x: Axis::log_one_plus("distance (tokens), on the scale of log(1 + d)", 0.0, beyond * furthest),
        y: Axis::linear("bias without its level", low, high),
        series,
        rule: (beyond > 1.0).then(|| (furthest, "last distance".to_owned())),
        legend: if titled { Legend::None } else { Legend::Ends },
        titled,
    }
}

/// A row of `tables/curves.csv`.
#[derive(Serialize)]
struct CurveColumns<'a> {
    source: &'a str,
    curve: &'a str,
    layer: Option<usize>,
    head: Option<usize>,
    n: usize,
    verdict: CurveVerdict,
    family: Option<&'a str>,
    kernel: Option<&'a str>,
    told_apart: bool,
    level: f64,
    rho: f64,
    reach_learned: Option<f64>,
    reach_fitted: Option<u64>,
    note: Option<&'a str>,
}

fn curve_rows(report: &FitReport) -> impl Iterator<Item = CurveColumns<'_>> {
    report.sources.iter().flat_map(|source| {
        source.curves.iter().map(move |curve| {
            let best = curve.families.first().filter(|_| curve.verdict == CurveVerdict::Kernel);
            CurveColumns {
                source: &source.name,
                curve: &curve.name,
                layer: curve.place.map(|place| place.0),
                head: curve.place.map(|place| place.1),
                n: curve.n,
                verdict: curve.verdict,
                family: best.map(|fit| fit.family.as_str()),
                kernel: best.map(|fit| fit.kernel.as_str()),
                told_apart: curve.told_apart,
                level: curve.level,
                rho: curve.rho,
                reach_learned: curve.reach_learned,
                reach_fitted: curve.reach_fitted,
                note: curve.note.as_deref(),
            }
        })
    })
}

/// A row of `tables/families.csv`.
#[derive(Serialize)]
struct FamilyColumns<'a> {
    source: &'a str,
    curve: &'a str,
    family: &'a str,
    kernel: &'a str,
    k: usize,
    rss: f64,
    bic: f64,
    aicc: f64,
    difference: f64,
    weight: Option<f64>,
    far: Option<f64>,
    far_quarter: Option<f64>,
    at_edge: bool,
    class: &'a str,
    checked: Option<bool>,
    note: Option<&'a str>,
}

fn family_rows(report: &FitReport) -> impl Iterator<Item = FamilyColumns<'_>> {
    report.sources.iter().flat_map(|source| {
        source.curves.iter().flat_map(move |curve| {
            curve.families.iter().map(move |fit| FamilyColumns {
                source: &source.name,
                curve: &curve.name,
                family: &fit.family,
                kernel: &fit.kernel,
                k: fit.k,
                rss: fit.rss,
                bic: fit.bic,
                aicc: fit.aicc,
                difference: fit.difference,
                weight: fit.weight,
                far: fit.far[0],
                far_quarter: fit.far[1],
                at_edge: fit.at_edge,
                class: &fit.certificate.class,
                checked: fit.certificate.checked,
                note: fit.note.as_deref(),
            })
        })
    })
}
