//! Detection of duplicate runs and rows, and names for runs that only look like duplicates.

use super::Run;
use crate::conditions::{Conditions, Differences};
use kerple_run::EvaluationRow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Of rows of one identity the last; one that says otherwise than those before it is noted.
pub(super) fn without_repeated_evaluations(rows: Vec<EvaluationRow>, notes: &mut Vec<String>) -> Vec<EvaluationRow> {
    let mut kept: Vec<EvaluationRow> = Vec::with_capacity(rows.len());
    let mut last = BTreeMap::new();
    for (at, row) in rows.iter().enumerate() {
        if let Some(before) = last.insert(row.identity(), at) {
            notes.extend(repeated_note(&rows[before], row));
        }
    }
    let is_last: BTreeSet<usize> = last.into_values().collect();
    kept.extend(rows.into_iter().enumerate().filter(|(at, _)| is_last.contains(at)).map(|(_, row)| row));
    kept
}

fn repeated_note(before: &EvaluationRow, row: &EvaluationRow) -> Option<String> {
    let same = before.nll == row.nll || (before.nll.is_nan() && row.nll.is_nan());
    let program = |row: &EvaluationRow| {
        let commit = row.provenance.as_ref().and_then(|provenance| provenance.commit.clone());
        commit.map_or_else(|| "an unknown program".to_owned(), |commit| format!("program {commit}"))
    };
    (!same).then(|| {
        format!(
            "length {} under {} was evaluated twice, with a loss of {} by {} and of {} by {}; the later row counts",
            row.eval_len,
            row.protocol,
            before.nll,
            program(before),
            row.nll,
            program(row)
        )
    })
}

/// A note on what was measured of several checkpoints.
pub(super) fn earlier_checkpoints_note(rows: &[EvaluationRow]) -> Option<String> {
    let mut steps: BTreeMap<_, BTreeSet<u64>> = BTreeMap::new();
    for row in rows {
        steps.entry(row.measured()).or_default().insert(row.step);
    }
    let earlier: BTreeSet<u64> = steps.into_values().flat_map(|of_one| of_one.into_iter().rev().skip(1)).collect();
    (!earlier.is_empty()).then(|| {
        let list: Vec<String> = earlier.iter().map(u64::to_string).collect();
        format!(
            "evaluation.jsonl has rows of earlier checkpoints too, of step {}; tables show the latest",
            list.join(", ")
        )
    })
}

/// Of copies of a run, which have its plan and seed and were made by the same programs in the same way, the one with the most
/// updates counts, with the rows that only others have. Copies that contradict it are noted.
pub(super) fn mark_duplicates(runs: &mut [Run]) {
    let mut same: BTreeMap<(String, u64), Vec<usize>> = BTreeMap::new();
    for (index, run) in runs.iter().enumerate() {
        if let (Some(hash), Some(seed)) = (run.plan_hash(), run.seed()) {
            same.entry((hash.to_owned(), seed)).or_default().push(index);
        }
    }
    let groups: Vec<Vec<usize>> = same.into_values().flat_map(|indices| copies(runs, indices)).collect();
    for indices in groups {
        let size = |index: &&usize| {
            let run = &runs[**index];
            (run.steps_done(), run.evaluations.len(), run.metrics.len())
        };
        // `rev`: of equal ones `max_by_key` takes the last, and the first should count.
        let keep = *indices.iter().rev().max_by_key(size).expect("a group has a member");
        let kept = runs[keep].folder.clone();
        for &index in indices.iter().filter(|&&index| index != keep) {
            runs[index].duplicate_of = Some(kept.clone());
            let contradiction = contradicted(&runs[index], &runs[keep]);
            runs[index].notes.extend(contradiction);
            let known: BTreeSet<_> = runs[keep].evaluations.iter().map(EvaluationRow::identity).collect();
            let is_new = |row: &&EvaluationRow| !known.contains(&row.identity());
            let more: Vec<EvaluationRow> = runs[index].evaluations.iter().filter(is_new).cloned().collect();
            if !more.is_empty() {
                runs[index].notes.push(format!("{} evaluations that only this copy has are counted", more.len()));
            }
            runs[keep].evaluations.extend(more);
        }
    }
}

/// In what a copy of a run says otherwise than the one that counts.
fn contradicted(copy: &Run, kept: &Run) -> Option<String> {
    let losses: BTreeMap<_, f64> = kept.evaluations.iter().map(|row| (row.identity(), row.nll)).collect();
    let differs = |a: f64, b: f64| a != b && !(a.is_nan() && b.is_nan());
    let is_other = |row: &&EvaluationRow| losses.get(&row.identity()).is_some_and(|loss| differs(*loss, row.nll));
    let rows = copy.evaluations.iter().filter(is_other).count();
    let logged: BTreeMap<u64, f64> = kept.metrics.iter().map(|row| (row.step, row.loss)).collect();
    let is_logged_otherwise =
        |row: &&kerple_run::MetricsRow| logged.get(&row.step).is_some_and(|loss| differs(*loss, row.loss));
    let steps = copy.metrics.iter().filter(is_logged_otherwise).count();
    (rows + steps > 0).then(|| {
        format!(
            "{rows} evaluations and {steps} logged steps have another loss than those of {}, which count although both should be \
             equal",
            kept.folder.display()
        )
    })
}

