//! A network of one input, as the line it is in each piece between the kinks of its hidden units.

use super::Fire;
use crate::Number;
use crate::score_mods::chunk::ROOM;

#[derive(Debug)]
pub(super) struct FirePieces<T> {
    /// Heads, rounded up to whole vectors.
    pub(super) room: usize,
    /// Where each piece but the last ends, ascending.
    ends: Vec<T>,
    /// Value at 0 and slope of each head, `[pieces, 2, room]`.
    lines: Vec<T>,
    /// What each unit multiplies its input by, `[pieces, W]`.
    factors: Vec<f64>,
}

impl<T: Number> FirePieces<T> {
    /// Of the numbers `w1 [W]`, `b1 [W]`, `W2 [H, W]`, `b2 [H]`, for inputs from 0 on.
    #[allow(clippy::needless_range_loop, reason = "several arrays walk together")]
    pub(super) fn new(fire: &Fire, heads: usize, [first, first_bias, second, second_bias]: [&[T]; 4]) -> FirePieces<T> {
        let (width, room) = (fire.width, heads.next_multiple_of(ROOM));
        let mut ends: Vec<(T, usize)> =
            (0..width).filter_map(|unit| end(first[unit], first_bias[unit]).map(|end| (end, unit))).collect();
        ends.sort_by(|a, b| a.0.partial_cmp(&b.0).expect("ends are numbers").then(a.1.cmp(&b.1)));
        let factor = |is_open: bool| if is_open { 1.0 } else { fire.slope };
        // before the first end; a unit at its kink is closed
        let mut own: Vec<f64> = first_bias.iter().map(|bias| factor(*bias > T::ZERO)).collect();
        let mut factors = own.clone();
        for &(_, unit) in &ends {
            own[unit] = factor(first[unit] > T::ZERO);
            factors.extend(&own);
        }
        let mut lines = vec![T::ZERO; (ends.len() + 1) * 2 * room];
        for (line, factors) in lines.chunks_exact_mut(2 * room).zip(factors.chunks_exact(width.max(1))) {
            for head in 0..heads {
                let (mut value, mut slope) = (second_bias[head].to_f64(), 0.0);
                for (unit, factor) in factors.iter().enumerate() {
                    let weight = second[head * width + unit].to_f64() * factor;
                    value += weight * first_bias[unit].to_f64();
                    slope += weight * first[unit].to_f64();
                }
                (line[head], line[room + head]) = (T::from_f64(value), T::from_f64(slope));
            }
        }
        FirePieces { room, ends: ends.into_iter().map(|(end, _)| end).collect(), lines, factors }
    }

    pub(super) fn count(&self) -> usize {
        self.ends.len() + 1
    }

    /// Where each piece but the last ends.
    pub(super) fn ends(&self) -> &[T] {
        &self.ends
    }

    /// What inputs of a piece are above; `None`: the first piece starts at 0.
    #[inline(always)]
    pub(super) fn start(&self, piece: usize) -> Option<T> {
        Some(self.ends[piece.checked_sub(1)?])
    }

    /// The piece of an input, looked for from another one on.
    #[inline(always)]
    pub(super) fn find(&self, input: T, from: usize) -> usize {
        let mut piece = from;
        while piece < self.ends.len() && input > self.ends[piece] {
            piece += 1;
        }
        while piece > 0 && input <= self.ends[piece - 1] {
            piece -= 1;
        }
        piece
    }

    /// Values at 0 and slopes of a piece, `[room]` each.
    #[inline(always)]
    pub(super) fn line(&self, piece: usize) -> (&[T], &[T]) {
        self.lines[piece * 2 * self.room..][..2 * self.room].split_at(self.room)
    }

    /// What a unit multiplies its input by in a piece.
    pub(super) fn factor(&self, piece: usize, unit: usize) -> f64 {
        self.factors[piece * (self.factors.len() / self.count()) + unit]
    }
}

/// The input, from 0 on, up to which a unit that rises is closed or one that falls is open; `None` where neither changes.
fn end<T: Number>(weight: T, bias: T) -> Option<T> {
    let end = T::from_f64(-bias.to_f64() / weight.to_f64());
    let changes = end.is_finite() && (end > T::ZERO || end == T::ZERO && weight > T::ZERO);
    changes.then_some(end)
}
