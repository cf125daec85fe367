//! The rule that judges claims, the same for every paper.
//!
//! A claim is about differences of pairs: two methods at the same seed, or one method at two
//! lengths. It names its lengths, and in which direction from a bound the mean must be. The bound
//! is the smallest effect that counts and is part of the claim. At every length a two-sided test
//! compares the mean with the bound, and the p-values of one claim are corrected together.

use crate::claim::ClaimBound;
use kerple_report::Run;
use kerple_report::format::{number, probability};
use kerple_report::page::Cell;
use kerple_report::statistics::{
    ALPHA, LEAST_PAIRS, PairedTest, Untestable, benjamini_hochberg, holm, mean, t_test_of_differences,
};

/// The rule in the words of a page.
pub(super) const RULE: &str = "A claim names its lengths and its margin, the smallest effect that counts. At each \
                               length a paired two-sided t-test compares the mean difference of the pairs with the \
                               margin, and Holm's method corrects the p-values of one claim together. Confirmed: \
                               significantly as claimed at every length, p < 0.05. Contradicted: significantly \
                               otherwise at one length or more; that includes an effect in the claimed direction that \
                               is significantly smaller than the margin. Everything else is not settled, and below \
                               three pairs nothing is tested. The tests are two-sided and the claims one-sided, so \
                               each p is twice that of a one-sided test. A cell shows the last of the lengths, the 95 \
                               % interval there and the corrected p.";

/// What a page adds where the rule is younger than its runs.
pub(super) const AFTER_RUNS: &str = "This rule was written after the runs of this page, and after their results had \
                               been read once. Nothing on this page was registered before the runs.";

/// Before a claim that the paper does not make.
pub(super) const OURS: &str = "not the paper's \u{2013} ";

/// Whether the mean is on the claimed side of the bound, and the p-value of the mean if the true one were at the bound.
pub(super) fn compare(bound: ClaimBound, mean: f64, p_against: impl Fn(f64) -> f64) -> (bool, f64) {
    match bound {
        ClaimBound::Below(bound) => (mean < bound, p_against(bound)),
        ClaimBound::Above(bound) => (mean > bound, p_against(bound)),
        ClaimBound::Within(bound) if mean.abs() < bound => (true, p_against(bound).max(p_against(-bound))),
        ClaimBound::Within(bound) => (false, p_against(bound.copysign(mean))),
    }
}

/// How differences are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DifferenceUnit {
    /// Of logarithms, as the ratio that they mean.
    Times,
    /// As they are.
    Plain,
}

impl DifferenceUnit {
    pub(super) fn show(self, difference: f64) -> String {
        number(if self == DifferenceUnit::Times { difference.exp() } else { difference })
    }

    fn word(self) -> &'static str {
        if self == DifferenceUnit::Times { " times" } else { "" }
    }
}

/// What became of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimVerdict {
    Confirmed,
    Contradicted,
    Unsettled,
    /// No arm answers better than a guess, so that differences say nothing.
    NothingLearned,
}

impl ClaimVerdict {
    fn is_decided(self) -> bool {
        matches!(self, ClaimVerdict::Confirmed | ClaimVerdict::Contradicted)
    }

    /// In a cell. The mark tells the three apart without reading, and without colour.
    fn text(self) -> &'static str {
        match self {
            ClaimVerdict::Confirmed => "\u{2713} confirmed",
            ClaimVerdict::Contradicted => "\u{2717} contradicted",
            ClaimVerdict::Unsettled => "not settled",
            ClaimVerdict::NothingLearned => "nothing learned",
        }
    }
}

/// A verdict with the numbers it rests on.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ClaimFinding {
    pub verdict: ClaimVerdict,
    pub numbers: String,
    /// The probability that the verdict rests on, corrected for the lengths of the claim.
    pub p: f64,
    /// The fewest pairs that were tested at a length; 0 where nothing was tested.
    pub pairs: usize,
}

