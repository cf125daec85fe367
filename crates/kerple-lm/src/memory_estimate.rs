//! The memory that a plan needs, estimated before it is allocated.
//!
//! With `P` trained values, `T` tokens worked on at once, `M` the model's width, `F` the inner width of the feed-forward
//! layers, `H` heads, `V` the vocabulary, 4 bytes a value:
//!
//! ```text
//! training     weights P, moments 2P, gradients P (2P when parts of a batch are added up, 3P when they are taken in pieces), head and its gradient 2MV
//!              activations  T (layers (6M + F + H) + 10M + 2F)    what the backward needs, and one layer at work;
//!                                                                2F a layer where hidden values are dropped; packed rows of one
//!                                                                layer once more under `qk_norm` and `key_shift` or `short_conv`, twice under
//!                                                                `ssmax` or both, three times under all
//!                                                                where products multiply `bf16` on CPUs, packed rows, what attention
//!                                                                gives and F of a layer take half, as they are kept
//!              logits       2VR of some rows at a time, which a product packs
//! evaluation   weights P
//!              activations  6TM                                   one layer at work, its inner width in pieces; less
//!                                                                where heads of a long sequence are worked off a few at a time
//!              logits       pieces of them on every thread; of tasks, VR of some rows at a time
//! both         more or less than 6M a layer by what packed rows and what attention gives have more or less than with the model's
//!              heads, where layers have their own
//!              what positions take, see [`positions`]; 28 bytes for every token at once: the examples, their targets and losses
//! serving      as evaluation, and what each text that grows holds, see [`caches`]
//! saving       weights P, moments 2P, a copy of the weights, the moments as a file: 6P
//! program      32 MiB of code and what it reads, 6 MiB for each thread: as they are resident when a tiny model is trained
//! ```
//!
//! This is an estimate: allocations are within a factor of two of it, which a test checks for plans
//! in which different parts dominate. So is the resident memory of such runs, as the operating
//! system reports it. A request is refused only if the estimate alone exceeds the memory of the
//! machine.

mod caches;
mod positions;

use crate::error::{Error, Result};
use crate::layers::LayerSettings;
use crate::model::MOST_PREFILLED;
use crate::plan::Plan;
use kerple_burn::heads::Heads;
use kerple_core::encoding::Injection;
use kerple_core::ops::cross_entropy;
use kerple_core::precision::Precision;
pub use kerple_data::machine::MemoryLimit;
use positions::ResidentPositions;
use std::fmt;

/// Tokens worked on at once when sequences are short; one sequence at least.
pub const TOKENS_AT_ONCE: usize = 8192;

/// Bytes by what they are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryEstimate {
    /// Trained values.
    pub weights: u64,
    /// Adam's moments.
    pub moments: u64,
    /// Gradients of all trained values.
    pub gradients: u64,
    /// What the layers hold for the tokens worked on at once.
    pub activations: u64,
    /// Logits, a few rows at a time.
    pub logits: u64,
    /// Tables, draws and codes of the encoding, features and states of linear attention.
    pub positions: u64,
    /// KV caches of the texts that grow together, and states of linear attention in their place.
    pub caches: u64,
    /// Sequences with their targets and losses.
    pub examples: u64,
    /// The program itself and its threads.
    pub program: u64,
}

/// Bytes of a token of an example: of its ids as they are read and as they are padded, of its target, of its loss by position.
const A_TOKEN: u64 = 28;

/// Bytes of code and of what it reads.
const PROGRAM: u64 = 32 << 20;

/// Bytes of a thread: its stack, and what the allocator keeps for it.
const A_THREAD: u64 = 6 << 20;

impl MemoryEstimate {
    /// All of it.
    pub fn total(&self) -> u64 {
        let MemoryEstimate { weights, moments, gradients, activations, logits, positions, caches, examples, program } =
            *self;
        let others = [moments, gradients, activations, logits, positions, caches, examples, program];
        others.into_iter().fold(weights, u64::saturating_add)
    }

    /// Refuses more than `limit`.
    fn check(&self, limit: &MemoryLimit, what: &str, hint: impl FnOnce() -> String) -> Result<()> {
        if self.total() <= limit.bytes {
            return Ok(());
        }
        let (need, have) = (gibibytes(self.total()), gibibytes(limit.bytes));
        Err(Error::refused(format!("{what} needs about {need}, {} is {have}\n  {self}", limit.name), hint()))
    }
}

impl fmt::Display for MemoryEstimate {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "memory: about {} (weights {}", gibibytes(self.total()), gibibytes(self.weights))?;
        for (name, bytes) in [
            ("optimizer state", self.moments),
            ("gradients", self.gradients),
            ("activations", self.activations),
            ("logits", self.logits),
            ("positions", self.positions),
            ("KV caches", self.caches),
            ("examples", self.examples),
            ("program", self.program),
        ] {
            if bytes > 0 {
                write!(f, ", {name} {}", gibibytes(bytes))?;
            }
        }
        f.write_str(")")
    }
}

