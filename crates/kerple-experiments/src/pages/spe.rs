//! The tables and figures of SPE: Liutkus et al. 2021, arXiv:2105.08399. Music beyond the training length, the style of
//! continuations, how relative attention is, and the Long Range Arena.

mod arena;
mod claims;
mod music;
mod relative;

use super::Folder;
use super::page::Item;
use super::verdict::BySeed;
use crate::timing::TimingRow;
use kerple_report::Run;
use kerple_report::format::{deviation, number};
use kerple_report::page::{Cell, Grid, Row};
use kerple_report::results::Spread;
use kerple_report::statistics::median;

/// What can be made.
pub(super) const ITEMS: [&str; 7] = ["claims", "piano", "groove", "properties", "attention", "lra", "times"];

/// A way to encode positions, as the paper tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Method {
    /// Name in tables and legends.
    name: &'static str,
    /// Kind of the encoding.
    kind: &'static str,
    /// Whether a code is gated; `true` for all that have no gate.
    gated: bool,
}

const fn method(name: &'static str, kind: &'static str, gated: bool) -> Method {
    Method { name, kind, gated }
}

/// In the order of tables and colours. Linear KERPLE is no method of the paper.
const METHODS: [Method; 9] = [
    method("APE, sinusoidal", "sinusoidal", true),
    method("APE, learned", "learned", true),
    method("SineSPE, gated", "sine_spe", true),
    method("SineSPE, ungated", "sine_spe", false),
    method("ConvSPE, gated", "conv_spe", true),
    method("ConvSPE, ungated", "conv_spe", false),
    method("linear KERPLE, log", "kerple_log", true),
    method("rotary", "rotary", true),
    method("no positions", "none", true),
];

/// Absolute positions that are defined at any length.
const ABSOLUTE: Method = METHODS[0];

impl Method {
    /// Whether a label, of the kind of an encoding and what differs from its defaults, is of this method.
    fn is_of(self, label: &str) -> bool {
        let mut parts = label.split('-');
        parts.next() == Some(self.kind) && parts.any(|part| part == "gated=false") != self.gated
    }

    /// Colour in figures.
    fn colour(self) -> usize {
        METHODS.iter().position(|method| *method == self).unwrap_or(METHODS.len())
    }

    /// Variants of its runs: absolute positions may be trained with settings of their own, as published.
    fn variants(self, variant: &str) -> impl Iterator<Item = &str> {
        let own = (variant.is_empty() && ["sinusoidal", "learned"].contains(&self.kind)).then_some("ape");
        std::iter::once(variant).chain(own)
    }

    /// Runs there are to be with an evaluation or probe of a name, which may go on behind `_`.
    fn planned(self, all: &Folder, corpus: &str, variant: &str, needs: &str) -> usize {
        let fits = |name: &str| name.strip_prefix(needs).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'));
        let needed = |names: &[String]| names.iter().any(|name| fits(name));
        let of = |run: &&crate::manifest::PlannedRun| {
            self.is_of(&run.label) && (needed(&run.evaluate) || needed(&run.probe))
        };
        self.variants(variant).map(|variant| all.manifest.of(corpus, variant).filter(of).count()).sum()
    }

    /// Runs there are.
    fn runs<'a>(self, all: &'a Folder, corpus: &str, variant: &str) -> impl Iterator<Item = &'a Run> {
        let groups: Vec<_> = self.variants(variant).filter_map(|variant| all.group(corpus, variant)).collect();
        let runs = groups.into_iter().flat_map(|group| &group.runs);
        runs.filter(move |run| self.is_of(&run.label()) && run.duplicate_of.is_none())
    }
}

/// A value of every run that has one.
fn by_seed<'a>(runs: impl Iterator<Item = &'a Run>, value: impl Fn(&'a Run) -> Option<f64>) -> BySeed {
    runs.filter_map(|run| Some((run.seed()?, value(run)?))).collect()
}

fn spread(values: &BySeed) -> Option<Spread> {
    Spread::of(&values.values().copied().collect::<Vec<f64>>())
}

/// A mean and its deviation, and what is missing of it.
fn cell(values: &BySeed, planned: usize, best: bool) -> Cell {
    let missing = (values.len() < planned).then(|| format!("{} of {planned} seeds", values.len()));
    match spread(values) {
        None => Cell { note: missing, ..Cell::from("\u{2013}".to_owned()) },
        Some(Spread { mean, deviation: spread }) => Cell {
            text: number(mean),
            spread: spread.map(|spread| deviation(mean, spread)),
            best,
            note: missing,
            ..Cell::default()
        },
    }
}

/// Every table and figure.
pub(super) fn items(all: &Folder) -> Vec<Item> {
    let mut items = vec![
        claims::claims(all),
        music::piano(all),
        music::groove(all),
        relative::properties(all),
        relative::attention(all),
        arena::lra(all),
        times(all),
    ];
    // smaller scales time nothing
    items.retain(|item| all.manifest.scale == "paper" || item.id != "times");
    items
}

