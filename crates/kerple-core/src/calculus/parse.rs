//! The grammar of kernel expressions.
//!
//! ```text
//! sum       = term { ("+" | "-") term }
//! term      = factor { "*" factor }             a term of numbers alone is a constant
//! factor    = scalar | call | "(" sum ")" | "-(-" term ")^" value | "-log(1 -" term ")" | "-" term
//! scalar    = NUMBER | LEARNED
//! call      = FUNCTION [ "(" argument { "," argument } ")" ] | "exp(" sum ")" | "pow(" sum "," value ")" | "neglog(" sum ")"
//! argument  = NUMBER | NAME "=" NUMBER | LEARNED
//! LEARNED   = NAME | NAME "~" NUMBER | NAME "~U(" NUMBER "," NUMBER ")"
//! ```
//!
//! | text | kernel |
//! |---|---|
//! | `power(1, 1.5)`, `power(a=1, p=1.5)` | `-|d|^1.5` |
//! | `log(b, a)`, or `log` alone | `-b ln(1 + a |d|)`, `b` and `a` learned per head |
//! | `log(b=0.7, a~0.5)` | `b` fixed, `a` learned from 0.5 |
//! | `power(a~U(0,1), p=1)` | `a` learned, drawn uniformly per head |
//! | `0.5*k`, `s*k`, `s~0.5*k` | a positive multiple, fixed or learned |
//! | `-(-k)^0.5`, `pow(k, 0.5)` | the fractional power of Fact 3; `^alpha` is learned |
//! | `-log(1 - k)`, `neglog(k)` | the logarithm of Fact 3 |
//! | `exp(k)` | positive definite for every CPD `k` |
//!
//! [`Expr::parse`] accepts what the [rules](super::rules) prove, for every value of every learned parameter.
//! [`Expr::parse_unproven`] also accepts what they do not, so that it can be examined, as long as it has a value at every distance.

use std::str::FromStr;

use super::expr::{Expr, Node, ScalarTerm};
use super::function::Function;
use super::parameter::Role;
use super::rules::KernelClass;
use error::error;
pub use error::{ParseError, ParseErrorKind};
use token::{TextSpan, Token, tokens};

mod arguments;
mod error;
mod token;

/// Parentheses and signs may be nested this deep, and this many scalars multiplied.
const MAX_DEPTH: usize = 64;
/// Longest text of an expression, in bytes.
const MAX_LENGTH: usize = 4096;

impl Expr {
    /// Reads an expression that the rules prove conditionally positive definite.
    ///
    /// # Errors
    /// What is wrong and at which character; a value out of range names the rule that demands the range.
    ///
    /// ```
    /// use kerple_core::calculus::expr::Expr;
    /// let kernel = Expr::parse("log(b=0.7, a=2) + 0.5*power(a, p=1)")?;
    /// assert_eq!(kernel.to_string(), "log(0.7, 2) + 0.5*power(a, 1)");
    /// assert_eq!(kernel.at(&[0.3], 0.0), 0.0);
    /// let error = Expr::parse("power(1, 2.5)").unwrap_err();
    /// assert_eq!(error.column, 10);
    /// # Ok::<(), kerple_core::calculus::parse::ParseError>(())
    /// ```
    pub fn parse(text: &str) -> Result<Expr, ParseError> {
        Parser::new(text, true)?.readable()
    }

    /// Reads an expression, proven or not, that has a value at every distance. Its [class](Expr::class) tells which.
    ///
    /// # Errors
    /// What is wrong and at which character.
    pub fn parse_unproven(text: &str) -> Result<Expr, ParseError> {
        Parser::new(text, false)?.readable()
    }
}

impl FromStr for Expr {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Expr, ParseError> {
        Expr::parse(text)
    }
}

impl TryFrom<String> for Expr {
    type Error = ParseError;

    fn try_from(text: String) -> Result<Expr, ParseError> {
        Expr::parse(&text)
    }
}

/// Part of a product: a number or learned scalar, or a kernel.
enum ProductFactor {
    Scalar(ScalarTerm),
    Kernel(Node),
}

/// What is limited of a text.
const LENGTH: &str = "the length";

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<(Token, TextSpan)>,
    next: usize,
    depth: usize,
    strict: bool,
}

type Parsed<T> = Result<T, ParseError>;

