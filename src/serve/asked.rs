//! A request for an answer.

use std::time::Duration;

use serde_json::Value;

use super::http::Request;

/// A request for an answer.
pub(super) struct Asked<'a> {
    pub(super) request: &'a Request,
    pub(super) body: &'a Value,
    /// How long the request waited until its model was loaded.
    pub(super) waited: Duration,
}
