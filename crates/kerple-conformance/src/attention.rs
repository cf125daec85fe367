//! `attn/*`: outputs and every gradient of whole attention layers, in every engine.

use crate::Score;
use crate::engines::Answer;
use crate::folder::{Case, Folder, Numbers};
use crate::layer::Layer;
use crate::tables::method;
use burn::tensor::DType;
use kerple_core::attention::AttentionDims;
use kerple_core::encoding::Geometry;

fn layer(folder: &Folder, case: &Case) -> Result<Layer, String> {
    let name = case.id().split('/').nth(1).unwrap_or_default();
    let q = case.numbers(folder, "inputs", "q")?;
    let &[batch, heads, len, head_dim] = q.shape.as_slice() else { return Err("q is not [B, H, L, D]".to_owned()) };
    let (encoding, names) = method(name, case)?;
    let read = |key: &str| case.numbers(folder, "inputs", key).map(|numbers| numbers.values);
    let values: Result<_, String> = names.iter().map(|name| Ok(case.numbers(folder, "params", name)?.values)).collect();
    Ok(Layer {
        encoding,
        geometry: Geometry::new(heads, head_dim, len),
        names,
        values: values?,
        dims: AttentionDims { batch, heads, kv_heads: heads, queries: len, keys: len, head_dim },
        k: read("k")?,
        v: read("v")?,
        d_out: read("dout")?,
        q: q.values,
    })
}

pub fn run(folder: &Folder, case: &Case) -> Result<Vec<Score>, String> {
    let layer = layer(folder, case)?;
    let mut engines: Vec<(&str, bool, Answer)> = vec![
        ("naive f64", true, layer.slices::<f64>(false)),
        ("naive f32", false, layer.slices::<f32>(false)),
        ("tiled f64", true, layer.slices::<f64>(true)),
        ("tiled f32", false, layer.slices::<f32>(true)),
        ("burn composed f64", true, layer.burn(false)),
        ("burn fused f64", true, layer.burn(true)),
    ];
    if let Some((device, name)) = folder.device() {
        engines.push((name, false, layer.burn_on((device, DType::F32), true)));
    }
    let tolerance = |double: bool, expected: &Numbers| match (double, expected.double) {
        (false, _) => case.tolerance("if_you_compute_in_f32"),
        (true, true) => case.tolerance("f64_arrays"),
        (true, false) => case.tolerance("f32_arrays"),
    };
    let score = |(engine, double, answer): &(&str, bool, Answer)| {
        layer.score(engine, answer, folder, case, |_, expected| tolerance(*double, expected))
    };
    engines.iter().map(score).collect()
}
