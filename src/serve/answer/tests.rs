use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use super::super::http::{Budget, HttpLimits, Socket};
use super::super::jobs::{Answers, Command, Commands, JobQueue};
use super::*;

/// Longest wait of a test.
const PATIENCE: Duration = Duration::from_secs(120);

/// A protocol whose parts are easy to tell apart.
struct Plain;

impl Protocol for Plain {
    const STREAM_TYPE: &'static str = "text/event-stream";

    fn begin(&mut self) -> String {
        "begun;".to_owned()
    }

    fn piece(&mut self, _: usize, piece: &Piece) -> String {
        piece.text.clone()
    }

    fn end(&mut self, _: usize, _: &Outcome) -> String {
        ";ended".to_owned()
    }

    fn finish(&mut self) -> String {
        ";finished".to_owned()
    }

    fn failed(&self, error: &ApiError) -> String {
        format!(";failed with {}", error.status)
    }

    fn whole(&mut self, answers: &[Whole]) -> Value {
        answers.iter().map(|answer| Value::from(answer.piece.text.clone())).collect()
    }
}

pub(in crate::serve) fn connection(socket: Socket, quiet_time: Duration) -> Connection {
    let limits = HttpLimits {
        body_max: 1 << 10,
        budget: Budget::new(1 << 10),
        request_time: PATIENCE,
        idle_time: PATIENCE,
        quiet_time,
        origins: Vec::new(),
    };
    Connection::new(Arc::new(socket), limits)
}

fn tcp() -> (TcpStream, Socket) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    (client, Socket::Tcp(listener.accept().unwrap().0))
}

/// Submits a job. The test plays the engine: it writes the answer into [`Answers`].
fn job() -> (Ticket, Arc<Answers>, Commands) {
    let (queue, commands) = JobQueue::new(1);
    let ticket = queue.submit(vec![Job::new(vec![1])]).ok().unwrap();
    let Ok(Command::Submit(_, answers, 0)) = commands.receiver.recv() else { panic!("no job") };
    (ticket, answers, commands)
}

/// Sends the result of `work`, unless it takes too long.
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (sender, receiver) = channel();
    thread::spawn(move || sender.send(work()));
    receiver
}

fn read_until(client: &mut impl Read, part: &str) -> String {
    let mut text = String::new();
    while !text.contains(part) {
        let mut byte = [0];
        assert_eq!(client.read(&mut byte).unwrap(), 1, "no {part:?} in {text:?}");
        text.push(char::from(byte[0]));
    }
    text
}

fn streamed(connection: Connection, ticket: Ticket) -> Receiver<Result<Sent, Broken>> {
    streamed_by(Plain, connection, ticket)
}

fn streamed_by<P: Protocol + Send + 'static>(
    mut protocol: P,
    mut connection: Connection,
    mut ticket: Ticket,
) -> Receiver<Result<Sent, Broken>> {
    in_time(move || {
        let request = Request::default();
        stream((&mut connection, &request), &mut ticket, &mut [Divider::default()], &mut protocol)
    })
}

/// The first line of JSON that a stream of `protocol` sends before there is an answer.
pub(in crate::serve) fn first_line_while_waiting(
    protocol: impl Protocol + Send + 'static,
) -> String {
    let (mut client, socket) = UnixStream::pair().unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let (ticket, _seat, _commands) = job();
    let sent = streamed_by(protocol, connection(Socket::Unix(socket), Duration::ZERO), ticket);
    read_until(&mut client, "\r\n\r\n");
    let said = read_until(&mut client, "}\n");
    drop(client);
    assert!(matches!(sent.recv_timeout(PATIENCE), Ok(Err(Broken::Gone))));
    said[said.find('{').unwrap()..].to_owned()
}

#[test]
fn a_stream_begins_when_it_is_accepted_speaks_while_it_waits_and_tells_of_a_failure() {
    let (mut client, socket) = UnixStream::pair().unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let (ticket, answers, _commands) = job();
    let sent = streamed(connection(Socket::Unix(socket), Duration::ZERO), ticket);
    // There is no answer yet.
    let head = read_until(&mut client, "begun;");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert_eq!(read_until(&mut client, "\n\n"), ": waiting\n\n");
    answers.put(0, "text");
    read_until(&mut client, "text");
    answers.end(0, Err(JobError::NotANumber));
    read_until(&mut client, ";failed with 500");
    assert!(matches!(sent.recv_timeout(PATIENCE), Ok(Ok(Sent::Failed(500)))));
}

#[test]
fn a_stream_whose_client_is_gone_is_given_up() {
    let (mut client, socket) = tcp();
    // No keep-alive comment is due during the test.
    let (ticket, _seat, _commands) = job();
    let sent = streamed(connection(socket, PATIENCE * 100), ticket);
    read_until(&mut client, "begun;");
    drop(client);
    assert!(matches!(sent.recv_timeout(PATIENCE), Ok(Err(Broken::Gone))));
}

fn collected(
    mut connection: Connection,
    mut ticket: Ticket,
) -> Receiver<(Result<Reply, Broken>, Connection)> {
    in_time(move || {
        let reply = collect(&mut connection, &mut ticket, &mut [Divider::default()], &mut Plain);
        (reply, connection)
    })
}

#[test]
fn a_client_that_ends_its_side_still_gets_its_answer() {
    let (mut client, socket) = tcp();
    client.write_all(b"GET /").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut begun = connection(socket, PATIENCE);
    // The request ends early, but its client still reads.
    assert!(begun.request().is_ok_and(|request| request.is_none()));
    let (ticket, answers, _commands) = job();
    let reply = collected(begun, ticket);
    assert_eq!(read_until(&mut client, " "), "HTTP/1.1 ");
    answers.put(0, "text");
    answers.end(0, Ok(Outcome { reason: StopReason::Length, ..Outcome::INTERRUPTED }));
    let (reply, mut connection) = reply.recv_timeout(PATIENCE).unwrap();
    let reply = reply.unwrap_or_else(|_| panic!("the client was given up"));
    connection.send(&reply, &Request::default()).unwrap();
    drop(connection);
    let rest = read_until(&mut client, "[\"text\"]");
    assert!(rest.starts_with("200 OK\r\n"), "{rest}");
}

#[test]
fn a_whole_answer_whose_client_is_gone_is_given_up() {
    let (unix, socket) = UnixStream::pair().unwrap();
    let (ticket, _seat, _commands) = job();
    let reply = collected(connection(Socket::Unix(socket), PATIENCE), ticket);
    drop(unix);
    assert!(matches!(reply.recv_timeout(PATIENCE), Ok((Err(Broken::Gone), _))));

    let (client, socket) = tcp();
    let (ticket, _seat, _commands) = job();
    let reply = collected(connection(socket, PATIENCE), ticket);
    drop(client);
    assert!(matches!(reply.recv_timeout(PATIENCE), Ok((Err(Broken::Gone), _))));
}
