//! Tasks from a run file to rows: batches, training, stopping and going on, evaluation.

use kerple_burn::implementation::Impl;
use kerple_burn::parameters;
use kerple_core::encoding::Encoding;
use kerple_data::Split;
use kerple_data::tasks::TaskConfig;
use kerple_lm::architecture::FromPlan;
use kerple_lm::config::RunConfig;
use kerple_lm::corpus::DataSource;
use kerple_lm::evaluate::{
    EvalCheckpoint, EvalEvent as Evaluating, EvalRun, Reuse, TaskEval, TaskEvalRequest, known, served,
};
use kerple_lm::forward_context::ForwardContext;
use kerple_lm::model::{Classifier, Decoder, Transducer};
use kerple_lm::objective::{Classification, Objective, SequenceBatch};
use kerple_lm::plan::Plan;
use kerple_lm::run::RunFolder;
use kerple_lm::runtime::Runtime;
use kerple_lm::sequences::BatchSource;
use kerple_lm::train::{TrainEvent, TrainOutcome, TrainSession, train};
use kerple_lm::train_state::{TrainState, settings};
use kerple_run::{EvaluationRow, MetricsRow, Provenance};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// A small post-norm encoder, or decoder, on a task.
fn config(task: &str, more: &[&str]) -> RunConfig {
    let text = format!(
        r#"
        data = {{ task = {task} }}
        encoding = {{ kind = "alibi" }}
        [model]
        n_layers = 2
        n_heads = 2
        head_dim = 8
        [model.block]
        residual = "post_ln"
        activation = "relu"
        qkv_bias = false
        out_bias = false
        scale_embeddings = true
        init = "fan_in"
        dropout = 0.1
        [train]
        train_len = 8
        batch_size = 16
        steps = 12
        learning_rate = 3e-3
        warmup_ratio = 0.0
        lr_schedule = "constant"
        log_every = 1
        save_interval = 5
        eval_interval = 6
        "#
    );
    let more: Vec<String> = more.iter().map(|more| (*more).to_owned()).collect();
    RunConfig::parse(&text, "test", &more).unwrap()
}

fn plan(config: &RunConfig) -> (Plan, DataSource) {
    let source = DataSource::open(&config.data).unwrap();
    (Plan::new(config, source.facts()).unwrap(), source)
}

/// Trains in a folder; the stop flag is set at `stop_at`.
fn run(config: &RunConfig, folder: &Path, stop_at: u64) -> TrainOutcome {
    let (plan, source) = plan(config);
    let (run, stop) = (RunFolder::new(folder), AtomicBool::new(false));
    let batches = source.batches(&plan).unwrap();
    let session = TrainSession {
        plan: &plan,
        run: &run,
        batches: &batches,
        stop: &stop,
        strict: false,
        runtime: &Runtime::cpu(None),
    };
    let outcome = train(&session, &mut |event| {
        if let TrainEvent::Step(progress) = event {
            stop.store(progress.step >= stop_at, Ordering::Relaxed);
        }
    });
    outcome.unwrap()
}

fn evaluate(folder: &Path, request: &TaskEvalRequest) -> (Vec<EvaluationRow>, usize) {
    let run = RunFolder::new(folder);
    let runtime = Runtime::cpu(None);
    let trained = run.load_any(&runtime.device, true).unwrap();
    let source = DataSource::open(&trained.plan.data).unwrap();
    let scored = TaskEval::new(source.task().unwrap(), request.clone());
    let checkpoint = EvalCheckpoint { plan: &trained.plan, step: trained.state.step, model: trained.model.as_ref() };
    let evaluation = EvalRun::new(&run, checkpoint, &scored, &runtime).unwrap();
    let (mut rows, mut fresh_ones) = (Vec::new(), 0);
    let finished = evaluation.run(&AtomicBool::new(false), &mut |event| {
        if let Evaluating::Row { row, fresh } = event {
            rows.push(row.clone());
            fresh_ones += usize::from(fresh);
        }
    });
    assert!(finished.unwrap());
    (rows, fresh_ones)
}

fn request(lengths: &[usize]) -> TaskEvalRequest {
    TaskEvalRequest { lengths: lengths.to_vec(), examples: 40, seed: 7, split: Split::Test }
}