/// Time of a training step of pop piano, beside sinusoidal positions.
fn times(all: &Folder) -> Item {
    let text = "Training steps of pop piano, made in turns, so that whatever else the machine does meets all alike: the median over rounds of \
                the time relative to sinusoidal positions in the same round, with its 95 % interval.";
    let mut item = Item::new("times", "Time of a training step", text);
    item.planned = 1;
    let Some(timing) = &all.timing else {
        item.notes.push("not timed yet".to_owned());
        return item;
    };
    item.complete = 1;
    item.notes.extend(timing.place());
    let reference = timing.rows.iter().find(|row| row.encoding == "sinusoidal");
    let row = |row: &TimingRow| {
        let relative = reference.map_or_else(|| "\u{2013}".to_owned().into(), |other| super::relative(row, other));
        Row { name: row.encoding.clone(), colour: None, cells: vec![number(median(&row.seconds)).into(), relative] }
    };
    let rounds = timing.rows.first().map_or(0, |row| row.seconds.len());
    item.grids.push(Grid {
        caption: format!("Median of {rounds} rounds of {} \u{d7} {} events", timing.batch, timing.train_len),
        head: ["encoding", "seconds", "relative to sinusoidal"].map(str::to_owned).into(),
        rows: timing.rows.iter().map(row).collect(),
    });
    item
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::MANIFEST_FILE;
    use kerple_run::{ANSWERS, EVALUATION_FILE, EvaluationRow, Journal, PLAN_FILE, PROBES_FILE, write_json};
    use serde_json::json;
    use tempfile::TempDir;

    #[test]
    fn every_label_has_one_method() {
        for (label, name) in [
            ("sine_spe", "SineSPE, gated"),
            ("sine_spe-waves=8-gated=false", "SineSPE, ungated"),
            ("conv_spe-taps=32-gated=false-realisations=16", "ConvSPE, ungated"),
            ("conv_spe-taps=128", "ConvSPE, gated"),
            ("kerple_log", "linear KERPLE, log"),
        ] {
            let found: Vec<&str> = METHODS.iter().filter(|method| method.is_of(label)).map(|m| m.name).collect();
            assert_eq!(found, [name], "{label}");
        }
        assert!(METHODS.iter().all(|method| !method.is_of("kerple_log3")));
    }

    /// Three seeds of sinusoidal positions on a task and on music, with a row more for the first of one of them.
    fn reproduction(more: &str, change: impl Fn(&mut EvaluationRow)) -> Folder {
        Folder::read(folder(more, change).path()).unwrap()
    }

    /// Three seeds of some encodings, with losses within and beyond the training length.
    pub(super) fn reproduction_of(labels: &[&str], losses: fn(&str, u64) -> [f64; 2]) -> Folder {
        Folder::read(folder_of(labels, losses, "", |_| {}).path()).unwrap()
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

    #[test]
    fn what_else_was_evaluated_is_no_part_of_the_paper() {
        type Change = fn(&mut EvaluationRow);
        let others: [(&str, Change); 9] = [
            ("split", |row| row.split = "train".into()),
            ("checksum", |row| row.text.as_mut().unwrap().checksum = "other".into()),
            ("seed", |row| row.text.as_mut().unwrap().seed = 77),
            ("n_segments", |row| row.text.as_mut().unwrap().n_segments = 3),
            ("segment_len", |row| row.text.as_mut().unwrap().segment_len = 16),
            ("window", |row| row.window = Some(2)),
            ("scaling", |row| row.rope_scaling = Some("yarn".into())),
            ("step", |row| row.step = 5),
            ("eval_len", |row| row.eval_len = 16),
        ];
        let own = BySeed::from([1, 2, 3].map(|seed| (seed, 0.5)));
        for (name, change) in others {
            let all = reproduction("text", change);
            assert_eq!(arena::accuracy(&all, "text", "", ABSOLUTE), own, "arena, {name}");
            let all = reproduction("piano", change);
            assert_eq!(music::cross_entropy(&all, "piano", ABSOLUTE, &(0..8)), own, "music, {name}");
            assert!(all.group("piano", "").unwrap().results.tables.len() == 1, "{name}");
        }
        // made again, it counts
        let all = reproduction("text", |_| {});
        assert_eq!(arena::accuracy(&all, "text", "", ABSOLUTE)[&1], 0.9);
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
        let all = Folder::read(root.path()).unwrap();
        let found = relative::measured(&all, "piano", ABSOLUTE, (|row| row.translation_invariance, 8));
        assert_eq!(found, BySeed::from([1, 2, 3].map(|seed| (seed, 0.5))));
    }
}
