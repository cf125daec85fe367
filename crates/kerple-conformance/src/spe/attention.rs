//! Feature maps and linear attention of both published codes.

use super::rows::images;
use crate::case::Case;
use crate::{CaseComparison, CaseResult, Checked};
use kerple_core::Number;
use kerple_core::attention::linear::{
    DenominatorGuard, LinearAttentionDims, LinearAttentionInputs, LinearAttentionProblem, LinearMask, forward, naive,
};
use kerple_core::attention::{Strides, View, ViewMut};
use kerple_core::features::{
    CodeGate, Favor, FavorFeatures, FeatureMap, Gating, NoiseTable, Normals, Offset, Pointwise, Project, RowKind,
    SineCode, SineShape, Waves,
};

/// Suggested with the reference values for attention in single precision.
const SINGLE: f64 = 1e-4;

/// As the decoders of SPE use it.
pub const CAUSAL: LinearMasking =
    LinearMasking { reach: LinearMask::Causal, lengths: None, guard: DenominatorGuard::Add(1e-6) };

/// One way to compute linear attention.
#[derive(Clone, Copy)]
struct LinearEngine {
    name: &'static str,
    chunked: bool,
    /// The tolerance that single precision needs.
    single: Option<f64>,
}

/// Runs the reference and the chunked engine in double precision, and the latter in single precision.
fn on_every_engine(
    double: impl Fn(LinearEngine) -> Checked<CaseComparison>,
    single: impl Fn(LinearEngine) -> Checked<CaseComparison>,
) -> CaseResult {
    Ok(vec![
        double(LinearEngine { name: "definition", chunked: false, single: None })?,
        double(LinearEngine { name: "chunked f64", chunked: true, single: None })?,
        single(LinearEngine { name: "chunked f32", chunked: true, single: Some(SINGLE) })?,
    ])
}

/// Which keys a query attends to, and what keeps its denominator above 0.
#[derive(Clone, Copy)]
pub struct LinearMasking<'a> {
    pub reach: LinearMask,
    pub lengths: Option<&'a [usize]>,
    pub guard: DenominatorGuard,
}

/// Queries, keys and values of a case, `[B, L, H, D]`.
pub struct LinearRows {
    pub q: Vec<f64>,
    pub k: Vec<f64>,
    pub v: Vec<f64>,
    pub dims: LinearAttentionDims,
}

impl LinearRows {
    fn read(case: &Case) -> Checked<LinearRows> {
        let [batch, len, heads, head_dim] = case.shape("q")?;
        let [.., value_dim] = case.shape::<4>("v")?;
        let dims = LinearAttentionDims { batch, heads, len, head_dim, value_dim };
        Ok(LinearRows { q: case.input("q")?, k: case.input("k")?, v: case.input("v")?, dims })
    }

