//! Exact attention tile by tile: a few tiles of scores at a time, never `[L, L]`.
//!
//! The forward keeps a running maximum and sum per query and rescales what it has when the maximum grows (Milakov and
//! Gimelshein 2018, arXiv:1805.02867); the backward computes the scores again from `lse` instead of having stored them
//! (Dao et al. 2022, arXiv:2205.14135). Tiles that no query of theirs sees are skipped. Memory beyond inputs and outputs is
//! a few tables of `[H, K]` and `[B, H, Q]` and some tiles per thread.
//!
//! * `product`: the small matrix product that every step is made of;
//! * `lanes`: vectors of AVX-512, AVX2 or plain Rust, chosen when the program runs;
//! * `forward`, `backward`: what is multiplied with what; `decode`: one query, where memory is the limit;
//! * `workers`: which thread does what, and why the bits do not depend on it.

mod backward;
mod decode;
mod diagonal;
mod forward;
mod lanes;
mod product;
mod rows;
mod table;
mod workers;

use super::{Gradients, Problem, Real, Saved, View, ViewMut};
pub use lanes::portable::LaneExp;
use lanes::{Kernel, portable::Portable};
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

/// Writes `out` and, for the backward, `lse` (`[B, H, Q]`, minus infinity for a row that sees nothing).
///
/// # Panics
/// If a slice does not fit the sizes of `problem`.
pub fn forward<T: Real>(problem: &Problem<T>, q: View<T>, k: View<T>, v: View<T>, out: ViewMut<T>, lse: &mut [T]) {
    forward_with(InstructionSet::best(), problem, q, k, v, out, lse);
}

/// [`forward`] with a chosen instruction set; one that the CPU lacks falls back to [`InstructionSet::Portable`].
pub fn forward_with<T: Real>(
    set: InstructionSet,
    problem: &Problem<T>,
    q: View<T>,
    k: View<T>,
    v: View<T>,
    out: ViewMut<T>,
    lse: &mut [T],
) {
    problem.check_forward(q, k, v, &out, lse);
    let call = forward::Forward { problem, q, k, v, out, lse };
    if problem.dims.queries == 1 { T::dispatch(set, decode::Decode(call)) } else { T::dispatch(set, call) }
}

/// Writes every gradient of [`forward`], given its results and the gradient in `out`.
///
/// # Panics
/// If a slice does not fit the sizes of `problem`, or two gradients share an element.
pub fn backward<T: Real>(problem: &Problem<T>, saved: Saved<T>, gradients: Gradients<T>) {
    backward_with(InstructionSet::best(), problem, saved, gradients);
}

/// [`backward`] with a chosen instruction set, as in [`forward_with`].
pub fn backward_with<T: Real>(set: InstructionSet, problem: &Problem<T>, saved: Saved<T>, gradients: Gradients<T>) {
    problem.check_backward(&saved, &gradients);
    T::dispatch(set, backward::Backward { problem, saved, gradients });
}

/// Numbers to be written before they are read; tests make sure by starting from NaN.
fn scratch<R: Real>(len: usize) -> Vec<R> {
    vec![if cfg!(test) { R::NEG_INFINITY * R::ZERO } else { R::ZERO }; len]
}

#[cfg(test)]
mod tests;
