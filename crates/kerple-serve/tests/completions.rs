//! What clients read out of a completion.

use crate::common::{Client, model, served, served_by};
use kerple_data::Tokenizer;
use kerple_lm::forward_context::ForwardContext;
use kerple_lm::generate::{SamplingParams, generate};
use kerple_lm::model::TokenBatch;
use kerple_lm::run::SpecialTokens;
use serde_json::{Value, json};

const PROMPT: &str = "the quick brown";

fn ids(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

#[test]
fn scoring_tells_every_token_of_the_prompt_and_one_more() {
    for encoding in ["kerple_log", "rotary", "learned", "dape"] {
        let (_, model) = model(encoding);
        let mut served = served(encoding);
        served.limits.max_model_len = 16;
        let client = Client::new(served);
        // as evaluation harnesses ask
        let prompts = [ids(PROMPT), ids("fox"), ids("x")];
        let body = json!({
            "model": "tiny", "prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": true,
        });
        let choices = client.complete(body);
        for (index, (choice, prompt)) in choices.iter().zip(&prompts).enumerate() {
            assert_eq!(choice["index"], index);
            let told = &choice["logprobs"];
            let lens = ["tokens", "token_logprobs", "top_logprobs", "text_offset"]
                .map(|key| told[key].as_array().unwrap().len());
            assert_eq!(lens, [prompt.len() + 1; 4], "{encoding}");
            assert!(told["token_logprobs"][0].is_null() && told["top_logprobs"][0].is_null());
            let tokens = TokenBatch { ids: prompt, batch: 1, len: prompt.len(), documents: None };
            let logits: Vec<f64> =
                model.logits(tokens, &ForwardContext::evaluation(3)).into_data().iter::<f64>().collect();
            let vocab = logits.len() / prompt.len();
            let all: Vec<f64> = numbers(&Value::Array(told["token_logprobs"].as_array().unwrap()[1..].to_vec()));
            for (at, row) in logits.chunks(vocab).enumerate() {
                let sum = row.iter().map(|logit| logit.exp()).sum::<f64>().ln();
                let best = (0..vocab).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
                let top = told["top_logprobs"][at + 1].as_object().unwrap();
                assert_eq!(top.len(), 1, "one alternative was asked for");
                let most = top.values().next().unwrap().as_f64().unwrap();
                assert!((most - (row[best] - sum)).abs() < 1e-5, "{encoding} {at}: {most}");
                let expected = prompt.get(at + 1).map_or(best, |id| *id as usize);
                assert!((all[at] - (row[expected] - sum)).abs() < 1e-5, "{encoding} {at}: {}", all[at]);
                // what decides whether a token was the likeliest
                assert_eq!(all[at] == most, expected == best, "{encoding} {at}");
            }
        }
        assert_eq!(choices[0]["finish_reason"], "length");
        let text = choices[0]["text"].as_str().unwrap();
        assert!(text.starts_with(PROMPT) && choices[0]["logprobs"]["text_offset"][4] == 4, "{text}");
    }
}

#[test]
fn prompts_are_texts_or_tokens_alone_or_many() {
    let client = Client::new(served("alibi"));
    let ask = |prompt: Value| client.complete(json!({"prompt": prompt, "temperature": 0, "logprobs": 2, "echo": true}));
    let one = ask(json!(PROMPT));
    assert_eq!(ask(json!([PROMPT])), one);
    assert_eq!(ask(json!(ids(PROMPT))), one);
    assert_eq!(ask(json!([ids(PROMPT)])), one);
    assert_eq!(ask(json!([PROMPT, "fox"])).len(), 2);
    // spaces before the first bracket, and keys that mean nothing here
    let (status, body) =
        client.send("POST", "/v1/completions", r#"{"user":"x","top_k":-1,"prompt": [ [120] ] , "n":1}"#);
    assert!(status.is_success(), "{body}");
}

#[test]
fn a_text_does_not_depend_on_what_else_is_asked() {
    let client = Client::new(served("kerple_power"));
    let prompts = ["the", "quick brown fox", "over the lazy dog, again and again", "a", "b!"];
    let ask = |prompt: Value| {
        client.complete(json!({"prompt": prompt, "max_tokens": 30, "logprobs": 3, "temperature": 0.9, "seed": 7}))
    };
    let together = ask(json!(prompts));
    for (prompt, together) in prompts.iter().zip(&together) {
        let alone = &ask(json!(prompt))[0];
        assert_eq!(alone["text"], together["text"]);
        assert_eq!(alone["logprobs"], together["logprobs"]);
    }
}

/// Encodings, among them those whose positions follow the length of a text.
const ENCODINGS: [&str; 8] = [
    r#"{ kind = "kerple_log" }"#,
    r#"{ kind = "rotary" }"#,
    r#"{ kind = "rotary", scaling = { kind = "dynamic", factor = 4.0 } }"#,
    r#"{ kind = "rotary", scaling = "linear" }"#,
    r#"{ kind = "rotary", scaling = "yarn" }"#,
    r#"{ kind = "rotary", randomized = 400 }"#,
    r#"{ kind = "sinusoidal", randomized = 400 }"#,
    r#"{ kind = "fire" }"#,
];

#[test]
fn answers_do_not_depend_on_limits_or_on_what_may_come() {
    // beyond the training length, so that positions follow the length
    let prompt = "the quick brown fox jumps over";
    let ask = |client: &Client, prompt: Value, more: Value| {
        let mut body = json!({"prompt": prompt, "echo": true, "logprobs": 4, "seed": 7, "temperature": 0.9});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        client.complete(body)
    };
    let told = |choice: &Value, key: &str| choice["logprobs"][key].as_array().unwrap().clone();
    for encoding in ENCODINGS {
        let mut expected: Option<Value> = None;
        for (len, batch, queue) in [(200, 3, 8), (90, 1, 3), (400, 8, 100)] {
            let mut served = served_by(encoding);
            (served.limits.max_model_len, served.limits.max_num_seqs, served.limits.max_queue) = (len, batch, queue);
            let client = Client::new(served);
            let whole = ask(&client, json!(prompt), json!({"max_tokens": 12})).remove(0);
            let expected = &*expected.get_or_insert_with(|| whole.clone());
            assert_eq!(&whole, expected, "{encoding}: limits of {len}, {batch}, {queue}");
            for most in [0, 1, 2, 7, 60] {
                let found = &ask(&client, json!(prompt), json!({"max_tokens": most}))[0];
                for key in ["tokens", "token_logprobs", "top_logprobs"] {
                    let (found, whole) = (told(found, key), told(expected, key));
                    let same = found.len().min(whole.len());
                    assert!(same >= prompt.len(), "{encoding}: {same}");
                    assert_eq!(found[..same], whole[..same], "{encoding}: {key} of max_tokens {most}");
                }
            }
            let beside = ask(&client, json!(["a", prompt, "lazy dogs"]), json!({"max_tokens": 12}));
            assert_eq!(beside[1]["logprobs"], expected["logprobs"], "{encoding}: beside others");
            // without an echo the same text, by sums in another order
            let alone = ask(&client, json!(prompt), json!({"max_tokens": 12, "echo": false})).remove(0);
            assert_eq!(told(&alone, "tokens"), told(expected, "tokens")[prompt.len()..], "{encoding}");
        }
    }
}

#[test]
fn texts_are_those_that_sampling_draws() {
    for encoding in ["kerple_log", "t5"] {
        let (plan, model) = model(encoding);
        let client = Client::new(served(encoding));
        for (temperature, top_p, top_k) in [(0.0, 1.0, 0), (1.0, 1.0, 0), (0.7, 0.8, 0), (1.5, 1.0, 9)] {
            let draw = SamplingParams { temperature, top_k, top_p, seed: 11 };
            let mut drawn = Vec::new();
            let mut take = |token| {
                drawn.push(token);
                token != 0
            };
            generate(&model, &ids(PROMPT), 40, plan.data_info.vocab_size, &draw, &mut take).unwrap();
            let body = json!({
                "prompt": PROMPT, "max_tokens": 40, "temperature": temperature, "top_p": top_p, "top_k": top_k, "seed": 11, "logprobs": 0,
            });
            let choice = &client.complete(body)[0];
            assert_eq!(choice["logprobs"]["tokens"].as_array().unwrap().len(), drawn.len());
            let bytes: Vec<u8> = drawn.iter().filter(|token| **token != 0).map(|token| *token as u8).collect();
            assert_eq!(choice["text"], String::from_utf8_lossy(&bytes).as_ref(), "{encoding} {temperature}");
            assert_eq!(choice["finish_reason"], if drawn.contains(&0) { "stop" } else { "length" });
            assert!(choice["logprobs"]["top_logprobs"].is_null(), "no alternatives were asked for");
        }
    }
}

#[test]
fn strings_end_a_text() {
    let client = Client::new(served("alibi"));
    let body = |stop: Value| json!({"prompt": PROMPT, "max_tokens": 40, "seed": 5, "logprobs": 0, "stop": stop});
    let whole = client.complete(body(Value::Null))[0].clone();
    let text = whole["text"].as_str().unwrap();
    let letters: Vec<(usize, char)> = text.char_indices().collect();
    let (from, to) = (letters[letters.len() / 2].0, letters[letters.len() / 2 + 2].0);
    let stop = &text[from..to];
    for stops in [json!(stop), json!(["never in it", stop, ""])] {
        let cut = client.complete(body(stops))[0].clone();
        let before = &text[..text.find(stop).unwrap()];
        assert_eq!((&cut["text"], &cut["finish_reason"]), (&before.into(), &"stop".into()));
        let offsets = cut["logprobs"]["text_offset"].as_array().unwrap();
        assert!(offsets.iter().all(|offset| (offset.as_u64().unwrap() as usize) < before.chars().count()));
    }
    assert_eq!(whole["finish_reason"], "length", "the seed was chosen so that no document ends");
}

#[test]
fn nothing_is_added_where_nothing_is_asked_for() {
    let client = Client::new(served("sandwich"));
    let ask = |echo, logprobs| {
        let body = json!({"prompt": ["fox", "the lazy dog"], "max_tokens": 0, "echo": echo, "logprobs": logprobs});
        let answer = client.post("/v1/completions", &body);
        assert_eq!(answer["usage"], json!({"prompt_tokens": 15, "completion_tokens": 0, "total_tokens": 15}));
        answer["choices"].as_array().unwrap().clone()
    };
    let told = ask(true, json!(5));
    assert_eq!((&told[1]["text"], &told[1]["finish_reason"]), (&"the lazy dog".into(), &"length".into()));
    assert_eq!(told[1]["logprobs"]["tokens"].as_array().unwrap().len(), 12);
    // bytes that are not text by themselves have names, too
    let tops = &told[1]["logprobs"]["top_logprobs"].as_array().unwrap()[1..];
    assert!(tops.iter().all(|top| top.as_object().unwrap().len() == 5), "{tops:?}");
    assert_eq!(ask(true, Value::Null)[0]["logprobs"], Value::Null);
    assert_eq!(ask(false, json!(1))[0]["text"], "");
}

#[test]
fn parts_of_a_stream_make_the_whole() {
    let client = Client::new(served("rotary"));
    for echo in [false, true] {
        let mut body = json!({
            "prompt": ["the", "fox jumps"], "max_tokens": 12, "seed": 2, "echo": echo, "logprobs": 2, "stop": ["q", "zz"],
        });
        let whole = client.complete(body.clone());
        body["stream"] = true.into();
        let (status, events) = client.send("POST", "/v1/completions", body.to_string());
        assert!(status.is_success());
        let events: Vec<&str> =
            events.split_terminator("\n\n").map(|part| part.strip_prefix("data: ").unwrap()).collect();
        assert_eq!(events.last(), Some(&"[DONE]"));
        let (mut texts, mut tokens, mut ends) = ([String::new(), String::new()], [0, 0], [Value::Null, Value::Null]);
        for event in &events[..events.len() - 1] {
            let part: Value = serde_json::from_str(event).unwrap();
            let choice = &part["choices"][0];
            let index = choice["index"].as_u64().unwrap() as usize;
            assert!(ends[index].is_null(), "nothing comes behind the end");
            texts[index] += choice["text"].as_str().unwrap();
            tokens[index] += choice["logprobs"]["tokens"].as_array().unwrap().len();
            ends[index] = choice["finish_reason"].clone();
        }
        for index in 0..2 {
            assert_eq!(whole[index]["text"], texts[index]);
            assert_eq!(whole[index]["finish_reason"], ends[index]);
            assert_eq!(whole[index]["logprobs"]["tokens"].as_array().unwrap().len(), tokens[index]);
        }
    }
}

#[test]
fn every_alternative_comes_back_and_has_a_name_of_its_own() {
    let client = Client::new(served("kerple_log"));
    let ask = |by_id: bool| {
        let body = json!({
            "prompt": "naïve 文字", "max_tokens": 20, "temperature": 3, "seed": 2, "echo": true, "logprobs": 20,
            "return_tokens_as_token_ids": by_id,
        });
        client.complete(body).remove(0)
    };
    let (named, numbered) = (ask(false), ask(true));
    assert_eq!(named["text"], numbered["text"]);
    let tokens = |choice: &Value| choice["logprobs"]["tokens"].as_array().unwrap().clone();
    assert!(tokens(&named).contains(&"bytes:\\xc3".into()), "{named}");
    let number = |token: &Value| token.as_str().unwrap().strip_prefix("token_id:").unwrap().parse::<usize>().unwrap();
    let numbers: Vec<usize> = tokens(&numbered).iter().map(number).collect();
    assert_eq!(numbers[..6], [110, 97, 0xc3, 0xaf, 118, 101]);
    for choice in [&named, &numbered] {
        let told = &choice["logprobs"];
        for (at, token) in tokens(choice).iter().enumerate().skip(1) {
            let top = told["top_logprobs"][at].as_object().unwrap();
            assert_eq!(top.len(), 20, "{at}: {top:?}");
            // harnesses find out by name or by value whether a token was the likeliest
            let own = told["token_logprobs"][at].as_f64().unwrap();
            let most = top.values().map(|logprob| logprob.as_f64().unwrap()).fold(f64::MIN, f64::max);
            let by_name = top.get(token.as_str().unwrap()).map(|logprob| logprob.as_f64().unwrap());
            assert!(by_name.is_none_or(|by_name| by_name == own), "{at}: {token} {own} {top:?}");
            assert_eq!(by_name == Some(most), own == most, "{at}: {token} {own} {top:?}");
        }
    }
}

#[test]
fn a_character_that_a_prompt_begins_comes_back_once() {
    let client = Client::new(served("alibi"));
    let mut completed = 0;
    for seed in 0..60 {
        let choice = client.complete(json!({
            "prompt": [98, 0xc3], "max_tokens": 4, "temperature": 9, "seed": seed, "echo": true, "logprobs": 0,
            "return_tokens_as_token_ids": true, "ignore_eos": true,
        }));
        let tokens = choice[0]["logprobs"]["tokens"].as_array().unwrap();
        let number = |token: &Value| token.as_str()?.strip_prefix("token_id:")?.parse::<u8>().ok();
        let bytes: Vec<u8> = tokens.iter().filter_map(number).collect();
        if bytes.len() == 6 && bytes[2..].iter().all(|byte| *byte > 0) {
            assert_eq!(choice[0]["text"], String::from_utf8_lossy(&bytes).into_owned(), "{bytes:?}");
            completed += u32::from((0x80..0xc0).contains(&bytes[2]));
        }
    }
    assert!(completed > 0);
}

#[test]
fn a_token_begins_behind_the_broken_bytes_before_it() {
    let client = Client::new(served("alibi"));
    let body = json!({"prompt": [97, 0xc3, 98, 99], "max_tokens": 0, "echo": true, "logprobs": 0});
    let choice = client.complete(body).remove(0);
    assert_eq!(choice["text"], "a\u{fffd}bc");
    assert_eq!(choice["logprobs"]["text_offset"], json!([0, 1, 2, 3]));
    let mut behind_broken = 0;
    for seed in 0..10 {
        let choice = client.complete(json!({
            "prompt": "x", "max_tokens": 60, "temperature": 9, "seed": seed, "logprobs": 0,
            "return_tokens_as_token_ids": true, "ignore_eos": true,
        }));
        let (letters, told) =
            (choice[0]["text"].as_str().unwrap().chars().collect::<Vec<char>>(), &choice[0]["logprobs"]);
        for (token, offset) in told["tokens"].as_array().unwrap().iter().zip(told["text_offset"].as_array().unwrap()) {
            let id: u8 = token.as_str().unwrap().strip_prefix("token_id:").unwrap().parse().unwrap();
            let at = offset.as_u64().unwrap() as usize;
            if (1..0x80).contains(&id) {
                assert_eq!(letters[at], char::from(id), "{choice:?}");
                behind_broken += u32::from(at > 0 && letters[at - 1] == '\u{fffd}');
            }
        }
    }
    assert!(behind_broken > 10);
}

#[test]
fn what_has_no_effect_is_named() {
    let client = Client::new(served("alibi"));
    let notes = |more: Value| {
        let mut body = json!({"prompt": PROMPT, "max_tokens": 2});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        client.post("/v1/completions", &body)["notes"].clone()
    };
    for (more, says) in [
        (json!({"temperature": 0, "seed": 7}), "no effect with `temperature` 0: `seed` 7"),
        (
            json!({"temperature": -0.0, "seed": 7, "top_p": 0.5, "top_k": 3, "min_p": 0.1}),
            "no effect with `temperature` 0: `top_k` 3, `top_p` 0.5, `min_p` 0.1, `seed` 7",
        ),
        (json!({"temperature": 2, "top_k": 1}), "no effect with `top_k` 1: `temperature` 2"),
        (json!({"top_p": 0, "seed": 1}), "no effect with `top_p` 0: `seed` 1"),
        (json!({"max_tokens": 0, "seed": 1, "stop": "a"}), "no effect with `max_tokens` 0: `seed` 1, `stop` \"a\""),
        (
            json!({"ignore_eos": true, "stop_token_ids": [0]}),
            "no effect with these `stop_token_ids`: `ignore_eos` true",
        ),
        (json!({"stop": ["a", ""]}), "no effect: an empty string in `stop`"),
        (
            json!({"stop": ["a", "<|endoftext|>"]}),
            "`stop` \"<|endoftext|>\": the special token of this name has no text; `stop_token_ids` [0] ends there",
        ),
        (
            json!({"return_tokens_as_token_ids": true}),
            "no effect without `logprobs`: `return_tokens_as_token_ids` true",
        ),
    ] {
        assert_eq!(notes(more.clone()), json!([says]), "{more}");
    }
    for more in [
        json!({"temperature": 0, "top_p": 1, "top_k": -1, "min_p": 0, "seed": null}),
        json!({"temperature": 0, "frequency_penalty": 1, "stop": "a"}),
        json!({"seed": 7, "top_p": 0.5}),
        json!({"max_tokens": 0, "temperature": 1, "stop": [], "ignore_eos": false}),
        json!({"ignore_eos": true, "stop_token_ids": [5]}),
    ] {
        assert_eq!(notes(more.clone()), Value::Null, "{more}");
    }
    let body = json!({"prompt": ["a", "b"], "max_tokens": 3, "temperature": 0, "seed": 7, "stream": true});
    let (_, events) = client.send("POST", "/v1/completions", body.to_string());
    assert_eq!(events.matches("`seed` 7").count(), 1, "{events}");
    assert!(events.split("\n\n").next().unwrap().contains("`seed` 7"), "the first event has the notes");
}

#[test]
fn music_follows_the_rules_of_its_events() {
    use kerple_data::music::Representation;
    // a model of bytes knows the first 256 events
    let mut served = served("alibi");
    served.tokenizer = Tokenizer::music(Representation::Remi);
    served.special = SpecialTokens::of(&served.tokenizer);
    let vocabulary = Representation::Remi.vocabulary();
    let client = Client::new(served);
    for (seed, temperature) in [(1, 9.0), (2, 9.0), (3, 0.0)] {
        let choice = client.complete(json!({
            "prompt": "Bar_None Beat_12", "max_tokens": 150, "temperature": temperature, "seed": seed, "min_p": 1e-9,
            "logprobs": 0, "return_tokens_as_token_ids": true, "ignore_eos": true,
        }));
        let mut rules = vocabulary.rules();
        ["Bar_None", "Beat_12"].iter().for_each(|word| rules.take(vocabulary.id(word).unwrap()));
        for token in choice[0]["logprobs"]["tokens"].as_array().unwrap() {
            let id: u32 = token.as_str().unwrap().strip_prefix("token_id:").unwrap().parse().unwrap();
            assert!(rules.allows(id), "seed {seed}: {} may not come here", vocabulary.words()[id as usize]);
            rules.take(id);
        }
    }
}

#[test]
fn half_of_a_surrogate_pair_is_named() {
    let client = Client::new(served("alibi"));
    for body in [r#"{"prompt":"\ud800"}"#, r#"{"prompt":["a","\udc00"]}"#, r#"{"prompt":"a","stop":"\ud800"}"#] {
        let (status, answer) = client.send("POST", "/v1/completions", body);
        assert!(
            status.is_client_error() && answer.to_string().contains("without the other of its pair"),
            "{body}: {answer}"
        );
    }
}

#[test]
fn tokens_end_a_text_and_documents_need_not() {
    let client = Client::new(served("alibi"));
    let ask = |seed: u64, more: Value| {
        let mut body = json!({"prompt": PROMPT, "max_tokens": 40, "seed": seed, "logprobs": 0, "temperature": 2});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        client.complete(body).remove(0)
    };
    let tokens = |choice: &Value| choice["logprobs"]["tokens"].as_array().unwrap().clone();
    let ended = (0..100).find(|seed| ask(*seed, json!({}))["finish_reason"] == "stop").unwrap();
    let (short, long) = (ask(ended, json!({})), ask(ended, json!({"ignore_eos": true})));
    assert_eq!((&long["finish_reason"], tokens(&long).len()), (&"length".into(), 40));
    assert_eq!(tokens(&short).last(), Some(&"<|endoftext|>".into()));
    assert_eq!(tokens(&long)[..tokens(&short).len()], tokens(&short));
    let open = (0..100).find(|seed| ask(*seed, json!({}))["finish_reason"] == "length").unwrap();
    let body = json!({"prompt": PROMPT, "max_tokens": 40, "seed": open, "logprobs": 0, "temperature": 2,
                      "return_tokens_as_token_ids": true});
    let numbers = tokens(&client.complete(body)[0]);
    let tenth: u32 = numbers[10].as_str().unwrap().strip_prefix("token_id:").unwrap().parse().unwrap();
    let first = numbers.iter().position(|token| *token == numbers[10]).unwrap();
    let cut = ask(open, json!({"stop_token_ids": [tenth]}));
    assert_eq!((&cut["finish_reason"], tokens(&cut).len()), (&"stop".into(), first + 1));
}

#[test]
fn penalties_change_what_is_drawn_and_not_what_is_told() {
    let client = Client::new(served("kerple_log"));
    let ask = |more: Value| {
        let mut body = json!({"prompt": PROMPT, "max_tokens": 60, "temperature": 0, "logprobs": 3});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        client.complete(body).remove(0)
    };
    let kinds = |choice: &Value| {
        let tokens = choice["logprobs"]["tokens"].as_array().unwrap();
        tokens.iter().map(Value::to_string).collect::<std::collections::BTreeSet<String>>().len()
    };
    let plain = ask(json!({}));
    for penalty in ["frequency_penalty", "presence_penalty"] {
        let other = ask(json!({ penalty: 2 }));
        assert!(kinds(&other) > kinds(&plain), "{penalty}: {} and {}", kinds(&other), kinds(&plain));
        // the first token has nothing before it
        assert_eq!(other["logprobs"]["top_logprobs"][0], plain["logprobs"]["top_logprobs"][0], "{penalty}");
    }
    assert!(kinds(&ask(json!({"repetition_penalty": 1.5}))) > kinds(&plain));
    // as likely as the likeliest is the likeliest alone
    let narrow = ask(json!({"temperature": 5, "min_p": 1, "seed": 3}));
    assert_eq!(narrow["text"], plain["text"]);
    assert_ne!(ask(json!({"temperature": 5, "min_p": 0.1, "seed": 3}))["text"], plain["text"]);
}

#[test]
fn a_stream_ends_with_the_numbers_of_tokens_where_they_are_asked_for() {
    let client = Client::new(served("none"));
    for asked in [true, false] {
        let body = json!({
            "prompt": ["fox", "a"], "max_tokens": 5, "stream": true, "ignore_eos": true,
            "stream_options": {"include_usage": asked},
        });
        let (_, events) = client.send("POST", "/v1/completions", body.to_string());
        let parts: Vec<Value> =
            events.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect();
        let (last, others) = parts.split_last().unwrap();
        assert!(events.ends_with("data: [DONE]\n\n"));
        let keeps = |part: &Value| part.get("usage").is_some_and(Value::is_null) == asked;
        assert!(others.iter().all(|part| keeps(part) && part["choices"].as_array().unwrap().len() == 1), "{events}");
        if asked {
            assert_eq!(last["usage"], json!({"prompt_tokens": 4, "completion_tokens": 10, "total_tokens": 14}));
            assert_eq!(last["choices"], json!([]));
        } else {
            assert!(last.get("usage").is_none() && !last["choices"][0]["finish_reason"].is_null(), "{last}");
        }
    }
}
