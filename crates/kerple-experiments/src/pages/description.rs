//! The description of a page: `experiments/PAPER-page.toml` lists the methods, claims, tables and
//! figures of a paper with their texts, and the numbers that the paper printed.

use super::methods::{ComparedMethod, distinguish};
use super::paper_claims::PaperClaims;
#[cfg(feature = "music-lra")]
use super::printed::PrintedArena;
use super::printed::{PrintedHierarchy, PrintedLines, PrintedPerplexities};
use crate::claim::Claim;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The descriptions, by paper; the project's own experiments share one.
const DESCRIPTIONS: &[(&[&str], &str)] = &[
    (&["dape"], include_str!("../../experiments/dape-page.toml")),
    (&["kerple"], include_str!("../../experiments/kerple-page.toml")),
    #[cfg(feature = "music-lra")]
    (&["spe"], include_str!("../../experiments/spe-page.toml")),
    (
        &[
            "arena",
            "borders",
            "budget",
            "cost",
            "decay",
            "documents",
            "draws",
            "equal",
            "induction",
            "languages",
            "length",
            "levels",
            "order",
            "parity",
            "reach",
            "rivals",
            "seeds",
            "shift",
            "sizes",
            "tasks",
            "windows",
        ],
        include_str!("../../experiments/own-page.toml"),
    ),
];

/// Everything on a page that no run contains.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PageDescription {
    /// Methods in the order of tables and colours.
    #[serde(default, rename = "method")]
    pub methods: Vec<ComparedMethod>,
    #[serde(default)]
    pub claims: Option<PaperClaims>,
    /// Tables and figures in the order of the page.
    #[serde(rename = "item")]
    pub items: Vec<ItemDescription>,
    /// Perplexities by table.
    #[serde(default)]
    pub printed: BTreeMap<String, PrintedPerplexities>,
    #[serde(default)]
    pub printed_lines: PrintedLines,
    #[serde(default)]
    pub hierarchy: Option<HierarchyTable>,
    #[cfg(feature = "music-lra")]
    #[serde(default)]
    pub arena: Option<PrintedArena>,
    /// What was written after the runs, by experiment.
    #[serde(default)]
    pub after_runs: BTreeMap<String, AfterRuns>,
    /// What variants of an experiment are called, by experiment and variant.
    #[serde(default)]
    pub variants: BTreeMap<String, BTreeMap<String, String>>,
    /// What kinds of encodings are called.
    #[serde(default)]
    pub kinds: BTreeMap<String, String>,
    /// Keys of labels that all encodings of a kind share in an experiment, and so distinguish nothing.
    #[serde(default)]
    pub shared_keys: Vec<String>,
}

/// A table or figure.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ItemDescription {
    /// `table3`.
    pub id: String,
    pub title: String,
    #[serde(default)]
    pub text: String,
    /// The only scale that has it.
    #[serde(default)]
    pub scale: Option<String>,
    /// The only experiments that have it; all when empty.
    #[serde(default)]
    pub experiments: Vec<String>,
    pub shows: ItemContents,
}

/// What a table or figure shows, with what distinguishes it from others of its kind.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum ItemContents {
    /// Claims of a paper, or registered ones.
    Claims,
    /// Perplexities over those at the training length, of these methods.
    Changes {
        methods: Vec<String>,
    },
    /// Texts, with their raw sizes in the paper.
    Texts {
        raw_sizes: BTreeMap<String, String>,
    },
    Configuration(ConfigurationTable),
    Times(TimesTable),
    /// Perplexities by length and method, next to printed tables.
    Perplexities {
        grids: Vec<PerplexityGrid>,
    },
    /// Kernels that runs of a label learned.
    Kernels {
        label: String,
    },
    /// Perplexity by position, at the nth of the evaluated lengths.
    Positions {
        nth: usize,
    },
    EffectiveLengths,
    /// Perplexities wherever runs serve it, as tables and perhaps as lines.
    Lengths {
        methods: Vec<String>,
        #[serde(default)]
        drawn: bool,
    },
    /// Formal languages.
    Hierarchy,
    TaskExamples,
    /// Scores of last queries.
    Scores {
        #[serde(default)]
        longest_alone: bool,
    },
    /// Everything that was measured of an experiment.
    Levels,
    LevelChanges,
    UpdateTimes,
    LearnedKernels,
    /// What only the page of SPE shows.
    #[cfg(feature = "music-lra")]
    #[serde(untagged)]
    Spe(super::spe::SpeItem),
}

