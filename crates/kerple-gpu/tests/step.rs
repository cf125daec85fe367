//! The kernels of a training step beside attention: norms, epilogues, dropout and AdamW, against the references in f64.
//!
//! They run on a software renderer, unless `KERPLE_TEST_DEVICE` names a kind of device, as those of attention.

mod common;

use common::{client, random};
use cubecl::client::Client;
use cubecl::prelude::CubeElement;
use cubecl::server::Handle;
use kerple_core::ops::activation::Activation;
use kerple_core::ops::adam::{self, AdamWUpdate};
use kerple_core::ops::layer_norm::{self, NormGradients, RowNorm};
use kerple_gpu::adamw::{self, AdamwParameter};
use kerple_gpu::cubecl;
use kerple_gpu::dropout::{ChaChaStream, dropout};
use kerple_gpu::epilogue::FusedEpilogue;
use kerple_gpu::norm::{FusedNorm, FusedNormGradients};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn put(client: &Client, values: &[f64]) -> Handle {
    let values: Vec<f32> = values.iter().map(|value| *value as f32).collect();
    client.create_from_slice(f32::as_bytes(&values))
}

fn get(client: &Client, handle: Handle) -> Vec<f32> {
    f32::from_bytes(&client.read_one(handle).expect("the device answers")).to_vec()
}

/// Of the largest value of an array.
fn assert_close(found: &[f32], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(1e-6_f64, |largest, value| largest.max(value.abs()));
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(*found) - expected).abs() / largest;
        assert!(error < tolerance, "{what}[{at}] is {found}, expected {expected}, error {error:e}");
    }
}

/// Rows and every gradient from a device.
fn normed(client: &Client, norm: &FusedNorm, [x, d_y]: [&[f64]; 2]) -> Vec<Vec<f32>> {
    let [x, d_y] = [x, d_y].map(|values| put(client, values));
    let [y, stats] = norm.forward(client, &x);
    let FusedNormGradients { d_x, d_gamma, d_beta } = norm.backward(client, [&x, &stats, &d_y]);
    [Some(y), Some(d_x), Some(d_gamma), d_beta].into_iter().flatten().map(|handle| get(client, handle)).collect()
}

#[test]
fn norms_and_their_gradients() {
    let (client, mut rng) = (client(), ChaCha8Rng::seed_from_u64(1));
    for (rows, width) in [(1, 7), (600, 5), (40, 64), (33, 200)] {
        for (kind, shifted) in [(RowNorm::Layer, true), (RowNorm::Layer, false), (RowNorm::Rms, false)] {
            // far from 0, where a variance of differences of squares would lose its digits
            let x: Vec<f64> =
                random(&mut rng, rows * width, 1.0).into_iter().map(|x| f64::from((x + 3.0) as f32)).collect();
            let [gamma, beta] = [(); 2].map(|()| random(&mut rng, width, 1.0));
            let d_y = random(&mut rng, rows * width, 1.0);
            let beta = shifted.then_some(&beta[..]);
            let on_host = layer_norm::NormParameters { kind, gamma: &gamma, beta, epsilon: 1e-5 };
            let (mut y, mut d_x, mut d_gamma) = (Vec::new(), Vec::new(), vec![0.0; width]);
            let mut d_beta = beta.map(|beta| vec![0.0; beta.len()]);
            let stats = layer_norm::forward(on_host, &x, &mut y);
            let gradients = NormGradients { d_gamma: &mut d_gamma, d_beta: d_beta.as_deref_mut() };
            layer_norm::backward(on_host, &x, &stats, &d_y, None, &mut d_x, gradients);
            let norm = FusedNorm {
                centred: kind == RowNorm::Layer,
                epsilon: 1e-5,
                gamma: put(&client, &gamma),
                beta: beta.map(|beta| put(&client, beta)),
                sizes: [rows, width],
            };
            let found = normed(&client, &norm, [&x, &d_y]);
            let expected = [Some(y), Some(d_x), Some(d_gamma), d_beta];
            assert_eq!(found.len(), expected.iter().flatten().count());
            for (at, (found, expected)) in found.iter().zip(expected.iter().flatten()).enumerate() {
                // sums of a row's values, and of gradients over all rows
                assert_close(found, expected, 4e-6, &format!("{at} of {rows} rows of {width}, {kind:?}"));
            }
            assert!(normed(&client, &norm, [&x, &d_y]) == found, "other bits");
        }
    }
}

