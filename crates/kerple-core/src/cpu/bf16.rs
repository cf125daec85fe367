//! Instructions that multiply numbers of `bf16` and add to `f32`.

use super::{InstructionSet, known};
use std::sync::atomic::AtomicU8;

/// What multiplies numbers of `bf16`, the slowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bf16Unit {
    /// None: they become `f32` again, which takes longer than products of `f32`.
    Portable,
    /// AVX512-BF16: pairs of numbers, 16 sums at a time.
    Avx512Bf16,
    /// AMX: tiles of 16 rows of 16 pairs.
    Amx,
}

static DETECTED: AtomicU8 = AtomicU8::new(super::UNKNOWN);

impl Bf16Unit {
    /// All of them, the slowest first.
    pub const ALL: [Bf16Unit; 3] = [Self::Portable, Self::Avx512Bf16, Self::Amx];

    /// The fastest of this processor that the operating system lets this process use.
    pub fn detected() -> Bf16Unit {
        known(&DETECTED, Self::ALL, detect)
    }

    /// The fastest of this processor within [`limit`](super::limit).
    pub fn current() -> Bf16Unit {
        if InstructionSet::current() < InstructionSet::Avx512 { Self::Portable } else { Self::detected() }
    }

    /// Those of this processor, the slowest first.
    pub fn available() -> impl Iterator<Item = Bf16Unit> {
        Self::ALL.into_iter().filter(|unit| *unit <= Self::detected())
    }

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable_bf16",
            Self::Avx512Bf16 => "avx512_bf16",
            Self::Amx => "amx_bf16",
        }
    }
}

fn detect() -> Bf16Unit {
    #[cfg(target_arch = "x86_64")]
    if InstructionSet::detected() == InstructionSet::Avx512 && is_x86_feature_detected!("avx512bf16") {
        return if has_tiles() { Bf16Unit::Amx } else { Bf16Unit::Avx512Bf16 };
    }
    Bf16Unit::Portable
}

/// Whether there is AMX with `bf16`, and this process may use its registers. Linux wants to be asked once: they make the
/// memory that a thread's registers are saved to larger.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn has_tiles() -> bool {
    /// Bits of EDX in leaf 7 of CPUID.
    const AMX_BF16: u32 = 1 << 22;
    const AMX_TILE: u32 = 1 << 24;
    const ARCH_REQ_XCOMP_PERM: libc::c_ulong = 0x1023;
    const XFEATURE_XTILE_DATA: libc::c_ulong = 18;
    let needed = AMX_BF16 | AMX_TILE;
    // the processor reports leaf 7, or it would not have AVX-512
    let has = std::arch::x86_64::__cpuid_count(7, 0).edx & needed == needed;
    // SAFETY: the call changes nothing but what this process may use.
    has && unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA) } == 0
}

#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn has_tiles() -> bool {
    false
}
