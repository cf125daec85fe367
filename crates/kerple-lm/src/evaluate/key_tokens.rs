//! Perplexity of the tokens that need far context: LongPPL (Fang et al. 2024, arXiv:2410.23771).
//!
//! Evaluator runs choose them, from the losses `f_i` with all context of a segment and `s_i` with a short one:
//!
//! ```text
//! token i is key    s_i - f_i > alpha   and   f_i < -beta
//! s_i               windows from start = 0, w, 2w, .. score tokens start+K .. start+K+w: K to K+w-1 tokens of context
//! at a length L     exp(mean loss of the evaluated model over key tokens), in windows of L tokens moved by w
//! ```
//!
//! The first K tokens of a segment are never key. The keys are the same at every length, so perplexity falls with the length
//! exactly where far context helps. Losses of several evaluators are averaged.

use super::text::{decoder, each_window};
use super::{EvalData, EvalRequest, EvalResult, EvaluationKey, Protocol, TextEval, TextWindow};
use crate::architecture::Model;
use crate::error::{Error, Result};
use crate::model::Decoder;
use crate::plan::Plan;
use crate::ranks::Ranks;
use crate::run::{SpecialTokens, TrainedModel};
use crate::runtime::Runtime;
use crate::sequences::EvalText;
use kerple_burn::forward_context::ForwardContext;
use kerple_core::encoding::Encoding;
use kerple_run::{DocumentMask, EvaluationRow, KeyEvaluator, KeyTokens, SegmentKeys};
use std::cell::OnceCell;
use std::fmt;
use std::str::FromStr;

/// Which tokens are key: `ALPHA:BETA:CONTEXT:STRIDE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRule {
    /// Nats that far context must gain, in thousandths.
    alpha: i32,
    /// Minus the loss in nats that a key token must stay below with all context, in thousandths.
    beta: i32,
    pub(super) context: usize,
    /// Tokens by which windows move.
    pub(super) stride: usize,
}

/// Largest nats of a rule.
const MOST_NATS: f64 = 1000.0;

impl FromStr for KeyRule {
    type Err = Error;

    fn from_str(text: &str) -> Result<KeyRule> {
        let fail = |message: &str| {
            let hint = "write key:ALPHA:BETA:CONTEXT or key:ALPHA:BETA:CONTEXT:STRIDE, e.g. key:2:-2:4096";
            Error::refused(format!("`key:{text}`: {message}"), hint)
        };
        let parts: Vec<&str> = text.split(':').collect();
        let (&[alpha, beta, context], stride) = parts.split_at_checked(3).ok_or_else(|| fail("numbers are missing"))?
        else {
            return Err(fail("numbers are missing"));
        };
        let nats = |text: &str| -> Option<i32> {
            let thousandths = 1000.0 * text.parse::<f64>().ok().filter(|nats| nats.abs() <= MOST_NATS)?;
            ((thousandths - thousandths.round()).abs() < 1e-6).then_some(thousandths.round() as i32)
        };
        let tokens = |text: &str| text.parse::<usize>().ok().filter(|tokens| (1..=super::MOST_TOKENS).contains(tokens));
        let context = tokens(context).ok_or_else(|| fail("CONTEXT must be a number of tokens, at least 1"))?;
        let stride = match *stride {
            [] => Some((context / 4).max(1)),
            [stride] => tokens(stride).filter(|stride| *stride <= context),
            _ => return Err(fail("there are more than four numbers")),
        };
        let limits = "in nats with at most three decimals, at most 1000";
        Ok(KeyRule {
            alpha: nats(alpha)
                .filter(|alpha| *alpha >= 0)
                .ok_or_else(|| fail(&format!("ALPHA must be 0 or more, {limits}")))?,
            beta: nats(beta).ok_or_else(|| fail(&format!("BETA must be {limits}")))?,
            context,
            stride: stride.ok_or_else(|| fail(&format!("STRIDE must be from 1 to the context, {context}")))?,
        })
    }
}

impl fmt::Display for KeyRule {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let [alpha, beta] = self.nats();
        write!(f, "{alpha}:{beta}:{}:{}", self.context, self.stride)
    }
}

