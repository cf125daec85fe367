//! `kerple bench`: checks kernels against the reference, then times them.

mod attention;
mod attention_on_device;
mod step;

use crate::args::{BenchArgs, BenchAttentionArgs, BenchCommand, BenchStepArgs};
use crate::command_error::{CommandError, CommandResult};
use crate::timing::model::{TimedDevice, TimedModel};
use crate::timing::{Timing, TimingDefaults, encoding};
use attention::{EncodingAttention, TableAttention};
use attention_on_device::DeviceAttention;
use kerple_burn::device::DeviceName;
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
    let encoding = args.encoding.as_deref().map(encoding).transpose()?;
    let on_cpu = args.hardware.device == DeviceName::Cpu;
    if encoding.is_some() && !on_cpu {
        return Err(CommandError::misuse(
            format!("--device {}: encodings are compared on the CPU only", args.hardware.device),
            "omit --encoding: the kernels need the same time for a learned bias of any encoding",
        ));
    }
    let device = TimedDevice::open(&args.hardware)?;
    match encoding {
        Some(encoding) => timing.run(&EncodingAttention(encoding)),
        None if on_cpu => timing.run(&TableAttention),
        None => timing.run(&DeviceAttention(device)),
    }
}

fn step(args: &BenchStepArgs) -> CommandResult {
    let timing = Timing::new(&args.timing, TimingDefaults { lengths: &[512], batch: 8, heads: 4 })?;
    timing.run(&TimedStep(TimedModel::new(&args.model, timing.sizes())?))
}
