//! Evaluation on a text: the losses of windows by a decoder.

use super::documents::{self, OwnContextSums, TextDocuments};
use super::{EvalData, EvalRequest, EvalResult, EvaluationKey, KeyRule, Protocol, ScoredSegments, TextWindow, rolling};
use crate::architecture::Model;
use crate::error::{Error, Result};
use crate::memory_estimate::TOKENS_AT_ONCE;
use crate::model::{Decoder, TokenBatch};
use crate::objective::packed;
use crate::plan::Plan;
use crate::ranks::Ranks;
use crate::run::SpecialTokens;
use crate::sequences::EvalText;
use kerple_burn::forward_context::ForwardContext;
use kerple_core::encoding::Encoding;
use kerple_run::{DocumentMask, EvaluationRow, Rolled, Within};
use std::ops::Range;

/// Losses of a set of windows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WindowLosses {
    /// Sum of the losses at each position over windows, nats.
    pub position_sum: Vec<f64>,
    /// Windows in which each position is scored.
    pub position_count: Vec<u64>,
    /// Mean loss of each window over its scored tokens.
    pub window_mean: Vec<f64>,
    /// Losses by own context.
    own_context: OwnContextSums,
}

impl WindowLosses {
    /// Mean over all scored tokens, nats.
    pub fn mean(&self) -> f64 {
        self.position_sum.iter().sum::<f64>() / self.tokens() as f64
    }

    /// Scored tokens.
    pub fn tokens(&self) -> u64 {
        self.position_count.iter().sum()
    }

    /// Adds the model's results for one window: the loss at each of its positions.
    fn add(&mut self, window: &TextWindow, nll: &[f64], documents: &TextDocuments) {
        let (mut sum, mut count) = (0.0, 0);
        for (position, own) in documents.targets(window) {
            let loss = nll[position];
            self.position_sum[position] += loss;
            self.position_count[position] += 1;
            self.own_context.add(own, loss);
            (sum, count) = (sum + loss, count + 1);
        }
        self.window_mean.push(sum / f64::from(count));
    }
}

/// Runs `model` on windows, which are the rows of `pass`; `tell` is called with the number of
/// finished windows and returns whether to continue. `None` when it stops. Ranks take groups of
/// windows in turns, and every rank receives all losses.
///
/// # Errors
/// Text that can no longer be read.
pub fn losses(
    model: &Decoder,
    text: &dyn EvalText,
    (windows, documents): (&[TextWindow], &TextDocuments),
    (pass, ranks): (ForwardContext, &Ranks),
    tell: &mut dyn FnMut(usize) -> bool,
) -> Result<Option<WindowLosses>> {
    let longest = windows.iter().map(|window| window.len).max().unwrap_or(0);
    let (position_sum, position_count) = (vec![0.0; longest], vec![0; longest]);
    let (window_mean, own_context) = (Vec::with_capacity(windows.len()), OwnContextSums::default());
    let mut losses = WindowLosses { position_sum, position_count, window_mean, own_context };
    let mut each = |window: &TextWindow, nll: &[f64]| losses.add(window, nll, documents);
    let finished = each_window(model, text, (windows, documents), (pass, ranks), &mut each, tell)?;
    Ok(finished.then_some(losses))
}

