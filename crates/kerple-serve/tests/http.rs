//! Everything else that is said over HTTP, above all to those who ask for what there is not.

use crate::common::{Client, served};
use axum::http::StatusCode;
use serde_json::{Value, json};
use std::time::Duration;

fn refused(client: &Client, body: &str) -> (StatusCode, Value) {
    let (status, answer) = client.send("POST", "/v1/completions", body.to_owned());
    let answer: Value = serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{answer}: {error}"));
    let error = answer["error"].as_object().unwrap_or_else(|| panic!("{body}: {answer}"));
    assert_eq!(error.keys().collect::<Vec<_>>(), ["code", "message", "param", "type"]);
    (status, answer["error"].clone())
}

#[test]
fn bad_requests_are_refused_by_key_and_value() {
    let client = Client::new(served("kerple_log"));
    let long = format!(r#"{{"prompt": {:?}}}"#, "x".repeat(190));
    let many = format!(r#"{{"prompt": {:?}}}"#, vec!["x"; 9]);
    let stops = format!(r#"{{"prompt":"x","stop":{:?}}}"#, vec!["x"; 65]);
    for (body, param, says) in [
        (r#"{}"#, "prompt", "missing"),
        (r#"{"prompt":null}"#, "prompt", "missing"),
        (r#"{"prompt":""}"#, "prompt", "empty"),
        (r#"{"prompt":[]}"#, "prompt", "empty"),
        (r#"{"prompt":["x",""]}"#, "prompt", "prompt 2 of 2: a prompt is empty"),
        (r#"{"prompt":[[1],[]]}"#, "prompt", "prompt 2 of 2: a prompt is empty"),
        (r#"{"prompt":[[1],[256],[2]]}"#, "prompt", "prompt 2 of 3: token 256"),
        (r#"{"prompt":[256]}"#, "prompt", "token 256 is out of range"),
        (r#"{"prompt":[-1]}"#, "prompt", "[-1]"),
        (r#"{"prompt":[1.5]}"#, "prompt", "list of token ids"),
        (r#"{"prompt":[[1],"x"]}"#, "prompt", "list of token ids"),
        (r#"{"prompt":["x",[1]]}"#, "prompt", "list of token ids"),
        (r#"{"prompt":{"a":1}}"#, "prompt", "list of token ids"),
        (r#"{"prompt":7}"#, "prompt", "is 7"),
        (r#"{"prompt":[99999999999999999999]}"#, "prompt", "list of token ids"),
        ("{\"prompt\":\"a\\u0000b\"}", "prompt", "NUL"),
        (&long, "prompt", "190 tokens and a completion of up to 16"),
        (&many, "prompt", "9 prompts"),
        (r#"{"prompt":"x","max_tokens":-1}"#, "max_tokens", "-1"),
        (r#"{"prompt":"x","max_tokens":18446744073709551615}"#, "max_tokens", "200 tokens"),
        (r#"{"prompt":"x","max_tokens":"9"}"#, "max_tokens", "\"9\""),
        (r#"{"prompt":"x","logprobs":21}"#, "logprobs", "21"),
        (r#"{"prompt":"x","logprobs":true}"#, "logprobs", "0 to 20"),
        (r#"{"prompt":"x","temperature":-0.1}"#, "temperature", "-0.1"),
        (r#"{"prompt":"x","temperature":1e999}"#, "temperature", "1e999"),
        (r#"{"prompt":"x","top_p":1.01}"#, "top_p", "1.01"),
        (r#"{"prompt":"x","top_k":0.5}"#, "top_k", "0.5"),
        (r#"{"prompt":"x","seed":36893488147419103232}"#, "seed", "64 bits"),
        (r#"{"prompt":"x","echo":1}"#, "echo", "true or false"),
        (r#"{"prompt":"x","stream":"yes"}"#, "stream", "true or false"),
        (r#"{"prompt":"x","stop":[1]}"#, "stop", "list of strings"),
        (&stops, "stop", "64 strings"),
        (r#"{"prompt":"x","n":2}"#, "n", "one completion"),
        (r#"{"prompt":"x","best_of":3}"#, "best_of", "one completion"),
        (r#"{"prompt":"x","suffix":"y"}"#, "suffix", "after the prompt"),
        (r#"{"prompt":"x","logit_bias":{"50":1}}"#, "logit_bias", "does not change the model's logits"),
        (r#"{"prompt":"x","logit_bias":1e999}"#, "logit_bias", "does not change the model's logits"),
        (r#"{"prompt":"x","min_p":1.5}"#, "min_p", "0 to 1"),
        (r#"{"prompt":"x","frequency_penalty":2.5}"#, "frequency_penalty", "-2 to 2"),
        (r#"{"prompt":"x","presence_penalty":"1"}"#, "presence_penalty", "-2 to 2"),
        (r#"{"prompt":"x","repetition_penalty":0}"#, "repetition_penalty", "0.001"),
        (r#"{"prompt":"x","stop_token_ids":[256]}"#, "stop_token_ids", "below 256"),
        (r#"{"prompt":"x","stop_token_ids":7}"#, "stop_token_ids", "a list"),
        (r#"{"prompt":"x","stream_options":{"include_usage":true}}"#, "stream_options", "needs `stream` set to true"),
        (r#"{"prompt":"x","stream":true,"stream_options":{"all":true}}"#, "stream_options", "include_usage"),
        (r#"{"prompt":"x","response_format":{"type":"json_object"}}"#, "response_format", "leave it out"),
        (r#"{"prompt":"x","guided_regex":"a+"}"#, "guided_regex", "leave it out"),
        (r#"{"prompt":"x","tools":[{}]}"#, "tools", "does not support tools"),
        (r#"{"prompt":"x","min_tokens":3}"#, "min_tokens", "ignore_eos"),
        (r#"{"prompt":"x","max_new_tokens":3}"#, "max_new_tokens", "use prompt, model, max_tokens"),
        (r#"{"prompt":"x","temprature":0}"#, "temprature", "unknown parameter `temprature`"),
        (r#"{"prompt":"x","user":3}"#, "user", "a string"),
        (r#"{"prompt":"x","model":3}"#, "model", "a string"),
    ] {
        let (status, error) = refused(&client, body);
        assert_eq!((status, &error["param"]), (StatusCode::BAD_REQUEST, &param.into()), "{body}: {error}");
        assert_eq!((&error["type"], &error["code"]), (&"invalid_request_error".into(), &Value::Null));
        assert!(error["message"].as_str().unwrap().contains(says), "{body}: {error}");
    }
}

#[test]
fn what_asks_for_nothing_is_taken() {
    let client = Client::new(served("kerple_log"));
    let plain = client.complete(json!({"prompt": "x", "max_tokens": 8, "seed": 1, "logprobs": 2}));
    for (key, value) in [
        ("n", json!(1)),
        ("n", json!(1.0)),
        ("best_of", json!(1)),
        ("suffix", json!("")),
        ("logit_bias", json!({})),
        ("frequency_penalty", json!(0)),
        ("presence_penalty", json!(0.0)),
        ("repetition_penalty", json!(1)),
        ("min_p", json!(0)),
        ("stop_token_ids", json!([])),
        ("ignore_eos", json!(false)),
        ("response_format", json!({"type": "text"})),
        ("tools", json!([])),
        ("min_tokens", json!(0)),
        ("length_penalty", json!(1)),
        ("add_special_tokens", json!(false)),
        ("user", json!("somebody")),
        ("model", json!("tiny")),
        ("stream_options", Value::Null),
        ("whatever", Value::Null),
    ] {
        let mut body = json!({"prompt": "x", "max_tokens": 8, "seed": 1, "logprobs": 2});
        body[key] = value;
        assert_eq!(client.complete(body), plain, "{key}");
    }
}

#[test]
fn what_is_not_read_beside_a_body_is_refused() {
    let client = Client::new(served("none"));
    let host = ("host", "localhost");
    let body = r#"{"prompt":"x","max_tokens":1}"#;
    let (status, answer) = client.send("POST", "/v1/completions?temperature=0", body);
    assert!(status == StatusCode::BAD_REQUEST && answer.contains("the query `temperature=0` is not read"), "{answer}");
    let (status, answer) = client.send_with("POST", "/v1/completions", &[host, ("content-encoding", "gzip")], body);
    assert!(status == StatusCode::UNSUPPORTED_MEDIA_TYPE && answer.contains("`Content-Encoding` is gzip"), "{answer}");
    let (status, _) = client.send_with("POST", "/v1/completions", &[host, ("content-encoding", "identity")], body);
    assert_eq!(status, StatusCode::OK);
    let (status, answer) = client.send("GET", "/v1/completions", "");
    assert!(status == StatusCode::METHOD_NOT_ALLOWED && answer.contains("does not accept GET"), "{answer}");
}

#[test]
fn another_model_is_not_found() {
    let client = Client::new(served("none"));
    for (path, body) in [
        ("/v1/completions", json!({"model": "gpt-2", "prompt": "x"})),
        ("/tokenize", json!({"model": "gpt-2", "prompt": "x"})),
        ("/detokenize", json!({"model": "gpt-2", "tokens": [1]})),
    ] {
        let (status, answer) = client.send("POST", path, body.to_string());
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!((status, &answer["error"]["param"]), (StatusCode::NOT_FOUND, &"model".into()), "{path}");
        assert_eq!(answer["error"]["code"], "model_not_found");
        assert!(answer["error"]["message"].as_str().unwrap().contains("`tiny`"), "{answer}");
    }
}

#[test]
fn other_hosts_and_pages_are_refused_everywhere() {
    let client = Client::new(served("none"));
    for (path, method) in [("/", "GET"), ("/health", "GET"), ("/v1/completions", "POST"), ("/nowhere", "GET")] {
        for headers in
            [&[("host", "evil.example:8000")][..], &[("host", "localhost"), ("origin", "http://evil.example")]]
        {
            let (status, answer) = client.send_with(method, path, headers, r#"{"prompt":"x"}"#);
            assert!(status == StatusCode::FORBIDDEN && answer.contains("--allow-host"), "{path} {headers:?}: {answer}");
        }
    }
}

/// What is too long is counted and not kept.
#[test]
fn lists_longer_than_can_be_served_are_refused_by_their_number() {
    let mut wide = served("none");
    wide.limits.body = 8 << 20;
    let client = Client::new(wide);
    let list = |element: &str, count: usize| format!("[{}]", vec![element; count].join(","));
    for (body, param, says) in [
        (format!(r#"{{"prompt":{}}}"#, list("[0]", 1_000_000)), "prompt", "1000000 prompts"),
        (format!(r#"{{"prompt":{}}}"#, list("\"a\"", 1_000_000)), "prompt", "1000000 prompts"),
        (format!(r#"{{"prompt":{}}}"#, list("7", 1_000_000)), "prompt", "1000000 tokens"),
        (format!(r#"{{"prompt":"{}"}}"#, "a".repeat(1_000_000)), "prompt", "1000000 bytes"),
        (format!(r#"{{"prompt":"a","stop":{}}}"#, list("\"a\"", 1_000_000)), "stop", "64 strings"),
        (format!(r#"{{"prompt":"a","stop_token_ids":{}}}"#, list("7", 1_000_000)), "stop_token_ids", "up to 64"),
    ] {
        let (status, error) = refused(&client, &body);
        assert_eq!((status, &error["param"]), (StatusCode::BAD_REQUEST, &param.into()), "{error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(says) && message.len() < 400, "{message}");
    }
    let keys: Vec<String> = (0..200).map(|key| format!("\"k{key}\":null")).collect();
    let (status, error) = refused(&client, &format!("{{\"prompt\":\"x\",{}}}", keys.join(",")));
    assert!(
        status == StatusCode::BAD_REQUEST && error["message"].as_str().unwrap().contains("more than 100"),
        "{error}"
    );
}

#[test]
fn hostile_bodies_are_refused_and_the_server_goes_on() {
    let client = Client::new(served("kerple_log"));
    let deep = "[".repeat(60_000);
    let bodies = [
        "",
        "{",
        "[]",
        "null",
        "\"x\"",
        "{\"prompt\":\"x\"",
        "{\"prompt\":\"x\"}}",
        "{\"prompt\":\"\\ud800\"}",
        "{\"prompt\":\"x\",\"prompt\":\"y\"}",
        &deep,
        &format!("{{\"prompt\":{deep}"),
        &format!("{{\"user\":{deep}{}}}", "]".repeat(60)),
    ];
    for body in bodies {
        let (status, _) = refused(&client, body);
        assert_eq!(status, StatusCode::BAD_REQUEST, "{body:.60}");
    }
    let (status, answer) = client.send("POST", "/v1/completions", vec![0xffu8; 100]);
    assert!(status == StatusCode::BAD_REQUEST && answer.contains("error"), "{answer}");
    let (status, error) = refused(&client, &format!("{{\"prompt\":\"{}\"}}", "x".repeat(1 << 17)));
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(error["message"].as_str().unwrap().contains("65536 bytes"), "{error}");
    for path in ["/tokenize", "/detokenize"] {
        for body in ["", "{}", "{\"prompt\":3,\"tokens\":3}", "{\"prompt\":null,\"tokens\":[-1]}", &deep] {
            let (status, answer) = client.send("POST", path, body.to_owned());
            assert!(status == StatusCode::BAD_REQUEST && answer.contains("error"), "{path} {body:.60}: {answer}");
        }
    }
    assert_eq!(client.complete(json!({"prompt": "fox", "max_tokens": 2})).len(), 1);
}

#[test]
fn lengths_end_where_the_encoding_does() {
    let mut beyond = served("learned");
    assert!(beyond.check(None).unwrap_err().to_string().contains("16 positions, 200 were requested"));
    beyond.limits.max_model_len = 16;
    let client = Client::new(beyond);
    // the last token drawn takes no position
    assert_eq!(client.complete(json!({"prompt": vec![1; 15], "max_tokens": 2, "temperature": 0})).len(), 1);
    let (_, error) = refused(&client, &json!({"prompt": vec![1; 16], "max_tokens": 2}).to_string());
    assert!(error["message"].as_str().unwrap().contains("16 tokens that this server allows"), "{error}");
}

#[test]
fn the_tokenizer_answers_for_itself() {
    let client = Client::new(served("none"));
    let info = client.get("/tokenizer_info");
    assert_eq!((&info["eos_token"], &info["chat_template"]), (&"<|endoftext|>".into(), &Value::Null));
    let tokens = |text: &str| client.post("/tokenize", &json!({"prompt": text, "add_special_tokens": false}));
    assert_eq!(tokens("ab"), json!({"tokens": [97, 98], "count": 2, "max_model_len": 200}));
    let name = info["eos_token"].as_str().unwrap();
    assert_eq!(tokens(name)["tokens"], json!([info["eos_token_id"]]), "names are recognised here");
    for text in ["", "naïve 文字", "a<|endoftext|>b"] {
        let there = tokens(text);
        assert_eq!(client.post("/detokenize", &json!({"tokens": there["tokens"]})), json!({ "prompt": text }));
    }
    // bytes that are not UTF-8 come back as bytes, and those give the tokens again
    let all: Vec<u32> = (0..256).chain([0xe6, 97, 0xe6, 0x96, 0x87]).collect();
    let there = client.post("/detokenize", &json!({ "tokens": all }));
    assert!(there["prompt"].as_str().unwrap().contains('\u{fffd}'));
    assert_eq!(client.post("/tokenize", &json!({"bytes": there["bytes"]}))["tokens"], json!(all));
    for (path, body, param) in [
        ("/detokenize", json!({"tokens": [256]}), "tokens"),
        ("/tokenize", json!({"bytes": [256]}), "bytes"),
        ("/tokenize", json!({"bytes": [97], "prompt": "a"}), "bytes"),
        ("/tokenize", json!({"prompt": "a", "add_special_tokens": true}), "add_special_tokens"),
        ("/detokenize", json!({"tokens": [1], "skip": true}), "skip"),
    ] {
        let (status, answer) = client.send("POST", path, body.to_string());
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &param.into()), "{body}: {answer}");
    }
}

#[test]
fn paths_say_what_there_is() {
    let client = Client::new(served("kerple_log"));
    let models = client.get("/v1/models");
    let described = &models["data"][0];
    assert_eq!(
        (&models["object"], &described["id"], &described["owned_by"]),
        (&"list".into(), &"tiny".into(), &"kerple".into())
    );
    assert_eq!(&client.get("/v1/models/tiny"), described);
    assert_eq!(client.get("/health"), json!({"status": "ok", "waiting": 0, "queue": 8}));
    let shown = client.get("/model.json");
    assert_eq!((&shown["train_len"], &shown["max_model_len"]), (&16.into(), &200.into()));
    assert_eq!(shown["kernels"]["bias"].as_array().unwrap().len(), 2, "a row for each head");
    let (status, page) = client.send("GET", "/", "");
    assert!(status.is_success() && page.contains("<!doctype html>") && !page.contains("http://fonts"));
    for (method, path, expected) in [
        ("GET", "/v1/completions", StatusCode::METHOD_NOT_ALLOWED),
        ("POST", "/v1/models", StatusCode::METHOD_NOT_ALLOWED),
        ("GET", "/v1/models/other", StatusCode::NOT_FOUND),
        ("GET", "/v1/models/some/other", StatusCode::NOT_FOUND),
        ("GET", "/v1/models/%ff", StatusCode::NOT_FOUND),
        ("GET", "/v1/models/%00", StatusCode::NOT_FOUND),
        ("POST", "/v1/chat/completions", StatusCode::NOT_FOUND),
        ("DELETE", "/../etc/passwd", StatusCode::NOT_FOUND),
    ] {
        let (status, body) = client.send(method, path, "");
        assert_eq!(status, expected, "{method} {path}");
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(body["error"]["type"], "invalid_request_error", "{method} {path}");
    }
}

#[test]
fn a_full_queue_is_said_and_empties_when_a_client_goes_away() {
    let mut narrow = served("alibi");
    narrow.limits.max_queue = 2;
    narrow.limits.max_model_len = 1 << 20;
    let client = Client::new(narrow);
    let endless = client.begin(json!({"prompt": ["a", "b"], "max_tokens": 1_000_000, "stream": true}));
    assert!(endless.status().is_success());
    let (status, error) = refused(&client, r#"{"prompt":"x"}"#);
    assert_eq!((status, &error["type"]), (StatusCode::TOO_MANY_REQUESTS, &"rate_limit_error".into()));
    assert!(error["message"].as_str().unwrap().contains("2 of 2 places"), "{error}");
    drop(endless);
    let free = || client.get("/health")["waiting"] == 0;
    let waited = (0..200).find(|_| {
        std::thread::sleep(Duration::from_millis(50));
        free()
    });
    assert!(waited.is_some(), "nobody waits for these texts any more");
    assert_eq!(client.complete(json!({"prompt": "x", "max_tokens": 1})).len(), 1);
}