fn gibibytes(bytes: u64) -> String {
    match bytes {
        0..=0x3fff_ffff => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

/// The program and its threads.
fn program() -> u64 {
    PROGRAM + A_THREAD * rayon::current_num_threads() as u64
}

/// Logits of the rows that are held at once, of so many tokens.
fn logits(tokens: usize, vocab: usize) -> u64 {
    bytes(&[cross_entropy::rows_at_once(tokens, vocab), vocab])
}

/// Values of a token in a packed row, and in what attention gives.
fn attention_width(heads: Heads) -> usize {
    heads.packed() + heads.inner()
}

/// Bytes of so many values a factor; sizes of plans are limited far below where this would not fit 128 bits.
fn bytes(factors: &[usize]) -> u64 {
    let values = factors.iter().fold(4u128, |product, factor| product.saturating_mul(*factor as u128));
    u64::try_from(values).unwrap_or(u64::MAX)
}

impl Plan {
    /// What training takes, with parts of `micro_batch` sequences, or saving a checkpoint where that is more. `kept` is the precision of
    /// what layers keep for their backward, [`Runtime::kept_precision`](crate::runtime::Runtime::kept_precision).
    pub fn training_memory(&self, micro_batch: usize, kept: Precision) -> MemoryEstimate {
        let model = &self.model;
        let [m, f] = [model.d_model, model.d_hidden];
        let all: Vec<Heads> = (0..model.n_layers).map(|layer| model.heads(layer)).collect();
        let heads: usize = all.iter().map(|heads| heads.heads).sum();
        let at_once = self.train.chunk_len.unwrap_or(usize::MAX).min(self.sequence_len());
        let tokens = micro_batch.saturating_mul(at_once);
        let in_parts = micro_batch < self.train.batch_size;
        let parts = 1 + usize::from(in_parts) + usize::from(in_parts && at_once < self.sequence_len());
        let hidden = if model.block.dropout > 0.0 && model.block.hidden_dropout { 2 * f } else { f };
        let packed = all.iter().map(|heads| heads.packed()).max().unwrap_or(0);
        // as they are projected, as they are rotated, with `ssmax` as they are normed, and as they are shifted before
        let (convolves, has_norm) = (model.block.short_conv.is_some(), model.block.qk_norm);
        let has_shift = model.block.key_shift || convolves;
        let prepared = match (model.block.ssmax.is_some(), has_shift, has_norm) {
            (true, true, _) => 3 * packed,
            (true, false, _) | (false, true, true) => 2 * packed,
            (false, true, false) | (false, false, true) => packed,
            (false, false, false) => 0,
        };
        // what both branches give before a convolution, and what they are added to
        let branches = if convolves { 4 * m } else { 0 };
        let attention = (model.n_layers * 6 * m + all.iter().copied().map(attention_width).sum::<usize>())
            .saturating_sub(model.n_layers * attention_width(model.shared_heads()));
        // what the backward of stick-breaking attention passes on from tile to tile
        let most_heads = all.iter().map(|heads| heads.heads).max().unwrap_or(0);
        let carried = if model.block.normalizer.stick_breaking().is_some() { 3 * most_heads } else { 0 };
        let carried = carried + self.selective_numbers();
        let a_token = attention + model.n_layers * (branches + hidden) + heads + 10 * m + 2 * f + prepared + carried;
        let halves = if kept == Precision::Bf16 { self.kept_numbers() / 2 } else { 0 };
        let a_token = a_token.saturating_sub(halves);
        let saving = bytes(&[3, self.parameters]);
        let evaluation = match self.train.eval_interval {
            0 => 0,
            _ => self.evaluation_memory(self.sequence_len()).activations,
        };
        let rows =
            ResidentPositions { sequences: micro_batch, positions: at_once, span: self.sequence_len(), training: true };
        let gradients = bytes(&[parts, self.parameters]).saturating_add(bytes(&[2, m, model.n_logits()]));
        MemoryEstimate {
            weights: bytes(&[self.parameters]),
            moments: bytes(&[2, self.parameters]),
            // saving needs its copies after the gradients are gone
            gradients: gradients.max(saving),
            // a validation comes between two updates
            activations: bytes(&[tokens, a_token]).max(evaluation),
            logits: logits(tokens, model.n_logits()).saturating_mul(2),
            positions: positions::positions(self, rows),
            caches: 0,
            examples: A_TOKEN.saturating_mul(self.train.batch_size as u64).saturating_mul(self.sequence_len() as u64),
            program: program(),
        }
    }

    /// Numbers of a token that all layers keep for their backward in the precision of products: whole attention layers do, and those
    /// that take the parts one by one do not.
    fn kept_numbers(&self) -> usize {
        let of = |layer: LayerSettings| {
            let whole = matches!(
                layer.encoding.entry(),
                Injection::Nowhere
                    | Injection::Embeddings
                    | Injection::Rotation { .. }
                    | Injection::Scores(_)
                    | Injection::ScoreMod { .. }
                    | Injection::Gates { .. }
            );
            let is_kept = whole && layer.attention.linear().is_none();
            self.model.d_hidden + if is_kept { attention_width(layer.heads) } else { 0 }
        };
        self.model.every_layer(&self.encoding).map(of).sum()
    }

    /// Numbers of a token that selective attention passes on in the backward of a layer: in f64 what is masked of its key and the gradient
    /// in that, and gradients of tables over distances, which each sequence sums by itself.
    fn selective_numbers(&self) -> usize {
        let of_tables = |layer: LayerSettings| match layer.encoding.entry() {
            Injection::Scores(tables) => (usize::from(tables.bias) + usize::from(tables.weight)) * layer.heads.heads,
            _ => 0,
        };
        let tables = self.model.every_layer(&self.encoding).map(of_tables).max().unwrap_or(0);
        if self.model.block.selective_attention.is_some() { 4 + tables } else { 0 }
    }

    /// What evaluating sequences of `length` tokens takes.
    pub fn evaluation_memory(&self, length: usize) -> MemoryEstimate {
        let model = &self.model;
        // longer texts are taken in pieces by linear attention
        let in_pieces = model.is_linear() && self.data.task.is_none() && length > MOST_PREFILLED;
        let (all, sequences) = (length.max(TOKENS_AT_ONCE), (TOKENS_AT_ONCE / length.max(1)).max(1));
        let at_once = if in_pieces { MOST_PREFILLED } else { length };
        let tokens = if in_pieces { MOST_PREFILLED } else { all };
        let rows = ResidentPositions { sequences, positions: at_once, span: length, training: false };
        let widest = (0..model.n_layers).map(|layer| attention_width(model.heads(layer))).max().unwrap_or(0);
        let a_token = (6 * model.d_model + widest).saturating_sub(attention_width(model.shared_heads()));
        MemoryEstimate {
            weights: bytes(&[self.parameters]),
            moments: 0,
            gradients: 0,
            activations: bytes(&[tokens, a_token]),
            logits: match self.data.task {
                None => {
                    bytes(&[cross_entropy::numbers_at_once(tokens, model.n_logits(), rayon::current_num_threads())])
                }
                Some(_) => logits(tokens, model.n_logits()),
            },
            positions: positions::positions(self, rows),
            caches: 0,
            examples: A_TOKEN.saturating_mul(all as u64),
            program: program(),
        }
    }

    /// What serving takes: a prompt that is read while so many texts grow, of up to `length` tokens each.
    pub fn serving_memory(&self, length: usize, texts: usize) -> MemoryEstimate {
        let caches = caches::caches(self, length).saturating_mul(texts as u64);
        MemoryEstimate { caches, ..self.evaluation_memory(length) }
    }

    /// Refuses training that needs more memory than there is.
    ///
    /// # Errors
    /// The estimate, the limit and the number to change.
    pub fn check_training_memory(&self, limit: Option<&MemoryLimit>, kept: Precision) -> Result<()> {
        let Some(limit) = limit else { return Ok(()) };
        let micro_batch = self.train.micro_batch_size.unwrap_or(self.train.batch_size);
        self.training_memory(micro_batch, kept).check(limit, "training", || {
            let fits = |rows: &usize| self.training_memory(*rows, kept).total() <= limit.bytes;
            let divides = |rows: &usize| self.train.batch_size.is_multiple_of(*rows);
            match (1..micro_batch).rev().filter(divides).find(fits) {
                Some(rows) => format!(
                    "use --set train.micro_batch_size={rows}; it fits and gives the \
                    same training up to rounding; a stopped run resumes with it"
                ),
                None => "use a smaller model, or lower train.train_len".to_owned(),
            }
        })
    }

    /// Refuses evaluations that need more memory than there is.
    ///
    /// # Errors
    /// The estimate and the limit.
    pub fn check_evaluation_memory(&self, length: usize, limit: Option<&MemoryLimit>) -> Result<()> {
        let Some(limit) = limit else { return Ok(()) };
        let what = format!("evaluating {length} tokens at once");
        self.evaluation_memory(length).check(limit, &what, || "lower --lengths".to_owned())
    }

    /// Refuses serving that needs more memory than there is.
    ///
    /// # Errors
    /// The estimate, the limit and the options to change.
    pub fn check_serving_memory(&self, length: usize, texts: usize, limit: Option<&MemoryLimit>) -> Result<()> {
        let Some(limit) = limit else { return Ok(()) };
        let what = format!("serving {texts} sequences of {length} tokens at once");
        self.serving_memory(length, texts).check(limit, &what, || {
            let fits = |length: usize, texts: usize| self.serving_memory(length, texts).total() <= limit.bytes;
            let halves = std::iter::successors(Some(length / 2), |shorter| Some(shorter / 2));
            let shorter = || halves.take_while(|length| *length > 0).find(|length| fits(*length, texts));
            match most_that(texts, |texts| fits(length, texts)) {
                texts @ 1.. => format!("use --max-num-seqs {texts}, or lower --max-model-len"),
                0 => shorter().map_or_else(
                    || "serve a smaller model, or use a machine with more memory".to_owned(),
                    |length| format!("use --max-model-len {length}"),
                ),
            }
        })
    }
}

/// The largest number below `end` that has a property which larger numbers lose; 0 where 1 lacks it.
fn most_that(end: usize, has: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, end);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if has(middle) { low = middle } else { high = middle }
    }
    low
}
