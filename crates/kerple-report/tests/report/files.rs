//! The files of a report: well formed, complete, equal to each other, and in nobody's way.

use kerple_report::{Error, ReportOptions, write};
use serde_json::Value;

use crate::made_up::{complete, read, report, run};

#[test]
fn the_page_is_well_formed_and_self_contained() {
    let root = complete();
    report(&root).unwrap();
    let html = read(&root, "index.html");
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    let page = roxmltree::Document::parse_with_options(&html, options).unwrap();
    assert_eq!(page.descendants().find(|node| node.has_tag_name("h1")).unwrap().text(), Some("A < B"));
    let svg = page.descendants().filter(|node| node.has_tag_name(("http://www.w3.org/2000/svg", "svg")));
    let pictures: Vec<_> = svg.filter(|node| node.attribute("role") == Some("img")).collect();
    assert!(pictures.len() > 8, "{}", pictures.len());
    for picture in pictures {
        let child = |name: &str| picture.children().any(|node| node.tag_name().name() == name && node.text().is_some());
        assert!(child("title") && child("desc"));
    }
    assert!(!html.contains("<script") && !html.contains("@import") && !html.contains("url("));
    assert!(!html.replace("http://www.w3.org/2000/svg", "").contains("://"));
    for node in page.descendants() {
        assert!(node.attribute("src").is_none());
        let Some(target) = node.attribute("href") else { continue };
        match target.strip_prefix('#') {
            Some(id) => assert!(page.descendants().any(|node| node.attribute("id") == Some(id)), "#{id} leads nowhere"),
            None => {
                let path = target.replace("%20", " ").replace("%23", "#");
                assert!(root.path().join("report").join(&path).exists(), "{path} leads nowhere");
            }
        }
    }
}

#[test]
fn what_was_not_recorded_is_not_zero_and_contradictions_are_noted() {
    let root = tempfile::tempdir().unwrap();
    run(root.path(), "alibi", 1, &[(64, 20.0)]);
    report(&root).unwrap();
    let page = read(&root, "report.md");
    assert!(page.contains("- training time: 50 s") && !page.contains("contradicts itself"), "{page}");
    let folder = root.path().join("runs/alibi #1");
    std::fs::remove_file(folder.join("metrics.jsonl")).unwrap();
    let rows = std::fs::read_to_string(folder.join("evaluation.jsonl")).unwrap();
    std::fs::write(folder.join("evaluation.jsonl"), rows.replace("\"perplexity\":20", "\"perplexity\":21")).unwrap();
    report(&root).unwrap();
    let page = read(&root, "report.md");
    assert!(page.contains("- training time: not recorded"), "{page}");
    assert!(page.contains("evaluation.jsonl has a row that contradicts itself: the perplexity is 21"), "{page}");
}

#[test]
fn every_file_that_is_listed_exists_and_figures_parse() {
    let root = complete();
    let summary = report(&root).unwrap();
    assert!(summary.files.contains(&summary.index));
    let mut figures = 0;
    for file in &summary.files {
        let text = std::fs::read_to_string(file).unwrap();
        if file.extension().is_some_and(|extension| extension == "svg") {
            roxmltree::Document::parse(&text).unwrap();
            figures += 1;
        }
    }
    // Perplexity twice, positions at two lengths, kernels, effective lengths, parameters, two losses.
    assert_eq!(figures, 9);
    let markdown = read(&root, "report.md");
    assert!(markdown.contains("| kerple_log | **22.00 ± 2.00** | **20.00 ± 2.00** |"), "{markdown}");
    assert!(markdown.contains("| sinusoidal | **22.00 ± 2.00** | 30000 ± 10000 † |"), "{markdown}");
    assert!(markdown.contains("](figures/perplexity-0.svg)"));
}

/// Every CSV cell against the JSON value of the same name.
fn same_numbers(csv_text: &str, rows: &[Value], what: &str) {
    let mut reader = csv::Reader::from_reader(csv_text.as_bytes());
    let names: Vec<String> = reader.headers().unwrap().iter().map(str::to_owned).collect();
    let records: Vec<csv::StringRecord> = reader.records().map(|record| record.unwrap()).collect();
    assert_eq!(records.len(), rows.len(), "{what}");
    for (record, row) in records.iter().zip(rows) {
        assert_eq!(names.len(), row.as_object().unwrap().len(), "{what}: {names:?} against {row}");
        for (name, cell) in names.iter().zip(record) {
            match &row[name] {
                Value::Number(number) => {
                    assert_eq!(cell.parse::<f64>().unwrap(), number.as_f64().unwrap(), "{what}: {name}")
                }
                Value::String(text) => assert_eq!(cell, text, "{what}: {name}"),
                Value::Bool(flag) => assert_eq!(cell, flag.to_string(), "{what}: {name}"),
                Value::Null => assert_eq!(cell, "", "{what}: {name}"),
                other => panic!("{what}: {name} is {other}"),
            }
        }
    }
}

