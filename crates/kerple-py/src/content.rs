//! Attention whose products of queries and keys depend on the tokens between them: decays of features (Wall), a bias summed over the path
//! (GRAPE-AP), Householder products (PaTH).

use crate::array::{DType, Element, OptionalObject, PythonArray};
use crate::attention::AttentionRule;
use crate::parts::{attention_dims, key_lengths, packed_documents, rise};
use crate::threads::{Workload, run};
use kerple_core::Number;
use kerple_core::attention::{
    self, AttentionDims, AttentionGradients, AttentionProblem, AttentionSaved, HouseholderGradients, HouseholderPath,
    PackedDocuments, PathBias, PathGradients, ScoreTable, ScoreTransform,
};
use kerple_core::forms::{Sides, Strided};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::cmp::Ordering::{Equal, Less};

/// What tokens between a query and a key do to their product.
enum Between {
    /// Cumulative decays of features, `[B, H, K, D]`.
    Decays { sums: PythonArray },
    /// p `[B, H, Q, E]`, r `[B, H, K, E]` and a slope for each head.
    PathBias { queries: PythonArray, keys: PythonArray, slopes: Vec<f64> },
    /// w `[B, G, K, D]` and beta `[B, G, K, 1]`.
    Householder { directions: PythonArray, strengths: PythonArray },
}

/// The name of one of these, its one or two arrays, and slopes of a bias of paths.
type BetweenObjects<'py> = (String, Bound<'py, PyAny>, OptionalObject<'py>, Vec<f64>);

/// q, k and v; what is between; cumulative gates, sinks, the number of keys of each sequence, packed documents.
type ContentArguments<'py> = (
    Bound<'py, PyAny>,
    Bound<'py, PyAny>,
    Bound<'py, PyAny>,
    BetweenObjects<'py>,
    OptionalObject<'py>,
    OptionalObject<'py>,
    OptionalObject<'py>,
    OptionalObject<'py>,
);

/// The arrays of a call, checked.
struct ContentArrays {
    q: PythonArray,
    k: PythonArray,
    v: PythonArray,
    between: Between,
    clocks: Option<PythonArray>,
    sinks: Option<PythonArray>,
    lengths: Option<Vec<usize>>,
    documents: Option<PackedDocuments>,
    dims: AttentionDims,
}

fn refuse<T>(message: String) -> PyResult<T> {
    Err(PyValueError::new_err(message))
}

impl Between {
    fn of((kind, first, second, slopes): &BetweenObjects, dims: AttentionDims) -> PyResult<Between> {
        let AttentionDims { batch, heads, kv_heads, queries, keys, head_dim, value_dim } = dims;
        if kind != "decays" && head_dim != value_dim {
            return refuse(format!("v: {value_dim} features; {kind} needs as many as q has, {head_dim}"));
        }
        match (kind.as_str(), second) {
            ("decays", None) => {
                let sums = PythonArray::of("decays", first)?;
                sums.expect_shape("B, H, K, D", &[batch, heads, keys, head_dim])?;
                Ok(Between::Decays { sums })
            }
            ("path_bias", Some(second)) => {
                let (p, r) = (PythonArray::of("path_bias[0]", first)?, PythonArray::of("path_bias[1]", second)?);
                let [_, _, _, width] = p.sizes("B, H, Q, E")?;
                if width == 0 {
                    return refuse("path_bias[0]: rows have 0 features; they need at least 1".to_owned());
                }
                p.expect_shape("B, H, Q, E", &[batch, heads, queries, width])?;
                r.expect_shape("B, H, K, E", &[batch, heads, keys, width])?;
                if slopes.len() != heads || slopes.iter().any(|slope| !slope.is_finite()) {
                    return refuse(format!("path_bias[2]: expected {heads} finite slopes, got {slopes:?}"));
                }
                Ok(Between::PathBias { queries: p, keys: r, slopes: slopes.clone() })
            }
            ("householder", Some(second)) => {
                let directions = PythonArray::of("householder[0]", first)?;
                let strengths = PythonArray::of("householder[1]", second)?;
                directions.expect_shape("B, G, K, D", &[batch, kv_heads, keys, head_dim])?;
                strengths.expect_shape("B, G, K, 1", &[batch, kv_heads, keys, 1])?;
                Ok(Between::Householder { directions, strengths })
            }
            _ => refuse(format!("{kind}: it is decays with one array, or path_bias or householder with two")),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Between::Decays { .. } => "decays",
            Between::PathBias { .. } => "path_bias",
            Between::Householder { .. } => "householder",
        }
    }

