//! What KERPLE claims, held against the runs: each claim a comparison over seeds, each verdict with its numbers.
//!
//! Comparisons with the logarithmic kernel are the tables' paired tests; of one method at two lengths they are paired by
//! run. Nothing is corrected for the number of comparisons, as in the paper.

use super::page::Item;
use super::{Group, Reproduction};
use crate::format::{number, probability};
use crate::page::{Cell, Grid, Row};
use crate::results::{Table, Test};
use crate::statistics::{ALPHA, paired_t_test};

/// A claim about one method, by its label without keys.
struct Claim {
    text: &'static str,
    label: &'static str,
    kind: Kind,
}

/// What is said of it. Lengths are multiples of the training length.
enum Kind {
    /// Its perplexity is above the logarithmic kernel's at lengths from the first to the second multiple.
    Above(u64, u64),
    /// Its perplexity is below it there.
    Below(u64, u64),
    /// Its perplexity is nowhere significantly below it.
    NoGain,
    /// Its perplexity at the longest length is not above that at the training length.
    Extrapolates,
    /// Its perplexity at the longest length is above that at the training length.
    Fails,
    /// The logarithmic kernel with only as many keys as it was trained with is above itself, at the longest length.
    Window,
}

const CLAIMS: [Claim; 18] = [
    claim("log is flat or falls up to 32 times the training length", "kerple_log", Kind::Extrapolates),
    claim("log is below power beyond the training length", "kerple_power", Kind::Above(2, 32)),
    claim("power is flat or falls too", "kerple_power", Kind::Extrapolates),
    claim("log is below ALiBi beyond the training length", "alibi", Kind::Above(2, 32)),
    claim("ALiBi is flat", "alibi", Kind::Extrapolates),
    claim("T5 is below log near the training length", "t5", Kind::Below(1, 2)),
    claim("T5 is above log far beyond it", "t5", Kind::Above(8, 32)),
    claim("rotary positions fail at once (exact)", "rotary", Kind::Above(2, 2)),
    claim("rotary positions fail at once (bf16)", "rotary-bf16", Kind::Above(2, 2)),
    claim("sinusoidal positions fail at once (exact)", "sinusoidal", Kind::Above(2, 2)),
    claim("sinusoidal positions fail at once (bf16)", "sinusoidal-bf16", Kind::Above(2, 2)),
    claim("log uses what lies beyond the training length: under a window it is worse", "kerple_log", Kind::Window),
    claim("bias and weight together bring no clear gain", "kerple_bias_weight", Kind::NoGain),
    claim("a learned power within the logarithm brings no clear gain", "kerple_log3", Kind::NoGain),
    claim("a Gaussian bias fails", "gaussian_bias", Kind::Fails),
    claim("a Gaussian bias with a learned exponent fails", "stretched_bias", Kind::Fails),
    claim("a Gaussian weight fails", "gaussian_weight", Kind::Fails),
    claim("a Gaussian weight with a learned exponent nearly extrapolates", "stretched_weight", Kind::Extrapolates),
];

const fn claim(text: &'static str, label: &'static str, kind: Kind) -> Claim {
    Claim { text, label, kind }
}

/// A finding on one text.
struct Finding {
    verdict: &'static str,
    numbers: String,
}

const CONFIRMED: &str = "confirmed";
const CONTRADICTED: &str = "contradicted";
const UNSETTLED: &str = "not settled";