/// Runs of one plan and seed, by which may be copies of each other: one has all the updates of the other, by the same programs.
fn copies(runs: &[Run], mut indices: Vec<usize>) -> Vec<Vec<usize>> {
    indices.sort_by_key(|index| std::cmp::Reverse(runs[*index].made().len()));
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for index in indices {
        let (own, last) = (runs[index].made(), runs[index].steps_done());
        let has_all = |group: &&mut Vec<usize>| {
            let mut others = runs[group[0]].made();
            // of a run that has only its plan the first program counts
            others.retain(|(first, ..)| *first <= last.max(1));
            others == own
        };
        match groups.iter_mut().find(has_all) {
            Some(group) => group.push(index),
            None => groups.push(vec![index]),
        }
    }
    groups.iter_mut().for_each(|group| group.sort_unstable());
    groups
}

/// A label says the kind of an encoding but not all of its keys: where runs share one and their keys differ, each is called
/// by what differs.
pub(super) fn name_by_encoding(runs: &mut [Run]) {
    let mut by_label: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (index, run) in runs.iter().enumerate() {
        by_label.entry(run.label()).or_default().push(index);
    }
    for (label, indices) in by_label {
        let encodings: Vec<Conditions> =
            indices.iter().map(|&index| Conditions::of(&runs[index].plan.keys["encoding"])).collect();
        let differences = Differences::between(&encodings.iter().collect::<Vec<_>>());
        for (place, &index) in indices.iter().enumerate() {
            let title = differences.title(place);
            if !title.is_empty() {
                runs[index].name = format!("{label} ({title})");
            }
        }
    }
}

/// Gives runs longer names where one name would still pool different runs under one seed: with what computed them, where that
/// is what differs, with the name of the folder above, if that separates them, else with their own folder.
pub(super) fn tell_apart(runs: &mut [Run]) {
    name_by_provenance(runs);
    let parent = |run: &Run| {
        let above = run.folder.parent().and_then(Path::file_name);
        above.map_or_else(String::new, |name| name.to_string_lossy().into_owned())
    };
    let before: Vec<String> = runs.iter().map(|run| run.name.clone()).collect();
    let longer: [&dyn Fn(&Run) -> String; 2] = [&parent, &|run| run.folder.display().to_string()];
    for folder in longer {
        let clashing = clashing_runs(runs);
        for index in clashing {
            runs[index].name = format!("{} ({})", before[index], folder(&runs[index]));
        }
    }
    for (run, before) in runs.iter_mut().zip(before).filter(|(run, before)| run.name != *before) {
        run.notes.push(format!("another plan has the label {before:?} and the same seed; called {:?} here", run.name));
    }
}

/// Runs of one plan and seed that different programs made, or that were made in different instruction sets, are called by that.
fn name_by_provenance(runs: &mut [Run]) {
    let mut by_plan: BTreeMap<(String, Option<String>), Vec<usize>> = BTreeMap::new();
    for index in clashing_runs(runs) {
        let plan = runs[index].plan_hash().map(str::to_owned);
        by_plan.entry((runs[index].name.clone(), plan)).or_default().push(index);
    }
    for ((name, plan), indices) in by_plan {
        let provenances = |index: &usize| {
            let made = runs[*index].made().into_iter();
            let (simd, programs): (BTreeSet<String>, BTreeSet<String>) = made
                .map(|(_, numerics, commit)| {
                    let simd = numerics.map_or_else(|| "not recorded".to_owned(), |by| by.simd);
                    (simd, commit.unwrap_or_else(|| "unknown".to_owned()))
                })
                .unzip();
            let words = |all: BTreeSet<String>| Vec::from_iter(all).join(" and ");
            Conditions::of(&serde_json::json!({"simd": words(simd), "program": words(programs)}))
        };
        let provenances: Vec<Conditions> = indices.iter().map(provenances).collect();
        let differences = Differences::between(&provenances.iter().collect::<Vec<_>>());
        for (place, &index) in indices.iter().enumerate().filter(|_| plan.is_some()) {
            let title = differences.title(place);
            if !title.is_empty() {
                runs[index].name = format!("{name} ({title})");
                let note = "another run of this plan and seed was computed with other numerics";
                runs[index].notes.push(format!("{note}; called {:?} here", runs[index].name));
            }
        }
    }
}

