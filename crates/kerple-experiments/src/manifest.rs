//! The manifest of a reproduction: the planned runs and their texts. It is written before the first
//! run, so tables can show what is missing, and pages need only the folder.

use crate::claim::Claim;
use crate::error::{Error, Result};
use kerple_report::Run;
use kerple_run::{ANSWERS, DocumentMask, EvaluationRow, MANIFEST_FILE, ScoredText, Within, check_length, read_json};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path, PathBuf};

/// A reproduction of a paper.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Short name of the paper: `kerple`.
    pub paper: String,
    /// `smoke`, `small` or `paper`.
    pub scale: String,
    /// Title of the page.
    pub title: String,
    /// What differs from the paper, in sentences.
    pub about: String,
    /// Texts, in the paper's order.
    pub corpora: Vec<CorpusFacts>,
    /// Ways to evaluate, by name.
    pub evaluations: BTreeMap<String, EvaluationFacts>,
    /// Pre-registered claims, where the experiment is the project's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<Claim>,
    /// Every run, in the order of execution.
    pub runs: Vec<PlannedRun>,
}

/// A text of a reproduction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CorpusFacts {
    /// Short name.
    pub name: String,
    /// The paper's name for it.
    pub title: String,
    /// What stands for it here.
    pub texts: String,
    /// Tokenizer, as it is named when text is prepared.
    pub tokenizer: String,
    /// Tokens the tokenizer knows, once the text is prepared.
    #[serde(default)]
    pub vocab_size: Option<u64>,
    /// Documents, tokens and bytes of text by split, once the text is prepared.
    #[serde(default)]
    pub splits: BTreeMap<String, SplitFacts>,
    /// An example of a task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub example: Option<TaskExample>,
    /// Share of right answers of a guess in a task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chance: Option<f64>,
}

impl CorpusFacts {
    /// Whether it is a task instead of a text.
    pub fn is_task(&self) -> bool {
        self.tokenizer.is_empty()
    }
}

/// An example of a task, as token numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskExample {
    /// The sequence.
    pub input: Vec<u32>,
    /// What is answered.
    pub answer: Vec<u32>,
}

/// What a split holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitFacts {
    /// Documents.
    pub documents: u64,
    /// Tokens.
    pub tokens: u64,
    /// Bytes of text.
    pub bytes: u64,
}

/// How runs are evaluated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvaluationFacts {
    /// Protocol.
    pub protocol: String,
    /// Tokens a segment of the text.
    pub span: u64,
    /// Segments of the text.
    pub segments: u64,
    /// Lengths, in tokens.
    pub lengths: Vec<u64>,
    /// Whether documents attend to each other; absent: as the runs were trained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub documents: Option<DocumentMask>,
    /// Where segments are.
    #[serde(default, skip_serializing_if = "Within::is_split")]
    pub within: Within,
    /// Keys a query may see, where the evaluation restricts them.
    #[serde(default)]
    pub window: Option<u64>,
    /// Other rotary rates that runs which rotate are evaluated with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rope_scaling: Option<String>,
    /// Whether the loss at every position is kept.
    #[serde(default)]
    pub positions: bool,
    /// Another task than that of the runs, on which they are evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<EvaluatedTask>,
    /// The runs that choose key tokens, of the same corpus.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evaluators: Vec<NamedRun>,
}

/// A run of an experiment, by what tells it from the others of its corpus.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedRun {
    /// Label of its encoding.
    pub encoding: String,
    /// What is trained otherwise than usual; empty for the usual runs.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub variant: String,
    /// Its seed.
    pub seed: u64,
}

impl NamedRun {
    /// Its folder, from that of the reproduction.
    pub fn folder(&self, corpus: &str) -> PathBuf {
        let runs = PathBuf::from(runs_folder(corpus, &self.variant));
        runs.join(&self.encoding).join(format!("seed-{}", self.seed))
    }
}

