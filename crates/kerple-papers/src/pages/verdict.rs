//! The one rule by which claims are judged, the same for every paper.
//!
//! A claim is about differences of pairs: of two methods at the same seed, or of one method at two lengths. It says at which
//! lengths, and on which side of a bound their mean lies. The bound is the smallest effect that counts and stands with the
//! claim. At every length the mean is tested against the bound, two-sided, and p-values of one claim are corrected together.

use kerple_report::Run;
use kerple_report::format::{number, probability};
use kerple_report::page::Cell;
use kerple_report::statistics::{ALPHA, PairedTest, Untestable, holm, mean, t_test_of_differences};
use std::collections::BTreeMap;

/// The rule in the words of a page.
pub(super) const RULE: &str = "A claim names its lengths and the smallest effect that counts. At each of the lengths the mean difference of the \
                               pairs is tested against that effect (paired two-sided t-test), and the p-values of one claim are corrected \
                               together by Holm's method. Confirmed: at all of its lengths significantly as claimed, p < 0.05. Contradicted: \
                               at one of them significantly not so; that includes an effect in the claimed direction that is significantly \
                               smaller than what counts. Everything else is not settled, and below three pairs nothing is tested. Shown is \
                               the last of the lengths, with the 95 % interval and the corrected p of that test.";

/// Perplexities of two methods that differ by less than this in their logarithm, 1 %, are as good.
pub(super) const EFFECT: f64 = 0.01;
/// A log-perplexity that grows by no more than this, 5 %, is flat.
pub(super) const FLAT: f64 = 0.05;

/// Values of a method, one a seed.
pub(super) type BySeed = BTreeMap<u64, f64>;

/// Where a claim says that the mean of its differences lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Side {
    /// Below a bound.
    Below(f64),
    /// Above a bound.
    Above(f64),
    /// Nearer to 0 than a bound.
    Within(f64),
}

impl Side {
    /// Whether the mean is where it is said to be, and how probable it would be to find it there if it lay on the bound.
    fn test(self, test: &PairedTest) -> (bool, f64) {
        let mean = test.mean_difference;
        match self {
            Side::Below(bound) => (mean < bound, test.p_beside(bound)),
            Side::Above(bound) => (mean > bound, test.p_beside(bound)),
            Side::Within(bound) if mean.abs() < bound => (true, test.p_beside(bound).max(test.p_beside(-bound))),
            Side::Within(bound) => (false, test.p_beside(bound.copysign(mean))),
        }
    }
}

/// How differences are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Of logarithms, as the ratio that they mean.
    Times,
    /// As they are.
    Plain,
}

impl Unit {
    fn show(self, difference: f64) -> String {
        number(if self == Unit::Times { difference.exp() } else { difference })
    }

    fn word(self) -> &'static str {
        if self == Unit::Times { " times" } else { "" }
    }
}

/// What became of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Confirmed,
    Contradicted,
    Unsettled,
}

impl Verdict {
    /// In a cell. The mark tells the three apart without reading, and without colour.
    fn text(self) -> &'static str {
        match self {
            Verdict::Confirmed => "\u{2713} confirmed",
            Verdict::Contradicted => "\u{2717} contradicted",
            Verdict::Unsettled => "not settled",
        }
    }
}

/// A verdict with the numbers it rests on.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Finding {
    pub verdict: Verdict,
    pub numbers: String,
}

impl Finding {
    /// A finding in a table, a dash where there is none yet.
    pub(super) fn cell(found: Option<Finding>) -> Cell {
        let Some(Finding { verdict, numbers }) = found else { return Cell::from("\u{2013}".to_owned()) };
        let claim = (verdict != Verdict::Unsettled).then_some(verdict == Verdict::Confirmed);
        Cell { note: Some(numbers), claim, ..verdict.text().to_owned().into() }
    }

    /// Beside the numbers, how many of the pairs are of runs that different programs or instruction sets made.
    pub(super) fn beside_programs<'a>(mut self, own: &[&'a Run], other: &[&'a Run]) -> Finding {
        let pairs = own.iter().filter_map(|run| Some((run, other.iter().find(|other| other.seed() == run.seed())?)));
        let pairs: Vec<bool> = pairs.map(|(run, other)| run.computed_by() != other.computed_by()).collect();
        let crossed = pairs.iter().filter(|crossed| **crossed).count();
        if crossed > 0 {
            self.numbers +=
                &format!("; {crossed} of {} pairs are of different programs or instruction sets", pairs.len());
        }
        self
    }
}

/// A length, as it is called, and the differences there.
pub(super) type AtLength = (String, Vec<f64>);