/// Settings from the plans of runs, next to those printed.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ConfigurationTable {
    /// Key of the method whose plan is shown.
    pub method: String,
    #[serde(default)]
    pub variant: String,
    /// Methods whose parameters count where those of the encoding are shown.
    #[serde(default)]
    pub parameters_of: Vec<String>,
    /// Heads of the printed columns.
    pub printed: Vec<String>,
    pub settings: Vec<PlanSetting>,
}

/// A setting: its name, its value, and what was printed.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PlanSetting {
    pub name: String,
    pub from: SettingSource,
    /// Before the value.
    #[serde(default)]
    pub prefix: String,
    pub printed: Vec<String>,
}

/// The value of a setting: from the plan of a run, or from all runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SettingSource {
    NLayers,
    HeadDim,
    NHeads,
    TrainLen,
    Parameters,
    LearningRate,
    BatchSize,
    Steps,
    /// Precisions of all runs.
    Precision,
    /// Training lengths of all variants.
    TrainingLengths,
    /// The most parameters of an encoding.
    EncodingParameters,
}

/// Times of encodings in turns, relative to one of them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TimesTable {
    /// Key of the method that times are relative to, and its name in the head.
    pub reference: String,
    pub reference_name: String,
    /// Milliseconds instead of seconds.
    #[serde(default)]
    pub milliseconds: bool,
    /// Caption; `{rounds}`, `{batch}`, `{length}` and `{what}` are replaced.
    pub caption: String,
    /// Keys of methods that are not shown, or that alone are.
    #[serde(default)]
    pub without: Vec<String>,
    #[serde(default)]
    pub only: Vec<String>,
    #[serde(default)]
    pub printed: Vec<PrintedTimes>,
}

/// Printed times by key of the method.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PrintedTimes {
    pub head: String,
    /// Whether they are shown relative to the reference.
    #[serde(default)]
    pub relative: bool,
    pub values: BTreeMap<String, f64>,
}

/// A grid of perplexities for every corpus that has such runs.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PerplexityGrid {
    pub evaluation: String,
    /// The variant of its runs; that of the first run with the evaluation when absent.
    #[serde(default)]
    pub variant: Option<String>,
    /// Keys of the methods, a column each.
    pub methods: Vec<String>,
    /// Name of the printed table, and the corpus under which its numbers were printed, where it is another one.
    pub printed: String,
    #[serde(default)]
    pub printed_corpus: Option<String>,
    /// After the name of the corpus in the caption.
    #[serde(default)]
    pub caption: String,
    /// A note where there are no such runs.
    #[serde(default)]
    pub missing: Option<String>,
}

/// The paper's table of formal languages and claims about it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HierarchyTable {
    /// Letters and names of the classes.
    pub classes: Vec<[String; 2]>,
    /// Columns; the `printed` of each names that of the paper.
    #[serde(rename = "method")]
    pub methods: Vec<ComparedMethod>,
    pub printed: PrintedHierarchy,
    pub claims: HierarchyClaims,
}

/// Claims whose pairs are tasks.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HierarchyClaims {
    pub caption: String,
    /// A share of right answers that is higher by less than this, in percent, does not count.
    pub margin: f64,
    pub claims: Vec<HierarchyClaim>,
}

/// The claim that the best of some methods is above the best of as many others.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HierarchyClaim {
    pub text: String,
    pub treatment: Vec<String>,
    pub baseline: Vec<String>,
    /// Whether tasks count whose answer does not depend on the order of the tokens.
    #[serde(default)]
    pub every_task: bool,
}

/// What is asked of the runs of an experiment once they are known.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AfterRuns {
    /// The day.
    pub written: String,
    /// The reason.
    pub why: String,
    #[serde(rename = "claim", default)]
    pub claims: Vec<Claim>,
    #[serde(default)]
    pub order_flips: Vec<OrderFlips>,
    #[serde(default)]
    pub equal_time: Vec<EqualTime>,
}

