//! Rotary embeddings turn q and k by their positions; what is left in their product is the distance.

use kerple_core::attention::Strides;
use kerple_core::encoding::{Encoding, Geometry, Method};
use kerple_core::ops::rotary::{Angles, Rotated, Turn, rotate};

fn main() {
    let geometry = Geometry::new(1, 8, 64);
    let encoding = Encoding::from(Method::named("rotary").expect("a name that `METHODS` lists"));
    let rotary = encoding.rotary(&geometry, 0).expect("this method rotates");
    println!("radians a position: {:.4?}\n", rotary.inv_freq);

    let q: Vec<f64> = (0..8).map(|n| f64::from(n).sin()).collect();
    let k: Vec<f64> = (0..8).map(|n| f64::from(n).cos()).collect();
    let at = |x: &[f64], position: usize| {
        let (cos, sin) = rotary.tables([position]);
        let mut turned = x.to_vec();
        let angles = Angles { cos: &cos, sin: &sin, pairs: 4 };
        let one_row = (Strides { batch: 8, head: 8, row: 8 }, Rotated { batch: 1, len: 1, heads: 1 });
        rotate(&mut turned, one_row.0, one_row.1, angles, Turn::Forward);
        turned
    };
    let score = |i, j| at(&q, i).iter().zip(at(&k, j)).map(|(q, k)| q * k).sum::<f64>();
    println!("    i      j  distance      q.k");
    for (i, j) in [(3, 0), (13, 10), (1_000_003, 1_000_000), (4, 0), (14, 10)] {
        println!("{i:>7} {j:>7} {:>6} {:>12.9}", i - j, score(i, j));
    }
    assert!((score(3, 0) - score(1_000_003, 1_000_000)).abs() < 1e-8, "only the distance matters");
}
