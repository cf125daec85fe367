//! The KV cache of a layer and the state of linear attention: new positions are added without
//! computing earlier ones again.
//!
//! Softmax attention keeps a KV cache, which grows with the number of positions, except those that
//! a window has passed. Linear attention keeps sums over keys and values, of a fixed size:
//! [`Recurrent`].

use crate::forms::{Clock, Positions, Scores};
use crate::fused::{Engine, Target};
use crate::heads::Heads;
use crate::ops::attention::{self, Call, ScoreInputs, Scoring};
use crate::ops::linear_attention::{self, Linear, Maps};
use crate::piece::{Behind, Piece};
use burn::tensor::{DType, Tensor, TensorData};
use kerple_core::attention::linear::{self, LinearAttentionProblem, RecurrentState};
use kerple_core::attention::{AttentionDims, Strides, View, ViewMut};
use kerple_core::forms::Strided;
use kerple_core::ops::rotary::Turn;
use std::ops::Range;
use std::sync::Arc;

/// What reads memories where they lie.
const KERNELS: &[Target] = &[Target::Host];

/// The memory of one layer.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "one per layer")]
pub enum Memory {
    /// Keys and values where the fused operations read them; f32 on the CPU.
    Rows(Rows),
    /// Keys and values as tensors, on any device and of any type.
    Tensors(Held),
    /// The state of linear attention; f32 on the CPU.
    Recurrent(Box<Recurrent>),
}

/// Keys and values of any layer as tensors.
#[derive(Clone, Debug)]
pub struct Held {
    /// `[B, G, L, D]`; `None` before the first position.
    rows: Option<[Tensor<4>; 2]>,
    /// Gates of the same positions, `[B, H, L]`, where there are gates.
    gates: Option<Tensor<3>>,
    linear: Option<Linear>,
    engine: Engine,
    told: Told,
}

/// What a layer is told of positions up to so many keys, where that stays as it is while sequences grow.
type Told = Option<(usize, Positions)>;

impl Memory {
    /// An empty memory for `batch` sequences of a layer whose parameters are like this one.
    pub fn new(batch: usize, heads: Heads, linear: Option<&Linear>, parameter: &Tensor<2>, engine: Engine) -> Memory {
        match (engine.has_kernel(KERNELS, parameter) && parameter.dtype() == DType::F32, linear) {
            (true, None) => Memory::Rows(Rows::new(batch, heads)),
            (true, Some(linear)) => Memory::Recurrent(Box::new(Recurrent::new(batch, linear.clone()))),
            (false, linear) => {
                Memory::Tensors(Held { rows: None, gates: None, linear: linear.cloned(), engine, told: None })
            }
        }
    }

    /// Positions seen.
    pub fn len(&self) -> usize {
        match self {
            Memory::Rows(rows) => rows.seen,
            Memory::Tensors(held) => held.rows.as_ref().map_or(0, |[keys, _]| keys.dims()[2]),
            Memory::Recurrent(recurrent) => recurrent.len,
        }
    }

    /// Where what the layer is told is kept; `None` where it needs no table for every key.
    pub(crate) fn told(&mut self) -> Option<&mut Told> {
        match self {
            Memory::Rows(rows) => Some(&mut rows.told),
            Memory::Tensors(held) if held.linear.is_none() => Some(&mut held.told),
            Memory::Tensors(_) | Memory::Recurrent(_) => None,
        }
    }

    /// Whether no position was seen yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The place of positions that come next, with what is `behind` them, for training; `None` where what is held grows.
    pub fn piece(&self, behind: &Behind) -> Option<Piece> {
        match self {
            Memory::Recurrent(recurrent) => {
                let begun = recurrent.begun.as_ref();
                Some(Piece::new(begun.and_then(|begun| begun.state.clone()), behind))
            }
            Memory::Rows(_) | Memory::Tensors(_) => None,
        }
    }