#[test]
fn activations_and_their_slopes() {
    let (client, mut rng) = (client(), ChaCha8Rng::seed_from_u64(2));
    let x = random(&mut rng, 1000, 6.0);
    let d_y = random(&mut rng, 1000, 1.0);
    for activation in Activation::ALL {
        let (mut y, mut d_x, mut again) = (vec![0.0; 1000], d_y.clone(), vec![0.0; 1000]);
        activation.forward(&x, &mut y);
        activation.backward(&x, &mut d_x, &mut again);
        let [on_x, on_d_y] = [&x, &d_y].map(|values| put(&client, values));
        let epilogue = FusedEpilogue { sizes: [40, 25], bias: None, activation: Some(activation), base: None };
        let found = get(&client, epilogue.forward(&client, &on_x));
        // one rounding or two of each value
        assert_close(&found, &y, 5e-7, &format!("{activation:?}"));
        let found = get(&client, epilogue.backward(&client, [&on_x, &on_d_y]).d_x);
        // a sigmoid's argument, which is rounded first, is up to 5 where its slope is not nothing
        assert_close(&found, &d_x, 2e-6, &format!("slope of {activation:?}"));
    }
}

#[test]
fn products_with_what_becomes_of_them() {
    let (client, mut rng) = (client(), ChaCha8Rng::seed_from_u64(6));
    // rows for some cubes to have two of, columns for some units
    let [rows, width] = [600, 70];
    let [x, d_y, base] = [3.0, 1.0, 2.0].map(|most| random(&mut rng, rows * width, most));
    let bias = random(&mut rng, width, 1.0);
    let [on_x, on_d_y, on_base, on_bias] = [&x, &d_y, &base, &bias].map(|values| put(&client, values));
    let shifted: Vec<f64> = x.iter().enumerate().map(|(at, x)| x + bias[at % width]).collect();
    for activation in [None, Some(Activation::Gelu)] {
        let (mut y, mut d_x, mut again) = (shifted.clone(), d_y.clone(), vec![0.0; rows * width]);
        if let Some(activation) = activation {
            activation.forward(&shifted, &mut y);
            activation.backward(&shifted, &mut d_x, &mut again);
        }
        y.iter_mut().zip(&base).for_each(|(y, base)| *y += base);
        let mut d_bias = vec![0.0; width];
        d_x.iter().enumerate().for_each(|(at, d)| d_bias[at % width] += d);
        let epilogue = FusedEpilogue { sizes: [rows, width], bias: Some(&on_bias), activation, base: Some(&on_base) };
        let found = get(&client, epilogue.forward(&client, &on_x));
        assert_close(&found, &y, 2e-6, &format!("{activation:?}"));
        let found = epilogue.backward(&client, [&on_x, &on_d_y]);
        assert_close(&get(&client, found.d_x), &d_x, 2e-6, &format!("slope of {activation:?}"));
        let of_bias = get(&client, found.d_bias.expect("there is a bias"));
        assert_close(&of_bias, &d_bias, 5e-6, &format!("bias under {activation:?}"));
        let again = epilogue.backward(&client, [&on_x, &on_d_y]).d_bias.expect("there is a bias");
        assert!(of_bias == get(&client, again), "other bits");
    }
}

