//! Tables of rotary positions.

use burn::tensor::{DType, Device, Tensor, TensorData};
use kerple_core::attention::PackedDocuments;
use std::borrow::Cow;
use std::sync::Arc;

/// Cosines and sines of the rotation angles of consecutive positions.
#[derive(Clone, Debug)]
pub struct RotaryTables {
    half: usize,
    cos: Vec<f64>,
    sin: Vec<f64>,
    held: Option<[Tensor<4>; 2]>,
    documents: Option<Arc<PackedDocuments>>,
    grouped: Option<Arc<GroupedTables>>,
}

/// Angles of far queries and keys, whose positions are those of groups (Self-Extend).
#[derive(Clone, Debug)]
pub struct GroupedTables {
    /// Keys at distances from here on are far.
    pub window: usize,
    /// Of queries.
    pub queries: RotaryTables,
    /// Of keys.
    pub keys: RotaryTables,
}

impl RotaryTables {
    /// Tables `[L, half]` each.
    ///
    /// # Panics
    /// When they differ in size, or are no rows of `half` values.
    pub fn new(half: usize, cos: Vec<f64>, sin: Vec<f64>) -> RotaryTables {
        kerple_core::check_shape!(cos, L = cos.len() / half.max(1), half = half);
        kerple_core::check_shape!(sin, L = cos.len() / half.max(1), half = half);
        RotaryTables { half, cos, sin, held: None, documents: None, grouped: None }
    }

    /// The same with other angles for keys that are far from a query.
    pub fn with_grouped(self, grouped: GroupedTables) -> RotaryTables {
        RotaryTables { grouped: Some(Arc::new(grouped)), ..self }
    }

    /// Angles of far queries and keys, where they have their own.
    pub fn grouped(&self) -> Option<&GroupedTables> {
        self.grouped.as_deref()
    }

    /// The same with tensors that all layers share.
    pub fn held(self, options: (&Device, DType)) -> RotaryTables {
        RotaryTables { held: Some(self.tensors(options)), ..self }
    }

    /// The same for sequences of these documents, in each of which positions restart: the tables are those of the longest.
    pub(crate) fn of_documents(self, documents: Arc<PackedDocuments>) -> RotaryTables {
        let grouped = self.grouped.map(|grouped| {
            let GroupedTables { window, queries, keys } = Arc::unwrap_or_clone(grouped);
            let [queries, keys] = [queries, keys].map(|tables| tables.of_documents(documents.clone()));
            Arc::new(GroupedTables { window, queries, keys })
        });
        RotaryTables { held: None, documents: Some(documents), grouped, ..self }
    }

    /// Whether every sequence has angles of its own.
    pub(crate) fn has_documents(&self) -> bool {
        self.documents.is_some()
    }

    /// Rows of a table in the order of the tokens: as they are, or `[B, L, half]` by the positions in documents.
    pub(crate) fn by_token<'a, T: Copy>(&self, table: &'a [T]) -> Cow<'a, [T]> {
        let Some(documents) = &self.documents else { return Cow::Borrowed(table) };
        let positions = documents.position_ids().into_iter();
        Cow::Owned(positions.flat_map(|position| &table[position * self.half..][..self.half]).copied().collect())
    }

    /// Cosines and sines, `[1, 1, L, half]` each, or `[B, 1, L, half]` where sequences consist of documents.
    pub(crate) fn tensors(&self, (device, dtype): (&Device, DType)) -> [Tensor<4>; 2] {
        if let Some(held) = self.held.as_ref().filter(|[cos, _]| cos.device() == *device && cos.dtype() == dtype) {
            return held.clone();
        }
        let shape = match &self.documents {
            Some(documents) => [documents.rows(), 1, documents.keys(), self.half],
            None => [1, 1, self.cos.len() / self.half.max(1), self.half],
        };
        let table = |values: &Vec<f64>| {
            Tensor::from_data(TensorData::new(self.by_token(values).into_owned(), shape), (device, dtype))
        };
        [&self.cos, &self.sin].map(table)
    }

    /// Rotated features, divided by two.
    pub fn half(&self) -> usize {
        self.half
    }

    /// Cosines, `[L, half]`.
    pub fn cos(&self) -> &[f64] {
        &self.cos
    }

    /// Sines, `[L, half]`.
    pub fn sin(&self) -> &[f64] {
        &self.sin
    }
}
