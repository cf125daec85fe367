//! Kernels of learned positions: a bias `k(|x_i - x_j|)` where the content says how far apart tokens are.

use super::Strided;

/// The bias of learned positions, `k_h(|x_i - x_j|)`, added like [`ScoreTable::bias`](super::ScoreTable::bias).
///
/// Positions x are running sums of steps that are not negative, in f64 so that differences are as
/// exact at the end of a long sequence as at its start. There are no more queries than keys. A conditionally positive
/// definite kernel of the line stays one at any positions, coincident ones included: the definition is about all finite sets
/// of reals.
#[derive(Clone, Copy, Debug)]
pub struct LearnedPositions<'a> {
    /// Of all keys, `[B, H, K]`, not decreasing.
    pub positions: Strided<&'a [f64]>,
    /// The kernel of all heads.
    pub kernel: PositionKernel,
    /// What it learns, `[H, P]`; 0 in splines and tables alone, since gradients of the others divide by their parameters.
    pub parameters: &'a [f64],
}

/// A kernel of the distance `u >= 0` between learned positions, with parameters per head in the order of its formula.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PositionKernel {
    /// `-r1 ln(1 + r2 u)`
    Log,
    /// `-r1 u^p`
    Power,
    /// `-r1 ln(1 + r2 u^p)`
    Log3,
    /// `-a_0 u - sum over m of a_m min(u, 2^(m - 1))`: every piecewise linear concave price with these knots, where `a >= 0`.
    Spline {
        /// How many, from 1 on, each twice the one before.
        knots: usize,
    },
    /// A table at distances 0, 2^e, 2 * 2^e, .., linear between them and constant from the last on. On such a grid, the
    /// interpolation of a conditionally positive definite function stays one.
    Table {
        /// Numbers, at least 2.
        entries: usize,
        /// e, from -64 to 64.
        grid_exponent: i32,
    },
}

impl PositionKernel {
    /// Parameters per head, P.
    pub fn parameters(self) -> usize {
        match self {
            PositionKernel::Log | PositionKernel::Power => 2,
            PositionKernel::Log3 => 3,
            PositionKernel::Spline { knots } => knots + 1,
            PositionKernel::Table { entries, .. } => entries,
        }
    }

    /// Whether gradients divide by parameters, so that none may be 0.
    pub fn divides_by_parameters(self) -> bool {
        matches!(self, PositionKernel::Log | PositionKernel::Power | PositionKernel::Log3)
    }

    /// The entry of a table at or below a distance and the share of the next one; all of the last, and none, from there on.
    pub(crate) fn table_entry(entries: usize, grid_exponent: i32, u: f64) -> (usize, f64) {
        let at = u * 2f64.powi(-grid_exponent);
        let last = entries - 1;
        if at >= last as f64 { (last, 0.0) } else { (at as usize, at.fract()) }
    }

    /// The knot of a spline's parameter; infinite for the first, which has none.
    pub fn knot(parameter: usize) -> f64 {
        if parameter == 0 { f64::INFINITY } else { 2f64.powi(parameter as i32 - 1) }
    }

    /// `k(u)` and `k'(u)` with one head's parameters, `[P]`. At 0 the derivative is that from above, or 0 where that is
    /// infinite.
    ///
    /// # Panics
    /// Unless there are [`PositionKernel::parameters`].
    pub fn at(self, parameters: &[f64], u: f64) -> [f64; 2] {
        crate::check_shape!(parameters, P = self.parameters());
        match (self, parameters) {
            (PositionKernel::Log, &[r1, r2]) => [-r1 * (r2 * u).ln_1p(), -r1 * r2 / (1.0 + r2 * u)],
            (PositionKernel::Spline { .. }, slopes) => {
                let pieces = slopes.iter().enumerate().map(|(m, a)| (a, PositionKernel::knot(m)));
                pieces.fold([0.0; 2], |[k, slope], (a, knot)| {
                    [k - a * u.min(knot), if u < knot { slope - a } else { slope }]
                })
            }
            (PositionKernel::Table { entries, grid_exponent }, table) => {
                let (at, share) = PositionKernel::table_entry(entries, grid_exponent, u);
                let rise = table.get(at + 1).map_or(0.0, |next| next - table[at]);
                [table[at] + share * rise, rise * 2f64.powi(-grid_exponent)]
            }
            _ if u == 0.0 => [0.0; 2],
            (PositionKernel::Power, &[r1, p]) => [-r1 * u.powf(p), -r1 * p * u.powf(p - 1.0)],
            (PositionKernel::Log3, &[r1, r2, p]) => {
                let inner = r2 * u.powf(p);
                [-r1 * inner.ln_1p(), -r1 * p * inner / ((1.0 + inner) * u)]
            }
            _ => unreachable!("the number of parameters has been checked"),
        }
    }

