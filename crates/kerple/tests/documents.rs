//! What the documents show is what the program says, and their links lead somewhere; `KERPLE_REFRESH=1 cargo test --release
//! -p kerple --test suite documents` writes anew what is made.

use crate::common::{Place, document, expect_document};
use kerple_core::encoding::METHODS;
use kerple_report::plot::{Axis, Legend, Plot, Point, Series, standalone};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const BEGIN: &str = "<!-- methods: made by crates/kerple/tests/documents.rs -->\n";
const END: &str = "<!-- end of methods -->\n";

fn methods() -> String {
    let list = Place::new().ok(&["describe", "--json"]);
    let mut table =
        "| kind | method | scores `z`, or where it enters | past the training length |\n|---|---|---|---|\n".to_owned();
    for line in list.lines() {
        let about: Value = serde_json::from_str(line).unwrap();
        let word = |key: &str| about["description"][key].as_str().unwrap().replace('|', "\\|");
        let kind = about["kind"].as_str().unwrap();
        table += &format!(
            "| [`{kind}`](encodings/{kind}.md) | {} | `{}` | {} |\n",
            word("name"),
            word("formula"),
            word("beyond")
        );
    }
    table
}

#[test]
fn the_table_of_methods_is_current() {
    let page = std::fs::read_to_string(document("docs/methods.md")).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the page marks the table's beginning");
    let (_, after) = rest.split_once(END).expect("the page marks the table's end");
    expect_document("docs/methods.md", &[before, BEGIN, &methods(), END, after].concat());
}

const ENCODING_BEGIN: &str = "<!-- encoding: made by crates/kerple/tests/documents.rs -->\n";
const ENCODING_END: &str = "<!-- end of encoding -->\n";

/// What a page says that `kerple describe KIND` prints: an encoding without a distance table has no picture.
const WITH_PICTURE: &str = "# formula, keys and a picture in the terminal\n";
const WITHOUT_PICTURE: &str = "# formula and keys in the terminal\n";

/// What the program knows about an encoding, as a table, and its picture if it has one.
fn facts(place: &Place, kind: &str) -> (String, Option<String>) {
    let about: Value = serde_json::from_str(&place.ok(&["describe", kind, "--json"])).unwrap();
    let word = |value: &Value| value.as_str().unwrap().replace('|', "\\|");
    let of = |key: &str| word(&about["description"][key]);
    let picture = ["bias", "weight"].into_iter().find(|key| about[key].is_array()).map(|shown| {
        place.ok(&["describe", kind, "--heads", "4", "--length", "128", "--svg", "encoding.svg"]);
        (shown, place.read("encoding.svg"))
    });
    let mut table = "| | |\n|---|---|\n".to_owned();
    table += &format!("| kind | `{kind}` |\n");
    table += &format!("| formula | `{}` |\n", of("formula"));
    for (title, text) in [
        ("enters", of("enters")),
        ("learned", of("learned")),
        ("past the training length", of("beyond")),
        ("linear attention", word(&about["linear"])),
        ("source", of("source")),
    ] {
        table += &format!("| {title} | {text} |\n");
    }
    if let Some((shown, _)) = &picture {
        table += &format!("\n![The {shown} of four heads by distance, as initialised]({kind}.svg)\n");
    }
    (table, picture.map(|(_, svg)| svg))
}

