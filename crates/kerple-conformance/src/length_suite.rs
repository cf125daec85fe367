//! Tasks with known answers: [`solve`] finds every answer from the tokens alone and shares no code with the generators. Reference
//! values show that it is right, and the examples of this version are solved with it.

mod key_tokens;
mod reach;
mod ruler;

use crate::case::Case;
use crate::{CaseComparison, CaseResult, CaseRunner, Checked};
use kerple_data::Split;
use kerple_data::tasks::{ExampleId, TaskConfig};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::{Component, Path};

/// Examples of a case that are drawn here and solved.
const DRAWN: u64 = 8;

/// What runs a case.
pub fn runner(case: &Case) -> Option<CaseRunner> {
    match case.get("op").as_str()? {
        "effective_length" => Some(reach::of_one),
        "paired_lengths" => Some(reach::of_two),
        "key_perplexity" => Some(key_tokens::of_one),
        "key_perplexity_pooled" => Some(key_tokens::of_several),
        "string_match_all" | "string_match_part" => Some(ruler::string_match),
        "ruler_effective" => Some(ruler::effective),
        "task_example" => Some(run),
        _ => None,
    }
}

fn run(case: &Case) -> CaseResult {
    let (name, keys) = (case.get("method").as_str().ok_or("the case has no method")?, case.get("keys"));
    let length = case.size("L")?;
    let example = named(case, "example", "examples")?;
    let [input, targets] = ["input", "targets"].map(|key| tokens(&example[key], key));
    let (input, targets) = (input?, targets?);
    let scored: Vec<bool> = serde_json::from_value(example["scored"].clone()).map_err(|error| error.to_string())?;
    let mut solver = CaseComparison::new("solver");
    // associative recall does not mark its questions
    let marks = (name == "recall").then_some(&scored[..]);
    solver.equal("length", input.len(), length);
    solver.equal("answers", solve(name, keys, &input, marks)?, answers(&targets, &scored));

    let mut drawn = CaseComparison::new("generator");
    let mut config = keys.clone();
    config["kind"] = json!(name);
    let task: TaskConfig = serde_json::from_value(config).map_err(|error| error.to_string())?;
    let examples = task.open(None).map_err(|error| error.to_string())?;
    for index in 0..DRAWN {
        let place = ExampleId { split: Split::Test, seed: 1, index };
        let own = examples.example(place, length).map_err(|error| error.to_string())?;
        let marks = (name == "recall").then_some(&own.scored[..]);
        drawn.equal("length", own.input.len(), length);
        drawn.equal("answers", solve(name, keys, &own.input, marks)?, answers(&own.targets, &own.scored));
    }
    Ok(vec![solver, drawn])
}

/// What a case names as an example, or another kind of thing, of a list in a file next to the manifest.
fn named(case: &Case, kind: &str, list: &str) -> Checked<Value> {
    let inputs = case.get("inputs");
    let id = &inputs.get("input").unwrap_or(inputs)[kind];
    if !id.is_string() {
        return Err(format!("inputs name no {kind}"));
    }
    listed(case, list, id)
}

/// The member of a list with this id, in the file that a case names.
fn listed(case: &Case, list: &str, id: &Value) -> Checked<Value> {
    let inputs = case.get("inputs");
    let Some(file) = inputs.get("input").unwrap_or(inputs)["file"].as_str() else {
        return Err("inputs name no file".to_owned());
    };
    if Path::new(file).components().ne([Component::Normal(file.as_ref())]) {
        return Err(format!("`{file}` is not a file in the folder of the manifest"));
    }
    let all = case.folder.beside(file)?.ok_or_else(|| format!("{file} is missing"))?;
    let mut listed = all[list].as_array().into_iter().flatten();
    listed.find(|one| one["id"] == *id).cloned().ok_or_else(|| format!("{file} has no {id} among its {list}"))
}

fn tokens(value: &Value, key: &str) -> Checked<Vec<usize>> {
    serde_json::from_value(value.clone()).map_err(|error| format!("{key}: {error}"))
}

/// Places and values of the targets that count.
type Answers = Vec<(usize, usize)>;

fn answers<T: Copy + TryInto<usize>>(targets: &[T], scored: &[bool]) -> Answers {
    let value = |target: T| target.try_into().unwrap_or(usize::MAX);
    targets
        .iter()
        .zip(scored)
        .enumerate()
        .filter(|(_, (_, scored))| **scored)
        .map(|(at, (t, _))| (at, value(*t)))
        .collect()
}

