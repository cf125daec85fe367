//! The draws of tasks of growing length: what is random is uniform, and examples of different splits differ.

use kerple_data::Split;
use kerple_data::tasks::{Example, ExampleId, TaskConfig};
use std::collections::BTreeSet;

const DRAWS: u64 = 4000;

/// Every task with its default keys.
const TASKS: [&str; 11] = [
    "\"niah_single\"",
    "\"niah_words\"",
    "\"niah_codes\"",
    "\"mqrar\"",
    "\"flipflop\"",
    "\"selective_copy\"",
    "\"group\"",
    "\"vt\"",
    "\"fwe\"",
    "\"cwe\"",
    "\"fuzzy_recall\"",
];

fn config(text: &str) -> TaskConfig {
    #[derive(serde::Deserialize)]
    struct Data {
        task: TaskConfig,
    }
    toml::from_str::<Data>(&format!("task = {text}")).unwrap().task
}

fn examples(text: &str, split: Split, length: usize, count: u64) -> Vec<Example> {
    let task = config(text).open(None).unwrap();
    (0..count).map(|index| task.example(ExampleId { split, seed: 5, index }, length).unwrap()).collect()
}

/// `count` of `n` draws with probability `p` is within 6 standard deviations.
fn assert_share(what: &str, count: usize, n: usize, p: f64) {
    let (n, count) = (n as f64, count as f64);
    let deviation = (n * p * (1.0 - p)).sqrt();
    assert!((count - n * p).abs() <= 6.0 * deviation, "{what}: {count} of {n}, expected a share of {p}");
}

#[test]
fn needles_are_uniform_over_their_places() {
    // 30 tokens of noise: an empty part of a period and three periods of 10
    let all = examples("{ kind = \"niah_single\", digits = 2, keys = 3, period = 10 }", Split::Test, 37, DRAWS);
    for (place, depth) in [0.0, 1.0 / 3.0, 2.0 / 3.0, 1.0].into_iter().enumerate() {
        let here = all.iter().filter(|example| (example.depth.unwrap() - depth).abs() < 1e-9).count();
        assert_share(&format!("place {place}"), here, all.len(), 0.25);
    }
    for (task, length) in [
        ("{ kind = \"niah_words\", digits = 2, keys = 9 }", 23),
        ("{ kind = \"niah_codes\", symbols = 4, code = 2 }", 29),
    ] {
        let all = examples(task, Split::Test, length, DRAWS);
        for place in 0..5 {
            let here = all.iter().filter(|example| (example.depth.unwrap() * 5.0).round() as usize == place).count();
            assert_share(&format!("{task}, needle {place} of 5"), here, all.len(), 0.2);
        }
    }
}

#[test]
fn instructions_and_questions_have_their_shares() {
    let all = examples("{ kind = \"flipflop\", ignore = 0.5 }", Split::Test, 64, 1000);
    let inner: Vec<u32> = all.iter().flat_map(|example| example.input[2..62].iter().step_by(2).copied()).collect();
    for (instruction, share) in [(0, 0.25), (1, 0.25), (2, 0.5)] {
        let count = inner.iter().filter(|token| **token == instruction).count();
        assert_share(&format!("instruction {instruction}"), count, inner.len(), share);
    }
    let bits = all.iter().filter(|example| example.input[1] == 4).count();
    assert_share("the first bit", bits, all.len(), 0.5);

    let all = examples("{ kind = \"mqrar\", keys = 4, values = 8, back = 2 }", Split::Test, 64, 1000);
    // behind eight slots of the first rounds, without the last, which always asks
    let slots: Vec<bool> =
        all.iter().flat_map(|example| example.input[16..62].iter().step_by(2).map(|token| *token == 0)).collect();
    assert_share("questions", slots.iter().filter(|asks| **asks).count(), slots.len(), 0.5);
}

