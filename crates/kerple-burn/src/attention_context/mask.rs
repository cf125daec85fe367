//! The attention mask: causality, window, padding and packed documents.

use super::QueryKeyPairs;
use burn::tensor::{Bool, Device, Tensor, TensorData};
use kerple_core::attention::PackedDocuments;
use kerple_core::forms::{Mask, Sides};
use kerple_core::score_mods::ScoreModExtent;
use std::ops::Range;
use std::sync::Arc;

/// Which keys each query of a batch attends to.
#[derive(Clone, Debug)]
pub struct AttentionMask {
    /// Causal or bidirectional, with or without a window.
    pub pattern: Mask,
    /// Keys that each sequence has, `[B]`; the rest is padding. `None`: all of them.
    pub lengths: Option<Arc<[usize]>>,
    /// Documents that each sequence consists of, which do not attend to each other; never together with `lengths`. `None`: one.
    pub documents: Option<Arc<PackedDocuments>>,
}

impl Default for AttentionMask {
    fn default() -> Self {
        AttentionMask::from(Mask::CAUSAL)
    }
}

impl From<Mask> for AttentionMask {
    fn from(pattern: Mask) -> Self {
        AttentionMask { pattern, lengths: None, documents: None }
    }
}

impl AttentionMask {
    /// Which keys each query does not attend to, `[B, 1, Q, K]`, or `[1, 1, Q, K]` where all sequences are alike.
    pub(crate) fn hidden(&self, pairs: &QueryKeyPairs, device: &Device) -> Tensor<4, Bool> {
        let distances = pairs.distances(device);
        let ahead = distances.clone().lower_elem(0);
        let hidden = match (self.pattern.sides(), self.pattern.window()) {
            (Sides::OneSided, None) => ahead,
            (Sides::TwoSided, None) => distances.clone().not_equal(distances),
            (Sides::OneSided, Some(window)) => {
                let beyond = distances.greater_equal_elem(window as i64);
                if self.pattern.sink_tokens() > 0 {
                    return self.hidden_but_sink_tokens(ahead.unsqueeze(), beyond.unsqueeze(), pairs);
                }
                ahead.bool_or(beyond)
            }
            (Sides::TwoSided, Some(window)) => distances.abs().greater_equal_elem(window as i64),
        };
        self.with_documents_and_padding(hidden.unsqueeze(), pairs)
    }

    /// The same where first tokens stay visible: of keys ahead of the query and of keys beyond the window, `[1, 1, Q, K]`.
    fn hidden_but_sink_tokens(
        &self,
        ahead: Tensor<4, Bool>,
        beyond: Tensor<4, Bool>,
        pairs: &QueryKeyPairs,
    ) -> Tensor<4, Bool> {
        let ([queries, keys], sink_tokens) = (pairs.sizes(), self.pattern.sink_tokens());
        // of each sequence: a document counts from its own first token
        let (rows, later): (usize, Vec<bool>) = match &self.documents {
            None => (1, pairs.keys.clone().map(|key| key >= sink_tokens).collect()),
            Some(documents) => {
                let positions = documents.position_ids();
                let rows = positions.chunks_exact(documents.keys().max(1));
                let later =
                    rows.flat_map(|row| row[pairs.keys.clone()].iter().map(|position| *position >= sink_tokens));
                (documents.rows(), later.collect())
            }
        };
        let all = [rows, 1, queries, keys];
        let later = Tensor::<4, Bool>::from_data(TensorData::new(later, [rows, 1, 1, keys]), &beyond.device());
        let hidden = ahead.expand(all).bool_or(beyond.expand(all).bool_and(later.expand(all)));
        self.with_documents_and_padding(hidden, pairs)
    }

    /// Hides keys of other documents and padding too.
    fn with_documents_and_padding(&self, hidden: Tensor<4, Bool>, pairs: &QueryKeyPairs) -> Tensor<4, Bool> {
        let ([queries, keys], device) = (pairs.sizes(), &hidden.device());
        if let Some(documents) = &self.documents {
            let others = other_documents(documents, pairs, device);
            return hidden.expand(others.dims()).bool_or(others);
        }
        let Some(lengths) = &self.lengths else { return hidden };
        let all = [lengths.len(), 1, queries, keys];
        let padding = padding(lengths, pairs.keys.clone(), device).unsqueeze_dim::<4>(2);
        hidden.expand(all).bool_or(padding.expand(all))
    }

