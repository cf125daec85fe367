//! The two number types attention is written for.

use super::tiled::instructions::Dispatch;
use std::fmt::Debug;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Sub};

/// `f32` or `f64`; the tiled engine knows no others.
pub trait Real:
    Copy
    + Debug
    + PartialOrd
    + Send
    + Sync
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + AddAssign
    + Sum
    + Dispatch
    + 'static
{
    /// 0
    const ZERO: Self;
    /// 1
    const ONE: Self;
    /// Below every finite value.
    const NEG_INFINITY: Self;
    /// The lowest finite value; its negative is the largest.
    const LOWEST: Self;
    /// `e^x`
    fn exp(self) -> Self;
    /// Natural logarithm.
    fn ln(self) -> Self;
    /// The larger of two.
    fn max(self, other: Self) -> Self;
}

macro_rules! real {
    ($type:ident) => {
        impl Real for $type {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const NEG_INFINITY: Self = Self::NEG_INFINITY;
            const LOWEST: Self = Self::MIN;
            fn exp(self) -> Self {
                self.exp()
            }
            fn ln(self) -> Self {
                self.ln()
            }
            fn max(self, other: Self) -> Self {
                self.max(other)
            }
        }
    };
}

real!(f32);
real!(f64);