/// Differences of two methods, or of one at two lengths, where both have a value.
pub(super) fn differences<Key: Ord>(own: &BTreeMap<Key, f64>, other: &BTreeMap<Key, f64>) -> Vec<f64> {
    own.iter().filter_map(|(key, own)| Some(own - other.get(key)?)).collect()
}

/// What differs from one place to the other, of each seed.
pub(super) fn change(to: &BySeed, from: &BySeed) -> BySeed {
    to.iter().filter_map(|(seed, to)| Some((*seed, to - from.get(seed)?))).collect()
}

/// Size of what is subtracted here: losses in nats, which are below 16 wherever a model has learned anything, and shares.
const SIZE: f64 = 16.0;

/// Tests differences of losses or shares.
fn test(differences: &[f64]) -> Result<PairedTest, Untestable> {
    t_test_of_differences(differences, SIZE)
}

/// Judges a claim by the differences at its lengths; nothing before there are any.
pub(super) fn judge(side: Side, unit: Unit, by_length: &[AtLength]) -> Option<Finding> {
    let (name, last) = by_length.iter().rfind(|(_, differences)| !differences.is_empty())?;
    let found = |(_, differences): &AtLength| {
        // what cannot be tested settles nothing
        test(differences).map_or((false, 1.0), |test| side.test(&test))
    };
    let (holds, p): (Vec<bool>, Vec<f64>) = by_length.iter().map(found).unzip();
    let p = holm(&p);
    let significant = |wanted: bool| holds.iter().zip(&p).filter(|(holds, p)| **holds == wanted && **p < ALPHA).count();
    let (for_it, against_it) = (significant(true), significant(false));
    let verdict = match (for_it, against_it) {
        (_, 1..) => Verdict::Contradicted,
        (count, 0) if count == by_length.len() => Verdict::Confirmed,
        _ => Verdict::Unsettled,
    };
    let mut numbers = match (by_length.len(), against_it) {
        (1, _) => String::new(),
        (n, 0) => format!("significantly at {for_it} of {n} lengths; "),
        (n, _) => format!("significantly at {for_it} of {n} lengths, not so at {against_it}; "),
    };
    if !name.is_empty() {
        numbers += &format!("{name}: ");
    }
    let at = by_length.iter().position(|(other, _)| other == name).unwrap_or(0);
    Some(Finding { verdict, numbers: numbers + &in_words(last, unit, p[at]) })
}

/// A mean and its interval in brackets, which below three pairs is the number of them; nothing of no differences.
pub(super) fn shown(differences: &[f64], unit: Unit) -> Option<(String, String)> {
    let n = differences.len();
    let words = match test(differences).map(|test| test.interval(1.0 - ALPHA)) {
        Ok((low, high)) => format!("[{}, {}]", unit.show(low), unit.show(high)),
        Err(Untestable::NoSpread { .. }) => format!("n = {n}, all equal"),
        Err(_) => format!("n = {n}"),
    };
    (n > 0).then(|| (unit.show(mean(differences)), words))
}

/// The 95 % interval of the mean, where there are pairs enough and they differ by more than rounding.
pub(super) fn interval(differences: &[f64]) -> Option<(f64, f64)> {
    test(differences).ok().map(|test| test.interval(1.0 - ALPHA))
}

