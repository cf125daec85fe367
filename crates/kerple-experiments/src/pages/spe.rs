//! What only the page of SPE shows: music beyond the training length, the style of continuations, how
//! relative attention is, and the Long Range Arena.

mod arena;
mod music;
mod relative;

use super::cells::missing;
use super::claims::{ClaimPlace, ReadAt};
use super::description::PageDescription;
use super::methods::ComparedMethod;
use super::page::PageItem;
use super::paper_claims::ClaimedAt;
use super::reader::ReproductionFolder;
use super::values::{SeedValues, TrainedOn};
use crate::manifest::CorpusFacts;
use kerple_report::format::{deviation, number};
use kerple_report::page::Cell;
use kerple_report::results::Spread;
use serde::Deserialize;

/// A table or figure of the SPE paper.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SpeItem {
    Piano,
    Groove,
    AttentionProperties,
    AttentionMaps,
    Arena,
}

impl SpeItem {
    pub(super) fn fill(self, all: &ReproductionFolder, page: &PageDescription, item: &mut PageItem) {
        match self {
            SpeItem::Piano => music::piano(all, page, item),
            SpeItem::Groove => music::groove(all, page, item),
            SpeItem::AttentionProperties => relative::properties(all, page, item),
            SpeItem::AttentionMaps => relative::attention(all, page, item),
            SpeItem::Arena => arena::lra(all, page, item),
        }
    }
}

/// What claims about SPE measure, other than perplexity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SpeMeasure {
    /// Cross-entropy of music by position, nats.
    CrossEntropy,
    /// Similarity of continuations, every measure of style apart.
    Similarity,
    /// Variance of attention within diagonals as a share.
    TranslationInvariance,
    /// Right answers in percent.
    Answers,
}

impl SpeMeasure {
    /// Every set of runs that claims of this measure may be judged on.
    pub(super) fn places<'a>(self, all: &'a ReproductionFolder, page: &PageDescription) -> Vec<ClaimPlace<'a>> {
        let usual = |corpora: Vec<&'a CorpusFacts>| {
            corpora.into_iter().map(|corpus| TrainedOn { all, corpus: &corpus.name, variant: "" }).collect::<Vec<_>>()
        };
        let place = |on: TrainedOn<'a>| ClaimPlace { on, title: on.corpus_title().to_owned(), style: None };
        match self {
            SpeMeasure::CrossEntropy => usual(music::corpora(all, page)).into_iter().map(place).collect(),
            SpeMeasure::TranslationInvariance => usual(relative::corpora(all, page)).into_iter().map(place).collect(),
            SpeMeasure::Similarity => {
                let of = |on: TrainedOn<'a>| {
                    music::MEASURES.map(|(name, measure)| {
                        let title = format!("{}, {name}", on.corpus_title());
                        ClaimPlace { on, title, style: Some(measure) }
                    })
                };
                usual(music::continued(all, page)).into_iter().flat_map(of).collect()
            }
            SpeMeasure::Answers => {
                let of = |task: &'a CorpusFacts| {
                    arena::FEATURES.map(|features| {
                        let on = TrainedOn { all, corpus: &task.name, variant: features.variant };
                        ClaimPlace { on, title: format!("{}, {}", task.title, features.name), style: None }
                    })
                };
                arena::tasks(all, page).into_iter().flat_map(of).collect()
            }
        }
    }

    /// Name of the evaluation or probe with its values.
    pub(super) fn needs(self) -> &'static str {
        match self {
            SpeMeasure::CrossEntropy => music::POSITIONS,
            SpeMeasure::Similarity => music::STYLE,
            SpeMeasure::TranslationInvariance => relative::ATTENTION,
            SpeMeasure::Answers => arena::ANSWERS,
        }
    }

    /// The values of a method.
    pub(super) fn read(self, place: &ClaimPlace, method: &ComparedMethod, at: ReadAt) -> SeedValues {
        let on = place.on;
        match (self, at) {
            (SpeMeasure::CrossEntropy, ReadAt::Positions(from, to)) => music::cross_entropy(on, method, &(from..to)),
            (SpeMeasure::Similarity, ReadAt::Quarter(quarter)) => {
                place.style.map_or_else(SeedValues::new, |measure| music::similarity(on, method, measure, quarter))
            }
            (SpeMeasure::TranslationInvariance, ReadAt::Length(length)) => {
                relative::measured(on, method, |row| row.translation_invariance, length)
            }
            (SpeMeasure::Answers, _) => {
                arena::accuracy(on, method).into_iter().map(|(seed, share)| (seed, 100.0 * share)).collect()
            }
            _ => SeedValues::new(),
        }
    }

    /// Lengths with values; none where they are read at positions or quarters.
    pub(super) fn lengths(self, on: TrainedOn) -> Vec<u64> {
        match self {
            SpeMeasure::TranslationInvariance => relative::lengths(on),
            SpeMeasure::Answers => arena::lengths(on),
            SpeMeasure::CrossEntropy | SpeMeasure::Similarity => Vec::new(),
        }
    }
}

