//! Requests that are refused before anything is allocated.

use super::{BenchSizes, model::TimedModel};
use crate::args::{BenchArgs, Benchmark};
use crate::command_error::{CommandError, CommandResult};
use kerple_core::encoding::{Encoding, Geometry};
use kerple_data::machine::MemoryLimit;

/// Arrays of inputs, outputs and gradients of one task, and of two that are timed alternately.
const ARRAYS: u128 = 9;
const ARRAYS_OF_TWO: u128 = 2 * ARRAYS;

/// Refuses options that no work can have, each by itself.
pub fn options(args: &BenchArgs, lengths: &[usize], sizes: BenchSizes) -> CommandResult {
    let longest = lengths.iter().copied().max().unwrap_or(1);
    for (option, value, most) in [
        ("--lengths", longest, 1 << 24),
        ("--batch", sizes.batch, 1 << 20),
        ("--heads", sizes.heads, 1 << 16),
        ("--head-dim", sizes.head_dim, 1 << 16),
        ("--layers", args.layers.unwrap_or(1), 1 << 14),
        ("--vocab", args.vocab.unwrap_or(1), 1 << 24),
        ("--repeats", args.repeats, 1 << 20),
    ] {
        if value > most {
            let message = format!("{option} {value}: it must be at most {most}");
            return Err(CommandError::misuse(message, "choose a smaller value"));
        }
    }
    Ok(())
}

/// Refuses an encoding that attention of this length cannot be timed with.
pub fn encoding(encoding: &Encoding, length: usize, sizes: BenchSizes) -> CommandResult {
    let geometry = Geometry::new(sizes.heads, sizes.head_dim, length);
    encoding
        .check(&geometry)
        .map_err(|refusal| CommandError::misuse(format!("--encoding: {refusal}"), refusal.hint))?;
    if encoding.has_two_sided_table() {
        let message = format!("--encoding {}: it has a bias for keys after the query", encoding.label());
        return Err(CommandError::misuse(message, "attention is causal here: omit `behind` or `bidirectional`"));
    }
    Ok(())
}

/// Refuses work at a length that needs more memory than there is.
pub fn memory(work: Benchmark, subject: &TimedModel, length: usize, sizes: BenchSizes, two: bool) -> CommandResult {
    // what is timed is made of noise, which is made here whichever device gets it
    let here = MemoryLimit::here();
    let limits = here.as_ref().into_iter().chain(subject.limit());
    let Some(limit) = limits.min_by_key(|limit| limit.bytes) else { return Ok(()) };
    // the definition is checked at a few hundred positions whatever is timed
    let of = |length: usize| [sizes.batch, sizes.heads, length].iter().fold(4u128, |all, size| all * *size as u128);
    let row = of(length.max(512)) * sizes.head_dim as u128;
    let bytes = match work {
        Benchmark::Attention if two => ARRAYS_OF_TWO * row,
        // the composed operations hold all scores and all weights
        Benchmark::Attention if length <= super::attention::LONGEST_COMPOSED => {
            ARRAYS * row + 2 * length as u128 * of(length)
        }
        Benchmark::Attention | Benchmark::Linear => ARRAYS * row,
        Benchmark::Decode => 2 * row,
        Benchmark::Step | Benchmark::Eval => return subject.check_memory(work, length, sizes),
    };
    if bytes <= u128::from(limit.bytes) {
        return Ok(());
    }
    let (need, have) = (bytes as f64 / 1e9, limit.bytes as f64 / 1e9);
    let message = format!("--lengths {length} needs about {need:.1} GB of memory, {} has {have:.1} GB", limit.name);
    Err(CommandError::misuse(message, "lower --lengths, --batch, --heads or --head-dim"))
}
