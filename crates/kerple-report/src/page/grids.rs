//! Tables as text, for every layout.

use std::collections::{BTreeMap, BTreeSet};

use super::{Cell, FigurePart, Grid, Row, SettingPart};
use crate::format::{count, deviation, duration, number, probability};
use crate::results::{
    LEAST_KEY_TOKENS, LearnedCount, LearningOutcome, PerplexityScore, PerplexityTable, PerplexityTest, Results,
    RowName, RunEvaluation, RunLearning, RunState, name_text,
};
use crate::statistics::ALPHA;

pub(super) fn setting_part(results: &Results, table: &PerplexityTable, figures: Vec<FigurePart>) -> SettingPart {
    let lengths = table.lengths();
    let group = results.groups.iter().find(|group| group.id == table.setting.group);
    let differs = group.map_or_else(Vec::new, |group| {
        let all = group.differs.iter().map(|(key, value)| format!("{key} {value}"));
        all.filter(|piece| !group.title.contains(piece)).collect()
    });
    let seeds: Vec<usize> = table.scores.iter().map(|score| score.n).collect();
    let (least, most) = (seeds.iter().min().copied().unwrap_or(0), seeds.iter().max().copied().unwrap_or(0));
    let seeds = if least == most { format!("{most}") } else { format!("{least} to {most}; cells with fewer say so") };
    let perplexity = |score: &PerplexityScore| {
        Some(ScoreCell { mean: score.perplexity, spread: score.perplexity_deviation, best: score.best, n: score.n })
    };
    let mut grids = vec![score_grid(results, table, &lengths, "Perplexity", perplexity)];
    for (row, name) in grids[0].rows.iter_mut().zip(table.names()) {
        for (cell, &length) in row.cells.iter_mut().zip(&lengths) {
            cell.dagger = table.score(name, length).is_some_and(|score| score.dagger);
        }
    }
    if table.scores.iter().any(|score| score.bits_per_byte.is_some()) {
        grids.push(score_grid(results, table, &lengths, "Bits per byte", |score| {
            let (mean, spread) = (score.bits_per_byte?, score.bits_per_byte_deviation);
            Some(ScoreCell { mean, spread, best: score.best_bits_per_byte, n: score.n })
        }));
    }
    if table.scores.iter().any(|score| score.ratio.is_some()) {
        let caption =
            format!("Extrapolation ratio: perplexity over that at the training length, {}", table.setting.train_len);
        grids.push(score_grid(results, table, &lengths, &caption, |score| {
            Some(ScoreCell { mean: score.ratio?, spread: score.ratio_deviation, best: false, n: score.n_ratio })
        }));
    }
    grids.extend(own_context_grid(results, table));
    grids.extend(key_token_grid(results, table));
    SettingPart {
        title: table.setting.title.clone(),
        meaning: table.setting.meaning(),
        differs,
        seeds,
        grids,
        windows: windows(table),
        tests: test_grid(results, table),
        n_tested: table.tests.iter().filter(|test| test.p.is_some()).count(),
        figures,
    }
}

/// A mean over seeds, as a table shows it.
struct ScoreCell {
    mean: f64,
    spread: Option<f64>,
    best: bool,
    /// Seeds it is over.
    n: usize,
}

fn score_grid(
    results: &Results,
    table: &PerplexityTable,
    lengths: &[u64],
    caption: &str,
    value: impl Fn(&PerplexityScore) -> Option<ScoreCell>,
) -> Grid {
    let cell = |score: Option<&PerplexityScore>| {
        let Some((score, ScoreCell { mean, spread, best, n })) = score.and_then(|score| Some((score, value(score)?)))
        else {
            return Cell::from("\u{2013}".to_owned());
        };
        Cell {
            text: number(mean),
            spread: spread.filter(|_| mean.is_finite()).map(|spread| deviation(mean, spread)),
            best,
            note: cell_note(score, n),
            ..Cell::default()
        }
    };
    let row = |name: RowName| Row {
        name: name_text(name),
        colour: Some(results.place(name.0)),
        cells: lengths.iter().map(|&length| cell(table.score(name, length))).collect(),
    };
    let filled = |name: &RowName| table.scores.iter().any(|score| score.name() == *name && value(score).is_some());
    let rows = table.names().into_iter().filter(filled).map(row).collect();
    Grid { caption: caption.to_owned(), head: lengths_head(lengths), rows }
}

