//! The reason why a command ended early, and its exit code.

use std::error::Error;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

#[cfg(feature = "tools")]
use crate::export::{Blame, ExportError};
use crate::format::printable;
use crate::sys::memory::is_shortage;
use crate::sys::signal;

/// A shell reports a program that a signal ended as this number plus the signal's.
const SIGNAL_BASE: u8 = 128;

/// Longest message in characters; the rest is cut off.
const MESSAGE_CHARS: usize = 2000;

/// A failure. Each kind has its exit code.
pub(super) enum Failure {
    /// A failure while running: exit code 1; or a signal asked to stop: 128 and its number.
    Runtime(String),
    /// A signal cut the answer short, and no message is needed: exit code 128 and its number.
    Interrupted,
    /// The command line is wrong: exit code 2.
    Usage(String),
    /// A file given as input is bad: exit code 3.
    Input(String),
    /// The ring is lost: exit code 4.
    Ring(String),
}

impl Failure {
    /// A bad input file, described by the error and its sources; or `Runtime` if the machine lacks the means to read
    /// it.
    pub(super) fn input(error: &(dyn Error + 'static)) -> Failure {
        let sources = std::iter::successors(Some(error), |error| (*error).source());
        let mut io = sources.filter_map(|error| error.downcast_ref::<io::Error>());
        match io.any(is_shortage) {
            true => Failure::Runtime(chain(error)),
            false => Failure::Input(chain(error)),
        }
    }

    /// An input file at `path` that cannot be read; `Runtime` if the machine lacks the means.
    pub(super) fn unreadable(path: &Path, error: &io::Error) -> Failure {
        let what = format!("cannot read {}: {error}", path.display());
        match is_shortage(error) {
            true => Failure::Runtime(what),
            false => Failure::Input(what),
        }
    }

    /// The failure of a conversion.
    #[cfg(feature = "tools")]
    pub(super) fn export(error: ExportError) -> Failure {
        match error.blame() {
            Blame::Input => Failure::input(&error),
            Blame::Request => Failure::Usage(error.to_string()),
            Blame::Runtime => Failure::runtime(&error),
        }
    }

    /// The message alone, for those who do not see the exit code.
    #[cfg(any(feature = "serve", feature = "tools"))]
    pub(super) fn message(self) -> String {
        self.text().to_owned()
    }

    /// The message.
    pub(super) fn text(&self) -> &str {
        match self {
            Failure::Interrupted => "interrupted",
            Failure::Runtime(message)
            | Failure::Usage(message)
            | Failure::Input(message)
            | Failure::Ring(message) => message,
        }
    }

    /// A failure at run time, described by the error and its sources.
    pub(super) fn runtime(error: &dyn Error) -> Failure {
        Failure::Runtime(chain(error))
    }

    /// Prints the message to stderr and returns the exit code.
    pub(super) fn report(self) -> ExitCode {
        let stopped = signal::interrupted_by().and_then(|signal| u8::try_from(signal).ok());
        let runtime = stopped.map_or(1, |signal| SIGNAL_BASE.saturating_add(signal));
        let (message, code) = match self {
            Failure::Interrupted => return ExitCode::from(runtime),
            Failure::Runtime(message) => (of_signal(message, stopped.is_some()), runtime),
            Failure::Usage(message) => (message, 2),
            Failure::Input(message) => (message, 3),
            Failure::Ring(message) => (message, 4),
        };
        let end = message.char_indices().nth(MESSAGE_CHARS).map_or(message.len(), |(end, _)| end);
        let message = printable(&message[..end]);
        // If stderr is closed, the message is lost.
        let _ = writeln!(std::io::stderr(), "leap: {message}");
        ExitCode::from(code)
    }
}

/// `message`, which says that the program was interrupted if it was. A signal also ends calls of the system, whose
/// errors do not say so.
fn of_signal(message: String, is_interrupted: bool) -> String {
    match is_interrupted && !message.contains("interrupted") {
        true => format!("interrupted: {message}"),
        false => message,
    }
}

fn chain(error: &dyn Error) -> String {
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        message = format!("{message}: {error}");
        source = error.source();
    }
    message
}
