//! Faults at system calls on the run folder, put there by `strace`: the call fails with an error, or the process ends in it.

use super::{check_equal, train_with};
use crate::common::{Place, lacks};
use std::collections::HashMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

/// Calls that read, write or move what a run folder holds. Those with `?` do not exist on every machine.
const CALLS: &str = "openat,statx,read,write,lseek,fsync,fdatasync,ftruncate,flock,getdents64,unlinkat,?unlink,?mkdir,\
                     ?mkdirat,?rename,?renameat,?renameat2,?rmdir";

/// What happens at a call.
const FAULTS: [&str; 3] = ["signal=KILL", "error=ENOSPC", "error=EIO"];

const RUN: &str = "disturbed";
const STEPS: u64 = 24;

/// A system call: its name, and the how manieth of that name it is in its process.
#[derive(Clone, Debug)]
struct Call {
    name: String,
    nth: usize,
}

fn train(out: &str) -> Vec<&str> {
    train_with(out, ["train.steps=24", "train.save_interval=4"])
}

fn eval(run: &str) -> [&str; 8] {
    ["eval", run, "--lengths", "16,64", "--n-segments", "4", "--protocol", "nonoverlapping"]
}

fn traced(place: &Place, options: &[&str], arguments: &[&str]) -> Output {
    let mut command = Command::new("strace");
    command.args(["-f", "--seccomp-bpf", "-qq"]).args(options).arg(env!("CARGO_BIN_EXE_kerple")).args(arguments);
    command.current_dir(place.path("")).output().unwrap()
}

/// Runs a command undisturbed; returns its calls on the run folder, in their order.
fn calls(place: &Place, arguments: &[&str]) -> Vec<Call> {
    let output = traced(place, &["-y", "-o", "calls", "-e", &format!("trace={CALLS}")], arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&fs::read(place.path("calls")).unwrap()).into_owned();
    // files are the main thread's business; it is the first that is seen
    let main = text.split_whitespace().next().unwrap().to_owned();
    let (mut counts, mut found) = (HashMap::new(), Vec::new());
    for line in text.lines() {
        let Some((thread, call)) = line.split_once(' ') else { continue };
        let call = call.trim_start();
        // lines that begin otherwise are the ends of calls that are counted already
        let Some((name, rest)) = call.split_once('(').filter(|(name, _)| !name.contains(['<', ' '])) else { continue };
        if thread != main {
            continue;
        }
        let nth = counts.entry(name.to_owned()).or_insert(0);
        *nth += 1;
        if rest.contains(RUN) {
            found.push(Call { name: name.to_owned(), nth: *nth });
        }
    }
    found
}

/// Runs a command with a fault at one call; whether the fault made it end before its time.
fn disturb(place: &Place, arguments: &[&str], call: &Call, fault: &str) -> bool {
    let Call { name, nth } = call;
    let inject = format!("inject={name}:{fault}:when={nth}");
    let output = traced(place, &["-o", "/dev/null", "-e", &format!("trace={name}"), "-e", &inject], arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    match (output.status.code(), output.status.signal()) {
        (Some(0), _) => return false,
        (Some(1 | 2), _) => assert!(stderr.contains("error: ") && stderr.contains("\n\nhint: "), "{inject}\n{stderr}"),
        (None, Some(libc::SIGKILL)) => {}
        other => panic!("{inject}: {other:?}\n{stderr}"),
    }
    true
}

/// Where the checkpoints could not be looked for, a finished run was once trained again from nothing.
#[test]
fn a_disk_that_does_not_answer_is_no_empty_folder() {
    if lacks("strace") {
        return;
    }
    let place = Place::new();
    place.make_data();
    place.ok(&train(RUN));
    let before = place.read(format!("{RUN}/metrics.jsonl"));
    for path in ["checkpoints", "plan.json"] {
        let path = format!("{RUN}/{path}");
        let options = ["-o", "/dev/null", "-P", &path, "-e", "trace=statx", "-e", "inject=statx:error=EIO"];
        let output = traced(&place, &options, &train(RUN));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{path}\n{stderr}");
        assert!(stderr.contains(&format!("error: {path}: cannot look for")), "{path}\n{stderr}");
    }
    assert_eq!(place.read(format!("{RUN}/metrics.jsonl")), before);
}

/// Rounds of four faults each: two in a training from nothing, one when it goes on, one in its evaluation.
/// `KERPLE_FAULTS` says how many rounds.
#[test]
fn faults_at_system_calls_change_nothing() {
    if lacks("strace") {
        return;
    }
    let rounds = std::env::var("KERPLE_FAULTS").map_or(24, |rounds| rounds.parse().expect("a number of rounds"));
    let place = Place::new();
    place.make_data();
    place.ok(&train("whole"));
    place.ok(&eval("whole"));
    let (training, evaluation) = (calls(&place, &train(RUN)), calls(&place, &eval(RUN)));
    check_equal(&place, RUN, STEPS);
    assert!(training.len() > 100 && evaluation.len() > 10, "{} and {} calls", training.len(), evaluation.len());

    let mut state = 20_261_121u64;
    let mut draw = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let mut ended = 0;
    for round in 0..rounds {
        fs::remove_dir_all(place.path(RUN)).unwrap();
        let mut said = Vec::new();
        // a training that goes on makes fewer calls, so the later faults are drawn among the earlier calls
        for within in [training.len(), training.len() / 2, training.len() / 4] {
            let (call, fault) = (&training[draw(within)], FAULTS[draw(FAULTS.len())]);
            said.push(format!("{fault} at {call:?}"));
            ended += usize::from(disturb(&place, &train(RUN), call, fault));
        }
        place.ok(&train(RUN));
        let (call, fault) = (&evaluation[draw(evaluation.len())], FAULTS[draw(FAULTS.len())]);
        said.push(format!("{fault} at {call:?} of the evaluation"));
        ended += usize::from(disturb(&place, &eval(RUN), call, fault));
        place.ok(&eval(RUN));
        println!("round {round}: {}", said.join(", "));
        check_equal(&place, RUN, STEPS);
    }
    assert!(ended >= rounds, "{ended} faults of {} rounds ended the command", rounds);
}
