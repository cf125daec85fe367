//! Drawing a plot as SVG: layout, then marks, back to front.

use std::fmt::Write;

use super::{DASHES, Legend, Plot, Point, Series, Tick, standalone};

/// Colours and marker shapes there are.
pub(super) const COLOURS: usize = 8;
/// Width of an average character of the 12-pixel font, a little more than most.
const CHARACTER: f64 = 6.6;
/// Height of a line of text.
pub(super) const LINE: f64 = 15.0;
/// Height of a plot without its names and axes, at least: many names make it higher than was asked for.
const LEAST_HEIGHT: f64 = 40.0;
/// Below this width names go above the plot instead of beside the lines.
const WIDE: f64 = 560.0;

/// The inner frame in pixels, and the height of the legend above it.
struct Frame {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
    legend_top: f64,
    names_at_ends: bool,
}

/// Text as it may stand in XML.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // Not allowed in XML at all.
            '\u{fffe}' | '\u{ffff}' => escaped.push(' '),
            control if control.is_control() => escaped.push(' '),
            other => escaped.push(other),
        }
    }
    escaped
}

impl Plot {
    /// The plot as an SVG element of this many pixels, or higher where its names need that, to go into a page that has
    /// [`STYLE`](super::STYLE).
    pub fn svg(&self, width: f64, height: f64) -> String {
        let height = height + (LEAST_HEIGHT - self.frame(width, height).height).max(0.0);
        let frame = self.frame(width, height);
        let mut svg = format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" class="plot" role="img" viewBox="0 0 {width} {height}" width="{width}" height="{height}"><title>{}</title><desc>{}</desc>"#,
            escape(&self.title),
            escape(&self.description)
        );
        if self.titled {
            text(&mut svg, frame.left.min(8.0), 15.0, "start", "title", &self.title);
        }
        self.draw_axes(&mut svg, &frame);
        // A nested picture cuts off what leaves the frame, but no half of a line that runs along its edge.
        const EDGE: f64 = 1.5;
        let Frame { left, top, width: across, height, .. } = frame;
        put(
            &mut svg,
            format_args!(
                r#"<svg x="{left:.1}" y="{:.1}" width="{across:.1}" height="{1:.1}" viewBox="0 -{EDGE} {across:.1} {1:.1}" overflow="hidden">"#,
                top - EDGE,
                height + 2.0 * EDGE
            ),
        );
        for series in &self.series {
            self.draw_line(&mut svg, &frame, series);
        }
        svg.push_str("</svg>");
        for (index, series) in self.series.iter().enumerate() {
            self.draw_marks(&mut svg, &frame, series, &self.series[..index]);
        }
        if self.legend == Legend::Ends {
            if frame.names_at_ends {
                self.name_ends(&mut svg, &frame)
            } else {
                self.name_above(&mut svg, width, &frame)
            }
        }
        svg.push_str("</svg>");
        svg
    }

    /// The plot as a file of its own, as high as its legend needs, and readable on a page of 320 pixels.
    pub fn file(&self) -> String {
        const WIDTH: f64 = 480.0;
        const HEIGHT: f64 = 290.0;
        let rows = if self.legend == Legend::Ends { self.legend_rows(WIDTH).len() } else { 0 };
        standalone(&self.svg(WIDTH, HEIGHT + rows as f64 * LINE))
    }

    /// The usual size of a small plot, with more room where names above it need it: for the longest, and for rows beyond the third.
    pub fn small_size(&self, (width, height): (f64, f64)) -> (f64, f64) {
        if self.legend == Legend::None {
            return (width, height);
        }
        let width = self.series.iter().map(|series| text_width(&series.name) + 30.0).fold(width, f64::max);
        (width, height + LINE * self.legend_rows(width).len().saturating_sub(3) as f64)
    }

    fn frame(&self, width: f64, height: f64) -> Frame {
        let widest = |texts: &mut dyn Iterator<Item = &str>| texts.map(text_width).fold(0.0, f64::max);
        let left = widest(&mut self.y.ticks.iter().map(|tick| tick.text.as_str())) + 12.0;
        // The last label of the horizontal axis may stick out by half.
        let last_tick = self.x.ticks.last().map_or(0.0, |tick| 0.5 * text_width(&tick.text));
        let names = widest(&mut self.series.iter().map(|series| series.name.as_str())) + 22.0;
        let names_at_ends = self.legend == Legend::Ends && width >= WIDE && names < 0.35 * width;
        let right = if names_at_ends { names } else { last_tick.max(10.0) + 2.0 };
        let title = if self.titled { 20.0 } else { 0.0 };
        let legend_rows = if self.legend == Legend::Ends && !names_at_ends { self.legend_rows(width).len() } else { 0 };
        // The label of the vertical axis stands above it, where it reads without turning one's head.
        let legend = if legend_rows > 0 { legend_rows as f64 * LINE + 5.0 } else { 0.0 };
        let top = title + legend + LINE + 8.0;
        Frame { left, top, width: width - left - right, height: height - top - 38.0, legend_top: title, names_at_ends }
    }

    fn draw_axes(&self, svg: &mut String, frame: &Frame) {
        let (bottom, right) = (frame.top + frame.height, frame.left + frame.width);
        text(svg, 2.0, frame.top - 9.0, "start", "", &self.y.label);
        text(svg, right, bottom + 33.0, "end", "", &self.x.label);
        for Tick { at, text: label } in &self.y.ticks {
            let y = bottom - self.y.fraction(*at) * frame.height;
            put(
                svg,
                format_args!(r#"<line class="grid" x1="{:.1}" x2="{right:.1}" y1="{y:.1}" y2="{y:.1}"/>"#, frame.left),
            );
            text(svg, frame.left - 6.0, y + 4.0, "end", "", label);
        }
        let mut free_from = f64::NEG_INFINITY;
        for Tick { at, text: label } in &self.x.ticks {
            let x = frame.left + self.x.fraction(*at) * frame.width;
            put(
                svg,
                format_args!(
                    r#"<line class="frame" x1="{x:.1}" x2="{x:.1}" y1="{bottom:.1}" y2="{:.1}"/>"#,
                    bottom + 4.0
                ),
            );
            let half = 0.5 * text_width(label);
            if x - half >= free_from {
                text(svg, x, bottom + 17.0, "middle", "", label);
                free_from = x + half + 5.0;
            }
        }
        put(
            svg,
            format_args!(
                r#"<line class="frame" x1="{:.1}" x2="{right:.1}" y1="{bottom:.1}" y2="{bottom:.1}"/>"#,
                frame.left
            ),
        );
        let shown = |at: f64| (0.0..=1.0).contains(&self.x.fraction(at));
        if let Some((at, label)) = self.rule.as_ref().filter(|(at, _)| shown(*at)) {
            let x = frame.left + self.x.fraction(*at) * frame.width;
            put(
                svg,
                format_args!(r#"<line class="rule" x1="{x:.1}" x2="{x:.1}" y1="{:.1}" y2="{bottom:.1}"/>"#, frame.top),
            );
            let room = x + 6.0 + text_width(label) < right;
            let (x, anchor) = if room { (x + 5.0, "start") } else { (x - 5.0, "end") };
            text(svg, x, frame.top + 11.0, anchor, "", label);
        }
    }

    /// Pixel position inside the frame, if the value can be shown at all.
    fn place(&self, frame: &Frame, x: f64, y: f64) -> Option<(f64, f64)> {
        let (x, y) = (self.x.fraction(x) * frame.width, (1.0 - self.y.fraction(y)) * frame.height);
        // Far outside is as good as outside, and keeps the numbers short.
        (x.is_finite() && y.is_finite()).then(|| (x, y.clamp(-20.0 * frame.height, 20.0 * frame.height)))
    }

    fn draw_line(&self, svg: &mut String, frame: &Frame, series: &Series) {
        let mut path = String::new();
        let mut last: Option<(f64, f64)> = None;
        for point in &series.points {
            let here = self.place(frame, point.x, point.y);
            match (last, here) {
                (None, Some((x, y))) => put(&mut path, format_args!("M{x:.1} {y:.1}")),
                (Some(_), Some((x, y))) if series.steps => put(&mut path, format_args!("H{x:.1}V{y:.1}")),
                (Some(_), Some((x, y))) => put(&mut path, format_args!("L{x:.1} {y:.1}")),
                (_, None) => {}
            }
            last = here;
        }
        let weight = if self.legend == Legend::None { "thin" } else { "line" };
        let (dash, colour) = (dash(series), series.colour % COLOURS);
        if series.band {
            let corner = |point: &Point, side: f64| {
                let (x, y) = self.place(frame, point.x, point.y + side * point.error)?;
                Some(format!("{x:.1} {y:.1}"))
            };
            let upper = series.points.iter().filter_map(|point| corner(point, 1.0));
            let lower = series.points.iter().rev().filter_map(|point| corner(point, -1.0));
            let corners: Vec<String> = upper.chain(lower).collect();
            put(svg, format_args!(r#"<path class="f{colour}" fill-opacity=".13" d="M{}z"/>"#, corners.join("L")));
        }
        let name = escape(&series.name);
        put(svg, format_args!(r#"<path class="{weight} s{colour}" d="{path}"{dash}><title>{name}</title></path>"#));
    }

    /// Markers with their error bars, and a cross wherever the line is lost. `below` are the series drawn before.
    fn draw_marks(&self, svg: &mut String, frame: &Frame, series: &Series, below: &[Series]) {
        let mut lost = false;
        for point in &series.points {
            let newly_lost = !point.y.is_finite() && (series.markers || !lost);
            lost = !point.y.is_finite();
            if newly_lost {
                self.draw_lost(svg, frame, series, point, below);
            }
            let placed = self.place(frame, point.x, point.y).filter(|_| series.markers);
            let Some((x, y)) = placed.filter(|(_, y)| (-0.5..=frame.height + 0.5).contains(y)) else { continue };
            let (x, y, colour) = (x + frame.left, y + frame.top, series.colour % COLOURS);
            if point.error > 0.0 && !series.band {
                let (high, low) =
                    (self.height(frame, point.y + point.error), self.height(frame, point.y - point.error));
                put(svg, format_args!(r#"<path class="bar s{colour}" d="M{x:.1} {low:.1}V{high:.1}"/>"#));
            }
            let (shape, tooltip) = (marker(series.colour, x, y), tooltip(series, point));
            put(svg, format_args!(r#"<path class="mark f{colour}" d="{shape}"><title>{tooltip}</title></path>"#));
        }
    }

    /// A value's height in the picture, cut off at the frame; below all of a logarithmic axis is its bottom.
    fn height(&self, frame: &Frame, y: f64) -> f64 {
        let fraction = self.y.fraction(y);
        let fraction = if fraction.is_nan() { 0.0 } else { fraction.clamp(0.0, 1.0) };
        frame.top + (1.0 - fraction) * frame.height
    }

    /// A cross at the top of the frame, under those of other series lost at the same place.
    fn draw_lost(&self, svg: &mut String, frame: &Frame, series: &Series, point: &Point, below: &[Series]) {
        let across = self.x.fraction(point.x);
        if !across.is_finite() {
            return;
        }
        let also_lost = |other: &&Series| other.points.iter().any(|p| p.x == point.x && !p.y.is_finite());
        let row = below.iter().filter(also_lost).count() as f64;
        let (x, y) = (frame.left + across * frame.width - 4.0, frame.top + 2.0 + 12.0 * row);
        let (colour, tooltip) = (series.colour % COLOURS, tooltip(series, point));
        let cross = "l8 8m0 -8l-8 8";
        put(
            svg,
            format_args!(r#"<path class="lost s{colour}" d="M{x:.1} {y:.1}{cross}"><title>{tooltip}</title></path>"#),
        );
    }

    /// Names beside the last visible points, moved apart where they would overlap.
    fn name_ends(&self, svg: &mut String, frame: &Frame) {
        let mut names: Vec<(f64, f64, &Series)> = self
            .series
            .iter()
            .map(|series| {
                let mut placed = series.points.iter().filter_map(|point| self.place(frame, point.x, point.y));
                let (x, y) = placed.next_back().unwrap_or((frame.width, 0.0));
                (x, y, series)
            })
            .collect();
        names.sort_by(|a, b| a.1.total_cmp(&b.1));
        let wanted: Vec<f64> = names.iter().map(|name| name.1.clamp(0.0, frame.height)).collect();
        for ((x, y, series), moved) in names.iter().zip(spread(&wanted, LINE, frame.height)) {
            let (end, from) = (frame.left + frame.width, frame.left + x);
            let colour = series.colour % COLOURS;
            let (visible, y, moved) = ((0.0..=frame.height).contains(y), y + frame.top, moved + frame.top);
            if visible && ((y - moved).abs() > 2.0 || end - from > 2.0) {
                put(
                    svg,
                    format_args!(
                        r#"<path class="leader s{colour}" d="M{:.1} {y:.1}L{:.1} {moved:.1}"/>"#,
                        from + 5.0,
                        end + 12.0
                    ),
                );
            }
            text(svg, end + 14.0, moved + 4.0, "start", &format!("f{colour}"), &series.name);
        }
    }

    /// Rows of series whose names fit beside each other.
    fn legend_rows(&self, width: f64) -> Vec<Vec<&Series>> {
        let mut rows: Vec<Vec<&Series>> = Vec::new();
        let mut used = f64::INFINITY;
        for series in &self.series {
            let needs = text_width(&series.name) + 30.0;
            if used + needs > width {
                rows.push(Vec::new());
                used = 2.0;
            }
            used += needs;
            rows.last_mut().expect("the first series opens a row").push(series);
        }
        rows
    }

    fn name_above(&self, svg: &mut String, width: f64, frame: &Frame) {
        for (row, members) in self.legend_rows(width).into_iter().enumerate() {
            let (mut x, y) = (2.0, frame.legend_top + (row as f64 + 0.5) * LINE + 3.0);
            for series in members {
                let colour = series.colour % COLOURS;
                let dash = dash(series);
                put(svg, format_args!(r#"<path class="line s{colour}" d="M{x:.1} {y:.1}h16"{dash}/>"#));
                if series.markers {
                    put(
                        svg,
                        format_args!(r#"<path class="mark f{colour}" d="{}"/>"#, marker(series.colour, x + 8.0, y)),
                    );
                }
                text(svg, x + 20.0, y + 4.0, "start", &format!("f{colour}"), &series.name);
                x += text_width(&series.name) + 30.0;
            }
        }
    }
}

/// Moves increasing positions apart to at least `gap`, inside `0..=limit` if they fit, each as little as that allows.
fn spread(wanted: &[f64], gap: f64, limit: f64) -> Vec<f64> {
    let mut placed: Vec<f64> = Vec::with_capacity(wanted.len());
    for &want in wanted {
        placed.push(placed.last().map_or(want, |above| want.max(above + gap)));
    }
    let mut bound = limit;
    for position in placed.iter_mut().rev() {
        *position = position.min(bound);
        bound = *position - gap;
    }
    placed
}

/// The dashes of a line; colours that come a second time have some.
fn dash(series: &Series) -> String {
    dash_of(series.colour, series.dash)
}

/// The dashes of a colour, which has some where it comes a second time, or where they are asked for.
pub(super) fn dash_of(colour: usize, dash: usize) -> String {
    let number = if dash == 0 { colour / COLOURS } else { dash };
    let pattern = number.checked_sub(1).map(|number| DASHES[number % DASHES.len()]);
    pattern.map_or_else(String::new, |pattern| format!(r#" stroke-dasharray="{pattern}""#))
}

/// Outline of the marker of a colour, about eight pixels across.
pub(super) fn marker(colour: usize, x: f64, y: f64) -> String {
    match colour % 5 {
        0 => format!("M{:.1} {y:.1}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z", x - 4.0),
        1 => format!("M{:.1} {:.1}h7.4v7.4h-7.4z", x - 3.7, y - 3.7),
        2 => format!("M{x:.1} {:.1}l5 5l-5 5l-5 -5z", y - 5.0),
        3 => format!("M{x:.1} {:.1}l5 8.4h-10z", y - 5.2),
        _ => format!("M{x:.1} {:.1}l5 -8.4h-10z", y + 5.2),
    }
}

fn tooltip(series: &Series, point: &Point) -> String {
    let spread = if point.error > 0.0 { format!(" ± {:.3}", point.error) } else { String::new() };
    escape(&format!("{}, {}: {:.3}{spread}", series.name, point.x, point.y))
}

pub(super) fn text_width(text: &str) -> f64 {
    CHARACTER * text.chars().count() as f64
}

pub(super) fn text(svg: &mut String, x: f64, y: f64, anchor: &str, class: &str, content: &str) {
    let content = escape(content);
    put(svg, format_args!(r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{content}</text>"#));
}

pub(super) fn put(svg: &mut String, piece: std::fmt::Arguments) {
    svg.write_fmt(piece).expect("writing to a string does not fail");
}

#[cfg(test)]
mod tests {
    use super::super::{Axis, grid, over_distances};
    use super::*;
    use proptest::prelude::*;

    fn plot(values: &[f64]) -> Plot {
        let points: Vec<(f64, f64)> = values.iter().enumerate().map(|(i, &y)| ((i + 1) as f64, y)).collect();
        plot_of(&points)
    }

    fn plot_of(points: &[(f64, f64)]) -> Plot {
        let points = points.iter().map(|&(x, y)| Point { x, y, error: 2.0 }).collect();
        Plot {
            title: "a < b & \"c\"".into(),
            description: "d\u{7}".into(),
            x: Axis::log("tokens", 1.0, 8.0),
            y: Axis::log("perplexity", 1.0, 100.0),
            series: vec![Series { points, markers: true, ..Series::line("<x>", 9, []) }],
            rule: Some((2.0, "trained".into())),
            legend: Legend::Ends,
            titled: true,
        }
    }

    fn count(svg: &str, class: &str) -> usize {
        let document = roxmltree::Document::parse(svg).unwrap();
        document
            .descendants()
            .filter(|node| node.attribute("class").is_some_and(|c| c.split(' ').any(|c| c == class)))
            .count()
    }

    #[test]
    fn every_value_is_drawn_or_marked_as_lost() {
        for width in [720.0, 358.0] {
            let svg = plot(&[20.0, f64::NAN, 1.5, f64::INFINITY, 30.0]).svg(width, 300.0);
            let markers_in_legend = usize::from(width < WIDE);
            assert_eq!((count(&svg, "mark") - markers_in_legend, count(&svg, "lost"), count(&svg, "bar")), (3, 2, 3));
        }
    }

    #[test]
    fn names_above_leave_room_for_the_label_of_the_axis() {
        for width in (150..WIDE as usize).step_by(10) {
            let mut plot = plot(&[20.0, 30.0]);
            let named = |name: &str| Series::line(name, 0, [(1.0, 20.0)]);
            plot.series = ["kerple_log", "kerple_power", "alibi", "rotary"].map(named).into();
            let svg = plot.svg(width as f64, 300.0);
            let document = roxmltree::Document::parse(&svg).unwrap();
            let texts = || document.descendants().filter(|node| node.has_tag_name("text"));
            let height = |node: roxmltree::Node| node.attribute("y").unwrap().parse::<f64>().unwrap();
            let names = texts().filter(|node| node.attribute("class") == Some("f0")).map(height);
            let label = texts().find(|node| node.text() == Some("perplexity")).map(height).unwrap();
            assert!(names.reduce(f64::max).unwrap() + 10.0 <= label, "{width}: {svg}");
        }
    }

    #[test]
    fn many_names_make_a_plot_higher() {
        let mut plot = plot(&[20.0, 30.0]);
        plot.series = (0..200)
            .map(|at| Series::line(format!("alibi-distance_cap{at}"), at, [(1.0, 20.0), (8.0, 30.0)]))
            .collect();
        for width in [720.0, 358.0] {
            let svg = plot.svg(width, 300.0);
            let document = roxmltree::Document::parse(&svg).unwrap();
            let height: f64 = document.root_element().attribute("height").unwrap().parse().unwrap();
            let lowest =
                document.descendants().filter(|node| node.has_tag_name("text")).filter_map(|node| node.attribute("y"));
            let lowest = lowest.map(|y| y.parse::<f64>().unwrap()).fold(0.0, f64::max);
            assert!(lowest <= height, "{lowest} of {height}");
        }
    }

    #[test]
    fn a_line_without_markers_is_crossed_out_once() {
        let mut plot = plot(&[20.0, f64::NAN, f64::NAN, 30.0, f64::INFINITY]);
        plot.series[0].markers = false;
        assert_eq!(count(&plot.svg(720.0, 300.0), "lost"), 2);
    }

    #[test]
    fn what_leaves_the_frame_has_no_marker() {
        assert_eq!(count(&plot(&[20.0, 1e9, 0.0]).svg(720.0, 300.0), "mark"), 1);
    }

    #[test]
    fn files_have_every_curve_and_name_whatever_their_number() {
        for heads in [1, 3, 64] {
            let curves = (0..heads).map(|head| (format!("head <{head}>"), vec![(0.0, 0.0), (9.0, -0.1 * head as f64)]));
            let file = over_distances("a \"title\"", "bias", true, curves).file();
            let document = roxmltree::Document::parse(&file).unwrap();
            let texts: Vec<_> = document.descendants().filter(|node| node.has_tag_name("text")).collect();
            let shown = |wanted: &str| texts.iter().filter(|node| node.text() == Some(wanted)).count();
            assert_eq!((shown("a \"title\""), shown("bias"), count(&file, "paper")), (1, 1, 1));
            assert!((0..heads).all(|head| shown(&format!("head <{head}>")) == 1), "{file}");
            // A line each in the frame, and one in the legend.
            assert_eq!(count(&file, "line"), 2 * heads);
        }
    }

    #[test]
    fn grids_and_files_are_well_formed() {
        let picture = plot(&[1.0, 2.0]).svg(300.0, 200.0);
        let file = standalone(&grid(&[picture.clone(), picture.clone(), picture], 2, 300.0, 200.0));
        assert_eq!(count(&file, "paper"), 1);
        assert_eq!(roxmltree::Document::parse(&file).unwrap().root_element().attribute("height"), Some("400"));
    }

    proptest! {
        #[test]
        fn any_data_gives_well_formed_svg(
            points in prop::collection::vec((prop::num::f64::ANY, prop::num::f64::ANY), 0..6),
            width in 200.0..900.0f64,
            name in ".{0,90}",
            markers: bool,
        ) {
            let mut plot = plot_of(&points);
            plot.series[0].markers = markers;
            plot.series[0].name = name;
            plot.rule = points.first().map(|point| (point.0, "rule".into()));
            let svg = plot.svg(width, 260.0);
            let document = roxmltree::Document::parse(&svg).unwrap();
            for attribute in document.descendants().flat_map(|node| node.attributes()) {
                let negative = attribute.name() == "width" && attribute.value().starts_with('-');
                let not_finite = attribute.value().contains("NaN") || attribute.value().contains("inf");
                prop_assert!(!(negative || not_finite), "{}", svg);
            }
        }

        #[test]
        fn spread_keeps_order_and_distance(mut wanted in prop::collection::vec(0.0..200.0f64, 0..10)) {
            wanted.sort_by(f64::total_cmp);
            let placed = spread(&wanted, 15.0, 200.0);
            prop_assert!(placed.windows(2).all(|pair| pair[1] - pair[0] >= 15.0 - 1e-9));
            prop_assert!(placed.iter().all(|&y| y <= 200.0));
        }
    }
}
