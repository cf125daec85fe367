//! Lengths to evaluate, as they are asked for.

use std::str::FromStr;

/// A length in tokens, or the training length and what lies octaves beyond it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EvalLength {
    /// Tokens.
    Tokens(usize),
    /// `round(train_len * 2^(k step))` for `k = 0, 1, ..` up to `multiple` training lengths: `octaves:STEP:MULTIPLE`.
    Octaves {
        /// Octaves from one length to the next.
        step: f64,
        /// The longest length in training lengths.
        multiple: f64,
    },
}

/// Least and most octaves of a step.
const STEPS: [f64; 2] = [1.0 / 64.0, 16.0];
/// Most training lengths.
const MOST_MULTIPLE: f64 = 1_048_576.0;
/// Most tokens of a length: no machine holds as many, and products of a few of them stay far from the end of 64 bits.
pub(super) const MOST_TOKENS: usize = 1 << 40;

impl EvalLength {
    /// The lengths of a model trained at `train_len`, in the order in which they were asked for, each once.
    pub fn resolve(all: &[EvalLength], train_len: usize) -> Vec<usize> {
        let mut lengths: Vec<usize> = Vec::new();
        for length in all.iter().flat_map(|asked| asked.lengths(train_len)) {
            if !lengths.contains(&length) {
                lengths.push(length);
            }
        }
        lengths
    }

    fn lengths(self, train_len: usize) -> Vec<usize> {
        let (step, multiple) = match self {
            EvalLength::Tokens(tokens) => return vec![tokens],
            EvalLength::Octaves { step, multiple } => (step, multiple),
        };
        // log2(32) / 0.5 is exact, log2(10) / 0.1 is rounded: a billionth of a step is no length of its own
        let last = (multiple.log2() / step + 1e-9).floor() as u32;
        (0..=last).map(|k| (train_len as f64 * (f64::from(k) * step).exp2()).round() as usize).collect()
    }
}

impl FromStr for EvalLength {
    type Err = String;

    fn from_str(text: &str) -> Result<EvalLength, String> {
        let text = text.trim();
        let Some(octaves) = text.strip_prefix("octaves:") else {
            return match text.parse() {
                Ok(tokens) if (1..=MOST_TOKENS).contains(&tokens) => Ok(EvalLength::Tokens(tokens)),
                _ => Err(format!(
                    "it must be a whole number from 1 to {MOST_TOKENS}, or octaves:STEP:MULTIPLE such as octaves:0.5:32"
                )),
            };
        };
        let numbers =
            octaves.split_once(':').and_then(|(step, multiple)| Some((step.parse().ok()?, multiple.parse().ok()?)));
        let Some((step, multiple)) = numbers else {
            return Err("it must be octaves:STEP:MULTIPLE, two numbers such as octaves:0.5:32".to_owned());
        };
        if !(STEPS[0]..=STEPS[1]).contains(&step) {
            return Err(format!(
                "the step of {step} octaves is out of range; it must be between {} and {}",
                STEPS[0], STEPS[1]
            ));
        }
        if !(1.0..=MOST_MULTIPLE).contains(&multiple) {
            return Err(format!(
                "{multiple} training lengths are out of range; it must be between 1 and {MOST_MULTIPLE}"
            ));
        }
        Ok(EvalLength::Octaves { step, multiple })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(text: &str, train_len: usize) -> Vec<usize> {
        let all: Vec<EvalLength> = text.split(',').map(|one| one.parse().unwrap()).collect();
        EvalLength::resolve(&all, train_len)
    }

    #[test]
    fn octaves_are_rounded_and_named_once() {
        assert_eq!(lengths("octaves:0.5:4", 64), [64, 91, 128, 181, 256]);
        assert_eq!(lengths("octaves:0.5:3", 64), [64, 91, 128, 181]);
        assert_eq!(lengths("octaves:1:32", 100), [100, 200, 400, 800, 1600, 3200]);
        assert_eq!(lengths("32,octaves:1:2,64", 64), [32, 64, 128]);
        // eighths of an octave of 3 tokens fall together
        assert_eq!(lengths("octaves:0.125:2", 3), [3, 4, 5, 6]);
        assert_eq!(lengths("octaves:0.1:10", 1000).len(), 34);
    }

    #[test]
    fn what_is_no_length_is_refused() {
        let refused = |text: &str| text.parse::<EvalLength>().unwrap_err();
        for (text, part) in [
            ("0", "from 1 to"),
            ("-4", "from 1 to"),
            ("many", "octaves:0.5:32"),
            ("octaves:0.5", "two numbers"),
            ("octaves:x:2", "two numbers"),
            ("octaves:0:2", "the step of 0 octaves"),
            ("octaves:NaN:2", "the step of NaN octaves"),
            ("octaves:1:0.5", "0.5 training lengths"),
            ("octaves:1:inf", "inf training lengths"),
            ("99999999999999", "from 1 to"),
        ] {
            assert!(refused(text).contains(part), "{text}: {}", refused(text));
        }
    }
}
