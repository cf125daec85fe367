//! What `prepare` decides of its inputs is right, refused, or said: formats, splits, losses, what is left out and what is replaced.

use crate::common::{folder, lines};
use kerple_data::{Corpus, CorpusSummary, PrepareOptions, Sources, Split, prepare};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

fn documents(from: usize, count: usize) -> Vec<String> {
    (from..from + count).map(|at| format!("document {at} is {}", "word and word ".repeat(at % 7 + 1))).collect()
}

/// Prepares a folder, with options changed by `change`, beside it.
fn run(input: &Path, change: impl FnOnce(&mut PrepareOptions)) -> kerple_data::Result<(CorpusSummary, TempDir)> {
    let out = tempfile::tempdir().unwrap();
    let mut options = PrepareOptions::new(Sources::paths(&[input]), &out.path().join("out"));
    change(&mut options);
    prepare(&options, &mut |_| {}).map(|summary| (summary, out))
}

fn total(summary: &CorpusSummary) -> u64 {
    Split::ALL.iter().map(|split| summary.split(*split).documents).sum()
}

fn texts(out: &TempDir, split: Split) -> String {
    let corpus = Corpus::open(&out.path().join("out")).unwrap();
    let tokens = corpus.split(split);
    corpus.tokenizer().unwrap().decode(&tokens.read(0..tokens.len()).unwrap())
}

#[test]
fn json_is_recognised_by_what_it_holds() {
    let all = documents(0, 100);
    let array =
        serde_json::to_string_pretty(&all.iter().map(|text| serde_json::json!({ "text": text })).collect::<Vec<_>>());
    let texts_alone = serde_json::to_string(&all).unwrap();
    for (name, content, kind) in [
        ("a.json", lines(&all), "JSON lines"),
        ("a.ndjson", lines(&all), "JSON lines"),
        ("a.jsonlines", lines(&all), "JSON lines"),
        ("a.json", array.unwrap(), "JSON arrays"),
        ("a.json", texts_alone, "JSON arrays"),
    ] {
        let input = folder(&[(name, &content)]);
        let (summary, out) = run(input.path(), |_| {}).unwrap();
        assert_eq!((total(&summary), summary.formats[kind]), (100, 1), "{name}");
        assert!(texts(&out, Split::Train).starts_with("document "), "{name}");
    }
    let input = folder(&[("a.json", "{\n  \"text\": \"one\"\n}\n")]);
    let error = run(input.path(), |_| {}).unwrap_err();
    assert!(error.to_string().contains("a.json: one JSON object over several lines"), "{error}");
}

#[test]
fn what_describes_a_dataset_is_not_trained_on() {
    let input = folder(&[
        ("data.jsonl", &lines(documents(0, 100))),
        ("README.md", "# A dataset"),
        ("dataset_infos.json", "{\n\"a\": 1}"),
        ("LICENSE", "MIT"),
    ]);
    let (summary, _out) = run(input.path(), |_| {}).unwrap();
    assert_eq!((total(&summary), summary.skipped_files, summary.skipped.len()), (100, 3, 3));
    assert!(summary.skipped.iter().any(|line| line.ends_with("README.md: it describes the data files next to it")));
    // a folder of pages is text, its README with it
    let pages: Vec<(String, String)> = (0..40).map(|at| (format!("{at}.md"), format!("page {at}"))).collect();
    let mut files: Vec<(&str, &str)> = pages.iter().map(|(name, text)| (&**name, &**text)).collect();
    files.push(("README.md", "the first page"));
    let (summary, _out) = run(folder(&files).path(), |_| {}).unwrap();
    assert_eq!((total(&summary), summary.skipped_files), (41, 0));
}

