//! Replies, whole or streamed.

use std::borrow::Cow;
use std::io;
use std::time::{Duration, Instant};

use super::Socket;
use crate::format::json;

/// An answer that is sent whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::serve) struct Reply {
    pub(in crate::serve) status: u16,
    pub(in crate::serve) content_type: &'static str,
    pub(in crate::serve) body: Cow<'static, str>,
    /// Seconds after which the client should try again.
    pub(in crate::serve) retry_after: Option<u32>,
    /// Further fields of the head, a line each.
    pub(in crate::serve) fields: &'static str,
}

impl Reply {
    pub(in crate::serve) fn json(status: u16, body: &serde_json::Value) -> Reply {
        Reply { status, ..Reply::text("application/json", json::compact(body)) }
    }

    pub(in crate::serve) fn text(
        content_type: &'static str,
        body: impl Into<Cow<'static, str>>,
    ) -> Reply {
        Reply { status: 200, content_type, body: body.into(), retry_after: None, fields: "" }
    }
}

/// An answer that is sent piece by piece. For a client of HTTP/1.0, the end of the connection ends the answer.
pub(in crate::serve) struct Streaming<'c> {
    pub(super) socket: &'c Socket,
    pub(super) sent_bytes: &'c mut u64,
    pub(super) has_chunks: bool,
    /// Longest silence before a keep-alive is sent.
    pub(super) quiet_time: Duration,
    pub(super) last_sent: Instant,
    /// Whether something was sent after the client stopped sending, to learn whether it is gone.
    pub(super) is_probed: bool,
}

impl Streaming<'_> {
    /// Sends one piece at once.
    ///
    /// # Errors
    /// If the client went away, or does not read.
    pub(in crate::serve) fn send(&mut self, piece: &str) -> io::Result<()> {
        if piece.is_empty() {
            return Ok(());
        }
        self.last_sent = Instant::now();
        match self.has_chunks {
            true => self.write(&format!("{:x}\r\n{piece}\r\n", piece.len())),
            false => self.write(piece),
        }
    }

    /// Checks on a waiting client. Sends `word` after a silence, so that no proxy takes the connection for dead. Also
    /// sends `word` once after the client has stopped sending, because that fails if the client is gone.
    ///
    /// # Errors
    /// If the client went away, or does not read.
    pub(in crate::serve) fn look_after(&mut self, word: impl FnOnce() -> String) -> io::Result<()> {
        if self.socket.is_hung_up() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let is_doubtful = !self.is_probed && self.socket.has_ended();
        self.is_probed |= is_doubtful;
        match is_doubtful || self.last_sent.elapsed() >= self.quiet_time {
            true => self.send(&word()),
            false => Ok(()),
        }
    }

    /// Ends the answer.
    ///
    /// # Errors
    /// As for [`Streaming::send`].
    pub(in crate::serve) fn finish(mut self) -> io::Result<()> {
        match self.has_chunks {
            true => self.write("0\r\n\r\n"),
            false => Ok(()),
        }
    }
}

impl Streaming<'_> {
    fn write(&mut self, text: &str) -> io::Result<()> {
        *self.sent_bytes += text.len() as u64;
        self.socket.write_all(text.as_bytes())
    }
}

/// The reason phrase of a status.
pub(super) fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        413 => "Content Too Large",
        415 => "Unsupported Media Type",
        417 => "Expectation Failed",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        _ => "Unknown",
    }
}