/// The answers of a task with these keys to some tokens.
fn solve<T: Copy + TryInto<usize>>(name: &str, keys: &Value, input: &[T], marks: Option<&[bool]>) -> Checked<Answers> {
    let input: Vec<usize> = input.iter().map(|token| (*token).try_into().unwrap_or(usize::MAX)).collect();
    let number = |key: &str| crate::case::size(&keys[key], key);
    Ok(match name {
        "passkey" => asked(&input, &[10], &[11], number("digits")?)?,
        "niah_single" | "niah_words" => {
            let digits = number("digits")?;
            let key = input.len().checked_sub(digits).ok_or("too short")?;
            asked(&input, &[10, input[key]], &[11, input[key]], digits)?
        }
        "niah_codes" => {
            let (symbols, code) = (number("symbols")?, number("code")?);
            let key = input.len().checked_sub(2 * code - 1).ok_or("too short")?;
            let key = &input[key..key + code];
            asked(&input, &[&[symbols], key].concat(), &[&[symbols + 1], key].concat(), code)?
        }
        "recall" => {
            let pairs = &input[..2 * number("pairs")?];
            let value = |at: usize| pairs.chunks(2).find(|pair| pair[0] == input[at]).map(|pair| pair[1]);
            let asked = marks.into_iter().flatten().enumerate().filter(|(_, scored)| **scored);
            asked
                .map(|(at, _)| value(at).map(|value| (at, value)).ok_or("an unknown key".to_owned()))
                .collect::<Checked<_>>()?
        }
        "mqrar" => {
            let (mut slots, back) = (input.iter().copied().enumerate().skip(input.len() % 2), number("back")?);
            let (mut all, mut found) = (Vec::new(), Vec::new());
            while let (Some((_, first)), Some((at, second))) = (slots.next(), slots.next()) {
                if first != 0 {
                    all.push((first, second));
                    continue;
                }
                let values: Vec<usize> =
                    all.iter().filter(|(key, _)| *key == second).map(|(_, value)| *value).collect();
                let place = values.len().checked_sub(back).ok_or("a key is asked for too early")?;
                found.push((at, values[place]));
            }
            found
        }
        "flipflop" => {
            let written =
                |end: usize| input[..end].chunks(2).rev().find(|pair| pair[0] == 0).and_then(|pair| pair.get(1));
            let reads = (0..input.len()).step_by(2).filter(|at| input[*at] == 1);
            reads
                .map(|at| written(at).map(|bit| (at, *bit)).ok_or("nothing is written".to_owned()))
                .collect::<Checked<_>>()?
        }
        "selective_copy" => {
            let (content, copy) = (number("content")?, number("copy")?);
            let mark = input.iter().position(|token| *token == content + 1).ok_or("no mark")?;
            let copied: Vec<usize> = input[..mark].iter().copied().filter(|token| *token < content).collect();
            let first = mark + usize::from(keys["answer"] == "blanks");
            if copied.len() != copy {
                return Err(format!("{} tokens to copy", copied.len()));
            }
            copied.into_iter().enumerate().map(|(at, token)| (first + at, token)).collect()
        }
        "vt" => chain(&input, number("digits")?, number("hops")?, keys["ask"] == "value")?,
        "fwe" => {
            let counts = counts(&input);
            let mut words: Vec<usize> = counts.keys().copied().filter(|word| *word > 1).collect();
            words.sort_by_key(|word| std::cmp::Reverse(counts[word]));
            behind(&input, 0, &words[..number("answers")?])?
        }
        "cwe" => {
            let counts = counts(&input);
            let most = counts.iter().filter(|(word, _)| **word > 1).map(|(_, count)| *count).max().unwrap_or(0);
            let mut words = Vec::new();
            for word in &input {
                if counts.get(word) == Some(&most) && *word > 1 && !words.contains(word) {
                    words.push(*word);
                }
            }
            if words.len() != number("common")? {
                return Err(format!("{} words are the most frequent", words.len()));
            }
            behind(&input, 0, &words)?
        }
        "fuzzy_recall" => runs(&input, number("vocab")?),
        "group" => products(keys["group"].as_str().unwrap_or_default(), &input, keys["score"] == "last")?,
        _ => return Err(format!("no solver for `{name}`")),
    })
}

/// What stands behind `fact`, where the text ends with `question` and the answer but for its last token.
fn asked(input: &[usize], fact: &[usize], question: &[usize], answer: usize) -> Checked<Answers> {
    let end = input.len() + 1 - answer;
    if !input[..end].ends_with(question) {
        return Err("the text does not end with the question".to_owned());
    }
    let at = input.windows(fact.len()).position(|tokens| tokens == fact).ok_or("no such needle")?;
    let value = &input[at + fact.len()..][..answer];
    if input[end..] != value[..answer - 1] {
        return Err("the answer that is fed back is another".to_owned());
    }
    Ok(value.iter().enumerate().map(|(number, token)| (end - 1 + number, *token)).collect())
}

/// How often each token occurs before the question, which a 0 begins.
fn counts(input: &[usize]) -> HashMap<usize, usize> {
    let mut counts = HashMap::new();
    input.iter().take_while(|token| **token != 0).for_each(|token| *counts.entry(*token).or_insert(0) += 1);
    counts
}

