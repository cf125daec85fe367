//! Linear attention: features of queries and keys instead of a softmax, see [`kerple_core::attention::linear`].

mod documents;
#[cfg(feature = "cube")]
mod gpu;
mod reference;

pub use documents::by_document;
pub use reference::reference;

use crate::attention_context::{AttentionMask, DecayTensors, LinearContext, StochasticCode};
use crate::chunk::Chunk;
use crate::custom_op::{BackwardContext, CustomOp, FloatElement, InputGrads, OpInputs, OpOutput, SavedForBackward};
use crate::forward_context::{CODES, FEATURES, ForwardContext, GATES};
use crate::host_array::HostArray;
use crate::implementation::{DeviceKind, Impl};
use crate::plan::{FeatureKind, LinearAttentionConfig};
use crate::with_element;
use burn::tensor::Tensor;
use kerple_core::attention::linear::{
    self, Decay, DecayGradient, DenominatorGuard, LinearAttentionDims, LinearAttentionGradients,
    LinearAttentionProblem, LinearMask,
};
use kerple_core::attention::{PackedDocuments, Strides, View, ViewMut};
use kerple_core::features::{Favor, FavorFeatures, FeatureMap, Offset, Pointwise, Project, omega};
use kerple_core::forms::{DrawnCode, Mask};
use kerple_core::ops::zeros;
use std::ops::Range;
use std::sync::Arc;

/// Devices that have a kernel for it.
const KERNELS: &[DeviceKind] = &[DeviceKind::Cpu];

/// The settings of a layer of linear attention, in addition to its tensors.
#[derive(Clone, Debug)]
pub struct LinearAttentionSettings {
    /// Features and decays.
    pub plan: LinearAttentionConfig,
    /// Which layer, from 0: each draws for itself.
    pub layer: usize,
}

/// Linear attention of `[B, H, L, D]` queries, keys and values at the same positions, after their rotation. Products are
/// multiplied by the gates between query and key, `[B, H, L]` logarithms, where there are some. On GPUs packed documents become
/// the rows of padded batches.
///
/// # Panics
/// When the rows are a chunk of longer sequences, and no kernel takes them.
pub fn linear_attention(
    [q, k, v]: [Tensor<4>; 3],
    linear: &LinearAttentionSettings,
    mask: &AttentionMask,
    gates: Option<Tensor<3>>,
    context: &LinearContext,
    implementation: Impl,
) -> Tensor<4> {
    if !implementation.has_kernel(KERNELS, &q) {
        assert!(context.chunk.is_none(), "only kernels of the CPU support chunks");
        if implementation.uses_kernels() && mask.documents.is_some() {
            return by_document([q, k, v], mask, gates, context, |rows, mask, gates, context| {
                of_sequences(rows, linear, mask, gates, (context, implementation))
            });
        }
        return of_sequences([q, k, v], linear, mask, gates, (context, implementation));
    }
    let dtype = q.dtype();
    let mut inputs = OpInputs::default();
    let own = [q, k, v].map(|tensor| inputs.add(tensor));
    let LinearContext { code, decay, pass, chunk } = context.clone();
    let code = code.map(|code| CodeInputs { values: inputs.add(code.joined(dtype)), code });
    let decay = decay.map(|decay| DecayInputs::add(&decay, &mut inputs));
    let gates = gates.map(|gates| inputs.add(mask.without_nan_in_padding(gates)));
    let op = LinearAttentionOp {
        own,
        code,
        decay,
        gates,
        linear: linear.clone(),
        pass,
        reach: reach(mask.pattern),
        lengths: mask.lengths.clone(),
        documents: mask.documents.clone(),
        chunk,
    };
    inputs.apply(op)
}

