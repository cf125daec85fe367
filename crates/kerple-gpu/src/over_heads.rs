//! A network over heads whose inputs are the scores, and perhaps a bias, of one query and key:
//! [`kerple_core::score_mods::network`] in `f32`, one unit per pair.
//!
//! Hidden units are never stored: the backward recomputes them. There, cubes share the pairs in a
//! fixed way, and each sums the gradients of the network's parameters over its pairs; those sums
//! are then added in order.

use crate::attention::{SHARES, array, diagonals};
use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use kerple_core::score_mods::network::{Network, SLOPE, Variant};

/// Units of a cube, at most.
const UNITS: usize = 64;
/// Most heads whose scores a unit holds.
const MOST_HEADS: usize = 32;

/// What kernels are written anew for.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(crate) struct Form {
    pub heads: usize,
    pub hidden: usize,
    pub has_bias: bool,
    /// Whether scores, and biases, are inputs of the network.
    pub of_scores: bool,
    pub of_bias: bool,
    /// Whether they are separate inputs, not summed.
    pub apart: bool,
    /// Whether the bias itself is added to scores.
    pub adds_bias: bool,
    pub units: usize,
}

impl Form {
    pub(crate) fn new(network: &Network, heads: usize, has_bias: bool) -> Form {
        let variant = network.variant;
        Form {
            heads,
            hidden: network.hidden,
            has_bias,
            of_scores: !has_bias || variant != Variant::BiasOnly,
            of_bias: has_bias,
            apart: has_bias && matches!(variant, Variant::ConcatResidual | Variant::Concat),
            adds_bias: has_bias && variant.adds_bias(),
            units: UNITS,
        }
    }

    pub(crate) fn inputs(self) -> usize {
        if self.apart { 2 * self.heads } else { self.heads }
    }

    /// Numbers of the network.
    pub(crate) fn numbers(self) -> usize {
        self.hidden * (self.inputs() + 1 + self.heads) + self.heads
    }

    /// Where its second layer begins among them.
    fn second(self) -> usize {
        self.hidden * (self.inputs() + 1)
    }

    /// Rows of what the gradients of numbers are products of: inputs, slopes of hidden units, gradients, hidden units, ones.
    fn rows(self) -> usize {
        self.inputs() + 2 * self.hidden + self.heads + 1
    }

    /// From one such row to the next.
    fn line(self) -> usize {
        self.units + 1
    }

    /// Shared memory of the backward, in bytes.
    fn shared(self) -> usize {
        size_of::<f32>() * (self.numbers() + self.rows() * self.line())
    }
}

/// Numbers of the network, for all units of a cube.
#[cube]
fn load(to: &mut Shared<[f32]>, numbers: &[f32], #[comptime] form: Form) {
    let mut at = UNIT_POS as usize;
    while at < comptime!(form.numbers()) {
        to[at] = numbers[at];
        at += comptime!(form.units);
    }
    sync_cube();
}

/// Reads what a network sees of a pair of a sequence, and what its result is added to.
#[cube]
#[allow(clippy::too_many_arguments, reason = "an array each")]
fn read(
    inputs: &mut Array<f32>,
    base: &mut Array<f32>,
    scores: &[f32],
    bias: &[f32],
    sequence: usize,
    pair: usize,
    pairs: usize,
    #[comptime] form: Form,
) {
    #[unroll]
    for h in 0..comptime!(form.heads) {
        let score = scores[(sequence * comptime!(form.heads) + h) * pairs + pair];
        let mut own = 0.0f32;
        if comptime!(form.has_bias) {
            own = bias[h * pairs + pair];
        }
        let mut seen = 0.0f32;
        if comptime!(form.of_scores) {
            seen += score;
        }
        if comptime!(form.of_bias && !form.apart) {
            seen += own;
        }
        inputs[h] = seen;
        if comptime!(form.apart) {
            inputs[comptime!(form.heads + h)] = own;
        }
        if comptime!(form.adds_bias) {
            base[h] = score + own;
        } else {
            base[h] = score;
        }
    }
}

