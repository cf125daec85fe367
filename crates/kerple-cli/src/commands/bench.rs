//! `kerple bench`

use crate::args::Bench;
use crate::failure::{Failure, Outcome};

/// a
pub fn run(_args: &Bench) -> Outcome {
    Err(Failure::failed("not yet", "wait"))
}
