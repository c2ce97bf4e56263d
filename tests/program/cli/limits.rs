//! Limits set by a shell: memory, stack, open files.

use std::process::{Command, Stdio};

use super::{DEMO, PROMPT, run};
use crate::common::ran::Ran;

/// Runs the program in a shell with these limits; `None` under an emulator, which would hit them itself.
fn limited(limits: &str, args: &[&str]) -> Option<Ran> {
    if std::env::var_os("LEAP_TEST_RUNNER").is_some_and(|runner| !runner.is_empty()) {
        return None;
    }
    let mut shell = Command::new("sh");
    let script = format!("ulimit -c 0; {limits}; exec \"$0\" \"$@\"");
    shell.args(["-c", &script, env!("CARGO_BIN_EXE_leap")]).args(args).stdin(Stdio::null());
    let output = shell.env("RUST_BACKTRACE", "0").output().unwrap();
    Some(Ran::new(output))
}

/// With the lowest limits the program does not load, with the highest it runs. Until the program's first message, the
/// loader or Rust's own start may end it.
#[test]
fn little_memory_gives_text_or_one_line() {
    let args = ["run", DEMO, "-p", PROMPT, "-n", "4", "--temp", "0", "-q", "--ctx", "512"];
    let free = run(&args).succeeds().out;
    let (mut answered, mut is_loaded) = (0, false);
    let small = (10_000..14_000).step_by(70);
    for kib in small.chain((14_000..40_000).step_by(700)).chain([60_000, 2_000_000]) {
        for cache in [&["--cache", "off"][..], &[]] {
            let limits = format!("ulimit -v {kib}");
            let Some(ran) = limited(&limits, &[&args, cache].concat()) else { return };
            match ran.code {
                Some(0) => {
                    assert_eq!(ran.out, free, "{kib} KiB");
                    answered += 1;
                }
                Some(1) => {
                    ran.fails(1, "");
                    is_loaded = true;
                }
                // Rust's library ends the program if a new thread gets no memory for its signal stack, glibc if it gets
                // none for the end of its variables.
                None if ran.err.contains("failed to allocate an alternative stack")
                    || ran.err.contains("Fatal glibc error") => {}
                _ => assert!(!is_loaded, "{kib} KiB: {ran:?}"),
            }
        }
    }
    assert!(is_loaded && answered > 1, "{answered}");
}

#[test]
fn a_link_server_that_gets_no_thread_says_so() {
    let mut is_loaded = false;
    for kib in (10_000..60_000).step_by(2000) {
        let args = ["bench", "--link", "self"];
        let Some(ran) = limited(&format!("ulimit -v {kib}"), &args) else { return };
        match ran.code {
            // The loader or the C library had no memory, and ended the program.
            None if !is_loaded || ran.err.starts_with("Fatal glibc error") => {}
            Some(127) => {}
            // Memory sufficed.
            Some(0) => is_loaded = true,
            _ => {
                // A new thread without memory for its signal stack prints a message first.
                let last = ran.err.lines().last().unwrap_or_default();
                assert!(ran.code == Some(1) && last.starts_with("leap: "), "{ran:?}");
                is_loaded = true;
            }
        }
    }
    assert!(is_loaded);
}

#[test]
fn small_stacks_give_text_or_one_line() {
    let args = ["run", DEMO, "-p", PROMPT, "-n", "4", "--temp", "0", "-q"];
    let free = run(&args).succeeds().out;
    for kib in [64, 128, 256, 512] {
        let Some(ran) = limited(&format!("ulimit -s {kib}"), &args) else { return };
        match ran.code {
            Some(0) => assert_eq!(ran.out, free, "{kib} KiB"),
            _ => ran.fails(1, "ulimit -s"),
        }
    }
}

#[test]
fn too_few_open_files_are_no_fault_of_the_model() {
    let args = ["run", DEMO, "-p", PROMPT, "-n", "4"];
    for n in [3, 4, 5, 6] {
        let Some(ran) = limited(&format!("ulimit -n {n}"), &args) else { return };
        assert!(matches!(ran.code, Some(0 | 1 | 127)), "{n} files: {ran:?}");
    }
    let context = ["--ctx", "1024", "--streams", "60000", "-q"];
    let ran = limited(
        "ulimit -v 500000",
        &["run", DEMO].iter().chain(&context).copied().collect::<Vec<_>>(),
    );
    let Some(ran) = ran else { return };
    ran.fails(1, "lower --ctx");
}
