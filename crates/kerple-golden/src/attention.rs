//! `attn/*`: outputs and every gradient of whole attention layers, in every engine.

use crate::burn_layer;
use crate::folder::{Case, Folder, Numbers};
use crate::maps;
use crate::tables::method;
use crate::{Score, Tolerance};
use kerple::Number;
use kerple::attention::{self, Dims, Gradients, Problem, Saved, Scores, Sight, Strides, Table, View, ViewMut, naive};
use kerple::encoding::{Encoding, Geometry, TableGradient};
use kerple::encoding::{Form, MapForm};
use kerple::forms::{DistanceTable, Sides};
use kerple::maps::Extent;

/// A case, made ready for any engine.
pub(crate) struct Task {
    pub(crate) encoding: Encoding,
    pub(crate) geometry: Geometry,
    pub(crate) names: Vec<String>,
    pub(crate) values: Vec<Vec<f64>>,
    pub(crate) dims: Dims,
    pub(crate) q: Vec<f64>,
    pub(crate) k: Vec<f64>,
    pub(crate) v: Vec<f64>,
    pub(crate) d_out: Vec<f64>,
}

/// What an engine returns; arrays are `[B, H, L, D]`, parameter gradients in the order of the encoding.
pub struct Answer {
    pub out: Vec<f64>,
    pub d_q: Vec<f64>,
    pub d_k: Vec<f64>,
    pub d_v: Vec<f64>,
    pub d_values: Vec<Vec<f64>>,
}

fn task(folder: &Folder, case: &Case) -> Result<Task, String> {
    let name = case.id().split('/').nth(1).unwrap_or_default();
    let q = case.numbers(folder, "inputs", "q")?;
    let &[batch, heads, len, head_dim] = q.shape.as_slice() else { return Err("q is not [B, H, L, D]".to_owned()) };
    let (encoding, names) = method(name, case)?;
    let read = |key: &str| case.numbers(folder, "inputs", key).map(|numbers| numbers.values);
    let values: Result<_, String> = names.iter().map(|name| Ok(case.numbers(folder, "params", name)?.values)).collect();
    Ok(Task {
        encoding,
        geometry: Geometry::new(heads, head_dim, len),
        names,
        values: values?,
        dims: Dims { batch, heads, kv_heads: heads, queries: len, keys: len, head_dim },
        k: read("k")?,
        v: read("v")?,
        d_out: read("dout")?,
        q: q.values,
    })
}

/// What a map is told of a case.
fn extent(dims: Dims) -> Extent {
    Extent { sides: Sides::One, len: dims.keys, scale: (dims.head_dim as f64).sqrt().recip() }
}

pub(crate) fn cast<T: Number>(values: &[f64]) -> Vec<T> {
    values.iter().map(|value| T::from_f64(*value)).collect()
}

pub(crate) fn wide<T: Number>(values: Vec<T>) -> Vec<f64> {
    values.into_iter().map(T::to_f64).collect()
}

/// Attention and the gradients in whatever a problem has.
pub(crate) struct Both<T> {
    pub(crate) out: Vec<T>,
    pub(crate) d_q: Vec<T>,
    pub(crate) d_k: Vec<T>,
    pub(crate) d_v: Vec<T>,
    pub(crate) d_bias: Option<Vec<T>>,
    pub(crate) d_weight: Option<Vec<T>>,
    pub(crate) d_map: Option<Vec<T>>,
    pub(crate) d_sinks: Option<Vec<T>>,
    pub(crate) d_clocks: Option<Vec<f64>>,
}

