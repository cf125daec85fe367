//! Evaluation beyond the training length, by the protocols people disagree about, each by name.

use crate::error::{Error, Result};
use crate::model::{Decoder, Tokens};
use kerple_report::record::EvaluationRow;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Instant;

/// Which tokens are scored, and with how much context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Protocol {
    /// Random segments of each length, every token scored: the code released with KERPLE.
    Segments,
    /// Consecutive blocks of each length over the same text, every token scored: the KERPLE paper's description.
    Blocks,
    /// The last `k` tokens of each segment; the scored tokens are the same at every length: DAPE.
    Last(usize),
    /// A window moved by a stride over the same text, only its newest tokens scored.
    Sliding(usize),
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Protocol::Segments => f.write_str("segments"),
            Protocol::Blocks => f.write_str("blocks"),
            Protocol::Last(k) => write!(f, "last:{k}"),
            Protocol::Sliding(stride) => write!(f, "sliding:{stride}"),
        }
    }
}

impl From<Protocol> for String {
    fn from(protocol: Protocol) -> String {
        protocol.to_string()
    }
}

impl TryFrom<String> for Protocol {
    type Error = Error;

    fn try_from(text: String) -> Result<Protocol> {
        text.parse()
    }
}

impl FromStr for Protocol {
    type Err = Error;

    fn from_str(text: &str) -> Result<Protocol> {
        let number = |text: &str| text.parse::<usize>().ok().filter(|number| *number > 0);
        let parsed = match text.split_once(':') {
            None if text == "segments" => Some(Protocol::Segments),
            None if text == "blocks" => Some(Protocol::Blocks),
            Some(("last", count)) => number(count).map(Protocol::Last),
            Some(("sliding", stride)) => number(stride).map(Protocol::Sliding),
            _ => None,
        };
        let hint = "use segments, blocks, last:COUNT or sliding:STRIDE, e.g. last:256";
        parsed.ok_or_else(|| Error::refused(format!("there is no evaluation protocol `{text}`"), hint))
    }
}

/// A stretch of text to run the model on: inputs `start..start + len`, each scored on the token after it, from
/// `score_from` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// First input token.
    pub start: usize,
    /// Input tokens.
    pub len: usize,
    /// First scored position within the window.
    pub score_from: usize,
}

/// What is evaluated.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Input lengths, in tokens.
    pub lengths: Vec<usize>,
    /// Which tokens are scored.
    pub protocol: Protocol,
    /// Segments, or as many scored tokens as this many segments of the shortest length hold.
    pub segments: usize,
    /// Selects the text; the same seed gives every method the same text.
    pub seed: u64,
    /// Whether the loss at every position is kept.
    pub positions: bool,
}

impl Request {
    /// The windows of one of the lengths in a split of `tokens` tokens.
    ///
    /// # Errors
    /// A split too short for the length, with both numbers.
    pub fn windows(&self, length: usize, tokens: usize) -> Result<Vec<Window>> {
        let longest = self.lengths.iter().copied().max().unwrap_or(length);
        let shortest = self.lengths.iter().copied().min().unwrap_or(length);
        let need = match self.protocol {
            Protocol::Last(_) => longest + 1,
            _ => length + 1,
        };
        if tokens < need {
            return Err(Error::refused(
                format!("the split has {tokens} tokens, a length of {} needs at least {need}", need - 1),
                "prepare more text, evaluate on another split, or ask for shorter lengths",
            ));
        }
        match self.protocol {
            Protocol::Segments => {
                let starts = kerple_data::random_segments(tokens, length, self.segments, self.seed);
                Ok(starts.into_iter().map(|start| Window { start, len: length, score_from: 0 }).collect())
            }
            Protocol::Blocks => {
                let text = (self.segments * shortest).max(length);
                let starts = (0..).map(|block| block * length);
                let fits = |start: &usize| start + length <= text && start + length < tokens;
                Ok(starts.take_while(fits).map(|start| Window { start, len: length, score_from: 0 }).collect())
            }
            Protocol::Last(count) => {
                if count > length {
                    return Err(Error::refused(
                        format!("last:{count} scores more tokens than a length of {length} has"),
                        "lower the count, or drop the shorter lengths",
                    ));
                }
                let starts = kerple_data::random_segments(tokens, longest, self.segments, self.seed);
                let window = |start: usize| Window { start: start + longest - length, len: length, score_from: length - count };
                Ok(starts.into_iter().map(window).collect())
            }
            Protocol::Sliding(stride) => {
                if stride > length {
                    return Err(Error::refused(
                        format!("sliding:{stride} would skip tokens at a length of {length}"),
                        "choose a stride of at most the shortest length",
                    ));
                }
                let text = (self.segments * shortest).max(longest).min(tokens - 1);
                let first = Window { start: 0, len: length, score_from: 0 };
                let rest = (1..).map(|n| Window { start: n * stride, len: length, score_from: length - stride });
                Ok(std::iter::once(first).chain(rest).take_while(|window| window.start + window.len <= text).collect())
            }
        }
    }
}