impl fmt::Display for NamedRun {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let NamedRun { encoding, variant, seed } = self;
        let variant = if variant.is_empty() { String::new() } else { format!(", variant `{variant}`") };
        write!(f, "`{encoding}`{variant}, seed {seed}")
    }
}

/// A task on which runs of another one are evaluated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvaluatedTask {
    /// Its name, or its `kind` and keys.
    pub keys: Value,
    /// Checksum of its sequences, as rows have it.
    pub content: String,
}

impl fmt::Display for EvaluatedTask {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Value::Object(keys) = &self.keys else { return f.write_str(self.keys.as_str().unwrap_or("another task")) };
        f.write_str(keys.get("kind").and_then(Value::as_str).unwrap_or("another task"))?;
        let others = keys.iter().filter(|(key, _)| *key != "kind");
        others
            .enumerate()
            .try_for_each(|(at, (key, value))| write!(f, "{} {key} {value}", if at == 0 { " with" } else { "," }))
    }
}

impl EvaluationFacts {
    /// Whether a row of a run is this evaluation: of its last step, on the test text of its seed, and as is said here.
    pub(crate) fn is_of(&self, run: &Run, row: &EvaluationRow) -> bool {
        // segments of a task are its sequences
        let (protocol, span) = match row.task {
            Some(_) => (ANSWERS, row.eval_len),
            None => (self.protocol.as_str(), self.span),
        };
        let ScoredText { segment_len, n_segments, seed, within, .. } = row.text;
        // whole documents are no sequences of several
        let trained = if protocol.starts_with("rolling") { DocumentMask::Joined } else { run.documents() };
        let is_window = match self.window {
            None => run.window_of(row).is_none(),
            asked => row.window == asked,
        };
        let is_scaling = match &self.rope_scaling {
            None => run.scaling_of(row).is_none(),
            asked => row.rope_scaling == *asked,
        };
        let is_task = row.task.is_none() || self.content(run).is_none_or(|content| row.text.checksum == content);
        let chosen_by = row.key_tokens.iter().flat_map(|keys| &keys.evaluators);
        let is_chosen = chosen_by
            .map(|by| (by.label.as_str(), by.seed))
            .eq(self.evaluators.iter().map(|by| (by.encoding.as_str(), by.seed)));
        (row.protocol.as_str(), row.split.as_str()) == (protocol, "test")
            && is_task
            && is_chosen
            && self.lengths.contains(&row.eval_len)
            && (segment_len, n_segments, Some(seed)) == (span, self.segments, run.seed())
            && within == self.within
            && Some(row.step) == run.last_step()
            && is_window
            && is_scaling
            && row.documents == self.documents.unwrap_or(trained)
    }

    /// Checksum of the sequences of a task that this evaluation has for a run: those of its own task, unless another one is named.
    fn content<'a>(&'a self, run: &'a Run) -> Option<&'a str> {
        match &self.task {
            Some(task) => Some(&task.content),
            None => own_content(run),
        }
    }
}

/// Checksum of what a run learned.
pub(crate) fn own_content(run: &Run) -> Option<&str> {
    run.plan.keys.get("data_info")?.get("content")?.as_str()
}

/// A run that is to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedRun {
    /// Its folder, from that of the reproduction.
    pub folder: PathBuf,
    /// Name of its corpus.
    pub corpus: String,
    /// What is trained otherwise than usual; empty for the usual runs.
    #[serde(default)]
    pub variant: String,
    /// Label of its encoding.
    pub label: String,
    /// Its seed.
    pub seed: u64,
    /// Tokens of a training sequence; absent in manifests of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train_len: Option<u64>,
    /// Names of its evaluations.
    pub evaluate: Vec<String>,
    /// Names of its probes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub probe: Vec<String>,
    /// Tables and figures that need it.
    pub serves: Vec<String>,
    /// The hashes of its plan, where keys of the plan were renamed after its rows were computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_hash: Option<PlanHash>,
}

