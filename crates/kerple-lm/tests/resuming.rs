//! A run that was stopped, killed or damaged goes on as if nothing had happened, or says why it cannot.

use crate::common::{Counting, encoding, plan};
use kerple_core::encoding::{Encoding, ParameterShare};
use kerple_lm::checkpoint::CheckpointState;
use kerple_lm::config::TrainConfig;
use kerple_lm::plan::Plan;
use kerple_lm::run::RunFolder;
use kerple_lm::runtime::Runtime;
use kerple_lm::train::{TrainEvent, TrainOutcome, TrainSession, train};
use kerple_lm::{Error, checkpoint};
use kerple_run::{KernelSnapshot, MetricsRow, SessionRow, read_json, read_rows};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

fn config(steps: u64) -> TrainConfig {
    TrainConfig {
        steps,
        learning_rate: 1e-2,
        warmup_ratio: 0.1,
        weight_decay: 0.1,
        micro_batch_size: Some(2),
        log_every: 4,
        eval_interval: 3,
        eval_sequences: 3,
        save_interval: 5,
        keep_last_n: 3,
        ..TrainConfig::default()
    }
}

/// One session; returns how it ended and what it said.
fn sit(
    folder: &Path,
    plan: &Plan,
    stop_after: Option<u64>,
    strict: bool,
) -> (Result<TrainOutcome, Error>, Vec<String>) {
    sit_as(&Runtime::cpu(None), folder, plan, stop_after, strict)
}

fn sit_as(
    runtime: &Runtime,
    folder: &Path,
    plan: &Plan,
    stop_after: Option<u64>,
    strict: bool,
) -> (Result<TrainOutcome, Error>, Vec<String>) {
    let (run, batches, stop) = (RunFolder::new(folder), Counting(plan.clone()), AtomicBool::new(false));
    let mut notes = Vec::new();
    let session = TrainSession { plan, run: &run, batches: &batches, stop: &stop, strict, runtime };
    let outcome = train(&session, &mut |event| match event {
        TrainEvent::Step(progress) => stop.store(stop_after == Some(progress.step), Ordering::Relaxed),
        TrainEvent::Note(note) => notes.push(note),
    });
    (outcome, notes)
}

fn go(folder: &Path, plan: &Plan) -> TrainOutcome {
    sit(folder, plan, None, false).0.unwrap()
}

fn refused(folder: &Path, plan: &Plan) -> Error {
    sit(folder, plan, None, false).0.unwrap_err()
}

fn place(folder: &Path, step: u64) -> PathBuf {
    checkpoint::folder(folder).join(format!("step-{step:08}"))
}

/// What must not depend on interruptions: weights and moments of the newest checkpoint, rows without times, kernels.
fn trace(folder: &Path) -> (u64, Vec<u8>, Vec<u8>, Vec<MetricsRow>, Vec<u8>) {
    let (step, newest) = checkpoint::list(folder).unwrap().pop().unwrap();
    let mut rows = read_rows::<MetricsRow>(&folder.join("metrics.jsonl")).unwrap().rows;
    rows.iter_mut().for_each(|row| (row.seconds, row.step_seconds) = (0.0, 0.0));
    let read = |path: PathBuf| fs::read(path).unwrap_or_default();
    let [weights, moments] = ["model", "optimizer"].map(|name| read(newest.join(name).with_extension("safetensors")));
    (step, weights, moments, rows, read(folder.join("kernels.json")))
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() { copy(&path, &target) } else { fs::write(&target, fs::read(&path).unwrap()).unwrap() }
    }
}

#[test]
fn resuming_equals_not_having_stopped() {
    let layered = Encoding { share: ParameterShare::Layer, ..encoding("kerple_log") };
    let encodings = [encoding("kerple_bias_weight"), encoding("t5"), encoding("learned"), layered];
    let alike = encodings.iter().map(|encoding| plan(encoding, config(14)));
    let differing = crate::common::patterns(&config(14)).into_iter().map(|(_, plan)| plan);
    for plan in alike.chain(differing) {
        let kind = &plan.label;
        let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let straight = go(whole.path(), &plan);
        for stop in [1, 3, 6, 10] {
            let outcome = sit(parts.path(), &plan, Some(stop), false).0.unwrap();
            assert_eq!((outcome.step, outcome.finished), (stop, false));
        }
        assert_eq!(go(parts.path(), &plan).loss, straight.loss, "{kind}");
        assert!(trace(whole.path()) == trace(parts.path()), "{kind}");
        let steps: Vec<u64> = trace(whole.path()).3.iter().map(|row| row.step).collect();
        assert_eq!(steps, [1, 3, 4, 6, 8, 9, 12, 14], "every 4th, every 3rd for validation, first and last");
        let validated = |row: &&MetricsRow| row.val_loss.is_some();
        let steps: Vec<u64> = trace(whole.path()).3.iter().filter(validated).map(|row| row.step).collect();
        assert_eq!(steps, [3, 6, 9, 12, 14], "validation has its own steps");
    }
}

