//! Scripts for a Slurm job array whose tasks are shards, and for the job that makes the pages when all are done.

use super::write_file;
use crate::args::{Invocation, SlurmArray};
use crate::command_error::{CommandError, CommandResult};
use crate::output::{remarkln, resultln};
use kerple_lm::ranks::Ranks;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Name of the folder of the scripts and logs, within that of the runs.
const FOLDER: &str = "slurm";

/// Writes `array.sh`, which is this command without `--slurm` and as a shard, `pages.sh`, which is this program with the
/// arguments `pages`, and `submit.sh`; prints how to submit them, and how many tasks have none of so many runs.
pub fn write_and_print(out: &Path, array: SlurmArray, runs: usize, pages: &[OsString]) -> CommandResult {
    if array.tasks > runs {
        let (tasks, idle) = (array.tasks, array.tasks - runs);
        remarkln!("note: --slurm {tasks}: there are {runs} runs, so {idle} tasks have none");
    }
    let folder = std::path::absolute(out.join(FOLDER)).map_err(|error| CommandError::writing(out, &error))?;
    std::fs::create_dir_all(&folder).map_err(|error| CommandError::writing(&folder, &error))?;
    let here = std::env::current_dir().map_err(|error| {
        CommandError::failed(
            format!("the current folder: {error}"),
            "change \
            to a folder that exists",
        )
    })?;
    let Invocation { program, arguments } = Invocation::of_process();
    let own: Vec<OsString> = without_slurm(arguments.iter().cloned());
    let command = |arguments: &[OsString]| {
        let words = std::iter::once(program.as_os_str()).chain(arguments.iter().map(OsString::as_os_str));
        words.map(quoted).collect::<Vec<_>>().join(" ")
    };
    let place = ScriptFolders { folder: quoted(folder.as_os_str()), here: quoted(here.as_os_str()) };
    for (name, text) in [
        ("array.sh", array_script(&place, array, &command(&own))),
        ("pages.sh", pages_script(&place, &command(pages))),
        ("submit.sh", SUBMIT.to_owned()),
    ] {
        let path = folder.join(name);
        write_file(&path, &text)?;
    }
    resultln!("bash {}", quoted(folder.join("submit.sh").as_os_str()));
    remarkln!(
        "append options of sbatch: --cpus-per-task=8 --time=4:00:00 --partition=NAME; logs are \
        in the same folder"
    );
    Ok(())
}

/// Refuses to write scripts several times at once.
pub fn refuse_ranks(ranks: &Ranks) -> CommandResult {
    match ranks.world_size() {
        1 => Ok(()),
        count => Err(CommandError::misuse(
            format!(
                "--slurm writes scripts in one process, but {count} \
            were started"
            ),
            "run \
            the command without mpirun",
        )),
    }
}

/// Folders as the shell reads them.
struct ScriptFolders {
    folder: String,
    here: String,
}

/// The arguments without `--slurm N`.
fn without_slurm(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut kept = Vec::new();
    let mut value_follows = false;
    for argument in arguments {
        match argument.to_str() {
            _ if value_follows => value_follows = false,
            Some("--slurm") => value_follows = true,
            Some(text) if text.starts_with("--slurm=") => {}
            _ => kept.push(argument),
        }
    }
    kept
}

/// A word that the shell takes as it is.
pub fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.into_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn array_script(
    ScriptFolders { folder, here }: &ScriptFolders,
    SlurmArray { tasks, at_once }: SlurmArray,
    command: &str,
) -> String {
    let limit = at_once.map_or_else(String::new, |most| format!("%{most}"));
    let last = tasks - 1;
    format!(
        r#"#!/usr/bin/env bash
# {tasks} shards of the runs. A shard can be re-run at any time: it skips finished runs and resumes started ones.
#SBATCH --job-name=kerple
#SBATCH --array=0-{last}{limit}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@120
set -u
exec >>{folder}/shard-"$SLURM_ARRAY_TASK_ID".log 2>&1
cd {here} || exit
export KERPLE_THREADS="${{SLURM_CPUS_PER_TASK:-1}}"
{command} --shard "$SLURM_ARRAY_TASK_ID/{tasks}" &
work=$!
# before the time limit Slurm sends TERM: the run is saved and the task is requeued
stopped=
trap 'trap "" TERM; stopped=yes; kill -TERM "$work"' TERM
wait "$work"
status=$?
if [ -n "$stopped" ]; then
    wait "$work"
    status=$?
    if [ "$status" -ne 0 ]; then
        scontrol requeue "$SLURM_JOB_ID"
    fi
fi
exit "$status"
"#
    )
}

fn pages_script(ScriptFolders { folder, here }: &ScriptFolders, command: &str) -> String {
    format!(
        r#"#!/usr/bin/env bash
# Makes tables and figures from the output of the shards.
#SBATCH --job-name=kerple-pages
set -u
exec >>{folder}/pages.log 2>&1
cd {here} || exit
exec {command}
"#
    )
}

const SUBMIT: &str = r#"#!/usr/bin/env bash
# Submits the shards, then the job that makes the pages. Append options of sbatch.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
shards=$(sbatch --parsable --output=/dev/null "$@" "$here/array.sh")
pages=$(sbatch --parsable --output=/dev/null --dependency=afterok:"${shards%%;*}" --kill-on-invalid-dep=yes "$@" "$here/pages.sh")
echo "shards: job ${shards%%;*}, pages: job ${pages%%;*}, logs: $here"
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shell_reads_words_as_they_were() {
        let all = ["plain", "", "a b", "it's", "$HOME", "--set=train.steps=3", "x;y"];
        let script = format!("printf '%s\\n' {}", all.map(|word| quoted(OsStr::new(word))).join(" "));
        let output = std::process::Command::new("sh").arg("-c").arg(script).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap().lines().collect::<Vec<_>>(), all);
    }

    #[test]
    fn the_switch_is_taken_out() {
        let of = |words: &[&str]| without_slurm(words.iter().map(OsString::from));
        assert_eq!(of(&["compare", "--slurm", "4", "--out", "x"]), of(&["compare", "--out", "x"]));
        assert_eq!(of(&["compare", "--slurm=4%2", "--out", "x"]), of(&["compare", "--out", "x"]));
    }
}
