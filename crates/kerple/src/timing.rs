//! Timing: work is checked against its reference, timed, and printed in rows.
//!
//! `kerple bench` and the development program `measure` of kerple-conformance share this module: a
//! work implements [`TimedWork`], and [`Timing`] has the options that all of them take.

pub mod inputs;
mod limits;
pub mod model;

pub use crate::args::{Hardware, TimedModelOptions, TimingOptions, thread_count};
pub use crate::memory::extra_mib;
pub use limits::{array_bytes, check_memory};

use crate::command_error::{CommandError, CommandResult};
use crate::output::{print_json, resultln};
use kerple_core::ops::machine;
use kerple_report::statistics::median;
use serde::Serialize;
use std::time::Instant;

/// One measurement.
#[derive(Debug, Serialize)]
pub struct Measurement {
    /// What was timed: attention, linear, step, decode, eval or maps.
    pub work: &'static str,
    /// naive, tiled, chunked, fft, fused or composed.
    pub engine: &'static str,
    /// Sequence length, or cached keys.
    pub length: usize,
    /// Sequences.
    pub batch: usize,
    /// Attention heads.
    pub heads: usize,
    /// Features per head.
    pub head_dim: usize,
    /// Whether the backward is part of it.
    pub backward: bool,
    /// none, fixed or learned; of linear attention none, sine_spe or kerple_log; the kind of an encoding; stick_breaking or softpick in
    /// the place of the softmax, or selective.
    pub bias: &'static str,
    /// The middle of the times, or the mean of the two middle ones.
    pub median_ms: f64,
    /// The shortest of the times.
    pub min_ms: f64,
    /// The longest of the times.
    pub max_ms: f64,
    /// Multiply-adds that cannot be avoided, twice, over the median.
    pub gflops: f64,
    /// Share of the CPU's matrix-product peak, which is measured in the same process; `None` on other devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_share: Option<f64>,
    /// Largest memory in addition to inputs, outputs and gradients. For a GPU: what its pools reserved in addition to what stays in
    /// use, which includes outputs and gradients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extra_mib: Option<f64>,
    /// Bytes read over the median, as a share of the memory bandwidth, which is measured in the same process; decoding only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth_share: Option<f64>,
    /// Threads of the process.
    pub threads: usize,
    /// Instruction set.
    pub simd: &'static str,
    /// The device, with its precision where that is not f32.
    pub device: String,
}

impl Measurement {
    /// A row without bias and backward; `times` are milliseconds, sorted.
    pub fn new(
        work: &'static str,
        engine: &'static str,
        length: usize,
        sizes: TimedSizes,
        times: &[f64],
        flops: f64,
    ) -> Measurement {
        let median = median(times);
        let gflops = flops / median / 1e6;
        Measurement {
            work,
            engine,
            length,
            batch: sizes.batch,
            heads: sizes.heads,
            head_dim: sizes.head_dim,
            backward: false,
            bias: "none",
            median_ms: median,
            min_ms: times[0],
            max_ms: times[times.len() - 1],
            gflops,
            peak_share: Some(gflops / machine::peak_gflops()),
            extra_mib: Some(0.0),
            bandwidth_share: None,
            threads: rayon::current_num_threads(),
            simd: kerple_core::cpu::InstructionSet::current().name(),
            device: "cpu".to_owned(),
        }
    }

    /// The same measured on another device than the CPU.
    pub fn on(self, device: &str) -> Measurement {
        match device {
            "cpu" => self,
            "cpu bf16" => {
                let simd = kerple_core::cpu::Bf16Unit::current().name();
                Measurement { device: device.to_owned(), simd, peak_share: None, ..self }
            }
            _ => Measurement { device: device.to_owned(), peak_share: None, ..self },
        }
    }
}

/// Sizes of what is timed, with the defaults of the work where options leave them open.
#[derive(Clone, Copy, Debug)]
pub struct TimedSizes {
    /// Sequences.
    pub batch: usize,
    /// Attention heads.
    pub heads: usize,
    /// Features per head.
    pub head_dim: usize,
    /// Timed repetitions.
    pub repeats: usize,
}

/// What a work is timed at when options do not tell.
#[derive(Clone, Copy, Debug)]
pub struct TimingDefaults<'a> {
    /// Sequence lengths, or cached keys.
    pub lengths: &'a [usize],
    /// Sequences.
    pub batch: usize,
    /// Attention heads.
    pub heads: usize,
}

/// Work that is timed at lengths.
pub trait TimedWork: Sync {
    /// Refuses a length that the work cannot have, or that needs more memory than there is; allocates nothing.
    ///
    /// # Errors
    /// What is wrong with the length.
    fn check_length(&self, length: usize, sizes: TimedSizes) -> CommandResult;

    /// Compares the work with its reference, then times it at one length and reports its rows.
    ///
    /// # Errors
    /// Where the two differ.
    fn time(&self, length: usize, sizes: TimedSizes, report: &mut dyn FnMut(Measurement)) -> CommandResult;
}

/// Lengths and sizes to time work at.
#[derive(Debug)]
pub struct Timing {
    lengths: Vec<usize>,
    sizes: TimedSizes,
    json: bool,
}

