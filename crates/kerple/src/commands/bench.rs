//! `kerple bench`: checks kernels against the reference, then times them.

mod attention;
mod decode;
mod limits;
mod linear;
mod machine;
mod model;
mod on_device;

use super::print_json;
use crate::args::{BenchArgs, Benchmark};
use crate::command_error::{CommandError, CommandResult};
use crate::output::resultln;
use kerple_burn::device::DeviceName;
use kerple_core::encoding::Encoding;
use serde::Serialize;
use std::time::Instant;

/// One measurement.
#[derive(Debug, Serialize)]
pub struct Measurement {
    /// What was timed: attention, linear, step, decode or eval.
    work: &'static str,
    /// naive, tiled, chunked, fft, fused or composed.
    engine: &'static str,
    /// Sequence length, or cached keys.
    length: usize,
    batch: usize,
    heads: usize,
    head_dim: usize,
    /// Whether the backward is part of it.
    backward: bool,
    /// none, fixed or learned; of linear attention none, sine_spe or kerple_log.
    bias: &'static str,
    median_ms: f64,
    min_ms: f64,
    max_ms: f64,
    /// Multiply-adds that cannot be avoided, twice, over the median.
    gflops: f64,
    /// Share of the matrix-product peak measured beside it; of the processor only.
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_share: Option<f64>,
    /// Largest memory held beyond inputs, outputs and gradients; of a GPU what its pools reserved beyond what stays in use, outputs and
    /// gradients among it.
    #[serde(skip_serializing_if = "Option::is_none")]
    extra_mib: Option<f64>,
    /// Bytes read over the median, as a share of the memory bandwidth measured beside it; decoding only.
    #[serde(skip_serializing_if = "Option::is_none")]
    bandwidth_share: Option<f64>,
    threads: usize,
    simd: &'static str,
    device: String,
}