#[test]
fn elements_states_and_places_are_uniform() {
    for (group, order) in [("s3", 6), ("a4", 12), ("z7", 7)] {
        let all =
            examples(&format!("{{ kind = \"group\", group = \"{group}\", score = \"last\" }}"), Split::Test, 9, DRAWS);
        for element in 0..order {
            let first = all.iter().filter(|example| example.input[0] == element).count();
            assert_share(&format!("{group}: first {element}"), first, all.len(), 1.0 / f64::from(order));
            let state = all.iter().filter(|example| example.targets[8] == element).count();
            assert_share(&format!("{group}: state {element}"), state, all.len(), 1.0 / f64::from(order));
        }
    }
    // place of token j among R places has the mean j (R + 1) / (n + 1), from 1 on
    let all = examples("{ kind = \"selective_copy\", copy = 4 }", Split::Test, 45, DRAWS);
    for token in 1..=4usize {
        let places = all.iter().map(|example| {
            let mut places = (0..40).filter(|at| example.input[*at] < 14);
            places.nth(token - 1).unwrap() + 1
        });
        let mean = places.sum::<usize>() as f64 / all.len() as f64;
        let expected = token as f64 * 41.0 / 5.0;
        // a place has a standard deviation below 8.3
        assert!((mean - expected).abs() < 6.0 * 8.3 / (DRAWS as f64).sqrt(), "token {token}: {mean}, {expected}");
    }
}

#[test]
fn words_and_statements_stand_anywhere() {
    // the most frequent word of 40 tokens occurs 6 times (40 / (4 zeta(2)) = 6.08)
    let all = examples("{ kind = \"fwe\", words = 8, answers = 2 }", Split::Test, 42, DRAWS);
    for place in 0..40 {
        let here = all.iter().filter(|example| example.input[place] == example.targets[40]).count();
        assert_share(&format!("fwe, place {place}"), here, all.len(), 6.0 / 40.0);
    }
    // a common word: 4 of 12 tokens, 2 each, behind one of padding
    let task = "{ kind = \"cwe\", common = 2, uncommon = 8, words = 20, ratio = 2 }";
    let all = examples(task, Split::Test, 15, DRAWS);
    for place in 1..13 {
        let here = all.iter().filter(|example| example.targets[13..].contains(&example.input[place])).count();
        assert_share(&format!("cwe, place {place}"), here, all.len(), 4.0 / 12.0);
    }
    // the first statement of the chain that is asked for is the earlier of two, behind one of four gaps: (1 - x/4)^2
    let task = "{ kind = \"vt\", chains = 1, hops = 1, names = 9, digits = 1, period = 5, ask = \"value\" }";
    let all = examples(task, Split::Test, 12 + 15, DRAWS);
    for (gap, least) in [0, 5, 10, 15].into_iter().enumerate() {
        let later = |example: &&Example| example.input.iter().position(|token| *token == 10).unwrap() >= least;
        let share = (1.0 - gap as f64 / 4.0).powi(2);
        let count = all.iter().filter(later).count();
        if gap > 0 {
            assert_share(&format!("vt, gap {gap}"), count, all.len(), share);
        } else {
            assert_eq!(count, all.len());
        }
    }
    let task = "{ kind = \"fuzzy_recall\", vocab = 9, key_max = 1, value_max = 1 }";
    let all = examples(task, Split::Test, 31, DRAWS);
    for symbol in 0..4 {
        // of 31 tokens the first is a key, whichever
        let first =
            all.iter().filter(|example| example.input.iter().find(|token| **token != 8) == Some(&symbol)).count();
        assert_share(&format!("fuzzy_recall, key {symbol}"), first, all.len(), 0.25);
    }
}

