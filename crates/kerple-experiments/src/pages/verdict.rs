//! The rule that judges claims, the same for every paper.
//!
//! A claim is about differences of pairs: two methods at the same seed, or one method at two
//! lengths. It names its lengths, and in which direction from a bound the mean must be. The bound
//! is the smallest effect that counts and is part of the claim. At every length a two-sided test
//! compares the mean with the bound, and the p-values of one claim are corrected together.

use kerple_report::Run;
use kerple_report::format::{number, probability};
use kerple_report::page::Cell;
use kerple_report::statistics::{
    ALPHA, LEAST_PAIRS, PairedTest, Untestable, benjamini_hochberg, holm, mean, t_test_of_differences,
};
use std::collections::BTreeMap;

/// The rule in the words of a page.
pub(super) const RULE: &str = "A claim names its lengths and its margin, the smallest effect that counts. At each length a paired two-sided t-test \
                               compares the mean difference of the pairs with the margin, and Holm's method corrects the p-values of one \
                               claim together. Confirmed: significantly as claimed at every length, p < 0.05. Contradicted: significantly \
                               otherwise at one length or more; that includes an effect in the claimed direction that is significantly \
                               smaller than the margin. Everything else is not settled, and below three pairs nothing is tested. The tests \
                               have two sides and the claims have one, so each p is twice that of a one-sided test. A cell shows the last \
                               of the lengths, the 95 % interval there and the corrected p.";

/// What a page adds where the rule is younger than its runs.
pub(super) const AFTER_RUNS: &str = "This rule was written after the runs of this page, and after their results had been read once. Nothing \
                                     on this page was registered before the runs.";

/// Before a claim that the paper does not make.
pub(super) const OURS: &str = "not the paper's \u{2013} ";

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
    pub(super) fn show(self, difference: f64) -> String {
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
    /// No arm answers better than a guess, so that differences say nothing.
    NothingLearned,
}

impl Verdict {
    fn is_decided(self) -> bool {
        matches!(self, Verdict::Confirmed | Verdict::Contradicted)
    }

    /// In a cell. The mark tells the three apart without reading, and without colour.
    fn text(self) -> &'static str {
        match self {
            Verdict::Confirmed => "\u{2713} confirmed",
            Verdict::Contradicted => "\u{2717} contradicted",
            Verdict::Unsettled => "not settled",
            Verdict::NothingLearned => "nothing learned",
        }
    }
}

/// A verdict with the numbers it rests on.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Finding {
    pub verdict: Verdict,
    pub numbers: String,
    /// The probability that the verdict rests on, corrected for the lengths of the claim.
    pub p: f64,
    /// The fewest pairs that were tested at a length; 0 where nothing was tested.
    pub pairs: usize,
}

