//! The scores of RULER (Hsieh et al. 2024, arXiv:2404.06654) as its program computes them, to compare with its tables. For an
//! interval over runs see [`reach`](super::reach).

/// The mean score in percent that an effective length needs: that of Llama 2 at its training length.
pub const THRESHOLD: f64 = 85.6;

/// How a prediction is compared with the strings it should contain; upper and lower case are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StringMatch {
    /// The share of the strings that it contains.
    All,
    /// 1 where it contains any.
    Part,
}

impl StringMatch {
    /// Mean over predictions with their references in percent, with two decimals; NaN of nothing.
    pub fn score(self, predictions: &[(&str, &[String])]) -> f64 {
        let of = |(prediction, references): &(&str, &[String])| {
            let prediction = prediction.to_lowercase();
            let found = references.iter().filter(|reference| prediction.contains(&reference.to_lowercase())).count();
            match self {
                StringMatch::All => found as f64 / references.len() as f64,
                StringMatch::Part => f64::from(u8::from(found > 0)),
            }
        };
        (100.0 * 100.0 * super::mean(&predictions.iter().map(of).collect::<Vec<f64>>())).round() / 100.0
    }
}

/// What RULER's table has of a model's mean scores at increasing lengths.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RulerSummary {
    /// Number of the last length with at least the threshold; scores at shorter lengths may be below it.
    pub effective: Option<usize>,
    /// Mean with weights 1, 2, .. in the order of lengths.
    pub average_increasing: f64,
    /// Mean with the same weights in reverse.
    pub average_decreasing: f64,
}

impl RulerSummary {
    /// Of scores in percent; `None` of none.
    pub fn of(scores: &[f64], threshold: f64) -> Option<RulerSummary> {
        let total = (scores.len() * (scores.len() + 1)) as f64 / 2.0;
        let weighted = |weight: &dyn Fn(usize) -> usize| {
            scores.iter().enumerate().map(|(at, score)| score * weight(at) as f64).sum::<f64>() / total
        };
        (!scores.is_empty()).then(|| RulerSummary {
            effective: scores.iter().rposition(|score| *score >= threshold),
            average_increasing: weighted(&|at| at + 1),
            average_decreasing: weighted(&|at| scores.len() - at),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_needs_one_and_all_counts_each() {
        let references = ["Paris".to_owned(), "Lyon".to_owned(), "Nice".to_owned()];
        let one = [("in PARIS", &references[..])];
        assert_eq!(StringMatch::All.score(&one), 33.33);
        assert_eq!(StringMatch::Part.score(&one), 100.0);
        assert_eq!(StringMatch::Part.score(&[one[0], ("Rome", &references)]), 50.0);
        assert!(StringMatch::All.score(&[]).is_nan());
    }

    #[test]
    fn the_effective_length_is_the_last_that_passes() {
        let summary = RulerSummary::of(&[90.0, 80.0, 86.0, 10.0], THRESHOLD).unwrap();
        assert_eq!((summary.effective, summary.average_increasing, summary.average_decreasing), (Some(2), 54.8, 78.2));
        assert_eq!(RulerSummary::of(&[80.0], THRESHOLD).unwrap().effective, None);
        assert_eq!(RulerSummary::of(&[], THRESHOLD), None);
    }
}