    /// Lets go of what can be made again, the noise of positions that come one by one: of a memory that is set aside.
    pub fn let_go(&mut self) {
        if let Memory::Recurrent(recurrent) = self
            && let Some(begun) = &mut recurrent.begun
        {
            begun.held = 0..0;
            begun.maps.hold(0..0);
        }
    }

    /// Causal self-attention of new positions, from a packed projection `[B, L, (H + 2 G) D]`, over all that is then held;
    /// returns `[B, L, H D]`. Gates of `positions` are those of the new ones.
    ///
    /// Held rows are read where they lie: with [`Memory::Rows`] nothing of the size of the memory is copied or made.
    ///
    /// # Panics
    /// When a tensor is of another type, device or number of sequences than what is held.
    pub fn attend(&mut self, qkv: Tensor<3>, heads: Heads, scoring: &Scoring, positions: &Positions) -> Tensor<3> {
        match self {
            Memory::Rows(rows) => rows.attend(qkv, heads, scoring, positions),
            Memory::Recurrent(recurrent) => recurrent.attend(qkv, heads, positions),
            Memory::Tensors(held) => {
                let [batch, len, _] = qkv.dims();
                let [q, k, v] = heads.unpack(qkv);
                let (q, k) = (attention::rotate(q, positions), attention::rotate(k, positions));
                let [k, v] = match held.rows.take() {
                    Some([keys, values]) => [Tensor::cat(vec![keys, k], 2), Tensor::cat(vec![values, v], 2)],
                    None => [k, v],
                };
                held.rows = Some([k.clone(), v.clone()]);
                let positions = &held.with_gates(positions);
                let a = match &held.linear {
                    None => attention::attention(q, k, v, scoring.clone(), positions, held.engine),
                    Some(linear) => linear_attention::composed([q, k, v], linear, positions),
                };
                a.swap_dims(1, 2).reshape([batch, len, heads.inner()])
            }
        }
    }
}

impl Held {
    /// These positions with the gates of all that is held, which then are held too.
    fn with_gates(&mut self, positions: &Positions) -> Positions {
        let Some(clock) = &positions.clock else { return positions.clone() };
        let new = clock.gates().clone();
        let all = match self.gates.take() {
            Some(gates) => Tensor::cat(vec![gates, new], 2),
            None => new,
        };
        self.gates = Some(all.clone());
        Positions { clock: Some(Clock::Gates(all)), ..positions.clone() }
    }
}

/// What linear attention knows of the positions before: its size does not grow with them.
#[derive(Clone, Debug)]
pub struct Recurrent {
    batch: usize,
    linear: Linear,
    len: usize,
    begun: Option<Begun>,
}

/// Positions whose noise is drawn at once when they come one by one.
pub const FEWEST_HELD: usize = 256;

/// Near weights of a decay, and weights and rates of what is beyond.
type HeldDecay = (Vec<f32>, Vec<f32>, Arc<[f64]>);

/// What a sequence keeps from its first positions on: what was drawn, the decay, the sums.
#[derive(Clone, Debug)]
struct Begun {
    maps: Maps<f32>,
    /// Positions whose noise is held.
    held: Range<usize>,
    decay: Option<HeldDecay>,
    state: Option<RecurrentState<f32>>,
}

impl Begun {
    fn new(linear: &Linear, head_dim: usize, positions: &Positions) -> Begun {
        let numbers = |tensor: Tensor<1>| tensor.into_data().iter::<f64>().collect::<Vec<f64>>();
        let single = |table: &Tensor<2>| table.clone().into_data().iter::<f32>().collect::<Vec<f32>>();
        let values: Option<Vec<Vec<f64>>> =
            positions.code.as_ref().map(|code| code.values.iter().cloned().map(numbers).collect());
        let code = positions.code.as_ref().zip(values.as_ref()).map(|(code, values)| (&code.plan, &values[..]));
        let maps = Maps::new(linear, head_dim, code, &positions.pass);
        let fading = positions.fading.as_ref();
        let decay = fading.map(|fading| match &fading.beyond {
            Some(beyond) => (single(&fading.near), single(&beyond.weights), beyond.rates.clone()),
            None => (single(&fading.near), Vec::new(), Arc::default()),
        });
        Begun { maps, held: 0..0, decay, state: None }
    }
}