/// Perplexities by own context at the longest length that has them.
fn own_context_grid(results: &Results, table: &PerplexityTable) -> Option<Grid> {
    let length = table.own_context.iter().map(|score| score.eval_len).max()?;
    let here: Vec<_> = table.own_context.iter().filter(|score| score.eval_len == length).collect();
    let bins: BTreeSet<u64> = here.iter().map(|score| score.from).collect();
    let rows = here.chunk_by(|a, b| (&a.encoding, a.window) == (&b.encoding, b.window)).map(|scores| {
        let most = scores.iter().map(|score| score.n).max().unwrap_or(0);
        let cell = |from: &u64| {
            let Some(score) = scores.iter().find(|score| score.from == *from) else {
                return Cell::from("\u{2013}".to_owned());
            };
            let spread = score.perplexity_deviation.filter(|_| score.perplexity.is_finite());
            Cell {
                text: number(score.perplexity),
                spread: spread.map(|spread| deviation(score.perplexity, spread)),
                note: (score.n < most).then(|| format!("n = {}", score.n)),
                ..Cell::default()
            }
        };
        Row {
            name: name_text((&scores[0].encoding, scores[0].window)),
            colour: Some(results.place(&scores[0].encoding)),
            cells: bins.iter().map(cell).collect(),
        }
    });
    let bin = |from: &u64| match from {
        0 | 1 => from.to_string(),
        from => format!("{} to {}", count(*from), count(2 * from - 1)),
    };
    Some(Grid {
        caption: format!("Perplexity at {} tokens, by tokens of the own document before the target", count(length)),
        head: std::iter::once("encoding".to_owned()).chain(bins.iter().map(bin)).collect(),
        rows: rows.collect(),
    })
}

/// Key tokens of each run, and how sure their perplexity is.
fn key_token_grid(results: &Results, table: &PerplexityTable) -> Option<Grid> {
    let of_keys: Vec<_> = table.evaluations.iter().filter_map(|row| Some((row, row.candidates?))).collect();
    let row = |&(row, candidates): &(&RunEvaluation, u64)| {
        let interval = row.perplexity_low.zip(row.perplexity_high);
        let interval = interval.map(|(low, high)| format!("{} to {}", number(low), number(high)));
        let few = format!("fewer than {LEAST_KEY_TOKENS} tokens, or one segment");
        Row {
            name: name_text((&row.encoding, row.window)),
            colour: Some(results.place(&row.encoding)),
            cells: vec![
                row.seed.to_string().into(),
                count(row.eval_len).into(),
                format!("{} of {}", count(row.tokens), count(candidates)).into(),
                format!("{:.2}", 100.0 * row.tokens as f64 / candidates as f64).into(),
                number(row.perplexity).into(),
                Cell { note: interval.is_none().then_some(few), ..interval.unwrap_or_default().into() },
            ],
        }
    };
    let head = ["encoding", "seed", "length", "key tokens", "%", "perplexity", "95 % interval"];
    (!of_keys.is_empty()).then(|| Grid {
        caption: "Key tokens of each run, and the interval of their perplexity over segments of the text".to_owned(),
        head: head.map(str::to_owned).to_vec(),
        rows: of_keys.iter().map(row).collect(),
    })
}

fn lengths_head(lengths: &[u64]) -> Vec<String> {
    std::iter::once("encoding".to_owned()).chain(lengths.iter().map(|&length| count(length))).collect()
}

/// Sentences on what the same checkpoints lose under a window: whether the reference uses the context beyond it.
pub fn windows(table: &PerplexityTable) -> Vec<String> {
    let of_reference = table.tests.iter().filter(|test| test.encoding == test.reference);
    let mut longest: BTreeMap<u64, &PerplexityTest> = BTreeMap::new();
    for test in of_reference {
        let Some(window) = test.window.filter(|&window| window < test.eval_len) else { continue };
        let kept = longest.entry(window).or_insert(test);
        if test.eval_len > kept.eval_len {
            *kept = test;
        }
    }
    let sentence = |(window, test): (u64, &PerplexityTest)| {
        let what = format!(
            "At {} tokens, {} limited to the last {} keys",
            count(test.eval_len),
            test.reference,
            count(window)
        );
        let (Some(difference), Some(p)) = (test.difference, test.p) else {
            let reason = test.untestable.as_deref().unwrap_or("the difference was not tested");
            return format!("{what} cannot be tested against the same checkpoints without the window: {reason}.");
        };
        let found = match (p < ALPHA, difference > 0.0) {
            (true, true) => "It uses tokens beyond the window",
            (true, false) => "Tokens beyond the window harm it",
            (false, _) => {
                "The difference is not significant, so it does not show that tokens beyond the window are used"
            }
        };
        let (size, more) = (number(difference.abs()), if difference > 0.0 { "higher" } else { "lower" });
        format!(
            "{what} has a perplexity {size} {more} than the same checkpoints without the window (n = {}, p = {}). {found}.",
            test.n,
            probability(p)
        )
    };
    longest.into_iter().map(sentence).collect()
}