/// Forward and backward on slices of these strides, tile by tile or by the definition; a map has so many numbers.
pub(crate) fn both<T: Number>(
    problem: &Problem<T>,
    strides: Strides,
    [q, k, v, d_out]: [&[T]; 4],
    map_numbers: usize,
    fused: bool,
) -> Both<T> {
    let Dims { batch, heads, queries, .. } = problem.dims;
    let room = |values: &[T]| vec![T::ZERO; values.len()];
    let (tables, d_map) = match &problem.scores {
        Scores::Table(table) => (*table, None),
        Scores::Map(_) => (Table::PLAIN, Some(vec![T::ZERO; map_numbers])),
    };
    let mut found = Both {
        out: room(q),
        d_q: room(q),
        d_k: room(k),
        d_v: room(v),
        d_bias: tables.bias.map(room),
        d_weight: tables.weight.map(room),
        d_map,
        d_sinks: problem.sinks.map(room),
        d_clocks: tables.clocks.map(|clocks| vec![0.0; clocks.values.len()]),
    };
    let mut lse = vec![T::ZERO; batch * heads * queries];
    let view = |data| View { data, strides };
    let forward = if fused { attention::forward::<T> } else { naive::forward::<T> };
    forward(problem, view(q), view(k), view(v), ViewMut::new(&mut found.out, strides), &mut lse);
    let gradients = Gradients {
        d_q: ViewMut::new(&mut found.d_q, strides),
        d_k: ViewMut::new(&mut found.d_k, strides),
        d_v: ViewMut::new(&mut found.d_v, strides),
        d_bias: found.d_bias.as_deref_mut(),
        d_weight: found.d_weight.as_deref_mut(),
        d_map: found.d_map.as_deref_mut(),
        d_sinks: found.d_sinks.as_deref_mut(),
        d_clocks: found.d_clocks.as_deref_mut(),
    };
    let saved = Saved { q: view(q), k: view(k), v: view(v), out: view(&found.out), lse: &lse, d_out: view(d_out) };
    let backward = if fused { attention::backward::<T> } else { naive::backward::<T> };
    backward(problem, saved, gradients);
    found
}

impl Task {
    /// Rotates `[B, H, L, D]` rows in place; `sign = -1` turns back.
    fn rotate(&self, x: &mut [f64], sign: f64) {
        let Some(rotary) = self.encoding.rotary(&self.geometry, 0) else { return };
        let (len, width, half) = (self.dims.keys, self.dims.head_dim, rotary.rotated() / 2);
        let (cos, sin) = rotary.tables(0..len);
        for (row, x) in x.chunks_exact_mut(width).enumerate() {
            let at = row % len * half;
            for j in 0..half {
                let (c, s) = (cos[at + j], sign * sin[at + j]);
                (x[j], x[j + half]) = (x[j] * c - x[j + half] * s, x[j + half] * c + x[j] * s);
            }
        }
    }

    /// All numbers of a score map; none for other forms.
    fn numbers(&self, form: &Form) -> Vec<f64> {
        let Form::Map(MapForm { table, own, .. }) = form else { return Vec::new() };
        let values = self.encoding.true_values(&self.geometry, &self.values);
        let own = values[values.len() - own..].iter();
        [&table.bias, &table.weight].into_iter().flatten().chain(own).flatten().copied().collect()
    }

