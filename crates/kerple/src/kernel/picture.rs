//! Curves over distance, as SVG and as text for a terminal.
//!
//! A [`Plot`] is data; [`svg()`] and [`text()`] draw the same axes and curves. Colours of the SVG are of middling
//! lightness on no background, so that it reads on light and dark pages; the text has no colour codes.

use serde::Serialize;

mod svg;
mod text;

pub use svg::svg;
pub use text::text;

/// A named curve.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Points `(x, y)` in the order they are joined; those that are not finite break the curve.
    pub points: Vec<(f64, f64)>,
}

/// What a picture shows.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Plot {
    /// Above the curves.
    pub title: String,
    /// Below the x axis.
    pub x_label: String,
    /// What y is, shown above the y axis.
    pub y_label: String,
    /// Draws `log(1 + x)`, so that 0 stays on the axis; `x >= 0`.
    pub log_x: bool,
    /// The curves.
    pub series: Vec<Series>,
}

impl Plot {
    /// Counts of heads with an effective length up to x, a staircase for each named set of heads (Chi et al. 2022, Figure 6).
    ///
    /// Heads without an effective length up to `limit` are never counted.
    pub fn effective_lengths(sets: &[(&str, &[Option<u64>])], limit: u64) -> Plot {
        let staircase = |lengths: &[Option<u64>]| {
            let mut reached: Vec<u64> = lengths.iter().flatten().copied().filter(|length| *length <= limit).collect();
            reached.sort_unstable();
            let mut points = vec![(0.0, 0.0)];
            for (i, x) in reached.iter().enumerate() {
                points.push((*x as f64, i as f64));
                points.push((*x as f64, i as f64 + 1.0));
            }
            points.push((limit as f64, reached.len() as f64));
            points
        };
        Plot {
            title: "heads with effective length up to x".into(),
            x_label: "x (tokens)".into(),
            y_label: "heads".into(),
            log_x: false,
            series: sets.iter().map(|(name, set)| Series { name: (*name).into(), points: staircase(set) }).collect(),
        }
    }
}

/// Ranges and ticks shared by both renderings.
struct Axes {
    log_x: bool,
    x: (f64, f64),
    y: (f64, f64),
    x_ticks: Vec<f64>,
    y_ticks: Vec<f64>,
}

impl Axes {
    fn of(plot: &Plot, x_count: usize, y_count: usize) -> Axes {
        let points =
            || plot.series.iter().flat_map(|series| &series.points).filter(|(x, y)| x.is_finite() && y.is_finite());
        let x = range(points().map(|point| point.0));
        let y_data = range(points().map(|point| point.1));
        let y_ticks = ticks(y_data, y_count);
        let y = range(y_ticks.iter().copied().chain([y_data.0, y_data.1]));
        let x_ticks = if plot.log_x { decades(x) } else { ticks(x, x_count) };
        Axes { log_x: plot.log_x, x, y, x_ticks, y_ticks }
    }

    /// Position of `x` between the left end, 0, and the right end, 1.
    fn across(&self, x: f64) -> f64 {
        let map = |x: f64| if self.log_x { x.max(0.0).ln_1p() } else { x };
        (map(x) - map(self.x.0)) / (map(self.x.1) - map(self.x.0))
    }

    /// Position of `y` between the bottom, 0, and the top, 1.
    fn up(&self, y: f64) -> f64 {
        (y - self.y.0) / (self.y.1 - self.y.0)
    }
}

/// Smallest and largest value, made to differ.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
    if low > high {
        return (0.0, 1.0);
    }
    let room = if low == high { 0.5 * low.abs().max(1.0) } else { 0.0 };
    (low - room, high + room)
}

/// About `count`, at least 3, multiples of 1, 2 or 5 times a power of ten inside the range; steps under its width, so never none.
fn ticks((low, high): (f64, f64), count: usize) -> Vec<f64> {
    let rough = (high - low) / count.max(3) as f64;
    let unit = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * unit).find(|step| *step >= rough * 0.999).unwrap_or(unit);
    let (first, last) = ((low / step - 1e-9).ceil(), (high / step + 1e-9).floor());
    (0..=(last - first).max(0.0) as usize).map(|i| (first + i as f64) * step).collect()
}

/// 0 where it is in the range, and the powers of ten in it.
fn decades((low, high): (f64, f64)) -> Vec<f64> {
    let powers = (0..=308).map(|e| 10f64.powi(e)).take_while(|x| *x <= high);
    std::iter::once(0.0).chain(powers).filter(|x| *x >= low).collect()
}

