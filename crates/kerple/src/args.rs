//! The command line. Names are fixed: people and scripts rely on them.

mod bench;
mod call;
mod encoding_name;
mod export;
mod general;
mod groups;
mod kernel;
mod lists;
mod misuse;
mod renamed;
mod serve;

pub use bench::{
    BenchArgs, BenchAttentionArgs, BenchCommand, BenchStepArgs, TimedModelOptions, TimedNormalizer, TimedSelective,
    TimingOptions,
};
pub use call::Invocation;
use clap::{Args, Parser, Subcommand};
use encoding_name::EncodingName;
pub use export::ExportArgs;
pub use general::{General, thread_count};
pub use groups::{EvaluationOptions, Hardware, RunFile, Sharing, SlurmArray, SplitChoice, default_lengths, task};
use groups::{count, rope_scaling};
#[cfg(feature = "fit")]
pub use kernel::{FitArgs, MeasureName, NOISE, NoiseName, RankName, SearchArgs};
pub use kernel::{KernelArgs, KernelCommand};
use kerple_core::encoding::scaling::RopeScaling;
use kerple_data::tasks::TaskConfig;
pub use serve::ServeArgs;
use std::path::PathBuf;

/// The version and the commit it was built from.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (commit ", env!("KERPLE_COMMIT"), ")");

const EXIT_CODES: &str =
    "Exit codes: 0 success, 1 failure, 2 usage error, 130 stopped by Ctrl-C or a signal, with finished work saved.";

/// Train short, test long: relative positional encodings and length extrapolation in transformers.
#[derive(Debug, Parser)]
#[command(name = "kerple", version = VERSION, arg_required_else_help = true, max_term_width = 110, after_help = EXIT_CODES)]
pub struct Cli {
    #[command(flatten)]
    pub general: General,
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the effect of the positional encoding in half a minute: train three encodings on short
    /// sequences and draw their perplexity on longer ones.
    Demo(DemoArgs),
    /// Run an example with defaults: prepare text, train several encodings on short sequences,
    /// evaluate them on long ones, write a report.
    Quickstart(QuickstartArgs),
    /// Convert text to token shards.
    Prepare(PrepareArgs),
    /// Train one run, or resume it when --out contains it.
    Train(TrainArgs),
    /// Convert a Hugging Face transformers model or a GPT-NeoX checkpoint to a run.
    Import(ImportArgs),
    /// Convert a run to a folder that Hugging Face transformers loads.
    Export(ExportArgs),
    /// Evaluate a trained run at any lengths.
    Eval(EvalArgs),
    /// Train and evaluate several encodings and seeds with the same settings; re-run the command to
    /// resume.
    Compare(CompareArgs),
    /// Reproduce a paper: its runs, then its tables and figures next to the published numbers;
    /// re-run the command to resume.
    #[cfg(feature = "reproduce")]
    Reproduce(ReproduceArgs),
    /// Write tables, statistics and plots for run folders as HTML, Markdown, CSV and JSON.
    Report(ReportArgs),
    /// List the results that the repository contains: reproductions of three papers and experiments.
    #[cfg(feature = "reproduce")]
    Results(ResultsArgs),
    /// List all encodings, or show one: formula, parameters, source and a plot of its bias.
    Describe(DescribeArgs),
    /// Check, plot and analyse kernels of distance.
    Kernel(KernelArgs),
    /// Sample text from a trained run and stream it.
    Sample(SampleArgs),
    /// Serve a trained run over HTTP: completions in the format of OpenAI, and a web page.
    Serve(ServeArgs),
    /// Compare the style of MIDI files with a reference: intervals, rhythms and drums.
    #[cfg(feature = "music-lra")]
    MusicStyle(MusicStyleArgs),
    /// Check kernels against the reference, then time them.
    Bench(BenchArgs),
    /// Verify every checksum and every row of prepared data, runs and folders of them; the exit
    /// code is 1 when something is damaged.
    Verify(VerifyArgs),
    /// List the devices that models can run on, with their memory and kernels.
    Devices(DevicesArgs),
    /// Print a completion script for a shell; save it where the shell looks for completions, or
    /// source it.
    Completions(CompletionsArgs),
    /// Print all commands and options as Markdown, or write man pages.
    #[command(hide = true)]
    Manual(ManualArgs),
}

#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Open the report in a browser at the end.
    #[arg(long)]
    pub open: bool,
    /// Output folder.
    #[arg(long, default_value = "runs/demo")]
    pub out: PathBuf,
}

