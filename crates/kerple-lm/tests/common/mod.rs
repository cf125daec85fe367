//! A tiny model on a tiny language.
#![allow(dead_code, reason = "each test file takes what it needs")]

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Tensor, TensorData};
use kerple_burn::plan::{AttentionKind, BlockConfig, LinearAttentionConfig};
use kerple_core::encoding::{Encoding, Method};
use kerple_lm::config::{DataConfig, ModelConfig, RunConfig, TrainConfig};
use kerple_lm::forward_context::ForwardContext;
use kerple_lm::model::{Decoder, TokenBatch};
use kerple_lm::objective::SequenceBatch;
use kerple_lm::plan::{DataInfo, Plan};
use kerple_lm::ranks::{Ranks, threads};
use kerple_lm::sequences::BatchSource;
use kerple_lm::train_state::BatchGradients;
use std::ops::Range;
use std::rc::Rc;

/// Sequences that count up from a start that the step decides, modulo 23.
pub struct Counting(pub Plan);

impl Counting {
    fn make(&self, step: u64, rows: Range<usize>) -> SequenceBatch {
        let len = self.0.train_len;
        let token = |row: usize, at: usize| ((step as usize * 7 + row * 5 + at) % 23) as u32;
        let all = |shift: usize| {
            rows.clone().flat_map(|row| (0..len).map(move |at| token(row, at + shift))).collect::<Vec<u32>>()
        };
        SequenceBatch { tokens: all(0), targets: all(1), rows: rows.len(), len, ..SequenceBatch::default() }
    }
}

impl BatchSource for Counting {
    fn batch(&self, step: u64, rows: Range<usize>) -> kerple_lm::Result<SequenceBatch> {
        Ok(self.make(step, rows))
    }

    fn validation_rows(&self) -> usize {
        self.0.train.eval_sequences
    }

    fn validation(&self, rows: Range<usize>) -> kerple_lm::Result<SequenceBatch> {
        Ok(self.make(1_000_003, rows))
    }
}

/// Loss and gradients of `found` are those of `expected` in f32, a few hundred roundings apart; updates let the two drift a little
/// further.
pub fn assert_same_gradients(found: BatchGradients, expected: BatchGradients, names: &[String], what: &str) {
    assert!((found.loss - expected.loss).abs() < 1e-5 * expected.loss, "{what}: {} {}", found.loss, expected.loss);
    assert!(names.len() == found.values.len() && names.len() == expected.values.len(), "{what}");
    for (name, (a, b)) in names.iter().zip(found.values.into_iter().zip(expected.values)) {
        let [a, b] = [a, b].map(|values| values.into_data().try_to_vec::<f32>().unwrap());
        let largest = b.iter().fold(1e-5f32, |m, x| m.max(x.abs()));
        let error = a.iter().zip(&b).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
        assert!(a.len() == b.len() && error <= 1e-3 * largest, "{what}, {name}: {error:e} of {largest:e}");
    }
}

