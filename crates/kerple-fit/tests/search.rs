//! Searches whose answer is known: no training.

use kerple_fit::kernel_search::{
    Arm, ArmScore, FinalistVerdict, REFERENCE, SearchMeasure, SearchOutcome, SearchPlan, SearchRequest, SearchResult,
    SearchRow, StageOutcome, StagePlan, SyntheticMeasure, run, write,
};
use kerple_fit::space::{MERGED, Space, SpaceOptions, bases};
use kerple_run::Result;
use std::sync::OnceLock;

const LENGTH: usize = 512;

fn space(base: &str, size: usize, unproven: bool) -> Space {
    let options = SpaceOptions { bases: bases(base).unwrap(), size, length: LENGTH, unproven };
    Space::new(&options, &["log(b, a)"], &mut |_| {}).unwrap()
}

/// Sums, products and more of three functions.
fn large_space() -> &'static Space {
    static SPACE: OnceLock<Space> = OnceLock::new();
    SPACE.get_or_init(|| space("log,power,exp", 2, false))
}

fn request(seed: u64, truth: Option<&str>) -> SearchRequest {
    let truth = truth.map(str::to_owned);
    SearchRequest {
        bases: Vec::new(),
        size: 2,
        unproven: false,
        budget_hours: None,
        seed,
        updates: 1600,
        measure: SearchMeasure::Synthetic { truth, noise: 0.01, length: LENGTH },
    }
}

fn searched(
    plan: &SearchPlan,
    mut measure: impl FnMut(&StagePlan, &[Arm]) -> Result<StageOutcome>,
) -> (SearchResult, Vec<SearchRow>) {
    let mut rows = Vec::new();
    let mut record = |all: &[SearchRow]| {
        rows = all.to_vec();
        Ok(())
    };
    let SearchOutcome::Finished(result) = run(plan, &mut measure, &mut record).unwrap() else { panic!("it ends") };
    (*result, rows)
}

/// A search with losses of one's own.
fn searched_with(
    plan: &SearchPlan,
    loss: impl Fn(&Arm, &StagePlan, u64) -> Option<f64>,
) -> (SearchResult, Vec<SearchRow>) {
    searched(plan, |stage, arms| {
        let score = |arm: &Arm, seed: u64| match loss(arm, stage, seed) {
            Some(nll) => ArmScore { nll_by_length: vec![(16, nll), (128, nll)], diverged: None },
            None => ArmScore { nll_by_length: Vec::new(), diverged: Some("step 3: the loss is NaN".to_owned()) },
        };
        let of_arm = |arm: &Arm| stage.seeds.iter().map(|seed| score(arm, *seed)).collect();
        Ok(StageOutcome::Measured(arms.iter().map(of_arm).collect()))
    })
}

#[test]
fn the_space_has_every_kernel_once_and_counts_the_others() {
    let small = space("log,power,exp", 1, false);
    let texts: Vec<&str> = small.expressions.iter().map(|of| of.expression.as_str()).collect();
    // the powers of a power are powers, and the logarithm is a baseline
    assert_eq!(
        texts,
        [
            "power(a, p)",
            "exp(c, a, 1)",
            "s*exp(log(b, a))",
            "s*exp(power(a, p))",
            "s*(-(-log(1, a))^q)",
            "s*exp(exp(c, a, 1))",
            "s*(-log(1 - log(b, a)))",
            "s*(-log(1 - power(a, p)))"
        ]
    );
    let counts = &small.counts;
    // three functions, each alone and with three operations; pow and neglog of an exponential have no value
    assert_eq!((counts.written, counts.refused_without_proof, counts.same_curves), (12, 2, 2));
    let merged: Vec<[&str; 2]> = small.merged.iter().map(|of| [of.expression.as_str(), of.kept.as_str()]).collect();
    assert_eq!(merged, [["log(b, a)", "log(b, a)"], ["s*(-(-power(1, p))^q)", "power(a, p)"]]);
    let large = large_space();
    let counts = &large.counts;
    let others = counts.refused_without_proof + counts.refused_for_parameters + counts.same_text + counts.same_curves;
    assert_eq!(counts.written, others + large.expressions.len());
    assert!(counts.refused_for_parameters > 0 && large.expressions.len() > 40, "{counts:?}");
    assert!(large.expressions.iter().all(|of| of.is_proven() && of.parameters <= 8));
    // a sum of exponentials is one, a product of exponentials is not
    assert!(large.expressions.iter().any(|of| of.expression == "exp(c, a, 1) + exp(c, a, 1)"));
    assert!(large.merged.iter().any(|of| of.expression == "exp(c, a, 1)*exp(1, a, 1)" && of.kept == "exp(c, a, 1)"));
}

