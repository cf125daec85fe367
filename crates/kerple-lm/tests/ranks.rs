//! Several ranks do what one process does, to the bit, and all of them end when one cannot go on. Ranks are threads here.

use crate::common::{Counting, encoding, on_ranks, plan_of};
use kerple_data::{PrepareOptions, Sources, prepare};
use kerple_lm::checkpoint;
use kerple_lm::compare::Comparison;
use kerple_lm::config::{RunConfig, TrainConfig};
use kerple_lm::corpus::{DataSource, Split};
use kerple_lm::evaluate::{
    EvalCheckpoint, EvalRequest, EvalRun, Protocol, SegmentCount, TaskEval, TaskEvalRequest, of_source,
};
use kerple_lm::objective::SequenceBatch;
use kerple_lm::plan::Plan;
use kerple_lm::ranks::Ranks;
use kerple_lm::run::RunFolder;
use kerple_lm::runtime::Runtime;
use kerple_lm::sequences::BatchSource;
use kerple_lm::sweep::{self, Shard};
use kerple_lm::train::{self, TrainEvent, TrainOutcome, TrainSession, train};
use kerple_lm::{Error, Result};
use kerple_run::{EvaluationRow, MetricsRow, SessionRow, read_rows};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// A run of batches of 12 sequences, worked off in parts of `micro_batch`.
fn plan(steps: u64, micro_batch: usize) -> Plan {
    let train = TrainConfig {
        steps,
        learning_rate: 1e-2,
        warmup_ratio: 0.1,
        weight_decay: 0.1,
        micro_batch_size: Some(micro_batch),
        log_every: 4,
        eval_interval: 3,
        eval_sequences: 700,
        save_interval: 5,
        keep_last_n: 3,
        ..TrainConfig::default()
    };
    plan_of(&encoding("kerple_log"), train, [2, 2, 8], [12, 12])
}

/// One session of one rank; `stop_after` sets its own flag.
fn sit(ranks: &Ranks, folder: &Path, plan: &Plan, stop_after: Option<u64>) -> (Result<TrainOutcome>, Vec<String>) {
    sit_on(ranks, folder, plan, &Counting(plan.clone()), stop_after)
}

fn sit_on(
    ranks: &Ranks,
    folder: &Path,
    plan: &Plan,
    batches: &dyn BatchSource,
    stop_after: Option<u64>,
) -> (Result<TrainOutcome>, Vec<String>) {
    let (run, stop, runtime) =
        (RunFolder::new(folder), AtomicBool::new(false), Runtime::cpu(None).with_ranks(ranks.clone()));
    let mut notes = Vec::new();
    let session = TrainSession { plan, run: &run, batches, stop: &stop, strict: false, runtime: &runtime };
    let outcome = train(&session, &mut |event| match event {
        TrainEvent::Step(progress) => stop.store(stop_after == Some(progress.step), Ordering::Relaxed),
        TrainEvent::Note(note) => notes.push(note),
    });
    (outcome, notes)
}

/// What must not depend on ranks: weights and moments of the newest checkpoint, rows without times, kernels.
fn trace(folder: &Path) -> (u64, Vec<u8>, Vec<u8>, Vec<MetricsRow>, Vec<u8>) {
    let (step, newest) = checkpoint::list(folder).unwrap().pop().unwrap();
    let mut rows = read_rows::<MetricsRow>(&folder.join("metrics.jsonl")).unwrap().rows;
    rows.iter_mut().for_each(|row| (row.seconds, row.step_seconds, row.comm_wait_fraction) = (0.0, 0.0, None));
    let read = |path: PathBuf| fs::read(path).unwrap();
    let [weights, moments] = ["model", "optimizer"].map(|name| read(newest.join(name).with_extension("safetensors")));
    (step, weights, moments, rows, read(folder.join("kernels.json")))
}

#[test]
fn any_number_of_ranks_trains_the_run_of_one() {
    let plan = plan(8, 2);
    let alone = tempfile::tempdir().unwrap();
    let straight = sit(&Ranks::alone(), alone.path(), &plan, None).0.unwrap();
    assert!(read_rows::<MetricsRow>(&alone.path().join("metrics.jsonl")).unwrap().rows[0].comm_wait_fraction.is_none());
    for count in [2, 3, 6] {
        let folder = tempfile::tempdir().unwrap();
        let ended = on_ranks(count, |ranks| sit(&ranks, folder.path(), &plan, None));
        for (outcome, notes) in ended {
            assert_eq!((outcome.unwrap().loss, notes), (straight.loss, Vec::<String>::new()), "{count} ranks");
        }
        assert!(trace(folder.path()) == trace(alone.path()), "{count} ranks");
        let rows = read_rows::<MetricsRow>(&folder.path().join("metrics.jsonl")).unwrap().rows;
        assert!(rows.iter().all(|row| (0.0..=1.0).contains(&row.comm_wait_fraction.unwrap())), "{rows:?}");
        let sessions = read_rows::<SessionRow>(&folder.path().join("sessions.jsonl")).unwrap().rows;
        assert_eq!((sessions.len(), sessions[0].world_size, sessions[0].micro_batch_size), (1, count as u64, 2));
    }
}