/// Losses of a set of windows of equal length.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Losses {
    /// Sum of the losses at each position over windows, nats.
    pub position_sum: Vec<f64>,
    /// Windows in which each position is scored.
    pub position_count: Vec<u64>,
    /// Mean loss of each window over its scored tokens.
    pub window_mean: Vec<f64>,
}

impl Losses {
    /// Mean over all scored tokens, nats.
    pub fn mean(&self) -> f64 {
        self.position_sum.iter().sum::<f64>() / self.tokens() as f64
    }

    /// Scored tokens.
    pub fn tokens(&self) -> u64 {
        self.position_count.iter().sum()
    }
}

/// Text to evaluate on.
pub trait Text {
    /// Tokens of the split.
    fn len(&self) -> usize;
    /// Whether there is no token at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Token ids of a range.
    fn read(&self, range: std::ops::Range<usize>) -> Vec<u32>;
    /// Bytes of text that the tokens of a range stand for.
    fn bytes(&self, range: std::ops::Range<usize>) -> Option<u64>;
}

/// Tokens worked on at once when windows are short; one window at least.
const TOKENS_AT_ONCE: usize = 8192;

/// Runs `model` on windows of equal length; `tell` is called with the number of windows done.
pub fn losses(model: &Decoder, text: &dyn Text, windows: &[Window], tell: &mut dyn FnMut(usize)) -> Losses {
    let Some(first) = windows.first() else { return Losses::default() };
    let len = first.len;
    let mut losses = Losses { position_sum: vec![0.0; len], position_count: vec![0; len], window_mean: Vec::new() };
    let mut done = 0;
    for group in windows.chunks((TOKENS_AT_ONCE / len).max(1)) {
        let (mut ids, mut targets) = (Vec::new(), Vec::new());
        for window in group {
            let tokens = text.read(window.start..window.start + len + 1);
            ids.extend(&tokens[..len]);
            targets.extend(&tokens[1..]);
        }
        let nll = model.nll(Tokens { ids: &ids, batch: group.len(), len }, &targets).into_data();
        let nll: Vec<f64> = nll.iter::<f64>().collect();
        for (window, row) in group.iter().zip(nll.chunks_exact(len)) {
            for (position, loss) in row.iter().enumerate().skip(window.score_from) {
                losses.position_sum[position] += loss;
                losses.position_count[position] += 1;
            }
            let scored = &row[window.score_from..];
            losses.window_mean.push(scored.iter().sum::<f64>() / scored.len() as f64);
        }
        done += group.len();
        tell(done);
    }
    losses
}

/// Who is evaluated, for the row.
#[derive(Clone, Debug)]
pub struct Subject<'a> {
    /// The plan's label, or that of a changed encoding.
    pub label: &'a str,
    /// The run's seed.
    pub seed: u64,
    /// Tokens a training sequence.
    pub train_len: usize,
    /// Updates the model has seen.
    pub step: u64,
    /// Attention window, if any.
    pub window: Option<usize>,
    /// Name of the split.
    pub split: &'a str,
}

/// Evaluates one length and returns its row.
///
/// # Errors
/// A length the encoding or the text cannot serve.
pub fn evaluate(
    model: &Decoder,
    subject: &Subject,
    text: &dyn Text,
    request: &Request,
    length: usize,
    tell: &mut dyn FnMut(usize, usize),
) -> Result<EvaluationRow> {
    model.check_len(length)?;
    let windows = request.windows(length, text.len())?;
    let clock = Instant::now();
    let losses = losses(model, text, &windows, &mut |done| tell(done, windows.len()));
    let seconds = clock.elapsed().as_secs_f64();
    let scored = |window: &Window| text.bytes(window.start + window.score_from + 1..window.start + window.len + 1);
    let bytes: Option<u64> = windows.iter().map(scored).sum();
    let (nll, tokens) = (losses.mean(), losses.tokens());
    let mean = |(sum, count): (&f64, &u64)| sum / *count as f64;
    Ok(EvaluationRow {
        encoding: subject.label.to_owned(),
        seed: subject.seed,
        train_len: subject.train_len as u64,
        length: length as u64,
        protocol: request.protocol.to_string(),
        window: subject.window.map(|window| window as u64),
        split: subject.split.to_owned(),
        step: subject.step,
        segments: windows.len() as u64,
        tokens,
        bytes,
        nll,
        perplexity: nll.exp(),
        bits_per_byte: bytes.map(|bytes| nll * tokens as f64 / (bytes as f64 * std::f64::consts::LN_2)),
        seconds,
        position_nll: request
            .positions
            .then(|| losses.position_sum.iter().zip(&losses.position_count).map(mean).collect()),
        segment_nll: Some(losses.window_mean),
    })
}
