//! Downloads through a proxy.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::thread;

use super::stand_in::StandIn;

/// The heads of the requests that a proxy on this machine got.
type Heads = Arc<Mutex<Vec<String>>>;

/// A proxy that connects clients with the places they name; returns its port.
fn start() -> (u16, Heads) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let heads = Heads::default();
    let own = Arc::clone(&heads);
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let heads = Arc::clone(&own);
            thread::spawn(move || connect(client, &heads));
        }
    });
    (port, heads)
}

/// The head of a request.
fn head(client: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && client.read(&mut byte).is_ok_and(|n| n == 1) {
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

fn connect(mut client: TcpStream, heads: &Heads) {
    let head = head(&mut client);
    let to = head.split(' ').nth(1).unwrap_or_default().to_owned();
    heads.lock().unwrap().push(head);
    let Ok(mut server) = TcpStream::connect(to) else { return };
    client.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").unwrap();
    let (mut from, mut back) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    thread::spawn(move || {
        let _ = io::copy(&mut from, &mut back);
        let _ = back.shutdown(Shutdown::Write);
    });
    let _ = io::copy(&mut server, &mut client);
    let _ = client.shutdown(Shutdown::Write);
}

#[test]
fn downloads_go_through_the_proxy_that_the_environment_names() {
    let hub = StandIn::start();
    hub.put("org/tiny", "tiny.gguf", &[7; 100_000]);
    let (port, heads) = start();
    let pull = |name: &str, proxy: &str, spared: &str| {
        let mut command = hub.leap(&["pull", "hf:org/tiny", "-q"]);
        command.env(name, proxy).env("NO_PROXY", spared).stdin(Stdio::null());
        let output = command.output().unwrap();
        let _ = hub.leap(&["rm", "hf:org/tiny"]).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let seen = || std::mem::take(&mut *heads.lock().unwrap());
    for name in ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"] {
        let (code, err) = pull(name, &format!("http://me:secret@127.0.0.1:{port}"), "");
        assert_eq!(code, Some(0), "{name}: {err}");
        let heads = seen();
        assert!(!heads.is_empty(), "{name}");
        for head in heads {
            let to = ["localhost", "127.0.0.1"].map(|host| format!("CONNECT {host}:{} ", hub.port));
            assert!(to.iter().any(|to| head.starts_with(to)), "{head}");
            // Base64 of the name and the password.
            assert!(head.contains("Proxy-Authorization: Basic bWU6c2VjcmV0\r\n"), "{head}");
        }
    }
    let (code, err) =
        pull("HTTPS_PROXY", &format!("http://127.0.0.1:{port}"), "localhost,127.0.0.1");
    assert_eq!((code, seen().len()), (Some(0), 0), "{err}");
    let strict = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = strict.local_addr().unwrap();
    thread::spawn(move || {
        for mut client in strict.incoming().map_while(Result::ok) {
            head(&mut client);
            let _ = client.write_all(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n");
        }
    });
    let (code, err) = pull("HTTPS_PROXY", &format!("http://{place}"), "");
    assert_eq!((code, err.lines().count()), (Some(1), 1), "{err}");
    assert!(err.contains(&format!("by the proxy {place}")) && err.contains("a password"), "{err}");
    // No program listens there.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (code, err) = pull("HTTPS_PROXY", &format!("http://{closed}"), "");
    assert_eq!((code, err.lines().count()), (Some(1), 1), "{err}");
    let why = format!("by the proxy {closed} that HTTPS_PROXY names");
    assert!(err.contains(&why), "{err}");
    for (value, why) in
        [("socks5://me:secret@x:1", "names a SOCKS proxy"), ("http://", "is no address")]
    {
        let (code, err) = pull("https_proxy", value, "");
        assert_eq!(code, Some(1), "{err}");
        assert!(err.contains(&format!("https_proxy {why}")) && !err.contains("secret"), "{err}");
    }
}
