//! Expressions as data: nested lists that a few lines of any language evaluate.
//!
//! | list | kernel |
//! |---|---|
//! | `["power", a, p]`, `["log", b, a]`, `["exp", c, a, p]`, .. | a [function](super::function) of the distance |
//! | `["scale", s, k]` | `s k` |
//! | `["sum", k, ..]`, `["product", k, ..]` | their sum, their product |
//! | `["fraction", k, alpha]` | `-(-k)^alpha` |
//! | `["neg_log", k]`, `["exp_of", k]` | `-ln(1 - k)`, `exp(k)` |
//!
//! An argument is a number, or the name of a learned value.

use super::expr::{Expr, Node, ScalarTerm};
use serde_json::{Value as Json, json};

impl Expr {
    /// The expression as nested lists; `names` are those of its learned values, in the order of [`Expr::parameters`].
    ///
    /// ```
    /// use kerple_core::calculus::expr::Expr;
    /// let program = Expr::parse("2*log(b, 0.5)")?.program(&["r1".to_owned()]);
    /// assert_eq!(program.to_string(), r#"["scale",2.0,["log","r1",0.5]]"#);
    /// # Ok::<(), kerple_core::calculus::parse::ParseError>(())
    /// ```
    ///
    /// # Panics
    /// When there is not a name for each learned value.
    pub fn program(&self, names: &[String]) -> Json {
        let mut left = names.iter();
        let program = self.root.program(&mut || left.next().expect("a name for each learned value").clone());
        assert!(left.next().is_none(), "{} names for {} learned values", names.len(), self.parameters().len());
        program
    }
}

impl Node {
    /// Learned values are named in evaluation order.
    fn program(&self, next: &mut dyn FnMut() -> String) -> Json {
        let mut argument = |value: &ScalarTerm| match value {
            ScalarTerm::Literal(x) => json!(x),
            ScalarTerm::Learned { .. } => json!(next()),
        };
        match self {
            Node::Call { function, arguments } => {
                std::iter::once(json!(function.name())).chain(arguments.iter().map(argument)).collect()
            }
            Node::Scale { factor, of } => {
                let factor = argument(factor);
                json!(["scale", factor, of.program(next)])
            }
            Node::Sum(of) => members("sum", of, next),
            Node::Product(of) => members("product", of, next),
            Node::Fraction { of, alpha } => {
                let of = of.program(next);
                let alpha = match alpha {
                    ScalarTerm::Literal(x) => json!(x),
                    ScalarTerm::Learned { .. } => json!(next()),
                };
                json!(["fraction", of, alpha])
            }
            Node::NegLog(of) => json!(["neg_log", of.program(next)]),
            Node::ExpOf(of) => json!(["exp_of", of.program(next)]),
        }
    }
}

fn members(name: &str, of: &[Node], next: &mut dyn FnMut() -> String) -> Json {
    std::iter::once(json!(name)).chain(of.iter().map(|node| node.program(next))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(text: &str, names: &[&str]) -> String {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        Expr::parse(text).unwrap().program(&names).to_string()
    }

    #[test]
    fn every_operation_has_a_list() {
        for (text, names, expected) in [
            ("power(a, p)", &["x", "y"][..], r#"["power","x","y"]"#),
            ("sqdist", &[], r#"["sqdist"]"#),
            (
                "log(b, 2) + s*power(a, 1)",
                &["b", "s", "a"],
                r#"["sum",["log","b",2.0],["scale","s",["power","a",1.0]]]"#,
            ),
            ("-(-log(b, a))^0.5", &["b", "a"], r#"["fraction",["log","b","a"],0.5]"#),
            ("pow(log(b, a), alpha)", &["b", "a", "alpha"], r#"["fraction",["log","b","a"],"alpha"]"#),
            ("-log(1 - power(a, 1))", &["a"], r#"["neg_log",["power","a",1.0]]"#),
            (
                "exp(power(a, 1))*gauss(c, 1)",
                &["a", "c"],
                r#"["product",["exp_of",["power","a",1.0]],["gauss","c",1.0]]"#,
            ),
        ] {
            assert_eq!(program(text, names), expected, "{text}");
        }
    }

    #[test]
    #[should_panic(expected = "2 names for 1 learned values")]
    fn names_are_counted() {
        program("power(a, 1)", &["a", "b"]);
    }
}
