//! Progress for people: one redrawn line on a terminal, otherwise a plain line per interval. Always
//! on stderr.

use crate::output::{Verbosity, verbosity};
use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

/// A progress line.
pub struct ProgressLine {
    style: ProgressStyle,
    last: Option<Instant>,
    width: usize,
}

/// How progress is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ProgressStyle {
    Hidden,
    /// In one line, drawn again over itself.
    Redrawn,
    /// In lines that stay, one an interval.
    Lines(Duration),
}

const REDRAW: Duration = Duration::from_millis(100);

impl ProgressStyle {
    fn of_process() -> ProgressStyle {
        match (verbosity(), stderr().is_terminal()) {
            (Verbosity::Silent | Verbosity::Quiet, _) => ProgressStyle::Hidden,
            (Verbosity::Normal, true) => ProgressStyle::Redrawn,
            (Verbosity::Normal, false) => ProgressStyle::Lines(Duration::from_secs(10)),
            (Verbosity::Verbose, _) => ProgressStyle::Lines(Duration::from_secs(1)),
        }
    }
}

impl ProgressLine {
    /// A line that is not drawn yet.
    pub fn new() -> ProgressLine {
        ProgressLine { style: ProgressStyle::of_process(), last: None, width: 0 }
    }

    /// Shows `text`, unless something was shown a moment ago.
    pub fn show(&mut self, text: impl FnOnce() -> String) {
        let interval = match self.style {
            ProgressStyle::Hidden => return,
            ProgressStyle::Redrawn => REDRAW,
            ProgressStyle::Lines(interval) => interval,
        };
        if self.last.is_some_and(|last| last.elapsed() < interval) {
            return;
        }
        self.last = Some(Instant::now());
        match self.style {
            ProgressStyle::Redrawn => {
                let text = cut(&text(), columns());
                self.draw(&text);
                let _ = stderr().flush();
            }
            _ => {
                let _ = writeln!(stderr(), "{}", text());
            }
        }
    }

    /// Ends the line with `text`, which stays.
    pub fn done(&mut self, text: &str) {
        match self.style {
            ProgressStyle::Hidden => return,
            ProgressStyle::Redrawn => {
                self.draw(text);
                let _ = writeln!(stderr());
            }
            ProgressStyle::Lines(_) => {
                let _ = writeln!(stderr(), "{text}");
            }
        }
        (self.last, self.width) = (None, 0);
    }

    /// Draws over what is in the line.
    fn draw(&mut self, text: &str) {
        let blank = self.width.saturating_sub(text.chars().count());
        self.width = text.chars().count();
        let _ = write!(stderr(), "\r{text}{}", " ".repeat(blank));
    }
}

/// Several lines that a terminal shows in one place, redrawn when they change. Without a terminal only what stays is written.
pub struct Live {
    redrawn: bool,
    last: Option<Instant>,
    lines: usize,
}

impl Live {
    /// Nothing is drawn yet.
    pub fn new() -> Live {
        Live { redrawn: ProgressStyle::of_process() == ProgressStyle::Redrawn, last: None, lines: 0 }
    }

    /// Shows `text` in place of what is there, unless something was shown a moment ago.
    pub fn show(&mut self, text: impl FnOnce() -> String) {
        if self.redrawn && self.last.is_none_or(|last| last.elapsed() >= REDRAW) {
            self.show_now(&text());
        }
    }

    /// Shows `text` in place of what is there.
    pub fn show_now(&mut self, text: &str) {
        if !self.redrawn {
            return;
        }
        self.clear();
        let columns = columns();
        let lines: Vec<String> = text.lines().map(|line| cut(line, columns)).collect();
        let _ = writeln!(stderr(), "{}", lines.join("\n"));
        (self.last, self.lines) = (Some(Instant::now()), lines.len());
    }

    /// Writes a line that stays.
    pub fn keep(&mut self, line: &str) {
        self.clear();
        if ProgressStyle::of_process() != ProgressStyle::Hidden {
            let _ = writeln!(stderr(), "{line}");
        }
    }

    /// Removes what is shown.
    pub fn clear(&mut self) {
        if self.lines > 0 {
            // up to the first line, then everything below goes
            let _ = write!(stderr(), "\x1b[{}A\r\x1b[J", self.lines);
            let _ = stderr().flush();
        }
        (self.last, self.lines) = (None, 0);
    }
}

/// Columns that a line may fill without going on in the next; no limit where the terminal does not say.
fn columns() -> usize {
    let size = terminal_size::terminal_size_of(stderr());
    size.map_or(usize::MAX, |(terminal_size::Width(columns), _)| usize::from(columns.saturating_sub(1)))
}

/// The beginning of `text`, with an ellipsis where something is missing.
fn cut(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return text.to_owned();
    }
    text.chars().take(columns.saturating_sub(1)).chain("\u{2026}".chars().take(columns)).collect()
}

/// Seconds in words: `42 s`, `3 min 05 s`, `2 h 10 min`.
pub fn duration(seconds: f64) -> String {
    if !seconds.is_finite() {
        return "?".to_owned();
    }
    let seconds = seconds.max(0.0).round() as u64;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s} s"),
        (0, m, s) => format!("{m} min {s:02} s"),
        (h, m, _) => format!("{h} h {m:02} min"),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn durations_read_well() {
        let words: Vec<String> = [0.4, 61.0, 3600.0 * 2.0 + 605.0, f64::INFINITY].map(super::duration).into();
        assert_eq!(words, ["0 s", "1 min 01 s", "2 h 10 min", "?"]);
    }

    #[test]
    fn what_is_too_long_ends_in_an_ellipsis() {
        let of = |columns| super::cut("step 3/20  l\u{f6}ss", columns);
        assert_eq!([of(15), of(14), of(5), of(1), of(0)], ["step 3/20  löss", "step 3/20  lö…", "step…", "…", ""]);
    }
}