#[test]
fn layers_with_kernels_of_their_own_are_recorded_one_by_one() {
    let plan = plan(&Encoding { share: ParameterShare::Layer, ..encoding("kerple_log") }, config(3));
    let run = tempfile::tempdir().unwrap();
    go(run.path(), &plan);
    let rows = read_rows::<MetricsRow>(&run.path().join("metrics.jsonl")).unwrap().rows;
    let names: Vec<&str> = rows[0].encoding_params.keys().map(String::as_str).collect();
    assert_eq!(names, ["layer0.r1", "layer0.r2", "layer1.r1", "layer1.r2"]);
    let snapshots: Vec<KernelSnapshot> = read_json(&run.path().join("kernels.json")).unwrap();
    let last = snapshots.last().unwrap();
    let bias = last.bias.as_ref().unwrap();
    assert_eq!((bias.len(), last.effective_length.len()), (4, 4), "two heads of two layers");
    for (row, name) in bias.iter().zip(["layer0", "layer0", "layer1", "layer1"].iter().enumerate()) {
        let (at, layer) = name;
        let value = |parameter: &str| rows.last().unwrap().encoding_params[&format!("{layer}.{parameter}")][at % 2];
        assert_eq!(row[1], -value("r1") * value("r2").ln_1p(), "head {} of {layer}", at % 2);
    }
}

#[test]
fn whatever_a_crash_leaves_is_gone_on_from() {
    let plan = plan(&encoding("kerple_log"), config(14));
    let whole = tempfile::tempdir().unwrap();
    go(whole.path(), &plan);
    let checkpoints = |folder: &Path| checkpoint::folder(folder);
    type Crash<'a> = (&'a str, &'a dyn Fn(&Path));
    let crashes: [Crash; 6] = [
        ("killed before the checkpoint", &|run| fs::remove_dir_all(place(run, 14)).unwrap()),
        ("while the checkpoint was written", &|run| {
            fs::rename(place(run, 14), checkpoints(run).join(".partial")).unwrap();
            fs::remove_file(checkpoints(run).join(".partial/state.json")).unwrap();
        }),
        ("between the two renames of a replaced checkpoint", &|run| {
            copy(&place(run, 14), &checkpoints(run).join(".partial"));
            fs::rename(place(run, 14), checkpoints(run).join(".replaced")).unwrap();
        }),
        ("while old checkpoints were removed", &|run| fs::remove_file(place(run, 5).join("state.json")).unwrap()),
        ("in the middle of a row, and while rows were replaced", &|run| {
            fs::remove_dir_all(place(run, 14)).unwrap();
            let rows = fs::read(run.join("metrics.jsonl")).unwrap();
            fs::write(run.join("metrics.jsonl"), &rows[..rows.len() - 9]).unwrap();
            fs::write(run.join("metrics.jsonl.part"), &rows[..40]).unwrap();
        }),
        ("before the first checkpoint", &|run| {
            fs::remove_dir_all(checkpoints(run)).unwrap();
            let rows = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
            let before: String = rows.split_inclusive('\n').take(1).collect();
            fs::write(run.join("metrics.jsonl"), before).unwrap();
        }),
    ];
    for (crash, make) in crashes {
        let folder = tempfile::tempdir().unwrap();
        copy(whole.path(), folder.path());
        make(folder.path());
        let (outcome, notes) = sit(folder.path(), &plan, None, false);
        assert!(outcome.unwrap().finished && notes.is_empty(), "{crash}: {notes:?}");
        assert!(trace(folder.path()) == trace(whole.path()), "{crash}");
    }
}

