//! `leap serve`, and a client that sends given bytes.
#![allow(dead_code, reason = "every test crate compiles this module; not all serve")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::common::leap;

/// Longest wait for a line of a server. On a busy machine, boards that come and go take most of a minute.
const PATIENCE: Duration = Duration::from_secs(120);

/// A server of the demo model, ended when this is dropped.
pub(crate) struct Served {
    child: Child,
    /// Output of the server so far.
    said: Arc<Mutex<String>>,
    pub(crate) address: String,
}

impl Served {
    pub(crate) fn start(args: &[&str]) -> Served {
        let mut command = leap();
        command.args(["serve", "--listen", "127.0.0.1:0", "--threads", "1"]).args(args);
        command.stdin(Stdio::null()).env_remove("JOURNAL_STREAM");
        Served::by(command)
    }

    /// The server that `command` starts.
    pub(crate) fn by(mut command: Command) -> Served {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        let address = loop {
            line.clear();
            assert!(stderr.read_line(&mut line).unwrap() > 0, "the server has ended");
            if let Some((_, rest)) = line.split_once("answers on ") {
                break rest.split(": ").next().unwrap().to_owned();
            }
        };
        let said = Arc::new(Mutex::new(String::new()));
        let to = Arc::clone(&said);
        // A thread reads the pipe: a full pipe would stop the server.
        thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                *to.lock().unwrap() += &(line + "\n");
            }
        });
        Served { child, said, address }
    }

    /// Output of the server since it listens; waits until it contains `part`.
    pub(crate) fn said(&self, part: &str) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let said = self.said.lock().unwrap().clone();
            if said.contains(part) {
                return said;
            }
            assert!(Instant::now() < end, "never said {part:?}: {said}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// The answer to `body`, which must succeed.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Value {
        let (head, text) = ask(&self.address, "POST", path, &body.to_string());
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}\n{text}");
        serde_json::from_str(&text).unwrap()
    }

    /// A connection on which `body` has been sent.
    pub(crate) fn begin(&self, path: &str, body: &Value) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.write_all(request("POST", path, &body.to_string()).as_bytes()).unwrap();
        stream
    }

    /// A connection on which `body` has been sent, and the bytes of the answer up to its first text.
    pub(crate) fn begin_text(&self, path: &str, body: &Value) -> (TcpStream, String) {
        let mut stream = self.begin(path, body);
        let mut bytes = Vec::new();
        let mut byte = [0];
        loop {
            stream.read_exact(&mut byte).unwrap();
            bytes.push(byte[0]);
            let Some(line) =
                bytes.strip_suffix(b"\n").and_then(|all| all.split(|b| *b == b'\n').next_back())
            else {
                continue;
            };
            let event = line.strip_prefix(b"data: ").unwrap_or_default();
            let event: Value = serde_json::from_slice(event).unwrap_or_default();
            let texts = ["/choices/0/delta/content", "/choices/0/text"];
            if texts.iter().any(|at| event.pointer(at).is_some_and(|text| text != "")) {
                return (stream, String::from_utf8(bytes).unwrap());
            }
        }
    }

    /// Sends a request, reads a little of the answer and disconnects.
    pub(crate) fn begin_and_leave(&self, path: &str, body: &Value) {
        self.begin(path, body).read_exact(&mut [0; 40]).unwrap();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Waits for the server's end, and returns its exit code.
    pub(crate) fn code(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn request(method: &str, path: &str, body: &str) -> String {
    let bytes = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {bytes}\r\n\r\n{body}"
    )
}

/// Longest wait for the next byte of an answer.
const SILENCE_MAX: Duration = Duration::from_secs(180);

/// Head and body of the answer to a request.
pub(crate) fn ask(address: &str, method: &str, path: &str, body: &str) -> (String, String) {
    let answer = exchange(address, request(method, path, body).as_bytes());
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .unwrap_or_else(|| panic!("{method} {path} has no answer in {SILENCE_MAX:?}: {answer:?}"));
    let body = match head.contains("Transfer-Encoding: chunked") {
        true => unchunked(body),
        false => body.to_owned(),
    };
    (head.to_owned(), body)
}

/// All bytes that come back for `bytes`, without silence of more than [`SILENCE_MAX`]; the client sends nothing after them.
pub(crate) fn exchange(address: &str, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(SILENCE_MAX)).unwrap();
    // A server that refuses early does not read all of the request.
    let _ = stream.write_all(bytes);
    if bytes.ends_with(b"{") {
        stream.shutdown(std::net::Shutdown::Write).unwrap();
    }
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

fn unchunked(mut body: &str) -> String {
    let mut whole = String::new();
    loop {
        let (bytes, rest) = body.split_once("\r\n").unwrap();
        let n = usize::from_str_radix(bytes, 16).unwrap();
        whole += &rest[..n];
        if n == 0 {
            return whole;
        }
        body = &rest[n + 2..];
    }
}
