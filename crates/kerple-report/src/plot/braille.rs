//! Drawing a plot for a terminal: braille dots, two across and four down in a character, without colour codes.

use super::{Axis, Plot, Series};

/// Narrowest picture; smaller widths are taken as this.
const MIN_WIDTH: usize = 24;
const MIN_HEIGHT: usize = 3;
/// Widest numbers beside the vertical axis.
const MAX_GUTTER: usize = 12;
/// Bits of the dots of a braille character, by row and column.
const DOTS: [[u32; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];

impl Plot {
    /// The plot as text, `width` characters wide with `height` lines of curves, between its title and the legend.
    ///
    /// Where there are several curves, letters on them refer to the legend. Error bars and the rule are left out.
    pub fn text(&self, width: usize, height: usize) -> String {
        let (width, height) = (width.max(MIN_WIDTH), height.max(MIN_HEIGHT));
        let row = |at: f64| ((1.0 - self.y.fraction(at)) * (height as f64 * 4.0 - 1.0)).round() as usize / 4;
        let labels: Vec<(usize, String)> =
            self.y.ticks.iter().map(|tick| (row(tick.at), cut(&tick.text, MAX_GUTTER))).collect();
        let gutter = labels.iter().map(|(_, text)| text.chars().count()).max().unwrap_or(1);
        let columns = width - gutter - 2;
        let canvas = Canvas::draw(self, columns, height);
        let words = [&self.title, &self.y.label].into_iter().filter(|line| !line.is_empty());
        let mut lines: Vec<String> = words.map(|line| cut(line, width)).collect();
        for (index, drawn) in canvas.rows().enumerate() {
            let tick = labels.iter().find(|(row, _)| *row == index);
            let (text, bar) = tick.map_or(("", '│'), |(_, text)| (text.as_str(), '┤'));
            lines.push(format!("{text:>gutter$} {bar}{drawn}"));
        }
        lines.extend(horizontal(&self.x, gutter, columns));
        if !self.x.label.is_empty() {
            lines.push(cut(&format!("{}{}", " ".repeat(gutter + 2), self.x.label), width));
        }
        lines.extend(legend(&self.series, width));
        let trimmed: Vec<&str> = lines.iter().map(|line| line.trim_end()).collect();
        trimmed.join("\n") + "\n"
    }
}

fn cut(text: &str, width: usize) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().count() <= width { text } else { text.chars().take(width - 1).chain(['…']).collect() }
}

/// The axis with a notch at each tick, and below it the numbers that fit.
fn horizontal(axis: &Axis, gutter: usize, columns: usize) -> [String; 2] {
    let mut line: Vec<char> = vec!['─'; columns];
    let mut numbers: Vec<char> = vec![' '; columns + gutter + 2];
    let mut free = 0;
    for tick in &axis.ticks {
        let column = (axis.fraction(tick.at) * (columns as f64 - 1.0)).round() as usize;
        line[column.min(columns - 1)] = '┬';
        let text: Vec<char> = tick.text.chars().collect();
        let start = (column + gutter + 2).saturating_sub(text.len() / 2).min(numbers.len().saturating_sub(text.len()));
        if start >= free && start + text.len() <= numbers.len() {
            numbers[start..start + text.len()].copy_from_slice(&text);
            free = start + text.len() + 1;
        }
    }
    [format!("{} └{}", " ".repeat(gutter), line.into_iter().collect::<String>()), numbers.into_iter().collect()]
}

