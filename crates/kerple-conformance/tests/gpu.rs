//! The reference values of attention on a GPU: a software renderer, unless `KERPLE_TEST_DEVICE` names a device as `--device` does.

use serde_json::Value;
use std::path::Path;
use std::process::Command;

#[test]
fn attention_meets_the_reference_values() {
    let device = std::env::var("KERPLE_TEST_DEVICE").unwrap_or_else(|_| "wgpu:software".to_owned());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../reference/kerple");
    let mut conformance = Command::new(env!("CARGO_BIN_EXE_conformance"));
    let output = conformance.arg(folder).args(["--device", &device, "--json"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let name = if device.contains(':') { device } else { format!("{device}:0") };
    let engine = format!("burn on {name} f32");
    let printed = String::from_utf8(output.stdout).unwrap();
    let verdicts = printed.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let passed = verdicts.filter(|verdict| verdict["engine"] == engine.as_str() && verdict["passed"] == true);
    assert_eq!(passed.count(), 42);
}
