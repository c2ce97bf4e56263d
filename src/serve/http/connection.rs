//! One connection: requests in, answers out.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::body::{self, ChunkStep};
use super::budget::{Budget, Reserved};
use super::head::{self, Body, BodyLength, Head};
use super::reply::{Reply, Streaming, reason};
use super::{HttpError, Request, Socket};

/// Longest head of a request, in bytes.
const HEAD_MAX: usize = 16 << 10;
/// Longest wait for a client to end a connection.
const LINGER: Duration = Duration::from_secs(1);
/// Bytes read at once.
const READ_BYTES: usize = 16 << 10;
/// Start of every answer.
const VERSION: &str = "HTTP/1.1 ";

/// Limits for clients.
#[derive(Clone)]
pub(in crate::serve) struct HttpLimits {
    /// Longest body, in bytes.
    pub(in crate::serve) body_max: usize,
    /// Memory for bodies that all connections share.
    pub(in crate::serve) budget: Budget,
    /// Longest time from a request's first byte to its last. For the first request, this time begins with the
    /// connection.
    pub(in crate::serve) request_time: Duration,
    /// Longest pause between two requests.
    pub(in crate::serve) idle_time: Duration,
    /// Longest silence of a stream before it sends a keep-alive.
    pub(in crate::serve) quiet_time: Duration,
    /// Origins of the web pages whose scripts may send requests.
    pub(in crate::serve) origins: Vec<String>,
}

/// A client's connection.
pub(in crate::serve) struct Connection {
    socket: Arc<Socket>,
    limits: HttpLimits,
    /// Deadline of the first request; `None` once its reading has begun.
    first_end: Option<Instant>,
    /// Bytes that were read but not used yet.
    read: Vec<u8>,
    /// The share of the budget that the request's body takes.
    reserved: Reserved,
    /// CORS headers for the request's page; empty unless the page is allowed.
    allowed: String,
    /// Whether the answer has begun with [`VERSION`] already.
    has_begun: bool,
    /// When a stream that began before its answer last said something; `None` if there is no such stream.
    early: Option<Instant>,
    /// Bytes written for all answers.
    sent_bytes: u64,
}

impl Connection {
    pub(in crate::serve) fn new(socket: Arc<Socket>, limits: HttpLimits) -> Connection {
        Connection {
            socket,
            reserved: limits.budget.reserve_none(),
            first_end: Some(Instant::now() + limits.request_time),
            limits,
            read: Vec::new(),
            allowed: String::new(),
            has_begun: false,
            early: None,
            sent_bytes: 0,
        }
    }

    /// The next request; `None` if the client has no more.
    ///
    /// # Errors
    /// If the request is malformed, too long or too slow.
    pub(in crate::serve) fn request(&mut self) -> Result<Option<Request>, HttpError> {
        self.reserved = self.limits.budget.reserve_none();
        self.allowed.clear();
        self.early = None;
        let first_end = self.first_end.take();
        if self.read.is_empty() {
            let idle_end = first_end.unwrap_or_else(|| Instant::now() + self.limits.idle_time);
            match self.fill(idle_end) {
                Ok(0) | Err(_) => return Ok(None),
                Ok(_) => {}
            }
        }
        let end = first_end.unwrap_or_else(|| Instant::now() + self.limits.request_time);
        let Some(head) = self.head(end)? else { return Ok(None) };
        let Head { mut request, body, bytes } = head;
        self.read.drain(..bytes);
        self.allow(&request);
        let Body { length, expects_continue } = body?;
        if let BodyLength::Bytes(n) = length {
            self.reserve(n)?;
        }
        if expects_continue && length != BodyLength::Bytes(0) {
            let word = self.write("HTTP/1.1 100 Continue\r\n\r\n");
            word.map_err(|_| HttpError::new(400, "the client went away"))?;
        }
        request.body = match length {
            BodyLength::Bytes(n) => self.body(n as usize, end)?,
            BodyLength::Chunked => self.chunked_body(end)?,
        };
        Ok(Some(request))
    }

    /// Whether the page that sent the request may see its answer.
    pub(in crate::serve) fn is_allowed(&self) -> bool {
        !self.allowed.is_empty()
    }

    /// Lets the page that sent `request` see the answer, and send the header fields that it asks for, if its origin is
    /// allowed.
    fn allow(&mut self, request: &Request) {
        let Some(origin) = &request.origin else { return };
        if !self.limits.origins.iter().any(|allowed| allowed == "*" || allowed == origin) {
            return;
        }
        self.allowed = format!(
            "Access-Control-Allow-Origin: {origin}\r\n\
             Vary: Origin, Access-Control-Request-Headers\r\n\
             Access-Control-Allow-Headers: {}\r\n\
             Access-Control-Allow-Methods: GET, HEAD, POST\r\n",
            request.asked_fields.as_deref().unwrap_or("authorization, content-type")
        );
    }

