//! The one engine of claims: what a claim compares, at which lengths, on which runs, and the grids of
//! what was found. [`verdict`](super::verdict) has the rule that judges.
//!
//! Claims are data. Those of a paper are in its page's description, those of the project's own
//! experiments in the experiment file and so in the manifest; each carries its margin. Margins differ
//! with what they bound. A log-perplexity that grows by more than 0.05 is not flat where growth is
//! relative to a method that uses nothing beyond its training length, or over the same tokens. In
//! music the loss beyond the training length is compared with the loss within it, over other
//! positions, and there the margin is 0.1 nats.

mod reach;

use super::description::PageDescription;
use super::key_tokens;
use super::methods::ComparedMethod;
use super::page::PageItem;
use super::paper_claims::{ClaimSection, ClaimedAt, PaperClaim, PaperClaims, PaperMeasure};
use super::reader::ReproductionFolder;
use super::values::{SeedValues, TrainedOn, by_seed, change, differences};
use super::verdict::{AFTER_RUNS, ClaimFinding, DifferenceUnit, LengthDifferences, RULE, judge};
use crate::claim::{Arm, Claim, ClaimMeasure};
use crate::manifest::CorpusFacts;
use kerple_report::Run;
use kerple_report::format::count;
use kerple_report::page::{Grid, Row};
use kerple_run::StyleRow;

/// Where a value is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadAt {
    Length(u64),
    /// Of a sequence, from the first up to the second.
    #[cfg(feature = "music-lra")]
    Positions(usize, usize),
    /// Of a continuation.
    Quarter(usize),
}

/// Runs that claims of a measure are judged on, and their name in a grid.
pub(super) struct ClaimPlace<'a> {
    pub on: TrainedOn<'a>,
    pub title: String,
    /// Which of several measures of style counts here.
    #[cfg_attr(not(feature = "music-lra"), expect(dead_code, reason = "only music has measures of style"))]
    pub style: Option<StyleMeasure>,
}

/// A measure of style.
pub(super) type StyleMeasure = fn(&StyleRow) -> Option<f64>;

/// Differences of the treatment and the baseline at every point; of their changes where they begin somewhere.
fn compared<Point: Copy>(
    points: Vec<(String, Point)>,
    from: Option<Point>,
    arms: &[&dyn Fn(Point) -> SeedValues],
) -> Vec<LengthDifferences> {
    let at = |(name, point): (String, Point)| {
        let of = |read: &&dyn Fn(Point) -> SeedValues| match from {
            Some(from) => change(&read(point), &read(from)),
            None => read(point),
        };
        let differences = match arms {
            [treatment, baseline] => differences(&of(treatment), &of(baseline)),
            arms => arms.iter().flat_map(|read| of(read).into_values()).collect(),
        };
        LengthDifferences { name, differences, is_learned: true }
    };
    points.into_iter().map(at).collect()
}

impl PaperMeasure {
    /// Every set of runs that claims of this measure may be judged on.
    #[cfg_attr(not(feature = "music-lra"), expect(unused_variables, reason = "only measures of that feature ask"))]
    fn places<'a>(self, all: &'a ReproductionFolder, page: &PageDescription) -> Vec<ClaimPlace<'a>> {
        match self {
            PaperMeasure::Perplexity => {
                let place = |on: TrainedOn<'a>| ClaimPlace { on, title: on.title(), style: None };
                TrainedOn::every_text(all).into_iter().map(place).collect()
            }
            #[cfg(feature = "music-lra")]
            PaperMeasure::Spe(measure) => measure.places(all, page),
        }
    }

    /// Name of the evaluation or probe with its values; none for perplexities, which several have.
    fn needs(self) -> Option<&'static str> {
        match self {
            PaperMeasure::Perplexity => None,
            #[cfg(feature = "music-lra")]
            PaperMeasure::Spe(measure) => Some(measure.needs()),
        }
    }

    /// Whether values are right answers in percent.
    fn is_answers(self) -> bool {
        match self {
            PaperMeasure::Perplexity => false,
            #[cfg(feature = "music-lra")]
            PaperMeasure::Spe(measure) => measure == super::spe::SpeMeasure::Answers,
        }
    }
}

