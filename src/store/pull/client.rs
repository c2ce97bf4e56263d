//! Requests to a hub or registry: redirects, credentials, and which failures may pass.

use std::io::Read;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use ureq::http::{Response, Uri};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::typestate::WithoutBody;
use ureq::{Agent, Body, Error, RequestBuilder, Timeout};

use super::proxy::NamedProxy;
use super::shared::Shared;
use crate::store::error::StoreError;

/// Attempts without a new byte after which a download ends.
pub(super) const ATTEMPTS: u32 = 5;
/// Longest wait that a server may ask for.
const WAIT_MAX: Duration = Duration::from_secs(120);
/// Longest time that a list may take to arrive.
const LIST_TIME: Duration = Duration::from_secs(120);
/// Longest silence of a server.
const SILENCE: Duration = Duration::from_secs(30);
const REDIRECTS_MAX: usize = 5;
/// Longest explanation of a failure that is read.
const EXPLANATION_BYTES: u64 = 16 << 10;

/// The failure to find a host.
const NO_ADDRESS: &str = "it has no address: is there a network?";

/// Sends requests to one hub or registry, and to where it redirects to.
pub(super) struct Client {
    agent: Agent,
    /// `scheme://HOST[:PORT]` of the hub or registry: the token is for it alone.
    origin: String,
    token: Option<String>,
    proxy: Option<NamedProxy>,
}

/// An answer whose body was not read yet.
pub(super) struct Answer {
    pub(super) status: u16,
    response: Response<Body>,
}

/// The failure of a request.
#[derive(Debug)]
pub(super) enum Trouble {
    /// An answer other than the one wanted.
    Status {
        status: u16,
        /// The hub's own name of the failure, as in `GatedRepo`.
        code: String,
        /// When to ask again, if the server says so.
        retry_after: Option<Duration>,
    },
    /// A connection that failed or ended early.
    Connection(String),
    /// A failure that will not pass.
    Final(StoreError),
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Trouble {
        Trouble::Final(error)
    }
}

impl Client {
    /// Sends requests to `origin`, by the proxy that the environment names.
    ///
    /// # Errors
    /// If the environment names one that cannot be used.
    pub(super) fn new(origin: &str, token: Option<String>) -> Result<Client, StoreError> {
        let proxy = NamedProxy::of_environment(origin)?;
        let tls = TlsConfig::builder().root_certs(roots()).build();
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_connect(Some(Duration::from_secs(15)))
            .timeout_recv_response(Some(SILENCE))
            .timeout_per_read(Some(SILENCE))
            .user_agent(concat!("leap/", env!("CARGO_PKG_VERSION")))
            .tls_config(tls)
            .proxy(proxy.as_ref().map(|named| named.proxy.clone()))
            .build();
        let origin = origin.trim_end_matches('/').to_owned();
        Ok(Client { agent: config.into(), origin, token, proxy })
    }

    pub(super) fn origin(&self) -> &str {
        &self.origin
    }

    pub(super) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Host of the hub or registry.
    pub(super) fn host(&self) -> &str {
        host(&self.origin)
    }

    /// The answer to `GET url` with `fields`, after redirects.
    pub(super) fn get(&self, url: &str, fields: &[(&str, &str)]) -> Result<Answer, Trouble> {
        self.get_within((url, fields), None)
    }

