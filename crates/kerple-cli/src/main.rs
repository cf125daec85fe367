//! The program `kerple`.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: kerple_cli::Counted = kerple_cli::Counted;

fn main() -> ExitCode {
    let program = std::env::current_exe().unwrap_or_else(|_| "kerple".into());
    kerple_cli::run(program, std::env::args_os().skip(1).collect()).into()
}
