//! Sends a link's bytes over bare sockets, to compare.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use super::ends::{
    ANSWER, ECHO_FRAME, GIVE_UP, LinkFigures, PATIENCE, PING_BYTES, REQUEST, ROUNDS, SPIN, WARM_UP,
    failed, figures, write, write_datagram,
};
use crate::cli::Failure;
use crate::sys::net;

/// Retries `io` until it has a result: spins for a while, then waits for the socket.
pub(super) fn spin<T>(
    mut io: impl FnMut() -> std::io::Result<T>,
    socket: &impl AsFd,
) -> std::io::Result<T> {
    let start = Instant::now();
    loop {
        match io() {
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            other => return other,
        }
        if start.elapsed() > GIVE_UP {
            return Err(ErrorKind::TimedOut.into());
        }
        if start.elapsed() > SPIN {
            net::wait(&[(socket.as_fd(), false)], Duration::from_secs(1));
        }
    }
}

/// Measures round trips in datagrams of at most `datagram_bytes`. The kernel fragments a datagram that exceeds the
/// network's packets, and loses it if a fragment is lost.
pub(super) fn bare_udp(
    carrier: &str,
    to: SocketAddr,
    datagram_bytes: usize,
) -> Result<LinkFigures, Failure> {
    let any = SocketAddr::new(if to.is_ipv4() { [0, 0, 0, 0].into() } else { [0; 16].into() }, 0);
    let fail = failed("bare UDP");
    let socket = UdpSocket::bind(any).map_err(&fail)?;
    socket.connect(to).map_err(&fail)?;
    socket.set_nonblocking(true).map_err(&fail)?;
    let (mut sent, mut received) = (vec![0; PING_BYTES], vec![0; PING_BYTES]);
    round_trips(carrier, || {
        for datagram in sent.chunks_mut(datagram_bytes) {
            write_datagram(datagram, REQUEST);
            socket.send(datagram)?;
        }
        let mut n = 0;
        while n < PING_BYTES {
            let datagram = spin(|| socket.recv(&mut received), &socket)?;
            n += if received[..datagram].starts_with(ANSWER) { datagram } else { 0 };
        }
        Ok(())
    })
}

pub(super) fn bare_tcp(to: SocketAddr) -> Result<LinkFigures, Failure> {
    let fail = failed("bare TCP");
    let stream = TcpStream::connect_timeout(&to, GIVE_UP).map_err(&fail)?;
    tune(&stream).map_err(&fail)?;
    let mut bytes = vec![0; PING_BYTES];
    round_trips("bare tcp", || exchange(&stream, &mut bytes, true))
}

/// Sends `bytes`, then reads as many; or reads first, then sends.
pub(super) fn exchange(
    stream: &TcpStream,
    bytes: &mut [u8],
    is_first: bool,
) -> std::io::Result<()> {
    if is_first {
        write(bytes, ECHO_FRAME);
        write_all(stream, bytes)?;
    }
    let (mut reader, mut n) = (stream, 0);
    while n < bytes.len() {
        n += match spin(|| reader.read(&mut bytes[n..]), stream)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            n => n,
        };
    }
    if !is_first {
        write(bytes, ECHO_FRAME);
        write_all(stream, bytes)?;
    }
    Ok(())
}

pub(super) fn write_all(mut stream: &TcpStream, mut bytes: &[u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(e) if e.kind() == ErrorKind::WouldBlock => thread::yield_now(),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Sets the options of the links' own streams: no delay, non-blocking.
pub(super) fn tune(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)
}

pub(super) fn round_trips(
    carrier: &str,
    mut round: impl FnMut() -> std::io::Result<()>,
) -> Result<LinkFigures, Failure> {
    let mut samples = Vec::with_capacity(ROUNDS);
    let start = Instant::now();
    for n in 0..WARM_UP + ROUNDS {
        let begin = Instant::now();
        round().map_err(failed(carrier))?;
        if n >= WARM_UP || start.elapsed() > PATIENCE / 4 {
            samples.push(begin.elapsed().as_secs_f64() * 1e6);
        }
        if start.elapsed() > PATIENCE && !samples.is_empty() {
            break;
        }
    }
    Ok(figures(carrier, samples))
}
