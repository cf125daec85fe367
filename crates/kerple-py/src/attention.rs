//! Attention on arrays of Python: the arguments, their checks, and the calls of the engine.

use crate::array::{self, DType, Element, OptionalObject, PythonArray, part};
use crate::encoding::PyEncoding;
use crate::parts::{SequenceGroup, attention_dims, behind, packed_documents, parts, tails};
use crate::positions::{PositionArrays, PositionObjects};
use crate::threads::{Workload, run};
use kerple_core::Number;
use kerple_core::attention::{
    self, AttentionDims, AttentionDropout, AttentionGradients, AttentionProblem, AttentionSaved, DocumentSegment,
    KeyInterval, LearnedPositions, Mask, PackedDocuments, PositionGradients, RelativeBias, RelativeGradients,
    ScoreTable, ScoreTransform, View,
};
use kerple_core::encoding::MOST_SINK_TOKENS;
use kerple_core::forms::{Normalizer, ScoreMod, Sides, Strided};
use kerple_core::score_mods::ScoreModExtent;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Everything but the arrays: the attention mask and how scores are computed.
#[pyclass(frozen, name = "Rule")]
#[derive(Debug)]
pub struct AttentionRule {
    pub(crate) scale: f64,
    pub(crate) mask: Mask,
    pub(crate) softcap: Option<f64>,
    pub(crate) threads: usize,
    /// The encoding of a score modification or of decaying products.
    encoding: Option<Py<PyEncoding>>,
    /// Decay rate of each feature's products with distance.
    feature_decay: Option<Vec<f64>>,
    /// Probability of dropping an attention weight.
    dropout_p: f64,
}

#[pymethods]
impl AttentionRule {
    #[new]
    #[pyo3(signature = (scale, mask, softcap, threads, encoding=None, dropout_p=0.0))]
    fn new(
        scale: f64,
        mask: MaskOptions,
        softcap: Option<f64>,
        threads: usize,
        encoding: Option<Py<PyEncoding>>,
        dropout_p: f64,
    ) -> PyResult<AttentionRule> {
        if !(0.0..1.0).contains(&dropout_p) {
            return Err(PyValueError::new_err(format!("dropout_p = {dropout_p} must be at least 0 and below 1")));
        }
        if !scale.is_finite() {
            return Err(PyValueError::new_err(format!("scale = {scale} must be finite")));
        }
        if let Some(cap) = softcap.filter(|cap| !(*cap > 0.0 && cap.is_finite())) {
            return Err(PyValueError::new_err(format!("softcap = {cap:?} must be a finite number above 0, or None")));
        }
        let mask = mask_of(mask)?;
        if mask.sink_tokens() > 0 && encoding.as_ref().is_some_and(|encoding| encoding.get().is_map()) {
            return Err(PyValueError::new_err(
                "sink_tokens: score modifications do not support first tokens; leave it out",
            ));
        }
        let feature_decay = encoding.as_ref().and_then(|encoding| encoding.get().feature_decay());
        if feature_decay.is_some() && mask.sides() == Sides::TwoSided {
            return Err(PyValueError::new_err(
                "causal = False: products that decay with distance would grow for keys after the \
                 query; use causal=True",
            ));
        }
        Ok(AttentionRule { scale, mask, softcap, threads, encoding, feature_decay, dropout_p })
    }
}

/// Whether keys after a query are hidden, the window, and how many first tokens stay visible under it.
type MaskOptions = (bool, Option<i64>, Option<i64>);

