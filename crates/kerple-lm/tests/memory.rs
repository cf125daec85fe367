//! The estimate of memory is what training and evaluating really hold, within a factor.

mod common;
#[path = "../../kerple-data/tests/common/hunt.rs"]
mod hunt;

use common::Counting;
use hunt::counting;
use kerple_burn::pass::Pass;
use kerple_lm::config::RunConfig;
use kerple_lm::learner::{self, Learner, Update};
use kerple_lm::memory::TOKENS_AT_ONCE;
use kerple_lm::model::Decoder;
use kerple_lm::plan::{DataFacts, Plan};
use kerple_lm::sequences::Batches;
use kerple_lm::task::{LanguageModel, Task};

/// How much more, or less, than is estimated may be held.
const FACTOR: f64 = 2.0;

const LINEAR: &str = "model.block.attention = { linear = { features = \"relu\" } }";

/// Plans of which one part or another takes the most.
fn plans() -> Vec<(&'static str, Plan)> {
    let of = |name: &'static str,
              text: &str,
              [heads, head_dim]: [usize; 2],
              [len, batch]: [usize; 2],
              piece: Option<usize>| {
        let piece = piece.map_or(String::new(), |piece| format!("train.piece = {piece}\n"));
        let text = format!(
            "data.path = \"nowhere\"\n{text}\ntrain.train_len = {len}\ntrain.batch = {batch}\ntrain.valid_every = 0\n{piece}\
             model.n_layers = 4\nmodel.n_heads = {heads}\nmodel.head_dim = {head_dim}"
        );
        let config = RunConfig::parse(&text, name, &[]).unwrap();
        let facts =
            DataFacts { vocab_size: 256, tokenizer: String::new(), train_tokens: 1 << 30, content: String::new() };
        (name, Plan::new(&config, facts).unwrap())
    };
    let linear = |encoding: &str| format!("encoding = {encoding}\n{LINEAR}");
    vec![
        of("activations", "encoding = \"kerple_log\"", [4, 32], [512, 8], None),
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

#[test]
fn training_holds_what_is_estimated() {
    let _alone = hunt::alone();
    for (name, plan) in plans() {
        let batches = Counting(plan.clone());
        let held = counting::most(|| {
            let model = Decoder::new(&plan, &kerple_lm::device().autodiff());
            let task = LanguageModel { piece: plan.train.piece };
            let mut learner = Learner::new(model, task, learner::settings(&plan));
            for step in 0..2 {
                let batch = batches.batch(step, 0..plan.train.batch).unwrap();
                let update = Update { learning_rate: 1e-3, adam_step: step + 1 };
                learner.step(&[batch], Pass::training(1, step), update).unwrap();
            }
        });
        let estimate = plan.training_memory(plan.train.batch);
        println!("{estimate}");
        // what is allocated is no program
        within(name, estimate.total() - estimate.program, held.1);
    }
}

#[test]
fn a_validation_holds_what_is_estimated() {
    let _alone = hunt::alone();
    for (name, plan) in plans().into_iter().filter(|(name, _)| *name != "weights") {
        let batches = Counting(plan.clone());
        let model = Decoder::new(&plan, &kerple_lm::device());
        let task = LanguageModel { piece: plan.train.piece };
        let held = counting::most(|| {
            // as many sequences as a validation takes at once
            let rows = (TOKENS_AT_ONCE / plan.sequence_len()).max(1);
            let batch = batches.validation(0..rows).unwrap();
            task.mean_loss(&model, &batch, &Pass::evaluation(0))
        });
        // the model is there already
        let estimate = plan.evaluation_memory(plan.sequence_len());
        println!("{estimate}");
        within(name, estimate.total() - estimate.program - estimate.weights, held.1);
    }
}
