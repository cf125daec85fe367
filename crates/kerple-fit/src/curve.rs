//! A curve: values of a bias over distance.

use kerple_run::{Error, Result};

/// Most distances of a curve.
pub const MAX_DISTANCES: usize = 1 << 24;
/// Furthest distance: further ones are not all whole numbers of `f64`.
const FURTHEST: f64 = (1u64 << 53) as f64;
/// Largest magnitude of a value, and the smallest that the largest may have: sums of squares neither overflow nor vanish.
const MAGNITUDES: (f64, f64) = (1e-100, 1e100);
/// What distances must be.
pub(crate) const DISTANCES: &str = "distances are at least 0, finite and strictly increasing";
/// Fewest finite values of a curve.
pub const LEAST_VALUES: usize = 8;
/// Fewest distinct distances of a curve.
pub const LEAST_DISTANCES: usize = 4;

/// The numbers that a curve was stored as. Its unit of rounding decides below which residual a fit counts as exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CurvePrecision {
    /// `f64`, and text.
    #[default]
    F64,
    /// `f32`.
    F32,
    /// `f16`.
    F16,
    /// `bf16`.
    Bf16,
}

impl CurvePrecision {
    /// Half the distance from 1 to the next larger number.
    pub fn unit(self) -> f64 {
        match self {
            CurvePrecision::F64 => 2f64.powi(-53),
            CurvePrecision::F32 => 2f64.powi(-24),
            CurvePrecision::F16 => 2f64.powi(-11),
            CurvePrecision::Bf16 => 2f64.powi(-9),
        }
    }
}

/// The distances that a value belongs to.
#[derive(Clone, Debug, PartialEq)]
pub enum Support {
    /// One distance per value, increasing.
    Distances(Vec<f64>),
    /// Several distances per value, as in T5: the value is compared with the mean of a kernel over them.
    Buckets {
        /// Distances of all buckets, one bucket after the other.
        distances: Vec<f64>,
        /// Where each bucket ends among them, `[n]`.
        ends: Vec<usize>,
    },
}

impl Support {
    /// Buckets from a list per value.
    pub fn buckets(lists: &[Vec<f64>]) -> Support {
        let distances = lists.concat();
        let ends = lists.iter().scan(0, |end, list| {
            *end += list.len();
            Some(*end)
        });
        Support::Buckets { distances, ends: ends.collect() }
    }

    /// All distances.
    pub fn distances(&self) -> &[f64] {
        match self {
            Support::Distances(distances) | Support::Buckets { distances, .. } => distances,
        }
    }

    /// The distances of value `i`.
    pub fn of(&self, i: usize) -> &[f64] {
        match self {
            Support::Distances(distances) => &distances[i..=i],
            Support::Buckets { distances, ends } => &distances[if i == 0 { 0 } else { ends[i - 1] }..ends[i]],
        }
    }

    /// The furthest distance of value `i`.
    pub fn furthest(&self, i: usize) -> f64 {
        self.of(i).iter().copied().fold(0.0, f64::max)
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            Support::Distances(distances) => distances.len(),
            Support::Buckets { ends, .. } => ends.len(),
        }
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same, of some values only.
    pub(crate) fn select(&self, kept: &[usize]) -> Support {
        match self {
            Support::Distances(distances) => Support::Distances(kept.iter().map(|i| distances[*i]).collect()),
            Support::Buckets { .. } => {
                Support::buckets(&kept.iter().map(|i| self.of(*i).to_vec()).collect::<Vec<Vec<f64>>>())
            }
        }
    }

    /// Whether each distance is one more than the distance before it, by the same step.
    pub(crate) fn is_even(&self) -> bool {
        match self {
            Support::Buckets { .. } => false,
            Support::Distances(d) => {
                let step = d.get(1).map_or(0.0, |second| second - d[0]);
                d.windows(2).all(|pair| (pair[1] - pair[0] - step).abs() <= 1e-9 * step)
            }
        }
    }
}

/// Values of a bias over distance, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    name: String,
    support: Support,
    values: Vec<f64>,
    weights: Option<Vec<f64>>,
    precision: CurvePrecision,
    /// The layer and head that it belongs to, where its source says so.
    pub place: Option<(usize, usize)>,
}

