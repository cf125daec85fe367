//! The claims of SPE, tested with the runs, with the same methods compared to no positions and to
//! linear KERPLE.

use super::super::Folder;
use super::super::page::Item;
use super::super::verdict::{
    AFTER_RUNS, BySeed, EFFECT, Finding, OURS, RULE, Side, Unit, change, differences, judge, judge_answers,
};
use super::{ABSOLUTE, METHODS, Method, arena, music, relative, spread};
use kerple_report::Run;
use kerple_report::page::{Grid, Row};

/// A cross-entropy this much above that within the training length is still called flat, nats.
const FLAT: f64 = 0.1;
/// A similarity, or a share of variance, that differs by less than this is alike.
const ALIKE: f64 = 0.05;
/// A share of right answers that differs by less than this is no better and no worse, percent.
const POINTS: f64 = 2.0;

const GATED: [Method; 2] = [METHODS[2], METHODS[4]];
const UNGATED: [Method; 2] = [METHODS[3], METHODS[5]];
const SPE: [Method; 4] = [GATED[0], GATED[1], UNGATED[0], UNGATED[1]];
const KERPLE: Method = METHODS[6];
const NONE: Method = METHODS[8];

/// A claim, on what, and what was found of it.
struct Found {
    claim: String,
    place: String,
    finding: Option<Finding>,
}

/// Every claim.
pub(in super::super) fn claims(all: &Folder) -> Item {
    let text = format!(
        "{RULE} {AFTER_RUNS} Of cross-entropies {EFFECT} nats count (1 % of perplexity), and growth beyond the training length by {FLAT} is \
         not flat. Change is what a cross-entropy grows by beyond the training length. Of similarities, the largest being 1, and of shares of \
         variance {ALIKE} counts, of right answers {POINTS} in 100. Claims of answers are judged only where one of the two methods is above a \
         guess and above the best constant answer. Not the paper's are the comparisons by change, those with no positions, which say what of a \
         method is position, and those of linear KERPLE, which is deterministic."
    );
    let mut item = Item::new("claims", "Claims of the paper", &text);
    let found = [extrapolation(all), relativity(all), styles(all), answers(all), beside(all)];
    let found: Vec<Found> = found.into_iter().flatten().collect();
    item.count(found.iter().filter_map(|found| found.finding.as_ref()));
    let rows = found.into_iter().map(|Found { claim, place, finding }| {
        item.planned += 1;
        item.complete += usize::from(finding.is_some());
        Row { name: claim, colour: None, cells: vec![place.into(), Finding::cell(finding)] }
    });
    let rows = rows.collect();
    let head = ["claim", "on", "found"].map(str::to_owned).into();
    item.grids.push(Grid { caption: "Claims".to_owned(), head, rows });
    item
}

/// A corpus and the variant of its runs.
type At<'a> = (&'a str, &'a str);

/// A claim about the differences of two methods, or of one at two places.
fn judged(all: &Folder, (corpus, variant): At, methods: [Method; 2], side: Side, pairs: Vec<f64>) -> Option<Finding> {
    let [own, other] = methods.map(|method| method.runs(all, corpus, variant).collect::<Vec<&Run>>());
    Some(judge(side, Unit::Plain, &[(String::new(), pairs)])?.beside_programs(&own, &other))
}

/// Cross-entropies of a method within and beyond the training length.
fn ends(all: &Folder, corpus: &str, method: Method) -> [BySeed; 2] {
    let Some([trained, longest]) = music::lengths(all, corpus) else { return Default::default() };
    [0..trained, trained..longest].map(|positions| music::cross_entropy(all, corpus, method, &positions))
}

fn is_planned(all: &Folder, (corpus, variant): At, needs: &str, methods: &[Method]) -> bool {
    methods.iter().all(|method| method.planned(all, corpus, variant, needs) > 0)
}

/// What is said of cross-entropies in music.
enum Music {
    /// The first grows beyond the training length as the side says.
    Grows(Side),
    /// Within it the first lies so beside the second.
    Within(Side),
    /// So beyond it.
    Beyond(Side),
    /// So by what they grow.
    Change(Side),
}

fn of_music(all: &Folder, corpus: &str, [own, other]: [Method; 2], said: Music) -> Option<Finding> {
    let [within, beyond] = ends(all, corpus, own);
    let [other_within, other_beyond] = ends(all, corpus, other);
    let (side, pairs) = match said {
        Music::Grows(side) => (side, differences(&beyond, &within)),
        Music::Within(side) => (side, differences(&within, &other_within)),
        Music::Beyond(side) => (side, differences(&beyond, &other_beyond)),
        Music::Change(side) => (side, differences(&change(&beyond, &within), &change(&other_beyond, &other_within))),
    };
    judged(all, (corpus, ""), [own, other], side, pairs)
}

