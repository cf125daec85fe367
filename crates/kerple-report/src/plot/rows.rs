//! Rows of marks over one axis: for each heading a row for every encoding, with its estimate, interval and single values.
//!
//! What is beyond an end of the axis has an arrow there. Colours and marker shapes are those of the other plots.

use super::svg::{COLOURS, LINE, dash_of, escape, marker, put, text, text_width};
use super::{Axis, standalone};

/// Height of a row of marks.
const ROW: f64 = 13.0;
/// Height of a heading with the space around it.
const HEADING: f64 = 24.0;
/// Room for the axis below the rows.
const AXIS: f64 = 40.0;
/// Room beside the rows for arrows and half a label.
const SIDE: f64 = 16.0;

/// Styles of marks that other plots do not have.
const TICK: &str = "stroke:var(--quiet);stroke-width:3;opacity:.55;fill:none";
const DOT: &str = "stroke:var(--paper);stroke-width:1";
const HOLLOW: &str = "fill:var(--paper);stroke-width:1.6";

/// A picture of rows.
#[derive(Clone, Debug, PartialEq)]
pub struct RowChart {
    /// What it shows.
    pub title: String,
    /// The finding in a sentence, for readers who do not see it.
    pub description: String,
    /// The common axis.
    pub x: Axis,
    /// A vertical line at a value, and what it marks.
    pub rule: Option<(f64, String)>,
    /// Names of what has a row, each with its colour and dashes.
    pub names: Vec<(String, usize, usize)>,
    /// Headings, top to bottom.
    pub groups: Vec<RowGroup>,
}

/// A heading and its rows.
#[derive(Clone, Debug, PartialEq)]
pub struct RowGroup {
    /// The heading.
    pub name: String,
    /// One for each name that has a value, in the order of the names.
    pub marks: Vec<RowMark>,
    /// A grey tick through all rows, and what it marks.
    pub tick: Option<(f64, String)>,
}

/// What a row shows.
#[derive(Clone, Debug, PartialEq)]
pub struct RowMark {
    /// Number of its name.
    pub name: usize,
    /// The value in words, for tooltips.
    pub words: String,
    /// The estimate, which may be infinite or 0.
    pub at: Option<f64>,
    /// Its interval.
    pub ends: Option<[f64; 2]>,
    /// The values that it is made of.
    pub dots: Vec<f64>,
    /// Whether the estimate is drawn hollow.
    pub hollow: bool,
}

