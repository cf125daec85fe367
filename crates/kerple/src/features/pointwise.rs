//! Features that are a function of each number alone.

use super::{Place, RowGradients, RowMap, Rows, padded};
use crate::Number;

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

impl<T: Number> RowMap<T> for Pointwise {
    fn widths(&self) -> [usize; 2] {
        [self.width(); 2]
    }

    fn parameters(&self) -> usize {
        0
    }

    fn room(&self) -> usize {
        0
    }

    fn forward(&self, _: Place, x: &[T], y: &mut [T], _: &mut [T]) {
        let (width, stride) = (self.width(), padded(self.width()));
        for (x, y) in x.chunks_exact(stride).zip(y.chunks_exact_mut(stride)) {
            y[width..].fill(T::ZERO);
            for (x, y) in x[..width].iter().zip(y) {
                *y = match *self {
                    Pointwise::Relu { shift, .. } => T::max(*x, T::ZERO) + T::from_f64(shift),
                    Pointwise::Elu { .. } if *x < T::ZERO => x.exp(),
                    Pointwise::Elu { .. } => *x + T::ONE,
                };
            }
        }
    }

    fn backward(&self, _: Place, rows: Rows<T>, _: &mut [T], gradients: RowGradients<T>) {
        let d = rows.x.iter().zip(rows.y).zip(rows.d_y).zip(gradients.d_x);
        for (((x, y), d_y), d_x) in d {
            *d_x = match *self {
                Pointwise::Relu { .. } if *x > T::ZERO => *d_y,
                Pointwise::Relu { .. } => T::ZERO,
                Pointwise::Elu { .. } if *x < T::ZERO => *d_y * *y,
                Pointwise::Elu { .. } => *d_y,
            };
        }
    }
}
