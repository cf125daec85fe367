//! The gradient of the attention sink: a logit without a value, which takes a share of the weights
//! of a row.
//!
//! ```text
//! lse = ln(exp(sink) + sum exp z)        p[j] = exp(z[j] - lse)        d_sink = -sum over rows of exp(sink - lse) d_out.out
//! ```
//!
//! The forward starts its running maximum and total with the sink's. The backward of scores,
//! queries, keys and values needs nothing more: it uses the weights that `lse` implies.

use super::segments::sum_over_segments;
use super::{AttentionProblem, AttentionSaved, DocumentSegment};
use crate::Number;
use crate::tiles::workers::for_each_task;

/// Writes the gradient in the sinks, summed in f64 from the first row to the last, see [`sum_over_segments`].
pub(super) fn backward<T: Number>(problem: &AttentionProblem<T>, saved: &AttentionSaved<T>, d_sinks: Option<&mut [T]>) {
    let (Some(sinks), Some(d_sinks)) = (problem.sinks, d_sinks) else { return };
    let dims = problem.dims;
    for_each_task(d_sinks.iter_mut().zip(sinks), |head, (d_sink, &sink)| {
        let term = |row: usize, query: usize| {
            let lse = saved.lse[(row * dims.heads + head) * dims.queries + query];
            let [out, d_out] = [saved.out, saved.d_out].map(|view| view.row(row, head, query, dims.value_dim));
            let mean: T = out.iter().zip(d_out).map(|(&out, &d_out)| out * d_out).sum();
            -((sink - lse).exp() * mean).to_f64()
        };
        *d_sink = T::from_f64(sum_over_segments(problem, |number| {
            let DocumentSegment { row, first_query, queries, .. } = problem.segment(number);
            (first_query..first_query + queries).map(move |query| term(row, query))
        }));
    });
}

#[cfg(test)]
mod tests {
    use crate::attention::tests::{Case, dims};

    #[test]
    fn a_sink_is_a_key_without_a_value() {
        let case = Case::new(dims(1, 2, 2, 1, 3, 2), 0).softened(false, true);
        let (with, mut beside) = (case.naive(), case.clone());
        // the same as one key more, furthest away, whose score is the sink and whose value is 0
        (beside.dims.keys, beside.sinks) = (4, None);
        let sinks = case.sinks.as_ref().unwrap();
        let more = |rows: &[f64]| rows.chunks(6).flat_map(|head| [&[0.0; 2][..], head].concat()).collect::<Vec<f64>>();
        (beside.k, beside.v) = (more(&case.k), more(&case.v));
        let table = |rows: &[f64], last: [f64; 2]| -> Vec<f64> {
            rows.chunks(case.table_len).zip(last).flat_map(|(row, last)| [&row[..3], &[last][..]].concat()).collect()
        };
        beside.table_len = 4;
        beside.bias = case.bias.as_ref().map(|rows| table(rows, [sinks[0], sinks[1]]));
        beside.weight = case.weight.as_ref().map(|rows| table(rows, [1.0; 2]));
        let without = beside.naive();
        for (a, b) in with.out.iter().chain(&with.lse).zip(without.out.iter().chain(&without.lse)) {
            assert!((a - b).abs() < 1e-14, "{a} {b}");
        }
        let far = [without.d_bias[3], without.d_bias[7]];
        assert!(with.d_sinks.iter().zip(far).all(|(a, b)| (a - b).abs() < 1e-14), "{:?} {far:?}", with.d_sinks);
    }
}