#[test]
fn rows_of_tables_are_documents() {
    for (name, delimiter) in [("a.csv", ","), ("a.tsv", "\t")] {
        let rows: String =
            documents(0, 100).iter().map(|text| format!("1{delimiter}\"{text}, \"\"so\"\"\n\"\n")).collect();
        let table = format!("\u{feff}id{delimiter}text\n{rows}");
        let (summary, out) = run(folder(&[(name, &table)]).path(), |_| {}).unwrap();
        assert_eq!(total(&summary), 100, "{name}");
        assert!(texts(&out, Split::Train).contains(", \"so\"\n"), "{name}");
        let error =
            run(folder(&[(name, &table)]).path(), |options| options.text_key = Some("body".to_owned())).unwrap_err();
        assert!(error.to_string().ends_with("no column is called `body`; the columns are: id, text"), "{error}");
        let ragged = table.clone() + &format!("2{delimiter}x{delimiter}y\n");
        let error = run(folder(&[(name, &ragged)]).path(), |_| {}).unwrap_err();
        assert!(error.to_string().ends_with("row 101: the row has 3 fields; the header row has 2"), "{error}");
        // each row takes two lines, the header takes the first
        let open = table.clone() + &format!("2{delimiter}\"the end is missing\n3{delimiter}x\n");
        let error = run(folder(&[(name, &open)]).path(), |_| {}).unwrap_err();
        let message = format!(
            "{name}, line 202: the row that begins here has a quote that is never closed; the file ends inside it"
        );
        assert!(error.to_string().ends_with(&message), "{error}");
        // such a row can be skipped as any damaged one, and a quote that only escapes one is whole
        let (summary, _out) = run(folder(&[(name, &open)]).path(), |options| options.max_bad_documents = 1).unwrap();
        assert_eq!((total(&summary), summary.damaged.len()), (100, 1), "{name}");
        let whole = table.clone() + &format!("2{delimiter}\"so \"\"\"\n3{delimiter}x \"y\n4{delimiter}\"no line end\"");
        assert_eq!(total(&run(folder(&[(name, &whole)]).path(), |_| {}).unwrap().0), 103, "{name}");
    }
}

#[test]
fn text_after_a_closing_quote_is_refused_with_its_line() {
    let rows: String = documents(0, 100).iter().map(|text| format!("\"{text}\",1\n")).collect();
    for mark in ["", "\u{feff}"] {
        let header = format!("{mark}text,id\n");
        let wrong = folder(&[("a.csv", &format!("{header}{rows}\"two\nlines\"b,1\n"))]);
        let error = run(wrong.path(), |_| {}).unwrap_err().to_string();
        assert!(
            error.ends_with(
                "a.csv, line 103: `b` follows a closing quote; only the delimiter or the end of the line may"
            ),
            "{error}"
        );
        let (summary, _) = run(wrong.path(), |options| options.max_bad_documents = 1).unwrap();
        assert_eq!((total(&summary), summary.damaged.len()), (100, 1));
    }
    let names = folder(&[("a.csv", &format!("\"text\"x,id\n{rows}"))]);
    assert!(run(names.path(), |_| {}).unwrap_err().to_string().contains("a.csv, line 1: `x` follows a closing quote"));
    let right = folder(&[("a.csv", &format!("text,id\n{rows}\"a \"\"b\"\" c\",1\r\n"))]);
    assert_eq!(total(&run(right.path(), |_| {}).unwrap().0), 101);
}

#[test]
fn shares_that_do_not_sum_to_1_are_said_to_be_scaled() {
    let input = folder(&[("a.jsonl", &lines(documents(0, 200)))]);
    let by = |split| run(input.path(), |options| options.split = split).map(|(summary, _)| summary.assignment);
    assert_eq!(
        by([8.0, 1.0, 1.0]).unwrap(),
        "0.8000 : 0.1000 : 0.1000 (8, 1, 1, scaled to sum to 1), by a hash of each document"
    );
    assert!(!by([0.8, 0.1, 0.1]).unwrap().contains("scaled"));
    assert!(by([1e308; 3]).unwrap_err().to_string().contains("too large to add up"));
}

#[test]
fn json_lines_under_the_name_of_a_text_are_refused() {
    let input = folder(&[("a.txt", &lines(documents(0, 100)))]);
    let error = run(input.path(), |_| {}).unwrap_err();
    assert!(error.to_string().ends_with("a.txt: the name claims text, but the file contains JSON lines"), "{error}");
    fs::rename(input.path().join("a.txt"), input.path().join("a.jsonl")).unwrap();
    assert_eq!(total(&run(input.path(), |_| {}).unwrap().0), 100);
}