impl<'a> Parser<'a> {
    fn new(text: &'a str, strict: bool) -> Parsed<Self> {
        if text.len() > MAX_LENGTH {
            let kind = ParseErrorKind::TooLarge { what: LENGTH, value: text.len(), limit: MAX_LENGTH };
            return Err(error("", 0..1, kind));
        }
        let tokens = tokens(text).map_err(|(span, kind)| error(text, span, kind))?;
        Ok(Parser { text, tokens, next: 0, depth: 0, strict })
    }

    /// An expression whose canonical form, which is longer and nested deeper than some texts, is within the limits too.
    fn readable(mut self) -> Parsed<Expr> {
        let expr = self.expr()?;
        let written = expr.to_string();
        match Parser::new(&written, false).and_then(|mut again| again.expr()) {
            Err(ParseError { kind: ParseErrorKind::TooLarge { what, value, limit }, .. }) => {
                let what = if what == LENGTH {
                    "the length of its canonical form"
                } else {
                    "the nesting of its canonical form"
                };
                Err(self.fail(0..self.text.len(), ParseErrorKind::TooLarge { what, value, limit }))
            }
            _ => Ok(expr),
        }
    }

    fn expr(&mut self) -> Parsed<Expr> {
        let root = self.sum()?;
        match self.peek(0) {
            Token::End => Ok(Expr { root }),
            Token::Symbol('^') => Err(self.unexpected(&["the end (a power is written `-(-k)^alpha`)"])),
            _ => Err(self.unexpected(&["`+`", "`-`", "`*`", "the end"])),
        }
    }

    fn peek(&self, ahead: usize) -> &Token {
        &self.tokens[(self.next + ahead).min(self.tokens.len() - 1)].0
    }

    fn at(&self, symbols: &str) -> bool {
        symbols.chars().enumerate().all(|(ahead, symbol)| *self.peek(ahead) == Token::Symbol(symbol))
    }

    fn start(&self) -> usize {
        self.tokens[self.next].1.start
    }

    /// From `start` to the end of the last token read.
    fn since(&self, start: usize) -> TextSpan {
        start..self.tokens[self.next.saturating_sub(1)].1.end.max(start + 1)
    }

    fn fail(&self, span: TextSpan, kind: ParseErrorKind) -> ParseError {
        error(self.text, span, kind)
    }

    fn unexpected(&self, expected: &[&str]) -> ParseError {
        let (found, span) = &self.tokens[self.next];
        let expected = expected.iter().map(|text| (*text).to_owned()).collect();
        self.fail(span.clone(), ParseErrorKind::Unexpected { expected, found: found.to_string() })
    }

    fn take(&mut self, symbol: char) -> bool {
        let found = *self.peek(0) == Token::Symbol(symbol);
        self.next += usize::from(found);
        found
    }

    fn expect(&mut self, symbol: char) -> Parsed<()> {
        if self.take(symbol) { Ok(()) } else { Err(self.unexpected(&[&format!("`{symbol}`")])) }
    }

    /// A number with an optional sign.
    fn number(&mut self) -> Parsed<f64> {
        let sign = if self.take('-') { -1.0 } else { 1.0 };
        match *self.peek(0) {
            Token::Number(x) => {
                self.next += 1;
                Ok(sign * x)
            }
            _ => Err(self.unexpected(&["a number"])),
        }
    }

    /// Refuses a value outside its range, or outside the formula's domain where unproven kernels are welcome.
    fn check(&self, name: &str, role: Role, value: f64, span: TextSpan) -> Parsed<f64> {
        if if self.strict { role.allows(value) } else { role.defines(value) } {
            return Ok(value);
        }
        let (name, range, demand) = (name.to_owned(), role.range(), role.demand());
        Err(self.fail(span, ParseErrorKind::OutOfRange { name, value, range, demand }))
    }

    /// Refuses a node that no rule proves.
    fn admit(&self, node: Node, start: usize) -> Parsed<Node> {
        let derivation = node.derivation(1);
        if self.strict && derivation.class == KernelClass::Unproven {
            let kind = ParseErrorKind::Unproven { kernel: derivation.kernel, because: derivation.because };
            return Err(self.fail(self.since(start), kind));
        }
        Ok(node)
    }

    fn sum(&mut self) -> Parsed<Node> {
        self.deeper()?;
        let start = self.start();
        let first = self.term()?;
        let node = self.rest_of_sum(first, start)?;
        self.depth -= 1;
        Ok(node)
    }

    fn deeper(&mut self) -> Parsed<()> {
        self.depth += 1;
        self.limit("the nesting", self.depth)
    }

