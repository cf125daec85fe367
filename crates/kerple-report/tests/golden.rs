//! The statistics against values computed elsewhere: `golden/kerple`, cases `ttest/*` and `ppl`.

use std::path::PathBuf;

use kerple_report::statistics::{ALPHA, paired_t_test, perplexity, position_perplexity};
use safetensors::SafeTensors;
use serde_json::Value;

fn golden(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../golden/kerple").join(file)
}

fn cases(prefix: &str) -> Vec<Value> {
    let manifest: Value = serde_json::from_slice(&std::fs::read(golden("manifest.json")).unwrap()).unwrap();
    let all = manifest["cases"].as_array().unwrap();
    all.iter().filter(|case| case["id"].as_str().unwrap().starts_with(prefix)).cloned().collect()
}

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

fn close(got: f64, expected: &Value, tolerance: &Value) {
    let (expected, rtol) = (expected.as_f64().unwrap(), tolerance["rtol"].as_f64().unwrap());
    assert!((got - expected).abs() <= rtol * expected.abs(), "got {got}, expected {expected}");
}

#[test]
fn paired_tests_equal_the_references() {
    let cases = cases("ttest/");
    assert_eq!(cases.len(), 3);
    for case in cases {
        let (inputs, expected) = (&case["inputs"], &case["expected"]);
        let test = paired_t_test(&floats(&inputs["x"]), &floats(&inputs["y"])).unwrap();
        close(test.t, &expected["t"], &case["tolerance"]);
        close(test.p, &expected["p"], &case["tolerance"]);
        assert_eq!(test.df as u64, expected["df"].as_u64().unwrap());
        assert_eq!(test.first_is_larger(ALPHA), expected["dagger"].as_bool().unwrap());
    }
}

#[test]
fn perplexities_equal_the_references() {
    let case = cases("ppl").pop().unwrap();
    let file = std::fs::read(golden("ppl.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let read = |key: &str| -> Vec<f64> {
        let bytes = tensors.tensor(key).unwrap();
        bytes.data().as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect()
    };
    let nll = read("nll");
    close(perplexity(&nll), &case["expected"]["ppl"], &case["tolerance"]);
    let positions = position_perplexity(&nll, 40);
    assert_eq!(positions.len(), 40);
    for (got, expected) in positions.iter().zip(read("positionwise")) {
        close(*got, &Value::from(expected), &case["tolerance"]);
    }
}