#[test]
fn nested_keys_lead_to_texts() {
    let nested: String = documents(0, 100)
        .iter()
        .map(|text| serde_json::json!({ "content": { "text": text } }).to_string() + "\n")
        .collect();
    let input = folder(&[("a.jsonl", &nested)]);
    let with = |key: &str| run(input.path(), |options| options.text_key = Some(key.to_owned()));
    assert_eq!(total(&with("content.text").unwrap().0), 100);
    let error = with("content.body").unwrap_err();
    assert!(error.to_string().contains("no key is called `content.body`"), "{error}");
    let line =
        |body: &str| documents(0, 100).iter().map(|text| format!("{{\"a.b\": {text:?}{body}}}\n")).collect::<String>();
    let of =
        |lines: String| run(folder(&[("a.jsonl", &lines)]).path(), |options| options.text_key = Some("a.b".to_owned()));
    let (_, out) = of(line(", \"a\": {\"c\": \"no\"}")).unwrap();
    assert!(texts(&out, Split::Train).starts_with("document "));
    let error = of(line(", \"a\": {\"b\": \"no\"}")).unwrap_err();
    assert!(error.to_string().contains("line 1: `a.b` occurs twice, once as `b` under `a`"), "{error}");
}

#[test]
fn numbers_that_json_does_not_have_are_read_beside_the_text() {
    let all: String = documents(0, 100)
        .iter()
        .map(|text| format!("{{\"text\": \"NaN {text} \\\"Infinity\", \"a\": NaN, \"b\": [-Infinity, Infinity]}}\n"))
        .collect();
    let (summary, out) = run(folder(&[("a.jsonl", &all)]).path(), |_| {}).unwrap();
    assert_eq!(total(&summary), 100);
    assert!(texts(&out, Split::Train).starts_with("NaN document "));
    assert!(texts(&out, Split::Train).contains("\"Infinity"));
}

#[test]
fn damaged_documents_are_passed_over_where_that_is_allowed() {
    for bad in ["{\"text\": \"a \\u0000 b\"}\n", "{\"text\": \"a \\ud800 b\"}\n", "{\"text\": NaN}\n", "{\"text\": \n"]
    {
        let content = lines(documents(0, 60)) + bad + &lines(documents(60, 60));
        let input = folder(&[("a.jsonl", &content)]);
        let error = run(input.path(), |_| {}).unwrap_err();
        assert!(
            error.to_string().contains("a.jsonl, line 61: ") && error.hint().contains("--max-bad-documents N"),
            "{error}"
        );
        let (summary, _out) = run(input.path(), |options| options.max_bad_documents = 5).unwrap();
        assert_eq!((total(&summary), summary.damaged.len()), (120, 1), "{bad}");
    }
}

#[test]
fn files_that_cannot_be_read_are_refused_or_named() {
    let data = lines(documents(0, 100));
    for name in ["b.jsonl.xz", "b.bz2", "more/b.txt.7z"] {
        let error = run(folder(&[("a.jsonl", &data), (name, "x")]).path(), |_| {}).unwrap_err();
        assert!(error.to_string().contains(name) && !error.hint().is_empty(), "{error}");
    }
    let input = folder(&[("a.jsonl", &data)]);
    fs::write(input.path().join("latin.txt"), b"caf\xe9").unwrap();
    let (summary, _out) = run(input.path(), |_| {}).unwrap();
    let named = summary.skipped.iter().any(|line| line.ends_with("latin.txt: byte 3 is not valid UTF-8"));
    assert!(named && summary.to_string().contains("latin.txt: byte 3 is not valid UTF-8"), "{summary}");
}

