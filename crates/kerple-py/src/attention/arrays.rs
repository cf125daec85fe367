//! The arrays of a call, and their checks.

use super::AttentionRule;
use crate::array::{self, DType, Element, OptionalObject, PythonArray};
use crate::parts::{SequenceGroup, attention_dims, packed_documents, parts, rise};
use crate::positions::{PositionArrays, PositionObjects};
use crate::threads::Workload;
use kerple_core::Number;
use kerple_core::attention::{
    AttentionDims, AttentionDropout, AttentionProblem, DocumentSegment, KeyInterval, LearnedPositions, PackedDocuments,
    RelativeBias, ScoreTable, ScoreTransform, View,
};
use kerple_core::forms::{Normalizer, ScoreMod, Sides, Strided};
use kerple_core::score_mods::ScoreModExtent;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Which keys queries may attend to, besides the mask.
pub(super) struct KeyLimits {
    pub(super) documents: Option<PackedDocuments>,
    /// `[B, Q]`
    pub(super) intervals: Option<Vec<KeyInterval>>,
}

/// The arrays of a call as Python holds them.
pub(super) struct AttentionArrays {
    pub(super) q: PythonArray,
    pub(super) k: PythonArray,
    pub(super) v: PythonArray,
    pub(super) bias: Option<PythonArray>,
    pub(super) weight: Option<PythonArray>,
    pub(super) sinks: Option<PythonArray>,
    /// Parameters of a score modification.
    pub(super) numbers: Option<PythonArray>,
    /// Cumulative gates, `[B, H, K]`.
    pub(super) clocks: Option<PythonArray>,
    /// Rows `[B, H, Q, R]` and profiles `[R, E]` of a relative bias.
    pub(super) relative: Option<[PythonArray; 2]>,
    pub(super) learned: Option<PositionArrays>,
    /// Where keys start, per sequence `[B]` or per query `[B, Q]`.
    pub(super) starts: Option<PythonArray>,
    /// Where they end, likewise.
    pub(super) lengths: Option<PythonArray>,
    /// Cumulative lengths `[N + 1]`, ids `[B, K]`, or cumulative lengths of queries and keys `[1, 2, N + 1]`.
    pub(super) documents: Option<PythonArray>,
    /// Of dropout, `[1]`.
    pub(super) seed: Option<PythonArray>,
}

/// Where keys start, where they end, and packed documents.
type KeyLimitObjects<'py> = (OptionalObject<'py>, OptionalObject<'py>, OptionalObject<'py>);

/// Rows and profiles of a relative bias, or their gradients.
type RelativeObjects<'py> = Option<(Bound<'py, PyAny>, Bound<'py, PyAny>)>;

/// q, k and v; bias, weight, sinks, parameters of a score modification and cumulative gates; a relative
/// bias; learned positions, the parameters of their kernel and its name; where the keys of each sequence or query start, where they end, and packed documents; the seed of
/// dropout.
pub(super) type AttentionArguments<'py> = (
    Bound<'py, PyAny>,
    Bound<'py, PyAny>,
    Bound<'py, PyAny>,
    OptionalObject<'py>,
    OptionalObject<'py>,
    OptionalObject<'py>,
    OptionalObject<'py>,
    OptionalObject<'py>,
    RelativeObjects<'py>,
    PositionObjects<'py>,
    KeyLimitObjects<'py>,
    OptionalObject<'py>,
);

impl AttentionArrays {
    pub(super) fn of(
        (q, k, v, bias, weight, sinks, numbers, clocks, relative, learned, (starts, lengths, documents), seed): &AttentionArguments,
    ) -> PyResult<AttentionArrays> {
        Ok(AttentionArrays {
            q: PythonArray::of("q", q)?,
            k: PythonArray::of("k", k)?,
            v: PythonArray::of("v", v)?,
            bias: PythonArray::some("bias", bias.as_ref())?,
            weight: PythonArray::some("weight", weight.as_ref())?,
            sinks: PythonArray::some("sinks", sinks.as_ref())?,
            numbers: PythonArray::some("numbers", numbers.as_ref())?,
            clocks: PythonArray::some("clocks", clocks.as_ref())?,
            relative: relative_arrays(["relative[0]", "relative[1]"], relative)?,
            learned: PositionArrays::of(learned)?,
            starts: PythonArray::some("key_starts", starts.as_ref())?,
            lengths: PythonArray::some("key_lengths", lengths.as_ref())?,
            documents: PythonArray::some("documents", documents.as_ref())?,
            seed: PythonArray::some("dropout_seed", seed.as_ref())?,
        })
    }