    fn limit(&self, what: &'static str, value: usize) -> Parsed<()> {
        if value <= MAX_DEPTH {
            return Ok(());
        }
        let kind = ParseErrorKind::TooLarge { what, value, limit: MAX_DEPTH };
        Err(self.fail(self.tokens[self.next].1.clone(), kind))
    }

    fn rest_of_sum(&mut self, first: Node, start: usize) -> Parsed<Node> {
        let mut terms = vec![first];
        loop {
            if self.take('+') || self.at("-") {
                terms.push(self.term()?);
            } else {
                break;
            }
        }
        if terms.len() == 1 {
            return Ok(terms.remove(0));
        }
        let flat = terms.into_iter().flat_map(|node| if let Node::Sum(of) = node { of } else { vec![node] }).collect();
        self.admit(Node::Sum(flat), start)
    }

    fn term(&mut self) -> Parsed<Node> {
        let start = self.start();
        if self.at("-") && !matches!(self.peek(1), Token::Number(_)) {
            return self.negated(start);
        }
        let first = self.factor()?;
        self.rest_of_term(first, start)
    }

    fn rest_of_term(&mut self, first: ProductFactor, start: usize) -> Parsed<Node> {
        let mut scalars = Vec::new();
        let mut kernels = Vec::new();
        let mut factor = first;
        loop {
            match factor {
                ProductFactor::Scalar(value) => scalars.push(value),
                ProductFactor::Kernel(node) => kernels.push(node),
            }
            if !self.take('*') {
                break;
            }
            factor = self.factor()?;
        }
        self.limit("the number of scalar factors", scalars.len())?;
        let node = match kernels.len() {
            0 => match scalars.pop().expect("a term has a factor") {
                ScalarTerm::Learned { name, .. } => {
                    return Err(self.fail(self.since(start), ParseErrorKind::UnknownFunction { name }));
                }
                c => Node::Call { function: Function::Const, arguments: vec![c] },
            },
            1 => kernels.remove(0),
            _ => {
                let flat = kernels.into_iter().flat_map(|k| if let Node::Product(of) = k { of } else { vec![k] });
                self.admit(Node::Product(flat.collect()), start)?
            }
        };
        scalars.into_iter().rev().try_fold(node, |of, factor| self.multiple(factor, of, start))
    }

    fn multiple(&self, factor: ScalarTerm, of: Node, start: usize) -> Parsed<Node> {
        if let ScalarTerm::Literal(x) = factor {
            self.check("the factor", Role::Amplitude, x, self.since(start))?;
        }
        self.admit(Node::Scale { factor, of: Box::new(of) }, start)
    }

    /// A term that starts with a sign: one of Fact 3's forms, or a negative multiple.
    fn negated(&mut self, start: usize) -> Parsed<Node> {
        self.expect('-')?;
        self.deeper()?;
        let node = self.negated_rest(start)?;
        self.depth -= 1;
        Ok(node)
    }

    fn negated_rest(&mut self, start: usize) -> Parsed<Node> {
        if self.at_log_of_one_minus(0) {
            self.next += 4;
            let of = self.term()?;
            self.expect(')')?;
            let node = self.negative_log(of, start)?;
            return self.rest_of_term(ProductFactor::Kernel(node), start);
        }
        if self.at("(") && self.is_power_base() {
            self.next += 1;
            if !self.take('-') {
                return Err(self.unexpected(&["`-`: a power is written `-(-k)^alpha`"]));
            }
            let of = self.term()?;
            self.expect(')')?;
            self.expect('^')?;
            let alpha = self.alpha()?;
            let node = self.fraction(of, alpha, start)?;
            return self.rest_of_term(ProductFactor::Kernel(node), start);
        }
        let of = self.term()?;
        self.multiple(ScalarTerm::Literal(-1.0), of, start)
    }

    /// Whether `log(1 -` comes next, `ahead` tokens from here.
    fn at_log_of_one_minus(&self, ahead: usize) -> bool {
        *self.peek(ahead) == Token::Name("log".into())
            && *self.peek(ahead + 1) == Token::Symbol('(')
            && *self.peek(ahead + 2) == Token::Number(1.0)
            && *self.peek(ahead + 3) == Token::Symbol('-')
    }

    fn negative_log(&self, of: Node, start: usize) -> Parsed<Node> {
        self.bounded(&of, "-log(1 - k)", "k < 1", start, |high| high < 1.0)?;
        self.admit(Node::NegLog(Box::new(of)), start)
    }