impl ClaimFinding {
    /// The cell of a finding, a dash before there is one.
    pub(super) fn cell(found: Option<ClaimFinding>) -> Cell {
        let Some(ClaimFinding { verdict, numbers, .. }) = found else { return Cell::from("\u{2013}".to_owned()) };
        let claim = verdict.is_decided().then_some(verdict == ClaimVerdict::Confirmed);
        Cell { note: Some(numbers), claim, ..verdict.text().to_owned().into() }
    }

    /// Adds to the numbers how many pairs come from different programs or instruction sets.
    pub(super) fn with_mixed_programs<'a>(mut self, own: &[&'a Run], other: &[&'a Run]) -> ClaimFinding {
        let pairs = own.iter().filter_map(|run| Some((run, other.iter().find(|other| other.seed() == run.seed())?)));
        let pairs: Vec<bool> = pairs.map(|(run, other)| run.computed_by() != other.computed_by()).collect();
        let crossed = pairs.iter().filter(|crossed| **crossed).count();
        if crossed > 0 {
            self.numbers +=
                &format!("; {crossed} of {} pairs come from different programs or instruction sets", pairs.len());
        }
        self
    }
}

/// The differences at a length.
#[derive(Clone, Debug, Default)]
pub(super) struct LengthDifferences {
    /// `at 4096`; empty where there is one length only.
    pub name: String,
    pub differences: Vec<f64>,
    /// Whether an arm is better than a guess there. Where none is nothing is tested: two arms that guess are equal whatever they
    /// are.
    pub is_learned: bool,
}

/// Size of what is subtracted here: losses in nats, which are below 16 wherever a model has learned anything, and shares.
const SIZE: f64 = 16.0;

/// Tests differences of losses or shares; those that are all 0 show no spread either.
pub(super) fn test(differences: &[f64]) -> Result<PairedTest, Untestable> {
    match t_test_of_differences(differences, SIZE) {
        Ok(test) if test.standard_error == 0.0 => Err(Untestable::NoSpread { n: test.n }),
        tested => tested,
    }
}

/// Judges a claim by the differences at its lengths; `None` before there are any.
pub(super) fn judge(bound: ClaimBound, unit: DifferenceUnit, by_length: &[LengthDifferences]) -> Option<ClaimFinding> {
    let tested = |at: &LengthDifferences| if at.is_learned { at.differences.clone() } else { Vec::new() };
    let learned: Vec<(&str, Vec<f64>)> = by_length.iter().map(|at| (at.name.as_str(), tested(at))).collect();
    if learned.iter().any(|(_, differences)| !differences.is_empty()) {
        return weigh(bound, unit, &learned);
    }
    let all: Vec<_> = by_length.iter().map(|at| (at.name.as_str(), at.differences.clone())).collect();
    let found = weigh(bound, unit, &all)?;
    Some(ClaimFinding { verdict: ClaimVerdict::NothingLearned, p: 1.0, pairs: 0, ..found })
}