    /// The sizes of the call and its documents or intervals, after all checks.
    pub(super) fn sizes(&self, rule: &AttentionRule) -> PyResult<(AttentionDims, KeyLimits)> {
        let dims = attention_dims(&self.q, &self.k, &self.v)?;
        let AttentionDims { heads, head_dim, value_dim, .. } = dims;
        if self.numbers.is_some() && head_dim != value_dim {
            let message = format!("v: {value_dim} features; score modifications need as many as q has, {head_dim}");
            return Err(PyValueError::new_err(message));
        }
        if let Some(encoding) = &rule.encoding {
            encoding.get().expect_sizes(heads, head_dim)?;
        }
        if rule.encoding.as_ref().is_some_and(|encoding| encoding.get().is_map()) != self.numbers.is_some() {
            return Err(PyValueError::new_err(
                "numbers: score modifications require them, and other encodings do not take them",
            ));
        }
        for array in [&self.q, &self.k, &self.v].into_iter().chain(self.numbers()) {
            array.expect_kind(self.q.kind())?;
        }
        let documents = self.documents.as_ref().map(|array| self.packed(array, dims)).transpose()?;
        for array in [&self.bias, &self.weight].into_iter().flatten() {
            self.check_table(array, dims, documents.as_ref(), rule)?;
        }
        if let Some(sinks) = &self.sinks {
            sinks.expect_shape("H", &[heads])?;
        }
        let intervals = self.intervals(dims, rule)?;
        if let Some(clocks) = &self.clocks {
            self.check_clocks(clocks, dims, documents.as_ref(), rule)?;
        }
        if let Some(relative) = &self.relative {
            self.check_relative(relative, dims, rule)?;
        }
        if let Some(learned) = &self.learned {
            self.check_learned(learned, dims, documents.as_ref(), rule)?;
        }
        if self.seed.is_some() != (rule.dropout_p > 0.0) {
            return Err(PyValueError::new_err("dropout_seed: there is one if and only if dropout_p is above 0"));
        }
        if let Some(seed) = &self.seed {
            seed.expect_kind(DType::I64)?;
            seed.expect_shape("1", &[1])?;
        }
        let takes_own_keys = self.numbers.is_some() || self.clocks.is_some() || self.learned.is_some();
        for document in documents.iter().flat_map(PackedDocuments::documents).filter(|_| takes_own_keys) {
            if document.queries > document.keys {
                let message = format!("q: a document has {} queries and {} keys", document.queries, document.keys);
                let reason = "score modifications, gates and learned positions need as many keys as queries";
                return Err(PyValueError::new_err(format!("{message}; {reason}")));
            }
        }
        Ok((dims, KeyLimits { documents, intervals }))
    }

    /// The documents of a call.
    fn packed(&self, array: &PythonArray, dims: AttentionDims) -> PyResult<PackedDocuments> {
        if let Some(other) = [&self.starts, &self.lengths].into_iter().flatten().next() {
            let message = format!("{}: packed documents already say which keys are padding", other.name());
            return Err(PyValueError::new_err(message));
        }
        packed_documents(array, dims.batch, [dims.queries, dims.keys])
    }

