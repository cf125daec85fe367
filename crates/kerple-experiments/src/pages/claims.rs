//! The claims of KERPLE, tested with the runs.
//!
//! A claim about length has two aspects. The level is a method's log-perplexity less the
//! logarithmic kernel's. The change is measured from the training length, so a method that is worse
//! everywhere is not penalised. A method that uses nothing beyond its training length also changes,
//! because longer blocks have fewer tokens with little context. Flatness is therefore relative to
//! ALiBi, and for ALiBi relative to the logarithmic kernel under a window.

use super::page::Item;
use super::verdict::{
    AFTER_RUNS, AtLength, BySeed, EFFECT, FLAT, Finding, OURS, RULE, Side, Unit, change, differences, judge,
};
use super::{Folder, Group};
use crate::manifest::EvaluationFacts;
use kerple_report::Run;
use kerple_report::page::{Grid, Row};
use kerple_report::results::PerplexityTable;

const LOG: &str = "kerple_log";
const ALIBI: &str = "alibi";

/// A claim about one method, by its label without keys.
struct Claim {
    text: &'static str,
    label: &'static str,
    kind: Kind,
    at: At,
}

/// What is said of it.
enum Kind {
    /// Where its log-perplexity lies beside the logarithmic kernel's.
    Level(Side),
    /// Where the change of its log-perplexity from the training length lies beside the logarithmic kernel's.
    Change(Side),
    /// Where that change lies beside the change of a method that uses nothing beyond the training length.
    BesideNothing(Side),
    /// Where its log-perplexity lies beside its own at this multiple of the training length.
    Course(u64, Side),
    /// Where it lies with only as many keys as it was trained with, beside itself.
    Window(Side),
}

/// The lengths of a claim, of those of the manifest.
#[derive(Clone, Copy)]
enum At {
    /// The longest.
    Longest,
    /// All beyond the training length.
    Beyond,
    /// All up to this multiple of the training length.
    UpTo(u64),
    /// The longest up to this multiple.
    Multiple(u64),
}

impl At {
    fn lengths(self, facts: &EvaluationFacts, train_len: u64) -> Vec<u64> {
        let up_to =
            |multiple: u64| facts.lengths.iter().copied().filter(move |l| *l <= multiple.saturating_mul(train_len));
        let longest = |multiple: u64| up_to(multiple).max().into_iter().collect();
        match self {
            At::Longest => longest(u64::MAX),
            At::Multiple(multiple) => longest(multiple),
            At::UpTo(multiple) => up_to(multiple).collect(),
            At::Beyond => up_to(u64::MAX).filter(|length| *length > train_len).collect(),
        }
    }
}

const HIGHER: Side = Side::Above(EFFECT);
const IS_FLAT: Kind = Kind::BesideNothing(Side::Below(FLAT));
const RISES: Kind = Kind::BesideNothing(Side::Above(FLAT));
/// More than a percent below the logarithmic kernel would be a gain.
const NO_GAIN: Kind = Kind::Level(Side::Above(-EFFECT));