#[test]
fn the_page_of_every_encoding_is_current() {
    let place = Place::new();
    let summary = std::fs::read_to_string(document("docs/SUMMARY.md")).unwrap();
    for kind in METHODS {
        let name = format!("docs/encodings/{kind}.md");
        let page = std::fs::read_to_string(document(&name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        let (before, rest) = page.split_once(ENCODING_BEGIN).expect("the page marks the table's beginning");
        let (_, after) = rest.split_once(ENCODING_END).expect("the page marks the table's end");
        let (table, picture) = facts(&place, kind);
        let before = before.replace(WITH_PICTURE, WITHOUT_PICTURE);
        let before = if picture.is_some() { before.replace(WITHOUT_PICTURE, WITH_PICTURE) } else { before };
        expect_document(&name, &[&before, ENCODING_BEGIN, "\n", &table, "\n", ENCODING_END, after].concat());
        if let Some(picture) = picture {
            expect_document(&format!("docs/encodings/{kind}.svg"), &picture);
        }
        assert!(summary.contains(&format!("(encodings/{kind}.md)")), "docs/SUMMARY.md does not list {name}");
    }
}

#[test]
fn the_reference_of_commands_is_current() {
    expect_document("docs/commands.md", &Place::new().ok(&["manual"]));
}

/// Perplexity by length of the web pages of KERPLE reproduced small.
fn picture(cells: &[BTreeMap<String, String>]) -> Plot {
    let series = |(colour, (kind, name)): (usize, (&str, &str))| {
        let of_kind = |cell: &&BTreeMap<_, _>| {
            cell["item"] == "table3" && cell["corpus"] == "openwebtext2" && cell["encoding"] == kind
        };
        let of_kind: Vec<_> = cells.iter().filter(of_kind).collect();
        let n = &of_kind[0]["n"];
        assert!(of_kind.iter().all(|cell| &cell["n"] == n), "{kind}: lengths differ in their number of seeds");
        let number = |cell: &BTreeMap<String, String>, key: &str| cell[key].parse().unwrap();
        let points = of_kind.iter().map(|cell| Point {
            x: number(cell, "eval_len"),
            y: number(cell, "perplexity"),
            error: number(cell, "perplexity_deviation"),
        });
        Series { markers: true, points: points.collect(), ..Series::line(format!("{name}, n = {n}"), colour, []) }
    };
    let shown = [
        ("kerple_log", "KERPLE-log"),
        ("kerple_power", "KERPLE-power"),
        ("alibi", "ALiBi"),
        ("t5-max_distance=32", "T5"),
        ("rotary", "rotary"),
    ];
    Plot {
        title: "Perplexity of web pages by evaluated length, trained at 128 tokens".into(),
        description: "Rotary positions leave the frame beyond 512 tokens; T5's bias rises late; KERPLE and ALiBi stay \
                      level to 32 times the training length."
            .into(),
        x: Axis::lengths("tokens evaluated", &[128, 256, 512, 1024, 2048, 4096]),
        y: Axis::log("perplexity", 27.0, 44.0),
        series: shown.into_iter().enumerate().map(series).collect(),
        rule: Some((128.0, "trained".into())),
        legend: Legend::Ends,
        titled: true,
    }
}

#[test]
fn the_picture_is_of_the_results() {
    let mut cells = csv::Reader::from_path(document("results/kerple-small/paper/cells.csv")).unwrap();
    let cells = cells.deserialize().map(Result::unwrap).collect::<Vec<_>>();
    let plot = picture(&cells);
    assert!(plot.series.iter().all(|series| series.points.len() == 6), "{:?}", plot.series);
    expect_document("docs/length.svg", &standalone(&plot.svg(760.0, 340.0)));
}

/// Files below a folder, and bytes in all.
fn size(folder: &Path) -> (usize, u64) {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries.fold((0, 0), |(files, bytes), entry| {
        let about = entry.metadata().unwrap();
        let (more, larger) = if about.is_dir() { size(&entry.path()) } else { (1, about.len()) };
        (files + more, bytes + larger)
    })
}

#[test]
fn results_and_reference_values_are_few_files() {
    let [results, reference] = ["results", "reference"].map(|folder| size(&document(folder)));
    let (files, bytes) = (results.0 + reference.0, results.1 + reference.1);
    assert!(files <= 340, "{files} files");
    assert!(bytes <= 20 << 20, "{:.1} MiB", bytes as f64 / f64::from(1 << 20));
}

#[test]
fn the_readme_is_short() {
    let readme = std::fs::read_to_string(document("README.md")).unwrap();
    assert!(readme.lines().count() <= 80, "{} lines", readme.lines().count());
}

/// The links of a page that lead to files: text and target.
fn file_links(page: &str) -> impl Iterator<Item = (&str, &str)> {
    let texts = page.split("](").map(|before| before.rsplit('[').next().unwrap());
    let targets = page.split("](").skip(1).map(|rest| rest.split_once(')').map_or("", |(target, _)| target));
    let is_file = |target: &str| !(target.is_empty() || target.contains("://") || target.starts_with('#'));
    texts.zip(targets).filter(move |(_, target)| is_file(target))
}

/// Targets of the links of a page that lead to files.
fn links(page: &str) -> Vec<&str> {
    file_links(page).map(|(_, target)| target.split('#').next().unwrap()).collect()
}

/// The pages of the project: at the top and in `docs`.
fn pages() -> Vec<PathBuf> {
    let mut pages: Vec<PathBuf> = ["", "docs", "docs/encodings"]
        .iter()
        .flat_map(|folder| std::fs::read_dir(document(folder)).unwrap())
        .map(|e| e.unwrap().path())
        .collect();
    // the table of contents of the site also lists pages of the folder above
    pages.retain(|path| path.extension().is_some_and(|end| end == "md") && !path.ends_with("SUMMARY.md"));
    assert!(pages.len() > 10, "{pages:?}");
    pages
}

#[test]
fn links_lead_to_files() {
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        for link in links(&text) {
            let target = page.parent().unwrap_or(Path::new("")).join(link);
            assert!(target.exists(), "{}: there is no {link}", page.display());
        }
    }
}

/// Whether a line holds a name as a whole word.
fn shows(line: &str, name: &str) -> bool {
    line.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|word| word == name)
}

/// The name that a link to a line shows: the last segment of the path in backticks.
fn shown_name(text: &str) -> Option<&str> {
    text.strip_prefix('`')?.strip_suffix('`')?.rsplit("::").next()
}

#[test]
fn links_to_lines_show_what_they_name() {
    let mut checked = 0;
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        for (name, target) in file_links(&text) {
            let Some((file, line)) = target.split_once("#L") else { continue };
            let at = format!("{}: [{name}]({target})", page.display());
            let line: usize = line.parse().unwrap_or_else(|_| panic!("{at} does not lead to one line"));
            let name = shown_name(name).unwrap_or_else(|| panic!("{at} does not name what the line shows"));
            let code = std::fs::read_to_string(page.parent().unwrap_or(Path::new("")).join(file)).unwrap();
            let found: Vec<usize> =
                (1..).zip(code.lines()).filter(|(_, line)| shows(line, name)).map(|(n, _)| n).collect();
            assert!(found.contains(&line), "{at} does not show `{name}`, which is in the lines {found:?}");
            checked += 1;
        }
    }
    assert!(checked >= 20, "{checked} links to lines");
}

#[test]
fn names_are_whole_words() {
    assert_eq!(["`part`", "`Slopes::backward`", "part"].map(shown_name), [Some("part"), Some("backward"), None]);
    assert!(shows("fn part(&self)", "part") && !shows("fn parts(&self)", "part"));
}

#[test]
fn every_page_is_in_the_order_of_reading() {
    let guide = std::fs::read_to_string(document("docs/README.md")).unwrap();
    for entry in std::fs::read_dir(document("docs")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        // SUMMARY.md is the table of contents of the site
        if name.ends_with(".md") && !["README.md", "SUMMARY.md"].contains(&name.as_str()) {
            assert!(links(&guide).contains(&name.as_str()), "docs/README.md does not say when to read {name}");
        }
    }
}