impl Recurrent {
    /// Nothing yet.
    pub fn new(batch: usize, linear: Linear) -> Recurrent {
        Recurrent { batch, linear, len: 0, begun: None }
    }

    fn attend(&mut self, qkv: Tensor<3>, heads: Heads, positions: &Positions) -> Tensor<3> {
        let ([batch, len, _], device) = (qkv.dims(), qkv.device());
        assert_eq!(batch, self.batch, "the KV cache was created for another number of sequences");
        let mut rows: Vec<f32> = qkv.into_data().try_into_vec().expect("activations are f32");
        if let Some(rotary) = &positions.rotary {
            heads.rotate(&mut rows, rotary, len, Turn::Forward);
        }
        let Heads { heads: count, head_dim, .. } = heads;
        let begun = self.begun.get_or_insert_with(|| Begun::new(&self.linear, head_dim, positions));
        if self.len < begun.held.start || self.len + len > begun.held.end {
            begun.held = self.len..self.len + len.max(FEWEST_HELD);
            begun.maps.hold(begun.held.clone());
        }
        let chain = begun.maps.chain();
        let tables =
            begun.decay.as_ref().map(|(near, weights, rates)| linear_attention::Tables { near, weights, rates });
        let gates =
            positions.clock.as_ref().map(|clock| clock.gates().clone().into_data().iter::<f32>().collect::<Vec<f32>>());
        let problem = LinearAttentionProblem {
            dims: linear::LinearAttentionDims { batch, heads: count, len, head_dim, value_dim: head_dim },
            reach: linear::LinearMask::Causal,
            lengths: None,
            maps: &chain,
            decay: tables.map(|tables| tables.decay(count)),
            gates: gates.as_deref(),
            guard: linear_attention::guard(self.linear.plan.feature_map),
        };
        let state = begun.state.get_or_insert_with(|| RecurrentState::new(&problem));
        let (starts, strides) = heads.layout(len);
        let [q, k, v] = starts.map(|start| View { data: &rows[start..], strides });
        let inner = heads.inner();
        let mut out = vec![0.0f32; batch * len * inner];
        let merged = Strides { batch: len * inner, head: head_dim, row: inner };
        let mut denominators = vec![0.0; batch * count * len];
        let to = ViewMut::new(&mut out, merged);
        linear::extend(&problem, linear::LinearAttentionInputs { q, k, v }, to, &mut denominators, state);
        self.len += len;
        Tensor::from_data(TensorData::new(out, [batch, len, inner]), &device)
    }
}

/// Growing keys and values, `[B, G, capacity, D]` each, so that the keys of each head are
/// contiguous.
#[derive(Clone, Debug)]
pub struct Rows {
    batch: usize,
    heads: Heads,
    /// Positions seen.
    seen: usize,
    /// Positions held, the last of those.
    len: usize,
    capacity: usize,
    keys: Vec<f32>,
    values: Vec<f32>,
    /// Clocks of query heads, `[B, H, capacity]`, where tokens have gates.
    clocks: Vec<f64>,
    told: Told,
}

/// Positions that there is room for from the first one on.
pub const FIRST_CAPACITY: usize = 256;

impl Rows {
    /// Nothing yet.
    pub fn new(batch: usize, heads: Heads) -> Rows {
        let (keys, values, clocks) = (Vec::new(), Vec::new(), Vec::new());
        Rows { batch, heads, seen: 0, len: 0, capacity: 0, keys, values, clocks, told: None }
    }

    /// Positions whose keys and values are held.
    pub fn held(&self) -> usize {
        self.len
    }

