//! A positional bias is a table over distances: one row a head. Here as numbers, then as a picture.

use kerple::encoding::{Encoding, Geometry, Method};
use kerple::kernel::picture::{self, Plot, Series};

fn main() {
    let geometry = Geometry { heads: 4, head_dim: 64, train_len: 64 };
    let encoding = Encoding::from(Method::named("kerple_log").expect("a name that `METHODS` lists"));
    let values = encoding.initial(&geometry, 1); // [r1, r2], a value a head each
    for (parameter, values) in encoding.parameters(&geometry).iter().zip(&values) {
        println!("{:<3} {values:.3?}", parameter.name);
    }
    let len = 64;
    let bias = encoding.table(&geometry, &values, len).bias.expect("KERPLE adds to scores"); // [H, L]
    println!("\nhead 0 adds {:.2?} ... to a score at distances 0 to 4\n", &bias[..5]);
    let curve = |row: &[f64]| row.iter().enumerate().map(|(d, value)| (d as f64, *value)).collect();
    let series = bias.chunks(len).enumerate();
    let plot = Plot {
        title: "KERPLE-log as it starts".to_owned(),
        x_label: "distance d = i - j".to_owned(),
        y_label: "bias".to_owned(),
        series: series.map(|(head, row)| Series { name: format!("head {head}"), points: curve(row) }).collect(),
        ..Plot::default()
    };
    println!("{}", picture::text(&plot, 72, 16));
}
