//! Drawing tokens: repeatable, only tokens that exist, never beyond what a method is defined for.

use crate::common::{encoding, plan};
use kerple_burn::parameters;
use kerple_core::seed::{Purpose, stream};
use kerple_lm::config::TrainConfig;
use kerple_lm::forward_context::ForwardContext;
use kerple_lm::generate::{SamplingParams, generate};
use kerple_lm::model::{Decoder, TokenBatch};
use rand::RngExt;

/// Tokens that the tokenizer of [`crate::common::plan`] knows; the model has 24 rows.
const VOCAB: usize = 23;
const PROMPT: [u32; 3] = [3, 1, 4];
const LIVELY: SamplingParams = SamplingParams { temperature: 1.0, top_k: 0, top_p: 1.0, seed: 5 };

fn decoder(kind: &str) -> Decoder {
    Decoder::new(&plan(&encoding(kind), TrainConfig::default()), &kerple_lm::device())
}

/// A decoder with some of its parameters changed.
fn changed(kind: &str, change: impl Fn(&str, &mut [f32])) -> Decoder {
    let model = decoder(kind);
    let old: Vec<Vec<f32>> =
        parameters::collect(&model).iter().map(|named| named.array.slice::<f32>().to_vec()).collect();
    let mut old = old.into_iter();
    let (model, filled) = parameters::load(model, |name, values| {
        values.copy_from_slice(&old.next().unwrap());
        change(name, values);
        Ok::<(), ()>(())
    });
    filled.unwrap();
    model
}

fn tokens(model: &Decoder, prompt: &[u32], count: usize, draw: SamplingParams) -> kerple_lm::Result<Vec<u32>> {
    let mut drawn = Vec::new();
    generate(model, prompt, count, VOCAB, &draw, &mut |token| {
        drawn.push(token);
        true
    })?;
    Ok(drawn)
}

#[test]
fn the_same_seed_draws_the_same_tokens() {
    let model = decoder("kerple_log");
    let draw = |seed| tokens(&model, &PROMPT, 40, SamplingParams { seed, ..LIVELY }).unwrap();
    assert_eq!(draw(5).len(), 40);
    assert_eq!(draw(5), draw(5));
    assert_ne!(draw(5), draw(6));
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
    assert_eq!(pool.install(|| draw(5)), draw(5));
}

#[test]
fn draws_are_those_of_sampling() {
    // without weights every token is as likely as the others, so each covers its share of [0, 1)
    let model = changed("none", |_, values| values.fill(0.0));
    let mut rng = stream(5, Purpose::Sampling);
    let expected: Vec<u32> = (0..30).map(|_| (rng.random::<f64>() * VOCAB as f64) as u32).collect();
    assert_eq!(tokens(&model, &PROMPT, 30, LIVELY).unwrap(), expected);
}

#[test]
fn padding_of_the_vocabulary_is_never_drawn() {
    // the padded row is by far the likeliest or the unlikeliest, whatever the sign of what it is a product with
    let model = changed("alibi", |name, values| {
        if name == "head" {
            let width = values.len() / 24;
            (0..width).for_each(|row| values[row * 24 + VOCAB] = if row == 0 { 1e4 } else { 0.0 });
        }
    });
    let mut padded = 0;
    for first in 0..VOCAB as u32 {
        let logits = model
            .extend(
                TokenBatch { ids: &[first], batch: 1, len: 1, documents: None },
                &mut model.kv_caches(1),
                &ForwardContext::evaluation(0),
            )
            .into_data();
        let logits: Vec<f64> = logits.iter::<f64>().collect();
        padded += usize::from(logits[..VOCAB].iter().all(|logit| *logit < logits[VOCAB]));
        for temperature in [0.0, 1.0] {
            let drawn = tokens(&model, &[first], 5, SamplingParams { temperature, ..LIVELY }).unwrap();
            assert!(drawn.iter().all(|token| (*token as usize) < VOCAB), "{drawn:?}");
        }
    }
    assert!(padded > 0, "padding was never the likeliest");
}

#[test]
fn temperature_zero_takes_the_likeliest() {
    let model = decoder("rotary");
    let drawn = tokens(&model, &PROMPT, 12, SamplingParams { temperature: 0.0, ..LIVELY }).unwrap();
    let mut all = PROMPT.to_vec();
    for token in drawn {
        let logits = model
            .logits(TokenBatch { ids: &all, batch: 1, len: all.len(), documents: None }, &ForwardContext::evaluation(0))
            .into_data();
        let logits: Vec<f64> = logits.iter::<f64>().collect();
        let last = &logits[logits.len() - 24..][..VOCAB];
        let most = last.iter().fold(f64::NEG_INFINITY, |m, x| m.max(*x));
        // a cache adds in another order, in f32
        assert!(last[token as usize] > most - 1e-5, "{token}: {last:?}");
        all.push(token);
    }
}

#[test]
fn positions_beyond_the_last_are_refused_before_the_first_token() {
    let model = decoder("learned");
    assert_eq!(tokens(&model, &PROMPT, 10, LIVELY).unwrap().len(), 10, "the tenth token needs no position");
    for count in [11, usize::MAX] {
        let mut told = 0;
        let error = generate(&model, &PROMPT, count, VOCAB, &LIVELY, &mut |_| {
            told += 1;
            true
        });
        let error = error.unwrap_err();
        assert!(told == 0 && error.is_misuse() && error.to_string().contains("12"), "{error}");
    }
    assert!(tokens(&model, &[], 1, LIVELY).unwrap_err().to_string().contains("no token"));
}

#[test]
fn a_count_without_end_holds_nothing_for_what_is_to_come() {
    let model = decoder("kerple_log");
    let mut told = 0;
    generate(&model, &PROMPT, usize::MAX, VOCAB, &LIVELY, &mut |_| {
        told += 1;
        told < 7
    })
    .unwrap();
    assert_eq!(told, 7);
}

#[test]
fn logits_that_are_no_numbers_are_refused() {
    let model = changed("none", |name, values| {
        if name == "head" {
            values[0] = f32::NAN;
        }
    });
    let error = tokens(&model, &PROMPT, 3, LIVELY).unwrap_err();
    assert!(error.to_string().contains("NaN") && !error.hint().is_empty(), "{error}");
}