impl RowChart {
    /// The picture as an SVG element of this width, as high as its rows need, to go into a page that has [`STYLE`](super::STYLE).
    pub fn svg(&self, width: f64) -> String {
        let legend = self.legend_rows(width);
        let top = legend.len() as f64 * LINE + 8.0;
        let rows: usize = self.groups.iter().map(|group| group.marks.len()).sum();
        let bottom = top + self.groups.len() as f64 * HEADING + rows as f64 * ROW + 4.0;
        let height = bottom + AXIS;
        let mut svg = format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" class="plot" role="img" viewBox="0 0 {width} {height}" width="{width}" height="{height}"><title>{}</title><desc>{}</desc>"#,
            escape(&self.title),
            escape(&self.description)
        );
        self.draw_legend(&mut svg, &legend);
        self.draw_axis(&mut svg, width, [top, bottom]);
        let mut y = top;
        for (number, group) in self.groups.iter().enumerate() {
            if number > 0 {
                put(&mut svg, format_args!(r#"<line class="frame" x1="0" x2="{width}" y1="{y:.1}" y2="{y:.1}"/>"#));
            }
            text(&mut svg, 2.0, y + 15.0, "start", "title", &group.name);
            y += HEADING;
            let rows = group.marks.len() as f64 * ROW;
            if let Some((at, words)) = group.tick.as_ref().filter(|(at, _)| self.is_inside(*at)) {
                let (x, words) = (self.place(width, *at), escape(words));
                put(
                    &mut svg,
                    format_args!(
                        r#"<path class="tick" style="{TICK}" d="M{x:.1} {:.1}V{:.1}"><title>{words}</title></path>"#,
                        y - 4.0,
                        y + rows - 4.0
                    ),
                );
            }
            for mark in &group.marks {
                self.draw_mark(&mut svg, width, y + 0.5 * ROW - 4.0, mark);
                y += ROW;
            }
        }
        svg.push_str("</svg>");
        svg
    }

    /// The picture as a file of its own, readable on a wide page and on a narrow one.
    pub fn file(&self) -> String {
        standalone(&self.svg(640.0))
    }

    fn is_inside(&self, value: f64) -> bool {
        (0.0..=1.0).contains(&self.x.fraction(value))
    }

    /// Pixels of a value, at an end of the axis where it is beyond.
    fn place(&self, width: f64, value: f64) -> f64 {
        let fraction = self.x.fraction(value);
        let fraction = if fraction.is_nan() { 0.0 } else { fraction.clamp(0.0, 1.0) };
        SIDE + fraction * (width - 2.0 * SIDE)
    }

    fn draw_mark(&self, svg: &mut String, width: f64, y: f64, mark: &RowMark) {
        let (name, colour, dash) = &self.names[mark.name];
        let (shape, class) = (*colour, colour % COLOURS);
        let words = escape(&format!("{name}: {}", mark.words));
        if let Some(ends) = mark.ends {
            let [low, high] = ends.map(|end| self.place(width, end));
            let dash = dash_of(*colour, *dash);
            put(svg, format_args!(r#"<path class="line s{class}" d="M{low:.1} {y:.1}H{high:.1}"{dash}/>"#));
        }
        let dots = mark.dots.iter().filter(|dot| self.is_inside(**dot));
        for x in dots.map(|dot| self.place(width, *dot)) {
            put(svg, format_args!(r#"<circle class="dot f{class}" style="{DOT}" cx="{x:.1}" cy="{y:.1}" r="2.6"/>"#));
        }
        let values = mark.at.into_iter().chain(mark.ends.into_iter().flatten());
        let beyond = values.map(|value| self.x.fraction(value)).fold([false; 2], |found, fraction| {
            [found[0] || fraction.is_nan() || fraction < 0.0, found[1] || fraction > 1.0]
        });
        let heads = [(beyond[0], SIDE - 1.0, -1.0), (beyond[1], width - SIDE + 1.0, 1.0)];
        for (_, x, side) in heads.into_iter().filter(|(is_there, ..)| *is_there) {
            let (back, tip) = (-5.0 * side, 8.0 * side);
            put(
                svg,
                format_args!(
                    r#"<path class="line s{class}" d="M{x:.1} {y:.1}h{tip:.1}m{back:.1} -4l{0:.1} 4l{back:.1} 4"/>"#,
                    -back
                ),
            );
        }
        let Some(at) = mark.at else { return };
        let kind = if mark.hollow { format!(r#"hollow s{class}" style="{HOLLOW}"#) } else { format!("mark f{class}") };
        let shape = marker(shape, self.place(width, at), y);
        put(svg, format_args!(r#"<path class="{kind}" d="{shape}"><title>{words}</title></path>"#));
    }

    fn draw_axis(&self, svg: &mut String, width: f64, [top, bottom]: [f64; 2]) {
        let mut free_from = f64::NEG_INFINITY;
        for tick in self.x.ticks.iter().filter(|tick| self.is_inside(tick.at)) {
            let x = self.place(width, tick.at);
            put(svg, format_args!(r#"<line class="grid" x1="{x:.1}" x2="{x:.1}" y1="{top:.1}" y2="{bottom:.1}"/>"#));
            let half = 0.5 * text_width(&tick.text);
            if x - half >= free_from {
                text(svg, x, bottom + 17.0, "middle", "", &tick.text);
                free_from = x + half + 5.0;
            }
        }
        put(svg, format_args!(r#"<line class="frame" x1="0" x2="{width}" y1="{bottom:.1}" y2="{bottom:.1}"/>"#));
        text(svg, width - 2.0, bottom + 33.0, "end", "", &self.x.label);
        if let Some((at, label)) = self.rule.as_ref().filter(|(at, _)| self.is_inside(*at)) {
            let x = self.place(width, *at);
            put(svg, format_args!(r#"<line class="rule" x1="{x:.1}" x2="{x:.1}" y1="{top:.1}" y2="{bottom:.1}"/>"#));
            text(svg, 2.0, bottom + 33.0, "start", "", &format!("dotted line: {label}"));
        }
    }

    /// Rows of names that fit beside each other.
    fn legend_rows(&self, width: f64) -> Vec<Vec<usize>> {
        let mut rows: Vec<Vec<usize>> = Vec::new();
        let mut used = f64::INFINITY;
        for (number, (name, ..)) in self.names.iter().enumerate() {
            let needs = text_width(name) + 30.0;
            if used + needs > width {
                rows.push(Vec::new());
                used = 2.0;
            }
            used += needs;
            rows.last_mut().expect("the first name opens a row").push(number);
        }
        rows
    }

    fn draw_legend(&self, svg: &mut String, rows: &[Vec<usize>]) {
        for (row, members) in rows.iter().enumerate() {
            let (mut x, y) = (2.0, (row as f64 + 0.5) * LINE + 3.0);
            for (name, colour, dash) in members.iter().map(|number| &self.names[*number]) {
                let class = colour % COLOURS;
                let dash = dash_of(*colour, *dash);
                put(svg, format_args!(r#"<path class="line s{class}" d="M{x:.1} {y:.1}h16"{dash}/>"#));
                let shape = marker(*colour, x + 8.0, y);
                put(svg, format_args!(r#"<path class="mark f{class}" d="{shape}"/>"#));
                text(svg, x + 20.0, y + 4.0, "start", &format!("f{class}"), name);
                x += text_width(name) + 30.0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn chart(marks: Vec<RowMark>) -> RowChart {
        RowChart {
            title: "reach < all".to_owned(),
            description: String::new(),
            x: Axis::lengths("tokens", &[64, 128, 256]),
            rule: Some((64.0, "trained".to_owned())),
            names: vec![("alibi".to_owned(), 0, 0), ("rotary".to_owned(), 9, 0)],
            groups: vec![RowGroup { name: "recall".to_owned(), marks, tick: Some((100.0, "a rule".to_owned())) }],
        }
    }

    fn mark(at: Option<f64>, ends: Option<[f64; 2]>, hollow: bool) -> RowMark {
        RowMark { name: 1, words: "words".to_owned(), at, ends, dots: vec![70.0, f64::INFINITY], hollow }
    }

    fn count(svg: &str, class: &str) -> usize {
        let document = roxmltree::Document::parse(svg).unwrap();
        let classes = document.descendants().filter_map(|node| node.attribute("class"));
        classes.filter(|classes| classes.split(' ').any(|one| one == class)).count()
    }

    #[test]
    fn what_is_beyond_the_axis_has_an_arrow_and_what_is_not_learned_is_hollow() {
        let chart = chart(vec![
            mark(Some(100.0), Some([80.0, 120.0]), false),
            mark(Some(f64::INFINITY), Some([200.0, f64::INFINITY]), false),
            mark(Some(0.0), None, true),
            mark(None, None, true),
        ]);
        for width in [900.0, 358.0] {
            let svg = chart.svg(width);
            // beside the two names
            assert_eq!((count(&svg, "mark"), count(&svg, "hollow")), (2 + 2, 1));
            // two names, two intervals, and arrows to the right and to the left
            assert_eq!(count(&svg, "line"), 2 + 2 + 2);
            assert_eq!((count(&svg, "dot"), count(&svg, "tick"), count(&svg, "rule")), (4, 1, 1));
        }
        assert_eq!(count(&chart.file(), "paper"), 1);
    }

    proptest! {
        #[test]
        fn any_values_give_well_formed_pictures(
            at in prop::option::of(prop::num::f64::ANY), ends in prop::option::of((prop::num::f64::ANY, prop::num::f64::ANY)),
            dots in prop::collection::vec(prop::num::f64::ANY, 0..4), width in 200.0..900.0f64, name in ".{0,60}",
        ) {
            let mut chart = chart(vec![RowMark { dots, ..mark(at, ends.map(|(low, high)| [low, high]), false) }]);
            chart.groups[0].name = name;
            let svg = chart.svg(width);
            let document = roxmltree::Document::parse(&svg).unwrap();
            for attribute in document.descendants().flat_map(|node| node.attributes()) {
                let value = attribute.value();
                prop_assert!(!value.contains("NaN") && !value.contains("inf"), "{}", svg);
            }
        }
    }
}
