//! Requests that are refused before anything is allocated.

use super::TimedSizes;
use crate::command_error::{CommandError, CommandResult};
use kerple_core::cpu::InstructionSet;
use kerple_data::machine::MemoryLimit;

/// Limits the process to this instruction set, or refuses one that the CPU lacks.
pub(super) fn limit_simd(wanted: InstructionSet) -> CommandResult {
    if kerple_core::cpu::limit(wanted) == wanted {
        return Ok(());
    }
    let has = InstructionSet::detected().name();
    Err(CommandError::misuse(
        format!("--simd {}: this CPU supports at most {has}", wanted.name()),
        "choose a narrower instruction set, or omit --simd",
    ))
}

/// Refuses sizes that no work can have, each by itself.
pub(super) fn check_sizes(lengths: &[usize], sizes: TimedSizes) -> CommandResult {
    let longest = lengths.iter().copied().max().unwrap_or(1);
    check_options(&[
        ("--lengths", longest, 1 << 24),
        ("--batch", sizes.batch, 1 << 20),
        ("--heads", sizes.heads, 1 << 16),
        ("--head-dim", sizes.head_dim, 1 << 16),
        ("--repeats", sizes.repeats, 1 << 20),
    ])
}

/// Refuses options with a value above the limit that follows it.
pub(super) fn check_options(options: &[(&str, usize, usize)]) -> CommandResult {
    for (option, value, most) in options {
        if value > most {
            let message = format!("{option} {value}: it must be at most {most}");
            return Err(CommandError::misuse(message, "choose a smaller value"));
        }
    }
    Ok(())
}

/// Bytes of one array `[B, H, length, D]` in f32. The reference is compared at a few hundred positions even where less is timed.
pub fn array_bytes(length: usize, sizes: TimedSizes) -> u128 {
    [sizes.batch, sizes.heads, length.max(512), sizes.head_dim].iter().fold(4, |bytes, size| bytes * *size as u128)
}

/// Refuses work at a length that needs more bytes than this machine has, or the device where it runs.
///
/// # Errors
/// How much is needed, and how much there is.
pub fn check_memory(bytes: u128, length: usize, device: Option<&MemoryLimit>) -> CommandResult {
    // inputs are drawn on this machine even when the work runs on another device
    let here = MemoryLimit::here();
    let Some(limit) = here.as_ref().into_iter().chain(device).min_by_key(|limit| limit.bytes) else { return Ok(()) };
    if bytes <= u128::from(limit.bytes) {
        return Ok(());
    }
    let (need, have) = (bytes as f64 / 1e9, limit.bytes as f64 / 1e9);
    let message = format!("--lengths {length} needs about {need:.1} GB of memory, {} has {have:.1} GB", limit.name);
    Err(CommandError::misuse(message, "lower --lengths, --batch, --heads or --head-dim"))
}