impl KeyRule {
    /// Tokens of the short context, at least as many as which lengths have.
    pub fn context(&self) -> usize {
        self.context
    }

    fn nats(&self) -> [f64; 2] {
        [self.alpha, self.beta].map(|thousandths| f64::from(thousandths) / 1000.0)
    }

    /// The windows of the short context over a text of `tokens`: first token, first scored token, and the end of both.
    pub fn windows(&self, tokens: usize) -> impl Iterator<Item = [usize; 3]> + use<> {
        let KeyRule { context, stride, .. } = *self;
        let starts = (0..tokens.saturating_sub(context)).step_by(stride);
        starts.map(move |start| [start, start + context, (start + context + stride).min(tokens)])
    }

    /// The key tokens by their losses with all context and with the short one, NaN where a token has none.
    pub fn keys(&self, full: &[f64], truncated: &[f64]) -> Vec<usize> {
        let [alpha, beta] = self.nats();
        let is_key = |(_, (full, truncated)): &(usize, (&f64, &f64))| *truncated - *full > alpha && **full < -beta;
        full.iter().zip(truncated).enumerate().filter(is_key).map(|(at, _)| at).collect()
    }

    /// Refuses segments that have no candidates, and runs that cannot choose key tokens for a run of `plan`.
    ///
    /// # Errors
    /// Segments of at most [`KeyRule::context`] tokens; evaluators that are not independent of the run, or of another tokenizer or
    /// text, by their names.
    pub fn check(self, plan: &Plan, segment_len: usize, evaluators: &[&Plan]) -> Result<()> {
        if segment_len <= self.context {
            let message =
                format!("segments of {segment_len} tokens have no token with more context than {}", self.context);
            return Err(Error::refused(message, "raise --segment-len, or lower the context of --protocol"));
        }
        if evaluators.is_empty() {
            KeyRule::check_absent(Protocol::Key(self))?;
        }
        let mut numbered = evaluators.iter().enumerate();
        numbered.try_for_each(|(at, evaluator)| check_evaluator(plan, evaluator, &evaluators[..at]))
    }

    /// Refuses the protocol where no run chooses keys.
    ///
    /// # Errors
    /// [`Protocol::Key`].
    pub fn check_absent(protocol: Protocol) -> Result<()> {
        if !matches!(protocol, Protocol::Key(_)) {
            return Ok(());
        }
        let message = format!("{protocol} needs a run that chooses the key tokens");
        Err(Error::refused(message, "evaluate trained runs with `kerple eval RUN --protocol key:... --evaluator RUN`"))
    }
}

/// A run that chooses key tokens.
pub type Evaluator = TrainedModel<Box<dyn Model>>;

/// Key tokens of a text, fixed for all lengths.
pub struct KeyTokenEval<T> {
    text: TextEval<T>,
    rule: KeyRule,
    evaluators: Vec<Evaluator>,
    chosen: OnceCell<ChosenKeys>,
}

/// Key tokens of every segment, by their places in it.
struct ChosenKeys {
    keys: Vec<Vec<usize>>,
    candidates: u64,
    evaluators: Vec<KeyEvaluator>,
}

impl<T: EvalText> KeyTokenEval<T> {
    /// The text that a request with a [`Protocol::Key`] asks for, and the runs that choose its key tokens.
    ///
    /// # Errors
    /// As [`TextEval::new`]; evaluators that are not independent of the run, or of another tokenizer or text, by their names.
    pub fn new(
        (plan, special): (&Plan, &SpecialTokens),
        (text, known): (T, &[EvaluationRow]),
        (rule, request): (KeyRule, EvalRequest),
        (evaluators, runtime): (Vec<Evaluator>, &Runtime),
    ) -> Result<KeyTokenEval<T>> {
        let text = TextEval::new((plan, special), text, request, known)?;
        if text.request.per_position {
            let message = format!("key:{rule} scores few tokens, whose positions are not comparable");
            return Err(Error::refused(message, "omit --per-position, or use --protocol segments"));
        }
        let segment_len = text.segments.segment_len();
        let plans: Vec<&Plan> = evaluators.iter().map(|evaluator| &evaluator.plan).collect();
        rule.check(plan, segment_len, &plans)?;
        for evaluator in &evaluators {
            decoder(&*evaluator.model).check_len(segment_len)?;
            evaluator.plan.check_evaluation_memory(segment_len, runtime.limit().as_ref())?;
            if !text.documents.mask().is_joined() {
                evaluator.plan.check_separate_documents()?;
            }
        }
        let text = text.chosen_by(evaluators.iter().map(|run| (run.plan.hash.clone(), run.state.step)).collect());
        Ok(KeyTokenEval { text, rule, evaluators, chosen: OnceCell::new() })
    }