/// The positions that a claim about cross-entropy names.
pub(super) fn positions(on: TrainedOn, at: ClaimedAt) -> Option<Vec<ReadAt>> {
    let music::EvaluatedPositions { trained, longest } = music::evaluated_positions(on)?;
    Some(vec![match at {
        ClaimedAt::Beyond => ReadAt::Positions(trained, longest),
        _ => ReadAt::Positions(0, trained),
    }])
}

fn spread(values: &SeedValues) -> Option<Spread> {
    Spread::of(&values.values().copied().collect::<Vec<f64>>())
}

/// A mean and its deviation, and what is missing of it.
fn mean_and_deviation(values: &SeedValues, planned: usize, best: bool) -> Cell {
    let incomplete = (values.len() < planned).then(|| format!("{} of {planned} seeds", values.len()));
    match spread(values) {
        None => Cell { note: incomplete, ..missing() },
        Some(Spread { mean, deviation: spread }) => Cell {
            text: number(mean),
            spread: spread.map(|spread| deviation(mean, spread)),
            best,
            note: incomplete,
            ..Cell::default()
        },
    }
}

/// Corpora whose usual runs, of any method, have an evaluation or probe of this name.
fn corpora_with<'a>(all: &'a ReproductionFolder, page: &PageDescription, needs: &str) -> Vec<&'a CorpusFacts> {
    let has = |corpus: &&CorpusFacts| {
        let on = TrainedOn { all, corpus: &corpus.name, variant: "" };
        page.methods.iter().any(|method| on.needing(method, needs) > 0)
    };
    all.manifest.corpora.iter().filter(has).collect()
}

