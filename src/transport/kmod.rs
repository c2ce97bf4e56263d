//! Links by the kernel module: DATA goes and comes through `/dev/leap_tensor`, everything else
//! through a UDP socket on the same port. The datagrams are those of UDP, so that the neighbour
//! may use either.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use super::link::{Burst, LinkIn, LinkOut, Links, Wire};
use super::options::{Clock, Options, mapped};
use super::{Endpoint, Error, Micros};
use crate::sys::net::{self, Batch, DatagramSocket};
use crate::sys::tensor::{self, Device};
use crate::wire::datagram::{CHUNK_BYTES, CHUNKS_MAX};

/// How long to look at memory alone before asking the socket again.
const GLANCE_US: Micros = 10;

// A bank of the module is a bank of the protocol.
const _: () = assert!(tensor::CHUNK_BYTES == CHUNK_BYTES);
const _: () = assert!(tensor::CHUNKS == CHUNKS_MAX);
const _: () = assert!(tensor::BANKS == super::link::BANKS_MAX);

/// Both links of a node over the kernel module.
pub struct Kmod {
    options: Options,
    links: Links,
    out: Out,
    batch: Batch,
    clock: Clock,
    address: SocketAddr,
    dropped: u64,
}

struct Out {
    socket: DatagramSocket,
    device: Arc<Device>,
    /// Whom the module sends to, and in which session.
    dest: Option<(SocketAddr, u64)>,
    notices: Vec<String>,
}

impl Out {
    /// Whether the module can send there.
    fn is_way(&mut self, to: SocketAddr, session: u64) -> bool {
        if self.dest == Some((to, session)) {
            return true;
        }
        match self.device.set_dest(canonical(to), session) {
            Ok(route) => {
                self.dest = Some((to, session));
                if route.is_copied {
                    self.tell("the network device gathers no pages: frames are copied once");
                }
                true
            }
            Err(e) => {
                self.tell(&format!("frames leave through the socket, not the module: {e}"));
                false
            }
        }
    }

    fn tell(&mut self, notice: &str) {
        if !self.notices.iter().any(|told| told == notice) {
            log::info!("{notice}");
            self.notices.push(notice.to_owned());
        }
    }
}

impl Wire for Out {
    fn burst(&mut self, to: SocketAddr, burst: &Burst<'_>) -> bool {
        let header = burst.header();
        if !self.is_way(to, header.session) {
            return self.socket.send(to, burst.datagrams());
        }
        let size = (header.n_chunks, header.frame_bytes);
        // What the network refuses is lost, as anywhere on the way.
        if let Err(e) = self.device.send(header.seq, size, burst.chunks(), burst.crcs()) {
            log::debug!("leap_tensor: {e}");
        }
        true
    }

    fn control(&mut self, to: SocketAddr, datagram: &[u8]) {
        self.socket.send_one(to, datagram);
    }
}

impl Kmod {
    /// Listens for the previous node and opens the link to the next, if one is given.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the module is not to be used; else as for UDP.
    pub fn open(options: Options) -> Result<Kmod, Error> {
        let device = Device::open().map_err(|source| Error::Kernel { source })?;
        let (listen, next) = options.addresses()?;
        let fail = |source| Error::Listen { address: listen, source };
        // Frames are the module's, which the system would look for this socket to join.
        let socket = DatagramSocket::bind_single(listen).map_err(fail)?;
        let address = socket.local_address().map_err(fail)?;
        device.set_port(address).map_err(|source| Error::Kernel { source })?;
        let links =
            Links { next: None, prev: Some(LinkIn::of_kernel(&device, options.config.clone())) };
        let out = Out { socket, device, dest: None, notices: Vec::new() };
        let (batch, clock) = (Batch::default(), Clock::start());
        let mut kmod = Kmod { options, links, out, batch, clock, address, dropped: 0 };
        if let Some(next) = next {
            kmod.set_next(next);
        }
        Ok(kmod)
    }

    /// Whether the module is there, and may be opened.
    pub fn is_available() -> bool {
        Device::open().is_ok()
    }

    /// What the module has counted.
    ///
    /// # Errors
    /// The system's.
    pub fn stats(&self) -> io::Result<tensor::Stats> {
        self.out.device.stats()
    }

    /// Datagrams at the socket that were damaged or not of this protocol.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Takes what has arrived, at the socket and in the banks. Returns whether the socket had
    /// something.
    fn receive(&mut self, now: Micros) -> io::Result<bool> {
        let n = self.out.socket.receive(&mut self.batch)?;
        for (from, datagram) in self.batch.datagrams() {
            if self.links.on_datagram(now, from, datagram, &mut self.out).is_err() {
                self.dropped += 1;
            }
        }
        if let Some(prev) = &mut self.links.prev {
            prev.follow_session(|from, session, banks| {
                self.out.device.set_peer(canonical(from), session, banks)
            })?;
            prev.collect(now);
        }
        Ok(n > 0)
    }

    /// Looks at the next frame's bank until it is complete, or until `end`.
    fn glance(&mut self, end: Micros) {
        while self.clock.now() < end {
            if self.links.prev.as_mut().is_some_and(LinkIn::is_next_ready) {
                return;
            }
            std::hint::spin_loop();
        }
    }
}

impl Endpoint for Kmod {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }

    fn service(&mut self, wait: Duration) -> io::Result<()> {
        let start = self.clock.now();
        let end = start.saturating_add(wait.as_micros() as Micros);
        let spin_end = start + self.options.spin.as_micros() as Micros;
        self.links.transmit(start, &mut self.out);
        let mut now = start;
        loop {
            let has_received = self.receive(now)?;
            if self.links.is_ready() {
                return Ok(());
            }
            now = self.clock.now();
            if has_received || now >= self.links.deadline() {
                self.links.transmit(now, &mut self.out);
            }
            if self.links.is_ready() || now >= end {
                return Ok(());
            }
            let until = self.links.deadline().min(end);
            if now < spin_end {
                self.glance(until.min(now + GLANCE_US));
            } else if !has_received {
                let wait = Duration::from_micros(until.saturating_sub(now));
                let fds = [(self.out.socket.as_fd(), false), (self.out.device.as_fd(), false)];
                net::wait(&fds, wait);
            }
            now = self.clock.now();
        }
    }

    fn set_next(&mut self, address: SocketAddr) {
        let address = mapped(address, self.address.is_ipv6());
        let config = self.options.config.clone();
        // The link before has the slots.
        self.links.next = None;
        let next = LinkOut::of_kernel(&self.out.device, config, address, self.clock.now());
        self.links.next = Some(next);
    }

    fn carrier(&self) -> &'static str {
        "kernel"
    }

    fn local_address(&self) -> SocketAddr {
        self.address
    }

    fn notices(&self) -> &[String] {
        &self.out.notices
    }
}

impl Drop for Kmod {
    /// Tells a debug log whether the module was used.
    fn drop(&mut self) {
        if let Ok(stats) = self.stats() {
            log::debug!("leap_tensor: {stats:?}");
        }
    }
}

/// `address` as the module knows it: an IPv4 one never as IPv6 writes it.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::from((ip, address.port())),
        IpAddr::V6(_) => address,
    }
}
