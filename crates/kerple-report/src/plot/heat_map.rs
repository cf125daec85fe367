//! A square of cells, darker where values are larger, over a scale of its colours.

use super::svg::{escape, put, text};

/// Pixels of a cell.
const CELL: f64 = 5.0;
const TOP: f64 = 24.0;
/// Pixels of the scale below the cells, and of each of its steps.
const SCALE: f64 = 24.0;
const STEP: f64 = 12.0;
/// Steps of colour.
const LEVELS: usize = 8;
/// The value that has the darkest one.
const MOST: f64 = 8.0;

/// Weights relative to all being alike, a square row by row.
#[derive(Clone, Debug, PartialEq)]
pub struct HeatMap<'a> {
    /// What it shows.
    pub title: String,
    /// `[side, side]`, 1 where weights are as if all were alike.
    pub cells: &'a [f64],
}

impl HeatMap<'_> {
    /// Cells on a side.
    fn side(&self) -> usize {
        self.cells.len().isqrt()
    }

    /// Width and height of the picture.
    pub fn size(&self) -> (f64, f64) {
        let side = self.side() as f64 * CELL;
        (side.max(185.0) + 8.0, side + TOP + SCALE)
    }

    /// The picture as an SVG element, to go into a page that has [`STYLE`](super::STYLE).
    pub fn svg(&self) -> String {
        let (side, (width, height)) = (self.side(), self.size());
        let mut svg = format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" class="plot" role="img" viewBox="0 0 {width:.0} {height:.0}" width="{width:.0}" height="{height:.0}"><title>{}</title>"#,
            escape(&self.title)
        );
        text(&mut svg, 4.0, 15.0, "start", "title", &self.title);
        let end = side as f64 * CELL;
        put(&mut svg, format_args!(r#"<rect class="frame" x="4" y="{TOP}" width="{end}" height="{end}"/>"#));
        for level in 1..=LEVELS {
            let mut path = String::new();
            for (row, cells) in self.cells.chunks_exact(side.max(1)).enumerate() {
                let mut column = 0;
                // cells of one colour in a row are one rectangle
                for run in cells.chunk_by(|a, b| self::level(*a) == self::level(*b)) {
                    if self::level(run[0]) == level {
                        let (x, y) = (4.0 + column as f64 * CELL, TOP + row as f64 * CELL);
                        put(&mut path, format_args!("M{x} {y}h{}v{CELL}h-{0}z", run.len() as f64 * CELL));
                    }
                    column += run.len();
                }
            }
            let share = level as f64 / LEVELS as f64;
            path += &format!("M{} {}h{STEP}v8h-{STEP}z", 14.0 + (level - 1) as f64 * STEP, TOP + end + 8.0);
            put(&mut svg, format_args!(r#"<path class="f0" fill-opacity="{share}" d="{path}"/>"#));
        }
        text(&mut svg, 4.0, TOP + end + 16.0, "start", "", "0");
        text(&mut svg, 18.0 + LEVELS as f64 * STEP, TOP + end + 16.0, "start", "", &format!("{MOST} and more"));
        svg.push_str("</svg>");
        svg
    }
}

/// The step of colour of a value; 0 is no colour.
fn level(value: f64) -> usize {
    if !value.is_finite() {
        return LEVELS;
    }
    ((value.max(0.0).ln_1p() / MOST.ln_1p() * LEVELS as f64).round() as usize).min(LEVELS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_is_darker_and_every_cell_is_drawn_once() {
        assert_eq!((level(0.0), level(8.0), level(1e9), level(f64::NAN), level(-1.0)), (0, 8, 8, 8, 0));
        assert!((0..100).all(|at| level(at as f64 / 10.0) <= level((at + 1) as f64 / 10.0)));
        let cells = [0.0, 1.0, 1.0, 8.0];
        let svg = HeatMap { title: "a < b".to_owned(), cells: &cells }.svg();
        roxmltree::Document::parse(&svg).unwrap();
        assert_eq!(svg.matches("h5v5").count(), 3, "{svg}");
        assert_eq!(svg.matches("h12v8").count(), LEVELS, "a step of the scale for every colour: {svg}");
        let row = HeatMap { title: String::new(), cells: &[1.0; 4] }.svg();
        assert_eq!(row.matches("h10v5").count(), 2, "{row}");
    }
}
