//! The head of a request: method, path and fields, and how long the body is.

use super::HttpError;

/// Most fields of a head.
const FIELDS_MAX: usize = 64;

/// A request with its body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::serve) struct Request {
    pub(in crate::serve) method: String,
    /// The path, without what follows a `?`, without empty parts, and without a `/` at its end.
    pub(in crate::serve) path: String,
    /// The server's name as the client knows it: HOST, or HOST:PORT.
    pub(in crate::serve) host: Option<String>,
    /// Header fields that a page wants to send; its browser asks for permission beforehand.
    pub(super) asked_fields: Option<String>,
    /// Whether the client accepts HTML.
    pub(in crate::serve) wants_html: bool,
    /// Origin of the web page that sent the request.
    pub(in crate::serve) origin: Option<String>,
    /// The fields `Authorization`.
    pub(in crate::serve) authorizations: Vec<String>,
    /// The fields `X-Api-Key` and `api-key`.
    pub(in crate::serve) api_keys: Vec<String>,
    pub(in crate::serve) body: Vec<u8>,
    /// Whether the connection stays open for another request.
    pub(in crate::serve) is_kept_alive: bool,
    /// Whether the client understands chunks: HTTP/1.1.
    pub(super) has_chunks: bool,
}

impl Request {
    /// Whether the connection can stay open after a streamed answer. Without chunks, only the connection's end ends the
    /// answer.
    pub(in crate::serve) fn outlives_stream(&self) -> bool {
        self.is_kept_alive && self.has_chunks
    }

    /// Whether the answer consists of a head alone.
    pub(super) fn wants_no_body(&self) -> bool {
        self.method == "HEAD"
    }
}

/// How a request tells where its body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyLength {
    Bytes(u64),
    Chunked,
}

/// A head that is complete.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) request: Request,
    /// How the body comes; the error if a field cannot be followed. The page that sent the request may see the error,
    /// for which its origin has to be known.
    pub(super) body: Result<Body, HttpError>,
    /// Length of the head.
    pub(super) bytes: usize,
}

/// How a body comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Body {
    pub(super) length: BodyLength,
    /// Whether the client waits for `100 Continue` before it sends the body.
    pub(super) expects_continue: bool,
}

/// The head at the start of `bytes`; `None` if the head's end has not come yet.
pub(super) fn parse(bytes: &[u8]) -> Result<Option<Head>, HttpError> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut parsed = httparse::Request::new(&mut fields);
    let bytes = match parsed.parse(bytes) {
        Ok(httparse::Status::Complete(bytes)) => bytes,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => {
            return Err(HttpError::new(431, format!("more than {FIELDS_MAX} header fields")));
        }
        Err(e) => return Err(HttpError::new(400, format!("this is no HTTP request: {e}"))),
    };
    let is_new = parsed.version == Some(1);
    let (authority, path) = target(parsed.path.unwrap_or_default());
    let request = Request {
        method: parsed.method.unwrap_or_default().to_owned(),
        path,
        is_kept_alive: is_new,
        has_chunks: is_new,
        ..Request::default()
    };
    let mut reader = FieldReader::new(request);
    let mut fault = None;
    for field in parsed.headers.iter() {
        fault = fault.or(reader.read(field.name, field.value).err());
    }
    // A host in the first line overrides the field `Host` (RFC 9112, section 3.2.2).
    if let Some(authority) = authority {
        reader.request.host = Some(authority);
    }
    let body = fault.map_or_else(|| reader.body(), Err);
    Ok(Some(Head { request: reader.request, body, bytes }))
}

/// Host and path of a request's target: a path, or an absolute address as proxies get it.
///
/// Programs join a base address that ends in `/` and paths that begin with one, so parts may be empty.
fn target(target: &str) -> (Option<String>, String) {
    let end = target.find(['?', '#']).unwrap_or(target.len());
    let named = &target[..end];
    let after_scheme = match named.split_once("://") {
        Some((scheme, rest))
            if ["http", "https"].iter().any(|s| scheme.eq_ignore_ascii_case(s)) =>
        {
            Some(rest)
        }
        _ => None,
    };
    let (authority, path) = match after_scheme {
        None => (None, named),
        Some(rest) => {
            let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            (Some(authority.to_owned()), path)
        }
    };
    if !path.starts_with('/') && !path.is_empty() {
        return (authority, path.to_owned());
    }
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    (authority, format!("/{}", parts.join("/")))
}

