//! The class of an expression by construction: a class for every part of it, and the fact that each
//! step uses.
//!
//! A kernel `k(d)` of the distance `d = |x - x'|` is *positive definite* (PD) when `sum_ij c_i c_j k(x_i, x_j) >= 0` for all
//! points and all `c`, and *conditionally positive definite* (CPD) when that holds for every `c` that sums to 0. It is
//! *strictly* so when the sum is positive for distinct points and `c != 0`. Statements hold for any number of points. They
//! hold for points of any number of dimensions, unless a part is a cosine: that is a kernel of points on a line
//! ([`PointDimensions`]), such as positions in a sequence, and so is everything that contains it.
//!
//! Besides the class, two things are carried upwards because rules ask for them: bounds of `k` over all distances, and
//! whether `k` *separates* points, `k(d) < k(0)` for `d > 0`, which turns a fractional power or a logarithm into a strict kernel.
//!
//! # Why intervals, and what was rejected
//!
//! Fact 3 asks for `k <= 0` at every distance and for every value that training may reach. A
//! derivation therefore carries the infimum and supremum over both, combined from those of its parts. To
//! evaluate the kernel at sample points was rejected: that proves nothing about other points and values.
//! The price is that parts are bounded independently, so a valid kernel may be refused.
//! [`Expr::parse_unproven`] still reads it, so that its eigenvalues can be examined.

use std::fmt;

use serde::Serialize;

use super::expr::{Expr, Node, ScalarTerm};
use super::function::Function;
use super::parameter::Role;

/// What the rules prove about a kernel, for all its parameters' values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "class")]
pub enum KernelClass {
    /// Positive definite, and so also conditionally.
    PositiveDefinite {
        /// Strictly, on distinct points.
        strict: bool,
    },
    /// Conditionally positive definite.
    ConditionallyPositiveDefinite {
        /// Strictly, on distinct points.
        strict: bool,
    },
    /// No rule applies; the kernel may or may not be valid.
    Unproven,
}

impl KernelClass {
    /// Whether the kernel is a valid relative positional bias.
    pub fn is_cpd(self) -> bool {
        self != KernelClass::Unproven
    }

    /// Whether the kernel is proven positive definite.
    pub fn is_pd(self) -> bool {
        matches!(self, KernelClass::PositiveDefinite { .. })
    }

    /// Whether the kernel is proven strictly (conditionally) positive definite.
    pub fn is_strict(self) -> bool {
        matches!(
            self,
            KernelClass::PositiveDefinite { strict: true }
                | KernelClass::ConditionallyPositiveDefinite { strict: true }
        )
    }

    fn of(pd: bool, strict: bool) -> KernelClass {
        if pd {
            KernelClass::PositiveDefinite { strict }
        } else {
            KernelClass::ConditionallyPositiveDefinite { strict }
        }
    }
}

impl fmt::Display for KernelClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KernelClass::PositiveDefinite { strict: true } => "strictly positive definite",
            KernelClass::PositiveDefinite { strict: false } => "positive definite",
            KernelClass::ConditionallyPositiveDefinite { strict: true } => "strictly conditionally positive definite",
            KernelClass::ConditionallyPositiveDefinite { strict: false } => "conditionally positive definite",
            KernelClass::Unproven => "unproven",
        })
    }
}

/// The points that a proof is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PointDimensions {
    /// Points of any number of dimensions.
    Any,
    /// Points on a line, such as positions in a sequence.
    Line,
}

impl PointDimensions {
    fn is_any(&self) -> bool {
        *self == PointDimensions::Any
    }
}

