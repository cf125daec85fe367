//! Comparison of a manifest with the built-in plan of the same name.

use super::{Experiment, ExperimentFile, FILES, facts, planned};
use crate::error::Result;
use crate::manifest::{Manifest, PlannedRun};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// Where the claims, ways to evaluate and runs of a manifest are not those of the plan that this program carries for its paper and
/// scale, in words; `None` where it carries none. Lengths of training are left out: older manifests lack them.
///
/// # Errors
/// A plan of this program that is none.
pub fn differences_from_plan(manifest: &Manifest) -> Result<Option<Vec<String>>> {
    let is_it = |file: &&ExperimentFile| (file.paper, file.scale) == (&manifest.paper, &manifest.scale);
    let Some(ExperimentFile { paper, scale, text }) = FILES.iter().find(is_it) else { return Ok(None) };
    let experiment = Experiment::parse(text, &format!("experiments/{paper}-{scale}.toml"))?;
    let claims = [&manifest.claims, &experiment.claims]
        .map(|claims| by_name(claims.iter().map(|claim| (format!("the claim `{}`", claim.text), claim))));
    let planned: Vec<PlannedRun> = planned(&experiment, &[]).into_iter().map(|planned| planned.run).collect();
    let runs = [&manifest.runs, &planned].map(|runs| {
        let named = |run: &PlannedRun| {
            (
                format!("the run {}", run.folder.display()),
                PlannedRun { train_len: None, plan_hash: None, ..run.clone() },
            )
        };
        by_name(runs.iter().map(named))
    });
    let asked: BTreeMap<_, _> = experiment.evaluations.iter().map(|(name, of)| (name.clone(), facts(of))).collect();
    let evaluations = [&manifest.evaluations, &asked]
        .map(|all| by_name(all.iter().map(|(name, facts)| (format!("the evaluation `{name}`"), facts))));
    let found = [claims, evaluations, runs].into_iter().flat_map(|[here, there]| differences(&here, &there));
    Ok(Some(found.collect()))
}

/// Things by a name; where several share one, those after the first are numbered.
fn by_name<T: Serialize>(all: impl Iterator<Item = (String, T)>) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    for (name, of) in all {
        let free = (2..).map(|nth| format!("{name}, number {nth}"));
        let name = std::iter::once(name.clone()).chain(free).find(|name| !found.contains_key(name));
        let value = serde_json::to_value(of).expect("manifests are plain data");
        found.insert(name.expect("numbers do not end"), value);
    }
    found
}

fn differences(here: &BTreeMap<String, Value>, plan: &BTreeMap<String, Value>) -> Vec<String> {
    let mut found = Vec::new();
    for (name, own) in here {
        let Some(planned) = plan.get(name) else {
            found.push(format!("{name} is not in the plan"));
            continue;
        };
        let keys =
            |value: &Value| value.as_object().into_iter().flatten().map(|(key, _)| key.clone()).collect::<Vec<_>>();
        let mut all = [keys(own), keys(planned)].concat();
        all.sort();
        all.dedup();
        for key in all.into_iter().filter(|key| own.get(key) != planned.get(key)) {
            let shown = |value: &Value| value.get(&key).map_or_else(|| "absent".to_owned(), Value::to_string);
            found.push(format!("{name}: `{key}` is {}, in the plan {}", shown(own), shown(planned)));
        }
    }
    found.extend(
        plan.keys().filter(|name| !here.contains_key(*name)).map(|name| format!("{name} of the plan is missing")),
    );
    found
}
