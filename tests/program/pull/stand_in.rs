//! A hub and registry on this machine, over TLS by an authority of their own, with the faults that a test asks for.

use std::collections::{BTreeMap, VecDeque};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::json;
use sha1::Sha1;
use sha2::{Digest, Sha256};

use crate::common::folder::Folder;
use crate::common::leap;

/// The commit of all repositories.
pub(super) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A wrong answer.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// This status, with these fields of the head.
    Status(u16, &'static str),
    /// The connection ends after so many bytes of the body.
    Cut(usize),
    /// The first byte is another one.
    Wrong,
    /// The body goes on behind its end.
    Endless,
    /// The whole file, where a part was asked for.
    Whole,
    /// Another part than the one asked for.
    OtherPart,
    /// Milliseconds before each 64 KiB.
    Slow(u64),
    /// A redirect to this address.
    Redirect(String),
}

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// The list of a repository's files.
    List,
    /// A file of a repository, or a registry's blob: redirected to its content.
    Resolve,
    /// The content.
    Content,
    /// A manifest of the registry.
    Manifest,
}

#[derive(Default)]
struct State {
    /// Files of repositories by `ORG/REPO`.
    repos: BTreeMap<String, Vec<(String, Vec<u8>)>>,
    /// Manifests by their path.
    manifests: BTreeMap<String, Vec<u8>>,
    /// Contents by their SHA-256.
    contents: BTreeMap<String, Arc<Vec<u8>>>,
    /// Faults of the next answers, by kind.
    faults: BTreeMap<Kind, VecDeque<Fault>>,
    /// Faults of all answers of a kind.
    lasting: BTreeMap<Kind, Fault>,
    requests: Vec<(Kind, String)>,
    sent_bytes: usize,
    token: Option<String>,
}

pub(super) struct StandIn {
    pub(super) port: u16,
    state: Arc<Mutex<State>>,
    /// The home of those who ask.
    pub(super) home: Folder,
}

/// Instructions of the registry's models.
pub(super) const SYSTEM: &str = "Tell a story.";

impl StandIn {
    pub(super) fn start() -> StandIn {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::<Mutex<State>>::default();
        let own = Arc::clone(&state);
        let config = Arc::new(config());
        thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                let (own, config) = (Arc::clone(&own), Arc::clone(&config));
                thread::spawn(move || {
                    let tls = ServerConnection::new(config).unwrap();
                    let mut stream = StreamOwned::new(tls, socket);
                    while answer(&own, port, &mut stream).is_some() {}
                });
            }
        });
        StandIn { port, state, home: Folder::new() }
    }

    /// `leap` with a home of its own, and the stand-in for the hub.
    pub(super) fn leap(&self, args: &[&str]) -> Command {
        let mut command = leap();
        for name in ["HF_HOME", "HF_HUB_CACHE", "HF_TOKEN", "OLLAMA_MODELS", "XDG_CACHE_HOME"] {
            command.env_remove(name);
        }
        for name in [
            "ALL_PROXY",
            "HTTPS_PROXY",
            "HTTP_PROXY",
            "all_proxy",
            "https_proxy",
            "http_proxy",
            "NO_PROXY",
            "no_proxy",
        ] {
            command.env_remove(name);
        }
        command.args(args).env("HOME", self.home.path());
        command.env("HF_ENDPOINT", format!("https://localhost:{}", self.port));
        command.env("SSL_CERT_FILE", certificate("ca.pem"));
        command
    }

    /// Puts a file into a repository. `.gguf` and `.safetensors` files are large ones.
    pub(super) fn put(&self, repo: &str, path: &str, bytes: &[u8]) {
        let mut state = self.state.lock().unwrap();
        state.contents.insert(sha256(bytes), Arc::new(bytes.to_vec()));
        let files = state.repos.entry(repo.to_owned()).or_default();
        files.push((path.to_owned(), bytes.to_vec()));
    }

    /// Puts a model into the registry, with the layers of Ollama's.
    pub(super) fn put_ollama(&self, path: &str, gguf: &[u8]) {
        let params = ("params", &br#"{"stop":["<never>"]}"#[..]);
        self.put_ollama_of(path, "{}", &[("model", gguf), params, ("system", SYSTEM.as_bytes())]);
    }

    /// Puts a model into the registry, with this configuration and these layers, by the last words of their types.
    pub(super) fn put_ollama_of(&self, path: &str, config: &str, layers: &[(&str, &[u8])]) {
        let mut state = self.state.lock().unwrap();
        let mut layer = |kind: &str, bytes: &[u8]| {
            state.contents.insert(sha256(bytes), Arc::new(bytes.to_vec()));
            json!({"mediaType": kind, "digest": format!("sha256:{}", sha256(bytes)), "size": bytes.len()})
        };
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
            "config": layer("application/vnd.docker.container.image.v1+json", config.as_bytes()),
            "layers": layers
                .iter()
                .map(|(kind, bytes)| layer(&format!("application/vnd.ollama.image.{kind}"), bytes))
                .collect::<Vec<_>>(),
        });
        state.manifests.insert(path.to_owned(), manifest.to_string().into_bytes());
    }

    pub(super) fn put_manifest(&self, path: &str, manifest: &str) {
        self.state.lock().unwrap().manifests.insert(path.to_owned(), manifest.into());
    }

    /// Has the next answer of this kind be wrong, after those that wait already.
    pub(super) fn fail(&self, kind: Kind, fault: Fault) {
        self.state.lock().unwrap().faults.entry(kind).or_default().push_back(fault);
    }

    /// Has all answers of this kind be wrong from now on, or right again.
    pub(super) fn fail_always(&self, kind: Kind, fault: Option<Fault>) {
        let mut state = self.state.lock().unwrap();
        state.lasting.remove(&kind);
        state.lasting.extend(fault.map(|fault| (kind, fault)));
    }

    /// Asks for this token from now on.
    pub(super) fn want_token(&self, token: &str) {
        self.state.lock().unwrap().token = Some(token.to_owned());
    }

    /// Number of requests of this kind so far.
    pub(super) fn count(&self, kind: Kind) -> usize {
        self.state.lock().unwrap().requests.iter().filter(|(one, _)| *one == kind).count()
    }

    /// Bytes of contents that were sent so far.
    pub(super) fn sent_bytes(&self) -> usize {
        self.state.lock().unwrap().sent_bytes
    }
}

