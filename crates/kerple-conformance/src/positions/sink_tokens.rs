//! Attention sinks and first tokens that stay visible under a window, with fewer key heads than query heads: outputs and
//! every gradient, in every engine.

use super::compare;
use crate::case::Case;
use crate::clocks::engines::{numbers, tensor};
use crate::engines::{cast, forward_backward, to_f64};
use crate::{CaseResult, Checked};
use burn::tensor::{Device, Tensor};
use kerple_burn::attention_context::{AttentionMask, ScoreContext};
use kerple_burn::implementation::Impl;
use kerple_burn::ops::attention::{Scoring, attention};
use kerple_core::Number;
use kerple_core::attention::{AttentionDims, AttentionProblem, Mask, Strides};

/// One case.
struct SinkTokenAttention {
    dims: AttentionDims,
    scale: f64,
    mask: Mask,
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    d_out: Vec<f64>,
    /// `[H]`
    sinks: Vec<f64>,
}

/// What an engine returns, by the names of expected arrays.
type Found = [(&'static str, Vec<f64>); 5];

pub(super) fn run(case: &Case) -> CaseResult {
    let given = SinkTokenAttention::read(case)?;
    [
        ("naive f64", given.slices::<f64>(false), false),
        ("naive f32", given.slices::<f32>(false), true),
        ("tiled f64", given.slices::<f64>(true), false),
        ("tiled f32", given.slices::<f32>(true), true),
        ("burn reference f64", given.burn(Impl::Reference), false),
        ("burn fused f64", given.burn(Impl::Kernel), false),
    ]
    .into_iter()
    .map(|(engine, found, single)| compare(case, engine, &found, single))
    .collect()
}

impl SinkTokenAttention {
    fn read(case: &Case) -> Checked<SinkTokenAttention> {
        let ([batch, heads, queries, head_dim], [_, kv_heads, keys, _]) = (case.shape("q")?, case.shape("k")?);
        let [q, k, v, d_out] = ["q", "k", "v", "dout"].map(|key| case.input(key));
        let given = SinkTokenAttention {
            dims: AttentionDims { batch, heads, kv_heads, queries, keys, head_dim, value_dim: head_dim },
            scale: case.number("scale")?,
            mask: Mask::causal(Some(case.size_from("window", 1)?), case.size_from("keep_first", 1)?),
            q: q?,
            k: k?,
            v: v?,
            d_out: d_out?,
            sinks: case.param("sigma")?,
        };
        let fits = given.v.len() == given.k.len() && given.d_out.len() == given.q.len() && given.sinks.len() == heads;
        if fits { Ok(given) } else { Err("arrays of different sizes".to_owned()) }
    }

    fn slices<T: Number>(&self, fused: bool) -> Found {
        let AttentionDims { heads, kv_heads, queries, keys, head_dim, .. } = self.dims;
        let dense = |heads: usize, rows: usize| Strides {
            batch: heads * rows * head_dim,
            head: rows * head_dim,
            row: head_dim,
        };
        let [q, k, v, d_out, sinks] = [&self.q, &self.k, &self.v, &self.d_out, &self.sinks].map(|x| cast::<T>(x));
        let plain = AttentionProblem::causal(self.dims, T::from_f64(self.scale));
        let problem = AttentionProblem { mask: self.mask, sinks: Some(&sinks), ..plain };
        let (of_q, of_k) = (dense(heads, queries), dense(kv_heads, keys));
        let strides = [of_q, of_k, of_k, of_q];
        let found = forward_backward(&problem, strides, [&q, &k, &v, &d_out], 0, fused);
        [
            ("out", to_f64(found.out)),
            ("grad_q", to_f64(found.d_q)),
            ("grad_k", to_f64(found.d_k)),
            ("grad_v", to_f64(found.d_v)),
            ("grad_sigma", found.d_sinks.map(to_f64).unwrap_or_default()),
        ]
    }

    /// In double precision through Burn's autodiff.
    fn burn(&self, implementation: Impl) -> Found {
        let AttentionDims { batch, heads, kv_heads, queries, keys, head_dim, .. } = self.dims;
        let device = Device::flex().autodiff();
        let [of_q, of_k] = [[batch, heads, queries, head_dim], [batch, kv_heads, keys, head_dim]];
        let [q, d_out] = [&self.q, &self.d_out].map(|values| tensor(values, of_q, &device));
        let [k, v] = [&self.k, &self.v].map(|values| tensor(values, of_k, &device));
        let sinks = tensor(&self.sinks, [heads], &device);
        let scoring = Scoring { sinks: Some(sinks.clone()), ..Scoring::from(self.scale) };
        let context = ScoreContext { mask: AttentionMask::from(self.mask), ..ScoreContext::default() };
        let out = attention(q.clone(), k.clone(), v.clone(), scoring, &context, implementation);
        let gradients = (out.clone() * d_out.detach()).sum().backward();
        let of = |x: &Tensor<4>| x.grad(&gradients).map(numbers).unwrap_or_default();
        [
            ("out", numbers(out)),
            ("grad_q", of(&q)),
            ("grad_k", of(&k)),
            ("grad_v", of(&v)),
            ("grad_sigma", sinks.grad(&gradients).map(numbers).unwrap_or_default()),
        ]
    }
}
