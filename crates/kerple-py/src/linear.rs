//! Linear attention on arrays of Python: features, stochastic codes, decays, and the state for
//! decoding.

pub mod parts;

use self::parts::Drawn;
use crate::array::{DType, Element, OptionalObject, PythonArray};
use crate::encoding::PyEncoding;
use crate::parts::{key_lengths, packed_documents};
use crate::threads::{Workload, run};
use kerple_core::Number;
use kerple_core::attention::PackedDocuments;
use kerple_core::attention::linear::{
    self, Decay, DecayGradient, DenominatorGuard, LinearAttentionDims, LinearAttentionGradients, LinearAttentionInputs,
    LinearAttentionProblem, LinearAttentionSaved, LinearMask, RecurrentState,
};
use kerple_core::calculus::exponentials::{Amplitude, ErrorBudget, SumTolerance};
use kerple_core::encoding::{EncodingDecay, InLinear};
use kerple_core::features::{Favor, FavorFeatures, FeatureMap, Pointwise, omega};
use kerple_core::forms::DrawnCode;
use kerple_core::seed::{Purpose, stream_at};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::{Mutex, PoisonError};

/// Most numbers of noise that a call holds while it works: 256 MiB in f32.
const MOST_HELD: usize = 1 << 26;

/// Within a thousandth of the kernel up to a million tokens, for amplitudes up to 4.
const DEMAND: ErrorBudget =
    ErrorBudget { horizon: 1 << 20, tolerance: SumTolerance::Thousandth, amplitude: Amplitude::Four };

#[derive(Clone, Copy, Debug)]
enum LinearFeatures {
    /// `count` positive random features, half of them of each sign.
    Favor(usize),
    Relu,
    Elu,
}

/// Everything but the arrays.
#[pyclass(frozen)]
#[derive(Debug)]
pub struct LinearRule {
    encoding: Py<PyEncoding>,
    features: LinearFeatures,
    causal: bool,
    /// The key of random draws: seed, draw, and layer.
    noise: [u64; 3],
    threads: usize,
}

#[pymethods]
impl LinearRule {
    #[new]
    fn new(
        encoding: Py<PyEncoding>,
        features: &str,
        count: usize,
        causal: bool,
        noise: [u64; 3],
        threads: usize,
    ) -> PyResult<LinearRule> {
        let features = match features {
            "favor" if (2..=1 << 16).contains(&count) && count.is_multiple_of(2) => LinearFeatures::Favor(count),
            "favor" => {
                let message = format!("count = {count} is out of range; it must be even and 2 to {}", 1 << 16);
                return Err(PyValueError::new_err(message));
            }
            "relu" => LinearFeatures::Relu,
            "elu" => LinearFeatures::Elu,
            _ => {
                return Err(PyValueError::new_err(format!(
                    "features = {features:?} is unknown; use one of favor, relu, elu"
                )));
            }
        };
        let (own, _) = encoding.get().parts();
        if own.in_linear().is_none() {
            let kind = own.label();
            let message =
                format!("linear attention does not support {kind}; use an encoding that is a decay or a code");
            return Err(PyValueError::new_err(message));
        }
        Ok(LinearRule { encoding, features, causal, noise, threads })
    }
}

/// The feature maps and the decay that a call builds from its encoding.
struct LinearMaps<T> {
    code: Option<DrawnCode<T>>,
    features: Box<dyn FeatureMap<T>>,
    fading: Option<(EncodingDecay, [Vec<T>; 2])>,
    guard: DenominatorGuard,
}

impl LinearRule {
    /// Gates exclude another decay and need causal attention.
    fn check_gates(&self, given: bool) -> PyResult<()> {
        let (encoding, _) = self.encoding.get().parts();
        let (kind, takes) = (encoding.method.kind(), encoding.in_linear());
        let message = match (given, takes) {
            (false, Some(InLinear::Gates)) => {
                format!("gates: {kind} requires them; compute them from the rows that give q and k")
            }
            (true, Some(InLinear::Decay)) => {
                format!("gates: {kind} already decays products, so gates are not supported")
            }
            (true, _) if !self.causal => "gates: linear attention supports them with causal=True only".to_owned(),
            _ => return Ok(()),
        };
        Err(PyValueError::new_err(message))
    }

