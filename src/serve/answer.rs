//! Sends answers in the format of one protocol, streamed or whole.

use std::io;
use std::time::Duration;

use serde_json::Value;

use super::divide::{Divider, Piece};
use super::error::ApiError;
use super::http::{Connection, Reply, Request};
use super::jobs::{Answered, Ticket};
use super::service::Service;
use crate::engine::{Job, JobError, Outcome, StopReason};

/// Interval between checks of a waiting client.
const LOOK: Duration = Duration::from_millis(100);

/// A complete answer.
#[derive(Clone, Debug)]
pub(super) struct Whole {
    pub(super) piece: Piece,
    pub(super) outcome: Outcome,
}

/// Format of a protocol's answers.
pub(super) trait Protocol {
    /// The media type of a stream.
    const STREAM_TYPE: &'static str;

    /// First event of a stream.
    fn begin(&mut self) -> String;
    /// More of answer `index`.
    fn piece(&mut self, index: usize, piece: &Piece) -> String;
    /// The end of answer `index`.
    fn end(&mut self, index: usize, outcome: &Outcome) -> String;
    /// Last event of a stream.
    fn finish(&mut self) -> String;
    /// Keeps a silent stream alive with a comment, which readers of events skip.
    fn waiting(&self) -> String {
        ": waiting\n\n".to_owned()
    }
    /// An error in the middle of a stream.
    fn failed(&self, error: &ApiError) -> String;
    /// All answers of a request in one object.
    fn whole(&mut self, answers: &[Whole]) -> Value;
}

/// Outcome of a request.
pub(super) enum Sent {
    /// The reply has yet to be sent.
    Reply(Reply),
    /// The answer was streamed; the connection stays open if the client allows it.
    Streamed,
    /// The stream ended with an error of this status.
    Failed(u16),
    /// The client went away, or does not read.
    Gone,
}

/// Why a client gets no more of an answer.
enum Broken {
    Gone,
    Failed(ApiError),
}

impl From<io::Error> for Broken {
    fn from(_: io::Error) -> Broken {
        Broken::Gone
    }
}

/// Submits `jobs` and sends their answers. A stream begins as soon as the jobs are accepted, and reports
/// later failures in the stream. The status of a whole answer is sent with the answer, because clients decide
/// by it whether to try again.
pub(super) fn deliver<P: Protocol>(
    (service, connection, request): (&Service, &mut Connection, &Request),
    (jobs, divider): (Vec<Job>, Divider),
    (protocol, is_streamed): (&mut P, bool),
) -> Result<Sent, ApiError> {
    let mut dividers = vec![divider; jobs.len()];
    for job in &jobs {
        job.check(service.ctx_len, service.vocab_size)?;
    }
    let mut ticket = service.queue.submit(jobs)?;
    let sent = match is_streamed {
        true => stream((connection, request), &mut ticket, &mut dividers, protocol),
        false => collect(connection, &mut ticket, &mut dividers, protocol).map(Sent::Reply),
    };
    match sent {
        Ok(sent) => Ok(sent),
        Err(Broken::Gone) => Ok(Sent::Gone),
        Err(Broken::Failed(error)) => Err(error),
    }
}

/// Waits for the next pieces of the answers, and watches the client meanwhile.
fn wait(
    ticket: &mut Ticket,
    look_after: &mut dyn FnMut() -> io::Result<()>,
) -> Result<Vec<Answered>, Broken> {
    loop {
        look_after()?;
        let mut news = ticket.news(LOOK);
        for answer in &mut news {
            let failure = |error: JobError| Broken::Failed(error.into());
            if let Some(end) = answer.end.take() {
                answer.end = Some(Ok(end.map_err(failure)?));
            }
        }
        if news.iter().any(|answer| !answer.text.is_empty() || answer.end.is_some()) {
            return Ok(news);
        }
    }
}

/// The outcome of an answer that has ended and did not fail.
fn outcome(answer: &Answered) -> Option<Outcome> {
    answer.end.as_ref()?.as_ref().ok().copied()
}

fn stream<P: Protocol>(
    (connection, request): (&mut Connection, &Request),
    ticket: &mut Ticket,
    dividers: &mut [Divider],
    protocol: &mut P,
) -> Result<Sent, Broken> {
    let mut streaming = connection.stream(request, P::STREAM_TYPE)?;
    streaming.send(&protocol.begin())?;
    loop {
        let mut news = match wait(ticket, &mut || streaming.look_after(|| protocol.waiting())) {
            Ok(news) => news,
            Err(Broken::Failed(error)) => return fail(streaming, &error, protocol),
            Err(Broken::Gone) => return Err(Broken::Gone),
        };
        let mut piece = String::new();
        for (index, answer) in news.iter_mut().enumerate() {
            let divided = dividers[index].divide(answer);
            if !divided.is_empty() {
                piece += &protocol.piece(index, &divided);
            }
            match outcome(answer) {
                Some(outcome) if outcome.reason == StopReason::Interrupted => {
                    return fail(streaming, &ending(), protocol);
                }
                Some(outcome) => piece += &protocol.end(index, &outcome),
                None => {}
            }
        }
        streaming.send(&piece)?;
        if ticket.is_over() {
            streaming.send(&protocol.finish())?;
            streaming.finish()?;
            return Ok(Sent::Streamed);
        }
    }
}

/// Ends a stream with an error.
fn fail<P: Protocol>(
    mut streaming: super::http::Streaming<'_>,
    error: &ApiError,
    protocol: &P,
) -> Result<Sent, Broken> {
    streaming.send(&protocol.failed(error))?;
    streaming.finish()?;
    Ok(Sent::Failed(error.status))
}

fn ending() -> ApiError {
    ApiError::new(503, "the server ends before this answer does")
}

fn collect<P: Protocol>(
    connection: &mut Connection,
    ticket: &mut Ticket,
    dividers: &mut [Divider],
    protocol: &mut P,
) -> Result<Reply, Broken> {
    let mut answers = vec![(Piece::default(), None); dividers.len()];
    while !ticket.is_over() {
        let mut news = wait(ticket, &mut || connection.look_after())?;
        for ((answer, divider), news) in answers.iter_mut().zip(&mut *dividers).zip(&mut news) {
            answer.0.append(divider.divide(news));
            answer.1 = answer.1.or(outcome(news));
        }
    }
    let whole = |(piece, outcome): (Piece, Option<Outcome>)| {
        let outcome = outcome.filter(|outcome| outcome.reason != StopReason::Interrupted)?;
        Some(Whole { piece, outcome })
    };
    let answers: Option<Vec<Whole>> = answers.into_iter().map(whole).collect();
    let answers = answers.ok_or_else(|| Broken::Failed(ending()))?;
    Ok(Reply::json(200, &protocol.whole(&answers)))
}

#[cfg(test)]
pub(super) mod tests;