impl Finding {
    /// A finding in a table, a dash where there is none yet.
    pub(super) fn cell(found: Option<Finding>) -> Cell {
        let Some(Finding { verdict, numbers, .. }) = found else { return Cell::from("\u{2013}".to_owned()) };
        let claim = verdict.is_decided().then_some(verdict == Verdict::Confirmed);
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
pub(super) fn test(differences: &[f64]) -> Result<PairedTest, Untestable> {
    t_test_of_differences(differences, SIZE)
}

/// Judges a claim by the differences at its lengths; nothing before there are any.
pub(super) fn judge(side: Side, unit: Unit, by_length: &[AtLength]) -> Option<Finding> {
    let (name, last) = by_length.iter().rfind(|(_, differences)| !differences.is_empty())?;
    // what cannot be tested settles nothing
    let tests: Vec<Option<PairedTest>> = by_length.iter().map(|(_, differences)| test(differences).ok()).collect();
    let (holds, p): (Vec<bool>, Vec<f64>) =
        tests.iter().map(|test| test.as_ref().map_or((false, 1.0), |test| side.test(test))).unzip();
    let p = holm(&p);
    let of = |wanted: bool| holds.iter().zip(&p).filter(move |(holds, _)| **holds == wanted).map(|(_, p)| *p);
    let significant = |wanted: bool| of(wanted).filter(|p| *p < ALPHA).count();
    let (for_it, against_it) = (significant(true), significant(false));
    let (verdict, decisive) = match (for_it, against_it) {
        (_, 1..) => (Verdict::Contradicted, of(false).fold(1.0, f64::min)),
        (count, 0) if count == by_length.len() => (Verdict::Confirmed, of(true).fold(0.0, f64::max)),
        _ => (Verdict::Unsettled, p.iter().copied().fold(0.0, f64::max)),
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
    let pairs = tests.iter().flatten().map(|test| test.n).min().unwrap_or(0);
    Some(Finding { verdict, numbers: numbers + &in_words(last, unit, p[at]), p: decisive, pairs })
}

/// Judges a claim about right answers. At a length where neither arm is `learned` nothing is tested: two arms that guess are
/// equal whatever they are.
pub(super) fn judge_answers(side: Side, by_length: &[(AtLength, bool)]) -> Option<Finding> {
    let all: Vec<AtLength> = by_length.iter().map(|(at, _)| at.clone()).collect();
    if by_length.iter().all(|((_, differences), learned)| !learned || differences.is_empty()) {
        let found = judge(side, Unit::Plain, &all)?;
        return Some(Finding { verdict: Verdict::NothingLearned, p: 1.0, pairs: 0, ..found });
    }
    let tested = by_length
        .iter()
        .map(|((name, differences), learned)| (name.clone(), if *learned { differences.clone() } else { Vec::new() }));
    judge(side, Unit::Plain, &tested.collect::<Vec<_>>())
}

/// What a guess that hits `share` of the answers seldom exceeds in so many of them: three deviations more.
pub(super) fn guesses(share: f64, answers: f64) -> f64 {
    share + 3.0 * (share * (1.0 - share) / answers.max(1.0)).sqrt()
}

/// How many cells were tested, how many verdicts rest on the fewest pairs that are tested, and how many stay when all cells are
/// corrected together; nothing where nothing was tested.
pub(super) fn counted<'a>(findings: impl Iterator<Item = &'a Finding>) -> Option<String> {
    let tested: Vec<&Finding> = findings.filter(|found| found.pairs > 0).collect();
    let decided = |found: &&&Finding| found.verdict.is_decided();
    let p: Vec<f64> = tested.iter().map(|found| found.p).collect();
    let stay =
        |corrected: Vec<f64>| tested.iter().zip(corrected).filter(|(found, p)| decided(found) && *p < ALPHA).count();
    let few = tested.iter().filter(decided).filter(|found| found.pairs == LEAST_PAIRS).count();
    let (all, decided) = (tested.len(), tested.iter().filter(decided).count());
    (all > 0).then(|| {
        format!(
            "Tested are {all} cells of claims, of which {decided} are decided. Of these {few} rest on three pairs, where a test that only \
             exchanges signs cannot go below p = 0.25: they depend on normally distributed differences. Corrected for all {all} cells \
             together, {} of the {decided} verdicts stay by Holm's method and {} by that of Benjamini and Hochberg at 5 %.",
            stay(holm(&p)),
            stay(benjamini_hochberg(&p)),
        )
    })
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
    fn the_probability_of_a_verdict_is_that_of_the_length_that_decides_it() {
        let found = |side, by_length: &[&[f64]]| {
            let by_length: Vec<AtLength> = by_length.iter().map(|values| (String::new(), values.to_vec())).collect();
            judge(side, Unit::Plain, &by_length).unwrap()
        };
        // confirmed only where the worst of the lengths is
        let two = found(Side::Above(0.0), &[&CLEAR, &[0.15, 0.2, 0.25]]);
        assert!(two.verdict == Verdict::Confirmed && (0.02..ALPHA).contains(&two.p) && two.pairs == 3, "{two:?}");
        let against = found(Side::Below(0.0), &[&CLEAR, &UNCLEAR]);
        assert!(against.verdict == Verdict::Contradicted && against.p < 0.003, "{against:?}");
        assert_eq!(found(Side::Above(0.0), &[&[0.2, 0.3]]).pairs, 0, "two pairs are not tested");
    }

    #[test]
    fn cells_are_counted_and_corrected_together() {
        let cell = |values: &[f64]| judge(Side::Above(0.0), Unit::Plain, &[(String::new(), values.to_vec())]).unwrap();
        let cells = [cell(&CLEAR), cell(&[0.15, 0.2, 0.26, 0.15]), cell(&UNCLEAR), cell(&[0.2, 0.3])];
        let line = counted(cells.iter()).unwrap();
        assert!(line.starts_with("Tested are 3 cells of claims, of which 2 are decided. Of these 1 rest"), "{line}");
        assert!(line.contains("all 3 cells together, 2 of the 2") && line.contains("and 2 by"), "{line}");
        let many: Vec<Finding> = std::iter::repeat_n(cells[2].clone(), 99).chain([cells[0].clone()]).collect();
        let line = counted(many.iter()).unwrap();
        assert!(line.contains("0 of the 1 verdicts stay by Holm's method and 0 by"), "a hundred times 0.00075: {line}");
        assert_eq!(counted(cells[3..].iter()), None);
    }

    #[test]
    fn where_all_guess_nothing_is_judged() {
        let judged = |learned: [bool; 2]| {
            let at = |(values, learned): (&[f64], bool)| ((String::new(), values.to_vec()), learned);
            judge_answers(Side::Above(0.0), &[at((&CLEAR, learned[0])), at((&CLEAR, learned[1]))]).unwrap()
        };
        assert_eq!(judged([true, true]).verdict, Verdict::Confirmed);
        assert_eq!(judged([true, false]).verdict, Verdict::Unsettled, "one of two lengths is not all");
        let neither = judged([false, false]);
        assert_eq!((neither.verdict, neither.pairs), (Verdict::NothingLearned, 0));
        assert!(neither.numbers.contains("0.210 ["), "what was measured is shown: {}", neither.numbers);
        // 1000 answers, of which one in ten is right by chance: one deviation is 9.5 of them
        assert!((guesses(0.1, 1000.0) - 0.12846).abs() < 1e-5);
    }

    #[test]
    fn only_common_seeds_are_compared() {
        let a: BySeed = [(1, 1.0), (2, 1.5), (4, 9.0)].into();
        let b: BySeed = [(1, 2.0), (2, 2.0), (3, 0.0)].into();
        assert_eq!(differences(&a, &b), [-1.0, -0.5]);
        assert_eq!(change(&a, &b), BySeed::from([(1, -1.0), (2, -0.5)]));
    }
}