    fn attend(&mut self, qkv: Tensor<3>, heads: Heads, scoring: &Scoring, positions: &Positions) -> Tensor<3> {
        let ([batch, len, _], device) = (qkv.dims(), qkv.device());
        let qkv = match heads.query_bias(positions) {
            Some(bias) => qkv + bias.unsqueeze::<3>(),
            None => qkv,
        };
        let mut rows: Vec<f32> = qkv.into_data().try_into_vec().expect("activations are f32");
        if let Some(rotary) = &positions.rotary {
            heads.rotate(&mut rows, rotary, len, Turn::Forward);
        }
        // maps count positions from the first key on
        if let (Some(window), Scores::Plain | Scores::Table { .. }) = (positions.sight.window(), &positions.scores) {
            self.forget_but(window.saturating_sub(1));
        }
        self.push(&rows, len);
        if let Some(clock) = &positions.clock {
            self.run(clock.gates().clone().into_data().iter::<f64>().collect(), len);
        }
        let Heads { heads: query_heads, kv_heads, head_dim } = heads;
        let dims = AttentionDims { batch, heads: query_heads, kv_heads, queries: len, keys: self.len, head_dim };
        let (scores, inputs) = ScoreInputs::outside_autodiff(positions, scoring, self.seen);
        let ([start, ..], packed) = heads.layout(len);
        let head = self.capacity * head_dim;
        let held = Strides { batch: kv_heads * head, head, row: head_dim };
        let inner = heads.inner();
        let merged = Strides { batch: len * inner, head: head_dim, row: inner };
        let mut out = vec![0.0f32; batch * len * inner];
        let view = |data, strides| View { data, strides };
        let rows = [view(&rows[start..], packed), view(&self.keys[..], held), view(&self.values[..], held)];
        let clocks = positions.clock.as_ref().map(|_| Strided { values: &self.clocks[..], stride: self.capacity });
        scores.forward(&inputs, Call { dims, rows, clocks, first_head: 0 }, ViewMut::new(&mut out, merged));
        Tensor::from_data(TensorData::new(out, [batch, len, inner]), &device)
    }

    /// Adds the keys and values of `len` positions from packed rows, see [`Heads`].
    fn push(&mut self, qkv: &[f32], len: usize) {
        let (packed, Heads { kv_heads, head_dim: d, .. }) = (self.heads.packed(), self.heads);
        kerple_core::check_shape!(qkv, B = self.batch, L = len, packed = packed);
        self.reserve(self.len + len);
        let ([_, key, value], strides) = self.heads.layout(len);
        for sequence in 0..self.batch {
            for head in 0..kv_heads {
                for position in 0..len {
                    let from = sequence * strides.batch + position * strides.row + head * strides.head;
                    let to = ((sequence * kv_heads + head) * self.capacity + self.len + position) * d;
                    self.keys[to..to + d].copy_from_slice(&qkv[from + key..][..d]);
                    self.values[to..to + d].copy_from_slice(&qkv[from + value..][..d]);
                }
            }
        }
        self.len += len;
        self.seen += len;
    }

    /// Runs the clocks on through the last `len` positions, whose gates these are, `[B, H, len]`.
    fn run(&mut self, gates: Vec<f64>, len: usize) {
        kerple_core::check_shape!(gates, B = self.batch, H = self.heads.heads, L = len);
        self.clocks.resize(self.batch * self.heads.heads * self.capacity, 0.0);
        let before = self.len - len;
        for (clocks, gates) in self.clocks.chunks_exact_mut(self.capacity).zip(gates.chunks_exact(len.max(1))) {
            let mut clock = if before == 0 { 0.0 } else { clocks[before - 1] };
            for (to, gate) in clocks[before..].iter_mut().zip(gates) {
                clock += gate;
                *to = clock;
            }
        }
    }