    /// The interval of keys of each query, where the starts or the ends of keys are given per query.
    fn intervals(&self, dims: AttentionDims, rule: &AttentionRule) -> PyResult<Option<Vec<KeyInterval>>> {
        let AttentionDims { batch, queries, keys, .. } = dims;
        let given = || [&self.starts, &self.lengths].into_iter().flatten();
        given().try_for_each(|array| array.expect_kind(DType::I64))?;
        if given().all(|array| array.shape().len() < 2) {
            return given().try_for_each(|array| array.expect_shape("B", &[batch])).map(|()| None);
        }
        given().try_for_each(|array| array.expect_shape("B, Q", &[batch, queries]))?;
        if self.numbers.is_some() {
            let message = "key_starts, key_ends: score modifications do not take intervals of keys per query";
            return Err(PyValueError::new_err(message));
        }
        if rule.mask.sink_tokens() > 0 {
            let message = "sink_tokens: intervals of keys per query have no first tokens; leave it out";
            return Err(PyValueError::new_err(message));
        }
        let [starts, ends] =
            [&self.starts, &self.lengths].map(|array| array.as_ref().map(PythonArray::values::<i64>).transpose());
        let intervals = KeyInterval::of_rows(starts?, ends?, [batch, queries, keys]);
        intervals.map(Some).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    pub(super) fn parts(
        &self,
        rule: &AttentionRule,
        dims: AttentionDims,
        limits: &KeyLimits,
    ) -> PyResult<Vec<SequenceGroup>> {
        let of_rows = [&self.starts, &self.lengths].map(|array| array.as_ref().filter(|_| limits.intervals.is_none()));
        parts(of_rows, rule.mask.sides(), dims)
    }

    fn check_clocks(
        &self,
        clocks: &PythonArray,
        dims: AttentionDims,
        documents: Option<&PackedDocuments>,
        rule: &AttentionRule,
    ) -> PyResult<()> {
        let AttentionDims { batch, heads, queries, keys, .. } = dims;
        clocks.expect_shape("B, H, K", &[batch, heads, keys])?;
        let clocks = clocks.values::<f64>()?;
        let refuse = |message: String| Err(PyValueError::new_err(message));
        if self.numbers.is_some() {
            return refuse("gates: score modifications do not support them".to_owned());
        }
        if queries > keys {
            return refuse(format!("q: {queries} queries exceed the {keys} keys, which alone have gates"));
        }
        if rule.mask.sides() == Sides::OneSided {
            return Ok(());
        }
        if self.starts.as_ref().is_some_and(|starts| starts.shape().len() < 2) {
            return refuse("key_starts: gates without causal=True do not support padding before the keys".to_owned());
        }
        // sums of documents begin anew
        if rise(clocks, dims, 1, documents, |before, after| after > before) {
            return refuse("gates: without causal=True they must be at most 0".to_owned());
        }
        Ok(())
    }

    fn check_relative(
        &self,
        [rows, profiles]: &[PythonArray; 2],
        dims: AttentionDims,
        rule: &AttentionRule,
    ) -> PyResult<()> {
        let AttentionDims { batch, heads, queries, .. } = dims;
        let refuse = |message: &str| Err(PyValueError::new_err(format!("relative: {message}")));
        let ([_, _, _, rank], [_, reach]) = (rows.sizes("B, H, Q, R")?, profiles.sizes("R, E")?);
        rows.expect_shape("B, H, Q, R", &[batch, heads, queries, rank])?;
        profiles.expect_shape("R, E", &[rank, reach])?;
        for array in [rows, profiles] {
            array.expect_kind(self.q.kind())?;
        }
        if rank == 0 || reach == 0 {
            return refuse(&format!("the rank is {rank} and the reach {reach}; both must be at least 1"));
        }
        if self.numbers.is_some() {
            return refuse("score modifications do not support a bias per row");
        }
        if rule.mask.sides() == Sides::TwoSided {
            return refuse("a bias per row requires causal=True");
        }
        Ok(())
    }

    fn check_learned(
        &self,
        learned: &PositionArrays,
        dims: AttentionDims,
        documents: Option<&PackedDocuments>,
        rule: &AttentionRule,
    ) -> PyResult<()> {
        let refuse = |message: &str| Err(PyValueError::new_err(format!("positions: {message}")));
        if self.numbers.is_some() {
            return refuse("score modifications do not support them");
        }
        if self.relative.is_some() {
            return refuse("they and a relative bias per row exclude each other");
        }
        let pads_before = self.starts.as_ref().is_some_and(|starts| starts.shape().len() < 2);
        if pads_before && rule.mask.sides() == Sides::TwoSided {
            return refuse("without causal=True they do not support padding before the keys (key_starts)");
        }
        learned.check(dims, documents)
    }

    fn numbers(&self) -> impl Iterator<Item = &PythonArray> {
        [&self.bias, &self.weight, &self.sinks, &self.numbers].into_iter().flatten()
    }

    fn check_table(
        &self,
        array: &PythonArray,
        dims: AttentionDims,
        documents: Option<&PackedDocuments>,
        rule: &AttentionRule,
    ) -> PyResult<()> {
        let [heads, columns] = array.sizes("H, C")?;
        let name = array.name();
        if heads != dims.heads {
            return Err(PyValueError::new_err(format!("{name}: {heads} rows, but q has {} heads", dims.heads)));
        }
        let both = [&self.bias, &self.weight].into_iter().flatten();
        if let Some(other) = both.clone().find(|other| other.shape() != array.shape()) {
            let (one, two) = (array.shape(), other.shape());
            return Err(PyValueError::new_err(format!("{name}: shape is {one:?}, but {} has {two:?}", other.name())));
        }
        let reach = |it: &DocumentSegment| match rule.mask.sides() {
            Sides::OneSided => it.keys,
            Sides::TwoSided => it.reach(),
        };
        let longest = documents.map(|documents| documents.longest_by(reach).unwrap_or_default());
        let [queries, keys] = longest.map_or([dims.queries, dims.keys], |(_, it)| [it.queries, it.keys]);
        let (needed, what) = match rule.mask.sides() {
            Sides::OneSided => (keys, "one per distance 0 to K - 1"),
            Sides::TwoSided => {
                (keys.max(queries).saturating_mul(2).saturating_sub(1), "distances from -(L - 1) to L - 1")
            }
        };
        if columns < needed {
            let of = longest.map_or(String::new(), |(number, it)| format!(" of document {number} of row {}", it.row));
            let message = format!("{name}: {columns} columns; {queries} queries and {keys} keys{of} need {needed}");
            return Err(PyValueError::new_err(format!("{message}: {what}")));
        }
        if rule.mask.sides() == Sides::TwoSided && columns.is_multiple_of(2) {
            let message = "without causal=True the number must be odd, 2L - 1, with distance 0 in column L - 1";
            return Err(PyValueError::new_err(format!("{name}: {columns} columns; {message}")));
        }
        Ok(())
    }
}

/// The two arrays of a relative bias.
fn relative_arrays(names: [&'static str; 2], objects: &RelativeObjects) -> PyResult<Option<[PythonArray; 2]>> {
    let Some((rows, profiles)) = objects else { return Ok(None) };
    Ok(Some([PythonArray::of(names[0], rows)?, PythonArray::of(names[1], profiles)?]))
}

/// The arrays of a call in one number type.
pub(super) struct TypedArrays<'a, T> {
    pub(super) q: View<'a, T>,
    pub(super) k: View<'a, T>,
    pub(super) v: View<'a, T>,
    pub(super) bias: Option<&'a [T]>,
    pub(super) weight: Option<&'a [T]>,
    pub(super) sinks: Option<&'a [T]>,
    pub(super) clocks: Option<&'a [f64]>,
    pub(super) relative: Option<RelativeBias<'a, T>>,
    pub(super) learned: Option<LearnedPositions<'a>>,
    pub(super) dropout: Option<AttentionDropout>,
    pub(super) map: Option<Box<dyn ScoreMod<T> + 'a>>,
}

impl<'a, T: Number + Element> TypedArrays<'a, T> {
    pub(super) fn new(
        inputs: &'a AttentionArrays,
        rule: &'a AttentionRule,
        dims: AttentionDims,
    ) -> PyResult<TypedArrays<'a, T>> {
        let row = |array: &'a Option<PythonArray>| array.as_ref().map(|array| array.values::<T>()).transpose();
        let map = match (&rule.encoding, row(&inputs.numbers)?) {
            (Some(encoding), Some(numbers)) => {
                let extent = ScoreModExtent { sides: rule.mask.sides(), len: dims.keys, scale: rule.scale };
                if dims.queries > dims.keys {
                    let message = format!("q: {} queries exceed the {} keys", dims.queries, dims.keys);
                    return Err(PyValueError::new_err(format!("{message}, which score modifications do not support")));
                }
                if inputs.starts.is_some() {
                    return Err(PyValueError::new_err(
                        "key_starts: score modifications do not support padding before the keys",
                    ));
                }
                Some(encoding.get().over(numbers, extent)?)
            }
            _ => None,
        };
        Ok(TypedArrays {
            q: inputs.q.view()?,
            k: inputs.k.view()?,
            v: inputs.v.view()?,
            bias: row(&inputs.bias)?,
            weight: row(&inputs.weight)?,
            sinks: row(&inputs.sinks)?,
            clocks: inputs.clocks.as_ref().map(PythonArray::values).transpose()?,
            relative: inputs.relative.as_ref().map(relative_bias).transpose()?,
            learned: inputs.learned.as_ref().map(PositionArrays::learned).transpose()?,
            dropout: inputs.seed.as_ref().map(|seed| dropout(seed, rule.dropout_p)).transpose()?,
            map,
        })
    }

