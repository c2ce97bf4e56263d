//! Ollama's requests that download and remove models.

use std::io;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::answer::Sent;
use super::error::ApiError;
use super::fields::Fields;
use super::http::{Connection, Reply, Request, Streaming};
use super::models::Models;
use super::source::{ModelSource, Progress};
use crate::format::json;

/// Interval between lines about the bytes of one file.
const LINE_TIME: Duration = Duration::from_millis(200);

/// The media type of Ollama's streams.
const LINES: &str = "application/x-ndjson";

/// The field `model`, or `name` of earlier clients.
fn name<'v>(fields: &Fields<'v>) -> Result<&'v str, ApiError> {
    let name = match fields.string("model")? {
        Some(name) => Some(name),
        None => fields.string("name")?,
    };
    name.filter(|name| !name.is_empty()).ok_or_else(|| fields.bad("model", "is not there"))
}

/// `POST /api/pull`.
pub(super) fn pull(
    source: &dyn ModelSource,
    connection: &mut Connection,
    (request, body): (&Request, &Value),
) -> Result<Sent, ApiError> {
    let fields = Fields::of(body, "")?;
    let name = name(&fields)?;
    match fields.flag("stream")?.unwrap_or(true) {
        true => stream(source, name, (connection, request)),
        false => {
            let mut is_gone = false;
            let pulled = source.pull(name, &mut |_| match connection.look_after() {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => {
                    is_gone = true;
                    ControlFlow::Break(())
                }
            });
            if is_gone {
                return Ok(Sent::Gone);
            }
            pulled?;
            Ok(Sent::Reply(Reply::json(200, &success())))
        }
    }
}

/// The last line about a model that is here.
pub(super) fn success() -> Value {
    json!({"status": "success"})
}

/// Whether a request to fetch a model names the one that is always loaded.
pub(super) fn is_here(models: &Models, body: &Value) -> Result<bool, ApiError> {
    let fields = Fields::of(body, "")?;
    Ok(models.needs_fixed(Some(name(&fields)?)))
}

/// `DELETE /api/delete`.
pub(super) fn delete(models: &Models, body: &Value) -> Result<Option<Reply>, ApiError> {
    let Some(source) = models.source() else { return Ok(None) };
    let fields = Fields::of(body, "")?;
    let found = models.find(Some(name(&fields)?))?;
    let name = found.about.name;
    if models.needs_fixed(Some(&name)) {
        let problem = format!("{name} stays loaded until the server's end");
        return Err(ApiError::new(400, problem));
    }
    source.delete(&name)?;
    models.unload(&name);
    Ok(Some(Reply::json(200, &json!({}))))
}