#[test]
fn a_stopped_run_goes_on_as_if_it_had_not_been_stopped() {
    for (task, length) in [("\"stack_manipulation\"", "8"), ("{ kind = \"passkey\", digits = 2 }", "8")] {
        let config = config(task, &[&format!("train.train_len={length}")]);
        let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        assert!(run(&config, whole.path(), 100).finished);
        assert!(!run(&config, parts.path(), 7).finished);
        assert!(run(&config, parts.path(), 100).finished);
        let weights =
            |folder: &Path| std::fs::read(folder.join("checkpoints/step-00000012/model.safetensors")).unwrap();
        assert_eq!(weights(whole.path()), weights(parts.path()), "{task}");
        let request = request(&[8, 16]);
        assert_eq!(
            evaluate(whole.path(), &request).0.iter().map(|row| row.nll).collect::<Vec<_>>(),
            evaluate(parts.path(), &request).0.iter().map(|row| row.nll).collect::<Vec<_>>(),
        );
        assert!(RunFolder::new(whole.path()).verify().is_good());
    }
}

#[test]
fn rows_say_what_was_evaluated_and_are_not_made_twice() {
    let config = config("\"bucket_sort\"", &[]);
    let folder = tempfile::tempdir().unwrap();
    run(&config, folder.path(), 100);
    let (rows, fresh) = evaluate(folder.path(), &request(&[8, 24]));
    assert_eq!((rows.len(), fresh), (2, 2));
    let answers = rows[1].task.as_ref().unwrap();
    assert_eq!((rows[1].eval_len, rows[1].n_windows, rows[1].tokens), (24, 40, 40 * 24));
    assert_eq!((answers.name.as_str(), answers.chance, &answers.by_depth), ("bucket_sort", 0.2, &None));
    assert!((0.0..=1.0).contains(&answers.accuracy));
    let (again, fresh) = evaluate(folder.path(), &request(&[24, 8, 9]));
    assert_eq!((again.len(), fresh, &again[0]), (3, 1, &rows[1]));
    // another number of sequences, or other ones, is another evaluation
    let (_, fresh) = evaluate(folder.path(), &TaskEvalRequest { examples: 41, ..request(&[8]) });
    let (_, other) = evaluate(folder.path(), &TaskEvalRequest { seed: 8, ..request(&[8]) });
    assert_eq!((fresh, other), (1, 1));
    let (plan, source) = plan(&config);
    let rows = RunFolder::new(folder.path()).evaluations().unwrap();
    let here = Runtime::cpu(None).provenance;
    let lacks = |by: (&Provenance, Reuse), encoding: &Encoding, source: &DataSource, lengths: &[usize]| {
        let scored = TaskEval::new(source.task().unwrap(), request(lengths));
        let found = known(&rows, (plan.steps, encoding), &scored, by);
        lengths.iter().zip(found).filter(|(_, row)| row.is_none()).map(|(length, _)| *length).collect::<Vec<usize>>()
    };
    let missing = |encoding: &Encoding, source: &DataSource, lengths: &[usize]| {
        lacks((&here, Reuse::Same), encoding, source, lengths)
    };
    assert_eq!(missing(&plan.encoding, &source, &[8, 9, 10, 24]), [10]);
    let windowed = Encoding { window: Some(4), ..plan.encoding.clone() };
    assert_eq!(missing(&windowed, &source, &[8]), [8], "a window is another evaluation");
    let other = DataSource::open(&self::config("\"odds_first\"", &[]).data).unwrap();
    assert_eq!(missing(&plan.encoding, &other, &[8]), [8], "so are other examples");
    // and what is computed otherwise: of another machine's instruction set where only one is asked for
    for (by, [same, any]) in [
        (Provenance { precision: "bf16".into(), ..here.clone() }, [1, 1]),
        (Provenance { device: "cuda:0 (A)".into(), ..here.clone() }, [1, 1]),
        (Provenance { simd: "mmx".into(), ..here.clone() }, [1, 0]),
        (Provenance { commit: Some("abc".into()), threads: 99, ..here.clone() }, [0, 0]),
    ] {
        let lacking = |reuse| lacks((&by, reuse), &plan.encoding, &source, &[8]).len();
        assert_eq!([lacking(Reuse::Same), lacking(Reuse::AnyMachine)], [same, any], "{by}");
    }
}

#[test]
fn a_task_is_learned() {
    let config = config("\"bucket_sort\"", &["train.steps=120", "train.eval_interval=0", "model.block.dropout=0.0"]);
    let folder = tempfile::tempdir().unwrap();
    run(&config, folder.path(), 1000);
    let losses = kerple_run::read_rows::<MetricsRow>(&folder.path().join(kerple_run::METRICS_FILE)).unwrap().rows;
    let mean = |rows: &[MetricsRow]| rows.iter().map(|row| row.loss).sum::<f64>() / rows.len() as f64;
    // who does not look at the sequence has the entropy of five digits
    let (last, guessing) = (mean(&losses[100..]), 5f64.ln());
    assert!(last < 0.9 * guessing, "{last} of {guessing}");
}

