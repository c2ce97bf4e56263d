//! Ports for boards that tests start.

use std::net::{TcpListener, UdpSocket};
use std::process;
use std::sync::atomic::{AtomicU16, Ordering};

/// The first of `n` free ports in a row, for TCP and for UDP. Other tests do not get these, and the system, which gives
/// connections of other programs ports from 32768 on, does not take them in between.
pub(crate) fn free_ports(n: u16) -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 10_000 + (process::id() % 500) as u16 * 40;
    let is_free = |port: u16| {
        let at = ("127.0.0.1", port);
        TcpListener::bind(at).is_ok() && UdpSocket::bind(at).is_ok()
    };
    let mut ports = (0..1000).map(|_| first.saturating_add(NEXT.fetch_add(n, Ordering::Relaxed)));
    let found = ports.find(|port| (*port..port.saturating_add(n)).all(is_free));
    found.expect("some ports are free")
}

/// A free port, for TCP and for UDP.
pub(crate) fn free_port() -> u16 {
    free_ports(1)
}
