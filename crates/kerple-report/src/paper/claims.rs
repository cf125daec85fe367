//! What KERPLE claims, held against the runs: each claim a comparison over seeds, each verdict with its numbers.
//!
//! Comparisons with the logarithmic kernel are the tables' paired tests; of one method at two lengths they are paired by
//! run. Nothing is corrected for the number of comparisons, as in the paper. That something is flat, or no gain, is confirmed
//! only by an interval that lies within a margin: a test that finds nothing shows nothing.

use super::page::Item;
use super::{Group, Reproduction};
use crate::format::{number, probability};
use crate::page::{Cell, Grid, Row};
use crate::results::{Table, Test};
use crate::statistics::{ALPHA, paired_t_test};

/// A perplexity this share above the one at the training length is still called flat.
const FLAT: f64 = 0.05;
/// A perplexity this share below the logarithmic kernel's is no clear gain yet.
const GAIN: f64 = 0.01;

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
    /// Its perplexity is nowhere below it by more than [`GAIN`].
    NoGain,
    /// Its perplexity at the longest length is not above that at the training length by more than [`FLAT`].
    Extrapolates,
    /// Its perplexity at the longest length is above that at the training length by more than [`FLAT`].
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
pub(super) struct Finding {
    pub verdict: &'static str,
    pub numbers: String,
}

pub(super) const CONFIRMED: &str = "confirmed";
pub(super) const CONTRADICTED: &str = "contradicted";
pub(super) const UNSETTLED: &str = "not settled";

