//! Whole attention layers of Inkling, from normed rows: at once, and some tokens after others with a cache.

use super::compare;
use crate::case::Case;
use crate::clocks::engines::{numbers, tensor};
use crate::{CaseComparison, CaseResult, Checked};
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{DType, Device, Tensor};
use kerple_burn::attention_context::AttentionContext;
use kerple_burn::forward_context::ForwardContext;
use kerple_burn::implementation::Impl;
use kerple_burn::layers::{LayerInit, SelfAttention};
use kerple_burn::ops::ResidualBase;
use kerple_burn::plan::{BlockConfig, BlockSizes, NormKind};
use kerple_burn::positional_encoding::PositionalEncoding;
use kerple_core::encoding::{Encoding, Geometry};
use rand_chacha::ChaCha8Rng;
use serde_json::json;

/// A layer as transformers has it: matrices are `[out, in]`.
struct InklingAttention {
    batch: usize,
    len: usize,
    width: usize,
    heads: [usize; 2],
    head_dim: usize,
    plan: BlockConfig,
    encoding: Encoding,
    lengths: Option<Vec<usize>>,
    x: Vec<f64>,
    d_out: Vec<f64>,
}

/// The layer, its positions, and what it computes in.
struct BuiltLayer {
    attention: SelfAttention,
    encoding: PositionalEncoding,
    device: Device,
    dtype: DType,
}

/// Every parameter in another type.
struct Cast(DType);

impl ModuleMapper for Cast {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|old| old.cast(self.0).detach().require_grad())
    }
}

pub(super) fn run(case: &Case) -> CaseResult {
    let layer = InklingAttention::read(case)?;
    let mut comparisons = Vec::new();
    for (engine, implementation) in [("burn reference f64", Impl::Reference), ("burn fused f64", Impl::Kernel)] {
        let named = layer.at_once(case, implementation)?;
        comparisons.push(compare(case, engine, &named, false)?);
    }
    let Some(chunks) = case.setting("chunks").as_array() else { return Ok(comparisons) };
    let chunks: Option<Vec<usize>> = chunks.iter().map(|chunk| chunk.as_u64().map(|chunk| chunk as usize)).collect();
    let chunks =
        chunks.filter(|chunks| chunks.iter().sum::<usize>() == layer.len).ok_or("chunks of the whole length")?;
    for (engine, dtype, tolerance) in [
        ("cached f64", DType::F64, case.tolerance("f64_arrays")),
        ("cached f32", DType::F32, case.tolerance("if_you_compute_in_f32")),
    ] {
        let mut comparison = CaseComparison::new(engine);
        case.compare(&mut comparison, "out", &layer.by_chunks(case, &chunks, dtype)?, tolerance)?;
        comparisons.push(comparison);
    }
    Ok(comparisons)
}

/// `[rows, columns]` as `[columns, rows]`.
fn transposed(x: &[f64], columns: usize) -> Vec<f64> {
    let rows = x.len() / columns.max(1);
    (0..x.len()).map(|at| x[at % rows * columns + at / rows]).collect()
}

impl InklingAttention {
    fn read(case: &Case) -> Checked<InklingAttention> {
        let [batch, len, width] = case.shape("x")?;
        let size = |key: &str| case.size_from(key, 1);
        let (heads, head_dim) = ([size("H")?, size("KV")?], size("D")?);
        let plan = BlockConfig {
            norm: NormKind::Rms,
            norm_eps: case.number("norm_eps")?,
            qkv_bias: false,
            out_bias: false,
            n_kv_heads: Some(heads[1]),
            qk_norm: true,
            attn_scale: Some(case.number("scale")?),
            short_conv: Some(size("conv_width")?),
            ..BlockConfig::default()
        };
        let mut keys = json!({ "kind": "inkling", "rank": size("rank")?, "reach": size("reach")?, "share": "layer" });
        if let Some(floor) = case.optional_number("log_scale_floor") {
            keys["log_scale"] = json!({ "floor": floor, "alpha": case.number("log_scale_alpha")? });
        }
        if let Some(window) = case.optional_number("window") {
            keys["window"] = json!(window as usize);
        }
        let encoding = serde_json::from_value(keys).map_err(|error| error.to_string())?;
        let length = |value: &serde_json::Value| value.as_u64().map(|length| length as usize);
        let lengths = case.setting("lengths").as_array().and_then(|all| all.iter().map(length).collect());
        let (x, d_out) = (case.input("x")?, case.input("dout")?);
        Ok(InklingAttention { batch, len, width, heads, head_dim, plan, encoding, lengths, x, d_out })
    }