    fn head(&mut self, end: Instant) -> Result<Option<Head>, HttpError> {
        loop {
            match head::parse(&self.read)? {
                Some(head) if head.bytes <= HEAD_MAX => return Ok(Some(head)),
                None if self.read.len() < HEAD_MAX => {}
                _ => {
                    return Err(HttpError::new(
                        431,
                        format!("the head is longer than {HEAD_MAX} bytes"),
                    ));
                }
            }
            if self.fill_or_fail(end)? == 0 {
                return Ok(None);
            }
        }
    }

    fn body(&mut self, bytes: usize, end: Instant) -> Result<Vec<u8>, HttpError> {
        while self.read.len() < bytes {
            self.fill_whole(end)?;
        }
        let rest = self.read.split_off(bytes);
        Ok(std::mem::replace(&mut self.read, rest))
    }

    fn chunked_body(&mut self, end: Instant) -> Result<Vec<u8>, HttpError> {
        let mut body = Vec::new();
        loop {
            match body::chunk(&self.read, self.limits.body_max - body.len())? {
                ChunkStep::Wait => {
                    let n = self.fill_whole(end)?;
                    self.reserve(n as u64)?;
                }
                ChunkStep::Data { line, data } => {
                    body.extend_from_slice(&self.read[line..line + data]);
                    self.read.drain(..line + data + 2);
                }
                ChunkStep::End { bytes } => {
                    self.read.drain(..bytes);
                    return Ok(body);
                }
            }
        }
    }

    fn reserve(&mut self, bytes: u64) -> Result<(), HttpError> {
        let max = self.limits.body_max;
        let bytes = usize::try_from(bytes).ok().filter(|&bytes| bytes <= max);
        let Some(bytes) = bytes else {
            return Err(HttpError::new(413, format!("the body is longer than {max} bytes")));
        };
        match self.reserved.grow(bytes) {
            true => Ok(()),
            false => Err(HttpError::new(503, "other requests take all memory for bodies")),
        }
    }

    /// Reads more of a request that has begun; returns how many bytes.
    fn fill_whole(&mut self, end: Instant) -> Result<usize, HttpError> {
        match self.fill_or_fail(end)? {
            0 => Err(HttpError::new(400, "the request ends too soon")),
            n => Ok(n),
        }
    }