/// The label of a method's runs.
fn run_label(on: TrainedOn, method: &ComparedMethod) -> String {
    on.runs(method).first().map_or_else(|| method.label.clone(), |run| run.label())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::claims::paper_finding;
    use crate::pages::verdict::{ClaimFinding, ClaimVerdict};
    use kerple_run::{
        ANSWERS, EVALUATION_FILE, EvaluationRow, Journal, MANIFEST_FILE, PLAN_FILE, PROBES_FILE, write_json,
    };
    use serde_json::json;
    use tempfile::TempDir;

    /// Three seeds of sinusoidal positions on a task and on music, with a row more for the first of one of them.
    fn reproduction(more: &str, change: impl Fn(&mut EvaluationRow)) -> ReproductionFolder {
        ReproductionFolder::read(folder(more, change).path()).unwrap()
    }

    /// Three seeds of some encodings, with losses within and beyond the training length.
    fn reproduction_of(labels: &[&str], losses: fn(&str, u64) -> [f64; 2]) -> ReproductionFolder {
        ReproductionFolder::read(folder_of(labels, losses, "", |_| {}).path()).unwrap()
    }

    fn folder(more: &str, change: impl Fn(&mut EvaluationRow)) -> TempDir {
        folder_of(&["sinusoidal"], |_, _| [0.5; 2], more, change)
    }

    fn folder_of(
        labels: &[&str],
        losses: fn(&str, u64) -> [f64; 2],
        more: &str,
        change: impl Fn(&mut EvaluationRow),
    ) -> TempDir {
        let root = tempfile::tempdir().unwrap();
        let mut runs = Vec::new();
        let row = |(corpus, label): (&str, &str), seed: u64, [within, beyond]: [f64; 2]| -> EvaluationRow {
            let (name, value) = match corpus {
                "text" => ("task", json!({"name": "text", "accuracy": within, "chance": 0.5})),
                _ => ("nll_by_position", json!([[within; 4], [beyond; 4]].concat())),
            };
            let protocol = if corpus == "text" { ANSWERS } else { "segments" };
            let text = json!({"checksum": corpus, "segment_len": 8, "n_segments": 2, "seed": seed});
            let row = json!({"label": label, "seed": seed, "train_len": 4, "eval_len": 8, "split": "test",
                "protocol": protocol, "step": 9, "text": text, "n_windows": 2, "tokens": 16, "nll": 1.0, "perplexity": 2.7,
                "seconds": 1.0, name: value});
            serde_json::from_value(row).unwrap()
        };
        let corpora = [("text", "answers_text"), ("piano", "positions")];
        let of = |label: &&str| {
            (1..4).flat_map(|seed| corpora.map(|of| ((*label).to_owned(), seed, of))).collect::<Vec<_>>()
        };
        for (label, seed, (corpus, evaluation)) in labels.iter().flat_map(of) {
            let path = format!("{corpus}/{label}/seed-{seed}");
            let folder = root.path().join(&path);
            std::fs::create_dir_all(&folder).unwrap();
            let plan = json!({"label": label, "seed": seed, "train_len": 4, "steps": 9, "hash": path});
            write_json(&folder.join(PLAN_FILE), &plan).unwrap();
            let mut rows = Journal::open(&folder.join(EVALUATION_FILE)).unwrap();
            rows.push(&row((corpus, &label), seed, losses(&label, seed))).unwrap();
            if (corpus, seed) == (more, 1) {
                let mut other = row((corpus, &label), seed, [0.9; 2]);
                change(&mut other);
                rows.push(&other).unwrap();
            }
            runs.push(json!({"folder": path, "corpus": corpus, "label": label, "seed": seed,
                "evaluate": [evaluation], "serves": []}));
        }
        let corpus =
            |name: &str, tokenizer: &str| json!({"name": name, "title": name, "texts": "", "tokenizer": tokenizer});
        let asked = |span: u64| json!({"protocol": "segments", "span": span, "segments": 2, "lengths": [8]});
        let manifest = json!({"paper": "spe", "scale": "smoke", "title": "", "about": "", "runs": runs,
            "corpora": [corpus("text", ""), corpus("piano", "remi")],
            "evaluations": {"answers_text": asked(0), "positions": asked(8)}});
        write_json(&root.path().join(MANIFEST_FILE), &manifest).unwrap();
        root
    }

    fn on<'a>(all: &'a ReproductionFolder, corpus: &'a str) -> TrainedOn<'a> {
        TrainedOn { all, corpus, variant: "" }
    }

    fn ape() -> ComparedMethod {
        PageDescription::of("spe").unwrap().method("ape").clone()
    }

    #[test]
    fn what_else_was_evaluated_is_no_part_of_the_paper() {
        type Change = fn(&mut EvaluationRow);
        let others: [(&str, Change); 9] = [
            ("split", |row| row.split = "train".into()),
            ("checksum", |row| row.text.checksum = "other".into()),
            ("seed", |row| row.text.seed = 77),
            ("n_segments", |row| row.text.n_segments = 3),
            ("segment_len", |row| row.text.segment_len = 16),
            ("window", |row| row.window = Some(2)),
            ("scaling", |row| row.rope_scaling = Some("yarn".into())),
            ("step", |row| row.step = 5),
            ("eval_len", |row| row.eval_len = 16),
        ];
        let own = SeedValues::from([1, 2, 3].map(|seed| (seed, 0.5)));
        let ape = ape();
        for (name, change) in others {
            let all = reproduction("text", change);
            assert_eq!(arena::accuracy(on(&all, "text"), &ape), own, "arena, {name}");
            let all = reproduction("piano", change);
            assert_eq!(music::cross_entropy(on(&all, "piano"), &ape, &(0..8)), own, "music, {name}");
            assert!(all.runs_of("piano", "").unwrap().results.tables.len() == 1, "{name}");
        }
        // made again, it counts
        let all = reproduction("text", |_| {});
        assert_eq!(arena::accuracy(on(&all, "text"), &ape)[&1], 0.9);
    }

    #[test]
    fn what_else_was_measured_is_no_part_of_it_either() {
        let root = folder("", |_| {});
        let row = |checksum: &str, seed: u64, step: u64, found: f64| {
            let text = json!({"checksum": checksum, "segment_len": 8, "n_segments": 2, "seed": seed});
            let found = json!({"attention": [{"layer": 0, "head": 0, "length": 8, "translation_invariance": found,
                "monotonicity": 0.5, "single_translation_invariance": 0.5, "single_monotonicity": 0.5}]});
            json!({"step": step, "text": text, "config": {"kind": "attention"}, "result": found})
        };
        for seed in 1..4 {
            let mut rows =
                Journal::open(&root.path().join(format!("piano/sinusoidal/seed-{seed}")).join(PROBES_FILE)).unwrap();
            let others = [row("other", seed, 9, 0.9), row("piano", 77, 9, 0.9), row("piano", seed, 5, 0.9)];
            let others = others.into_iter().filter(|_| seed == 1);
            [row("piano", seed, 9, 0.5)].into_iter().chain(others).for_each(|row| rows.push(&row).unwrap());
        }
        let all = ReproductionFolder::read(root.path()).unwrap();
        let found = relative::measured(on(&all, "piano"), &ape(), |row| row.translation_invariance, 8);
        assert_eq!(found, SeedValues::from([1, 2, 3].map(|seed| (seed, 0.5))));
    }

    /// Sinusoidal positions, SineSPE and no positions, with losses within and beyond the training length.
    fn finding(text: &str, losses: fn(&str, u64) -> [f64; 2]) -> ClaimFinding {
        let all = reproduction_of(&["sinusoidal", "sine_spe", "none"], losses);
        paper_finding(&all, text, "piano").unwrap_or_else(|| panic!("{text}"))
    }

    #[test]
    fn what_no_positions_show_as_well_is_no_gain_of_positions() {
        let verdict = |text: &str| {
            let losses = |label: &str, seed: u64| {
                let noise = 0.001 * seed as f64;
                match label {
                    "sinusoidal" => [2.0, 3.0 + noise],
                    "sine_spe" => [2.1 + noise, 2.31],
                    _ => [2.2, 2.31 + noise * noise],
                }
            };
            finding(text, losses).verdict
        };
        assert_eq!(
            verdict("SineSPE, gated: is below APE, sinusoidal beyond the training length"),
            ClaimVerdict::Confirmed
        );
        let beside_none = "SineSPE, gated: is below no positions beyond the training length";
        assert_eq!(verdict(beside_none), ClaimVerdict::Contradicted, "as good as no positions is not below them");
        let within = "SineSPE, gated: is not worse than APE, sinusoidal within the training length";
        assert_eq!(verdict(within), ClaimVerdict::Contradicted, "worse where it was trained");
    }
}
