//! Kernel expressions: base kernels closed under the operations that keep them valid.
//!
//! An [`Expr`] is a function `k(d)` of a distance `d >= 0` and of learned parameters. It comes from text
//! ([grammar](crate::calculus::parse)), is evaluated and differentiated here, and is proven valid by [rules](crate::calculus::rules).

use std::fmt;

use rand::Rng;
use serde::{Deserialize, Serialize};

use super::function::Function;
use super::parameter::{KernelInit, KernelParameter, Role};
use crate::check_shape;
use crate::emulate::Emulate;

/// A parameter in an expression: given, or learned per head.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ScalarTerm {
    Literal(f64),
    /// `default` marks a start that nobody wrote down, so that it is not printed.
    Learned {
        name: String,
        init: KernelInit,
        default: bool,
    },
}

impl ScalarTerm {
    /// Smallest and largest value, given the role.
    pub(super) fn interval(&self, role: Role) -> (f64, f64) {
        match self {
            ScalarTerm::Literal(x) => (*x, *x),
            ScalarTerm::Learned { .. } => role.limits(),
        }
    }

    /// The value and, for a learned one, the index of its parameter.
    fn read(&self, parameters: &[f64], next: &mut usize) -> (f64, Option<usize>) {
        match self {
            ScalarTerm::Literal(x) => (*x, None),
            ScalarTerm::Learned { .. } => {
                *next += 1;
                (parameters[*next - 1], Some(*next - 1))
            }
        }
    }
}

impl fmt::Display for ScalarTerm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ScalarTerm::Literal(x) => write!(f, "{x}"),
            ScalarTerm::Learned { name, default: true, .. } => write!(f, "{name}"),
            ScalarTerm::Learned { name, init, .. } => write!(f, "{name}~{init}"),
        }
    }
}

/// The tree. Sums and products are flat and have at least two members.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    Call {
        function: Function,
        arguments: Vec<ScalarTerm>,
    },
    Scale {
        factor: ScalarTerm,
        of: Box<Node>,
    },
    Sum(Vec<Node>),
    Product(Vec<Node>),
    /// `-(-k)^alpha`
    Fraction {
        of: Box<Node>,
        alpha: ScalarTerm,
    },
    /// `-log(1 - k)`
    NegLog(Box<Node>),
    /// `exp(k)`
    ExpOf(Box<Node>),
}

/// How a learned parameter starts in [`Expr::with_starts`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LearnedStart {
    /// Learned, with no start in the text.
    Unwritten,
    /// Learned, from this value.
    At(f64),
    /// A number that is not learned.
    Number(f64),
}

/// A learned parameter where it occurs in an expression.
struct LearnedTerm<'a> {
    /// Name of the function or operation that it belongs to.
    owner: &'static str,
    name: &'a str,
    role: Role,
    init: KernelInit,
}

/// A kernel `k(d)` of distance with learned parameters. See the [module](self).
///
/// Its text is its serialised form: `power(a, p)` is the same in a run file, on the command line and in `parse`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Expr {
    pub(super) root: Node,
}

impl Expr {
    /// Learned parameters, in the order `at` takes their values.
    pub fn parameters(&self) -> Vec<KernelParameter> {
        let mut found = Vec::new();
        self.root.collect(&mut found);
        let unique = |i: usize| {
            let LearnedTerm { owner, name, .. } = found[i];
            let namesakes = found.iter().filter(|other| other.name == name).count();
            let earlier = found[..i].iter().filter(|other| (other.owner, other.name) == (owner, name)).count();
            match (namesakes, earlier) {
                (1, _) => name.to_owned(),
                (_, 0) => format!("{owner}.{name}"),
                (_, n) => format!("{owner}{}.{name}", n + 1),
            }
        };
        let parameter =
            |(i, term): (usize, &LearnedTerm)| KernelParameter::new(unique(i), term.role.limits(), term.init);
        found.iter().enumerate().map(parameter).collect()
    }

    /// Roles of the learned parameters, in the order of [`Expr::parameters`].
    pub fn roles(&self) -> Vec<Role> {
        let mut found = Vec::new();
        self.root.collect(&mut found);
        found.into_iter().map(|term| term.role).collect()
    }

    /// Initial parameters of `heads` heads, `[H, P]`, drawn parameter by parameter.
    pub fn initial(&self, heads: usize, rng: &mut impl Rng) -> Vec<f64> {
        let parameters = self.parameters();
        let mut values = vec![0.0; heads * parameters.len()];
        for (p, parameter) in parameters.iter().enumerate() {
            for head in 0..heads {
                values[head * parameters.len() + p] = parameter.draw(rng);
            }
        }
        values
    }