/// What a hidden unit gets.
#[cube]
fn reached(network: &Shared<[f32]>, inputs: &Array<f32>, unit: usize, #[comptime] form: Form) -> f32 {
    let mut sum = network[comptime!(form.hidden * form.inputs()) + unit];
    #[unroll]
    for c in 0..comptime!(form.inputs()) {
        sum += network[unit * comptime!(form.inputs()) + c] * inputs[c];
    }
    sum
}

/// Writes `[B, H, pairs]`.
#[cube(launch)]
pub(crate) fn forward(
    scores: &[f32],
    bias: &[f32],
    numbers: &[f32],
    to: &mut [f32],
    pairs: u32,
    #[comptime] form: Form,
) {
    let pairs = pairs as usize;
    let sequence = CUBE_POS_Y as usize;
    let second = comptime!(form.second());
    let mut network = Shared::<[f32]>::new_slice(comptime!(form.numbers()));
    load(&mut network, numbers, form);
    let mut inputs = Array::<f32>::new(comptime!(form.inputs()));
    let mut sums = Array::<f32>::new(comptime!(form.heads));
    let mut pair = CUBE_POS_X as usize * comptime!(form.units) + UNIT_POS as usize;
    while pair < pairs {
        read(&mut inputs, &mut sums, scores, bias, sequence, pair, pairs, form);
        for unit in 0..comptime!(form.hidden) {
            let sum = reached(&network, &inputs, unit, form);
            let value = select(sum > 0.0f32, sum, sum * comptime!(SLOPE as f32));
            #[unroll]
            for h in 0..comptime!(form.heads) {
                sums[h] += network[second + h * comptime!(form.hidden) + unit] * value;
            }
        }
        #[unroll]
        for h in 0..comptime!(form.heads) {
            let constant = network[second + comptime!(form.heads * form.hidden) + h];
            to[(sequence * comptime!(form.heads) + h) * pairs + pair] = sums[h] + constant;
        }
        pair += CUBE_COUNT_X as usize * comptime!(form.units);
    }
}

/// Adds what some pairs bring to the gradients of a unit's numbers.
#[cube]
fn add_products(sums: &mut Array<f32>, rows: &Shared<[f32]>, #[comptime] form: Form) {
    let line = comptime!(form.line());
    let inputs = comptime!(form.inputs());
    let hidden = comptime!(form.hidden);
    // where rows begin: of inputs from 0 on, then of slopes, of gradients, of hidden units, of ones
    let slopes = comptime!(form.inputs());
    let gradients = comptime!(form.inputs() + form.hidden);
    let values = comptime!(form.inputs() + form.hidden + form.heads);
    let ones = comptime!(form.inputs() + 2 * form.hidden + form.heads);
    #[unroll]
    for n in 0..comptime!(form.numbers().div_ceil(form.units)) {
        let at = UNIT_POS as usize + comptime!(n * form.units);
        if at < comptime!(form.numbers()) {
            let mut left = slopes + at / inputs;
            let mut right = at % inputs;
            if at >= comptime!(form.hidden * form.inputs()) {
                left = slopes + at - comptime!(form.hidden * form.inputs());
                right = ones;
            }
            if at >= comptime!(form.second()) {
                let place = at - comptime!(form.second());
                left = gradients + place / hidden;
                right = values + place % hidden;
            }
            if at >= comptime!(form.second() + form.heads * form.hidden) {
                left = gradients + at - comptime!(form.second() + form.heads * form.hidden);
                right = ones;
            }
            let mut sum = 0.0f32;
            for pair in 0..comptime!(form.units) {
                sum += rows[left * line + pair] * rows[right * line + pair];
            }
            sums[n] += sum;
        }
    }
}

