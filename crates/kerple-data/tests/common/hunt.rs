//! The harness of all tests of damaged and lying files, those of `kerple-lm` and `kerple-conformance` too: good files are changed,
//! and reading them ends with an error in words or a success, never with a panic, and takes no more than it may.
#![allow(dead_code, reason = "each test program takes what it needs")]

#[path = "change.rs"]
mod change;
#[path = "mod.rs"]
pub mod counting;

use change::{apply, change};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: counting::Counting = counting::Counting;

/// What a reader that refuses says: the message and the hint.
pub type Said = (String, String);

/// Far beyond what reading takes on a busy machine.
const LONGEST: Duration = Duration::from_secs(20);

/// The allocations of one test at a time are counted.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(|broken| broken.into_inner())
}

/// How a hunt of so many cases goes; `PROPTEST_CASES` makes a longer one.
pub fn config(cases: u32) -> Config {
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { Config::default().cases } else { cases };
    Config { cases, failure_persistence: None, max_shrink_iters: 200, ..Config::default() }
}

/// Runs what reads a file, which may take `most` bytes; `true` where it is not refused.
pub fn check(name: &str, most: usize, read: impl FnOnce() -> Result<(), Said>) -> bool {
    let clock = Instant::now();
    let (result, taken) = counting::most(read);
    assert!(taken < most, "{name}: {} MiB", taken >> 20);
    assert!(clock.elapsed() < LONGEST, "{name}: {:?}", clock.elapsed());
    if let Err((message, hint)) = &result {
        let steers = |text: &str| text.chars().any(|letter| letter.is_control() && letter != '\n');
        assert!(!message.is_empty() && !hint.is_empty() && !steers(message) && !steers(hint), "{name}: {result:?}");
    }
    result.is_ok()
}

/// Changes a good file in many ways; `read` says whether it is still good.
pub fn hunt(name: &str, good: &[u8], cases: u32, read: &dyn Fn(&[u8]) -> bool) {
    assert!(read(good), "{name} is good");
    let found = TestRunner::new(config(cases)).run(&prop::collection::vec(change(), 1..4), |changes| {
        let mut bytes = good.to_vec();
        changes.iter().for_each(|change| apply(&mut bytes, change));
        let survived = catch_unwind(AssertUnwindSafe(|| read(&bytes)));
        prop_assert!(survived.is_ok(), "keep {}", bytes.escape_ascii());
        Ok(())
    });
    found.unwrap_or_else(|error| panic!("{name}: {error}"));
}

/// Tells values that differ from `value` in one lie, and what the lie is: every `step`-th of all there are.
pub fn lie(value: &Value, step: usize, tell: &mut dyn FnMut(&Value, &str)) {
    let mut places = Vec::new();
    leaves(value, "", &mut places);
    let of_place = |place: String| {
        let lies = lies(value.pointer(&place).expect("a leaf"));
        lies.into_iter().map(move |lie| (place.clone(), lie))
    };
    let all: Vec<(String, Value)> = places.into_iter().flat_map(of_place).collect();
    for (place, lie) in all.into_iter().step_by(step) {
        let mut changed = value.clone();
        *changed.pointer_mut(&place).expect("a leaf") = lie.clone();
        tell(&changed, &format!("{place}: {lie}"));
    }
}

/// Where values stand that are no objects and no lists, the first of each list alone.
fn leaves(value: &Value, place: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(keys) => keys.iter().for_each(|(key, value)| {
            let key = key.replace('~', "~0").replace('/', "~1");
            leaves(value, &format!("{place}/{key}"), found);
        }),
        Value::Array(items) => items.iter().take(1).for_each(|item| leaves(item, &format!("{place}/0"), found)),
        _ => found.push(place.to_owned()),
    }
}

/// What may stand in the place of a value.
fn lies(good: &Value) -> Vec<Value> {
    let numbers = [0, 1, 1 << 20, 1 << 31, 1 << 32, 1 << 40, 1u64 << 63];
    if good.is_string() {
        return ["", "../victim", "/victim"].map(Value::from).into();
    }
    let mut all: Vec<Value> = numbers.map(Value::from).into();
    all.extend([json!(-1e4), json!(1e308), json!("inf")]);
    all
}

/// Makes every number 0.
pub fn zero(value: &mut Value) {
    match value {
        Value::Object(keys) => keys.values_mut().for_each(zero),
        Value::Array(items) => items.iter_mut().for_each(zero),
        Value::Number(number) => *number = 0.into(),
        _ => {}
    }
}
