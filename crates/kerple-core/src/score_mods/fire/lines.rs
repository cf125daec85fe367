//! FIRE's bias as arrays, for engines on other devices than the CPU.

use super::super::ScoreModExtent;
use super::{Fire, FireBias};

/// Per head a line in each piece of one number of a pair: the first of [`FireLines::by_distance`] times the first of
/// [`FireLines::by_token`].
#[derive(Debug)]
pub struct FireLines<'a>(FireBias<'a, f32>);

impl<'a> FireLines<'a> {
    /// The bias with these numbers, see [`Fire::len`].
    pub fn new(fire: &'a Fire, heads: usize, values: &'a [f32], extent: ScoreModExtent) -> FireLines<'a> {
        FireLines(FireBias::new(fire, heads, values, extent))
    }

    /// How many pieces there are.
    pub fn pieces(&self) -> usize {
        self.0.pieces.count()
    }

    /// How many there may be whatever the numbers are.
    pub fn most_pieces(&self) -> usize {
        self.0.network[0].len() + 1
    }

    /// Where each piece but the last ends, ascending; an end belongs to the piece before it.
    pub fn ends(&self) -> &[f32] {
        self.0.pieces.ends()
    }

    /// Value at 0 and slope in one linear segment, for one head.
    pub fn line(&self, piece: usize, head: usize) -> [f32; 2] {
        let (values, slopes) = self.0.pieces.line(piece);
        [values[head], slopes[head]]
    }

    /// Of each distance between positions: psi, and its derivative in c.
    pub fn by_distance(&self) -> [&[f32]; 2] {
        self.0.psi.each_ref().map(Vec::as_slice)
    }

    /// Of the later token of a pair: one over the divisor, and its derivatives in c and in m.
    pub fn by_token(&self) -> [&[f32]; 3] {
        self.0.inverse.each_ref().map(Vec::as_slice)
    }

    /// The position of each token, where that is not its number.
    pub fn drawn(&self) -> Option<&[usize]> {
        self.0.drawn.map(|drawn| &drawn[..self.0.inverse[0].len()])
    }

    /// What a hidden unit multiplies its input by in a piece.
    pub fn factor(&self, piece: usize, unit: usize) -> f32 {
        self.0.pieces.factor(piece, unit) as f32
    }
}