    fn stream(&self, drawn: Drawn) -> rand_chacha::ChaCha8Rng {
        let [seed, draw, layer] = self.noise;
        let (encoding, geometry) = self.encoding.get().parts();
        let code = encoding.code(geometry).filter(|_| drawn != Drawn::Omega);
        let draw = if code.as_ref().is_some_and(|code| code.frozen) { 0 } else { draw };
        // the noise of a gate is each layer's own
        let is_shared = drawn == Drawn::Code && code.is_some_and(|code| code.shared);
        let layer = if is_shared { 0 } else { layer };
        // counted down from the end, where no row of a training step is
        stream_at(seed, Purpose::Noise, [draw, u64::MAX - (layer << 2 | drawn as u64)])
    }

    fn made<T: Number>(&self, stored: &[Vec<f64>], dims: LinearAttentionDims, first: usize) -> LinearMaps<T> {
        let (encoding, geometry) = self.encoding.get().parts();
        let plan = encoding.code(geometry);
        let width = plan.as_ref().map_or(dims.head_dim, |plan| plan.realisations());
        let code = plan.map(|plan| {
            let mut code: DrawnCode<T> =
                plan.drawn(stored, [self.stream(Drawn::Code), self.stream(Drawn::Gate)]).over(dims.len);
            code.hold(first..first.saturating_add(dims.len), MOST_HELD);
            code
        });
        let (features, guard): (Box<dyn FeatureMap<T>>, DenominatorGuard) = match self.features {
            LinearFeatures::Favor(count) => {
                let size = [width, count / 2];
                let omega = omega::orthogonal(size, omega::ColumnNorms::OfRows, &mut self.stream(Drawn::Omega));
                (Box::new(Favor::new(&omega, size, FavorFeatures::BothSigns)), DenominatorGuard::Add(1e-6))
            }
            LinearFeatures::Relu => (Box::new(Pointwise::Relu { width, shift: 1e-3 }), DenominatorGuard::Nothing),
            LinearFeatures::Elu => (Box::new(Pointwise::Elu { width }), DenominatorGuard::Add(1e-6)),
        };
        let fading = (encoding.in_linear() == Some(InLinear::Decay)).then(|| {
            let found = encoding.decay(geometry, stored, &DEMAND).expect("an encoding that decays");
            let cast = |rows: &[f64]| rows.iter().map(|value| T::from_f64(*value)).collect();
            let tables = [cast(&found.near), cast(&found.weights)];
            (found, tables)
        });
        LinearMaps { code, features, fading, guard }
    }
}

impl<T: Number> LinearMaps<T> {
    fn chain(&self) -> Vec<&dyn FeatureMap<T>> {
        self.code.iter().map(DrawnCode::map).chain([&*self.features]).collect()
    }

    fn problem<'a>(
        &'a self,
        rule: &LinearRule,
        maps: &'a [&'a dyn FeatureMap<T>],
        call: &'a LinearArrays,
        gates: Option<&'a [T]>,
    ) -> LinearAttentionProblem<'a, T> {
        let decay = self.fading.as_ref().map(|(found, [near, weights])| Decay {
            near_len: near.len() / call.dims.heads,
            near,
            terms: found.terms,
            rates: &found.rates,
            weights,
        });
        let reach = if rule.causal { LinearMask::Causal } else { LinearMask::Bidirectional };
        let (lengths, documents) = (call.lengths.as_deref(), call.documents.as_ref());
        LinearAttentionProblem { dims: call.dims, reach, lengths, documents, maps, decay, gates, guard: self.guard }
    }
}

/// The arrays of a call, checked.
struct LinearArrays {
    q: PythonArray,
    k: PythonArray,
    v: PythonArray,
    stored: Vec<Vec<f64>>,
    gates: Option<PythonArray>,
    lengths: Option<Vec<usize>>,
    documents: Option<PackedDocuments>,
    dims: LinearAttentionDims,
}