    /// The arrays in the type of q.
    fn rows(&self) -> Vec<&PythonArray> {
        match self {
            Between::Decays { .. } => Vec::new(),
            Between::PathBias { queries, keys, .. } => vec![queries, keys],
            Between::Householder { directions, strengths } => vec![directions, strengths],
        }
    }
}

impl ContentArrays {
    fn of(
        rule: &AttentionRule,
        (q, k, v, between, clocks, sinks, lengths, documents): &ContentArguments,
    ) -> PyResult<ContentArrays> {
        let (q, k, v) = (PythonArray::of("q", q)?, PythonArray::of("k", k)?, PythonArray::of("v", v)?);
        let dims = attention_dims(&q, &k, &v)?;
        let AttentionDims { batch, heads, queries, keys, .. } = dims;
        let between = Between::of(between, dims)?;
        let name = between.name();
        for array in [&k, &v].into_iter().chain(between.rows()) {
            array.expect_kind(q.kind())?;
        }
        if rule.mask.sides() == Sides::TwoSided {
            return refuse(format!("causal = False: {name} is for causal attention; use causal=True"));
        }
        if rule.mask.sink_tokens() > 0 && !matches!(between, Between::Decays { .. }) {
            return refuse(format!("sink_tokens: {name} does not support first tokens; leave it out"));
        }
        if queries > keys {
            return refuse(format!("q: {queries} queries exceed the {keys} keys, which {name} does not support"));
        }
        let clocks = PythonArray::some("gates", clocks.as_ref())?;
        if let Some(clocks) = &clocks {
            clocks.expect_shape("B, H, K", &[batch, heads, keys])?;
            clocks.expect_kind(DType::F64)?;
            if matches!(between, Between::PathBias { .. }) {
                return refuse("gates: path_bias does not support them".to_owned());
            }
        }
        let sinks = PythonArray::some("sinks", sinks.as_ref())?;
        if let Some(sinks) = &sinks {
            sinks.expect_shape("H", &[heads])?;
            sinks.expect_kind(q.kind())?;
        }
        let lengths = PythonArray::some("key_lengths", lengths.as_ref())?.map(|array| key_lengths(&array, batch, keys));
        let documents = match PythonArray::some("documents", documents.as_ref())? {
            Some(_) if lengths.is_some() => {
                return refuse("key_lengths: packed documents already say which keys are padding".to_owned());
            }
            Some(array) => Some(packed_documents(&array, batch, [queries, keys])?),
            None => None,
        };
        if let Between::Decays { sums } = &between {
            // also where one is NaN; sums of documents begin anew
            let rises = |before: f64, after: f64| !matches!(after.partial_cmp(&before), Some(Less | Equal));
            if rise(sums.values::<f64>()?, dims, dims.head_dim, documents.as_ref(), rises) {
                return refuse("decays: they must be at most 0".to_owned());
            }
        }
        for document in documents.iter().flat_map(PackedDocuments::documents) {
            if document.queries > document.keys {
                let message = format!("q: a document has {} queries and {} keys", document.queries, document.keys);
                return refuse(format!("{message}; {name} needs as many keys as queries"));
            }
        }
        Ok(ContentArrays { q, k, v, between, clocks, sinks, lengths: lengths.transpose()?, documents, dims })
    }

