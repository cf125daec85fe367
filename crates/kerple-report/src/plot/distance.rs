//! Plots over the distance from query to key, for pages and terminals.

use super::{Axis, Legend, Plot, Series};

/// Curves over distances from 0 on, each a name and its points, with the values on the vertical axis.
///
/// With `log` the horizontal axis has the scale of `log(1 + d)`, so that distance 0 has its place. Values that are not
/// finite break their curve.
pub fn over_distances(
    title: impl Into<String>,
    value: impl Into<String>,
    log: bool,
    curves: impl IntoIterator<Item = (String, Vec<(f64, f64)>)>,
) -> Plot {
    let series = curves.into_iter().enumerate().map(|(place, (name, points))| Series::line(name, place, points));
    let series: Vec<Series> = series.collect();
    let (_, far) = ends(&series, |x, _| x);
    let (low, high) = ends(&series, |_, y| y);
    let x = match log {
        true => Axis::log_one_plus("distance (tokens), on the scale of log(1 + d)", 0.0, far),
        false => Axis::linear("distance (tokens)", 0.0, far),
    };
    plot(title.into(), x, Axis::linear(value, low, high), series)
}

/// Heads with an effective length up to a distance, a staircase for each named set of heads: Chi et al. 2022, Figure 6.
///
/// Heads without an effective length up to `limit` tokens are never counted.
pub fn heads_within(sets: &[(&str, &[Option<u64>])], limit: u64) -> Plot {
    let staircase = |(place, (name, lengths)): (usize, &(&str, &[Option<u64>]))| {
        let reached = lengths.iter().flatten().map(|length| *length as f64);
        Series::staircase(*name, place, reached, [0.0, limit as f64], 1.0)
    };
    let most = sets.iter().map(|(_, lengths)| lengths.len()).max().unwrap_or(1);
    let x = Axis::linear("effective length (tokens)", 0.0, limit as f64);
    let y = Axis::linear("heads with at most this effective length", 0.0, most as f64);
    plot("How far heads see".into(), x, y, sets.iter().enumerate().map(staircase).collect())
}

fn plot(title: String, x: Axis, y: Axis, series: Vec<Series>) -> Plot {
    let description = format!("{} curves over {}.", series.len(), x.label);
    Plot { title, description, x, y, series, rule: None, legend: Legend::Ends, titled: true }
}

/// Least and greatest finite value of a coordinate; 0 and 1 where there is none.
fn ends(series: &[Series], coordinate: impl Fn(f64, f64) -> f64) -> (f64, f64) {
    let points = series.iter().flat_map(|series| &series.points);
    let shown = points.filter(|point| point.x.is_finite() && point.y.is_finite());
    let values = shown.map(|point| coordinate(point.x, point.y));
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
    if low <= high { (low, high) } else { (0.0, 1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_counted_up_to_the_limit() {
        let plot = heads_within(&[("log", &[Some(14), None, Some(6), Some(6)]), ("power", &[Some(30000)])], 20480);
        let points = |series: &Series| series.points.iter().map(|point| (point.x, point.y)).collect::<Vec<_>>();
        assert_eq!(points(&plot.series[0]), [(0.0, 0.0), (6.0, 1.0), (6.0, 2.0), (14.0, 3.0), (20480.0, 3.0)]);
        assert_eq!(points(&plot.series[1]), [(0.0, 0.0), (20480.0, 0.0)]);
        assert_eq!((plot.y.high, plot.x.high), (4.0, 20480.0));
        assert!(plot.text(60, 10).contains("20k"));
    }

    #[test]
    fn axes_cover_what_is_finite() {
        let curve = ("a".to_owned(), vec![(0.0, f64::NEG_INFINITY), (1.0, -2.0), (100.0, 3.0)]);
        for log in [false, true] {
            let plot = over_distances("t", "bias", log, [curve.clone()]);
            assert_eq!((plot.x.low, plot.x.high, plot.y.low, plot.y.high), (0.0, 100.0, -2.0, 3.0));
        }
        let nothing = over_distances("t", "bias", true, [("a".to_owned(), vec![(0.0, f64::NAN)])]);
        assert!(nothing.x.high > nothing.x.low && nothing.y.high > nothing.y.low);
    }
}
