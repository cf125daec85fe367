//! Line plots: axes with round ticks, logarithmic scales, error bars, legends, and grids of small plots.
//!
//! A plot is data until [`Plot::svg`] draws it at a width, so one plot serves a wide page and a telephone, or
//! [`Plot::text`] for a terminal, from the same axes, ticks and lines. Colours of the SVG are the
//! classes `s0` to `s7` of [`STYLE`], which has a light and a dark set; series also differ by marker shape, and by dashes
//! beyond the eighth, so no reading depends on colour. Not a general plotting library: it draws what the report shows.

mod axis;
mod braille;
mod distance;
mod heat_map;
#[cfg(feature = "music-lra")]
mod piano_roll;
mod rows;
mod svg;

pub use axis::{Axis, AxisScale, Tick};
pub use distance::{heads_within, over_distances};
pub use heat_map::HeatMap;
#[cfg(feature = "music-lra")]
pub use piano_roll::{PianoRoll, Sound};
pub use rows::{RowChart, RowGroup, RowMark};
pub use svg::escape;

/// CSS of every plot, shared by the page and by [`standalone`] files.
pub const STYLE: &str = include_str!("../templates/plot.css");

/// Lengths of dashes and gaps, which tell lines apart without colour.
pub const DASHES: [&str; 4] = ["5 4", "2 3", "9 3 2 3", "12 4"];

/// A value at `x`, give or take `error`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Position along the horizontal axis.
    pub x: f64,
    /// Value. One that is not finite breaks the line, and an SVG has a cross at the top of the frame.
    pub y: f64,
    /// Half the length of the error bar; none if 0.
    pub error: f64,
}

/// A line through points.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Its name in the legend and in tooltips.
    pub name: String,
    /// Points by increasing `x`.
    pub points: Vec<Point>,
    /// Which colour and marker; counted from 0.
    pub colour: usize,
    /// Which dashes the line has whatever its colour: none, or one of [`DASHES`] counted from 1.
    pub dash: usize,
    /// Whether errors are a band about the line instead of bars.
    pub band: bool,
    /// Whether each point has a marker with a tooltip.
    pub markers: bool,
    /// Whether the line keeps its value up to the next point instead of running straight to it.
    pub steps: bool,
}

impl Series {
    /// A plain line without markers.
    pub fn line(name: impl Into<String>, colour: usize, points: impl IntoIterator<Item = (f64, f64)>) -> Series {
        let points = points.into_iter().map(|(x, y)| Point { x, y, error: 0.0 }).collect();
        Series { name: name.into(), points, colour, dash: 0, band: false, markers: false, steps: false }
    }

    /// How many of some values are at most x, a step at each, from `low` to `high`; the mean of so many sets.
    pub fn staircase(
        name: impl Into<String>,
        colour: usize,
        values: impl IntoIterator<Item = f64>,
        [low, high]: [f64; 2],
        sets: f64,
    ) -> Series {
        let mut reached: Vec<f64> = values.into_iter().filter(|value| *value <= high).collect();
        reached.sort_by(f64::total_cmp);
        let rises = reached.iter().enumerate().map(|(index, value)| (*value, (index + 1) as f64 / sets));
        let end = (high, reached.len() as f64 / sets);
        let points = std::iter::once((low, 0.0)).chain(rises).chain(std::iter::once(end));
        Series { steps: true, ..Series::line(name, colour, points) }
    }
}

/// Where the names of the series go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Legend {
    /// Nowhere: one series, or names that do not matter.
    None,
    /// At the ends of the lines where the plot is wide enough, else above.
    Ends,
}

/// A plot with one pair of axes.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// What it shows; drawn above a small plot, and read out.
    pub title: String,
    /// The finding in a sentence, for readers who do not see it.
    pub description: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// The lines, later ones on top.
    pub series: Vec<Series>,
    /// A vertical line at a value, and what it marks.
    pub rule: Option<(f64, String)>,
    /// Where the names go.
    pub legend: Legend,
    /// Whether the title is drawn inside the picture.
    pub titled: bool,
}