/// Every claim on every text.
pub(super) fn claims(all: &Reproduction) -> Item {
    let mut item = Item::new(
        "claims",
        "Claims of the paper",
        "Confirmed and contradicted mean significantly so (paired two-sided t-test over the common seeds, p < 0.05, not corrected); claims \
         that something does not happen are confirmed as long as it is not seen. Differences are of perplexities, above 0 where log is \
         better, with their 95 % interval.",
    );
    let corpora: Vec<_> =
        all.manifest.corpora.iter().filter(|corpus| all.manifest.of(&corpus.name, "").next().is_some()).collect();
    let mut rows = Vec::new();
    for claim in &CLAIMS {
        let finding = |corpus: &&super::CorpusFacts| {
            let label = all.manifest.label_of(&corpus.name, "", claim.label)?;
            find(all, all.group(&corpus.name, "")?, label, &claim.kind)
        };
        let found: Vec<Option<Finding>> = corpora.iter().map(finding).collect();
        item.planned += 1;
        item.complete += usize::from(found.iter().any(Option::is_some));
        let cell = |found: Option<Finding>| match found {
            None => Cell::from("\u{2013}".to_owned()),
            Some(Finding { verdict, numbers }) => {
                Cell { note: Some(numbers), best: verdict == CONFIRMED, ..verdict.to_owned().into() }
            }
        };
        rows.push(Row { name: claim.text.to_owned(), colour: None, cells: found.into_iter().map(cell).collect() });
    }
    let head = std::iter::once("claim".to_owned()).chain(corpora.iter().map(|corpus| corpus.title.clone()));
    item.grids.push(Grid { caption: "Claims".to_owned(), head: head.collect(), rows });
    item
}

fn find(all: &Reproduction, group: &Group, label: &str, kind: &Kind) -> Option<Finding> {
    let facts = all.manifest.evaluations.get("lengths")?;
    let train_len = *facts.lengths.iter().min()?;
    let table = group.results.tables.iter().find(|table| {
        let setting = &table.setting;
        (setting.protocol.as_str(), setting.text_span) == (facts.protocol.as_str(), Some(facts.span))
    })?;
    let tests = |from: u64, to: u64| -> Vec<&Test> {
        let inside = |test: &&Test| (from * train_len..=to * train_len).contains(&test.length);
        let of = |test: &&Test| test.encoding == label && test.window.is_none() && test.p.is_some();
        table.tests.iter().filter(of).filter(inside).collect()
    };
    match kind {
        Kind::Above(from, to) => against(&tests(*from, *to), true, false),
        Kind::Below(from, to) => against(&tests(*from, *to), false, false),
        Kind::NoGain => against(&tests(1, 32), true, true),
        Kind::Extrapolates => over_lengths(table, label, train_len, true),
        Kind::Fails => over_lengths(table, label, train_len, false),
        Kind::Window => {
            let windowed = |test: &&Test| test.encoding == label && test.window.is_some() && test.p.is_some();
            let longest = table.tests.iter().filter(windowed).max_by_key(|test| test.length)?;
            against(&[longest], true, false)
        }
    }
}

/// Lengths at which a method is significantly above or below the logarithmic kernel. `above` is what is claimed; with
/// `unless_seen` it is enough that the opposite is not seen.
fn against(tests: &[&Test], above: bool, unless_seen: bool) -> Option<Finding> {
    let last = tests.iter().max_by_key(|test| test.length)?;
    let significant = |test: &&&Test, larger: bool| {
        test.p.is_some_and(|p| p < ALPHA) && test.difference.is_some_and(|difference| (difference > 0.0) == larger)
    };
    let for_it = tests.iter().filter(|test| significant(test, above)).count();
    let against_it = tests.iter().filter(|test| significant(test, !above)).count();
    let verdict = match (for_it, against_it) {
        (_, 0) if unless_seen => CONFIRMED,
        (0, 0) => UNSETTLED,
        (_, 0) => CONFIRMED,
        (0, _) => CONTRADICTED,
        (_, _) => "mixed",
    };
    let lengths = match (tests.len(), for_it, against_it) {
        (1, ..) => String::new(),
        (n, for_it, 0) if !unless_seen => format!("{for_it} of {n} lengths; "),
        (n, for_it, against_it) => format!("{for_it} for, {against_it} against, of {n} lengths; "),
    };
    let [difference, low, high] = [last.difference?, last.difference_low?, last.difference_high?].map(number);
    let p = probability(last.p?);
    let n = last.n;
    Some(Finding {
        verdict,
        numbers: format!("{lengths}at {}: {difference} [{low}, {high}], p = {p}, n = {n}", last.length),
    })
}

