//! A tile of the backward pass: which of its queries attend to which of its keys.

use super::backward::KEYS;

/// Where the diagonal crosses a tile, queries are skipped in strips of this many.
pub(super) const STRIP: usize = 12;

/// Where one tile lies.
#[derive(Clone, Copy)]
pub(super) struct KeyTile {
    pub(super) head: usize,
    pub(super) first_query: usize,
    pub(super) queries: usize,
    pub(super) keys: usize,
    /// Distance between the first query and the first key.
    pub(super) distance: isize,
    /// Keys after its own position that a query sees.
    pub(super) ahead: usize,
    /// Whether a query sees its own key.
    pub(super) sees_own: bool,
}

impl KeyTile {
    /// Lanes of keys that the strip holding `query` has to look at.
    pub(super) fn lanes_seen_by(&self, query: usize, lanes: usize) -> usize {
        let last = ((query / STRIP * STRIP + STRIP).min(self.queries) + self.ahead) as isize + self.distance;
        (last.max(0) as usize).min(self.keys).next_multiple_of(lanes)
    }

    /// First query whose strip looks at the vector of keys from `key` on.
    pub(super) fn first_query_of(&self, key: usize) -> usize {
        let first = (key as isize - self.distance - self.ahead as isize).max(0) as usize;
        if first < self.queries { first / STRIP * STRIP } else { self.queries }
    }

    /// Whether every lane of every query is visible.
    pub(super) fn is_whole(&self, furthest: Option<usize>) -> bool {
        self.keys == KEYS
            && self.distance + (self.ahead as isize) + isize::from(self.sees_own) >= KEYS as isize
            && furthest.is_none_or(|furthest| self.distance + (self.queries as isize) <= furthest as isize)
    }
}
