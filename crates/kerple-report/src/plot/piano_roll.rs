//! Music as a picture: time to the right, pitch upwards, a bar for each note.

use super::standalone;
use super::svg::{escape, put, text};

/// Beats a bar.
const BAR: f64 = 4.0;
/// Width of a bar of four beats, as long as the picture is not wider than [`WIDEST`].
const BAR_WIDTH: f64 = 60.0;
const WIDEST: f64 = 1200.0;
/// Height of a half tone.
const STEP: f64 = 5.0;
const LEFT: f64 = 34.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 36.0;
/// Colours there are.
const COLOURS: usize = 8;

/// A note of a picture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sound {
    /// When it begins, beats.
    pub start: f64,
    /// How long it sounds, beats.
    pub duration: f64,
    /// MIDI pitch, 60 is middle C.
    pub pitch: u8,
    /// Which voice it belongs to, and its colour; counted from 0.
    pub voice: usize,
}

/// A piece of music, to be drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct PianoRoll {
    /// What it shows.
    pub title: String,
    /// Names of the voices.
    pub voices: Vec<String>,
    /// The notes, in any order.
    pub sounds: Vec<Sound>,
    /// A vertical line at a time in beats, and what it marks: where the prompt ends, say.
    pub rule: Option<(f64, String)>,
}

impl PianoRoll {
    /// The picture as a file of its own.
    pub fn file(&self) -> String {
        standalone(&self.svg())
    }

    /// The picture as an SVG element, to go into a page that has [`STYLE`](super::STYLE).
    pub fn svg(&self) -> String {
        let beats = self.sounds.iter().map(|sound| sound.start + sound.duration).fold(BAR, f64::max);
        let bars = (beats / BAR).ceil();
        let across = (bars * BAR_WIDTH).min(WIDEST);
        let pitches = || self.sounds.iter().map(|sound| sound.pitch);
        // whole octaves, from C to C
        let low = pitches().min().unwrap_or(60) / 12 * 12;
        let high = pitches().max().unwrap_or(71).saturating_add(1).div_ceil(12) * 12;
        let high = high.max(low + 12);
        let down = f64::from(high - low) * STEP;
        let (width, height) = (LEFT + across + 12.0, TOP + down + BOTTOM);
        let x = |beat: f64| LEFT + beat / (bars * BAR) * across;
        let y = |pitch: f64| TOP + down - (pitch - f64::from(low)) * STEP;
        let mut svg = format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" class="plot" role="img" viewBox="0 0 {width:.0} {height:.0}" width="{width:.0}" height="{height:.0}"><title>{}</title><desc>{} notes in {bars:.0} bars</desc>"#,
            escape(&self.title),
            self.sounds.len()
        );
        text(&mut svg, 8.0, 15.0, "start", "title", &self.title);
        self.draw_names(&mut svg);
        for octave in low / 12..=high / 12 {
            let at = y(f64::from(octave) * 12.0);
            let right = LEFT + across;
            put(
                &mut svg,
                format_args!(r#"<line class="grid" x1="{LEFT}" x2="{right:.1}" y1="{at:.1}" y2="{at:.1}"/>"#),
            );
            text(&mut svg, LEFT - 6.0, at + 4.0, "end", "", &format!("C{}", i32::from(octave) - 1));
        }
        // labels need about 30 pixels
        let every = (30.0 * bars / across).ceil().max(1.0) as usize;
        for bar in (0..=bars as usize).step_by(every) {
            let at = x(bar as f64 * BAR);
            put(
                &mut svg,
                format_args!(r#"<line class="grid" x1="{at:.1}" x2="{at:.1}" y1="{TOP}" y2="{:.1}"/>"#, TOP + down),
            );
            text(&mut svg, at, TOP + down + 15.0, "middle", "", &(bar + 1).to_string());
        }
        text(&mut svg, LEFT + across, TOP + down + 31.0, "end", "", "bar");
        for Sound { start, duration, pitch, voice } in &self.sounds {
            let (left, right) = (x(*start), x(start + duration));
            put(
                &mut svg,
                format_args!(
                    r#"<rect class="f{}" x="{left:.1}" y="{:.1}" width="{:.1}" height="{STEP}" rx="1"/>"#,
                    voice % COLOURS,
                    y(f64::from(*pitch) + 1.0),
                    // a note that is too short to be seen is shown
                    (right - left).max(1.0)
                ),
            );
        }
        if let Some((beat, label)) = &self.rule {
            let at = x(beat.clamp(0.0, bars * BAR));
            put(
                &mut svg,
                format_args!(r#"<line class="rule" x1="{at:.1}" x2="{at:.1}" y1="{TOP}" y2="{:.1}"/>"#, TOP + down),
            );
            text(&mut svg, at + 5.0, TOP + 11.0, "start", "", label);
        }
        svg.push_str("</svg>");
        svg
    }

    /// The names of voices that sound, each in its colour.
    fn draw_names(&self, svg: &mut String) {
        let mut at = LEFT;
        for (voice, name) in self.voices.iter().enumerate() {
            if self.sounds.iter().any(|sound| sound.voice == voice) {
                text(svg, at, 31.0, "start", &format!("f{}", voice % COLOURS), name);
                at += 7.0 * name.chars().count() as f64 + 16.0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roll(sounds: Vec<Sound>) -> PianoRoll {
        PianoRoll {
            title: "a <piece>".to_owned(),
            voices: vec!["piano & more".to_owned(), "bass".to_owned()],
            sounds,
            rule: None,
        }
    }

    /// The attributes of all rectangles.
    fn rectangles(svg: &str) -> Vec<[f64; 4]> {
        let document = roxmltree::Document::parse(svg).unwrap();
        let notes = document.descendants().filter(|node| node.has_tag_name("rect") && node.attribute("rx").is_some());
        notes
            .map(|node| ["x", "y", "width", "height"].map(|name| node.attribute(name).unwrap().parse().unwrap()))
            .collect()
    }

    #[test]
    fn notes_lie_where_they_sound() {
        let sound = |start, duration, pitch| Sound { start, duration, pitch, voice: 0 };
        let found = rectangles(&roll(vec![sound(0.0, 4.0, 60), sound(4.0, 2.0, 71), sound(6.0, 0.0, 61)]).file());
        // two bars of 60 pixels from 34 on, twelve half tones of 5 pixels from 40 on, C at the bottom
        assert_eq!(found, [[34.0, 95.0, 60.0, 5.0], [94.0, 40.0, 30.0, 5.0], [124.0, 90.0, 1.0, 5.0]]);
    }

    #[test]
    fn any_piece_is_a_picture() {
        for sounds in [
            vec![],
            vec![
                Sound { start: 1e6, duration: 3.0, pitch: 127, voice: 9 },
                Sound { start: 0.0, duration: 1.0, pitch: 0, voice: 0 },
            ],
        ] {
            let count = sounds.len();
            let picture = PianoRoll { rule: Some((7.0, "prompt".to_owned())), ..roll(sounds) }.file();
            assert_eq!(rectangles(&picture).len(), count);
            assert!(picture.contains("a &lt;piece&gt;") && !picture.contains("NaN"));
        }
    }
}
