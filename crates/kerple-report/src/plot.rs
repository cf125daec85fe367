//! Line plots as SVG: axes with round ticks, logarithmic scales, error bars, legends, and grids of small plots.
//!
//! A plot is data until [`Plot::svg`] draws it at a width, so one plot serves a wide page and a telephone. Colours are the
//! classes `s0` to `s7` of [`STYLE`], which has a light and a dark set; series also differ by marker shape, and by dashes
//! beyond the eighth, so no reading depends on colour. Not a general plotting library: it draws what the report shows.

mod axis;
mod draw;

pub use axis::{Axis, Scale, Tick};
pub use draw::escape;

/// CSS of every plot, shared by the page and by [`standalone`] files.
pub const STYLE: &str = include_str!("../templates/plot.css");

/// A value at `x`, give or take `error`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Position along the horizontal axis.
    pub x: f64,
    /// Value. One that is not finite breaks the line and is drawn as a cross at the top of the frame.
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
    /// Whether the line is dashed whatever its colour.
    pub dashed: bool,
    /// Whether each point has a marker with a tooltip.
    pub markers: bool,
    /// Whether the line keeps its value up to the next point instead of running straight to it.
    pub steps: bool,
}

impl Series {
    /// A plain line without markers.
    pub fn line(name: impl Into<String>, colour: usize, points: impl IntoIterator<Item = (f64, f64)>) -> Series {
        let points = points.into_iter().map(|(x, y)| Point { x, y, error: 0.0 }).collect();
        Series { name: name.into(), points, colour, dashed: false, markers: false, steps: false }
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