    /// Adds `d_k` times the derivatives of `k(u)` in the parameters; at 0 all 0, but for the first number of a table.
    ///
    /// # Panics
    /// Unless there are [`PositionKernel::parameters`] of both.
    pub fn add_gradient(self, parameters: &[f64], u: f64, d_k: f64, to: &mut [f64]) {
        if let PositionKernel::Table { entries, grid_exponent } = self {
            crate::check_shape!(to, P = entries);
            let (at, share) = PositionKernel::table_entry(entries, grid_exponent, u);
            to[at] += d_k * (1.0 - share);
            if let Some(next) = to.get_mut(at + 1) {
                *next += d_k * share;
            }
            return;
        }
        let [k, slope] = self.at(parameters, u);
        if u == 0.0 {
            return;
        }
        match (self, parameters, to) {
            (PositionKernel::Log, &[r1, r2], [d_r1, d_r2]) => {
                (*d_r1, *d_r2) = (*d_r1 + d_k * k / r1, *d_r2 + d_k * u * slope / r2);
            }
            (PositionKernel::Power, &[r1, _], [d_r1, d_p]) => {
                (*d_r1, *d_p) = (*d_r1 + d_k * k / r1, *d_p + d_k * k * u.ln());
            }
            (PositionKernel::Log3, &[r1, r2, p], [d_r1, d_r2, d_p]) => {
                let scaled = d_k * u * slope / p;
                (*d_r1, *d_r2, *d_p) = (*d_r1 + d_k * k / r1, *d_r2 + scaled / r2, *d_p + scaled * u.ln());
            }
            (PositionKernel::Spline { .. }, _, to) => {
                to.iter_mut().enumerate().for_each(|(m, to)| *to -= d_k * u.min(PositionKernel::knot(m)));
            }
            _ => panic!("a gradient of another number of parameters"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::PositionKernel::{self, Log, Log3, Power, Spline, Table};

    const KERNELS: [(PositionKernel, &[f64]); 6] = [
        (Log, &[1.3, 0.4]),
        (Power, &[0.8, 0.6]),
        (Power, &[0.3, 1.7]),
        (Log3, &[0.9, 0.5, 1.4]),
        (Spline { knots: 4 }, &[0.1, 0.4, 0.2, 0.3, 0.15]),
        (Table { entries: 4, grid_exponent: 1 }, &[0.0, -0.4, 0.2, -0.3]),
    ];

    #[test]
    fn derivatives_are_those_of_the_formula() {
        for (kernel, parameters) in KERNELS {
            for u in [0.013, 0.7, 1.5, 3.3, 900.0] {
                let step = 1e-6 * u;
                let [above, below] = [step, -step].map(|by| kernel.at(parameters, u + by)[0]);
                let [k, slope] = kernel.at(parameters, u);
                // truncation of relative order step^2, rounding 1e-16 of k over the step
                assert!(
                    (slope - (above - below) / (2.0 * step)).abs() < 1e-8 * (slope.abs() + k.abs() / u),
                    "{kernel:?}"
                );
                let mut found = vec![0.0; parameters.len()];
                kernel.add_gradient(parameters, u, 2.0, &mut found);
                for (n, found) in found.iter().enumerate() {
                    let moved = |by: f64| {
                        let mut moved = parameters.to_vec();
                        moved[n] += by;
                        kernel.at(&moved, u)[0]
                    };
                    let numeric = (moved(1e-6) - moved(-1e-6)) / 1e-6;
                    assert!((found - numeric).abs() < 1e-7 * found.abs().max(k.abs()), "{kernel:?} {n} {u}");
                }
            }
        }
    }

    #[test]
    fn coincident_positions_have_no_bias() {
        for (kernel, parameters) in KERNELS {
            let mut found = vec![0.0; parameters.len()];
            kernel.add_gradient(parameters, 0.0, 1.0, &mut found);
            let [k, slope] = kernel.at(parameters, 0.0);
            let is_table = matches!(kernel, Table { .. });
            assert!(k == 0.0 && slope.is_finite(), "{kernel:?}");
            assert!(
                found.iter().enumerate().all(|(at, d)| *d == f64::from(u8::from(is_table && at == 0))),
                "{kernel:?}"
            );
        }
        assert_eq!(Log.at(&[1.5, 0.5], 0.0)[1], -0.75);
        assert_eq!(Spline { knots: 1 }.at(&[0.25, 0.5], 0.0)[1], -0.75);
        // a table ends in its last number, and a knot has the slope of what follows
        let table = Table { entries: 3, grid_exponent: -1 };
        assert_eq!(
            [0.25, 0.5, 1.0, 7.0].map(|u| table.at(&[1.0, 2.0, 5.0], u)),
            [[1.5, 2.0], [2.0, 6.0], [5.0, 0.0], [5.0, 0.0]]
        );
    }
}
