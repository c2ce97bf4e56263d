//! Options of carriers over sockets.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::TransportError;
use super::link::LinkConfig;
use super::place::{HostPort, by_system};
use super::resolver::Resolver;

/// Options of a node's carrier.
#[derive(Clone)]
pub struct CarrierOptions {
    /// Settings of the links, with the node and the ring's key.
    pub config: LinkConfig,
    /// Host and port at which the previous node reaches this one.
    pub listen: HostPort,
    /// The next node; `None` if it is not known yet. A name is resolved while links are serviced, and again when the
    /// node is missing.
    pub next: Option<HostPort>,
    /// Name resolver: the system's, except in tests.
    pub resolve: fn(&str, u16) -> io::Result<Vec<SocketAddr>>,
    /// How long to look for datagrams before sleeping until one comes.
    pub spin: Duration,
    /// How long the kernel polls the network device before it sleeps, in microseconds; 0 if it does not.
    pub busy_poll_us: u32,
}

impl CarrierOptions {
    /// Options for `config` that listen at `listen` and spin for 50 microseconds.
    pub fn new(config: LinkConfig, listen: HostPort, next: Option<HostPort>) -> CarrierOptions {
        let spin = Duration::from_micros(50);
        CarrierOptions { config, listen, next, resolve: by_system, spin, busy_poll_us: 0 }
    }

    /// The address of this node, and where the next one is.
    pub(super) fn addresses(&self) -> Result<(SocketAddr, Resolver), TransportError> {
        let is_near = || {
            let next =
                self.next.as_ref().and_then(|next| next.resolve_by(self.resolve, |_| true).ok());
            next.is_some_and(|next| next.ip().is_loopback())
        };
        let listen = self.listen.resolve_to_listen_by(self.resolve, is_near)?;
        Ok((listen, Resolver::new(self.next.clone(), self.resolve, listen)?))
    }
}