#[test]
fn encoders_learn_groups_and_flip_flops() {
    for task in [
        r#"{ kind = "group", group = "s3", answer = "tape" }"#,
        r#"{ kind = "group", group = "z2", score = "last", answer = "tape" }"#,
        r#"{ kind = "flipflop", ignore = 0.5, answer = "tape" }"#,
    ] {
        let folder = tempfile::tempdir().unwrap();
        assert!(run(&config(task, &[]), folder.path(), 99).finished, "{task}");
        let (rows, _) = evaluate(folder.path(), &request(&[8, 20]));
        let answers = if task.contains("s3") { [8, 20] } else { [1, 1] };
        assert_eq!([rows[0].tokens, rows[1].tokens], answers.map(|answers| 40 * answers), "{task}");
    }
}

#[test]
fn batches_are_functions_of_the_step() {
    let (plan, source) = plan(&config("\"binary_addition\"", &[]));
    let batches = source.batches(&plan).unwrap();
    let whole = batches.batch(3, 0..16).unwrap();
    let [first, second] = [0..6, 6..16].map(|rows| batches.batch(3, rows).unwrap());
    assert_eq!(whole.tokens, [first.tokens.clone(), second.tokens].concat(), "one length for all rows of a step");
    assert_eq!(whole.targets, [first.targets, second.targets].concat());
    let lengths: std::collections::BTreeSet<usize> =
        (0..200).map(|step| batches.batch(step, 0..1).unwrap().len).collect();
    // L tokens and L + 1 empty places
    assert_eq!(lengths, (1..=8).map(|length| 2 * length + 1).collect());
    assert_eq!(whole.len, first.len);
    assert!(whole.tokens[whole.len - whole.targets.len() / 16..whole.len].iter().all(|token| *token == 3));
}

/// Expressions of few tokens, so that rows are padded.
const LIST_OPS: &str = "{ kind = \"listops\", more_than = 2, fewer_than = 24, depth = 3 }";

#[test]
fn positions_are_drawn_for_the_longest_row_of_the_batch() {
    for pooling in ["mean", "cls"] {
        let pooling = format!("model.pooling={pooling}");
        let set = ["encoding={kind=\"rotary\",randomized=64}", "train.train_len=24", &pooling];
        let (plan, source) = plan(&config(LIST_OPS, &set));
        let batches = source.batches(&plan).unwrap();
        let loss = |each: usize| {
            let parts: Vec<SequenceBatch> =
                (0..16).step_by(each).map(|row| batches.batch(3, row..row + each).unwrap()).collect();
            let lengths: std::collections::BTreeSet<usize> = parts.iter().map(|part| part.len).collect();
            assert!(each > 2 || lengths.len() > 1, "parts are padded by themselves: {lengths:?}");
            let model = Classifier::of(&plan, &kerple_lm::device().autodiff());
            TrainState::new(model, Classification, settings(&plan))
                .gradients(&parts, ForwardContext::training(1, 3))
                .loss
        };
        let whole = loss(16);
        for each in [1, 2, 8] {
            // the same sums in another order, in f32
            assert!((loss(each) - whole).abs() < 1e-5 * whole, "{pooling}, {each} rows: {} {whole}", loss(each));
        }
    }
}

#[test]
fn groups_of_classes_do_not_share_a_draw() {
    let losses = |task: &str, encoding: &str, first: usize| {
        let (plan, source) = plan(&config(task, &[encoding, "train.train_len=16"]));
        let (batch, _) = source.task().unwrap().batch(Split::Test, 1, 0..8, 16).unwrap();
        let pass = plan.evaluation_pass(first);
        match task {
            LIST_OPS => Classification.score(&Classifier::of(&plan, &kerple_lm::device()), &batch, &pass).losses,
            _ => Classification.score(&Decoder::of(&plan, &kerple_lm::device()), &batch, &pass).losses,
        }
    };
    let (drawn, plain) = ("encoding={kind=\"rotary\",randomized=64}", "encoding.kind=rotary");
    assert_ne!(losses(LIST_OPS, drawn, 0), losses(LIST_OPS, drawn, 8));
    assert_eq!(losses(LIST_OPS, plain, 0), losses(LIST_OPS, plain, 8));
    assert_eq!(losses("\"passkey\"", drawn, 0), losses("\"passkey\"", drawn, 8), "one draw for all of one length");
}