    /// Where each row of the three projections is in the packed one: `[H D]`, `[G D]` and `[G D]`.
    fn packed(&self) -> [Vec<usize>; 3] {
        let ([heads, groups], d) = (self.heads, self.head_dim);
        let of = |part: usize, count: usize| {
            let place = |row: usize| match heads == groups {
                true => row / d * 3 * d + part * d + row % d,
                false => [0, heads * d, (heads + groups) * d][part] + row,
            };
            (0..count * d).map(place).collect::<Vec<usize>>()
        };
        [of(0, heads), of(1, groups), of(2, groups)]
    }

    fn build(&self, case: &Case, dtype: DType) -> Checked<BuiltLayer> {
        let device = Device::flex().autodiff();
        let ([heads, groups], d, width) = (self.heads, self.head_dim, self.width);
        let sizes = BlockSizes { d_model: width, n_heads: heads, head_dim: d, d_hidden: 1 };
        let mut init = LayerInit::<ChaCha8Rng> {
            rng: None,
            kind: self.plan.init,
            std: 0.0,
            std_out: 0.0,
            device: &device,
            dtype: DType::F64,
        };
        let mut attention = SelfAttention::new(&self.plan, &sizes, 0, &mut init);
        attention.norm = None;
        let rows = (heads + 2 * groups) * d;
        let mut qkv = vec![0.0; rows * width];
        for (name, places) in ["q_proj.weight", "k_proj.weight", "v_proj.weight"].into_iter().zip(self.packed()) {
            let weight = case.param(name)?;
            if weight.len() != places.len() * width {
                return Err(format!("params.{name} has {} numbers", weight.len()));
            }
            for (row, place) in weight.chunks(width).zip(places) {
                row.iter().enumerate().for_each(|(at, value)| qkv[at * rows + place] = *value);
            }
        }
        let inner = heads * d;
        let matrix = |values: Vec<f64>, shape: [usize; 2]| match values.len() == shape[0] * shape[1] {
            true => Ok(Param::from_tensor(tensor(&values, shape, &device))),
            false => Err(format!("{} numbers are not {shape:?}", values.len())),
        };
        let vector =
            |name: &str| case.param(name).map(|values| Param::from_tensor(tensor(&values, [values.len()], &device)));
        let filter = |name: &str| matrix(case.param(name)?, [groups * d, self.plan.short_conv.unwrap_or_default()]);
        attention.qkv.weight = matrix(qkv, [width, rows])?;
        attention.out.weight = matrix(transposed(&case.param("o_proj.weight")?, inner), [inner, width])?;
        attention.q_norm = Some(vector("q_norm.weight")?);
        attention.k_norm = Some(vector("k_norm.weight")?);
        attention.k_conv = Some(filter("k_sconv.conv1d.weight")?);
        attention.v_conv = Some(filter("v_sconv.conv1d.weight")?);
        // that of the branch is no part of the layer
        attention.out_conv = None;
        let geometry = Geometry { d_model: width, ..Geometry::new(heads, d, self.len) };
        let mut encoding = PositionalEncoding::new(&self.encoding, &geometry, 1, 0, &device);
        let values = [transposed(&case.param("r_proj.weight")?, width), case.param("rel_logits_proj.proj")?];
        let own = values.map(|values| Param::from_tensor(tensor(&values, [values.len()], &device)));
        encoding.layers[0] = own.to_vec();
        let mut cast = Cast(dtype);
        Ok(BuiltLayer { attention: attention.map(&mut cast), encoding: encoding.map(&mut cast), device, dtype })
    }