    /// How many tokens are key, which the evaluators choose once; `None` when `tell` stops it.
    ///
    /// # Errors
    /// Text that can no longer be read.
    pub fn key_tokens(&self, ranks: &Ranks, tell: &mut dyn FnMut(usize, usize) -> bool) -> Result<Option<usize>> {
        Ok(self.chosen(ranks, tell)?.map(|chosen| chosen.keys.iter().map(Vec::len).sum()))
    }

    fn chosen(&self, ranks: &Ranks, tell: &mut dyn FnMut(usize, usize) -> bool) -> Result<Option<&ChosenKeys>> {
        if self.chosen.get().is_none() {
            let Some(chosen) = self.choose(ranks, tell)? else { return Ok(None) };
            self.chosen.get_or_init(|| chosen);
        }
        Ok(self.chosen.get())
    }

    /// The loss of every token of every segment by its place in it, NaN where the numbered windows do not score it; `None` when
    /// `tell` stops it.
    fn token_losses(
        &self,
        (model, seed): (&Decoder, u64),
        windows: &[(usize, TextWindow)],
        ranks: &Ranks,
        tell: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<Option<Vec<Vec<f64>>>> {
        let TextEval { text, segments, documents, .. } = &self.text;
        let starts = segments.starts(text.len());
        let mut losses = vec![vec![f64::NAN; segments.segment_len() + 1]; starts.len()];
        let plain: Vec<TextWindow> = windows.iter().map(|(_, window)| *window).collect();
        let mut numbers = windows.iter().map(|(segment, _)| *segment);
        let mut each = |window: &TextWindow, nll: &[f64]| {
            let segment = numbers.next().expect("a window is one of a segment");
            for (position, _) in documents.targets(window) {
                losses[segment][window.start + position + 1 - starts[segment]] = nll[position];
            }
        };
        let pass = ForwardContext::evaluation(seed);
        let mut tell = |done| tell(done, windows.len());
        let finished = each_window(model, text, (&plain, documents), (pass, ranks), &mut each, &mut tell)?;
        Ok(finished.then_some(losses))
    }

    /// The key tokens by the mean losses of the evaluators.
    fn choose(&self, ranks: &Ranks, tell: &mut dyn FnMut(usize, usize) -> bool) -> Result<Option<ChosenKeys>> {
        let TextEval { text, segments, .. } = &self.text;
        let (span, context) = (segments.segment_len(), self.rule.context);
        let starts = || segments.starts(text.len()).into_iter().enumerate();
        // the loss of a token is at the position before it
        let full: Vec<_> = starts().map(|(at, start)| (at, TextWindow::new(start, span, context - 1))).collect();
        let short = |[from, _, end]: [usize; 3], start| TextWindow::new(start + from, end - 1 - from, context - 1);
        let of_segment = |(at, start)| self.rule.windows(span + 1).map(move |window| (at, short(window, start)));
        let mut truncated: Vec<_> = starts().flat_map(of_segment).collect();
        // windows of one length are worked on together
        truncated.sort_by_key(|(_, window)| std::cmp::Reverse(window.len));
        let mut sums = [&full, &truncated].map(|_| vec![vec![0.0; span + 1]; full.len()]);
        let (mut evaluators, mut candidates) = (Vec::new(), 0);
        for TrainedModel { plan, state, model, .. } in &self.evaluators {
            let mut means = [f64::NAN; 2];
            for (which, windows) in [&full, &truncated].into_iter().enumerate() {
                let of = (decoder(&**model), plan.seed);
                let Some(losses) = self.token_losses(of, windows, ranks, tell)? else { return Ok(None) };
                let scored = || losses.iter().flatten().filter(|loss| !loss.is_nan());
                candidates = scored().count() as u64;
                means[which] = scored().sum::<f64>() / candidates as f64;
                let pairs = sums[which].iter_mut().flatten().zip(losses.into_iter().flatten());
                pairs.for_each(|(sum, loss)| *sum += loss / self.evaluators.len() as f64);
            }
            let (plan_hash, label) = (plan.hash.clone(), plan.label.clone());
            let [full_nll, truncated_nll] = means;
            evaluators.push(KeyEvaluator {
                plan: plan_hash,
                step: state.step,
                label,
                seed: plan.seed,
                full_nll,
                truncated_nll,
            });
        }
        let keys: Vec<Vec<usize>> = sums[0].iter().zip(&sums[1]).map(|(f, s)| self.rule.keys(f, s)).collect();
        Ok(Some(ChosenKeys { keys, candidates, evaluators }))
    }
}

/// Refuses a run that cannot choose key tokens for a run of `plan`.
fn check_evaluator(plan: &Plan, own: &Plan, before: &[&Plan]) -> Result<()> {
    let (name, info, others) = (format!("evaluator {}, seed {}", own.label, own.seed), &own.data_info, &plan.data_info);
    let short = |text: &str| text.chars().take(12).collect::<String>();
    let data = "use an evaluator that was trained on the data of the run";
    let differences = [("tokenizer", &info.tokenizer, &others.tokenizer), ("text", &info.content, &others.content)];
    if own.data.task.is_some() {
        return Err(Error::refused(format!("{name}: the run was trained on a task"), data));
    }
    if let Some((what, found, expected)) = differences.into_iter().find(|(_, found, expected)| found != expected) {
        let message = format!("{name}: its {what} is {}, that of the run {}", short(found), short(expected));
        return Err(Error::refused(message, data));
    }
    if before.iter().any(|other| other.hash == own.hash) {
        return Err(Error::refused(format!("{name}: the run was given twice"), "give each evaluator once"));
    }
    // its own key tokens are those that it happens to predict well
    if own.hash == plan.hash || (&own.encoding, own.seed) == (&plan.encoding, plan.seed) {
        let message = format!("{name}: the evaluated run has the same encoding and seed");
        return Err(Error::refused(message, "use an evaluator of another seed, or of another encoding"));
    }
    Ok(())
}

impl<T: EvalText> EvalData for KeyTokenEval<T> {
    fn lengths(&self) -> &[usize] {
        self.text.lengths()
    }

