//! Asks a master.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::{ANSWER_MAX, Refusal, SILENCE};

/// Bytes of the longest line that says what is being done.
const WORD_MAX: u64 = 4096;

/// Asks the master that listens at `path`; `hear` is told what it does meanwhile.
///
/// # Errors
/// If it is not there, is silent, or makes no sense. Its silence is [`ErrorKind::TimedOut`].
pub(crate) fn ask(
    path: &Path,
    request: &str,
    hear: &mut dyn FnMut(&str),
) -> io::Result<Result<String, Refusal>> {
    attempt(path, request, hear).map_err(|e| match e.kind() {
        ErrorKind::WouldBlock => ErrorKind::TimedOut.into(),
        _ => e,
    })
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
