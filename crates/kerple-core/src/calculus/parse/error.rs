//! Errors in the text of an expression.

use super::token::TextSpan;
use crate::calculus::function::Function;

/// Why a text is not a kernel expression, and where.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{}", self.render())]
pub struct ParseError {
    /// The whole text.
    pub text: String,
    /// First character concerned, counted from 1.
    pub column: usize,
    /// Number of characters concerned, at least 1.
    pub width: usize,
    /// What is wrong.
    pub kind: ParseErrorKind,
}

/// What is wrong with an expression.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseErrorKind {
    /// Something else could stand here.
    #[error("expected {}, found {found}", expected.join(" or "))]
    Unexpected {
        /// What could stand here.
        expected: Vec<String>,
        /// What does.
        found: String,
    },
    /// A number beyond double precision.
    #[error("`{number}` is out of range, the largest number is {:e}", f64::MAX)]
    Overflow {
        /// The number as it was written.
        number: String,
    },
    /// A name that is no function.
    #[error("unknown function `{name}`; use one of {}", functions())]
    UnknownFunction {
        /// The name.
        name: String,
    },
    /// A name that is no parameter of the function.
    #[error("`{function}` has no parameter `{name}`; it has {}", names(function))]
    UnknownParameter {
        /// The function's name.
        function: &'static str,
        /// The parameter's name.
        name: String,
    },
    /// A parameter given twice.
    #[error("`{name}` is given twice")]
    Repeated {
        /// The parameter.
        name: &'static str,
    },
    /// A parameter not given.
    #[error("`{function}` needs `{name}`: a number, `{name}=NUMBER`, or `{name}` alone to learn it")]
    Missing {
        /// The function.
        function: &'static str,
        /// The parameter.
        name: &'static str,
    },
    /// More arguments than parameters.
    #[error("`{function}` takes {limit} arguments: {}", names(function))]
    TooMany {
        /// The function.
        function: &'static str,
        /// Number of its parameters.
        limit: usize,
    },
    /// A value the theory, or the formula, does not allow.
    #[error("`{name}` is {value}, outside {range}; {demand}")]
    OutOfRange {
        /// The parameter.
        name: String,
        /// Its value.
        value: f64,
        /// Allowed values.
        range: &'static str,
        /// The rule that demands them.
        demand: &'static str,
    },
    /// An operation whose result has no value at some distance.
    #[error("{operation} has a value only where {demand}, and {kernel} reaches {reaches}")]
    Undefined {
        /// The operation.
        operation: &'static str,
        /// What it asks of its operand.
        demand: &'static str,
        /// The operand.
        kernel: String,
        /// The operand's supremum.
        reaches: f64,
    },
    /// No rule proves this part.
    #[error("no rule proves {kernel} valid: {because}")]
    Unproven {
        /// The part.
        kernel: String,
        /// The reason.
        because: String,
    },
    /// Too long or too deeply nested.
    #[error("{what} is {value}, the limit is {limit}")]
    TooLarge {
        /// What is limited.
        what: &'static str,
        /// Its value.
        value: usize,
        /// Its limit.
        limit: usize,
    },
}

fn functions() -> String {
    let names = Function::ALL.map(|function| format!("`{}`", function.name()));
    format!("{}, `pow`, `neglog`", names.join(", "))
}

fn names(function: &str) -> String {
    let slots = Function::ALL.into_iter().find(|f| f.name() == function).map_or(&[][..], Function::slots);
    if slots.is_empty() {
        return "none".into();
    }
    slots.iter().map(|slot| format!("`{}`", slot.name)).collect::<Vec<_>>().join(", ")
}

impl ParseError {
    /// The message, and the text with the place marked below it.
    fn render(&self) -> String {
        let marks = format!("{}{}", " ".repeat(self.column - 1), "^".repeat(self.width));
        let shown: String = self.text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        format!("column {}: {}\n    {shown}\n    {marks}", self.column, self.kind)
    }
}

pub(super) fn error(text: &str, span: TextSpan, kind: ParseErrorKind) -> ParseError {
    ParseError { text: text.to_owned(), column: span.start + 1, width: span.len().max(1), kind }
}
