//! What an expression is linear in: the members of its sum, and the amplitudes of each.
//!
//! ```text
//! k(d) = c_1 k_1(d) + .. + c_m k_m(d)        c_i a learned amplitude, or a number
//! ```
//!
//! Least squares finds amplitudes in closed form, so a fit searches over the other parameters only.

use super::expr::{Expr, Node, ScalarTerm};
use super::function::Function;
use super::parameter::Role;

impl Expr {
    /// The members of the outermost sum, in order; the kernel itself where it is not a sum. Their learned parameters
    /// are those of the sum, one member after the other.
    ///
    /// ```
    /// use kerple_core::calculus::expr::Expr;
    /// let members = Expr::parse("log(b, a) + 0.5*power(a, 1)")?.members();
    /// assert_eq!(members[1].to_string(), "0.5*power(a, 1)");
    /// # Ok::<(), kerple_core::calculus::parse::ParseError>(())
    /// ```
    pub fn members(&self) -> Vec<Expr> {
        match &self.root {
            Node::Sum(of) => of.iter().map(|node| Expr { root: node.clone() }).collect(),
            root => vec![Expr { root: root.clone() }],
        }
    }

    /// Indices of the learned parameters that the whole kernel is proportional to.
    ///
    /// ```
    /// use kerple_core::calculus::expr::Expr;
    /// assert_eq!(Expr::parse("exp(c, a, 1)*cos(1, w)")?.amplitudes(), [0]);
    /// assert_eq!(Expr::parse("s*log(b, a)")?.amplitudes(), [0, 1]);
    /// assert!(Expr::parse("pow(log(b, a), 0.5)")?.amplitudes().is_empty());
    /// # Ok::<(), kerple_core::calculus::parse::ParseError>(())
    /// ```
    pub fn amplitudes(&self) -> Vec<usize> {
        let mut found = Vec::new();
        self.root.amplitudes(&mut 0, &mut found);
        found
    }

    /// Whether the kernel has one value at all distances, whatever is learned.
    pub fn is_constant(&self) -> bool {
        self.root.is_constant()
    }
}

impl Node {
    fn amplitudes(&self, next: &mut usize, found: &mut Vec<usize>) {
        match self {
            Node::Call { function, arguments } => {
                let is_amplitude = function.slots().first().is_some_and(|slot| slot.role == Role::Amplitude);
                if is_amplitude && matches!(arguments[0], ScalarTerm::Learned { .. }) {
                    found.push(*next);
                }
                *next += self.count();
            }
            Node::Scale { factor, of } => {
                if matches!(factor, ScalarTerm::Learned { .. }) {
                    found.push(*next);
                    *next += 1;
                }
                of.amplitudes(next, found);
            }
            Node::Product(of) => of.iter().for_each(|node| node.amplitudes(next, found)),
            Node::Sum(_) | Node::Fraction { .. } | Node::NegLog(_) | Node::ExpOf(_) => *next += self.count(),
        }
    }

    fn is_constant(&self) -> bool {
        match self {
            Node::Call { function, .. } => *function == Function::Const,
            Node::Scale { of, .. } | Node::Fraction { of, .. } | Node::NegLog(of) | Node::ExpOf(of) => of.is_constant(),
            Node::Sum(of) | Node::Product(of) => of.iter().all(Node::is_constant),
        }
    }
}
