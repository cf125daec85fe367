//! Feature maps and linear attention of both published codes.

use super::Values;
use super::rows::images;
use crate::Score;
use crate::folder::{Case, Folder};
use kerple_core::Number;
use kerple_core::attention::linear::{
    DenominatorGuard, LinearAttentionDims, LinearAttentionInputs, LinearAttentionProblem, LinearMask, forward, naive,
};
use kerple_core::attention::{Strides, View, ViewMut};
use kerple_core::features::{
    CodeGate, Favor, FavorFeatures, FeatureMap, Gating, NoiseTable, Normals, Offset, Pointwise, Project, RowKind,
    SineCode, SineShape, Waves,
};

type Scores = Result<Vec<Score>, String>;

/// Suggested with the reference values for attention in single precision.
const SINGLE: f64 = 1e-4;

/// Queries, keys and values of a case, `[B, L, H, D]`.
pub struct Rows {
    pub q: Vec<f64>,
    pub k: Vec<f64>,
    pub v: Vec<f64>,
    pub dims: LinearAttentionDims,
}

impl Rows {
    fn read(values: &Values) -> Result<Rows, String> {
        let [batch, len, heads, head_dim] = values.sizes("q")?;
        let [.., value_dim] = values.sizes::<4>("v")?;
        let dims = LinearAttentionDims { batch, heads, len, head_dim, value_dim };
        Ok(Rows { q: values.of("q")?, k: values.of("k")?, v: values.of("v")?, dims })
    }

    /// The output of linear attention, `[B, L, H, value_dim]`.
    pub fn attend<T: Number>(
        &self,
        maps: &[&dyn FeatureMap<T>],
        (reach, lengths, guard): (LinearMask, Option<&[usize]>, DenominatorGuard),
        chunked: bool,
    ) -> Vec<f64> {
        let LinearAttentionDims { batch, heads, len, head_dim, value_dim } = self.dims;
        let cast = |values: &[f64]| values.iter().map(|value| T::from_f64(*value)).collect::<Vec<T>>();
        let (q, k, v) = (cast(&self.q), cast(&self.k), cast(&self.v));
        let strides = |d: usize| Strides { batch: len * heads * d, head: d, row: heads * d };
        let view = |data, d| View { data, strides: strides(d) };
        let inputs = LinearAttentionInputs { q: view(&q, head_dim), k: view(&k, head_dim), v: view(&v, value_dim) };
        let problem = LinearAttentionProblem { dims: self.dims, reach, lengths, maps, decay: None, gates: None, guard };
        let (mut out, mut denominators) = (vec![T::ZERO; v.len()], vec![T::ZERO; batch * heads * len]);
        let run = if chunked { forward::<T> } else { naive::forward::<T> };
        run(&problem, inputs, ViewMut::new(&mut out, strides(value_dim)), &mut denominators);
        out.into_iter().map(Number::to_f64).collect()
    }
}

/// `[B, L, H, M]` as `[B, H, L, M]`.
fn heads_first(x: &[f64], [batch, len, heads]: [usize; 3]) -> Vec<f64> {
    let width = x.len() / (batch * len * heads);
    let row = |at: usize| ((at / (heads * len)) * len + at % len) * heads + at / len % heads;
    (0..batch * heads * len).flat_map(|at| x[row(at) * width..][..width].iter().copied()).collect()
}