fn weigh(bound: ClaimBound, unit: DifferenceUnit, by_length: &[(&str, Vec<f64>)]) -> Option<ClaimFinding> {
    let at = by_length.iter().rposition(|(_, differences)| !differences.is_empty())?;
    let (name, last) = &by_length[at];
    // what cannot be tested settles nothing
    let tests: Vec<Option<PairedTest>> = by_length.iter().map(|(_, differences)| test(differences).ok()).collect();
    let (holds, p): (Vec<bool>, Vec<f64>) = tests
        .iter()
        .map(|test| {
            test.as_ref()
                .map_or((false, 1.0), |test| compare(bound, test.mean_difference, |bound| test.p_against(bound)))
        })
        .unzip();
    let p = holm(&p);
    let of = |wanted: bool| holds.iter().zip(&p).filter(move |(holds, _)| **holds == wanted).map(|(_, p)| *p);
    let significant = |wanted: bool| of(wanted).filter(|p| *p < ALPHA).count();
    let (for_it, against_it) = (significant(true), significant(false));
    let (verdict, decisive) = match (for_it, against_it) {
        (_, 1..) => (ClaimVerdict::Contradicted, of(false).fold(1.0, f64::min)),
        (count, 0) if count == by_length.len() => (ClaimVerdict::Confirmed, of(true).fold(0.0, f64::max)),
        _ => (ClaimVerdict::Unsettled, p.iter().copied().fold(0.0, f64::max)),
    };
    let mut numbers = match (by_length.len(), against_it) {
        (1, _) => String::new(),
        (n, 0) => format!("significantly at {for_it} of {n} lengths; "),
        (n, _) => format!("significantly at {for_it} of {n} lengths, not so at {against_it}; "),
    };
    if !name.is_empty() {
        numbers += &format!("{name}: ");
    }
    let pairs = tests.iter().flatten().map(|test| test.n).min().unwrap_or(0);
    Some(ClaimFinding { verdict, numbers: numbers + &in_words(last, unit, p[at]), p: decisive, pairs })
}

/// How many cells were tested, how many verdicts rest on the fewest pairs that are tested, and how many stay when all cells are
/// corrected together; nothing where nothing was tested.
pub(super) fn counted<'a>(findings: impl Iterator<Item = &'a ClaimFinding>) -> Option<String> {
    let tested: Vec<&ClaimFinding> = findings.filter(|found| found.pairs > 0).collect();
    let decided = |found: &&&ClaimFinding| found.verdict.is_decided();
    let p: Vec<f64> = tested.iter().map(|found| found.p).collect();
    let stay =
        |corrected: Vec<f64>| tested.iter().zip(corrected).filter(|(found, p)| decided(found) && *p < ALPHA).count();
    let few = tested.iter().filter(decided).filter(|found| found.pairs == LEAST_PAIRS).count();
    let (all, decided) = (tested.len(), tested.iter().filter(decided).count());
    (all > 0).then(|| {
        format!(
            "{all} cells of claims were tested and {decided} of them are decided. Of these, {few} rest on three pairs, \
             where a test that only exchanges signs cannot go below p = 0.25: they depend on normally distributed \
             differences. Corrected for all {all} cells together, {} of the {decided} verdicts stay by Holm's method \
             and {} by that of Benjamini and Hochberg at 5 %.",
            stay(holm(&p)),
            stay(benjamini_hochberg(&p)),
        )
    })
}