/// Where the CPU's kernel does not run: by the kernels of a GPU, if they take it.
fn of_sequences(
    [q, k, v]: [Tensor<4>; 3],
    linear: &LinearAttentionSettings,
    mask: &AttentionMask,
    gates: Option<Tensor<3>>,
    (context, implementation): (&LinearContext, Impl),
) -> Tensor<4> {
    #[cfg(feature = "cube")]
    if implementation.uses_kernels() && gpu::runs([&q, &v], linear, mask, gates.is_some(), context) {
        return gpu::linear_attention([q, k, v], linear, mask, gates, context);
    }
    #[cfg(not(feature = "cube"))]
    let _ = implementation;
    reference([q, k, v], linear, mask, gates, context)
}

fn reach(pattern: Mask) -> LinearMask {
    match pattern {
        Mask::Causal { window: None } => LinearMask::Causal,
        Mask::Bidirectional { window: None } => LinearMask::Bidirectional,
        Mask::Causal { window: Some(_) }
        | Mask::Bidirectional { window: Some(_) }
        | Mask::CausalWithSinkTokens { .. } => {
            panic!("linear attention has no window: plans with one are refused")
        }
    }
}

/// What keeps denominators of these features from 0: as published with each.
pub(crate) fn guard(kind: FeatureKind) -> DenominatorGuard {
    match kind {
        FeatureKind::Favor | FeatureKind::ReluRf | FeatureKind::Elu => DenominatorGuard::Add(1e-6),
        FeatureKind::FavorJax => DenominatorGuard::Small(1e-6),
        FeatureKind::Relu => DenominatorGuard::Nothing,
    }
}

impl LinearAttentionSettings {
    /// The random projection of this layer in a pass, `[width, columns]`; empty for features without one.
    ///
    /// It is drawn anew every so many updates, and is always the same one in evaluation.
    pub fn omega(&self, width: usize, pass: &ForwardContext) -> Vec<f64> {
        let LinearAttentionConfig {
            feature_map: features,
            n_features: count,
            redraw_every: redraw,
            independent_norms,
            ..
        } = self.plan;
        let published = if independent_norms { omega::ColumnNorms::Drawn } else { omega::ColumnNorms::OfRows };
        let (columns, lengths) = match features {
            FeatureKind::Favor => (count.div_ceil(2), published),
            FeatureKind::ReluRf => (count, published),
            FeatureKind::FavorJax => (count, omega::ColumnNorms::Drawn),
            FeatureKind::Relu | FeatureKind::Elu => return Vec::new(),
        };
        let pass = match (pass.train, pass.step.checked_div(redraw)) {
            (true, Some(draw)) => ForwardContext { step: draw * redraw, ..*pass },
            (true, None) => ForwardContext::evaluation(pass.seed),
            (false, _) => *pass,
        };
        let mut noise = pass.shared_noise(FEATURES + self.layer as u64);
        omega::orthogonal([width, columns], lengths, &mut noise)
    }

    /// The noise of a code, and of its gate.
    pub fn noise(&self, code: &kerple_core::forms::CodeForm, pass: &ForwardContext) -> [rand_chacha::ChaCha8Rng; 2] {
        let layer = self.layer as u64;
        let fixed = ForwardContext { span: pass.span, ..ForwardContext::evaluation(pass.seed) };
        let pass = if code.frozen { &fixed } else { pass };
        let place = if code.shared { CODES } else { CODES + 1 + layer };
        [place, GATES + layer].map(|place| pass.shared_noise(place))
    }
}

/// The maps of a layer in a pass.
#[derive(Clone, Debug)]
pub(crate) struct FeatureMaps<T> {
    code: Option<DrawnCode<T>>,
    features: Vec<Arc<dyn FeatureMap<T>>>,
}

/// Most numbers of noise that a layer holds while it works: 256 MiB in f32.
pub const MAX_NOISE_VALUES: usize = 1 << 26;

