//! The command line. Names are fixed: people and scripts rely on them.

mod call;
mod export;
mod general;
mod groups;
mod kernel;
mod misuse;
mod serve;

pub use call::Call;
use clap::{Args, Parser, Subcommand};
pub use export::Export;
pub use general::General;
pub use groups::{Array, Evaluation, Hardware, Instructions, RunFile, Sharing, Split, Work, default_lengths};
use groups::{count, rope_scaling};
pub use kernel::{Kernel, KernelCommand};
use kerple::encoding::scaling::Scaling;
pub use serve::Serve;
use std::path::PathBuf;

/// The version and the commit it was built from.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (commit ", env!("KERPLE_COMMIT"), ")");

const EXIT_CODES: &str =
    "Exit codes: 0 done, 1 failed, 2 misused, 130 stopped by Ctrl-C or a signal with what was done saved.";

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
    /// The main job with defaults: prepare text, train several encodings short, evaluate them long, write a report.
    Quickstart(Quickstart),
    /// Turn text into token shards.
    Prepare(Prepare),
    /// Train one run; the same --out again resumes it.
    Train(Train),
    /// Make a run of a model of Hugging Face transformers or of a GPT-NeoX checkpoint.
    Import(Import),
    /// Write a run as a folder that Hugging Face transformers loads.
    Export(Export),
    /// Evaluate a trained run at any lengths.
    Eval(Eval),
    /// Train and evaluate several encodings and seeds with the same settings; resumes where it stopped.
    Compare(Compare),
    /// Reproduce a paper: its runs, then its tables and figures beside the printed numbers; resumes where it stopped.
    Reproduce(Reproduce),
    /// Write tables, statistics and plots of run folders as HTML, Markdown, CSV and JSON.
    Report(Report),
    /// List every encoding, or show one: formula, parameters, source and a picture of its bias.
    Describe(Describe),
    /// Work with kernels of distance: which are valid, why, and what they look like.
    Kernel(Kernel),
    /// Stream text from a trained run.
    Sample(Sample),
    /// Serve a trained run over HTTP: completions in OpenAI's shape, and a page.
    Serve(Serve),
    /// Compare the style of pieces of music with that of a reference: intervals, rhythms and drums.
    Style(Style),
    /// Check engines against the definition, then time them.
    Bench(Bench),
    /// Compare every checksum of prepared data and runs, or of all in some folders, and read every row; exit code 1 when
    /// something is damaged.
    Verify(Verify),
    /// List the devices that models can run on: GPUs, their memory and what they have kernels for.
    Devices(Devices),
    /// Run every case of a folder of reference values through every engine that has it.
    Golden(Golden),
    /// Print what a shell completes: put it where the shell looks, or load it from its start file.
    Completions(Completions),
    /// Print every command with its options as Markdown, or write man pages.
    Manual(Manual),
}

#[derive(Debug, Args)]
pub struct Quickstart {
    /// Minutes the whole job may take; decides the number of training steps.
    #[arg(long, default_value_t = 10.0)]
    pub minutes: f64,
    /// Text to use instead of what the program brings along, Python Enhancement Proposals: files or folders.
    #[arg(long, num_args = 1.., value_name = "PATH")]
    pub data: Vec<PathBuf>,
    #[command(flatten)]
    pub hardware: Hardware,
    /// Where everything is written.
    #[arg(long, default_value = "runs/quickstart")]
    pub out: PathBuf,
}

