//! What options and commands were called before: each is refused with its name of today.

use clap::Command;

/// Options by their command: the old name and the new one.
const OPTIONS: [(&str, &str, &str); 24] = [
    ("prepare", "copies", "augment"),
    ("prepare", "skip-bad", "max-bad-documents"),
    ("prepare", "end-of-document", "eod-token"),
    ("train", "from", "init-from"),
    ("import", "end-of-document", "eod-token"),
    ("export", "as", "arch"),
    ("export", "shard", "max-shard-size"),
    ("eval", "positions", "per-position"),
    ("eval", "segments", "n-segments"),
    ("eval", "span", "segment-len"),
    ("compare", "positions", "per-position"),
    ("compare", "segments", "n-segments"),
    ("compare", "span", "segment-len"),
    ("reproduce", "render", "pages-only"),
    ("describe", "distances", "length"),
    ("sample", "tokens", "max-new-tokens"),
    ("serve", "name", "served-model-name"),
    ("serve", "max-len", "max-model-len"),
    ("serve", "batch", "max-num-seqs"),
    ("serve", "queue", "max-queue"),
    ("bench attention", "lens", "lengths"),
    ("bench attention", "instructions", "simd"),
    ("bench step", "lens", "lengths"),
    ("bench step", "instructions", "simd"),
];

/// Commands by the one above them, which is empty for those of `kerple`, and what to type instead.
const COMMANDS: [(&str, &str, &str); 3] = [
    ("", "style", "`style` is now `music-style`"),
    ("kernel", "reach", "`kernel reach` is now `kernel effective-span`"),
    ("", "golden", "`golden` is now a program of its own: cargo run --release -p kerple-conformance -- FOLDER"),
];

/// Works of `bench` that a development program times today.
const MEASURED: [&str; 3] = ["decode", "eval", "linear"];

/// What an option of a command is called today, where it had this name.
pub fn option(command: &str, unknown: &str) -> Option<String> {
    let old = unknown.strip_prefix("--")?;
    let (_, _, new) = OPTIONS.iter().find(|(of, name, _)| (*of, *name) == (command, old))?;
    Some(format!("`--{old}` is now `--{new}`"))
}

/// What to type instead of a command below another one, where it had this name.
pub fn command(above: &str, unknown: &str) -> Option<String> {
    if above == "bench" && MEASURED.contains(&unknown) {
        return Some(format!(
            "`bench {unknown}` is now `{unknown}` of a development program: \
             cargo run --release -p kerple-conformance --bin measure -- {unknown}"
        ));
    }
    let (_, _, hint) = COMMANDS.iter().find(|(of, name, _)| (*of, *name) == (above, unknown))?;
    Some((*hint).to_owned())
}

/// The command that arguments name, with those above it: `bench step`; empty where they name none.
pub fn named(mut command: &Command, arguments: &[String]) -> String {
    let mut path = Vec::new();
    for word in arguments {
        if let Some(below) = command.find_subcommand(word) {
            path.push(below.get_name());
            command = below;
        }
    }
    path.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, misuse};
    use clap::{CommandFactory, Parser};
    use std::ffi::OsString;

    /// What arguments that are refused are answered with.
    fn hint(arguments: &[&str]) -> String {
        let words: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        let error = Cli::try_parse_from(["kerple"].iter().chain(arguments)).expect_err("an old name is refused");
        misuse::failure(&error, &words).hint
    }

    #[test]
    fn every_old_name_is_refused_with_the_new_one() {
        let cli = Cli::command();
        for (of, old, new) in OPTIONS {
            let (said, option) = (format!("`--{old}` is now `--{new}`"), format!("--{old}"));
            let path: Vec<&str> = of.split(' ').collect();
            let joined = format!("{option}=1");
            assert_eq!(hint(&[&path[..], &[joined.as_str()]].concat()), said, "{of}");
            assert_eq!(hint(&[&["--color", "never"], &path[..], &[option.as_str(), "1"]].concat()), said, "{of}");
            let command = path.iter().fold(&cli, |command, name| command.find_subcommand(name).unwrap());
            assert!(command.get_arguments().any(|argument| argument.get_long() == Some(new)), "{of} has no --{new}");
        }
        for (above, old, said) in COMMANDS {
            let path: Vec<&str> = above.split_whitespace().chain([old]).collect();
            assert_eq!(hint(&path), said);
        }
        for work in MEASURED {
            let command = format!("cargo run --release -p kerple-conformance --bin measure -- {work}");
            assert!(hint(&["bench", work, "--lengths", "1024"]).ends_with(&command), "{work}");
        }
        #[cfg(feature = "music-lra")]
        assert!(cli.find_subcommand("music-style").is_some());
        assert!(cli.find_subcommand("kernel").unwrap().find_subcommand("effective-span").is_some());
        // an option of one command is the old name of another's
        assert!(!hint(&["train", "--tokens", "5"]).contains("max-new-tokens"));
    }
}
