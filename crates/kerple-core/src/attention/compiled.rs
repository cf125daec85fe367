//! Where engines and score modifications are compiled: here, once for each type of number.
//!
//! A generic function is compiled by the crate that calls it, at that crate's level of optimization, and an engine that is not
//! optimized is a hundred times slower. These functions belong to types, not to callers.

use super::linear::{
    LinearAttentionGradients, LinearAttentionInputs, LinearAttentionProblem, LinearAttentionSaved, RecurrentState,
    StateGradient,
};
use super::{
    AttentionGradients, AttentionProblem, AttentionSaved, ScoreTransform, View, ViewMut, householder, linear,
    row_block, tiled,
};
use crate::cpu::InstructionSet;
use crate::forms::ScoreMod;
use crate::score_mods::{self, ScoreModExtent, ScoreModSpec};

/// Which engine computes a problem.
enum Engine {
    Tiled,
    RowBlock,
    Householder,
}

impl<T> AttentionProblem<'_, T> {
    fn engine(&self) -> Engine {
        match self.scores {
            _ if self.selection.is_some() => Engine::RowBlock,
            ScoreTransform::Table(_) => Engine::Tiled,
            ScoreTransform::Mod(_) | ScoreTransform::Path(_) => Engine::RowBlock,
            ScoreTransform::Householder(_) => Engine::Householder,
        }
    }
}

/// The engines of a type of number.
pub trait CompiledEngines: Sized {
    /// [`super::forward`]
    fn attention_forward(
        set: InstructionSet,
        problem: &AttentionProblem<Self>,
        rows: [View<Self>; 3],
        out: ViewMut<Self>,
        lse: &mut [Self],
    );
    /// [`super::backward`]
    fn attention_backward(
        set: InstructionSet,
        problem: &AttentionProblem<Self>,
        saved: AttentionSaved<Self>,
        gradients: AttentionGradients<Self>,
    );
    /// [`row_block::masked_sums`]
    fn masked_sums(set: InstructionSet, problem: &AttentionProblem<Self>, rows: [View<Self>; 2]) -> Vec<f64>;
    /// [`householder::rewrite_keys`]
    fn householder_rewrite(
        set: InstructionSet,
        products: householder::HouseholderProducts<Self>,
        held: usize,
        capacity: usize,
        keys: &mut [Self],
    );
    /// [`ScoreModSpec::over`]
    fn score_mod<'a>(
        spec: &'a ScoreModSpec,
        values: &'a [Self],
        extent: ScoreModExtent,
    ) -> Box<dyn ScoreMod<Self> + 'a>;
    /// [`linear::forward`], or [`linear::extend`] with a state.
    fn linear_forward(
        problem: &LinearAttentionProblem<Self>,
        inputs: LinearAttentionInputs<Self>,
        out: ViewMut<Self>,
        denominators: &mut [Self],
        state: Option<&mut RecurrentState<Self>>,
    );
    /// [`linear::backward`], or [`linear::backward_chunk`] with the states around it.
    fn linear_backward(
        problem: &LinearAttentionProblem<Self>,
        saved: LinearAttentionSaved<Self>,
        ends: Option<(&RecurrentState<Self>, &mut StateGradient<Self>)>,
        gradients: LinearAttentionGradients<Self>,
    );
}

macro_rules! compiled {
    ($($number:ident),+) => {
        $(
            impl CompiledEngines for $number {
                #[inline(never)]
                fn attention_forward(
                    set: InstructionSet,
                    problem: &AttentionProblem<$number>,
                    rows: [View<$number>; 3],
                    out: ViewMut<$number>,
                    lse: &mut [$number],
                ) {
                    match problem.engine() {
                        Engine::Tiled => tiled::run_forward(set, problem, rows, out, lse),
                        Engine::RowBlock => row_block::run_forward(set, problem, rows, out, lse),
                        Engine::Householder => householder::run_forward(set, problem, rows, out, lse),
                    }
                }
                #[inline(never)]
                fn attention_backward(
                    set: InstructionSet,
                    problem: &AttentionProblem<$number>,
                    saved: AttentionSaved<$number>,
                    gradients: AttentionGradients<$number>,
                ) {
                    match problem.engine() {
                        Engine::Tiled => tiled::run_backward(set, problem, saved, gradients),
                        Engine::RowBlock => row_block::run_backward(set, problem, saved, gradients),
                        Engine::Householder => householder::run_backward(set, problem, saved, gradients),
                    }
                }
                #[inline(never)]
                fn masked_sums(
                    set: InstructionSet,
                    problem: &AttentionProblem<$number>,
                    rows: [View<$number>; 2],
                ) -> Vec<f64> {
                    row_block::run_masked_sums(set, problem, rows)
                }
                #[inline(never)]
                fn householder_rewrite(
                    set: InstructionSet,
                    products: householder::HouseholderProducts<$number>,
                    held: usize,
                    capacity: usize,
                    keys: &mut [$number],
                ) {
                    householder::run_rewrite(set, products, held, capacity, keys);
                }
                #[inline(never)]
                fn score_mod<'a>(
                    spec: &'a ScoreModSpec,
                    values: &'a [$number],
                    extent: ScoreModExtent,
                ) -> Box<dyn ScoreMod<$number> + 'a> {
                    score_mods::boxed(spec, values, extent)
                }
                #[inline(never)]
                fn linear_forward(
                    problem: &LinearAttentionProblem<$number>,
                    inputs: LinearAttentionInputs<$number>,
                    out: ViewMut<$number>,
                    denominators: &mut [$number],
                    state: Option<&mut RecurrentState<$number>>,
                ) {
                    linear::run_forward(problem, inputs, out, denominators, state);
                }
                #[inline(never)]
                fn linear_backward(
                    problem: &LinearAttentionProblem<$number>,
                    saved: LinearAttentionSaved<$number>,
                    ends: Option<(&RecurrentState<$number>, &mut StateGradient<$number>)>,
                    gradients: LinearAttentionGradients<$number>,
                ) {
                    linear::run_backward(problem, saved, ends, gradients);
                }
            }
        )+
    };
}

compiled!(f32, f64);
