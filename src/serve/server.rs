//! Accepts connections and routes each request to its endpoint.

use std::io;
use std::net::{TcpListener, ToSocketAddrs};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::access::{AccessLog, Answered};
use super::answer::Sent;
use super::asked::Asked;
use super::early::{self, Early};
use super::error::ApiError;
use super::fields::Fields;
use super::http::{Connection, HttpLimits, Reply, Request, Socket, Streaming};
use super::keep_alive::KeepAlive;
use super::keys::ApiKeys;
use super::lobby::{Admission, Lobby};
use super::lost::{GivenUp, Lost};
use super::models::Models;
use super::service::Service;
use super::{embeddings, ollama, openai, origin, page, plain, pull, responses};
use crate::sys::{activation, net};

/// Longest time for which a client may leave an answer unread.
const WRITE_TIME: Duration = Duration::from_secs(30);
/// How long clients may take to read complete answers when the program ends.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// How long a listener waits after a failed accept, for example when file descriptors run out.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(50);
/// Start of a model's path, which goes on with its name.
const A_MODEL: &str = "/v1/models/";
/// Stack of a connection's thread: JSON of the deepest nesting fits.
const STACK_BYTES: usize = 512 << 10;

/// An address that clients connect to.
pub(crate) enum ListenSocket {
    /// A network socket.
    Tcp(TcpListener),
    /// A Unix socket.
    Unix(UnixListener),
}

impl From<activation::Listener> for ListenSocket {
    fn from(listener: activation::Listener) -> ListenSocket {
        match listener {
            activation::Listener::Tcp(listener) => ListenSocket::Tcp(listener),
            activation::Listener::Unix(listener) => ListenSocket::Unix(listener),
        }
    }
}

impl ListenSocket {
    /// Listens on `HOST:PORT`.
    ///
    /// # Errors
    /// If there is no such address here, or another program has it.
    pub(crate) fn tcp(address: &str) -> io::Result<ListenSocket> {
        let addresses: Vec<_> = address.to_socket_addrs()?.collect();
        TcpListener::bind(&*addresses).map(ListenSocket::Tcp)
    }

    /// The listener's address: HOST:PORT, or the file's path.
    pub(crate) fn address(&self) -> String {
        let file = |listener: &UnixListener| {
            let address = listener.local_addr().ok()?;
            Some(address.as_pathname()?.display().to_string())
        };
        let address = match self {
            ListenSocket::Tcp(listener) => listener.local_addr().ok().map(|a| a.to_string()),
            ListenSocket::Unix(listener) => file(listener),
        };
        address.unwrap_or_default()
    }

    /// Whether only programs of this machine can connect.
    pub(crate) fn is_local(&self) -> bool {
        match self {
            ListenSocket::Tcp(listener) => {
                listener.local_addr().is_ok_and(|a| a.ip().is_loopback())
            }
            ListenSocket::Unix(_) => true,
        }
    }

    fn accept(&self) -> io::Result<Socket> {
        match self {
            ListenSocket::Tcp(listener) => listener.accept().map(|(stream, _)| Socket::Tcp(stream)),
            ListenSocket::Unix(listener) => {
                listener.accept().map(|(stream, _)| Socket::Unix(stream))
            }
        }
    }
}

/// State that connections share.
pub(super) struct Server {
    pub(super) models: Arc<Models>,
    pub(super) keys: ApiKeys,
    pub(super) limits: HttpLimits,
    pub(super) access_log: AccessLog,
    pub(super) lobby: Lobby,
    pub(super) lost: Lost,
    pub(super) given_up: Arc<GivenUp>,
    /// Requests that have come but are not answered yet.
    pub(super) n_answering: AtomicUsize,
}

/// Accepts connections on `listener` for as long as the process lives. Each connection gets a thread.
pub(super) fn accept(server: &Arc<Server>, listener: &ListenSocket) {
    loop {
        let socket = match listener.accept() {
            Ok(socket) => socket,
            Err(e) if net::is_out_of_files(&e) && server.lobby.dismiss_longest_waiting() => {
                continue;
            }
            Err(_) => {
                thread::sleep(SHORTAGE_PAUSE);
                continue;
            }
        };
        let Some(place) = Place::take(server, socket) else { continue };
        let thread = thread::Builder::new().name("http".to_owned()).stack_size(STACK_BYTES);
        // If no thread can start, the socket is dropped, which its client sees.
        let _ = thread.spawn(move || place.serve());
    }
}