/// Several SVG pictures of one size in a grid, as one picture.
pub fn grid(pictures: &[String], columns: usize, width: f64, height: f64) -> String {
    let columns = columns.min(pictures.len()).max(1);
    let rows = pictures.len().div_ceil(columns);
    let (total_width, total_height) = (width * columns as f64, height * rows as f64);
    let mut svg = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" class="plot" viewBox="0 0 {total_width} {total_height}" width="{total_width}" height="{total_height}">"#
    );
    for (index, picture) in pictures.iter().enumerate() {
        let (x, y) = ((index % columns) as f64 * width, (index / columns) as f64 * height);
        svg.push_str(&format!(r#"<g transform="translate({x} {y})">{picture}</g>"#));
    }
    svg.push_str("</svg>");
    svg
}

/// The picture as a file of its own: with its styles and a background.
pub fn standalone(svg: &str) -> String {
    let body = svg.find('>').expect("an SVG picture has an opening tag") + 1;
    format!(
        "{}<style>{STYLE}</style><rect class=\"paper\" width=\"100%\" height=\"100%\"/>{}\n",
        &svg[..body],
        &svg[body..]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Severe deficiencies as matrices on linear RGB: Machado, Oliveira and Fernandes 2009, IEEE TVCG 15(6), Table 1.
    const VISIONS: [(&str, [[f64; 3]; 3]); 4] = [
        ("full", [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
        (
            "protanopia",
            [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
        ),
        (
            "deuteranopia",
            [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
        ),
        (
            "tritanopia",
            [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
        ),
    ];

    type Colour = [f64; 3];

    fn product(matrix: &[[f64; 3]; 3], colour: Colour) -> Colour {
        matrix.map(|row| row.iter().zip(colour).map(|(a, b)| a * b).sum::<f64>())
    }

    /// Linear RGB of the variable in one of the two schemes.
    fn colour(name: &str, scheme: usize) -> Colour {
        let value = STYLE.split(&format!("--{name}: #")).nth(scheme + 1).unwrap();
        [0, 2, 4].map(|at| {
            let value = f64::from(u8::from_str_radix(&value[at..at + 2], 16).unwrap()) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        })
    }

    fn luminance(colour: Colour) -> f64 {
        0.2126 * colour[0] + 0.7152 * colour[1] + 0.0722 * colour[2]
    }

    /// CIE L*a*b*, where distance is about the difference seen.
    fn lab(colour: Colour) -> Colour {
        let xyz = product(&[[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]], colour);
        let [x, y, z] = [xyz[0] / 0.95047, xyz[1], xyz[2] / 1.08883]
            .map(|v| if v > 0.008856 { v.cbrt() } else { 7.787 * v + 16.0 / 116.0 });
        [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
    }

    #[test]
    fn colours_differ_for_every_vision_and_stand_out_from_the_paper() {
        for scheme in [0, 1] {
            let paper = luminance(colour("paper", scheme));
            let colours: Vec<Colour> = (0..8).map(|index| colour(&format!("s{index}"), scheme)).collect();
            for &colour in &colours {
                let (a, b) = (luminance(colour) + 0.05, paper + 0.05);
                // 3 to 1 is what the web accessibility guidelines ask of graphics.
                assert!(a.max(b) / a.min(b) >= 3.0, "{colour:?} in scheme {scheme}");
            }
            for (vision, matrix) in VISIONS {
                let seen: Vec<Colour> =
                    colours.iter().map(|&c| lab(product(&matrix, c).map(|v| v.clamp(0.0, 1.0)))).collect();
                for a in 0..8 {
                    for b in 0..a {
                        let distance: f64 =
                            seen[a].iter().zip(seen[b]).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
                        // About 2 is the least difference that is seen at all; thin lines need several times that.
                        assert!(
                            distance > 20.0,
                            "s{a} and s{b} with {vision} vision in scheme {scheme}: {distance:.1}"
                        );
                    }
                }
            }
        }
    }
}