#[test]
fn what_is_unproven_is_refused_or_carries_the_word() {
    let (proven, all) = (space("log", 2, false), space("log", 2, true));
    assert!(proven.expressions.iter().all(|of| of.is_proven() && of.title() == of.expression));
    let unproven: Vec<String> = all.expressions.iter().filter(|of| !of.is_proven()).map(|of| of.title()).collect();
    assert!(!unproven.is_empty() && unproven.iter().all(|title| title.ends_with(" [unproven]")), "{unproven:?}");
    let plan = SearchPlan::new(SearchRequest { unproven: true, ..request(1, None) }, all, None).unwrap();
    let (result, rows) = searched_with(&plan, |arm, _, seed| {
        Some(
            3.0 + 1e-3 * (seed % 3) as f64
                - if arm.title.ends_with("[unproven]") { 0.1 + 1e-4 * (seed % 5) as f64 } else { 0.0 },
        )
    });
    assert!(result.finalists[0].expression.ends_with("[unproven]"), "{:?}", result.finalists[0]);
    assert!(rows.iter().any(|row| row.expression.ends_with("[unproven]")));
    for unproven in unproven {
        let arm = plan.space.expressions.iter().position(|of| of.title() == unproven).unwrap();
        let arm = Arm::expression(arm, &plan.space.expressions[arm]);
        assert!(arm.encoding(true).is_ok() && arm.encoding(false).is_err(), "training asks for the word too");
    }
}

#[test]
fn bases_and_sizes_that_make_no_space_are_refused() {
    for (base, message) in [
        ("const", "softmax ignores a constant"),
        ("log_linear", "not a single function"),
        ("log(1, a)", "amplitude is not learned"),
        ("log,log(b, a)", "given twice"),
        ("lag", "unknown function `lag`"),
    ] {
        let error = bases(base).unwrap_err();
        assert!(error.is_misuse() && error.to_string().contains(message), "{base}: {error}");
    }
    for (size, length, message) in
        [(0, 64, "--size 0 is out of range"), (5, 64, "--size 5"), (1, 16, "on 16 distances")]
    {
        let options = SpaceOptions { bases: bases("log").unwrap(), size, length, unproven: false };
        let error = Space::new(&options, &[], &mut |_| {}).unwrap_err();
        assert!(error.is_misuse() && error.to_string().contains(message), "{error}");
    }
}

/// The share of 200 searches that declare a winner, and the share whose winner describes the truth.
fn winners(truth: Option<&str>, noise: f64) -> (f64, f64) {
    const SEARCHES: usize = 200;
    let space = large_space();
    let mut measure = SyntheticMeasure::new(truth, noise, LENGTH, false).unwrap();
    let is_true: Vec<bool> = (0..space.expressions.len())
        .map(|i| measure.error(&Arm::expression(i, &space.expressions[i])).unwrap() < MERGED)
        .collect();
    let (mut any, mut right) = (0, 0);
    for search in 0..SEARCHES {
        let plan = SearchPlan::new(request(100 * search as u64, truth), space.clone(), None).unwrap();
        let (result, _) = searched(&plan, |stage, arms| measure.stage(stage, arms));
        let Some(winner) = result.winner else { continue };
        any += 1;
        let number = space.expressions.iter().position(|of| of.expression == winner).unwrap();
        right += usize::from(is_true[number]);
    }
    (any as f64 / SEARCHES as f64, right as f64 / SEARCHES as f64)
}

#[test]
fn the_true_class_wins_the_confirmation() {
    // noise of a run such that the error of the logarithm costs at least three times as much
    for (truth, noise) in [
        ("exp(2.5, 0.02, 1)", 0.01),
        ("exp(3, 0.01, 1) + exp(1, 0.3, 1)", 0.01),
        ("exp(2, 0.02, 1) + power(0.1, 0.5)", 0.003),
    ] {
        let (any, right) = winners(Some(truth), noise);
        assert!(right >= 0.9, "{truth}: {any} of the searches have a winner, {right} the true one");
    }
}

#[test]
fn where_all_are_equal_few_searches_declare_a_winner() {
    let (any, _) = winners(None, 0.01);
    // Holm bounds the probability of any rejection by 0.05, and half of the rejections are of worse ones: 5 of 200 are usual
    assert!(any <= 0.05, "{any}");
}

