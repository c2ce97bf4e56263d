//! Log lines, on stderr.

use std::io::Write;

use log::{LevelFilter, Log, Metadata, Record};

use crate::format::printable;

struct Stderr;

/// Shows log lines of `level` and worse from now on.
pub(super) fn start(level: LevelFilter) {
    // If there is a logger, it belongs to a program around this library.
    if log::set_logger(&Stderr).is_ok() {
        log::set_max_level(level);
    }
}

impl Log for Stderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            // If stderr is closed, the line is lost.
            let _ = writeln!(std::io::stderr(), "{}", line(record));
        }
    }

    fn flush(&self) {}
}

/// The record in one printable line: it may contain strangers' text, and goes to a terminal.
fn line(record: &Record<'_>) -> String {
    let message = record.args().to_string();
    format!("{:<5} [{}] {}", record.level(), record.target(), printable(&message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_line_that_does_nothing_to_the_terminal() {
        let shown = line(
            &Record::builder()
                .level(log::Level::Warn)
                .target("leap::ring")
                .args(format_args!("node \x1b[31mevil\nERROR [leap] all is lost"))
                .build(),
        );
        let wanted = r"WARN  [leap::ring] node \u{1b}[31mevil\nERROR [leap] all is lost";
        assert_eq!(shown, wanted);
    }
}