/// q, k and v; the encoding's raw parameters; gates; the number of keys of each sequence; packed documents.
type LinearArguments<'py> = (
    Bound<'py, PyAny>,
    Bound<'py, PyAny>,
    Bound<'py, PyAny>,
    Bound<'py, PyAny>,
    OptionalObject<'py>,
    OptionalObject<'py>,
    OptionalObject<'py>,
);

impl LinearArrays {
    fn new(
        rule: &LinearRule,
        (q, k, v, values, gates, lengths, documents): &LinearArguments,
    ) -> PyResult<LinearArrays> {
        let (q, k, v) = (PythonArray::of("q", q)?, PythonArray::of("k", k)?, PythonArray::of("v", v)?);
        let [batch, heads, len, head_dim] = q.sizes("B, H, L, D")?;
        let [_, _, _, value_dim] = v.sizes("B, H, L, E")?;
        k.expect_shape("B, H, L, D", q.shape())?;
        v.expect_shape("B, H, L, E", &[batch, heads, len, value_dim])?;
        if head_dim == 0 || value_dim == 0 {
            return Err(PyValueError::new_err("q, v: head_dim is 0; it must be at least 1"));
        }
        let dims = LinearAttentionDims { batch, heads, len, head_dim, value_dim };
        let room = kerple_core::elements(&[
            batch.max(1),
            heads.max(1),
            len.saturating_add(1 << 10),
            head_dim.max(value_dim) + 64,
        ]);
        if room.is_none_or(|room| room > isize::MAX as usize / size_of::<f64>()) {
            return Err(PyValueError::new_err(format!("{dims:?} is larger than any memory")));
        }
        for array in [&k, &v] {
            array.expect_kind(q.kind())?;
        }
        rule.encoding.get().expect_sizes(heads, head_dim)?;
        let stored = rule.encoding.get().stored(&PythonArray::of("values", values)?)?;
        let gates = PythonArray::some("gates", gates.as_ref())?;
        rule.check_gates(gates.is_some())?;
        if let Some(gates) = &gates {
            gates.expect_shape("B, H, L", &[batch, heads, len])?;
            gates.expect_kind(q.kind())?;
        }
        let lengths = match PythonArray::some("key_lengths", lengths.as_ref())? {
            None => None,
            Some(array) => Some(key_lengths(&array, batch, len)?),
        };
        let documents = match PythonArray::some("documents", documents.as_ref())? {
            Some(_) if lengths.is_some() => {
                let message = "key_lengths: packed documents already say which keys are padding";
                return Err(PyValueError::new_err(message));
            }
            Some(array) => Some(packed_documents(&array, batch, [len; 2])?),
            None => None,
        };
        Ok(LinearArrays { q, k, v, stored, gates, lengths, documents, dims })
    }

    /// The sizes whose code serves all sequences or documents: a code counts from the first token of each.
    fn longest(&self) -> LinearAttentionDims {
        let len = self.documents.as_ref().map_or(self.dims.len, PackedDocuments::longest_len);
        LinearAttentionDims { len, ..self.dims }
    }

    fn inputs<T: Element + Number>(&self) -> PyResult<LinearAttentionInputs<'_, T>> {
        Ok(LinearAttentionInputs { q: self.q.view()?, k: self.k.view()?, v: self.v.view()? })
    }

    fn gates<T: Element>(&self) -> PyResult<Option<&[T]>> {
        self.gates.as_ref().map(PythonArray::values).transpose()
    }
}

/// Writes `out`, `[B, H, L, E]`, and the denominators that the backward needs, `[B, H, L]`.
#[pyfunction]
pub fn linear_forward(
    py: Python,
    rule: &LinearRule,
    inputs: LinearArguments,
    out: &Bound<PyAny>,
    denominators: &Bound<PyAny>,
    state: Option<&LinearState>,
) -> PyResult<()> {
    let call = LinearArrays::new(rule, &inputs)?;
    let (out, denominators) = (PythonArray::of("out", out)?, PythonArray::of("denominators", denominators)?);
    out.expect_shape("B, H, L, E", call.v.shape())?;
    denominators.expect_shape("B, H, L", &[call.dims.batch, call.dims.heads, call.dims.len])?;
    match call.q.kind() {
        DType::F32 => forward::<f32>(py, rule, &call, [&out, &denominators], state.map(|state| &state.single)),
        DType::F64 | DType::I64 => {
            forward::<f64>(py, rule, &call, [&out, &denominators], state.map(|state| &state.double))
        }
    }
}

