//! Positional encodings: their parameters, and the tables and score modifications that attention
//! takes.

use crate::array::PythonArray;
use crate::threads::{Workload, run};
use kerple_core::Number;
use kerple_core::encoding::{Clamp, EncodingForm, Geometry, Injection, METHODS, Method, ScoreModForm};
use kerple_core::forms::{DistanceTable, ScoreMod, Sides};
use kerple_core::ops::feature_gates::FeatureGateMap;
use kerple_core::score_mods::relative::RelativeSource;
use kerple_core::score_mods::{ScoreModExtent, ScoreModSpec};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::Value;

/// Most values of a table, or of an encoding's parameters.
const MOST_VALUES: usize = 1 << 31;

/// An encoding for a model of some size.
#[pyclass(frozen, name = "Encoding")]
#[derive(Debug)]
pub struct PyEncoding {
    encoding: kerple_core::encoding::Encoding,
    geometry: Geometry,
    /// The score modification, if it has one.
    map: Option<ScoreModForm>,
}

impl PyEncoding {
    /// The score modification with its parameters.
    pub fn over<'a, T: Number>(
        &'a self,
        numbers: &'a [T],
        extent: ScoreModExtent,
    ) -> PyResult<Box<dyn ScoreMod<T> + 'a>> {
        let Some(form) = &self.map else {
            return Err(PyValueError::new_err(format!("{} is not a score modification", self.encoding.method.kind())));
        };
        let needed = self.count(form, extent);
        if numbers.len() != needed {
            let (got, len) = (numbers.len(), extent.len);
            return Err(PyValueError::new_err(format!(
                "numbers: {got} values; a score modification over {len} keys needs {needed}"
            )));
        }
        Ok(form.map.over(numbers, extent))
    }

    /// Whether it is a score modification.
    pub fn is_map(&self) -> bool {
        self.map.is_some()
    }

    /// Decay rates of products of features with distance; `None` without a decay.
    pub fn feature_decay(&self) -> Option<Vec<f64>> {
        self.encoding.rotary(&self.geometry, self.geometry.train_len)?.feature_decay(self.geometry.head_dim)
    }

    /// Refuses attention with other sizes.
    pub fn expect_sizes(&self, heads: usize, head_dim: usize) -> PyResult<()> {
        let own = [self.geometry.heads, self.geometry.head_dim];
        if own == [heads, head_dim] {
            return Ok(());
        }
        let message = format!("q: {heads} heads of {head_dim} features");
        Err(PyValueError::new_err(format!("{message}; the encoding has {} heads of {}", own[0], own[1])))
    }

    /// How many parameters the score modification takes: those of a table, and its own.
    fn count(&self, form: &ScoreModForm, extent: ScoreModExtent) -> usize {
        let table = match &form.table {
            DistanceTable { bias: None, .. } => 0,
            DistanceTable { heads, .. } => heads * extent.sides.columns(extent.len),
        };
        let learned = self.encoding.parameters(&self.geometry);
        let own: usize = learned[learned.len() - form.own..].iter().map(|parameter| parameter.len()).sum();
        table
            + match &form.map {
                ScoreModSpec::Mixed(_) | ScoreModSpec::Cope(_) => own,
                ScoreModSpec::Relative(relative) => match relative.source {
                    RelativeSource::Learned { .. } => own,
                    RelativeSource::Projected => {
                        let width = relative.heads * relative.head_dim;
                        relative.distances(extent).count() * width + width
                    }
                },
            }
    }

    /// The encoding, and the geometry of its model.
    pub fn parts(&self) -> (&kerple_core::encoding::Encoding, &Geometry) {
        (&self.encoding, &self.geometry)
    }

    /// The numbers of each parameter, of those of all.
    pub fn stored(&self, values: &PythonArray) -> PyResult<Vec<Vec<f64>>> {
        let mut rest = values.values::<f64>()?;
        let parameters = self.encoding.parameters(&self.geometry);
        let count: usize = parameters.iter().map(|parameter| parameter.len()).sum();
        values.expect_shape("P", &[count])?;
        let next = |parameter: &kerple_core::encoding::EncodingParameter| {
            let (own, more) = rest.split_at(parameter.len());
            rest = more;
            own.to_vec()
        };
        Ok(parameters.iter().map(next).collect())
    }

    fn check_len(&self, len: usize) -> PyResult<()> {
        let columns = Sides::TwoSided.columns(len);
        match kerple_core::elements(&[self.geometry.heads, columns]) {
            Some(count) if len > 0 && count <= MOST_VALUES => Ok(()),
            _ => Err(PyValueError::new_err(format!(
                "length = {len} is out of range: a table of {} heads may have 1 to {MOST_VALUES} values",
                self.geometry.heads
            ))),
        }
    }
}