    /// The same kernel with its learned parameters replaced by numbers.
    ///
    /// # Panics
    /// When there is not one value for each parameter.
    pub fn with_values(&self, values: &[f64]) -> Expr {
        let mut root = self.root.clone();
        let mut values_left = values.iter();
        root.replace_terms(&mut |term| {
            *term = ScalarTerm::Literal(*values_left.next().expect("one value per learned parameter"));
        });
        assert!(values_left.next().is_none(), "{} values for {} parameters", values.len(), self.parameters().len());
        Expr { root }
    }

    /// Text of the same kernel with other starts of its learned parameters.
    ///
    /// ```
    /// use kerple_core::calculus::expr::{Expr, LearnedStart};
    /// let kernel = Expr::parse("exp(c, a, 1)")?;
    /// let starts = [LearnedStart::At(2.5), LearnedStart::Number(0.002)];
    /// assert_eq!(kernel.with_starts(&starts), "exp(c~2.5, 0.002, 1)");
    /// # Ok::<(), kerple_core::calculus::parse::ParseError>(())
    /// ```
    ///
    /// # Panics
    /// When there is not one start for each parameter.
    pub fn with_starts(&self, starts: &[LearnedStart]) -> String {
        assert_eq!(starts.len(), self.root.count(), "one start per learned parameter");
        let mut root = self.root.clone();
        let mut left = starts.iter();
        root.replace_terms(&mut |term| match (left.next().expect("one start per learned parameter"), term) {
            (LearnedStart::Number(value), term) => *term = ScalarTerm::Literal(*value),
            (LearnedStart::At(value), ScalarTerm::Learned { init, default, .. }) => {
                (*init, *default) = (KernelInit::Fixed(*value), false);
            }
            (LearnedStart::Unwritten, ScalarTerm::Learned { default, .. }) => *default = true,
            (_, ScalarTerm::Literal(_)) => unreachable!("learned terms are visited"),
        });
        root.to_string()
    }

    /// The kernel at distance `|d|`; `parameters` in the order of [`Expr::parameters`].
    pub fn at(&self, parameters: &[f64], d: f64) -> f64 {
        let mut next = 0;
        let value = self.root.at(parameters, d.abs(), &mut next, Emulate::Exact);
        debug_assert_eq!(next, parameters.len(), "one value per learned parameter");
        value
    }

    /// The kernel at distance `|d|`; its derivatives in the parameters are written to `gradient`.
    ///
    /// At `d = 0` derivatives are the limits from the right in `d`, and finite.
    pub fn gradient(&self, parameters: &[f64], d: f64, gradient: &mut [f64]) -> f64 {
        assert_eq!(parameters.len(), gradient.len(), "gradient: one entry per parameter");
        let mut next = 0;
        let value = self.root.gradient(parameters, d.abs(), gradient, &mut next);
        debug_assert_eq!(next, parameters.len(), "one value per learned parameter");
        value
    }

    /// Values at distances `0..len` for every head.
    ///
    /// # Shapes
    /// `parameters` `[H, P]`, result `[H, L]`.
    pub fn table(&self, parameters: &[f64], heads: usize, len: usize) -> Vec<f64> {
        let count = self.root.count();
        check_shape!(parameters, H = heads, P = count);
        let row = |head: usize| self.row(&parameters[head * count..(head + 1) * count], len, Emulate::Exact);
        (0..heads).flat_map(row).collect()
    }

    /// Values of one head at distances `0..len`.
    ///
    /// # Shapes
    /// `parameters` `[P]`, result `[L]`.
    pub fn row(&self, parameters: &[f64], len: usize, emulate: Emulate) -> Vec<f64> {
        check_shape!(parameters, P = self.root.count());
        (0..len).map(|d| self.root.at(parameters, emulate.round(d as f64), &mut 0, emulate)).collect()
    }

    /// Calls `each` with the derivatives of [`Expr::row`] in the parameters, one distance after the other.
    ///
    /// In low precision these are the exact derivatives at the rounded parameters and distances, so that a staircase of
    /// distances is what a model learns from as well as what it sees.
    ///
    /// # Shapes
    /// `parameters` and what `each` is given `[P]`; `each` is called L times.
    pub fn each_gradient(&self, parameters: &[f64], len: usize, emulate: Emulate, mut each: impl FnMut(&[f64])) {
        let count = self.root.count();
        check_shape!(parameters, P = count);
        let parameters: Vec<f64> = parameters.iter().map(|value| emulate.round(*value)).collect();
        let mut gradient = vec![0.0; count];
        for d in 0..len {
            self.root.gradient(&parameters, emulate.round(d as f64), &mut gradient, &mut 0);
            each(&gradient);
        }
    }
}