fn forward<T: Element + Number>(
    py: Python,
    rule: &LinearRule,
    call: &LinearArrays,
    [out, denominators]: [&PythonArray; 2],
    state: Option<&Mutex<Option<RecurrentState<T>>>>,
) -> PyResult<()> {
    let (inputs, gates) = (call.inputs::<T>()?, call.gates::<T>()?);
    // SAFETY: `out` and `denominators` were made for this call, so nothing else of it shares their memory.
    let (mut out, denominators) = unsafe { (out.room::<T>()?, denominators.values_mut::<T>()?) };
    if let Some(gate) = gates.and_then(|gates| gates.iter().find(|gate| **gate > T::ZERO)) {
        let message = format!("gates: {} is out of range; log gates must be at most 0", gate.to_f64());
        return Err(PyValueError::new_err(message));
    }
    if state.is_some() && (!rule.causal || call.lengths.is_some() || call.documents.is_some()) {
        return Err(PyValueError::new_err("state: it requires causal=True and neither padding nor packed documents"));
    }
    let refused = run(py, rule.threads, Workload::Any, || {
        let mut held = state.map(|state| state.lock().unwrap_or_else(PoisonError::into_inner));
        let first = held.as_ref().and_then(|held| held.as_ref()).map_or(0, RecurrentState::len);
        let made = rule.made::<T>(&call.stored, call.longest(), first);
        let maps = made.chain();
        let problem = made.problem(rule, &maps, call, gates);
        let Some(held) = &mut held else {
            linear::forward(&problem, inputs, out.from(0, 0), denominators);
            return None;
        };
        let fresh = RecurrentState::new(&problem);
        let before = held.as_ref().unwrap_or(&fresh);
        if !before.is_of(&problem) {
            return Some("state: it has other sizes, features or learned values; start a new one");
        }
        let mut after = before.clone();
        linear::extend(&problem, inputs, out.from(0, 0), denominators, &mut after);
        **held = Some(after);
        None
    })?;
    refused.map_or(Ok(()), |message| Err(PyValueError::new_err(message)))
}

/// Writes the gradients of q, k, v, the encoding's raw parameters, and gates where given.
#[pyfunction]
pub fn linear_backward(
    py: Python,
    rule: &LinearRule,
    inputs: LinearArguments,
    saved: (Bound<PyAny>, Bound<PyAny>, Bound<PyAny>),
    made: (Bound<PyAny>, Bound<PyAny>, Bound<PyAny>, Bound<PyAny>, OptionalObject),
) -> PyResult<()> {
    let call = LinearArrays::new(rule, &inputs)?;
    let saved = [
        PythonArray::of("out", &saved.0)?,
        PythonArray::of("denominators", &saved.1)?,
        PythonArray::of("d_out", &saved.2)?,
    ];
    saved[0].expect_shape("B, H, L, E", call.v.shape())?;
    saved[1].expect_shape("B, H, L", &[call.dims.batch, call.dims.heads, call.dims.len])?;
    saved[2].expect_shape("B, H, L, E", call.v.shape())?;
    let (d_values, d_gates) = (PythonArray::of("d_values", &made.3)?, PythonArray::some("d_gates", made.4.as_ref())?);
    let made = [PythonArray::of("d_q", &made.0)?, PythonArray::of("d_k", &made.1)?, PythonArray::of("d_v", &made.2)?];
    for (made, of) in made.iter().zip([&call.q, &call.k, &call.v]) {
        made.expect_shape("as the input", of.shape())?;
    }
    d_values.expect_shape("P", &[call.stored.iter().map(Vec::len).sum()])?;
    if let Some(d_gates) = &d_gates {
        d_gates.expect_shape("B, H, L", &[call.dims.batch, call.dims.heads, call.dims.len])?;
    }
    match call.q.kind() {
        DType::F32 => backward::<f32>(py, rule, &call, &saved, &made, (&d_values, d_gates.as_ref())),
        DType::F64 | DType::I64 => backward::<f64>(py, rule, &call, &saved, &made, (&d_values, d_gates.as_ref())),
    }
}

