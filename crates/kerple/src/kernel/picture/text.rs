//! The terminal rendering: braille dots, two across and four down in a character.

use super::{Axes, Plot, Series, label};

/// Narrowest picture; smaller widths are taken as this.
pub(super) const MIN_WIDTH: usize = 24;
const MIN_HEIGHT: usize = 3;
/// Bits of the dots of a braille character, by row and column.
const DOTS: [[u32; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];

/// Draws a plot `width` characters wide with `height` lines of curves, between a title and the x axis with its legend.
///
/// Where there are several curves, letters on them refer to the legend.
pub fn text(plot: &Plot, width: usize, height: usize) -> String {
    let (width, height) = (width.max(MIN_WIDTH), height.max(MIN_HEIGHT));
    let axes = Axes::of(plot, (width / 14).max(2), (height / 3).max(1));
    let labels: Vec<(usize, String)> =
        axes.y_ticks.iter().map(|tick| (row(&axes, *tick, height), label(*tick))).collect();
    let gutter = labels.iter().map(|(_, text)| text.chars().count()).max().unwrap_or(1).min(12);
    let columns = width - gutter - 2;
    let canvas = Canvas::draw(plot, &axes, columns, height);
    let mut lines = Vec::new();
    lines.extend([&plot.title, &plot.y_label].into_iter().filter(|line| !line.is_empty()).map(|line| cut(line, width)));
    for (i, drawn) in canvas.rows().enumerate() {
        let tick = labels.iter().find(|(row, _)| *row == i);
        let (text, bar) = tick.map_or(("", '│'), |(_, text)| (text.as_str(), '┤'));
        lines.push(format!("{text:>gutter$} {bar}{drawn}"));
    }
    lines.extend(x_axis(&axes, gutter, columns));
    if !plot.x_label.is_empty() {
        lines.push(cut(&format!("{}{}", " ".repeat(gutter + 2), plot.x_label), width));
    }
    lines.extend(legend(plot, width));
    let trimmed: Vec<&str> = lines.iter().map(|line| line.trim_end()).collect();
    trimmed.join("\n") + "\n"
}

fn row(axes: &Axes, y: f64, height: usize) -> usize {
    ((1.0 - axes.up(y)) * (height as f64 * 4.0 - 1.0)).round() as usize / 4
}

fn cut(text: &str, width: usize) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().count() <= width { text } else { text.chars().take(width - 1).chain(['…']).collect() }
}

/// The axis with a notch at each tick, and below it the numbers that fit.
fn x_axis(axes: &Axes, gutter: usize, columns: usize) -> [String; 2] {
    let mut line: Vec<char> = vec!['─'; columns];
    let mut numbers: Vec<char> = vec![' '; columns + gutter + 2];
    let mut free = 0;
    for tick in &axes.x_ticks {
        let column = (axes.across(*tick) * (columns as f64 - 1.0)).round() as usize;
        line[column.min(columns - 1)] = '┬';
        let text: Vec<char> = label(*tick).chars().collect();
        let start = (column + gutter + 2).saturating_sub(text.len() / 2).min(numbers.len().saturating_sub(text.len()));
        if start >= free && start + text.len() <= numbers.len() {
            numbers[start..start + text.len()].copy_from_slice(&text);
            free = start + text.len() + 1;
        }
    }
    [format!("{} └{}", " ".repeat(gutter), line.into_iter().collect::<String>()), numbers.into_iter().collect()]
}

/// The letter of a curve.
fn letter(i: usize) -> char {
    char::from(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"[i % 52])
}

fn legend(plot: &Plot, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for (i, series) in plot.series.iter().enumerate() {
        let entry = if plot.series.len() > 1 { format!("{} {}", letter(i), series.name) } else { series.name.clone() };
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
    cells: Vec<u32>,
    letters: Vec<Option<char>>,
}

impl Canvas {
    fn draw(plot: &Plot, axes: &Axes, columns: usize, height: usize) -> Canvas {
        let mut canvas = Canvas { columns, cells: vec![0; columns * height], letters: vec![None; columns * height] };
        for series in &plot.series {
            canvas.curve(series, axes, height, |canvas, x, y| {
                canvas.cells[y / 4 * columns + x / 2] |= DOTS[y % 4][x % 2];
            });
        }
        let count = plot.series.len();
        let spacing = (3 * count).max(20);
        for (i, series) in plot.series.iter().enumerate().filter(|_| count > 1) {
            canvas.curve(series, axes, height, |canvas, x, y| {
                let (column, at) = (x / 2, y / 4 * columns + x / 2);
                let turn = column % spacing == (3 * i + 5) % spacing && x % 2 == 0;
                if turn && canvas.letters[at].is_none() {
                    canvas.letters[at] = Some(letter(i));
                }
            });
        }
        canvas
    }

    /// Visits the dots of a curve.
    fn curve(&mut self, series: &Series, axes: &Axes, height: usize, mut dot: impl FnMut(&mut Canvas, usize, usize)) {
        let (right, bottom) = (2.0 * self.columns as f64 - 1.0, 4.0 * height as f64 - 1.0);
        let mut last: Option<(f64, f64)> = None;
        for (x, y) in &series.points {
            if !x.is_finite() || !y.is_finite() {
                last = None;
                continue;
            }
            let (x, y) = (axes.across(*x) * right, (1.0 - axes.up(*y)) * bottom);
            let (from_x, from_y) = last.unwrap_or((x, y));
            let steps = (x - from_x).abs().max((y - from_y).abs()).ceil().max(1.0);
            for step in 0..=steps as usize {
                let t = step as f64 / steps;
                let (x, y) = (from_x + t * (x - from_x), from_y + t * (y - from_y));
                dot(self, x.round().clamp(0.0, right) as usize, y.round().clamp(0.0, bottom) as usize);
            }
            last = Some((x, y));
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
