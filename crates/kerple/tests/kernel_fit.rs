//! `kerple kernel fit`: from curves and runs to families, pages and keys that training takes.

use crate::common::{Place, RUN};

fn log_curves() -> String {
    let rows = (0..128).map(|d| {
        let noise = |seed: u64| 0.01 * (((d + seed) * 7919 % 1013) as f64 / 506.0 - 1.0);
        let near = 2.0 - 1.3 * (0.4 * d as f64).ln_1p() + noise(1);
        format!("{d},{near},{}\n", d as f64 + noise(2))
    });
    format!("distance,near,rising\n{}", rows.collect::<String>())
}

#[test]
fn curves_of_a_table_are_ranked_printed_and_written() {
    let place = Place::new();
    place.write("curves.csv", log_curves());
    let fit = ["kernel", "fit", "curves.csv", "--families", "const,linear,power,log,exp", "--out", "fit"];
    let lines = place.ok(&fit);
    assert!(
        lines.contains("near") && lines.contains("log(b, a): a 0.3") || lines.contains("log(b, a): a 0.4"),
        "{lines}"
    );
    assert!(lines.contains("no certified kernel describes this curve"), "{lines}");
    assert!(lines.contains("2 curves: log 1;") && lines.contains("1 without a kernel"), "{lines}");
    for file in ["fit/index.html", "fit/report.md", "fit/fit.json", "fit/tables/curves.csv", "fit/tables/families.csv"]
    {
        assert!(!place.read(file).is_empty(), "{file}");
    }
    let printed: serde_json::Value = serde_json::from_str(&place.ok(&[&fit[..], &["--json"]].concat())).unwrap();
    assert_eq!(printed, serde_json::from_str::<serde_json::Value>(&place.read("fit/fit.json")).unwrap());
    // threads change no digit
    let one = place.ok(&[&["--threads", "1"], &fit[..], &["--json"]].concat());
    assert_eq!(printed, serde_json::from_str::<serde_json::Value>(&one).unwrap());
}

#[test]
fn misuse_is_named_with_a_hint() {
    let place = Place::new();
    place.write("curves.csv", log_curves());
    place.write("bad.csv", "distance,h\n0,1\n1,x\n");
    place.write("both.json", r#"{"distances": [0, 1], "curves": [{"name": "h", "values": [1], "buckets": [[0]]}]}"#);
    let cases: [(&[&str], &str); 19] = [
        (&["curves.csv", "--sigma", "0"], "--sigma 0 is out of range"),
        (&["curves.csv", "--points", "9..3"], "--points `9..3` is not a range"),
        (&["curves.csv", "--families", "logg"], "unknown function `logg`"),
        (&["curves.csv", "--families", "power(1, 2.5)"], "Corollary 1"),
        (&["curves.csv", "--families", "s*log(b, a)"], "only the product of 2 amplitudes"),
        (&["curves.csv", "--weights", "w"], "no column is called `w`"),
        (&["bad.csv"], "bad.csv: line 3: `x` of `h` is not a number"),
        (&["nowhere"], "nowhere: the file or folder does not exist"),
        (&["nowhere", "--length", "8"], "nowhere: the file or folder does not exist"),
        (&["curves.csv", "--queries", "rows"], "--queries is for a bias that depends on the query"),
        (&["curves.csv", "--points", "0..5"], "curve `near`: 6 values are too few"),
        (&["curves.csv", "--per-head"], "--per-head: curves.csv has no layer of several heads"),
        (&["curves.csv", "--per-head", "--families", "log"], "--per-head: all heads have the family log"),
        (&["curves.csv", "--families", "log,log(b, a)"], "family `log(b, a)` is given twice, as `log` too"),
        (&["curves.csv", "--families", "log,,power"], "family 2 of `log,,power` is empty"),
        (&["curves.csv", "--families", "log,"], "family 2 of `log,` is empty"),
        (&["curves.csv", "--length", "64"], "--length is for a run folder"),
        (&["curves.csv", "--families", "log,log"], "family `log` is given twice"),
        (&["both.json"], "both.json: no curve uses `distances`: each has `buckets`"),
    ];
    for (arguments, message) in cases {
        let output = place.run(&[&["kernel", "fit"], arguments].concat());
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(message) && error.contains("\n\nhint: "), "{arguments:?}: {error}");
    }
    for (families, is_said) in [("log,power", true), ("log,power(a, 1) - 0.1*power(1, 2)", false)] {
        let output = place.run(&["kernel", "fit", "curves.csv", "--unproven", "--families", families]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{families}: {said}");
        assert_eq!(said.contains("note: no effect: --unproven"), is_said, "{families}: {said}");
    }
}

#[test]
fn the_keys_of_a_fitted_run_start_another_run() {
    let place = Place::new();
    place.make_data();
    let set = ["--set", "encoding=\"kerple_log\"", "--set", "train.steps=2"];
    place.ok(&[&["train", "--config", "run.toml", "--out", "learned"], &set[..]].concat());
    let fit = ["kernel", "fit", "learned", "--families", "power,log", "--length", "96", "--out", "fit"];
    let refused = place.run(&["kernel", "fit", "learned", "--length", "0"]);
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(2) && error.contains("a curve of 0 distances"), "{error}");
    let lines = place.ok(&fit);
    let keys = lines.lines().find(|line| line.starts_with("encoding = ")).unwrap_or_else(|| panic!("{lines}"));
    assert!(keys.contains("bias = \"log(b, a)\", start = [["), "{keys}");
    place.write("next.toml", format!("{keys}\n{}", RUN.replace("[encoding]\nkind = \"kerple_log\"\n", "")));
    let plan = place.ok(&["train", "--config", "next.toml", "--out", "next", "--set", "train.steps=1"]);
    // before its first update, it has the values of the other run's heads
    let [learned, next] = ["learned", "next"].map(|run| {
        let curves = place.ok(&["kernel", "fit", run, "--families", "log", "--length", "96", "--json"]);
        let report: serde_json::Value = serde_json::from_str(&curves).unwrap();
        report["sources"][0]["layers"][0]["values"].clone()
    });
    let close = |of: &serde_json::Value, head: usize, i: usize| {
        let [x, y] = [&learned, of].map(|values| values[head][i].as_f64().unwrap());
        (x - y).abs() < 5e-3
    };
    assert_eq!(learned.as_array().map(Vec::len), next.as_array().map(Vec::len), "{plan}");
    assert!((0..4).all(|at| close(&next, at / 2, at % 2)), "{learned} {next}");
    // heads may have different families, of which one has all as special cases or none
    let lines = place.ok(&["kernel", "fit", "learned", "--families", "log,log3", "--length", "96", "--per-head"]);
    assert!(lines.contains("layers 0, 1") || lines.contains("layer 0"), "{lines}");
    assert!(lines.lines().any(|line| line.starts_with("encoding = ")), "{lines}");
}