/// A fact that makes one kernel from others, or from nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProofRule {
    /// `-|x - x'|^2` is CPD.
    SquaredDistance,
    /// `-a |x - x'|^p` is CPD.
    Power,
    /// `-b ln(1 + a |x - x'|^p)` is CPD.
    Logarithm,
    /// `c exp(-a |x - x'|^p)` is PD.
    Exponential,
    /// `c cos(w |x - x'|)` is PD on the line.
    Cosine,
    /// A constant is CPD, and PD when it is not negative.
    Constant,
    /// A positive multiple keeps the class.
    Multiple,
    /// A sum keeps the weaker class.
    Sum,
    /// A product of PD kernels is PD.
    Product,
    /// `-(-k)^alpha` of a CPD `k <= 0` is CPD.
    FractionalPower,
    /// `-log(1 - k)` of a CPD `k <= 0` is CPD.
    NegativeLogarithm,
    /// `exp(k)` of a CPD `k` is PD.
    ExponentialOf,
}

impl ProofRule {
    /// Every rule, in the order documents list them.
    pub const ALL: [ProofRule; 12] = [
        ProofRule::SquaredDistance,
        ProofRule::Power,
        ProofRule::Logarithm,
        ProofRule::Exponential,
        ProofRule::Cosine,
        ProofRule::Constant,
        ProofRule::Multiple,
        ProofRule::Sum,
        ProofRule::Product,
        ProofRule::FractionalPower,
        ProofRule::NegativeLogarithm,
        ProofRule::ExponentialOf,
    ];

    /// The source, then the statement.
    pub fn statement(self) -> &'static str {
        match self {
            ProofRule::SquaredDistance => "Fact 4: -|d|^2 is CPD, as sum c_i = 0 leaves 2 |sum c_i x_i|^2",
            ProofRule::Power => "Corollary 1: -a |d|^p is CPD for a > 0 and 0 < p <= 2, strictly for p < 2",
            ProofRule::Logarithm => "Corollary 1: -b ln(1 + a |d|^p) is strictly CPD for a, b > 0 and 0 < p <= 2",
            ProofRule::Exponential => "Fact 5: c exp(-a |d|^p) is strictly PD for a, c > 0 and 0 < p <= 2",
            ProofRule::Cosine => {
                "Bochner: c cos(w d) is PD on the line for c > 0, half of c at each of the frequencies w and -w"
            }
            ProofRule::Constant => "a constant c gives c (sum c_i)^2: PD for c >= 0, CPD for every c",
            ProofRule::Multiple => "Fact 2: a positive multiple of a kernel keeps its class",
            ProofRule::Sum => {
                "Fact 2: a sum of CPD kernels is CPD, of PD kernels PD; one strict member makes it strict"
            }
            ProofRule::Product => "Schur: a product of PD kernels is PD",
            ProofRule::FractionalPower => "Fact 3: -(-k)^alpha is CPD for CPD k <= 0 and 0 < alpha < 1",
            ProofRule::NegativeLogarithm => "Fact 3: -log(1 - k) is CPD for CPD k <= 0",
            ProofRule::ExponentialOf => "Schoenberg: exp(k) is PD for CPD k",
        }
    }
}

/// One step of a proof, or the place where it stops.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Derivation {
    /// The part of the expression this is about, in canonical form.
    pub kernel: String,
    /// What is proven about it.
    #[serde(flatten)]
    pub class: KernelClass,
    /// The points that this holds for.
    #[serde(skip_serializing_if = "PointDimensions::is_any")]
    pub dimensions: PointDimensions,
    /// The rule used, or tried.
    pub rule: ProofRule,
    /// Why the rule applies, or does not.
    pub because: String,
    /// The parts of the expression.
    pub premises: Vec<Derivation>,
    /// Infimum over all distances and learned values.
    #[serde(skip)]
    pub(super) low: f64,
    /// Supremum over all distances and learned values.
    #[serde(skip)]
    pub(super) high: f64,
    #[serde(skip)]
    separates: bool,
}

impl Derivation {
    /// The deepest first part that is unproven, where something is.
    pub fn obstacle(&self) -> Option<&Derivation> {
        if self.class.is_cpd() {
            return None;
        }
        self.premises.iter().find_map(Derivation::obstacle).or(Some(self))
    }

