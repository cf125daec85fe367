//! Kernel expressions as distance tables: the part that named methods and those of a run file
//! share.

use super::method::{FormInputs, TableContents};
use crate::calculus::expr::Expr;
use crate::encoding::{Jacobian, TableJacobian};
use crate::forms::{DistanceTable, Sides};

/// The expressions of a method. Its values are those of the bias, then those of the weight, `[H]` each.
pub(super) struct TableExprs<'a> {
    pub bias: Option<&'a Expr>,
    pub weight: Option<&'a Expr>,
}

/// One of the two, with the place of its values among the method's.
struct TableExpr<'a> {
    expr: &'a Expr,
    first: usize,
    count: usize,
}

impl TableExpr<'_> {
    fn values(&self, inputs: &FormInputs, head: usize) -> Vec<f64> {
        inputs.values[self.first..self.first + self.count].iter().map(|values| values[head]).collect()
    }

    fn rows(&self, inputs: &FormInputs) -> Vec<f64> {
        let row = |head| self.expr.row(&self.values(inputs, head), inputs.positions.range.end, inputs.emulate);
        (0..inputs.geometry.heads).flat_map(row).collect()
    }

    fn jacobian(&self, inputs: &FormInputs) -> Option<Jacobian> {
        let size = inputs.geometry.heads * inputs.positions.range.end;
        let mut found: Vec<(usize, Vec<f64>)> =
            (0..self.count).map(|at| (self.first + at, Vec::with_capacity(size))).collect();
        for head in 0..inputs.geometry.heads {
            self.expr.each_gradient(
                &self.values(inputs, head),
                inputs.positions.range.end,
                inputs.emulate,
                |gradient| {
                    found.iter_mut().zip(gradient).for_each(|((_, rows), slope)| rows.push(*slope));
                },
            );
        }
        (self.count > 0).then_some(Jacobian::PerHead(found))
    }
}

impl<'a> TableExprs<'a> {
    fn parts(&self) -> [Option<TableExpr<'a>>; 2] {
        let mut first = 0;
        [self.bias, self.weight].map(|expr| {
            expr.map(|expr| {
                let count = expr.parameters().len();
                first += count;
                TableExpr { expr, first: first - count, count }
            })
        })
    }

    /// Which of the two there are.
    pub fn has(&self) -> TableContents {
        TableContents { bias: self.bias.is_some(), weight: self.weight.is_some(), sides: Sides::OneSided }
    }

    /// Bias and weight at distances `0..positions.range.end`.
    pub fn table(&self, inputs: &FormInputs) -> DistanceTable {
        let [bias, weight] = self.parts().map(|part| part.map(|part| part.rows(inputs)));
        let (heads, len) = (inputs.geometry.heads, inputs.positions.range.end);
        DistanceTable { heads, len, sides: Sides::OneSided, bias, weight }
    }

    /// Derivatives in every value.
    pub fn jacobian(&self, inputs: &FormInputs) -> TableJacobian {
        let [bias, weight] = self.parts().map(|part| part.and_then(|part| part.jacobian(inputs)));
        TableJacobian { sides: Sides::OneSided, bias, weight }
    }
}