const CLAIMS: [Claim; 26] = [
    claim("log is flat or falls to the longest length", LOG, IS_FLAT, At::Longest),
    claim(
        "log still falls from 8 times the training length to the longest",
        LOG,
        Kind::Course(8, Side::Below(0.0)),
        At::Longest,
    ),
    claim(
        "log is below power at every length beyond the training length",
        "kerple_power",
        Kind::Level(HIGHER),
        At::Beyond,
    ),
    claim(
        "by change: log falls further than power to the longest length",
        "kerple_power",
        Kind::Change(HIGHER),
        At::Longest,
    ),
    claim("power is flat or falls too", "kerple_power", IS_FLAT, At::Longest),
    claim("log is below ALiBi at every length beyond the training length", ALIBI, Kind::Level(HIGHER), At::Beyond),
    claim("by change: log falls further than ALiBi to the longest length", ALIBI, Kind::Change(HIGHER), At::Longest),
    claim("ALiBi is flat", ALIBI, IS_FLAT, At::Longest),
    claim("T5 is below log at up to twice the training length", "t5", Kind::Level(Side::Below(-EFFECT)), At::UpTo(2)),
    claim("T5 is above log at the longest length", "t5", Kind::Level(HIGHER), At::Longest),
    claim("by change: T5 rises beside log to the longest length", "t5", Kind::Change(HIGHER), At::Longest),
    claim(
        "rotary positions (exact) are above log at twice the training length",
        "rotary",
        Kind::Level(HIGHER),
        At::Multiple(2),
    ),
    claim("by change: rotary positions (exact) fail at once", "rotary", Kind::Change(HIGHER), At::Multiple(2)),
    claim(
        "rotary positions (bf16) are above log at twice the training length",
        "rotary-bf16",
        Kind::Level(HIGHER),
        At::Multiple(2),
    ),
    claim("by change: rotary positions (bf16) fail at once", "rotary-bf16", Kind::Change(HIGHER), At::Multiple(2)),
    claim(
        "sinusoidal positions (exact) are above log at twice the training length",
        "sinusoidal",
        Kind::Level(HIGHER),
        At::Multiple(2),
    ),
    claim("by change: sinusoidal positions (exact) fail at once", "sinusoidal", Kind::Change(HIGHER), At::Multiple(2)),
    claim(
        "sinusoidal positions (bf16) are above log at twice the training length",
        "sinusoidal-bf16",
        Kind::Level(HIGHER),
        At::Multiple(2),
    ),
    claim(
        "by change: sinusoidal positions (bf16) fail at once",
        "sinusoidal-bf16",
        Kind::Change(HIGHER),
        At::Multiple(2),
    ),
    claim(
        "log uses what lies beyond the training length: under a window it is worse",
        LOG,
        Kind::Window(HIGHER),
        At::Longest,
    ),
    claim("bias and weight together bring no clear gain up to 16 times", "kerple_bias_weight", NO_GAIN, At::UpTo(16)),
    claim(
        "a learned power within the logarithm brings no clear gain up to 16 times",
        "kerple_log3",
        NO_GAIN,
        At::UpTo(16),
    ),
    claim("a Gaussian bias fails at 16 times", "gaussian_bias", RISES, At::Multiple(16)),
    claim("a Gaussian bias with a learned exponent fails at 16 times", "stretched_bias", RISES, At::Multiple(16)),
    claim("a Gaussian weight fails at 16 times", "gaussian_weight", RISES, At::Multiple(16)),
    claim(
        "a Gaussian weight with a learned exponent nearly extrapolates: it is flat to 16 times",
        "stretched_weight",
        IS_FLAT,
        At::Multiple(16),
    ),
];

const fn claim(text: &'static str, label: &'static str, kind: Kind, at: At) -> Claim {
    Claim { text, label, kind, at }
}

/// Every claim on every text.
pub(super) fn claims(all: &Folder) -> Item {
    let text = format!(
        "{RULE} {AFTER_RUNS} Differences are of log-perplexity and are shown as the ratio of perplexities that they mean. The margin \
         between two methods is 1 %, and no gain is less than that. The paper compares levels; comparisons by change, from the training \
         length and beside log's at the same seeds, are not the paper's. Flat and failing mean that a method's change lies below or above \
         that of one that uses nothing beyond its training length by 5 %: beside ALiBi's, and ALiBi beside log under a window, where that \
         was evaluated."
    );
    let mut item = Item::new("claims", "Claims of the paper", &text);
    let texts: Vec<_> =
        all.manifest.corpora.iter().filter(|corpus| all.manifest.of(&corpus.name, "").next().is_some()).collect();
    let (mut rows, mut findings) = (Vec::new(), Vec::new());
    for claim in &CLAIMS {
        let found: Vec<Option<Finding>> =
            texts.iter().map(|corpus| Measured::of(all, &corpus.name)?.find(claim)).collect();
        item.planned += 1;
        item.complete += usize::from(found.iter().any(Option::is_some));
        findings.extend(found.iter().flatten().cloned());
        let whose = if matches!(claim.kind, Kind::Change(_)) { OURS } else { "" };
        rows.push(Row {
            name: format!("{whose}{}", claim.text),
            colour: None,
            cells: found.into_iter().map(Finding::cell).collect(),
        });
    }
    item.count(findings.iter());
    let head = std::iter::once("claim".to_owned()).chain(texts.iter().map(|corpus| corpus.title.clone()));
    item.grids.push(Grid { caption: "Claims".to_owned(), head: head.collect(), rows });
    item
}

/// A method: the label of its runs, and the keys a query sees where an evaluation restricted them.
type Method<'a> = (&'a str, Option<u64>);