fn mask_of((causal, window, sink_tokens): MaskOptions) -> PyResult<Mask> {
    let refuse = |message: String| Err(PyValueError::new_err(message));
    let window = match window.map(usize::try_from) {
        Some(Ok(0)) | Some(Err(_)) => {
            let message = "it must be at least 1 key, the query's own; None attends to all";
            return refuse(format!("window = {}: {message}", window.unwrap_or_default()));
        }
        Some(Ok(window)) => Some(window),
        None => None,
    };
    let Some(given) = sink_tokens else {
        return Ok(if causal { Mask::Causal { window } } else { Mask::Bidirectional { window } });
    };
    let sink_tokens = usize::try_from(given).unwrap_or_default();
    if !(1..=MOST_SINK_TOKENS).contains(&sink_tokens) {
        let limit = format!("it must be 1 to {MOST_SINK_TOKENS}, and None keeps no first tokens visible");
        return refuse(format!("sink_tokens = {given} is out of range; {limit}"));
    }
    match window {
        Some(window) if causal => Ok(Mask::CausalWithSinkTokens { window, sink_tokens }),
        Some(_) => {
            refuse(format!("sink_tokens = {given}: first tokens need causal=True; set it, or leave sink_tokens out"))
        }
        None => refuse(format!(
            "sink_tokens = {given}: first tokens stay visible under a window only; also give window, or leave sink_tokens out"
        )),
    }
}

/// Which keys queries may attend to, besides the mask.
struct KeyLimits {
    documents: Option<PackedDocuments>,
    /// `[B, Q]`
    intervals: Option<Vec<KeyInterval>>,
}

/// The arrays of a call as Python holds them.
struct AttentionArrays {
    q: PythonArray,
    k: PythonArray,
    v: PythonArray,
    bias: Option<PythonArray>,
    weight: Option<PythonArray>,
    sinks: Option<PythonArray>,
    /// Parameters of a score modification.
    numbers: Option<PythonArray>,
    /// Cumulative gates, `[B, H, K]`.
    clocks: Option<PythonArray>,
    /// Rows `[B, H, Q, R]` and profiles `[R, E]` of a relative bias.
    relative: Option<[PythonArray; 2]>,
    learned: Option<PositionArrays>,
    /// Where keys start, per sequence `[B]` or per query `[B, Q]`.
    starts: Option<PythonArray>,
    /// Where they end, likewise.
    lengths: Option<PythonArray>,
    /// Cumulative lengths `[N + 1]`, ids `[B, K]`, or cumulative lengths of queries and keys `[1, 2, N + 1]`.
    documents: Option<PythonArray>,
    /// Of dropout, `[1]`.
    seed: Option<PythonArray>,
}

/// Where keys start, where they end, and packed documents.
type KeyLimitObjects<'py> = (OptionalObject<'py>, OptionalObject<'py>, OptionalObject<'py>);

/// Rows and profiles of a relative bias, or their gradients.
type RelativeObjects<'py> = Option<(Bound<'py, PyAny>, Bound<'py, PyAny>)>;

