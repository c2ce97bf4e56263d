//! Log lines, on stderr.

use std::io::Write;

use log::{Level, LevelFilter, Log, Metadata, Record};

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

/// The record in one printable line: it may contain strangers' text, and goes to a terminal. Warnings are for
/// users, and look like other messages; what `LEAP_LOG` adds names its level and module.
fn line(record: &Record<'_>) -> String {
    let message = printable(&record.args().to_string());
    match record.level() {
        Level::Error => format!("leap: {message}"),
        Level::Warn => format!("leap: warning: {message}"),
        level => format!("{level:<5} [{}] {message}", record.target()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_line_that_does_nothing_to_the_terminal() {
        let shown = |level| {
            let mut record = Record::builder();
            record.level(level).target("leap::ring");
            line(&record.args(format_args!("node \x1b[31mevil\nleap: all is lost")).build())
        };
        let evil = r"node \u{1b}[31mevil\nleap: all is lost";
        assert_eq!(shown(Level::Warn), format!("leap: warning: {evil}"));
        assert_eq!(shown(Level::Info), format!("INFO  [leap::ring] {evil}"));
    }
}