/// A mean and its interval in brackets, which below three pairs is the number of them; nothing of no differences.
pub(super) fn shown(differences: &[f64], unit: DifferenceUnit) -> Option<(String, String)> {
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
fn in_words(differences: &[f64], unit: DifferenceUnit, p: f64) -> String {
    let (n, word) = (differences.len(), unit.word());
    let test = match test(differences) {
        Ok(test) => test,
        Err(reason) => {
            let why = match reason {
                Untestable::NoSpread { .. } => ": all differences are equal",
                Untestable::NotFinite | Untestable::Overflow => ": a value is not finite",
                _ => "",
            };
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

    fn at(name: &str, values: &[f64]) -> LengthDifferences {
        LengthDifferences { name: name.to_owned(), differences: values.to_vec(), is_learned: true }
    }

    fn verdict(bound: ClaimBound, by_length: &[&[f64]]) -> Option<ClaimVerdict> {
        let at = |(values, nth): (&&[f64], u64)| at(&format!("at {}", 64 * nth), values);
        let by_length: Vec<LengthDifferences> = by_length.iter().zip(1..).map(at).collect();
        judge(bound, DifferenceUnit::Plain, &by_length).map(|found| found.verdict)
    }

    #[test]
    fn all_lengths_must_be_as_claimed() {
        let above = ClaimBound::Above(0.01);
        assert_eq!(verdict(above, &[&CLEAR]), Some(ClaimVerdict::Confirmed));
        assert_eq!(verdict(above, &[&CLEAR, &CLEAR]), Some(ClaimVerdict::Confirmed));
        assert_eq!(verdict(above, &[&CLEAR, &UNCLEAR]), Some(ClaimVerdict::Unsettled), "one of two is not all");
        assert_eq!(verdict(above, &[&CLEAR, &CLEAR.map(|value| -value)]), Some(ClaimVerdict::Contradicted));
        assert_eq!(verdict(above, &[]), None);
        assert_eq!(verdict(above, &[&[]]), None);
        assert_eq!(verdict(above, &[&CLEAR, &[]]), Some(ClaimVerdict::Unsettled), "a length without runs");
    }

    #[test]
    fn an_effect_that_is_too_small_does_not_count() {
        assert_eq!(verdict(ClaimBound::Above(0.0), &[&SMALL]), Some(ClaimVerdict::Unsettled), "p = 0.07");
        assert_eq!(verdict(ClaimBound::Above(0.01), &[&SMALL]), Some(ClaimVerdict::Contradicted));
        assert_eq!(
            verdict(ClaimBound::Below(0.01), &[&SMALL]),
            Some(ClaimVerdict::Confirmed),
            "no gain is shown by a bound"
        );
        assert_eq!(verdict(ClaimBound::Below(0.01), &[&CLEAR]), Some(ClaimVerdict::Contradicted));
        assert_eq!(verdict(ClaimBound::Below(0.01), &[&UNCLEAR]), Some(ClaimVerdict::Unsettled));
    }

    #[test]
    fn near_is_between_two_bounds() {
        let within = ClaimBound::Within(0.05);
        assert_eq!(verdict(within, &[&SMALL]), Some(ClaimVerdict::Confirmed));
        assert_eq!(verdict(within, &[&CLEAR]), Some(ClaimVerdict::Contradicted));
        assert_eq!(verdict(within, &[&CLEAR.map(|value| -value)]), Some(ClaimVerdict::Contradicted));
        assert_eq!(verdict(within, &[&UNCLEAR]), Some(ClaimVerdict::Unsettled));
    }

    #[test]
    fn lengths_of_a_claim_are_corrected_together() {
        let four = [0.05, 0.06, 0.07, 0.115]; // p = 0.021 beside 0.01
        let verdict = |n: usize| verdict(ClaimBound::Above(0.01), &vec![&four[..]; n]);
        assert_eq!(verdict(1), Some(ClaimVerdict::Confirmed));
        assert_eq!(verdict(4), Some(ClaimVerdict::Unsettled), "four times 0.021");
    }

    #[test]
    fn below_three_pairs_nothing_is_tested() {
        assert_eq!(verdict(ClaimBound::Above(0.01), &[&[0.2, 0.2]]), Some(ClaimVerdict::Unsettled));
        let found = judge(ClaimBound::Above(0.01), DifferenceUnit::Times, &[at("at 64", &[0.2, 0.2])]).unwrap();
        assert_eq!(found.numbers, "at 64: 1.221 times, n = 2, no test");
        // losses that differ by the same amount, up to rounding
        let rounded = vec![3.3 - 3.1, 5.5 - 5.3, 7.7 - 7.5, 12.1 - 11.9];
        for differences in [vec![0.2; 5], rounded] {
            let found = judge(ClaimBound::Above(0.01), DifferenceUnit::Times, &[at("at 64", &differences)]).unwrap();
            assert_eq!(found.verdict, ClaimVerdict::Unsettled, "without a spread it is not known what chance does");
            assert!(found.numbers.ends_with("no test: all differences are equal"), "{}", found.numbers);
            assert_eq!(interval(&differences), None);
        }
        let diverged = at("at 64", &[0.2, f64::NAN, 0.3]);
        let found = judge(ClaimBound::Above(0.01), DifferenceUnit::Times, &[diverged]).unwrap();
        assert_eq!(found.numbers, "at 64: NaN times, n = 3, no test: a value is not finite");
    }

    #[test]
    fn numbers_are_those_of_the_last_length_with_its_corrected_p() {
        let by_length = [at("at 64", &SMALL), at("at 128", &CLEAR)];
        let found = judge(ClaimBound::Above(0.0), DifferenceUnit::Plain, &by_length).unwrap();
        let expected = "significantly at 1 of 2 lengths; at 128: 0.210 [0.185, 0.235], p = 0.002, n = 3";
        assert_eq!(found.numbers, expected);
    }

    #[test]
    fn points_without_names_have_their_own_p() {
        let found = judge(ClaimBound::Above(0.0), DifferenceUnit::Plain, &[at("", &UNCLEAR), at("", &CLEAR)]).unwrap();
        assert!(found.numbers.ends_with("0.210 [0.185, 0.235], p = 0.002, n = 3"), "{}", found.numbers);
    }

    #[test]
    fn the_probability_of_a_verdict_is_that_of_the_length_that_decides_it() {
        let found = |bound, by_length: &[&[f64]]| {
            let by_length: Vec<LengthDifferences> = by_length.iter().map(|values| at("", values)).collect();
            judge(bound, DifferenceUnit::Plain, &by_length).unwrap()
        };
        // confirmed only where the worst of the lengths is
        let two = found(ClaimBound::Above(0.0), &[&CLEAR, &[0.15, 0.2, 0.25]]);
        assert!(two.verdict == ClaimVerdict::Confirmed && (0.02..ALPHA).contains(&two.p) && two.pairs == 3, "{two:?}");
        let against = found(ClaimBound::Below(0.0), &[&CLEAR, &UNCLEAR]);
        assert!(against.verdict == ClaimVerdict::Contradicted && against.p < 0.003, "{against:?}");
        assert_eq!(found(ClaimBound::Above(0.0), &[&[0.2, 0.3]]).pairs, 0, "two pairs are not tested");
    }

    #[test]
    fn cells_are_counted_and_corrected_together() {
        let cell = |values: &[f64]| judge(ClaimBound::Above(0.0), DifferenceUnit::Plain, &[at("", values)]).unwrap();
        let cells = [cell(&CLEAR), cell(&[0.15, 0.2, 0.26, 0.15]), cell(&UNCLEAR), cell(&[0.2, 0.3])];
        let line = counted(cells.iter()).unwrap();
        assert!(
            line.starts_with("3 cells of claims were tested and 2 of them are decided. Of these, 1 rest"),
            "{line}"
        );
        assert!(line.contains("all 3 cells together, 2 of the 2") && line.contains("and 2 by"), "{line}");
        let many: Vec<ClaimFinding> = std::iter::repeat_n(cells[2].clone(), 99).chain([cells[0].clone()]).collect();
        let line = counted(many.iter()).unwrap();
        assert!(line.contains("0 of the 1 verdicts stay by Holm's method and 0 by"), "a hundred times 0.00075: {line}");
        assert_eq!(counted(cells[3..].iter()), None);
    }

    #[test]
    fn where_all_guess_nothing_is_judged() {
        let judged = |learned: [bool; 2]| {
            let by_length = learned.map(|is_learned| LengthDifferences { is_learned, ..at("", &CLEAR) });
            judge(ClaimBound::Above(0.0), DifferenceUnit::Plain, &by_length).unwrap()
        };
        assert_eq!(judged([true, true]).verdict, ClaimVerdict::Confirmed);
        assert_eq!(judged([true, false]).verdict, ClaimVerdict::Unsettled, "one of two lengths is not all");
        let neither = judged([false, false]);
        assert_eq!((neither.verdict, neither.pairs), (ClaimVerdict::NothingLearned, 0));
        assert!(neither.numbers.contains("0.210 ["), "what was measured is shown: {}", neither.numbers);
    }
}