impl Curve {
    /// A curve; `weights` are inverse variances up to a common factor. A weight of 0 leaves its value out.
    ///
    /// # Shapes
    /// `values` `[n]`, `weights` `[n]`, as many as `support` has.
    ///
    /// # Errors
    /// Values or distances that are not finite, negative or unsorted distances, too few of either, and weights that are
    /// negative, all 0, or too large or small to be squared. The message names the curve and the number.
    ///
    /// ```
    /// use kerple_fit::{Curve, CurvePrecision, Support};
    /// let distances: Vec<f64> = (0..16).map(f64::from).collect();
    /// let values = distances.iter().map(|d| -0.5 * d).collect();
    /// let curve = Curve::new("head 0", Support::Distances(distances), values, None, CurvePrecision::F64)?;
    /// assert_eq!(curve.len(), 16);
    /// # Ok::<(), kerple_run::Error>(())
    /// ```
    pub fn new(
        name: impl Into<String>,
        support: Support,
        values: Vec<f64>,
        weights: Option<Vec<f64>>,
        precision: CurvePrecision,
    ) -> Result<Curve> {
        let name = name.into();
        let refuse = |what: String, hint: &str| Err(Error::refused(format!("curve `{name}`: {what}"), hint));
        if support.distances().len() > MAX_DISTANCES {
            let what = format!("{} distances exceed the limit of {MAX_DISTANCES}", support.distances().len());
            return refuse(what, "give fewer distances; a fit needs only some at each scale");
        }
        if support.len() != values.len() || weights.as_ref().is_some_and(|weights| weights.len() != values.len()) {
            let what = format!(
                "{} values, {} distances and {} weights; there must be as many of each",
                values.len(),
                support.len(),
                weights.as_ref().map_or(values.len(), Vec::len)
            );
            return refuse(what, "give a distance (and a weight, if any has one) for each value");
        }
        if let Some(what) = distance_problem(&support) {
            return refuse(what, DISTANCES);
        }
        if let Some(i) = values.iter().position(|value| !value.is_finite()) {
            let what = format!("the value at distance {} is {}", support.furthest(i), values[i]);
            let hint = "give finite values; where there is none, leave a cell of a .csv file empty, write null in a .json \
                file, or leave the distance out with --points LO..HI";
            return refuse(what, hint);
        }
        let largest = values.iter().fold(0.0f64, |most, value| most.max(value.abs()));
        if largest > MAGNITUDES.1 || (largest > 0.0 && largest < MAGNITUDES.0) {
            let what = format!(
                "the largest magnitude of a value is {largest:e}, the limits are {:e} and {:e}",
                MAGNITUDES.0, MAGNITUDES.1
            );
            return refuse(what, "multiply all values by a factor: it multiplies the amplitudes of fits");
        }
        let (support, values, weights) = match weights {
            None => (support, values, None),
            Some(weights) => {
                if let Some(weight) = weights.iter().find(|weight| !(weight.is_finite() && **weight >= 0.0)) {
                    return refuse(
                        format!("a weight is {weight}"),
                        "weights are inverse variances: 0 or more, and finite",
                    );
                }
                let largest = weights.iter().copied().fold(0.0, f64::max);
                if largest > MAGNITUDES.1 || (largest > 0.0 && largest < MAGNITUDES.0) {
                    let (low, high) = MAGNITUDES;
                    let what = format!("the largest weight is {largest:e}, the limits are {low:e} and {high:e}");
                    return refuse(what, "multiply all weights by a factor: without --sigma, it changes no fit");
                }
                let kept: Vec<usize> = (0..values.len()).filter(|i| weights[*i] > 0.0).collect();
                if kept.is_empty() {
                    return refuse("all weights are 0".to_owned(), "give at least 8 values a weight above 0");
                }
                let pick = |of: &[f64]| kept.iter().map(|i| of[*i]).collect::<Vec<f64>>();
                (support.select(&kept), pick(&values), Some(pick(&weights)))
            }
        };
        if values.len() < LEAST_VALUES {
            let what = format!("{} values are too few, a fit needs at least {LEAST_VALUES}", values.len());
            return refuse(what, "give more distances");
        }
        let mut distinct = support.distances().to_vec();
        distinct.sort_by(f64::total_cmp);
        distinct.dedup();
        if distinct.len() < LEAST_DISTANCES {
            let what = format!("{} distinct distances are too few, a fit needs {LEAST_DISTANCES}", distinct.len());
            return refuse(what, "give more distances");
        }
        Ok(Curve { name, support, values, weights, precision, place: None })
    }

    /// The same curve of a layer and head.
    #[must_use]
    pub fn at(mut self, layer: usize, head: usize) -> Curve {
        self.place = Some((layer, head));
        self
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The distances of its values.
    pub fn support(&self) -> &Support {
        &self.support
    }

    /// Its values, `[n]`.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// Its weights, `[n]`, where it has any.
    pub fn weights(&self) -> Option<&[f64]> {
        self.weights.as_deref()
    }

    /// The numbers it was stored as.
    pub fn precision(&self) -> CurvePrecision {
        self.precision
    }

    /// Number of values, n.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Never: a curve has values.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The furthest distance, D.
    pub fn furthest(&self) -> f64 {
        self.support.distances().iter().copied().fold(0.0, f64::max)
    }

    /// Smallest and largest value.
    pub fn range(&self) -> (f64, f64) {
        self.values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(*x), high.max(*x)))
    }

    /// The variance below which residuals are rounding: `(8 u max|value|)^2`, times the mean weight, as residuals are weighted.
    pub fn rounding_floor(&self) -> f64 {
        let (low, high) = self.range();
        let weight = self.weights.as_ref().map_or(1.0, |all| all.iter().sum::<f64>() / all.len() as f64);
        weight * (8.0 * self.precision.unit() * low.abs().max(high.abs())).powi(2)
    }

    /// Whether the values differ by rounding only.
    pub fn is_constant(&self) -> bool {
        let (low, high) = self.range();
        high - low <= 8.0 * self.precision.unit() * low.abs().max(high.abs())
    }
}

