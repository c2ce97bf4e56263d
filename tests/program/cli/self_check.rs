//! `leap self-check`: this machine, and a server.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;

use super::{command, run};
use crate::common::folder::Folder;
use crate::common::ran::Ran;

#[test]
fn a_machine_that_works_is_told_so() {
    let folder = Folder::new();
    let mut command = command(&["self-check"]);
    let ran = Ran::new(command.env("XDG_CACHE_HOME", folder.path()).output().unwrap()).succeeds();
    let lines: Vec<&str> = ran.out.lines().collect();
    assert!(lines[0].starts_with("ok   kernels  scalar"), "{ran:?}");
    assert!(lines.last().unwrap().starts_with("ok   cache    /"), "{ran:?}");
    assert_eq!(lines.len(), if cfg!(feature = "demo") { 3 } else { 2 }, "{ran:?}");
    assert_eq!(std::fs::read_dir(folder.join("leap")).unwrap().count(), 0);
}

#[test]
fn a_cache_that_cannot_be_written_is_named() {
    let mut command = command(&["self-check"]);
    let ran = Ran::new(command.env("XDG_CACHE_HOME", "/dev/null").output().unwrap());
    assert!(ran.out.contains("bad  cache    /dev/null/leap cannot be made: "), "{ran:?}");
    ran.fails(1, "1 check failed");
}

/// Answers one request with these bytes, and returns its address.
fn answering(bytes: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut request = [0; 512];
        // A client that reads no further is no failure of the test.
        let _ = client.read(&mut request).and_then(|_| client.write_all(bytes));
    });
    address
}

#[test]
fn what_a_server_answers_decides() {
    let ask = |place: &str| run(&["self-check", "--server", place]);
    let ready = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{\"status\":\"ok\"}");
    assert_eq!(ask(&ready).succeeds().out, format!("ok   server   {ready} answers\n"));
    let lost = answering(b"HTTP/1.1 503 Service Unavailable\r\n\r\nno answer for now");
    let ran = ask(&lost);
    assert_eq!(
        ran.out,
        format!("bad  server   {lost}: 503 Service Unavailable: no answer for now\n")
    );
    ran.fails(1, "1 check failed");
    let stranger = answering(b"SSH-2.0-\x1b[31mx\r\n");
    assert!(ask(&stranger).out.ends_with(": no HTTP server\n"));
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    assert!(ask(&nobody).out.contains("refused"));
    ask("nowhere").fails(1, "1 check failed");
}

#[cfg(feature = "forms")]
#[test]
fn a_server_of_ours_is_healthy() {
    let server = crate::http::Served::start(&[]);
    run(&["self-check", "--server", &server.address]).succeeds();
}
