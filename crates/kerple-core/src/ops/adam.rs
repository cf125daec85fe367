//! AdamW in one pass over a parameter, and clipping by global norm. Loshchilov and Hutter 2019, arXiv:1711.05101;
//! rounding and order as in PyTorch's `AdamW`, which with weight decay 0 is Adam.
//!
//! ```text
//! p -= lr weight_decay p                            decoupled decay
//! m += (1 - beta1) (g - m)
//! v  = beta2 v + (1 - beta2) g^2
//! p -= lr / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
//! ```
//!
//! `g` is the gradient times [`AdamWUpdate::gradient_scale`], `t` counts from 1.

use crate::Number;
use crate::check_shape;
use crate::cpu::vectorized;
use crate::tiles::workers::for_each_task;

/// Elements a task takes.
const ELEMENTS_PER_TASK: usize = 1 << 14;

/// The settings of one update of one parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWUpdate {
    /// Learning rate of this step.
    pub lr: f64,
    /// Decay of the mean of gradients.
    pub beta1: f64,
    /// Decay of the mean of squared gradients.
    pub beta2: f64,
    /// Added to the denominator.
    pub epsilon: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Number of this step in the bias corrections, from 1.
    pub step: u64,
    /// Factor on the gradient, as [`clip_scale`] gives it.
    pub gradient_scale: f64,
}

impl Default for AdamWUpdate {
    /// PyTorch's defaults for the first step, without weight decay.
    fn default() -> AdamWUpdate {
        AdamWUpdate {
            lr: 1e-3,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.0,
            step: 1,
            gradient_scale: 1.0,
        }
    }
}

/// Updates a parameter and its moments in place.
///
/// # Panics
/// If the slices differ in length or `step` is 0.
pub fn update<T: Number>(
    settings: &AdamWUpdate,
    parameter: &mut [T],
    gradient: &[T],
    mean: &mut [T],
    square: &mut [T],
) {
    let elements = parameter.len();
    check_shape!(gradient, elements = elements);
    check_shape!(mean, elements = elements);
    check_shape!(square, elements = elements);
    let factors = AdamWCoefficients::new(settings);
    let moments = mean.chunks_mut(ELEMENTS_PER_TASK).zip(square.chunks_mut(ELEMENTS_PER_TASK));
    let tasks = parameter.chunks_mut(ELEMENTS_PER_TASK).zip(gradient.chunks(ELEMENTS_PER_TASK)).zip(moments);
    for_each_task(tasks, |_, ((p, g), (m, v))| update_elements(factors, p, g, m, v));
}

/// [`AdamWUpdate`] as the factors of the formula, made in f64 and rounded once.
#[derive(Clone, Copy)]
struct AdamWCoefficients<T> {
    keep: T,
    gradient_scale: T,
    mean_rate: T,
    square_keep: T,
    square_rate: T,
    step_size: T,
    square_correction: T,
    epsilon: T,
}

impl<T: Number> AdamWCoefficients<T> {
    fn new(settings: &AdamWUpdate) -> AdamWCoefficients<T> {
        let AdamWUpdate { lr, beta1, beta2, epsilon, weight_decay, step, gradient_scale } = *settings;
        assert!(step > 0, "step: the bias corrections count from 1");
        let correction = |beta: f64| 1.0 - beta.powf(step as f64);
        AdamWCoefficients {
            keep: T::from_f64(1.0 - lr * weight_decay),
            gradient_scale: T::from_f64(gradient_scale),
            mean_rate: T::from_f64(1.0 - beta1),
            square_keep: T::from_f64(beta2),
            square_rate: T::from_f64(1.0 - beta2),
            step_size: T::from_f64(lr / correction(beta1)),
            square_correction: T::from_f64(correction(beta2).sqrt()),
            epsilon: T::from_f64(epsilon),
        }
    }
}

vectorized! {
    fn update_elements(factors: AdamWCoefficients<T>, parameter: &mut [T], gradient: &[T], mean: &mut [T], square: &mut [T]) {
        for (((p, g), m), v) in parameter.iter_mut().zip(gradient).zip(mean).zip(square) {
            let g = *g * factors.gradient_scale;
            *m += factors.mean_rate * (g - *m);
            *v = *v * factors.square_keep + factors.square_rate * g * g;
            let denominator = v.sqrt() / factors.square_correction + factors.epsilon;
            *p = *p * factors.keep - factors.step_size * (*m / denominator);
        }
    }
}

/// The sum of squares in f64, in a fixed order. For `f32` it is finite exactly if every element is.
pub fn sum_of_squares<T: Number>(values: &[T]) -> f64 {
    let mut partial = vec![0.0; values.len().div_ceil(ELEMENTS_PER_TASK)];
    let tasks = values.chunks(ELEMENTS_PER_TASK).zip(&mut partial);
    for_each_task(tasks, |_, (values, sum)| *sum = sum_of_squares_serial(values));
    partial.into_iter().sum()
}

vectorized! {
    fn sum_of_squares_serial(values: &[T]) -> f64 {
        /// Sums kept side by side.
        const LANES: usize = 32;
        let mut lanes = [0.0f64; LANES];
        let blocks = values.chunks_exact(LANES);
        let rest = blocks.remainder();
        for block in blocks {
            for i in 0..LANES {
                let value = block[i].to_f64();
                lanes[i] = value.mul_add(value, lanes[i]);
            }
        }
        for (lane, value) in lanes.iter_mut().zip(rest) {
            *lane += value.to_f64() * value.to_f64();
        }
        lanes.iter().sum()
    }
}

