//! Client of a master's control socket.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::{ANSWER_MAX, Refusal, SILENCE};
use crate::sys::net;

/// Longest line about what is being done, in bytes.
const WORD_MAX: u64 = 4096;

/// Sends `request` to the master that listens at `path`. `hear` gets the lines about what is being done.
///
/// # Errors
/// If the master is not there, is silent, or answers nonsense. Silence is [`ErrorKind::TimedOut`].
pub(crate) fn ask(
    path: &Path,
    request: &str,
    hear: &mut dyn FnMut(&str),
) -> io::Result<Result<String, Refusal>> {
    attempt(path, request, hear).map_err(in_words)
}

/// Rewords a socket's timeout, which the system reports as if the socket could not wait.
fn in_words(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::WouldBlock => net::timed_out(SILENCE),
        _ => error,
    }
}

fn attempt(
    path: &Path,
    request: &str,
    hear: &mut dyn FnMut(&str),
) -> io::Result<Result<String, Refusal>> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    stream.write_all(format!("{request}\n").as_bytes())?;
    let mut answer = BufReader::new(stream);
    let mut line = String::new();
    let code = loop {
        line.clear();
        answer.by_ref().take(WORD_MAX).read_line(&mut line)?;
        let line = line.strip_suffix('\n').ok_or(ErrorKind::UnexpectedEof)?;
        match line.strip_prefix('#') {
            Some(word) => hear(word),
            None => break line.parse().ok().filter(|code| *code <= 9u8),
        }
    };
    let code = code.ok_or(ErrorKind::InvalidData)?;
    let mut text = String::new();
    answer.take(ANSWER_MAX as u64).read_to_string(&mut text)?;
    Ok(if code == 0 { Ok(text) } else { Err(Refusal { code, why: text }) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_master_that_is_silent_is_a_timeout_in_words() {
        let system = io::Error::from_raw_os_error(11);
        let error = in_words(system);
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert_eq!(error.to_string(), "timed out after 10 s");
    }
}