impl<T: FloatElement> FeatureMaps<T> {
    /// For rows of `head_dim`; `code` with the values of what it learns.
    pub(crate) fn new(
        linear: &LinearAttentionSettings,
        head_dim: usize,
        code: Option<(&kerple_core::forms::CodeForm, &[Vec<f64>])>,
        pass: &ForwardContext,
    ) -> FeatureMaps<T> {
        let width = code.map_or(head_dim, |(code, _)| code.realisations());
        let code = code.map(|(code, values)| code.drawn(values, linear.noise(code, pass)));
        let omega = linear.omega(width, pass);
        let columns = omega.len() / width;
        let features: Vec<Arc<dyn FeatureMap<T>>> = match linear.plan.feature_map {
            FeatureKind::Favor => vec![Arc::new(Favor::new(&omega, [width, columns], FavorFeatures::BothSigns))],
            FeatureKind::FavorJax => {
                let floor = 1e-6 / (columns as f64).sqrt();
                let favor = Favor::new(&omega, [width, columns], FavorFeatures::Positive).with(
                    Offset::Row,
                    Offset::None,
                    floor,
                );
                vec![Arc::new(favor)]
            }
            FeatureKind::Relu => vec![Arc::new(Pointwise::Relu { width, shift: 1e-3 })],
            FeatureKind::ReluRf => vec![
                Arc::new(Project::new(&omega, [width, columns], 1.0)),
                Arc::new(Pointwise::Relu { width: columns, shift: 0.0 }),
            ],
            FeatureKind::Elu => vec![Arc::new(Pointwise::Elu { width })],
        };
        FeatureMaps { code, features }
    }

    /// The same for sequences of so many positions.
    fn over(self, span: usize) -> FeatureMaps<T> {
        FeatureMaps { code: self.code.map(|code| code.over(span)), ..self }
    }

    /// Holds the noise of these positions while there is room for it.
    pub(crate) fn hold(&mut self, positions: Range<usize>) {
        if let Some(code) = &mut self.code {
            code.hold(positions, MAX_NOISE_VALUES);
        }
    }

    pub(crate) fn chain(&self) -> Vec<&dyn FeatureMap<T>> {
        self.code.iter().map(DrawnCode::map).chain(self.features.iter().map(|map| &**map)).collect()
    }
}

/// A decay in the type of an operation.
#[derive(Clone, Copy)]
pub(crate) struct DecaySlices<'a, T> {
    pub(crate) near: &'a [T],
    pub(crate) weights: &'a [T],
    pub(crate) rates: &'a [f64],
}

impl<'a, T: FloatElement> DecaySlices<'a, T> {
    pub(crate) fn decay(self, heads: usize) -> Decay<'a, T> {
        let DecaySlices { near, weights, rates } = self;
        Decay { near_len: near.len() / heads, near, terms: weights.len() / heads, rates, weights }
    }
}

/// Where the tables of a decay are among the inputs.
#[derive(Debug)]
struct DecayInputs {
    near: usize,
    /// Weights, with their rates.
    beyond: Option<(usize, Arc<[f64]>)>,
}

impl DecayInputs {
    fn add(decay: &DecayTensors, inputs: &mut OpInputs) -> DecayInputs {
        let DecayTensors { near, beyond } = decay;
        let beyond = beyond.as_ref().map(|beyond| (inputs.add(beyond.weights.clone()), beyond.rates.clone()));
        DecayInputs { near: inputs.add(near.clone()), beyond }
    }

    fn all(&self) -> impl Iterator<Item = usize> {
        [self.near].into_iter().chain(self.beyond.as_ref().map(|(weights, _)| *weights))
    }

    fn decay<'a, T: FloatElement>(&'a self, heads: usize, inputs: &'a [HostArray]) -> Decay<'a, T> {
        let (weights, rates) = match &self.beyond {
            Some((weights, rates)) => (inputs[*weights].slice(), &rates[..]),
            None => (&[][..], &[][..]),
        };
        DecaySlices { near: inputs[self.near].slice(), weights, rates }.decay(heads)
    }
}

/// Where the parameters of a stochastic code are among the inputs.
#[derive(Debug)]
struct CodeInputs {
    values: usize,
    code: Arc<StochasticCode>,
}