/// A rule that ignores the key and continues any value with the same first digits gets most tokens and few whole answers.
#[test]
fn fed_back_answers_inflate_the_share_of_right_tokens() {
    let (mut right, mut whole, all) = (0, 0, examples("\"niah_words\"", Split::Test, 256, 500));
    for Example { input, targets, whole_answer, .. } in &all {
        let answer = &targets[whole_answer.clone().unwrap()];
        // behind the padding stand needles of a mark, a key and seven digits
        let start = input.iter().position(|token| *token != 12).unwrap();
        let values: Vec<&[u32]> = input[start..248].chunks(9).map(|needle| &needle[2..]).collect();
        let guess = |known: usize| values.iter().find(|value| value[..known] == answer[..known]).unwrap()[known];
        let hits = (0..7).filter(|known| guess(*known) == answer[*known]).count();
        right += hits;
        whole += usize::from(hits == 7);
    }
    let (tokens, whole) = (right as f64 / (7 * all.len()) as f64, whole as f64 / all.len() as f64);
    assert!((0.72..0.82).contains(&tokens) && whole < 0.2, "{tokens} of the tokens, {whole} of the answers");
}

#[test]
fn no_example_of_the_test_is_one_of_training() {
    for task in TASKS {
        let inputs = |split| examples(task, split, 160, 100).into_iter().map(|example| example.input);
        let seen: BTreeSet<Vec<u32>> = Split::ALL.into_iter().flat_map(inputs).collect();
        assert_eq!(seen.len(), 100 * Split::ALL.len(), "{task}");
    }
}

#[test]
fn impossible_keys_and_lengths_are_refused_by_name() {
    for (task, named) in [
        ("{ kind = \"niah_single\", digits = 0 }", "data.task.digits: 0"),
        ("{ kind = \"niah_words\", keys = 0 }", "data.task.keys: 0"),
        ("{ kind = \"niah_codes\", symbols = 1 }", "data.task.symbols: 1"),
        ("{ kind = \"mqrar\", back = 0 }", "data.task.back: 0"),
        ("{ kind = \"flipflop\", ignore = 1.0 }", "data.task.ignore: 1"),
        ("{ kind = \"selective_copy\", copy = 0 }", "data.task.copy: 0"),
        (
            "{ kind = \"vt\", chains = 20 }",
            "data.task.names: 64 names are too few for 20 chains of 4 hops, which need 100",
        ),
        ("{ kind = \"vt\", chains = 11, digits = 1 }", "data.task.digits: of 1 digits there are 10 values"),
        ("{ kind = \"fwe\", alpha = 1.0 }", "data.task.alpha: 1"),
        ("{ kind = \"fwe\", answers = 50 }", "data.task.answers: 50 words"),
        ("{ kind = \"cwe\", uncommon = 119 }", "data.task.uncommon: 119"),
        ("{ kind = \"fuzzy_recall\", key_max = 8 }", "data.task.key_max: 8"),
        ("{ kind = \"fuzzy_recall\", key_max = 1, pool = 8 }", "data.task.pool: 8 keys, but there are only 7"),
    ] {
        let error = config(task).check().unwrap_err();
        assert!(error.to_string().contains(named) && error.is_misuse(), "{task}: {error}");
    }
    for task in TASKS {
        let task = config(task).open(None).unwrap();
        let shortest = task.facts().shortest;
        let place = ExampleId { split: Split::Test, seed: 0, index: 0 };
        assert!(task.example(place, shortest).is_ok(), "{}", task.facts().name);
        let error = task.example(place, shortest - 1).unwrap_err().to_string();
        assert!(error.contains(&format!("{} task, which needs {shortest}", task.facts().name)), "{error}");
    }
    let wrong =
        toml::from_str::<std::collections::BTreeMap<String, TaskConfig>>("task = { kind = \"group\", group = \"q8\" }");
    assert!(
        wrong.unwrap_err().to_string().contains("`q8` is not a group; there are s3 to s5, a3 to a5, and z2 to z65536")
    );
}

