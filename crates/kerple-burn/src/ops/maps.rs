//! Score modifications in plain Burn operations: the references of [`kerple_core::score_mods`].

mod cope;
mod fire;
mod mixed;
mod relative;

use crate::forms::{Pairs, Scores};
use crate::fused::Engine;
use burn::tensor::{Bool, Tensor};
use kerple_core::forms::Mask;
use kerple_core::score_mods::{ScoreModExtent, ScoreModSpec};

/// What a map is given.
pub(super) struct Mapped<'a> {
    /// Scaled, `[B, H, Q, K]`.
    pub(super) scores: Tensor<4>,
    /// A bias by distance, `[1, H, Q, K]`.
    pub(super) bias: Option<Tensor<4>>,
    /// The map's other numbers, see [`numbers`].
    pub(super) own: Option<&'a Tensor<1>>,
    /// What a query does not see, `[B or 1, 1, Q, K]`.
    pub(super) hidden: &'a Tensor<4, Bool>,
    /// Which keys a query sees.
    pub(super) sight: Mask,
    /// Keys that each sequence has, where some are padding.
    pub(super) lengths: Option<&'a [usize]>,
    /// Not scaled, `[B, H, Q, D]`.
    pub(super) q: Tensor<4>,
    /// What a map is told of a call.
    pub(super) extent: ScoreModExtent,
    /// Where the queries and keys are.
    pub(super) pairs: &'a Pairs,
    /// Kernels stand in for parts of the definition where there are some, unless it says so.
    #[cfg_attr(not(feature = "cube"), expect(dead_code, reason = "there are none"))]
    pub(super) engine: Engine,
}

/// The numbers of a map that are made of its method's own parameters; the definition of [`ScoreModSpec::numbers`].
pub(super) fn numbers(map: &ScoreModSpec, own: Option<&Tensor<1>>, extent: ScoreModExtent) -> Option<Tensor<1>> {
    match map {
        ScoreModSpec::Relative(relative) => own.map(|own| relative::numbers(relative, own, extent)),
        ScoreModSpec::Mixed(_) | ScoreModSpec::Cope(_) => own.cloned(),
    }
}

/// What a method adds to queries before their product with the keys, `[H, D]`.
pub(crate) fn query_bias(scores: &Scores) -> Option<Tensor<2>> {
    match scores {
        Scores::Plain | Scores::Table { .. } => None,
        Scores::Map { map, own, .. } => match (&**map, own) {
            (ScoreModSpec::Relative(relative), Some(own)) => relative::query_bias(relative, own),
            (ScoreModSpec::Relative(_) | ScoreModSpec::Mixed(_) | ScoreModSpec::Cope(_), _) => None,
        },
    }
}

/// What a map with these numbers adds to the output of weights `[B, H, Q, K]` beside values, `[B, H, Q, D]`.
pub(super) fn of_values(
    map: &ScoreModSpec,
    own: Option<&Tensor<1>>,
    weights: &Tensor<4>,
    extent: ScoreModExtent,
    pairs: &Pairs,
) -> Option<Tensor<4>> {
    match (map, own) {
        (ScoreModSpec::Relative(relative), Some(own)) => relative::of_values(relative, own, weights, extent, pairs),
        (ScoreModSpec::Relative(_) | ScoreModSpec::Mixed(_) | ScoreModSpec::Cope(_), _) => None,
    }
}

/// What the softmax gets, `[B, H, Q, K]`; any numbers where a query does not see.
pub(super) fn composed(map: &ScoreModSpec, mapped: Mapped) -> Tensor<4> {
    match map {
        ScoreModSpec::Mixed(mixed) => mixed::composed(mixed, mapped),
        ScoreModSpec::Relative(relative) => relative::composed(relative, mapped),
        ScoreModSpec::Cope(cope) => cope::composed(cope, mapped),
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

    /// Those that were not taken.
    #[cfg(feature = "cube")]
    fn rest(&self) -> Tensor<1> {
        self.all.clone().narrow(0, self.taken, self.all.dims()[0] - self.taken)
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