/// Inkling's bias depends on the query: rows of queries make curves of heads, and without them its factors are fitted.
#[test]
fn a_run_whose_bias_depends_on_the_query_needs_rows() {
    let place = Place::new();
    place.make_data();
    let set = ["--set", "encoding={ kind = \"inkling\", rank = 2, reach = 16 }", "--set", "train.steps=1"];
    place.ok(&[&["train", "--config", "run.toml", "--out", "learned"], &set[..]].concat());
    let fit = ["kernel", "fit", "learned", "--families", "log,power"];
    let output = place.run(&fit);
    let [lines, notes] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(notes.contains("without --queries, factors of it are fitted"), "{notes}");
    assert!(lines.contains("layer 0 factor 1") && !lines.contains("encoding = "), "{lines}");
    let file = |shape: &str, rows: &[f32]| {
        let header = format!(r#"{{"r":{{"dtype":"F32","shape":{shape},"data_offsets":[0,{}]}}}}"#, 4 * rows.len());
        let bytes = rows.iter().flat_map(|x| x.to_le_bytes());
        let header = (header.len() as u64).to_le_bytes().into_iter().chain(header.into_bytes());
        header.chain(bytes).collect::<Vec<u8>>()
    };
    let layers = lines.lines().filter(|line| line.contains(" factor 0")).count();
    place.write("rows.safetensors", file(&format!("[{layers},2,2]"), &vec![0.5; 4 * layers]));
    let curves = place.ok(&[&fit[..], &["--queries", "rows.safetensors", "--json"]].concat());
    let report: serde_json::Value = serde_json::from_str(&curves).unwrap();
    let names: Vec<&str> =
        report["sources"][0]["curves"].as_array().unwrap().iter().filter_map(|curve| curve["name"].as_str()).collect();
    assert_eq!((names.len(), names[1]), (2 * layers, "layer 0 head 1"));
    place.write("wide.safetensors", file("[1,2,3]", &[0.5; 6]));
    let output = place.run(&[&fit[..], &["--queries", "wide.safetensors"]].concat());
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && error.contains("\n\nhint: "), "{error}");
}

/// A curve of zeros would be the end of the bias and not the kernel.
#[test]
fn the_curve_of_a_bias_that_ends_is_its_kernel() {
    let place = Place::new();
    place.make_data();
    let set = ["--set", "encoding={ kind = \"kerple_log\", reach = 12 }", "--set", "train.steps=1"];
    place.ok(&[&["train", "--config", "run.toml", "--out", "ended"], &set[..]].concat());
    let output = place.run(&["kernel", "fit", "ended", "--families", "power,log", "--out", "fit"]);
    let [lines, notes] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(output.status.success() && notes.contains("note: the bias of layer 0 ends at distance 12"), "{notes}");
    assert!(
        lines.lines().any(|line| line.starts_with("encoding = ") && line.contains("bias = \"log(b, a)\", start")),
        "{lines}"
    );
}