impl ClaimSection {
    fn is_planned(&self, place: &ClaimPlace, method: &ComparedMethod) -> bool {
        match self.measure.needs() {
            Some(needs) => place.on.needing(method, needs) > 0,
            None => !place.on.evaluated(method, &self.evaluations).is_empty(),
        }
    }

    /// The values of a method.
    fn read(&self, place: &ClaimPlace, method: &ComparedMethod, at: ReadAt) -> SeedValues {
        let on = place.on;
        match self.measure {
            PaperMeasure::Perplexity => match at {
                ReadAt::Length(length) => {
                    on.at_length(method, &on.evaluations(method, &self.evaluations), length, |row| row.nll)
                }
                _ => SeedValues::new(),
            },
            #[cfg(feature = "music-lra")]
            PaperMeasure::Spe(measure) => measure.read(place, method, at),
        }
    }

    /// The lengths, positions or quarters that a claim names, of those that a method has.
    fn points(&self, place: &ClaimPlace, method: &ComparedMethod, at: ClaimedAt) -> Option<Vec<ReadAt>> {
        let on = place.on;
        let lengths = match self.measure {
            PaperMeasure::Perplexity => TrainedOn::lengths(&on.evaluations(method, &self.evaluations)),
            #[cfg(feature = "music-lra")]
            PaperMeasure::Spe(super::spe::SpeMeasure::CrossEntropy) => return super::spe::positions(on, at),
            #[cfg(feature = "music-lra")]
            PaperMeasure::Spe(measure) => measure.lengths(on),
        };
        let longest = |most: u64| lengths.iter().copied().filter(move |length| *length <= most).max();
        let multiple = |multiple: u64| Some(multiple.saturating_mul(on.train_len()?));
        let chosen: Vec<u64> = match at {
            ClaimedAt::Every => lengths,
            ClaimedAt::Longest => longest(u64::MAX).into_iter().collect(),
            ClaimedAt::Multiple(times) => longest(multiple(times)?).into_iter().collect(),
            ClaimedAt::UpTo(times) => {
                multiple(times).map(|most| lengths.into_iter().filter(|l| *l <= most).collect())?
            }
            ClaimedAt::Beyond => multiple(1).map(|least| lengths.into_iter().filter(|l| *l > least).collect())?,
            ClaimedAt::Trained => vec![on.train_len()?],
            ClaimedAt::SameTokens => vec![same_tokens(on, method, &self.evaluations)?],
            ClaimedAt::Quarter(quarter) => return Some(vec![ReadAt::Quarter(quarter)]),
        };
        Some(chosen.into_iter().map(ReadAt::Length).collect())
    }

    /// What was found of a claim; `None` before its runs.
    fn find(&self, page: &PageDescription, place: &ClaimPlace, claim: &PaperClaim) -> Option<ClaimFinding> {
        let treatment = page.method(&claim.treatment);
        let baseline = claim.baseline.as_deref().map(|key| page.method(key));
        let from = match claim.from {
            // a multiple where a change begins is that length, whether the longest or not
            Some(ClaimedAt::Multiple(times)) => Some(ReadAt::Length(times.saturating_mul(place.on.train_len()?))),
            Some(from) => Some(*self.points(place, treatment, from)?.first()?),
            None => None,
        };
        let name = |at: &ReadAt| match (self.measure, *at, from) {
            (PaperMeasure::Perplexity, ReadAt::Length(length), Some(ReadAt::Length(from)))
                if claim.from == Some(ClaimedAt::SameTokens) =>
            {
                format!("from {from} to {length}")
            }
            (PaperMeasure::Perplexity, ReadAt::Length(length), _) => format!("at {length}"),
            _ => String::new(),
        };
        let points = self.points(place, treatment, claim.at)?;
        let points: Vec<(String, ReadAt)> = points.into_iter().map(|at| (name(&at), at)).collect();
        let methods: Vec<&ComparedMethod> = std::iter::once(treatment).chain(baseline).collect();
        let reads: Vec<_> = methods.iter().map(|method| move |at: ReadAt| self.read(place, method, at)).collect();
        let arms: Vec<&dyn Fn(ReadAt) -> SeedValues> = reads.iter().map(|read| read as _).collect();
        let runs: Vec<Vec<&Run>> = methods.iter().map(|method| place.on.runs(method)).collect();
        let lengths: Vec<ReadAt> = points.iter().map(|(_, at)| *at).collect();
        let mut by_length = compared(points, from, &arms);
        if self.measure.is_answers() {
            for (at, found) in lengths.into_iter().zip(&mut by_length) {
                let ReadAt::Length(length) = at else { continue };
                found.is_learned = arms.iter().zip(&runs).any(|(read, runs)| {
                    let shares: Vec<f64> = read(at).into_values().map(|percent| percent / 100.0).collect();
                    place.on.all.is_learned(place.on.corpus, runs, length, &shares)
                });
            }
        }
        let unit = match self.measure {
            PaperMeasure::Perplexity => DifferenceUnit::Times,
            #[cfg(feature = "music-lra")]
            PaperMeasure::Spe(_) => DifferenceUnit::Plain,
        };
        let found = judge(claim.bound, unit, &by_length)?;
        Some(found.with_mixed_programs(&runs[0], runs.last().expect("a claim has a treatment")))
    }