/// What is incomplete about a cell of `n` seeds, in few words.
fn cell_note(score: &PerplexityScore, n: usize) -> Option<String> {
    let mut notes = Vec::new();
    if n < score.n_expected {
        notes.push(format!("n = {n} of {}", score.n_expected));
    }
    if score.n_not_finite > 0 {
        notes.push(format!("{} not finite", score.n_not_finite));
    }
    if score.n_unfinished > 0 {
        notes.push(format!("{} unfinished", score.n_unfinished));
    }
    (!notes.is_empty()).then(|| notes.join(", "))
}

fn test_grid(results: &Results, table: &PerplexityTable) -> Option<Grid> {
    let reference = table.tests.first()?.reference.as_str();
    let rows = table.tests.iter().map(|test| {
        let interval = test.difference_low.zip(test.difference_high);
        let interval = interval.map_or_else(String::new, |(low, high)| format!("{} to {}", number(low), number(high)));
        let optional =
            |value: Option<f64>, form: fn(f64) -> String| Cell::from(value.map_or_else(|| "\u{2013}".to_owned(), form));
        Row {
            name: name_text((&test.encoding, test.window)),
            colour: Some(results.place(&test.encoding)),
            cells: vec![
                count(test.eval_len).into(),
                test.n.to_string().into(),
                optional(test.difference, number),
                Cell { text: interval, note: test.untestable.clone(), ..Cell::default() },
                optional(test.t, number),
                Cell { dagger: test.dagger, ..optional(test.p, probability) },
                optional(test.p_holm, probability),
            ],
        }
    });
    let head = ["encoding", "length", "n", "difference", "95 % interval", "t", "p", "p, Holm"];
    Some(Grid {
        caption: format!("Paired t-tests of perplexity against {reference}"),
        head: head.map(str::to_owned).to_vec(),
        rows: rows.collect(),
    })
}

pub(super) fn speeds(results: &Results) -> Vec<Grid> {
    let by_group = results.speeds.chunk_by(|a, b| a.group == b.group);
    by_group
        .map(|speeds| {
            let rows = speeds.iter().map(|speed| Row {
                name: speed.encoding.clone(),
                colour: Some(results.place(&speed.encoding)),
                cells: vec![
                    Cell {
                        spread: speed.seconds_deviation.map(|spread| deviation(speed.seconds, spread)),
                        ..number(speed.seconds).into()
                    },
                    format!("{:.3}", speed.relative).into(),
                    speed.n.to_string().into(),
                ],
            });
            let length = speeds[0].train_len.map_or_else(String::new, |length| {
                format!(
                    " at {length} tokens \
                    per sequence"
                )
            });
            let group = results.groups.iter().find(|group| group.id == speeds[0].group && !group.title.is_empty());
            let group = group.map_or_else(String::new, |group| format!(", {}", group.title));
            let baseline = &speeds[0].baseline;
            let why = if baseline == "sinusoidal" { "" } else { ", the fastest, as sinusoidal was not trained" };
            Grid {
                caption: format!("Seconds per training step{length}{group}; relative to {baseline}{why}"),
                head: ["encoding", "seconds per step", "relative", "n"].map(str::to_owned).to_vec(),
                rows: rows.collect(),
            }
        })
        .collect()
}

/// Updates until learned, one table per group of runs that a stop rule ends.
pub(super) fn learning(results: &Results) -> Vec<Grid> {
    results.learned.chunk_by(|a, b| a.group == b.group).map(|counts| learning_grid(results, counts)).collect()
}

