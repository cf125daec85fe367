//! Attention with a bias over paths (GRAPE-AP): outputs and every gradient, in every engine.

use super::compare;
use crate::case::Case;
use crate::clocks::engines::{GatedEngine, OnEngines, numbers, tensor};
use crate::engines::{cast, to_f64};
use crate::{CaseResult, Checked};
use burn::tensor::{Device, Tensor};
use kerple_burn::attention_context::{AttentionMask, PathTensors, RotaryTables, ScoreContext};
use kerple_burn::implementation::Impl;
use kerple_burn::ops::attention::{Scoring, rotate as rotate_tensor};
use kerple_burn::ops::path::turned;
use kerple_core::Number;
use kerple_core::attention::{
    self, AttentionDims, AttentionGradients, AttentionProblem, AttentionSaved, Mask, PathBias, PathGradients,
    ScoreTransform, Strides, View, ViewMut, naive,
};
use kerple_core::encoding::alibi;
use kerple_core::forms::PathFeatures;
use kerple_core::ops::rotary::{Angles, Rotated, Turn, rotate};

/// One layer's attention, and the features of all its positions.
#[derive(Clone)]
struct GrapeLayer {
    dims: AttentionDims,
    scale: f64,
    window: Option<usize>,
    lengths: Option<Vec<usize>>,
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    d_out: Vec<f64>,
    sinks: Option<Vec<f64>>,
    /// Width, slopes, and whether queries are turned.
    path: PathFeatures,
    /// `[B, H, K, E]`
    p: Vec<f64>,
    /// In the root of the norm.
    epsilon: f64,
}