    /// The extent of attention over this many keys, for score modifications: with documents, that of the longest.
    pub(crate) fn extent(&self, keys: usize, scale: f64) -> ScoreModExtent {
        let len = self.documents.as_ref().map_or(keys, |documents| documents.longest_len());
        ScoreModExtent { sides: self.pattern.sides(), len, scale }
    }

    /// Distances in one direction that a table of this many columns has.
    pub(crate) fn distances_of(&self, columns: usize) -> usize {
        match self.pattern.sides() {
            Sides::OneSided => columns,
            Sides::TwoSided => columns.div_ceil(2),
        }
    }

    /// Gates `[B, H, K]` with 0 in place of NaN under padding: a batch may be padded with anything.
    pub(crate) fn without_nan_in_padding(&self, gates: Tensor<3>) -> Tensor<3> {
        let keys = 0..gates.dims()[2];
        let padding = match (&self.lengths, &self.documents) {
            (Some(lengths), _) => padding(lengths, keys, &gates.device()),
            (None, Some(documents)) if documents.segments().iter().any(|segment| segment.is_padding()) => {
                let padding: Vec<bool> = documents.document_ids().iter().map(|id| *id < 0).collect();
                let shape = [documents.rows(), 1, documents.keys()];
                Tensor::from_data(TensorData::new(padding, shape), &gates.device())
            }
            (None, _) => return gates,
        };
        let unknown = padding.expand(gates.dims()).bool_and(gates.clone().is_nan());
        gates.mask_fill(unknown, 0.0)
    }

    /// Logarithms of the keys that each of the last `queries` positions attends to, `[B, Q]`, or `[1, Q]` where all sequences are
    /// alike.
    pub(crate) fn log_counts(&self, [queries, keys]: [usize; 2]) -> Vec<f64> {
        if let Some(documents) = &self.documents {
            let mut logs = vec![0.0; documents.rows() * documents.keys()];
            for document in documents.documents() {
                let to = &mut logs[document.row * documents.keys() + document.first_key..][..document.keys];
                let count = |i: usize| self.pattern.count(i as isize, document.keys);
                to.iter_mut().enumerate().for_each(|(i, to)| *to = (count(i) as f64).ln());
            }
            return logs;
        }
        let alike = [keys];
        let lengths = self.lengths.as_deref().unwrap_or(&alike);
        let log = |length: usize| {
            // rows of padding count keys too, and matter to nothing
            move |i: usize| (self.pattern.count((keys - queries + i) as isize, length).max(1) as f64).ln()
        };
        lengths.iter().flat_map(|length| (0..queries).map(log(*length))).collect()
    }
}

/// Which keys are in another document than a query, or in none, `[B, 1, Q, K]`.
fn other_documents(documents: &PackedDocuments, pairs: &QueryKeyPairs, device: &Device) -> Tensor<4, Bool> {
    let [queries, keys] = pairs.sizes();
    let ids = documents.document_ids();
    let mut others = Vec::with_capacity(documents.rows() * queries * keys);
    for ids in ids.chunks_exact(documents.keys().max(1)) {
        for query in pairs.queries.clone() {
            others.extend(ids[pairs.keys.clone()].iter().map(|id| *id < 0 || *id != ids[query]));
        }
    }
    Tensor::from_data(TensorData::new(others, [documents.rows(), 1, queries, keys]), device)
}

/// Which of these keys are padding, `[B, 1, K]`.
fn padding(lengths: &[usize], keys: Range<usize>, device: &Device) -> Tensor<3, Bool> {
    let shape = [lengths.len(), 1, keys.len()];
    let padding = lengths.iter().flat_map(|length| keys.clone().map(move |key| key >= *length));
    Tensor::from_data(TensorData::new(padding.collect::<Vec<bool>>(), shape), device)
}
