//! The estimate of memory is what training and evaluating really hold, within a factor.

mod common;
#[path = "../../kerple-data/tests/common/hunt.rs"]
mod hunt;

use common::Counting;
use hunt::counting;
use kerple_burn::forward_context::ForwardContext;
use kerple_burn::implementation::Impl;
use kerple_core::precision::Precision;
use kerple_lm::config::RunConfig;
use kerple_lm::memory_estimate::{MemoryLimit, TOKENS_AT_ONCE};
use kerple_lm::model::{Decoder, Sequence, TokenBatch};
use kerple_lm::objective::{NextTokenPrediction, Objective};
use kerple_lm::plan::{DataInfo, Plan};
use kerple_lm::sequences::BatchSource;
use kerple_lm::train_state::{self, AdamWStep, TrainState};

/// Tokens of a prompt that are read at once.
const PIECE: usize = 64;

/// How much more, or less, than is estimated may be held.
const FACTOR: f64 = 2.0;

const LINEAR: &str = "model.block.attention = { linear = { feature_map = \"relu\" } }";

/// What a plan of a test differs in.
struct Sizes {
    layers: usize,
    heads: [usize; 2],
    len: usize,
    batch: usize,
    piece: Option<usize>,
}

fn plan_of(name: &str, text: &str, sizes: Sizes) -> Plan {
    let Sizes { layers, heads: [heads, head_dim], len, batch, piece } = sizes;
    let piece = piece.map_or(String::new(), |piece| format!("train.chunk_len = {piece}\n"));
    let text = format!(
        "data.path = \"nowhere\"\n{text}\ntrain.train_len = {len}\ntrain.batch_size = {batch}\ntrain.eval_interval = 0\n{piece}\
         model.n_layers = {layers}\nmodel.n_heads = {heads}\nmodel.head_dim = {head_dim}"
    );
    let config = RunConfig::parse(&text, name, &[]).unwrap();
    let facts = DataInfo { vocab_size: 256, tokenizer: String::new(), train_tokens: 1 << 30, content: String::new() };
    Plan::new(&config, facts).unwrap()
}

fn linear(encoding: &str) -> String {
    format!("encoding = {encoding}\n{LINEAR}")
}

/// Linear attention with so many random features.
fn favor(encoding: &str, count: usize) -> String {
    let attention = format!("{{ linear = {{ feature_map = \"favor\", n_features = {count} }} }}");
    format!("encoding = {encoding}\nmodel.block.attention = {attention}")
}

/// A plan of four layers.
fn of(
    name: &'static str,
    text: &str,
    heads: [usize; 2],
    [len, batch]: [usize; 2],
    piece: Option<usize>,
) -> (&'static str, Plan) {
    (name, plan_of(name, text, Sizes { layers: 4, heads, len, batch, piece }))
}

/// Plans of which one part or another takes the most.
fn plans() -> Vec<(&'static str, Plan)> {
    vec![
        of("activations", "encoding = \"kerple_log\"", [4, 32], [512, 8], None),
        of(
            "heads of their own",
            "encoding = \"none\"\nmodel.layers.wide = { every = 2, n_heads = 32, n_kv_heads = 8 }",
            [4, 32],
            [512, 8],
            None,
        ),
        of("tables", "encoding = { kind = \"t5\", num_buckets = 64 }", [8, 4], [8192, 1], None),
        of("weights", "encoding = \"rotary\"", [8, 64], [16, 1], None),
        of("score maps", "encoding = \"dape\"", [4, 16], [256, 2], None),
        of("linear, whole", &linear("\"rotary\""), [2, 16], [8192, 1], None),
        of("linear, in pieces", &linear("\"rotary\""), [2, 4], [131_072, 1], Some(4096)),
        of("a decay, in pieces", &linear("\"kerple_log\""), [2, 4], [131_072, 1], Some(4096)),
        of("a decay, wide heads", &linear("\"kerple_log\""), [2, 32], [32_768, 1], Some(1024)),
        of("examples", &linear("\"none\""), [1, 2], [524_288, 2], Some(4096)),
    ]
}

