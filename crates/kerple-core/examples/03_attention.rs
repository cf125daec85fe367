//! Exact attention with a table, by its definition and in tiles: the same output, and the same gradient of the table.

use kerple_core::attention::{
    self, AttentionDims, AttentionGradients, AttentionProblem, AttentionSaved, ScoreTransform, Strides, View, ViewMut,
    naive,
};

const HEADS: usize = 2;
const LEN: usize = 300;
const DIM: usize = 16;

fn numbers(seed: usize) -> Vec<f64> {
    (0..HEADS * LEN * DIM).map(|n| ((n * 37 + seed * 101) as f64).sin()).collect() // [B = 1, H, L, D]
}

/// Output and gradient of the bias table, by the definition or the engine for its scores.
macro_rules! run {
    ($engine:ident, $problem:expr) => {{
        let strides = Strides { batch: HEADS * LEN * DIM, head: LEN * DIM, row: DIM };
        let [q, k, v, d_out] = [0, 1, 2, 3].map(numbers);
        let [q, k, v, d_out] = [&q, &k, &v, &d_out].map(|data| View { data, strides });
        let (mut out, mut lse) = (vec![0.0; HEADS * LEN * DIM], vec![0.0; HEADS * LEN]);
        $engine::forward(&$problem, q, k, v, ViewMut::new(&mut out, strides), &mut lse);
        let mut d = vec![vec![0.0; HEADS * LEN * DIM]; 3];
        let [d_q, d_k, d_v] = d.as_mut_slice() else { unreachable!() };
        let mut d_bias = vec![0.0; HEADS * LEN]; // as small as the table: no [L, L] matrix anywhere
        let gradients = AttentionGradients {
            d_bias: Some(&mut d_bias),
            ..AttentionGradients::of_rows(
                ViewMut::new(d_q, strides),
                ViewMut::new(d_k, strides),
                ViewMut::new(d_v, strides),
            )
        };
        let saved = AttentionSaved { q, k, v, out: View { data: &out, strides }, lse: &lse, d_out };
        $engine::backward(&$problem, saved, gradients);
        (out, d_bias)
    }};
}

fn main() {
    let bias: Vec<f64> = (0..HEADS * LEN).map(|n| -((n % LEN) as f64).ln_1p()).collect(); // [H, L]
    let dims = AttentionDims {
        batch: 1,
        heads: HEADS,
        kv_heads: HEADS,
        queries: LEN,
        keys: LEN,
        head_dim: DIM,
        value_dim: DIM,
    };
    let scale = (DIM as f64).sqrt().recip();
    let problem = AttentionProblem {
        scores: ScoreTransform::table(Some(&bias), None, LEN),
        ..AttentionProblem::causal(dims, scale)
    };
    let (definition, fast) = (run!(naive, problem), run!(attention, problem));
    let worst = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    println!("largest difference of outputs          {:.1e}", worst(&definition.0, &fast.0));
    println!("largest difference of bias gradients   {:.1e}", worst(&definition.1, &fast.1));
    println!("gradient of head 0 at distances 0..4   {:.4?}", &fast.1[..4]);
    assert!(worst(&definition.0, &fast.0) < 1e-12 && worst(&definition.1, &fast.1) < 1e-11);
}