#[test]
fn a_run_goes_on_with_another_number_of_ranks() {
    let plan = plan(14, 1);
    let (alone, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    sit(&Ranks::alone(), alone.path(), &plan, None).0.unwrap();
    for (count, stop) in [(3, Some(2)), (4, Some(5)), (1, Some(7)), (2, Some(11)), (12, None)] {
        // the signal comes to the last rank only
        let sit = |ranks: Ranks| sit(&ranks, parts.path(), &plan, stop.filter(|_| ranks.rank() == count - 1)).0;
        for outcome in on_ranks(count, sit) {
            let outcome = outcome.unwrap();
            assert_eq!((outcome.step, outcome.finished), (stop.unwrap_or(14), stop.is_none()), "{count} ranks");
        }
    }
    assert!(trace(alone.path()) == trace(parts.path()));
}

#[test]
fn parts_that_ranks_cannot_share_are_made_smaller_and_it_is_said() {
    let (alone, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    sit(&Ranks::alone(), alone.path(), &plan(5, 3), None).0.unwrap();
    let plan = plan(5, 12);
    for (outcome, notes) in on_ranks(4, |ranks| sit(&ranks, folder.path(), &plan, None)) {
        outcome.unwrap();
        assert!(notes[0].starts_with("micro-batches of 3 sequences instead of 12, so that all 4 ranks"), "{notes:?}");
    }
    assert!(trace(alone.path()) == trace(folder.path()));
    let untouched = tempfile::tempdir().unwrap();
    for (outcome, _) in on_ranks(5, |ranks| sit(&ranks, untouched.path(), &plan, None)) {
        let error = outcome.unwrap_err();
        assert!(error.to_string().contains("5 ranks do not divide train.batch_size = 12"), "{error}");
        assert!(error.hint().contains("e.g. 4") && error.is_misuse(), "{}", error.hint());
    }
    assert_eq!(fs::read_dir(untouched.path()).unwrap().count(), 0);
}

/// A text that one rank cannot read at a step.
struct Torn(Counting, u64);

impl BatchSource for Torn {
    fn batch(&self, step: u64, rows: Range<usize>) -> Result<SequenceBatch> {
        if step == self.1 {
            let source = std::io::Error::other("the cable was pulled");
            return Err(Error::io(Path::new("text"), "read")(source));
        }
        self.0.batch(step, rows)
    }

    fn validation_rows(&self) -> usize {
        self.0.validation_rows()
    }

    fn validation(&self, rows: Range<usize>) -> Result<SequenceBatch> {
        self.0.validation(rows)
    }
}

#[test]
fn what_one_rank_cannot_read_ends_all_and_nothing_is_lost() {
    let plan = plan(9, 2);
    let (alone, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    sit(&Ranks::alone(), alone.path(), &plan, None).0.unwrap();
    let ended = on_ranks(3, |ranks| {
        let torn = Torn(Counting(plan.clone()), if ranks.rank() == 1 { 7 } else { u64::MAX });
        let error = sit_on(&ranks, folder.path(), &plan, &torn, None).0.unwrap_err();
        (error.to_string(), ranks.share_failure())
    });
    let own = ("text: cannot read: the cable was pulled".to_owned(), true);
    let others = (format!("rank 1 on thread-1: {}", own.0), true);
    assert_eq!(ended, [others.clone(), own, others]);
    assert_eq!(trace(folder.path()).0, 5, "the last checkpoint");
    on_ranks(3, |ranks| sit(&ranks, folder.path(), &plan, None).0.unwrap());
    assert!(trace(alone.path()) == trace(folder.path()));
}

#[test]
fn what_the_first_rank_cannot_write_ends_all() {
    let plan = plan(9, 2);
    let (alone, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    sit(&Ranks::alone(), alone.path(), &plan, None).0.unwrap();
    let aside = folder.path().join("checkpoints/.partial");
    let ended = on_ranks(2, |ranks| {
        let torn = Torn(Counting(plan.clone()), u64::MAX);
        let block = Blocking { inner: torn, file: (ranks.rank() == 0).then(|| aside.clone()) };
        sit_on(&ranks, folder.path(), &plan, &block, None).0.unwrap_err().to_string()
    });
    assert!(ended[0].contains(".partial: cannot remove"), "{ended:?}");
    assert_eq!(ended[1], format!("rank 0 on thread-0: {}", ended[0]));
    fs::remove_file(&aside).unwrap();
    on_ranks(2, |ranks| sit(&ranks, folder.path(), &plan, None).0.unwrap());
    assert!(trace(alone.path()) == trace(folder.path()));
}

/// A text in whose fourth step a file comes into the place of the next checkpoint.
struct Blocking {
    inner: Torn,
    file: Option<PathBuf>,
}

impl BatchSource for Blocking {
    fn batch(&self, step: u64, rows: Range<usize>) -> Result<SequenceBatch> {
        if let (3, Some(file)) = (step, &self.file) {
            block(file);
        }
        self.inner.batch(step, rows)
    }

    fn validation_rows(&self) -> usize {
        self.inner.validation_rows()
    }

    fn validation(&self, rows: Range<usize>) -> Result<SequenceBatch> {
        self.inner.validation(rows)
    }
}

fn block(file: &Path) {
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, "no folder").unwrap();
}

#[test]
fn a_folder_in_use_is_refused_on_every_rank() {
    let (plan, folder) = (plan(3, 2), tempfile::tempdir().unwrap());
    let _lock = RunFolder::new(folder.path()).lock().unwrap();
    for error in on_ranks(2, |ranks| sit(&ranks, folder.path(), &plan, None).0.unwrap_err().to_string()) {
        assert!(error.contains("is training here"), "{error}");
    }
}

#[test]
fn ranks_that_differ_are_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let other = Plan { hash: "another".to_owned(), ..plan(3, 2) };
    let refused = |differs: &(dyn Fn(usize) -> Plan + Sync), place: &(dyn Fn(usize) -> PathBuf + Sync)| {
        let sit = |ranks: Ranks| sit(&ranks, &place(ranks.rank()), &differs(ranks.rank()), None).0.unwrap_err();
        let ended = on_ranks(3, |ranks| sit(ranks).to_string());
        assert!(ended.iter().all(|error| *error == ended[0]), "{ended:?}");
        ended[0].clone()
    };
    let here = |_| folder.path().to_owned();
    let error = refused(&|rank| if rank == 2 { other.clone() } else { plan(3, 2) }, &here);
    assert!(error.starts_with("rank 2 on thread-2: plan another, rank 0 on thread-0: "), "{error}");
    let only_lock = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
    assert_eq!(only_lock, [".lock"]);

    // a machine that sees another folder, or an older state of it
    let elsewhere = tempfile::tempdir().unwrap();
    sit(&Ranks::alone(), folder.path(), &plan(3, 2), Some(1)).0.unwrap();
    let places = |rank: usize| if rank == 1 { elsewhere.path().to_owned() } else { folder.path().to_owned() };
    let error = refused(&|_| plan(3, 2), &places);
    assert!(error.starts_with("rank 1 on thread-1: a checkpoint of step 0, rank 0 on thread-0: 1"), "{error}");
}

/// A prepared text, and a run file over it.
fn text(folder: &Path) -> RunConfig {
    let (input, out) = (folder.join("texts"), folder.join("data"));
    let words = ["a", "bird", "sat", "on", "the", "third", "branch", "and", "sang"];
    let line = |at: usize| format!("{} {} {} {at}.\n", words[at % 9], words[at * at % 7], words[at / 3 % 8]);
    fs::create_dir_all(&input).unwrap();
    for file in 0..100 {
        let lines = (file * 120..(file + 1) * 120).map(line).collect::<String>();
        fs::write(input.join(format!("{file}.txt")), lines).unwrap();
    }
    let options = PrepareOptions { split: [0.5, 0.1, 0.4], ..PrepareOptions::new(Sources::paths(&[&input]), &out) };
    prepare(&options, &mut |_| {}).unwrap();
    let text = format!(
        "seed = 3\ndata.path = {:?}\nencoding.kind = \"alibi\"\nmodel.n_layers = 1\nmodel.n_heads = 2\nmodel.head_dim = 8\n\
         [train]\ntrain_len = 16\nbatch_size = 4\nsteps = 4\nlearning_rate = 1e-2\nsave_interval = 2\nlog_every = 1\n",
        out.display().to_string()
    );
    RunConfig::parse(&text, "test", &[]).unwrap()
}

fn request() -> EvalRequest {
    let (lengths, protocol) = (vec![16, 4096, 64], Protocol::Segments);
    EvalRequest {
        lengths,
        protocol,
        n_segments: SegmentCount::Exactly(5),
        segment_len: Some(4096),
        seed: 3,
        per_position: true,
        documents: None,
        within: Default::default(),
    }
}

fn rows(run: &Path) -> Vec<EvaluationRow> {
    let mut rows = RunFolder::new(run).evaluations().unwrap();
    rows.iter_mut().for_each(|row| row.seconds = 0.0);
    rows
}

#[test]
fn windows_are_shared_and_rows_are_those_of_one() {
    let place = tempfile::tempdir().unwrap();
    let config = text(place.path());
    let source = DataSource::open(&config.data).unwrap();
    let plan = Plan::new(&config, source.facts()).unwrap();
    let run = RunFolder::new(place.path().join("run"));
    let (stop, runtime) = (AtomicBool::new(false), Runtime::cpu(None));
    let batches = source.batches(&plan).unwrap();
    train(
        &TrainSession { plan: &plan, run: &run, batches: &batches, stop: &stop, strict: false, runtime: &runtime },
        &mut |_| {},
    )
    .unwrap();
    let evaluate = |ranks: Ranks, stop_at: Option<usize>| {
        let (runtime, stop) = (Runtime::cpu(None).with_ranks(ranks), AtomicBool::new(false));
        let (source, request) = (DataSource::open(&config.data).unwrap(), request());
        let trained = run.load_any(&runtime.device, true).unwrap();
        let of = EvalCheckpoint { plan: &trained.plan, step: trained.state.step, model: &*trained.model };
        let known = run.evaluations().unwrap();
        let scored =
            of_source(&source, Split::Test, (&trained.plan, &run.special_tokens().unwrap()), &request, &known).unwrap();
        let evaluation = EvalRun::new(&run, of, &*scored, &runtime).unwrap();
        evaluation.run(&stop, &mut |event| {
            if let kerple_lm::evaluate::EvalEvent::Evaluating { length: 4096, done, .. } = event {
                stop.store(stop_at == Some(done), Ordering::Relaxed);
            }
        })
    };
    assert!(evaluate(Ranks::alone(), None).unwrap());
    let want = rows(run.path());
    assert_eq!(want.len(), 3);
    for count in [2, 3, 7] {
        fs::remove_file(run.evaluation_file()).unwrap();
        // a signal to the last rank in the second length, whose five windows are two, two and one at once
        let stopped = on_ranks(count, |ranks| {
            let last = ranks.rank() == count - 1;
            evaluate(ranks, last.then_some(4)).unwrap()
        });
        assert!(stopped.iter().all(|finished| *finished == (count > 2)), "{count} ranks: {stopped:?}");
        assert!(on_ranks(count, |ranks| evaluate(ranks, None).unwrap()).iter().all(|finished| *finished));
        assert_eq!(rows(run.path()), want, "{count} ranks");
    }
}

#[test]
fn sequences_of_a_task_are_shared_too() {
    let place = tempfile::tempdir().unwrap();
    let text = "seed = 7\ndata.task = \"stack_manipulation\"\nencoding.kind = \"alibi\"\n\
                [model]\nn_layers = 1\nn_heads = 2\nhead_dim = 8\n\
                [train]\ntrain_len = 8\nbatch_size = 4\nsteps = 3\nlearning_rate = 1e-2\n";
    let config = RunConfig::parse(text, "test", &[]).unwrap();
    let source = DataSource::open(&config.data).unwrap();
    let plan = Plan::new(&config, source.facts()).unwrap();
    let folders = [1, 3].map(|count| {
        let folder = place.path().join(count.to_string());
        on_ranks(count, |ranks| {
            let (runtime, stop, run) =
                (Runtime::cpu(None).with_ranks(ranks), AtomicBool::new(false), RunFolder::new(&folder));
            let source = DataSource::open(&config.data).unwrap();
            let batches = source.batches(&plan).unwrap();
            // four sequences are two ranks' or one's, not three's
            let alone = runtime.alone();
            let train = |runtime: &Runtime| {
                let session =
                    TrainSession { plan: &plan, run: &run, batches: &batches, stop: &stop, strict: false, runtime };
                train::train(&session, &mut |_| {}).map(drop)
            };
            runtime.ranks.first(|| train(&alone)).unwrap();
            let trained = run.load_any(&runtime.device, true).unwrap();
            let request = TaskEvalRequest { lengths: vec![8, 400], examples: 70, seed: 7, split: Split::Test };
            let task = source.task().unwrap();
            let scored = TaskEval::new(task, request);
            let of = EvalCheckpoint { plan: &trained.plan, step: trained.state.step, model: trained.model.as_ref() };
            EvalRun::new(&run, of, &scored, &runtime).unwrap().run(&stop, &mut |_| {}).unwrap()
        });
        folder
    });
    let [one, three] = folders.map(|folder| rows(&folder));
    assert_eq!(one, three);
    assert_eq!((one.len(), one[0].tokens > 0), (2, true));
}

fn comparison(config: &RunConfig, out: PathBuf, ranks: Ranks) -> Comparison {
    Comparison {
        config: config.clone(),
        encodings: ["alibi", "rotary", "none"].map(encoding).to_vec(),
        layers: None,
        seeds: 2,
        request: request(),
        rope_scalings: Vec::new(),
        runs: out.join("runs"),
        out,
        runtime: Runtime::cpu(None).with_ranks(ranks),
    }
}

/// Weights and rows of every run of a comparison.
fn results(out: &Path) -> Vec<(Vec<u8>, Vec<EvaluationRow>)> {
    let runs =
        ["alibi", "none", "rotary"].into_iter().flat_map(|label| [3, 4].map(|seed| format!("{label}/seed-{seed}")));
    let of = |run: String| {
        let run = out.join("runs").join(run);
        (fs::read(run.join("checkpoints/step-00000004/model.safetensors")).unwrap(), rows(&run))
    };
    runs.map(of).collect()
}

#[test]
fn runs_are_shared_and_are_those_of_one() {
    let place = tempfile::tempdir().unwrap();
    let config = text(place.path());
    let stop = AtomicBool::new(false);
    let alone = place.path().join("alone");
    assert!(comparison(&config, alone.clone(), Ranks::alone()).run(Shard::WHOLE, &stop, &mut |_| {}).unwrap());
    for count in [2, 4] {
        let out = place.path().join(count.to_string());
        let compare = |ranks: Ranks, stop_in: bool| {
            let stop = AtomicBool::new(false);
            comparison(&config, out.clone(), ranks).run(Shard::WHOLE, &stop, &mut |event| {
                if let (true, sweep::SweepEvent::Training(TrainEvent::Step(_))) = (stop_in, event) {
                    stop.store(true, Ordering::Relaxed);
                }
            })
        };
        // a signal to rank 1 stops all
        let stopped = on_ranks(count, |ranks| {
            let first = ranks.rank() == 1;
            compare(ranks, first).unwrap()
        });
        assert!(stopped.iter().all(|finished| !finished), "{stopped:?}");
        assert!(on_ranks(count, |ranks| compare(ranks, false).unwrap()).iter().all(|finished| *finished));
        assert!(results(&out) == results(&alone), "{count} ranks");
    }
}

#[test]
fn a_run_that_fails_on_one_rank_stops_the_others() {
    let place = tempfile::tempdir().unwrap();
    let config = text(place.path());
    let out = place.path().join("out");
    // the second run, which is rank 1's, cannot be saved
    let aside = out.join("runs/rotary/seed-3/checkpoints/.partial");
    let ended = on_ranks(2, |ranks| {
        let (first, own) = (ranks.is_first(), ranks.clone());
        let comparison = comparison(&config, out.clone(), own);
        let ended = comparison.run(Shard::WHOLE, &AtomicBool::new(false), &mut |event| match event {
            sweep::SweepEvent::Training(TrainEvent::Step(step)) if !first && step.step == 1 => block(&aside),
            // a rank that has much to do
            sweep::SweepEvent::Training(_) if first => std::thread::sleep(std::time::Duration::from_millis(200)),
            _ => {}
        });
        ended.unwrap_err().to_string()
    });
    assert!(ended[1].contains(".partial: cannot remove"), "{ended:?}");
    assert_eq!(ended[0], format!("rank 1 on thread-1: {}", ended[1]));
    assert!(!out.join("runs/rotary/seed-4").exists(), "rank 0 has stopped before its last run");
    fs::remove_file(&aside).unwrap();
    let finished =
        |ranks| comparison(&config, out.clone(), ranks).run(Shard::WHOLE, &AtomicBool::new(false), &mut |_| {});
    assert!(on_ranks(2, |ranks| finished(ranks).unwrap()).iter().all(|finished| *finished));
}