/// Encodings that change the scores of all heads, other than by their defaults.
pub fn maps() -> Vec<Encoding> {
    let texts = [
        r#"{"kind":"fire","init_l":5.5,"share":"model"}"#,
        r#"{"kind":"dape","base":"alibi","variant":"concat"}"#,
        r#"{"kind":"dape","base":"t5","variant":"add_residual","randomized":40}"#,
        r#"{"kind":"dape","base":"kerple_power","variant":"bias_only","share":"model"}"#,
        r#"{"kind":"dape","base":"rotary","hidden":5}"#,
        r#"{"kind":"dape","base":"none","kernel":3}"#,
        r#"{"kind":"dape","base":{"kind":"fire","init_l":5.5}}"#,
        r#"{"kind":"dape","base":{"kind":"fire","init_l":5.5},"kernel":3,"hidden":4}"#,
        r#"{"kind":"dape","kernel":5,"variant":"concat"}"#,
        r#"{"kind":"dape","base":"rotary","kernel":7}"#,
        r#"{"kind":"fire","init_l":9.5,"randomized":40}"#,
        r#"{"kind":"dape","base":{"kind":"fire","init_l":9.5},"randomized":40}"#,
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
pub fn plan_with(encoding: &Encoding, train: TrainConfig, block: BlockConfig) -> Plan {
    plan_from(encoding, train, [2, 2, 8], [12, 4], block)
}

/// A plan of a decoder of this many layers, heads and features a head, for batches of this length and number.
pub fn plan_of(encoding: &Encoding, train: TrainConfig, sizes: [usize; 3], batch: [usize; 2]) -> Plan {
    plan_from(encoding, train, sizes, batch, BlockConfig::default())
}

fn plan_from(
    encoding: &Encoding,
    train: TrainConfig,
    [n_layers, n_heads, head_dim]: [usize; 3],
    [train_len, batch]: [usize; 2],
    mut block: BlockConfig,
) -> Plan {
    if matches!(encoding.method, Method::SineSpe(_) | Method::ConvSpe(_)) {
        block.attention = AttentionKind::Linear(LinearAttentionConfig::default());
    }
    let config = RunConfig {
        seed: 7,
        data: DataConfig::text("nowhere"),
        encoding: encoding.clone(),
        model: ModelConfig {
            n_layers: Some(n_layers),
            n_heads: Some(n_heads),
            head_dim: Some(head_dim),
            pad_vocab_multiple: Some(8),
            block,
            ..ModelConfig::default()
        },
        train: TrainConfig { train_len, batch_size: batch, ..train },
    };
    Plan::new(&config, facts()).unwrap()
}

/// The encoding of this kind with default keys.
pub fn encoding(kind: &str) -> Encoding {
    Encoding::from(Method::named(kind).unwrap())
}

/// Logits of one sequence.
pub fn logits(model: &Decoder, ids: &[u32]) -> Vec<f32> {
    let tokens = TokenBatch { ids, batch: 1, len: ids.len(), documents: None };
    model.logits(tokens, &PASS).into_data().try_to_vec::<f32>().unwrap()
}

/// A pass that measures.
pub const PASS: ForwardContext = ForwardContext::evaluation(0);
/// A sequence.
pub const IDS: [u32; 12] = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8];

/// Fails unless a prefill of five and single steps give the logits of whole sequences.
pub fn assert_decoding(model: &Decoder, what: &str) {
    let whole = logits(model, &IDS);
    let width = whole.len() / IDS.len();
    let mut memory = model.kv_caches(1);
    let mut parts = Vec::new();
    for (start, end) in [(0, 5)].into_iter().chain((5..12).map(|at| (at, at + 1))) {
        let ids = &IDS[start..end];
        let last = model.extend(
            TokenBatch { ids, batch: 1, len: ids.len(), documents: None },
            &mut memory,
            &PASS.over(IDS.len()),
        );
        assert_eq!(last.dims(), [1, width], "{what}");
        parts.extend(last.into_data().try_to_vec::<f32>().unwrap());
    }
    // only the last of each piece is projected
    let whole = &whole[4 * width..];
    let largest = whole.iter().fold(0f32, |m, x| m.max(x.abs()));
    assert_eq!(whole.len(), parts.len());
    let error = whole.iter().zip(&parts).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
    // the same sums in another order, in f32
    assert!(error < 1e-5 * largest.max(1.0), "{what}: {error}");
}

/// Models whose layers differ, in words and as plans.
pub fn patterns(train: &TrainConfig) -> Vec<(&'static str, Plan)> {
    let linear = "model.block.attention = { linear = { feature_map = \"elu\" } }";
    [
        (
            "no positions in every second layer",
            "encoding.kind = \"rotary\"",
            "free = { every = 2, encoding = \"none\" }",
        ),
        ("a window in some", "encoding.kind = \"kerple_log\"", "local = { at = [0, 2], window = 3 }"),
        (
            "a window in most, and other kernels where there is none",
            "encoding = { kind = \"alibi\", window = 4 }",
            "global = { every = 4, encoding = { kind = \"kerple_power\", share = \"layer\" } }",
        ),
        (
            "linear in most, softmax in a few",
            &format!("encoding.kind = \"kerple_log\"\n{linear}"),
            "exact = { at = [1], attention = \"softmax\" }",
        ),
        (
            "softmax with a window in most, linear in a few, under rows for the embeddings",
            "encoding = { kind = \"learned\", positions = 40, window = 5 }",
            "wide = { every = 3, window = \"all\", attention = { linear = { feature_map = \"relu\" } } }\n\
             mixed = { at = [0], encoding = { kind = \"dape\", base = \"alibi\", hidden = 4 } }",
        ),
        (
            "gates of tokens, within a window in some, and linear attention in one",
            "encoding.kind = \"fox\"",
            &format!(
                "local = {{ at = [0], window = 3 }}\n\
                 even = {{ at = [1], encoding = {{ kind = \"fox\", gate = \"bias_only\" }} }}\n\
                 wide = {{ at = [2], encoding = \"alibi\", {} }}",
                &linear["model.block.".len()..]
            ),
        ),
        (
            "heads of their own in some, and in one of linear attention",
            "encoding = { kind = \"inkling\", rank = 3, reach = 7 }\nmodel.block.attn_scale = 0.125\nmodel.block.qk_norm = true",
            "near = { at = [0, 2], n_heads = 4, n_kv_heads = 2, head_dim = 4, attn_scale = 0.25, \
             encoding = { kind = \"inkling\", rank = 3, window = 5 } }\n\
             few = { at = [3], n_heads = 6, n_kv_heads = 1, encoding = \"kerple_log\" }",
        ),
        (
            "other heads under linear attention and under rows for the embeddings",
            &format!("encoding = {{ kind = \"learned\", positions = 40 }}\n{linear}"),
            "wide = { at = [1], n_heads = 1, head_dim = 20 }\nturned = { at = [2], head_dim = 6, encoding = \"rotary\" }",
        ),
    ]
    .map(|(what, encoding, kinds)| {
        (what, plan_of_text(&format!("{encoding}\n[model.layers]\n{kinds}"), train).unwrap())
    })
    .into()
}

/// A plan of a run file for a model of four tiny layers, or what is said of it.
pub fn plan_of_text(text: &str, train: &TrainConfig) -> Result<Plan, String> {
    let text = format!(
        "seed = 7\ndata.path = \"nowhere\"\nmodel.n_layers = 4\nmodel.n_heads = 2\nmodel.head_dim = 8\n\
         model.pad_vocab_multiple = 8\n{text}"
    );
    let said = |error: kerple_lm::Error| format!("{error}, {}", error.hint());
    let config = RunConfig::parse(&text, "test", &[]).map_err(said)?;
    let config = RunConfig { train: TrainConfig { train_len: 12, batch_size: 4, ..train.clone() }, ..config };
    Plan::new(&config, facts()).map_err(said)
}

/// A tiny language.
fn facts() -> DataInfo {
    let [tokenizer, content] = ["counting"; 2].map(str::to_owned);
    DataInfo { vocab_size: 23, tokenizer, train_tokens: 1000, content }
}

/// What `work` gives on each of so many ranks, which are threads.
pub fn on_ranks<T: Send>(count: usize, work: impl Fn(Ranks) -> T + Sync) -> Vec<T> {
    let work = &work;
    std::thread::scope(|scope| {
        let spawn = |rank| scope.spawn(move || work(Ranks::of(Rc::new(rank))));
        let threads: Vec<_> = threads::group(count).into_iter().map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// A decoder whose filters of short convolutions are not the zeros they start as.
pub fn decoder(plan: &Plan) -> Decoder {
    struct Filters;
    impl ModuleMapper for Filters {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let values: Vec<f32> = param.val().into_data().iter::<f32>().collect();
            if D != 2 || values.iter().any(|value| *value != 0.0) {
                return param;
            }
            let waves: Vec<f32> = (0..values.len()).map(|at| (at as f32 * 0.7).sin() * 0.4).collect();
            param.map(|old| Tensor::from_data(TensorData::new(waves, old.dims()), &old.device()))
        }
    }
    Decoder::new(plan, &kerple_lm::device()).map(&mut Filters)
}