/// Killed while it removed an old checkpoint, or wrote a new one: the finished run is whole, and training it again tidies.
#[test]
fn what_a_kill_left_of_old_checkpoints_is_none_and_goes() {
    let plan = plan(&encoding("kerple_log"), config(14));
    let folder = tempfile::tempdir().unwrap();
    go(folder.path(), &plan);
    let all = checkpoint::folder(folder.path());
    for left in [".replaced", ".partial"] {
        copy(&place(folder.path(), 14), &all.join(left));
        fs::remove_file(all.join(left).join("state.json")).unwrap();
    }
    // of an earlier version of the program, which removed them in their places
    copy(&place(folder.path(), 14), &place(folder.path(), 1));
    fs::remove_file(place(folder.path(), 1).join("model.safetensors")).unwrap();
    assert_eq!(RunFolder::new(folder.path()).verify().problems.len(), 1, "step 1");
    go(folder.path(), &plan);
    assert!(RunFolder::new(folder.path()).verify().is_good());
    let left = fs::read_dir(&all).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let left: Vec<String> = left.filter(|name| !name.starts_with("step-")).collect();
    assert!(left.is_empty() && !place(folder.path(), 1).exists(), "{left:?}");
}

#[test]
fn a_damaged_checkpoint_is_passed_over_and_said() {
    let plan = plan(&encoding("alibi"), config(14));
    let whole = tempfile::tempdir().unwrap();
    go(whole.path(), &plan);
    let flip = |path: PathBuf| {
        let mut data = fs::read(&path).unwrap();
        *data.last_mut().unwrap() ^= 1;
        fs::write(path, data).unwrap();
    };
    let edit = |path: PathBuf, from: &str, to: &str| {
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(path, text.replace(from, to)).unwrap();
    };
    type Damage<'a> = (&'a str, &'a dyn Fn(&Path));
    let damages: [Damage; 6] = [
        ("weights", &|at| flip(at.join("model.safetensors"))),
        ("moments", &|at| flip(at.join("optimizer.safetensors"))),
        ("step", &|at| edit(at.join("state.json"), "\"step\": 14", "\"step\": 4")),
        ("seconds", &|at| edit(at.join("state.json"), "\"seconds\": ", "\"seconds\": 1")),
        ("a hash that is not ASCII", &|at| {
            edit(at.join("state.json"), "\"trajectory_hash\": \"", "\"trajectory_hash\": \"aéééééééé")
        }),
        ("a missing file", &|at| fs::remove_file(at.join("optimizer.safetensors")).unwrap()),
    ];
    for (what, damage) in damages {
        let folder = tempfile::tempdir().unwrap();
        copy(whole.path(), folder.path());
        damage(&place(folder.path(), 14));
        let found = RunFolder::new(folder.path()).verify();
        assert_eq!(found.problems.len(), 1, "{what}: {:?}", found.problems);
        let strict = sit(folder.path(), &plan, None, true).0.unwrap_err();
        assert!(matches!(strict, Error::Damaged { .. } | Error::Io { .. }), "{what}: {strict}");
        let (outcome, notes) = sit(folder.path(), &plan, None, false);
        assert!(outcome.unwrap().finished, "{what}");
        assert!(notes.len() == 1 && notes[0].contains("step 14"), "{what}: {notes:?}");
        assert!(trace(folder.path()) == trace(whole.path()), "{what}");
        assert!(!checkpoint::folder(folder.path()).join(".replaced").exists());
    }
    // nothing whole is left: the run is not silently begun again
    for step in [5, 10, 14] {
        flip(place(whole.path(), step).join("model.safetensors"));
    }
    let error = refused(whole.path(), &plan);
    assert!(error.to_string().contains("checksum"), "{error}");
    let error = RunFolder::new(whole.path()).load(&kerple_lm::device(), false).unwrap_err();
    assert!(error.to_string().contains("checksum"), "{error}");
}

#[test]
fn a_reader_follows_a_trainer_that_replaces_what_it_reads() {
    let folder = tempfile::tempdir().unwrap();
    go(folder.path(), &plan(&encoding("none"), TrainConfig { keep_last_n: 1, ..config(3) }));
    let found = checkpoint::newest(folder.path(), false, |path| {
        if path == place(folder.path(), 3) {
            fs::rename(path, place(folder.path(), 4)).unwrap();
            let source = fs::read(path).unwrap_err();
            return Err(Error::io(path, "read")(source));
        }
        Ok(path.to_owned())
    });
    let found = found.unwrap().unwrap();
    assert_eq!((found.value, found.notes), (place(folder.path(), 4), vec![]));
}

