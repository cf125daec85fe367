//! Reference values of the theory, `golden/kerple`: cases `theory/*` and `effective_length`.

use std::path::PathBuf;

use safetensors::SafeTensors;
use serde_json::Value;

use crate::kernel::certificate::certify;
use crate::kernel::expr::Expr;
use crate::kernel::geometry::{effective_lengths, embed};
use crate::kernel::linalg::gram;
use crate::kernel::points::Points;

pub(super) struct Golden {
    cases: Vec<Value>,
    bytes: Vec<u8>,
}

impl Golden {
    pub(super) fn read() -> Golden {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../golden/kerple");
        let text = std::fs::read_to_string(folder.join("manifest.json")).unwrap();
        let manifest: Value = serde_json::from_str(&text).unwrap();
        let cases = manifest["cases"].as_array().unwrap().clone();
        Golden { cases, bytes: std::fs::read(folder.join("theory.safetensors")).unwrap() }
    }

    pub(super) fn case(&self, id: &str) -> &Value {
        self.cases.iter().find(|case| case["id"] == id).unwrap_or_else(|| panic!("no case {id}"))
    }

    pub(super) fn array(&self, at: &Value) -> Vec<f64> {
        let tensors = SafeTensors::deserialize(&self.bytes).unwrap();
        let tensor = tensors.tensor(at["key"].as_str().unwrap()).unwrap();
        tensor.data().chunks_exact(8).map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap())).collect()
    }
}

pub(super) fn expr(params: &Value) -> Expr {
    let number = |key: &str| params[key].as_f64().unwrap();
    let (a, p) = (number("a"), number("p"));
    let text = match params["kind"].as_str().unwrap() {
        "power" => format!("power({a}, {p})"),
        "log" => format!("log3({}, {a}, {p})", number("b")),
        "gauss" => format!("exp(1, {a}, {p})"),
        kind => panic!("{kind}"),
    };
    Expr::parse_unproven(&text).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn certificates_match_the_reference() {
    let golden = Golden::read();
    let mut checked = 0;
    for case in golden.cases.iter().filter(|case| case["expected"].get("gram").is_some()) {
        let id = case["id"].as_str().unwrap();
        let expr = expr(&case["params"]);
        let points = Points::line(&golden.array(&case["inputs"]["x"])).unwrap();
        let expected = &case["expected"];
        for (i, (ours, theirs)) in gram(&expr, &points).unwrap().iter().zip(golden.array(&expected["gram"])).enumerate()
        {
            assert!((ours - theirs).abs() <= 1e-12 * theirs.abs(), "{id} entry {i}: {ours} {theirs}");
        }
        let certificate = certify(&expr, &points).unwrap();
        let shift = &certificate.shift;
        assert_eq!(certificate.is_cpd, expected["is_cpd"], "{id}");
        assert_eq!(certificate.is_pd, expected["is_pd"], "{id}");
        assert_eq!(certificate.is_strictly_cpd, expected["strict_cpd"], "{id}");
        assert_eq!(shift.c_geometric, expected["c_geometric"].as_f64(), "{id}");
        assert_eq!(shift.c_geometric_naive, expected["c_geometric_naive"].as_f64(), "{id}");
        assert_eq!(shift.c_min.is_some(), expected["c_min"].is_number(), "{id}");
        if let Some(c) = shift.c_min {
            let theirs = expected["c_min"].as_f64().unwrap();
            assert!((c - theirs).abs() <= 1e-6 * theirs, "{id}: {c} {theirs}");
            assert!(shift.smallest_eigenvalue.unwrap() >= -certificate.tolerance, "{id}");
        }
        // PKP has one more eigenvalue than the sum-zero space: the 0 of the ones
        let mut projected = certificate.sum_zero_eigenvalues.clone();
        projected.push(0.0);
        projected.sort_by(f64::total_cmp);
        for (ours, key) in projected.into_iter().zip(["min_eig_PKP", "second_eig_PKP"]) {
            // eigenvalues are exact to a few eps * N * max|K|, which 1e-6 of the decision's tolerance allows for
            assert!(
                (ours - expected[key].as_f64().unwrap()).abs() <= 1e-6 * certificate.tolerance,
                "{id} {key}: {ours}"
            );
        }
        checked += 1;
    }
    assert_eq!(checked, 10);
}

#[test]
fn lemma_1_fails_on_its_counterexample() {
    let golden = Golden::read();
    let expected = &golden.case("theory/lemma1_counterexample")["expected"];
    let x: Vec<f64> = expected["points"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
    let det = expected["det_for_every_c"].as_f64().unwrap();
    let points = Points::line(&x).unwrap();
    let sqdist = Expr::parse("sqdist").unwrap();
    let gram = gram(&sqdist, &points).unwrap();
    for c in [0.0, 1.0, 2.0, 10.0, 1000.0] {
        // entries up to c: the determinant loses about eps * c^2
        assert!((gram.add_scalar(c).determinant() - det).abs() < 1e-9 * (1.0 + c * c), "{c}");
    }
    let certificate = certify(&sqdist, &points).unwrap();
    assert!(certificate.is_cpd && !certificate.is_strictly_cpd && certificate.shift.c_min.is_none());
    let witness = certificate.witness.unwrap();
    let unit = 1.0 / 6f64.sqrt();
    for (ours, exact) in witness.vector.iter().zip([1.0, -2.0, 1.0]) {
        assert!((ours - exact * unit).abs() < 1e-12);
    }
    assert!(witness.quadratic_form.abs() < 1e-12);
}

#[test]
fn fact_1_embeds_the_kernel() {
    let golden = Golden::read();
    let case = golden.case("theory/fact1_embedding");
    let points = Points::line(&golden.array(&case["inputs"]["x"])).unwrap();
    let embedding = embed(&expr(&case["params"]), &points).unwrap();
    let tolerance = case["tolerance"]["atol"].as_f64().unwrap();
    for (ours, theirs) in embedding.gram.iter().zip(golden.array(&case["expected"]["G"])) {
        assert!((ours - theirs).abs() <= tolerance, "{ours} {theirs}");
    }
    // nine eigenvectors and squares: tens of roundings of numbers up to 10
    assert!(embedding.error < 1e-13 * 1e2, "{}", embedding.error);
}

#[test]
fn effective_lengths_match_the_reference() {
    let golden = Golden::read();
    let (log, power) = (Expr::parse("log(b, a)").unwrap(), Expr::parse("power(a, p)").unwrap());
    let rows = golden.case("effective_length")["expected"]["rows"].as_array().unwrap().clone();
    for row in &rows {
        let number = |key: &str| row[key].as_f64().unwrap();
        let (r1, r2, p) = (number("r1"), number("r2"), number("p"));
        assert_eq!(effective_lengths(&log, &[r1, r2], 1, 20480)[0], row["log"].as_u64(), "{row}");
        assert_eq!(effective_lengths(&power, &[r1, p], 1, 20480)[0], row["power"].as_u64(), "{row}");
    }
    assert_eq!(rows.len(), 8);
}