    /// Whether a claim is about a place: its runs are planned there.
    fn is_about(&self, page: &PageDescription, place: &ClaimPlace, claim: &PaperClaim) -> bool {
        let keys = std::iter::once(&claim.treatment).chain(&claim.baseline);
        (claim.corpora.is_empty() || claim.corpora.iter().any(|name| name == place.on.corpus))
            && [&self.variant, &claim.variant].into_iter().flatten().all(|variant| variant == place.on.variant)
            && keys.into_iter().all(|key| self.is_planned(place, page.method(key)))
    }
}

/// The least length at which the same tokens are scored as at the longest.
fn same_tokens(on: TrainedOn, method: &ComparedMethod, evaluations: &[String]) -> Option<u64> {
    let all = on.evaluations(method, evaluations);
    let longest = all.iter().max_by_key(|facts| facts.lengths.iter().max())?;
    let same = all.iter().filter(|facts| {
        (&facts.protocol, facts.span, facts.segments) == (&longest.protocol, longest.span, longest.segments)
    });
    same.flat_map(|facts| &facts.lengths).min().copied()
}

/// The claims of a paper, and whatever claims `more` adds.
pub(super) fn paper_claims(
    all: &ReproductionFolder,
    page: &PageDescription,
    item: &mut PageItem,
    more: impl FnOnce(&mut PageItem) -> Vec<ClaimFinding>,
) {
    item.text = format!("{RULE} {AFTER_RUNS} {}", item.text);
    let Some(claims) = &page.claims else { return };
    let mut findings = match &claims.place_head {
        Some(head) => by_place(all, page, item, claims, head),
        None => by_text(all, page, item, claims),
    };
    findings.extend(more(item));
    item.count(findings.iter());
}

/// What was found of a paper's claim of this text on the usual runs of a corpus.
#[cfg(test)]
pub(super) fn paper_finding(all: &ReproductionFolder, text: &str, corpus: &str) -> Option<ClaimFinding> {
    let page = PageDescription::of(&all.manifest.paper)?;
    let sections = page.claims.iter().flat_map(|claims| &claims.sections);
    let mut claims = sections.flat_map(|section| section.claims.iter().map(move |claim| (section, claim)));
    let (section, claim) = claims.find(|(_, claim)| claim.text.starts_with(text))?;
    let places = section.measure.places(all, &page);
    let place = places.iter().find(|place| (place.on.corpus, place.on.variant) == (corpus, ""))?;
    section.find(&page, place, claim)
}

