//! `leap bench --link-server`: answers frames and bare datagrams and streams.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::bare::{exchange, spin, tune};
use super::ends::{
    ANSWER, ECHO_FRAME, PING_BYTES, PORT_FRAME, Ports, REQUEST, STREAMS_MAX, TEAM_FRAME, failed,
    open, options, write, write_datagram,
};
use super::team;
use crate::cli::Failure;
use crate::sys::{cpu, signal};
use crate::transport::Endpoint;
use crate::transport::kmod::Kmod;
use crate::transport::link::{LinkIn, LinkOut};
use crate::transport::place::HostPort;
use crate::wire::seal::Key;

/// Starts the threads that answer clients and run as long as the process. Returns the addresses that they listen at,
/// and notices for the user.
fn start_server(listen: &HostPort, key: Option<&Key>) -> Result<(Ports, Vec<String>), Failure> {
    let any = |address: SocketAddr| match listen.port {
        0 => Ok(SocketAddr::new(address.ip(), 0)),
        _ => Ports::after(address).map(|ports| ports.bare_udp),
    };
    let mut opened = Vec::new();
    for carrier in ["udp", "tcp"] {
        opened.push(open(carrier, options(false, key, listen.clone(), None)?)?);
    }
    let [udp, tcp] = [opened[0].local_address(), opened[1].local_address()];
    let at = match listen.port {
        0 => listen.clone(),
        _ => HostPort { port: listen.port.saturating_add(2), ..listen.clone() },
    };
    let module = Kmod::open(options(false, key, at, None)?).ok();
    let kernel = module.as_ref().map(Endpoint::local_address);
    opened.extend(module.map(|module| Box::new(module) as _));
    let bare = any(udp)?;
    let bare_udp = UdpSocket::bind(bare).map_err(failed("cannot listen"))?;
    let bare_tcp = TcpListener::bind(bare).map_err(failed("cannot listen"))?;
    let local = failed("cannot listen");
    let ports = Ports {
        udp,
        tcp,
        bare_udp: bare_udp.local_addr().map_err(&local)?,
        bare_tcp: bare_tcp.local_addr().map_err(&local)?,
        kernel,
    };
    let notices = opened.iter().flat_map(|node| node.notices().to_vec()).collect();
    for node in opened {
        start(move || serve_links(node))?;
    }
    start(move || echo_datagrams(&bare_udp))?;
    start(move || echo_streams(&bare_tcp))?;
    Ok((ports, notices))
}

/// Starts a detached thread.
fn start(work: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let started = thread::Builder::new().spawn(work).map_err(failed("cannot start a thread"))?;
    drop(started);
    Ok(())
}

/// Starts a server in this process, on another core: on one core, client and server would each spin while the other has
/// work. Threads inherit the core of the thread that starts them.
pub(super) fn start_on_another_core(key: Option<&Key>) -> Result<Ports, Failure> {
    thread::scope(|scope| {
        let serve = || {
            pin(1);
            start_server(&HostPort::new("127.0.0.1", 0), key)
        };
        let server = thread::Builder::new().spawn_scoped(scope, serve);
        let started = server.map_err(failed("cannot start a thread"))?.join();
        let (ports, _) = started.map_err(|_| Failure::Runtime("no server".to_owned()))??;
        Ok(ports)
    })
}

/// Pins this thread to the core at `index`, the fastest first, if there is one.
pub(super) fn pin(index: usize) {
    if let Some(core) = cpu::cores().get(index) {
        cpu::pin_current_thread(core.cpu);
    }
}

