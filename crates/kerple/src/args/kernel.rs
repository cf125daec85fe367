//! The commands for kernels of distance.

#[cfg(feature = "fit")]
use super::{Hardware, RunFile};
#[cfg(feature = "fit")]
use clap::ValueEnum;
use clap::{Args, Subcommand};
#[cfg(feature = "fit")]
use kerple_lm::evaluate::EvalLength;
#[cfg(feature = "fit")]
use kerple_lm::sweep::Shard;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub struct KernelArgs {
    #[command(subcommand)]
    pub command: KernelCommand,
}

/// What to do with a kernel.
#[derive(Debug, Subcommand)]
pub enum KernelCommand {
    /// Check whether a kernel is conditionally positive definite, which shift makes it positive
    /// definite, and why not.
    Check {
        /// Kernel expression, e.g. 'log(b=1, a=0.5)'.
        expression: String,
        /// Positions: 0..7 (both ends included), 0,1,2, random(n=20, high=100, seed=1) or grid(4x5).
        #[arg(long, default_value = "0..15")]
        points: String,
        /// Print as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Plot kernels, or the learned kernels of a run.
    Plot {
        /// Kernel expressions, or run folders.
        #[arg(required = true)]
        what: Vec<String>,
        /// Number of distances to plot.
        #[arg(long, default_value_t = 512)]
        length: usize,
        /// Use a logarithmic axis of distances.
        #[arg(long)]
        log: bool,
        /// Plot the number of heads with an effective length up to x instead of the kernels (run
        /// folders only).
        #[arg(long, conflicts_with_all = ["length", "log"])]
        effective_lengths: bool,
        /// Write an SVG file instead of plotting in the terminal.
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
    },
    /// Compute feature maps of the shifted kernel by eigendecomposition, with the error of low
    /// ranks.
    Features {
        /// Kernel expression.
        expression: String,
        /// Positions.
        #[arg(long, default_value = "0..15")]
        points: String,
        /// Ranks to report, e.g. 1,2,4.
        #[arg(long, required = true, value_delimiter = ',')]
        rank: Vec<usize>,
        /// Print as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Fit families of kernels to curves of a bias over distance, rank them and certify them: which
    /// kernel did a model learn?
    #[cfg(feature = "fit")]
    Fit(FitArgs),
    /// Search for a kernel that a model should have: train all expressions of a few base functions by
    /// successive halving, then test the best against kerple_log on other seeds and text; re-run the
    /// command to resume.
    #[cfg(feature = "fit")]
    Search(SearchArgs),
    /// Compute how far a kernel lets attention reach.
    EffectiveSpan {
        /// Kernel expression.
        expression: String,
        /// Length of the attention row.
        #[arg(long, default_value_t = 4096)]
        length: usize,
        /// Largest magnitude of a score, `|q.k| / sqrt(D)`.
        #[arg(long, default_value_t = 1.0)]
        scores: f64,
        /// Print as JSON.
        #[arg(long)]
        json: bool,
    },
}

#[cfg(feature = "fit")]
#[derive(Debug, Args)]
pub struct FitArgs {
    /// Curves: run folders, .csv, .json or .safetensors files, or transformers folders of the T5
    /// family or of Inkling.
    #[arg(required = true)]
    pub curves: Vec<PathBuf>,
    /// Families, separated by commas: names, expressions with learned parameters, or all (const,
    /// linear, power, log, log3, root_log, exp, gauss, stretched, two_exp, log_linear, damped_cos).
    #[arg(long, default_value = "all", value_name = "LIST")]
    pub families: String,
    /// Only distances in this range, both ends included.
    #[arg(long, value_name = "LO..HI")]
    pub points: Option<String>,
    /// Known standard deviation of the values; estimated if absent.
    #[arg(long, conflicts_with = "noise")]
    pub sigma: Option<f64>,
    /// How residuals vary: independently, or each correlated with the one before it.
    #[arg(long, value_enum, default_value = "iid")]
    pub noise: NoiseName,
    /// Column, key or tensor with weights (inverse variances) of the values.
    #[arg(long, value_name = "KEY")]
    pub weights: Option<String>,
    /// Rank by the Bayesian criterion, by Akaike's for small samples, or by the error of prediction
    /// past half of the distances.
    #[arg(long, value_enum, default_value = "bic")]
    pub by: RankName,
    /// Tensor with the curves, where a .safetensors file has several.
    #[arg(long, value_name = "NAME")]
    pub tensor: Option<String>,
    /// Rows of queries [heads, rank] or [layers, heads, rank], for a bias that depends on the query
    /// (Inkling): a tensor of the source, or a .safetensors file with one tensor. Curves are those of
    /// the rows; without them, the factors of the bias.
    #[arg(long, value_name = "TENSOR")]
    pub queries: Option<String>,
    /// Let heads of a layer have different families, where one expression has them all as special
    /// cases; otherwise all heads have the one with the least sum of the criterion.
    #[arg(long)]
    pub per_head: bool,
    /// Number of distances of a run's curves [default: 32 times the training length].
    #[arg(long)]
    pub length: Option<usize>,
    /// Also fit expressions that no rule proves; tables then call them unproven.
    #[arg(long)]
    pub unproven: bool,
    /// Write fit.json, index.html, report.md, tables and figures to this folder.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Print fit.json instead of lines.
    #[arg(long)]
    pub json: bool,
}

/// Standard deviation of the loss of a synthetic run where `--noise` is not given.
#[cfg(feature = "fit")]
pub const NOISE: f64 = 0.01;

#[cfg(feature = "fit")]
#[derive(Debug, Args)]
pub struct SearchArgs {
    /// Its encoding is replaced by each expression; train.steps are the updates of a confirmation.
    #[command(flatten)]
    pub file: RunFile,
    /// Most base functions in an expression.
    #[arg(long, default_value_t = 3)]
    pub size: usize,
    /// Base functions, separated by commas: names of families, as in `kernel fit`, or calls with a
    /// learned amplitude.
    #[arg(long, default_value = "log,power,exp", value_name = "LIST")]
    pub base: String,
    /// Hours for all runs on this machine; sets the updates of the rungs.
    #[arg(long, value_name = "HOURS")]
    pub budget: Option<f64>,
    /// Lengths whose mean loss is compared, in tokens [default: 1x and 8x the training length].
    #[arg(long, value_delimiter = ',')]
    pub lengths: Vec<EvalLength>,
    /// Scored tokens of each length: segments, last:COUNT, nonoverlapping or sliding:STRIDE [default:
    /// last:64, or the training length where that is less].
    #[arg(long)]
    pub protocol: Option<String>,
    /// Number of segments of both texts [default: up to 320].
    #[arg(long, value_parser = super::groups::count)]
    pub n_segments: Option<usize>,
    /// Also search expressions that no rule proves; tables then call them unproven.
    #[arg(long)]
    pub unproven: bool,
    /// What is compared: the loss of trained runs, or, to check the search itself, how badly an
    /// expression describes a known kernel.
    #[arg(long, value_enum, default_value = "nll")]
    pub measure: MeasureName,
    /// For --measure synthetic: the known kernel, with numbers; without it all expressions are equal.
    #[arg(long, value_name = "EXPRESSION")]
    pub truth: Option<String>,
    #[arg(long, help = super::with_default("For --measure synthetic: standard deviation of the loss of a run", NOISE))]
    pub noise: Option<f64>,
    /// List the space and write the plan; train nothing.
    #[arg(long)]
    pub plan_only: bool,
    /// Take only every N-th run of a stage, starting from the I-th, counted from 0; the plan must
    /// exist. Copy the folders of all shards together after each stage.
    #[arg(long, value_name = "I/N", conflicts_with = "plan_only")]
    pub shard: Option<Shard>,
    /// Output folder for the plan, runs and pages.
    #[arg(long)]
    pub out: PathBuf,
    #[command(flatten)]
    pub hardware: Hardware,
    /// Print search.json, or with --plan-only the plan, instead of lines.
    #[arg(long)]
    pub json: bool,
}

/// What a search compares.
#[cfg(feature = "fit")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MeasureName {
    /// The mean loss in nats per token.
    Nll,
    /// The error of a fit to a known kernel, plus noise.
    Synthetic,
}

/// How residuals vary.
#[cfg(feature = "fit")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NoiseName {
    /// Independently.
    Iid,
    /// Each correlated with the one before it.
    Ar1,
}

/// By what families are ranked.
#[cfg(feature = "fit")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RankName {
    /// The Bayesian information criterion.
    Bic,
    /// Akaike's criterion for small samples.
    Aicc,
    /// The error of prediction past half of the distances.
    Far,
}