    fn documents(&self) -> DocumentMask {
        self.text.documents()
    }

    fn key(&self, encoding: &Encoding, length: usize, step: u64) -> EvaluationKey {
        self.text.key(encoding, length, step)
    }

    fn check(&self, plan: &Plan, model: &dyn Model) -> Result<()> {
        self.text.check(plan, model)
    }

    fn tokens(&self, plan: &Plan, length: usize) -> usize {
        self.text.tokens(plan, length)
    }

    fn score(
        &self,
        (plan, ranks): (&Plan, &Ranks),
        model: &dyn Model,
        length: usize,
        tell: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<Option<EvalResult>> {
        let Some(ChosenKeys { keys, candidates, evaluators }) = self.chosen(ranks, tell)? else { return Ok(None) };
        if keys.iter().all(Vec::is_empty) {
            let message = format!("none of {candidates} tokens is a key token by the rule key:{}", self.rule);
            return Err(Error::refused(message, "lower ALPHA or BETA, or evaluate more text with --n-segments"));
        }
        let (text, segments) = (&self.text.text, &self.text.segments);
        let (starts, all) = (segments.starts(text.len()), segments.windows(length, text.len()));
        let each = all.len() / starts.len();
        let mut windows: Vec<_> = all.into_iter().enumerate().map(|(at, window)| (at / each, window)).collect();
        windows.retain(|(segment, window)| {
            let [from, end] = [window.score_from, window.len].map(|at| window.start + at + 1 - starts[*segment]);
            keys[*segment].iter().any(|key| (from..end).contains(key))
        });
        let of = (decoder(model), plan.seed);
        let Some(losses) = self.token_losses(of, &windows, ranks, tell)? else { return Ok(None) };
        let segment = |(losses, keys): (&Vec<f64>, &Vec<usize>)| match keys.len() as f64 {
            0.0 => SegmentKeys::default(),
            tokens => SegmentKeys {
                tokens: keys.len() as u64,
                nll: keys.iter().map(|key| losses[*key]).sum::<f64>() / tokens,
            },
        };
        let segments: Vec<SegmentKeys> = losses.iter().zip(keys).map(segment).collect();
        let (tokens, nll) = KeyTokens::pooled(&segments);
        let key_tokens = Some(KeyTokens { candidates: *candidates, evaluators: evaluators.clone(), segments });
        Ok(Some(EvalResult { nll, tokens, windows: Some(windows.len() as u64), key_tokens, ..EvalResult::default() }))
    }

    fn words(&self) -> Vec<String> {
        let names = self.evaluators.iter().map(|run| format!("{}, seed {}", run.plan.label, run.plan.seed));
        let evaluators = format!("evaluators: {}", names.collect::<Vec<_>>().join("; "));
        self.text.words().into_iter().chain([evaluators]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rule(text: &str) -> KeyRule {
        text.parse().unwrap()
    }

    #[test]
    fn rules_are_written_as_they_are_read() {
        for (text, written) in [
            ("2:-2:4096", "2:-2:4096:1024"),
            ("0.5:-1:32:8", "0.5:-1:32:8"),
            ("0:0.125:1", "0:0.125:1:1"),
            ("2.000:-2.50:3", "2:-2.5:3:1"),
        ] {
            assert_eq!(rule(text).to_string(), written);
            assert_eq!(rule(written), rule(text));
        }
        for (text, part) in [
            ("2:-2", "numbers are missing"),
            ("2:-2:8:2:1", "more than four"),
            ("-1:-2:8", "ALPHA must be 0 or more"),
            ("0.0005:-2:8", "ALPHA"),
            ("nan:-2:8", "ALPHA"),
            ("2:x:8", "BETA must be in nats"),
            ("2:-2000:8", "BETA"),
            ("2:-2:0", "CONTEXT"),
            ("2:-2:8:9", "STRIDE must be from 1 to the context, 8"),
            ("2:-2:8:0", "STRIDE"),
        ] {
            let error = text.parse::<KeyRule>().unwrap_err();
            assert!(error.to_string().contains(part), "{text}: {error}");
            assert!(error.hint().contains("key:ALPHA:BETA:CONTEXT"), "{text}");
        }
    }

    #[test]
    fn both_limits_are_strict() {
        let (nan, full, truncated) = (f64::NAN, [f64::NAN, 1.0, 1.0, 2.0, 1.999], [3.5, 3.0, 3.001, 9.0, 9.0]);
        assert_eq!(rule("2:-2:1").keys(&full, &truncated), [2, 4]);
        assert_eq!(rule("2:-2:1").keys(&[1.0, 1.0], &[nan, nan]), [] as [usize; 0]);
    }

    proptest! {
        /// Every token after the first `context` is scored once, with `context` to `context + stride - 1` before it.
        #[test]
        fn the_short_context_is_as_long_as_promised(tokens in 0usize..200, context in 1usize..20, stride in 1usize..20) {
            let stride = stride.min(context);
            let rule = rule(&format!("2:-2:{context}:{stride}"));
            let mut next = context;
            for [start, from, end] in rule.windows(tokens) {
                prop_assert_eq!(from, next);
                prop_assert!(from - start == context && (1..=stride).contains(&(end - from)) && end <= tokens);
                next = end;
            }
            prop_assert_eq!(next.max(context), tokens.max(context));
        }
    }
}