/// Plans with gates, and with draws.
fn plans_of_positions() -> Vec<(&'static str, Plan)> {
    vec![
        of("gates", "encoding = \"fox\"", [32, 2], [1024, 4], None),
        of("gates of linear attention", &linear("\"fox\""), [32, 2], [4096, 1], None),
        of("gates of features", "encoding = \"wall\"", [32, 4], [1024, 4], None),
        of("lengths and angles", "encoding = \"pope\"", [32, 4], [1024, 4], None),
        of("mixtures of rates", "encoding = \"fope\"", [32, 4], [1024, 4], None),
        of("Householder products", "encoding = { kind = \"path\", gate = true }", [4, 16], [1024, 4], None),
        of(
            "selective attention",
            "encoding = \"kerple_bias_weight\"\nmodel.block.selective_attention = \"exclusive\"",
            [8, 8],
            [4096, 2],
            None,
        ),
        of("draws of positions", "encoding = { kind = \"rotary\", randomized = 16384 }", [4, 16], [4096, 2], None),
    ]
}

fn within(what: &str, estimate: u64, held: usize) {
    let ratio = held as f64 / estimate as f64;
    println!("{what}: {ratio:.2} of {} KiB", estimate >> 10);
    assert!(
        (1.0 / FACTOR..FACTOR).contains(&ratio),
        "{what}: {} KiB held, {} KiB estimated",
        held >> 10,
        estimate >> 10
    );
}

