//! Randomized positions. Ruoss et al. 2023, arXiv:2305.16843: a sequence of L tokens takes L of `most` positions, drawn
//! without replacement and sorted, so that a model trained on short sequences has seen the positions of long ones.
//!
//! ```text
//! positions   p_0 < p_1 < .. < p_{L-1}, of 0..most      rows and rotations: token t is at p_t
//! distances   0 = r_0 < r_1 < .. < r_{L-1} < most       tables: b(d) becomes b(r_d), so the bias stays one of distance
//! ```
//!
//! As in the authors' code all sequences of a batch share a draw, for as many positions as the longest of them has, and each layer
//! has its own. Models are evaluated with draws too: one of the run's seed for each length, the same for all sequences; of
//! classes, whose sequences have lengths of their own, one for each group of them that is evaluated at once.
//! Sequences longer than `most` are refused.

use super::Encoding;
use rand::{Rng, RngExt};
use std::ops::Range;

/// Most positions, or distances, to draw from: a draw passes them all, and tables are made for all.
pub(super) const MOST: usize = 1 << 20;

/// What of a method can be drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Randomized {
    /// The positions of tokens.
    Positions,
    /// The distances that a table's columns stand for.
    Distances,
    /// Nothing, and why.
    Never(&'static str),
}

/// The positions of a pass, and what else of it a form depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormPositions<'a> {
    /// Rows and rotations are made for these, tables cover distances `0..range.end`.
    pub range: Range<usize>,
    /// Positions of the whole sequence, at least `range.end`.
    pub span: usize,
    /// The drawn positions, or distances, that replace `0..span`.
    pub drawn: Option<&'a [usize]>,
}

impl From<Range<usize>> for FormPositions<'_> {
    fn from(range: Range<usize>) -> Self {
        FormPositions { span: range.end, range, drawn: None }
    }
}

impl From<usize> for FormPositions<'_> {
    fn from(len: usize) -> Self {
        FormPositions::from(0..len)
    }
}

impl FormPositions<'_> {
    /// The positions of the range.
    pub fn iter(&self) -> impl Iterator<Item = usize> + Clone + '_ {
        self.range.clone().map(|position| self.drawn.map_or(position, |drawn| drawn[position]))
    }
}

/// `count` of the numbers `0..most` in increasing order, every set equally likely.
///
/// # Panics
/// When there are not as many.
fn sorted_draw(count: usize, most: usize, rng: &mut impl Rng) -> Vec<usize> {
    assert!(count <= most, "{count} of {most} numbers");
    let mut drawn = Vec::with_capacity(count);
    // each number is taken with the share of those still wanted among those still there
    for number in 0..most {
        if rng.random_range(0..most - number) < count - drawn.len() {
            drawn.push(number);
        }
    }
    drawn
}

impl Encoding {
    /// The drawn positions, or distances, that replace `0..span`; `None` for an encoding that is
    /// not randomized.
    ///
    /// # Panics
    /// When the encoding has fewer positions, see [`Encoding::longest`].
    pub fn draw(&self, span: usize, rng: &mut impl Rng) -> Option<Vec<usize>> {
        let most = self.randomized?;
        match self.method.positional().randomized() {
            Randomized::Positions => Some(sorted_draw(span, most, rng)),
            Randomized::Distances if span == 0 => Some(Vec::new()),
            Randomized::Distances => {
                let others = sorted_draw(span - 1, most - 1, rng).into_iter().map(|distance| distance + 1);
                Some([0].into_iter().chain(others).collect())
            }
            Randomized::Never(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoding::Method;
    use crate::seed::{Purpose, stream};

    #[test]
    fn every_set_is_equally_likely() {
        let (mut rng, mut counts) = (stream(3, Purpose::Noise), std::collections::BTreeMap::new());
        let rounds = 20_000;
        for _ in 0..rounds {
            let drawn = sorted_draw(2, 5, &mut rng);
            assert!(drawn.len() == 2 && drawn[0] < drawn[1] && drawn[1] < 5, "{drawn:?}");
            *counts.entry(drawn).or_insert(0usize) += 1;
        }
        assert_eq!(counts.len(), 10);
        // 2000 of each, five deviations of a binomial count
        assert!(counts.values().all(|count| count.abs_diff(rounds / 10) < 215), "{counts:?}");
        assert_eq!(sorted_draw(4, 4, &mut rng), [0, 1, 2, 3]);
        assert!(sorted_draw(0, 4, &mut rng).is_empty());
    }

    #[test]
    fn distances_begin_at_zero_and_positions_anywhere() {
        let encoding = |kind: &str| Encoding { randomized: Some(64), ..Method::named(kind).unwrap().into() };
        let draws = |kind: &str| -> Vec<Vec<usize>> {
            (0..40).map(|seed| encoding(kind).draw(8, &mut stream(seed, Purpose::Noise)).unwrap()).collect()
        };
        for kind in ["alibi", "t5", "kerple_log"] {
            assert!(draws(kind).iter().all(|distances| distances.len() == 8
                && distances[0] == 0
                && distances.is_sorted()
                && distances[7] < 64));
        }
        let positions = draws("rotary");
        assert!(positions.iter().any(|positions| positions[0] > 3));
        assert_eq!(Encoding { randomized: None, ..encoding("alibi") }.draw(8, &mut stream(0, Purpose::Noise)), None);
    }

    #[test]
    fn drawn_distances_are_columns_of_the_table() {
        let geometry = crate::encoding::Geometry::new(2, 4, 8);
        for kind in ["alibi", "t5", "kerple_bias_weight"] {
            let encoding = Encoding { randomized: Some(64), ..Method::named(kind).unwrap().into() };
            let raw = encoding.initial(&geometry, 1);
            let distances = [0, 3, 4, 60];
            let positions = FormPositions { drawn: Some(&distances), ..FormPositions::from(4) };
            let (some, all) = (encoding.table(&geometry, &raw, positions.clone()), encoding.table(&geometry, &raw, 64));
            assert_eq!((some.heads, some.len), (2, 4));
            for (some, all) in [(some.bias, all.bias), (some.weight, all.weight)] {
                let want = all.map(|all| (0..8).map(|at| all[at / 4 * 64 + distances[at % 4]]).collect::<Vec<f64>>());
                assert_eq!(some, want, "{kind}");
            }
            let d_bias: Vec<f64> = (0..8).map(f64::from).collect();
            let gradient = |positions: FormPositions, d_bias: &[f64]| {
                let mut found: Vec<Vec<f64>> = raw.iter().map(|values| vec![0.0; values.len()]).collect();
                if let Some(slopes) = encoding.table_jacobian(&geometry, &raw, positions).bias {
                    slopes.backward(2, d_bias, &mut found);
                }
                found
            };
            let mut spread = vec![0.0; 128];
            d_bias.iter().enumerate().for_each(|(at, d)| spread[at / 4 * 64 + distances[at % 4]] = *d);
            let (some, all) = (gradient(positions, &d_bias), gradient(FormPositions::from(64), &spread));
            for (some, all) in some.iter().flatten().zip(all.iter().flatten()) {
                // the same products, summed among zeros
                assert!((some - all).abs() <= 1e-12 * all.abs(), "{kind}: {some} {all}");
            }
        }
    }
}