/// Maps by the names of a case.
type Named<T> = Vec<(&'static str, Vec<Box<dyn FeatureMap<T>>>)>;

fn borrowed<T>(maps: &[Box<dyn FeatureMap<T>>]) -> Vec<&dyn FeatureMap<T>> {
    maps.iter().map(|map| &**map).collect()
}

/// The largest `|x|^2 / sqrt(D)` over the positions of each head of each sequence, `[B, H]`.
fn largest_squares(rows: &Rows, x: &[f64]) -> Vec<f64> {
    let LinearAttentionDims { batch, heads, len, head_dim, .. } = rows.dims;
    let square = |row: usize| x[row * head_dim..][..head_dim].iter().map(|x| x * x).sum::<f64>();
    let largest = |unit: usize| {
        (0..len).map(|l| square((unit / heads * len + l) * heads + unit % heads)).fold(0.0, f64::max)
            / (head_dim as f64).sqrt()
    };
    (0..batch * heads).map(largest).collect()
}

fn fast_transformers_maps<T: Number>(values: &Values, rows: &Rows) -> Result<Named<T>, String> {
    let LinearAttentionDims { heads, head_dim: d, .. } = rows.dims;
    let (omega, omega_relu) = (values.of("omega")?, values.of("omega_relu")?);
    let (m, n_dims) = (omega.len() / d, omega_relu.len() / d);
    let favor = || Favor::<T>::new(&omega, [d, m], FavorFeatures::BothSigns);
    let given = |x: &[f64]| {
        let values = largest_squares(rows, x).into_iter().map(T::from_f64).collect();
        Offset::Given { values, heads }
    };
    Ok(vec![
        ("favor", vec![Box::new(favor().with(Offset::None, Offset::None, 0.0))]),
        ("favor_stab", vec![Box::new(favor().with(given(&rows.q), given(&rows.k), 0.0))]),
        (
            "relu_rf",
            vec![
                Box::new(Project::new(&omega_relu, [d, n_dims], 1.0)),
                Box::new(Pointwise::Relu { width: n_dims, shift: 0.0 }),
            ],
        ),
        ("elu", vec![Box::new(Pointwise::Elu { width: d })]),
    ])
}

/// `attn_ft_*`: features, causal with and without padding, and both directions.
pub fn fast_transformers(folder: &Folder, case: &Case) -> Scores {
    let values = Values { folder, case };
    let rows = Rows::read(&values)?;
    let lengths: Vec<usize> = values.of("key_lengths")?.iter().map(|length| *length as usize).collect();
    fn engine<T: Number>(
        (values, rows, lengths): (&Values, &Rows, &[usize]),
        (name, chunked, single): (&str, bool, Option<f64>),
    ) -> Result<Score, String> {
        let mut score = Score::new(name);
        let sizes = [rows.dims.batch, rows.dims.len, rows.dims.heads];
        for (map, maps) in fast_transformers_maps::<T>(values, rows)? {
            let maps = borrowed(&maps);
            for (key, side, x) in [("phi_q", RowKind::Query, &rows.q), ("phi_k", RowKind::Key, &rows.k)] {
                let key = format!("{key}.{map}");
                if values.has(&key) {
                    values.compare(&mut score, &key, &images(&maps, side, sizes, x), single)?;
                }
            }
            for (key, reach, lengths) in [
                ("causal", LinearMask::Causal, None),
                ("causal_masked", LinearMask::Causal, Some(lengths)),
                ("bidir", LinearMask::Bidirectional, None),
            ] {
                let key = format!("{key}.{map}");
                if values.has(&key) {
                    let out = rows.attend(&maps, (reach, lengths, DenominatorGuard::Add(1e-6)), chunked);
                    values.compare(&mut score, &key, &out, single)?;
                }
            }
        }
        Ok(score)
    }
    let inputs = (&values, &rows, &lengths[..]);
    Ok(vec![
        engine::<f64>(inputs, ("definition", false, None))?,
        engine::<f64>(inputs, ("chunked f64", true, None))?,
        engine::<f32>(inputs, ("chunked f32", true, Some(SINGLE)))?,
    ])
}

/// `attn_jax_*`. The trigonometric features, which are not positive and which no experiment of SPE uses, are left out.
pub fn performer(folder: &Folder, case: &Case) -> Scores {
    let values = Values { folder, case };
    let rows = Rows::read(&values)?;
    let [m, d] = values.sizes("proj")?;
    let proj = values.of("proj")?;
    let omega: Vec<f64> = (0..m * d).map(|at| proj[at % m * d + at / m]).collect();
    fn engine<T: Number>(
        (values, rows, omega): (&Values, &Rows, &[f64]),
        (name, chunked, single): (&str, bool, Option<f64>),
    ) -> Result<Score, String> {
        let LinearAttentionDims { batch, heads, len, head_dim: d, .. } = rows.dims;
        let (m, mut score) = (omega.len() / d, Score::new(name));
        let project = Project::<f64>::new(omega, [d, m], (d as f64).powf(-0.25));
        let exponents = images(&[&project], RowKind::Key, [batch, len, heads], &rows.k);
        // one number for the whole tensor
        let largest = T::from_f64(exponents.into_iter().fold(f64::NEG_INFINITY, f64::max));
        let keys = Offset::Given { values: vec![largest; batch * heads], heads };
        let favor =
            Favor::<T>::new(omega, [d, m], FavorFeatures::Positive).with(Offset::Row, keys, 1e-6 / (m as f64).sqrt());
        let project = Project::<T>::new(omega, [d, m], 1.0);
        let (relu, relu_proj) = (Pointwise::Relu { width: d, shift: 1e-3 }, Pointwise::Relu { width: m, shift: 1e-3 });
        let all: [(&str, Vec<&dyn FeatureMap<T>>, DenominatorGuard); 3] = [
            ("softmax", vec![&favor], DenominatorGuard::Small(1e-6)),
            ("relu_det", vec![&relu], DenominatorGuard::Nothing),
            ("relu_proj", vec![&project, &relu_proj], DenominatorGuard::Nothing),
        ];
        for (map, maps, guard) in all {
            for (key, side, x) in [("phi_q", RowKind::Query, &rows.q), ("phi_k", RowKind::Key, &rows.k)] {
                let key = format!("{key}.{map}");
                if values.has(&key) {
                    let phi = heads_first(&images(&maps, side, [batch, len, heads], x), [batch, len, heads]);
                    values.compare(&mut score, &key, &phi, single)?;
                }
            }
            for (key, reach) in [("causal", LinearMask::Causal), ("bidir", LinearMask::Bidirectional)] {
                let key = format!("out_{map}.{key}");
                if values.has(&key) {
                    values.compare(&mut score, &key, &rows.attend(&maps, (reach, None, guard), chunked), single)?;
                }
            }
        }
        Ok(score)
    }
    let inputs = (&values, &rows, &omega[..]);
    Ok(vec![
        engine::<f64>(inputs, ("definition", false, None))?,
        engine::<f64>(inputs, ("chunked f64", true, None))?,
        engine::<f32>(inputs, ("chunked f32", true, Some(SINGLE)))?,
    ])
}

/// A gated sinusoidal code, FAVOR+, and causal attention.
pub fn pipeline(folder: &Folder, case: &Case) -> Scores {
    let values = Values { folder, case };
    let rows = Rows::read(&values)?;
    fn engine<T: Number>(
        (values, rows): (&Values, &Rows),
        (name, chunked, single): (&str, bool, Option<f64>),
    ) -> Result<Score, String> {
        let (waves, realisations) = (values.size("K")?, values.size("R")?);
        let shape = SineShape { heads: rows.dims.heads, head_dim: rows.dims.head_dim, waves, realisations };
        let (freqs, offsets, gains) = (values.of("freqs")?, values.of("offsets")?, values.of("gains")?);
        let noise = Normals::Table(NoiseTable { values: values.of("noise")?, rows: 2 * waves, width: realisations });
        let gates = values.of("gate")?;
        let gate = CodeGate { values: &gates, noise: values.of("gate_noise")?, gating: Gating::Torch };
        let learned = Waves { freqs: &freqs, offsets: &offsets, gains: &gains };
        let sine = SineCode::<T>::new(shape, learned, &noise, Some(&gate));
        let omega = values.of("omega")?;
        let sizes = [realisations, omega.len() / realisations];
        let favor = Favor::<T>::new(&omega, sizes, FavorFeatures::BothSigns).with(Offset::None, Offset::None, 0.0);
        let mut score = Score::new(name);
        let out = rows.attend(&[&sine, &favor], (LinearMask::Causal, None, DenominatorGuard::Add(1e-6)), chunked);
        values.compare(&mut score, "out", &out, single)?;
        Ok(score)
    }
    let inputs = (&values, &rows);
    Ok(vec![
        engine::<f64>(inputs, ("definition", false, None))?,
        engine::<f64>(inputs, ("chunked f64", true, None))?,
        engine::<f32>(inputs, ("chunked f32", true, Some(SINGLE)))?,
    ])
}