#[derive(Debug, Args)]
pub struct QuickstartArgs {
    /// Minutes for the whole job; sets the number of training steps.
    #[arg(long, default_value_t = 10.0)]
    pub minutes: f64,
    /// Training steps per run, in place of as many as fit into the minutes.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "minutes")]
    pub steps: Option<u64>,
    /// Text files or folders to use instead of the built-in text, Python Enhancement Proposals.
    #[arg(long, num_args = 1.., value_name = "PATH")]
    pub data: Vec<PathBuf>,
    #[command(flatten)]
    pub hardware: Hardware,
    /// Output folder.
    #[arg(long, default_value = "runs/quickstart")]
    pub out: PathBuf,
}

#[derive(Debug, Args)]
pub struct PrepareArgs {
    /// Files or folders: .jsonl, .jsonl.zst, .jsonl.gz, .parquet, text files, a GPT-NeoX .bin/.idx
    /// pair, or, with a tokenizer for music, MIDI files and .tar, .tar.zst, .tar.gz archives of
    /// them.
    #[arg(long, required = true, num_args = 1.., value_name = "PATH")]
    pub input: Vec<PathBuf>,
    /// Output folder.
    #[arg(long)]
    pub out: PathBuf,
    /// `byte`, a Hugging Face tokenizer.json, `bpe:N` to train one with N tokens, or, for MIDI
    /// files, `remi` (pop piano) or `groove` (bass, drums and one more).
    #[arg(long, default_value = "byte")]
    pub tokenizer: String,
    /// Key of the text in JSON lines, or its column in CSV and Parquet files; `text` by default.
    #[arg(long)]
    pub text_key: Option<String>,
    /// Fractions of the documents for training, validation and test, regardless of names of files
    /// and folders. By default names that state a split decide, and other documents are split
    /// 0.90,0.05,0.05.
    #[arg(long, value_name = "TRAIN,VALID,TEST")]
    pub split: Option<String>,
    /// Augmented copies of each training piece of music, drawn as published: transposed, for
    /// grooves also cut and thinned.
    #[arg(long, default_value_t = 0)]
    pub augment: u64,
    /// Skip up to this many damaged documents: MIDI files, texts, rows of CSV and Parquet files, JSON
    /// lines; each is reported and counted.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub max_bad_documents: u64,
    /// Accept a split whose tokens represent less than half of its bytes.
    #[arg(long)]
    pub allow_loss: bool,
    /// Replace a prepared corpus that has other content. Runs that were trained on the old corpus
    /// need it.
    #[arg(long)]
    pub replace: bool,
    /// End-of-document token, when the tokenizer does not define one.
    #[arg(long)]
    pub eod_token: Option<String>,
    /// Print the summary as JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct TrainArgs {
    /// Run file; optional with --init-from, where its [data], [train] and [encoding] replace those of
    /// the other run.
    #[arg(long, required_unless_present = "init_from")]
    pub config: Option<PathBuf>,
    /// Override a key of the run file, e.g. train.steps=100.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Initialise from the weights of this run, with other positions, another length or other data.
    #[arg(long, value_name = "RUN")]
    pub init_from: Option<PathBuf>,
    /// Run folder; resumes when it contains a run with the same plan.
    #[arg(long)]
    pub out: PathBuf,
    #[command(flatten)]
    pub hardware: Hardware,
    /// Fail on a damaged checkpoint instead of resuming from the previous one.
    #[arg(long)]
    pub strict: bool,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ImportArgs {
    /// Folder with config.json and safetensors of GPT-NeoX, GPT-2, BLOOM, MPT, LLaMA, SmolLM3,
    /// Qwen3 or Inkling, or folder of a GPT-NeoX run.
    pub folder: PathBuf,
    /// Output run folder.
    #[arg(long)]
    pub out: PathBuf,
    /// tokenizer.json to use instead of the folder's.
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// End-of-document token, instead of the token that ends the model's generation.
    #[arg(long, value_name = "TOKEN")]
    pub eod_token: Option<String>,
    /// Value of pos-emb for a GPT-NeoX run whose files do not contain it, e.g. kerple_log.
    #[arg(long, value_name = "NAME")]
    pub pos_emb: Option<String>,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct EvalArgs {
    /// Run folder.
    pub run: PathBuf,
    #[command(flatten)]
    pub evaluation: EvaluationOptions,
    /// For --protocol key: trained runs whose losses choose the key tokens, of the same data as the
    /// run and of another seed or encoding.
    #[arg(long, value_name = "RUN", value_delimiter = ',')]
    pub evaluator: Vec<PathBuf>,
    /// Evaluate with an attention window of this many positions.
    #[arg(long, value_parser = count)]
    pub window: Option<usize>,
    /// Evaluate with RoPE scaling: `linear`, `ntk`, `dynamic`, `yarn`, `llama3`, `self_extend`, or
    /// keys as in a run file, `{ kind = "yarn", factor = 4 }`.
    #[arg(long, value_parser = rope_scaling)]
    pub rope_scaling: Option<RopeScaling>,
    /// Split of the data.
    #[arg(long, value_enum, default_value = "test")]
    pub split: SplitChoice,
    /// Evaluate on the task of the run with other keys, e.g. `{ kind = "flipflop", ignore = 0.98 }`;
    /// vocabulary and answers must be the same.
    #[arg(long, value_parser = task)]
    pub task: Option<TaskConfig>,
    /// Other prepared data with the same tokenizer.
    #[arg(long, value_name = "PATH")]
    pub data: Option<PathBuf>,
    #[command(flatten)]
    pub hardware: Hardware,
    /// Fail on a damaged checkpoint instead of using the previous one.
    #[arg(long)]
    pub strict: bool,
    /// Also write the rows in the results format of lm-evaluation-harness.
    #[arg(long, value_name = "FILE")]
    pub lm_eval: Option<PathBuf>,
    /// Print rows as JSON lines.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct CompareArgs {
    /// Its encoding is replaced by each of --encodings.
    #[command(flatten)]
    pub file: RunFile,
    /// Names of encodings, or `@FILE` with a TOML list `[[encoding]]` of settings.
    #[arg(long, required = true, value_delimiter = ',', value_parser = EncodingName, hide_possible_values = true)]
    pub encodings: Vec<String>,
    /// Train them on each of several tasks in place of the data of the run file: quick, standard, or
    /// names such as flipflop,mqrar,niah_words. Runs are in OUT/TASK/LABEL/seed-N, and one report has
    /// all tasks.
    #[arg(long, value_name = "TASKS", value_delimiter = ',')]
    pub tasks: Vec<String>,
    /// Layers that use these encodings, counted from 0; other layers keep the run file's encoding.
    #[arg(long, value_delimiter = ',')]
    pub layers: Option<Vec<usize>>,
    /// Number of seeds, counted up from the seed of the run file.
    #[arg(long, default_value_t = 1)]
    pub seeds: u64,
    #[command(flatten)]
    pub evaluation: EvaluationOptions,
    /// Also evaluate runs with rotary encodings under this RoPE scaling, e.g. `yarn`; may be
    /// repeated.
    #[arg(long, value_parser = rope_scaling)]
    pub rope_scaling: Vec<RopeScaling>,
    /// Output folder for runs and report.
    #[arg(long)]
    pub out: PathBuf,
    #[command(flatten)]
    pub sharing: Sharing,
    #[command(flatten)]
    pub hardware: Hardware,
    /// Print evaluation rows as JSON lines.
    #[arg(long)]
    pub json: bool,
}

/// What can be reproduced.
#[cfg(feature = "reproduce")]
fn papers() -> String {
    const PAPERS: [&str; 3] = ["kerple", "dape", "spe"];
    let mut own = kerple_experiments::reproduce::papers();
    own.retain(|name| !PAPERS.contains(name));
    let last = own.pop().unwrap_or_default();
    format!("A paper: kerple, dape or spe; or an experiment of this project: {} or {last}", own.join(", "))
}

#[cfg(feature = "reproduce")]
#[derive(Debug, Args)]
pub struct ReproduceArgs {
    #[arg(help = papers())]
    pub paper: String,
    /// smoke (minutes), small (hours on two cores) or paper (the paper's own sizes).
    #[arg(long, default_value = "small")]
    pub scale: String,
    /// Tables and figures to make, e.g. table3,figure5; by default all.
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// Folder that contains the texts' folders, e.g. latex/, code/ and web/; smoke uses built-in
    /// text.
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Output folder for texts, runs and pages.
    #[arg(long)]
    pub out: PathBuf,
    #[command(flatten)]
    pub sharing: Sharing,
    /// Train nothing; make the pages of existing runs.
    #[arg(long)]
    pub pages_only: bool,
    /// Train nothing; copy plans, logs, evaluations, kernels and pages to this folder, without
    /// checkpoints and texts.
    #[arg(long, value_name = "DIR")]
    pub export: Option<PathBuf>,
    #[command(flatten)]
    pub hardware: Hardware,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Folders that contain runs, or one export of a reproduction, such as results/kerple-small.
    #[arg(required = true)]
    pub dirs: Vec<PathBuf>,
    /// Output folder.
    #[arg(long)]
    pub out: PathBuf,
    /// Open the page in a browser at the end.
    #[arg(long)]
    pub open: bool,
    /// Baseline encoding of the paired tests; by default kerple_log when present.
    #[arg(long)]
    pub reference: Option<String>,
    /// Print the report's numbers as JSON.
    #[arg(long)]
    pub json: bool,
}

/// The folder of results as it is called in the repository.
#[cfg(feature = "reproduce")]
pub const DEFAULT_RESULTS: &str = "results";

#[cfg(feature = "reproduce")]
#[derive(Debug, Args)]
pub struct ResultsArgs {
    /// The repository's folder of results.
    #[arg(default_value = DEFAULT_RESULTS)]
    pub dir: PathBuf,
}

/// Heads that `describe` plots where `--heads` is not given.
pub const PICTURE_HEADS: usize = 8;
/// Distances that `describe` plots where `--length` is not given.
pub const PICTURE_LENGTH: usize = 512;

/// Help of an option that is absent where its default applies.
fn with_default(what: &str, default: impl std::fmt::Display) -> String {
    format!("{what} [default: {default}]")
}

#[derive(Debug, Args)]
pub struct DescribeArgs {
    /// Name of an encoding, its table as in a run file, or `config` for the keys of a run file.
    #[arg(value_parser = EncodingName, hide_possible_values = true)]
    pub encoding: Option<String>,
    #[arg(long, value_parser = count, help = with_default("Number of heads to plot", PICTURE_HEADS))]
    pub heads: Option<usize>,
    #[arg(long, value_parser = count, help = with_default("Number of distances to plot", PICTURE_LENGTH))]
    pub length: Option<usize>,
    /// Write the plot as an SVG file.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Print everything as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Seed of `sample` where `--seed` is not given.
pub const SAMPLE_SEED: u64 = 0;

#[derive(Debug, Args)]
pub struct SampleArgs {
    /// Run folder.
    pub run: PathBuf,
    /// Text to continue; for music, event words.
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    pub prompt: String,
    /// Music to continue: the first bars of a MIDI file.
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    pub prompt_midi: Option<PathBuf>,
    /// Number of bars of --prompt-midi.
    // clap does not ask for what it requires where that conflicts with another option
    #[arg(long, default_value_t = 2, requires = "prompt_midi", conflicts_with = "prompt",
        value_parser = clap::value_parser!(u64).range(1..))]
    pub bars: u64,
    /// Write the music as a MIDI file.
    #[arg(long, value_name = "FILE")]
    pub midi: Option<PathBuf>,
    /// Write the music as a piano roll in an SVG file.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Number of tokens to sample.
    #[arg(long, default_value_t = 256, value_parser = count)]
    pub max_new_tokens: usize,
    /// Sampling temperature: 0 always takes the likeliest token, 1 samples from the model's
    /// distribution. By default 0.8 for text, 1.2 for pop piano and 0.6 for grooves, as published.
    #[arg(long)]
    pub temperature: Option<f64>,
    /// Sample from this many likeliest tokens; 0 uses all.
    #[arg(long, default_value_t = 0)]
    pub top_k: usize,
    /// Sample from the likeliest tokens that together have this probability. By default 0.9 for pop
    /// piano, else 1.
    #[arg(long)]
    pub top_p: Option<f64>,
    /// Sample with RoPE scaling, as in `kerple eval`.
    #[arg(long, value_parser = rope_scaling)]
    pub rope_scaling: Option<RopeScaling>,
    #[command(flatten)]
    pub hardware: Hardware,
    #[arg(long, help = with_default("Seed for sampling", SAMPLE_SEED))]
    pub seed: Option<u64>,
}

#[cfg(feature = "music-lra")]
#[derive(Debug, Args)]
pub struct MusicStyleArgs {
    /// MIDI file that the others are compared with as a whole.
    pub reference: PathBuf,
    /// MIDI files to compare with it together: bass with bass, drums with drums, harmony with
    /// harmony.
    #[arg(required = true)]
    pub pieces: Vec<PathBuf>,
    /// Number of equal parts of their duration, each compared separately.
    #[arg(long, default_value_t = 1, value_parser = count)]
    pub parts: usize,
    /// Print one JSON object per part.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Prepared data, GPT-NeoX prefixes, run folders, or folders that contain them: comparisons,
    /// reproductions and their exports.
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
    /// Print one JSON object per run and per text.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct DevicesArgs {
    /// Print one JSON object per device.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// Shell.
    pub shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub struct ManualArgs {
    /// Write a man page per command to this folder.
    #[arg(long, value_name = "DIR")]
    pub man: Option<PathBuf>,
}