impl Node {
    /// Number of learned parameters.
    pub(super) fn count(&self) -> usize {
        let mut found = Vec::new();
        self.collect(&mut found);
        found.len()
    }

    /// Learned parameters in evaluation order.
    fn collect<'a>(&'a self, found: &mut Vec<LearnedTerm<'a>>) {
        let mut push = |owner, value: &'a ScalarTerm, role| {
            if let ScalarTerm::Learned { name, init, .. } = value {
                found.push(LearnedTerm { owner, name, role, init: *init });
            }
        };
        match self {
            Node::Call { function, arguments } => {
                for (value, slot) in arguments.iter().zip(function.slots()) {
                    push(function.name(), value, slot.role);
                }
            }
            Node::Scale { factor, of } => {
                push("scale", factor, Role::Amplitude);
                of.collect(found);
            }
            Node::Sum(of) | Node::Product(of) => of.iter().for_each(|node| node.collect(found)),
            Node::Fraction { of, alpha } => {
                of.collect(found);
                if let ScalarTerm::Learned { name, init, .. } = alpha {
                    found.push(LearnedTerm { owner: "pow", name, role: Role::Fraction, init: *init });
                }
            }
            Node::NegLog(of) | Node::ExpOf(of) => of.collect(found),
        }
    }

    /// Changes learned values, in evaluation order.
    fn replace_terms(&mut self, change: &mut dyn FnMut(&mut ScalarTerm)) {
        let visit = |value: &mut ScalarTerm, change: &mut dyn FnMut(&mut ScalarTerm)| {
            if let ScalarTerm::Learned { .. } = value {
                change(value);
            }
        };
        match self {
            Node::Call { arguments, .. } => arguments.iter_mut().for_each(|value| visit(value, change)),
            Node::Scale { factor, of } => {
                visit(factor, change);
                of.replace_terms(change);
            }
            Node::Sum(of) | Node::Product(of) => of.iter_mut().for_each(|node| node.replace_terms(change)),
            Node::Fraction { of, alpha } => {
                of.replace_terms(change);
                visit(alpha, change);
            }
            Node::NegLog(of) | Node::ExpOf(of) => of.replace_terms(change),
        }
    }

    /// Value at `d`; `next` is the index of the next learned parameter.
    fn at(&self, parameters: &[f64], d: f64, next: &mut usize, emulate: Emulate) -> f64 {
        let round = |value| emulate.round(value);
        match self {
            Node::Call { function, arguments } => {
                let mut values = [0.0; 3];
                for (slot, value) in values.iter_mut().zip(arguments) {
                    *slot = round(value.read(parameters, next).0);
                }
                function.value(values, d, emulate)
            }
            Node::Scale { factor, of } => {
                let factor = round(factor.read(parameters, next).0);
                round(factor * of.at(parameters, d, next, emulate))
            }
            Node::Sum(of) => of.iter().fold(0.0, |sum, node| round(sum + node.at(parameters, d, next, emulate))),
            Node::Product(of) => of.iter().fold(1.0, |all, node| round(all * node.at(parameters, d, next, emulate))),
            Node::Fraction { of, alpha } => {
                let magnitude = -of.at(parameters, d, next, emulate);
                -round(magnitude.powf(round(alpha.read(parameters, next).0)))
            }
            Node::NegLog(of) => match emulate {
                Emulate::Exact => -(-of.at(parameters, d, next, emulate)).ln_1p(),
                Emulate::Bf16 => -round(round(1.0 - of.at(parameters, d, next, emulate)).ln()),
            },
            Node::ExpOf(of) => round(of.at(parameters, d, next, emulate).exp()),
        }
    }

    /// Value at `d`, writing the derivatives of this node's parameters, which are consecutive.
    fn gradient(&self, parameters: &[f64], d: f64, gradient: &mut [f64], next: &mut usize) -> f64 {
        let first = *next;
        match self {
            Node::Call { function, arguments } => {
                let (mut values, mut learned) = ([0.0; 3], [None; 3]);
                for (i, value) in arguments.iter().enumerate() {
                    (values[i], learned[i]) = value.read(parameters, next);
                }
                let (value, slopes) = function.jet(values, d);
                for (index, slope) in learned.into_iter().zip(slopes) {
                    if let Some(index) = index {
                        gradient[index] = slope;
                    }
                }
                value
            }
            Node::Scale { factor, of } => {
                let (factor, index) = factor.read(parameters, next);
                let inner = *next;
                let value = of.gradient(parameters, d, gradient, next);
                scale(&mut gradient[inner..*next], factor);
                if let Some(index) = index {
                    gradient[index] = value;
                }
                factor * value
            }
            Node::Sum(of) => of.iter().map(|node| node.gradient(parameters, d, gradient, next)).sum(),
            Node::Product(of) => {
                let mut product = 1.0;
                for node in of {
                    let own = *next;
                    let value = node.gradient(parameters, d, gradient, next);
                    scale(&mut gradient[first..own], value);
                    scale(&mut gradient[own..*next], product);
                    product *= value;
                }
                product
            }
            Node::Fraction { of, alpha } => {
                let magnitude = -of.gradient(parameters, d, gradient, next);
                let inner = *next;
                let (alpha, index) = alpha.read(parameters, next);
                let power = magnitude.powf(alpha);
                // k = 0 is k's maximum, kept for all parameters, so both derivatives are 0 there
                let (relative, log) = if magnitude > 0.0 { (alpha * power, magnitude.ln()) } else { (0.0, 0.0) };
                let divisor = if magnitude > 0.0 { magnitude } else { 1.0 };
                gradient[first..inner].iter_mut().for_each(|slope| *slope = *slope / divisor * relative);
                if let Some(index) = index {
                    gradient[index] = -power * log;
                }
                -power
            }
            Node::NegLog(of) => {
                let value = of.gradient(parameters, d, gradient, next);
                scale(&mut gradient[first..*next], 1.0 / (1.0 - value));
                -(-value).ln_1p()
            }
            Node::ExpOf(of) => {
                let value = of.gradient(parameters, d, gradient, next).exp();
                scale(&mut gradient[first..*next], value);
                value
            }
        }
    }

    /// How tightly the printed form binds: 0 a sum, 1 a product or anything that starts with a sign, 2 a call.
    fn binding(&self) -> u8 {
        match self {
            Node::Sum(_) => 0,
            Node::Scale { .. } | Node::Product(_) | Node::Fraction { .. } | Node::NegLog(_) => 1,
            Node::Call { .. } | Node::ExpOf(_) => 2,
        }
    }
}

