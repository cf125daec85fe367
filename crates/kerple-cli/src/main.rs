//! The `kerple` command.
fn main() {}