    /// The output of linear attention, `[B, L, H, value_dim]`.
    pub fn attend<T: Number>(
        &self,
        maps: &[&dyn FeatureMap<T>],
        LinearMasking { reach, lengths, guard }: LinearMasking,
        chunked: bool,
    ) -> Vec<f64> {
        let LinearAttentionDims { batch, heads, len, head_dim, value_dim } = self.dims;
        let cast = |values: &[f64]| values.iter().map(|value| T::from_f64(*value)).collect::<Vec<T>>();
        let (q, k, v) = (cast(&self.q), cast(&self.k), cast(&self.v));
        let strides = |d: usize| Strides { batch: len * heads * d, head: d, row: heads * d };
        let view = |data, d| View { data, strides: strides(d) };
        let inputs = LinearAttentionInputs { q: view(&q, head_dim), k: view(&k, head_dim), v: view(&v, value_dim) };
        let (dims, documents, decay, gates) = (self.dims, None, None, None);
        let problem = LinearAttentionProblem { dims, reach, lengths, documents, maps, decay, gates, guard };
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
type NamedMaps<T> = Vec<(&'static str, Vec<Box<dyn FeatureMap<T>>>)>;

fn borrowed<T>(maps: &[Box<dyn FeatureMap<T>>]) -> Vec<&dyn FeatureMap<T>> {
    maps.iter().map(|map| &**map).collect()
}

/// The largest `|x|^2 / sqrt(D)` over the positions of each head of each sequence, `[B, H]`.
fn largest_squares(rows: &LinearRows, x: &[f64]) -> Vec<f64> {
    let LinearAttentionDims { batch, heads, len, head_dim, .. } = rows.dims;
    let square = |row: usize| x[row * head_dim..][..head_dim].iter().map(|x| x * x).sum::<f64>();
    let largest = |unit: usize| {
        (0..len).map(|l| square((unit / heads * len + l) * heads + unit % heads)).fold(0.0, f64::max)
            / (head_dim as f64).sqrt()
    };
    (0..batch * heads).map(largest).collect()
}

fn fast_transformers_maps<T: Number>(case: &Case, rows: &LinearRows) -> Checked<NamedMaps<T>> {
    let LinearAttentionDims { heads, head_dim: d, .. } = rows.dims;
    let (omega, omega_relu) = (case.input("omega")?, case.input("omega_relu")?);
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
pub fn fast_transformers(case: &Case) -> CaseResult {
    let rows = LinearRows::read(case)?;
    let lengths: Vec<usize> = case.input("key_lengths")?.iter().map(|length| *length as usize).collect();
    fn engine<T: Number>(
        case: &Case,
        rows: &LinearRows,
        lengths: &[usize],
        LinearEngine { name, chunked, single }: LinearEngine,
    ) -> Checked<CaseComparison> {
        let mut comparison = CaseComparison::new(name);
        let sizes = [rows.dims.batch, rows.dims.len, rows.dims.heads];
        for (map, maps) in fast_transformers_maps::<T>(case, rows)? {
            let maps = borrowed(&maps);
            for (key, side, x) in [("phi_q", RowKind::Query, &rows.q), ("phi_k", RowKind::Key, &rows.k)] {
                let key = format!("{key}.{map}");
                if case.has(&key) {
                    case.compare_to_largest(&mut comparison, &key, &images(&maps, side, sizes, x), single)?;
                }
            }
            for (key, reach, lengths) in [
                ("causal", LinearMask::Causal, None),
                ("causal_masked", LinearMask::Causal, Some(lengths)),
                ("bidir", LinearMask::Bidirectional, None),
            ] {
                let key = format!("{key}.{map}");
                if case.has(&key) {
                    let out = rows.attend(
                        &maps,
                        LinearMasking { reach, lengths, guard: DenominatorGuard::Add(1e-6) },
                        chunked,
                    );
                    case.compare_to_largest(&mut comparison, &key, &out, single)?;
                }
            }
        }
        Ok(comparison)
    }
    on_every_engine(
        |with| engine::<f64>(case, &rows, &lengths, with),
        |with| engine::<f32>(case, &rows, &lengths, with),
    )
}

/// `attn_jax_*`. The trigonometric features, which are not positive and which no experiment of SPE uses, are left out.
pub fn performer(case: &Case) -> CaseResult {
    let rows = LinearRows::read(case)?;
    let [m, d] = case.shape("proj")?;
    let proj = case.input("proj")?;
    let omega: Vec<f64> = (0..m * d).map(|at| proj[at % m * d + at / m]).collect();
    fn engine<T: Number>(
        case: &Case,
        rows: &LinearRows,
        omega: &[f64],
        LinearEngine { name, chunked, single }: LinearEngine,
    ) -> Checked<CaseComparison> {
        let LinearAttentionDims { batch, heads, len, head_dim: d, .. } = rows.dims;
        let (m, mut comparison) = (omega.len() / d, CaseComparison::new(name));
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
                if case.has(&key) {
                    let phi = heads_first(&images(&maps, side, [batch, len, heads], x), [batch, len, heads]);
                    case.compare_to_largest(&mut comparison, &key, &phi, single)?;
                }
            }
            for (key, reach) in [("causal", LinearMask::Causal), ("bidir", LinearMask::Bidirectional)] {
                let key = format!("out_{map}.{key}");
                if case.has(&key) {
                    case.compare_to_largest(
                        &mut comparison,
                        &key,
                        &rows.attend(&maps, LinearMasking { reach, lengths: None, guard }, chunked),
                        single,
                    )?;
                }
            }
        }
        Ok(comparison)
    }
    on_every_engine(|with| engine::<f64>(case, &rows, &omega, with), |with| engine::<f32>(case, &rows, &omega, with))
}

/// A gated sinusoidal code, FAVOR+, and causal attention.
pub fn pipeline(case: &Case) -> CaseResult {
    let rows = LinearRows::read(case)?;
    fn engine<T: Number>(
        case: &Case,
        rows: &LinearRows,
        LinearEngine { name, chunked, single }: LinearEngine,
    ) -> Checked<CaseComparison> {
        let (waves, realisations) = (case.size("K")?, case.size("R")?);
        let shape = SineShape { heads: rows.dims.heads, head_dim: rows.dims.head_dim, waves, realisations };
        let (freqs, offsets, gains) = (case.input("freqs")?, case.input("offsets")?, case.input("gains")?);
        let noise = Normals::Table(NoiseTable { values: case.input("noise")?, rows: 2 * waves, width: realisations });
        let gates = case.input("gate")?;
        let gate = CodeGate { values: &gates, noise: case.input("gate_noise")?, gating: Gating::Torch };
        let learned = Waves { freqs: &freqs, offsets: &offsets, gains: &gains };
        let sine = SineCode::<T>::new(shape, learned, &noise, Some(&gate));
        let omega = case.input("omega")?;
        let sizes = [realisations, omega.len() / realisations];
        let favor = Favor::<T>::new(&omega, sizes, FavorFeatures::BothSigns).with(Offset::None, Offset::None, 0.0);
        let mut comparison = CaseComparison::new(name);
        let out = rows.attend(&[&sine, &favor], CAUSAL, chunked);
        case.compare_to_largest(&mut comparison, "out", &out, single)?;
        Ok(comparison)
    }
    on_every_engine(|with| engine::<f64>(case, &rows, with), |with| engine::<f32>(case, &rows, with))
}
