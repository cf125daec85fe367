//! The plan of a search: everything that is decided before the first update.

use crate::space::{Space, SpaceOptions};
use kerple_lm::evaluate::Protocol;
use kerple_run::{Error, Result, read_json, write_json};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Name of the plan in the folder of a search. It is not `plan.json`, by which run folders are found.
pub const PLAN_FILE: &str = "search-plan.json";
/// Rungs of successive halving.
pub const RUNGS: usize = 3;
/// How many times as many updates a rung has as the one before it, and one in how many expressions goes on.
pub const GROWTH: u64 = 4;
/// Seeds of each rung; no two rungs share one.
pub const RUNG_SEEDS: u64 = 2;
/// Expressions that are confirmed.
pub const FINALISTS: usize = 5;
/// Seeds of the confirmation.
pub const CONFIRMATION_SEEDS: u64 = 6;
/// The improvement that counts, as a share of the perplexity.
pub const MARGIN: f64 = 0.01;
/// The baseline that finalists are tested against.
pub const REFERENCE: &str = "kerple_log";
/// Encodings that every stage has: name, and their kernel of distance, up to the values of its parameters.
pub const BASELINES: [(&str, &str); 3] = [(REFERENCE, "log(b, a)"), ("alibi", "power(a, 1)"), ("none", "const(c)")];
/// Share of a budget that is planned for; the rest is evaluations that take longer, and pages.
const PLANNED_SHARE: f64 = 0.9;
/// The last rung has at least one in this many of the updates of a confirmation.
const LEAST_LAST_RUNG: u64 = 16;

/// What was asked for. A search resumes only with the same request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SearchRequest {
    /// Base functions, see [`bases`](crate::space::bases).
    pub bases: Vec<String>,
    /// Most base functions of an expression.
    pub size: usize,
    /// Whether expressions without a proof are searched too.
    pub unproven: bool,
    /// Hours for all of it; `None` where nothing is trained.
    pub budget_hours: Option<f64>,
    /// The first seed.
    pub seed: u64,
    /// Updates of a confirmation.
    pub updates: u64,
    /// What is measured of a run.
    pub measure: SearchMeasure,
}

/// What is measured of a run; lower is better.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum SearchMeasure {
    /// The loss in nats per token, as the mean over lengths.
    Nll {
        /// Lengths in tokens.
        lengths: Vec<usize>,
        /// Which tokens are scored.
        protocol: Protocol,
        /// Tokens per segment of the text.
        segment_len: usize,
        /// Segments of the validation split, for rungs.
        valid_segments: usize,
        /// Segments of the test split, for the confirmation.
        test_segments: usize,
        /// Hash of the plan of a confirmation run of the reference: data, model and training.
        run: String,
        /// Precision of all runs.
        #[serde(default = "f32_precision", skip_serializing_if = "is_f32")]
        precision: String,
        /// Kind of device of all runs.
        #[serde(default = "cpu_device", skip_serializing_if = "is_cpu")]
        device: String,
    },
    /// Nothing is trained: how badly an expression describes a known kernel, plus noise.
    Synthetic {
        /// The kernel, without learned parameters; absent: all expressions are equal.
        truth: Option<String>,
        /// Standard deviation of a run.
        noise: f64,
        /// Distances on which kernels are compared.
        length: usize,
    },
}

// searches that do not record them were made in these
fn f32_precision() -> String {
    "f32".to_owned()
}

fn is_f32(precision: &str) -> bool {
    precision == "f32"
}

fn cpu_device() -> String {
    "cpu".to_owned()
}

fn is_cpu(device: &str) -> bool {
    device == "cpu"
}

/// What counts, so that it is written down before the first result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SearchRules {
    /// What finalists are tested against.
    pub reference: String,
    /// Baselines, which no rung drops.
    pub baselines: Vec<String>,
    /// Expressions that are confirmed and tested.
    pub tests: usize,
    /// The level of the tests after the correction.
    pub alpha: f64,
    /// The improvement of perplexity that counts.
    pub margin: f64,
    /// How tests are corrected.
    pub correction: String,
}

