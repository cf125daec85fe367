//! A kernel of your own: parsing it proves it; a wrong one is refused with the part and the reason.

use kerple_core::calculus::expr::Expr;
use kerple_core::calculus::report;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let kernel = Expr::parse("log(b, a) + 0.5*power(a~0.1, p=1)")?;
    println!("{}\n", kernel.derivation());
    for parameter in kernel.parameters() {
        println!("learned: {}", parameter.name);
    }
    let values = [1.0, 0.5, 0.1];
    println!("\nbias at distances 0, 1, 10, 1000: {:.3?}", [0.0, 1.0, 10.0, 1000.0].map(|d| kernel.at(&values, d)));

    println!("\n{}", report::check("log(1, 0.5)", "0..7")?);
    // |d|^p is no kernel for p > 2: there are points and weights that show it
    println!("{}", report::check("power(1, 2.5)", "0..7")?);
    let refused = Expr::parse("power(a, 1)*log(b, 1)").expect_err("a product of biases is no bias");
    println!("{refused}");
    Ok(())
}