#[test]
fn baselines_are_in_every_stage_and_rows_name_the_plan() {
    let plan = SearchPlan::new(request(1, None), large_space().clone(), None).unwrap();
    let mut measure = SyntheticMeasure::new(None, 0.01, LENGTH, false).unwrap();
    let (result, rows) = searched(&plan, |stage, arms| measure.stage(stage, arms));
    assert_eq!(rows.len(), plan.runs());
    assert!(rows.iter().all(|row| row.plan == plan.hash && row.plan == result.plan));
    for stage in &plan.stages {
        let own: Vec<&SearchRow> = rows.iter().filter(|row| row.stage == stage.name).collect();
        assert_eq!(own.len(), stage.runs());
        for baseline in ["kerple_log", "alibi", "none"] {
            let runs = own.iter().filter(|row| row.baseline && row.expression == baseline).count();
            assert_eq!(runs, stage.seeds.len(), "{baseline} in {}", stage.name);
        }
        let split = if stage.is_confirmation() { "test" } else { "valid" };
        assert!(own.iter().all(|row| row.split == split && stage.seeds.contains(&row.seed)));
    }
    // the best quarter goes on
    let first = &result.rungs[0];
    let kept = first.entries.iter().filter(|entry| entry.goes_on && !entry.baseline).count();
    assert_eq!(kept, plan.space.expressions.len().div_ceil(4));
    let losses: Vec<f64> =
        first.entries.iter().filter(|entry| !entry.baseline).map(|entry| entry.nll.unwrap()).collect();
    assert!(losses.is_sorted());
    let counts = &result.counts;
    assert_eq!((counts.expressions, counts.trained, counts.tests), (losses.len(), losses.len(), 5));
    assert_eq!((counts.halved_away, counts.runs, counts.winners_by_chance), (losses.len() - 5, rows.len(), 0.125));
}

#[test]
fn the_best_of_many_look_better_than_they_are() {
    let space = large_space();
    let mut measure = SyntheticMeasure::new(None, 0.01, LENGTH, false).unwrap();
    let mut sums = [0.0; 3];
    for search in 0..100 {
        let plan = SearchPlan::new(request(100 * search, None), space.clone(), None).unwrap();
        let (result, _) = searched(&plan, |stage, arms| measure.stage(stage, arms));
        for arm in &result.finalists {
            assert_eq!(
                arm.selection.iter().map(|of| of.rung.as_str()).collect::<Vec<_>>(),
                ["rung-0", "rung-1", "rung-2"]
            );
            sums.iter_mut().zip(&arm.selection).for_each(|(sum, of)| *sum += of.shrinkage.unwrap() / 500.0);
        }
    }
    // 69 expressions, of which the first rung keeps 18, the second 5 and the third all: it selects nothing, and has seeds of its
    // own. In the mean of 100 searches the reference has noise of 0.0008.
    assert!(sums[0] < -0.003 && sums[1] < -0.003 && sums[2].abs() < 0.003, "{sums:?}");
}