/// A stage: a rung, or the confirmation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StagePlan {
    /// `rung-0` .. `confirmation`.
    pub name: String,
    /// Updates of each run.
    pub updates: u64,
    /// Seeds of each expression.
    pub seeds: Vec<u64>,
    /// `valid` or `test`.
    pub split: String,
    /// Expressions in it, baselines apart.
    pub expressions: usize,
}

impl StagePlan {
    /// Its runs.
    pub fn runs(&self) -> usize {
        (self.expressions + BASELINES.len()) * self.seeds.len()
    }

    /// Whether it confirms.
    pub fn is_confirmation(&self) -> bool {
        self.name == CONFIRMATION
    }
}

const CONFIRMATION: &str = "confirmation";

/// Seconds that a run takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunCost {
    /// Of an update.
    pub update: f64,
    /// Of the evaluation at the end.
    pub evaluation: f64,
}

/// Everything that a search does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SearchPlan {
    /// What was asked for.
    pub request: SearchRequest,
    /// What counts.
    pub rules: SearchRules,
    /// Rungs, then the confirmation.
    pub stages: Vec<StagePlan>,
    /// The expressions.
    pub space: Space,
    /// SHA-256 of all of the above.
    pub hash: String,
    /// What a run took where the plan was made; no part of the hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<RunCost>,
}

impl SearchRequest {
    /// The options of its space.
    pub fn space(&self) -> SpaceOptions {
        let length = match &self.measure {
            SearchMeasure::Nll { lengths, .. } => lengths.iter().copied().max().unwrap_or(0),
            SearchMeasure::Synthetic { length, .. } => *length,
        };
        SpaceOptions { bases: self.bases.clone(), size: self.size, length, unproven: self.unproven }
    }

    /// Refuses numbers out of range.
    ///
    /// # Errors
    /// The number and its limit.
    pub fn check(&self) -> Result<()> {
        let least = GROWTH.pow(RUNGS as u32 - 1);
        if self.updates < least {
            let message = format!(
                "train.steps = {} is too few: the first of {RUNGS} rungs has 1/{least} of the updates",
                self.updates
            );
            return Err(Error::refused(message, format!("set train.steps to at least {least}")));
        }
        if let Some(hours) = self.budget_hours.filter(|hours| !(*hours > 0.0 && hours.is_finite())) {
            let message = format!("--budget {hours} is out of range, it must be above 0 and finite");
            return Err(Error::refused(message, "give hours, e.g. --budget 8"));
        }
        if self.seed.checked_add(RUNGS as u64 * RUNG_SEEDS + CONFIRMATION_SEEDS).is_none_or(|end| end > i64::MAX as u64)
        {
            return Err(Error::refused(
                format!("seeds from {} on exceed the largest seed", self.seed),
                "choose a smaller seed",
            ));
        }
        if let SearchMeasure::Synthetic { noise, .. } = &self.measure
            && !(*noise > 0.0 && noise.is_finite())
        {
            let message = format!("--noise {noise} is out of range, it must be above 0 and finite");
            return Err(Error::refused(message, "give the standard deviation of a run, e.g. --noise 0.01"));
        }
        Ok(())
    }
}

/// Expressions in each rung: a quarter goes on, and never fewer than are confirmed.
fn survivors(mut expressions: usize) -> [usize; RUNGS + 1] {
    let next = |from: usize| from.div_ceil(GROWTH as usize).max(FINALISTS.min(from));
    let mut found = [expressions; RUNGS + 1];
    for (rung, count) in found.iter_mut().enumerate().skip(1) {
        expressions = if rung == RUNGS { FINALISTS.min(expressions) } else { next(expressions) };
        *count = expressions;
    }
    found
}