#[cfg(unix)]
#[test]
fn links_to_nothing_and_pipes_are_named_with_the_reason() {
    let input = folder(&[("in/a.jsonl", &lines(documents(0, 100)))]);
    let root = input.path().join("in");
    // names of files that are not read state no split: neither is warned of
    std::os::unix::fs::symlink("gone.jsonl", root.join("b-test.jsonl")).unwrap();
    let pipe = root.join("c-dev.jsonl");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::os::unix::fs::symlink("c-dev.jsonl", root.join("d.jsonl")).unwrap();
    let (summary, _out) = run(&root, |_| {}).unwrap();
    assert_eq!((total(&summary), summary.skipped_files, summary.formats["JSON lines"]), (100, 3, 1));
    let named: Vec<&str> = summary.skipped.iter().map(|line| line.rsplit('/').next().unwrap()).collect();
    let no_file = "not a regular file; pipes and devices cannot be read twice";
    let expected = [
        "b-test.jsonl: the link points to nothing".to_owned(),
        format!("c-dev.jsonl: {no_file}"),
        format!("d.jsonl: {no_file}"),
    ];
    assert_eq!(named, expected);
    assert!(summary.to_string().contains("\nskipped 3 files\n"), "{summary}");
    assert!(summary.warnings.is_empty(), "{:?}", summary.warnings);
    // a folder with nothing else has nothing to read
    fs::remove_file(root.join("a.jsonl")).unwrap();
    let error = run(&root, |_| {}).unwrap_err();
    assert!(error.to_string().starts_with("no file to read in: "), "{error}");
    assert!(error.hint().contains("pipes and links to nothing are ignored"), "{}", error.hint());
}

#[test]
fn only_files_that_were_read_are_counted() {
    let input = folder(&[("a.jsonl", &lines(documents(0, 100))), ("empty.tsv", "text\n"), ("z.md", "the last")]);
    fs::write(input.path().join("bad.txt"), b"abc\xff").unwrap();
    let (summary, _out) = run(input.path(), |_| {}).unwrap();
    assert!(summary.to_string().contains("\nfiles read as JSON lines (1), TSV (1), text (1)\n"), "{summary}");
    assert_eq!(summary.skipped_files, 1);
    // what comes after the end of the budget is not read
    let budget = documents(0, 100).concat().len() as u64;
    let (summary, _out) = run(input.path(), |options| options.byte_budget = Some(budget)).unwrap();
    let read: Vec<(&str, u64)> = summary.formats.iter().map(|(kind, count)| (&**kind, *count)).collect();
    assert_eq!((read, summary.cut_by_budget), (vec![("JSON lines", 1), ("TSV", 1)], true));
}

#[cfg(unix)]
#[test]
fn linked_folders_are_followed_and_loops_are_not() {
    let input = folder(&[("in/a.jsonl", &lines(documents(0, 100))), ("real/b.jsonl", &lines(documents(100, 50)))]);
    let root = input.path().join("in");
    std::os::unix::fs::symlink("../real", root.join("more")).unwrap();
    std::os::unix::fs::symlink("..", root.join("up")).unwrap();
    let (summary, _out) = run(&root, |_| {}).unwrap();
    assert_eq!(total(&summary), 150);
    assert!(
        summary.skipped.iter().any(|line| line.contains("up: the link points to a folder that contains the link")),
        "{summary}"
    );
}

/// A tokenizer of these letters that has no token for any other.
fn letters(root: &Path, known: &str) -> String {
    let vocab: serde_json::Map<_, _> = ["</s>".to_owned(), "▁".to_owned()]
        .into_iter()
        .chain(known.chars().map(String::from))
        .enumerate()
        .map(|(id, name)| (name, id.into()))
        .collect();
    let space =
        serde_json::json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": true });
    let definition = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [{ "id": 0, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true }],
        "pre_tokenizer": space, "decoder": space,
        "model": { "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": [] },
    });
    let path = root.join("letters.json");
    fs::write(&path, definition.to_string()).unwrap();
    path.display().to_string()
}

#[test]
fn text_that_tokens_lose_anywhere_is_said_and_most_of_a_split_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let tokenizer = letters(root.path(), "abcdefghijklmnopqrstuvwxyz0123456789.");
    let with = |other: usize, allow_loss: bool| {
        // beyond the first megabyte, at which the letters are looked at
        let first: Vec<String> = (0..120).map(|at| format!("{at} {}", "abc def ".repeat(1500))).collect();
        let rest: Vec<String> = (0..other).map(|at| format!("{} {at}", "文字".repeat(2000))).collect();
        let input = folder(&[("a.jsonl", &lines(&first)), ("b.jsonl", &lines(&rest))]);
        let tokenizer = tokenizer.clone();
        run(input.path(), move |options| (options.tokenizer, options.allow_loss) = (tokenizer, allow_loss))
    };
    let (summary, _out) = with(0, false).unwrap();
    assert!(summary.warnings.is_empty(), "{:?}", summary.warnings);
    let (summary, _out) = with(20, true).unwrap();
    assert!(summary.warnings.iter().any(|warning| warning.contains("split loses")), "{:?}", summary.warnings);
    let error = with(400, false).unwrap_err();
    assert!(error.to_string().contains("tokens represent") && error.hint().contains("--allow-loss"), "{error}");
    assert!(with(400, true).is_ok());
}

