//! The server as a process: where it listens, and how it ends.
#![cfg(unix)]

use crate::common::Place;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::Duration;

fn trained() -> Place {
    let place = Place::new();
    place.make_data();
    place.ok(&["train", "--config", "run.toml", "--out", "run"]);
    place
}

/// A server and its address.
fn start(place: &Place, more: &[&str]) -> (Child, String) {
    let arguments = [&["serve", "run", "--port", "0"], more].concat();
    let mut child = place.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    (child, line.trim().strip_prefix("http://").unwrap_or_else(|| panic!("{line}")).to_owned())
}

fn ask(address: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let len = body.len();
    write!(
        stream,
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len}\r\n\r\n{body}"
    )
    .unwrap();
    stream
}

fn answer(mut stream: TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

fn signal(child: &Child, number: i32) {
    // SAFETY: sends a signal to a process that was started here and not waited for yet.
    assert_eq!(unsafe { libc::kill(child.id() as i32, number) }, 0);
}

#[test]
fn a_signal_ends_the_server_after_what_was_asked() {
    let place = trained();
    for number in [libc::SIGTERM, libc::SIGINT] {
        let (mut child, address) = start(&place, &["--max-model-len", "2000", "--served-model-name", "it"]);
        let asked = ask(&address, r#"{"prompt": "ka", "max_tokens": 400, "temperature": 0}"#);
        std::thread::sleep(Duration::from_millis(200));
        signal(&child, number);
        let told = answer(asked);
        assert!(told.starts_with("HTTP/1.1 200 OK") && told.contains(r#""model":"it""#), "{told:.300}");
        assert_eq!(child.wait().unwrap().code(), Some(130));
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(said.contains("all open requests were answered"), "{said}");
    }
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let place = trained();
    let (mut child, address) = start(&place, &["--max-model-len", "2000000"]);
    // all pairs of so many tokens take seconds
    let _asked = ask(&address, &format!(r#"{{"prompt": "{}", "max_tokens": 1}}"#, "ka ".repeat(50_000)));
    std::thread::sleep(Duration::from_millis(200));
    signal(&child, libc::SIGINT);
    std::thread::sleep(Duration::from_millis(300));
    assert!(child.try_wait().unwrap().is_none(), "the text is not done");
    signal(&child, libc::SIGINT);
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn what_cannot_be_served_is_said_before_anything_listens() {
    let place = trained();
    let refused = |arguments: &[&str]| {
        let output = place.run(&[&["serve"], arguments].concat());
        assert!(output.stdout.is_empty());
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for (arguments, says) in [
        (&["nowhere"][..], "is not a run folder"),
        (&["run", "--host", "no such host"], "--host no such host"),
        (&["run", "--max-model-len", "0"], "at least 1"),
        (&["run", "--max-queue", "100000"], "at most 65536"),
        (&["run", "--max-body", "2000"], "at most 1024"),
        (&["run", "--connections", "0"], "at least 1"),
        (&["run", "--allow-host", "gpu7.example:8000"], "without scheme and port"),
        (&["run", "--allow-host", "http://gpu7.example"], "without scheme and port"),
        (&["run", "--allow-host", ""], "without scheme and port"),
        (&["run", "--allow-host", "[gpu7]"], "without scheme and port"),
        (&["run", "--served-model-name", " "], "it must be a name of one line"),
        (&["run", "--served-model-name", "a\nb"], "it must be a name of one line"),
    ] {
        let (code, told) = refused(arguments);
        assert!(code == Some(2) && told.contains(says), "{arguments:?}: {code:?} {told}");
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let (code, told) = refused(&["run", "--port", &port]);
    assert!(code == Some(1) && told.contains(&format!("127.0.0.1:{port}: cannot listen on")), "{code:?} {told}");
}
