//! Evaluations of key tokens in an experiment file: which runs choose them, and which claims they can serve.

use super::{Experiment, PartConfig};
use crate::claim::{Claim, ClaimMeasure};
use kerple_lm::evaluate::Protocol;

impl Experiment {
    /// An evaluation of a part whose key tokens no run, or no independent run, chooses, and what to do about it.
    pub(super) fn unfit_keys(&self, part: &PartConfig) -> Option<(String, String)> {
        part.evaluate.iter().find_map(|name| {
            let (message, hint) = self.unfit_evaluators(part, name)?;
            Some((format!("evaluation `{name}`, evaluators: {message}"), hint.to_owned()))
        })
    }

    fn unfit_evaluators(&self, part: &PartConfig, name: &str) -> Option<(String, &'static str)> {
        let asked = &self.evaluations[name];
        let evaluators = &asked.evaluators;
        let Protocol::Key(rule) = asked.protocol else {
            let message = format!("{} scores all tokens of its windows", asked.protocol);
            return (!evaluators.is_empty())
                .then_some((message, "use the protocol key:ALPHA:BETA:CONTEXT, or omit `evaluators`"));
        };
        if evaluators.is_empty() {
            return Some((
                format!("key:{rule} needs runs that choose the key tokens"),
                "add evaluators = [{ encoding = LABEL, seed = SEED }]",
            ));
        }
        if asked.positions {
            return Some((
                format!("key:{rule} scores few tokens, whose positions are not comparable"),
                "omit `positions`",
            ));
        }
        if let Some(twice) =
            evaluators.iter().enumerate().find_map(|(at, run)| evaluators[..at].contains(run).then_some(run))
        {
            return Some((format!("{twice} is given twice"), "give each evaluator once"));
        }
        self.corpora_of(part).into_iter().find_map(|corpus| {
            if corpus.task.is_some() {
                return Some((
                    format!("runs of `{}` learn a task", corpus.name),
                    "give the part the `corpora` that are texts",
                ));
            }
            let lacking = evaluators.iter().find(|run| !self.has(&corpus.name, run));
            if let Some(run) = lacking {
                return Some((
                    format!("{run} on `{}` does not occur in a [[part]]", corpus.name),
                    "add a part with its encoding and `first_seed`",
                ));
            }
            // its own key tokens are those that it happens to predict well
            let own = evaluators.iter().find(|run| {
                let is_own = part.encodings.iter().any(|encoding| encoding.label() == run.encoding);
                is_own && part.seeds(self.seed).contains(&run.seed)
            });
            own.map(|run| {
                (
                    format!("{run} has the encoding and seed of an evaluated run"),
                    "use an evaluator of another seed, or of another encoding",
                )
            })
        })
    }

    /// Whether a part has this run on a corpus.
    fn has(&self, corpus: &str, run: &crate::manifest::NamedRun) -> bool {
        self.parts.iter().any(|part| {
            part.variant == run.variant
                && part.seeds(self.seed).contains(&run.seed)
                && part.encodings.iter().any(|encoding| encoding.label() == run.encoding)
                && self.corpora_of(part).iter().any(|of| of.name == corpus)
        })
    }

    /// What keeps a claim from comparing its arms on key tokens, or one without them from being about what it says.
    pub(super) fn lacks_keys(&self, claim: &Claim) -> Option<String> {
        let is_key = claim.measure == ClaimMeasure::Key;
        let asked: Vec<_> =
            claim.arms().filter_map(|(arm, name)| Some((arm, name, self.evaluations.get(name)?))).collect();
        let other = asked.iter().find(|(.., asked)| matches!(asked.protocol, Protocol::Key(_)) != is_key);
        if let Some((_, name, asked)) = other {
            let what = if is_key {
                "does not score key tokens"
            } else {
                "scores key tokens, which the measure `key` compares"
            };
            return Some(format!("evaluation `{name}`, {}, {what}", asked.protocol));
        }
        if !is_key {
            return None;
        }
        let keys = |at: usize| {
            let asked = asked[at].2;
            (asked.protocol, asked.span, asked.segments, &asked.evaluators)
        };
        if (1..asked.len()).any(|at| keys(at) != keys(0)) {
            return Some("its arms are evaluated on different key tokens".to_owned());
        }
        // where keys are chosen by the method or the batches of an arm, they are chosen where it does well
        let seeds: Vec<_> = self
            .parts
            .iter()
            .filter(|part| {
                let is_of = |arm: &crate::claim::Arm| {
                    part.variant == arm.variant
                        && part.encodings.iter().any(|encoding| encoding.label() == arm.encoding)
                };
                asked.iter().any(|(arm, name, _)| is_of(arm) && part.evaluate.iter().any(|own| own == name))
            })
            .map(|part| part.seeds(self.seed))
            .collect();
        asked.first()?.2.evaluators.iter().find_map(|run| {
            let what = match () {
                () if asked.iter().any(|(arm, ..)| arm.encoding == run.encoding) => "the encoding of an arm",
                () if seeds.iter().any(|seeds| seeds.contains(&run.seed)) => "a seed of its arms",
                () => return None,
            };
            Some(format!("the evaluator {run} has {what}: claims need evaluators of another encoding and another seed"))
        })
    }
}
