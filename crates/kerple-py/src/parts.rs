//! Which keys belong to which sequence or document: packed documents, and the split of a call whose
//! sequences begin with padding. Distances do not change when the keys before the first are dropped.

use crate::array::{DType, PythonArray};
use kerple_core::attention::{AttentionDims, DocumentSegment, PackedDocuments, PackingError};
use kerple_core::forms::Sides;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::borrow::Cow;

/// A part of a call: sequences whose keys start at the same position.
pub struct SequenceGroup {
    /// Its first sequence.
    pub first: usize,
    /// Sequences.
    pub count: usize,
    /// Dropped keys.
    pub start: usize,
    /// Queries before every key, which attend to none.
    pub skip: usize,
    /// Number of remaining keys per sequence.
    pub lengths: Option<Vec<usize>>,
}

impl SequenceGroup {
    /// Its sizes.
    pub fn dims(&self, dims: AttentionDims) -> AttentionDims {
        AttentionDims { batch: self.count, queries: dims.queries - self.skip, keys: dims.keys - self.start, ..dims }
    }
}

/// One part where no key is dropped; otherwise one part per sequence.
pub fn parts(keys: [Option<&PythonArray>; 2], sides: Sides, dims: AttentionDims) -> PyResult<Vec<SequenceGroup>> {
    let whole = SequenceGroup { first: 0, count: dims.batch, start: 0, skip: 0, lengths: None };
    if keys.iter().all(|array| array.is_none()) {
        return Ok(vec![whole]);
    }
    let spans = spans(keys, dims)?;
    if spans.iter().all(|[start, _]| *start == 0) {
        let lengths = spans.iter().map(|[_, end]| *end).collect();
        return Ok(vec![SequenceGroup { lengths: Some(lengths), ..whole }]);
    }
    let part = |(first, [start, end]): (usize, &[usize; 2])| {
        let skip = match sides {
            Sides::OneSided => dims.queries.saturating_sub(dims.keys - start),
            Sides::TwoSided => 0,
        };
        SequenceGroup { first, count: 1, start: *start, skip, lengths: Some(vec![end.saturating_sub(*start)]) }
    };
    Ok(spans.iter().enumerate().map(part).collect())
}

/// The sizes of queries, keys and values, after all checks of shapes.
pub fn attention_dims(q: &PythonArray, k: &PythonArray, v: &PythonArray) -> PyResult<AttentionDims> {
    let [batch, heads, queries, head_dim] = q.sizes("B, H, Q, D")?;
    let [_, kv_heads, keys, _] = k.sizes("B, G, K, D")?;
    let [_, _, _, value_dim] = v.sizes("B, G, K, E")?;
    let dims = AttentionDims { batch, heads, kv_heads, queries, keys, head_dim, value_dim };
    for (name, features) in [("q", head_dim), ("v", value_dim)] {
        if features == 0 {
            return Err(PyValueError::new_err(format!("{name}: head_dim is 0; it must be at least 1")));
        }
    }
    k.expect_shape("B, G, K, D", &[batch, kv_heads, keys, head_dim])?;
    v.expect_shape("B, G, K, E", &[batch, kv_heads, keys, value_dim])?;
    if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
        let message = format!("k: {kv_heads} heads must divide the {heads} heads of q");
        return Err(PyValueError::new_err(message));
    }
    // what the engine makes room for
    let reach = queries.saturating_add(keys).saturating_add(1 << 10);
    let room =
        kerple_core::elements(&[batch.max(1), heads.max(1), reach, head_dim.max(value_dim).saturating_add(1 << 6)]);
    if room.is_none_or(|room| room > isize::MAX as usize / size_of::<f64>()) {
        return Err(PyValueError::new_err(format!("{dims:?} is larger than any memory")));
    }
    Ok(dims)
}

/// The number of keys of each sequence, `[B]`.
pub fn key_lengths(array: &PythonArray, batch: usize, keys: usize) -> PyResult<Vec<usize>> {
    array.expect_shape("B", &[batch])?;
    let one = |(b, value): (usize, &i64)| {
        usize::try_from(*value).ok().filter(|value| *value <= keys).ok_or_else(|| {
            PyValueError::new_err(format!("key_lengths[{b}] = {value} is out of range; it must be 0 to {keys}"))
        })
    };
    array.values::<i64>()?.iter().enumerate().map(one).collect()
}

