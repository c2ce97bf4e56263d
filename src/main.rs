//! The `leap` program: one binary, one command per applet.

use std::process::ExitCode;

use leap::internals::sys::heap::Heap;

#[global_allocator]
static HEAP: Heap = Heap;

fn main() -> ExitCode {
    leap::internals::cli::main(std::env::args_os())
}