    pub(super) fn problem<'p>(
        &'p self,
        rule: &'p AttentionRule,
        dims: AttentionDims,
        part: &'p SequenceGroup,
        limits: &'p KeyLimits,
    ) -> AttentionProblem<'p, T> {
        let columns = self.bias.or(self.weight).map_or(0, <[T]>::len) / dims.heads.max(1);
        let len = match rule.mask.sides() {
            Sides::OneSided => columns,
            Sides::TwoSided => columns.div_ceil(2),
        };
        let scores = match &self.map {
            Some(map) => ScoreTransform::Mod(&**map),
            None => {
                let (bias, weight, feature_decay) = (self.bias, self.weight, rule.feature_decay.as_deref());
                let (from, stride) = (part.first * dims.heads * dims.keys + part.start, dims.keys);
                let clocks = self.clocks.map(|clocks| Strided { values: &clocks[from..], stride });
                let positions = self.learned.map(|learned| {
                    let values = &learned.positions.values[from..];
                    LearnedPositions { positions: Strided { values, stride }, ..learned }
                });
                let rows_from = |bias: RelativeBias<'p, T>| array::part(bias.rows, part.first, part.skip);
                let relative = self.relative.map(|bias| RelativeBias { rows: rows_from(bias), ..bias });
                ScoreTransform::Table(ScoreTable {
                    bias,
                    weight,
                    feature_decay,
                    decay_cumsum: None,
                    gate_cumsum: clocks,
                    positions,
                    relative,
                    len,
                })
            }
        };
        let (scale, cap) = (T::from_f64(rule.scale), rule.softcap.map(T::from_f64));
        let (sinks, mask, lengths) = (self.sinks, rule.mask, part.lengths.as_deref());
        let (documents, intervals) = (limits.documents.as_ref(), limits.intervals.as_deref());
        let dims = part.dims(dims);
        let dropout =
            self.dropout.map(|dropout| AttentionDropout { origin: [part.first, part.skip, part.start], ..dropout });
        AttentionProblem {
            dims,
            scale,
            softcap: cap,
            sinks,
            normalizer: Normalizer::Softmax,
            selection: None,
            mask,
            lengths,
            documents,
            intervals,
            evicted: 0,
            dropout,
            scores,
        }
    }

    pub(super) fn work(&self, dims: AttentionDims) -> Workload {
        let sizes = [dims.batch, dims.heads, dims.queries, dims.keys, dims.head_dim.max(dims.value_dim)];
        match kerple_core::elements(&sizes) {
            Some(products)
                if self.sinks.is_none()
                    && self.clocks.is_none()
                    && self.relative.is_none()
                    && self.learned.is_none()
                    && self.dropout.is_none() =>
            {
                Workload::Products(products)
            }
            _ => Workload::Any,
        }
    }
}

fn dropout(seed: &PythonArray, rate: f64) -> PyResult<AttentionDropout> {
    Ok(AttentionDropout { rate, seed: seed.values::<i64>()?[0].cast_unsigned(), origin: [0; 3] })
}

fn relative_bias<T: Number + Element>([rows, profiles]: &[PythonArray; 2]) -> PyResult<RelativeBias<'_, T>> {
    let [rank, reach] = profiles.sizes("R, E")?;
    Ok(RelativeBias { rows: rows.view()?, profiles: profiles.values()?, rank, reach })
}
