//! Streams that begin before their model is loaded, because that takes so long that proxies would close the connection.

use std::io;
use std::time::Instant;

use serde_json::json;

use super::error::ApiError;
use super::fields::Fields;
use super::http::{Connection, Request};
use super::ollama;
use crate::format::json;

/// A request that waits for its model.
pub(super) struct Early<'r> {
    request: &'r Request,
    /// Name of the model as the client wrote it.
    name: &'r str,
    is_streamed: bool,
    since: Instant,
}

impl<'r> Early<'r> {
    pub(super) fn new(request: &'r Request, fields: &Fields<'r>) -> Early<'r> {
        // Errors in these fields are told by the endpoint.
        let flag = fields.flag("stream").ok().flatten();
        let name = fields.string("model").ok().flatten().unwrap_or_default();
        let is_streamed = flag.unwrap_or(is_ollama(request));
        Early { request, name, is_streamed, since: Instant::now() }
    }

    /// Checks on the client. A stream begins after a silence, with the words of streams that wait.
    ///
    /// # Errors
    /// If the client went away, or does not read.
    pub(super) fn look_after(&self, connection: &mut Connection) -> io::Result<()> {
        if !self.is_streamed {
            return connection.look_after();
        }
        let content_type = match is_ollama(self.request) {
            true => "application/x-ndjson",
            false => "text/event-stream",
        };
        connection.look_after_stream(self.request, (content_type, self.since), || self.waiting())
    }

    fn waiting(&self) -> String {
        match is_ollama(self.request) {
            true => ollama::waiting(self.name, self.request.path == "/api/chat"),
            false => ": waiting\n\n".to_owned(),
        }
    }
}

fn is_ollama(request: &Request) -> bool {
    request.path.starts_with("/api/")
}

/// An error in a stream that has begun.
pub(super) fn failed(request: &Request, error: &ApiError) -> String {
    let ApiError { field, message, code, .. } = error;
    match request.path.as_str() {
        _ if is_ollama(request) => json::compact(&json!({"error": message})) + "\n",
        "/v1/responses" => {
            let event = json!({"type": "error", "sequence_number": 0, "code": code,
                "message": message, "param": field});
            format!("event: error\ndata: {}\n\n", json::compact(&event))
        }
        _ => format!("data: {}\n\n", json::compact(&error.object())),
    }
}
