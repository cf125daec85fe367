//! What SPE claims, held against the runs.
//!
//! Comparisons are paired two-sided t-tests over common seeds. That something is flat, or not worse, is confirmed only by an
//! interval that lies within a margin: a test that finds nothing shows nothing.

use super::super::Reproduction;
use super::super::claims::{CONFIRMED, CONTRADICTED, Finding, UNSETTLED};
use super::super::page::Item;
use super::{ABSOLUTE, BySeed, METHODS, Method, arena, music, relative};
use crate::format::{number, probability};
use crate::page::{Cell, Grid, Row};
use crate::statistics::{ALPHA, PairedTest, paired_t_test};

/// A cross-entropy this much above that within the training length is still called flat, nats.
const FLAT: f64 = 0.1;
/// A similarity this much below another is still called as alike.
const ALIKE: f64 = 0.05;
/// A share of right answers this much below another is still called no worse, percent.
const NO_WORSE: f64 = 2.0;

const GATED: [Method; 2] = [METHODS[2], METHODS[4]];
const UNGATED: [Method; 2] = [METHODS[3], METHODS[5]];
const KERPLE: Method = METHODS[6];

/// A claim, on what, and what was found of it.
struct Found {
    claim: String,
    place: String,
    finding: Option<Finding>,
}

/// Every claim.
pub(in super::super) fn claims(all: &Reproduction) -> Item {
    let mut item = Item::new(
        "claims",
        "Claims of the paper",
        "Confirmed and contradicted mean significantly so: paired two-sided t-tests over the common seeds, p < 0.05, not corrected, with \
         95 % intervals. A cross-entropy is flat when the interval of what it grows by beyond the training length lies below 0.1 nats, a \
         similarity when it falls by less than 0.05, and a method is no worse in the arena when it loses less than 2 points. The last \
         group is no claim of the paper.",
    );
    let found = [extrapolation(all), relativity(all), styles(all), answers(all), beside(all)];
    let rows = found.into_iter().flatten().map(|Found { claim, place, finding }| {
        item.planned += 1;
        item.complete += usize::from(finding.is_some());
        let verdict = match finding {
            None => Cell::from("\u{2013}".to_owned()),
            Some(Finding { verdict, numbers }) => {
                Cell { note: Some(numbers), best: verdict == CONFIRMED, ..verdict.to_owned().into() }
            }
        };
        Row { name: claim, colour: None, cells: vec![place.into(), verdict] }
    });
    let rows = rows.collect();
    let head = ["claim", "on", "found"].map(str::to_owned).into();
    item.grids.push(Grid { caption: "Claims".to_owned(), head, rows });
    item
}

/// The paired test of two methods over their common seeds.
fn paired(a: &BySeed, b: &BySeed) -> Option<PairedTest> {
    let (a, b): (Vec<f64>, Vec<f64>) = a.iter().filter_map(|(seed, a)| Some((*a, *b.get(seed)?))).unzip();
    paired_t_test(&a, &b).ok()
}

fn numbers(test: &PairedTest) -> String {
    let (low, high) = test.interval(1.0 - ALPHA);
    let [difference, low, high] = [test.mean_difference, low, high].map(number);
    format!("{difference} [{low}, {high}], p = {}, n = {}", probability(test.p), test.n)
}

/// Whether the first is below the second.
fn below(a: &BySeed, b: &BySeed) -> Option<Finding> {
    let test = paired(a, b)?;
    let verdict = match (test.p < ALPHA, test.mean_difference < 0.0) {
        (false, _) => UNSETTLED,
        (true, true) => CONFIRMED,
        (true, false) => CONTRADICTED,
    };
    Some(Finding { verdict, numbers: numbers(&test) })
}

/// Whether the first exceeds the second by no more than a margin, or, if it is `claimed`, by more.
fn margin(a: &BySeed, b: &BySeed, most: f64, exceeds: bool) -> Option<Finding> {
    let test = paired(a, b)?;
    let (low, high) = test.interval(1.0 - ALPHA);
    let verdict = match (low > most, high <= most) {
        (true, _) if exceeds => CONFIRMED,
        (true, _) => CONTRADICTED,
        (false, true) if exceeds => CONTRADICTED,
        (false, true) => CONFIRMED,
        (false, false) => UNSETTLED,
    };
    Some(Finding { verdict, numbers: numbers(&test) })
}

/// Cross-entropies of a method within and beyond the training length.
fn ends(all: &Reproduction, corpus: &str, method: Method) -> Option<[BySeed; 2]> {
    let [trained, longest] = music::lengths(all, corpus)?;
    let of = |positions| music::cross_entropy(all, corpus, method, &positions);
    Some([of(0..trained), of(trained..longest)])
}