/// The claim, for every pair of some methods, that they differ by more than a margin in one direction after one training and in
/// the other direction after another.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OrderFlips {
    pub corpus: String,
    pub evaluation: String,
    /// Where log-perplexities are compared, in tokens.
    pub length: u64,
    /// The least difference of log-perplexities that counts.
    pub margin: f64,
    /// Labels.
    pub encodings: Vec<String>,
    pub first: NamedVariant,
    pub last: NamedVariant,
    /// Trainings whose runs are counted one by one.
    #[serde(default)]
    pub rates: Vec<NamedVariants>,
}

/// A variant and its name.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NamedVariant {
    pub name: String,
    pub variant: String,
}

/// Variants that are counted together.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NamedVariants {
    pub name: String,
    pub variants: Vec<String>,
}

/// What a method would reach if it were trained for as long as a slower one, from its curve between two budgets.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EqualTime {
    pub corpus: String,
    pub evaluation: String,
    /// Where log-perplexities are compared, in tokens.
    pub length: u64,
    /// Label of the slower method.
    pub treatment: String,
    /// Label of the other.
    pub baseline: String,
    /// Variants of the two budgets.
    pub shorter: String,
    pub longer: String,
}

impl PageDescription {
    /// That of a paper or an experiment of the project; `None` where there is none.
    pub(super) fn of(paper: &str) -> Option<PageDescription> {
        let (_, text) = DESCRIPTIONS.iter().find(|(papers, _)| papers.contains(&paper))?;
        let mut page: PageDescription = toml::from_str(text).expect("a test reads every description");
        distinguish(&mut page.methods);
        if let Some(hierarchy) = &mut page.hierarchy {
            distinguish(&mut hierarchy.methods);
        }
        Some(page)
    }

    /// The method with this key.
    ///
    /// # Panics
    /// When there is none; a test looks up every key of every description.
    pub(super) fn method(&self, key: &str) -> &ComparedMethod {
        self.methods.iter().find(|method| method.key == key).unwrap_or_else(|| panic!("no method {key}"))
    }

    pub(super) fn methods_of(&self, keys: &[String]) -> Vec<&ComparedMethod> {
        keys.iter().map(|key| self.method(key)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::{Experiment, experiment_file};

    #[test]
    fn descriptions_name_methods_that_they_have() {
        for paper in DESCRIPTIONS.iter().flat_map(|(papers, _)| *papers) {
            let page = PageDescription::of(paper).unwrap();
            let keys = |item: &ItemDescription| match &item.shows {
                ItemContents::Changes { methods } | ItemContents::Lengths { methods, .. } => methods.clone(),
                ItemContents::Configuration(table) => vec![table.method.clone()],
                ItemContents::Perplexities { grids } => {
                    assert!(grids.iter().all(|grid| page.printed.contains_key(&grid.printed)), "{paper}");
                    grids.iter().flat_map(|grid| grid.methods.clone()).collect()
                }
                _ => Vec::new(),
            };
            let keys = page.items.iter().flat_map(keys);
            for key in keys.chain(page.claims.iter().flat_map(PaperClaims::keys)) {
                assert_eq!(page.method(&key).key, key, "{paper}");
            }
        }
        assert!(PageDescription::of("none").is_none());
    }

    #[test]
    fn claims_after_the_runs_are_about_runs_there_are() {
        for paper in ["budget", "seeds"] {
            let asked = &PageDescription::of(paper).unwrap().after_runs[paper];
            let experiment = Experiment::parse(experiment_file(paper, "small").unwrap(), paper).unwrap();
            let labels = |experiment: &Experiment, variant: &str| -> Vec<String> {
                let parts = experiment.parts.iter().filter(|part| part.variant == variant);
                parts.flat_map(|part| &part.encodings).map(|encoding| encoding.label()).collect()
            };
            for flips in &asked.order_flips {
                let rates = flips.rates.iter().flat_map(|trainings| &trainings.variants);
                for variant in rates.chain([&flips.first.variant, &flips.last.variant]) {
                    let labels = labels(&experiment, variant);
                    assert!(flips.encodings.iter().all(|label| labels.contains(label)), "{paper} {variant}");
                }
            }
            assert!(!asked.claims.is_empty(), "{paper}");
            for (arm, evaluation) in asked.claims.iter().flat_map(Claim::arms) {
                assert!(labels(&experiment, &arm.variant).contains(&arm.encoding), "{paper}: {arm:?}");
                assert!(experiment.evaluations.contains_key(evaluation), "{paper}: {evaluation}");
            }
        }
    }
}