/// Inputs: q, k, v, parameters of a code, the tables of a decay, gates. SavedLinearForward: output, denominators, feature maps.
#[derive(Debug)]
struct LinearAttentionOp {
    own: [usize; 3],
    code: Option<CodeInputs>,
    decay: Option<DecayInputs>,
    gates: Option<usize>,
    linear: LinearAttentionSettings,
    pass: ForwardContext,
    reach: LinearMask,
    lengths: Option<Arc<[usize]>>,
    documents: Option<Arc<PackedDocuments>>,
    chunk: Option<Chunk>,
}

struct SavedLinearForward<T> {
    out: HostArray,
    denominators: Vec<T>,
    maps: FeatureMaps<T>,
}

impl LinearAttentionOp {
    fn dims(&self, inputs: &[HostArray]) -> LinearAttentionDims {
        let &[batch, heads, len, head_dim] = inputs[self.own[0]].shape() else { panic!("q: expected [B, H, L, D]") };
        LinearAttentionDims { batch, heads, len, head_dim, value_dim: inputs[self.own[2]].shape()[3] }
    }

    /// Rows of the longest sequence whose positions run on: of the longest document where sequences consist of some.
    fn longest_len(&self, dims: LinearAttentionDims) -> usize {
        self.documents.as_ref().map_or(dims.len, |documents| documents.longest_len())
    }

    /// The positions of the rows.
    fn places(&self, dims: LinearAttentionDims) -> Range<usize> {
        let first = self.chunk.as_ref().map_or(0, Chunk::first);
        first..first + self.longest_len(dims)
    }

    fn maps<T: FloatElement>(&self, inputs: &[HostArray]) -> FeatureMaps<T> {
        let dims = self.dims(inputs);
        let span = self.pass.span.unwrap_or(self.longest_len(dims));
        let values = self.code.as_ref().map(|CodeInputs { values, code }| {
            let joined: Vec<f64> = inputs[*values].slice::<T>().iter().map(|value| value.to_f64()).collect();
            code.split(&joined)
        });
        let code = self.code.as_ref().zip(values.as_ref()).map(|(own, values)| (&own.code.plan, &values[..]));
        FeatureMaps::new(&self.linear, dims.head_dim, code, &self.pass).over(span)
    }

