//! What the runs say of a method: perplexities by seed, compared in pairs.
//!
//! Two methods are compared on the seeds both have, whose text, batches and initial weights are the same. Verdicts are of
//! two-sided paired t-tests at p < 0.05, not corrected for their number, as in the paper.

use crate::format::{number, probability};
use crate::paper::manifest::EvaluationFacts;
use crate::paper::{PlannedRun, Reproduction};
use crate::record::EvaluationRow;
use crate::statistics::{ALPHA, PairedTest, mean, paired_t_test};
use std::collections::{BTreeMap, BTreeSet};

/// A method by the label of its runs, or with rotary rates that an evaluation scaled. A label that ends with `randomized`
/// stands for any number behind it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Method {
    /// How it is called.
    pub name: &'static str,
    /// Label of its runs.
    pub label: &'static str,
    /// Other rotary rates of its evaluation.
    pub scaling: Option<&'static str>,
    /// Name under which its numbers were printed.
    pub printed: &'static str,
    /// Colour in figures.
    pub colour: usize,
    /// Whether its line is dashed.
    pub dashed: bool,
}

impl Method {
    /// Whether a run is of this method.
    pub(super) fn is_of(&self, label: &str) -> bool {
        let rest = label.strip_prefix(self.label);
        rest.is_some_and(|rest| match self.label.ends_with("randomized") {
            true => rest.bytes().all(|byte| byte.is_ascii_digit()),
            false => rest.is_empty(),
        })
    }
}

/// Runs of one text and one way to train.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub all: &'a Reproduction,
    pub corpus: &'a str,
    pub variant: &'a str,
}

/// Perplexities by seed.
type Seeds = BTreeMap<u64, f64>;

impl<'a> Place<'a> {
    /// Every place where a text is trained on, in the order of the texts and of the plan.
    pub(super) fn every(all: &'a Reproduction) -> Vec<Place<'a>> {
        let mut places: Vec<Place> = Vec::new();
        for corpus in all.manifest.corpora.iter().filter(|corpus| !corpus.is_task()) {
            for run in all.manifest.runs.iter().filter(|run| run.corpus == corpus.name) {
                if !places.iter().any(|place| (place.corpus, place.variant) == (&corpus.name, &run.variant)) {
                    places.push(Place { all, corpus: &corpus.name, variant: &run.variant });
                }
            }
        }
        places
    }

    /// Planned runs of a method that have this evaluation's kind of rates.
    pub(super) fn planned(&self, method: &Method) -> Vec<&'a PlannedRun> {
        let runs = self.all.manifest.runs.iter();
        let here = runs.filter(|run| run.corpus == self.corpus && run.variant == self.variant);
        here.filter(|run| method.is_of(&run.label) && !self.evaluations(run, method).is_empty()).collect()
    }

    fn evaluations(&self, run: &PlannedRun, method: &Method) -> Vec<&'a EvaluationFacts> {
        let all = run.evaluate.iter().filter_map(|name| self.all.manifest.evaluations.get(name));
        all.filter(|facts| facts.rope_scaling.as_deref() == method.scaling && facts.window.is_none()).collect()
    }

    /// Lengths at which a method is to be evaluated, increasing.
    pub(super) fn lengths(&self, method: &Method) -> Vec<u64> {
        let runs = self.planned(method);
        let facts = runs.iter().flat_map(|run| self.evaluations(run, method));
        facts.flat_map(|facts| &facts.lengths).copied().collect::<BTreeSet<u64>>().into_iter().collect()
    }

    /// The least length at which the same tokens are scored as at the longest.
    pub(super) fn same_tokens(&self, method: &Method) -> Option<u64> {
        let runs = self.planned(method);
        let facts: Vec<&EvaluationFacts> = runs.iter().flat_map(|run| self.evaluations(run, method)).collect();
        let longest = facts.iter().max_by_key(|facts| facts.lengths.iter().max())?;
        let text = |facts: &EvaluationFacts| (facts.protocol.clone(), facts.span, facts.segments);
        facts.iter().filter(|facts| text(facts) == text(longest)).flat_map(|facts| &facts.lengths).min().copied()
    }

    /// Tokens of a training sequence: the least length at which any run is evaluated.
    pub(super) fn train_len(&self) -> Option<u64> {
        let runs = self.all.manifest.of(self.corpus, self.variant);
        let facts = runs.flat_map(|run| run.evaluate.iter()).filter_map(|name| self.all.manifest.evaluations.get(name));
        facts.flat_map(|facts| &facts.lengths).min().copied()
    }

    /// Name of the training among the printed numbers: its length, with the size of the model where it is not the smallest.
    pub(super) fn training(&self) -> &'a str {
        if self.variant.is_empty() { "128" } else { self.variant }
    }

    /// What the place is called in tables.
    pub(super) fn title(&self) -> String {
        let corpus = self.all.manifest.corpus(self.corpus).map_or(self.corpus, |corpus| &corpus.title);
        let size = match self.variant.split_once('m') {
            Some((size, rest)) if rest.is_empty() || rest.starts_with('_') => format!(", {size}M parameters"),
            _ => String::new(),
        };
        format!("{corpus}{size}, trained at {}", self.train_len().map_or_else(String::new, |length| length.to_string()))
    }

    /// Perplexities of the finished runs of a method.
    pub(super) fn perplexities(&self, method: &Method, length: u64) -> Seeds {
        let Some(group) = self.all.group(self.corpus, self.variant) else { return Seeds::new() };
        let mut found = Seeds::new();
        for planned in self.planned(method) {
            let facts = self.evaluations(planned, method).into_iter().find(|facts| facts.lengths.contains(&length));
            let run = group.runs.iter().find(|run| run.label() == planned.label && run.seed() == Some(planned.seed));
            let (Some(facts), Some(run)) = (facts, run) else { continue };
            let asked = |row: &&EvaluationRow| row.length == length && facts.is_of(run, row);
            if let Some(row) = run.evaluations.iter().find(asked) {
                found.insert(planned.seed, row.perplexity);
            }
        }
        found
    }

    /// A method against another at one length.
    pub(super) fn pairs(&self, own: (&Method, u64), other: (&Method, u64)) -> Pairs {
        let (own, other) = (self.perplexities(own.0, own.1), self.perplexities(other.0, other.1));
        Pairs { pairs: own.iter().filter_map(|(seed, own)| Some((*own, *other.get(seed)?))).collect() }
    }
}