/// Writes the gradients in scores, `[B, H, pairs]`, and in the bias, `[H, pairs]`, and those in numbers of the pairs of each cube,
/// `[cubes, numbers]`.
#[cube(launch)]
#[allow(clippy::too_many_arguments, reason = "an array each")]
pub(crate) fn backward(
    scores: &[f32],
    bias: &[f32],
    numbers: &[f32],
    d_y: &[f32],
    d_scores: &mut [f32],
    d_bias: &mut [f32],
    d_numbers: &mut [f32],
    batch: u32,
    pairs: u32,
    #[comptime] form: Form,
) {
    let heads = comptime!(form.heads);
    let hidden = comptime!(form.hidden);
    let line = comptime!(form.line());
    let unit_rows = comptime!(form.inputs());
    let gradient_rows = comptime!(form.inputs() + form.hidden);
    let value_rows = comptime!(form.inputs() + form.hidden + form.heads);
    let pairs = pairs as usize;
    let second = comptime!(form.second());
    let own = UNIT_POS as usize;
    let mut network = Shared::<[f32]>::new_slice(comptime!(form.numbers()));
    let mut rows = Shared::<[f32]>::new_slice(comptime!(form.rows() * form.line()));
    load(&mut network, numbers, form);
    let mut sums = Array::<f32>::new(comptime!(form.numbers().div_ceil(form.units)));
    #[unroll]
    for n in 0..comptime!(form.numbers().div_ceil(form.units)) {
        sums[n] = 0.0f32;
    }
    let mut inputs = Array::<f32>::new(comptime!(form.inputs()));
    let mut base = Array::<f32>::new(comptime!(form.heads));
    let mut d_own = Array::<f32>::new(comptime!(form.heads));
    let mut d_inputs = Array::<f32>::new(comptime!(form.inputs()));
    let mut d_of_bias = Array::<f32>::new(comptime!(form.heads));

    let mut first = CUBE_POS_X as usize * comptime!(form.units);
    while first < pairs {
        let there = first + own < pairs;
        // units without a pair take the last one, of which they write nothing
        let pair = select(there, first + own, pairs - 1);
        #[unroll]
        for h in 0..heads {
            d_of_bias[h] = 0.0f32;
        }
        for sequence in 0..batch as usize {
            read(&mut inputs, &mut base, scores, bias, sequence, pair, pairs, form);
            sync_cube();
            #[unroll]
            for h in 0..heads {
                let d = select(there, d_y[(sequence * heads + h) * pairs + pair], 0.0f32);
                d_own[h] = d;
                rows[(gradient_rows + h) * line + own] = d;
            }
            #[unroll]
            for c in 0..comptime!(form.inputs()) {
                d_inputs[c] = 0.0f32;
                rows[c * line + own] = inputs[c];
            }
            rows[(value_rows + hidden) * line + own] = 1.0f32;
            for unit in 0..hidden {
                let sum = reached(&network, &inputs, unit, form);
                let mut slope = 0.0f32;
                #[unroll]
                for h in 0..heads {
                    slope += network[second + h * hidden + unit] * d_own[h];
                }
                let open = sum > 0.0f32;
                slope = select(open, slope, slope * comptime!(SLOPE as f32));
                rows[(unit_rows + unit) * line + own] = slope;
                rows[(value_rows + unit) * line + own] = select(open, sum, sum * comptime!(SLOPE as f32));
                #[unroll]
                for c in 0..comptime!(form.inputs()) {
                    d_inputs[c] += network[unit * comptime!(form.inputs()) + c] * slope;
                }
            }
            #[unroll]
            for h in 0..heads {
                let mut d = d_own[h];
                if comptime!(form.of_scores) {
                    d += d_inputs[h];
                }
                if there {
                    d_scores[(sequence * heads + h) * pairs + pair] = d;
                }
                if comptime!(form.adds_bias) {
                    d_of_bias[h] += d_own[h];
                }
                if comptime!(form.apart) {
                    d_of_bias[h] += d_inputs[comptime!(form.heads + h)];
                }
                if comptime!(form.of_bias && !form.apart) {
                    d_of_bias[h] += d_inputs[h];
                }
            }
            sync_cube();
            add_products(&mut sums, &rows, form);
        }
        if comptime!(form.has_bias) {
            #[unroll]
            for h in 0..heads {
                if there {
                    d_bias[h * pairs + pair] = d_of_bias[h];
                }
            }
        }
        first += CUBE_COUNT_X as usize * comptime!(form.units);
    }
    #[unroll]
    for n in 0..comptime!(form.numbers().div_ceil(form.units)) {
        let at = own + comptime!(n * form.units);
        if at < comptime!(form.numbers()) {
            d_numbers[CUBE_POS_X as usize * comptime!(form.numbers()) + at] = sums[n];
        }
    }
}

