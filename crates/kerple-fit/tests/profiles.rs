//! Biases that depend on the query: profiles of a layer, and rows of queries.

use crate::sources::{file, folder, message, tensor_file};
use kerple_fit::input::{ReadOptions, read};
use std::path::Path;

const REACH: usize = 24;

/// Two profiles: one falls, one rises.
fn profiles(scale: f32) -> Vec<f32> {
    let d = || (0..REACH).map(|d| d as f32);
    d().map(|d| -scale * d.sqrt()).chain(d().map(|d| 0.1 * scale * d)).collect()
}

fn with(queries: impl Into<String>) -> ReadOptions {
    ReadOptions { queries: Some(queries.into()), ..ReadOptions::default() }
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

#[test]
fn rows_of_queries_make_a_curve_per_head() {
    let dir = folder();
    // layer 10 comes after layer 2, and is the first in the file
    let name = |layer: usize| format!("model.layers.{layer}.self_attn.rel_logits_proj.proj");
    let (second, tenth) = (name(2), name(10));
    file(dir.path(), "config.json", r#"{"model_type": "inkling"}"#);
    tensor_file(
        dir.path(),
        "model.safetensors",
        &[(&tenth, vec![2, REACH], profiles(10.0)), (&second, vec![2, REACH], profiles(1.0))],
    );
    // [layers, heads, rank]
    let rows = vec![1.0, 0.0, 0.5, -2.0, 0.25, -1.0, 2.0, 0.0];
    let other = folder();
    let queries = tensor_file(other.path(), "rows.safetensors", &[("r", vec![2, 2, 2], rows)]);
    let source = read(dir.path(), &with(text(&queries))).unwrap();
    let names: Vec<_> = source.curves.iter().map(|curve| (curve.name(), curve.place)).collect();
    assert_eq!(
        names,
        [
            ("layer 2 head 0", Some((2, 0))),
            ("layer 2 head 1", Some((2, 1))),
            ("layer 10 head 0", Some((10, 0))),
            ("layer 10 head 1", Some((10, 1))),
        ]
    );
    for d in 0..REACH {
        let [fall, rise] = [0, 1].map(|profile| f64::from(profiles(1.0)[profile * REACH + d]));
        assert_eq!(source.curves[0].values()[d], fall);
        assert_eq!(source.curves[1].values()[d], 0.5 * fall - 2.0 * rise);
        let [fall, rise] = [0, 1].map(|profile| f64::from(profiles(10.0)[profile * REACH + d]));
        assert_eq!(source.curves[2].values()[d], 0.25 * fall - rise);
    }
    assert!(source.notes[0].contains("the curves are those of the rows in --queries"), "{:?}", source.notes);
}

#[test]
fn without_queries_the_factors_are_fitted_and_named_so() {
    let dir = folder();
    let path = tensor_file(dir.path(), "c.safetensors", &[("rel_logits_proj.proj", vec![2, REACH], profiles(1.0))]);
    let source = read(&path, &ReadOptions::default()).unwrap();
    let names: Vec<&str> = source.curves.iter().map(kerple_fit::Curve::name).collect();
    assert_eq!(names, ["factor 0", "factor 1, sign changed"]);
    assert!(source.curves.iter().all(|curve| curve.place.is_none()), "no head starts from a factor");
    assert!(source.curves[1].values()[5] < 0.0);
    assert!(source.notes[0].contains("without --queries, factors of it are fitted"), "{:?}", source.notes);
}

#[test]
fn rows_are_a_tensor_of_the_same_file_too() {
    let dir = folder();
    let tensors = [("p", vec![2, REACH], profiles(1.0)), ("r", vec![3, 2], vec![1.0, 0.0, 2.0, 0.0, 3.0, -1.0])];
    let path = tensor_file(dir.path(), "c.safetensors", &tensors);
    let source = read(&path, &with("r")).unwrap();
    assert_eq!(source.curves.len(), 3);
    assert_eq!(source.curves[1].place, Some((0, 1)));
    assert_eq!(source.curves[1].values()[4], -4.0);
    let weighted = ReadOptions { weights: Some("r".to_owned()), ..with("r") };
    assert!(message(&path, &weighted).contains("whose curves have no weights"));
}

#[test]
fn rows_that_do_not_fit_are_refused_with_both_numbers() {
    let dir = folder();
    let one = |name: &str, shape: Vec<usize>| {
        let values = vec![0.5; shape.iter().product()];
        text(&tensor_file(dir.path(), name, &[("r", shape, values)]))
    };
    let path = tensor_file(dir.path(), "c.safetensors", &[("proj", vec![2, REACH], profiles(1.0))]);
    let wide = one("wide.safetensors", vec![4, 3]);
    assert!(message(&path, &with(&wide)).contains("has rows of 3 numbers, the profiles have rank 2"));
    let deep = one("deep.safetensors", vec![3, 4, 2]);
    assert!(message(&path, &with(&deep)).contains("has rows of 3 layers, the profiles of 1"));
    let flat = one("flat.safetensors", vec![8]);
    assert!(message(&path, &with(&flat)).contains("have the shape [8]"));
    assert!(message(&path, &with("r")).contains("no tensor is called `r`"));
    let cube = tensor_file(dir.path(), "cube.safetensors", &[("x", vec![1, 1, 2, 8], vec![0.0; 16])]);
    assert!(message(&cube, &with(&wide)).contains("profiles `x` have the shape [1, 1, 2, 8]"));
    let table = file(dir.path(), "c.csv", "distance,h\n0,1\n");
    assert!(message(&table, &with(&wide)).contains("--queries is for a bias that depends on the query"));
    // a model whose bias does not depend on the query has no use for them
    file(dir.path(), "config.json", "{}");
    assert!(message(dir.path(), &with(&wide)).contains("its bias does not depend on the query"));
}
