//! Text as it arrives, up to the first stop string.

/// Lets text through that is certain not to belong to a string that ends it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StopFilter {
    stops: Vec<String>,
    held: String,
}

/// What comes through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FilteredText {
    /// More may come.
    Open(String),
    /// A string that ends the text has come; this was before it.
    Ended(String),
}

impl StopFilter {
    pub(crate) fn new(stops: &[String]) -> StopFilter {
        StopFilter { stops: stops.to_vec(), held: String::new() }
    }

    pub(crate) fn push(&mut self, text: &str) -> FilteredText {
        self.held.push_str(text);
        let ends = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min();
        if let Some(end) = ends {
            self.held.truncate(end);
            return FilteredText::Ended(std::mem::take(&mut self.held));
        }
        let waiting = self.stops.iter().map(|stop| begun(&self.held, stop)).max().unwrap_or(0);
        let certain = self.held.len() - waiting;
        let rest = self.held.split_off(certain);
        FilteredText::Open(std::mem::replace(&mut self.held, rest))
    }

    /// What is held back, when no text follows.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Bytes at the end of `text` that `stop` may have begun with.
fn begun(text: &str, stop: &str) -> usize {
    let lengths = (1..stop.len().min(text.len() + 1)).rev();
    lengths.filter(|length| stop.is_char_boundary(*length)).find(|length| text.ends_with(&stop[..*length])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through(stops: &[&str], parts: &[&str]) -> (Vec<String>, bool) {
        let mut gate = StopFilter::new(&stops.iter().map(|stop| stop.to_string()).collect::<Vec<_>>());
        let mut passed = Vec::new();
        for part in parts {
            match gate.push(part) {
                FilteredText::Open(text) => passed.push(text),
                FilteredText::Ended(text) => {
                    passed.push(text);
                    return (passed, true);
                }
            }
        }
        passed.push(gate.finish());
        (passed, false)
    }

    #[test]
    fn text_ends_before_the_first_string() {
        assert_eq!(through(&["\n\n", "b"], &["a\n", "\nb"]), (vec!["a".into(), "".into()], true));
        assert_eq!(through(&["cd", "bc"], &["abcd"]), (vec!["a".into()], true));
        assert_eq!(through(&["ü!"], &["aü", "?", "ü", "!"]).0.concat(), "aü?");
    }

    #[test]
    fn nothing_is_lost_where_no_string_comes() {
        let parts = ["ab", "aba", "abab", "aa"];
        let (passed, ended) = through(&["ababc", "aac"], &parts);
        assert!((passed.concat(), ended) == (parts.concat(), false), "{passed:?}");
        assert_eq!(passed.last().unwrap(), "aa", "it may have begun");
        assert_eq!(through(&[], &parts).0, ["ab", "aba", "abab", "aa", ""]);
    }
}