#[pymethods]
impl PyEncoding {
    /// Creates an encoding from the keys of a run file's `[encoding]`, as JSON. The model is as wide as
    /// its heads together unless `d_model` is given.
    #[new]
    #[pyo3(signature = (keys, heads, head_dim, train_len, d_model=None))]
    fn new(
        keys: &str,
        heads: usize,
        head_dim: usize,
        train_len: usize,
        d_model: Option<usize>,
    ) -> PyResult<PyEncoding> {
        for (name, value, most) in [
            ("heads", heads, 1 << 16),
            ("head_dim", head_dim, 1 << 16),
            ("train_len", train_len, 1 << 40),
            ("d_model", d_model.unwrap_or(1), 1 << 24),
        ] {
            if !(1..=most).contains(&value) {
                return Err(PyValueError::new_err(format!("{name} = {value} is out of range; it must be 1 to {most}")));
            }
        }
        let refuse = |error: String| PyValueError::new_err(error);
        let encoding: kerple_core::encoding::Encoding =
            serde_json::from_str(keys).map_err(|error| refuse(format!("encoding: {error}")))?;
        let geometry = Geometry::new(heads, head_dim, train_len);
        let geometry = Geometry { d_model: d_model.unwrap_or(geometry.d_model), ..geometry };
        if encoding.randomized.is_some() {
            return Err(refuse("`randomized`: only `kerple train` draws positions; leave it out".to_owned()));
        }
        encoding.check(&geometry).map_err(|refusal| refuse(refusal.line()))?;
        if let Some(scaling) = encoding.scaling().filter(|scaling| scaling.grouped().is_some()) {
            let label = scaling.label();
            return Err(refuse(format!(
                "`scaling`: only `kerple eval` and `kerple sample` have {label}; leave it out"
            )));
        }
        let values = encoding.parameters(&geometry).iter().map(|p| p.len()).fold(0, usize::saturating_add);
        if values > MOST_VALUES {
            return Err(refuse(format!("the encoding learns {values} values; at most {MOST_VALUES} are allowed")));
        }
        let map = match encoding.entry() {
            Injection::ScoreMod { .. } => match encoding.form(&geometry, &encoding.initial(&geometry, 0), 1) {
                EncodingForm::ScoreMod(form) => Some(form),
                _ => None,
            },
            _ => None,
        };
        Ok(PyEncoding { encoding, geometry, map })
    }

