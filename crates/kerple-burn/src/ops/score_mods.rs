//! Score modifications in plain Burn operations: the references of [`kerple_core::score_mods`].

mod cope;
mod fire;
mod mixed;
mod relative;

use crate::attention_context::{AttentionBias, AttentionMask, QueryKeyPairs};
use crate::implementation::Impl;
use burn::tensor::{Bool, Tensor};
use kerple_core::score_mods::{ScoreModExtent, ScoreModSpec};

/// What a score modification takes.
pub(super) struct ScoreModInput<'a> {
    /// Scaled, `[B, H, Q, K]`.
    pub(super) scores: Tensor<4>,
    /// A bias by distance, `[1, H, Q, K]`.
    pub(super) bias: Option<Tensor<4>>,
    /// Other parameters, see [`numbers`].
    pub(super) own: Option<&'a Tensor<1>>,
    /// Masked pairs, `[B or 1, 1, Q, K]`.
    pub(super) hidden: &'a Tensor<4, Bool>,
    /// Which keys a query attends to.
    pub(super) mask: &'a AttentionMask,
    /// Not scaled, `[B, H, Q, D]`.
    pub(super) q: Tensor<4>,
    /// Of the whole call.
    pub(super) extent: ScoreModExtent,
    /// Where the queries and keys are.
    pub(super) pairs: &'a QueryKeyPairs,
    /// Whether kernels compute parts of it where there are some.
    #[cfg_attr(not(feature = "cube"), expect(dead_code, reason = "there are none"))]
    pub(super) implementation: Impl,
}

/// The numbers that a score modification computes from its method's own parameters; the reference of
/// [`ScoreModSpec::numbers`].
pub(super) fn numbers(map: &ScoreModSpec, own: Option<&Tensor<1>>, extent: ScoreModExtent) -> Option<Tensor<1>> {
    match map {
        ScoreModSpec::Relative(relative) => own.map(|own| relative::numbers(relative, own, extent)),
        ScoreModSpec::Mixed(_) | ScoreModSpec::Cope(_) => own.cloned(),
    }
}

/// What a method adds to queries before their product with the keys, `[H, D]`.
pub(crate) fn query_bias(bias: &AttentionBias) -> Option<Tensor<2>> {
    match bias {
        AttentionBias::None | AttentionBias::Table { .. } | AttentionBias::FeatureDecay(_) => None,
        AttentionBias::ScoreMod { kind, own, .. } => match (&**kind, own) {
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
    pairs: &QueryKeyPairs,
) -> Option<Tensor<4>> {
    match (map, own) {
        (ScoreModSpec::Relative(relative), Some(own)) => relative::of_values(relative, own, weights, extent, pairs),
        (ScoreModSpec::Relative(_) | ScoreModSpec::Mixed(_) | ScoreModSpec::Cope(_), _) => None,
    }
}

/// What the softmax gets, `[B, H, Q, K]`; any numbers where a query does not see.
pub(super) fn reference(map: &ScoreModSpec, mapped: ScoreModInput) -> Tensor<4> {
    match map {
        ScoreModSpec::Mixed(mixed) => mixed::reference(mixed, mapped),
        ScoreModSpec::Relative(relative) => relative::reference(relative, mapped),
        ScoreModSpec::Cope(cope) => cope::reference(cope, mapped),
    }
}

/// Takes a map's numbers one parameter after another.
struct ParameterReader {
    all: Tensor<1>,
    taken: usize,
}

impl ParameterReader {
    fn new(all: &Tensor<1>) -> ParameterReader {
        ParameterReader { all: all.clone(), taken: 0 }
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
