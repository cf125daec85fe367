//! An MLP over heads whose inputs are the scores, and perhaps a bias, of one query and key:
//! [`kerple_core::score_mods::network`] in `f32`, one unit per pair.
//!
//! Hidden values are never stored: the backward recomputes them. There, cubes share the pairs in a
//! fixed way, and each sums the gradients of the MLP's parameters over its pairs; those sums are
//! then added in order.

use crate::launch::{PARTIAL_ROWS, alloc, buffer, optional_buffer};
use crate::reduce::sum_partial;
use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use kerple_core::score_mods::network::{Network, SLOPE, Variant};

/// Units of a cube, at most.
const UNITS: usize = 64;
/// Most heads whose scores a unit holds.
const MOST_HEADS: usize = 32;

/// The shape of an MLP; kernels are compiled for each.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(crate) struct HeadMlpShape {
    pub heads: usize,
    pub hidden: usize,
    /// Whether scores, and biases, are inputs of the MLP.
    pub reads_scores: bool,
    pub reads_bias: bool,
    /// Whether they are separate inputs, not summed.
    pub concatenates: bool,
    /// Whether the bias itself is added to scores.
    pub adds_bias: bool,
    pub units: usize,
}

impl HeadMlpShape {
    pub(crate) fn new(network: &Network, heads: usize, has_bias: bool) -> HeadMlpShape {
        let variant = network.variant;
        HeadMlpShape {
            heads,
            hidden: network.hidden,
            reads_scores: !has_bias || variant != Variant::BiasOnly,
            reads_bias: has_bias,
            concatenates: has_bias && matches!(variant, Variant::ConcatResidual | Variant::Concat),
            adds_bias: has_bias && variant.adds_bias(),
            units: UNITS,
        }
    }

    pub(crate) fn inputs(self) -> usize {
        if self.concatenates { 2 * self.heads } else { self.heads }
    }

    /// Number of parameters: of each layer the weights, then the biases.
    pub(crate) fn parameters(self) -> usize {
        self.second_layer() + self.heads * self.hidden + self.heads
    }

    /// Where the biases of the first layer begin among them.
    fn first_biases(self) -> usize {
        self.hidden * self.inputs()
    }

    /// Where the second layer begins.
    fn second_layer(self) -> usize {
        self.hidden * (self.inputs() + 1)
    }

    /// Where the biases of the second layer begin.
    fn second_biases(self) -> usize {
        self.second_layer() + self.heads * self.hidden
    }

    /// Rows of factors, see [`add_products()`]: inputs from 0 on, then gradients of hidden units.
    fn d_hidden_rows(self) -> usize {
        self.inputs()
    }

    /// Where the rows of the output's gradients begin.
    fn d_y_rows(self) -> usize {
        self.inputs() + self.hidden
    }

    /// Where the rows of hidden values begin.
    fn hidden_rows(self) -> usize {
        self.inputs() + self.hidden + self.heads
    }

    /// The row of ones, the last.
    fn ones_row(self) -> usize {
        self.inputs() + 2 * self.hidden + self.heads
    }

    /// Values of all rows, in shared memory.
    fn factors(self) -> usize {
        (self.ones_row() + 1) * self.stride()
    }

    /// Distance between the rows.
    fn stride(self) -> usize {
        self.units + 1
    }

    /// Parameters whose gradient a unit sums.
    fn per_unit(self) -> usize {
        self.parameters().div_ceil(self.units)
    }

    /// Shared memory of the backward, in bytes.
    fn shared(self) -> usize {
        size_of::<f32>() * (self.parameters() + self.factors())
    }
}

/// What both passes read.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct HeadMlpInputs {
    /// `[B, H, pairs]`
    pub scores: Box<[f32]>,
    /// `[H, pairs]`
    pub bias: ComptimeOption<Box<[f32]>>,
    pub parameters: Box<[f32]>,
    pub pairs: u32,
    #[cube(comptime)]
    pub shape: HeadMlpShape,
}