#[test]
fn fused_models_equal_their_definition() {
    for (task, more) in [("\"reverse_string\"", "model.block.dropout=0.1"), ("\"passkey\"", "train.train_len=16")] {
        let (plan, source) = plan(&config(task, &[more]));
        let batch = source.batches(&plan).unwrap().batch(1, 0..4).unwrap();
        let device = kerple_lm::device().autodiff();
        let pass = ForwardContext::training(1, 2);
        let gradients = |implementation: Impl| -> (f64, Vec<f64>) {
            let parts = std::slice::from_ref(&batch);
            let found = match task {
                "\"passkey\"" => {
                    let model = Decoder::of(&plan, &device).with_implementation(implementation);
                    TrainState::new(model, Classification, settings(&plan)).gradients(parts, pass)
                }
                _ => {
                    let model = Transducer::of(&plan, &device).with_implementation(implementation);
                    TrainState::new(model, Classification, settings(&plan)).gradients(parts, pass)
                }
            };
            let values =
                found.values.iter().flat_map(|values| values.clone().into_data().iter::<f64>().collect::<Vec<_>>());
            (found.loss, values.collect())
        };
        let (fused, composed) = (gradients(Impl::Kernel), gradients(Impl::Reference));
        assert!((fused.0 - composed.0).abs() < 1e-5, "{task}: {} {}", fused.0, composed.0);
        let worst = fused.1.iter().zip(&composed.1).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        let size = fused.1.iter().map(|a| a.abs()).fold(0.0, f64::max);
        // single precision
        assert!(worst < 1e-4 * size.max(1.0), "{task}: {worst} of {size}");
        assert!(size > 0.0);
    }
}

#[test]
fn losses_and_scores_agree() {
    let (plan, source) = plan(&config("{ kind = \"recall\", pairs = 2 }", &["train.train_len=12"]));
    let batch = source.batches(&plan).unwrap().batch(1, 0..4).unwrap();
    let model = Decoder::of(&plan, &kerple_lm::device());
    let pass = ForwardContext::evaluation(1);
    let scores = Classification.score(&model, &batch, &pass);
    let loss = f64::from(Classification.loss(&model, &batch, &pass).into_scalar::<f32>());
    assert!((scores.loss() - loss).abs() < 1e-5, "{} {loss}", scores.loss());
    assert_eq!(scores.scored.unwrap().iter().filter(|scored| **scored).count(), 8);
    let parameters: usize = parameters::collect(&model).iter().map(|n| n.array.shape().iter().product::<usize>()).sum();
    assert_eq!(parameters, plan.parameters);
    let (plan, _) = self::plan(&config("\"reverse_string\"", &[]));
    let model = Transducer::of(&plan, &kerple_lm::device());
    let parameters: usize = parameters::collect(&model).iter().map(|n| n.array.shape().iter().product::<usize>()).sum();
    assert_eq!(parameters, plan.parameters);
}

#[test]
fn impossible_tasks_are_refused() {
    let refused = |task: &str, more: &[&str]| {
        let config = config(task, more);
        let facts = kerple_lm::tasks::facts(config.data.task.as_ref().unwrap().facts());
        Plan::new(&config, facts).unwrap_err().to_string()
    };
    assert!(refused("\"passkey\"", &[]).contains("train.train_len of passkey: 8 is out of range"));
    assert!(refused("{ kind = \"recall\", pairs = 64 }", &[]).contains("data.task.pairs"));
    let ahead = "encoding = { kind = \"t5\", bidirectional = true }";
    assert!(refused("\"passkey\"", &["train.train_len=64", ahead]).contains("a bias for keys after the query"));
    assert!(refused("\"duplicate_string\"", &["encoding.kind=xpos"]).contains("an encoder attends in both directions"));
    let empty = RunConfig::parse("data = {}\nencoding = { kind = \"alibi\" }", "test", &[]).unwrap();
    assert!(DataSource::open(&empty.data).unwrap_err().to_string().contains("`path` is missing or empty"));
    // learned positions have rows for the training sequences with their empty places
    let (plan, source) = plan(&config("\"duplicate_string\"", &["encoding.kind=learned"]));
    assert_eq!(plan.sequence_len(), 24);
    assert_eq!(served(&plan, &plan.encoding, &[4, 8, 9, 100]), [4, 8]);
    assert_eq!(plan.data_info.vocab_size, 3);
    assert!(source.text(Split::Test).unwrap_err().to_string().contains("duplicate_string is a task"));
    let hidden = TaskConfig::named("duplicate_string").unwrap();
    assert_eq!(plan.data.task, Some(hidden));
}