    /// Lets go of all but the last `count` positions, once others take more room than those.
    fn forget_but(&mut self, count: usize) {
        if self.len <= 2 * count.max(FIRST_CAPACITY) {
            return;
        }
        let held = self.len - count..self.len;
        for rows in [&mut self.keys, &mut self.values] {
            move_to_front(rows, self.capacity, held.clone(), self.heads.head_dim);
        }
        move_to_front(&mut self.clocks, self.capacity, held, 1);
        self.len = count;
    }

    fn reserve(&mut self, len: usize) {
        if len <= self.capacity {
            return;
        }
        let Heads { kv_heads, head_dim, .. } = self.heads;
        let capacity = len.next_power_of_two().max(FIRST_CAPACITY);
        for rows in [&mut self.keys, &mut self.values] {
            *rows = grown(rows, [self.capacity, capacity], self.len, head_dim, self.batch * kv_heads);
        }
        if !self.clocks.is_empty() {
            self.clocks = grown(&self.clocks, [self.capacity, capacity], self.len, 1, self.batch * self.heads.heads);
        }
        self.capacity = capacity;
    }
}

/// Of every head, `[capacity, width]` each, some rows at the place of the first.
fn move_to_front<T: Copy>(rows: &mut [T], capacity: usize, held: Range<usize>, width: usize) {
    for head in rows.chunks_exact_mut((capacity * width).max(1)) {
        head.copy_within(held.start * width..held.end * width, 0);
    }
}

/// The first `len` rows of each of so many heads, with room for more.
fn grown<T: Copy + Default>(rows: &[T], [old, new]: [usize; 2], len: usize, width: usize, heads: usize) -> Vec<T> {
    let mut grown = vec![T::default(); heads * new * width];
    for head in 0..heads {
        let from = &rows[head * old * width..][..len * width];
        grown[head * new * width..][..len * width].copy_from_slice(from);
    }
    grown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_window_has_passed_is_let_go_of() {
        let heads = Heads { heads: 2, kv_heads: 1, head_dim: 3 };
        let mut rows = Rows::new(2, heads);
        let width = heads.packed();
        let packed = |position: usize| -> Vec<f32> { (0..2 * width).map(|i| (1000 * position + i) as f32).collect() };
        for position in 0..2000 {
            rows.forget_but(7);
            rows.push(&packed(position), 1);
            assert!(rows.held() <= 2 * FIRST_CAPACITY + 1 && rows.held() >= 7.min(position));
        }
        assert!((rows.seen, rows.capacity) == (2000, 1024));
        let ([_, key, _], strides) = heads.layout(1);
        for (sequence, back) in [(0, 0), (1, 6), (0, rows.held() - 1)] {
            let at = (sequence * rows.capacity + rows.held() - 1 - back) * 3;
            assert_eq!(rows.keys[at..at + 3], packed(1999 - back)[sequence * strides.batch + key..][..3]);
        }
    }

    #[test]
    fn growing_keeps_every_row() {
        for kv_heads in [3, 1] {
            let heads = Heads { heads: 3, kv_heads, head_dim: 2 };
            let (d, width) = (2, heads.packed());
            let mut rows = Rows::new(2, heads);
            let packed =
                |position: usize| -> Vec<f32> { (0..2 * width).map(|i| (1000 * position + i) as f32).collect() };
            for position in 0..600 {
                rows.push(&packed(position), 1);
            }
            let ([_, key, value], strides) = heads.layout(1);
            for (sequence, head, position) in [(0, 0, 0), (1, kv_heads - 1, 599), (1, 0, 300), (0, kv_heads / 2, 256)] {
                let at = ((sequence * kv_heads + head) * rows.capacity + position) * d;
                let from = sequence * width + head * strides.head;
                assert_eq!(rows.keys[at..at + d], packed(position)[from + key..][..d]);
                assert_eq!(rows.values[at..at + d], packed(position)[from + value..][..d]);
            }
        }
    }
}