    fn fraction(&self, of: Node, alpha: ScalarTerm, start: usize) -> Parsed<Node> {
        self.bounded(&of, "-(-k)^alpha", "k <= 0", start, |high| high <= 0.0)?;
        self.admit(Node::Fraction { of: Box::new(of), alpha }, start)
    }

    fn bounded(
        &self,
        of: &Node,
        operation: &'static str,
        demand: &'static str,
        start: usize,
        holds: impl Fn(f64) -> bool,
    ) -> Parsed<()> {
        let derivation = of.derivation(1);
        if holds(derivation.high) {
            return Ok(());
        }
        let (kernel, reaches) = (derivation.kernel, derivation.high);
        Err(self.fail(self.since(start), ParseErrorKind::Undefined { operation, demand, kernel, reaches }))
    }

    /// The exponent of `-(-k)^alpha`.
    fn alpha(&mut self) -> Parsed<ScalarTerm> {
        let start = self.start();
        if let Token::Name(name) = self.peek(0).clone() {
            self.next += 1;
            if name == "alpha" && self.take('=') {
                let value = self.number()?;
                return Ok(ScalarTerm::Literal(self.check("alpha", Role::Fraction, value, self.since(start))?));
            }
            return self.learned(name, Role::Fraction, 1.0);
        }
        let value = self.number()?;
        Ok(ScalarTerm::Literal(self.check("alpha", Role::Fraction, value, self.since(start))?))
    }

    fn factor(&mut self) -> Parsed<ProductFactor> {
        match self.peek(0).clone() {
            Token::Number(_) | Token::Symbol('-') => Ok(ProductFactor::Scalar(ScalarTerm::Literal(self.number()?))),
            Token::Symbol('(') => {
                self.next += 1;
                let node = self.sum()?;
                self.expect(')')?;
                if self.at("^") {
                    return Err(self.unexpected(&["a power written `-(-k)^alpha`"]));
                }
                Ok(ProductFactor::Kernel(node))
            }
            Token::Name(name) => self.named(name),
            _ => Err(self.unexpected(&["a kernel", "a number", "`(`"])),
        }
    }

    /// A call, or a learned scalar.
    fn named(&mut self, name: String) -> Parsed<ProductFactor> {
        let start = self.start();
        self.next += 1;
        let function = Function::ALL.into_iter().find(|function| function.name() == name);
        let node = match (function, name.as_str()) {
            (Some(Function::Exp), _) if self.at("(") && self.holds_kernel() => {
                self.expect('(')?;
                let of = self.sum()?;
                self.expect(')')?;
                self.admit(Node::ExpOf(Box::new(of)), start)?
            }
            (Some(function), _) => self.call(function, start)?,
            (None, "neglog") => {
                self.expect('(')?;
                let of = self.sum()?;
                self.expect(')')?;
                self.negative_log(of, start)?
            }
            (None, "pow") => {
                self.expect('(')?;
                let of = self.sum()?;
                self.expect(',')?;
                let alpha = self.alpha()?;
                self.expect(')')?;
                self.fraction(of, alpha, start)?
            }
            (None, _) if self.at("(") => {
                return Err(self.fail(self.since(start), ParseErrorKind::UnknownFunction { name }));
            }
            (None, _) => return Ok(ProductFactor::Scalar(self.learned(name, Role::Amplitude, 1.0)?)),
        };
        Ok(ProductFactor::Kernel(node))
    }

    /// Whether the parentheses that follow hold one kernel rather than parameters: no comma at their top level.
    fn holds_kernel(&self) -> bool {
        !self.in_parentheses().any(|(depth, token)| depth == 1 && *token == Token::Symbol(','))
    }

    /// Whether `^` comes after the parentheses that follow.
    fn is_power_base(&self) -> bool {
        *self.peek(self.in_parentheses().count() + 1) == Token::Symbol('^')
    }

    /// The tokens from the parenthesis that comes next up to, not including, the one that closes it, with their depth.
    fn in_parentheses(&self) -> impl Iterator<Item = (usize, &Token)> {
        let depths = self.tokens[self.next..].iter().scan(0usize, |depth, (token, _)| {
            match token {
                Token::Symbol('(') => *depth += 1,
                Token::Symbol(')') => *depth -= 1,
                _ => {}
            }
            Some((*depth, token))
        });
        depths.take_while(|(depth, _)| *depth > 0)
    }
}
