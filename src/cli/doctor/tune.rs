//! `--fix` and `--undo`: runs the script `leap-tune`, which is part of the program.

use std::process::{Command, Stdio};

use crate::cli::{Failure, note};
use crate::sys::tree::Tree;

const SCRIPT: &str = include_str!("../../../images/common/leap-tune");

/// Runs `leap-tune` with `command`, and shows what it does.
pub(super) fn run(tree: &Tree, command: &str) -> Result<(), Failure> {
    let ran = Command::new("sh")
        .args(["-c", SCRIPT, "leap-tune", command])
        .env("LEAP_SYS", tree.path("sys"))
        .env("LEAP_PROC", tree.path("proc"))
        .env("LEAP_TUNE_STATE", tree.path("run/leap-tune"))
        .env("LEAP_TUNE_STOP", "leap doctor --undo")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output();
    let ran = ran.map_err(|e| Failure::Runtime(format!("cannot run sh: {e}")))?;
    String::from_utf8_lossy(&ran.stdout).lines().for_each(note);
    match ran.status.success() {
        true => Ok(()),
        false => Err(Failure::Runtime("nothing is changed".to_owned())),
    }
}
