//! Diagnosis of a next node that is silent over datagrams: does its host report a closed port, or does it
//! listen for streams instead?

use std::net::{SocketAddr, TcpStream, UdpSocket};

use super::Micros;
use super::link::Unheard;
use crate::sys::net;

/// Silence of the next node after which its diagnosis begins.
pub(super) const PATIENCE_US: Micros = 3_000_000;
/// How long the next node's host has to answer the probes.
const ANSWER_US: Micros = 1_000_000;

/// Diagnosis of a silent next node.
pub(super) struct Doubt {
    to: SocketAddr,
    step: DoubtStep,
}

enum DoubtStep {
    /// Probes at this time, unless the node is heard before.
    Wait(Micros),
    /// Waits for answers to the probes until this time.
    Ask(Micros, Option<UdpSocket>, Option<TcpStream>),
    Over,
}

impl Doubt {
    pub(super) fn new(to: SocketAddr, now: Micros) -> Doubt {
        Doubt { to, step: DoubtStep::Wait(now + PATIENCE_US) }
    }

    /// Continues the diagnosis. `is_heard` says whether the next node has ever been heard. Returns the
    /// result, at most once.
    pub(super) fn turn(&mut self, now: Micros, is_heard: bool) -> Option<Unheard> {
        match &self.step {
            DoubtStep::Over => None,
            _ if is_heard => {
                self.step = DoubtStep::Over;
                None
            }
            DoubtStep::Wait(at) => {
                if now >= *at {
                    // A failed probe tells nothing.
                    let (udp, tcp) = (ask(self.to).ok(), net::connect(self.to).ok());
                    self.step = DoubtStep::Ask(now + ANSWER_US, udp, tcp);
                }
                None
            }
            DoubtStep::Ask(until, udp, tcp) => {
                if now < *until {
                    return None;
                }
                let is_closed = udp.as_ref().is_some_and(is_refused);
                let has_streams = tcp.as_ref().is_some_and(|tcp| tcp.peer_addr().is_ok());
                let unheard = Unheard { to: self.to, is_stream: false, has_other: has_streams };
                self.step = DoubtStep::Over;
                (is_closed || has_streams).then_some(unheard)
            }
        }
    }
}

/// Sends an empty datagram. A node ignores it, but a host without a node refuses it.
fn ask(to: SocketAddr) -> std::io::Result<UdpSocket> {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    socket.set_nonblocking(true)?;
    socket.connect(to)?;
    socket.send(&[])?;
    Ok(socket)
}

fn is_refused(socket: &UdpSocket) -> bool {
    let error = socket.recv(&mut [0]).err();
    error.is_some_and(|e| e.kind() == std::io::ErrorKind::ConnectionRefused)
}
