//! Every command shown in `docs/kernels.md` prints what the chapter shows.
//!
//! After a change of wording, `KERPLE_REFRESH=1 cargo test --release -p kerple chapter` writes the new output into the chapter.

use std::fmt::Write;
use std::path::PathBuf;

use crate::kernel::expr::Expr;
use crate::kernel::{picture, report};

/// Words of a command line; single quotes hold one together.
fn words(line: &str) -> Vec<String> {
    let quoted = line.split('\'').enumerate();
    let words = quoted.flat_map(|(i, part)| {
        if i % 2 == 1 { vec![part.to_owned()] } else { part.split_whitespace().map(str::to_owned).collect() }
    });
    words.collect()
}

/// What `kerple kernel` with these words prints.
fn run(words: &[String]) -> String {
    let mut texts = Vec::new();
    let mut options: Vec<(&str, &str)> = Vec::new();
    let mut rest = words[1..].iter();
    while let Some(word) = rest.next() {
        match word.strip_prefix("--") {
            Some("log") => options.push(("log", "")),
            Some(option) => options.push((option, rest.next().unwrap())),
            None => texts.push(word.as_str()),
        }
    }
    let option = |name: &str| options.iter().find(|option| option.0 == name).map(|option| option.1);
    let number = |name: &str| option(name).unwrap().parse::<usize>().unwrap();
    match words[0].as_str() {
        "check" => report::check(texts[0], option("points").unwrap_or("0..15")).unwrap().to_string(),
        "plot" => {
            let plot = report::plot(&texts, number("length"), option("log").is_some()).unwrap();
            picture::text(&plot, 72, 12)
        }
        "features" => {
            let ranks: Vec<usize> =
                options.iter().filter(|option| option.0 == "rank").map(|option| option.1.parse().unwrap()).collect();
            report::features(texts[0], option("points").unwrap(), &ranks).unwrap().to_string()
        }
        "reach" => {
            report::reach(texts[0], number("length"), option("scores").unwrap().parse().unwrap()).unwrap().to_string()
        }
        verb => panic!("{verb}"),
    }
}

/// The chapter with the output of every command replaced by what it prints.
fn refreshed(chapter: &str) -> String {
    let mut out = String::new();
    let mut showing_output = false;
    for line in chapter.lines() {
        if let Some(command) = line.strip_prefix("$ kerple kernel ") {
            writeln!(out, "{line}\n{}", run(&words(command)).trim_end()).unwrap();
            showing_output = true;
        } else if !showing_output || line == "```" {
            showing_output = false;
            writeln!(out, "{line}").unwrap();
        }
    }
    out
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
    expect("kernels.md", &refreshed(&chapter));
    assert!(chapter.contains(&Expr::parse("power(1, 2.5)").unwrap_err().to_string()));
}

#[test]
fn the_chapters_picture_is_its_plot() {
    let plot = report::plot(&["log(1, 1)", "power(0.1, 0.5)", "-(-log(1, 0.5))^0.5"], 16384, true).unwrap();
    expect("kernels.svg", &picture::svg(&plot));
}