/// By the names of expected arrays.
type GrapeOutput = [(&'static str, Vec<f64>); 6];

pub(super) fn run(case: &Case) -> CaseResult {
    let layer = GrapeLayer::read(case)?;
    let on = |engine: GatedEngine| {
        // paths are not for the tiled engine
        compare(case, &engine.name().replace("tiled", "row block"), &layer.on(engine), engine.is_single())
    };
    GatedEngine::ALL.into_iter().map(on).collect()
}

fn dense(heads: usize, rows: usize, width: usize) -> Strides {
    Strides { batch: heads * rows * width, head: rows * width, row: width }
}

impl GrapeLayer {
    fn read(case: &Case) -> Checked<GrapeLayer> {
        let ([batch, heads, queries, head_dim], [_, kv_heads, keys, _]) = (case.shape("q")?, case.shape("k")?);
        let dims = AttentionDims { batch, heads, kv_heads, queries, keys, head_dim, value_dim: head_dim };
        let [q, k, v, d_out] = ["q", "k", "v", "dout"].map(|key| case.input(key));
        let p = case.array("params", "p")?;
        let &[.., width] = p.shape.as_slice() else { return Err("p has no features".to_owned()) };
        let has = |name| super::has_parameter(case, name);
        let slopes = if has("m") { case.param("m")? } else { alibi::slopes(heads) };
        let relative = case.setting("relative").as_bool().unwrap_or(false);
        let layer = GrapeLayer {
            dims,
            scale: case.number("scale")?,
            window: case.optional_number("window").map(|window| window as usize),
            lengths: case.lengths(),
            q: q?,
            k: k?,
            v: v?,
            d_out: d_out?,
            sinks: if has("sigma") { Some(case.param("sigma")?) } else { None },
            path: PathFeatures { width, slopes, relative },
            p: p.values,
            epsilon: case.number("rms_eps")?,
        };
        let fits = p.shape == [batch, heads, keys, width] && layer.path.slopes.len() == heads && queries <= keys;
        let sizes = [(&layer.v, layer.k.len()), (&layer.d_out, layer.q.len())];
        let fits = fits && width.is_multiple_of(2) && sizes.into_iter().all(|(values, len)| values.len() == len);
        if fits { Ok(layer) } else { Err("arrays of different sizes".to_owned()) }
    }

    /// Turns features `[B, H, K, E]` by their positions.
    fn turn(&self, x: &mut [f64], turn: Turn) {
        let (AttentionDims { batch, heads, keys, .. }, width) = (self.dims, self.path.width);
        let (cos, sin) = self.path.rotary().tables(0..keys);
        let angles = Angles { cos: &cos, sin: &sin, pairs: width / 2 };
        rotate(x, dense(heads, keys, width), Rotated { batch, len: keys, heads }, angles, turn);
    }

    /// The root that features of a token are divided by.
    fn root(&self, p: &[f64]) -> f64 {
        (p.iter().map(|x| x * x).sum::<f64>() / p.len() as f64 + self.epsilon).sqrt()
    }

    /// Features of the queries, and of the keys, normed and turned.
    fn features(&self) -> [Vec<f64>; 2] {
        let (AttentionDims { queries, keys, .. }, width) = (self.dims, self.path.width);
        let mut p = self.p.clone();
        if self.path.relative {
            self.turn(&mut p, Turn::Forward);
        }
        let of_queries = p.chunks(keys * width).flat_map(|head| &head[(keys - queries) * width..]).copied().collect();
        let normed = |p: &[f64]| {
            let root = self.root(p);
            p.iter().map(|x| x / root).collect::<Vec<f64>>()
        };
        let mut of_keys: Vec<f64> = self.p.chunks(width).flat_map(normed).collect();
        self.turn(&mut of_keys, Turn::Forward);
        [of_queries, of_keys]
    }

    /// The gradient in p, given those in [`GrapeLayer::features`].
    fn features_backward(&self, [d_queries, mut d_keys]: [Vec<f64>; 2]) -> Vec<f64> {
        let (AttentionDims { queries, keys, .. }, width) = (self.dims, self.path.width);
        let mut d_p = vec![0.0; self.p.len()];
        for (to, from) in d_p.chunks_mut(keys * width).zip(d_queries.chunks(queries * width)) {
            to[(keys - queries) * width..].copy_from_slice(from);
        }
        if self.path.relative {
            self.turn(&mut d_p, Turn::Inverse);
        }
        self.turn(&mut d_keys, Turn::Inverse);
        for ((d_p, p), d_u) in d_p.chunks_mut(width).zip(self.p.chunks(width)).zip(d_keys.chunks(width)) {
            let root = self.root(p);
            let along = p.iter().zip(d_u).map(|(p, d)| p * d).sum::<f64>() / (width as f64 * root * root);
            d_p.iter_mut().zip(p).zip(d_u).for_each(|((to, p), d)| *to += (d - p * along) / root);
        }
        d_p
    }
}

impl OnEngines for GrapeLayer {
    type Output = GrapeOutput;

    fn slices<T: Number>(&self, fused: bool) -> GrapeOutput {
        let AttentionDims { batch, heads, kv_heads, queries, keys, head_dim, .. } = self.dims;
        let (of_q, of_k, width) = (dense(heads, queries, head_dim), dense(kv_heads, keys, head_dim), self.path.width);
        let (of_queries, of_keys) = (dense(heads, queries, width), dense(heads, keys, width));
        let [q, k, v, d_out] = [&self.q, &self.k, &self.v, &self.d_out].map(|x| cast::<T>(x));
        let sinks = self.sinks.as_deref().map(cast::<T>);
        let [queries_of_path, keys_of_path] = self.features().map(|x| cast::<T>(&x));
        let view = |data, strides| View { data, strides };
        let path = PathBias {
            queries: view(&queries_of_path, of_queries),
            keys: view(&keys_of_path, of_keys),
            width,
            slopes: &self.path.slopes,
        };
        let problem = AttentionProblem {
            mask: Mask::Causal { window: self.window },
            lengths: self.lengths.as_deref(),
            sinks: sinks.as_deref(),
            scores: ScoreTransform::Path(path),
            ..AttentionProblem::causal(self.dims, T::from_f64(self.scale))
        };
        let room = |values: &[T]| vec![T::ZERO; values.len()];
        let (mut out, mut lse) = (room(&q), vec![T::ZERO; batch * heads * queries]);
        let forward = if fused { attention::forward::<T> } else { naive::forward::<T> };
        forward(&problem, view(&q, of_q), view(&k, of_k), view(&v, of_k), ViewMut::new(&mut out, of_q), &mut lse);
        let [mut d_q, mut d_k, mut d_v] = [&q, &k, &v].map(|x| room(x));
        let [mut d_queries, mut d_keys] = [&queries_of_path, &keys_of_path].map(|x| room(x));
        let mut d_sinks = sinks.as_deref().map(room);
        let gradients = AttentionGradients {
            d_sinks: d_sinks.as_deref_mut(),
            d_path: Some(PathGradients {
                d_queries: ViewMut::new(&mut d_queries, of_queries),
                d_keys: ViewMut::new(&mut d_keys, of_keys),
            }),
            ..AttentionGradients::of_rows(
                ViewMut::new(&mut d_q, of_q),
                ViewMut::new(&mut d_k, of_k),
                ViewMut::new(&mut d_v, of_k),
            )
        };
        let saved = AttentionSaved {
            q: view(&q, of_q),
            k: view(&k, of_k),
            v: view(&v, of_k),
            out: view(&out, of_q),
            lse: &lse,
            d_out: view(&d_out, of_q),
        };
        let backward = if fused { attention::backward::<T> } else { naive::backward::<T> };
        backward(&problem, saved, gradients);
        [
            ("out", to_f64(out)),
            ("grad_q", to_f64(d_q)),
            ("grad_k", to_f64(d_k)),
            ("grad_v", to_f64(d_v)),
            ("grad_p", self.features_backward([to_f64(d_queries), to_f64(d_keys)])),
            ("grad_sigma", d_sinks.map(to_f64).unwrap_or_default()),
        ]
    }

    fn burn(&self, implementation: Impl) -> GrapeOutput {
        let AttentionDims { batch, heads, kv_heads, queries, keys, head_dim, .. } = self.dims;
        let device = Device::flex().autodiff();
        let [of_q, of_k] = [[batch, heads, queries, head_dim], [batch, kv_heads, keys, head_dim]];
        let q = tensor(&self.q, of_q, &device);
        let [k, v] = [&self.k, &self.v].map(|values| tensor(values, of_k, &device));
        let p = tensor(&self.p, [batch, heads, keys, self.path.width], &device);
        let sinks = self.sinks.as_ref().map(|sinks| tensor(sinks, [heads], &device));
        let (cos, sin) = self.path.rotary().tables(0..keys);
        let turn = RotaryTables::new(self.path.width / 2, cos, sin);
        let of_queries = if self.path.relative { rotate_tensor(p.clone(), Some(&turn)) } else { p.clone() };
        let path = PathTensors {
            queries: of_queries.narrow(2, keys - queries, queries),
            keys: turned(p.clone(), &turn, self.epsilon),
            slopes: self.path.slopes.clone().into(),
        };
        let mask = AttentionMask {
            lengths: self.lengths.clone().map(Into::into),
            ..AttentionMask::from(Mask::Causal { window: self.window })
        };
        let context = ScoreContext { mask, path: Some(path), ..ScoreContext::default() };
        let scoring = Scoring { sinks: sinks.clone(), ..Scoring::from(self.scale) };
        let [own_k, own_v] = [&k, &v].map(Tensor::clone);
        let out = kerple_burn::ops::attention::attention(q.clone(), own_k, own_v, scoring, &context, implementation);
        let gradients = (out.clone() * tensor(&self.d_out, of_q, &device).detach()).sum().backward();
        let of = |x: &Tensor<4>| x.grad(&gradients).map(numbers).unwrap_or_default();
        [
            ("out", numbers(out)),
            ("grad_q", of(&q)),
            ("grad_k", of(&k)),
            ("grad_v", of(&v)),
            ("grad_p", of(&p)),
            ("grad_sigma", sinks.and_then(|sinks| sinks.grad(&gradients)).map(numbers).unwrap_or_default()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::ReferenceFolder;

    /// Its name, and what it does to the inputs of the engine.
    type Mistake = (&'static str, fn(&mut GrapeLayer));

    const MISTAKES: [Mistake; 6] = [
        ("queries turned where they are not, or not where they are", |layer| layer.path.relative ^= true),
        ("another rounding in the root", |layer| layer.epsilon = 1e-3),
        ("slopes of one more head", |layer| {
            let heads = layer.dims.heads;
            layer.path.slopes = alibi::slopes(heads + 1)[..heads].to_vec();
        }),
        ("features of the first head of a group", |layer| {
            let (of_head, group) = (layer.dims.keys * layer.path.width, layer.dims.heads / layer.dims.kv_heads);
            let all = layer.p.clone();
            for (h, head) in layer.p.chunks_mut(of_head).enumerate() {
                head.copy_from_slice(&all[h / group * group * of_head..][..of_head]);
            }
        }),
        ("no sink", |layer| layer.sinks = None),
        ("a window of one more", |layer| layer.window = layer.window.map(|window| window + 1)),
    ];

    #[test]
    fn mistakes_are_caught() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../reference/positions2026");
        let folder = ReferenceFolder::open(&path).unwrap();
        let cases: Vec<Case> = Case::all(&folder).filter(|case| case.get("static")["family"] == "grape_ap").collect();
        assert!(!cases.is_empty());
        for (name, mistake) in MISTAKES {
            let caught = cases.iter().any(|case| {
                let mut layer = GrapeLayer::read(case).unwrap();
                let out = |layer: &GrapeLayer| {
                    let [(_, found), ..] = layer.slices::<f64>(true);
                    let expected = case.expected("out").unwrap();
                    found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
                };
                assert!(out(&layer) < 1e-9, "{}", case.id());
                mistake(&mut layer);
                out(&layer) > 1e-6
            });
            assert!(caught, "{name}");
        }
    }
}