/// The usual runs on one text, over the lengths of the main tables.
struct Measured<'a> {
    all: &'a Folder,
    corpus: &'a str,
    facts: &'a EvaluationFacts,
    group: &'a Group,
    table: &'a PerplexityTable,
    train_len: u64,
}

impl<'a> Measured<'a> {
    fn of(all: &'a Folder, corpus: &'a str) -> Option<Measured<'a>> {
        let (facts, group) = (all.manifest.evaluations.get("lengths")?, all.group(corpus, "")?);
        let (table, train_len) = (group.table(facts)?, all.train_len(corpus, "")?);
        Some(Measured { all, corpus, facts, group, table, train_len })
    }

    /// Log-perplexities at a length; a window as long as that changes nothing.
    fn losses(&self, (label, window): Method, length: u64) -> BySeed {
        let window = window.filter(|window| *window < length);
        let rows = self.table.evaluations.iter();
        let of = rows.filter(|row| row.encoding == label && row.window == window && row.eval_len == length);
        of.map(|row| (row.seed, row.nll)).collect()
    }

    /// Differences of two methods at a length.
    fn level(&self, own: Method, other: Method, length: u64) -> Vec<f64> {
        differences(&self.losses(own, length), &self.losses(other, length))
    }

    /// Differences of their changes from the training length.
    fn changes(&self, own: Method, other: Method, length: u64) -> Vec<f64> {
        let of = |method| change(&self.losses(method, length), &self.losses(method, self.train_len));
        differences(&of(own), &of(other))
    }

    fn runs(&self, label: &str) -> Vec<&'a Run> {
        let counted = self.group.runs.iter().filter(|run| run.duplicate_of.is_none());
        counted.filter(|run| run.label() == label).collect()
    }

    /// The least window that log was evaluated under.
    fn window(&self) -> Option<u64> {
        self.table.evaluations.iter().filter(|row| row.encoding == LOG).filter_map(|row| row.window).min()
    }

    fn find(&self, claim: &Claim) -> Option<Finding> {
        let label = self.all.manifest.label_of(self.corpus, "", claim.label)?;
        let own = (label, None);
        let windowed = || Some((LOG, Some(self.window()?)));
        let (other, side) = match claim.kind {
            Kind::Level(side) | Kind::Change(side) => ((LOG, None), side),
            Kind::BesideNothing(side) if label == ALIBI => (windowed()?, side),
            Kind::BesideNothing(side) => ((ALIBI, None), side),
            Kind::Course(_, side) => (own, side),
            Kind::Window(side) => ((LOG, None), side),
        };
        let at = |length: u64| match claim.kind {
            Kind::Level(_) => self.level(own, other, length),
            Kind::Change(_) | Kind::BesideNothing(_) => self.changes(own, other, length),
            Kind::Course(from, _) => {
                differences(&self.losses(own, length), &self.losses(own, from.saturating_mul(self.train_len)))
            }
            Kind::Window(_) => windowed().map_or_else(Vec::new, |windowed| self.level(windowed, other, length)),
        };
        let lengths = claim.at.lengths(self.facts, self.train_len);
        let by_length: Vec<AtLength> = lengths.iter().map(|length| (format!("at {length}"), at(*length))).collect();
        let found = judge(side, Unit::Times, &by_length)?;
        Some(found.beside_programs(&self.runs(label), &self.runs(other.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::MANIFEST_FILE;
    use crate::pages::verdict::Verdict;
    use kerple_run::{EVALUATION_FILE, PLAN_FILE, write_json};
    use serde_json::json;

    /// Three seeds of log, ALiBi and rotary positions, trained at 64, with perplexities that are given: of a label and seed at 64,
    /// 96, 128 and 2048. 96 is a length of another table.
    fn find(text: &str, perplexity: impl Fn(&str, u64) -> [f64; 4]) -> Option<Finding> {
        let root = tempfile::tempdir().unwrap();
        let mut runs = Vec::new();
        for (label, seed) in [LOG, ALIBI, "rotary"].into_iter().flat_map(|label| [1, 2, 3].map(|seed| (label, seed))) {
            let path = format!("github/{label}/seed-{seed}");
            let folder = root.path().join(&path);
            std::fs::create_dir_all(&folder).unwrap();
            write_json(
                &folder.join(PLAN_FILE),
                &json!({"label": label, "seed": seed, "train_len": 64, "steps": 9, "hash": path, "encoding": {"kind": label}}),
            )
            .unwrap();
            let row = |(length, perplexity): (u64, f64)| {
                let text = json!({"checksum": "c", "segment_len": 2048, "n_segments": 2, "seed": seed});
                let row = json!({"label": label, "seed": seed, "train_len": 64, "eval_len": length, "protocol": "nonoverlapping",
                    "split": "test", "step": 9, "text": text, "n_windows": 2, "tokens": 99, "nll": perplexity.ln(),
                    "perplexity": perplexity, "seconds": 1.0});
                format!("{row}\n")
            };
            let rows = [64, 96, 128, 2048].into_iter().zip(perplexity(label, seed)).map(row);
            std::fs::write(folder.join(EVALUATION_FILE), rows.collect::<String>()).unwrap();
            runs.push(json!({"folder": path, "corpus": "github", "label": label, "seed": seed, "train_len": 64,
                "evaluate": ["lengths", "other"], "serves": []}));
        }
        let asked =
            |lengths: &[u64]| json!({"protocol": "nonoverlapping", "span": 2048, "segments": 2, "lengths": lengths});
        let manifest = json!({"paper": "kerple", "scale": "smoke", "title": "", "about": "", "runs": runs,
            "corpora": [{"name": "github", "title": "GitHub", "texts": "", "tokenizer": "byte"}],
            "evaluations": {"lengths": asked(&[64, 128, 2048]), "other": asked(&[64, 96])}});
        write_json(&root.path().join(MANIFEST_FILE), &manifest).unwrap();
        let all = Folder::read(root.path()).unwrap();
        let claim = CLAIMS.iter().find(|claim| claim.text.starts_with(text)).unwrap();
        Measured::of(&all, "github").unwrap().find(claim)
    }

    /// A little that differs from seed to seed.
    fn noise(seed: u64) -> f64 {
        1.0 + 0.001 * seed as f64
    }

    #[test]
    fn one_length_of_many_confirms_nothing() {
        // far above at 128, and as good as log at 2048
        let found = find("log is below ALiBi at every", |label, seed| match label {
            ALIBI => [21.0, 21.0, 21.0 * noise(seed), 20.0 + 0.3 * seed as f64].map(|value| value * noise(seed)),
            _ => [20.0, 20.0, 20.0, 20.5],
        });
        let found = found.unwrap();
        assert_eq!(found.verdict, Verdict::Unsettled, "{}", found.numbers);
        assert!(found.numbers.starts_with("significantly at 1 of 2 lengths; at 2048: "), "{}", found.numbers);
    }

    #[test]
    fn lengths_of_other_tables_do_not_count() {
        // at 96 it is the other way round
        let found = find("log is below ALiBi at every", |label, seed| match label {
            ALIBI => [21.0, 15.0, 21.0, 21.0].map(|value| value * noise(seed)),
            _ => [20.0; 4],
        });
        assert_eq!(found.unwrap().verdict, Verdict::Confirmed);
    }

    #[test]
    fn change_is_not_level() {
        // worse at every length, and less so the longer it is
        let perplexity = |label: &str, seed: u64| match label {
            // changes that are equal up to rounding are not tested
            ALIBI => [24.0, 23.0, 23.0, 22.0 + 0.01 * (seed as f64 - 2.0)].map(|value| value * noise(seed)),
            _ => [20.0; 4],
        };
        assert_eq!(find("log is below ALiBi at every", perplexity).unwrap().verdict, Verdict::Confirmed);
        let found = find("by change: log falls further than ALiBi", perplexity).unwrap();
        assert_eq!(found.verdict, Verdict::Contradicted);
        assert!(found.numbers.starts_with("at 2048: 0.917 ["), "{}", found.numbers);
    }

    #[test]
    fn flat_forgives_no_more_than_longer_blocks_give() {
        // all perplexities fall by 10 % with more context, log's by 4 %
        let perplexity = |label: &str, seed: u64| match label {
            ALIBI => [20.0, 20.0, 19.0, 18.0].map(|value| value * noise(seed)),
            _ => [20.0, 20.0, 20.0, 19.2 * noise(seed)],
        };
        let found = find("log is flat", perplexity).unwrap();
        assert_eq!(found.verdict, Verdict::Contradicted, "{}", found.numbers);
    }
}