#[derive(Debug, Args)]
pub struct Prepare {
    /// .jsonl, .jsonl.zst, .jsonl.gz, .parquet, text files, folders of them, a GPT-NeoX .bin/.idx pair, or, with a tokenizer
    /// for music, MIDI files and .tar, .tar.zst, .tar.gz of them.
    #[arg(long, required = true, num_args = 1.., value_name = "PATH")]
    pub input: Vec<PathBuf>,
    /// Folder to write.
    #[arg(long)]
    pub out: PathBuf,
    /// `byte`, a Hugging Face tokenizer.json, `bpe:N` to train one with N tokens, or, for MIDI files, `remi` (pop piano) or
    /// `groove` (bass, drums and one more).
    #[arg(long, default_value = "byte")]
    pub tokenizer: String,
    /// Key of the text in JSON lines and Parquet columns.
    #[arg(long, default_value = "text")]
    pub text_key: String,
    /// Shares of the documents for training, validation and test, whatever names of files and folders state. Without it names
    /// count where they state splits, and other documents are shared 0.90,0.05,0.05.
    #[arg(long, value_name = "TRAIN,VALID,TEST")]
    pub split: Option<String>,
    /// Altered copies of each training piece of music, drawn as published: transposed, for grooves cut and thinned too.
    #[arg(long, default_value_t = 0)]
    pub copies: u64,
    /// Pass over up to this many damaged MIDI files, rows of Parquet and lines of JSON; they are named and counted.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub skip_bad: u64,
    /// Keep a split of which tokens represent less than half of the bytes.
    #[arg(long)]
    pub allow_loss: bool,
    /// Replace a prepared corpus of other content. Runs that were trained on that one need it.
    #[arg(long)]
    pub replace: bool,
    /// Token that ends a document, when the tokenizer does not say.
    #[arg(long)]
    pub end_of_document: Option<String>,
    /// Print the summary as JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Train {
    /// Run file; with --from it may be left out, and its [data], [train] and [encoding] stand for those of the other run.
    #[arg(long, required_unless_present = "from")]
    pub config: Option<PathBuf>,
    /// Override a key of the run file, e.g. train.steps=100.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Begin with the weights of this run, with other positions, another length or other data.
    #[arg(long, value_name = "RUN")]
    pub from: Option<PathBuf>,
    /// Run folder; resumes when it holds a run of the same plan.
    #[arg(long)]
    pub out: PathBuf,
    #[command(flatten)]
    pub hardware: Hardware,
    /// Refuse a damaged checkpoint instead of going on from the one before.
    #[arg(long)]
    pub strict: bool,
    /// Print the outcome as JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Import {
    /// Folder with config.json and safetensors of GPT-NeoX, GPT-2, BLOOM, MPT, LLaMA, SmolLM3 or Qwen3, or of a GPT-NeoX run.
    pub folder: PathBuf,
    /// Run folder to write.
    #[arg(long)]
    pub out: PathBuf,
    /// tokenizer.json in place of the folder's.
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// Token that ends a document, in place of the one that ends what the model generates.
    #[arg(long, value_name = "TOKEN")]
    pub end_of_document: Option<String>,
    /// Value of pos-emb of a GPT-NeoX run whose files do not say it, e.g. kerple_log.
    #[arg(long, value_name = "NAME")]
    pub pos_emb: Option<String>,
    /// Print what was made as JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Eval {
    /// Run folder.
    pub run: PathBuf,
    #[command(flatten)]
    pub evaluation: Evaluation,
    /// Evaluate with attention restricted to this many positions.
    #[arg(long, value_parser = count)]
    pub window: Option<usize>,
    /// Evaluate with other rotary rates: `linear`, `ntk`, `dynamic`, `yarn`, `llama3`, or keys as in a run file,
    /// `{ kind = "yarn", factor = 4 }`.
    #[arg(long, value_parser = rope_scaling)]
    pub rope_scaling: Option<Scaling>,
    /// Part of the text.
    #[arg(long, value_enum, default_value = "test")]
    pub split: Split,
    /// Other prepared data, with the same tokenizer.
    #[arg(long, value_name = "PATH")]
    pub data: Option<PathBuf>,
    #[command(flatten)]
    pub hardware: Hardware,
    /// Refuse a damaged checkpoint instead of taking the one before.
    #[arg(long)]
    pub strict: bool,
    /// Write the rows as results of lm-evaluation-harness too.
    #[arg(long, value_name = "FILE")]
    pub lm_eval: Option<PathBuf>,
    /// Print rows as JSON lines.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Compare {
    /// Its encoding is replaced by each of --encodings.
    #[command(flatten)]
    pub file: RunFile,
    /// Names of encodings, or `@FILE` with a TOML list `[[encoding]]` of settings.
    #[arg(long, required = true, value_delimiter = ',')]
    pub encodings: Vec<String>,
    /// Layers in which they stand, counted from 0; the others keep the run file's encoding.
    #[arg(long, value_delimiter = ',')]
    pub layers: Option<Vec<usize>>,
    /// Number of seeds, counted up from the run file's.
    #[arg(long, default_value_t = 1)]
    pub seeds: u64,
    #[command(flatten)]
    pub evaluation: Evaluation,
    /// Evaluate runs that rotate with other rotary rates too, e.g. `yarn`; may be repeated.
    #[arg(long, value_parser = rope_scaling)]
    pub rope_scaling: Vec<Scaling>,
    /// Where run folders and the report are written.
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

#[derive(Debug, Args)]
pub struct Reproduce {
    /// The paper: kerple, dape or spe; or a question: arena, budget, decay, draws, induction, languages or seeds.
    pub paper: String,
    /// smoke (minutes), small (hours on two cores) or paper (the paper's own sizes).
    #[arg(long, default_value = "small")]
    pub scale: String,
    /// Tables and figures that are wanted, e.g. table3,figure5; all when absent.
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// Folder of the texts' folders, e.g. latex/, code/ and web/; smoke has text of its own.
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Where texts, runs and pages are written.
    #[arg(long)]
    pub out: PathBuf,
    #[command(flatten)]
    pub sharing: Sharing,
    /// Train nothing; make the pages of what is there.
    #[arg(long)]
    pub render: bool,
    /// Train nothing; copy plans, logs, evaluations and kernels to a folder, without checkpoints and texts, with pages.
    #[arg(long, value_name = "DIR")]
    pub export: Option<PathBuf>,
    #[command(flatten)]
    pub hardware: Hardware,
    /// Print what was made as JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Report {
    /// Folders with runs in them.
    #[arg(required = true)]
    pub dirs: Vec<PathBuf>,
    /// Folder to write.
    #[arg(long)]
    pub out: PathBuf,
    /// Encoding that the paired tests compare with; kerple_log when present.
    #[arg(long)]
    pub reference: Option<String>,
    /// Print the report's numbers as JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Describe {
    /// Name of an encoding, or `config` for the keys of a run file.
    pub encoding: Option<String>,
    /// Heads to draw.
    #[arg(long, default_value_t = 8, value_parser = count)]
    pub heads: usize,
    /// Distances to draw.
    #[arg(long, default_value_t = 512, value_parser = count)]
    pub distances: usize,
    /// Write the picture as SVG.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Print everything as JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Sample {
    /// Run folder.
    pub run: PathBuf,
    /// Text to go on from; of music, words of events.
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    pub prompt: String,
    /// Music to go on from: the first bars of a MIDI file.
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    pub prompt_midi: Option<PathBuf>,
    /// How many bars of it.
    #[arg(long, default_value_t = 2, requires = "prompt_midi")]
    pub bars: u64,
    /// Write the music as a MIDI file.
    #[arg(long, value_name = "FILE")]
    pub midi: Option<PathBuf>,
    /// Write a picture of the music, a piano roll, as SVG.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Tokens to add.
    #[arg(long, default_value_t = 256, value_parser = count)]
    pub tokens: usize,
    /// 0 always takes the likeliest token; 1 samples from the model's distribution. By default 0.8 for text, 1.2 for pop
    /// piano and 0.6 for grooves, as published.
    #[arg(long)]
    pub temperature: Option<f64>,
    /// Only the likeliest tokens are considered; 0 considers all.
    #[arg(long, default_value_t = 0)]
    pub top_k: usize,
    /// Only the likeliest tokens that together have this share are considered. By default 0.9 for pop piano, else 1.
    #[arg(long)]
    pub top_p: Option<f64>,
    #[command(flatten)]
    pub hardware: Hardware,
    /// Seed of the draws.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
}

#[derive(Debug, Args)]
pub struct Bench {
    /// What to time.
    #[arg(value_enum)]
    pub work: Work,
    /// Run file whose model is timed (step, eval); its text is not read.
    #[arg(long, conflicts_with_all = ["heads", "head_dim", "layers"])]
    pub config: Option<PathBuf>,
    /// Override a key of the run file, e.g. model.block.gated=true.
    #[arg(long, value_name = "KEY=VALUE", requires = "config")]
    pub set: Vec<String>,
    /// Sequence lengths (attention, linear, step, eval) or cached keys (decode).
    #[arg(long, value_delimiter = ',', value_parser = count)]
    pub lens: Vec<usize>,
    /// Sequences.
    #[arg(long, value_parser = count)]
    pub batch: Option<usize>,
    /// Attention heads.
    #[arg(long, value_parser = count)]
    pub heads: Option<usize>,
    /// Features a head.
    #[arg(long, value_parser = count)]
    pub head_dim: Option<usize>,
    /// Layers (step, eval).
    #[arg(long, value_parser = count)]
    pub layers: Option<usize>,
    /// Vocabulary (step, eval).
    #[arg(long, value_parser = count)]
    pub vocab: Option<usize>,
    /// Time a model with this encoding (step, eval), or its scores alternately with KERPLE-log's (attention): a name, or a
    /// table in JSON.
    #[arg(long)]
    pub encoding: Option<String>,
    /// Timed repetitions.
    #[arg(long, default_value_t = 5, value_parser = count)]
    pub repeats: usize,
    /// Use no wider instructions than these.
    #[arg(long, value_enum)]
    pub instructions: Option<Instructions>,
    #[command(flatten)]
    pub hardware: Hardware,
    /// Print one JSON object a line.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Style {
    /// MIDI file that the others are compared with, whole.
    pub reference: PathBuf,
    /// MIDI files that are compared with it together, bass with bass, drums with drums, harmony with harmony.
    #[arg(required = true)]
    pub pieces: Vec<PathBuf>,
    /// Equal parts of their time, each compared on its own.
    #[arg(long, default_value_t = 1, value_parser = count)]
    pub parts: usize,
    /// Print one JSON object a part.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Verify {
    /// Prepared data, GPT-NeoX prefixes, run folders, or folders of them: comparisons, reproductions and their exports.
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
    /// Print one JSON object for each run and each text.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Golden {
    /// Folder with manifest.json and the files it names.
    pub dir: PathBuf,
    #[command(flatten)]
    pub hardware: Hardware,
    /// Print verdicts as JSON lines.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Devices {
    /// Print one JSON object a device.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Completions {
    /// Which shell.
    pub shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub struct Manual {
    /// Write a man page of every command to this folder.
    #[arg(long, value_name = "DIR")]
    pub man: Option<PathBuf>,
}
