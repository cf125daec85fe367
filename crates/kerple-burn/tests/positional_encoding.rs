//! Encodings as modules: tables by the fused operation and by plain Burn operations, and sets of values a layer.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{DType, Device, Tensor, TensorData};
use kerple_burn::attention_context::AttentionContext;
use kerple_burn::forward_context::{ForwardContext, POSITIONS};
use kerple_burn::heads::Heads;
use kerple_burn::implementation::Impl;
use kerple_burn::kv_cache::KvCache;
use kerple_burn::parameters::{self, ParamGroup};
use kerple_burn::plan::{AttentionKind, LinearAttentionConfig};
use kerple_burn::positional_encoding::PositionalEncoding;
use kerple_core::calculus::{expr::Expr, parameter::Constraint};
use kerple_core::encoding::{Clamp, Encoding, FormPositions, Geometry, METHODS, Method, ParameterShare, expression};

const GEOMETRY: Geometry = Geometry::new(3, 4, 16);
const LEN: usize = 40;
const PASS: ForwardContext = ForwardContext::evaluation(0);

fn device() -> Device {
    Device::flex().autodiff()
}

/// A kernel expression whose stored numbers are mapped smoothly.
fn smooth(bias: &str, weight: Option<&str>) -> Encoding {
    let read = |text: &str| Expr::parse(text).unwrap();
    let (bias, weight) = (Some(read(bias)), weight.map(read));
    Encoding::from(Method::Kernel(expression::ExpressionConfig {
        bias,
        weight,
        keep: Constraint::Smooth,
        unproven: false,
        start: None,
    }))
}

/// Biases that end before the table does.
const ENDING: [&str; 5] = [
    r#"{"kind":"kerple_log","reach":9}"#,
    r#"{"kind":"kerple_power","reach":9,"window":20,"scale":"inside"}"#,
    r#"{"kind":"t5","reach":9,"scale":"inside"}"#,
    r#"{"kind":"bam","theta_mu":0.3,"reach":9}"#,
    r#"{"kind":"alibi","reach":1}"#,
];

/// Every method by its defaults, and expressions whose stored numbers are mapped; in both shares where there are two.
fn all() -> Vec<Encoding> {
    let mut all: Vec<Encoding> = METHODS.iter().map(|kind| Encoding::from(Method::named(kind).unwrap())).collect();
    all.push(smooth("log(b, a) + 0.5*power(a, p)", Some("exp(1, a, p)")));
    all.push(Encoding { reach: Some(7), ..smooth("log(b, a) + 0.5*power(a, p)", None) });
    all.extend(ENDING.map(|text| serde_json::from_str(text).unwrap()));
    let capped = [r#"{"kind":"kerple_log","distance_cap":9}"#, r#"{"kind":"t5","distance_cap":4,"window":20}"#];
    all.extend(capped.map(|text| serde_json::from_str(text).unwrap()));
    let layered = |encoding: &Encoding| Encoding { share: ParameterShare::Layer, ..encoding.clone() };
    let layered: Vec<Encoding> = all.iter().map(layered).filter(|encoding| encoding.check(&GEOMETRY).is_ok()).collect();
    assert!(layered.len() >= 11, "T5 and the kernels that learn may differ by layer");
    all.into_iter().chain(layered).collect()
}

struct ToDouble;

impl ModuleMapper for ToDouble {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| {
            let data = TensorData::new(tensor.clone().into_data().iter::<f64>().collect::<Vec<_>>(), tensor.dims());
            Tensor::from_data(data, (&device(), DType::F64)).require_grad()
        })
    }
}

fn double(encoding: &Encoding, depth: usize) -> PositionalEncoding {
    PositionalEncoding::new(encoding, &GEOMETRY, depth, 3, &device()).map(&mut ToDouble)
}

fn numbers<const D: usize>(tensor: &Tensor<D>) -> Vec<f64> {
    tensor.clone().into_data().iter::<f64>().collect()
}

