//! Requests that are refused before anything is allocated.

use super::{Sizes, model::Subject};
use crate::args::{Bench, Work};
use crate::failure::{Failure, Outcome};
use kerple_core::encoding::{Encoding, Geometry};
use kerple_data::machine::MemoryLimit;

/// Arrays of inputs, outputs and gradients of one task, and of two that are timed alternately.
const ARRAYS: u128 = 9;
const ARRAYS_OF_TWO: u128 = 2 * ARRAYS;

/// Refuses options that no work can have, each by itself.
pub fn options(args: &Bench, lengths: &[usize], sizes: Sizes) -> Outcome {
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
            return Err(Failure::misuse(message, "choose a smaller value"));
        }
    }
    Ok(())
}

/// Refuses an encoding that attention of this length cannot be timed with.
pub fn encoding(encoding: &Encoding, length: usize, sizes: Sizes) -> Outcome {
    let geometry = Geometry::new(sizes.heads, sizes.head_dim, length);
    encoding.check(&geometry).map_err(|refusal| Failure::misuse(format!("--encoding: {refusal}"), refusal.hint))?;
    if encoding.tells_ahead() {
        let message = format!("--encoding {}: it has a bias for keys after the query", encoding.label());
        return Err(Failure::misuse(message, "attention is causal here: omit `behind` or `bidirectional`"));
    }
    Ok(())
}

/// Refuses work at a length that needs more memory than there is.
pub fn memory(work: Work, subject: &Subject, length: usize, sizes: Sizes, two: bool) -> Outcome {
    // what is timed is made of noise, which is made here whichever device gets it
    let here = MemoryLimit::here();
    let limits = here.as_ref().into_iter().chain(subject.limit());
    let Some(limit) = limits.min_by_key(|limit| limit.bytes) else { return Ok(()) };
    // the definition is checked at a few hundred positions whatever is timed
    let of = |length: usize| [sizes.batch, sizes.heads, length].iter().fold(4u128, |all, size| all * *size as u128);
    let row = of(length.max(512)) * sizes.head_dim as u128;
    let bytes = match work {
        Work::Attention if two => ARRAYS_OF_TWO * row,
        // the composed operations hold all scores and all weights
        Work::Attention if length <= super::attention::LONGEST_COMPOSED => {
            ARRAYS * row + 2 * length as u128 * of(length)
        }
        Work::Attention | Work::Linear => ARRAYS * row,
        Work::Decode => 2 * row,
        Work::Step | Work::Eval => return subject.check_memory(work, length, sizes),
    };
    if bytes <= u128::from(limit.bytes) {
        return Ok(());
    }
    let (need, have) = (bytes as f64 / 1e9, limit.bytes as f64 / 1e9);
    let message = format!("--lengths {length} needs about {need:.1} GB of memory, {} has {have:.1} GB", limit.name);
    Err(Failure::misuse(message, "lower --lengths, --batch, --heads or --head-dim"))
}