    /// The class, and the points that it is about where those are not all.
    pub fn statement(&self) -> String {
        match self.dimensions {
            PointDimensions::Line if self.class.is_cpd() => format!("{} on the line", self.class),
            _ => self.class.to_string(),
        }
    }

    /// Whether no lower bound of the kernel was found. A kernel without one has no shift that makes it positive definite on
    /// every point set; the bound of a sum may be further down than its lowest value.
    pub fn is_unbounded(&self) -> bool {
        self.low == f64::NEG_INFINITY
    }
}

impl fmt::Display for Derivation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn node(of: &Derivation, first: &str, rest: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            writeln!(f, "{first}{}: {}", of.kernel, of.statement())?;
            writeln!(f, "{rest}{}   {}", if of.premises.is_empty() { " " } else { "|" }, of.because)?;
            for (i, premise) in of.premises.iter().enumerate() {
                let last = i + 1 == of.premises.len();
                let below = format!("{rest}{}", if last { "    " } else { "|   " });
                node(premise, &format!("{rest}+-- "), &below, f)?;
            }
            Ok(())
        }
        node(self, "", "", f)
    }
}

impl Expr {
    /// What the rules prove about this kernel for points on a line, step by step. Unless
    /// [`Derivation::dimensions`] is the line, that holds for points of any number of dimensions.
    ///
    /// ```
    /// use kerple_core::calculus::expr::Expr;
    /// let derivation = Expr::parse("-(-power(a, p))^0.5")?.derivation();
    /// assert!(derivation.class.is_strict());
    /// assert!(!derivation.premises[0].class.is_strict(), "p = 2 is in the range of p");
    /// # Ok::<(), kerple_core::calculus::parse::ParseError>(())
    /// ```
    pub fn derivation(&self) -> Derivation {
        self.root.derivation(1)
    }

    /// What the rules prove about this kernel for points with `dim` coordinates.
    ///
    /// ```
    /// use kerple_core::calculus::expr::Expr;
    /// let wave = Expr::parse("exp(c, a, 1)*cos(1, w)")?;
    /// assert!(wave.derivation_in(1).class.is_strict());
    /// assert!(!wave.derivation_in(2).class.is_cpd());
    /// # Ok::<(), kerple_core::calculus::parse::ParseError>(())
    /// ```
    pub fn derivation_in(&self, dim: usize) -> Derivation {
        self.root.derivation(dim)
    }

    /// The class of the whole kernel.
    pub fn class(&self) -> KernelClass {
        self.derivation().class
    }

    /// Whether the value never rises with the distance, by construction: true of everything that is proven in every
    /// number of dimensions, and not of waves.
    pub fn is_monotone(&self) -> bool {
        let derivation = self.derivation();
        derivation.class.is_cpd() && derivation.dimensions.is_any()
    }
}

/// A proven or failed step before its text is attached.
struct ProofStep {
    rule: ProofRule,
    outcome: Result<KernelClass, String>,
    why: String,
    low: f64,
    high: f64,
    separates: bool,
}

impl Node {
    pub(super) fn derivation(&self, dim: usize) -> Derivation {
        let premises: Vec<Derivation> = match self {
            Node::Call { .. } => Vec::new(),
            Node::Scale { of, .. } | Node::Fraction { of, .. } | Node::NegLog(of) | Node::ExpOf(of) => {
                vec![of.derivation(dim)]
            }
            Node::Sum(of) | Node::Product(of) => of.iter().map(|node| node.derivation(dim)).collect(),
        };
        let step = match (self, premises.as_slice()) {
            (Node::Call { function, arguments }, _) => call(*function, arguments, dim),
            (Node::Scale { factor, .. }, [of]) => multiple(factor, of),
            (Node::Fraction { alpha, .. }, [of]) => fraction(alpha, of),
            (Node::NegLog(_), [of]) => negative_log(of),
            (Node::ExpOf(_), [of]) => exponential(of),
            (Node::Sum(_), of) => sum(of),
            (Node::Product(_), of) => product(of),
            _ => unreachable!("unary nodes have one premise"),
        };
        let ProofStep { rule, outcome, why, low, high, separates } = step;
        let (class, because) = match outcome {
            Ok(class) if why.is_empty() => (class, rule.statement().to_owned()),
            Ok(class) => (class, format!("{}; {why}", rule.statement())),
            Err(reason) => (KernelClass::Unproven, reason),
        };
        let on_line = rule == ProofRule::Cosine || premises.iter().any(|part| !part.dimensions.is_any());
        let dimensions = if on_line { PointDimensions::Line } else { PointDimensions::Any };
        Derivation { kernel: self.to_string(), class, dimensions, rule, because, premises, low, high, separates }
    }
}