/// Answers clients until the program is interrupted.
pub(in crate::cli::bench) fn serve(
    listen: &HostPort,
    key: Option<&Key>,
    note: fn(&str),
) -> Result<(), Failure> {
    signal::install().map_err(failed("cannot handle signals"))?;
    let (ports, notices) = start_server(listen, key)?;
    notices.iter().for_each(|notice| note(notice));
    note(&format!("links at {}, bare sockets at {}", ports.udp, ports.bare_udp));
    while signal::interrupted() == 0 {
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn serve_links(mut node: Box<dyn Endpoint>) {
    loop {
        if node.service(Duration::from_secs(1)).is_err() {
            return;
        }
        let links = node.links();
        while links.prev.as_mut().is_some_and(|link| link.next_event().is_some()) {}
        while links.next.as_mut().is_some_and(|link| link.next_event().is_some()) {}
        match answer(links.next.as_mut(), links.prev.as_mut()) {
            None => {}
            Some(Wish::Answers(address)) => node.set_next(address),
            Some(Wish::Gathers) => match team::serve(node) {
                Some(again) => node = again,
                None => return,
            },
        }
    }
}

/// A request of a client, besides answers.
enum Wish {
    /// Send answers to this address.
    Answers(SocketAddr),
    /// Take part in gathers of a team.
    Gathers,
}

/// Echoes frames at their length while there is room. Returns what else a client wants.
fn answer(mut next: Option<&mut LinkOut>, prev: Option<&mut LinkIn>) -> Option<Wish> {
    let prev = prev?;
    while let Some(frame) = prev.front() {
        match *frame {
            [PORT_FRAME, low, high, ..] => {
                let client = prev.address()?;
                prev.release();
                let port = u16::from_le_bytes([low, high]);
                return Some(Wish::Answers(SocketAddr::new(client.ip(), port)));
            }
            [TEAM_FRAME, ..] => {
                prev.release();
                return Some(Wish::Gathers);
            }
            [ECHO_FRAME, ..] => {
                let bytes = frame.len();
                let link = next.as_deref_mut()?;
                write(&mut link.reserve()?[..bytes], ECHO_FRAME);
                link.commit(bytes);
            }
            _ => {}
        }
        prev.release();
    }
    None
}

fn echo_datagrams(socket: &UdpSocket) {
    if socket.set_nonblocking(true).is_err() {
        return;
    }
    // A datagram too long for a request is cut to one byte more than `PING_BYTES`, and ignored.
    let (mut answer, mut received) = (vec![0; PING_BYTES], vec![0; PING_BYTES + 1]);
    loop {
        match spin(|| socket.recv_from(&mut received), socket) {
            Ok((n, from)) if n <= PING_BYTES && received[..n].starts_with(REQUEST) => {
                write_datagram(&mut answer[..n], ANSWER);
                // The client notices a lost answer.
                let _ = socket.send_to(&answer[..n], from);
            }
            _ => {}
        }
    }
}

fn echo_streams(listener: &TcpListener) {
    let clients = Arc::new(());
    for stream in listener.incoming().flatten() {
        if Arc::strong_count(&clients) > STREAMS_MAX {
            continue;
        }
        let client = Arc::clone(&clients);
        // If no thread can start, the client finds its stream closed.
        let _ = start(move || {
            let _client = client;
            let mut bytes = vec![0; PING_BYTES];
            let is_tuned = tune(&stream).is_ok();
            while is_tuned && exchange(&stream, &mut bytes, false).is_ok() {}
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::ends::GIVE_UP;
    use super::*;

    #[test]
    fn server_answers_requests_alone() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect(server.local_addr().unwrap()).unwrap();
        client.set_read_timeout(Some(GIVE_UP)).unwrap();
        // The thread waits for datagrams as long as the process lives.
        thread::spawn(move || echo_datagrams(&server));
        for (len, mark) in [(100, ANSWER), (PING_BYTES + 1, REQUEST), (7, REQUEST), (64, REQUEST)] {
            let mut datagram = vec![0; len];
            write_datagram(&mut datagram, mark);
            client.send(&datagram).unwrap();
        }
        client.send(b"anything").unwrap();
        let mut received = [0; 1 << 16];
        // Datagrams to one's own machine arrive in order, so what comes first is the only answer.
        assert_eq!(client.recv(&mut received).unwrap(), 64);
        assert!(received.starts_with(ANSWER));
        let mut last = vec![0; 9];
        write_datagram(&mut last, REQUEST);
        client.send(&last).unwrap();
        assert_eq!(client.recv(&mut received).unwrap(), 9);
    }
}