    /// Runs forward and backward on slices with `T` numbers.
    pub(crate) fn slices<T: Number>(&self, fused: bool) -> Answer {
        let (mut q, mut k) = (self.q.clone(), self.k.clone());
        self.rotate(&mut q, 1.0);
        self.rotate(&mut k, 1.0);
        let form = self.encoding.form(&self.geometry, &self.values, self.dims.keys);
        let (numbers, extent) = (self.numbers(&form), extent(self.dims));
        let numbers = cast::<T>(&numbers);
        let (table, map) = match &form {
            Form::Table(table) => (table.clone(), None),
            Form::Map(form) => (DistanceTable::default(), Some(form.map.over(&numbers, extent))),
            Form::Nothing | Form::Absolute(_) | Form::Rotary(_) | Form::Gates(_) | Form::Code(_) => {
                (DistanceTable::default(), None)
            }
        };
        let (bias, weight) = (table.bias.as_deref().map(cast::<T>), table.weight.as_deref().map(cast::<T>));
        let problem = Problem {
            dims: self.dims,
            scale: T::from_f64((self.dims.head_dim as f64).sqrt().recip()),
            cap: None,
            sinks: None,
            sight: Sight::Causal { window: self.encoding.window },
            lengths: None,
            scores: match &map {
                Some(map) => Scores::Map(&**map),
                None => Scores::table(bias.as_deref(), weight.as_deref(), self.dims.keys),
            },
        };
        let Dims { heads, keys, head_dim, .. } = self.dims;
        let strides = Strides { batch: heads * keys * head_dim, head: keys * head_dim, row: head_dim };
        let [q, k, v, d_out] = [&q, &k, &self.v, &self.d_out].map(|values| cast(values));
        let found = both(&problem, strides, [&q, &k, &v, &d_out], numbers.len(), fused);
        let (mut d_q, mut d_k) = (wide(found.d_q), wide(found.d_k));
        self.rotate(&mut d_q, -1.0);
        self.rotate(&mut d_k, -1.0);
        let d_values = match found.d_map {
            Some(d_map) => maps::d_values(&self.encoding, &self.geometry, &self.values, keys, &wide(d_map)),
            None => {
                let (d_bias, d_weight) = (found.d_bias.map(wide), found.d_weight.map(wide));
                let gradient = TableGradient { len: keys, d_bias: d_bias.as_deref(), d_weight: d_weight.as_deref() };
                self.encoding.table_backward(&self.geometry, &self.values, gradient)
            }
        };
        Answer { out: wide(found.out), d_q, d_k, d_v: wide(found.d_v), d_values }
    }

    /// Runs forward and backward through Burn, with the fused operation or its composed definition.
    pub(crate) fn burn(&self, fused: bool) -> Answer {
        burn_layer::run(&burn_layer::Layer {
            encoding: &self.encoding,
            geometry: &self.geometry,
            values: &self.values,
            shape: [self.dims.batch, self.dims.heads, self.dims.keys, self.dims.head_dim],
            q: &self.q,
            k: &self.k,
            v: &self.v,
            d_out: &self.d_out,
            fused,
        })
    }

    pub(crate) fn score(
        &self,
        engine: &str,
        answer: &Answer,
        folder: &Folder,
        case: &Case,
        tolerance: impl Fn(&str, &Numbers) -> Tolerance,
    ) -> Result<Score, String> {
        let mut score = Score::new(engine);
        for key in case.keys("expected") {
            let got = match key {
                "out" => &answer.out,
                "grad_q" | "dq" => &answer.d_q,
                "grad_k" | "dk" => &answer.d_k,
                "grad_v" | "dv" => &answer.d_v,
                other => {
                    let name = other.strip_prefix("grad_").or(other.strip_prefix("d_")).unwrap_or(other);
                    let at = self.names.iter().position(|own| own == name);
                    &answer.d_values[at.ok_or_else(|| format!("expected.{other} is not a known quantity"))?]
                }
            };
            let expected = case.numbers(folder, "expected", key)?;
            score.compare(key, got, &expected.values, tolerance(key, &expected));
        }
        Ok(score)
    }
}

pub fn run(folder: &Folder, case: &Case) -> Result<Vec<Score>, String> {
    let task = task(folder, case)?;
    let engines: [(&str, bool, Answer); 6] = [
        ("naive f64", true, task.slices::<f64>(false)),
        ("naive f32", false, task.slices::<f32>(false)),
        ("tiled f64", true, task.slices::<f64>(true)),
        ("tiled f32", false, task.slices::<f32>(true)),
        ("burn composed f64", true, task.burn(false)),
        ("burn fused f64", true, task.burn(true)),
    ];
    let tolerance = |double: bool, expected: &Numbers| match (double, expected.double) {
        (false, _) => case.tolerance("if_you_compute_in_f32"),
        (true, true) => case.tolerance("f64_arrays"),
        (true, false) => case.tolerance("f32_arrays"),
    };
    let score = |(engine, double, answer): &(&str, bool, Answer)| {
        task.score(engine, answer, folder, case, |_, expected| tolerance(*double, expected))
    };
    engines.iter().map(score).collect()
}