#[test]
fn later_checkpoints_of_a_lost_session_do_not_push_out_good_ones() {
    let folder = tempfile::tempdir().unwrap();
    go(folder.path(), &plan(&encoding("none"), TrainConfig { keep_last_n: 2, ..config(14) }));
    fs::write(place(folder.path(), 14).join("model.safetensors"), "damaged").unwrap();
    let other = plan(&encoding("none"), TrainConfig { keep_last_n: 1, save_interval: 3, ..config(14) });
    sit(folder.path(), &other, Some(12), false).0.unwrap();
    let steps: Vec<u64> = checkpoint::list(folder.path()).unwrap().into_iter().map(|(step, _)| step).collect();
    assert_eq!(steps, [12]);
}

#[test]
fn one_process_trains_in_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(&encoding("alibi"), config(6));
    let (run, batches, stop) = (RunFolder::new(folder.path()), Counting(plan.clone()), AtomicBool::new(false));
    let session = TrainSession {
        plan: &plan,
        run: &run,
        batches: &batches,
        stop: &stop,
        strict: false,
        runtime: &Runtime::cpu(None),
    };
    let mut seconds = 0;
    train(&session, &mut |event| {
        if let TrainEvent::Step(progress) = event {
            let error = train(&session, &mut |_| panic!("a second trainer works")).unwrap_err();
            assert!(matches!(error, Error::Busy { .. }), "{error}");
            assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
            seconds += 1;
            // readers are not kept out
            assert_eq!(run.load(&kerple_lm::device(), false).is_ok(), progress.step > 5);
        }
    })
    .unwrap();
    assert_eq!(seconds, 6);
    go(folder.path(), &plan);
}

#[test]
fn a_refused_plan_leaves_the_folder_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let good = plan(&encoding("alibi"), config(3));
    go(folder.path(), &good);
    let batch = plan(&encoding("alibi"), TrainConfig { grad_clip: 0.5, ..config(3) });
    let error = refused(folder.path(), &batch);
    assert!(error.to_string().contains("train.grad_clip = 0.5 (was 1.0)") && error.is_misuse(), "{error}");
    // as if the first plan.json had never reached the disk
    fs::remove_file(folder.path().join("plan.json")).unwrap();
    let error = refused(folder.path(), &batch);
    assert!(error.to_string().contains("plan") && error.is_misuse(), "{error}");
    assert!(!folder.path().join("plan.json").exists(), "a refused plan is not written");
    assert!(go(folder.path(), &good).finished);
    // other text under the same name
    let mut other = good.clone();
    other.data_info.content = "another".to_owned();
    let error = refused(folder.path(), &other);
    assert!(error.to_string().contains("other text"), "{error}");
}

#[test]
fn a_finished_run_is_extended_along_its_schedule() {
    let folder = tempfile::tempdir().unwrap();
    let of = |steps, schedule_steps| plan(&encoding("kerple_log"), TrainConfig { schedule_steps, ..config(steps) });
    go(folder.path(), &of(8, None));
    let error = refused(folder.path(), &of(14, None));
    assert!(error.to_string().contains("train.steps = 14 (was 8)"), "{error}");
    assert!(error.hint().contains("--set train.steps=14 --set train.schedule_steps=8"), "{}", error.hint());
    assert!(go(folder.path(), &of(14, Some(8))).finished);
    let straight = tempfile::tempdir().unwrap();
    go(straight.path(), &of(14, Some(8)));
    assert!(trace(folder.path()).1 == trace(straight.path()).1, "the same weights as in one go");
    let rows = trace(folder.path()).3;
    assert_eq!(rows.last().unwrap().learning_rate, of(8, None).schedule().at(8), "the rate stays where it ended");
    let error = refused(folder.path(), &of(13, Some(8)));
    assert!(error.to_string().contains("has done 14 updates, more than train.steps = 13"), "{error}");
}

