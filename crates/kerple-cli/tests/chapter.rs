//! Every command shown in `docs/kernels.md` prints what the chapter shows, and its picture is what the command draws.
//!
//! After a change of wording, `KERPLE_REFRESH=1 cargo test --release -p kerple-cli --test chapter` writes the new output
//! into the chapter.

mod common;

use std::path::PathBuf;

use common::Place;
use kerple::kernel::expr::Expr;

/// Words of a command line; single quotes hold one together.
fn words(line: &str) -> Vec<&str> {
    let quoted = line.split('\'').enumerate();
    quoted.flat_map(|(i, part)| if i % 2 == 1 { vec![part] } else { part.split_whitespace().collect() }).collect()
}

/// The chapter with the output of every command replaced by what it prints.
fn refreshed(place: &Place, chapter: &str) -> String {
    let mut lines = Vec::new();
    let mut showing_output = false;
    for line in chapter.lines() {
        if let Some(command) = line.strip_prefix("$ kerple ") {
            lines.push(line.to_owned());
            lines.push(place.ok(&words(command)).trim_end().to_owned());
            showing_output = true;
        } else if !showing_output || line == "```" {
            showing_output = false;
            lines.push(line.to_owned());
        }
    }
    lines.join("\n") + "\n"
}

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name)
}

/// Compares a file with what it should hold, or writes it where that is asked for.
fn expect(name: &str, content: &str) {
    if std::env::var_os("KERPLE_REFRESH").is_some() {
        std::fs::write(path(name), content).unwrap();
    }
    let shown = std::fs::read_to_string(path(name)).unwrap();
    for (shown, printed) in shown.lines().zip(content.lines()) {
        assert_eq!(shown, printed, "docs/{name}");
    }
    assert_eq!(shown.len(), content.len(), "docs/{name}");
}

#[test]
fn the_chapter_shows_true_output() {
    let chapter = std::fs::read_to_string(path("kernels.md")).unwrap();
    assert!(chapter.matches("\n$ kerple kernel ").count() > 5);
    expect("kernels.md", &refreshed(&Place::new(), &chapter));
    assert!(chapter.contains(&Expr::parse("power(1, 2.5)").unwrap_err().to_string()));
}

#[test]
fn the_chapters_picture_is_its_plot() {
    let chapter = std::fs::read_to_string(path("kernels.md")).unwrap();
    let before = chapter.split("`--svg FILE` draws the same picture").next().unwrap();
    let command = before.rsplit("$ kerple ").next().unwrap().lines().next().unwrap();
    let place = Place::new();
    let svg = ["--svg", "kernels.svg"];
    place.ok(&words(command).into_iter().chain(svg).collect::<Vec<_>>());
    expect("kernels.svg", &place.read("kernels.svg"));
}