fn is_planned(all: &Reproduction, corpus: &str, variant: &str, needs: &str, methods: &[Method]) -> bool {
    methods.iter().all(|method| method.planned(all, corpus, variant, needs) > 0)
}

fn extrapolation(all: &Reproduction) -> Vec<Found> {
    let mut found = Vec::new();
    for corpus in music::corpora(all) {
        let name = &corpus.name;
        let has = |methods: &[Method]| is_planned(all, name, "", music::POSITIONS, methods);
        let mut add = |claim: String, finding: Option<Finding>| {
            found.push(Found { claim, place: corpus.title.clone(), finding });
        };
        if has(&[ABSOLUTE]) {
            let fails = ends(all, name, ABSOLUTE).and_then(|[within, beyond]| margin(&beyond, &within, FLAT, true));
            add(format!("{}: fails beyond the training length", ABSOLUTE.name), fails);
        }
        for method in [GATED, UNGATED].concat() {
            if !has(&[method, ABSOLUTE]) {
                continue;
            }
            let own = ends(all, name, method);
            let flat = own.as_ref().and_then(|[within, beyond]| margin(beyond, within, FLAT, false));
            add(format!("{}: is flat beyond the training length", method.name), flat);
            let other = ends(all, name, ABSOLUTE);
            let lower = own.zip(other).and_then(|([_, own], [_, other])| below(&own, &other));
            add(format!("{}: is below {} beyond the training length", method.name, ABSOLUTE.name), lower);
        }
        for (gated, ungated) in GATED.into_iter().zip(UNGATED) {
            if has(&[gated, ungated]) {
                let both = ends(all, name, ungated).zip(ends(all, name, gated));
                let lower = both.and_then(|([_, ungated], [_, gated])| below(&ungated, &gated));
                add(format!("{}: is below {} beyond the training length", ungated.name, gated.name), lower);
            }
        }
    }
    found
}

fn relativity(all: &Reproduction) -> Vec<Found> {
    let mut found = Vec::new();
    for corpus in relative::corpora(all) {
        let lengths = relative::lengths(all, &corpus.name);
        for method in [GATED, UNGATED].concat() {
            if !is_planned(all, &corpus.name, "", "attention", &[method, ABSOLUTE]) {
                continue;
            }
            let finding = lengths.last().and_then(|length| {
                let of =
                    |method| relative::measured(all, &corpus.name, method, (|row| row.translation_invariance, *length));
                below(&of(method), &of(ABSOLUTE))
            });
            found.push(Found {
                claim: format!("{}: attention is relative, more so than with {}", method.name, ABSOLUTE.name),
                place: corpus.title.clone(),
                finding,
            });
        }
    }
    found
}

fn styles(all: &Reproduction) -> Vec<Found> {
    let mut found = Vec::new();
    for corpus in music::continued(all) {
        for (measure, of) in music::MEASURES {
            let quarter = |method, quarter| music::similarity(all, &corpus.name, method, (of, quarter));
            let place = format!("{}, {measure}", corpus.title);
            for method in [GATED, UNGATED].concat() {
                if !is_planned(all, &corpus.name, "", music::STYLE, &[method, ABSOLUTE]) {
                    continue;
                }
                let (first, last) = (quarter(method, 0), quarter(method, 3));
                found.push(Found {
                    claim: format!("{}: continuations keep their style to the last quarter", method.name),
                    place: place.clone(),
                    finding: margin(&first, &last, ALIKE, false),
                });
                found.push(Found {
                    claim: format!("{}: the last quarter is more alike than with {}", method.name, ABSOLUTE.name),
                    place: place.clone(),
                    finding: below(&quarter(ABSOLUTE, 3), &last),
                });
            }
        }
    }
    found
}

/// Absolute positions of a task: sinusoidal, or learned.
fn absolute(all: &Reproduction, task: &str, variant: &str) -> Option<Method> {
    let has = |method: &&Method| method.planned(all, task, variant, arena::ANSWERS) > 0;
    METHODS[..2].iter().find(has).copied()
}

/// Right answers in percent, for every seed.
fn right(all: &Reproduction, task: &str, variant: &str, method: Method) -> BySeed {
    let shares = arena::accuracy(all, task, variant, method);
    shares.into_iter().map(|(seed, share)| (seed, 100.0 * share)).collect()
}

