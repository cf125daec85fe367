//! `kerple bench`: checks kernels against the reference, then times them.

mod attention;
mod attention_on_device;
mod step;

use crate::args::{BenchArgs, BenchAttentionArgs, BenchCommand, BenchStepArgs, TimedNormalizer, TimedSelective};
use crate::command_error::{CommandError, CommandResult};
use crate::encodings;
use crate::timing::model::{TimedDevice, TimedModel};
use crate::timing::{Timing, TimingDefaults};
use attention::{EncodingAttention, TableAttention};
use attention_on_device::DeviceAttention;
use kerple_burn::device::DeviceName;
use kerple_core::forms::{Mask, Normalizer, Selective, StickBreaking};
use step::TimedStep;

/// Checks, times and prints.
pub fn run(args: &BenchArgs) -> CommandResult {
    match &args.work {
        BenchCommand::Attention(args) => attention(args),
        BenchCommand::Step(args) => step(args),
    }
}

fn attention(args: &BenchAttentionArgs) -> CommandResult {
    let timing = Timing::new(&args.timing, TimingDefaults { lengths: &[512, 2048], batch: 1, heads: 12 })?;
    let normalizer = match args.normalizer {
        None => Normalizer::Softmax,
        Some(TimedNormalizer::StickBreaking) => Normalizer::StickBreaking(StickBreaking::default()),
        Some(TimedNormalizer::Softpick) => Normalizer::Softpick,
    };
    let selective = args.selective_attention.map(|kind| match kind {
        TimedSelective::Exclusive => Selective::Exclusive,
        TimedSelective::Inclusive => Selective::Inclusive,
    });
    let compared = [
        ("--encoding", args.encoding.is_some()),
        ("--normalizer", args.normalizer.is_some()),
        ("--selective-attention", args.selective_attention.is_some()),
    ];
    let compared = compared.into_iter().find(|(_, is_given)| *is_given).map(|(option, _)| option);
    let encoding = args.encoding.as_deref().or(compared.map(|_| "kerple_log")).map(encodings::with_keys).transpose()?;
    let on_cpu = args.hardware.device == DeviceName::Cpu;
    if let (Some(option), false) = (compared, on_cpu) {
        return Err(CommandError::misuse(
            format!("--device {}: {option} is timed on the CPU only", args.hardware.device),
            format!("omit {option}: there attention is timed with a learned bias, whose encoding makes no difference"),
        ));
    }
    if on_cpu {
        args.hardware.check_exact("the CPU computes attention in f32")?;
    }
    let device = TimedDevice::open(&args.hardware)?;
    let mask = Mask::causal(args.window, args.sink_tokens.unwrap_or(0));
    match encoding {
        Some(encoding) => timing.run(&EncodingAttention { encoding, normalizer, selective }),
        None if on_cpu => timing.run(&TableAttention { mask }),
        None => timing.run(&DeviceAttention { device, mask }),
    }
}

fn step(args: &BenchStepArgs) -> CommandResult {
    let timing = Timing::new(&args.timing, TimingDefaults { lengths: &[512], batch: 8, heads: 4 })?;
    timing.run(&TimedStep(TimedModel::new(&args.model, timing.sizes())?))
}
