//! What clients read out of a completion.

mod common;

use common::{Client, model, served};
use kerple_lm::generate::{Draw, generate};
use kerple_lm::model::Tokens;
use kerple_lm::pass::Pass;
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
        served.limits.len = 16;
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
            let tokens = Tokens { ids: prompt, batch: 1, len: prompt.len() };
            let logits: Vec<f64> = model.logits(tokens, &Pass::evaluation(3)).into_data().iter::<f64>().collect();
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

#[test]
fn texts_are_those_that_sampling_draws() {
    for encoding in ["kerple_log", "t5"] {
        let (plan, model) = model(encoding);
        let client = Client::new(served(encoding));
        for (temperature, top_p, top_k) in [(0.0, 1.0, 0), (1.0, 1.0, 0), (0.7, 0.8, 0), (1.5, 1.0, 9)] {
            let draw = Draw { temperature, top_k, top_p, seed: 11 };
            let mut drawn = Vec::new();
            let mut take = |token| {
                drawn.push(token);
                token != 0
            };
            generate(&model, &ids(PROMPT), 40, plan.facts.vocab_size, &draw, &mut take).unwrap();
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
    // bytes that are no text by themselves have the same one, which is told once
    let told_once = |top: &Value| (1..=5).contains(&top.as_object().unwrap().len());
    let tops = &told[1]["logprobs"]["top_logprobs"].as_array().unwrap()[1..];
    assert!(tops.iter().all(told_once) && tops.iter().any(|top| top.as_object().unwrap().len() > 1), "{tops:?}");
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
