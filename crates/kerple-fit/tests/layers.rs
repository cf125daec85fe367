//! Fits of the heads of a layer together, and runs that start from them.

use crate::sources::{folder, log_values, tensor_file};
use kerple_core::encoding::{Encoding, Geometry};
use kerple_fit::input::{ReadOptions, read};
use kerple_fit::report::{FitReport, HeadGroup, fit_sources};
use kerple_fit::{Family, FitOptions};
use kerple_lm::config::RunConfig;

fn report(heads: &[Vec<f64>], families: &str, per_head: bool) -> FitReport {
    let dir = folder();
    let values: Vec<f32> = heads.iter().flatten().map(|x| *x as f32).collect();
    let shape = vec![1, heads.len(), heads[0].len()];
    let path = tensor_file(dir.path(), "c.safetensors", &[("bias", shape, values)]);
    let options = FitOptions { families: Family::list(families, false).unwrap(), per_head, ..FitOptions::default() };
    fit_sources(&[read(&path, &ReadOptions::default()).unwrap()], &options).unwrap()
}

fn stretched(c: f64, a: f64, p: f64) -> Vec<f64> {
    (0..96).map(|d| c * (-a * f64::from(d).powf(p)).exp()).collect()
}

fn groups(report: &FitReport) -> Vec<HeadGroup> {
    report.sources[0].layers[0].groups.clone()
}

fn group(family: &str, heads: &[usize]) -> HeadGroup {
    HeadGroup { family: family.to_owned(), heads: heads.to_vec() }
}

/// The bias of each head at its start, without its level, of the keys of a run file.
fn started(keys: &str, heads: usize, len: usize) -> Vec<Vec<f64>> {
    let keys = ["kind", "bias", "start"].iter().fold(keys.trim_start_matches("encoding = ").to_owned(), |text, key| {
        text.replace(&format!("{key} = "), &format!("\"{key}\": "))
    });
    let encoding: Encoding = serde_json::from_str(&keys).unwrap();
    let geometry = Geometry::new(heads, 16, 32);
    encoding.check(&geometry).unwrap();
    let table = encoding.table(&geometry, &encoding.initial(&geometry, 1), len);
    table.bias.unwrap().chunks(len).map(|row| row.iter().map(|x| x - row[0]).collect()).collect()
}

fn assert_starts_at(keys: &str, curves: &[Vec<f64>]) {
    for (own, curve) in started(keys, curves.len(), curves[0].len()).iter().zip(curves) {
        let spread = curve.iter().map(|x| (x - curve[0]).abs()).fold(0.0, f64::max);
        for (d, (own, wanted)) in own.iter().zip(curve).enumerate() {
            let error = (own - (wanted - curve[0])).abs();
            assert!(error < 1e-5 * spread, "{d}: {own} {wanted} in {keys}");
        }
    }
}

/// Before its first update, a run that starts from a fit has the curve of each head.
#[test]
fn each_head_starts_at_its_own_fit() {
    let curves = [(1.3, 0.4), (0.7, 0.05), (2.5, 1.5)].map(|(b, a)| log_values(b, a, 96));
    let found = report(&curves, "const,linear,power,log,exp", false);
    let layer = &found.sources[0].layers[0];
    assert_eq!((layer.family.as_deref(), layer.note.as_deref()), (Some("log"), None));
    let keys = layer.warm_start.as_ref().unwrap();
    assert!(keys.starts_with("encoding = { kind = \"kernel\", bias = \"log(b, a)\", start = [[1.3"), "{keys}");
    assert_starts_at(keys, &curves);
    // heads that are alike need no lists
    let alike = report(&[log_values(1.3, 0.4, 96), log_values(1.3, 0.4, 96)], "log", false);
    let keys = alike.sources[0].layers[0].warm_start.as_ref().unwrap();
    assert!(keys.contains("log(b~1.3") && !keys.contains("start ="), "{keys}");
    // starts that a family was given with are not those of the fit
    let given = report(&curves, "log(b~1, a~2)", false);
    let keys = given.sources[0].layers[0].warm_start.as_ref().unwrap();
    assert!(keys.contains("bias = \"log(b, a)\", start = [[1.3"), "{keys}");
}