/// A network over heads on a device; all arrays are contiguous and `f32`.
#[derive(Clone, Copy, Debug)]
pub struct OverHeads {
    form: Form,
    batch: usize,
    pairs: usize,
}

/// The results of [`OverHeads::backward`].
#[derive(Clone, Debug)]
pub struct Gradients {
    /// `[B, H, pairs]`
    pub d_scores: Handle,
    /// `[H, pairs]`, where there is a bias.
    pub d_bias: Option<Handle>,
    /// Gradient of the network's parameters.
    pub d_numbers: Handle,
}

impl OverHeads {
    /// A network over one pair at a time, for this many sequences and query-key pairs of each;
    /// `None` where a device has too little memory for it.
    pub fn new(
        client: &Client,
        network: &Network,
        [batch, heads, pairs]: [usize; 3],
        has_bias: bool,
    ) -> Option<OverHeads> {
        let form = Form::new(network, heads, has_bias);
        let hardware = &client.properties().hardware;
        let units = [UNITS, UNITS / 2, UNITS / 4, UNITS / 8];
        let fits = |form: &Form| {
            form.shared() <= hardware.max_shared_memory_size && form.units <= hardware.max_units_per_cube as usize
        };
        let form = units.into_iter().map(|units| Form { units, ..form }).find(fits)?;
        // sums of a unit lie in its registers
        let few = heads <= MOST_HEADS && form.numbers() <= form.units * MOST_HEADS && network.kernel == 1;
        let some = batch > 0 && pairs > 0 && form.hidden > 0 && batch * heads * pairs < 1 << 31 && batch < 1 << 16;
        (few && some).then_some(OverHeads { form, batch, pairs })
    }

    /// Scores `[B, H, pairs]` plus the outputs of the network and the bias, `[H, pairs]`.
    pub fn forward(&self, client: &Client, scores: &Handle, bias: Option<&Handle>, numbers: &Handle) -> Handle {
        let OverHeads { form, batch, pairs } = *self;
        let values = batch * form.heads * pairs;
        let to = client.empty(values * size_of::<f32>());
        forward::launch(
            client,
            // as many as every device takes
            CubeCount::Static(pairs.div_ceil(form.units).min(usize::from(u16::MAX)) as u32, batch as u32, 1),
            CubeDim::new_1d(form.units as u32),
            array(scores, values),
            self.bias(bias, numbers),
            array(numbers, form.numbers()),
            array(&to, values),
            pairs as u32,
            form,
        );
        to
    }

    /// Gradients, given that of the forward's output.
    pub fn backward(&self, client: &Client, [scores, numbers, d_y]: [&Handle; 3], bias: Option<&Handle>) -> Gradients {
        let OverHeads { form, batch, pairs } = *self;
        let values = batch * form.heads * pairs;
        let room = |values: usize| client.empty(values * size_of::<f32>());
        let cubes = pairs.div_ceil(form.units).min(SHARES);
        let of_bias = if bias.is_some() { form.heads * pairs } else { 1 };
        let (d_scores, d_bias, parts) = (room(values), room(of_bias), room(cubes * form.numbers()));
        backward::launch(
            client,
            CubeCount::Static(cubes as u32, 1, 1),
            CubeDim::new_1d(form.units as u32),
            array(scores, values),
            self.bias(bias, numbers),
            array(numbers, form.numbers()),
            array(d_y, values),
            array(&d_scores, values),
            array(&d_bias, of_bias),
            array(&parts, cubes * form.numbers()),
            batch as u32,
            pairs as u32,
            form,
        );
        let d_numbers = diagonals::added(client, &parts, [1, 1, cubes, form.numbers()]);
        Gradients { d_scores, d_bias: bias.map(|_| d_bias), d_numbers }
    }

    /// In place of a bias that is not there something that is not read.
    fn bias(&self, bias: Option<&Handle>, other: &Handle) -> BufferArg {
        match bias {
            Some(bias) => array(bias, self.form.heads * self.pairs),
            None => array(other, 1),
        }
    }
}
