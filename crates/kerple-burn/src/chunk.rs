//! Rows that are a chunk of longer sequences, trained from the last chunk to the first.

use crate::custom_op::FloatElement;
use kerple_core::attention::linear::{
    self, LinearAttentionGradients, LinearAttentionProblem, LinearAttentionSaved, RecurrentState, StateGradient,
};
use std::any::Any;
use std::sync::{Arc, Mutex};

/// The gradients that later chunks leave for this one in a layer; nothing after the last chunk.
#[derive(Clone, Debug, Default)]
pub struct ChunkCarry(Arc<Mutex<Option<StateGradient<f32>>>>);

/// A layer's position in longer sequences: the state of earlier positions, and what later chunks
/// leave for it.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// `None` before the first position.
    before: Option<Arc<RecurrentState<f32>>>,
    carry: ChunkCarry,
}

impl Chunk {
    pub(crate) fn new(before: Option<RecurrentState<f32>>, carry: &ChunkCarry) -> Chunk {
        Chunk { before: before.map(Arc::new), carry: carry.clone() }
    }

    /// Position of the first row.
    pub(crate) fn first(&self) -> usize {
        self.before.as_ref().map_or(0, |state| state.len())
    }

    /// The state before the chunk.
    pub(crate) fn state<T: FloatElement>(&self, problem: &LinearAttentionProblem<T>) -> RecurrentState<T> {
        match self.before.as_deref() {
            Some(state) => (state as &dyn Any).downcast_ref::<RecurrentState<T>>().expect("states are f32").clone(),
            None => RecurrentState::new(problem),
        }
    }

    /// [`linear::backward_chunk`]; the carry then includes these rows.
    pub(crate) fn backward<T: FloatElement>(
        &self,
        problem: &LinearAttentionProblem<T>,
        saved: LinearAttentionSaved<T>,
        gradients: LinearAttentionGradients<T>,
    ) {
        let mut carry = self.carry.0.lock().expect("a backward that panicked ends the run");
        let later = (&mut *carry as &mut dyn Any).downcast_mut::<Option<StateGradient<T>>>().expect(
            "states \
            are f32",
        );
        let later = later.get_or_insert_with(|| StateGradient::new(problem));
        linear::backward_chunk(problem, saved, (&self.state(problem), later), gradients);
    }
}