impl Timing {
    /// From the options and the defaults of a work; limits the instruction set of the process.
    ///
    /// # Errors
    /// An instruction set that the CPU lacks, or a size above its limit.
    pub fn new(options: &TimingOptions, defaults: TimingDefaults) -> Result<Timing, CommandError> {
        if let Some(simd) = options.simd {
            limits::limit_simd(simd.set())?;
        }
        let given = &options.lengths;
        let lengths = if given.is_empty() { defaults.lengths.to_vec() } else { given.clone() };
        let sizes = TimedSizes {
            batch: options.batch.unwrap_or(defaults.batch),
            heads: options.heads.unwrap_or(defaults.heads),
            head_dim: options.head_dim.unwrap_or(64),
            repeats: options.repeats,
        };
        limits::check_sizes(&lengths, sizes)?;
        Ok(Timing { lengths, sizes, json: options.json })
    }

    /// The sizes.
    pub fn sizes(&self) -> TimedSizes {
        self.sizes
    }

    /// Checks, times and prints.
    ///
    /// # Errors
    /// Those of the work, all lengths being checked before the first is timed.
    pub fn run(&self, work: &dyn TimedWork) -> CommandResult {
        self.lengths.iter().try_for_each(|length| work.check_length(*length, self.sizes))?;
        // as one of the pool's threads, so that no work waits for one to wake up
        rayon::scope(|_| {
            if !self.json {
                print_heading();
            }
            let mut report = |row: Measurement| if self.json { print_json(&row) } else { print_row(&row) };
            self.lengths.iter().try_for_each(|length| work.time(*length, self.sizes, &mut report))
        })
    }
}

/// Times of one piece of work, in milliseconds, sorted, after one run that does not count.
pub fn times(repeats: usize, mut work: impl FnMut()) -> Vec<f64> {
    work();
    let mut times: Vec<f64> = (0..repeats.max(1))
        .map(|_| {
            let clock = Instant::now();
            work();
            clock.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times
}

/// Compares what an engine gave with what the reference gave.
///
/// # Errors
/// Unless all values are finite and differ by at most `tolerance` of the reference's largest value.
pub fn check_agreement(what: &str, found: &[f32], reference: &[f32], tolerance: f32) -> CommandResult {
    let largest = |values: &mut dyn Iterator<Item = f32>| f64::from(values.fold(0f32, |m, x| m.max(x.abs())));
    check_difference((what, "largest value"), [found, reference], (tolerance, 0.0), largest)
}

/// The same of a model's gradient by Euclidean norms. A ReLU near 0 that rounding takes to the other side changes single values,
/// and hardly their norm. Gradients that are 0 but for rounding are compared with a part of that of the whole model.
///
/// # Errors
/// Unless all values are finite and their differences have at most `tolerance` of the reference's norm.
pub fn check_gradients(found: &[Vec<f32>], reference: &[Vec<f32>], tolerance: f32) -> CommandResult {
    const ROUNDING: f64 = 1e-5;
    let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    let floor = ROUNDING * norm(&mut reference.iter().flatten().copied());
    found.iter().zip(reference).enumerate().try_for_each(|(at, (found, reference))| {
        let what = format!("gradient {at} of the fused step");
        check_difference((&what, "norm"), [found, reference], (tolerance, floor), norm)
    })
}

fn check_difference(
    (what, name): (&str, &str),
    [found, reference]: [&[f32]; 2],
    (tolerance, floor): (f32, f64),
    size: impl Fn(&mut dyn Iterator<Item = f32>) -> f64,
) -> CommandResult {
    let error = size(&mut found.iter().zip(reference).map(|(a, b)| a - b));
    let of_reference = size(&mut reference.iter().copied());
    let is_finite = found.iter().chain(reference).all(|x| x.is_finite());
    // NaN fails too
    if found.len() == reference.len() && error <= f64::from(tolerance) * of_reference.max(floor) && is_finite {
        return Ok(());
    }
    Err(CommandError::failed(
        format!("{what} differs from the reference by {error:e} in its {name}, which is {of_reference:e}"),
        "this is a bug in kerple; nothing was timed",
    ))
}

fn print_heading() {
    resultln!(
        "{:<10} {:<9} {:>7} {:>9} {:>14} {:>11} {:>19} {:>9} {:>7} {:>10}",
        "work",
        "engine",
        "length",
        "backward",
        "bias",
        "median ms",
        "min .. max",
        "GFLOP/s",
        "peak",
        "extra MiB"
    );
}

fn print_row(row: &Measurement) {
    let spread = format!("{:.2} .. {:.2}", row.min_ms, row.max_ms);
    let bandwidth =
        row.bandwidth_share.map_or_else(String::new, |share| format!("  {:.0} % of bandwidth", 100.0 * share));
    let peak = row.peak_share.map_or_else(|| "-".to_owned(), |share| format!("{:.0} %", 100.0 * share));
    let extra = row.extra_mib.map_or_else(|| "-".to_owned(), |mib| format!("{mib:.1}"));
    resultln!(
        "{:<10} {:<9} {:>7} {:>9} {:>14} {:>11.2} {spread:>19} {:>9.1} {peak:>7} {extra:>10}{bandwidth}",
        row.work,
        row.engine,
        row.length,
        row.backward,
        row.bias,
        row.median_ms,
        row.gflops,
    );
}
