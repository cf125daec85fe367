//! Lists the space of a search and times it: `cargo run --release -p kerple-fit --example space -- 2 1024 log,power,exp`.

use kerple_fit::space::{Space, SpaceOptions, bases};
use std::time::Instant;

fn main() -> kerple_run::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let size = arguments.next().and_then(|size| size.parse().ok()).unwrap_or(2);
    let length = arguments.next().and_then(|length| length.parse().ok()).unwrap_or(1024);
    let bases = bases(&arguments.next().unwrap_or_else(|| "log,power,exp".to_owned()))?;
    let began = Instant::now();
    let mut last = String::new();
    let space =
        Space::new(&SpaceOptions { bases, size, length, unproven: false }, &["log(b, a)"], &mut |line| last = line)?;
    for expression in &space.expressions {
        println!("{}  {}: {}", expression.size, expression.expression, expression.class);
    }
    for merged in &space.merged {
        println!("  {} is {}", merged.expression, merged.kept);
    }
    println!(
        "{:?}\n{last}\n{} expressions in {:.1} s",
        space.counts,
        space.expressions.len(),
        began.elapsed().as_secs_f64()
    );
    Ok(())
}