    /// Output and every gradient, by the names of the case.
    fn at_once(&self, case: &Case, implementation: Impl) -> Checked<[(&'static str, Vec<f64>); 12]> {
        let layer = self.build(case, DType::F64)?;
        let shape = [self.batch, self.len, self.width];
        let x = tensor(&self.x, shape, &layer.device);
        let context = layer.context([self.len, self.len], implementation);
        let context = context.with_lengths(self.lengths.clone().map(Into::into));
        let nothing = ResidualBase::Beside(x.zeros_like());
        let out = layer.attention.forward(x.clone(), nothing, &context, implementation);
        let gradients = (out.clone() * tensor(&self.d_out, shape, &layer.device).detach()).sum().backward();
        let of = |param: &Param<Tensor<2>>| param.val().grad(&gradients).map(numbers).unwrap_or_default();
        let of_vector = |param: &Param<Tensor<1>>| param.val().grad(&gradients).map(numbers).unwrap_or_default();
        let attention = &layer.attention;
        let packed = transposed(&of(&attention.qkv.weight), self.packed().concat().len());
        let [d_q, d_k, d_v] = self.packed().map(|places| {
            places.iter().flat_map(|place| packed[place * self.width..][..self.width].to_vec()).collect::<Vec<f64>>()
        });
        let of_rows = &layer.encoding.layers[0];
        let mut out = numbers(out);
        for (batch, length) in self.lengths.iter().flatten().enumerate() {
            // padded rows count for nothing, and are written as 0
            out[(batch * self.len + length) * self.width..(batch + 1) * self.len * self.width].fill(0.0);
        }
        let some = |own: &Option<Param<Tensor<2>>>| own.as_ref().map(of).unwrap_or_default();
        let some_vector = |own: &Option<Param<Tensor<1>>>| own.as_ref().map(of_vector).unwrap_or_default();
        Ok([
            ("out", out),
            ("grad_x", x.grad(&gradients).map(numbers).unwrap_or_default()),
            ("grad_q_proj.weight", d_q),
            ("grad_k_proj.weight", d_k),
            ("grad_v_proj.weight", d_v),
            ("grad_o_proj.weight", transposed(&of(&attention.out.weight), self.width)),
            ("grad_r_proj.weight", transposed(&of_vector(&of_rows[0]), of_rows[0].val().dims()[0] / self.width)),
            ("grad_rel_logits_proj.proj", of_vector(&of_rows[1])),
            ("grad_k_sconv.conv1d.weight", some(&attention.k_conv)),
            ("grad_v_sconv.conv1d.weight", some(&attention.v_conv)),
            ("grad_q_norm.weight", some_vector(&attention.q_norm)),
            ("grad_k_norm.weight", some_vector(&attention.k_norm)),
        ])
    }

    /// The output of so many tokens after others, with a cache.
    fn by_chunks(&self, case: &Case, chunks: &[usize], dtype: DType) -> Checked<Vec<f64>> {
        let layer = self.build(case, dtype)?;
        let x = tensor(&self.x, [self.batch, self.len, self.width], &layer.device).cast(dtype).detach();
        let attention = layer.attention.clone().map(&mut Inner);
        let mut cache = attention.kv_cache(self.batch, Impl::Kernel);
        let (mut parts, mut seen) = (Vec::new(), 0);
        for chunk in chunks {
            let x = x.clone().inner().narrow(1, seen, *chunk);
            seen += chunk;
            let context = layer.context([*chunk, seen], Impl::Kernel);
            let nothing = ResidualBase::Beside(x.zeros_like());
            parts.push(attention.extend(x, nothing, &context, &mut cache, Impl::Kernel));
        }
        Ok(numbers(Tensor::cat(parts, 1)))
    }
}

/// Every parameter outside autodiff.
struct Inner;

impl ModuleMapper for Inner {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        Param::from_tensor(param.val().inner())
    }
}

impl BuiltLayer {
    fn context(&self, lens: [usize; 2], implementation: Impl) -> AttentionContext {
        let pass = ForwardContext::evaluation(0);
        self.encoding.attention_context(0, lens, (&self.device, self.dtype), implementation, &pass)
    }
}