fn up() -> Tensor<2> {
    let values: Vec<f64> = (0..GEOMETRY.heads * LEN).map(|i| (i as f64 * 0.7).sin()).collect();
    Tensor::from_data(TensorData::new(values, [GEOMETRY.heads, LEN]), (&device(), DType::F64))
}

/// The tables, and the gradient in each learned value.
type Ran = (Vec<Vec<f64>>, Vec<Option<Vec<f64>>>);

/// Tables, and the gradient of their products with `up` in every parameter.
fn run(module: &PositionalEncoding, positions: &AttentionContext) -> Option<Ran> {
    let tables: Vec<&Tensor<2>> = positions.bias.tables().into_iter().flatten().collect();
    let loss = tables.iter().map(|table| ((*table).clone() * up()).sum()).reduce(|a, b| a + b)?;
    let values = tables.into_iter().map(numbers).collect();
    if parameters::collect(module).is_empty() {
        return Some((values, Vec::new()));
    }
    let gradients = parameters::gradients(module, &mut loss.backward());
    Some((values, gradients.into_iter().map(|gradient| gradient.as_ref().map(numbers)).collect()))
}

fn assert_close(a: &[f64], b: &[f64], tolerance: f64, what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    let largest = b.iter().fold(1e-3f64, |most, x| most.max(x.abs()));
    for (a, b) in a.iter().zip(b) {
        assert!((a - b).abs() <= tolerance * largest, "{what}: {a} {b}");
    }
}

#[test]
fn fused_tables_equal_reference_ones_in_values_and_gradients() {
    for encoding in all() {
        let module = double(&encoding, 3);
        for layer in 0..3 {
            let options = (&device(), DType::F64);
            let fused = run(&module, &module.attention_context(layer, [LEN, LEN], options, Impl::Kernel, &PASS));
            let reference = run(&module, &module.attention_context(layer, [LEN, LEN], options, Impl::Reference, &PASS));
            let what = encoding.label();
            let (Some(fused), Some(reference)) = (fused, reference) else { continue };
            assert_eq!(fused.0, reference.0, "{what}: tables are the same numbers");
            assert_eq!(fused.1.len(), reference.1.len());
            for (a, b) in fused.1.iter().zip(&reference.1) {
                match (a, b) {
                    (Some(a), Some(b)) => assert_close(a, b, 1e-13, &what), // f64 sums of 40 terms in another order
                    // a parameter that no table is made of
                    (Some(only), None) | (None, Some(only)) => assert!(only.iter().all(|x| *x == 0.0), "{what}"),
                    (None, None) => {}
                }
            }
        }
    }
}

#[test]
fn gradients_in_stored_numbers_pass_finite_differences() {
    for encoding in all() {
        // in range, away from ends where a clamp is flat
        let free = Encoding { clamp: Clamp::ForwardOnly, ..encoding.clone() };
        let module = double(&free, 1);
        let options = (&device(), DType::F64);
        let Some((_, gradients)) = run(&module, &module.attention_context(0, [LEN, LEN], options, Impl::Kernel, &PASS))
        else {
            continue;
        };
        let stored = module.numbers(0);
        let parameters = free.parameters(&GEOMETRY);
        let loss = |stored: &[Vec<f64>]| {
            let table = free.table(&GEOMETRY, stored, LEN);
            let up = numbers(&up());
            let dot = |rows: &Vec<f64>| rows.iter().zip(&up).map(|(a, b)| a * b).sum::<f64>();
            [&table.bias, &table.weight].into_iter().flatten().map(dot).sum::<f64>()
        };
        for (p, gradient) in gradients.iter().enumerate() {
            for (i, analytic) in gradient.as_ref().expect("the table depends on every parameter").iter().enumerate() {
                let step = 1e-6;
                let moved = |by: f64| {
                    let mut moved = stored.clone();
                    moved[p][i] += by;
                    moved
                };
                let parameter = &parameters[p];
                let value = parameter.value(stored[p][i]).0;
                if (value - parameter.low).min(parameter.high - value) < 1e-5 {
                    continue; // beyond the end the table does not move, and the gradient passes straight through
                }
                let numeric = (loss(&moved(step)) - loss(&moved(-step))) / (2.0 * step);
                // sums of 40 terms of size up to 1e3, differenced at 1e-6
                let error = (analytic - numeric).abs();
                assert!(error < 1e-6 * numeric.abs().max(10.0), "{} {p} {i}: {analytic} {numeric}", free.label());
            }
        }
    }
}

