//! The `leap` program: one binary, one command per applet.

use std::process::ExitCode;

fn main() -> ExitCode {
    leap::cli::main(std::env::args_os())
}
