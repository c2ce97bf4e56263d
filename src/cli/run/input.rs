//! Sources of the prompt.

use std::fs;
use std::io::{self, BufRead, IsTerminal, Read};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::flags::Run;
use crate::cli::Failure;
use crate::format::{is_utf16, text_without_mark};
use crate::sys::{notify, poll, signal};

/// Prompt of the built-in model when none is given.
const DEMO_PROMPT: &str = "Once upon a time";

/// Time for which the built-in model waits for a pipe's first bytes. A user who pipes a prompt has it ready; a service's idle
/// pipe never sends any.
const PIPE_WAIT_MS: u16 = 300;

/// Longest time before a signal is seen that came just before the wait for stdin.
const SIGNAL_WAIT_MS: u16 = 1000;

/// Result of asking a person for a line.
pub(super) enum Typed {
    /// A line, or a pasted paragraph.
    Text(String),
    /// The user dropped the line, which needs an editor.
    #[cfg(feature = "tools")]
    Interrupted,
    /// End of the input.
    End,
}

/// The text to continue.
pub(super) fn prompt(run: &Run) -> Result<String, Failure> {
    match (&run.prompt, &run.prompt_file) {
        (Some(prompt), _) if prompt == "-" => read_stdin(),
        (Some(prompt), _) => Ok(prompt.clone()),
        (None, Some(path)) => {
            let text = fs::read(path).map_err(|e| Failure::unreadable(path, &e))?;
            utf8(text, &path.display().to_string())
        }
        (None, None) if run.model.is_none() => demo_prompt(),
        (None, None) if io::stdin().is_terminal() => Ok(String::new()),
        (None, None) => read_stdin(),
    }
}

fn demo_prompt() -> Result<String, Failure> {
    if io::stdin().is_terminal() || !poll::is_stdin_readable(PIPE_WAIT_MS) {
        return Ok(DEMO_PROMPT.to_owned());
    }
    let text = read_stdin()?;
    Ok(if text.is_empty() { DEMO_PROMPT.to_owned() } else { text })
}

fn read_stdin() -> Result<String, Failure> {
    let mut bytes = Vec::new();
    match io::stdin().lock().read_to_end(&mut bytes) {
        Ok(_) => utf8(bytes, "stdin"),
        Err(e) => Err(Failure::Runtime(format!("cannot read stdin: {e}"))),
    }
}

/// The text without the line break that editors and `echo` append, and without the byte order mark that some editors
/// prepend.
fn utf8(bytes: Vec<u8>, from: &str) -> Result<String, Failure> {
    if is_utf16(&bytes) {
        return Err(Failure::Input(format!("{from} is UTF-16; save it as UTF-8")));
    }
    let mut text = String::from_utf8(bytes)
        .map_err(|e| Failure::Input(format!("{from} is not UTF-8: {}", e.utf8_error())))?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    match text_without_mark(&text) {
        all if all.len() == text.len() => Ok(text),
        rest => Ok(rest.to_owned()),
    }
}

/// True if a line read before left more in stdin's buffer, which a wait does not see.
static HAS_MORE: AtomicBool = AtomicBool::new(false);

/// Waits for stdin, and sends signs of life to a service manager. Returns whether to read; false if a signal asked to
/// stop, even before the wait.
fn wait_watched() -> bool {
    let period = notify::period().map_or(u128::from(SIGNAL_WAIT_MS), |period| period.as_millis());
    let timeout_ms = u16::try_from(period).unwrap_or(u16::MAX).min(SIGNAL_WAIT_MS);
    while !HAS_MORE.load(Relaxed) && !poll::is_stdin_readable(timeout_ms) {
        if signal::interrupted() != 0 {
            return false;
        }
        notify::alive();
    }
    true
}

/// Reads the next line of stdin without its end; `None` at the end, or when a signal asks to stop.
pub(super) fn line() -> Result<Option<String>, Failure> {
    let mut stdin = io::stdin().lock();
    let mut line = Vec::new();
    loop {
        if !wait_watched() {
            return Ok(None);
        }
        let chunk = match stdin.fill_buf() {
            Ok(chunk) => chunk,
            Err(e) if e.kind() == io::ErrorKind::Interrupted && signal::interrupted() == 0 => {
                continue;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return Ok(None),
            Err(e) => return Err(Failure::Runtime(format!("cannot read stdin: {e}"))),
        };
        let end = chunk.iter().position(|&b| b == b'\n');
        let len = end.unwrap_or(chunk.len());
        line.extend_from_slice(&chunk[..len]);
        let is_end_of_input = chunk.is_empty();
        let used = end.map_or(len, |end| end + 1);
        HAS_MORE.store(used < chunk.len(), Relaxed);
        stdin.consume(used);
        if end.is_some() || (is_end_of_input && !line.is_empty()) {
            return utf8(line, "the message").map(Some);
        }
        if is_end_of_input {
            return Ok(None);
        }
    }
}