/// A grid with a column per text.
fn by_text(
    all: &ReproductionFolder,
    page: &PageDescription,
    item: &mut PageItem,
    claims: &PaperClaims,
) -> Vec<ClaimFinding> {
    let Some(section) = claims.sections.first() else { return Vec::new() };
    let places = section.measure.places(all, page).into_iter();
    let is_usual = |place: &ClaimPlace| section.variant.as_ref().is_none_or(|variant| variant == place.on.variant);
    let places: Vec<ClaimPlace> = places.filter(is_usual).collect();
    let titles = places.iter().map(|place| place.on.corpus_title().to_owned()).collect();
    let rows = claims.sections.iter().flat_map(|section| section.claims.iter().map(move |claim| (section, claim)));
    let found = |(section, claim): (&ClaimSection, &PaperClaim)| {
        (claim.name(), places.iter().map(|place| section.find(page, place, claim)).collect())
    };
    claim_grid(item, claims.caption.clone(), titles, rows.map(found).collect())
}

/// Adds a grid of claims by columns, and returns what was found.
fn claim_grid(
    item: &mut PageItem,
    caption: String,
    titles: Vec<String>,
    claims: Vec<(String, Vec<Option<ClaimFinding>>)>,
) -> Vec<ClaimFinding> {
    let (mut rows, mut findings) = (Vec::new(), Vec::new());
    for (name, found) in claims {
        item.planned += 1;
        item.complete += usize::from(found.iter().any(Option::is_some));
        findings.extend(found.iter().flatten().cloned());
        rows.push(Row { name, colour: None, cells: found.into_iter().map(ClaimFinding::cell).collect() });
    }
    let head = std::iter::once("claim".to_owned()).chain(titles).collect();
    item.grids.push(Grid { caption, head, rows });
    findings
}

/// A grid with a row per claim and place. The name of a claim is not repeated in the row below.
fn by_place(
    all: &ReproductionFolder,
    page: &PageDescription,
    item: &mut PageItem,
    claims: &PaperClaims,
    head: &str,
) -> Vec<ClaimFinding> {
    let (mut rows, mut findings, mut above) = (Vec::new(), Vec::new(), String::new());
    for section in &claims.sections {
        let places = section.measure.places(all, page);
        let pairs: Vec<(&ClaimPlace, &PaperClaim)> = if section.claim_by_claim {
            section.claims.iter().flat_map(|claim| places.iter().map(move |place| (place, claim))).collect()
        } else {
            places.iter().flat_map(|place| section.claims.iter().map(move |claim| (place, claim))).collect()
        };
        for (place, claim) in pairs.into_iter().filter(|(place, claim)| section.is_about(page, place, claim)) {
            let found = section.find(page, place, claim);
            item.planned += 1;
            item.complete += usize::from(found.is_some());
            findings.extend(found.clone());
            let claim = claim.name();
            let name = if claim == above { String::new() } else { claim.clone() };
            above = claim;
            let cells = vec![place.title.clone().into(), ClaimFinding::cell(found)];
            rows.push(Row { name, colour: None, cells });
        }
    }
    let head = ["claim", head, "found"].map(str::to_owned).into();
    item.grids.push(Grid { caption: claims.caption.clone(), head, rows });
    findings
}

/// The runs of an arm of a registered claim, each once.
pub(super) fn arm_runs<'a>(all: &'a ReproductionFolder, corpus: &str, arm: &Arm) -> Vec<&'a Run> {
    let found = all.runs_of(corpus, &arm.variant).into_iter().flat_map(|group| &group.runs);
    found.filter(|run| run.duplicate_of.is_none() && run.label() == arm.encoding).collect()
}

/// Log-perplexities of an arm at a length, or shares of right answers of a task, by seed.
pub(super) fn arm_values(
    all: &ReproductionFolder,
    corpus: &str,
    arm: &Arm,
    evaluation: &str,
    length: u64,
) -> SeedValues {
    let Some(facts) = all.manifest.evaluations.get(evaluation) else { return SeedValues::new() };
    by_seed(&arm_runs(all, corpus, arm), |run| {
        let row = all.row_at(run, &[facts], length)?;
        Some(row.task.as_ref().map_or(row.nll, |task| task.score()))
    })
}

