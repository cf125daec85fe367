//! Every fused operation equals its composed definition, in the output and in every gradient, and passes finite differences.

use burn::module::Module;
use burn::tensor::{DType, Device, Tensor, TensorData};
use kerple::encoding::{Encoding, Geometry, METHODS, Method};
use kerple_burn::composed;
use kerple_burn::layers::{self, Attention, LayerNorm, Mlp};
use kerple_burn::parameters;
use kerple_burn::positions::{PositionalEncoding, Positions};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn device() -> Device {
    Device::flex().autodiff()
}

fn random<const D: usize>(shape: [usize; D], rng: &mut ChaCha8Rng) -> Tensor<D> {
    let values: Vec<f64> = (0..shape.iter().product()).map(|_| rng.random::<f64>() * 2.0 - 1.0).collect();
    Tensor::from_data(TensorData::new(values, shape), (&device(), DType::F64))
}

fn values<const D: usize>(tensor: &Tensor<D>) -> Vec<f64> {
    tensor.clone().into_data().iter::<f64>().collect()
}

/// The module with its parameters replaced by random f64 values.
struct Randomize<'a>(&'a mut ChaCha8Rng);

impl burn::module::ModuleMapper for Randomize<'_> {
    fn map_float<const D: usize>(&mut self, param: burn::module::Param<Tensor<D>>) -> burn::module::Param<Tensor<D>> {
        param.map(|tensor| (random(tensor.dims(), self.0) * 0.5).detach().require_grad())
    }
}

/// Output, gradient in the input and in every parameter of `loss = sum(output * up)`.
fn run<M: Module>(module: &M, x: &Tensor<3>, up: &Tensor<3>, f: impl Fn(Tensor<3>) -> Tensor<3>) -> Vec<Vec<f64>> {
    let x = x.clone().detach().require_grad();
    let out = f(x.clone());
    let mut gradients = (out.clone() * up.clone()).sum().backward();
    let mut all = vec![values(&out), values(&x.grad(&gradients).unwrap())];
    all.extend(parameters::gradients(module, &mut gradients).iter().map(|g| values(g.as_ref().unwrap())));
    all
}

fn assert_close(fused: &[Vec<f64>], composed: &[Vec<f64>], what: &str) {
    assert_eq!(fused.len(), composed.len());
    for (at, (a, b)) in fused.iter().zip(composed).enumerate() {
        assert_eq!(a.len(), b.len(), "{what} {at}");
        let largest = b.iter().fold(1e-3f64, |m, x| m.max(x.abs()));
        let error = a.iter().zip(b).fold(0f64, |m, (a, b)| m.max((a - b).abs()));
        // f64 sums of up to a thousand terms in another order
        assert!(error <= 1e-12 * largest, "{what}, value {at}: {error:e} of {largest:e}");
    }
}

fn geometry(heads: usize, head_dim: usize) -> Geometry {
    Geometry { heads, head_dim, train_len: 64 }
}

/// A layer that holds an encoding, so that the tables' gradients reach its parameters.
#[derive(Module, Debug)]
struct Both {
    attention: Attention,
    encoding: PositionalEncoding,
}

fn positions(encoding: &PositionalEncoding, len: usize) -> Positions {
    encoding.positions(len, len, (&device(), DType::F64))
}

#[test]
fn attention_layers_equal_their_definition_for_every_encoding() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for (n, kind) in METHODS.iter().enumerate() {
        let (heads, head_dim, batch, len) = ([1, 2, 3][n % 3], [4, 6][n % 2], 2, [1, 5, 33][n % 3]);
        let encoding = Encoding { window: (n % 2 == 1).then_some(7), ..Encoding::from(Method::named(kind).unwrap()) };
        let encoding = PositionalEncoding::new(&encoding, &geometry(heads, head_dim), 3, &device());
        let encoding = encoding.map(&mut ToDouble);
        let width = heads * head_dim;
        let attention = Attention::new(width, heads, [0.1, 0.1], &mut rng, &device()).map(&mut Randomize(&mut rng));
        let mut both = Both { attention, encoding };
        if both.encoding.encoding().absolute(&geometry(heads, head_dim), 0..1).is_some() {
            both.encoding.values.clear(); // its rows enter before attention
        }
        let (x, up) = (random([batch, len, width], &mut rng), random([batch, len, width], &mut rng));
        let fused = run(&both, &x, &up, |x| both.attention.forward(x, &positions(&both.encoding, len)));
        let composed = run(&both, &x, &up, |x| both.attention.composed(x, &positions(&both.encoding, len)));
        assert_close(&fused, &composed, kind);
    }
}

struct ToDouble;

impl burn::module::ModuleMapper for ToDouble {
    fn map_float<const D: usize>(&mut self, param: burn::module::Param<Tensor<D>>) -> burn::module::Param<Tensor<D>> {
        param.map(|tensor| {
            let data = TensorData::new(tensor.clone().into_data().iter::<f64>().collect::<Vec<_>>(), tensor.dims());
            Tensor::from_data(data, (&device(), DType::F64)).require_grad()
        })
    }
}