#[test]
fn a_run_remembers_the_programs_that_trained_it() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(&encoding("kerple_log"), config(6));
    // the last has nothing left to do
    for (program, stop) in [("first", Some(2)), ("second", Some(4)), ("third", None), ("fourth", None)] {
        let runtime = Runtime::cpu(Some(program.to_owned()));
        sit_as(&runtime, folder.path(), &plan, stop, false).0.unwrap();
        let plan = RunFolder::new(folder.path()).existing_plan().unwrap();
        assert_eq!(plan.commit.as_deref(), Some("first"), "after the {program}");
    }
    let sessions = read_rows::<SessionRow>(&folder.path().join("sessions.jsonl")).unwrap().rows;
    let started: Vec<_> =
        sessions.iter().map(|row| (row.provenance.commit.as_deref().unwrap(), row.first_step)).collect();
    assert_eq!(started, [("first", 1), ("second", 3), ("third", 5)]);
    for SessionRow { provenance, micro_batch_size, started_at, .. } in &sessions {
        let here = Runtime::cpu(provenance.commit.clone()).provenance;
        assert_eq!((provenance, *micro_batch_size), (&here, 2));
        assert!(!here.cpu.is_empty() && here.threads > 0 && *started_at > 1_700_000_000, "{here}");
    }
}

#[test]
fn a_run_goes_on_with_fewer_sequences_at_once_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let with = |micro_batch| plan(&encoding("alibi"), TrainConfig { micro_batch_size: Some(micro_batch), ..config(9) });
    sit(folder.path(), &with(4), Some(4), false).0.unwrap();
    sit(folder.path(), &with(2), Some(7), false).0.unwrap();
    assert!(sit(folder.path(), &with(1), None, true).0.unwrap().finished);
    let sessions = read_rows::<SessionRow>(&folder.path().join("sessions.jsonl")).unwrap().rows;
    let said: Vec<_> = sessions.iter().map(|row| (row.first_step, row.micro_batch_size)).collect();
    assert_eq!(said, [(1, 4), (5, 2), (8, 1)]);
    let last: CheckpointState = read_json(&place(folder.path(), 9).join("state.json")).unwrap();
    assert_eq!(last.trajectory_hash, with(4).trajectory_hash(), "what it writes is as any other writes it");
    let error = refused(folder.path(), &plan(&encoding("alibi"), TrainConfig { grad_clip: 0.5, ..config(9) }));
    let said = error.to_string();
    assert!(said.contains("train.grad_clip = 0.5 (was 1.0)") && !said.contains("micro_batch_size"), "{said}");
}

#[test]
fn no_step_at_all_still_makes_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    assert!(go(folder.path(), &plan(&encoding("t5"), config(0))).finished);
    assert_eq!(RunFolder::new(folder.path()).load(&kerple_lm::device(), true).unwrap().state.step, 0);
}

#[test]
fn checkpoints_hold_finite_values_only() {
    let folder = tempfile::tempdir().unwrap();
    let mut plan = plan(&encoding("alibi"), TrainConfig { save_interval: 1, warmup_ratio: 0.0, ..config(5) });
    plan.train.learning_rate = f64::INFINITY;
    let error = refused(folder.path(), &plan);
    assert!(matches!(error, Error::NotFinite { step: 1, .. }), "{error}");
    assert_eq!(checkpoint::list(folder.path()).unwrap(), [], "what cannot be gone on from is not kept");
}

#[test]
fn missing_validation_text_is_said_once() {
    let folder = tempfile::tempdir().unwrap();
    let short = |rows: usize| {
        struct Short(Counting, usize);
        impl kerple_lm::sequences::BatchSource for Short {
            fn batch(
                &self,
                step: u64,
                rows: std::ops::Range<usize>,
            ) -> kerple_lm::Result<kerple_lm::objective::SequenceBatch> {
                self.0.batch(step, rows)
            }
            fn validation_rows(&self) -> usize {
                self.1
            }
            fn validation(
                &self,
                rows: std::ops::Range<usize>,
            ) -> kerple_lm::Result<kerple_lm::objective::SequenceBatch> {
                self.0.validation(rows)
            }
        }
        let plan = plan(&encoding("none"), config(4));
        let (run, stop) = (RunFolder::new(folder.path().join(rows.to_string())), AtomicBool::new(false));
        let batches = Short(Counting(plan.clone()), rows);
        let mut notes = Vec::new();
        let session = TrainSession {
            plan: &plan,
            run: &run,
            batches: &batches,
            stop: &stop,
            strict: false,
            runtime: &Runtime::cpu(None),
        };
        let mut tell = |event: TrainEvent| {
            if let TrainEvent::Note(note) = event {
                notes.push(note);
            }
        };
        train(&session, &mut tell).unwrap();
        notes
    };
    assert!(matches!(&short(0)[..], [note] if note.contains("no validation loss")));
    assert!(matches!(&short(2)[..], [note] if note.contains("uses 2 sequences")));
    assert!(short(3).is_empty());
}