/// The hashes of one plan before and after its keys were renamed: its values, and so its rows, are the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanHash {
    /// The hash in `plan.json`.
    pub now: String,
    /// The hash that the plan had when its rows were computed.
    pub computed_under: String,
}

impl Manifest {
    /// Reads the manifest of a folder.
    ///
    /// # Errors
    /// A folder without one, or one that is damaged: names and folders that lead out of the folder, and lengths out of range,
    /// are damage.
    pub fn read(folder: &Path) -> Result<Manifest> {
        Manifest::find(folder)?.ok_or_else(|| {
            let message = format!("{} is not a reproduction, {MANIFEST_FILE} is missing", folder.display());
            Error::refused(message, "give the --out folder of `kerple reproduce`")
        })
    }

    /// Reads the manifest of a folder that may have none.
    ///
    /// # Errors
    /// As [`Manifest::read`]; a disk that does not answer.
    pub fn find(folder: &Path) -> Result<Option<Manifest>> {
        let path = folder.join(MANIFEST_FILE);
        let Some(manifest) = Error::unless_absent(read_json::<Manifest>(&path))? else {
            return Ok(None);
        };
        let hint = "copy the folder again: the file was edited, or another program wrote it";
        manifest.check().map_err(|message| Error::damaged(&path, message, hint))?;
        Ok(Some(manifest))
    }

    /// Refuses invalid values before a path or an array is computed from them.
    fn check(&self) -> std::result::Result<(), String> {
        for CorpusFacts { name, .. } in &self.corpora {
            check_name(name).map_err(|reason| format!("corpora: the name `{name}` {reason}"))?;
        }
        for (name, facts) in &self.evaluations {
            let of = |reason: String| format!("evaluations.{name}.lengths: {reason}");
            facts.lengths.iter().try_for_each(|length| check_length(*length).map(drop).map_err(of))?;
        }
        for claim in &self.claims {
            let of = |reason: String| format!("claims: `{}`: {reason}", claim.text);
            claim
                .lengths
                .iter()
                .chain(&claim.from)
                .try_for_each(|length| check_length(*length).map(drop).map_err(of))?;
        }
        for (name, facts) in &self.evaluations {
            for part in
                facts.evaluators.iter().flat_map(|run| [&run.encoding, &run.variant]).filter(|part| !part.is_empty())
            {
                let is_inside = Path::new(part).components().all(|part| matches!(part, Component::Normal(_)));
                if !is_inside || part.contains('/') {
                    return Err(format!("evaluations.{name}.evaluators: the name `{part}` is not a valid folder name"));
                }
            }
        }
        for PlannedRun { folder, corpus, variant, .. } in &self.runs {
            let stays =
                !folder.as_os_str().is_empty() && folder.components().all(|part| matches!(part, Component::Normal(_)));
            if !stays {
                return Err(format!(
                    "runs: the folder `{}` is outside the folder of the reproduction",
                    folder.display()
                ));
            }
            for name in [corpus, variant].into_iter().filter(|name| !name.is_empty()) {
                check_name(name).map_err(|reason| format!("runs: the name `{name}` {reason}"))?;
            }
        }
        Ok(())
    }

    /// The corpus of this name.
    pub fn corpus(&self, name: &str) -> Option<&CorpusFacts> {
        self.corpora.iter().find(|corpus| corpus.name == name)
    }

    /// The runs that choose key tokens on a corpus, by their folders.
    pub fn evaluators<'a>(&'a self, corpus: &'a str) -> impl Iterator<Item = PathBuf> + 'a {
        let asked = self.runs.iter().filter(move |run| run.corpus == corpus).flat_map(|run| &run.evaluate);
        asked
            .filter_map(|name| self.evaluations.get(name))
            .flat_map(move |facts| facts.evaluators.iter().map(move |evaluator| evaluator.folder(corpus)))
    }

