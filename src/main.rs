//! The `leap` program: one binary with all commands.

use std::process::ExitCode;

use leap::internals::cli;
use leap::internals::sys::heap::Heap;

#[global_allocator]
static HEAP: Heap = Heap { message: cli::OUT_OF_MEMORY, exit_code: 1 };

fn main() -> ExitCode {
    cli::main(std::env::args_os())
}