#[test]
fn a_corpus_of_other_content_stays_unless_it_is_to_be_replaced() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("out");
    let make = |from: usize, replace: bool| {
        let input = folder(&[("a.jsonl", &lines(documents(from, 100)))]);
        prepare(&PrepareOptions { replace, ..PrepareOptions::new(Sources::paths(&[input.path()]), &out) }, &mut |_| {})
    };
    let first = make(0, false).unwrap();
    assert_eq!(make(0, false).unwrap().content, first.content);
    let error = make(500, false).unwrap_err();
    assert!(error.to_string().contains("out: the folder contains a prepared corpus with other content"), "{error}");
    assert!(error.hint().contains("--replace"));
    assert_eq!(Corpus::open(&out).unwrap().content(), first.content);
    let second = make(500, true).unwrap();
    assert_eq!(Corpus::open(&out).unwrap().content(), second.content);
}

#[test]
fn a_split_that_is_empty_because_of_duplicates_says_so() {
    let (same, other) = (lines(documents(0, 40)), lines(documents(100, 40)));
    let input = folder(&[("test.jsonl", &same), ("train.jsonl", &same), ("valid.jsonl", &other)]);
    let error = run(input.path(), |_| {}).unwrap_err();
    let place = format!("{}/", input.path().display());
    assert_eq!(
        error.to_string().replace(&place, ""),
        "the train split is empty: 40 of its documents, the first in train.jsonl, equal documents that were read \
         before for another split and are counted there only"
    );
    // both ways out that the hint names lead out
    let hint = error.hint();
    let (before, shares) = hint.split_once("--split ").unwrap();
    assert!(before.contains("add documents that only the train split has"), "{before}");
    let shares: Vec<f64> = shares.split(',').map(|share| share.parse().unwrap()).collect();
    let by_shares = |options: &mut PrepareOptions| {
        (options.split, options.split_by_name) = (shares.clone().try_into().unwrap(), false);
    };
    assert_eq!(total(&run(input.path(), by_shares).unwrap().0), 80);
    fs::write(input.path().join("train.jsonl"), same + &lines(documents(200, 3))).unwrap();
    let (summary, _out) = run(input.path(), |_| {}).unwrap();
    assert_eq!((summary.train.documents, summary.duplicates), (3, 40));
}

#[test]
fn splits_that_names_state_and_those_that_shares_make() {
    let data = lines(documents(0, 100));
    let (valid, test) = (lines(documents(100, 20)), lines(documents(200, 20)));
    let input = folder(&[("train/a.jsonl", &data), ("validation/b.jsonl", &valid), ("test/c.jsonl", &test)]);
    let (summary, _out) = run(input.path(), |_| {}).unwrap();
    assert_eq!(Split::ALL.map(|split| summary.split(split).documents), [100, 20, 20]);
    let (summary, _out) = run(input.path(), |options| options.split_by_name = false).unwrap();
    assert_ne!(Split::ALL.map(|split| summary.split(split).documents), [100, 20, 20]);
    let said = summary
        .warnings
        .iter()
        .any(|warning| warning.contains("--split was given") && warning.contains("test/c.jsonl"));
    assert!(said, "{:?}", summary.warnings);
    let (summary, _out) = run(folder(&[("a.jsonl", &data), ("dev-ops-guide.jsonl", &valid)]).path(), |_| {}).unwrap();
    assert!(summary.warnings.iter().any(|warning| warning.contains("dev-ops-guide.jsonl")), "{:?}", summary.warnings);
}

