//! The SVG rendering.

use super::{Axes, Plot, Series, label};

const WIDTH: f64 = 400.0;
const HEIGHT: f64 = 270.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 18.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 42.0;
const LEGEND_LINE: f64 = 18.0;
/// Width of a character of the 12 px sans-serif font, on the wide side.
const CHARACTER: f64 = 6.8;
/// Grey with a contrast above 3.9 on white and 5 on black.
const INK: &str = "#7d7d7d";
const COLOURS: [&str; 8] = ["#2a86d8", "#e0621f", "#2a9d63", "#b45fd0", "#b8900f", "#d83a6f", "#1a9aa5", "#8a8a8a"];
const DASHES: [&str; 3] = ["", " stroke-dasharray=\"6 3\"", " stroke-dasharray=\"2 3\""];

/// Draws a plot as a self-contained SVG document that scales with its page, readable from 320 pixels on.
pub fn svg(plot: &Plot) -> String {
    let axes = Axes::of(plot, 5, 5);
    let (legend, legend_height) = legend(&plot.series);
    let middle = (LEFT + WIDTH - RIGHT) / 2.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {}\" role=\"img\" fill=\"{INK}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"12\" style=\"width:100%;max-width:720px;height:auto\">\n\
         <title>{}</title>\n",
        HEIGHT + legend_height,
        escape(&plot.title)
    );
    out += &words(WIDTH / 2.0, 18.0, "middle", &fit(&plot.title, WIDTH));
    out += &words(6.0, 36.0, "start", &fit(&plot.y_label, WIDTH));
    out += &words(middle, HEIGHT - 6.0, "middle", &fit(&plot.x_label, WIDTH - LEFT));
    out += &grid(&axes);
    for (i, series) in plot.series.iter().enumerate() {
        out += &format!("<path class=\"curve\" fill=\"none\" {} d=\"{}\"/>\n", stroke(i), path(&axes, series));
    }
    out + &legend + "</svg>\n"
}

fn words(x: f64, y: f64, anchor: &str, text: &str) -> String {
    format!("<text x=\"{x:.2}\" y=\"{y:.2}\" text-anchor=\"{anchor}\">{}</text>\n", escape(text))
}

/// The text, shortened to a width.
fn fit(text: &str, width: f64) -> String {
    let most = (width / CHARACTER) as usize;
    if text.chars().count() <= most { text.to_owned() } else { text.chars().take(most - 1).chain(['…']).collect() }
}

fn x_at(axes: &Axes, x: f64) -> f64 {
    LEFT + axes.across(x) * (WIDTH - LEFT - RIGHT)
}

fn y_at(axes: &Axes, y: f64) -> f64 {
    HEIGHT - BOTTOM - axes.up(y) * (HEIGHT - TOP - BOTTOM)
}

fn stroke(i: usize) -> String {
    let dash = DASHES[i / COLOURS.len() % DASHES.len()];
    format!("stroke=\"{}\" stroke-width=\"2\" stroke-linejoin=\"round\"{dash}", COLOURS[i % COLOURS.len()])
}

fn grid(axes: &Axes) -> String {
    let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    let (mut out, mut faint) = (String::new(), String::new());
    for tick in &axes.y_ticks {
        let y = y_at(axes, *tick);
        faint += &format!("M{LEFT} {y:.2}L{right} {y:.2}");
        out += &words(LEFT - 6.0, y + 4.0, "end", &label(*tick));
    }
    for tick in &axes.x_ticks {
        let x = x_at(axes, *tick);
        faint += &format!("M{x:.2} {TOP}L{x:.2} {bottom}");
        out += &words(x, bottom + 16.0, "middle", &label(*tick));
    }
    out += &format!("<path d=\"{faint}\" stroke=\"{INK}\" stroke-opacity=\"0.25\" fill=\"none\"/>\n");
    out + &format!("<path d=\"M{LEFT} {TOP}L{LEFT} {bottom}L{right} {bottom}\" stroke=\"{INK}\" fill=\"none\"/>\n")
}

fn path(axes: &Axes, series: &Series) -> String {
    let mut path = String::new();
    let mut pen_down = false;
    for (x, y) in &series.points {
        if !x.is_finite() || !y.is_finite() {
            pen_down = false;
            continue;
        }
        let command = if pen_down { 'L' } else { 'M' };
        path += &format!("{command}{:.2} {:.2}", x_at(axes, *x), y_at(axes, *y));
        pen_down = true;
    }
    path
}

/// Names with their strokes in lines below the plot, and the height they take.
fn legend(series: &[Series]) -> (String, f64) {
    const STROKE: f64 = 22.0;
    const GAP: f64 = 6.0;
    let mut out = String::new();
    let (mut x, mut y) = (LEFT, HEIGHT + 10.0);
    for (i, series) in series.iter().enumerate() {
        let name = fit(&series.name, WIDTH - LEFT - STROKE - GAP);
        let width = STROKE + 3.0 * GAP + CHARACTER * name.chars().count() as f64;
        if x > LEFT && x + width > WIDTH {
            (x, y) = (LEFT, y + LEGEND_LINE);
        }
        out += &format!("<path d=\"M{x:.1} {y}L{:.1} {y}\" fill=\"none\" {}/>\n", x + STROKE, stroke(i));
        out += &words(x + STROKE + GAP, y + 4.0, "start", &name);
        x += width;
    }
    (out, if series.is_empty() { 0.0 } else { y + LEGEND_LINE - HEIGHT })
}

/// Text as XML character data; characters XML cannot hold become spaces.
fn escape(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push(' '),
            c => out.push(c),
        }
    }
    out
}