    /// Leaves of a run's rows those of its evaluations, none where it is not planned, and of what else was measured that of
    /// its last step and seed.
    pub(crate) fn keep_asked(&self, (corpus, variant): (&str, &str), run: &mut Run) {
        let mut planned = self.of(corpus, variant);
        let planned = planned.find(|planned| planned.label == run.label() && Some(planned.seed) == run.seed());
        let names = planned.iter().flat_map(|planned| &planned.evaluate);
        let asked: Vec<&EvaluationFacts> = names.filter_map(|name| self.evaluations.get(name)).collect();
        let mut rows = std::mem::take(&mut run.evaluations);
        rows.retain(|row| asked.iter().any(|facts| facts.is_of(run, row)));
        run.evaluations = rows;
        let (steps, seed) = (run.last_step(), run.seed());
        run.probes.retain(|row| (Some(row.step), Some(row.text.seed)) == (steps, seed));
    }

    /// Runs of a corpus and variant, whatever their encoding and seed.
    pub fn of<'a>(&'a self, corpus: &'a str, variant: &'a str) -> impl Iterator<Item = &'a PlannedRun> {
        self.runs.iter().filter(move |run| run.corpus == corpus && run.variant == variant)
    }
}

/// Refuses a name that is more, or less, than a part of a file's name.
fn check_name(name: &str) -> std::result::Result<(), &'static str> {
    let is_plain = |character: char| character.is_alphanumeric() || "_-.".contains(character);
    match name {
        "" | "." | ".." => Err("is not a valid folder name"),
        _ if name.chars().all(is_plain) => Ok(()),
        _ => Err("contains other characters than letters, digits, `_`, `-` and `.`"),
    }
}

/// The folder of the runs of a corpus and variant, from that of the reproduction.
pub fn runs_folder(corpus: &str, variant: &str) -> String {
    if variant.is_empty() { corpus.to_owned() } else { format!("{corpus}-{variant}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A manifest of one run, whose corpus, folder and only length are given.
    fn write(corpus: &str, folder: &str, length: u64) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let manifest = serde_json::json!({"paper": "spe", "scale": "smoke", "title": "", "about": "",
            "corpora": [{"name": corpus, "title": "", "texts": "", "tokenizer": "byte"}],
            "evaluations": {"all": {"protocol": "segments", "span": 8, "segments": 2, "lengths": [length]}},
            "runs": [{"folder": folder, "corpus": corpus, "label": "t5", "seed": 1, "evaluate": ["all"], "serves": []}]});
        std::fs::write(root.path().join(MANIFEST_FILE), manifest.to_string()).unwrap();
        root
    }

    #[test]
    fn nothing_leads_out_of_the_folder_and_no_length_is_out_of_range() {
        assert!(Manifest::read(write("web", "web/t5/seed-1", 8).path()).is_ok());
        assert_eq!(Manifest::find(&std::env::temp_dir().join("nowhere")).unwrap(), None);
        for (corpus, folder, length, part) in [
            ("web", "../victim", 8, "`../victim` is outside"),
            ("web", "web/../../victim", 8, "is outside"),
            ("web", "/victim", 8, "`/victim` is outside"),
            ("web", "", 8, "is outside"),
            ("web/../../y", "web", 8, "`web/../../y` contains other characters"),
            ("..", "web", 8, "`..` is not a valid"),
            ("web", "web", 0, "evaluations.all.lengths: a length of 0 tokens"),
            ("web", "web", 1 << 40, "between 1 and 4294967296"),
        ] {
            let error = Manifest::read(write(corpus, folder, length).path()).unwrap_err();
            assert!(matches!(error, Error::Damaged { .. }), "{error}");
            assert!(error.to_string().contains(part) && error.to_string().contains(MANIFEST_FILE), "{error}");
        }
    }

    #[test]
    fn folders_of_runs_are_named_by_corpus_and_variant() {
        assert_eq!(runs_folder("arxiv", "twice"), "arxiv-twice");
    }
}
