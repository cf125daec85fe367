//! Every fused operation equals its reference, in the output and in every gradient, and passes finite differences.

use crate::common::{
    PASS, Randomize, ToDouble, ToSingle, assert_close, assert_slopes, device, init, random, rng, run, values,
};
use burn::module::{Module, Param};
use burn::tensor::{DType, Tensor, TensorData};
use kerple_burn::attention_context::{AttentionBias, AttentionMask, ScoreContext};
use kerple_burn::heads::Heads;
use kerple_burn::implementation::Impl;
use kerple_burn::layers::{Norm, SelfAttention, normal_matrix};
use kerple_burn::ops::ResidualBase;
use kerple_burn::ops::attention::attention;
use kerple_burn::ops::content_rotation::by_increments;
use kerple_burn::ops::embedding::embed;
use kerple_burn::ops::loss::{self, LmHeadTensors, LossTargets, losses};
use kerple_burn::parameters::without_autodiff;
use kerple_burn::plan::{BlockConfig, BlockSizes, NormKind, SinkKind};
use kerple_burn::positional_encoding::PositionalEncoding;
use kerple_core::encoding::{Encoding, Geometry, METHODS, Method};
use kerple_core::forms::Mask;
use rand::RngExt;

/// A layer that holds an encoding, so that the tables' gradients reach its parameters.
#[derive(Module, Debug)]
struct Both {
    attention: SelfAttention,
    encoding: PositionalEncoding,
}

#[test]
fn attention_layers_equal_their_reference_for_every_encoding() {
    let mut rng = rng(1);
    // codes of queries and keys are for linear attention, see tests/linear.rs
    for (n, kind) in METHODS.iter().filter(|kind| !kind.ends_with("_spe")).enumerate() {
        let (heads, head_dim, batch, len) = ([1, 2, 3][n % 3], [4, 6][n % 2], 2, [1, 5, 33][n % 3]);
        let (width, geometry) = (heads * head_dim, Geometry::new(heads, head_dim, 64));
        let encoding = Encoding { window: (n % 2 == 1).then_some(7), ..Encoding::from(Method::named(kind).unwrap()) };
        let encoding = PositionalEncoding::new(&encoding, &geometry, 1, 3, &device()).map(&mut ToDouble);
        let sizes = BlockSizes { d_model: width, n_heads: heads, head_dim, d_hidden: 1 };
        let attention = SelfAttention::new(&BlockConfig::default(), &sizes, 0, &mut init(&mut rng, &device()));
        let both = Both { attention: attention.map(&mut Randomize(&mut rng)), encoding };
        let (x, up) = (random([batch, len, width], &mut rng), random([batch, len, width], &mut rng));
        let by = |implementation: Impl| {
            run(&both, &x, &up, |both, x| {
                let positions =
                    both.encoding.attention_context(0, [len, len], (&device(), DType::F64), implementation, &PASS);
                both.attention.forward(x, ResidualBase::Input, &positions, implementation)
            })
        };
        assert_close(&by(Impl::Kernel), &by(Impl::Reference), kind);
    }
}

/// Outside of training, heads of a long sequence are worked off a few at a time.
#[test]
fn long_sequences_have_the_bits_of_training() {
    // two parts, of four heads and of three, and two spans of rows
    let (sizes, len) = (BlockSizes { d_model: 8, n_heads: 7, head_dim: 480, d_hidden: 1 }, 2100);
    let geometry = Geometry { d_model: sizes.d_model, ..Geometry::new(sizes.n_heads, sizes.head_dim, 64) };
    for (kind, sink) in [("kerple_bias_weight", SinkKind::Learned), ("rotary", SinkKind::None)] {
        let mut rng = rng(4);
        let plan = BlockConfig { sink, ..BlockConfig::default() };
        let attention = SelfAttention::new(&plan, &sizes, 0, &mut init(&mut rng, &device()));
        let encoding = Encoding::from(Method::named(kind).unwrap());
        let encoding = PositionalEncoding::new(&encoding, &geometry, 1, 3, &device()).map(&mut ToDouble);
        let both = Both { attention: attention.map(&mut Randomize(&mut rng)), encoding }.map(&mut ToSingle);
        let x = random([1, len, sizes.d_model], &mut rng).cast(DType::F32);
        let forward = |both: &Both, x: Tensor<3>| {
            let (device, implementation) = (x.device(), Impl::Kernel);
            let positions =
                both.encoding.attention_context(0, [len, len], (&device, DType::F32), implementation, &PASS);
            both.attention.forward(x, ResidualBase::Input, &positions, implementation).into_data()
        };
        assert!(forward(&both, x.clone()) == forward(&without_autodiff(&both), x.inner()), "{kind}");
    }
}

