//! Sends answers as they come, or whole, in the words of one protocol.

use std::io;
use std::time::Duration;

use serde_json::Value;

use super::error::ApiError;
use super::http::{Connection, Reply, Request};
use super::jobs::{Answered, Ticket};
use super::odds::TokenOdds;
use super::service::Service;
use super::tools::{CallFilter, ToolCall};
use crate::engine::{Job, JobError, Outcome, StopReason};
use crate::tokenizer::{Part, ThoughtFilter};

/// How often a client that waits is looked after.
const LOOK: Duration = Duration::from_millis(100);

/// An answer that has ended.
#[derive(Clone, Debug)]
pub(super) struct Whole {
    pub(super) piece: Piece,
    pub(super) outcome: Outcome,
}

/// A stretch of an answer, or all of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Piece {
    pub(super) text: String,
    /// What the model thought before it.
    pub(super) thought: String,
    pub(super) calls: Vec<ToolCall>,
    /// Its tokens, if they are told of.
    pub(super) tokens: Vec<TokenOdds>,
}

/// What tells thoughts and calls from an answer, where there may be any.
#[derive(Clone, Default)]
pub(super) struct Divider {
    pub(super) thoughts: Option<ThoughtFilter>,
    pub(super) calls: Option<CallFilter>,
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

impl Divider {
    fn divide(&mut self, answer: &mut Answered) -> Piece {
        let mut piece = Piece { tokens: std::mem::take(&mut answer.tokens), ..Piece::default() };
        let is_over = answer.end.is_some();
        let mut text = String::new();
        match &mut self.thoughts {
            Some(filter) => {
                let mut tell = |part, stretch: &str| match part {
                    Part::Answer => text += stretch,
                    Part::Thought if !matches!(stretch, "<think>" | "</think>") => {
                        piece.thought += stretch;
                    }
                    Part::Thought | Part::Sign => {}
                };
                filter.push(&answer.text, &mut tell);
                if is_over {
                    filter.flush(&mut tell);
                }
            }
            None => text = std::mem::take(&mut answer.text),
        }
        match &mut self.calls {
            Some(filter) => {
                filter.push(&text, &mut piece.text, &mut piece.calls);
                if is_over {
                    filter.flush(&mut piece.text);
                }
            }
            None => piece.text = text,
        }
        piece
    }
}

impl Piece {
    fn is_empty(&self) -> bool {
        self.text.is_empty()
            && self.thought.is_empty()
            && self.calls.is_empty()
            && self.tokens.is_empty()
    }

    fn append(&mut self, mut more: Piece) {
        self.text += &more.text;
        self.thought += &more.thought;
        self.calls.append(&mut more.calls);
        self.tokens.append(&mut more.tokens);
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::Thoughts;

    #[test]
    fn thoughts_come_apart_from_the_answer_however_the_text_is_cut() {
        let text = "<think>\nA fox?\n</think>\n\nOnce <b> upon";
        for cut in 0..=text.len() {
            let thoughts = Some(ThoughtFilter::new(Thoughts::Tags, false));
            let mut divider = Divider { thoughts, calls: None };
            let (mut thought, mut answer) = (String::new(), String::new());
            for (part, is_last) in [(&text[..cut], false), (&text[cut..], true)] {
                let end = is_last.then_some(Ok(Outcome::INTERRUPTED));
                let mut news = Answered { text: part.to_owned(), end, ..Answered::default() };
                let divided = divider.divide(&mut news);
                thought += &divided.thought;
                answer += &divided.text;
            }
            assert_eq!((thought.trim(), &*answer), ("A fox?", "Once <b> upon"), "cut at {cut}");
        }
        let mut whole = Answered { text: text.to_owned(), ..Answered::default() };
        assert_eq!(Divider::default().divide(&mut whole).text, text);
    }
}