fn learning_grid(results: &Results, counts: &[LearnedCount]) -> Grid {
    let of_group: Vec<&RunLearning> = results.learning.iter().filter(|run| run.group == counts[0].group).collect();
    let row = |counted: &LearnedCount| {
        let updates = of_group.iter().filter(|run| run.encoding == counted.encoding).map(|run| updates(run));
        let halves = |median: f64| if median.fract() == 0.0 { count(median as u64) } else { format!("{median:.1}") };
        let median = counted.median_updates.map_or_else(|| "\u{2013}".to_owned(), halves);
        let unfinished = (counted.unfinished > 0).then(|| format!("{} unfinished", counted.unfinished));
        Row {
            name: counted.encoding.clone(),
            colour: Some(results.place(&counted.encoding)),
            cells: vec![
                Cell { text: format!("{} of {}", counted.learned, counted.n), note: unfinished, ..Cell::default() },
                median.into(),
                updates.collect::<Vec<String>>().join(", ").into(),
            ],
        }
    };
    // all runs of a group have the same rule
    let RunLearning { task, score, checks, eval_interval, steps, .. } = of_group[0];
    let task = task.as_ref().map_or_else(String::new, |task| format!(", {task}"));
    let group = results.groups.iter().find(|group| group.id == counts[0].group && !group.title.is_empty());
    let group = group.map_or_else(String::new, |group| format!(", {}", group.title));
    let total = |part: fn(&LearnedCount) -> usize| counts.iter().map(part).sum::<usize>();
    let (learned, n) = (total(|counted| counted.learned), total(|counted| counted.n));
    Grid {
        caption: format!(
            "Updates until learned{task}{group}: {learned} of {n} learned. Updates up to the first of {checks} validations in a row \
             with a score of at least {score}; validations every {eval_interval} updates, at most {} updates",
            count(*steps)
        ),
        head: ["encoding", "learned", "median", "updates by seed"].map(str::to_owned).to_vec(),
        rows: counts.iter().map(row).collect(),
    }
}

/// Updates until a run has learned, or more than which it takes.
fn updates(run: &RunLearning) -> String {
    match (run.outcome, run.updates) {
        (_, Some(updates)) => count(updates),
        (LearningOutcome::Unfinished, None) => "unfinished".to_owned(),
        (_, None) => format!("> {}", count(run.steps)),
    }
}

pub(super) fn runs(results: &Results) -> Grid {
    let unknown = || "\u{2013}".to_owned();
    let rows = results.runs.iter().map(|run| {
        let folder = run.folder.display().to_string();
        let name = run.folder.file_name().map_or_else(|| folder.clone(), |name| name.to_string_lossy().into_owned());
        let state = match (run.state, &run.duplicate_of) {
            (_, Some(kept)) => Some(format!("duplicate of {}", kept.display())),
            (RunState::Finished, None) => {
                run.planned_steps.filter(|&planned| run.steps < planned).map(|_| "learned".into())
            }
            (RunState::Unfinished, None) => Some("unfinished".into()),
            (RunState::NotStarted, None) => Some("not started".into()),
        };
        let planned = run.planned_steps.filter(|&planned| planned != run.steps);
        let planned = planned.map_or_else(String::new, |planned| format!(" of {}", count(planned)));
        Row {
            name: run.encoding.clone(),
            colour: Some(results.place(&run.encoding)),
            cells: vec![
                run.seed.map_or_else(unknown, |seed| seed.to_string()).into(),
                run.train_len.map_or_else(unknown, count).into(),
                Cell { text: format!("{}{planned}", count(run.steps)), note: state, ..Cell::default() },
                run.parameters.map_or_else(unknown, count).into(),
                run.training_seconds.map_or_else(unknown, duration).into(),
                duration(run.evaluation_seconds).into(),
                run.plan.as_ref().map_or_else(unknown, |hash| hash.chars().take(8).collect()).into(),
                Cell { link: Some(href(&folder)), ..name.into() },
            ],
        }
    });
    let head = ["encoding", "seed", "trained at", "steps", "parameters", "training", "evaluation", "plan", "folder"];
    Grid { caption: "Runs".into(), head: head.map(str::to_owned).to_vec(), rows: rows.collect() }
}

/// A path as a link: what a URL gives another meaning is written in hexadecimal.
fn href(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~=+,".contains(&byte);
    path.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn links_survive_odd_folder_names() {
        assert_eq!(super::href("../runs/a b#1%"), "../runs/a%20b%231%25");
    }
}