/// An answer whose first token is under the only `mark`, and whose others are fed back.
fn behind(input: &[usize], mark: usize, answer: &[usize]) -> Checked<Answers> {
    let at = input.iter().position(|token| *token == mark).ok_or("no question")?;
    if input[at + 1..] != answer[..answer.len() - 1] {
        return Err("the answer that is fed back is another".to_owned());
    }
    Ok(answer.iter().enumerate().map(|(number, token)| (at + number, *token)).collect())
}

/// The names of a chain from its value, or its value from its last name: by the statements `SET name IS what END`.
fn chain(input: &[usize], digits: usize, hops: usize, asks_value: bool) -> Checked<Answers> {
    let end = input.iter().position(|token| *token == 13).ok_or("no question")?;
    let mut said: HashMap<usize, &[usize]> = HashMap::new();
    for at in (0..end).filter(|at| input[*at] == 10) {
        let length = input[at..end].iter().position(|token| *token == 12).ok_or("a statement has no end")?;
        let known = said.insert(input[at + 1], &input[at + 3..at + length]);
        if known.is_some() || input[at + 2] != 11 {
            return Err(format!("the statement at {at} is none"));
        }
        let source = input[at + 3];
        if source >= 10 && !said.contains_key(&source) {
            return Err(format!("the statement at {at} uses a name before it is set"));
        }
    }
    if asks_value {
        let mut name = input[end + 1];
        for _ in 0..hops {
            name = *said.get(&name).and_then(|what| what.first()).ok_or("a name is not set")?;
        }
        let value = *said.get(&name).ok_or("a name is not set")?;
        return behind(&input[end..], input[end + 1], value)
            .map(|found| found.into_iter().map(|(at, token)| (at + end, token)).collect());
    }
    let value = &input[end + 1..][..digits];
    let mut names: Vec<usize> = said.iter().filter(|(_, what)| **what == value).map(|(name, _)| *name).collect();
    while let Some((next, _)) = said.iter().find(|(_, what)| names.last().is_some_and(|last| ***what == [*last])) {
        names.push(*next);
    }
    if names.len() != hops + 1 || input[end + 1 + digits..] != names[..hops] {
        return Err(format!("{names:?} is not the chain that is asked for"));
    }
    Ok(names.into_iter().enumerate().map(|(number, name)| (end + digits + number, name)).collect())
}

/// Values of keys that stood there before: runs of tokens of the lower half, and of those above.
fn runs(input: &[usize], vocab: usize) -> Answers {
    let symbols = (vocab - 1) / 2;
    let start = input.iter().position(|token| *token != vocab - 1).unwrap_or(input.len());
    let text = &input[start..];
    let mut known: HashMap<&[usize], &[usize]> = HashMap::new();
    let mut found = Vec::new();
    let mut at = 0;
    for pair in text.chunk_by(|a, b| *a < symbols || *b >= symbols) {
        let (key, value) = pair.split_at(pair.iter().position(|token| *token >= symbols).unwrap_or(pair.len()));
        match known.get(key) {
            Some(value) => {
                let first = start + at + key.len() - 1;
                found.extend(value.iter().enumerate().map(|(number, token)| (first + number, *token)));
            }
            None => _ = known.insert(key, value),
        }
        at += pair.len();
    }
    found
}

/// Products of permutations as numbers in the factorial number system, which orders them as one-line notation does.
fn products(group: &str, elements: &[usize], only_last: bool) -> Checked<Answers> {
    let (kind, size) = group.split_at_checked(1).ok_or("no group")?;
    // all elements are listed
    let most = if kind == "z" { 1024 } else { 8 };
    let size = match size.parse() {
        Ok(size) if size <= most => size,
        _ => return Err(format!("`{group}` is not a group of at most {most} points")),
    };
    let factorial = |n: usize| (1..=n).product::<usize>();
    let unrank = |mut rank: usize| -> Vec<usize> {
        let mut left: Vec<usize> = (0..size).collect();
        (0..size)
            .rev()
            .map(|n| {
                let at = rank / factorial(n);
                rank %= factorial(n);
                left.remove(at)
            })
            .collect()
    };
    let inversions = |p: &[usize]| (0..size).map(|a| (a..size).filter(|b| p[*b] < p[a]).count()).sum::<usize>();
    let all: Vec<Vec<usize>> = match kind {
        "s" => (0..factorial(size)).map(unrank).collect(),
        "a" => (0..factorial(size)).map(unrank).filter(|p| inversions(p) % 2 == 0).collect(),
        "z" => (0..size).map(|shift| (0..size).map(|at| (at + shift) % size).collect()).collect(),
        _ => return Err(format!("`{group}` is not a group")),
    };
    let mut state: Vec<usize> = (0..size).collect();
    let mut found = Vec::new();
    for (at, element) in elements.iter().enumerate() {
        let element = all.get(*element).ok_or("no such element")?;
        state = (0..size).map(|place| element[state[place]]).collect();
        if !only_last || at + 1 == elements.len() {
            found.push((at, all.iter().position(|p| *p == state).ok_or("the group is not closed")?));
        }
    }
    Ok(found)
}