/// What was found of a registered claim on a corpus.
fn find_registered(claim: &Claim, all: &ReproductionFolder, corpus: &str) -> Option<ClaimFinding> {
    if claim.measure.is_over_lengths() {
        return reach::find(claim, all, corpus);
    }
    let arms: Vec<(&Arm, &str)> = claim.arms().collect();
    let reads: Vec<_> = arms
        .iter()
        .map(|(arm, evaluation)| {
            move |length: u64| match claim.measure {
                ClaimMeasure::Key => key_tokens::values(all, (corpus, arm), evaluation, length),
                _ => arm_values(all, corpus, arm, evaluation, length),
            }
        })
        .collect();
    let reads: Vec<&dyn Fn(u64) -> SeedValues> = reads.iter().map(|read| read as _).collect();
    let runs: Vec<Vec<&Run>> = arms.iter().map(|(arm, _)| arm_runs(all, corpus, arm)).collect();
    let points = claim.lengths.iter().map(|length| (format!("at {}", count(*length)), *length)).collect();
    let from = claim.from.filter(|_| claim.measure.may_change());
    let mut by_length = compared(points, from, &reads);
    let is_task = claim.measure == ClaimMeasure::Answers;
    for (length, found) in claim.lengths.iter().zip(&mut by_length).filter(|_| is_task) {
        let shares = |read: &dyn Fn(u64) -> SeedValues| read(*length).into_values().collect::<Vec<f64>>();
        found.is_learned =
            reads.iter().zip(&runs).any(|(read, runs)| all.is_learned(corpus, runs, *length, &shares(read)));
    }
    let unit = if is_task { DifferenceUnit::Plain } else { DifferenceUnit::Times };
    let found = judge(claim.bound, unit, &by_length)?;
    Some(found.with_mixed_programs(&runs[0], runs.last().expect("a claim has a treatment")))
}