/// `license.jsonl` is data by its ending, alone or next to other data.
#[test]
fn what_ends_like_data_describes_nothing() {
    for name in ["license.jsonl", "notice.csv", "readme.parquet.jsonl"] {
        let texts = documents(0, 100);
        let rows = format!("text\n{}\n", texts.join("\n"));
        let data = if name.ends_with("csv") { rows } else { lines(&texts) };
        for others in [&[][..], &[("more.jsonl", lines(documents(100, 10)))]] {
            let mut files = vec![(name, &*data)];
            files.extend(others.iter().map(|(name, data)| (*name, &**data)));
            let (summary, _out) = run(folder(&files).path(), |_| {}).unwrap();
            assert_eq!((total(&summary), summary.skipped_files), (100 + 10 * others.len() as u64, 0), "{name}");
        }
    }
}

/// Without the documents of an archive a corpus would be smaller than its folder.
#[test]
fn archives_of_texts_are_refused() {
    for name in ["a.tar", "a.tgz", "more/a.TAR.GZ", "a.tar.zst"] {
        let input = folder(&[("data.jsonl", &lines(documents(0, 100))), (name, "\0\0")]);
        let error = run(input.path(), |_| {}).unwrap_err();
        assert!(error.to_string().contains(&format!("{name}: archives are read for MIDI files only")), "{error}");
    }
    for (name, hint) in
        [("a.tar", "unpack"), ("a.jsonl.xz", "decompress it"), ("a.mid.bz2", "decompress it"), ("a.bin", "are pairs")]
    {
        let input = folder(&[(name, "\0\0")]);
        let error = run(&input.path().join(name), |_| {}).unwrap_err();
        assert!(error.hint().contains(hint), "{name}: {}", error.hint());
    }
}

#[cfg(unix)]
#[test]
fn links_that_lead_back_to_each_other_end() {
    let input = folder(&[("x/a.jsonl", &lines(documents(0, 100))), ("y/b.jsonl", &lines(documents(100, 10)))]);
    for (name, to) in [("x/one", "../y"), ("x/two", "../y"), ("y/one", "../x"), ("y/two", "../x")] {
        std::os::unix::fs::symlink(to, input.path().join(name)).unwrap();
    }
    let (summary, _out) = run(input.path(), |_| {}).unwrap();
    assert_eq!(total(&summary), 110);
    assert!(summary.skipped.iter().all(|line| line.ends_with("the link points to a folder that contains the link")));
}

#[test]
fn documents_that_two_splits_share_are_said() {
    let (own, shared) = (lines(documents(0, 40)), lines(documents(100, 7)));
    let valid = lines(documents(200, 3));
    let input = folder(&[
        ("test.jsonl", &(shared.clone() + &lines(documents(300, 2)))),
        ("train.jsonl", &(own.clone() + &shared + &own)),
        ("valid.jsonl", &valid),
    ]);
    let (summary, _out) = run(input.path(), |_| {}).unwrap();
    assert_eq!((summary.train.documents, summary.test.documents, summary.duplicates), (40, 9, 47));
    let said: Vec<&String> = summary.warnings.iter().filter(|warning| warning.contains("equal documents")).collect();
    let [said] = &said[..] else { panic!("{said:?}") };
    assert!(said.starts_with("7 documents of files named for the train split, the first in "), "{said}");
    assert!(said.ends_with("were read before for test, and are counted there only"), "{said}");
}

/// `eval` is validation in some datasets and test in others.
#[test]
fn words_that_mean_two_splits_are_said() {
    let (train, other) = (lines(documents(200, 20)), lines(documents(0, 100)));
    for name in ["eval.jsonl", "testing.jsonl", "a-evaluation-set.jsonl", "eval/a.jsonl"] {
        let input = folder(&[("train.jsonl", &train), (name, &other)]);
        let (summary, _out) = run(input.path(), |_| {}).unwrap();
        assert!(
            summary.warnings.iter().any(|said| said.contains(name) && said.contains("rename them to valid or test"))
        );
        let (summary, _out) = run(input.path(), |options| options.split_by_name = false).unwrap();
        assert!(!summary.warnings.iter().any(|said| said.contains("rename them")), "{:?}", summary.warnings);
    }
    let input = folder(&[("evaluate.jsonl", &other), ("eval.py", "a program")]);
    assert_eq!(run(input.path(), |_| {}).unwrap().0.warnings, Vec::<String>::new());
}
