//! Messages to users, on stdout and stderr.

use std::io::Write;

use super::failure::Failure;
use crate::format::printable;

/// Shows the user a message on stderr that is not part of the text.
pub(super) fn note(text: &str) {
    let lines: Vec<String> = text.split('\n').map(printable).collect();
    // If stderr is closed, the lines are lost.
    let _ = writeln!(std::io::stderr(), "{}", lines.join("\n"));
}

/// Warns the user on stderr.
pub(super) fn warn(text: &str) {
    note(&format!("leap: warning: {text}"));
}

/// Writes `text` to stdout; a reader that went away is not a failure.
pub(super) fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|e| stdout_failure(&e)),
    }
}

pub(super) fn stdout_failure(error: &std::io::Error) -> Failure {
    Failure::Runtime(format!("cannot write to stdout: {error}"))
}

/// A number with its noun: `1 token`, `2 tokens`.
pub(super) fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}