/// The mean, its interval, p and how many pairs.
fn in_words(differences: &[f64], unit: Unit, p: f64) -> String {
    let (n, word) = (differences.len(), unit.word());
    let test = match test(differences) {
        Ok(test) => test,
        Err(reason) => {
            let why = if reason == (Untestable::NoSpread { n }) { ": all differences are equal" } else { "" };
            return format!("{}{word}, n = {n}, no test{why}", unit.show(mean(differences)));
        }
    };
    let (low, high) = test.interval(1.0 - ALPHA);
    let [shown, low, high] = [test.mean_difference, low, high].map(|value| unit.show(value));
    format!("{shown} [{low}, {high}]{word}, p = {}, n = {n}", probability(p))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLEAR: [f64; 3] = [0.20, 0.21, 0.22];
    const SMALL: [f64; 3] = [0.001, 0.002, 0.003];
    const UNCLEAR: [f64; 3] = [-0.1, 0.1, 0.3];

    fn verdict(side: Side, by_length: &[&[f64]]) -> Option<Verdict> {
        let by_length: Vec<AtLength> =
            by_length.iter().zip(1..).map(|(values, at)| (format!("at {}", 64 * at), values.to_vec())).collect();
        judge(side, Unit::Plain, &by_length).map(|found| found.verdict)
    }

    #[test]
    fn all_lengths_must_be_as_claimed() {
        let above = Side::Above(0.01);
        assert_eq!(verdict(above, &[&CLEAR]), Some(Verdict::Confirmed));
        assert_eq!(verdict(above, &[&CLEAR, &CLEAR]), Some(Verdict::Confirmed));
        assert_eq!(verdict(above, &[&CLEAR, &UNCLEAR]), Some(Verdict::Unsettled), "one of two is not all");
        assert_eq!(verdict(above, &[&CLEAR, &CLEAR.map(|value| -value)]), Some(Verdict::Contradicted));
        assert_eq!(verdict(above, &[]), None);
        assert_eq!(verdict(above, &[&[]]), None);
        assert_eq!(verdict(above, &[&CLEAR, &[]]), Some(Verdict::Unsettled), "a length without runs");
    }

    #[test]
    fn an_effect_that_is_too_small_does_not_count() {
        assert_eq!(verdict(Side::Above(0.0), &[&SMALL]), Some(Verdict::Unsettled), "p = 0.07");
        assert_eq!(verdict(Side::Above(0.01), &[&SMALL]), Some(Verdict::Contradicted));
        assert_eq!(verdict(Side::Below(0.01), &[&SMALL]), Some(Verdict::Confirmed), "no gain is shown by a bound");
        assert_eq!(verdict(Side::Below(0.01), &[&CLEAR]), Some(Verdict::Contradicted));
        assert_eq!(verdict(Side::Below(0.01), &[&UNCLEAR]), Some(Verdict::Unsettled));
    }

    #[test]
    fn near_is_between_two_bounds() {
        let within = Side::Within(0.05);
        assert_eq!(verdict(within, &[&SMALL]), Some(Verdict::Confirmed));
        assert_eq!(verdict(within, &[&CLEAR]), Some(Verdict::Contradicted));
        assert_eq!(verdict(within, &[&CLEAR.map(|value| -value)]), Some(Verdict::Contradicted));
        assert_eq!(verdict(within, &[&UNCLEAR]), Some(Verdict::Unsettled));
    }

    #[test]
    fn lengths_of_a_claim_are_corrected_together() {
        let four = [0.05, 0.06, 0.07, 0.115]; // p = 0.021 beside 0.01
        let verdict = |n: usize| verdict(Side::Above(0.01), &vec![&four[..]; n]);
        assert_eq!(verdict(1), Some(Verdict::Confirmed));
        assert_eq!(verdict(4), Some(Verdict::Unsettled), "four times 0.021");
    }

    #[test]
    fn below_three_pairs_nothing_is_tested() {
        assert_eq!(verdict(Side::Above(0.01), &[&[0.2, 0.2]]), Some(Verdict::Unsettled));
        let found = judge(Side::Above(0.01), Unit::Times, &[("at 64".into(), vec![0.2, 0.2])]).unwrap();
        assert_eq!(found.numbers, "at 64: 1.221 times, n = 2, no test");
        // losses that differ by the same amount, up to rounding
        let rounded = vec![3.3 - 3.1, 5.5 - 5.3, 7.7 - 7.5, 12.1 - 11.9];
        for differences in [vec![0.2; 5], rounded] {
            let found = judge(Side::Above(0.01), Unit::Times, &[("at 64".into(), differences.clone())]).unwrap();
            assert_eq!(found.verdict, Verdict::Unsettled, "without a spread it is not known what chance does");
            assert!(found.numbers.ends_with("no test: all differences are equal"), "{}", found.numbers);
            assert_eq!(interval(&differences), None);
        }
    }

    #[test]
    fn numbers_are_those_of_the_last_length_with_its_corrected_p() {
        let by_length = [("at 64".to_owned(), SMALL.to_vec()), ("at 128".to_owned(), CLEAR.to_vec())];
        let found = judge(Side::Above(0.0), Unit::Plain, &by_length).unwrap();
        let expected = "significantly at 1 of 2 lengths; at 128: 0.210 [0.185, 0.235], p = 0.002, n = 3";
        assert_eq!(found.numbers, expected);
    }

    #[test]
    fn only_common_seeds_are_compared() {
        let a: BySeed = [(1, 1.0), (2, 1.5), (4, 9.0)].into();
        let b: BySeed = [(1, 2.0), (2, 2.0), (3, 0.0)].into();
        assert_eq!(differences(&a, &b), [-1.0, -0.5]);
        assert_eq!(change(&a, &b), BySeed::from([(1, -1.0), (2, -0.5)]));
    }
}