pub(super) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The hash by which git and the hub name small files.
pub(super) fn git_hash(bytes: &[u8]) -> String {
    let hash = Sha1::new_with_prefix(format!("blob {}\0", bytes.len())).chain_update(bytes);
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn certificate(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/program/pull/tls").join(name)
}

fn config() -> ServerConfig {
    let chain = CertificateDer::pem_file_iter(certificate("hub.pem")).unwrap();
    let chain = chain.collect::<Result<Vec<_>, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_file(certificate("hub.key")).unwrap();
    ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key).unwrap()
}

type Stream = StreamOwned<ServerConnection, TcpStream>;

/// Answers one request; `None` at the end of the connection.
fn answer(state: &Mutex<State>, port: u16, stream: &mut Stream) -> Option<()> {
    let head = head(stream)?;
    let path = head.split(' ').nth(1)?.to_owned();
    let field = |name: &str| {
        let lines = head.lines().filter_map(|line| line.split_once(':'));
        let mut own = lines.filter(|(key, _)| key.eq_ignore_ascii_case(name));
        own.next().map(|(_, value)| value.trim().to_owned())
    };
    let kind = match &path {
        path if path.starts_with("/api/") => Kind::List,
        path if path.starts_with("/cdn/") => Kind::Content,
        path if path.contains("/manifests/") => Kind::Manifest,
        _ => Kind::Resolve,
    };
    let fault = {
        let mut state = state.lock().unwrap();
        state.requests.push((kind, path.clone()));
        let next = state.faults.get_mut(&kind).and_then(VecDeque::pop_front);
        next.or_else(|| state.lasting.get(&kind).cloned())
    };
    match &fault {
        Some(Fault::Status(status, fields)) => return plain(stream, *status, fields, b""),
        Some(Fault::Redirect(to)) => {
            return plain(stream, 302, &format!("location: {to}\r\n"), b"");
        }
        _ => {}
    }
    let token = state.lock().unwrap().token.clone();
    let given = field("authorization");
    // A token must not reach another host.
    if kind == Kind::Content && given.is_some() {
        return plain(stream, 400, "", b"");
    }
    let is_hub = matches!(kind, Kind::List | Kind::Resolve);
    if is_hub && token.is_some() && given != token.map(|token| format!("Bearer {token}")) {
        return plain(stream, 401, "x-error-code: GatedRepo\r\n", b"");
    }
    match kind {
        Kind::List => list(state, &path, fault, stream),
        Kind::Manifest => {
            let manifest = state.lock().unwrap().manifests.get(&path).cloned();
            match manifest {
                Some(_) if matches!(fault, Some(Fault::Endless)) => endless(stream),
                Some(manifest) => plain(stream, 200, "", &manifest),
                None => plain(stream, 404, "", b"{}"),
            }
        }
        Kind::Resolve => resolve(state, port, (&path, fault), stream),
        Kind::Content => content(state, (&path, field("range")), fault, stream),
    }
}

fn head(stream: &mut Stream) -> Option<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    String::from_utf8(head).ok()
}

fn plain(stream: &mut Stream, status: u16, fields: &str, body: &[u8]) -> Option<()> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status} X\r\n{fields}content-length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(body).ok()?;
    stream.flush().ok()
}