/// What the backward writes.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct HeadMlpOutputs {
    /// `[B, H, pairs]`
    pub d_scores: Box<[f32]>,
    /// `[H, pairs]`
    pub d_bias: ComptimeOption<Box<[f32]>>,
    /// `[cubes, parameters]`
    pub d_parameters: Box<[f32]>,
}

/// Stages the parameters in shared memory.
#[cube]
fn load_parameters(to: &mut Shared<[f32]>, inputs: &HeadMlpInputs) {
    let mut at = UNIT_POS as usize;
    while at < comptime!(inputs.shape.parameters()) {
        to[at] = inputs.parameters[at];
        at += comptime!(inputs.shape.units);
    }
    sync_cube();
}

/// Reads the MLP's inputs of a pair of a sequence, and what its output is added to.
#[cube]
fn load_pair(x: &mut Array<f32>, residual: &mut Array<f32>, inputs: &HeadMlpInputs, sequence: usize, pair: usize) {
    let shape = comptime!(inputs.shape);
    let pairs = inputs.pairs as usize;
    #[unroll]
    for h in 0..comptime!(shape.heads) {
        let score = inputs.scores[(sequence * comptime!(shape.heads) + h) * pairs + pair];
        let mut own = 0.0f32;
        #[comptime]
        if let ComptimeOption::Some(bias) = &inputs.bias {
            own = bias[h * pairs + pair];
        }
        let mut read = 0.0f32;
        if comptime!(shape.reads_scores) {
            read += score;
        }
        if comptime!(shape.reads_bias && !shape.concatenates) {
            read += own;
        }
        x[h] = read;
        if comptime!(shape.concatenates) {
            x[comptime!(shape.heads + h)] = own;
        }
        if comptime!(shape.adds_bias) {
            residual[h] = score + own;
        } else {
            residual[h] = score;
        }
    }
}

/// What enters the activation of a hidden unit.
#[cube]
fn preactivation(parameters: &Shared<[f32]>, x: &Array<f32>, hidden: usize, #[comptime] shape: HeadMlpShape) -> f32 {
    let mut sum = parameters[comptime!(shape.first_biases()) + hidden];
    #[unroll]
    for c in 0..comptime!(shape.inputs()) {
        sum += parameters[hidden * comptime!(shape.inputs()) + c] * x[c];
    }
    sum
}

/// Writes `[B, H, pairs]`.
#[cube(launch)]
pub(crate) fn head_mlp_fwd(inputs: &HeadMlpInputs, y: &mut [f32]) {
    let shape = comptime!(inputs.shape);
    let pairs = inputs.pairs as usize;
    let sequence = CUBE_POS_Y as usize;
    let second = comptime!(shape.second_layer());
    let mut parameters = Shared::<[f32]>::new_slice(comptime!(shape.parameters()));
    load_parameters(&mut parameters, inputs);
    let mut x = Array::<f32>::new(comptime!(shape.inputs()));
    let mut sums = Array::<f32>::new(comptime!(shape.heads));
    let mut pair = CUBE_POS_X as usize * comptime!(shape.units) + UNIT_POS as usize;
    while pair < pairs {
        load_pair(&mut x, &mut sums, inputs, sequence, pair);
        for hidden in 0..comptime!(shape.hidden) {
            let sum = preactivation(&parameters, &x, hidden, shape);
            let value = select(sum > 0.0f32, sum, sum * comptime!(SLOPE as f32));
            #[unroll]
            for h in 0..comptime!(shape.heads) {
                sums[h] += parameters[second + h * comptime!(shape.hidden) + hidden] * value;
            }
        }
        #[unroll]
        for h in 0..comptime!(shape.heads) {
            let constant = parameters[comptime!(shape.second_biases()) + h];
            y[(sequence * comptime!(shape.heads) + h) * pairs + pair] = sums[h] + constant;
        }
        pair += CUBE_COUNT_X as usize * comptime!(shape.units);
    }
}

/// A unit's values of a pair in the backward.
#[derive(CubeType)]
struct PairGradients {
    x: Array<f32>,
    residual: Array<f32>,
    d_y: Array<f32>,
    d_x: Array<f32>,
    /// Summed over sequences.
    d_bias: Array<f32>,
}