/// The bias is 0 from the reach on, by the drawn distance where distances are drawn, and so are its derivatives.
#[test]
fn a_bias_that_ends_has_no_gradient_from_beyond() {
    let options = (&device(), DType::F64);
    for text in ENDING.iter().flat_map(|text| [text.to_string(), text.replace('}', r#","randomized":99}"#)]) {
        let encoding = Encoding { clamp: Clamp::ForwardOnly, ..serde_json::from_str(&text).unwrap() };
        let reach = encoding.reach.unwrap();
        let module = double(&encoding, 2);
        let drawn = encoding.draw(LEN, &mut PASS.shared_noise(POSITIONS + 2));
        let distances = drawn.clone().unwrap_or_else(|| (0..LEN).collect());
        let places = FormPositions { drawn: drawn.as_deref(), ..FormPositions::from(LEN) };
        let near = distances.iter().filter(|d| **d < reach).count();
        assert!(near > 0 && near < LEN, "{text}: {near} of {LEN} distances");
        for implementation in [Impl::Kernel, Impl::Reference] {
            let context = module.attention_context(1, [LEN, LEN], options, implementation, &PASS);
            let bias = context.bias.tables()[0].unwrap().clone();
            assert_eq!(numbers(&bias), encoding.table(&GEOMETRY, &module.numbers(1), places.clone()).bias.unwrap());
            let far = numbers(&bias.clone().narrow(1, near, LEN - near));
            assert!(far.iter().all(|x| *x == 0.0), "{text}: {far:?}");
            if parameters::collect(&module).is_empty() {
                continue;
            }
            let beyond = (bias.clone() * up()).narrow(1, near, LEN - near).sum();
            let gradients = parameters::gradients(&module, &mut beyond.backward());
            assert!(gradients.iter().flatten().flat_map(numbers).all(|x| x == 0.0), "{text}: a gradient from beyond");
            let context = module.attention_context(1, [LEN, LEN], options, implementation, &PASS);
            let (_, all) = run(&module, &context).unwrap();
            let context = module.attention_context(1, [LEN, LEN], options, implementation, &PASS);
            let before = (context.bias.tables()[0].unwrap().clone() * up()).narrow(1, 0, near).sum();
            let before = parameters::gradients(&module, &mut before.backward());
            for (all, before) in all.iter().zip(&before) {
                match (all, before) {
                    (Some(all), Some(before)) => assert_close(all, &numbers(before), 1e-13, &text), // f64 sums in another order
                    // of another layer
                    (None, None) => assert_eq!(encoding.share, ParameterShare::Layer, "{text}"),
                    _ => panic!("{text}: a gradient by one of the two"),
                }
            }
            let loss = |by: f64| {
                let mut moved = module.numbers(1);
                moved.iter_mut().flatten().for_each(|value| *value += by);
                let table = encoding.table(&GEOMETRY, &moved, places.clone()).bias.unwrap();
                table.iter().zip(numbers(&up())).map(|(a, b)| a * b).sum::<f64>()
            };
            let (step, analytic) = (1e-6, all.iter().flatten().flatten().sum::<f64>());
            let parameters = encoding.parameters(&GEOMETRY);
            let is_inside = module.numbers(1).iter().zip(&parameters).all(|(values, own)| {
                values
                    .iter()
                    .all(|x| own.value(*x - 2.0 * step).1 != 0.0 && *x > own.low + 1e-5 && *x < own.high - 1e-5)
            });
            if is_inside {
                let numeric = (loss(step) - loss(-step)) / (2.0 * step);
                // sums of 120 terms of size up to 1e2, differenced at 1e-6
                assert!((analytic - numeric).abs() < 1e-6 * numeric.abs().max(10.0), "{text}: {analytic} {numeric}");
            }
        }
    }
}

#[test]
fn layers_share_values_or_have_their_own() {
    let shared = Encoding::from(Method::named("kerple_log").unwrap());
    let own = Encoding { share: ParameterShare::Layer, ..shared.clone() };
    let names = |encoding: &Encoding| {
        let module = double(encoding, 3);
        parameters::collect(&module).into_iter().map(|named| named.name).collect::<Vec<_>>()
    };
    assert_eq!(names(&shared), ["values.0", "values.1"]);
    assert_eq!(names(&own), ["layers.0.0", "layers.0.1", "layers.1.0", "layers.1.1", "layers.2.0", "layers.2.1"]);

    let module = double(&own, 3);
    let options = (&device(), DType::F64);
    let in_layer = |layer| module.attention_context(layer, [LEN, LEN], options, Impl::Kernel, &PASS);
    let positions: Vec<AttentionContext> = module.every_layer(in_layer).collect();
    let tables: Vec<Vec<f64>> = positions.iter().map(|p| numbers(p.bias.tables()[0].unwrap())).collect();
    assert!(tables[0] != tables[1] && tables[1] != tables[2] && tables[0] != tables[2]);
    assert_eq!(tables[2], module.table(2, LEN).bias.unwrap());
    let (_, gradients) = run(&module, &positions[1]).unwrap();
    let reached: Vec<bool> = gradients.iter().map(Option::is_some).collect();
    assert_eq!(reached, [false, false, true, true, false, false], "a layer's table is made of its own values");

    let module = double(&shared, 3);
    let in_layer = |layer| module.attention_context(layer, [LEN, LEN], options, Impl::Kernel, &PASS);
    let positions: Vec<AttentionContext> = module.every_layer(in_layer).collect();
    let bias = |layer: usize| positions[layer].bias.tables()[0].unwrap().clone();
    let loss = (bias(0) * up()).sum() + (bias(2) * up()).sum();
    let once = run(&module, &module.attention_context(1, [LEN, LEN], options, Impl::Kernel, &PASS)).unwrap().1; // a graph serves one backward
    let twice = parameters::gradients(&module, &mut loss.backward());
    for (once, twice) in once.into_iter().zip(twice) {
        let doubled: Vec<f64> = once.unwrap().iter().map(|x| 2.0 * x).collect();
        assert_close(&numbers(&twice.unwrap()), &doubled, 1e-14, "layers that share a table add their gradients");
    }
}

#[test]
fn every_parameter_says_its_group() {
    for (kind, share, group) in [
        ("kerple_log", ParameterShare::Layer, ParamGroup { decay: false, range: Some([0.01, f64::INFINITY]) }),
        ("kerple_log", ParameterShare::Model, ParamGroup { decay: false, range: Some([0.01, f64::INFINITY]) }),
        ("t5", ParameterShare::Layer, ParamGroup { decay: true, range: Some([f64::NEG_INFINITY, f64::INFINITY]) }),
        ("learned", ParameterShare::Model, ParamGroup { decay: true, range: Some([f64::NEG_INFINITY, f64::INFINITY]) }),
    ] {
        let encoding = Encoding { share, ..Encoding::from(Method::named(kind).unwrap()) };
        let groups = parameters::param_groups(&double(&encoding, 2));
        assert!(!groups.is_empty() && groups.iter().all(|found| *found == group), "{kind}: {groups:?}");
    }
    // where larger amplitudes would do nothing
    let linear = AttentionKind::Linear(LinearAttentionConfig::default());
    for (kind, most) in [("kerple_log", 4.0), ("kerple_power", f64::INFINITY)] {
        let groups =
            parameters::param_groups(&double(&Encoding::from(Method::named(kind).unwrap()), 2).with_attention(&linear));
        assert_eq!(groups[0].range.unwrap()[1], most, "{kind}");
    }
    for group in parameters::param_groups(&double(&smooth("power(a, p)", None), 2)) {
        assert_eq!(group.range, Some([f64::NEG_INFINITY, f64::INFINITY]), "a mapped number is free");
    }
}

#[test]
fn reports_are_given_constrained_values_by_name() {
    let module = double(&Encoding { share: ParameterShare::Layer, ..smooth("power(a, p~1.5)", None) }, 2);
    let values = module.constrained();
    let names: Vec<&str> = values.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["layer0.a", "layer0.p", "layer1.a", "layer1.p"]);
    // stored as f32
    assert!(values[3].1.iter().all(|p| (p - 1.5).abs() < 1e-6), "{:?}", values[3].1);
    assert!(module.numbers(1)[1].iter().all(|p| (p - 1.5).abs() > 0.1), "what is stored is another number");
}

#[test]
fn tables_are_made_in_the_type_that_is_asked_for() {
    for encoding in all() {
        let module = PositionalEncoding::new(&encoding, &GEOMETRY, 2, 3, &device());
        for dtype in [DType::F32, DType::F64] {
            let fused = module.attention_context(1, [8, 8], (&device(), dtype), Impl::Kernel, &PASS);
            let reference = module.attention_context(1, [8, 8], (&device(), dtype), Impl::Reference, &PASS);
            for table in [fused, reference].iter().flat_map(|positions| positions.bias.tables()).flatten() {
                assert_eq!(table.dtype(), dtype, "{}", encoding.label());
            }
            if let Some(rows) = module.absolute(2, 3, (&device(), dtype), &PASS) {
                assert_eq!((rows.dtype(), rows.dims()), (dtype, [1, 3, 12]));
            }
        }
    }
}

#[test]
fn sequences_that_grow_make_few_tables_and_those_of_any_length() {
    let device = Device::flex();
    let (options, heads) = ((&device, DType::F32), Heads::square(3, 3, 4));
    let parameter = Tensor::<2>::zeros([1, 1], options);
    let encoding =
        |kind: &str| PositionalEncoding::new(&Encoding::from(Method::named(kind).unwrap()), &GEOMETRY, 1, 3, &device);
    let bias = |positions: &AttentionContext| positions.bias.tables()[0].unwrap().clone();
    let numbers = |table: Tensor<2>| table.into_data().try_into_vec::<f32>().unwrap();
    for (kind, implementation) in
        ["kerple_log", "t5", "sandwich", "alibi"].into_iter().zip([Impl::Kernel, Impl::Reference].repeat(2))
    {
        let module = encoding(kind);
        let mut cache = KvCache::new(1, heads, None, &parameter, implementation);
        for keys in 1..=20 {
            let positions = module.snapshot().context_after(0, [1, keys], options, (implementation, &PASS), &mut cache);
            let plain = module.attention_context(0, [1, keys], options, implementation, &PASS);
            let table = bias(&positions);
            assert_eq!(table.dims(), [3, keys.next_power_of_two()], "{kind}");
            assert_eq!(numbers(table.narrow(1, 0, keys)), numbers(bias(&plain)), "{kind}");
            assert_eq!(positions.mask.pattern, plain.mask.pattern);
        }
        // another encoding is not asked as far as there is a table, and then it is
        let other =
            encoding("kerple_power").snapshot().context_after(0, [1, 32], options, (implementation, &PASS), &mut cache);
        let kept = module.attention_context(0, [32, 32], options, implementation, &PASS);
        assert_eq!(numbers(bias(&other)), numbers(bias(&kept)), "{kind}");
        let pass = PASS.over(33);
        let more =
            encoding("kerple_power").snapshot().context_after(0, [1, 33], options, (implementation, &pass), &mut cache);
        assert_eq!(
            (bias(&more).dims(), more.linear.pass),
            ([3, 64], pass),
            "tables go further than the sequence so far"
        );
        assert_ne!(numbers(bias(&more).narrow(1, 0, 32)), numbers(bias(&kept)), "{kind}");
    }
}
