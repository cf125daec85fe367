//! Score maps in plain Burn operations: the definitions of [`kerple::maps`].

mod fire;
mod mixed;

use burn::tensor::{Bool, Tensor};
use kerple::forms::Sight;
use kerple::maps::Map;

/// What a map is given.
pub(super) struct Mapped<'a> {
    /// Scaled, `[B, H, Q, K]`.
    pub(super) scores: Tensor<4>,
    /// A bias by distance, `[1, H, Q, K]`.
    pub(super) bias: Option<Tensor<4>>,
    /// The map's other numbers.
    pub(super) own: Option<&'a Tensor<1>>,
    /// From each query to each key, `[Q, K]`.
    pub(super) distances: &'a [isize],
    /// What a query does not see, `[B or 1, 1, Q, K]`.
    pub(super) hidden: &'a Tensor<4, Bool>,
    /// Which keys a query sees.
    pub(super) sight: Sight,
    /// Keys that each sequence has, where some are padding.
    pub(super) lengths: Option<&'a [usize]>,
}

/// What the softmax gets, `[B, H, Q, K]`; any numbers where a query does not see.
pub(super) fn composed(map: &Map, mapped: Mapped) -> Tensor<4> {
    match map {
        Map::Mixed(mixed) => mixed::composed(mixed, mapped),
    }
}

/// Takes a map's numbers one parameter after another.
struct Numbers {
    all: Tensor<1>,
    taken: usize,
}

impl Numbers {
    fn new(all: &Tensor<1>) -> Numbers {
        Numbers { all: all.clone(), taken: 0 }
    }

    /// The next ones, in this shape.
    fn take<const D: usize>(&mut self, shape: [usize; D]) -> Tensor<D> {
        let len = shape.iter().product();
        self.taken += len;
        self.all.clone().narrow(0, self.taken - len, len).reshape(shape)
    }
}

/// `x` where it is positive, `slope x` elsewhere.
fn rectified<const D: usize>(x: Tensor<D>, slope: f64) -> Tensor<D> {
    let positive = burn::tensor::activation::relu(x.clone());
    if slope == 0.0 { positive } else { x * slope + positive * (1.0 - slope) }
}