fn backward<T: Element + Number>(
    py: Python,
    rule: &LinearRule,
    call: &LinearArrays,
    [out, denominators, d_out]: &[PythonArray; 3],
    [d_q, d_k, d_v]: &[PythonArray; 3],
    (d_values, d_gates): (&PythonArray, Option<&PythonArray>),
) -> PyResult<()> {
    let gates = call.gates::<T>()?;
    let saved = LinearAttentionSaved {
        inputs: call.inputs::<T>()?,
        out: out.view()?,
        denominators: denominators.values::<T>()?,
        d_out: d_out.view()?,
    };
    // SAFETY: every gradient was made for this call, so nothing else of it shares their memory, and each is taken once.
    let (mut d_q, mut d_k, mut d_v, d_values, d_gates) = unsafe {
        let d_gates = d_gates.map(|d_gates| d_gates.values_mut::<T>()).transpose()?;
        (d_q.room::<T>()?, d_k.room::<T>()?, d_v.room::<T>()?, d_values.values_mut::<f64>()?, d_gates)
    };
    run(py, rule.threads, Workload::Any, || {
        let made = rule.made::<T>(&call.stored, call.longest(), 0);
        let maps = made.chain();
        let problem = made.problem(rule, &maps, call, gates);
        let mut d_parameters = vec![T::ZERO; call.dims.heads * problem.parameters()];
        let tables = made.fading.as_ref().map(|(_, tables)| tables.each_ref().map(|table| vec![T::ZERO; table.len()]));
        let mut d_tables = tables.unwrap_or_default();
        let [d_near, d_weights] = &mut d_tables;
        let d_decay = made.fading.is_some().then_some(DecayGradient { d_near, d_weights });
        let (d_q, d_k, d_v) = (d_q.from(0, 0), d_k.from(0, 0), d_v.from(0, 0));
        linear::backward(
            &problem,
            saved,
            LinearAttentionGradients { d_q, d_k, d_v, d_parameters: &mut d_parameters, d_decay, d_gates },
        );
        d_values.copy_from_slice(&made.gradient(rule, call, &d_parameters, &d_tables).concat());
    })
}

impl<T: Number> LinearMaps<T> {
    /// The gradient of the encoding's raw parameters, given those of the values built from them.
    fn gradient(
        &self,
        rule: &LinearRule,
        call: &LinearArrays,
        d_parameters: &[T],
        d_tables: &[Vec<T>; 2],
    ) -> Vec<Vec<f64>> {
        let (_, geometry) = rule.encoding.get().parts();
        if let Some(code) = &self.code {
            return code.gradient(d_parameters);
        }
        let Some((found, _)) = &self.fading else {
            return call.stored.iter().map(|values| vec![0.0; values.len()]).collect();
        };
        let d_tables = d_tables.each_ref().map(|table| table.iter().map(|value| value.to_f64()).collect::<Vec<f64>>());
        parts::decay_gradient(found, geometry.heads, &call.stored, d_tables.each_ref().map(Vec::as_slice))
    }
}

/// The decoding state: sums over earlier positions, of a fixed size; each call extends that of the
/// previous one.
#[pyclass(frozen)]
#[derive(Debug, Default)]
pub struct LinearState {
    single: Mutex<Option<RecurrentState<f32>>>,
    double: Mutex<Option<RecurrentState<f64>>>,
}

#[pymethods]
impl LinearState {
    #[new]
    fn new() -> LinearState {
        LinearState::default()
    }

    /// The number of positions so far.
    fn __len__(&self) -> usize {
        let single = self.single.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(RecurrentState::len);
        let double = self.double.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(RecurrentState::len);
        single.or(double).unwrap_or(0)
    }

    /// Its size in bytes.
    fn bytes(&self) -> usize {
        let single = self.single.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(RecurrentState::bytes);
        let double = self.double.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(RecurrentState::bytes);
        single.or(double).unwrap_or(0)
    }
}
