//! The command on a GPU: training, evaluation, and a run that moves, beside the same on the processor.
//!
//! A software renderer stands in, unless `KERPLE_TEST_DEVICE` names a device as `--device` does.

mod common;

use common::{Place, skip};
use serde_json::Value;

fn device() -> String {
    std::env::var("KERPLE_TEST_DEVICE").unwrap_or_else(|_| "wgpu:software".to_owned())
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A number of every row of a file.
fn column(place: &Place, file: &str, name: &str) -> Vec<f64> {
    lines(&place.read(file)).iter().map(|row| row[name].as_f64().unwrap()).collect()
}

/// f32, a few hundred roundings apart, of which updates make a little more.
fn assert_close(what: &str, found: &[f64], expected: &[f64]) {
    assert!(!expected.is_empty() && found.len() == expected.len(), "{what}: {} of {}", found.len(), expected.len());
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((found - expected).abs() < 2e-4 * expected.abs(), "{what}, row {at}: {found}, expected {expected}");
    }
}

#[test]
fn it_is_listed() {
    let (place, device) = (Place::new(), device());
    let listed = lines(&place.ok(&["devices", "--json"]));
    let name = if device.contains(':') { device } else { format!("{device}:0") };
    let own = listed.iter().find(|row| row["name"] == name.as_str()).unwrap_or_else(|| panic!("{name}: {listed:?}"));
    assert_eq!(own["attention_kernels"], true, "{own}");
}

#[test]
fn runs_are_those_of_the_processor_and_move_between_the_two() {
    let (place, device) = (Place::new(), device());
    place.make_data();
    let train = |encoding: &str, out: &str, device: &str, steps: usize| {
        let (encoding, steps) = (format!("encoding={encoding}"), format!("train.steps={steps}"));
        let own =
            ["--set", &encoding, "--set", &steps, "--set", "train.schedule_steps=20", "--set", "train.log_every=1"];
        place.ok(&[&["train", "--config", "run.toml", "--out", out, "--device", device][..], &own].concat());
    };
    // a learned bias, one with weights beside it, a kernel expression, a map that runs composed
    for (name, encoding) in [
        ("log", r#"{ kind = "kerple_log" }"#),
        ("weight", r#"{ kind = "kerple_bias_weight" }"#),
        ("kernel", r#"{ kind = "kernel", bias = "log(b, a) + 0.5*power(a, p)" }"#),
        ("fire", r#"{ kind = "fire" }"#),
    ] {
        let [here, there] = ["here", "there"].map(|place| format!("{name}-{place}"));
        train(encoding, &here, "cpu", 20);
        train(encoding, &there, &device, 20);
        let losses = |run: &str| column(&place, &format!("{run}/metrics.jsonl"), "loss");
        assert_close(name, &losses(&there), &losses(&here));
    }
    let evaluate = |run: &str, device: &str| {
        place.ok(&["eval", run, "--lengths", "16,70", "--n-segments", "3", "--device", device]);
        column(&place, &format!("{run}/evaluation.jsonl"), "nll")
    };
    assert_close("evaluation", &evaluate("log-there", &device), &evaluate("log-here", "cpu"));
    let encoding = r#"{ kind = "kerple_log" }"#;
    // each goes on where the other was
    train(encoding, "log-here", &device, 30);
    train(encoding, "log-there", "cpu", 30);
    let [here, there] = ["log-here", "log-there"].map(|run| column(&place, &format!("{run}/metrics.jsonl"), "loss"));
    assert_eq!(here.len(), 30);
    assert_close("moved", &there, &here);
    let said: Vec<Value> = lines(&place.read("log-here/sessions.jsonl"));
    assert!(said[0]["device"] == "cpu" && said[1]["device"].as_str().unwrap().starts_with(&device), "{said:?}");
    assert_eq!((&said[0]["first_step"], &said[1]["first_step"]), (&1.into(), &21.into()));
}

#[test]
fn a_run_says_what_its_products_were_made_of() {
    let (place, device) = (Place::new(), device());
    place.make_data();
    let own = ["--device", &device, "--set", "train.steps=5", "--set", "train.log_every=1"];
    let train = |out: &str, precision: &str| {
        let run = ["train", "--config", "run.toml", "--out", out, "--precision", precision];
        place.ok(&[&run[..], &own].concat());
        let said = lines(&place.read(format!("{out}/sessions.jsonl")))[0]["precision"].as_str().unwrap().to_owned();
        (said, column(&place, &format!("{out}/metrics.jsonl"), "loss"))
    };
    let ((f32, exact), (bf16, short)) = (train("exact", "f32"), train("short", "bf16"));
    assert!(f32.starts_with("f32") && bf16.starts_with("bf16"), "{f32}, {bf16}");
    let off = exact.iter().zip(&short).map(|(a, b)| (a - b).abs() / a).fold(0.0, f64::max);
    // losses are means of many numbers that are each off by up to 2^-8
    assert!(off > 1e-6 && off < 1.0 / 256.0, "{off:e}");
}

#[test]
fn what_is_timed_is_what_has_kernels() {
    let (place, device) = (Place::new(), device());
    let sizes = ["--lengths", "40", "--heads", "2", "--head-dim", "8", "--repeats", "1", "--json", "--device", &device];
    let short = lines(&place.ok(&[&["bench", "attention", "--precision", "bf16"], &sizes[..]].concat()));
    assert!(short.iter().all(|row| row["device"].as_str().unwrap().ends_with(" bf16")), "{short:?}");
    let rows = lines(&place.ok(&[&["bench", "attention"], &sizes[..]].concat()));
    let timed = |engine: &str| rows.iter().filter(|row| row["engine"] == engine).count();
    assert_eq!((timed("kernel"), timed("composed")), (4, 4), "{rows:?}");
    assert!(rows.iter().all(|row| row["median_ms"].as_f64().unwrap() > 0.0 && row["peak_share"].is_null()), "{rows:?}");
}

#[test]
fn an_array_that_a_device_has_no_room_for_is_an_error() {
    let (place, device) = (Place::new(), device());
    const SEQUENCE: u64 = 12 * 16384 * 64 * 4;
    let listed = lines(&place.ok(&["devices", "--json"]));
    let largest =
        listed.iter().find(|row| row["name"] == device.as_str()).and_then(|row| row["largest_array"].as_u64());
    let batch = largest.expect("a device that is listed says its largest array") / SEQUENCE + 1;
    if batch >= 16 {
        return skip("this device has room for arrays that would be some time in the making");
    }
    let run = |batch: u64| {
        let (batch, sizes) =
            (batch.to_string(), ["--heads", "12", "--head-dim", "64", "--lengths", "16384", "--repeats", "1"]);
        let output =
            place.run(&[&["bench", "attention", "--device", &device, "--batch", &batch][..], &sizes[..]].concat());
        let [out, said] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        assert!(!out.contains("kernel"), "times of what was not done: {out}");
        (output.status.code(), said)
    };
    let (code, said) = run(batch);
    let expected = format!("error: --device {device}: can't allocate buffer of size: {}", batch * SEQUENCE);
    assert!(code == Some(1) && said.contains(&expected) && said.contains("--batch"), "{said}");
    // noise that the machine itself has no room for
    let (code, said) = run(1 << 20);
    assert!(code == Some(2) && said.contains("needs about") && said.contains("--batch"), "{said}");
}