fn scale(slice: &mut [f64], by: f64) {
    slice.iter_mut().for_each(|x| *x *= by);
}

/// Prints a node, in parentheses where it binds less tightly than asked.
struct Parenthesised<'a>(&'a Node, u8);

impl fmt::Display for Parenthesised<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.binding() < self.1 { write!(f, "({})", self.0) } else { write!(f, "{}", self.0) }
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Node::Call { function, arguments } if arguments.is_empty() => write!(f, "{}", function.name()),
            Node::Call { function, arguments } => {
                let arguments: Vec<_> = arguments.iter().map(ScalarTerm::to_string).collect();
                write!(f, "{}({})", function.name(), arguments.join(", "))
            }
            Node::Scale { factor, of } => match &**of {
                scaled @ Node::Scale { .. } => write!(f, "{factor}*{scaled}"),
                product @ Node::Product(_) => write!(f, "{factor}*{product}"),
                other => write!(f, "{factor}*{}", Parenthesised(other, 2)),
            },
            Node::Sum(of) => {
                for (i, node) in of.iter().enumerate() {
                    let text = Parenthesised(node, 1).to_string();
                    match text.strip_prefix('-') {
                        Some(rest) if i > 0 => write!(f, " - {rest}")?,
                        _ if i > 0 => write!(f, " + {text}")?,
                        _ => write!(f, "{text}")?,
                    }
                }
                Ok(())
            }
            Node::Product(of) => {
                let factors: Vec<_> = of.iter().map(|node| Parenthesised(node, 2).to_string()).collect();
                write!(f, "{}", factors.join("*"))
            }
            Node::Fraction { of, alpha } => write!(f, "-(-{})^{alpha}", Parenthesised(of, 2)),
            Node::NegLog(of) => write!(f, "-log(1 - {})", Parenthesised(of, 2)),
            Node::ExpOf(of) => write!(f, "exp({of})"),
        }
    }
}

/// The canonical form: `parse` of it gives the same expression.
impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.root.fmt(f)
    }
}

impl From<Expr> for String {
    fn from(expr: Expr) -> String {
        expr.to_string()
    }
}
