//! HTTP/1.1 (RFC 9112) as programs that exchange JSON use it: one request after the other on a connection,
//! bodies of known length or in chunks, answers whole or piece by piece.

mod body;
mod budget;
mod connection;
mod head;
mod reply;
mod socket;

pub(super) use budget::Budget;
pub(super) use connection::{Connection, HttpLimits};
pub(super) use head::Request;
pub(super) use reply::{Reply, Streaming};
pub(super) use socket::Socket;

use std::fmt;

/// The reason why a request cannot be read. The connection ends with it, because the start of the next request is
/// unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HttpError {
    pub(super) status: u16,
    pub(super) problem: String,
}

impl HttpError {
    fn new(status: u16, problem: impl Into<String>) -> HttpError {
        HttpError { status, problem: problem.into() }
    }
}

impl fmt::Display for HttpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem)
    }
}

impl std::error::Error for HttpError {}
