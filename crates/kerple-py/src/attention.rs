//! Attention on arrays of Python: the arguments, their checks, and the calls of the engine.

mod arrays;
mod rule;

pub use rule::AttentionRule;

use crate::array::{DType, Element, OptionalObject, PythonArray, part};
use crate::parts::{behind, tails};
use crate::threads::run;
use arrays::{AttentionArguments, AttentionArrays, KeyLimits, TypedArrays};
use kerple_core::Number;
use kerple_core::attention::{
    self, AttentionDims, AttentionGradients, AttentionSaved, PositionGradients, RelativeGradients,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

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