    /// The answer to `GET url` with `fields`, after redirects; each of them, with its body, within `time`.
    fn get_within(
        &self,
        (url, fields): (&str, &[(&str, &str)]),
        time: Option<Duration>,
    ) -> Result<Answer, Trouble> {
        let mut url = url.to_owned();
        for _ in 0..=REDIRECTS_MAX {
            let mut request = self.agent.get(&url);
            for (name, value) in fields {
                request = request.header(*name, *value);
            }
            let is_own = url.strip_prefix(&self.origin).is_some_and(|path| path.starts_with('/'));
            if let Some(token) = self.token.as_ref().filter(|_| is_own) {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            let request = request.config().timeout_global(time).build();
            let response = self.call(request).map_err(|e| self.failed(&e, &url))?;
            let answer = Answer { status: response.status().as_u16(), response };
            if !matches!(answer.status, 301 | 302 | 303 | 307 | 308) {
                return Ok(answer);
            }
            let place = answer.field("location").unwrap_or_default();
            url = redirected(&url, place).ok_or_else(|| {
                // A signature may follow a question mark.
                let place = place.split('?').next().unwrap_or_default();
                let why = format!("{} redirects to {place:?}", host(&url));
                StoreError::Runtime(why)
            })?;
        }
        Err(StoreError::Runtime(format!("{} redirects too often", host(&url))).into())
    }

    /// The response to `request`. A proxy that never ends its answer is not listened to for ever.
    fn call(&self, request: RequestBuilder<WithoutBody>) -> Result<Response<Body>, Error> {
        if self.proxy.is_none() {
            return request.call();
        }
        let (done, answer) = mpsc::channel();
        let thread = thread::Builder::new().name("leap-proxy".to_owned());
        // The caller may have given up.
        let work = move || drop(done.send(request.call()));
        thread.spawn(work).map_err(Error::Io)?;
        answer.recv_timeout(SILENCE).unwrap_or(Err(Error::Timeout(Timeout::Connect)))
    }

    /// The failure of a request to `url`.
    fn failed(&self, error: &Error, url: &str) -> Trouble {
        let is_spared =
            |named: &&NamedProxy| url.parse().is_ok_and(|url: Uri| named.proxy.is_no_proxy(&url));
        let proxy = self.proxy.as_ref().filter(|named| !is_spared(named));
        match (failed(error, host(url)), proxy) {
            (_, Some(named)) if matches!(error, Error::ConnectProxyFailed(_)) => {
                let wants = if error.to_string().contains("407") {
                    ": it wants a name and a password, as http://NAME:PASSWORD@HOST:PORT"
                } else {
                    ""
                };
                StoreError::Runtime(format!("{}: {error}, {}{wants}", host(url), named.words()))
                    .into()
            }
            (Trouble::Connection(why), Some(named)) => {
                Trouble::Connection(format!("{why}, {}", named.words()))
            }
            (trouble, _) => trouble,
        }
    }

    /// The body of the answer to `GET url`; it may have `bytes_max` bytes.
    pub(super) fn body(
        &self,
        (url, fields): (&str, &[(&str, &str)]),
        bytes_max: u64,
        shared: &Shared,
    ) -> Result<Vec<u8>, Trouble> {
        let attempt = || -> Result<Vec<u8>, Trouble> {
            let answer = self.get_within((url, fields), Some(LIST_TIME))?.wanted(&[200])?;
            let mut bytes = Vec::new();
            let read = answer.into_reader().take(bytes_max + 1).read_to_end(&mut bytes);
            read.map_err(|e| Trouble::of_read(&e))?;
            match bytes.len() as u64 <= bytes_max {
                true => Ok(bytes),
                false => {
                    let why = format!("{} sends a list of over {bytes_max} bytes", host(url));
                    Err(StoreError::Runtime(why).into())
                }
            }
        };
        let mut n_failed = 0;
        loop {
            match attempt() {
                Err(trouble) if trouble.may_pass() && n_failed + 1 < ATTEMPTS => {
                    let pause = trouble.pause(n_failed);
                    shared.wait_for(trouble.explain(host(url)), pause)?;
                    n_failed += 1;
                }
                result => return result,
            }
        }
    }
}

impl Answer {
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name).and_then(|value| value.to_str().ok())
    }

    pub(super) fn into_reader(self) -> impl Read {
        self.response.into_body().into_reader()
    }

    /// This answer if its status is among `statuses`.
    pub(super) fn wanted(self, statuses: &[u16]) -> Result<Answer, Trouble> {
        if statuses.contains(&self.status) {
            return Ok(self);
        }
        let code = self.field("x-error-code").unwrap_or_default().to_owned();
        let seconds = self.field("retry-after").and_then(|seconds| seconds.trim().parse().ok());
        let (status, retry_after) = (self.status, seconds.map(Duration::from_secs));
        // Reading the rest keeps the connection for the next request.
        let _ = self.into_reader().take(EXPLANATION_BYTES).read_to_end(&mut Vec::new());
        Err(Trouble::Status { status, code, retry_after })
    }
}

impl Trouble {
    /// The failure to read from a connection.
    pub(super) fn of_read(error: &std::io::Error) -> Trouble {
        Trouble::Connection(match error.kind() {
            std::io::ErrorKind::UnexpectedEof => Trouble::ENDED.to_owned(),
            std::io::ErrorKind::TimedOut => format!("silent for {} s", SILENCE.as_secs()),
            _ if error.to_string().starts_with("timeout") => {
                format!("silent for {} s", SILENCE.as_secs())
            }
            _ => error.to_string(),
        })
    }

    /// A connection that ended before its answer did.
    pub(super) const ENDED: &str = "the connection ended early";

