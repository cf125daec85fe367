use super::*;
use crate::ops::testing::random;
use crate::seed::{Purpose, stream_at};
use omega::ColumnNorms;

fn normals(seed: u64) -> Normals {
    Normals::drawn(stream_at(seed, Purpose::Noise, [1, 2]))
}

/// The image of one row.
fn image(map: &dyn FeatureMap<f64>, side: RowKind, head: usize, first: usize, x: &[f64]) -> Vec<f64> {
    let mut row = vec![0.0; padded(x.len())];
    row[..x.len()].copy_from_slice(x);
    let mut y = vec![f64::NAN; padded(map.widths()[1])];
    let mut room = vec![f64::NAN; map.room()];
    map.forward(RowRange { side, batch: 0, head, first, rows: 1 }, &row, &mut y, &mut room);
    assert!(y[map.widths()[1]..].iter().all(|x| *x == 0.0), "beyond the width");
    y.truncate(map.widths()[1]);
    y
}

/// The code of a position: images of the unit rows, `[D, R]`.
fn code(map: &dyn FeatureMap<f64>, side: RowKind, head: usize, position: usize) -> Vec<Vec<f64>> {
    let d = map.widths()[0];
    let unit = |at: usize| (0..d).map(|i| f64::from(u8::from(i == at))).collect::<Vec<f64>>();
    (0..d).map(|at| image(map, side, head, position, &unit(at))).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[test]
fn features_have_the_softmax_kernel_as_mean() {
    let (d, m, draws) = (6, 12, 3000);
    let (q, k) = (random(d, 1), random(d, 2));
    let want = (dot(&q, &k) / (d as f64).sqrt()).exp();
    for (form, lengths) in
        [(FavorFeatures::BothSigns, ColumnNorms::OfRows), (FavorFeatures::Positive, ColumnNorms::Drawn)]
    {
        let estimates: Vec<f64> = (0..draws)
            .map(|seed| {
                let omega = omega::orthogonal([d, m], lengths, &mut stream_at(seed, Purpose::Noise, [0, 0]));
                let favor = Favor::new(&omega, [d, m], form).with(Offset::None, Offset::None, 0.0);
                dot(&image(&favor, RowKind::Query, 0, 0, &q), &image(&favor, RowKind::Key, 0, 0, &k))
            })
            .collect();
        let mean = estimates.iter().sum::<f64>() / draws as f64;
        let variance = estimates.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / draws as f64;
        // four standard errors
        assert!((mean - want).abs() < 4.0 * (variance / draws as f64).sqrt(), "{form:?}: {mean} instead of {want}");
        assert!(estimates.iter().all(|x| *x > 0.0));
    }
}

#[test]
fn columns_of_a_block_are_orthogonal() {
    let (d, m) = (7, 17);
    for lengths in [ColumnNorms::OfRows, ColumnNorms::Drawn, ColumnNorms::Equal] {
        let omega = omega::orthogonal([d, m], lengths, &mut stream_at(5, Purpose::Noise, [0, 0]));
        let column = |c: usize| (0..d).map(|r| omega[r * m + c]).collect::<Vec<f64>>();
        for a in 0..m {
            for b in (0..m).filter(|b| b / d == a / d && *b != a) {
                assert!(dot(&column(a), &column(b)).abs() < 1e-12);
            }
            let length = dot(&column(a), &column(a)).sqrt();
            assert!(length > 0.1 && (lengths != ColumnNorms::Equal || (length - (d as f64).sqrt()).abs() < 1e-12));
        }
    }
}

#[test]
fn codes_have_their_kernel_as_mean() {
    let (heads, d, r) = (2, 3, 40_000);
    let (freqs, offsets, gains) = (random(heads * d * 2, 1), random(heads * d * 2, 2), random(heads * d * 2, 3));
    let waves = Waves { freqs: &freqs, offsets: &offsets, gains: &gains };
    let gates = random(heads * d, 4);
    let taps = 5;
    let (query, key) = (random(heads * d * taps, 5), random(heads * d * taps, 6));
    let filters = Filters { query: &query, key: &key };
    for gating in [None, Some(Gating::Torch), Some(Gating::Jax)] {
        let noise = (0..heads * d).flat_map(|hd| normals(9).rows(hd, 0, [1, r])).collect();
        let gate = gating.map(|gating| CodeGate { values: &gates, noise, gating });
        let sine = SineCode::new(
            SineShape { heads, head_dim: d, waves: 2, realisations: r },
            waves,
            &normals(7),
            gate.as_ref(),
        );
        let shape = ConvShape { heads, head_dim: d, realisations: r, taps: vec![taps], size: vec![0] };
        let conv = ConvCode::new(shape, filters, normals(8), gate.as_ref());
        for (m, n) in [(4usize, 4usize), (9, 6), (2, 5)] {
            let lag = m as isize - n as isize;
            for (which, map) in [&sine as &dyn FeatureMap<f64>, &conv].into_iter().enumerate() {
                let (q, k) = (code(map, RowKind::Query, 1, m), code(map, RowKind::Key, 1, n));
                for at in 0..d {
                    let hd = d + at;
                    let plain =
                        if which == 0 { waves.kernel(2, hd, lag as f64) } else { filters.kernel(taps, hd, lag) };
                    let want = gating.map_or(plain, |gating| gated_kernel(plain, gates[hd], gating));
                    let got = dot(&q[at], &k[at]) * (d as f64 / r as f64).sqrt();
                    // variances of the codes are below 6 here; four standard errors
                    assert!(
                        (got - want).abs() < 4.0 * (36.0f64 / r as f64).sqrt(),
                        "{which} {gating:?} {lag}: {got} {want}"
                    );
                    let other = dot(&q[at], &k[(at + 1) % d]) * (d as f64 / r as f64).sqrt();
                    assert!(
                        gating.is_some() || other.abs() < 4.0 * (36.0f64 / r as f64).sqrt(),
                        "features are independent"
                    );
                }
            }
        }
    }
}

/// The gradient in what codes learn, against central differences of a contraction.
#[test]
fn codes_know_their_slopes() {
    let (heads, d, r, rows) = (2, 3, 4, 20);
    let x = random(rows * padded(d), 1);
    let x: Vec<f64> = x.iter().enumerate().map(|(at, x)| if at % padded(d) < d { *x } else { 0.0 }).collect();
    let d_y: Vec<f64> = random(rows * padded(r), 2)
        .iter()
        .enumerate()
        .map(|(at, x)| if at % padded(r) < r { *x } else { 0.0 })
        .collect();
    let gate_noise = random(heads * d * r, 3);
    let place = |side, head| RowRange { side, batch: 0, head, first: 37, rows };
    type Make<'a> = &'a dyn Fn(&[Vec<f64>]) -> (Box<dyn FeatureMap<f64>>, Box<dyn Fn(&[f64]) -> Vec<Vec<f64>>>);
    let check = |values: Vec<Vec<f64>>, make: Make| {
        let loss = |values: &[Vec<f64>]| -> f64 {
            let (map, _) = make(values);
            let (mut y, mut room) = (vec![0.0; rows * padded(r)], vec![f64::NAN; map.room()]);
            let of = |side, head: usize| {
                map.forward(place(side, head), &x, &mut y, &mut room);
                dot(&y, &d_y) * (1.0 + head as f64)
            };
            let mut of = of;
            of(RowKind::Query, 0) + of(RowKind::Key, 0) + of(RowKind::Query, 1) + of(RowKind::Key, 1)
        };
        let (map, gradient) = make(&values);
        let size = map.parameters();
        let (mut y, mut room) = (vec![0.0; rows * padded(r)], vec![f64::NAN; map.room()]);
        let (mut d_x, mut d) = (vec![f64::NAN; x.len()], vec![0.0; heads * size]);
        for (side, head) in [(RowKind::Query, 0), (RowKind::Key, 0), (RowKind::Query, 1), (RowKind::Key, 1)] {
            map.forward(place(side, head), &x, &mut y, &mut room);
            let d_y: Vec<f64> = d_y.iter().map(|d| d * (1.0 + head as f64)).collect();
            let gradients = FeatureMapGradients { d_x: &mut d_x, d_parameters: &mut d[head * size..(head + 1) * size] };
            map.backward(place(side, head), FeatureMapSaved { x: &x, y: &y, d_y: &d_y }, &mut room, gradients);
        }
        for (which, found) in gradient(&d).into_iter().enumerate() {
            assert_eq!(found.len(), values[which].len());
            for (at, got) in found.into_iter().enumerate() {
                let h = 1e-5;
                let [above, below] = [h, -h].map(|h| {
                    let mut moved = values.clone();
                    moved[which][at] += h;
                    loss(&moved)
                });
                let slope = (above - below) / (2.0 * h);
                // cut off at h^2 times third derivatives of up to 1e4 in a frequency
                assert!(
                    (slope - got).abs() <= 1e-5 * (1.0 + slope.abs()),
                    "value {which}, {at}: {got} instead of {slope}"
                );
            }
        }
    };
    let noise = gate_noise.clone();
    check((10..14).map(|seed| random(heads * d * if seed == 13 { 1 } else { 2 }, seed)).collect(), &move |values| {
        let (shape, noise) = (SineShape { heads, head_dim: d, waves: 2, realisations: r }, noise.clone());
        let values = values.to_vec();
        let make = move |values: &[Vec<f64>]| {
            let waves = Waves { freqs: &values[0], offsets: &values[1], gains: &values[2] };
            let gate = CodeGate { values: &values[3], noise: noise.clone(), gating: Gating::Torch };
            SineCode::<f64>::new(shape, waves, &normals(7), Some(&gate))
        };
        let (sine, noise) = (make(&values), gate_noise.clone());
        let gradient = move |d: &[f64]| {
            let waves = Waves { freqs: &values[0], offsets: &values[1], gains: &values[2] };
            let gate = CodeGate { values: &values[3], noise: noise.clone(), gating: Gating::Torch };
            let found = make(&values).gradient(waves, Some(&gate), d);
            vec![found.freqs, found.offsets, found.gains, found.gate]
        };
        (Box::new(sine), Box::new(gradient))
    });
    let noise = random(heads * d * r, 3);
    check(vec![random(heads * d * 6, 20), random(heads * d * 6, 21), random(heads * d, 22)], &move |values| {
        let shape = ConvShape { heads, head_dim: d, realisations: r, taps: vec![2, 3], size: vec![9, 8] };
        let (values, noise) = (values.to_vec(), noise.clone());
        let make = move |values: &[Vec<f64>]| {
            let gate = CodeGate { values: &values[2], noise: noise.clone(), gating: Gating::Jax };
            let filters = Filters { query: &values[0], key: &values[1] };
            let conv = ConvCode::<f64>::new(shape.clone(), filters, normals(8), Some(&gate));
            let found = move |values: &[Vec<f64>], d: &[f64], conv: &ConvCode<f64>| {
                let gate = CodeGate { values: &values[2], noise: noise.clone(), gating: Gating::Jax };
                conv.gradient(Filters { query: &values[0], key: &values[1] }, Some(&gate), d)
            };
            (conv, found)
        };
        let (conv, found) = make(&values);
        let copy = conv.clone();
        let gradient = move |d: &[f64]| {
            let found = found(&values, d, &copy);
            vec![found.query, found.key, found.gate]
        };
        (Box::new(conv), Box::new(gradient))
    });
}

/// A code of sinusoids maps rows, forward and backward, as the code that it makes does.
#[test]
fn rows_are_mapped_as_by_the_code_that_is_made() {
    let (heads, d, r, rows) = (2, 19, 5, 100);
    let values = [0, 1, 2].map(|seed| random(heads * d * 3, seed));
    let waves = Waves { freqs: &values[0], offsets: &values[1], gains: &values[2] };
    let gates = random(heads * d, 3);
    let gate = CodeGate { values: &gates, noise: random(heads * d * r, 4), gating: Gating::Torch };
    let cut = |width: usize, seed| {
        let mut all = random(rows * padded(width), seed);
        all.chunks_exact_mut(padded(width)).for_each(|row| row[width..].fill(0.0));
        all
    };
    let (x, d_y) = (cut(d, 5), cut(r, 6));
    for gate in [None, Some(&gate)] {
        let shape = SineShape { heads, head_dim: d, waves: 3, realisations: r };
        let sine = SineCode::<f64>::new(shape, waves, &normals(7), gate).counted_from(50.0);
        for side in [RowKind::Query, RowKind::Key] {
            let place = RowRange { side, batch: 0, head: 1, first: 11, rows };
            let [mut y, mut d_x, mut own] = [rows * padded(r), x.len(), FeatureMap::<f64>::parameters(&sine)]
                .map(|size| [vec![0.0; size], vec![0.0; size]]);
            let mut room = vec![f64::NAN; FeatureMap::<f64>::room(&sine)];
            sine.forward(place, &x, &mut y[0], &mut room);
            contract::rows(&sine, place, &x, &mut y[1]);
            for at in [0, 1] {
                let of_rows = FeatureMapSaved { x: &x, y: &[], d_y: &d_y };
                let gradients = FeatureMapGradients { d_x: &mut d_x[at], d_parameters: &mut own[at] };
                match at {
                    0 => sine.backward(place, of_rows, &mut room, gradients),
                    _ => contract::rows_backward(&sine, place, of_rows, gradients),
                }
            }
            for [rows, made] in [&y, &d_x, &own] {
                let size = made.iter().fold(0.0f64, |size, x| size.max(x.abs()));
                let off = rows.iter().zip(made).fold(0.0f64, |off, (a, b)| off.max((a - b).abs()));
                assert!(off <= 1e-12 * size, "{side:?} {off} of {size}");
            }
        }
    }
}

#[test]
fn noise_at_a_place_is_always_the_same() {
    let noise = normals(1);
    let all = noise.rows(3, 0, [20, 5]);
    assert_eq!(noise.rows(3, 7, [4, 5]), all[35..55]);
    assert_ne!(noise.rows(4, 0, [20, 5]), all);
    let table = Normals::Table(NoiseTable { values: all.clone(), rows: 10, width: 5 });
    assert_eq!(table.rows(1, 2, [3, 5]), all[60..75]);
}

#[test]
fn codes_do_not_depend_on_how_rows_are_cut() {
    let conv = {
        let shape = ConvShape { heads: 1, head_dim: 3, realisations: 4, taps: vec![3, 2, 4], size: vec![9, 3, 5] };
        let (query, key) = (random(3 * 24, 1), random(3 * 24, 2));
        ConvCode::<f64>::new(shape, Filters { query: &query, key: &key }, normals(2), None)
    };
    let x = random(100 * padded(3), 3);
    let x: Vec<f64> = x.iter().enumerate().map(|(at, x)| if at % padded(3) < 3 { *x } else { 0.0 }).collect();
    let (mut y, mut room) = (vec![0.0; 100 * padded(4)], vec![f64::NAN; conv.room()]);
    let place = RowRange { side: RowKind::Query, batch: 0, head: 0, first: 11, rows: 100 };
    conv.forward(place, &x, &mut y, &mut room);
    let mut holding = conv.clone();
    holding.hold(10..120, usize::MAX);
    let mut of_held = vec![0.0; y.len()];
    holding.forward(place, &x, &mut of_held, &mut room);
    assert_eq!(y, of_held);
    for row in [0, 3, 4, 50, 99] {
        let alone = image(&conv, RowKind::Query, 0, 11 + row, &x[row * padded(3)..][..3]);
        let together = &y[row * padded(4)..][..4];
        assert!(alone.iter().zip(together).all(|(a, b)| (a - b).abs() < 1e-12), "{alone:?} {together:?}");
    }
}

/// The mean square of coordinate `i` of direction `i` of a block, of many draws.
fn own_squares(lengths: ColumnNorms) -> Vec<f64> {
    let (d, draws) = (8, 20_000);
    let mut sums = vec![0.0; d];
    for seed in 0..draws {
        let omega = omega::orthogonal([d, d], lengths, &mut stream_at(seed, Purpose::Noise, [0, 0]));
        sums.iter_mut().enumerate().for_each(|(i, sum)| *sum += omega[i * d + i].powi(2));
    }
    sums.into_iter().map(|sum| sum / draws as f64).collect()
}

#[test]
fn lengths_of_the_same_block_depend_on_directions_and_independent_ones_do_not() {
    // squares of a deviation of about 1.4: standard errors of 0.01
    let independent = own_squares(ColumnNorms::Drawn);
    assert!(independent.iter().all(|square| (square - 1.0).abs() < 0.05), "{independent:?}");
    let published = own_squares(ColumnNorms::OfRows);
    assert!((published[0] - 1.17).abs() < 0.05 && (published[7] - 0.82).abs() < 0.05, "{published:?}");
}

/// Deviation, and mean over the derivative of the mean, of what draws give as the gradient in a frequency: of the sum of
/// `weight_ij q_hat_i.k_hat_j` over a stretch of positions from `first` on.
fn frequency_gradient(first: usize, origin: Option<f64>) -> (f64, f64, f64) {
    const L: usize = 32;
    let (shape, draws) = (SineShape { heads: 1, head_dim: 3, waves: 2, realisations: 8 }, 400);
    let [d, wide, count] = [shape.head_dim, padded(shape.head_dim), shape.head_dim * shape.waves];
    let [freqs, offsets, gains] = [1, 2, 3].map(|seed| random(count, seed));
    let waves = Waves { freqs: &freqs, offsets: &offsets, gains: &gains };
    let rows =
        |seed| random(L * d, seed).chunks(d).flat_map(|row| [row, &vec![0.0; wide - d]].concat()).collect::<Vec<f64>>();
    let (x, weight) = ([rows(4), rows(5)], random(L * L, 6));
    let weight = |i: usize, j: usize| if j <= i { weight[i * L + j] } else { 0.0 };
    let place = |side| RowRange { side, batch: 0, head: 0, first, rows: L };
    let sides = [RowKind::Query, RowKind::Key];
    let one = |seed: u64| {
        let sine = SineCode::<f64>::new(shape, waves, &normals(seed), None);
        let sine = if let Some(origin) = origin { sine.counted_from(origin) } else { sine };
        let (r, mut room) = (padded(shape.realisations), vec![f64::NAN; FeatureMap::<f64>::room(&sine)]);
        let images = [0, 1].map(|side| {
            let mut y = vec![0.0; L * r];
            sine.forward(place(sides[side]), &x[side], &mut y, &mut room);
            y
        });
        let mut d_y = [vec![0.0; L * r], vec![0.0; L * r]];
        for (i, j) in (0..L).flat_map(|i| (0..=i).map(move |j| (i, j))) {
            for at in 0..r {
                d_y[0][i * r + at] += weight(i, j) * images[1][j * r + at];
                d_y[1][j * r + at] += weight(i, j) * images[0][i * r + at];
            }
        }
        let mut parameters = vec![0.0; FeatureMap::<f64>::parameters(&sine)];
        for side in [0, 1] {
            let rows = FeatureMapSaved { x: &x[side], y: &images[side], d_y: &d_y[side] };
            let gradients = FeatureMapGradients { d_x: &mut vec![0.0; L * wide], d_parameters: &mut parameters };
            sine.backward(place(sides[side]), rows, &mut room, gradients);
        }
        sine.gradient(waves, None, &parameters).freqs[1]
    };
    let found: Vec<f64> = (0..draws).map(one).collect();
    let mean = found.iter().sum::<f64>() / draws as f64;
    let deviation = (found.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / draws as f64).sqrt();
    // the kernel of feature 0 in the mean, and its derivative by differences
    let expected = |by: f64| {
        let mut moved = freqs.clone();
        moved[1] += by;
        let waves = Waves { freqs: &moved, ..waves };
        let pairs = (0..L).flat_map(|i| (0..=i).map(move |j| (i, j)));
        let pair = |(i, j): (usize, usize)| {
            weight(i, j) * x[0][i * wide] * x[1][j * wide] * waves.kernel(2, 0, (i - j) as f64)
        };
        (shape.realisations as f64 / d as f64).sqrt() * pairs.map(pair).sum::<f64>()
    };
    (deviation, mean, (expected(1e-5) - expected(-1e-5)) / 2e-5)
}

#[test]
fn a_frequency_gradient_counted_from_the_middle_does_not_grow_with_positions() {
    let plain = [0, 10_000, 1_000_000].map(|first| frequency_gradient(first, None));
    let centred = [0, 10_000, 1_000_000].map(|first| frequency_gradient(first, Some(first as f64 + 16.0)));
    for (deviation, mean, want) in plain.into_iter().chain(centred) {
        println!("deviation {deviation:.3e}, mean {mean:.3e} of {want:.3e}");
        // five standard errors of 400 draws
        assert!((mean - want).abs() < 5.0 * deviation / 20.0, "{mean} instead of {want}");
    }
    let [plain, centred] = [plain, centred].map(|all| all.map(|(deviation, ..)| deviation));
    // deviations of other phases of the same noise, within a few percent of 400 draws
    assert!((80.0..125.0).contains(&(plain[2] / plain[1])) && plain[1] > 100.0 * plain[0], "{plain:?}");
    assert!(centred.iter().all(|deviation| (0.75..1.3).contains(&(deviation / centred[0]))), "{centred:?}");
    assert!(centred[0] < 0.8 * plain[0], "{} {}", centred[0], plain[0]);
}
