//! Counts of what does not follow a rule yet.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::sync::{Mutex, PoisonError};

/// Tests of one program run at the same time, and each rewrites its part of the file.
static REWRITING: Mutex<()> = Mutex::new(());

const FILE: &str = "crates/kerple/tests/language/exceptions.tsv";

/// From a rule and a file to a number.
pub type Counts = BTreeMap<(String, String), usize>;

fn parse(text: &str) -> Counts {
    let entry = |line: &str| {
        let mut fields = line.split('\t');
        let [rule, file, count] = [(); 3].map(|()| fields.next().expect("rule, file and count"));
        ((rule.to_owned(), file.to_owned()), count.parse().expect("a count"))
    };
    text.lines().map(entry).collect()
}

/// The exceptions to rules of a kind: their names begin with `prefix`.
fn of_kind(all: &Counts, prefix: &str) -> Counts {
    all.iter().filter(|((rule, _), _)| rule.starts_with(prefix)).map(|(key, count)| (key.clone(), *count)).collect()
}

/// Checks what was found against the exceptions to rules of a kind; lowers these where `KERPLE_REFRESH` is set.
pub fn check(kind: &str, found: &Counts) {
    let _alone = REWRITING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut all = parse(&super::read(FILE));
    let known = of_kind(&all, kind);
    if std::env::var_os("KERPLE_REFRESH").is_some() {
        all.retain(|(rule, _), _| !rule.starts_with(kind));
        for (key, count) in found {
            all.insert(key.clone(), known.get(key).map_or(0, |known| *known.min(count)));
        }
        all.retain(|_, count| *count > 0);
        let mut text = String::new();
        for ((rule, file), count) in &all {
            writeln!(text, "{rule}\t{file}\t{count}").unwrap();
        }
        fs::write(super::root().join(FILE), text).unwrap();
    }
    let known = of_kind(&all, kind);
    let mut wrong = Vec::new();
    for key in found.keys().chain(known.keys()) {
        let [found, known] = [found, &known].map(|counts| counts.get(key).copied().unwrap_or(0));
        if found > known {
            wrong.push(format!("{}: {} occurs {found} times, allowed are {known}", key.1, key.0));
        } else if found < known {
            wrong.push(format!(
                "{}: {} occurs {found} times, {known} are listed: KERPLE_REFRESH=1 lowers that",
                key.1, key.0
            ));
        }
    }
    wrong.sort();
    wrong.dedup();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
