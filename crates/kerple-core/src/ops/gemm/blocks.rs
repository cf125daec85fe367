//! A product that is not kept: blocks of the result, each let go of once something was made of it.

use super::{ENOUGH_BLOCKS, FEWEST_FINISHED_ROWS, Factors, MOST_ROWS, MatmulShape, Out, OutBlock, TILE_ROWS, write};
use crate::Number;
use crate::check_shape;
use crate::ops::kept::KeptSlice;
use rayon::prelude::*;
use std::ops::Range;

/// Gives the blocks of `op(a) op(b)` to `take` one by one, `[rows, columns]` each, with their place. They have so many
/// columns, the last ones of a row of blocks also what is over: the kernels add up narrow blocks in another order. What it makes of
/// them comes row of blocks by row of blocks.
///
/// # Panics
/// If a slice has the wrong size, or blocks no columns.
pub fn matmul_blocks<'b, T: Number, R: Send>(
    a: &[T],
    b: impl Into<KeptSlice<'b, T>>,
    product: MatmulShape,
    columns: usize,
    take: impl Fn(Range<usize>, Range<usize>, &mut [T]) -> R + Sync,
) -> Vec<R> {
    let b = b.into();
    let MatmulShape { m, k, n, .. } = product;
    check_shape!(a, m = m, k = k);
    check_shape!(b, k = k, n = n);
    let across = (n / columns).max(1);
    let down = m.div_ceil(MOST_ROWS).max(ENOUGH_BLOCKS.div_ceil(across).min(m / FEWEST_FINISHED_ROWS)).max(1);
    let rows = m.div_ceil(down).next_multiple_of(TILE_ROWS).max(1);
    let (factors, [rows, _]) = Factors::new(a, b, product, (rows, columns));
    let block = |t: usize| {
        let (i, j) = (t / across, t % across);
        let (end, i) = (if j + 1 == across { n } else { (j + 1) * columns }, i * rows..m.min((i + 1) * rows));
        let (j, mut c) = (j * columns..end, Vec::new());
        // SAFETY: `a` and `b` were seen to hold their matrices, and `c` has room for the block, which is all of it.
        write(Out::Append(&mut c), [i.len(), j.len()], |c, adds| unsafe {
            let c = OutBlock { start: c.start, row_stride: c.columns, accumulate: adds };
            factors.multiply_block(c, i.clone(), j.clone());
        });
        take(i, j, &mut c)
    };
    (0..m.div_ceil(rows) * across).into_par_iter().with_max_len(1).map(block).collect()
}

#[cfg(test)]
mod tests {
    use super::super::matmul;
    use super::*;
    use crate::ops::testing::{random, single};

    #[test]
    fn blocks_are_those_of_the_whole() {
        for (m, k, n) in [(1, 3, 4), (20, 40, 129), (400, 20, 40), (MOST_ROWS + 5, 20, 150), (0, 3, 4), (3, 0, 4)] {
            let (a, b) = (single(&random(m * k, 1)), single(&random(k * n, 2)));
            let product = MatmulShape::new(m, k, n);
            for product in [product, product.transpose_a(), product.transpose_b()] {
                let mut whole = Vec::new();
                matmul(Out::Append(&mut whole), &a, &b, product);
                let mut found = vec![f32::NAN; m * n];
                for (rows, columns, block) in
                    matmul_blocks(&a, &b, product, 32, |rows, columns, block| (rows, columns, block.to_vec()))
                {
                    assert!(columns.len() >= n.min(32) && block.len() == rows.len() * columns.len());
                    for (row, from) in rows.zip(block.chunks(columns.len())) {
                        found[row * n..][columns.clone()].copy_from_slice(from);
                    }
                }
                assert!(found == whole, "{product:?}");
            }
        }
    }
}