/// Two updates with products of this precision hold what is estimated.
fn train(plans: Vec<(&'static str, Plan)>, precision: Precision) {
    let implementation = Impl::with_precision(precision);
    let _alone = hunt::alone();
    for (name, plan) in plans {
        let batches = Counting(plan.clone());
        let held = counting::most(|| {
            let model = Decoder::new(&plan, &kerple_lm::device().autodiff()).with_implementation(implementation);
            let task = NextTokenPrediction { piece: plan.train.chunk_len };
            let mut train_state = TrainState::new(model, task, train_state::settings(&plan));
            for step in 0..2 {
                let batch = batches.batch(step, 0..plan.train.batch_size).unwrap();
                let update = AdamWStep { learning_rate: 1e-3, adam_step: step + 1 };
                train_state.step(&[batch], ForwardContext::training(1, step), update).unwrap();
            }
        });
        let estimate = plan.training_memory(plan.train.batch_size, precision);
        println!("{estimate}");
        // what is allocated is no program
        within(name, estimate.total() - estimate.program, held.1);
    }
}

#[test]
fn training_holds_what_is_estimated() {
    train(plans(), Precision::F32);
}

/// What layers keep takes half, so plans of which it is the most take less.
#[test]
fn training_in_bf16_holds_what_is_estimated() {
    let plans: Vec<_> =
        plans().into_iter().filter(|(name, _)| ["activations", "heads of their own"].contains(name)).collect();
    for (name, plan) in &plans {
        let [exact, short] = [Precision::F32, Precision::Bf16].map(|kept| plan.training_memory(8, kept).activations);
        assert!(short < exact * 3 / 4, "{name}: {short} of {exact}");
    }
    train(plans, Precision::Bf16);
}

#[test]
fn training_with_gates_and_draws_holds_what_is_estimated() {
    train(plans_of_positions(), Precision::F32);
}

#[test]
fn a_validation_holds_what_is_estimated() {
    let _alone = hunt::alone();
    for (name, plan) in plans().into_iter().chain(plans_of_positions()).filter(|(name, _)| *name != "weights") {
        let batches = Counting(plan.clone());
        let model = Decoder::new(&plan, &kerple_lm::device());
        let task = NextTokenPrediction { piece: plan.train.chunk_len };
        let held = counting::most(|| {
            // as many sequences as a validation takes at once
            let rows = (TOKENS_AT_ONCE / plan.sequence_len()).max(1);
            let batch = batches.validation(0..rows).unwrap();
            task.mean_loss(&model, &batch, &ForwardContext::evaluation(0))
        });
        // the model is there already
        let estimate = plan.evaluation_memory(plan.sequence_len());
        println!("{estimate}");
        within(name, estimate.total() - estimate.program - estimate.weights, held.1);
    }
}

/// Long texts are read in pieces by linear attention, whole by softmax attention.
#[test]
fn a_long_text_holds_what_is_estimated() {
    let _alone = hunt::alone();
    let of = |layers: usize, text: &str, heads: [usize; 2], len: usize| {
        (plan_of(text, text, Sizes { layers, heads, len: 128, batch: 1, piece: None }), len)
    };
    for (plan, len) in [
        of(16, &linear("\"conv_spe\""), [4, 8], 8192),
        of(2, &linear("\"conv_spe\""), [4, 8], 8192),
        of(8, &linear("{ kind = \"conv_spe\", noise = \"shared\" }"), [2, 8], 16_384),
        of(16, &linear("\"sine_spe\""), [4, 8], 8192),
        of(16, &favor("\"none\"", 1024), [2, 16], 16_384),
        of(4, &linear("\"fox\""), [16, 4], 16_384),
        of(2, "encoding = \"fox\"", [8, 4], 8192),
        of(2, "encoding = \"path\"", [2, 16], 8192),
    ] {
        let model = Decoder::new(&plan, &kerple_lm::device());
        let ids: Vec<u32> = (0..len as u32).map(|id| id % 251).collect();
        let held = counting::most(|| {
            let tokens = TokenBatch { ids: &ids, batch: 1, len, documents: None };
            assert_eq!(model.token_losses(tokens, &ids, &ForwardContext::evaluation(0)).len(), len);
        });
        let estimate = plan.evaluation_memory(len);
        println!("{estimate}");
        let what = format!("{} in {} layers at {len}", plan.label, plan.model.n_layers);
        within(&what, estimate.total() - estimate.program - estimate.weights, held.1);
    }
}

/// What texts hold while they grow, all of them as long as they may be.
#[test]
fn texts_that_grow_hold_what_is_estimated() {
    let _alone = hunt::alone();
    let (len, texts) = (2048, 8);
    for (text, heads) in [
        ("encoding = \"rotary\"".to_owned(), [4, 16]),
        ("encoding = \"rotary\"\nmodel.block.n_kv_heads = 1".to_owned(), [8, 16]),
        ("encoding = { kind = \"rotary\", window = 128 }".to_owned(), [4, 16]),
        ("encoding = \"t5\"".to_owned(), [16, 2]),
        ("encoding = \"fox\"".to_owned(), [16, 2]),
        ("encoding = { kind = \"path\", gate = true }".to_owned(), [4, 16]),
        (linear("\"rotary\""), [4, 16]),
        (linear("\"kerple_log\""), [4, 16]),
        (linear("\"conv_spe\""), [2, 8]),
        (linear("\"sine_spe\""), [2, 8]),
        (favor("\"none\"", 512), [2, 16]),
    ] {
        let plan = plan_of(&text, &text, Sizes { layers: 4, heads, len: 128, batch: 1, piece: None });
        let model = Decoder::new(&plan, &kerple_lm::device());
        let ids: Vec<u32> = (0..len as u32 - 4).map(|id| id % 251).collect();
        let held = counting::most(|| {
            // of a window a whole prompt is held; otherwise in pieces, so that what is held is more than what is at work
            let piece = if plan.encoding.window.is_some() { len } else { PIECE };
            let read = |_| {
                let mut sequence = model.new_sequence(0);
                ids.chunks(piece).for_each(|piece| drop(model.decode(piece, &mut sequence)));
                sequence
            };
            let mut all: Vec<Sequence> = (0..texts).map(read).collect();
            for _ in 0..4 {
                model.decode_batch(&vec![1; texts], &mut all.iter_mut().collect::<Vec<_>>());
            }
            assert!(all.iter().all(|sequence| sequence.len() == len));
        });
        let estimate = plan.serving_memory(len, texts);
        assert_eq!(estimate.total() - estimate.caches, plan.evaluation_memory(len).total());
        assert_eq!(estimate.caches, plan.serving_memory(len, 1).caches * texts as u64);
        println!("{estimate}");
        within(&plan.label, estimate.caches, held.1);
    }
}

#[test]
fn serving_is_refused_where_caches_do_not_fit_and_the_hint_fits() {
    let text = "encoding = \"rotary\"";
    let plan = plan_of(text, text, Sizes { layers: 4, heads: [4, 16], len: 128, batch: 1, piece: None });
    let (len, texts) = (65_536, 8);
    let evaluation = plan.evaluation_memory(len).total();
    let limit = |bytes| MemoryLimit { name: "the machine", bytes };
    // the texts alone make the difference
    let some = limit(evaluation + plan.serving_memory(len, 3).caches);
    plan.check_evaluation_memory(len, Some(&some)).unwrap();
    let error = plan.check_serving_memory(len, texts, Some(&some)).unwrap_err();
    assert!(
        error.to_string().contains("serving 8 sequences of 65536 tokens")
            && error.hint().contains("use --max-num-seqs 3")
    );
    plan.check_serving_memory(len, 3, Some(&some)).unwrap();
    let few = limit(plan.serving_memory(4096, texts).total());
    let error = plan.check_serving_memory(len, texts, Some(&few)).unwrap_err();
    assert!(error.hint().contains("use --max-model-len 4096"), "{}", error.hint());
    plan.check_serving_memory(4096, texts, Some(&few)).unwrap();
}