#[cube]
impl PairGradients {
    fn new(#[comptime] shape: HeadMlpShape) -> PairGradients {
        PairGradients {
            x: Array::<f32>::new(comptime!(shape.inputs())),
            residual: Array::<f32>::new(comptime!(shape.heads)),
            d_y: Array::<f32>::new(comptime!(shape.heads)),
            d_x: Array::<f32>::new(comptime!(shape.inputs())),
            d_bias: Array::<f32>::new(comptime!(shape.heads)),
        }
    }
}

/// A pair of a sequence; units without a pair take the last one, of which they write nothing.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct PairIndex {
    sequence: usize,
    pair: usize,
    exists: bool,
}

/// Computes a pair's gradient of the MLP's inputs, and leaves the factors of the parameters'
/// gradients in shared memory.
#[cube]
fn backward_pair(
    grads: &mut PairGradients,
    factors: &mut Shared<[f32]>,
    parameters: &Shared<[f32]>,
    d_y: &[f32],
    at: PairIndex,
    inputs: &HeadMlpInputs,
) {
    let shape = comptime!(inputs.shape);
    let heads = comptime!(shape.heads);
    let hidden = comptime!(shape.hidden);
    let stride = comptime!(shape.stride());
    let second = comptime!(shape.second_layer());
    let pairs = inputs.pairs as usize;
    let own = UNIT_POS as usize;
    #[unroll]
    for h in 0..heads {
        let d = select(at.exists, d_y[(at.sequence * heads + h) * pairs + at.pair], 0.0f32);
        grads.d_y[h] = d;
        factors[(comptime!(shape.d_y_rows()) + h) * stride + own] = d;
    }
    #[unroll]
    for c in 0..comptime!(shape.inputs()) {
        grads.d_x[c] = 0.0f32;
        factors[c * stride + own] = grads.x[c];
    }
    factors[comptime!(shape.ones_row()) * stride + own] = 1.0f32;
    for n in 0..hidden {
        let sum = preactivation(parameters, &grads.x, n, shape);
        let mut d = 0.0f32;
        #[unroll]
        for h in 0..heads {
            d += parameters[second + h * hidden + n] * grads.d_y[h];
        }
        let open = sum > 0.0f32;
        d = select(open, d, d * comptime!(SLOPE as f32));
        factors[(comptime!(shape.d_hidden_rows()) + n) * stride + own] = d;
        factors[(comptime!(shape.hidden_rows()) + n) * stride + own] = select(open, sum, sum * comptime!(SLOPE as f32));
        #[unroll]
        for c in 0..comptime!(shape.inputs()) {
            grads.d_x[c] += parameters[n * comptime!(shape.inputs()) + c] * d;
        }
    }
}

/// Writes a pair's gradients of scores and adds those of its bias.
#[cube]
fn store_d_scores(grads: &mut PairGradients, d_scores: &mut [f32], at: PairIndex, inputs: &HeadMlpInputs) {
    let shape = comptime!(inputs.shape);
    let pairs = inputs.pairs as usize;
    #[unroll]
    for h in 0..comptime!(shape.heads) {
        let mut d = grads.d_y[h];
        if comptime!(shape.reads_scores) {
            d += grads.d_x[h];
        }
        if at.exists {
            d_scores[(at.sequence * comptime!(shape.heads) + h) * pairs + at.pair] = d;
        }
        if comptime!(shape.adds_bias) {
            grads.d_bias[h] += grads.d_y[h];
        }
        if comptime!(shape.concatenates) {
            grads.d_bias[h] += grads.d_x[comptime!(shape.heads + h)];
        }
        if comptime!(shape.reads_bias && !shape.concatenates) {
            grads.d_bias[h] += grads.d_x[h];
        }
    }
}

