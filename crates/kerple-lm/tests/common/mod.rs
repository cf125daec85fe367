//! A tiny model on a tiny language.
#![allow(dead_code, reason = "each test file takes what it needs")]

use kerple::encoding::{Encoding, Method};
use kerple_burn::plan::{AttentionKind, BlockPlan, LinearPlan};
use kerple_lm::config::{DataConfig, ModelConfig, RunConfig, TrainConfig};
use kerple_lm::plan::{DataFacts, Plan};
use kerple_lm::task::Batch;
use kerple_lm::train::Batches;
use std::ops::Range;

/// Sequences that count up from a start that the step decides, modulo 23.
pub struct Counting(pub Plan);

impl Counting {
    fn make(&self, step: u64, rows: Range<usize>) -> Batch {
        let len = self.0.train_len;
        let token = |row: usize, at: usize| ((step as usize * 7 + row * 5 + at) % 23) as u32;
        let all = |shift: usize| {
            rows.clone().flat_map(|row| (0..len).map(move |at| token(row, at + shift))).collect::<Vec<u32>>()
        };
        Batch { tokens: all(0), targets: all(1), rows: rows.len(), len, ..Batch::default() }
    }
}

impl Batches for Counting {
    fn batch(&self, step: u64, rows: Range<usize>) -> kerple_lm::Result<Batch> {
        Ok(self.make(step, rows))
    }

    fn validation_rows(&self) -> usize {
        self.0.train.valid_segments
    }

    fn validation(&self, rows: Range<usize>) -> kerple_lm::Result<Batch> {
        Ok(self.make(1_000_003, rows))
    }
}

/// Encodings that change the scores of all heads, other than by their defaults.
pub fn maps() -> Vec<Encoding> {
    let texts = [
        r#"{"kind":"fire","threshold":5.5,"scope":"model"}"#,
        r#"{"kind":"dape","base":"alibi","variant":"concat"}"#,
        r#"{"kind":"dape","base":"t5","variant":"add_residual","randomized":40}"#,
        r#"{"kind":"dape","base":"kerple_power","variant":"bias_only","scope":"model"}"#,
        r#"{"kind":"dape","base":"rotary","hidden":5}"#,
        r#"{"kind":"dape","base":"none","kernel":3}"#,
        r#"{"kind":"dape","base":{"kind":"fire","threshold":5.5}}"#,
        r#"{"kind":"dape","base":{"kind":"fire","threshold":5.5},"kernel":3,"hidden":4}"#,
        r#"{"kind":"dape","kernel":5,"variant":"concat"}"#,
        r#"{"kind":"dape","base":"rotary","kernel":7}"#,
        r#"{"kind":"fire","threshold":9.5,"randomized":40}"#,
        r#"{"kind":"dape","base":{"kind":"fire","threshold":9.5},"randomized":40}"#,
        r#"{"kind":"shaw","max_distance":3,"values":true}"#,
        r#"{"kind":"xpos","scale_base":12}"#,
    ];
    texts.map(|text| serde_json::from_str(text).unwrap()).to_vec()
}

/// A plan of a tiny decoder with this encoding.
pub fn plan(encoding: &Encoding, train: TrainConfig) -> Plan {
    plan_of(encoding, train, [2, 2, 8], [12, 4])
}

/// The same of other blocks.
pub fn plan_with(encoding: &Encoding, train: TrainConfig, block: BlockPlan) -> Plan {
    plan_from(encoding, train, [2, 2, 8], [12, 4], block)
}

/// A plan of a decoder of this many layers, heads and features a head, for batches of this length and number.
pub fn plan_of(encoding: &Encoding, train: TrainConfig, sizes: [usize; 3], batch: [usize; 2]) -> Plan {
    plan_from(encoding, train, sizes, batch, BlockPlan::default())
}

fn plan_from(
    encoding: &Encoding,
    train: TrainConfig,
    [n_layers, n_heads, head_dim]: [usize; 3],
    [train_len, batch]: [usize; 2],
    mut block: BlockPlan,
) -> Plan {
    if matches!(encoding.method, Method::SineSpe(_) | Method::ConvSpe(_)) {
        block.attention = AttentionKind::Linear(LinearPlan::default());
    }
    let config = RunConfig {
        seed: 7,
        data: DataConfig::text("nowhere"),
        encoding: encoding.clone(),
        model: ModelConfig {
            n_layers: Some(n_layers),
            n_heads: Some(n_heads),
            head_dim: Some(head_dim),
            pad_vocab_to: Some(8),
            block,
            ..ModelConfig::default()
        },
        train: TrainConfig { train_len, batch, ..train },
    };
    Plan::new(
        &config,
        DataFacts {
            vocab_size: 23,
            tokenizer: "counting".to_owned(),
            train_tokens: 1000,
            content: "counting".to_owned(),
        },
    )
    .unwrap()
}

/// The encoding of this kind with default keys.
pub fn encoding(kind: &str) -> Encoding {
    Encoding::from(Method::named(kind).unwrap())
}