#[test]
fn feed_forward_layers_equal_their_definition() {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    for (batch, len, width, hidden) in [(1, 1, 3, 5), (2, 7, 8, 32), (3, 65, 12, 40)] {
        let mlp = Mlp::new(width, hidden, [0.1, 0.1], &mut rng, &device()).map(&mut Randomize(&mut rng));
        let (x, up) = (random([batch, len, width], &mut rng), random([batch, len, width], &mut rng));
        let fused = run(&mlp, &x, &up, |x| mlp.forward(x));
        let composed = run(&mlp, &x, &up, |x| mlp.composed(x));
        assert_close(&fused, &composed, "mlp");
    }
}

/// A head of its own.
#[derive(Module, Debug)]
struct Head {
    norm: LayerNorm,
    weight: burn::module::Param<Tensor<2>>,
    table: burn::module::Param<Tensor<2>>,
}

#[test]
fn losses_and_embeddings_equal_their_definition() {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let (batch, len, width, vocab) = (2, 9, 6, 11);
    let head = Head {
        norm: LayerNorm::new(width, &device()),
        weight: layers::normal_matrix([width, vocab], 1.0, &mut rng, &device()),
        table: layers::normal_matrix([vocab, width], 1.0, &mut rng, &device()),
    }
    .map(&mut Randomize(&mut rng));
    let ids: Vec<u32> = (0..batch * len).map(|_| rng.random_range(0..vocab as u32)).collect();
    let targets: Vec<u32> = (0..batch * len).map(|_| rng.random_range(0..vocab as u32)).collect();
    let shape = [batch, len];
    let (x, up) = (random([batch, len, width], &mut rng), random([batch, len, 1], &mut rng));
    let nll = |x: Tensor<3>, fused: bool| {
        let table = head.table.val();
        if fused {
            let x = x + layers::embed(table, &ids, shape);
            layers::cross_entropy(x, &head.norm, head.weight.val(), &targets)
        } else {
            let x = x + composed::embed(table, &ids, shape);
            composed::cross_entropy(head.norm.composed(x), head.weight.val(), &targets)
        }
    };
    let rows = |fused| run(&head, &x, &up, |x| nll(x, fused).reshape([batch, len, 1]));
    assert_close(&rows(true), &rows(false), "nll");

    let one = random([1, 1, 1], &mut rng);
    let mean = |fused: bool| {
        run(&head, &x, &one, |x| {
            let x = x + composed::embed(head.table.val(), &ids, shape);
            let mean = match fused {
                true => layers::mean_cross_entropy(x, &head.norm, head.weight.val(), &targets),
                false => composed::cross_entropy(head.norm.composed(x), head.weight.val(), &targets).mean(),
            };
            mean.reshape([1, 1, 1])
        })
    };
    assert_close(&mean(true), &mean(false), "mean loss");
}

#[test]
fn attention_gradients_pass_finite_differences() {
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    let (heads, queries, keys, d) = (2, 5, 8, 3);
    let tables = Positions {
        bias: Some(random([heads, keys], &mut rng).require_grad()),
        weight: Some(random([heads, keys], &mut rng).require_grad()),
        ..Positions::default()
    };
    let q = random([1, heads, queries, d], &mut rng).require_grad();
    let k = random([1, heads, keys, d], &mut rng).require_grad();
    let v = random([1, heads, keys, d], &mut rng).require_grad();
    let up = random([1, heads, queries, d], &mut rng);
    let loss = |q: &Tensor<4>, tables: &Positions| {
        (layers::attention(q.clone(), k.clone(), v.clone(), tables) * up.clone()).sum()
    };
    let gradients = loss(&q, &tables).backward();
    let step = 1e-6;
    let moved = |values: &[f64], at: usize, by: f64| {
        let mut values = values.to_vec();
        values[at] += by;
        values
    };
    let number = |tensor: Tensor<1>| tensor.into_scalar::<f64>();
    let d_q = values(&q.grad(&gradients).unwrap());
    for (at, analytic) in d_q.iter().enumerate() {
        let at_moved = |by| {
            let data = TensorData::new(moved(&values(&q), at, by), q.dims());
            number(loss(&Tensor::from_data(data, (&device(), DType::F64)), &tables))
        };
        let numeric = (at_moved(step) - at_moved(-step)) / (2.0 * step);
        // differences at 1e-6 of a sum of order 1 lose about 1e-10
        assert!((numeric - analytic).abs() < 1e-8, "q[{at}]: {numeric} {analytic}");
    }
    for weight in [false, true] {
        let table = if weight { &tables.weight } else { &tables.bias }.clone().unwrap();
        let d_table = values(&table.grad(&gradients).unwrap());
        for (at, analytic) in d_table.iter().enumerate() {
            let at_moved = |by| {
                let data = TensorData::new(moved(&values(&table), at, by), table.dims());
                let table = Some(Tensor::from_data(data, (&device(), DType::F64)));
                let mut tables = tables.clone();
                *(if weight { &mut tables.weight } else { &mut tables.bias }) = table;
                number(loss(&q, &tables))
            };
            let numeric = (at_moved(step) - at_moved(-step)) / (2.0 * step);
            assert!((numeric - analytic).abs() < 1e-8, "weight {weight} [{at}]: {numeric} {analytic}");
        }
    }
}
