//! The program `kerple`.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: kerple::CountingAllocator = kerple::CountingAllocator;

fn main() -> ExitCode {
    let program = std::env::current_exe().unwrap_or_else(|_| "kerple".into());
    kerple::run(program, std::env::args_os().skip(1).collect()).into()
}