fn extrapolation(all: &Folder) -> Vec<Found> {
    let lower = Side::Below(-EFFECT);
    let mut found = Vec::new();
    for corpus in music::corpora(all) {
        let name = &corpus.name;
        let mut add = |methods: [Method; 2], what: String, said: Music| {
            if is_planned(all, (name, ""), music::POSITIONS, &methods) {
                let whose = if methods[1] == NONE || matches!(said, Music::Change(_)) { OURS } else { "" };
                let (claim, place) = (format!("{whose}{}: {what}", methods[0].name), corpus.title.clone());
                found.push(Found { claim, place, finding: of_music(all, name, methods, said) });
            }
        };
        let fails = "fails beyond the training length".to_owned();
        add([ABSOLUTE, ABSOLUTE], fails, Music::Grows(Side::Above(FLAT)));
        for method in SPE {
            let absolute = ABSOLUTE.name;
            let (beside, beside_none) = ([method, ABSOLUTE], [method, NONE]);
            add([method, method], "is flat beyond the training length".to_owned(), Music::Grows(Side::Below(FLAT)));
            let no_worse = Music::Within(Side::Below(EFFECT));
            add(beside, format!("is no worse than {absolute} within the training length"), no_worse);
            add(beside, format!("is below {absolute} beyond the training length"), Music::Beyond(lower));
            add(beside, format!("by change, grows less than {absolute}"), Music::Change(lower));
            let none = NONE.name;
            add(beside_none, format!("is below {none} beyond the training length"), Music::Beyond(lower));
            add(beside_none, format!("by change, grows less than {none}"), Music::Change(lower));
        }
        for (gated, ungated) in GATED.into_iter().zip(UNGATED) {
            let what = format!("is below {} beyond the training length", gated.name);
            add([ungated, gated], what, Music::Beyond(lower));
        }
    }
    found
}

