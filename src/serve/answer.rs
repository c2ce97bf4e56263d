//! Sends answers as they come, or whole, in the words of one protocol.

use std::io;
use std::time::Duration;

use serde_json::Value;

use super::divide::{Divider, Piece};
use super::error::ApiError;
use super::http::{Connection, Reply, Request};
use super::jobs::{Answered, Ticket};
use super::service::Service;
use crate::engine::{Job, JobError, Outcome, StopReason};

/// How often a client that waits is looked after.
const LOOK: Duration = Duration::from_millis(100);

/// An answer that has ended.
#[derive(Clone, Debug)]
pub(super) struct Whole {
    pub(super) piece: Piece,
    pub(super) outcome: Outcome,
}

/// How a protocol words answers.
pub(super) trait Protocol {
    /// The media type of a stream.
    const STREAM_TYPE: &'static str;

    /// What a stream begins with.
    fn begin(&mut self) -> String;
    /// More of answer `index`.
    fn piece(&mut self, index: usize, piece: &Piece) -> String;
    /// The end of answer `index`.
    fn end(&mut self, index: usize, outcome: &Outcome) -> String;
    /// What a stream ends with.
    fn finish(&mut self) -> String;
    /// An error in the middle of a stream.
    fn failed(&self, error: &ApiError) -> String;
    /// All answers in one object.
    fn whole(&mut self, answers: &[Whole]) -> Value;
}

/// What became of a request.
pub(super) enum Sent {
    /// This is to be sent.
    Reply(Reply),
    /// It was streamed; the connection goes on if the client does.
    Streamed,
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

/// Has `jobs` answered and sends their answers.
pub(super) fn deliver<P: Protocol>(
    (service, connection, request): (&Service, &mut Connection, &Request),
    (jobs, divider): (Vec<Job>, Divider),
    (protocol, is_streamed): (&mut P, bool),
) -> Result<Sent, ApiError> {
    let mut dividers = vec![divider; jobs.len()];
    let mut ticket = service.desk.submit(jobs)?;
    let first = match wait(&mut ticket, &|| connection.is_hung_up()) {
        Ok(first) => first,
        Err(Broken::Gone) => return Ok(Sent::Gone),
        Err(Broken::Failed(error)) => return Err(error),
    };
    let sent = match is_streamed {
        true => stream((connection, request), &mut ticket, (first, &mut dividers), protocol),
        false => {
            collect(connection, &mut ticket, (first, &mut dividers), protocol).map(Sent::Reply)
        }
    };
    match sent {
        Ok(sent) => Ok(sent),
        Err(Broken::Gone) => Ok(Sent::Gone),
        Err(Broken::Failed(error)) => Err(error),
    }
}

/// What is new of the answers, as soon as something is.
fn wait(ticket: &mut Ticket, is_hung_up: &dyn Fn() -> bool) -> Result<Vec<Answered>, Broken> {
    loop {
        if is_hung_up() {
            return Err(Broken::Gone);
        }
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
    (first, dividers): (Vec<Answered>, &mut [Divider]),
    protocol: &mut P,
) -> Result<Sent, Broken> {
    let mut streaming = connection.stream(request, P::STREAM_TYPE)?;
    streaming.send(&protocol.begin())?;
    let mut news = first;
    loop {
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
        news = match wait(ticket, &|| streaming.is_hung_up()) {
            Ok(news) => news,
            Err(Broken::Failed(error)) => return fail(streaming, &error, protocol),
            Err(Broken::Gone) => return Err(Broken::Gone),
        };
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
    Ok(Sent::Gone)
}

fn ending() -> ApiError {
    ApiError::new(503, "the server ends before this answer does")
}

fn collect<P: Protocol>(
    connection: &Connection,
    ticket: &mut Ticket,
    (first, dividers): (Vec<Answered>, &mut [Divider]),
    protocol: &mut P,
) -> Result<Reply, Broken> {
    let mut answers = vec![(Piece::default(), None); dividers.len()];
    let mut news = first;
    loop {
        for ((answer, divider), news) in answers.iter_mut().zip(&mut *dividers).zip(&mut news) {
            answer.0.append(divider.divide(news));
            answer.1 = answer.1.or(outcome(news));
        }
        if ticket.is_over() {
            break;
        }
        news = wait(ticket, &|| connection.is_hung_up())?;
    }
    let whole = |(piece, outcome): (Piece, Option<Outcome>)| {
        let outcome = outcome.filter(|outcome| outcome.reason != StopReason::Interrupted)?;
        Some(Whole { piece, outcome })
    };
    let answers: Option<Vec<Whole>> = answers.into_iter().map(whole).collect();
    let answers = answers.ok_or_else(|| Broken::Failed(ending()))?;
    Ok(Reply::json(200, &protocol.whole(&answers)))
}
