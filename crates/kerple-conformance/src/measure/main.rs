//! `measure decode|eval|linear|maps`: development measurements beside those of `kerple bench`, whose
//! options, checks and rows they share.

mod decode;
mod eval;
mod linear;
mod maps;

use clap::builder::PossibleValuesParser;
use clap::{Parser, Subcommand};
use decode::TimedDecode;
use eval::TimedEval;
use kerple::CommandResult;
use kerple::timing::model::TimedModel;
use kerple::timing::{TimedModelOptions, Timing, TimingDefaults, TimingOptions, thread_count};
use linear::TimedLinearAttention;
use maps::TimedMaps;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: kerple::CountingAllocator = kerple::CountingAllocator;

/// Check engines against the reference, then time them: measurements for the development of kerple.
#[derive(Debug, Parser)]
#[command(name = "measure", version, max_term_width = 110)]
struct MeasureArgs {
    #[command(subcommand)]
    work: MeasuredWork,
    /// Number of threads; by default all of the machine.
    #[arg(long, global = true, value_name = "N", value_parser = thread_count)]
    threads: Option<usize>,
}

/// What to time.
#[derive(Debug, Subcommand)]
enum MeasuredWork {
    /// Time attention of one query over as many cached keys as --lengths gives; by default 1024 and
    /// 8192, with a batch of 1 and 12 heads of 64 features.
    Decode {
        #[command(flatten)]
        timing: TimingOptions,
    },
    /// Time the evaluation of one long segment; by default 16384 tokens, with a batch of 1 and 4
    /// heads of 64 features.
    Eval {
        #[command(flatten)]
        timing: TimingOptions,
        #[command(flatten)]
        model: TimedModelOptions,
    },
    /// Time one layer of linear attention, forward and backward, with each kind of positions and of
    /// features; by default at 4096 and 32768 tokens, with a batch of 1 and 12 heads of 64 features.
    Linear {
        /// Time these only
        #[arg(long, value_delimiter = ',', value_parser = PossibleValuesParser::new(linear::BIASES))]
        only: Vec<String>,
        #[command(flatten)]
        timing: TimingOptions,
    },
    /// Time changes of queries and keys, forward and backward, in turns with attention with a learned KERPLE-log; by default at
    /// 2048 tokens, with a batch of 1 and 12 heads of 64 features. What projections make of rows is not counted.
    Maps {
        #[command(flatten)]
        timing: TimingOptions,
    },
}

fn main() -> ExitCode {
    let MeasureArgs { work, threads } = MeasureArgs::parse();
    kerple::run_development(threads, || run(&work)).into()
}

/// Checks, times and prints.
fn run(work: &MeasuredWork) -> CommandResult {
    match work {
        MeasuredWork::Decode { timing } => {
            let defaults = TimingDefaults { lengths: &[1024, 8192], batch: 1, heads: 12 };
            Timing::new(timing, defaults)?.run(&TimedDecode)
        }
        MeasuredWork::Eval { timing, model } => {
            let timing = Timing::new(timing, TimingDefaults { lengths: &[16_384], batch: 1, heads: 4 })?;
            timing.run(&TimedEval(TimedModel::new(model, timing.sizes())?))
        }
        MeasuredWork::Linear { only, timing } => {
            let defaults = TimingDefaults { lengths: &[4096, 32_768], batch: 1, heads: 12 };
            Timing::new(timing, defaults)?.run(&TimedLinearAttention { only: only.clone() })
        }
        MeasuredWork::Maps { timing } => {
            Timing::new(timing, TimingDefaults { lengths: &[2048], batch: 1, heads: 12 })?.run(&TimedMaps)
        }
    }
}