/// Downloads a model, and sends a line for each step. An error before the first line has a status of its own.
fn stream(
    source: &dyn ModelSource,
    name: &str,
    (connection, request): (&mut Connection, &Request),
) -> Result<Sent, ApiError> {
    let mut lines = Lines::Unsent(connection, request);
    let mut told: Option<(String, Instant)> = None;
    let mut is_gone = false;
    let pulled = source.pull(name, &mut |progress| {
        let sent = match is_news(&progress, &mut told) {
            true => lines.send(&object(&progress)),
            false => Ok(()),
        };
        is_gone = sent.is_err();
        if is_gone { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let sent = match (pulled, lines.is_unsent()) {
        _ if is_gone => return Ok(Sent::Gone),
        (Ok(()), _) => lines.send(&success()).map(|()| Sent::Streamed),
        (Err(error), true) => return Err(error.into()),
        (Err(error), false) => {
            let ApiError { status, message, .. } = error.into();
            lines.send(&json!({"error": message})).map(|()| Sent::Failed(status))
        }
    };
    let finished = sent.and_then(|sent| lines.finish().map(|()| sent));
    Ok(finished.unwrap_or(Sent::Gone))
}

/// Whether a client is told of this: each step, the first and last bytes of a file, and others from time to time.
fn is_news(progress: &Progress, told: &mut Option<(String, Instant)>) -> bool {
    let Progress::Bytes { digest, total, completed } = progress else { return true };
    let is_early = |(of, at): &(String, Instant)| of == digest && at.elapsed() < LINE_TIME;
    if completed < total && told.as_ref().is_some_and(is_early) {
        return false;
    }
    *told = Some((digest.clone(), Instant::now()));
    true
}

fn object(progress: &Progress) -> Value {
    match progress {
        Progress::Step(step) => json!({"status": step}),
        Progress::Bytes { digest, total, completed } => {
            let status = format!("downloading {digest}");
            json!({"status": status, "digest": digest, "total": total, "completed": completed})
        }
    }
}

/// A stream of lines, which begins with the first one.
enum Lines<'c> {
    Unsent(&'c mut Connection, &'c Request),
    Sent(Streaming<'c>),
    Broken,
}

impl Lines<'_> {
    fn is_unsent(&self) -> bool {
        matches!(self, Lines::Unsent(..))
    }

    fn send(&mut self, object: &Value) -> io::Result<()> {
        let mut streaming = match std::mem::replace(self, Lines::Broken) {
            Lines::Unsent(connection, request) => connection.stream(request, LINES)?,
            Lines::Sent(streaming) => streaming,
            Lines::Broken => return Err(io::ErrorKind::BrokenPipe.into()),
        };
        streaming.send(&(json::compact(object) + "\n"))?;
        *self = Lines::Sent(streaming);
        Ok(())
    }

    fn finish(self) -> io::Result<()> {
        match self {
            Lines::Sent(streaming) => streaming.finish(),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::engine::{Engine, Scheduler};
    use crate::serve::answer::tests::connection;
    use crate::serve::http::Socket;
    use crate::serve::source::{
        DescribedModel, ListedModel, LoadedModel, SourceError, TellProgress,
    };
    use crate::tokenizer::Tokenizer;

    /// A source from which `big` can be pulled, and of `half` only a half.
    struct Elsewhere;

    impl ModelSource for Elsewhere {
        fn list(&self) -> Vec<ListedModel> {
            Vec::new()
        }

        fn find(&self, _: &str) -> Result<ListedModel, SourceError> {
            Err(SourceError::Absent)
        }

        fn describe(&self, _: &str) -> Result<DescribedModel, SourceError> {
            Err(SourceError::Absent)
        }

        fn load(&self, _: &str) -> Result<LoadedModel, SourceError> {
            Err(SourceError::Absent)
        }

        fn schedule<'t>(
            &self,
            _: &mut Engine,
            _: &'t Tokenizer,
        ) -> Result<Scheduler<'t>, SourceError> {
            Err(SourceError::Absent)
        }

        fn pull(&self, name: &str, tell: TellProgress<'_>) -> Result<(), SourceError> {
            if !["big", "half"].contains(&name) {
                return Err(SourceError::Unknown(format!("{name} is nowhere")));
            }
            let of = |completed| Progress::Bytes {
                digest: "sha256:ab".to_owned(),
                total: 1000,
                completed,
            };
            let steps = [Progress::Step("pulling manifest"), of(0)];
            let all = steps.into_iter().chain((1..1000).map(of)).chain([of(1000)]);
            for progress in all {
                if name == "half" && progress == of(500) {
                    return Err(SourceError::Failed("the disk is full".to_owned()));
                }
                if tell(progress).is_break() {
                    return Err(SourceError::Failed("stopped".to_owned()));
                }
            }
            Ok(())
        }

        fn delete(&self, _: &str) -> Result<(), SourceError> {
            Err(SourceError::Absent)
        }
    }

    /// The outcome of a request, and the lines that its client has been sent.
    fn pulled(body: &Value) -> (Result<Sent, ApiError>, Vec<Value>) {
        let (mut client, socket) = UnixStream::pair().unwrap();
        let mut connection = connection(Socket::Unix(socket), Duration::from_secs(9));
        let sent = pull(&Elsewhere, &mut connection, (&Request::default(), body));
        drop(connection);
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        let lines = text.lines().filter(|line| line.starts_with('{'));
        (sent, lines.map(|line| serde_json::from_str(line).unwrap()).collect())
    }

    #[test]
    fn a_download_is_told_of_in_ollamas_lines() {
        let (sent, lines) = pulled(&json!({"model": "big"}));
        assert!(matches!(sent, Ok(Sent::Streamed)));
        assert_eq!(lines[0], json!({"status": "pulling manifest"}));
        let begun = json!({"status": "downloading sha256:ab", "digest": "sha256:ab", "total": 1000,
            "completed": 0});
        assert_eq!(lines[1], begun);
        assert_eq!(lines[lines.len() - 2]["completed"], 1000);
        assert_eq!(lines[lines.len() - 1], json!({"status": "success"}));
        // A line for every few bytes would fill the connection.
        assert!(lines.len() < 500, "{} lines", lines.len());
    }

    #[test]
    fn a_download_without_a_stream_has_one_answer() {
        let (sent, lines) = pulled(&json!({"name": "big", "stream": false}));
        let Ok(Sent::Reply(reply)) = sent else { panic!("no reply") };
        assert_eq!((reply.status, &*reply.body), (200, r#"{"status":"success"}"#));
        assert!(lines.is_empty());
    }

    #[test]
    fn a_download_that_fails_says_why() {
        let (sent, lines) = pulled(&json!({"model": "half"}));
        assert!(matches!(sent, Ok(Sent::Failed(500))));
        assert_eq!(lines.last(), Some(&json!({"error": "the disk is full"})));
        for (body, status) in [(json!({"model": "none"}), 404), (json!({}), 400)] {
            let (sent, lines) = pulled(&body);
            assert_eq!(sent.err().map(|error| error.status), Some(status));
            assert!(lines.is_empty());
        }
    }
}