/// Runs whose name, under their conditions, has two counted runs of one seed.
fn clashing_runs(runs: &[Run]) -> Vec<usize> {
    let key = |run: &Run| (run.name.clone(), run.conditions.fingerprint(), run.train_len());
    let mut seen = BTreeSet::new();
    let counted = runs.iter().filter(|run| run.duplicate_of.is_none());
    let clashing: BTreeSet<_> = counted.filter(|run| !seen.insert((key(run), run.seed()))).map(key).collect();
    (0..runs.len()).filter(|&index| clashing.contains(&key(&runs[index]))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::find_runs;
    use super::*;
    use serde_json::{Value, json};

    fn plan(folder: &Path, name: &str, plan: Value) {
        let run = folder.join(name);
        std::fs::create_dir_all(&run).unwrap();
        std::fs::write(run.join(kerple_run::PLAN_FILE), plan.to_string()).unwrap();
    }

    fn names(folder: &Path) -> Vec<String> {
        find_runs(&[folder]).unwrap().into_iter().map(|run| run.name).collect()
    }

    #[test]
    fn the_fuller_of_two_equal_plans_counts() {
        let root = tempfile::tempdir().unwrap();
        for name in ["first", "second", "third"] {
            plan(root.path(), name, json!({"label": "alibi", "seed": 1, "hash": "abc"}));
        }
        plan(root.path(), "other-seed", json!({"label": "alibi", "seed": 2, "hash": "abc"}));
        let metrics =
            r#"{"step":1,"loss":2.0,"learning_rate":0.1,"grad_norm":1.0,"tokens":8,"seconds":1.0,"step_seconds":1.0}"#;
        std::fs::write(root.path().join("second").join(kerple_run::METRICS_FILE), format!("{metrics}\n")).unwrap();
        let runs = find_runs(&[root.path()]).unwrap();
        let kept: Vec<_> = runs.iter().filter(|run| run.duplicate_of.is_none()).map(Run::folder_name).collect();
        assert_eq!(kept, ["other-seed", "second"]);
        assert_eq!(runs[0].duplicate_of, Some(root.path().join("second")));
        assert_eq!(runs[0].name, "alibi");
    }

    #[test]
    fn plans_that_clash_get_longer_names() {
        let root = tempfile::tempdir().unwrap();
        plan(root.path(), "short/alibi-1", json!({"label": "alibi", "seed": 1, "hash": "a"}));
        plan(root.path(), "short/alibi-2", json!({"label": "alibi", "seed": 2, "hash": "a"}));
        plan(root.path(), "long/alibi-1", json!({"label": "alibi", "seed": 1, "hash": "b"}));
        plan(root.path(), "long/t5-1", json!({"label": "t5", "seed": 1, "hash": "c"}));
        assert_eq!(names(root.path()), ["alibi (long)", "t5", "alibi (short)", "alibi (short)"]);
        plan(root.path(), "long/alibi-1b", json!({"label": "alibi", "seed": 1, "hash": "d"}));
        let all = names(root.path());
        assert!(all[0].ends_with("long/alibi-1)") && all[1].ends_with("long/alibi-1b)"), "{all:?}");
    }

    #[test]
    fn encodings_of_one_label_are_called_by_what_differs() {
        let root = tempfile::tempdir().unwrap();
        for (name, seed, bias) in [("a", 1, "log(1, a)"), ("b", 2, "log(1, a)"), ("c", 3, "power(1, p)")] {
            let encoding = json!({"kind": "kernel", "bias": bias, "weight": null, "scale": "after"});
            plan(root.path(), name, json!({"label": "kernel", "seed": seed, "hash": name, "encoding": encoding}));
        }
        let [log, power] = ["kernel (bias log(1, a))", "kernel (bias power(1, p))"];
        assert_eq!(names(root.path()), [log, log, power]);
    }

    #[test]
    fn one_label_and_seed_under_other_conditions_is_no_clash() {
        let root = tempfile::tempdir().unwrap();
        for layers in [2, 12] {
            let name = layers.to_string();
            plan(root.path(), &name, json!({"label": "t5", "seed": 1, "hash": name, "model": {"n_layers": layers}}));
        }
        assert_eq!(names(root.path()), ["t5", "t5"]);
    }

    /// A run of one plan, with its only session and a row.
    fn made(folder: &Path, name: &str, [commit, simd, precision]: [&str; 3], rows: &[[&str; 2]]) {
        plan(folder, name, json!({"label": "alibi", "seed": 1, "hash": "abc", "steps": 9}));
        let run = folder.join(name);
        let session = json!({"first_step": 1, "commit": commit, "cpu": "m", "simd": simd, "threads": 1,
            "device": "cpu", "precision": precision, "micro_batch_size": 8, "started_at": 1});
        std::fs::write(run.join(kerple_run::SESSIONS_FILE), format!("{session}\n")).unwrap();
        let row = |[simd, precision]: &[&str; 2]| {
            let provenance = json!({"cpu": "m", "simd": simd, "threads": 1, "device": "cpu", "precision": precision});
            let text = json!({"checksum": "ab", "segment_len": 64, "n_segments": 1, "seed": 1});
            let row = json!({"label": "alibi", "seed": 1, "train_len": 64, "eval_len": 64, "protocol": "nonoverlapping", "split": "test",
                "step": 9, "text": text, "n_windows": 1, "tokens": 64, "nll": 2.0, "perplexity": 7.4, "seconds": 1.0, "provenance": provenance});
            format!("{row}\n")
        };
        std::fs::write(run.join(kerple_run::EVALUATION_FILE), rows.iter().map(row).collect::<String>()).unwrap();
    }

    #[test]
    fn runs_that_differ_in_what_computed_them_are_no_copies() {
        let usual = ["c1", "avx2", "f32"];
        for (other, expected) in [
            (["c2", "avx2", "f32"], Some(["alibi (program c1)", "alibi (program c2)"])),
            (["c1", "avx512", "f32"], Some(["alibi (simd avx2)", "alibi (simd avx512)"])),
            // another precision is another training, as another batch would be
            (["c1", "avx2", "bf16"], Some(["alibi", "alibi"])),
            (usual, None),
        ] {
            let root = tempfile::tempdir().unwrap();
            made(root.path(), "a", usual, &[["avx2", "f32"]]);
            made(root.path(), "b", other, &[["avx2", "f32"]]);
            let runs = find_runs(&[root.path()]).unwrap();
            let counted = runs.iter().filter(|run| run.duplicate_of.is_none()).count();
            assert_eq!(counted, if expected.is_some() { 2 } else { 1 }, "{other:?}");
            if let Some(expected) = expected {
                assert_eq!([&runs[0].name, &runs[1].name], expected);
            }
            let same = runs[0].conditions == runs[1].conditions;
            assert_eq!(same, other[2] == "f32", "{other:?}: what may meet in a mean");
        }
    }

    #[test]
    fn copies_that_contradict_each_other_are_noted_and_the_one_with_most_updates_counts() {
        let root = tempfile::tempdir().unwrap();
        made(root.path(), "a", ["c1", "avx2", "f32"], &[["avx2", "f32"]]);
        made(root.path(), "b", ["c1", "avx2", "f32"], &[["avx2", "f32"]]);
        let path = root.path().join("b").join(kerple_run::EVALUATION_FILE);
        let text = std::fs::read_to_string(&path).unwrap();
        let notes = || {
            let notes = find_runs(&[root.path()]).unwrap().remove(1).notes.into_iter();
            notes.filter(|note| note.contains("another loss")).collect::<String>()
        };
        assert_eq!(notes(), "", "equal rows are not news");
        std::fs::write(&path, text.replace(r#""nll":2.0"#, r#""nll":2.5"#)).unwrap();
        assert!(notes().starts_with("1 evaluations and 0 logged steps have another loss than those of"), "{}", notes());
        // more rows of a checkpoint before the last do not make it the fuller one
        let row = text.replace(r#""step":9"#, r#""step":5"#);
        let rows = [64, 128, 256].map(|length| row.replace(r#""eval_len":64"#, &format!(r#""eval_len":{length}"#)));
        std::fs::write(&path, rows.concat()).unwrap();
        let runs = find_runs(&[root.path()]).unwrap();
        assert_eq!(runs[0].duplicate_of, None);
        assert_eq!((runs[1].duplicate_of.as_deref(), runs[0].evaluations.len()), (Some(&*runs[0].folder), 4));
    }

    #[test]
    fn rows_that_only_a_copy_has_count() {
        let root = tempfile::tempdir().unwrap();
        made(root.path(), "a", ["c1", "avx2", "f32"], &[["avx2", "f32"]]);
        made(root.path(), "b", ["c1", "avx2", "f32"], &[["avx2", "bf16"], ["avx512", "f32"], ["avx2", "f32"]]);
        made(root.path(), "c", ["c1", "avx2", "f32"], &[["avx2", "tf32"]]);
        let runs = find_runs(&[root.path()]).unwrap();
        let [a, b, c] = &runs[..] else { panic!("three runs") };
        assert_eq!((a.duplicate_of.is_some(), b.duplicate_of.is_some(), c.duplicate_of.is_some()), (true, false, true));
        let of = |run: &Run| run.evaluated_in().into_iter().collect::<Vec<_>>();
        assert_eq!(of(b), ["bf16 on cpu, avx2", "f32 on cpu, avx2", "f32 on cpu, avx512", "tf32 on cpu, avx2"]);
        assert!(c.notes.iter().any(|note| note.starts_with("1 evaluations that only this copy has")), "{:?}", c.notes);
    }
}