/// Every claim on every text.
pub(super) fn claims(all: &Reproduction) -> Item {
    let mut item = Item::new(
        "claims",
        "Claims of the paper",
        "Confirmed and contradicted mean significantly so: paired two-sided t-tests over the common seeds, p < 0.05, not corrected. \
         Differences are of perplexities, above 0 where log is better, with their 95 % interval. Flat, and failing, mean that the 95 % \
         interval of the ratio of the longest length to the training length lies below, or above, 1.05; no clear gain, that the interval of \
         the difference lies above \u{2212}1 % of log's perplexity at every length.",
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
    let table = group.table(facts)?;
    let tests = |from: u64, to: u64| -> Vec<&Test> {
        let inside = |test: &&Test| (from * train_len..=to * train_len).contains(&test.length);
        let of = |test: &&Test| test.encoding == label && test.window.is_none() && test.p.is_some();
        table.tests.iter().filter(of).filter(inside).collect()
    };
    match kind {
        Kind::Above(from, to) => against(&tests(*from, *to), true),
        Kind::Below(from, to) => against(&tests(*from, *to), false),
        Kind::NoGain => no_gain(table, &tests(1, u64::MAX / train_len)),
        Kind::Extrapolates => over_lengths(table, label, train_len, true),
        Kind::Fails => over_lengths(table, label, train_len, false),
        Kind::Window => {
            let windowed = |test: &&Test| test.encoding == label && test.window.is_some() && test.p.is_some();
            let longest = table.tests.iter().filter(windowed).max_by_key(|test| test.length)?;
            against(&[longest], true)
        }
    }
}

/// Lengths at which a method is significantly above or below the logarithmic kernel; `above` is what is claimed.
fn against(tests: &[&Test], above: bool) -> Option<Finding> {
    let last = tests.iter().max_by_key(|test| test.length)?;
    let significant = |test: &&&Test, larger: bool| {
        test.p.is_some_and(|p| p < ALPHA) && test.difference.is_some_and(|difference| (difference > 0.0) == larger)
    };
    let for_it = tests.iter().filter(|test| significant(test, above)).count();
    let against_it = tests.iter().filter(|test| significant(test, !above)).count();
    let verdict = match (for_it, against_it) {
        (0, 0) => UNSETTLED,
        (_, 0) => CONFIRMED,
        (0, _) => CONTRADICTED,
        (_, _) => "mixed",
    };
    let lengths = match (tests.len(), for_it, against_it) {
        (1, ..) => String::new(),
        (n, for_it, 0) => format!("{for_it} of {n} lengths; "),
        (n, for_it, against_it) => format!("{for_it} for, {against_it} against, of {n} lengths; "),
    };
    Some(Finding { verdict, numbers: format!("{lengths}{}", in_words(last)?) })
}

/// Difference, interval, p and seeds of a test.
fn in_words(test: &Test) -> Option<String> {
    let [difference, low, high] = [test.difference?, test.difference_low?, test.difference_high?].map(number);
    let (length, p, n) = (test.length, probability(test.p?), test.n);
    Some(format!("at {length}: {difference} [{low}, {high}], p = {p}, n = {n}"))
}

/// Whether a method is below the logarithmic kernel by more than a margin at some length; said of the length at which it is
/// lowest beside it.
fn no_gain(table: &Table, tests: &[&Test]) -> Option<Finding> {
    let share = |test: &Test, value: Option<f64>| {
        let reference = table.score((&test.reference, None), test.length)?.perplexity;
        Some(value? / reference)
    };
    let mut shown: Option<(&Test, f64)> = None;
    let (mut gains, mut open) = (0, 0);
    for test in tests {
        let (low, high) = (share(test, test.difference_low)?, share(test, test.difference_high)?);
        gains += usize::from(high < -GAIN);
        open += usize::from(low < -GAIN);
        let difference = share(test, test.difference)?;
        shown = shown.filter(|(_, lowest)| *lowest <= difference).or(Some((test, difference)));
    }
    let verdict = match (gains, open) {
        (0, 0) => CONFIRMED,
        (0, _) => UNSETTLED,
        (_, _) => CONTRADICTED,
    };
    Some(Finding { verdict, numbers: in_words(shown?.0)? })
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
    let ratios: Vec<f64> = pairs.iter().map(|(far, near)| far / near).collect();
    let test = paired_t_test(&ratios, &vec![1.0; ratios.len()]).ok()?;
    let (low, high) = test.interval(1.0 - ALPHA);
    let verdict = match (low > FLAT, high <= FLAT) {
        (true, _) if flat => CONTRADICTED,
        (true, _) => CONFIRMED,
        (false, true) if flat => CONFIRMED,
        (false, true) => CONTRADICTED,
        (false, false) => UNSETTLED,
    };
    let [ratio, low, high] = [test.mean_difference, low, high].map(|above| number(1.0 + above));
    Some(Finding {
        verdict,
        numbers: format!("at {longest}: {ratio} [{low}, {high}] times that at {train_len}, n = {}", test.n),
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
        let verdict = |tests: &[(f64, f64)], above: bool| {
            let tests: Vec<Test> = tests.iter().zip(1..).map(|((d, p), at)| test(64 * at, *d, *p)).collect();
            against(&tests.iter().collect::<Vec<_>>(), above).map(|finding| finding.verdict)
        };
        assert_eq!(verdict(&[(1.0, 0.01), (1.0, 0.5)], true), Some(CONFIRMED));
        assert_eq!(verdict(&[(1.0, 0.06)], true), Some(UNSETTLED));
        assert_eq!(verdict(&[(-1.0, 0.01)], true), Some(CONTRADICTED));
        assert_eq!(verdict(&[(-1.0, 0.01)], false), Some(CONFIRMED));
        assert_eq!(verdict(&[(1.0, 0.01), (-1.0, 0.01)], true), Some("mixed"));
        assert_eq!(verdict(&[], true), None);
    }

    #[test]
    fn numbers_are_those_of_the_longest_length() {
        let tests = [test(64, 2.0, 0.01), test(2048, 3.5, 0.04)];
        let found = against(&tests.iter().collect::<Vec<_>>(), true).unwrap();
        assert_eq!(found.numbers, "2 of 2 lengths; at 2048: 3.500 [2.500, 4.500], p = 0.040, n = 3");
    }

    /// A table of one method and the logarithmic kernel, each with a perplexity a seed at 64 and at 2048.
    fn table(own: [&[f64]; 2], log: f64) -> Table {
        let root = tempfile::tempdir().unwrap();
        let row = |label: &str, seed: usize, length: u64, perplexity: f64| {
            let nll = perplexity.ln();
            let text = serde_json::json!({"checksum": "c", "span": 2048, "segments": 2, "seed": seed});
            serde_json::json!({"encoding": label, "seed": seed, "train_len": 64, "length": length, "protocol": "blocks",
                "split": "test", "step": 9, "text": text, "segments": 2, "tokens": 99, "nll": nll, "perplexity": perplexity,
                "seconds": 1.0})
        };
        for (label, values) in [("alibi", own), ("kerple_log", [&[log; 3][..], &[log; 3]])] {
            for (seed, (short, long)) in values[0].iter().zip(values[1]).enumerate() {
                let folder = root.path().join(format!("{label}-{seed}"));
                std::fs::create_dir_all(&folder).unwrap();
                std::fs::write(folder.join("plan.json"), format!(r#"{{"label":"{label}","seed":{seed}}}"#)).unwrap();
                let rows = [(64, *short), (2048, *long)];
                let rows = rows.map(|(length, value)| format!("{}\n", row(label, seed, length, value))).concat();
                std::fs::write(folder.join("evaluation.jsonl"), rows).unwrap();
            }
        }
        let runs = crate::find_runs(&[root.path()]).unwrap();
        crate::results::Results::of(&runs, None).unwrap().tables.remove(0)
    }

    #[test]
    fn flat_is_an_interval_within_the_margin() {
        let verdict = |far: [f64; 3], flat| {
            over_lengths(&table([&[20.0, 21.0, 22.0], &far], 20.0), "alibi", 64, flat).unwrap().verdict
        };
        let (level, rising, unclear) = ([20.0, 21.1, 22.0], [40.0, 43.0, 45.0], [15.0, 21.0, 30.0]);
        assert_eq!((verdict(level, true), verdict(level, false)), (CONFIRMED, CONTRADICTED));
        assert_eq!((verdict(rising, true), verdict(rising, false)), (CONTRADICTED, CONFIRMED));
        assert_eq!((verdict(unclear, true), verdict(unclear, false)), (UNSETTLED, UNSETTLED));
    }

    #[test]
    fn no_gain_is_an_interval_within_the_margin() {
        let finding = |far: [f64; 3]| {
            let table = table([&[20.0, 20.01, 20.02], &far], 20.0);
            let tests: Vec<&Test> = table.tests.iter().collect();
            no_gain(&table, &tests).unwrap()
        };
        assert_eq!(finding([20.0, 19.99, 20.01]).verdict, CONFIRMED);
        assert_eq!(finding([18.0, 18.01, 18.02]).verdict, CONTRADICTED);
        assert_eq!(finding([18.0, 20.0, 22.0]).verdict, UNSETTLED);
        assert!(finding([18.0, 18.01, 18.02]).numbers.starts_with("at 2048: \u{2212}1.990 ["));
    }
}
