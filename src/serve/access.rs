//! A line for each request: the client, the request, and its outcome.

use std::time::Duration;

use super::http::Request;

/// Destination of the access log's lines.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AccessLog {
    /// Writes a line of the log; `None` if there is no log.
    pub(crate) write: Option<fn(&str)>,
    /// Whether a line includes the request's body.
    pub(crate) with_prompts: bool,
}

/// Outcome of a request.
pub(super) struct Answered {
    /// Status of the reply; `None` if the client went away before its end.
    pub(super) status: Option<u16>,
    pub(super) time: Duration,
    pub(super) sent_bytes: u64,
}

impl AccessLog {
    /// Writes the line of a request from `client`; `request` is `None` if it could not be read.
    pub(super) fn tell(&self, request: Option<&Request>, client: &str, answered: &Answered) {
        let Some(write) = self.write else { return };
        write(&self.line(request, client, answered));
    }

    fn line(&self, request: Option<&Request>, client: &str, answered: &Answered) -> String {
        let (method, path) = request.map_or(("-", "-"), |asked| (&*asked.method, &*asked.path));
        let status = answered.status.map_or("gone".to_owned(), |status| status.to_string());
        let (ms, bytes) = (answered.time.as_millis(), answered.sent_bytes);
        let mut line = format!("{method} {path} {status} {ms}ms {client} {bytes}");
        if let Some(request) = request.filter(|asked| self.with_prompts && !asked.body.is_empty()) {
            // In JSON, control characters occur only between values, where a blank is equivalent.
            let body = String::from_utf8_lossy(&request.body).replace(char::is_control, " ");
            line += &format!(" {body}");
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_prompt_only_where_that_is_wished() {
        let mut request = Request::default();
        request.method = "POST".to_owned();
        request.path = "/v1/completions".to_owned();
        request.body = b"{\n\"prompt\": \"secret\"}\x1b".to_vec();
        let time = Duration::from_micros(12_999);
        let answered = Answered { status: Some(200), time, sent_bytes: 345 };
        let wanted = "POST /v1/completions 200 12ms ::1 345";
        let line = |with_prompts| {
            AccessLog { write: None, with_prompts }.line(Some(&request), "::1", &answered)
        };
        assert_eq!(line(false), wanted);
        assert_eq!(line(true), format!("{wanted} {{ \"prompt\": \"secret\"}} "));
        let answered = Answered { status: None, ..answered };
        assert_eq!(AccessLog::default().line(None, "unix", &answered), "- - gone 12ms unix 345");
    }
}