/// Values that belong together two by two.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Pairs {
    pub pairs: Vec<(f64, f64)>,
}

impl Pairs {
    /// The test of the differences.
    pub(super) fn test(&self) -> Option<PairedTest> {
        let (own, other): (Vec<f64>, Vec<f64>) = self.pairs.iter().copied().unzip();
        paired_t_test(&own, &other).ok()
    }

    /// The test of the ratios less one.
    fn ratios(&self) -> Option<PairedTest> {
        let ratios: Vec<f64> = self.pairs.iter().map(|(own, other)| own / other).collect();
        paired_t_test(&ratios, &vec![1.0; ratios.len()]).ok()
    }

    fn differences(&self) -> Vec<f64> {
        self.pairs.iter().map(|(own, other)| own - other).collect()
    }
}

/// What was found of a claim.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Finding {
    pub verdict: &'static str,
    pub numbers: String,
}

pub(super) const CONFIRMED: &str = "confirmed";
const IN_PART: &str = "confirmed in part";
const MIXED: &str = "mixed";
const CONTRADICTED: &str = "contradicted";
const UNSETTLED: &str = "not settled";

/// That the first of each pair is below the second at every length; `None` where there are no pairs.
pub(super) fn below(by_length: &[(u64, Pairs)]) -> Option<Finding> {
    let by_length: Vec<&(u64, Pairs)> = by_length.iter().filter(|(_, pairs)| !pairs.pairs.is_empty()).collect();
    let (length, last) = by_length.last()?;
    let tests: Vec<PairedTest> = by_length.iter().filter_map(|(_, pairs)| pairs.test()).collect();
    let significant = |above: bool| tests.iter().filter(|t| t.p < ALPHA && (t.mean_difference > 0.0) == above).count();
    let (for_it, against_it, n) = (significant(false), significant(true), by_length.len());
    let verdict = match (for_it, against_it) {
        (0, 0) => UNSETTLED,
        (count, 0) if count == n => CONFIRMED,
        (_, 0) => IN_PART,
        (0, _) => CONTRADICTED,
        (_, _) => MIXED,
    };
    let smaller = by_length.iter().filter(|(_, pairs)| mean(&pairs.differences()) < 0.0).count();
    let counts = match against_it {
        _ if n == 1 => String::new(),
        0 => format!("lower at {smaller} of {n} lengths, significantly at {for_it}; "),
        _ => format!("lower at {smaller} of {n} lengths, significantly at {for_it}, higher at {against_it}; "),
    };
    Some(Finding { verdict, numbers: format!("{counts}at {length}: {}", difference(last)) })
}

/// The difference, its interval, p, and how many pairs.
pub(super) fn difference(pairs: &Pairs) -> String {
    let differences = pairs.differences();
    let Some(test) = pairs.test() else {
        return format!("{}, n = {}, no test", number(mean(&differences)), differences.len());
    };
    let (low, high) = test.interval(1.0 - ALPHA);
    let [difference, low, high] = [test.mean_difference, low, high].map(number);
    format!("{difference} [{low}, {high}], p = {}, n = {}", probability(test.p), test.n)
}

/// What is claimed of a ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Ratio {
    /// At most 1 and a margin.
    AtMost(f64),
    /// Above 1 and a margin.
    Above(f64),
    /// Within a margin of 1.
    Near(f64),
}