    fn problem<T: Number + Element>(&self, rule: &AttentionRule) -> PyResult<AttentionProblem<'_, T>> {
        let clocks = match &self.clocks {
            Some(clocks) => Some(Strided { values: clocks.values::<f64>()?, stride: self.dims.keys }),
            None => None,
        };
        let scores = match &self.between {
            Between::Decays { sums } => ScoreTransform::Table(ScoreTable {
                decay_cumsum: Some(sums.view()?),
                gate_cumsum: clocks,
                ..ScoreTable::PLAIN
            }),
            Between::PathBias { queries, keys, slopes } => ScoreTransform::Path(PathBias {
                width: queries.shape()[3],
                queries: queries.view()?,
                keys: keys.view()?,
                slopes,
            }),
            Between::Householder { directions, strengths } => ScoreTransform::Householder(HouseholderPath {
                directions: directions.view()?,
                strengths: strengths.view()?,
                gate_cumsum: clocks,
            }),
        };
        Ok(AttentionProblem {
            softcap: rule.softcap.map(T::from_f64),
            sinks: self.sinks.as_ref().map(PythonArray::values).transpose()?,
            mask: rule.mask,
            lengths: self.lengths.as_deref(),
            documents: self.documents.as_ref(),
            scores,
            ..AttentionProblem::causal(self.dims, T::from_f64(rule.scale))
        })
    }

    fn out_shape(&self) -> [usize; 4] {
        let AttentionDims { batch, heads, queries, value_dim, .. } = self.dims;
        [batch, heads, queries, value_dim]
    }
}

/// Writes `out`, `[B, H, Q, E]`, and `lse`, `[B, H, Q]`.
#[pyfunction]
pub fn content_forward(
    py: Python,
    rule: &AttentionRule,
    inputs: ContentArguments,
    out: &Bound<PyAny>,
    lse: &Bound<PyAny>,
) -> PyResult<()> {
    let inputs = ContentArrays::of(rule, &inputs)?;
    let (out, lse) = (PythonArray::of("out", out)?, PythonArray::of("lse", lse)?);
    let shape = inputs.out_shape();
    out.expect_shape("B, H, Q, E", &shape)?;
    lse.expect_shape("B, H, Q", &shape[..3])?;
    match inputs.q.kind() {
        DType::F32 => forward::<f32>(py, rule, &inputs, [&out, &lse]),
        DType::F64 | DType::I64 => forward::<f64>(py, rule, &inputs, [&out, &lse]),
    }
}

fn forward<T: Number + Element>(
    py: Python,
    rule: &AttentionRule,
    inputs: &ContentArrays,
    [out, lse]: [&PythonArray; 2],
) -> PyResult<()> {
    let (problem, q, k, v) = (inputs.problem::<T>(rule)?, inputs.q.view()?, inputs.k.view()?, inputs.v.view()?);
    // SAFETY: `out` and `lse` were made for this call, so nothing else of it shares their memory, and they are taken once.
    let (mut out, lse) = unsafe { (out.room::<T>()?, lse.values_mut::<T>()?) };
    run(py, rule.threads, Workload::Any, || attention::forward(&problem, q, k, v, out.from(0, 0), lse))
}

