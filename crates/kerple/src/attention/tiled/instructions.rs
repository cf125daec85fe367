//! Which instructions the kernels are compiled for, and the choice between them when the program runs.

use super::lanes::portable::{LaneExp, Portable};
use super::lanes::{self, Kernel};
use std::marker::PhantomData;

/// What the kernels can be compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstructionSet {
    /// 16 f32 at a time.
    Avx512,
    /// 8 f32 at a time, with fused multiply-add.
    Avx2,
    /// Plain Rust; also for every f64.
    Portable,
}

impl InstructionSet {
    /// Those this CPU has, fastest first.
    pub fn available() -> Vec<Self> {
        #[cfg(target_arch = "x86_64")]
        let faster =
            [lanes::avx512::Avx512::detect().map(|_| Self::Avx512), lanes::avx2::Avx2::detect().map(|_| Self::Avx2)];
        #[cfg(not(target_arch = "x86_64"))]
        let faster = [None; 0];
        faster.into_iter().flatten().chain([Self::Portable]).collect()
    }

    /// The fastest of this CPU.
    pub fn best() -> Self {
        Self::available()[0]
    }

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Avx512 => "avx512",
            Self::Avx2 => "avx2+fma",
            Self::Portable => "portable",
        }
    }
}

/// A number type's way to its lanes.
pub trait Dispatch: LaneExp + Sized {
    /// Hands a kernel the lanes of an instruction set, or the portable ones where the CPU or the type has no such lanes.
    fn dispatch<K: Kernel<Self>>(set: InstructionSet, kernel: K) -> K::Output;
}

impl Dispatch for f32 {
    fn dispatch<K: Kernel<f32>>(set: InstructionSet, kernel: K) -> K::Output {
        #[cfg(target_arch = "x86_64")]
        match set {
            InstructionSet::Avx512 => {
                if let Some(lanes) = lanes::avx512::Avx512::detect() {
                    return kernel.run(lanes);
                }
            }
            InstructionSet::Avx2 => {
                if let Some(lanes) = lanes::avx2::Avx2::detect() {
                    return kernel.run(lanes);
                }
            }
            InstructionSet::Portable => {}
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = set;
        kernel.run(Portable(PhantomData))
    }
}

impl Dispatch for f64 {
    fn dispatch<K: Kernel<f64>>(_: InstructionSet, kernel: K) -> K::Output {
        kernel.run(Portable(PhantomData))
    }
}