/// What is printed for several layers is a part of a run file: `at`, and no encoding of the model that no layer has.
#[test]
fn keys_of_several_layers_are_keys_of_a_run_file() {
    let dir = folder();
    let fits = |layers: &[Vec<f64>]| {
        let values: Vec<f32> = layers.iter().flatten().map(|x| *x as f32).collect();
        let path = tensor_file(dir.path(), "c.safetensors", &[("bias", vec![layers.len(), 1, 96], values)]);
        let options = FitOptions { families: Family::list("log,exp", false).unwrap(), ..FitOptions::default() };
        fit_sources(&[read(&path, &ReadOptions::default()).unwrap()], &options).unwrap()
    };
    let two = fits(&[log_values(1.3, 0.4, 96), log_values(0.7, 0.1, 96)]);
    let keys = two.sources[0].warm_starts().collect::<Vec<&str>>().join("\n\n");
    assert!(two.to_string().contains("[encoding]\nkind = \"none\"\n\n[model.layers.layer_0]\nat = [0]\n"), "{two}");
    let rest = "[data]\npath = \"nowhere\"\n[model]\nn_layers = 2\n[train]\ntrain_len = 32\nsteps = 1\n";
    let config = RunConfig::parse(&format!("{keys}\n{rest}"), "printed", &[]).unwrap();
    assert_eq!(config.encoding.label(), "none");
    let kinds = kerple_lm::layers::resolve(&config.model.layers, 2).unwrap();
    let kinds: Vec<(&str, &[usize], bool)> =
        kinds.iter().map(|(name, kind)| (name.as_str(), &kind.at[..], kind.encoding.is_some())).collect();
    assert_eq!(kinds, [("layer_0", &[0][..], true), ("layer_1", &[1][..], true)]);
    // a layer without keys keeps the encoding of the model
    let one = fits(&[log_values(1.3, 0.4, 96), (0..96).map(f64::from).collect()]);
    assert_eq!(one.sources[0].model_encoding, None);
    let keys: Vec<&str> = one.sources[0].warm_starts().collect();
    assert!(keys.len() == 1 && keys[0].starts_with("[model.layers.layer_0]\nat = [0]\n"), "{keys:?}");
}

#[test]
fn heads_of_different_families_have_one_expression_where_it_has_all_as_special_cases() {
    // stretched for p = 1, 2 and 0.5
    let curves = [stretched(2.0, 0.1, 1.0), stretched(3.0, 0.02, 2.0), stretched(4.0, 0.3, 0.5)];
    let families = "const,linear,log,exp,gauss,stretched";
    let found = report(&curves, families, true);
    let layer = &found.sources[0].layers[0];
    assert_eq!((layer.family.as_deref(), layer.heads), (Some("stretched"), (3, 3)));
    assert_eq!(groups(&found), [group("exp", &[0]), group("gauss", &[1]), group("stretched", &[2])]);
    assert_starts_at(layer.warm_start.as_ref().unwrap(), &curves);
    let shown = found.to_string();
    assert!(shown.contains("stretched (exp: head 0; gauss: head 1; stretched: head 2) 3 of 3 heads"), "{shown}");
    // without it, one family is fitted to all
    let common = report(&curves, families, false);
    assert_eq!(groups(&common), []);
    assert_eq!(common.sources[0].layers[0].family.as_deref(), Some("stretched"));
}

/// A sum with an amplitude of 0 is no common expression: training keeps amplitudes at or above 0.01.
#[test]
fn heads_without_a_common_expression_are_shown_and_start_nothing() {
    let curves = [log_values(1.3, 0.4, 96), stretched(3.0, 0.05, 1.0), log_values(0.7, 0.1, 96)];
    let found = report(&curves, "log,exp,log(b, a) + exp(c, a, 1)", true);
    let layer = &found.sources[0].layers[0];
    assert_eq!((layer.family.as_deref(), layer.warm_start.as_deref()), (None, None));
    assert_eq!(groups(&found), [group("log", &[0, 2]), group("exp", &[1])]);
    assert!(layer.note.as_ref().unwrap().contains("a run has one expression for all heads of a layer"), "{layer:?}");
    assert!(found.to_string().contains("log: heads 0, 2; exp: head 1"), "{found}");
    let common = report(&curves, "log,exp", false);
    assert!(common.sources[0].layers[0].warm_start.is_some());
}

/// Values below those that training keeps are moved for a head, and written as a number where most heads have them.
#[test]
fn values_that_training_does_not_keep_are_said() {
    let curves = [log_values(1.3, 0.4, 512), log_values(1.0, 0.3, 512), log_values(0.9, 0.003, 512)];
    let found = report(&curves, "log", false);
    let layer = &found.sources[0].layers[0];
    let note = layer.note.as_ref().unwrap();
    assert!(note.contains("head 2 starts at the nearest values that training keeps, at or above 0.01"), "{note}");
    let keys = layer.warm_start.as_ref().unwrap();
    assert!(keys.contains(", 0.01]]"), "{keys}");
    let curves = [log_values(1.3, 0.00395, 512), log_values(1.0, 0.3, 512), log_values(0.9, 0.003, 512)];
    let layer = &report(&curves, "log", false).sources[0].layers[0];
    let (keys, note) = (layer.warm_start.as_ref().unwrap(), layer.note.as_ref().unwrap());
    assert!(keys.contains("bias = \"log(b, 0.0039") && note.contains("the median of the heads"), "{keys} {note}");
    // of two heads, halfway between them
    let curves = [log_values(1.3, 0.4, 512), log_values(1.0, 0.003, 512)];
    let layer = &report(&curves, "log", false).sources[0].layers[0];
    assert!(layer.warm_start.as_ref().unwrap().contains("log(b, a)"), "{layer:?}");
    // a head without a kernel starts with the others
    let rising = (0..96).map(f64::from).collect();
    let curves = [log_values(1.3, 0.4, 96), rising, log_values(0.7, 0.1, 96)];
    let layer = &report(&curves, "log,exp", false).sources[0].layers[0];
    assert!(layer.note.as_ref().unwrap().contains("head 1 starts at the median of the others"), "{:?}", layer.note);
    assert_eq!(started(layer.warm_start.as_ref().unwrap(), 3, 8).len(), 3);
}