    /// Its name in run files.
    #[getter]
    fn kind(&self) -> &'static str {
        self.encoding.method.kind()
    }

    /// All its keys as JSON.
    #[getter]
    fn keys(&self) -> PyResult<String> {
        serde_json::to_string(&self.encoding).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// The window: how many keys a query attends to, if limited.
    #[getter]
    fn window(&self) -> Option<usize> {
        self.encoding.window
    }

    /// How many first tokens stay visible under the window, if some do.
    #[getter]
    fn sink_tokens(&self) -> Option<usize> {
        self.encoding.sink_tokens
    }

    /// Whether raw parameters are projected into their range after an update.
    #[getter]
    fn projected(&self) -> bool {
        self.encoding.clamp == Clamp::Projected
    }

    /// Whether products of queries and keys decay with distance, feature by feature.
    #[getter]
    fn fades(&self) -> bool {
        self.feature_decay().is_some()
    }

    /// Whether it is defined for causal attention only.
    #[getter]
    fn causal_only(&self) -> bool {
        self.encoding.is_causal_only()
    }

    /// Where it enters a model: `nowhere`, `embeddings`, `rotation`, `scores`, `map`, `gates`,
    /// `learned_positions`, `feature_gates`, `content_rotation`, `query_key_map`, `relative`, `path`,
    /// `householder` or `code`.
    #[getter]
    fn entry(&self) -> &'static str {
        match self.encoding.entry() {
            Injection::Nowhere => "nowhere",
            Injection::Embeddings => "embeddings",
            Injection::Rotation { .. } => "rotation",
            Injection::Scores(_) => "scores",
            Injection::ScoreMod { .. } => "map",
            Injection::Gates { kernel: false } => "gates",
            Injection::Gates { kernel: true } => "learned_positions",
            Injection::FeatureGates { .. } => "feature_gates",
            Injection::ContentRotation { .. } => "content_rotation",
            Injection::QueryKeyMap { .. } => "query_key_map",
            Injection::RelativeBias => "relative",
            Injection::PathBias => "path",
            Injection::Householder { .. } => "householder",
            Injection::Code => "code",
        }
    }

    /// Whether it has a bias and a weight by distance, and whether these tables are two-sided.
    #[getter]
    fn tables(&self) -> (bool, bool, bool) {
        match (self.encoding.entry(), &self.map) {
            (Injection::Scores(tables), _) => (tables.bias, tables.weight, tables.sides == Sides::TwoSided),
            (Injection::ScoreMod { tables, .. }, Some(map)) => {
                (map.table.bias.is_some(), false, tables.sides == Sides::TwoSided)
            }
            _ => (false, false, false),
        }
    }

    /// Slopes of heads of a bias summed over the path; empty of other methods.
    #[getter]
    fn path_slopes(&self) -> Vec<f64> {
        self.encoding.path_features(&self.geometry).map_or(Vec::new(), |features| features.slopes)
    }

    /// Its description.
    fn describe(&self) -> PyResult<String> {
        serde_json::to_string(&self.encoding.method.description()).map_err(|e| PyValueError::new_err(e.to_string()))
    }

    /// The learned tensors: name, shape, range of raw parameters, whether weight decay applies.
    fn parameters(&self) -> Vec<(String, Vec<usize>, f64, f64, bool)> {
        let of = |parameter: kerple_core::encoding::EncodingParameter| {
            let [low, high] = parameter.raw_range();
            (parameter.name, parameter.shape, low, high, parameter.decay)
        };
        self.encoding.parameters(&self.geometry).into_iter().map(of).collect()
    }

    /// How many of the last parameters the score modification takes unchanged.
    #[getter]
    fn own(&self) -> usize {
        self.map.as_ref().map_or(0, |map| map.own)
    }

    /// Initial raw parameters, one tensor after another.
    fn initial(&self, seed: u64, layer: usize) -> Vec<f64> {
        self.encoding.initial_in_layer(&self.geometry, seed, layer).concat()
    }

    /// The constrained values of raw parameters, as the formulas use them.
    fn true_values(&self, values: &Bound<PyAny>) -> PyResult<Vec<f64>> {
        let stored = self.stored(&PythonArray::of("values", values)?)?;
        Ok(self.encoding.constrained(&self.geometry, &stored).concat())
    }

    /// Writes bias and weight over distances `0..length`, `[H, C]` each.
    fn table(
        &self,
        py: Python,
        values: &Bound<PyAny>,
        length: usize,
        bias: Option<&Bound<PyAny>>,
        weight: Option<&Bound<PyAny>>,
    ) -> PyResult<()> {
        self.check_len(length)?;
        let stored = self.stored(&PythonArray::of("values", values)?)?;
        let (bias, weight) = (PythonArray::some("bias", bias)?, PythonArray::some("weight", weight)?);
        let form = run(py, 1, Workload::Any, || self.encoding.form(&self.geometry, &stored, length))?;
        let (EncodingForm::Table(table) | EncodingForm::ScoreMod(ScoreModForm { table, .. })) = form else {
            return Err(PyValueError::new_err(format!("{} has no table over distances", self.kind())));
        };
        let shape = [table.heads, table.sides.columns(table.len)];
        for (array, rows) in [(bias, table.bias), (weight, table.weight)] {
            let Some(array) = array else { continue };
            array.expect_shape("H, C", &shape)?;
            // SAFETY: Python made the two for this call, and each is taken once.
            let to = unsafe { array.values_mut::<f64>()? };
            let Some(rows) = rows else {
                return Err(PyValueError::new_err(format!("{} has no {}", self.kind(), array.name())));
            };
            to.copy_from_slice(&rows);
        }
        Ok(())
    }

    /// Writes the gradient of the raw parameters, given those of the tables over distances
    /// `0..length`.
    fn table_backward(
        &self,
        py: Python,
        values: &Bound<PyAny>,
        length: usize,
        d_bias: Option<&Bound<PyAny>>,
        d_weight: Option<&Bound<PyAny>>,
        d_values: &Bound<PyAny>,
    ) -> PyResult<()> {
        self.check_len(length)?;
        let stored = self.stored(&PythonArray::of("values", values)?)?;
        let slopes = run(py, 1, Workload::Any, || self.encoding.table_jacobian(&self.geometry, &stored, length))?;
        let shape = [self.geometry.heads, slopes.sides.columns(length)];
        let mut sums: Vec<Vec<f64>> = stored.iter().map(|values| vec![0.0; values.len()]).collect();
        for (name, slopes, d) in [("d_bias", slopes.bias, d_bias), ("d_weight", slopes.weight, d_weight)] {
            let (Some(slopes), Some(array)) = (slopes, PythonArray::some(name, d)?) else { continue };
            array.expect_shape("H, C", &shape)?;
            slopes.backward(self.geometry.heads, array.values::<f64>()?, &mut sums);
        }
        let array = PythonArray::of("d_values", d_values)?;
        array.expect_shape("P", &[sums.iter().map(Vec::len).sum()])?;
        // SAFETY: Python made it for this call, and it is taken once.
        unsafe { array.values_mut::<f64>()? }.copy_from_slice(&sums.concat());
        Ok(())
    }

    /// Rotation rates in radians per position, for sequences of the training length.
    fn rates(&self) -> Option<Vec<f64>> {
        Some(self.encoding.rotary(&self.geometry, self.geometry.train_len)?.inv_freq)
    }

    /// Most that each head's features lose per token, for gates of features with a bound that is not of a logarithm.
    #[getter]
    fn gate_rates(&self) -> Option<Vec<f64>> {
        match self.encoding.feature_gates(&self.geometry)?.map {
            FeatureGateMap::LogSigmoid { .. } => None,
            FeatureGateMap::Sigmoid { rates } => Some(rates),
        }
    }

    /// Rates of a map of queries and keys, or of a rotation by content, in radians per position.
    fn map_rates(&self) -> Option<Vec<f64>> {
        let of_content = self.encoding.content_rotation(&self.geometry).map(|rotation| rotation.rates);
        of_content.or_else(|| Some(self.encoding.query_key_map(&self.geometry)?.angles().inv_freq))
    }

    /// Writes the cosines and sines that rotate the positions from `start` on in a sequence of
    /// length `span`, `[L, pairs]` each.
    fn turns(&self, py: Python, start: usize, span: usize, cos: &Bound<PyAny>, sin: &Bound<PyAny>) -> PyResult<()> {
        let rotary = self.encoding.rotary(&self.geometry, span);
        let rotary = rotary.ok_or_else(|| PyValueError::new_err(format!("{} turns nothing", self.kind())))?;
        let (cos, sin) = (PythonArray::of("cos", cos)?, PythonArray::of("sin", sin)?);
        let [rows, _] = cos.sizes("L, pairs")?;
        for array in [&cos, &sin] {
            array.expect_shape("L, pairs", &[rows, rotary.inv_freq.len()])?;
        }
        // SAFETY: Python made the two for this call, and each is taken once.
        let (cos, sin) = unsafe { (cos.values_mut::<f64>()?, sin.values_mut::<f64>()?) };
        let made = run(py, 1, Workload::Any, || rotary.tables(start..start.saturating_add(rows)))?;
        cos.copy_from_slice(&made.0);
        sin.copy_from_slice(&made.1);
        Ok(())
    }
}

/// Every method: its name and its description.
#[pyfunction]
pub fn methods(py: Python) -> PyResult<Vec<(String, Bound<PyDict>)>> {
    let one = |kind: &&str| {
        let method = Method::named(kind).expect("the list contains methods");
        let words = PyDict::new(py);
        if let Ok(Value::Object(entries)) = serde_json::to_value(method.description()) {
            for (key, value) in entries {
                words.set_item(key, value.as_str().unwrap_or_default())?;
            }
        }
        Ok(((*kind).to_owned(), words))
    };
    METHODS.iter().map(one).collect()
}
