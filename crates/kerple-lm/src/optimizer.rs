//! AdamW with clipping by global norm, in the order and with the quirks of the paper's training.

use crate::plan::Plan;
use burn::module::Module;
use kerple::encoding::{Clamp, Parameter};
use kerple::ops::adam;
use kerple_burn::array::Array;
use kerple_burn::parameters::{self, Named};

/// Moments of every parameter, and what each parameter needs.
#[derive(Clone, Debug)]
pub struct Optimizer {
    /// First and second moments, in the order of the module's parameters.
    pub moments: Vec<Moments>,
    groups: Vec<Group>,
}

/// Exponential averages of a gradient and its square.
#[derive(Clone, Debug, PartialEq)]
pub struct Moments {
    /// First moment.
    pub first: Vec<f32>,
    /// Second moment.
    pub second: Vec<f32>,
}

#[derive(Clone, Debug)]
struct Group {
    decay: f64,
    range: Option<(f32, f32)>,
}

/// Numbers of one update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Update {
    /// Learning rate.
    pub learning_rate: f64,
    /// Step of Adam's bias corrections, from 1.
    pub adam_step: u64,
    /// Global norm of the gradient before clipping.
    pub grad_norm: f64,
}

/// Path of the encoding's learned values in a decoder.
const ENCODING: &str = "encoding.values.";

impl Optimizer {
    /// Zero moments for these parameters.
    pub fn new(plan: &Plan, named: &[Named]) -> Optimizer {
        let learned = plan.encoding.parameters(&plan.geometry());
        let zeros = |named: &Named| vec![0.0; named.array.shape().iter().product()];
        Optimizer {
            moments: named.iter().map(|n| Moments { first: zeros(n), second: zeros(n) }).collect(),
            groups: named.iter().map(|n| group(plan, &learned, n)).collect(),
        }
    }

    /// One update of `module` by `gradients`, in the same order.
    pub fn step<M: Module>(&mut self, plan: &Plan, module: M, gradients: &[Array], update: Update) -> M {
        let clip = plan.train.clip;
        let scale = if clip > 0.0 { adam::clip_scale(update.grad_norm, clip) } else { 1.0 };
        parameters::update(module, |index, values| {
            let (moments, group) = (&mut self.moments[index], &self.groups[index]);
            let settings = adam::Update {
                lr: update.learning_rate,
                beta1: plan.train.betas[0],
                beta2: plan.train.betas[1],
                epsilon: plan.train.eps,
                weight_decay: group.decay,
                step: update.adam_step,
                gradient_scale: scale,
            };
            adam::update(&settings, values, gradients[index].slice(), &mut moments.first, &mut moments.second);
            if let Some((low, high)) = group.range {
                values.iter_mut().for_each(|value| *value = value.clamp(low, high));
            }
        })
    }
}

fn group(plan: &Plan, learned: &[Parameter], named: &Named) -> Group {
    match named.name.strip_prefix(ENCODING).and_then(|index| index.parse::<usize>().ok()) {
        Some(index) => {
            let range = (learned[index].low as f32, learned[index].high as f32);
            Group { decay: 0.0, range: (plan.encoding.clamp == Clamp::Projected).then_some(range) }
        }
        None if named.array.shape().len() > 1 => Group { decay: plan.train.weight_decay, range: None },
        None => Group { decay: 0.0, range: None },
    }
}

/// Global norm of a set of gradients.
pub fn global_norm(gradients: &[Array]) -> f64 {
    gradients.iter().map(|gradient| adam::sum_of_squares(gradient.slice::<f32>())).sum::<f64>().sqrt()
}