    fn fill_or_fail(&mut self, end: Instant) -> Result<usize, HttpError> {
        self.fill(end).map_err(|e| match e.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                HttpError::new(408, "the request takes too long to come")
            }
            _ => HttpError::new(400, "the request ends too soon"),
        })
    }

    /// Reads available bytes, or waits for some until `end`. Returns 0 if the client sends no more.
    fn fill(&mut self, end: Instant) -> io::Result<usize> {
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.socket.set_read_timeout(left)?;
            let mut bytes = [0; READ_BYTES];
            match self.socket.read(&mut bytes) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                read => {
                    let n = read?;
                    self.read.extend_from_slice(&bytes[..n]);
                    return Ok(n);
                }
            }
        }
    }

    /// Bytes written so far for all answers.
    pub(in crate::serve) fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    /// Checks on a client that waits for its whole answer. A client that has closed its sending half may still read, so
    /// it gets the bytes with which all answers begin. If it is gone, its system rejects these, and the next check sees
    /// that.
    ///
    /// # Errors
    /// If the client went away.
    pub(in crate::serve) fn look_after(&mut self) -> io::Result<()> {
        if self.socket.is_hung_up() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if !self.has_begun && self.socket.has_ended() {
            self.write(VERSION)?;
            self.has_begun = true;
        }
        Ok(())
    }

    /// Checks on a client that waits for the beginning of a stream since some time. After a silence the stream begins with
    /// `word`, so that no proxy takes the connection for dead; [`Connection::stream`] goes on with it.
    ///
    /// # Errors
    /// If the client went away, or does not read.
    pub(in crate::serve) fn look_after_stream(
        &mut self,
        request: &Request,
        (content_type, since): (&str, Instant),
        word: impl FnOnce() -> String,
    ) -> io::Result<()> {
        if self.early.unwrap_or(since).elapsed() >= self.limits.quiet_time {
            self.stream(request, content_type)?.send(&word())?;
            self.early = Some(Instant::now());
        }
        match self.early {
            Some(_) if self.socket.is_hung_up() => Err(io::ErrorKind::BrokenPipe.into()),
            Some(_) => Ok(()),
            None => self.look_after(),
        }
    }

    /// Whether a stream has begun before its answer.
    pub(in crate::serve) fn has_begun_stream(&self) -> bool {
        self.early.is_some()
    }

    /// Answers `request`.
    ///
    /// # Errors
    /// If the client went away, or does not read.
    pub(in crate::serve) fn send(&mut self, reply: &Reply, request: &Request) -> io::Result<()> {
        let mut head = self.head_of(reply, request.is_kept_alive);
        if !request.wants_no_body() {
            head += &reply.body;
        }
        self.write(&head)
    }

    /// Sends the last answer, to a request that may not have been understood, and ends the connection so that
    /// the client can read the answer: closing a socket with unread bytes would discard it.
    pub(in crate::serve) fn refuse(&mut self, reply: &Reply) {
        let head = self.head_of(reply, false);
        // A client that went away needs no answer.
        let _ = self.write(&(head + &reply.body));
        self.socket.stop_sending();
        let end = Instant::now() + LINGER;
        while !self.read.is_empty() || matches!(self.fill(end), Ok(1..)) {
            self.read.clear();
        }
    }

    fn head_of(&mut self, reply: &Reply, is_kept_alive: bool) -> String {
        let Reply { status, content_type, body, retry_after, fields } = reply;
        let mut head = self.status_line(*status, content_type, is_kept_alive);
        if let Some(seconds) = retry_after {
            head += &format!("Retry-After: {seconds}\r\n");
        }
        head + &format!("{fields}Content-Length: {}\r\n\r\n", body.len())
    }

    /// Begins an answer to `request` whose pieces follow, or goes on with one that has begun early.
    ///
    /// # Errors
    /// As for [`Connection::send`].
    pub(in crate::serve) fn stream(
        &mut self,
        request: &Request,
        content_type: &str,
    ) -> io::Result<Streaming<'_>> {
        let has_chunks = request.has_chunks;
        if self.early.take().is_none() {
            let mut head = self.status_line(200, content_type, request.outlives_stream());
            head += "Cache-Control: no-cache\r\n";
            head += if has_chunks { "Transfer-Encoding: chunked\r\n\r\n" } else { "\r\n" };
            self.write(&head)?;
        }
        let Connection { socket, sent_bytes, limits, .. } = self;
        let (quiet_time, last_sent) = (limits.quiet_time, Instant::now());
        Ok(Streaming { socket, sent_bytes, has_chunks, quiet_time, last_sent, is_probed: false })
    }

    fn status_line(&mut self, status: u16, content_type: &str, is_kept_alive: bool) -> String {
        let connection = if is_kept_alive { "keep-alive" } else { "close" };
        let reason = reason(status);
        let version = if std::mem::take(&mut self.has_begun) { "" } else { VERSION };
        let allowed = &self.allowed;
        format!(
            "{version}{status} {reason}\r\nContent-Type: {content_type}\r\nConnection: {connection}\r\n\
             X-Content-Type-Options: nosniff\r\n{allowed}"
        )
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        self.sent_bytes += text.len() as u64;
        self.socket.write_all(text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::channel;
    use std::thread;

    #[test]
    fn a_first_request_that_does_not_come_keeps_no_connection() {
        let (client, socket) = UnixStream::pair().unwrap();
        let day = Duration::from_secs(86_400);
        let limits = HttpLimits {
            body_max: 1 << 10,
            budget: Budget::new(1 << 10),
            request_time: Duration::from_millis(1),
            idle_time: day,
            quiet_time: day,
            origins: Vec::new(),
        };
        let mut connection = Connection::new(Arc::new(Socket::Unix(socket)), limits);
        let (sender, receiver) = channel();
        // The receiver may have given up.
        thread::spawn(move || _ = sender.send(connection.request()));
        let request = receiver.recv_timeout(Duration::from_secs(120));
        assert_eq!(request.expect("it waits for a whole day"), Ok(None));
        drop(client);
    }

    #[test]
    fn a_stream_that_begins_early_has_one_head() {
        let (mut client, socket) = UnixStream::pair().unwrap();
        let (none, day) = (Duration::ZERO, Duration::from_secs(86_400));
        let limits = HttpLimits {
            body_max: 1 << 10,
            budget: Budget::new(1 << 10),
            request_time: day,
            idle_time: day,
            quiet_time: none,
            origins: Vec::new(),
        };
        let mut connection = Connection::new(Arc::new(Socket::Unix(socket)), limits);
        let (request, kind) = (Request::default(), "text/event-stream");
        for _ in 0..2 {
            let wait =
                connection.look_after_stream(&request, (kind, Instant::now()), || "w;".into());
            assert!(wait.is_ok() && connection.has_begun_stream());
        }
        let mut streaming = connection.stream(&request, kind).unwrap();
        streaming.send("text").unwrap();
        streaming.finish().unwrap();
        assert!(!connection.has_begun_stream());
        drop(connection);
        let mut told = String::new();
        client.read_to_string(&mut told).unwrap();
        assert_eq!(told.matches("HTTP/1.1 200 OK").count(), 1, "{told}");
        assert!(told.ends_with("\r\n\r\nw;w;text"), "{told}");
    }
}