/// Adds the gradients of a unit's parameters: each is a product of two rows of factors, summed over
/// the cube's pairs.
#[cube]
fn add_products(sums: &mut Array<f32>, factors: &Shared<[f32]>, #[comptime] shape: HeadMlpShape) {
    let stride = comptime!(shape.stride());
    let inputs = comptime!(shape.inputs());
    let hidden = comptime!(shape.hidden);
    let d_hidden = comptime!(shape.d_hidden_rows());
    let d_y = comptime!(shape.d_y_rows());
    let values = comptime!(shape.hidden_rows());
    let ones = comptime!(shape.ones_row());
    #[unroll]
    for n in 0..comptime!(shape.per_unit()) {
        let at = UNIT_POS as usize + comptime!(n * shape.units);
        if at < comptime!(shape.parameters()) {
            let mut left = d_hidden + at / inputs;
            let mut right = at % inputs;
            if at >= comptime!(shape.first_biases()) {
                left = d_hidden + at - comptime!(shape.first_biases());
                right = ones;
            }
            if at >= comptime!(shape.second_layer()) {
                let place = at - comptime!(shape.second_layer());
                left = d_y + place / hidden;
                right = values + place % hidden;
            }
            if at >= comptime!(shape.second_biases()) {
                left = d_y + at - comptime!(shape.second_biases());
                right = ones;
            }
            let mut sum = 0.0f32;
            for pair in 0..comptime!(shape.units) {
                sum += factors[left * stride + pair] * factors[right * stride + pair];
            }
            sums[n] += sum;
        }
    }
}

/// Writes the gradients of scores and of the bias, and those of parameters per cube.
#[cube(launch)]
pub(crate) fn head_mlp_bwd(inputs: &HeadMlpInputs, d_y: &[f32], outputs: &mut HeadMlpOutputs, batch: u32) {
    let shape = comptime!(inputs.shape);
    let pairs = inputs.pairs as usize;
    let own = UNIT_POS as usize;
    let mut parameters = Shared::<[f32]>::new_slice(comptime!(shape.parameters()));
    let mut factors = Shared::<[f32]>::new_slice(comptime!(shape.factors()));
    load_parameters(&mut parameters, inputs);
    let mut sums = Array::<f32>::new(comptime!(shape.per_unit()));
    #[unroll]
    for n in 0..comptime!(shape.per_unit()) {
        sums[n] = 0.0f32;
    }
    let mut grads = PairGradients::new(shape);

    let mut first = CUBE_POS_X as usize * comptime!(shape.units);
    while first < pairs {
        let exists = first + own < pairs;
        let pair = select(exists, first + own, pairs - 1);
        #[unroll]
        for h in 0..comptime!(shape.heads) {
            grads.d_bias[h] = 0.0f32;
        }
        for sequence in 0..batch as usize {
            let at = PairIndex { sequence, pair, exists };
            load_pair(&mut grads.x, &mut grads.residual, inputs, sequence, pair);
            sync_cube();
            backward_pair(&mut grads, &mut factors, &parameters, d_y, at, inputs);
            store_d_scores(&mut grads, &mut outputs.d_scores, at, inputs);
            sync_cube();
            add_products(&mut sums, &factors, shape);
        }
        #[comptime]
        if let ComptimeOption::Some(d_bias) = &mut outputs.d_bias {
            #[unroll]
            for h in 0..comptime!(shape.heads) {
                if exists {
                    d_bias[h * pairs + pair] = grads.d_bias[h];
                }
            }
        }
        first += CUBE_COUNT_X as usize * comptime!(shape.units);
    }
    #[unroll]
    for n in 0..comptime!(shape.per_unit()) {
        let at = own + comptime!(n * shape.units);
        if at < comptime!(shape.parameters()) {
            outputs.d_parameters[CUBE_POS_X as usize * comptime!(shape.parameters()) + at] = sums[n];
        }
    }
}

/// An MLP over heads on a device; all arrays are contiguous and `f32`.
#[derive(Clone, Copy, Debug)]
pub struct HeadMlp {
    shape: HeadMlpShape,
    batch: usize,
    pairs: usize,
}

