//! The one figure of a suite of tasks: how far each encoding answers, a heading for every task.

use super::reach::{reach_text, suite_tables};
use super::{FigurePart, Section};
use crate::format::count;
use crate::plot::{Axis, RowChart, RowGroup, RowMark};
use crate::results::{AnswerReach, AnswerTable, Results, RowName, name_text};
use crate::statistics::reach::{REACHED, Reach, falling_fit, threshold};
use crate::statistics::{LEAST_PAIRS, median};
use std::collections::BTreeSet;

/// Reaches of several tasks, or of one.
pub struct ReachFigure {
    /// Its name on the page, and that of its file.
    pub id: String,
    /// Where it stands.
    pub section: Section,
    /// Its title.
    pub title: String,
    /// What it shows.
    pub caption: String,
    /// The picture.
    pub chart: RowChart,
}

/// A table of answers under its heading in a figure.
pub struct TaskHeading<'a> {
    /// The heading, in words.
    pub name: String,
    /// The table.
    pub table: &'a AnswerTable,
}

impl ReachFigure {
    /// The reaches of some tables, of which each has some; `naming` has the name and the colour of an encoding.
    pub fn of(
        tasks: &[TaskHeading],
        naming: &dyn Fn(&str) -> (String, usize),
        (section, id, title): (Section, String, String),
    ) -> ReachFigure {
        let (chart, caption) = chart(tasks, naming, &title);
        ReachFigure { id, section, title, caption, chart }
    }

    /// Where the figure alone is, from the page's folder.
    pub fn file(&self) -> String {
        format!("figures/{}.svg", self.id)
    }

    /// It as pages have it.
    pub fn part(&self) -> FigurePart {
        FigurePart {
            id: self.id.clone(),
            title: self.title.clone(),
            caption: self.caption.clone(),
            file: self.file(),
            wide: self.chart.svg(super::WIDE.0),
            narrow: self.chart.svg(super::NARROW.0),
            small: Vec::new(),
            pictures: Vec::new(),
        }
    }
}

/// Tasks in words, by their names.
const WORDS: [(&str, &str); 13] = [
    ("cwe", "Common words"),
    ("flipflop", "Flip-flop"),
    ("fuzzy_recall", "Recall of runs"),
    ("fwe", "Most frequent words"),
    ("group", "Products in a group"),
    ("mqrar", "Recall of earlier values"),
    ("niah_codes", "Needle among codes"),
    ("niah_single", "Needle in noise"),
    ("niah_words", "Needle among words"),
    ("passkey", "Passkey"),
    ("recall", "Associative recall"),
    ("selective_copy", "Selective copy"),
    ("vt", "Chains of names"),
];

/// The tables with their tasks in words. Where a task occurs several times, its settings follow.
fn headings<'a>(tables: &[&'a AnswerTable]) -> Vec<TaskHeading<'a>> {
    let heading = |table: &&'a AnswerTable| {
        let words = WORDS.iter().find(|(name, _)| *name == table.task);
        let words = words.map_or_else(|| table.task.replace('_', " "), |(_, words)| (*words).to_owned());
        let is_alone = tables.iter().filter(|other| other.task == table.task).count() == 1;
        let settings = table.title.strip_prefix(&table.task).filter(|_| !is_alone).unwrap_or_default();
        TaskHeading { name: words + settings, table }
    };
    tables.iter().map(heading).collect()
}

/// All figures of reaches that there are data for: of every table, and where there are several tasks of all of them.
pub(crate) fn reach_figures(results: &Results) -> Vec<ReachFigure> {
    let naming = |name: &str| (name.to_owned(), results.place(name));
    let of_table = |(index, table): (usize, &AnswerTable)| {
        let place = (Section::Answers(index), format!("answers-{index}-reach"), format!("Reach: {}", table.title));
        (!table.reaches.is_empty()).then(|| ReachFigure::of(&headings(&[table]), &naming, place))
    };
    let mut figures: Vec<ReachFigure> = results.answers.iter().enumerate().filter_map(of_table).collect();
    let tasks = headings(&suite_tables(results));
    if !tasks.is_empty() {
        let place = (Section::Suite, "reach".to_owned(), format!("Reach in {} tasks", tasks.len()));
        figures.push(ReachFigure::of(&tasks, &naming, place));
    }
    figures
}