/// A number in `[-1, 1]` that differs from arm to arm and seed to seed.
fn noise(arm: &Arm, seed: u64) -> f64 {
    let own = arm.title.bytes().fold(seed, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
    (own.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

#[test]
fn the_headline_claims_what_was_shown_and_no_more() {
    let plan = SearchPlan::new(request(1, None), space("log,power,exp", 1, false), None).unwrap();
    let judged = |loss: &dyn Fn(&Arm, u64) -> Option<f64>| searched_with(&plan, |arm, _, seed| loss(arm, seed)).0;
    const NONE: &str = "No expression is better than the logarithm by 1 %.";

    let equal = judged(&|arm, seed| Some(3.0 + 1e-4 * noise(arm, seed)));
    assert_eq!(equal.headline, NONE);
    assert!(equal.finalists.iter().all(|arm| arm.verdict != Some(FinalistVerdict::NotSettled)), "{equal:?}");

    let better =
        judged(&|arm, seed| Some(3.0 + 1e-3 * noise(arm, seed) - if arm.text == "exp(c, a, 1)" { 0.05 } else { 0.0 }));
    assert_eq!(better.winner.as_deref(), Some("exp(c, a, 1)"));
    assert!(better.headline.starts_with("`exp(c, a, 1)` is better than the logarithm: 0.951"), "{}", better.headline);
    let (low, high) = better.finalists[0].interval.unwrap();
    assert!(low < 0.951 && 0.951 < high + 1e-3 && high < 1.0, "{low} {high}");

    let little =
        judged(&|arm, seed| Some(3.0 + 1e-4 * noise(arm, seed) - if arm.text == "exp(c, a, 1)" { 0.004 } else { 0.0 }));
    assert!(
        little.headline.starts_with(NONE) && little.headline.contains("`exp(c, a, 1)` is better"),
        "{}",
        little.headline
    );

    let noisy = judged(&|arm, seed| Some(3.0 + 0.2 * noise(arm, seed)));
    assert!(noisy.winner.is_none() && noisy.headline.contains("is not settled"), "{}", noisy.headline);

    let worse = judged(&|arm, seed| Some(3.0 + 1e-3 * noise(arm, seed) + if arm.number.is_some() { 0.1 } else { 0.0 }));
    assert!(worse.finalists.iter().all(|arm| arm.verdict == Some(FinalistVerdict::Worse)));
    assert_eq!(worse.headline, NONE);

    let lost = judged(&|arm, seed| (arm.text != "power(a, p)").then(|| 3.0 + 1e-4 * noise(arm, seed)));
    assert!(lost.finalists.iter().all(|arm| arm.expression != "power(a, p)"), "what diverges is ranked last");
    let lost = judged(&|arm, seed| (!arm.is_reference() || seed < 12).then(|| 3.0 + 1e-4 * noise(arm, seed)));
    assert!(lost.finalists.iter().all(|arm| arm.verdict == Some(FinalistVerdict::NotTested)), "{lost:?}");
    assert!(lost.headline.contains("is not settled") && lost.finalists[0].note.as_deref() == Some("a run diverged"));
}

#[test]
fn pages_have_what_was_confirmed_first_and_label_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let plan = SearchPlan::new(request(1, None), space("log,power,exp", 1, false), None).unwrap();
    let mut measure = SyntheticMeasure::new(None, 0.01, LENGTH, false).unwrap();
    let (result, _) = searched(&plan, |stage, arms| measure.stage(stage, arms));
    let written = write(&plan, &result, folder.path(), "a test").unwrap();
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    for page in [read("index.html"), read("report.md")] {
        assert!(!page.contains("biased"), "rungs are on a page of their own");
        for words in [
            "8 expressions were in the space, 8 were measured, and rungs dropped 3",
            "102 runs were made. 5 finalists were tested",
            "0.125 of 5 tests would declare a winner by chance",
            "at most 5 in 100 searches",
            REFERENCE,
        ] {
            assert!(page.contains(words), "{words}\n{page}");
        }
    }
    let (index, text, confirmed) = (read("index.html"), read("report.md"), read("figures/confirmed.svg"));
    assert!(index.contains("<svg") && index.contains("Confirmed ratios of perplexity"));
    assert!(text.contains("](figures/confirmed.svg)") && !index.contains("by stage"), "{text}");
    for arm in &result.finalists {
        let (low, high) = arm.interval.unwrap();
        for ratio in [low, arm.ratio.unwrap(), high] {
            let point = format!("{}, {}: ", arm.expression, (1e4 * ratio).round() / 1e4);
            assert!(confirmed.contains(&point), "{point}\n{confirmed}");
        }
    }
    assert!(confirmed.contains("kerple_log") && !confirmed.contains("alibi"), "{confirmed}");
    let stages = read("figures/selection.svg");
    assert!(["rung-0", "rung-1", "rung-2", "confirmation"].iter().all(|stage| stages.contains(stage)), "{stages}");
    let selection = read("selection.html");
    assert!(selection.contains("Ratios of finalists by stage (selection, biased upwards)"));
    assert!(selection.matches("selection, biased upwards").count() >= 5 && selection.contains("shrinkage"));
    assert!(read("tables/rungs.csv").lines().skip(1).all(|line| line.contains("\"selection, biased upwards\"")));
    assert_eq!(read("tables/confirmation.csv").lines().count(), 1 + 5 + 3);
    assert_eq!(read("tables/space.csv").lines().count(), 1 + 8);
    let json: SearchResult = serde_json::from_str(&read("search.json")).unwrap();
    assert_eq!(json.headline, result.headline);
    assert!(written.files.iter().all(|file| file.exists()));
    // a page of someone else stays
    std::fs::write(folder.path().join("index.html"), "<html>mine</html>").unwrap();
    assert!(write(&plan, &result, folder.path(), "a test").unwrap_err().is_misuse());
}