/// Rules that skip a task score per target as they did where they were first measured, on 100 to 300 examples.
#[test]
fn shortcuts_score_as_measured() {
    let measured = [
        ("{ kind = \"vt\", chains = 1 }", 256, 1.0),
        // the first name is right, each later one in 0.50 of the cases
        ("{ kind = \"vt\", chains = 2 }", 256, (1.0 + 4.0 * 0.50) / 5.0),
        ("\"fwe\"", 256, 0.71),
        ("\"fwe\"", 1024, 0.64),
        ("\"cwe\"", 1024, 1.0),
        ("{ kind = \"flipflop\", ignore = 0.1 }", 512, 0.95),
        ("\"flipflop\"", 512, 0.585),
        ("\"fuzzy_recall\"", 256, 0.54),
        ("{ kind = \"fuzzy_recall\", pool = 6 }", 256, 0.81),
        ("{ kind = \"mqrar\", back = 2 }", 256, 0.02),
        ("\"niah_words\"", 256, 0.77),
        ("\"niah_codes\"", 256, 0.92),
        ("\"selective_copy\"", 256, 0.34),
        ("{ kind = \"selective_copy\", places = \"gaps\" }", 1024, 0.98),
    ];
    let mut wrong = Vec::new();
    for (task, length, expected) in measured {
        let source = config(task).open(None).unwrap();
        let (mut right, mut count, mut whole) = (0, 0, 0);
        for example in examples(task, Split::Test, length, 300) {
            let (_, answers) = source.shortcut(&example).unwrap();
            assert_eq!(answers.len(), example.scored_places().count(), "{task}");
            let hits = example.scored_places().zip(&answers).filter(|(at, answer)| example.targets[*at] == **answer);
            let hits = hits.count();
            (right, count, whole) = (right + hits, count + answers.len(), whole + usize::from(hits == answers.len()));
        }
        let found = right as f64 / count as f64;
        if (found - expected).abs() > 0.05 {
            wrong.push(format!("{task} at {length}: {found:.3}, measured {expected}"));
        }
        // fed-back tokens inflate the share of right tokens, whole answers are not
        if task.contains("niah_words") {
            assert!(whole < 60, "{task}: {whole} of 300 whole answers");
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The same sequences, answered at empty places after them; a decoder's examples and their names stay what they were.
#[test]
fn encoders_have_the_same_answers_after_the_sequence() {
    for (score, of) in [("all", 0..9), ("last", 8..9)] {
        let keys = format!("kind = \"group\", group = \"s3\", score = \"{score}\"");
        let marked = examples(&format!("{{ {keys} }}"), Split::Test, 9, 20);
        let tape = examples(&format!("{{ {keys}, answer = \"tape\" }}"), Split::Test, 9, 20);
        for (marked, tape) in marked.iter().zip(&tape) {
            assert_eq!((&tape.input, &tape.targets[..]), (&marked.input, &marked.targets[of.clone()]));
            assert!(tape.scored.len() == tape.targets.len() && tape.scored.iter().all(|scored| *scored));
        }
    }
    let task = config("{ kind = \"flipflop\", answer = \"tape\" }").open(None).unwrap();
    for (length, tokens) in [(3, 3), (4, 3), (21, 21), (22, 21)] {
        for index in 0..20 {
            let example = task.example(ExampleId { split: Split::Test, seed: 5, index }, length).unwrap();
            assert_eq!((example.input.len(), example.input[tokens - 1]), (tokens, 1), "it ends with a read");
            let written = (0..tokens - 1).step_by(2).rfind(|at| example.input[*at] == 0).unwrap();
            assert_eq!(example.targets, [example.input[written + 1]]);
            let (_, rule) = task.shortcut(&example).unwrap();
            assert_eq!(rule, [example.input[tokens - 2]]);
        }
    }
    for (keys, content) in [
        ("\"group\"", "group 1 GroupProduct { group: Symmetric(3), score: All }"),
        ("\"flipflop\"", "flipflop 1 FlipFlop { ignore: 0.8 }"),
        ("{ kind = \"flipflop\", answer = \"tape\" }", "flipflop 1 FlipFlop { ignore: 0.8 } at empty places"),
    ] {
        assert_eq!(config(keys).facts().content, content);
    }
    let written = |keys: &str| serde_json::to_value(config(keys)).unwrap();
    assert!(written("\"group\"").get("answer").is_none());
    assert_eq!(written("{ kind = \"group\", answer = \"tape\" }")["answer"], "tape");
}