/// Runs `model` on windows as [`losses`] does, and hands over each with the loss at each of its positions, in their order;
/// `false` when `tell` stops it.
pub(super) fn each_window(
    model: &Decoder,
    text: &dyn EvalText,
    (windows, documents): (&[TextWindow], &TextDocuments),
    (pass, ranks): (ForwardContext, &Ranks),
    each: &mut dyn FnMut(&TextWindow, &[f64]),
    tell: &mut dyn FnMut(usize) -> bool,
) -> Result<bool> {
    // draws for all positions are those of the longest document, however windows are grouped
    let pass = if documents.mask().is_joined() { pass } else { pass.over(documents.longest(windows)) };
    let (mut groups, mut row, mut done) = (Vec::new(), 0, 0);
    for equal in windows.chunk_by(|a, b| a.len == b.len) {
        for group in equal.chunks((TOKENS_AT_ONCE / equal[0].len).max(1)) {
            groups.push((row, group));
            row += group.len();
        }
    }
    for round in groups.chunks(ranks.world_size()) {
        let own = round.get(ranks.rank()).map(|(row, group)| nll(model, text, (group, documents), &pass.at_row(*row)));
        let found = ranks.share_values(own.transpose().map(Option::unwrap_or_default))?;
        for ((_, group), nll) in round.iter().zip(found) {
            group.iter().zip(nll.chunks_exact(group[0].len)).for_each(|(window, row)| each(window, row));
            done += group.len();
        }
        // what is done to the end is kept
        let goes_on = tell(done) || done == windows.len();
        if ranks.gather(&goes_on).contains(&false) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Losses of all positions of windows of one length, window by window.
fn nll(
    model: &Decoder,
    text: &dyn EvalText,
    (group, documents): (&[TextWindow], &TextDocuments),
    pass: &ForwardContext,
) -> Result<Vec<f64>> {
    let len = group[0].len;
    let (mut ids, mut targets) = (Vec::new(), Vec::new());
    for window in group {
        let fronted = usize::from(window.prefix.is_some());
        let mut tokens: Vec<u32> = window.prefix.into_iter().collect();
        tokens.extend(text.read(window.start..window.start + len + 1 - fronted)?);
        ids.extend(&tokens[..len]);
        targets.extend(&tokens[1..]);
    }
    let starts = |window: &TextWindow| documents.starts_in(window);
    let packed = (!documents.mask().is_joined()).then(|| packed(&group.iter().map(starts).collect::<Vec<_>>(), len));
    let tokens = TokenBatch { ids: &ids, batch: group.len(), len, documents: packed.as_ref() };
    Ok(model.token_losses(tokens, &targets, pass))
}

/// Lengths and numbers of segments of the rows over this text, for [`EvalRequest::segments`].
pub fn earlier_segments(rows: &[EvaluationRow], text: &dyn EvalText, protocol: Protocol) -> Vec<(u64, u64)> {
    let (checksum, protocol) = (text.checksum(), protocol.to_string());
    let of = |row: &EvaluationRow| {
        let same = (&row.text.checksum, row.split.as_str(), &row.protocol) == (&checksum, text.split(), &protocol);
        let same = same && row.text.within.is_split();
        same.then_some((row.text.segment_len, row.text.n_segments))
    };
    rows.iter().filter_map(of).collect()
}

/// A text, fixed for all lengths.
pub struct TextEval<T> {
    pub(super) text: T,
    checksum: String,
    pub(super) request: EvalRequest,
    pub(super) segments: ScoredSegments,
    special: SpecialTokens,
    pub(super) documents: TextDocuments,
    /// Plans and steps of the runs that choose key tokens.
    evaluators: Vec<(String, u64)>,
}

impl<T: EvalText> TextEval<T> {
    /// The text that a request asks for, for a run with these special tokens: the same as in earlier rows with its seed, where
    /// that suits.
    ///
    /// # Errors
    /// A request that the text cannot serve.
    pub fn new(
        (plan, special): (&Plan, &SpecialTokens),
        text: T,
        request: EvalRequest,
        known: &[EvaluationRow],
    ) -> Result<TextEval<T>> {
        let of_seed = |row: &&EvaluationRow| row.text.seed == request.seed;
        let earlier: Vec<EvaluationRow> = known.iter().filter(of_seed).cloned().collect();
        let earlier = earlier_segments(&earlier, &text, request.protocol);
        let segments = match request.protocol {
            Protocol::Rolling(_) if request.within.is_split() => rolling::segments(&request, &text)?,
            _ => request.place(plan.train_len, &text, &earlier)?,
        };
        let mask = documents::resolve(request.documents, request.protocol, plan.data.documents)?;
        if !mask.is_joined() {
            plan.check_separate_documents()?;
        }
        let documents = TextDocuments::of(&text, mask);
        let (special, evaluators) = (special.clone(), Vec::new());
        Ok(TextEval { checksum: text.checksum(), text, request, segments, special, documents, evaluators })
    }

    /// The same with the plans and steps of runs that choose key tokens, which identify its rows; [`KeyTokenEval`](super::KeyTokenEval)
    /// scores it.
    #[must_use]
    pub fn chosen_by(self, evaluators: Vec<(String, u64)>) -> TextEval<T> {
        TextEval { evaluators, ..self }
    }

    /// The token before each document, as rows record it, where the protocol takes documents.
    fn start(&self) -> Option<String> {
        let known = self.text.tokenizer().filter(|_| matches!(self.request.protocol, Protocol::Rolling(_)));
        known.map(|known| self.special.start_name(known))
    }

    /// The documents that are scored, where the protocol takes those.
    fn whole_documents(&self) -> Result<Vec<Range<usize>>> {
        match self.request.protocol {
            Protocol::Rolling(_) => rolling::documents(&self.text, self.segments.n_segments()),
            _ => Ok(Vec::new()),
        }
    }
}

impl<T: EvalText> TextEval<T> {
    /// Bytes of text that the scored targets of a window stand for, where that is known.
    fn scored_bytes(&self, window: &TextWindow) -> Option<u64> {
        let targets = window.start + window.score_from + 1..window.start + window.len + 1;
        if self.documents.mask().is_joined() {
            return self.text.bytes(targets);
        }
        let positions: Vec<usize> = self.documents.targets(window).map(|(position, _)| position).collect();
        let runs = positions.chunk_by(|a, b| a + 1 == *b);
        runs.map(|run| self.text.bytes(window.start + run[0] + 1..window.start + run[run.len() - 1] + 2)).sum()
    }
}

/// The model of a text.
pub(super) fn decoder(model: &dyn Model) -> &Decoder {
    model.decoder().expect("texts are predicted by decoders: plans of texts have no others")
}

impl<T: EvalText> EvalData for TextEval<T> {
    fn lengths(&self) -> &[usize] {
        &self.request.lengths
    }

    fn documents(&self) -> DocumentMask {
        self.documents.mask()
    }

    fn positions(&self) -> bool {
        self.request.per_position
    }

    fn key(&self, encoding: &Encoding, length: usize, step: u64) -> EvaluationKey {
        let (text, protocol) = (self.segments.scored(&self.checksum), self.request.protocol.to_string());
        let start = self.start().filter(|start| start != kerple_run::END_OF_DOCUMENT);
        let how = (protocol, start, self.documents.mask());
        let key = EvaluationKey::new((text, self.text.split()), how, encoding, length, step);
        EvaluationKey { evaluators: self.evaluators.clone(), ..key }
    }

    fn check(&self, _plan: &Plan, model: &dyn Model) -> Result<()> {
        let longest = |length: usize| match self.documents.mask() {
            DocumentMask::Joined => length,
            DocumentMask::Separate => self.documents.longest(&self.segments.windows(length, self.text.len())),
        };
        self.request.lengths.iter().try_for_each(|length| decoder(model).check_len(longest(*length)))
    }

    fn tokens(&self, _plan: &Plan, length: usize) -> usize {
        length
    }

    fn score(
        &self,
        (plan, ranks): (&Plan, &Ranks),
        model: &dyn Model,
        length: usize,
        tell: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<Option<EvalResult>> {
        KeyRule::check_absent(self.request.protocol)?;
        let documents = self.whole_documents()?;
        let windows = match self.text.tokenizer() {
            Some(known) if !documents.is_empty() => rolling::windows(&documents, length, self.special.start(known)),
            _ => self.segments.windows(length, self.text.len()),
        };
        let pass = ForwardContext::evaluation(plan.seed);
        let mut tell = |done| tell(done, windows.len());
        let of_windows = (&windows[..], &self.documents);
        let losses = losses(decoder(model), &self.text, of_windows, (pass, ranks), &mut tell)?;
        let Some(losses) = losses else { return Ok(None) };
        if losses.tokens() == 0 {
            let message = format!("no token is scored at a length of {length}: each of them begins a document");
            return Err(Error::refused(message, "evaluate with --documents joined, or more --n-segments"));
        }
        let mean = |(sum, count): (&f64, &u64)| sum / *count as f64;
        let (nll, tokens) = (losses.mean(), losses.tokens());
        let (bytes, rolling) = if documents.is_empty() {
            (windows.iter().map(|window| self.scored_bytes(window)).sum(), None)
        } else {
            let (bytes, rolled) = rolling::rolled(&self.text, &documents, nll * tokens as f64)?;
            (Some(bytes), Some(Rolled { start: self.start(), ..rolled }))
        };
        Ok(Some(EvalResult {
            nll,
            tokens,
            windows: Some(windows.len() as u64),
            bytes,
            nll_by_position: (self.request.per_position)
                .then(|| losses.position_sum.iter().zip(&losses.position_count).map(mean).collect()),
            nll_by_own_context: self.documents.are_several().then(|| losses.own_context.means()),
            nll_by_segment: Some(losses.window_mean),
            key_tokens: None,
            task: None,
            rolling,
        }))
    }

    fn words(&self) -> Vec<String> {
        let (protocol, segments, split) = (self.request.protocol, &self.segments, self.text.split());
        let within = match self.request.within {
            Within::Split => "",
            Within::Document => ", where scored tokens have as many tokens of their own document before them",
        };
        let text = match protocol {
            Protocol::Rolling(_) => format!(
                "text: {} documents of the {split} split, each after {}",
                segments.n_segments(),
                self.start().unwrap_or_default()
            ),
            _ => format!(
                "text: {} segments of {} tokens of the {split} split{within}",
                segments.n_segments(),
                segments.segment_len()
            ),
        };
        let separate = "documents: separate; tokens attend to their own document, whose first token is not scored";
        let documents = (!self.documents.mask().is_joined()).then(|| separate.to_owned());
        [format!("{protocol}: {}", protocol.meaning()), text].into_iter().chain(documents).collect()
    }
}