/// Where the 95 % interval of the ratios of pairs lies; `None` where there are no pairs.
pub(super) fn ratio(pairs: &Pairs, claimed: Ratio) -> Option<Finding> {
    if pairs.pairs.is_empty() {
        return None;
    }
    let Some(test) = pairs.ratios() else {
        let ratios: Vec<f64> = pairs.pairs.iter().map(|(own, other)| own / other).collect();
        let numbers = format!("{} times, n = {}, no test", number(mean(&ratios)), ratios.len());
        return Some(Finding { verdict: UNSETTLED, numbers });
    };
    let (low, high) = test.interval(1.0 - ALPHA);
    let (holds, fails) = match claimed {
        Ratio::AtMost(margin) => (high <= margin, low > margin),
        Ratio::Above(margin) => (low > margin, high <= margin),
        Ratio::Near(margin) => (low >= -margin && high <= margin, low > margin || high < -margin),
    };
    let verdict = match (holds, fails) {
        (true, _) => CONFIRMED,
        (_, true) => CONTRADICTED,
        (false, false) => UNSETTLED,
    };
    let [ratio, low, high] = [test.mean_difference, low, high].map(|above| number(1.0 + above));
    Some(Finding { verdict, numbers: format!("{ratio} [{low}, {high}] times, n = {}", test.n) })
}

/// That the first of each pair is above the second, on the whole.
pub(super) fn above(pairs: &Pairs, what: &str) -> Option<Finding> {
    if pairs.pairs.is_empty() {
        return None;
    }
    let verdict = match pairs.test() {
        Some(test) if test.p < ALPHA && test.mean_difference > 0.0 => CONFIRMED,
        Some(test) if test.p < ALPHA => CONTRADICTED,
        _ => UNSETTLED,
    };
    Some(Finding { verdict, numbers: format!("{what}{}", difference(pairs)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(values: &[(f64, f64)]) -> Pairs {
        Pairs { pairs: values.to_vec() }
    }

    #[test]
    fn below_is_a_test_at_every_length() {
        let (clear, unclear) = ([(1.0, 2.0), (1.1, 2.2), (0.9, 2.0)], [(1.0, 2.0), (2.5, 2.2), (2.4, 2.0)]);
        let turned = clear.map(|(own, other)| (other, own));
        let verdict = |all: &[&[(f64, f64)]]| {
            let by_length: Vec<(u64, Pairs)> =
                all.iter().zip(1..).map(|(values, at)| (at * 64, pairs(values))).collect();
            below(&by_length).map(|finding| finding.verdict)
        };
        assert_eq!(verdict(&[&clear, &clear]), Some(CONFIRMED));
        assert_eq!(verdict(&[&clear, &unclear]), Some(IN_PART));
        assert_eq!(verdict(&[&unclear]), Some(UNSETTLED));
        assert_eq!(verdict(&[&turned, &unclear]), Some(CONTRADICTED));
        assert_eq!(verdict(&[&turned, &clear]), Some(MIXED));
        assert_eq!(verdict(&[&[(1.0, 2.0)]]), Some(UNSETTLED), "one seed settles nothing");
        assert_eq!(verdict(&[&[]]), None);
        let found = below(&[(64, pairs(&clear)), (128, pairs(&unclear))]).unwrap().numbers;
        assert!(found.starts_with("lower at 2 of 2 lengths, significantly at 1; at 128: \u{2212}0.1"), "{found}");
    }

    #[test]
    fn ratios_are_intervals_beside_a_margin() {
        let level = pairs(&[(20.0, 20.0), (21.1, 21.0), (22.0, 22.0)]);
        let rising = pairs(&[(40.0, 20.0), (43.0, 21.0), (45.0, 22.0)]);
        let unclear = pairs(&[(15.0, 20.0), (21.0, 21.0), (30.0, 22.0)]);
        let verdict = |pairs: &Pairs, claimed| ratio(pairs, claimed).unwrap().verdict;
        for (claimed, expected) in [
            (Ratio::AtMost(0.05), [CONFIRMED, CONTRADICTED, UNSETTLED]),
            (Ratio::Above(0.05), [CONTRADICTED, CONFIRMED, UNSETTLED]),
            (Ratio::Near(0.05), [CONFIRMED, CONTRADICTED, UNSETTLED]),
        ] {
            assert_eq!([&level, &rising, &unclear].map(|pairs| verdict(pairs, claimed)), expected, "{claimed:?}");
        }
        assert_eq!(ratio(&pairs(&[]), Ratio::Near(0.05)), None);
    }

    #[test]
    fn above_needs_a_significant_difference() {
        assert_eq!(above(&pairs(&[(2.0, 1.0), (2.1, 1.0), (2.0, 1.1)]), "").unwrap().verdict, CONFIRMED);
        assert_eq!(above(&pairs(&[(1.0, 2.0), (1.0, 2.1), (1.1, 2.0)]), "").unwrap().verdict, CONTRADICTED);
        assert_eq!(above(&pairs(&[(1.0, 2.0), (3.0, 1.0)]), "").unwrap().verdict, UNSETTLED);
    }

    #[test]
    fn labels_have_one_method() {
        let method = |label| Method { name: "", label, scaling: None, printed: "", colour: 0, dashed: false };
        assert!(method("rotary-randomized").is_of("rotary-randomized8192"));
        assert!(!method("rotary").is_of("rotary-randomized8192"));
        assert!(!method("dape").is_of("dape-base=alibi") && method("dape").is_of("dape"));
    }
}
