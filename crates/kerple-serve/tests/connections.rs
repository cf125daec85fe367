//! Connections: how many there may be, how long each may take, and how they end.

use crate::common::served;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// A status line and what follows, of a request without a body.
fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap_or_else(|error| panic!("{path}: {error}"));
    answer
}

/// Connections that have each sent this.
fn hold(address: SocketAddr, count: usize, sent: &str) -> Vec<TcpStream> {
    let one = |_| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(sent.as_bytes()).unwrap();
        stream
    };
    (0..count).map(one).collect()
}

const HALF: &str = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nx-a: ";

#[test]
fn half_requests_keep_nobody_out() {
    let mut narrow = served("none");
    narrow.limits.connections = 4;
    let (address, stop, thread) = listen(narrow);
    let held = hold(address, 12, HALF);
    std::thread::sleep(Duration::from_millis(1500));
    for _ in 0..8 {
        let mut whole = String::new();
        request(address, r#"{"prompt":"x","max_tokens":3}"#).read_to_string(&mut whole).unwrap();
        assert!(whole.starts_with("HTTP/1.1 200 OK"), "{whole}");
    }
    drop(held);
    stop.store(true, Ordering::Relaxed);
    thread.join().unwrap().unwrap();
}

#[test]
fn a_server_that_is_busy_says_so_and_that_it_works() {
    let mut narrow = served("alibi");
    (narrow.limits.connections, narrow.limits.max_model_len) = (2, 1 << 20);
    let (address, stop, thread) = listen(narrow);
    let endless = || request(address, r#"{"prompt":"a","max_tokens":1000000,"stream":true,"ignore_eos":true}"#);
    let writing = [endless(), endless()];
    std::thread::sleep(Duration::from_millis(300));
    let busy = get(address, "/v1/models");
    assert!(
        busy.starts_with("HTTP/1.1 503 ") && busy.contains("retry-after: 1") && busy.contains("\"error\""),
        "{busy}"
    );
    assert!(get(address, "/health").starts_with("HTTP/1.1 200 OK"));
    drop(writing);
    let waited = (0..100).find(|_| {
        std::thread::sleep(Duration::from_millis(50));
        get(address, "/v1/models").starts_with("HTTP/1.1 200 OK")
    });
    assert!(waited.is_some(), "the places are free again");
    stop.store(true, Ordering::Relaxed);
    thread.join().unwrap().unwrap();
}

#[test]
fn heads_and_bodies_have_their_time() {
    let mut hasty = served("none");
    (hasty.limits.head, hasty.limits.seconds) = (1, 1);
    let (address, stop, thread) = listen(hasty);
    let idle = get(address, "/health").len();
    assert!(idle > 0);
    let kept = "GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let body = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{";
    for (sent, begins, what) in [
        ("", "", "nothing is sent"),
        (HALF, "", "half a head"),
        (kept, "HTTP/1.1 200 OK", "a connection that is kept and idle"),
        (body, "HTTP/1.1 408 ", "half a body"),
    ] {
        let clock = std::time::Instant::now();
        let mut answer = String::new();
        let mut stream = hold(address, 1, sent).remove(0);
        // a connection that is reset has ended, too
        let ended = stream.read_to_string(&mut answer).is_ok() || clock.elapsed() < Duration::from_secs(10);
        assert!(ended && clock.elapsed() < Duration::from_secs(10), "{what}: {:?}", clock.elapsed());
        assert!(answer.starts_with(begins), "{what}: {answer}");
    }
    stop.store(true, Ordering::Relaxed);
    thread.join().unwrap().unwrap();
}

/// A server on a port of its own, and what ends it.
fn listen(
    served: kerple_serve::ServedModel,
) -> (SocketAddr, Arc<AtomicBool>, std::thread::JoinHandle<kerple_lm::Result<()>>) {
    let (stop, (tell, told)) = (Arc::new(AtomicBool::new(false)), mpsc::channel());
    let flag = stop.clone();
    let ready = move |address| tell.send(address).unwrap();
    let thread = std::thread::spawn(move || kerple_serve::serve(served, ([127, 0, 0, 1], 0).into(), ready, flag));
    (told.recv_timeout(Duration::from_secs(60)).unwrap(), stop, thread)
}

fn request(address: SocketAddr, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + body).as_bytes()).unwrap();
    stream
}