fn answers(all: &Reproduction) -> Vec<Found> {
    let mut found = Vec::new();
    for task in arena::tasks(all) {
        for (features, variant, _) in arena::FEATURES {
            let Some(absolute) = absolute(all, &task.name, variant) else { continue };
            let place = format!("{}, {features}", task.title);
            let of = |method| right(all, &task.name, variant, method);
            for method in GATED {
                if !is_planned(all, &task.name, variant, arena::ANSWERS, &[method]) {
                    continue;
                }
                found.push(Found {
                    claim: format!("{}: no worse than {}", method.name, absolute.name),
                    place: place.clone(),
                    finding: margin(&of(absolute), &of(method), NO_WORSE, false),
                });
                // the one gain beyond noise that was published
                if task.name == "retrieval" && variant == "relu" && method == GATED[0] {
                    found.push(Found {
                        claim: format!("{}: more right answers than {}", method.name, absolute.name),
                        place: place.clone(),
                        finding: below(&of(absolute), &of(method)),
                    });
                }
            }
        }
    }
    found
}

/// Linear KERPLE, which is deterministic and no method of the paper, against those that are.
fn beside(all: &Reproduction) -> Vec<Found> {
    let mut found = Vec::new();
    let mut add = |what: String, place: String, finding: Option<Finding>| {
        found.push(Found { claim: format!("not the paper's \u{2013} {}: {what}", KERPLE.name), place, finding });
    };
    let others = [&[ABSOLUTE][..], &GATED, &UNGATED].concat();
    let has = |corpus: &str, variant, needs, method| is_planned(all, corpus, variant, needs, &[method, KERPLE]);
    for corpus in music::corpora(all) {
        let name = &corpus.name;
        for method in others.iter().copied().filter(|method| has(name, "", music::POSITIONS, *method)) {
            let both = ends(all, name, KERPLE).zip(ends(all, name, method));
            let finding = both.and_then(|([_, own], [_, other])| below(&own, &other));
            add(format!("is below {} beyond the training length", method.name), corpus.title.clone(), finding);
        }
    }
    for corpus in music::continued(all) {
        for (measure, of) in music::MEASURES {
            let last = |method| music::similarity(all, &corpus.name, method, (of, 3));
            for method in others.iter().copied().filter(|method| has(&corpus.name, "", music::STYLE, *method)) {
                let what = format!("the last quarter is more alike than with {}", method.name);
                add(what, format!("{}, {measure}", corpus.title), below(&last(method), &last(KERPLE)));
            }
        }
    }
    for task in arena::tasks(all) {
        for (features, variant, _) in arena::FEATURES {
            let right = |method| right(all, &task.name, variant, method);
            let others = absolute(all, &task.name, variant).into_iter().chain(GATED);
            for method in others.filter(|method| has(&task.name, variant, arena::ANSWERS, *method)) {
                let finding = below(&right(method), &right(KERPLE));
                add(format!("more right answers than {}", method.name), format!("{}, {features}", task.title), finding);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seeds(values: &[f64]) -> BySeed {
        (1..).zip(values.iter().copied()).collect()
    }

    #[test]
    fn verdicts_follow_the_tests() {
        let verdict = |a: &[f64], b: &[f64]| below(&seeds(a), &seeds(b)).map(|found| found.verdict);
        assert_eq!(verdict(&[1.0, 1.1, 1.2], &[2.0, 2.2, 2.3]), Some(CONFIRMED));
        assert_eq!(verdict(&[2.0, 2.2, 2.3], &[1.0, 1.1, 1.2]), Some(CONTRADICTED));
        assert_eq!(verdict(&[1.0, 3.0, 2.0], &[2.0, 2.2, 2.3]), Some(UNSETTLED));
        assert_eq!(verdict(&[1.0], &[2.0]), None, "one seed is no test");
    }

    #[test]
    fn flat_is_an_interval_within_the_margin() {
        let verdict =
            |far: &[f64], exceeds| margin(&seeds(far), &seeds(&[1.0, 1.1, 1.2]), FLAT, exceeds).unwrap().verdict;
        let (level, rising, unclear) = ([1.01, 1.1, 1.2], [2.0, 2.2, 2.3], [0.9, 1.3, 1.3]);
        assert_eq!((verdict(&level, false), verdict(&level, true)), (CONFIRMED, CONTRADICTED));
        assert_eq!((verdict(&rising, false), verdict(&rising, true)), (CONTRADICTED, CONFIRMED));
        assert_eq!((verdict(&unclear, false), verdict(&unclear, true)), (UNSETTLED, UNSETTLED));
    }

    #[test]
    fn only_common_seeds_are_compared() {
        let a: BySeed = [(1, 1.0), (2, 1.1), (4, 9.0)].into();
        let b: BySeed = [(1, 2.0), (2, 2.2), (3, 0.0)].into();
        assert_eq!(paired(&a, &b).unwrap().n, 2);
    }
}