/// Whether `names` is a list of names that fields may have.
fn is_list_of_names(names: &str) -> bool {
    names.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_., ".contains(&byte))
}

/// Reads header fields one by one.
struct FieldReader {
    request: Request,
    length: Option<u64>,
    is_chunked: bool,
    expects_continue: bool,
    n_hosts: usize,
}

impl FieldReader {
    fn new(request: Request) -> FieldReader {
        FieldReader {
            request,
            length: None,
            is_chunked: false,
            expects_continue: false,
            n_hosts: 0,
        }
    }

    fn read(&mut self, name: &str, value: &[u8]) -> Result<(), HttpError> {
        let text = || match std::str::from_utf8(value) {
            Ok(text) => Ok(text.trim()),
            Err(_) => Err(HttpError::new(400, format!("the field {name} is not text"))),
        };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => self.content_length(text()?)?,
            "transfer-encoding" => {
                // Two fields form a list, as `gzip, chunked` does. Lists are refused.
                if self.is_chunked || !text()?.eq_ignore_ascii_case("chunked") {
                    return Err(HttpError::new(
                        501,
                        "chunked is the only transfer encoding that is supported",
                    ));
                }
                self.is_chunked = true;
            }
            "connection" => {
                for word in text()?.split(',').map(str::trim) {
                    match word.to_ascii_lowercase().as_str() {
                        "close" => self.request.is_kept_alive = false,
                        "keep-alive" => self.request.is_kept_alive |= !self.request.has_chunks,
                        _ => {}
                    }
                }
            }
            "expect" => match text()?.eq_ignore_ascii_case("100-continue") {
                true => self.expects_continue = true,
                false => {
                    return Err(HttpError::new(
                        417,
                        "the only expectation that is supported is 100-continue",
                    ));
                }
            },
            "content-encoding" if !text()?.eq_ignore_ascii_case("identity") => {
                return Err(HttpError::new(415, "bodies must not be compressed"));
            }
            "host" => {
                self.n_hosts += 1;
                self.request.host = Some(text()?.to_owned());
            }
            "accept" => self.request.wants_html |= text()?.contains("text/html"),
            "origin" => self.request.origin = Some(text()?.to_owned()),
            "access-control-request-headers" => {
                // Several fields form one list. Names that no field may have are not allowed.
                let names = text()?;
                if is_list_of_names(names) {
                    let before = self.request.asked_fields.take();
                    let all =
                        before.map_or(names.to_owned(), |before| format!("{before}, {names}"));
                    self.request.asked_fields = Some(all);
                }
            }
            "x-api-key" | "api-key" => self.request.api_keys.push(text()?.to_owned()),
            "authorization" => self.request.authorizations.push(text()?.to_owned()),
            _ => {}
        }
        Ok(())
    }

    fn content_length(&mut self, text: &str) -> Result<(), HttpError> {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let length = text.parse().ok().filter(|_| is_number && self.length.is_none());
        self.length = length;
        match length {
            Some(_) => Ok(()),
            None => Err(HttpError::new(400, "Content-Length is not one number")),
        }
    }

    fn body(&self) -> Result<Body, HttpError> {
        let Request { has_chunks, .. } = self.request;
        if has_chunks && self.n_hosts != 1 {
            return Err(HttpError::new(400, "a request of HTTP/1.1 has one field Host"));
        }
        let length = match (self.length, self.is_chunked) {
            // Readers that disagree about the end of the body would see different requests behind it.
            (Some(_), true) => {
                return Err(HttpError::new(
                    400,
                    "Content-Length and Transfer-Encoding are both there",
                ));
            }
            (None, true) if !has_chunks => {
                return Err(HttpError::new(400, "HTTP/1.0 has no chunks"));
            }
            (None, true) => BodyLength::Chunked,
            (length, false) => BodyLength::Bytes(length.unwrap_or(0)),
        };
        Ok(Body { length, expects_continue: self.expects_continue })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(lines: &str) -> Result<Option<Head>, HttpError> {
        parse(format!("{}\r\n\r\n", lines.replace('\n', "\r\n")).as_bytes())
    }

    fn status(lines: &str) -> u16 {
        head(lines).and_then(|head| head.unwrap().body).unwrap_err().status
    }

    #[test]
    fn a_head_says_what_is_wanted_and_how_long_the_body_is() {
        let lines = "POST /v1/models?x=1 HTTP/1.1\nHost: a\nContent-Length: 12\nOrigin: http://b";
        let found = head(lines).unwrap().unwrap();
        assert_eq!(
            (found.request.method.as_str(), found.request.path.as_str()),
            ("POST", "/v1/models")
        );
        assert_eq!(found.request.origin.as_deref(), Some("http://b"));
        assert!(found.request.is_kept_alive);
        let body = Body { length: BodyLength::Bytes(12), expects_continue: false };
        assert_eq!(found.body, Ok(body));
        let chunked = head("GET / HTTP/1.1\nhost: a\ntransfer-encoding: Chunked").unwrap().unwrap();
        assert_eq!(chunked.body.unwrap().length, BodyLength::Chunked);
        assert_eq!(parse(b"GET / HTTP/1.1\r\nHost: a\r\n"), Ok(None));
    }

    #[test]
    fn a_path_may_have_slashes_too_many_or_a_host_before_it() {
        for (target, path, host) in [
            ("//v1//chat/completions/", "/v1/chat/completions", "a"),
            ("/v1/models/?x=//", "/v1/models", "a"),
            ("//", "/", "a"),
            ("/?q", "/", "a"),
            ("*", "*", "a"),
            ("http://b:80/v1/models", "/v1/models", "b:80"),
            ("HTTP://b//api/chat/?a=http://c", "/api/chat", "b"),
            ("https://b", "/", "b"),
            ("http://b?x=/", "/", "b"),
            ("ftp://b/x", "ftp://b/x", "a"),
            ("/a/http://b/c", "/a/http:/b/c", "a"),
        ] {
            let found = head(&format!("GET {target} HTTP/1.1\nHost: a")).unwrap().unwrap().request;
            assert_eq!((&*found.path, found.host.as_deref()), (path, Some(host)), "{target}");
        }
    }

    #[test]
    fn a_browser_may_ask_for_names_of_fields_alone() {
        let asked = |names: &str| {
            let lines =
                format!("OPTIONS / HTTP/1.1\nHost: a\nAccess-Control-Request-Headers: {names}");
            head(&lines).unwrap().unwrap().request.asked_fields
        };
        let names = "authorization, x-stainless-os,X_y";
        assert_eq!(asked(names).as_deref(), Some(names));
        assert_eq!((asked("a: b"), asked("é")), (None, None));
        let lines = "a, b\nAccess-Control-Request-Headers: x: y\nAccess-Control-Request-Headers: c";
        assert_eq!(asked(lines).as_deref(), Some("a, b, c"));
    }

    #[test]
    fn connections_end_where_either_side_says_so() {
        let is_kept = |lines| head(lines).unwrap().unwrap().request.is_kept_alive;
        assert!(is_kept("GET / HTTP/1.1\nHost: a"));
        assert!(!is_kept("GET / HTTP/1.1\nHost: a\nConnection: Close"));
        assert!(!is_kept("GET / HTTP/1.0"));
        assert!(is_kept("GET / HTTP/1.0\nConnection: keep-alive"));
    }

    #[test]
    fn two_ends_of_a_body_are_refused() {
        let post = "POST / HTTP/1.1\nHost: a\n";
        for (fields, wanted) in [
            ("Content-Length: 1\nContent-Length: 1", 400),
            ("Content-Length: 1\nTransfer-Encoding: chunked", 400),
            ("Content-Length: +1", 400),
            ("Content-Length: 1, 1", 400),
            ("Content-Length: 99999999999999999999", 400),
            ("Transfer-Encoding: gzip, chunked", 501),
            ("Transfer-Encoding: chunked\nTransfer-Encoding: chunked", 501),
            ("Transfer-Encoding: xchunked", 501),
            ("Host: b", 400),
            ("Content-Encoding: gzip", 415),
            ("Expect: more", 417),
        ] {
            assert_eq!(status(&format!("{post}{fields}")), wanted, "{fields}");
        }
        assert_eq!(status("POST / HTTP/1.0\nTransfer-Encoding: chunked"), 400);
        assert_eq!(status("GET / HTTP/1.1"), 400);
        assert_eq!(status(&format!("{post}{}", "a: b\n".repeat(FIELDS_MAX))), 431);
    }
}
