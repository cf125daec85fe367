//! Which kernel of distance did a model learn?
//!
//! ```text
//! value_d = level + k(d; parameters) + e_d,    e_d ~ N(0, sigma^2 / w_d)
//! ```
//!
//! A [`Curve`] has values of a bias over distance. [`fit_curve`] fits every [`Family`] of kernels to it by least squares and
//! ranks them. The level is always free, as softmax ignores a constant added to all scores of a row, and amplitudes are at
//! least 0, as only positive multiples of a kernel are kernels. Families that the data do not distinguish are named together.
//!
//! ```
//! use kerple_fit::{Curve, CurveOutcome, CurvePrecision, FitOptions, Support, fit_curve};
//!
//! let distances: Vec<f64> = (0..64).map(f64::from).collect();
//! let values = distances.iter().map(|d| 3.0 - 0.7 * (0.2 * d).ln_1p()).collect();
//! let curve = Curve::new("head 0", Support::Distances(distances), values, None, CurvePrecision::F64)?;
//! let CurveOutcome::Ranked { families, .. } = fit_curve(&curve, &FitOptions::default())? else { panic!("a kernel fits") };
//! assert_eq!(families[0].family, "log");
//! assert!((families[0].parameters[0].value - 0.7).abs() < 1e-9);
//! # Ok::<(), kerple_run::Error>(())
//! ```
//!
//! Not for kernels of content or of absolute positions, and not for tables over the plane.

mod criteria;
mod curve;
mod edge;
mod family;
mod fit;
pub mod input;
mod interval;
pub mod kernel_search;
mod observations;
pub mod page;
pub mod phase;
mod projection;
mod rank;
pub mod report;
mod search;
pub mod space;
mod starts;

pub use criteria::{Criteria, Noise, RankBy, TOLD_APART};
pub use curve::{Curve, CurvePrecision, LEAST_DISTANCES, LEAST_VALUES, MAX_DISTANCES, Support};
pub use family::{Family, MAX_AMPLITUDES, MAX_SEARCHED, SearchedParameter};
pub use interval::Ends;
pub use rank::{CORRELATED, CurveOutcome, FamilyFit, FitOptions, FittedParameter, fit_curve, fit_curves};
