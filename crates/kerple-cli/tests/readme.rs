//! The table of methods in README.md is what `kerple describe` says; `UPDATE_README=1 cargo test` writes it anew.

mod common;

use common::Place;
use serde_json::Value;
use std::path::Path;

const BEGIN: &str = "<!-- methods: made by crates/kerple-cli/tests/readme.rs -->\n";
const END: &str = "<!-- end of methods -->\n";

fn table() -> String {
    let list = Place::new().ok(&["describe", "--json"]);
    let mut table =
        "| kind | method | scores `z`, or where it enters | past the training length |\n|---|---|---|---|\n".to_owned();
    for line in list.lines() {
        let about: Value = serde_json::from_str(line).unwrap();
        let word = |key: &str| about["description"][key].as_str().unwrap().replace('|', "\\|");
        let kind = about["kind"].as_str().unwrap();
        table += &format!("| `{kind}` | {} | `{}` | {} |\n", word("name"), word("formula"), word("beyond"));
    }
    table
}

#[test]
fn the_table_of_methods_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = readme.split_once(BEGIN).expect("README.md marks the table's beginning");
    let (shown, after) = rest.split_once(END).expect("README.md marks the table's end");
    let table = table();
    if std::env::var_os("UPDATE_README").is_some() {
        std::fs::write(&path, [before, BEGIN, &table, END, after].concat()).unwrap();
        return;
    }
    assert!(shown == table, "README.md shows other methods than `kerple describe`; UPDATE_README=1 writes them anew");
}
