//! The commands for kernels of distance.

use clap::{Args, Subcommand};
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
        #[arg(long)]
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