/// The letter of a curve.
fn letter(place: usize) -> char {
    char::from(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"[place % 52])
}

fn legend(all: &[Series], width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for (place, series) in all.iter().enumerate() {
        let entry = if all.len() > 1 { format!("{} {}", letter(place), series.name) } else { series.name.clone() };
        let entry = cut(&entry, width - 2);
        match lines.last_mut() {
            Some(line) if line.chars().count() + entry.chars().count() + 3 <= width => *line += &format!("   {entry}"),
            _ => lines.push(format!("  {entry}")),
        }
    }
    lines
}

/// Dots in characters, and letters over them.
struct Canvas {
    columns: usize,
    height: usize,
    cells: Vec<u32>,
    letters: Vec<Option<char>>,
}

impl Canvas {
    fn draw(plot: &Plot, columns: usize, height: usize) -> Canvas {
        let (cells, letters) = (vec![0; columns * height], vec![None; columns * height]);
        let mut canvas = Canvas { columns, height, cells, letters };
        for series in &plot.series {
            canvas.curve(plot, series, |canvas, x, y| {
                canvas.cells[y / 4 * columns + x / 2] |= DOTS[y % 4][x % 2];
            });
        }
        let count = plot.series.len();
        let spacing = (3 * count).max(20);
        for (place, series) in plot.series.iter().enumerate().filter(|_| count > 1) {
            canvas.curve(plot, series, |canvas, x, y| {
                let (column, at) = (x / 2, y / 4 * columns + x / 2);
                let turn = column % spacing == (3 * place + 5) % spacing && x % 2 == 0;
                if turn && canvas.letters[at].is_none() {
                    canvas.letters[at] = Some(letter(place));
                }
            });
        }
        canvas
    }

    /// Visits the dots of a curve that lie in the frame.
    fn curve(&mut self, plot: &Plot, series: &Series, mut dot: impl FnMut(&mut Canvas, usize, usize)) {
        let (right, bottom) = (2.0 * self.columns as f64 - 1.0, 4.0 * self.height as f64 - 1.0);
        let mut line = |canvas: &mut Canvas, from: (f64, f64), to: (f64, f64)| {
            let steps = (to.0 - from.0).abs().max((to.1 - from.1).abs()).ceil().max(1.0);
            for step in 0..=steps as usize {
                let t = step as f64 / steps;
                let (x, y) = ((from.0 + t * (to.0 - from.0)).round(), (from.1 + t * (to.1 - from.1)).round());
                if (0.0..=right).contains(&x) && (0.0..=bottom).contains(&y) {
                    dot(canvas, x as usize, y as usize);
                }
            }
        };
        let mut last: Option<(f64, f64)> = None;
        for point in &series.points {
            // Far outside is as good as outside, and a line there takes no time.
            let y = (1.0 - plot.y.fraction(point.y)).clamp(-20.0, 20.0) * bottom;
            let here = (plot.x.fraction(point.x).clamp(-20.0, 20.0) * right, y);
            if !(point.x.is_finite() && point.y.is_finite() && here.0.is_finite() && here.1.is_finite()) {
                last = None;
                continue;
            }
            let from = last.unwrap_or(here);
            if series.steps {
                line(self, from, (here.0, from.1));
                line(self, (here.0, from.1), here);
            } else {
                line(self, from, here);
            }
            last = Some(here);
        }
    }

    fn rows(&self) -> impl Iterator<Item = String> {
        self.cells.chunks(self.columns).zip(self.letters.chunks(self.columns)).map(|(cells, letters)| {
            let character = |(dots, letter): (&u32, &Option<char>)| match (letter, dots) {
                (Some(letter), _) => *letter,
                (None, 0) => ' ',
                (None, dots) => char::from_u32(0x2800 + dots).unwrap_or(' '),
            };
            cells.iter().zip(letters).map(character).collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::over_distances;
    use super::*;
    use proptest::prelude::*;

    fn line(points: Vec<(f64, f64)>) -> Plot {
        over_distances("", "", false, [("line".to_owned(), points)])
    }

    /// The lines that hold curves.
    fn drawn(picture: &str) -> Vec<&str> {
        picture.lines().filter(|line| line.contains('│') || line.contains('┤')).collect()
    }

    fn is_dots(c: char) -> bool {
        ('\u{2801}'..='\u{28ff}').contains(&c)
    }

    #[test]
    fn a_falling_line_goes_from_corner_to_corner() {
        let picture = line(vec![(0.0, 0.0), (10.0, -10.0)]).text(40, 8);
        let rows = drawn(&picture);
        assert_eq!(rows.len(), 8);
        let starts: Vec<usize> = rows.iter().map(|row| row.chars().position(is_dots).unwrap()).collect();
        assert!(starts.windows(2).all(|pair| pair[0] < pair[1]), "{picture}");
        assert_eq!(rows[7].chars().count(), 40, "{picture}");
        assert!(rows[0].starts_with("  0 ┤") && rows[7].starts_with("\u{2212}10 ┤"), "{picture}");
    }

    #[test]
    fn steps_keep_their_value_and_what_leaves_the_frame_is_not_drawn() {
        let mut plot = line(vec![(0.0, 0.0), (10.0, 10.0)]);
        plot.series[0].steps = true;
        let picture = plot.text(40, 8);
        let (rows, column) = (drawn(&picture), |row: &str| row.chars().filter(|&c| is_dots(c)).count());
        assert!(rows[..7].iter().all(|row| column(row) == 1) && column(rows[7]) > 30, "{picture}");
        plot.series[0].steps = false;
        plot.y = Axis::linear("", 0.0, 5.0);
        let picture = plot.text(40, 8);
        assert!(drawn(&picture)[0].trim_end().chars().count() < 24, "{picture}");
    }

    #[test]
    fn curves_have_letters_and_names() {
        let curve = |name: &str, slope: f64| (name.to_owned(), vec![(0.0, 0.0), (99.0, slope)]);
        let picture = over_distances("two", "bias", true, [curve("up", 1.0), curve("down", -1.0)]).text(60, 10);
        assert!(picture.starts_with("two\nbias\n") && picture.ends_with("  a up   b down\n"), "{picture}");
        let letters = |c: char| drawn(&picture).iter().any(|row| row.contains(c));
        assert!(letters('a') && letters('b'), "{picture}");
    }

    proptest! {
        #[test]
        fn every_line_fits_the_width(
            width in 0usize..120, height in 0usize..30, log: bool, curves in 0usize..15,
            y in prop::collection::vec(prop_oneof![Just(f64::NAN), Just(f64::INFINITY), -1e9f64..1e9, -1e-9f64..1e-9], 0..40),
        ) {
            let points: Vec<_> = y.iter().enumerate().map(|(x, y)| (x as f64, *y)).collect();
            let series = (0..curves).map(|place| (format!("a long name of curve {place}"), points.clone()));
            let picture = over_distances("t".repeat(60), "", log, series).text(width, height);
            let widest = picture.lines().map(|line| line.chars().count()).max().unwrap_or(0);
            prop_assert!(widest <= width.max(MIN_WIDTH), "{}", picture);
            prop_assert!(picture.chars().all(|c| c == '\n' || !c.is_control()));
        }
    }
}
