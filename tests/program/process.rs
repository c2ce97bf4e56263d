//! LEAP as a process: its streams, and its exit code.

use std::process::{Output, Stdio};

use crate::common::leap;

fn run(args: &[&str]) -> Output {
    leap().args(args).stdin(Stdio::null()).output().expect("the built program starts")
}

#[test]
fn help_goes_to_stdout_and_succeeds() {
    let output = run(&["--help"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("run"), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn bad_usage_is_told_on_stderr_with_exit_code_2() {
    for args in [&["no-such-command"][..], &["run", "--no-such-option"]] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
        assert!(output.stdout.is_empty(), "{args:?}: {output:?}");
        assert!(!output.stderr.is_empty(), "{args:?}: {output:?}");
    }
}
