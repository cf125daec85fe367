//! Features that are a function of each number alone.

use super::{FeatureMap, FeatureMapGradients, FeatureMapSaved, RowRange, padded};
use crate::Number;
use crate::cpu::vectorized;
use std::hash::{DefaultHasher, Hash, Hasher};

/// A positive function of each number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pointwise {
    /// `relu(x) + shift`. With 1e-3 on the rows themselves the "Linear Transformer-ReLU" of Liutkus et al. 2021,
    /// arXiv:2105.08399; after a [`Project`](super::Project) generalised random features (Choromanski et al. 2021,
    /// arXiv:2009.14794).
    Relu {
        /// Numbers of a row.
        width: usize,
        /// Added to all of them.
        shift: f64,
    },
    /// `elu(x) + 1`. Katharopoulos et al. 2020, arXiv:2006.16236.
    Elu {
        /// Numbers of a row.
        width: usize,
    },
}

impl Pointwise {
    fn width(&self) -> usize {
        match *self {
            Pointwise::Relu { width, .. } | Pointwise::Elu { width } => width,
        }
    }
}

vectorized! {
    /// `y = max(x, 0) + shift`
    fn relu(x: &[T], shift: T, y: &mut [T]) {
        for (x, y) in x.iter().zip(y) {
            *y = T::max(*x, T::ZERO) + shift;
        }
    }
}

vectorized! {
    /// `y = e^x` below 0, `x + 1` elsewhere.
    fn elu(x: &[T], y: &mut [T]) {
        for (x, y) in x.iter().zip(y) {
            let power = x.exp();
            *y = if *x < T::ZERO { power } else { *x + T::ONE };
        }
    }
}

vectorized! {
    fn relu_backward(x: &[T], d_y: &[T], d_x: &mut [T]) {
        for ((x, d_y), d_x) in x.iter().zip(d_y).zip(d_x) {
            *d_x = if *x > T::ZERO { *d_y } else { T::ZERO };
        }
    }
}

vectorized! {
    fn elu_backward(x: &[T], y: &[T], d_y: &[T], d_x: &mut [T]) {
        for (((x, y), d_y), d_x) in x.iter().zip(y).zip(d_y).zip(d_x) {
            let below = *d_y * *y;
            *d_x = if *x < T::ZERO { below } else { *d_y };
        }
    }
}

impl<T: Number> FeatureMap<T> for Pointwise {
    fn widths(&self) -> [usize; 2] {
        [self.width(); 2]
    }

    fn parameters(&self) -> usize {
        0
    }

    fn room(&self) -> usize {
        0
    }

    fn identity(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        match *self {
            Pointwise::Relu { width, shift } => ("relu", width, shift.to_bits()).hash(&mut hasher),
            Pointwise::Elu { width } => ("elu", width).hash(&mut hasher),
        }
        hasher.finish()
    }

    fn forward(&self, _: RowRange, x: &[T], y: &mut [T], _: &mut [T]) {
        match *self {
            Pointwise::Relu { shift, .. } => relu(x, T::from_f64(shift), y),
            Pointwise::Elu { .. } => elu(x, y),
        }
        let (width, stride) = (self.width(), padded(self.width()));
        y.chunks_exact_mut(stride).for_each(|y| y[width..].fill(T::ZERO));
    }

    fn backward(&self, _: RowRange, rows: FeatureMapSaved<T>, _: &mut [T], gradients: FeatureMapGradients<T>) {
        match *self {
            Pointwise::Relu { .. } => relu_backward(rows.x, rows.d_y, gradients.d_x),
            Pointwise::Elu { .. } => elu_backward(rows.x, rows.y, rows.d_y, gradients.d_x),
        }
    }
}