fn call(function: Function, arguments: &[ScalarTerm], dim: usize) -> ProofStep {
    let (rule, pd) = match function {
        Function::SqDist => (ProofRule::SquaredDistance, false),
        Function::Power => (ProofRule::Power, false),
        Function::Log | Function::Log3 => (ProofRule::Logarithm, false),
        Function::Gauss | Function::Exp => (ProofRule::Exponential, true),
        Function::Cos => (ProofRule::Cosine, true),
        Function::Const => (ProofRule::Constant, true),
    };
    let outside = function.slots().iter().zip(arguments).find_map(|(slot, value)| match value {
        ScalarTerm::Literal(x) if !slot.role.allows(*x) => Some(outside_range(slot.name, *x, slot.role)),
        _ => None,
    });
    let in_the_plane = (function == Function::Cos && dim > 1)
        .then(|| format!("a cosine of the distance is PD on the line only, and the points have {dim} coordinates"));
    let (low, high) = match arguments.first() {
        Some(value) => value.interval(function.slots()[0].role),
        None => (1.0, 1.0),
    };
    let (low, high) = match function {
        Function::Const => (low, high),
        Function::Cos => (-high.abs().max(low.abs()), high.abs().max(low.abs())),
        Function::Gauss | Function::Exp => (low.min(0.0), high.max(0.0)),
        _ if low >= 0.0 => (f64::NEG_INFINITY, 0.0),
        _ => (0.0, f64::INFINITY),
    };
    let reaches_two = match function {
        Function::SqDist => true,
        Function::Power => arguments[1].interval(Role::Exponent).1 >= 2.0,
        _ => false,
    };
    let why = match (function, &arguments) {
        (Function::Power, [_, ScalarTerm::Literal(_)]) if reaches_two => "p = 2 is CPD and not strictly so",
        (Function::Power, _) if reaches_two => "p is learned up to 2, so not strictly for every value",
        _ => "",
    };
    let class = match function {
        Function::Const => KernelClass::of(low >= 0.0, false),
        Function::Cos => KernelClass::of(true, false),
        _ => KernelClass::of(pd, !reaches_two),
    };
    let outcome = outside.or(in_the_plane).map_or(Ok(class), Err);
    // a wave comes back to its value at 0
    let separates = !matches!(function, Function::Const | Function::Cos);
    ProofStep { rule, outcome, why: why.to_owned(), low, high, separates }
}

fn outside_range(name: &str, value: f64, role: Role) -> String {
    format!("{name} = {value} is outside {} ({})", role.range(), role.demand())
}

fn multiple(factor: &ScalarTerm, of: &Derivation) -> ProofStep {
    let outcome = match factor {
        ScalarTerm::Literal(x) if !Role::Amplitude.allows(*x) => Err(outside_range("the factor", *x, Role::Amplitude)),
        _ => proven([of]).map(|()| of.class),
    };
    let (low, high) = interval_product(factor.interval(Role::Amplitude), (of.low, of.high));
    ProofStep { rule: ProofRule::Multiple, outcome, why: String::new(), low, high, separates: of.separates }
}

fn sum(of: &[Derivation]) -> ProofStep {
    let pd = of.iter().all(|part| part.class.is_pd());
    let strict = of.iter().any(|part| part.class.is_strict());
    ProofStep {
        rule: ProofRule::Sum,
        outcome: proven(of).map(|()| KernelClass::of(pd, strict)),
        why: String::new(),
        low: of.iter().map(|part| part.low).sum(),
        high: of.iter().map(|part| part.high).sum(),
        separates: of.iter().any(|part| part.separates),
    }
}