/// q, k and v; bias, weight, sinks, parameters of a score modification and cumulative gates; a relative
/// bias; learned positions, the parameters of their kernel and its name; where the keys of each sequence or query start, where they end, and packed documents; the seed of
/// dropout.
type AttentionArguments<'py> = (
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
    fn of(
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
    fn sizes(&self, rule: &AttentionRule) -> PyResult<(AttentionDims, KeyLimits)> {
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
            self.check_clocks(clocks, dims, rule)?;
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

    fn parts(&self, rule: &AttentionRule, dims: AttentionDims, limits: &KeyLimits) -> PyResult<Vec<SequenceGroup>> {
        let of_rows = [&self.starts, &self.lengths].map(|array| array.as_ref().filter(|_| limits.intervals.is_none()));
        parts(of_rows, rule.mask.sides(), dims)
    }

    fn check_clocks(&self, clocks: &PythonArray, dims: AttentionDims, rule: &AttentionRule) -> PyResult<()> {
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
        let rises = |row: &[f64]| row.windows(2).any(|pair| pair[1] > pair[0]);
        if keys > 0 && clocks.chunks_exact(keys).any(rises) {
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
struct TypedArrays<'a, T> {
    q: View<'a, T>,
    k: View<'a, T>,
    v: View<'a, T>,
    bias: Option<&'a [T]>,
    weight: Option<&'a [T]>,
    sinks: Option<&'a [T]>,
    clocks: Option<&'a [f64]>,
    relative: Option<RelativeBias<'a, T>>,
    learned: Option<LearnedPositions<'a>>,
    dropout: Option<AttentionDropout>,
    map: Option<Box<dyn ScoreMod<T> + 'a>>,
}

impl<'a, T: Number + Element> TypedArrays<'a, T> {
    fn new(inputs: &'a AttentionArrays, rule: &'a AttentionRule, dims: AttentionDims) -> PyResult<TypedArrays<'a, T>> {
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

    fn problem<'p>(
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

    fn work(&self, dims: AttentionDims) -> Workload {
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

/// Calls a function for the number type of the arrays.
macro_rules! with_kind {
    ($array:expr, $T:ident => $call:expr) => {
        match $array.kind() {
            DType::F32 => {
                type $T = f32;
                $call
            }
            DType::F64 | DType::I64 => {
                type $T = f64;
                $call
            }
        }
    };
}

fn out_shape(dims: AttentionDims) -> [usize; 4] {
    [dims.batch, dims.heads, dims.queries, dims.value_dim]
}

/// Writes `out`, `[B, H, Q, E]`, and `lse`, `[B, H, Q]`.
#[pyfunction]
pub fn attention_forward(
    py: Python,
    rule: &AttentionRule,
    inputs: AttentionArguments,
    out: &Bound<PyAny>,
    lse: &Bound<PyAny>,
) -> PyResult<()> {
    let inputs = AttentionArrays::of(&inputs)?;
    let (dims, limits) = inputs.sizes(rule)?;
    let (out, lse) = (PythonArray::of("out", out)?, PythonArray::of("lse", lse)?);
    out.expect_shape("B, H, Q, E", &out_shape(dims))?;
    lse.expect_shape("B, H, Q", &[dims.batch, dims.heads, dims.queries])?;
    with_kind!(inputs.q, T => forward::<T>(py, rule, &inputs, dims, &limits, [&out, &lse]))
}

fn forward<T: Number + Element>(
    py: Python,
    rule: &AttentionRule,
    inputs: &AttentionArrays,
    dims: AttentionDims,
    limits: &KeyLimits,
    [out, lse]: [&PythonArray; 2],
) -> PyResult<()> {
    let (numbers, parts) = (TypedArrays::<T>::new(inputs, rule, dims)?, inputs.parts(rule, dims, limits)?);
    // SAFETY: `out` and `lse` were made for this call, so nothing else of it shares their memory, and they are taken once.
    let (mut out, lse) = unsafe { (out.room::<T>()?, lse.values_mut::<T>()?) };
    let rows = dims.heads * dims.queries;
    run(py, rule.threads, numbers.work(dims), || {
        let mut lse = lse;
        if parts.iter().any(|of| of.skip > 0) {
            out.data.fill(T::ZERO);
        }
        for of in &parts {
            let (own, rest) = lse.split_at_mut(of.count * rows);
            lse = rest;
            let problem = numbers.problem(rule, dims, of, limits);
            let q = part(numbers.q, of.first, of.skip);
            let [k, v] = [numbers.k, numbers.v].map(|view| part(view, of.first, of.start));
            let unseeing = T::from_f64(f64::NEG_INFINITY);
            behind(own, dims.queries, of.skip, unseeing, |lse| {
                attention::forward(&problem, q, k, v, out.from(of.first, of.skip), lse);
            });
        }
    })
}

/// Writes the gradients, given that of `out`; those of tables, sinks, parameters and the relative bias
/// are written where arrays are given for them.
#[pyfunction]
pub fn attention_backward(
    py: Python,
    rule: &AttentionRule,
    inputs: AttentionArguments,
    saved: (Bound<PyAny>, Bound<PyAny>, Bound<PyAny>),
    made: [OptionalObject; 12],
) -> PyResult<()> {
    let inputs = AttentionArrays::of(&inputs)?;
    let (dims, limits) = inputs.sizes(rule)?;
    let saved =
        [PythonArray::of("out", &saved.0)?, PythonArray::of("lse", &saved.1)?, PythonArray::of("d_out", &saved.2)?];
    saved[0].expect_shape("B, H, Q, E", &out_shape(dims))?;
    saved[1].expect_shape("B, H, Q", &[dims.batch, dims.heads, dims.queries])?;
    saved[2].expect_shape("B, H, Q, E", &out_shape(dims))?;
    let names = [
        "d_q",
        "d_k",
        "d_v",
        "d_bias",
        "d_weight",
        "d_sinks",
        "d_numbers",
        "d_clocks",
        "d_rows",
        "d_profiles",
        "d_positions",
        "d_parameters",
    ];
    let of = [Some(&inputs.q), Some(&inputs.k), Some(&inputs.v), inputs.bias.as_ref(), inputs.weight.as_ref()];
    let of = of.into_iter().chain([&inputs.sinks, &inputs.numbers, &inputs.clocks].map(Option::as_ref));
    let relative = inputs.relative.as_ref().map_or([None; 2], |[rows, profiles]| [Some(rows), Some(profiles)]);
    let learned = inputs.learned.as_ref().map_or([None; 2], |of| [Some(&of.positions), Some(&of.parameters)]);
    let of = of.chain(relative).chain(learned);
    let array = |((name, object), of): ((&'static str, &OptionalObject), Option<&PythonArray>)| {
        let (Some(array), Some(of)) = (PythonArray::some(name, object.as_ref())?, of) else { return Ok(None) };
        array.expect_shape("as the input", of.shape())?;
        Ok(Some(array))
    };
    let made = names.into_iter().zip(&made).zip(of).map(array).collect::<PyResult<Vec<_>>>()?;
    with_kind!(inputs.q, T => backward::<T>(py, rule, &inputs, dims, &limits, &saved, &made))
}

fn backward<T: Number + Element>(
    py: Python,
    rule: &AttentionRule,
    inputs: &AttentionArrays,
    dims: AttentionDims,
    limits: &KeyLimits,
    [out, lse, d_out]: &[PythonArray; 3],
    made: &[Option<PythonArray>],
) -> PyResult<()> {
    let (numbers, parts) = (TypedArrays::<T>::new(inputs, rule, dims)?, inputs.parts(rule, dims, limits)?);
    let (out, lse, d_out) = (out.view::<T>()?, lse.values::<T>()?, d_out.view::<T>()?);
    let [
        Some(d_q),
        Some(d_k),
        Some(d_v),
        d_bias,
        d_weight,
        d_sinks,
        d_map,
        d_clocks,
        d_rows,
        d_profiles,
        d_learned @ ..,
    ] = made
    else {
        return Err(PyValueError::new_err("the gradients in q, k and v are always made"));
    };
    if d_learned.iter().flatten().count() == 1 {
        return Err(PyValueError::new_err("d_positions, d_parameters: learned positions have both gradients or none"));
    }
    if d_rows.is_some() != d_profiles.is_some() {
        return Err(PyValueError::new_err("d_rows, d_profiles: a relative bias has both gradients or none"));
    }
    // SAFETY: every gradient was made for this call, so nothing else of it shares their memory, and each is taken once.
    let mut d_qkv = unsafe { [d_q.room::<T>()?, d_k.room::<T>()?, d_v.room::<T>()?] };
    // SAFETY: as above.
    let mut d_rows = unsafe { d_rows.as_ref().map(|array| array.room::<T>()).transpose()? };
    let mut d_beside: Vec<Option<&mut [T]>> = Vec::new();
    for array in [d_bias, d_weight, d_sinks, d_map, d_profiles] {
        // SAFETY: as above.
        d_beside.push(array.as_ref().map(|array| unsafe { array.values_mut::<T>() }).transpose()?);
    }
    // SAFETY: as above.
    let mut d_clocks = d_clocks.as_ref().map(|array| unsafe { array.values_mut::<f64>() }).transpose()?;
    let mut d_learned: Vec<&mut [f64]> = d_learned
        .iter()
        .flatten()
        // SAFETY: as above.
        .map(|array| unsafe { array.values_mut::<f64>() })
        .collect::<PyResult<_>>()?;
    let (rows, key_rows) = (dims.heads * dims.queries, dims.heads * dims.keys);
    run(py, rule.threads, numbers.work(dims), || {
        let many = parts.len() > 1;
        if let [_, d_parameters] = &mut d_learned[..] {
            d_parameters.fill(0.0);
        }
        if parts.iter().any(|of| of.start > 0) {
            // keys that nobody sees, queries that see nobody
            d_qkv.iter_mut().chain(&mut d_rows).for_each(|room| room.data.fill(T::ZERO));
        }
        let mut sums: Vec<Option<Vec<T>>> =
            d_beside.iter().map(|d| d.as_ref().filter(|_| many).map(|d| vec![T::ZERO; d.len()])).collect();
        for of in &parts {
            let problem = numbers.problem(rule, dims, of, limits);
            let lse = tails(&lse[of.first * rows..][..of.count * rows], dims.queries, of.skip);
            let saved = AttentionSaved {
                q: part(numbers.q, of.first, of.skip),
                k: part(numbers.k, of.first, of.start),
                v: part(numbers.v, of.first, of.start),
                out: part(out, of.first, of.skip),
                lse: &lse,
                d_out: part(d_out, of.first, of.skip),
            };
            let [d_q, d_k, d_v] = &mut d_qkv;
            let [d_bias, d_weight, d_sinks, d_map, d_profiles] = &mut d_beside[..] else {
                unreachable!("five were taken")
            };
            let d_relative = d_rows
                .as_mut()
                .zip(d_profiles.as_deref_mut())
                .map(|(d_rows, d_profiles)| RelativeGradients { d_rows: d_rows.from(of.first, of.skip), d_profiles });
            let make = |d_clocks: Option<&mut [f64]>, d_positions: Option<PositionGradients>| {
                let gradients = AttentionGradients {
                    d_bias: d_bias.as_deref_mut(),
                    d_weight: d_weight.as_deref_mut(),
                    d_score_mod: d_map.as_deref_mut(),
                    d_sinks: d_sinks.as_deref_mut(),
                    d_gate_cumsum: d_clocks,
                    d_positions,
                    d_relative,
                    ..AttentionGradients::of_rows(
                        d_q.from(of.first, of.skip),
                        d_k.from(of.first, of.start),
                        d_v.from(of.first, of.start),
                    )
                };
                attention::backward(&problem, saved, gradients);
            };
            let own_keys = of.first * key_rows..(of.first + of.count) * key_rows;
            let with_positions = |d_clocks: Option<&mut [f64]>| match &mut d_learned[..] {
                [all, total] => {
                    let mut own = vec![0.0; total.len()];
                    behind(&mut all[own_keys.clone()], dims.keys, of.start, 0.0, |d_positions| {
                        make(d_clocks, Some(PositionGradients { d_positions, d_parameters: &mut own }));
                    });
                    total.iter_mut().zip(own).for_each(|(to, d)| *to += d);
                }
                _ => make(d_clocks, None),
            };
            match &mut d_clocks {
                None => with_positions(None),
                Some(all) => {
                    behind(&mut all[own_keys.clone()], dims.keys, of.start, 0.0, |own| with_positions(Some(own)));
                }
            }
            for (sum, d) in sums.iter_mut().zip(&d_beside) {
                let (Some(sum), Some(d)) = (sum, d) else { continue };
                sum.iter_mut().zip(d.iter()).for_each(|(sum, d)| *sum += *d);
            }
        }
        for (sum, d) in sums.into_iter().zip(&mut d_beside) {
            if let (Some(sum), Some(d)) = (sum, d) {
                d.copy_from_slice(&sum);
            }
        }
    })
}