/// Writes the gradients of q, k, v, the arrays of what is between, cumulative gates and sinks, the last three where arrays are given for
/// them.
#[pyfunction]
pub fn content_backward(
    py: Python,
    rule: &AttentionRule,
    inputs: ContentArguments,
    saved: (Bound<PyAny>, Bound<PyAny>, Bound<PyAny>),
    made: [OptionalObject; 7],
) -> PyResult<()> {
    let inputs = ContentArrays::of(rule, &inputs)?;
    let saved =
        [PythonArray::of("out", &saved.0)?, PythonArray::of("lse", &saved.1)?, PythonArray::of("d_out", &saved.2)?];
    let shape = inputs.out_shape();
    saved[0].expect_shape("B, H, Q, E", &shape)?;
    saved[1].expect_shape("B, H, Q", &shape[..3])?;
    saved[2].expect_shape("B, H, Q, E", &shape)?;
    let between = match &inputs.between {
        Between::Decays { sums } => [Some(sums), None],
        Between::PathBias { queries: first, keys: second, .. }
        | Between::Householder { directions: first, strengths: second } => [Some(first), Some(second)],
    };
    let of = [Some(&inputs.q), Some(&inputs.k), Some(&inputs.v)].into_iter().chain(between);
    let of = of.chain([&inputs.clocks, &inputs.sinks].map(Option::as_ref));
    let names = ["d_q", "d_k", "d_v", "d_first", "d_second", "d_clocks", "d_sinks"];
    let array = |((name, object), of): ((&'static str, &OptionalObject), Option<&PythonArray>)| {
        let (Some(array), Some(of)) = (PythonArray::some(name, object.as_ref())?, of) else { return Ok(None) };
        array.expect_shape("as the input", of.shape())?;
        Ok(Some(array))
    };
    let made = names.into_iter().zip(&made).zip(of).map(array).collect::<PyResult<Vec<_>>>()?;
    match inputs.q.kind() {
        DType::F32 => backward::<f32>(py, rule, &inputs, &saved, &made),
        DType::F64 | DType::I64 => backward::<f64>(py, rule, &inputs, &saved, &made),
    }
}

fn backward<T: Number + Element>(
    py: Python,
    rule: &AttentionRule,
    inputs: &ContentArrays,
    [out, lse, d_out]: &[PythonArray; 3],
    made: &[Option<PythonArray>],
) -> PyResult<()> {
    let problem = inputs.problem::<T>(rule)?;
    let saved = AttentionSaved {
        q: inputs.q.view()?,
        k: inputs.k.view()?,
        v: inputs.v.view()?,
        out: out.view()?,
        lse: lse.values()?,
        d_out: d_out.view()?,
    };
    let [Some(d_q), Some(d_k), Some(d_v), Some(d_first), d_second, d_clocks, d_sinks] = made else {
        return refuse("the gradients of q, k, v and of what is between are always made".to_owned());
    };
    // SAFETY: every gradient was made for this call, so nothing else of it shares their memory, and each is taken once.
    let (mut d_q, mut d_k, mut d_v, d_clocks, d_sinks) = unsafe {
        let d_clocks = d_clocks.as_ref().map(|array| array.values_mut::<f64>()).transpose()?;
        let d_sinks = d_sinks.as_ref().map(|array| array.values_mut::<T>()).transpose()?;
        (d_q.room::<T>()?, d_k.room::<T>()?, d_v.room::<T>()?, d_clocks, d_sinks)
    };
    let (mut d_sums, mut d_rows) = (None, None);
    match d_second {
        // SAFETY: as above.
        None => d_sums = Some(unsafe { d_first.values_mut::<f64>()? }),
        // SAFETY: as above.
        Some(d_second) => d_rows = Some(unsafe { (d_first.room::<T>()?, d_second.room::<T>()?) }),
    }
    run(py, rule.threads, Workload::Any, || {
        let mut gradients = AttentionGradients {
            d_sinks,
            d_gate_cumsum: d_clocks,
            d_decay_cumsum: d_sums,
            ..AttentionGradients::of_rows(d_q.from(0, 0), d_k.from(0, 0), d_v.from(0, 0))
        };
        if let Some((first, second)) = &mut d_rows {
            let (first, second) = (first.from(0, 0), second.from(0, 0));
            match inputs.between {
                Between::Householder { .. } => {
                    let made = HouseholderGradients { d_directions: first, d_strengths: second };
                    gradients.d_householder = Some(made);
                }
                _ => gradients.d_path = Some(PathGradients { d_queries: first, d_keys: second }),
            }
        }
        attention::backward(&problem, saved, gradients);
    })
}
