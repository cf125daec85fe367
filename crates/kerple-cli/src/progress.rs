//! Progress for people: one redrawn line on a terminal, a plain line an interval otherwise. Always on stderr.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

/// A progress line.
pub struct Line {
    terminal: bool,
    last: Option<Instant>,
    width: usize,
}

const REDRAW: Duration = Duration::from_millis(100);
const PLAIN: Duration = Duration::from_secs(10);

impl Line {
    /// A line that is not drawn yet.
    pub fn new() -> Line {
        Line { terminal: stderr().is_terminal(), last: None, width: 0 }
    }

    /// Shows `text`, unless something was shown a moment ago.
    pub fn show(&mut self, text: impl FnOnce() -> String) {
        let interval = if self.terminal { REDRAW } else { PLAIN };
        if self.last.is_some_and(|last| last.elapsed() < interval) {
            return;
        }
        self.last = Some(Instant::now());
        let text = text();
        if self.terminal {
            let blank = self.width.saturating_sub(text.chars().count());
            self.width = text.chars().count();
            let _ = write!(stderr(), "\r{text}{}", " ".repeat(blank));
            let _ = stderr().flush();
        } else {
            let _ = writeln!(stderr(), "{text}");
        }
    }

    /// Ends the line with `text`, which stays.
    pub fn done(&mut self, text: &str) {
        if self.terminal {
            let blank = self.width.saturating_sub(text.chars().count());
            let _ = writeln!(stderr(), "\r{text}{}", " ".repeat(blank));
        } else {
            let _ = writeln!(stderr(), "{text}");
        }
        (self.last, self.width) = (None, 0);
    }
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
}