fn relativity(all: &Folder) -> Vec<Found> {
    let mut found = Vec::new();
    for corpus in relative::corpora(all) {
        let lengths = relative::lengths(all, &corpus.name);
        for method in SPE {
            if !is_planned(all, (&corpus.name, ""), "attention", &[method, ABSOLUTE]) {
                continue;
            }
            let finding = lengths.last().and_then(|length| {
                let of =
                    |method| relative::measured(all, &corpus.name, method, (|row| row.translation_invariance, *length));
                let pairs = differences(&of(method), &of(ABSOLUTE));
                judged(all, (&corpus.name, ""), [method, ABSOLUTE], Side::Below(-ALIKE), pairs)
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

/// The first quarter of a continuation holds the prompt, so what is kept is told from the second on.
fn styles(all: &Folder) -> Vec<Found> {
    const SECOND: usize = 1;
    const LAST: usize = 3;
    let mut found = Vec::new();
    for corpus in music::continued(all) {
        for (measure, of) in music::MEASURES {
            let quarter = |method, quarter| music::similarity(all, &corpus.name, method, (of, quarter));
            let place = format!("{}, {measure}", corpus.title);
            let mut add = |methods: [Method; 2], what: String, side: Side, pairs: Vec<f64>| {
                if is_planned(all, (&corpus.name, ""), music::STYLE, &methods) {
                    let whose = if methods[1] == NONE { OURS } else { "" };
                    let claim = format!("{whose}{}: {what}", methods[0].name);
                    let finding = judged(all, (&corpus.name, ""), methods, side, pairs);
                    found.push(Found { claim, place: place.clone(), finding });
                }
            };
            for method in SPE {
                let lost = differences(&quarter(method, SECOND), &quarter(method, LAST));
                let keeps = "continuations keep their style from the second quarter to the last".to_owned();
                add([method, method], keeps, Side::Below(ALIKE), lost);
                for other in [ABSOLUTE, NONE] {
                    let pairs = differences(&quarter(method, LAST), &quarter(other, LAST));
                    let what = format!("the last quarter is more alike than with {}", other.name);
                    add([method, other], what, Side::Above(ALIKE), pairs);
                }
            }
        }
    }
    found
}

/// Absolute positions of a task: sinusoidal, or learned.
fn absolute(all: &Folder, task: &str, variant: &str) -> Option<Method> {
    let has = |method: &&Method| method.planned(all, task, variant, arena::ANSWERS) > 0;
    METHODS[..2].iter().find(has).copied()
}

/// Right answers in percent, for every seed.
fn right(all: &Folder, task: &str, variant: &str, method: Method) -> BySeed {
    let shares = arena::accuracy(all, task, variant, method);
    shares.into_iter().map(|(seed, share)| (seed, 100.0 * share)).collect()
}

/// Whether the first has as many more right answers than the second as a side says.
fn of_answers(all: &Folder, (task, variant): At, methods: [Method; 2], side: Side) -> Option<Finding> {
    let [own, other] = methods.map(|method| right(all, task, variant, method));
    let facts = all.manifest.corpus(task)?;
    let least = 100.0 * all.least_learned(facts, arena::answers(all, task, variant));
    let learned = [&own, &other].into_iter().any(|right| spread(right).is_some_and(|spread| spread.mean > least));
    let found = judge_answers(side, &[((String::new(), differences(&own, &other)), learned)])?;
    let [own, other] = methods.map(|method| method.runs(all, task, variant).collect::<Vec<&Run>>());
    Some(found.beside_programs(&own, &other))
}

fn answers(all: &Folder) -> Vec<Found> {
    let mut found = Vec::new();
    for task in arena::tasks(all) {
        for (features, variant, _) in arena::FEATURES {
            let Some(absolute) = absolute(all, &task.name, variant) else { continue };
            for method in GATED {
                let mut add = |what: &str, side: Side| {
                    found.push(Found {
                        claim: format!("{}: {what} {}", method.name, absolute.name),
                        place: format!("{}, {features}", task.title),
                        finding: of_answers(all, (&task.name, variant), [method, absolute], side),
                    });
                };
                if !is_planned(all, (&task.name, variant), arena::ANSWERS, &[method]) {
                    continue;
                }
                add("no worse than", Side::Above(-POINTS));
                // the one gain beyond noise that was published
                if task.name == "retrieval" && variant == "relu" && method == GATED[0] {
                    add("more right answers than", Side::Above(POINTS));
                }
            }
        }
    }
    found
}

/// Linear KERPLE, which is no method of the paper, against those that are.
fn beside(all: &Folder) -> Vec<Found> {
    let mut found = Vec::new();
    let mut add = |what: String, place: String, finding: Option<Finding>| {
        found.push(Found { claim: format!("{OURS}{}: {what}", KERPLE.name), place, finding });
    };
    let others = [&[ABSOLUTE][..], &SPE].concat();
    let has = |at: At, needs, method| is_planned(all, at, needs, &[method, KERPLE]);
    for corpus in music::corpora(all) {
        let name = &corpus.name;
        for method in others.iter().copied().filter(|method| has((name, ""), music::POSITIONS, *method)) {
            let finding = of_music(all, name, [KERPLE, method], Music::Beyond(Side::Below(-EFFECT)));
            add(format!("is below {} beyond the training length", method.name), corpus.title.clone(), finding);
        }
    }
    for corpus in music::continued(all) {
        for (measure, of) in music::MEASURES {
            let last = |method| music::similarity(all, &corpus.name, method, (of, 3));
            for method in others.iter().copied().filter(|method| has((&corpus.name, ""), music::STYLE, *method)) {
                let what = format!("the last quarter is more alike than with {}", method.name);
                let pairs = differences(&last(KERPLE), &last(method));
                let finding = judged(all, (&corpus.name, ""), [KERPLE, method], Side::Above(ALIKE), pairs);
                add(what, format!("{}, {measure}", corpus.title), finding);
            }
        }
    }
    for task in arena::tasks(all) {
        for (features, variant, _) in arena::FEATURES {
            let others = absolute(all, &task.name, variant).into_iter().chain(GATED);
            for method in others.filter(|method| has((&task.name, variant), arena::ANSWERS, *method)) {
                let finding = of_answers(all, (&task.name, variant), [KERPLE, method], Side::Above(POINTS));
                add(format!("more right answers than {}", method.name), format!("{}, {features}", task.title), finding);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::super::verdict::Verdict;
    use super::super::tests::reproduction_of;
    use super::*;

    /// Sinusoidal positions, SineSPE and no positions, with losses within and beyond the training length.
    fn finding(text: &str, losses: fn(&str, u64) -> [f64; 2]) -> Finding {
        let all = reproduction_of(&["sinusoidal", "sine_spe", "none"], losses);
        let found = extrapolation(&all).into_iter().find(|found| found.claim == text);
        found.and_then(|found| found.finding).unwrap_or_else(|| panic!("{text}"))
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
        assert_eq!(verdict("SineSPE, gated: is below APE, sinusoidal beyond the training length"), Verdict::Confirmed);
        let beside_none = "not the paper's \u{2013} SineSPE, gated: is below no positions beyond the training length";
        assert_eq!(verdict(beside_none), Verdict::Contradicted, "as good as no positions is not below them");
        let within = "SineSPE, gated: is no worse than APE, sinusoidal within the training length";
        assert_eq!(verdict(within), Verdict::Contradicted, "worse where it was trained");
    }
}