/// A connection's place among all of them.
pub(super) struct Place {
    server: Arc<Server>,
    socket: Arc<Socket>,
    id: u64,
    is_one_too_many: bool,
}

impl Place {
    /// A place for one more connection; `None` if there are so many that it is closed without an answer.
    pub(super) fn take(server: &Arc<Server>, socket: Socket) -> Option<Place> {
        let socket = Arc::new(socket);
        let (id, is_one_too_many) = match server.lobby.admit(&socket) {
            Admission::Place(id) => (id, false),
            Admission::NoPlace(id) => (id, true),
            Admission::Closed => return None,
        };
        Some(Place { server: Arc::clone(server), socket, id, is_one_too_many })
    }

    /// Answers the requests of the connection, until it ends.
    pub(super) fn serve(&self) {
        let server = &*self.server;
        if self.socket.prepare(WRITE_TIME).is_err() {
            return;
        }
        let client = self.socket.client();
        let mut connection = Connection::new(Arc::clone(&self.socket), server.limits.clone());
        if self.is_one_too_many {
            let error = ApiError::new(503, "too many connections: try again later");
            return server.refuse(&mut connection, &error, &client);
        }
        loop {
            match connection.request() {
                Ok(None) => return,
                Ok(Some(request)) => {
                    server.n_answering.fetch_add(1, Ordering::Relaxed);
                    let (start, before) = (Instant::now(), connection.sent_bytes());
                    let (status, is_kept) = server.answer((&mut connection, self.id), &request);
                    server.lobby.end_work(self.id);
                    let (time, sent_bytes) = (start.elapsed(), connection.sent_bytes() - before);
                    let answered = Answered { status, time, sent_bytes };
                    server.access_log.tell(Some(&request), &client, &answered);
                    server.n_answering.fetch_sub(1, Ordering::Relaxed);
                    if !is_kept {
                        return;
                    }
                }
                Err(error) => return server.refuse(&mut connection, &error.into(), &client),
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.server.lobby.forget(self.id);
    }
}

impl Server {
    /// Waits until clients have read the last answers.
    pub(super) fn let_clients_read(&self) {
        let end = Instant::now() + LAST_WORDS;
        while self.n_answering.load(Ordering::Relaxed) > 0 && Instant::now() < end {
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Tells a client that its connection ends, and why.
    fn refuse(&self, connection: &mut Connection, error: &ApiError, client: &str) {
        self.models.count_request(error.status);
        let (start, before) = (Instant::now(), connection.sent_bytes());
        connection.refuse(&error.reply(false));
        let (time, sent_bytes) = (start.elapsed(), connection.sent_bytes() - before);
        let answered = Answered { status: Some(error.status), time, sent_bytes };
        self.access_log.tell(None, client, &answered);
    }

    /// Answers a request. Returns the status, `None` if the client went away, and whether the connection stays open.
    fn answer(
        &self,
        (connection, id): (&mut Connection, u64),
        request: &Request,
    ) -> (Option<u16>, bool) {
        let is_ollama = request.path.starts_with("/api/");
        let sent = match self.admit(connection, request) {
            // A request without a key does not make its client known to the lobby.
            Ok(()) if is_open(request) || self.lobby.begin_work(id) => {
                self.route(connection, request)
            }
            Ok(()) => return (None, false),
            Err(error) => Err(error),
        };
        let reply = match sent {
            Ok(Sent::Reply(reply)) => reply,
            Ok(Sent::Streamed) => {
                self.models.count_request(200);
                return (Some(200), request.outlives_stream());
            }
            Ok(Sent::Failed(status)) => {
                self.models.count_request(status);
                return (Some(status), false);
            }
            Ok(Sent::Gone) => return (None, false),
            Err(error) if connection.has_begun_stream() => {
                let told = early::failed(request, &error);
                return (self.end_stream((connection, request), (error.status, told)), false);
            }
            Err(error) => error.reply(is_ollama),
        };
        if connection.has_begun_stream() {
            let told = (reply.status, reply.body.into_owned() + "\n");
            return (self.end_stream((connection, request), told), false);
        }
        self.models.count_request(reply.status);
        let is_sent = connection.send(&reply, request).is_ok();
        (is_sent.then_some(reply.status), is_sent && request.is_kept_alive)
    }

    /// Ends a stream that began before its answer, which is `told`. Returns the status, `None` if the client went away.
    fn end_stream(
        &self,
        (connection, request): (&mut Connection, &Request),
        (status, told): (u16, String),
    ) -> Option<u16> {
        self.models.count_request(status);
        let end = |mut streaming: Streaming<'_>| {
            streaming.send(&told)?;
            streaming.finish()
        };
        connection.stream(request, "").and_then(end).ok().map(|()| status)
    }

    /// Refuses web pages that are neither the server's own nor allowed, and clients without a key. Any page
    /// that a person opens could otherwise send requests in that person's name.
    fn admit(&self, connection: &Connection, request: &Request) -> Result<(), ApiError> {
        if let Some(origin) = &request.origin {
            let host = request.host.as_deref().unwrap_or_default();
            let is_own = || origin::is_own(origin, host, !self.keys.is_empty());
            if !connection.is_allowed() && !is_own() {
                let problem = format!("scripts of {origin:?} may not ask: see --allow-origin");
                return Err(ApiError::new(403, problem));
            }
        }
        match is_open(request) || self.keys.admit(&request.authorizations, &request.api_keys) {
            true => Ok(()),
            false => {
                let problem = "a key is needed: Authorization: Bearer KEY, or X-Api-Key: KEY";
                let fields = "WWW-Authenticate: Bearer\r\n";
                Err(ApiError { fields, ..ApiError::new(401, problem) })
            }
        }
    }

    fn route(&self, connection: &mut Connection, request: &Request) -> Result<Sent, ApiError> {
        let models = &*self.models;
        let path = request.path.as_str();
        // The answer to HEAD is the head of the answer to GET.
        let method = if request.method == "HEAD" { "GET" } else { &request.method };
        let reply = match (method, path) {
            ("OPTIONS", _) => Reply::text("text/plain", String::new()),
            ("GET", "/") if request.wants_html => page::page(),
            ("GET", "/" | "/health") => {
                self.check_boards()?;
                plain::health()
            }
            ("GET", "/metrics") => plain::metrics(models),
            ("GET", "/v1/models") => openai::models(models),
            ("GET", "/api/version") => ollama::version(),
            ("GET", "/api/tags") => ollama::tags(models),
            ("GET", "/api/ps") => ollama::running(models),
            ("GET", _) if path.starts_with(A_MODEL) => {
                openai::model(models, &path[A_MODEL.len()..])?
            }
            ("POST", _) => return self.post(connection, request),
            ("DELETE", "/api/delete") => {
                let deleted = pull::delete(models, &plain::parse(&request.body)?)?;
                deleted.ok_or_else(|| self.unknown(request))?
            }
            _ => return Err(self.unknown(request)),
        };
        Ok(Sent::Reply(reply))
    }

    /// Refuses requests while boards are lost, since their return cannot be predicted.
    fn check_boards(&self) -> Result<(), ApiError> {
        match (self.lost)().or_else(|| self.given_up.why()) {
            Some(why) => Err(ApiError::new(503, format!("there is no answer for now: {why}"))),
            None => Ok(()),
        }
    }

    fn post(&self, connection: &mut Connection, request: &Request) -> Result<Sent, ApiError> {
        type Endpoint = fn(&Service, &mut Connection, Asked<'_>) -> Result<Sent, ApiError>;
        let (models, path) = (&self.models, request.path.as_str());
        let endpoint: Endpoint = match path {
            "/v1/chat/completions" => openai::chat,
            "/v1/completions" => openai::complete,
            "/v1/responses" => responses::respond,
            "/api/chat" => ollama::chat,
            "/api/generate" => ollama::generate,
            "/v1/embeddings" => embeddings::openai,
            "/api/embed" => embeddings::ollama,
            "/api/embeddings" => embeddings::old_ollama,
            _ => return self.post_without_answer(connection, request),
        };
        let body = plain::parse(&request.body)?;
        let fields = Fields::of(&body, "")?;
        let model = model_of(models, &fields)?;
        if models.needs_fixed(model) {
            self.check_boards()?;
        }
        if let Some(reply) = ollama::unload(models, path, &fields)? {
            return Ok(Sent::Reply(reply));
        }
        let keep = if path.starts_with("/api/") { KeepAlive::read(&fields)? } else { None };
        let wanted = (model, keep);
        let early = Early::new(request, &fields);
        match models.lease(wanted, &mut || early.look_after(connection))? {
            Some(service) => {
                embeddings::check(&service, path)?;
                let asked = Asked { request, body: &body, waited: service.waited };
                endpoint(&service, connection, asked)
            }
            None => Ok(Sent::Gone),
        }
    }

    fn unknown(&self, request: &Request) -> ApiError {
        unknown(request, self.models.source().is_some())
    }

    /// Answers a request that needs no weights.
    fn post_without_answer(
        &self,
        connection: &mut Connection,
        request: &Request,
    ) -> Result<Sent, ApiError> {
        let (models, path) = (&*self.models, request.path.as_str());
        match (path, models.source()) {
            ("/api/show" | "/tokenize" | "/detokenize", _) => {}
            ("/api/pull", Some(source)) => {
                let body = plain::parse(&request.body)?;
                if pull::is_here(models, &body)? {
                    return Ok(Sent::Reply(Reply::json(200, &pull::success())));
                }
                return pull::pull(source, connection, (request, &body));
            }
            _ => return Err(self.unknown(request)),
        }
        let body = plain::parse(&request.body)?;
        let words = |body: &Value| models.words_of(model_of(models, &Fields::of(body, "")?)?);
        let reply = match path {
            "/api/show" => ollama::show(models, &body),
            "/tokenize" => plain::tokenize(&*words(&body)?, &body),
            _ => plain::detokenize(&*words(&body)?, &body),
        };
        reply.map(Sent::Reply)
    }
}

/// The model that a request names. A server with one model has it whatever its name: its endpoint judges that.
fn model_of<'v>(models: &Models, fields: &Fields<'v>) -> Result<Option<&'v str>, ApiError> {
    match models.source() {
        Some(_) => fields.string("model"),
        None => Ok(None),
    }
}

/// Whether a request is answered without a key.
fn is_open(request: &Request) -> bool {
    matches!(&*request.path, "/" | "/health") || request.method == "OPTIONS"
}

/// The error for an unknown path, or for a known one with another method. With `is_several`, models come and go.
fn unknown(request: &Request, is_several: bool) -> ApiError {
    const GET: [&str; 7] =
        ["/", "/health", "/metrics", "/v1/models", "/api/version", "/api/tags", "/api/ps"];
    const POST: [&str; 11] = [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/api/chat",
        "/api/generate",
        "/api/show",
        "/tokenize",
        "/detokenize",
        "/v1/embeddings",
        "/api/embed",
        "/api/embeddings",
    ];
    let Request { method, path, .. } = request;
    let (wanted, fields) = match path.as_str() {
        path if GET.contains(&path) || path.starts_with(A_MODEL) => {
            ("GET", "Allow: GET, HEAD, OPTIONS\r\n")
        }
        path if POST.contains(&path) => ("POST", "Allow: POST, OPTIONS\r\n"),
        "/api/pull" if is_several => ("POST", "Allow: POST, OPTIONS\r\n"),
        "/api/delete" if is_several => ("DELETE", "Allow: DELETE, OPTIONS\r\n"),
        path => return ApiError::new(404, format!("there is no {path} here")),
    };
    let problem = format!("{path} is asked with {wanted}, not {method}");
    ApiError { fields, ..ApiError::new(405, problem) }
}