/// What is wrong with the distances, if anything.
pub(crate) fn distance_problem(support: &Support) -> Option<String> {
    if let Some(d) = support.distances().iter().find(|d| !(d.is_finite() && **d >= 0.0)) {
        return Some(format!("a distance is {d}"));
    }
    if let Some(d) = support.distances().iter().find(|d| **d > FURTHEST) {
        return Some(format!("a distance is {d:e}, the limit is {FURTHEST:e}"));
    }
    match support {
        Support::Distances(distances) => {
            let pair = distances.windows(2).find(|pair| pair[0] >= pair[1])?;
            Some(format!("distance {} comes after distance {}", pair[1], pair[0]))
        }
        Support::Buckets { .. } => (0..support.len()).find_map(|i| {
            let mut sorted = support.of(i).to_vec();
            sorted.sort_by(f64::total_cmp);
            match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
                Some(pair) => Some(format!("bucket {i} has the distance {} twice", pair[0])),
                None => sorted.is_empty().then(|| format!("bucket {i} has no distance")),
            }
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(distances: Vec<f64>, values: Vec<f64>, weights: Option<Vec<f64>>) -> Result<Curve> {
        Curve::new("head 3", Support::Distances(distances), values, weights, CurvePrecision::F64)
    }

    #[test]
    fn mistakes_are_named_with_the_curve_and_the_number() {
        let d: Vec<f64> = (0..8).map(f64::from).collect();
        let set = |at: usize, x: f64| {
            let mut changed = d.clone();
            changed[at] = x;
            changed
        };
        let cases = [
            (curve(d.clone(), set(2, f64::NAN), None), "the value at distance 2 is NaN"),
            (curve(set(0, -1.0), d.clone(), None), "a distance is -1"),
            (curve(set(3, 2.0), d.clone(), None), "distance 2 comes after distance 2"),
            (curve(set(7, f64::INFINITY), d.clone(), None), "a distance is inf"),
            (curve(d[..7].to_vec(), d[..7].to_vec(), None), "7 values are too few"),
            (curve(d.clone(), d[..7].to_vec(), None), "7 values, 8 distances"),
            (curve(set(7, 1e300), d.clone(), None), "a distance is 1e300, the limit is"),
            (curve(d.clone(), set(2, 1e200), None), "the largest magnitude of a value is 1e200"),
            (curve(d.clone(), d.iter().map(|d| 1e-200 * d).collect(), None), "e-200, the limits are 1e-100 and 1e100"),
            (curve(d.clone(), d.clone(), Some(set(1, -2.0))), "a weight is -2"),
            (curve(d.clone(), d.clone(), Some(vec![0.0; 8])), "all weights are 0"),
            (curve(d.clone(), d.clone(), Some(vec![1e-300; 8])), "the largest weight is 1e-300, the limits are 1e-100"),
            (curve(d.clone(), d.clone(), Some(set(1, 1e300))), "the largest weight is 1e300, the limits are 1e-100"),
            (curve(d.clone(), d.clone(), Some(set(1, 0.0))), "too few, a fit needs at least 8"),
        ];
        for (found, message) in cases {
            let error = found.unwrap_err();
            assert!(error.to_string().starts_with("curve `head 3`: "), "{error}");
            assert!(error.to_string().contains(message), "{error}");
            assert!(!error.hint().is_empty());
        }
    }

    #[test]
    fn weights_of_0_leave_values_out() {
        let d: Vec<f64> = (0..10).map(f64::from).collect();
        let mut weights = vec![1.0; 10];
        weights[4] = 0.0;
        let found = curve(d.clone(), d, Some(weights)).unwrap();
        assert_eq!((found.len(), found.support().of(4)), (9, &[5.0][..]));
        assert!(!found.is_constant() && found.furthest() == 9.0);
    }

    #[test]
    fn a_bucket_has_each_distance_once() {
        let lists: Vec<Vec<f64>> = (0..8).map(|i| vec![f64::from(i), f64::from(i + 8)]).collect();
        let of = |lists: &[Vec<f64>]| distance_problem(&Support::buckets(lists));
        assert_eq!(of(&lists), None);
        let twice = [&lists[..], &[vec![20.0, 21.0, 20.0]]].concat();
        assert_eq!(of(&twice), Some("bucket 8 has the distance 20 twice".to_owned()));
        assert_eq!(of(&[&lists[..], &[vec![]]].concat()), Some("bucket 8 has no distance".to_owned()));
    }

    #[test]
    fn a_curve_is_constant_up_to_rounding() {
        let d: Vec<f64> = (0..8).map(f64::from).collect();
        let values: Vec<f64> = d.iter().map(|d| 3.0 + 1e-16 * d).collect();
        assert!(curve(d, values, None).unwrap().is_constant());
    }
}