/// What becomes an operation's output stays as it is where others hold it, and so does a gradient.
#[test]
fn what_others_hold_is_not_changed_in_place() {
    let (mut rng, heads) = (rng(5), Heads::square(2, 2, 4));
    let [x, other, up] = [(); 3].map(|()| random([2, 5, heads.packed()], &mut rng));
    let (x, other, increments) = (x.require_grad(), other.require_grad(), random([2, 5, 4], &mut rng).require_grad());
    let mask = AttentionMask::from(Mask::CAUSAL);
    let by = |x: Tensor<3>, implementation| by_increments(x, increments.clone(), heads, &mask, implementation);
    let before = values(&x);
    let y = by(x.clone(), Impl::Kernel);
    assert_eq!(values(&x), before);
    // both of a sum get one gradient
    let gradients = ((y.clone() + other.clone()) * up.clone()).sum().backward();
    assert_eq!(values(&other.grad(&gradients).unwrap()), values(&up));
    let expected = (by(x.clone(), Impl::Reference) * up).sum().backward();
    for (found, expected) in [&x, &increments].map(|of| (of.grad(&gradients).unwrap(), of.grad(&expected).unwrap())) {
        let pairs = values(&found).into_iter().zip(values(&expected));
        pairs.for_each(|(found, expected)| assert!((found - expected).abs() < 1e-12, "{found} {expected}"));
    }
}

/// A head of its own.
#[derive(Module, Debug)]
struct Output {
    norm: Norm,
    weight: Param<Tensor<2>>,
    table: Param<Tensor<2>>,
    tied: bool,
    bias: Option<Param<Tensor<1>>>,
}

impl Output {
    fn new(norm: NormKind, [width, vocab]: [usize; 2], tied: bool, biased: bool) -> Output {
        let (mut rng, device) = (rng(3), device());
        let plan = BlockConfig { norm, ..BlockConfig::default() };
        let mut init = init(&mut rng, &device);
        let norm = Norm::new(&plan, width, &mut init);
        let weight = normal_matrix(if tied { [vocab, width] } else { [width, vocab] }, 1.0, &mut init);
        let table = normal_matrix([vocab, width], 1.0, &mut init);
        let bias = biased.then(|| init.zeros(vocab));
        Output { norm, weight, table, tied, bias }.map(&mut Randomize(&mut rng))
    }

    fn head(&self) -> LmHeadTensors {
        let bias = self.bias.as_ref().map(Param::val);
        LmHeadTensors { norm: self.norm.tensors(), weight: self.weight.val(), tied: self.tied, bias }
    }
}

#[test]
fn losses_and_embeddings_equal_their_reference() {
    let mut rng = rng(4);
    let (batch, len, width, vocab) = (2, 9, 6, 11);
    let ids: Vec<u32> = (0..batch * len).map(|_| rng.random_range(0..vocab as u32)).collect();
    let mut targets: Vec<u32> = (0..batch * len).map(|_| rng.random_range(0..vocab as u32)).collect();
    let mut scored: Vec<bool> = (0..batch * len).map(|_| rng.random()).collect();
    (scored[3], scored[4]) = (false, true);
    let (x, up, one) =
        (random([batch, len, width], &mut rng), random([batch, len, 1], &mut rng), random([1, 1, 1], &mut rng));
    let kinds = [NormKind::Layer, NormKind::LayerNoBias, NormKind::Rms];
    for (norm, tied, masked) in kinds.into_iter().flat_map(|n| [(n, false, false), (n, true, true), (n, false, true)]) {
        let (output, what) = (Output::new(norm, [width, vocab], tied, masked), format!("{norm:?} {tied} {masked}"));
        // what is not scored need not be in the vocabulary
        targets[3] = if masked { u32::MAX } else { 0 };
        let targets = LossTargets { ids: &targets, scored: masked.then_some(&scored[..]) };
        let input = |output: &Output, x: Tensor<3>, implementation| {
            x + embed(output.table.val(), &ids, [batch, len], implementation)
        };
        let each = |output: &Output, x: Tensor<3>, implementation: Impl| {
            losses(input(output, x, implementation), output.head(), targets, implementation).reshape([batch, len, 1])
        };
        let [fused, reference] = [Impl::Kernel, Impl::Reference].map(|e| run(&output, &x, &up, |o, x| each(o, x, e)));
        assert_close(&fused, &reference, &what);
        assert_slopes(&output, &x, &up, |o, x| each(o, x, Impl::Kernel), &fused, 1e-4, &what);
        let hidden = fused[0].iter().zip(&scored).filter(|(_, scored)| masked && !**scored);
        assert!(hidden.into_iter().all(|(loss, _)| *loss == 0.0), "{what}");

        let share = loss::mean_share(targets);
        let mean = |output: &Output, x: Tensor<3>, implementation: Impl| {
            loss::loss(input(output, x, implementation), output.head(), targets, share, implementation)
                .reshape([1, 1, 1])
        };
        let [fused, reference] = [Impl::Kernel, Impl::Reference].map(|e| run(&output, &x, &one, |o, x| mean(o, x, e)));
        assert_close(&fused, &reference, &what);
        assert_slopes(&output, &x, &one, |o, x| mean(o, x, Impl::Kernel), &fused, 1e-4, &what);
    }
}