/// The keys that each sequence has, those between padding on both sides.
fn spans(keys: [Option<&PythonArray>; 2], dims: AttentionDims) -> PyResult<Vec<[usize; 2]>> {
    let [starts, lengths] = keys.map(|array| array.map(PythonArray::values::<i64>).transpose());
    let (starts, lengths) = (starts?, lengths?);
    let at = |name: &str, values: Option<&[i64]>, b: usize, usual: usize| match values.map(|values| values[b]) {
        None => Ok(usual),
        Some(value) => usize::try_from(value).ok().filter(|value| *value <= dims.keys).ok_or_else(|| {
            PyValueError::new_err(format!("{name}[{b}] = {value} is out of range; it must be 0 to {}", dims.keys))
        }),
    };
    let span = |b: usize| Ok([at("key_starts", starts, b, 0)?, at("key_lengths", lengths, b, dims.keys)?]);
    (0..dims.batch).map(span).collect()
}

/// The documents of `[B, Q]` queries and `[B, K]` keys: cumulative lengths `[N + 1]`, ids `[B, K]`, or
/// cumulative lengths of queries and keys `[1, 2, N + 1]`.
pub fn packed_documents(array: &PythonArray, batch: usize, [queries, keys]: [usize; 2]) -> PyResult<PackedDocuments> {
    let refuse = |message: String| Err(PyValueError::new_err(message));
    array.expect_kind(DType::I64)?;
    let (values, shape) = (array.values::<i64>()?, array.shape());
    let several_rows = || {
        refuse(format!(
            "cu_seqlens: they describe one row, but q has {batch}; flatten to [1, H, T, D] or give document_ids"
        ))
    };
    let last = |packed: Result<PackedDocuments, PackingError>| match packed {
        Ok(packed) if queries < keys => packed.last_queries(queries),
        packed => packed,
    };
    let packed = match *shape {
        [_] | [1, 2, _] if batch != 1 => return several_rows(),
        [_] => last(PackedDocuments::from_cu_seqlens(values, keys)),
        [rows, tokens] if [rows, tokens] == [batch, keys] => last(PackedDocuments::from_ids(values, rows)),
        [1, 2, entries] => {
            let (of_queries, of_keys) = values.split_at(entries);
            PackedDocuments::from_cu_seqlens_qk(of_queries, of_keys, queries, keys)
        }
        _ => return refuse(format!("document_ids: expected [B, K] = {:?}, got {shape:?}", [batch, keys])),
    };
    let packed = packed.map_err(|error| PyValueError::new_err(error.to_string()))?;
    if packed.queries() != queries {
        return refuse(format!("q: {queries} queries exceed the {keys} keys of packed documents"));
    }
    Ok(packed)
}

/// Whether sums `[B, H, K, W]` rise from a key to the next, in packed documents to the next of the same.
pub fn rise(
    sums: &[f64],
    AttentionDims { batch, heads, keys, .. }: AttentionDims,
    width: usize,
    documents: Option<&PackedDocuments>,
    rises: impl Fn(f64, f64) -> bool,
) -> bool {
    let own = |DocumentSegment { row, first_key, keys, .. }: DocumentSegment| (row, first_key, keys);
    let segments: Vec<_> = match documents {
        Some(documents) => documents.documents().map(own).collect(),
        None => (0..batch).map(|row| (row, 0, keys)).collect(),
    };
    let of_head = |(row, first, len): (usize, usize, usize), head: usize| {
        let before = &sums[((row * heads + head) * keys + first) * width..][..len * width];
        let after = before.get(width..).unwrap_or_default();
        before.iter().zip(after).any(|(before, after)| rises(*before, *after))
    };
    segments.into_iter().any(|segment| (0..heads).any(|head| of_head(segment, head)))
}

/// Lets `f` write rows of `len` numbers without the first `skip` of each, which become `before`.
pub fn behind<T: Copy>(rows: &mut [T], len: usize, skip: usize, before: T, f: impl FnOnce(&mut [T])) {
    if skip == 0 {
        return f(rows);
    }
    let mut own = vec![before; rows.len() / len * (len - skip)];
    f(&mut own);
    for (number, row) in rows.chunks_exact_mut(len).enumerate() {
        row[..skip].fill(before);
        row[skip..].copy_from_slice(&own[number * (len - skip)..][..len - skip]);
    }
}

/// Rows of `len` numbers without the first `skip` of each.
pub fn tails<T: Copy>(rows: &[T], len: usize, skip: usize) -> Cow<'_, [T]> {
    match skip {
        0 => rows.into(),
        _ => rows.chunks_exact(len).flat_map(|row| &row[skip..]).copied().collect(),
    }
}
