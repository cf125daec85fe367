//! AdamW. Loshchilov and Hutter 2019, arXiv:1711.05101; in PyTorch's order of operations.
//!
//! ```text
//! p -= lr wd p;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//! p -= lr / (1 - b1^t) m / (sqrt(v) / sqrt(1 - b2^t) + eps)
//! ```

/// Settings of one update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// Learning rate, lr.
    pub learning_rate: f64,
    /// Decay rates of the moments, b1 and b2.
    pub betas: [f64; 2],
    /// Added to the denominator.
    pub eps: f64,
    /// Decoupled weight decay, wd.
    pub weight_decay: f64,
    /// Step of the bias corrections, t, from 1.
    pub step: u64,
    /// Factor on the gradient, for clipping by global norm.
    pub gradient_scale: f64,
}

impl Adam {
    /// Updates `values` and both moments by `gradient`.
    pub fn update<T: AdamReal>(&self, values: &mut [T], gradient: &[T], first: &mut [T], second: &mut [T]) {
        let [b1, b2] = self.betas;
        let (rate, root) =
            (self.learning_rate / (1.0 - b1.powf(self.step as f64)), (1.0 - b2.powf(self.step as f64)).sqrt());
        for (((p, g), m), v) in values.iter_mut().zip(gradient).zip(first).zip(second) {
            let g = g.get() * self.gradient_scale;
            let (m_new, v_new) = (b1 * m.get() + (1.0 - b1) * g, b2 * v.get() + (1.0 - b2) * g * g);
            *m = T::put(m_new);
            *v = T::put(v_new);
            let kept = p.get() * (1.0 - self.learning_rate * self.weight_decay);
            *p = T::put(kept - rate * m_new / (v_new.sqrt() / root + self.eps));
        }
    }
}

/// f32 or f64.
pub trait AdamReal: Copy {
    /// as f64
    fn get(self) -> f64;
    /// from f64
    fn put(x: f64) -> Self;
}
impl AdamReal for f32 {
    fn get(self) -> f64 {
        self.into()
    }
    fn put(x: f64) -> f32 {
        x as f32
    }
}
impl AdamReal for f64 {
    fn get(self) -> f64 {
        self
    }
    fn put(x: f64) -> f64 {
        x
    }
}
/// sum of squares
pub fn sum_of_squares(x: &[f32]) -> f64 {
    x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum()
}