    fn problem<'a, T: FloatElement>(
        &'a self,
        inputs: &'a [HostArray],
        maps: &'a [&'a dyn FeatureMap<T>],
    ) -> LinearAttentionProblem<'a, T> {
        let dims = self.dims(inputs);
        let decay = self.decay.as_ref().map(|places| places.decay(dims.heads, inputs));
        let (gates, guard) = (self.gates.map(|place| inputs[place].slice()), guard(self.linear.plan.feature_map));
        let (reach, lengths, documents) = (self.reach, self.lengths.as_deref(), self.documents.as_deref());
        LinearAttentionProblem { dims, reach, lengths, documents, maps, decay, gates, guard }
    }

    fn inputs<'a, T: FloatElement>(&self, inputs: &'a [HostArray]) -> linear::LinearAttentionInputs<'a, T> {
        let view = |place: usize| {
            let &[_, heads, len, d] = inputs[place].shape() else { panic!("expected [B, H, L, D]") };
            View { data: inputs[place].slice(), strides: contiguous([heads, len, d]) }
        };
        let [q, k, v] = self.own.map(view);
        linear::LinearAttentionInputs { q, k, v }
    }

    fn forward<T: FloatElement>(&self, inputs: &[HostArray], tracked: bool) -> OpOutput {
        let (dims, mut maps) = (self.dims(inputs), self.maps::<T>(inputs));
        maps.hold(self.places(dims));
        let shape = inputs[self.own[2]].shape();
        let strides = contiguous([dims.heads, dims.len, dims.value_dim]);
        let mut out = zeros(dims.batch * dims.heads * dims.len * dims.value_dim);
        let mut denominators = zeros(dims.batch * dims.heads * dims.len);
        let chain = maps.chain();
        let problem = self.problem(inputs, &chain);
        let (rows, to) = (self.inputs(inputs), ViewMut::new(&mut out, strides));
        match &self.chunk {
            None => linear::forward(&problem, rows, to, &mut denominators),
            Some(chunk) => linear::extend(&problem, rows, to, &mut denominators, &mut chunk.state(&problem)),
        }
        drop(chain);
        maps.hold(0..0);
        let out = HostArray::from_vec(out, shape);
        let kept = |out: &HostArray| SavedForBackward::new(SavedLinearForward { out: out.clone(), denominators, maps });
        OpOutput { saved: if tracked { kept(&out) } else { SavedForBackward::nothing() }, output: out }
    }

    fn backward<T: FloatElement>(&self, ctx: &BackwardContext) -> Vec<Option<HostArray>> {
        let inputs = ctx.inputs;
        let (dims, SavedLinearForward { out, denominators, maps }) =
            (self.dims(inputs), ctx.saved::<SavedLinearForward<T>>());
        let mut maps = maps.clone();
        maps.hold(self.places(dims));
        let chain = maps.chain();
        let problem = self.problem(inputs, &chain);
        let (rows, values) =
            (contiguous([dims.heads, dims.len, dims.head_dim]), contiguous([dims.heads, dims.len, dims.value_dim]));
        let [mut d_q, mut d_k, mut d_v] = self.own.map(|place| zeros(inputs[place].slice::<T>().len()));
        let mut d_parameters = zeros(dims.heads * problem.parameters());
        let wanted = self.decay.as_ref().filter(|places| places.all().any(|place| ctx.wanted[place]));
        let room = |place: usize| zeros::<T>(inputs[place].slice::<T>().len());
        let mut d_tables = wanted.map(|places| {
            let d_weights = places.beyond.as_ref().map_or(Vec::new(), |(weights, _)| room(*weights));
            [room(places.near), d_weights]
        });
        let mut d_gates = self.gates.map(room);
        let saved = linear::LinearAttentionSaved {
            inputs: self.inputs(inputs),
            out: View { data: out.slice::<T>(), strides: values },
            denominators,
            d_out: View { data: ctx.d_output.slice::<T>(), strides: values },
        };
        let gradients = LinearAttentionGradients {
            d_q: ViewMut::new(&mut d_q, rows),
            d_k: ViewMut::new(&mut d_k, rows),
            d_v: ViewMut::new(&mut d_v, values),
            d_parameters: &mut d_parameters,
            d_decay: d_tables.as_mut().map(|[d_near, d_weights]| DecayGradient { d_near, d_weights }),
            d_gates: d_gates.as_deref_mut(),
        };
        match &self.chunk {
            None => linear::backward(&problem, saved, gradients),
            Some(chunk) => chunk.backward(&problem, saved, gradients),
        }
        let mut found = InputGrads::new(inputs);
        self.own.into_iter().zip([d_q, d_k, d_v]).for_each(|(place, gradient)| found.put(place, gradient));
        if let (Some(place), Some(d_gates)) = (self.gates, d_gates) {
            found.put(place, d_gates);
        }
        if let (Some(CodeInputs { values, .. }), Some(code)) = (&self.code, &maps.code) {
            let joined = code.gradient(&d_parameters).concat();
            found.put(*values, joined.into_iter().map(T::from_f64).collect::<Vec<T>>());
        }
        if let (Some(places), Some(d_tables)) = (&self.decay, d_tables) {
            places.all().zip(d_tables).for_each(|(place, gradient)| found.put(place, gradient));
        }
        found.finish()
    }
}

fn contiguous([heads, len, d]: [usize; 3]) -> Strides {
    Strides { batch: heads * len * d, head: len * d, row: d }
}

impl CustomOp for LinearAttentionOp {
    fn forward(&self, inputs: &[HostArray], tracked: bool) -> OpOutput {
        with_element!(inputs[0], T => LinearAttentionOp::forward::<T>(self, inputs, tracked))
    }

    fn backward(&self, ctx: &BackwardContext) -> Vec<Option<HostArray>> {
        with_element!(ctx.inputs[0], T => LinearAttentionOp::backward::<T>(self, ctx))
    }
}