/// Times of one piece of work, in milliseconds, sorted, after one run that does not count.
fn times(repeats: usize, mut work: impl FnMut()) -> Vec<f64> {
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

/// Sizes of what is timed, with what the command line left open.
#[derive(Clone, Copy, Debug)]
struct BenchSizes {
    batch: usize,
    heads: usize,
    head_dim: usize,
    repeats: usize,
}

impl Measurement {
    fn new(
        work: &'static str,
        engine: &'static str,
        length: usize,
        sizes: BenchSizes,
        times: &[f64],
        flops: f64,
    ) -> Measurement {
        let median = times[times.len() / 2];
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

    /// The same measured on another device than the processor.
    fn on(self, device: &str) -> Measurement {
        match device {
            "cpu" => self,
            _ => Measurement { device: device.to_owned(), peak_share: None, ..self },
        }
    }
}

/// Fails unless what an engine gave equals what the definition gave, up to `tolerance` of the largest value.
fn agree(what: &str, got: &[f32], definition: &[f32], tolerance: f32) -> CommandResult {
    let largest = definition.iter().fold(0f32, |m, x| m.max(x.abs()));
    let error = got.iter().zip(definition).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
    // a value that is not a number fails too
    if got.len() == definition.len() && error <= tolerance * largest && got.iter().all(|x| x.is_finite()) {
        return Ok(());
    }
    Err(CommandError::failed(
        format!("{what} differs by {error:e}, its largest value is {largest:e}"),
        "this is a bug in \
        kerple; nothing was timed",
    ))
}

fn heading() {
    resultln!(
        "{:<10} {:<9} {:>7} {:>9} {:>10} {:>11} {:>19} {:>9} {:>7} {:>10}",
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

fn show(row: &Measurement) {
    let spread = format!("{:.2} .. {:.2}", row.min_ms, row.max_ms);
    let bandwidth =
        row.bandwidth_share.map_or_else(String::new, |share| format!("  {:.0} % of bandwidth", 100.0 * share));
    let peak = row.peak_share.map_or_else(|| "-".to_owned(), |share| format!("{:.0} %", 100.0 * share));
    let extra = row.extra_mib.map_or_else(|| "-".to_owned(), |mib| format!("{mib:.1}"));
    resultln!(
        "{:<10} {:<9} {:>7} {:>9} {:>10} {:>11.2} {spread:>19} {:>9.1} {peak:>7} {extra:>10}{bandwidth}",
        row.work,
        row.engine,
        row.length,
        row.backward,
        row.bias,
        row.median_ms,
        row.gflops,
    );
}

/// An encoding by its name or as a table in JSON.
fn encoding(text: &str) -> Result<Encoding, CommandError> {
    let value = serde_json::from_str(text).unwrap_or_else(|_| text.into());
    serde_json::from_value::<Encoding>(value).map_err(|error| {
        CommandError::misuse(
            format!("--encoding {text}: {error}"),
            "give the name of an encoding, or a table such as {\"kind\":\"dape\",\"kernel\":3}",
        )
    })
}

/// Checks, times and prints.
pub fn run(args: &BenchArgs) -> CommandResult {
    if let Some(most) = args.simd {
        let wanted = most.set();
        if kerple_core::cpu::limit(wanted) != wanted {
            let has = kerple_core::cpu::InstructionSet::detected().name();
            return Err(CommandError::misuse(
                format!("--simd {}: this CPU supports at most {has}", wanted.name()),
                "choose a narrower instruction set, or omit --simd",
            ));
        }
    }
    let device = args.hardware.device;
    if device != DeviceName::Cpu && matches!(args.work, Benchmark::Decode | Benchmark::Linear) {
        return Err(CommandError::misuse(
            format!("--device {device}: this benchmark does not run on that device"),
            "GPUs support attention, step and eval; decode and linear run with --device cpu",
        ));
    }
    let sizes = BenchSizes {
        batch: args.batch.unwrap_or(if args.work == Benchmark::Step { 8 } else { 1 }),
        heads: args.heads.unwrap_or(if matches!(args.work, Benchmark::Step | Benchmark::Eval) { 4 } else { 12 }),
        head_dim: args.head_dim.unwrap_or(64),
        repeats: args.repeats,
    };
    let lengths = match (args.lengths.is_empty(), args.work) {
        (false, _) => args.lengths.clone(),
        (true, Benchmark::Attention) => vec![512, 2048],
        (true, Benchmark::Step) => vec![512],
        (true, Benchmark::Decode) => vec![1024, 8192],
        (true, Benchmark::Eval) => vec![16_384],
        (true, Benchmark::Linear) => vec![4096, 32_768],
    };
    limits::options(args, &lengths, sizes)?;
    let encoding = args.encoding.as_deref().map(encoding).transpose()?;
    if let (Some(_), Benchmark::Attention, true) = (&encoding, args.work, device != DeviceName::Cpu) {
        let hint = "omit --encoding: the kernels need the same time for a learned bias of any encoding";
        return Err(CommandError::misuse(format!("--device {device}: encodings are compared on the CPU only"), hint));
    }
    let subject = model::TimedModel::new(args, encoding.as_ref(), sizes)?;
    for length in &lengths {
        if let (Benchmark::Attention, Some(encoding)) = (args.work, &encoding) {
            limits::encoding(encoding, *length, sizes)?;
        }
        limits::memory(args.work, &subject, *length, sizes, encoding.is_some())?;
    }
    // as one of the pool's threads, so that no work waits for one to wake up
    rayon::scope(|_| {
        if !args.json {
            heading();
        }
        let mut tell = |row: Measurement| if args.json { print_json(&row) } else { show(&row) };
        for length in lengths {
            match args.work {
                Benchmark::Attention => match &encoding {
                    None if device != DeviceName::Cpu => on_device::run(subject.device(), length, sizes, &mut tell)?,
                    Some(encoding) => attention::run_encoding(encoding, length, sizes, &mut tell)?,
                    None => attention::run(length, sizes, &mut tell)?,
                },
                Benchmark::Decode => decode::run(length, sizes, &mut tell)?,
                Benchmark::Linear => linear::run(length, sizes, &mut tell)?,
                Benchmark::Step => model::step(&subject, length, sizes, &mut tell)?,
                Benchmark::Eval => model::eval(&subject, length, sizes, &mut tell)?,
            }
        }
        Ok(())
    })
}
