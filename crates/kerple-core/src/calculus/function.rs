//! The functions an expression can call: named cases of the [base kernels](super::base).

use super::base::BaseKernel;
use super::parameter::Role;
use crate::emulate::Emulate;

/// The functions an expression can call, with their parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// `power(a, p) = -a d^p`
    Power,
    /// `log(b, a) = -b ln(1 + a d)`
    Log,
    /// `log3(b, a, p) = -b ln(1 + a d^p)`
    Log3,
    /// `sqdist = -d^2`
    SqDist,
    /// `gauss(c, a) = c exp(-a d^2)`
    Gauss,
    /// `exp(c, a, p) = c exp(-a d^p)`
    Exp,
    /// `cos(c, w) = c cos(w d)`
    Cos,
    /// `const(c) = c`
    Const,
}

/// One parameter of a [`Function`]: its name, its role and where it starts when learned and nothing else is said.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FunctionSlot {
    /// Name in the formula.
    pub name: &'static str,
    /// What the theory allows.
    pub role: Role,
    /// Upper end of the default start, uniform on `[0, start)`.
    pub start: f64,
}

const fn slot(name: &'static str, role: Role, start: f64) -> FunctionSlot {
    FunctionSlot { name, role, start }
}

impl Function {
    /// Every function, in the order help lists them.
    pub const ALL: [Function; 8] = [
        Function::Power,
        Function::Log,
        Function::Log3,
        Function::SqDist,
        Function::Gauss,
        Function::Exp,
        Function::Cos,
        Function::Const,
    ];

    /// Name in the grammar.
    pub fn name(self) -> &'static str {
        match self {
            Function::Power => "power",
            Function::Log => "log",
            Function::Log3 => "log3",
            Function::SqDist => "sqdist",
            Function::Gauss => "gauss",
            Function::Exp => "exp",
            Function::Cos => "cos",
            Function::Const => "const",
        }
    }

    /// The formula, in terms of the slots' names.
    pub fn formula(self) -> &'static str {
        match self {
            Function::Power => "-a |d|^p",
            Function::Log => "-b ln(1 + a |d|)",
            Function::Log3 => "-b ln(1 + a |d|^p)",
            Function::SqDist => "-|d|^2",
            Function::Gauss => "c exp(-a |d|^2)",
            Function::Exp => "c exp(-a |d|^p)",
            Function::Cos => "c cos(w |d|)",
            Function::Const => "c",
        }
    }

    /// Parameters in order. Default starts are those of the released models where they exist, and by analogy elsewhere.
    pub fn slots(self) -> &'static [FunctionSlot] {
        const A: FunctionSlot = slot("a", Role::Rate, 1.0);
        const B: FunctionSlot = slot("b", Role::Amplitude, 2.0);
        const C: FunctionSlot = slot("c", Role::Amplitude, 1.0);
        const P: FunctionSlot = slot("p", Role::Exponent, 2.0);
        match self {
            Function::Power => const { &[slot("a", Role::Amplitude, 1.0), P] },
            Function::Log => &[B, A],
            Function::Log3 => &[B, A, P],
            Function::SqDist => &[],
            Function::Gauss => &[C, A],
            Function::Exp => &[C, A, P],
            Function::Cos => const { &[slot("c", Role::Amplitude, 1.0), slot("w", Role::Frequency, 1.0)] },
            Function::Const => const { &[slot("c", Role::Level, 1.0)] },
        }
    }

    /// The value at `d`.
    pub(super) fn value(self, values: [f64; 3], d: f64, emulate: Emulate) -> f64 {
        match emulate {
            Emulate::Exact => self.jet(values, d).0,
            Emulate::Bf16 => self.value_bf16(values, d),
        }
    }

    /// The exact value at `d`, and the derivatives in the slots.
    // inlined, so that constant exponents cost nothing, nor derivatives that the caller drops
    #[inline(always)]
    pub(super) fn jet(self, [x, y, z]: [f64; 3], d: f64) -> (f64, [f64; 3]) {
        let jet = match self {
            Function::Power => BaseKernel::Power.at(&[x, y], d),
            Function::Log => BaseKernel::Log.at(&[x, y, 1.0], d),
            Function::Log3 => BaseKernel::Log.at(&[x, y, z], d),
            Function::SqDist => BaseKernel::Power.at(&[1.0, 2.0], d),
            Function::Gauss => BaseKernel::Exp.at(&[x, y, 2.0], d),
            Function::Exp => BaseKernel::Exp.at(&[x, y, z], d),
            Function::Cos => BaseKernel::Cos.at(&[x, y], d),
            Function::Const => return (x, [1.0, 0.0, 0.0]),
        };
        (jet.value, jet.gradient)
    }

    fn value_bf16(self, [x, y, z]: [f64; 3], d: f64) -> f64 {
        match self {
            Function::Power => BaseKernel::Power.at_bf16([x, y, 0.0], d),
            Function::Log => BaseKernel::Log.at_bf16([x, y, 1.0], d),
            Function::Log3 => BaseKernel::Log.at_bf16([x, y, z], d),
            Function::SqDist => BaseKernel::Power.at_bf16([1.0, 2.0, 0.0], d),
            Function::Gauss => BaseKernel::Exp.at_bf16([x, y, 2.0], d),
            Function::Exp => BaseKernel::Exp.at_bf16([x, y, z], d),
            Function::Cos => BaseKernel::Cos.at_bf16([x, y, 0.0], d),
            Function::Const => x,
        }
    }
}