/// One method at the longest length against itself at the training length, paired by run.
fn over_lengths(table: &Table, label: &str, train_len: u64, flat: bool) -> Option<Finding> {
    let longest = *table.lengths().last()?;
    let value = |seed: u64, length: u64| {
        let of = |row: &&crate::results::Evaluation| {
            row.encoding == label && row.window.is_none() && row.seed == seed && row.length == length
        };
        table.evaluations.iter().find(of).map(|row| row.perplexity)
    };
    let of = table.evaluations.iter().filter(|row| row.encoding == label && row.window.is_none());
    let seeds = of.filter(|row| row.length == longest).map(|row| row.seed);
    let pairs: Vec<(f64, f64)> =
        seeds.filter_map(|seed| Some((value(seed, longest)?, value(seed, train_len)?))).collect();
    let (far, near): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let test = paired_t_test(&far, &near).ok()?;
    let verdict = match (flat, test.p < ALPHA, test.mean_difference > 0.0) {
        (true, true, true) => CONTRADICTED,
        (true, ..) => CONFIRMED,
        (false, true, true) => CONFIRMED,
        (false, true, false) => CONTRADICTED,
        (false, false, _) => UNSETTLED,
    };
    let ratio = far.iter().zip(&near).map(|(far, near)| far / near).sum::<f64>() / far.len() as f64;
    Some(Finding {
        verdict,
        numbers: format!(
            "at {longest}: {} times that at {train_len}, p = {}, n = {}",
            number(ratio),
            probability(test.p),
            test.n
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(length: u64, difference: f64, p: f64) -> Test {
        Test {
            encoding: "alibi".into(),
            window: None,
            reference: "kerple_log".into(),
            length,
            n: 3,
            difference: Some(difference),
            difference_low: Some(difference - 1.0),
            difference_high: Some(difference + 1.0),
            t: Some(1.0),
            df: Some(2),
            p: Some(p),
            p_holm: None,
            dagger: false,
            untestable: None,
        }
    }

    #[test]
    fn verdicts_follow_the_tests() {
        let verdict = |tests: &[(f64, f64)], above: bool, unless_seen: bool| {
            let tests: Vec<Test> = tests.iter().zip(1..).map(|((d, p), at)| test(64 * at, *d, *p)).collect();
            against(&tests.iter().collect::<Vec<_>>(), above, unless_seen).map(|finding| finding.verdict)
        };
        assert_eq!(verdict(&[(1.0, 0.01), (1.0, 0.5)], true, false), Some(CONFIRMED));
        assert_eq!(verdict(&[(1.0, 0.06)], true, false), Some(UNSETTLED));
        assert_eq!(verdict(&[(-1.0, 0.01)], true, false), Some(CONTRADICTED));
        assert_eq!(verdict(&[(-1.0, 0.01)], false, false), Some(CONFIRMED));
        assert_eq!(verdict(&[(1.0, 0.01), (-1.0, 0.01)], true, false), Some("mixed"));
        assert_eq!(verdict(&[(1.0, 0.5)], true, true), Some(CONFIRMED), "no gain is seen");
        assert_eq!(verdict(&[(-1.0, 0.01)], true, true), Some(CONTRADICTED), "a gain is seen");
        assert_eq!(verdict(&[], true, false), None);
    }

    #[test]
    fn numbers_are_those_of_the_longest_length() {
        let tests = [test(64, 2.0, 0.01), test(2048, 3.5, 0.04)];
        let found = against(&tests.iter().collect::<Vec<_>>(), true, false).unwrap();
        assert_eq!(found.numbers, "2 of 2 lengths; at 2048: 3.500 [2.500, 4.500], p = 0.040, n = 3");
    }
}