/// Where the first infinite or NaN element is.
pub fn first_non_finite<T: Number>(values: &[T]) -> Option<usize> {
    let mut found = vec![None; values.len().div_ceil(ELEMENTS_PER_TASK)];
    let tasks = values.chunks(ELEMENTS_PER_TASK).zip(&mut found);
    for_each_task(tasks, |task, (values, found)| {
        let at = values.iter().position(|value| !value.is_finite());
        *found = at.map(|at| task * ELEMENTS_PER_TASK + at);
    });
    found.into_iter().flatten().next()
}

/// The factor that brings gradients of this global L2 norm down to `limit`: 1 below it, `limit / (norm + 1e-6)` above, as
/// DeepSpeed and PyTorch do.
pub fn clip_scale(norm: f64, limit: f64) -> f64 {
    let excess = (norm + 1e-6) / limit;
    if excess > 1.0 { 1.0 / excess } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::tests::on_every_set;
    use crate::ops::testing::{assert_same_at_any_threads, random, single};
    use proptest::prelude::*;

    /// The formula with the moments' bias corrected first, as in Kingma and Ba 2015, Algorithm 1.
    fn plain(settings: &AdamWUpdate, gradients: &[f64], start: f64) -> f64 {
        let (mut p, mut m, mut v) = (start, 0.0, 0.0);
        for (i, gradient) in gradients.iter().enumerate() {
            let (g, t) = (gradient * settings.gradient_scale, i as i32 + 1);
            m = settings.beta1 * m + (1.0 - settings.beta1) * g;
            v = settings.beta2 * v + (1.0 - settings.beta2) * g * g;
            let (m_hat, v_hat) = (m / (1.0 - settings.beta1.powi(t)), v / (1.0 - settings.beta2.powi(t)));
            p -= settings.lr * (settings.weight_decay * p + m_hat / (v_hat.sqrt() + settings.epsilon));
        }
        p
    }

    proptest! {
        #[test]
        fn equals_plain(
            lr in 1e-4..1e-1, beta1 in 0.0..0.99, beta2 in 0.5..0.9999, weight_decay in 0.0..0.5, gradient_scale in 0.1..1.0,
            elements in 1usize..70, seed in 0u64..1000,
        ) {
            let settings = AdamWUpdate { lr, beta1, beta2, weight_decay, gradient_scale, ..AdamWUpdate::default() };
            let (start, steps) = (random(elements, seed), 5);
            let gradients: Vec<Vec<f64>> = (0..steps).map(|t| random(elements, seed + 1 + t)).collect();
            let (mut p, mut m, mut v) = (start.clone(), vec![0.0; elements], vec![0.0; elements]);
            let (mut p32, mut m32, mut v32) = (single(&start), vec![0.0; elements], vec![0.0; elements]);
            for (t, gradient) in gradients.iter().enumerate() {
                let settings = AdamWUpdate { step: t as u64 + 1, ..settings };
                update(&settings, &mut p, gradient, &mut m, &mut v);
                update(&settings, &mut p32, &single(gradient), &mut m32, &mut v32);
            }
            for i in 0..elements {
                let of_element: Vec<f64> = gradients.iter().map(|gradient| gradient[i]).collect();
                let want = plain(&settings, &of_element, start[i]);
                prop_assert!((p[i] - want).abs() < 1e-13, "{i}: {} {want}", p[i]);
                // m / sqrt(v) is at most about 10 here and loses digits where gradients cancel
                prop_assert!((f64::from(p32[i]) - want).abs() < 1e-6 + 1e-5 * lr, "{i}: {} {want}", p32[i]);
            }
        }

        #[test]
        fn sums_and_finiteness(values in prop::collection::vec(-100i32..100, 0..200), at in 0usize..200) {
            let mut values: Vec<f32> = values.into_iter().map(|value| value as f32).collect();
            let exact: f64 = values.iter().map(|value| f64::from(value * value)).sum();
            prop_assert_eq!(sum_of_squares(&values), exact);
            prop_assert_eq!(first_non_finite(&values), None);
            if at < values.len() {
                values[at] = if at % 2 == 0 { f32::NAN } else { f32::INFINITY };
                prop_assert_eq!(first_non_finite(&values), Some(at));
                prop_assert!(!sum_of_squares(&values).is_finite());
            }
        }
    }

    #[test]
    fn threads_and_instruction_sets_do_not_change_bits() {
        let elements = 3 * ELEMENTS_PER_TASK + 5;
        let (start, gradient) = (single(&random(elements, 1)), single(&random(elements, 2)));
        let run = || {
            let (mut p, mut m, mut v) = (start.clone(), gradient.clone(), vec![0.5; elements]);
            update(&AdamWUpdate { weight_decay: 0.1, ..AdamWUpdate::default() }, &mut p, &gradient, &mut m, &mut v);
            (p, m, v, sum_of_squares(&gradient))
        };
        assert_same_at_any_threads(run);
        let results = on_every_set(|| {
            let (mut p, mut m, mut v) = (start[..99].to_vec(), gradient[..99].to_vec(), vec![0.5; 99]);
            update_elements(AdamWCoefficients::new(&AdamWUpdate::default()), &mut p, &gradient[..99], &mut m, &mut v);
            (p, m, v, sum_of_squares_serial(&gradient[..99]))
        });
        assert!(results.iter().all(|result| *result == results[0]));
    }

    #[test]
    fn clipping_leaves_small_norms_and_cuts_large_ones() {
        assert_eq!(clip_scale(0.5, 1.0), 1.0);
        assert_eq!(clip_scale(1.0 - 1e-6, 1.0), 1.0);
        assert_eq!(clip_scale(4.0, 1.0), 1.0 / 4.000001);
        assert_eq!(clip_scale(4.0, 2.0), 1.0 / (4.000001 / 2.0));
        assert_eq!(clip_scale(f64::INFINITY, 1.0), 0.0);
    }
}