#[test]
fn norms_of_gradients() {
    let (client, mut rng) = (client(), ChaCha8Rng::seed_from_u64(3));
    // the last fills several cubes
    let all: Vec<Vec<f64>> = [1, 63, 64, 30_000].into_iter().map(|len| random(&mut rng, len, 1.0)).collect();
    let handles: Vec<(Handle, usize)> = all.iter().map(|values| (put(&client, values), values.len())).collect();
    let gradients: Vec<(&Handle, usize)> = handles.iter().map(|(handle, len)| (handle, *len)).collect();
    let norm = || get(&client, adamw::norm(&client, &gradients))[0];
    let expected = all.iter().map(|values| adam::sum_of_squares(values)).sum::<f64>().sqrt();
    assert_close(&[norm()], &[expected], 1e-6, "norm");
    assert!((0..3).map(|_| norm()).all(|again| again == norm()));
    for bad in [f64::NAN, f64::INFINITY] {
        let poisoned = put(&client, &[1.0, bad, 1.0]);
        assert!(!get(&client, adamw::norm(&client, &[gradients[1], (&poisoned, 3)]))[0].is_finite());
    }
}

#[test]
fn updates_of_a_parameter() {
    let (client, mut rng) = (client(), ChaCha8Rng::seed_from_u64(4));
    let len = 300;
    for (clip, range, weight_decay) in [(0.0, None, 0.0), (1.0, None, 0.1), (1.0, Some([-0.5, 0.5]), 0.0)] {
        let (mut values, mut first, mut second) = (random(&mut rng, len, 1.0), vec![0.0; len], vec![0.0; len]);
        let state = [&values, &first, &second].map(|values| put(&client, values));
        for step in 1..=4 {
            let gradient = random(&mut rng, len, 1.0);
            // above the limit and below it
            let norm = [0.25, 8.0][step as usize % 2];
            let gradient_scale = if clip > 0.0 { adam::clip_scale(norm, clip) } else { 1.0 };
            let settings =
                AdamWUpdate { lr: 0.05, epsilon: 1e-2, weight_decay, step, gradient_scale, ..AdamWUpdate::default() };
            adam::update(&settings, &mut values, &gradient, &mut first, &mut second);
            if let Some([low, high]) = range {
                values.iter_mut().for_each(|value| *value = value.clamp(low, high));
            }
            let [of_values, of_first, of_second] = state.clone();
            let gradient = put(&client, &gradient);
            let parameter = AdamwParameter { values: of_values, first: of_first, second: of_second, gradient, len };
            adamw::apply(&client, &parameter, &put(&client, &[norm]), &settings, clip, range);
        }
        let now = || state.clone().map(|handle| get(&client, handle));
        let found = now();
        for ((found, expected), what) in found.iter().zip([&values, &first, &second]).zip(["values", "first", "second"])
        {
            // a few roundings a step
            assert_close(found, expected, 1e-6, what);
        }
        // a norm that is no number changes nothing
        for norm in [f64::NAN, f64::INFINITY] {
            let [of_values, of_first, of_second] = state.clone();
            let gradient = put(&client, &vec![1.0; len]);
            let parameter = AdamwParameter { values: of_values, first: of_first, second: of_second, gradient, len };
            adamw::apply(&client, &parameter, &put(&client, &[norm]), &AdamWUpdate::default(), clip, range);
        }
        assert!(now() == found);
    }
}

#[test]
fn dropout_draws_what_the_processor_draws() {
    let client = client();
    for (rows, width, share) in [(1, 1, 0.5), (3, 100, 0.1), (2, 48, 0.9), (5, 333, 0.0)] {
        let limit = (share * 2f64.powi(32)) as u32;
        let mut streams = Vec::new();
        let mut expected = Vec::new();
        let x: Vec<f64> = (1..=rows * width).map(|x| x as f64).collect();
        for (row, values) in x.chunks(width).enumerate() {
            let mut words = ChaCha8Rng::seed_from_u64(row as u64 + 7);
            words.set_stream((3 << 32) + row as u64);
            streams.push(ChaChaStream { key: words.get_seed(), number: words.get_stream() });
            expected.extend(values.iter().map(|x| if words.next_u32() >= limit { 1.25 * *x as f32 } else { 0.0 }));
        }
        let found = get(&client, dropout(&client, &put(&client, &x), &streams, width, limit, 1.25));
        assert_eq!(found, expected, "{rows} rows of {width}, share {share}");
    }
}