impl SearchPlan {
    /// Plans a search of a space. `cost` is what a run takes, where one is trained.
    ///
    /// # Errors
    /// A request out of range, and a budget that is too small, with one that suffices.
    pub fn new(request: SearchRequest, space: Space, cost: Option<RunCost>) -> Result<SearchPlan> {
        request.check()?;
        let most = request.updates / GROWTH.pow(RUNGS as u32 - 1);
        let first = match (request.budget_hours, cost) {
            (Some(hours), Some(cost)) => first_rung(&request, space.expressions.len(), cost, hours)?.min(most),
            _ => most,
        };
        let counts = survivors(space.expressions.len());
        let seeds = |from: u64, count: u64| (request.seed + from..request.seed + from + count).collect();
        let mut stages: Vec<StagePlan> = (0..RUNGS)
            .map(|rung| StagePlan {
                name: format!("rung-{rung}"),
                updates: first * GROWTH.pow(rung as u32),
                seeds: seeds(rung as u64 * RUNG_SEEDS, RUNG_SEEDS),
                split: "valid".to_owned(),
                expressions: counts[rung],
            })
            .collect();
        stages.push(StagePlan {
            name: CONFIRMATION.to_owned(),
            updates: request.updates,
            seeds: seeds(RUNGS as u64 * RUNG_SEEDS, CONFIRMATION_SEEDS),
            split: "test".to_owned(),
            expressions: counts[RUNGS],
        });
        let rules = SearchRules {
            reference: REFERENCE.to_owned(),
            baselines: BASELINES.iter().map(|(name, _)| (*name).to_owned()).collect(),
            tests: counts[RUNGS],
            alpha: kerple_report::statistics::ALPHA,
            margin: MARGIN,
            correction: "Holm over the finalists, two-sided paired t-tests".to_owned(),
        };
        let plan = SearchPlan { request, rules, stages, space, hash: String::new(), cost };
        Ok(SearchPlan { hash: plan.digest(), ..plan })
    }

    fn digest(&self) -> String {
        let plain = SearchPlan { hash: String::new(), cost: None, ..self.clone() };
        kerple_data::fingerprint(serde_json::to_string(&plain).expect("a plan is plain data").as_bytes())
    }

    /// Runs of all stages.
    pub fn runs(&self) -> usize {
        self.stages.iter().map(StagePlan::runs).sum()
    }

    /// Where the plan of a folder is.
    pub fn file(folder: &Path) -> PathBuf {
        folder.join(PLAN_FILE)
    }

    /// The plan that a folder has, which must be of this request; `None` where it has none.
    ///
    /// # Errors
    /// A plan of another request, one that was changed, and a file that cannot be read.
    pub fn find(folder: &Path, request: &SearchRequest) -> Result<Option<SearchPlan>> {
        let path = SearchPlan::file(folder);
        let Some(plan) = Error::unless_absent(read_json::<SearchPlan>(&path))? else { return Ok(None) };
        if plan.hash != plan.digest() {
            let message = "the plan was changed after it was made: its hash is another";
            return Err(Error::damaged(&path, message, "restore the file, or search in another --out folder"));
        }
        if let Some((key, old, new)) = difference(&plan.request, request) {
            let message = format!("{} contains a search with {key} = {old}, not {new}", folder.display());
            return Err(Error::refused(message, "use the same options to resume, or another folder with --out"));
        }
        Ok(Some(plan))
    }

    /// Writes the plan.
    ///
    /// # Errors
    /// A folder or file that cannot be written.
    pub fn write(&self, folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder).map_err(Error::io(folder, "create"))?;
        write_json(&SearchPlan::file(folder), self)
    }
}

/// The first key in which two requests differ, with both values.
fn difference(old: &SearchRequest, new: &SearchRequest) -> Option<(String, String, String)> {
    let keys = |request: &SearchRequest| {
        // base functions are a set: a search of the same ones resumes with its own order
        let mut request = request.clone();
        request.bases.sort_unstable();
        let mut value = serde_json::to_value(request).expect("a request is plain data");
        let measure = value["measure"].take();
        let all = value.as_object().into_iter().flatten().chain(measure.as_object().into_iter().flatten());
        all.filter(|(key, _)| *key != "measure")
            .map(|(key, value)| (key.clone(), value.to_string()))
            .collect::<Vec<_>>()
    };
    let (old, new) = (keys(old), keys(new));
    let find = |key: &str, keys: &[(String, String)]| {
        // what is not written down of a precision or device is the usual one
        let absent = match key {
            "precision" => "\"f32\"",
            "device" => "\"cpu\"",
            _ => "nothing",
        };
        keys.iter().find(|(other, _)| other == key).map_or_else(|| absent.to_owned(), |(_, value)| value.clone())
    };
    let both = old.iter().chain(&new).map(|(key, _)| key.clone());
    both.map(|key| (find(&key, &old), find(&key, &new), key)).find(|(x, y, _)| x != y).map(|(x, y, key)| (key, x, y))
}