#[test]
fn csv_and_json_hold_the_same_numbers() {
    let root = complete();
    run(root.path(), "none", 1, &[(64, f64::NAN), (128, f64::INFINITY)]);
    report(&root).unwrap();
    let json: Value = serde_json::from_str(&read(&root, "report.json")).unwrap();
    for list in ["runs", "speeds", "effective_lengths"] {
        same_numbers(&read(&root, &format!("tables/{list}.csv")), json[list].as_array().unwrap(), list);
    }
    for list in ["scores", "tests", "evaluations"] {
        let tables = json["tables"].as_array().unwrap().iter();
        let rows = tables.flat_map(|table| {
            table[list].as_array().unwrap().iter().map(|row| {
                let mut row = row.clone();
                let setting = ["train_len", "split", "protocol", "documents", "evaluators", "group"];
                let computed = ["precision", "device", "simd"];
                for name in setting
                    .iter()
                    .chain(&["text", "text_segment_len", "text_n_segments", "text_within", "text_seed"])
                    .chain(&computed)
                {
                    row[name] = table[name].clone();
                }
                row
            })
        });
        same_numbers(&read(&root, &format!("tables/{list}.csv")), &rows.collect::<Vec<_>>(), list);
    }
    assert!(
        read(&root, "tables/scores.csv").contains(",NaN,") && read(&root, "tables/evaluations.csv").contains(",inf,")
    );
}

#[test]
fn every_column_is_documented() {
    let root = complete();
    let chapter = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results.md")).unwrap();
    let (settings, tables) = chapter.split_once("Further columns:").unwrap();
    for file in report(&root).unwrap().files.iter().filter(|file| file.extension().is_some_and(|e| e == "csv")) {
        let name = file.file_name().unwrap().to_str().unwrap();
        let line = tables.lines().find(|line| line.starts_with(&format!("| `{name}` |"))).expect(name);
        let of_setting =
            ["scores.csv", "tests.csv", "evaluations.csv", "positions.csv", "own_context.csv"].contains(&name);
        for column in csv::Reader::from_path(file).unwrap().headers().unwrap() {
            let quoted = format!("`{column}`");
            let shown = line.contains(&quoted) || (of_setting && settings.contains(&quoted));
            assert!(shown, "docs/results.md: {name}: {column}");
        }
    }
}

#[test]
fn a_page_of_others_is_never_overwritten() {
    let root = complete();
    for name in ["index.html", "report.md", "report.json"] {
        let folder = root.path().join("report");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(name), "<h1>My page</h1>").unwrap();
        let error = report(&root).unwrap_err();
        assert!(error.is_misuse() && error.to_string().contains(name), "{error}");
        assert!(error.hint().contains("--out"));
        assert_eq!(std::fs::read_to_string(folder.join(name)).unwrap(), "<h1>My page</h1>");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

#[test]
fn pages_of_another_command_stay() {
    let root = complete();
    let folder = root.path().join("report");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("fit.json"), "{}").unwrap();
    let error = report(&root).unwrap_err();
    assert!(error.is_misuse() && error.to_string().contains("pages of another command: fit.json"), "{error}");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
    std::fs::remove_file(folder.join("fit.json")).unwrap();
    report(&root).unwrap();
}

#[test]
fn an_earlier_report_is_replaced() {
    let root = complete();
    report(&root).unwrap();
    let page = read(&root, "index.html");
    assert!(report(&root).is_ok());
    // A page from before there was a mark, and one that a full disk left empty.
    let unmarked = page.replace("made by kerple report", "");
    assert!(unmarked.len() < page.len());
    for earlier in [unmarked.as_str(), ""] {
        std::fs::write(root.path().join("report/index.html"), earlier).unwrap();
        report(&root).unwrap();
        assert_eq!(read(&root, "index.html"), page);
    }
    let files = |folder: &str| std::fs::read_dir(root.path().join(folder)).unwrap();
    assert!(files("report").all(|file| file.unwrap().path().extension().is_none_or(|name| name != "part")));
}

#[test]
fn figures_of_an_earlier_report_are_gone_and_others_stay() {
    let root = complete();
    report(&root).unwrap();
    let figures = root.path().join("report/figures");
    std::fs::write(figures.join("mine.svg"), "<svg/>").unwrap();
    let there = |name: &str| figures.join(name).exists();
    assert!(
        there("kernels-0.svg") || there("kernels.svg"),
        "{:?}",
        std::fs::read_dir(&figures).unwrap().collect::<Vec<_>>()
    );
    for run in std::fs::read_dir(root.path().join("runs")).unwrap() {
        std::fs::remove_file(run.unwrap().path().join(kerple_run::KERNELS_FILE)).unwrap();
    }
    let summary = report(&root).unwrap();
    let names = std::fs::read_dir(&figures).unwrap().map(|file| file.unwrap().path());
    let stale: Vec<_> = names.filter(|path| !summary.files.contains(path)).collect();
    assert_eq!(stale, [figures.join("mine.svg")], "what no report of ours wrote is not ours to remove");
}

#[test]
fn corrupt_rows_stop_with_file_and_line_and_incomplete_ones_are_noted() {
    let root = complete();
    let file = root.path().join("runs/kerple_log #1").join(kerple_run::EVALUATION_FILE);
    let whole = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, &whole[..whole.len() - 20]).unwrap();
    let summary = report(&root).unwrap();
    assert!(
        summary.results.notes.iter().any(|note| note.contains("evaluation.jsonl: the last line, 2, is incomplete"))
    );
    assert_eq!(summary.results.tables[0].score(("kerple_log", None), 128).unwrap().n, 2);
    std::fs::write(&file, whole.replacen('{', "[", 1)).unwrap();
    let error = report(&root).unwrap_err();
    assert!(error.to_string().contains("evaluation.jsonl: line 1 is not a record"), "{error}");
}

#[test]
fn no_runs_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("runs")).unwrap();
    let error = report(&root).unwrap_err();
    assert!(matches!(error, Error::Refused { .. }) && !error.hint().is_empty());
    assert!(matches!(write(&[], root.path(), &ReportOptions::default()), Err(Error::Refused { .. })));
}