fn product(of: &[Derivation]) -> ProofStep {
    // K1 o K2 is strictly PD when K1 is and K2 is PD with a positive diagonal
    let positive_diagonals = of.iter().all(|part| part.high > 0.0);
    let strict = positive_diagonals && of.iter().any(|part| part.class.is_strict());
    let not_pd = of.iter().find(|part| !part.class.is_pd());
    let (low, high) = of.iter().map(|part| (part.low, part.high)).fold((1.0, 1.0), interval_product);
    ProofStep {
        rule: ProofRule::Product,
        outcome: match not_pd {
            Some(part) => Err(format!(
                "a product needs positive definite members, and {} is {}; exp of a CPD kernel is positive definite",
                part.kernel, part.class
            )),
            None => Ok(KernelClass::of(true, strict)),
        },
        why: if strict { "one strict member makes it strict".to_owned() } else { String::new() },
        low,
        high,
        separates: positive_diagonals && of.iter().any(|part| part.separates),
    }
}

fn fraction(alpha: &ScalarTerm, of: &Derivation) -> ProofStep {
    let outcome = match alpha {
        ScalarTerm::Literal(x) if !Role::Fraction.allows(*x) => Err(outside_range("alpha", *x, Role::Fraction)),
        _ => proven([of]).map(|()| KernelClass::of(false, of.separates)),
    };
    let (shallow, steep) = alpha.interval(Role::Fraction);
    let powers = |x: f64| [-(-x).powf(shallow), -(-x).powf(steep)];
    let low = powers(of.low).into_iter().fold(f64::INFINITY, f64::min);
    let high = powers(of.high).into_iter().fold(f64::NEG_INFINITY, f64::max);
    ProofStep { rule: ProofRule::FractionalPower, outcome, why: strictness(of), low, high, separates: of.separates }
}

fn negative_log(of: &Derivation) -> ProofStep {
    let outcome = proven([of]).and_then(|()| {
        if of.high > 0.0 {
            return Err(format!("Fact 3 asks for k <= 0, and {} reaches {}", of.kernel, of.high));
        }
        Ok(KernelClass::of(false, of.separates))
    });
    let (low, high) = (-(-of.low).ln_1p(), -(-of.high).ln_1p());
    ProofStep { rule: ProofRule::NegativeLogarithm, outcome, why: strictness(of), low, high, separates: of.separates }
}

fn exponential(of: &Derivation) -> ProofStep {
    let outcome = proven([of]).map(|()| KernelClass::of(true, of.separates));
    let (low, high) = (of.low.exp(), of.high.exp());
    ProofStep { rule: ProofRule::ExponentialOf, outcome, why: strictness(of), low, high, separates: of.separates }
}

fn strictness(of: &Derivation) -> String {
    if of.separates { "strictly, as k(d) < k(0) for every d > 0".to_owned() } else { String::new() }
}

fn proven<'a>(of: impl IntoIterator<Item = &'a Derivation>) -> Result<(), String> {
    match of.into_iter().find(|part| !part.class.is_cpd()) {
        Some(part) => Err(format!("nothing is proven about {}", part.kernel)),
        None => Ok(()),
    }
}

/// Bounds of a product, where 0 times infinity is 0: a bound of 0 is a value that is reached.
fn interval_product(x: (f64, f64), y: (f64, f64)) -> (f64, f64) {
    let times = |a: f64, b: f64| if a == 0.0 || b == 0.0 { 0.0 } else { a * b };
    let corners = [times(x.0, y.0), times(x.0, y.1), times(x.1, y.0), times(x.1, y.1)];
    (corners.into_iter().fold(f64::INFINITY, f64::min), corners.into_iter().fold(f64::NEG_INFINITY, f64::max))
}