#[test]
fn nothing_scored_is_no_loss() {
    let output = Output::new(NormKind::Layer, [6, 11], false, true);
    let (scored, mut rng) = ([false; 4], rng(5));
    let targets = LossTargets { ids: &[0; 4], scored: Some(&scored) };
    assert_eq!(loss::mean_share(targets), 0.0);
    let (x, one) = (random([1, 4, 6], &mut rng), random([1, 1, 1], &mut rng));
    for implementation in [Impl::Kernel, Impl::Reference] {
        let f = |o: &Output, x| loss::loss(x, o.head(), targets, 0.0, implementation).reshape([1, 1, 1]);
        let all = run(&output, &x, &one, f);
        assert!(all.iter().flatten().all(|value| *value == 0.0), "{implementation:?}");
    }
}

#[test]
fn attention_gradients_pass_finite_differences() {
    let mut rng = rng(4);
    let (heads, kv_heads, queries, keys, d) = (4, 2, 5, 8, 3);
    let tables = [(), ()].map(|()| random([heads, keys], &mut rng).require_grad());
    let positions = |[bias, weight]: [Tensor<2>; 2]| ScoreContext {
        bias: AttentionBias::Table { bias: Some(bias), weight: Some(weight) },
        ..ScoreContext::default()
    };
    let q = random([1, heads, queries, d], &mut rng).require_grad();
    let k = random([1, kv_heads, keys, d], &mut rng).require_grad();
    let v = random([1, kv_heads, keys, d], &mut rng).require_grad();
    let up = random([1, heads, queries, d], &mut rng);
    let loss = |q: &Tensor<4>, k: &Tensor<4>, v: &Tensor<4>, tables: &[Tensor<2>; 2], implementation| {
        let positions = positions(tables.clone());
        (attention(q.clone(), k.clone(), v.clone(), 0.7, &positions, implementation) * up.clone()).sum()
    };
    let found = |implementation| {
        let gradients = loss(&q, &k, &v, &tables, implementation).backward();
        let own = [&q, &k, &v].map(|tensor| values(&tensor.grad(&gradients).unwrap()));
        let of_tables = tables.each_ref().map(|table| values(&table.grad(&gradients).unwrap()));
        own.into_iter().chain(of_tables).collect::<Vec<_>>()
    };
    let fused = found(Impl::Kernel);
    assert_close(&fused, &found(Impl::Reference), "attention");
    let step = 1e-6;
    for (which, gradient) in fused.iter().enumerate() {
        for (at, analytic) in gradient.iter().enumerate() {
            let moved_tensor = |values: Vec<f64>, by: f64| {
                let mut values = values;
                values[at] += by;
                values
            };
            let at_moved = |by: f64| {
                let four = |t: &Tensor<4>, is: bool| {
                    if !is {
                        return t.clone();
                    }
                    let data = TensorData::new(moved_tensor(values(t), by), t.dims());
                    Tensor::<4>::from_data(data, (&device(), DType::F64))
                };
                let two = |t: &Tensor<2>, is: bool| {
                    let values = if is { moved_tensor(values(t), by) } else { values(t) };
                    Tensor::<2>::from_data(TensorData::new(values, t.dims()), (&device(), DType::F64))
                };
                let tables = [two(&tables[0], which == 3), two(&tables[1], which == 4)];
                let (q, k, v) = (four(&q, which == 0), four(&k, which == 1), four(&v, which == 2));
                loss(&q, &k, &v, &tables, Impl::Kernel).into_scalar::<f64>()
            };
            let numeric = (at_moved(step) - at_moved(-step)) / (2.0 * step);
            // differences at 1e-6 of a sum of order 1 lose about 1e-10
            assert!((numeric - analytic).abs() < 1e-8, "input {which}, [{at}]: {numeric} {analytic}");
        }
    }
}
