//! Masters and their clients.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use super::server::{self, Say, Service};
use super::{REQUEST_MAX, Refusal, client, place};

struct Echo;

impl Service for Echo {
    fn answer(&self, request: &str, say: Say<'_>) -> Result<String, Refusal> {
        // A caller that is gone hears nothing.
        let _ = say("thinks\nhard");
        match request.strip_prefix("no ") {
            Some(why) => Err(Refusal { code: 4, why: why.to_owned() }),
            None => Ok(request.repeat(3)),
        }
    }
}

fn path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("leap-{name}-{}", std::process::id()))
}

#[test]
fn a_master_answers_and_refuses() {
    let path = path("control");
    let (listener, file) = place::listen(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    server::start(listener, Echo).unwrap();
    let ask = |request: &str| {
        let mut words = Vec::new();
        let answer = client::ask(&path, request, &mut |word| words.push(word.to_owned())).unwrap();
        (answer, words)
    };
    assert_eq!(ask("ab"), (Ok("ababab".to_owned()), vec!["thinks hard".to_owned()]));
    let why = Refusal { code: 4, why: "time".to_owned() };
    assert_eq!(ask("no time").0, Err(why));
    // Requests that are too long, not text, of two lines, or not complete.
    let long = "x".repeat(REQUEST_MAX + 1);
    let (refused, words) = ask(&long);
    assert_eq!((refused.unwrap_err().code, words.len()), (2, 0));
    for bytes in [&b"\xff\n"[..], b"a\nb\n", b"a"] {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("2\n"), "{answer}");
    }
    // Callers that leave at once disturb no other.
    for _ in 0..20 {
        drop(UnixStream::connect(&path).unwrap());
    }
    assert!(ask(&"y".repeat(REQUEST_MAX / 2)).0.is_ok());
    drop(file);
    let gone = client::ask(&path, "ab", &mut |_| {}).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound);
}

#[test]
fn a_master_answers_while_many_hold_its_socket() {
    let path = path("held");
    let (listener, _file) = place::listen(&path).unwrap();
    server::start(listener, Echo).unwrap();
    let mut held: Vec<UnixStream> = (0..20).map(|_| UnixStream::connect(&path).unwrap()).collect();
    for request in ["ab", "cd"] {
        let answer = client::ask(&path, request, &mut |_| {}).unwrap();
        assert_eq!(answer, Ok(request.repeat(3)));
    }
    // The latest client may still ask.
    let last = held.last_mut().unwrap();
    last.write_all(b"ef\n").unwrap();
    let mut answer = String::new();
    last.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("0\nefefef"), "{answer}");
}

#[test]
fn only_the_sockets_of_the_dead_make_way() {
    let path = path("stale");
    drop(UnixListener::bind(&path).unwrap());
    let (_listener, file) = place::listen(&path).unwrap();
    assert_eq!(place::listen(&path).map(drop).unwrap_err().kind(), ErrorKind::AddrInUse);
    drop(file);
    assert!(!path.exists());
    fs::write(&path, "a file").unwrap();
    assert_eq!(place::listen(&path).map(drop).unwrap_err().kind(), ErrorKind::AddrInUse);
    fs::remove_file(&path).unwrap();
}

#[test]
fn a_master_without_sense_is_an_error() {
    for answer in ["", "0", "x\n", "77\n", "#only words\n"] {
        let path = path(&format!("senseless-{}", answer.len()));
        let listener = UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 3];
            stream.read_exact(&mut request).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
        });
        assert!(client::ask(&path, "hi", &mut |_| {}).is_err(), "{answer:?}");
        server.join().unwrap();
        fs::remove_file(&path).unwrap();
    }
}