/// Adds a grid of registered claims, on every corpus that one of them is about.
pub(super) fn registered(item: &mut PageItem, all: &ReproductionFolder, claims: &[Claim], caption: &str) {
    let is_asked = |corpus: &&CorpusFacts| claims.iter().any(|claim| claim.is_about(&corpus.name));
    let corpora: Vec<&CorpusFacts> = all.manifest.corpora.iter().filter(is_asked).collect();
    let found = |claim: &Claim| {
        let on = |corpus: &&CorpusFacts| {
            claim.is_about(&corpus.name).then(|| find_registered(claim, all, &corpus.name)).flatten()
        };
        (claim.text.clone(), corpora.iter().map(on).collect())
    };
    if claims.iter().any(|claim| claim.measure.is_over_lengths()) {
        item.notes.push(reach::RULE.to_owned());
    }
    if claims.iter().any(|claim| claim.measure == ClaimMeasure::Key) {
        item.notes.extend(key_tokens::notes(all));
    }
    let titles = corpora.iter().map(|corpus| corpus.title.clone()).collect();
    let findings = claim_grid(item, caption.to_owned(), titles, claims.iter().map(found).collect());
    item.count(findings.iter());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::verdict::ClaimVerdict;
    use kerple_run::{EVALUATION_FILE, MANIFEST_FILE, PLAN_FILE, write_json};
    use serde_json::json;

    /// Three seeds of log, ALiBi and rotary positions, trained at 64, with perplexities that are given: of a label and seed at 64,
    /// 96, 128 and 2048. 96 is a length of another table.
    fn find(text: &str, perplexity: impl Fn(&str, u64) -> [f64; 4]) -> Option<ClaimFinding> {
        let root = tempfile::tempdir().unwrap();
        let mut runs = Vec::new();
        for (label, seed) in
            ["kerple_log", "alibi", "rotary"].into_iter().flat_map(|label| [1, 2, 3].map(|seed| (label, seed)))
        {
            let path = format!("github/{label}/seed-{seed}");
            let folder = root.path().join(&path);
            std::fs::create_dir_all(&folder).unwrap();
            write_json(
                &folder.join(PLAN_FILE),
                &json!({"label": label, "seed": seed, "train_len": 64, "steps": 9, "hash": path, "encoding": {"kind": label}}),
            )
            .unwrap();
            let row = |(length, perplexity): (u64, f64)| {
                let text = json!({"checksum": "c", "segment_len": 2048, "n_segments": 2, "seed": seed});
                let row = json!({"label": label, "seed": seed, "train_len": 64, "eval_len": length, "protocol": "nonoverlapping",
                    "split": "test", "step": 9, "text": text, "n_windows": 2, "tokens": 99, "nll": perplexity.ln(),
                    "perplexity": perplexity, "seconds": 1.0});
                format!("{row}\n")
            };
            let rows = [64, 96, 128, 2048].into_iter().zip(perplexity(label, seed)).map(row);
            std::fs::write(folder.join(EVALUATION_FILE), rows.collect::<String>()).unwrap();
            runs.push(json!({"folder": path, "corpus": "github", "label": label, "seed": seed, "train_len": 64,
                "evaluate": ["lengths", "other"], "serves": []}));
        }
        let asked =
            |lengths: &[u64]| json!({"protocol": "nonoverlapping", "span": 2048, "segments": 2, "lengths": lengths});
        let manifest = json!({"paper": "kerple", "scale": "smoke", "title": "", "about": "", "runs": runs,
            "corpora": [{"name": "github", "title": "GitHub", "texts": "", "tokenizer": "byte"}],
            "evaluations": {"lengths": asked(&[64, 128, 2048]), "other": asked(&[64, 96])}});
        write_json(&root.path().join(MANIFEST_FILE), &manifest).unwrap();
        paper_finding(&ReproductionFolder::read(root.path()).unwrap(), text, "github")
    }

    /// A little that differs from seed to seed.
    fn noise(seed: u64) -> f64 {
        1.0 + 0.001 * seed as f64
    }

    #[test]
    fn one_length_of_many_confirms_nothing() {
        // far above at 128, and as good as log at 2048
        let found = find("log is below ALiBi at every", |label, seed| match label {
            "alibi" => [21.0, 21.0, 21.0 * noise(seed), 20.0 + 0.3 * seed as f64].map(|value| value * noise(seed)),
            _ => [20.0, 20.0, 20.0, 20.5],
        });
        let found = found.unwrap();
        assert_eq!(found.verdict, ClaimVerdict::Unsettled, "{}", found.numbers);
        assert!(found.numbers.starts_with("significantly at 1 of 2 lengths; at 2048: "), "{}", found.numbers);
    }

    #[test]
    fn lengths_of_other_tables_do_not_count() {
        // at 96 it is the other way round
        let found = find("log is below ALiBi at every", |label, seed| match label {
            "alibi" => [21.0, 15.0, 21.0, 21.0].map(|value| value * noise(seed)),
            _ => [20.0; 4],
        });
        assert_eq!(found.unwrap().verdict, ClaimVerdict::Confirmed);
    }

    #[test]
    fn change_is_not_level() {
        // worse at every length, and less so the longer it is
        let perplexity = |label: &str, seed: u64| match label {
            // changes that are equal up to rounding are not tested
            "alibi" => [24.0, 23.0, 23.0, 22.0 + 0.01 * (seed as f64 - 2.0)].map(|value| value * noise(seed)),
            _ => [20.0; 4],
        };
        assert_eq!(find("log is below ALiBi at every", perplexity).unwrap().verdict, ClaimVerdict::Confirmed);
        let found = find("by change: log falls further than ALiBi", perplexity).unwrap();
        assert_eq!(found.verdict, ClaimVerdict::Contradicted);
        assert!(found.numbers.starts_with("at 2048: 0.917 ["), "{}", found.numbers);
    }

    #[test]
    fn flat_forgives_no_more_than_longer_blocks_give() {
        // all perplexities fall by 10 % with more context, log's by 4 %
        let perplexity = |label: &str, seed: u64| match label {
            "alibi" => [20.0, 20.0, 19.0, 18.0].map(|value| value * noise(seed)),
            _ => [20.0, 20.0, 20.0, 19.2 * noise(seed)],
        };
        let found = find("log is flat", perplexity).unwrap();
        assert_eq!(found.verdict, ClaimVerdict::Contradicted, "{}", found.numbers);
    }
}