/// Updates of the first rung that fit into the budget.
fn first_rung(request: &SearchRequest, expressions: usize, cost: RunCost, hours: f64) -> Result<u64> {
    let counts = survivors(expressions);
    let baselines = BASELINES.len();
    let runs = |stage: usize, seeds: u64| ((counts[stage] + baselines) as u64 * seeds) as f64;
    let confirmation = runs(RUNGS, CONFIRMATION_SEEDS) * (request.updates as f64 * cost.update + cost.evaluation);
    let rungs = || (0..RUNGS).map(|rung| (rung, runs(rung, RUNG_SEEDS)));
    let fixed = confirmation + rungs().map(|(_, runs)| runs * cost.evaluation).sum::<f64>();
    let per_update: f64 = rungs().map(|(rung, runs)| runs * GROWTH.pow(rung as u32) as f64 * cost.update).sum();
    let least = (request.updates / (LEAST_LAST_RUNG * GROWTH.pow(RUNGS as u32 - 1))).max(1);
    let affordable = ((hours * 3600.0 * PLANNED_SHARE - fixed) / per_update).max(0.0) as u64;
    if affordable >= least {
        return Ok(affordable);
    }
    let needed = (fixed + least as f64 * per_update) / (3600.0 * PLANNED_SHARE);
    // rounded up to a number that a person types
    let digits = 10f64.powf(needed.log10().floor() - 1.0);
    let needed = (needed / digits + 1e-9).ceil() * digits;
    let share = confirmation / 3600.0;
    let message = format!(
        "--budget {hours} is too small: {expressions} expressions need {needed:.3} hours on this machine, of which the confirmation \
         takes {share:.3}"
    );
    Err(Error::refused(message, format!("use --budget {needed:.3}, a smaller --size, or a smaller train.steps")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::{SpaceCounts, SpaceExpression};

    pub(super) fn request() -> SearchRequest {
        SearchRequest {
            bases: vec!["log(b, a)".to_owned()],
            size: 1,
            unproven: false,
            budget_hours: Some(2.0),
            seed: 7,
            updates: 1000,
            measure: SearchMeasure::Synthetic { truth: None, noise: 0.01, length: 64 },
        }
    }

    fn space(count: usize) -> Space {
        let expression = |i: usize| SpaceExpression {
            expression: format!("power({i}, p)"),
            size: 1,
            parameters: 1,
            class: "conditionally positive definite".to_owned(),
        };
        Space { expressions: (0..count).map(expression).collect(), counts: SpaceCounts::default(), merged: Vec::new() }
    }

    #[test]
    fn a_quarter_goes_on_and_never_fewer_than_are_confirmed() {
        assert_eq!(survivors(200), [200, 50, 13, 5]);
        assert_eq!(survivors(9), [9, 5, 5, 5]);
        assert_eq!(survivors(3), [3, 3, 3, 3]);
    }

    #[test]
    fn no_seed_is_in_two_stages_and_the_confirmation_has_another_split() {
        let plan = SearchPlan::new(request(), space(40), None).unwrap();
        let mut seeds: Vec<u64> = plan.stages.iter().flat_map(|stage| stage.seeds.clone()).collect();
        let count = seeds.len();
        seeds.dedup();
        assert_eq!((seeds.len(), count, seeds[0]), (12, 12, 7));
        let updates: Vec<u64> = plan.stages.iter().map(|stage| stage.updates).collect();
        assert_eq!(updates, [62, 248, 992, 1000]);
        let splits: Vec<&str> = plan.stages.iter().map(|stage| stage.split.as_str()).collect();
        assert_eq!(splits, ["valid", "valid", "valid", "test"]);
        assert_eq!(plan.runs(), 2 * (43 + 13 + 8) + 6 * 8);
    }

    #[test]
    fn rungs_fit_into_the_budget_and_the_hint_of_too_little_is_enough() {
        let cost = RunCost { update: 0.1, evaluation: 1.0 };
        let total = |plan: &SearchPlan| {
            let of = |stage: &StagePlan| stage.runs() as f64 * (stage.updates as f64 * 0.1 + 1.0);
            plan.stages.iter().map(of).sum::<f64>() / 3600.0
        };
        let plan = SearchPlan::new(request(), space(200), Some(cost)).unwrap();
        assert!(total(&plan) <= 2.0 && total(&plan) > 1.6, "{}", total(&plan));
        let small = SearchRequest { budget_hours: Some(0.5), ..request() };
        let refused = SearchPlan::new(small.clone(), space(200), Some(cost)).unwrap_err();
        assert!(refused.is_misuse() && refused.to_string().contains("--budget 0.5 is too small"), "{refused}");
        let hours: f64 = refused.hint().split("--budget ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
        let enough =
            SearchPlan::new(SearchRequest { budget_hours: Some(hours), ..small }, space(200), Some(cost)).unwrap();
        assert!(total(&enough) <= hours, "{} of {hours}", total(&enough));
    }

    #[test]
    fn a_plan_is_found_for_its_own_request_only_and_while_it_is_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        assert!(SearchPlan::find(folder.path(), &request()).unwrap().is_none());
        let plan = SearchPlan::new(request(), space(3), Some(RunCost { update: 1e-3, evaluation: 0.1 })).unwrap();
        plan.write(folder.path()).unwrap();
        assert_eq!(SearchPlan::find(folder.path(), &request()).unwrap().unwrap(), plan);
        let other = SearchRequest { size: 2, ..request() };
        let refused = SearchPlan::find(folder.path(), &other).unwrap_err();
        assert!(refused.is_misuse() && refused.to_string().contains("a search with size = 1, not 2"), "{refused}");
        let bases = |order: [&str; 2]| SearchRequest { bases: order.map(str::to_owned).to_vec(), ..request() };
        assert_eq!(difference(&bases(["log", "exp"]), &bases(["exp", "log"])), None);
        assert!(difference(&bases(["log", "exp"]), &bases(["log", "power"])).is_some());
        let SearchMeasure::Synthetic { truth, length, .. } = request().measure else { unreachable!() };
        let other = SearchRequest { measure: SearchMeasure::Synthetic { truth, noise: 0.5, length }, ..request() };
        let refused = SearchPlan::find(folder.path(), &other).unwrap_err();
        assert!(refused.to_string().contains("noise = 0.01, not 0.5"), "{refused}");
        // timing differs from machine to machine and is no part of what is planned
        assert_eq!(SearchPlan::new(request(), space(3), None).unwrap().hash, plan.hash);
        let file = SearchPlan::file(folder.path());
        let changed = std::fs::read_to_string(&file).unwrap().replace("\"margin\": 0.01", "\"margin\": 0.02");
        std::fs::write(&file, changed).unwrap();
        let error = SearchPlan::find(folder.path(), &request()).unwrap_err();
        assert!(error.to_string().contains("changed after it was made"), "{error}");
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        let cases = [
            (SearchRequest { updates: 15, ..request() }, "train.steps = 15 is too few"),
            (SearchRequest { budget_hours: Some(0.0), ..request() }, "--budget 0 is out of range"),
            (SearchRequest { budget_hours: Some(f64::NAN), ..request() }, "--budget NaN is out of range"),
            (SearchRequest { seed: i64::MAX as u64 - 3, ..request() }, "exceed the largest seed"),
            (
                SearchRequest {
                    measure: SearchMeasure::Synthetic { truth: None, noise: 0.0, length: 64 },
                    ..request()
                },
                "--noise 0 is out of range",
            ),
        ];
        for (request, message) in cases {
            let error = request.check().unwrap_err();
            assert!(error.is_misuse() && error.to_string().contains(message), "{error}");
        }
    }
}
