//! Needs of `leap serve`: an address of its own, and keys that no other user can read.

use std::fs;
use std::io;
use std::net::{TcpListener, ToSocketAddrs};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::finding::Finding;
use super::link;
use crate::sys::tree::Tree;

/// Judges whether `place`, HOST:PORT or the path of a Unix socket, is free or used by LEAP.
pub(super) fn address(tree: &Tree, place: &str) -> Finding {
    if place.contains('/') {
        return socket_file(Path::new(place));
    }
    let port = place.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(0);
    let bound = place.to_socket_addrs().and_then(|all| TcpListener::bind(&*Vec::from_iter(all)));
    match bound.err() {
        None => Finding::good("listen", format!("{place} is free")),
        Some(e) if e.kind() == io::ErrorKind::AddrInUse => match link::owner(tree, port) {
            Some(name) if name == "leap" => {
                Finding::good("listen", format!("{place} is used by LEAP"))
            }
            name => {
                let name = name.unwrap_or_else(|| "another program".to_owned());
                let mend = format!("sudo ss -ltnp sport = :{port}  # or take another --listen");
                Finding::bad("listen", format!("{place} is used by {name}"), mend)
            }
        },
        Some(e) => Finding::bad(
            "listen",
            format!("{place} cannot be used: {e}"),
            "ip -brief address  # the addresses that this machine has; ports are from 1024 to 65535",
        ),
    }
}

fn socket_file(path: &Path) -> Finding {
    let shown = path.display();
    if UnixStream::connect(path).is_ok() {
        let text = format!("{shown} is used by a program that runs");
        return Finding::good("listen", text);
    }
    match path.parent().filter(|folder| folder.is_dir()) {
        Some(_) => Finding::good("listen", format!("{shown} is free")),
        None => {
            let folder = path.parent().unwrap_or(path).display();
            let text = format!("{shown} is in a folder that is not there");
            Finding::bad("listen", text, format!("sudo install -d -o leap {folder}"))
        }
    }
}

/// Judges whether the file of clients' keys exists, and only its owner can read it.
pub(super) fn key_file(path: &Path) -> Finding {
    let shown = path.display();
    let mode = match fs::metadata(path) {
        Ok(file) => file.permissions().mode() & 0o777,
        Err(e) => {
            let mend = format!("(umask 077; head -c 24 /dev/urandom | base64 >{shown})");
            return Finding::bad("keys", format!("{shown} cannot be read: {e}"), mend);
        }
    };
    match mode & 0o077 {
        0 => Finding::good("keys", format!("{shown} is its owner's alone (mode {mode:o})")),
        _ => Finding::bad(
            "keys",
            format!("others can read or change {shown} (mode {mode:o})"),
            format!("sudo chmod 600 {shown}"),
        ),
    }
}