/// A tick's number without digits that say nothing.
fn label(x: f64) -> String {
    let x = if x.abs() < 1e-300 { 0.0 } else { x };
    if x != 0.0 && !(1e-4..1e6).contains(&x.abs()) {
        return format!("{x:.1e}").replace(".0e", "e");
    }
    let text = format!("{x:.6}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".into() } else { text.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plot(log_x: bool) -> Plot {
        let series = |name: &str, slope: f64| Series {
            name: name.into(),
            points: (0..1000).map(|d| (f64::from(d), -slope * f64::from(d).ln_1p())).collect(),
        };
        Plot {
            title: "log kernels".into(),
            x_label: "distance (tokens)".into(),
            y_label: "bias".into(),
            log_x,
            series: vec![series("head 1", 1.0), series("head 2 <&\">", 0.3)],
        }
    }

    #[test]
    fn svg_is_well_formed_and_has_every_curve_and_name() {
        for log_x in [false, true] {
            let plot = plot(log_x);
            let text = svg(&plot);
            let document = roxmltree::Document::parse(&text).unwrap();
            let all =
                |name: &str| document.descendants().filter(move |node| node.has_tag_name(name)).collect::<Vec<_>>();
            assert_eq!(all("path").iter().filter(|path| path.attribute("class") == Some("curve")).count(), 2);
            let texts: Vec<_> = all("text").iter().filter_map(|node| node.text()).map(str::to_owned).collect();
            for wanted in ["log kernels", "distance (tokens)", "bias", "head 1", "head 2 <&\">", "-6"] {
                assert!(texts.iter().any(|text| text == wanted), "{wanted}: {texts:?}");
            }
            assert_eq!(texts.iter().any(|text| text == "100"), log_x);
        }
    }

    #[test]
    fn svg_coordinates_stay_inside_and_follow_the_data() {
        let text = svg(&plot(false));
        let document = roxmltree::Document::parse(&text).unwrap();
        let view: Vec<f64> =
            document.root_element().attribute("viewBox").unwrap().split(' ').map(|x| x.parse().unwrap()).collect();
        let curve = document.descendants().find(|node| node.attribute("class") == Some("curve")).unwrap();
        let numbers: Vec<f64> =
            curve.attribute("d").unwrap().split(['M', 'L', ' ']).filter_map(|x| x.parse().ok()).collect();
        assert_eq!(numbers.len(), 2000);
        let (x, y): (Vec<f64>, Vec<f64>) = numbers.chunks(2).map(|pair| (pair[0], pair[1])).unzip();
        assert!(x.windows(2).all(|w| w[0] < w[1]) && y.windows(2).all(|w| w[0] <= w[1]));
        assert!(x.iter().all(|x| (0.0..=view[2]).contains(x)) && y.iter().all(|y| (0.0..=view[3]).contains(y)));
    }

    #[test]
    fn text_shows_a_falling_line_from_corner_to_corner() {
        let line = Series { name: "line".into(), points: vec![(0.0, 0.0), (10.0, -10.0)] };
        let picture = text(&Plot { series: vec![line], ..Plot::default() }, 40, 8);
        let rows: Vec<&str> = picture.lines().filter(|line| line.contains('│') || line.contains('┤')).collect();
        assert_eq!(rows.len(), 8);
        let start = |row: &str| row.chars().position(|c| ('\u{2801}'..='\u{28ff}').contains(&c)).unwrap();
        let starts: Vec<usize> = rows.iter().map(|row| start(row)).collect();
        assert!(starts.windows(2).all(|pair| pair[0] < pair[1]), "{picture}");
        assert_eq!(rows[7].chars().count(), 40, "{picture}");
        assert!(rows[0].starts_with("  0 ┤") && rows[7].starts_with("-10 ┤"), "{picture}");
    }

    proptest! {
        #[test]
        fn every_line_fits_the_width(
            width in 0usize..120, height in 0usize..30, log_x: bool, curves in 0usize..15,
            y in prop::collection::vec(prop_oneof![Just(f64::NAN), Just(f64::INFINITY), -1e9f64..1e9], 0..40),
        ) {
            let points: Vec<_> = y.iter().enumerate().map(|(x, y)| (x as f64, *y)).collect();
            let series = (0..curves).map(|i| Series { name: format!("a long name of curve {i}"), points: points.clone() });
            let plot = Plot { log_x, series: series.collect(), title: "t".repeat(60), ..Plot::default() };
            let picture = text(&plot, width, height);
            let widest = picture.lines().map(|line| line.chars().count()).max().unwrap_or(0);
            prop_assert!(widest <= width.max(text::MIN_WIDTH), "{}", picture);
            prop_assert!(picture.chars().all(|c| c == '\n' || !c.is_control()));
            let drawn = svg(&plot);
            prop_assert!(roxmltree::Document::parse(&drawn).is_ok() && !drawn.contains("NaN") && !drawn.contains("inf"));
        }

        #[test]
        fn ticks_are_round_and_inside(low in -1e6f64..1e6, width in 1e-6f64..1e7, count in 1usize..12) {
            let ticks = ticks((low, low + width), count);
            prop_assert!((1..=count.max(3) + 1).contains(&ticks.len()));
            let room = 1e-6 * width;
            prop_assert!(ticks.iter().all(|tick| (low - room..=low + width + room).contains(tick)));
        }
    }

    #[test]
    fn effective_lengths_count_heads() {
        let plot =
            Plot::effective_lengths(&[("log", &[Some(14), None, Some(6), Some(6)]), ("power", &[Some(30000)])], 20480);
        assert_eq!(
            plot.series[0].points,
            [(0.0, 0.0), (6.0, 0.0), (6.0, 1.0), (6.0, 1.0), (6.0, 2.0), (14.0, 2.0), (14.0, 3.0), (20480.0, 3.0)]
        );
        assert_eq!(plot.series[1].points, [(0.0, 0.0), (20480.0, 0.0)]);
        assert!(text(&plot, 60, 10).contains("20000"));
    }

    #[test]
    fn labels_are_short() {
        let shown = [0.0, -0.0, 0.5, -10.0, 1e6, 2.5e-7, 0.1 + 0.2].map(label);
        assert_eq!(shown, ["0", "0", "0.5", "-10", "1e6", "2.5e-7", "0.3"]);
    }
}
