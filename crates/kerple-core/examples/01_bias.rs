//! A positional bias is a table over distances: one row a head. Here as numbers, then as bars.

use kerple_core::encoding::{Encoding, Geometry, Method};

fn main() {
    let geometry = Geometry::new(4, 64, 64);
    let encoding = Encoding::from(Method::named("kerple_log").expect("a name that `METHODS` lists"));
    let values = encoding.initial(&geometry, 1); // [r1, r2], a value a head each
    for (parameter, values) in encoding.parameters(&geometry).iter().zip(&values) {
        println!("{:<3} {values:.3?}", parameter.name);
    }
    let len = 64;
    let bias = encoding.table(&geometry, &values, len).bias.expect("KERPLE adds to scores"); // [H, L]
    println!("\nhead 0 adds {:.2?} ... to a score at distances 0 to 4\n", &bias[..5]);
    println!("what two heads add, a bar for every fourth distance (`kerple describe kerple_log` draws all)\n");
    let lowest = bias.iter().copied().fold(0.0, f64::min);
    for distance in (0..len).step_by(4) {
        let bar = |head: usize| "#".repeat((30.0 * bias[head * len + distance] / lowest).round() as usize);
        println!("{distance:>3}  {:<30}  {:<30}", bar(0), bar(1));
    }
}
