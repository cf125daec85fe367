//! The tasks of `kerple compare --tasks`.

use crate::args::task;
use crate::command_error::CommandError;
use crate::output::remarkln;
use kerple_data::tasks::TaskConfig;
use kerple_lm::config::RunConfig;

/// A task of the suite: its name, its keys, and the training length where that is not the run file's.
type SuiteTask = (&'static str, &'static str, Option<usize>);

/// Tasks of small models, with few enough keys and values to be learned; the first three are quick to learn.
const SUITE: [SuiteTask; 11] = [
    ("flipflop", "{ kind = 'flipflop', ignore = 0.8 }", None),
    ("recall", "{ kind = 'recall', pairs = 4, vocab = 32 }", None),
    ("mqrar", "{ kind = 'mqrar', keys = 4, values = 8 }", None),
    ("niah_words", "{ kind = 'niah_words', digits = 3, keys = 16 }", None),
    ("niah_codes", "{ kind = 'niah_codes', code = 2 }", None),
    ("vt", "{ kind = 'vt', chains = 2, hops = 2, digits = 2, ask = 'value' }", None),
    ("fwe", "{ kind = 'fwe', words = 16 }", None),
    ("mqrar_back_2", "{ kind = 'mqrar', keys = 4, values = 8, back = 2 }", None),
    ("selective_copy", "{ kind = 'selective_copy', copy = 8 }", None),
    // states over time need depth that grows with the length
    ("group_z2", "{ kind = 'group', group = 'z2' }", Some(16)),
    ("group_s3", "{ kind = 'group', group = 's3' }", Some(16)),
];

/// How many of them `quick` has.
const QUICK: usize = 3;

/// Refuses keys on the command line that the tasks replace.
///
/// # Errors
/// The first of them.
pub fn check_replaced(set: &[String]) -> Result<(), CommandError> {
    let is_task = |set: &&String| ["data=", "data.task=", "data.task."].iter().any(|start| set.starts_with(start));
    match set.iter().find(is_task) {
        None => Ok(()),
        Some(set) => {
            let hint = "omit it; without --tasks `kerple compare` trains on a task of your own";
            Err(CommandError::misuse(format!("--set {set}: --tasks replaces the task"), hint))
        }
    }
}

/// The settings of each task that is asked for, by name.
///
/// # Errors
/// Names that mean nothing or are given twice, a run file with a text.
pub fn configs(names: &[String], config: &RunConfig) -> Result<Vec<(String, RunConfig)>, CommandError> {
    if !config.data.path.as_os_str().is_empty() {
        return Err(CommandError::misuse(
            format!("--tasks replaces the data of the run file, which is {}", config.data.path.display()),
            "omit data.path from the run file, or omit --tasks",
        ));
    }
    let mut found: Vec<(String, RunConfig)> = Vec::new();
    for name in names {
        let asked = match name.as_str() {
            "quick" => SUITE[..QUICK].to_vec(),
            "standard" => SUITE.to_vec(),
            _ => SUITE.into_iter().filter(|(known, ..)| known == name).collect(),
        };
        if asked.is_empty() {
            let known: Vec<&str> = SUITE.iter().map(|(name, ..)| *name).collect();
            return Err(CommandError::misuse(
                format!("--tasks {name}: unknown task"),
                format!("use quick, standard, or some of {}", known.join(", ")),
            ));
        }
        for (name, keys, train_len) in asked {
            if found.iter().any(|(known, _)| known == name) {
                return Err(CommandError::misuse(format!("--tasks: `{name}` is given twice"), "give each task once"));
            }
            let mut of_task = config.clone();
            of_task.data.task = Some(keys_of(keys));
            if let Some(own) = train_len.filter(|own| *own != config.train.train_len) {
                remarkln!("note: {name} trains on sequences of {own} tokens, not of {}", config.train.train_len);
                of_task.train.train_len = own;
            }
            found.push((name.to_owned(), of_task));
        }
    }
    Ok(found)
}

fn keys_of(keys: &str) -> TaskConfig {
    task(keys).expect("the keys of the suite are valid")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str], run: &str) -> Result<Vec<(String, RunConfig)>, CommandError> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        configs(&names, &RunConfig::parse(run, "run.toml", &[]).unwrap())
    }

    #[test]
    fn suites_and_names_are_tasks_of_their_own_keys() {
        let run = "encoding.kind = 'alibi'\ntrain.train_len = 64\ndata.task = 'passkey'";
        let all = named(&["standard"], run).unwrap();
        assert_eq!(all.len(), 11);
        let quick = named(&["quick"], run).unwrap();
        assert_eq!(quick[..], all[..3]);
        for (at, (name, config)) in all.iter().enumerate() {
            let facts = config.data.task.as_ref().unwrap().facts();
            assert!(facts.shortest <= config.train.train_len, "{name}");
            assert!(name.starts_with(&facts.name), "{name} is {}", facts.name);
            assert!(all[..at].iter().all(|(_, other)| other.data.task != config.data.task), "{name}");
        }
        let lengths: Vec<usize> =
            named(&["mqrar", "group_s3"], run).unwrap().iter().map(|(_, config)| config.train.train_len).collect();
        assert_eq!(lengths, [64, 16]);
    }

    #[test]
    fn what_is_no_task_is_refused() {
        let run = "encoding.kind = 'alibi'\ndata.task = 'passkey'";
        for (names, run, part) in [
            (&["passkeys"][..], run, "--tasks passkeys: unknown task"),
            (&["quick", "recall"], run, "`recall` is given twice"),
            (
                &["quick"],
                "encoding.kind = 'alibi'\ndata.path = 'web'",
                "replaces the data of the run file, which is web",
            ),
        ] {
            let error = named(names, run).unwrap_err().message;
            assert!(error.contains(part), "{error}");
        }
    }
}