    /// Whether another attempt may succeed.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Trouble::Status { status, retry_after, .. } => {
                let is_passing = matches!(status, 408 | 429 | 500 | 502 | 503 | 504);
                is_passing && retry_after.is_none_or(|time| time <= WAIT_MAX)
            }
            Trouble::Connection(_) => true,
            Trouble::Final(_) => false,
        }
    }

    /// How long to wait before another attempt, after `n_failed` others.
    pub(super) fn pause(&self, n_failed: u32) -> Duration {
        match self {
            Trouble::Status { retry_after: Some(time), .. } => *time,
            _ => Duration::from_millis(500 << n_failed.min(4)),
        }
    }

    /// The failure in words; `host` is the server.
    pub(super) fn explain(self, host: &str) -> StoreError {
        StoreError::Runtime(match self {
            Trouble::Final(error) => return error,
            Trouble::Connection(why) => format!("{host}: {why}"),
            Trouble::Status { status: 429, retry_after, .. } => {
                let when = retry_after.map_or(String::new(), |t| format!(" in {} s", t.as_secs()));
                format!("{host} takes no more requests for now (429): try again later{when}")
            }
            Trouble::Status { status, code, .. } if code.is_empty() => {
                format!("{host} answers with status {status}")
            }
            Trouble::Status { status, code, .. } => {
                format!("{host} answers with status {status}, {code}")
            }
        })
    }
}

/// The certificates that are trusted: the system's (`SSL_CERT_FILE` and `SSL_CERT_DIR` name others), or Mozilla's where
/// the system has none, as in a container.
fn roots() -> RootCerts {
    let system = rustls_native_certs::load_native_certs().certs;
    match system.is_empty() {
        true => RootCerts::WebPki,
        false => {
            let all = system.iter().map(|one| Certificate::from_der(one).to_owned());
            RootCerts::Specific(Arc::new(all.collect()))
        }
    }
}

/// The failure of a request to `host`.
fn failed(error: &Error, host: &str) -> Trouble {
    let why = match error {
        Error::HostNotFound => NO_ADDRESS.to_owned(),
        Error::Tls(_) | Error::Rustls(_) => {
            return StoreError::Runtime(untrusted(&error.to_string(), host)).into();
        }
        Error::BadUri(_) | Error::Http(_) | Error::RequireHttpsOnly(_) => {
            return StoreError::Runtime(format!("{host}: {error}")).into();
        }
        Error::Timeout(_) => format!("no answer for {} s", SILENCE.as_secs()),
        // A certificate that is not trusted ends the handshake as an error of reading.
        Error::Io(e) if e.kind() == std::io::ErrorKind::InvalidData => {
            return StoreError::Runtime(untrusted(&e.to_string(), host)).into();
        }
        Error::Io(e) if e.to_string().contains("lookup address") => format!("{NO_ADDRESS} ({e})"),
        Error::Io(e) => return Trouble::of_read(e),
        other => other.to_string(),
    };
    Trouble::Connection(why)
}

fn untrusted(why: &str, host: &str) -> String {
    format!(
        "{host} has no certificate that this machine trusts ({why}); SSL_CERT_FILE names others"
    )
}

/// `HOST[:PORT]` of `url`.
fn host(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let place = rest.split(['/', '?', '#']).next().unwrap_or_default();
    // A name and password may stand before it.
    place.rsplit('@').next().unwrap_or_default()
}

/// The address that `place`, a redirect of `url`, means. `None` if it means none, or gives up encryption.
fn redirected(url: &str, place: &str) -> Option<String> {
    let (scheme, _) = url.split_once("://")?;
    if place.starts_with("//") {
        return Some(format!("{scheme}:{place}"));
    }
    if place.starts_with('/') {
        let end = url.len() - url.split_once("://")?.1.len();
        let authority = url[end..].split(['/', '?', '#']).next()?;
        return Some(format!("{scheme}://{authority}{place}"));
    }
    let is_kept =
        place.starts_with("https://") || (scheme == "http" && place.starts_with("http://"));
    is_kept.then(|| place.to_owned())
}

/// `path` with all bytes escaped that have a meaning in an address, but for `/`.
pub(super) fn escaped(path: &str) -> String {
    let mut text = String::new();
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                text.push(char::from(byte));
            }
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_stay_encrypted() {
        let from = "https://hub.example:8443/a/b?c";
        for (place, wanted) in [
            ("https://cdn.example/x?s=1", Some("https://cdn.example/x?s=1")),
            ("/x", Some("https://hub.example:8443/x")),
            ("//cdn.example/x", Some("https://cdn.example/x")),
            ("http://cdn.example/x", None),
            ("file:///etc/passwd", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(redirected(from, place).as_deref(), wanted, "{place}");
        }
        let plain = redirected("http://127.0.0.1:1/a", "http://127.0.0.1:2/b");
        assert_eq!(plain.as_deref(), Some("http://127.0.0.1:2/b"));
        assert_eq!(escaped("a b/ü+#?.gguf"), "a%20b/%C3%BC%2B%23%3F.gguf");
    }
}