/// The results of [`HeadMlp::backward`].
#[derive(Clone, Debug)]
pub struct HeadMlpGradients {
    /// `[B, H, pairs]`
    pub d_scores: Handle,
    /// `[H, pairs]`, where there is a bias.
    pub d_bias: Option<Handle>,
    /// Gradient of the MLP's parameters.
    pub d_parameters: Handle,
}

impl HeadMlp {
    /// An MLP over one pair at a time, for this many sequences and query-key pairs of each; `None`
    /// where a device has too little memory for it.
    pub fn new(
        client: &Client,
        network: &Network,
        [batch, heads, pairs]: [usize; 3],
        has_bias: bool,
    ) -> Option<HeadMlp> {
        let shape = HeadMlpShape::new(network, heads, has_bias);
        let hardware = &client.properties().hardware;
        let units = [UNITS, UNITS / 2, UNITS / 4, UNITS / 8];
        let fits = |shape: &HeadMlpShape| {
            shape.shared() <= hardware.max_shared_memory_size && shape.units <= hardware.max_units_per_cube as usize
        };
        let shape = units.into_iter().map(|units| HeadMlpShape { units, ..shape }).find(fits)?;
        // a unit keeps its sums in registers
        let few = heads <= MOST_HEADS && shape.per_unit() <= MOST_HEADS && network.kernel == 1;
        let some = batch > 0 && pairs > 0 && shape.hidden > 0 && batch * heads * pairs < 1 << 31 && batch < 1 << 16;
        (few && some).then_some(HeadMlp { shape, batch, pairs })
    }

    /// Scores `[B, H, pairs]` plus the outputs of the MLP and the bias, `[H, pairs]`.
    pub fn forward(&self, client: &Client, scores: &Handle, bias: Option<&Handle>, parameters: &Handle) -> Handle {
        let HeadMlp { shape, batch, pairs } = *self;
        let y = alloc(client, self.values());
        // as many cubes as every device takes
        let cubes = pairs.div_ceil(shape.units).min(usize::from(u16::MAX));
        head_mlp_fwd::launch(
            client,
            CubeCount::Static(cubes as u32, batch as u32, 1),
            CubeDim::new_1d(shape.units as u32),
            self.inputs(scores, bias, parameters),
            buffer(&y, self.values()),
        );
        y
    }

    /// Gradients, given that of the forward's output.
    pub fn backward(
        &self,
        client: &Client,
        [scores, parameters, d_y]: [&Handle; 3],
        bias: Option<&Handle>,
    ) -> HeadMlpGradients {
        let HeadMlp { shape, batch, pairs } = *self;
        let cubes = pairs.div_ceil(shape.units).min(PARTIAL_ROWS);
        let d_scores = alloc(client, self.values());
        let d_bias = bias.map(|_| alloc(client, shape.heads * pairs));
        let partial = alloc(client, cubes * shape.parameters());
        let outputs = HeadMlpOutputsLaunch {
            d_scores: buffer(&d_scores, self.values()),
            d_bias: optional_buffer(d_bias.as_ref(), shape.heads * pairs),
            d_parameters: buffer(&partial, cubes * shape.parameters()),
        };
        head_mlp_bwd::launch(
            client,
            CubeCount::Static(cubes as u32, 1, 1),
            CubeDim::new_1d(shape.units as u32),
            self.inputs(scores, bias, parameters),
            buffer(d_y, self.values()),
            outputs,
            batch as u32,
        );
        let d_parameters = sum_partial(client, &partial, [1, 1, cubes, shape.parameters()]);
        HeadMlpGradients { d_scores, d_bias, d_parameters }
    }

    fn values(&self) -> usize {
        self.batch * self.shape.heads * self.pairs
    }

    fn inputs(&self, scores: &Handle, bias: Option<&Handle>, parameters: &Handle) -> HeadMlpInputsLaunch {
        HeadMlpInputsLaunch {
            scores: buffer(scores, self.values()),
            bias: optional_buffer(bias, self.shape.heads * self.pairs),
            parameters: buffer(parameters, self.shape.parameters()),
            pairs: self.pairs as u32,
            shape: self.shape,
        }
    }
}
