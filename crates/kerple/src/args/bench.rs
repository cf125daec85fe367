//! Options of `kerple bench`, which it shares with the development program `measure`.

use super::encoding_name::EncodingName;
use super::groups::{Hardware, SimdChoice, count};
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub work: BenchCommand,
}

/// What to time.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Time one attention layer, forward and backward; by default at 512 and 2048 tokens, with a
    /// batch of 1 and 12 heads of 64 features.
    Attention(BenchAttentionArgs),
    /// Time a training step of a decoder; by default at 512 tokens, with a batch of 8 and 4 heads
    /// of 64 features.
    Step(BenchStepArgs),
}

#[derive(Debug, Args)]
pub struct BenchAttentionArgs {
    #[command(flatten)]
    pub timing: TimingOptions,
    /// Encoding as a name or a table of keys, whose scores are timed alternately with KERPLE-log's.
    /// What it does to queries and keys before is not timed.
    #[arg(long, value_parser = EncodingName, hide_possible_values = true)]
    pub encoding: Option<String>,
    /// How scores become weights, timed alternately with the softmax; KERPLE-log's scores unless
    /// there is an --encoding.
    #[arg(long)]
    pub normalizer: Option<TimedNormalizer>,
    /// Whether a query's first head masks keys for later queries, or for itself too; timed
    /// alternately with attention that masks none. KERPLE-log's scores unless there is an
    /// --encoding.
    #[arg(long)]
    pub selective_attention: Option<TimedSelective>,
    /// Positions that a query attends to, its own included; without --encoding, --normalizer and
    /// --selective-attention.
    #[arg(long, value_parser = count, conflicts_with_all = ["encoding", "normalizer", "selective_attention"])]
    pub window: Option<usize>,
    /// First tokens that stay visible under the window.
    #[arg(long, value_parser = count, requires = "window")]
    pub sink_tokens: Option<usize>,
    #[command(flatten)]
    pub hardware: Hardware,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum TimedNormalizer {
    StickBreaking,
    Softpick,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum TimedSelective {
    Exclusive,
    Inclusive,
}

#[derive(Debug, Args)]
pub struct BenchStepArgs {
    #[command(flatten)]
    pub timing: TimingOptions,
    #[command(flatten)]
    pub model: TimedModelOptions,
}

/// Lengths and sizes of what is timed, and how it is timed.
#[derive(Debug, Args)]
pub struct TimingOptions {
    /// Sequence lengths.
    #[arg(long, value_delimiter = ',', value_parser = count)]
    pub lengths: Vec<usize>,
    /// Batch size.
    #[arg(long, value_parser = count)]
    pub batch: Option<usize>,
    /// Number of attention heads.
    #[arg(long, value_parser = count)]
    pub heads: Option<usize>,
    /// Features per head.
    #[arg(long, value_parser = count)]
    pub head_dim: Option<usize>,
    /// Number of timed repetitions.
    #[arg(long, default_value_t = 5, value_parser = count)]
    pub repeats: usize,
    /// Widest instruction set to use.
    #[arg(long, value_enum)]
    pub simd: Option<SimdChoice>,
    /// Print one JSON object per line.
    #[arg(long)]
    pub json: bool,
}

/// The model that is timed, and where it runs.
#[derive(Debug, Args)]
pub struct TimedModelOptions {
    /// Run file of the model; its text is not read.
    #[arg(long, conflicts_with_all = ["heads", "head_dim", "layers"])]
    pub config: Option<PathBuf>,
    /// Override a key of the run file, or of the built-in one, e.g. model.block.glu=true.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Number of layers.
    #[arg(long, value_parser = count)]
    pub layers: Option<usize>,
    /// Vocabulary size.
    #[arg(long, value_parser = count)]
    pub vocab: Option<usize>,
    /// Encoding of the model, as a name or a table of keys.
    #[arg(long, value_parser = EncodingName, hide_possible_values = true)]
    pub encoding: Option<String>,
    /// Where it runs.
    #[command(flatten)]
    pub hardware: Hardware,
}