#[test]
fn a_stop_answers_what_was_asked() {
    let (address, stop, thread) = listen(served("kerple_log"));
    let body =
        json!({"prompt": ["a", "b", "c", "d", "e"], "max_tokens": 150, "temperature": 0, "logprobs": 0}).to_string();
    let mut stream = request(address, &body);
    std::thread::sleep(Duration::from_millis(100));
    stop.store(true, Ordering::Relaxed);
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer:.200}");
    let answer: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(answer["choices"].as_array().unwrap().len(), 5);
    thread.join().unwrap().unwrap();
    assert!(TcpStream::connect(address).is_err(), "nobody listens any more");
}

#[test]
fn half_a_request_does_not_hold_up_a_stop() {
    let (address, stop, thread) = listen(served("none"));
    let mut half = TcpStream::connect(address).unwrap();
    half.write_all(b"POST /v1/completions HTTP/1.1\r\ncontent-le").unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let clock = std::time::Instant::now();
    stop.store(true, Ordering::Relaxed);
    thread.join().unwrap().unwrap();
    assert!(clock.elapsed() < Duration::from_secs(30), "{:?}", clock.elapsed());
}

#[test]
fn a_declared_length_beyond_the_limit_is_refused_before_it_comes() {
    let (address, stop, thread) = listen(served("none"));
    for (path, length) in [("/v1/completions", 65_537), ("/tokenize", 1 << 50), ("/detokenize", u64::MAX - 2)] {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        stream
            .write_all(
                format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n").as_bytes(),
            )
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("longer than 65536 bytes"), "{path}: {answer}");
    }
    stop.store(true, Ordering::Relaxed);
    thread.join().unwrap().unwrap();
}

#[test]
fn who_sends_too_much_hears_why() {
    let (address, stop, thread) = listen(served("none"));
    for head in ["host: localhost\r\ncontent-length: 20000000", "host: evil.example\r\ncontent-length: 20000000"] {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(format!("POST /v1/completions HTTP/1.1\r\n{head}\r\n\r\n").as_bytes()).unwrap();
        // a client that writes all before it reads
        for _ in 0..20 {
            stream.write_all(&vec![b'a'; 1_000_000]).unwrap();
        }
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        let expected = if head.contains("evil") { "HTTP/1.1 403" } else { "HTTP/1.1 413" };
        assert_eq!(std::str::from_utf8(&answer).unwrap(), expected);
    }
    stop.store(true, Ordering::Relaxed);
    thread.join().unwrap().unwrap();
}

#[test]
fn clients_that_break_off_do_no_harm() {
    let (address, stop, thread) = listen(served("kerple_log"));
    drop(TcpStream::connect(address).unwrap());
    TcpStream::connect(address).unwrap().write_all(b"\x16\x03\x01 no HTTP\r\n\r\n").unwrap();
    let mut half = TcpStream::connect(address).unwrap();
    half.write_all(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n{\"prompt\"")
        .unwrap();
    drop(half);
    drop(request(address, r#"{"prompt":"x","max_tokens":190}"#));
    let mut whole = String::new();
    request(address, r#"{"prompt":"x","max_tokens":3}"#).read_to_string(&mut whole).unwrap();
    assert!(whole.starts_with("HTTP/1.1 200 OK"), "{whole}");
    stop.store(true, Ordering::Relaxed);
    thread.join().unwrap().unwrap();
}

#[test]
fn an_address_that_is_taken_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let error = kerple_serve::serve(served("none"), address, |_| {}, Arc::default()).unwrap_err();
    assert!(error.to_string().contains(&address.to_string()), "{error}");
}
