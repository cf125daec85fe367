//! In which order the blocks of segments are processed: those of the longest segments first, so that
//! no thread is left with one of them at the end.

use super::AttentionProblem;
use super::documents::DocumentSegment;
use crate::Number;
use crate::tiles::workers::BlockSchedule;
use std::cmp::Reverse;
use std::ops::Range;

/// Blocks of the heads of segments, as numbered items of work.
pub(super) struct SegmentBlocks {
    /// Segments that have blocks, those with the most first.
    order: Vec<usize>,
    /// Of those with equally many blocks.
    groups: Vec<SegmentGroup>,
    items: usize,
    heads: usize,
}

/// Segments with equally many blocks, which are scheduled as the sequences of a batch are.
struct SegmentGroup {
    first_item: usize,
    /// The first of its segments in the order.
    first: usize,
    blocks: usize,
    schedule: BlockSchedule,
}

/// One item of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentBlock {
    pub(super) segment: usize,
    pub(super) head: usize,
    pub(super) block: usize,
}

impl SegmentBlocks {
    /// Of so many heads, or groups of heads, and so many blocks of each segment.
    pub(super) fn new<T: Number>(
        problem: &AttentionProblem<T>,
        heads: usize,
        blocks: impl Fn(&DocumentSegment) -> usize,
    ) -> SegmentBlocks {
        SegmentBlocks::of(problem, 0..problem.segments(), heads, blocks)
    }

    /// The same of some segments.
    pub(super) fn of<T: Number>(
        problem: &AttentionProblem<T>,
        segments: Range<usize>,
        heads: usize,
        blocks: impl Fn(&DocumentSegment) -> usize,
    ) -> SegmentBlocks {
        let numbered = segments.map(|number| (blocks(&problem.segment(number)), number));
        let mut order: Vec<(usize, usize)> = numbered.filter(|(blocks, _)| *blocks > 0).collect();
        order.sort_by_key(|(blocks, _)| Reverse(*blocks));
        let (mut groups, mut items, mut first) = (Vec::new(), 0, 0);
        for group in order.chunk_by(|a, b| a.0 == b.0) {
            let (blocks, units) = (group[0].0, group.len() * heads);
            let schedule = BlockSchedule::new(units, blocks);
            groups.push(SegmentGroup { first_item: items, first, blocks, schedule });
            items += units * blocks;
            first += group.len();
        }
        let order = order.into_iter().map(|(_, number)| number).collect();
        SegmentBlocks { order, groups, items, heads }
    }

    /// Number of items.
    pub(super) fn items(&self) -> usize {
        self.items
    }

    /// Items of independent blocks, head by head, the last block first: it sees the most keys.
    pub(super) fn independent(&self, item: usize) -> SegmentBlock {
        let (group, item) = self.group(item);
        self.block(group, item / group.blocks, group.blocks - 1 - item % group.blocks)
    }

    /// Items of which each may wait for the block before it of the same head.
    pub(super) fn consecutive(&self, item: usize) -> SegmentBlock {
        let (group, item) = self.group(item);
        let (unit, block) = group.schedule.item(item);
        self.block(group, unit, block)
    }

    fn group(&self, item: usize) -> (&SegmentGroup, usize) {
        let group = &self.groups[self.groups.partition_point(|group| group.first_item <= item) - 1];
        (group, item - group.first_item)
    }

    fn block(&self, group: &SegmentGroup, unit: usize, block: usize) -> SegmentBlock {
        SegmentBlock { segment: self.order[group.first + unit / self.heads], head: unit % self.heads, block }
    }
}

/// The sum in f64 of the terms of all segments, in their order. Where documents share a row, each document is summed by
/// itself first, as it is alone: terms that cancel within a document then leave no rounding error in the sum over documents.
/// Otherwise the sum runs on over the sequences of a batch.
pub(super) fn sum_over_segments<T: Number, I: Iterator<Item = f64>>(
    problem: &AttentionProblem<T>,
    terms: impl Fn(usize) -> I,
) -> f64 {
    let segments = 0..problem.segments();
    let add = |sum: f64, term: f64| sum + term;
    if !problem.segments_share_rows() {
        return segments.flat_map(terms).fold(0.0, add);
    }
    segments.map(|number| terms(number).fold(0.0, add)).fold(0.0, add)
}

/// Sums over segments, in the order of rows and documents. The segments of a row are added in f64, so that many short
/// documents round once; rows are added as the sequences of a batch are.
pub(super) struct SumsByRow<T> {
    of_row: Vec<f64>,
    total: Vec<T>,
}

impl<T: Number> SumsByRow<T> {
    pub(super) fn new(size: usize) -> Self {
        SumsByRow { of_row: vec![0.0; size], total: vec![T::ZERO; size] }
    }

    /// Adds the segment with this number in `sums`, and the row if it is its last.
    pub(super) fn add(&mut self, number: usize, sums: &[T], is_last: bool) {
        let own = &sums[number * self.of_row.len()..][..self.of_row.len()];
        self.of_row.iter_mut().zip(own).for_each(|(to, sum)| *to += sum.to_f64());
        if is_last {
            self.total.iter_mut().zip(&self.of_row).for_each(|(to, &sum)| *to += T::from_f64(sum));
            self.of_row.fill(0.0);
        }
    }

    pub(super) fn total(self) -> Vec<T> {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::PackedDocuments;
    use crate::attention::tests::dims;

    #[test]
    fn every_block_is_visited_once_and_the_longest_first() {
        let lengths = [&[5, 0, 1, 9][..], &[2, 2, 2]];
        let documents = PackedDocuments::from_lengths(lengths, 20).unwrap();
        let plain = AttentionProblem::causal(dims(2, 3, 1, 20, 20, 4), 1.0f32);
        let problem = AttentionProblem { documents: Some(&documents), ..plain };
        for (problem, segments) in [(&plain, 2), (&problem, 9)] {
            let count = |segment: &DocumentSegment| segment.keys.div_ceil(2);
            let blocks = SegmentBlocks::new(problem, 3, count);
            for which in [SegmentBlocks::independent, SegmentBlocks::consecutive] {
                let visited: Vec<SegmentBlock> = (0..blocks.items()).map(|item| which(&blocks, item)).collect();
                let sizes: Vec<usize> = visited.iter().map(|it| count(&problem.segment(it.segment))).collect();
                assert!(sizes.is_sorted_by(|a, b| a >= b), "{sizes:?}");
                for number in 0..segments {
                    let mut own: Vec<[usize; 2]> =
                        visited.iter().filter(|it| it.segment == number).map(|it| [it.head, it.block]).collect();
                    own.sort_unstable();
                    let expected =
                        (0..3).flat_map(|head| (0..count(&problem.segment(number))).map(move |block| [head, block]));
                    assert!(own.into_iter().eq(expected), "segment {number}");
                }
            }
        }
    }
}