/// Lines of TOML among what is printed.
fn keys(lines: &str) -> String {
    let is_key = |line: &&str| ["[", "kind = ", "at = ", "encoding = "].iter().any(|start| line.starts_with(start));
    lines.lines().filter(is_key).collect::<Vec<&str>>().join("\n")
}

#[test]
fn printed_keys_of_several_layers_are_taken_by_train() {
    let place = Place::new();
    place.make_data();
    let layers = ["--set", "model.n_layers=3", "--set", "train.steps=1"];
    let own = ["--set", "encoding={ kind = \"kerple_log\", share = \"layer\" }"];
    place.ok(&[&["train", "--config", "run.toml", "--out", "own"], &own[..], &layers].concat());
    let fit = |run: &str| {
        let output = place.run(&["kernel", "fit", run, "--families", "power,log", "--length", "96"]);
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap())
    };
    let [lines, _] = fit("own");
    let printed = keys(&lines);
    assert!(printed.starts_with("[encoding]\nkind = \"none\"\n[model.layers.layer_0]\nat = [0]\n"), "{lines}");
    place.write("next.toml", format!("{printed}\n{}", RUN.replace("[encoding]\nkind = \"kerple_log\"\n", "")));
    place.ok(&[&["train", "--config", "next.toml", "--out", "next"], &layers[..]].concat());
    // layers without a bias count: the keys are those of layer 0 and not those of the model
    let some = ["--set", "model.layers={ g = { at = [1, 2], encoding = \"none\" } }"];
    place.ok(&[&["train", "--config", "run.toml", "--out", "some"], &some[..], &layers].concat());
    let [lines, notes] = fit("some");
    assert!(keys(&lines).starts_with("[model.layers.layer_0]\nat = [0]\nencoding = "), "{lines}");
    assert!(notes.contains("note: the encoding of layers 1, 2 has no bias over distance"), "{notes}");
}

#[test]
fn parts_of_an_encoding_that_are_not_fitted_are_noted() {
    let place = Place::new();
    place.make_data();
    let task = "[data.task]\nkind = \"even_pairs\"\n";
    let encoder = RUN.replace("[data]\npath = \"data\"\n", task).replace("[model]\n", "[model]\npooling = \"mean\"\n");
    place.write("encoder.toml", encoder);
    let cases = [
        ("run.toml", "\"kerple_bias_weight\"", "note: the weight that multiplies the scores of layer 0 is not fitted"),
        ("run.toml", "{ kind = \"dape\", base = \"alibi\" }", "which changes the scores of layer 0, is not fitted"),
        (
            "encoder.toml",
            "{ kind = \"alibi\", behind = 0.5 }",
            "note: the bias of layer 0 has values of its own for keys after",
        ),
    ];
    for (number, (config, encoding, note)) in cases.into_iter().enumerate() {
        let (out, set) = (format!("run{number}"), format!("encoding={encoding}"));
        place.ok(&["train", "--config", config, "--out", &out, "--set", &set, "--set", "train.steps=1"]);
        let output = place.run(&["kernel", "fit", &out, "--families", "power,log", "--length", "96"]);
        let notes = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() && notes.contains(note), "{encoding}: {notes}");
    }
    // of a run with a bias and a weight, both are drawn
    let drawn = place.ok(&["kernel", "plot", "run0", "--length", "64"]);
    assert!(drawn.contains("head 0 bias") && drawn.contains("head 1 weight"), "{drawn}");
}

#[test]
fn a_plot_leaves_out_no_value() {
    let place = Place::new();
    for (what, message) in [
        ("1e300*power(1e10, 2)", "is -inf at distance 1; only finite values can be plotted"),
        ("runs/nowhere", "runs/nowhere is neither a folder nor an expression"),
    ] {
        let output = place.run(&["kernel", "plot", what, "--length", "8"]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{what}: {error}");
        assert!(error.contains(message) && error.contains("\n\nhint: ") && error.len() < 300, "{what}: {error}");
    }
}

#[test]
fn options_of_a_plot_that_have_no_effect_are_refused() {
    let place = Place::new();
    for option in [&["--log"][..], &["--length", "5"]] {
        let output = place.run(&[&["kernel", "plot", "run", "--effective-lengths"], option].concat());
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && error.contains("--effective-lengths"), "{error}");
        assert!(error.contains(option[0]) && error.contains("cannot be used with"), "{error}");
    }
}
