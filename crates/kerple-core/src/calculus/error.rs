//! Errors between a text and a statement about a kernel.

use super::parse::ParseError;
use super::points::PointsError;

/// Why a question about a kernel has no answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The expression is not one.
    #[error(transparent)]
    Expression(#[from] ParseError),
    /// The point set is not one.
    #[error(transparent)]
    Points(#[from] PointsError),
    /// Eigenvalues are those of one kernel, not of a family.
    #[error("{kernel} has learned parameters: {}", names.join(", "))]
    Learned {
        /// The expression.
        kernel: String,
        /// Its learned parameters.
        names: Vec<String>,
    },
    /// The kernel overflows on these points.
    #[error("{kernel} is {value} at distance {distance}")]
    NotFinite {
        /// The expression.
        kernel: String,
        /// Where.
        distance: f64,
        /// What it is there.
        value: f64,
    },
    /// No feature map or embedding exists.
    #[error("{kernel} on {points}: {reason}")]
    NoFeatures {
        /// The expression.
        kernel: String,
        /// The point set.
        points: String,
        /// Why.
        reason: String,
    },
    /// A number outside its limits.
    #[error("{what} is {value}, expected {low} to {high}")]
    OutOfRange {
        /// What it is.
        what: &'static str,
        /// Its value.
        value: usize,
        /// Smallest accepted value.
        low: usize,
        /// Largest accepted value.
        high: usize,
    },
}

impl Error {
    /// What to change.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::Expression(_) => Some(
                "kernels look like `log(1, 0.5)`, `power(a=1, p=1.5)`, `0.5*log(b, a) + power(a, 1)`, `-(-k)^0.5`, `-log(1 - k)`, `exp(k)`; `kerple describe NAME` prints the expression of an encoding"
                    .into(),
            ),
            Error::Points(_) => {
                Some("point sets look like `0..7`, `0,1,2.5`, `random(n=20, high=100, seed=1)`, `grid(4x5)`".into())
            }
            Error::Learned { names, .. } => {
                let last = names.first().and_then(|name| name.rsplit('.').next()).unwrap_or("a");
                Some(format!("give each parameter a number, as in `{last}=0.5`"))
            }
            Error::NotFinite { .. } => Some("use points that are closer together, or smaller parameters".into()),
            Error::NoFeatures { .. } => Some("see the eigenvalues with `kerple kernel check`".into()),
            Error::OutOfRange { low, high, .. } => Some(format!("give a number from {low} to {high}")),
        }
    }
}