/// A body without an end.
fn endless(stream: &mut Stream) -> Option<()> {
    stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").ok()?;
    let chunk = format!("10000\r\n{}\r\n", " ".repeat(0x10000));
    loop {
        stream.write_all(chunk.as_bytes()).ok()?;
    }
}

fn list(state: &Mutex<State>, path: &str, fault: Option<Fault>, stream: &mut Stream) -> Option<()> {
    if matches!(fault, Some(Fault::Endless)) {
        return endless(stream);
    }
    let (repo, revision) = path.strip_prefix("/api/models/")?.split_once("/revision/")?;
    let files = state.lock().unwrap().repos.get(repo).cloned();
    let Some(files) = files else {
        return plain(stream, 401, "x-error-code: RepoNotFound\r\n", b"{}");
    };
    if !["main", COMMIT].contains(&revision.split('?').next()?) {
        return plain(stream, 404, "x-error-code: RevisionNotFound\r\n", b"{}");
    }
    let entry = |(path, bytes): &(String, Vec<u8>)| {
        let mut entry = json!({"rfilename": path, "size": bytes.len(), "blobId": git_hash(bytes)});
        if is_large(path) {
            entry["lfs"] =
                json!({"sha256": sha256(bytes), "size": bytes.len(), "pointerSize": 130});
        }
        entry
    };
    let siblings: Vec<_> = files.iter().map(entry).collect();
    let body = json!({"sha": COMMIT, "siblings": siblings}).to_string();
    plain(stream, 200, "content-type: application/json\r\n", body.as_bytes())
}

fn is_large(path: &str) -> bool {
    path.ends_with(".gguf") || path.ends_with(".safetensors")
}

fn resolve(
    state: &Mutex<State>,
    port: u16,
    (path, fault): (&str, Option<Fault>),
    stream: &mut Stream,
) -> Option<()> {
    let sha256 = match path.split_once("/blobs/sha256:") {
        Some((_, sha256)) => sha256.to_owned(),
        None => {
            let (repo, rest) = path.strip_prefix('/')?.split_once("/resolve/")?;
            let file = rest.split_once('/')?.1.replace("%20", " ");
            let state = state.lock().unwrap();
            let found = state.repos.get(repo)?.iter().find(|(path, _)| *path == file).cloned();
            drop(state);
            match found {
                Some((path, _)) if !is_large(&path) && matches!(fault, Some(Fault::Wrong)) => {
                    return plain(stream, 200, "", b"<html>log in first</html>");
                }
                Some((path, bytes)) if !is_large(&path) => return plain(stream, 200, "", &bytes),
                Some((_, bytes)) => sha256(&bytes),
                None => return plain(stream, 404, "x-error-code: EntryNotFound\r\n", b""),
            }
        }
    };
    // Another name of this machine: another origin.
    let to = format!("location: https://127.0.0.1:{port}/cdn/{sha256}?signature=1\r\n");
    plain(stream, 302, &to, b"")
}

fn content(
    state: &Mutex<State>,
    (path, range): (&str, Option<String>),
    fault: Option<Fault>,
    stream: &mut Stream,
) -> Option<()> {
    let sha256 = path.strip_prefix("/cdn/")?.split('?').next()?;
    let bytes = state.lock().unwrap().contents.get(sha256).cloned()?;
    let range = range.filter(|_| !matches!(fault, Some(Fault::Whole))).and_then(|range| {
        let (start, end) = range.strip_prefix("bytes=")?.split_once('-')?;
        Some((start.parse::<usize>().ok()?, end.parse::<usize>().ok()? + 1))
    });
    let (start, end) = range.unwrap_or((0, bytes.len()));
    let mut body = bytes[start..end].to_vec();
    let head = match range {
        None => format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()),
        Some(_) => {
            let start = start + usize::from(matches!(fault, Some(Fault::OtherPart)));
            let range = format!("content-range: bytes {start}-{}/{}", end - 1, bytes.len());
            format!("HTTP/1.1 206 X\r\n{range}\r\ncontent-length: {}\r\n\r\n", body.len())
        }
    };
    let (mut cut, mut pause) = (None, 0);
    match fault {
        Some(Fault::Wrong) => body[0] ^= 1,
        Some(Fault::Cut(n)) => cut = Some(n.min(body.len())),
        Some(Fault::Slow(ms)) => pause = ms,
        _ => {}
    }
    stream.write_all(head.as_bytes()).ok()?;
    let is_cut = cut.is_some_and(|n| n < body.len());
    for part in body[..cut.unwrap_or(body.len())].chunks(64 << 10) {
        thread::sleep(Duration::from_millis(pause));
        stream.write_all(part).ok()?;
        state.lock().unwrap().sent_bytes += part.len();
    }
    stream.flush().ok()?;
    (!is_cut).then_some(())
}
