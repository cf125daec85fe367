//! A decoder that learns: the gradients of a batch, and updates by them.

use crate::checkpoint::{self, State};
use crate::error::Result;
use crate::model::{Decoder, Tokens};
use crate::optimizer::{Optimizer, Update};
use crate::plan::Plan;
use burn::tensor::Tensor;
use kerple_burn::array::Array;
use kerple_burn::parameters;
use std::path::Path;

/// A decoder and its optimizer.
pub struct Learner<'a> {
    plan: &'a Plan,
    /// Away only during an update.
    model: Option<Decoder>,
    optimizer: Optimizer,
}

impl<'a> Learner<'a> {
    /// A fresh decoder of the plan.
    pub fn new(plan: &'a Plan) -> Learner<'a> {
        let model = Decoder::new(plan, &crate::device().autodiff());
        let optimizer = Optimizer::new(plan, &parameters::collect(&model));
        Learner { plan, model: Some(model), optimizer }
    }

    /// Continues from a checkpoint of the same plan.
    ///
    /// # Errors
    /// Files that are damaged or of other shapes.
    pub fn restore(&mut self, path: &Path, state: &State) -> Result<()> {
        let model = checkpoint::load_model(path, state, self.take())?;
        checkpoint::load_optimizer(path, state, &model, &mut self.optimizer)?;
        self.model = Some(model);
        Ok(())
    }

    /// The decoder as it is now.
    pub fn model(&self) -> &Decoder {
        self.model.as_ref().expect("the model is only away during an update")
    }

    /// The optimizer as it is now.
    pub fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    fn take(&mut self) -> Decoder {
        self.model.take().expect("the model is only away during an update")
    }

    /// The mean of `loss` over equal parts of a batch, and its gradient in each parameter; zero in one that the loss does
    /// not depend on.
    pub fn gradients(
        &self,
        parts: &[(Tokens, &[u32])],
        loss: impl Fn(&Decoder, Tokens, &[u32]) -> Tensor<1>,
    ) -> (f64, Vec<Array>) {
        let (mut total, mut sums) = (0.0, Vec::new());
        for (tokens, targets) in parts {
            let part = loss(self.model(), *tokens, targets) / parts.len() as f64;
            total += f64::from(part.clone().into_scalar::<f32>());
            add(&mut sums, parameters::gradients(self.model(), &mut part.backward()), self.model());
        }
        (total, sums)
    }

    /// One update by these gradients.
    pub fn update(&mut self, gradients: &[Array], update: Update) {
        let model = self.take();
        self.model = Some(self.optimizer.step(self.plan, model, gradients, update));
    }
}

/// Adds gradients in place; a parameter that the loss does not depend on counts as zero.
fn add(sums: &mut Vec<Array>, found: Vec<Option<Array>>, model: &Decoder) {
    if sums.is_empty() {
        let zero = |shape: &[usize]| Array::from_vec(vec![0.0f32; shape.iter().product()], shape);
        let named = parameters::collect(model);
        *sums = found.into_iter().zip(named).map(|(g, n)| g.unwrap_or_else(|| zero(n.array.shape()))).collect();
        return;
    }
    for (sum, gradient) in sums.iter_mut().zip(found) {
        if let Some(gradient) = gradient {
            let values = sum.slice::<f32>().iter().zip(gradient.slice::<f32>()).map(|(a, b)| a + b).collect();
            *sum = Array::from_vec(values, gradient.shape());
        }
    }
}