fn chart(tasks: &[TaskHeading], naming: &dyn Fn(&str) -> (String, usize), title: &str) -> (RowChart, String) {
    let tables: Vec<&AnswerTable> = tasks.iter().map(|task| task.table).collect();
    let trained: BTreeSet<u64> = tables.iter().map(|table| table.train_len).collect();
    // tasks that are trained at several lengths are on one scale as multiples of these
    let common = trained.first().copied().filter(|_| trained.len() == 1);
    let unit = |table: &AnswerTable| if common.is_some() { 1.0 } else { table.train_len as f64 };
    let mut rows: Vec<RowName> = Vec::new();
    for name in tables.iter().flat_map(|table| table.reaches.iter().map(AnswerReach::name)) {
        if !rows.contains(&name) {
            rows.push(name);
        }
    }
    let names = rows.iter().map(|name| {
        let (words, colour) = naming(name.0);
        (name_text((&words, name.1)), colour, usize::from(name.1.is_some()))
    });
    let group = |TaskHeading { name, table }: &TaskHeading| {
        let of = |(number, name): (usize, &RowName)| {
            let reach = table.reaches.iter().find(|reach| reach.name() == *name)?;
            Some(mark(number, reach, table, unit(table)))
        };
        RowGroup {
            name: name.clone(),
            marks: rows.iter().enumerate().filter_map(of).collect(),
            tick: shortcut(table).map(|(at, words)| (at / unit(table), words)),
        }
    };
    let mut groups: Vec<RowGroup> = tasks.iter().map(group).collect();
    let middle = (tables.len() > 1).then(|| median_group(&tables, &rows, &unit)).flatten();
    let has_middle = middle.is_some();
    groups.extend(middle);
    let all: BTreeSet<u64> = tables.iter().flat_map(|table| table.lengths()).collect();
    let (x, rule) = match common {
        Some(length) => {
            let lengths: Vec<u64> = all.into_iter().collect();
            (Axis::lengths("tokens of a sequence", &lengths), (length as f64, format!("trained at {}", count(length))))
        }
        None => {
            let of = |table: &&AnswerTable| {
                table.lengths().into_iter().map(|length| length as f64 / table.train_len as f64).collect::<Vec<f64>>()
            };
            let ends = tables
                .iter()
                .flat_map(of)
                .fold((f64::INFINITY, 1.0), |(low, high): (f64, f64), at| (low.min(at), high.max(at)));
            (Axis::log("times the training length", ends.0, ends.1), (1.0, "the training length".to_owned()))
        }
    };
    let seeds = tables.iter().flat_map(|table| &table.reaches).map(|reach| reach.n);
    let seeds = [seeds.clone().min(), seeds.max()].map(|n| n.unwrap_or(0));
    let seeds = if seeds[0] == seeds[1] { seeds[0].to_string() } else { format!("{} to {}", seeds[0], seeds[1]) };
    let chance = match tables[..] {
        [table] => format!("a guess has {:.1} %, so at {:.1} %", 100.0 * table.chance, 100.0 * threshold(table.chance)),
        _ => "of each task".to_owned(),
    };
    let examples: BTreeSet<String> = tables.iter().map(|table| count(table.examples)).collect();
    let mut caption = format!(
        "A large mark is the median reach over seeds ({seeds}), a line its 95 % interval by the profile likelihood, a small dot one \
         seed: up to which length the answers are right, {} % of the way from a guess to no error ({chance}), of {} sequences at \
         each length. An arrow leads beyond the measured lengths. A hollow mark is not learned: fewer than three seeds answer at \
         the training length, or not all of fewer. A grey tick is a rule that skips the task.",
        100.0 * REACHED,
        Vec::from_iter(examples).join(" or ")
    );
    if has_middle {
        caption += " The last rows are medians over the tasks that all encodings have learned, whose dots are tasks.";
    }
    let chart = RowChart {
        title: title.to_owned(),
        description: "Up to which length encodings answer.".to_owned(),
        x,
        rule: Some(rule),
        names: names.collect(),
        groups,
    };
    (chart, caption)
}

/// Whether an encoding has learned a task: as many runs as a test needs, or all of fewer.
fn has_learned(reach: &AnswerReach) -> bool {
    reach.learned >= LEAST_PAIRS.min(reach.n)
}

fn mark(name: usize, reach: &AnswerReach, table: &AnswerTable, unit: f64) -> RowMark {
    RowMark {
        name,
        words: format!("{}, {} of {} seeds learned", reach_text(reach, &table.lengths()), reach.learned, reach.n),
        at: reach.tokens.map(|tokens| tokens / unit),
        ends: reach.tokens_low.zip(reach.tokens_high).map(|(low, high)| [low / unit, high / unit]),
        dots: reach.seeds.iter().map(|seed| seed.tokens / unit).collect(),
        hollow: !has_learned(reach),
    }
}

/// Up to which length a rule that skips the task is as right as a reach demands; nothing where it nowhere is.
fn shortcut(table: &AnswerTable) -> Option<(f64, String)> {
    let shortcut = table.shortcut.as_ref()?;
    let (lengths, scores): (Vec<f64>, Vec<f64>) =
        shortcut.scores.iter().map(|(length, score)| ((*length as f64).log2(), *score)).unzip();
    let fit = falling_fit(&scores, &vec![1.0; scores.len()]);
    let reach = Reach::of(&lengths, &fit, threshold(table.chance));
    let last = lengths.last().copied()?;
    (reach.point > f64::NEG_INFINITY)
        .then(|| (reach.point.min(last).exp2(), format!("a rule that skips the task: {}", shortcut.rule)))
}

/// The median of each encoding over the tasks that all have learned; nothing where there is none.
fn median_group(tables: &[&AnswerTable], rows: &[RowName], unit: &dyn Fn(&AnswerTable) -> f64) -> Option<RowGroup> {
    let of = |table: &AnswerTable, name: &RowName| table.reaches.iter().find(|reach| reach.name() == *name).cloned();
    let learned: Vec<&&AnswerTable> = tables
        .iter()
        .filter(|table| {
            rows.iter().all(|name| of(table, name).is_some_and(|reach| has_learned(&reach) && reach.tokens.is_some()))
        })
        .collect();
    let mark = |(number, name): (usize, &RowName)| {
        let all: Vec<f64> = learned.iter().filter_map(|table| Some(of(table, name)?.tokens? / unit(table))).collect();
        let at = Some(median(&all)).filter(|at| !at.is_nan());
        RowMark {
            name: number,
            words: format!("median of {} tasks", all.len()),
            at,
            ends: None,
            dots: all,
            hollow: false,
        }
    };
    let name = format!("Median of {} tasks that all have learned", learned.len());
    (!learned.is_empty()).then(|| RowGroup { name, marks: rows.iter().enumerate().map(mark).collect(), tick: None })
}
