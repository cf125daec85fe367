//! The modules of a crate stand on each other in one order: each uses those before it, never those behind.

use crate::common::document;
use std::fs;
use std::path::{Path, PathBuf};

/// Lowest first.
const ORDERS: [(&str, &str); 13] = [
    (
        "kerple-core",
        "shape suggest emulate seed precision cpu tiles ops features forms score_mods attention calculus encoding",
    ),
    (
        "kerple-run",
        "files json_mistake error number length init_from session probe documents stop_rule check key_tokens old_names unique_keys journal plan",
    ),
    (
        "kerple-data",
        "error split hash contain file json quotes machine tokens order examples without_music_lra random music tokenizer corpus text prepare lra tasks peps",
    ),
    ("kerple-report", "error format statistics plot conditions run results folder page write"),
    (
        "kerple-burn",
        "host_array device implementation custom_op forward_context heads chunk attention_context plan parameters ops kv_cache layers block positional_encoding adamw",
    ),
    (
        "kerple-lm",
        "error renamed tensors schedule layers config plan model objective sequences architecture memory_estimate ranks events runtime train_state \
         generate checkpoint tasks corpus run finetune evaluate train analysis sweep compare",
    ),
    ("kerple-convert", "layout export import"),
    (
        "kerple-fit",
        "curve family observations projection search starts fit criteria edge interval phase rank input report page space kernel_search",
    ),
    ("kerple-experiments", "error claim manifest timing floors packed seal pages reproduce verify"),
    (
        "kerple-conformance",
        "folder case engines methods tables layer attention score_mods theory clocks positions packed spe media data interchange training length_suite kernel_fit collection beside che main measure",
    ),
    (
        "kerple-serve",
        "facts api_error stop list raw notes names hosts penalties prompts completion tokens choice answer worker connections routes",
    ),
    ("kerple", "command_error memory output exhausted args encodings timing progress commands mpi ranks main"),
    ("kerple-py", "threads dlpack array encoding kernel parts positions attention content linear run_folder command"),
];

/// The one use upwards: a type of number brings its engines along, so that they are compiled once, where they are defined.
const ENGINES_OF_NUMBERS: (&str, &str) = ("cpu/number", "attention");

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        match path.is_dir() {
            _ if name == "tests" || name == "testing" => {}
            true => sources(&path, found),
            false if path.extension().is_some_and(|end| end == "rs") => found.push(path),
            false => {}
        }
    }
}

/// Modules that code names after `crate::`, comments and tests left out.
fn used(text: &str) -> Vec<String> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    let code = code.split("#[cfg(all(test,").next().unwrap_or(code);
    let lines = code.lines().map(|line| line.split("//").next().unwrap_or(line));
    let name = |rest: &str| rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect();
    lines.flat_map(|line| line.split("crate::").skip(1).map(name).collect::<Vec<String>>()).collect()
}

/// Checks the order of a crate and returns how many uses it has read.
fn check(name: &str, order: &str) -> usize {
    let root = document("crates").join(name).join("src");
    let (mut files, mut seen) = (Vec::new(), 0);
    sources(&root, &mut files);
    for file in files {
        let place = file.strip_prefix(&root).unwrap().with_extension("");
        let module = place.iter().next().unwrap().to_str().unwrap();
        if module == "lib" {
            continue;
        }
        let height = |name: &str| order.split_whitespace().position(|other| other == name);
        let own = height(module).unwrap_or_else(|| panic!("{name}: {module} has no place in the order"));
        for other in used(&fs::read_to_string(&file).unwrap()) {
            let Some(other_height) = height(&other) else { continue }; // a macro, a function or a type of the root
            if name == "kerple-core" && (place.to_str().unwrap(), &*other) == ENGINES_OF_NUMBERS {
                continue;
            }
            assert!(other_height <= own, "{} uses {other}, which stands above {module}", file.display());
            seen += 1;
        }
    }
    seen
}

#[test]
fn no_module_uses_one_above_it() {
    let seen: usize = ORDERS.iter().map(|(name, order)| check(name, order)).sum();
    assert!(seen > 600, "{seen} uses are too few to have read the crates");
}
