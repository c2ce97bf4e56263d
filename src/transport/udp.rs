//! Links over UDP: one socket for both neighbours, all chunks of a frame in one call where the
//! kernel splits and joins datagrams (`UDP_SEGMENT`, `UDP_GRO`).

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use super::link::{Burst, LinkIn, LinkOut, Links, Mode, Wire};
use super::options::{Clock, Options, mapped};
use super::{Endpoint, Error, Micros};
use crate::sys::net::{self, Batch, DatagramSocket};

/// Room that is asked for in the kernel: some frames, with the kernel's own bookkeeping.
const BUFFER_BYTES: usize = 4 << 20;
/// Below this a single frame may not fit.
const BUFFER_ENOUGH: usize = 1 << 20;

/// Both links of a node over one UDP socket.
pub struct Udp {
    options: Options,
    links: Links,
    out: Out,
    batch: Batch,
    clock: Clock,
    address: SocketAddr,
    notices: Vec<String>,
    dropped: u64,
}

struct Out {
    socket: DatagramSocket,
}

impl Wire for Out {
    fn burst(&mut self, to: SocketAddr, burst: &Burst<'_>) -> bool {
        self.socket.send(to, burst.datagrams())
    }

    fn control(&mut self, to: SocketAddr, datagram: &[u8]) {
        self.socket.send_one(to, datagram);
    }
}

impl Udp {
    /// Listens for the previous node and opens the link to the next, if one is given.
    ///
    /// # Errors
    /// A host that cannot be found, an address that cannot be listened on.
    pub fn open(options: Options) -> Result<Udp, Error> {
        let (listen, next) = options.addresses()?;
        let fail = |source| Error::Listen { address: listen, source };
        let socket = DatagramSocket::bind(listen).map_err(fail)?;
        let address = socket.local_address().map_err(fail)?;
        let notices = tune(&socket, &options).map_err(fail)?;
        let links = Links { next: None, prev: Some(LinkIn::new(options.config.clone())) };
        let (out, batch, clock) = (Out { socket }, Batch::default(), Clock::start());
        let mut udp = Udp { options, links, out, batch, clock, address, notices, dropped: 0 };
        if let Some(next) = next {
            udp.set_next(next);
        }
        Ok(udp)
    }

    /// Datagrams that were damaged or not of this protocol.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Takes what has arrived. Returns the number of messages.
    fn receive(&mut self, now: Micros) -> io::Result<usize> {
        let n = self.out.socket.receive(&mut self.batch)?;
        for (from, datagram) in self.batch.datagrams() {
            if self.links.on_datagram(now, from, datagram, &mut self.out).is_err() {
                self.dropped += 1;
            }
        }
        Ok(n)
    }
}

/// Sets the socket's buffers; what falls short of the wish is told.
fn tune(socket: &DatagramSocket, options: &Options) -> io::Result<Vec<String>> {
    let mut notices = Vec::new();
    let granted = socket.set_buffers(BUFFER_BYTES)?;
    for (what, limit, bytes) in
        [("receive", "rmem_max", granted.receive), ("send", "wmem_max", granted.send)]
    {
        if bytes < BUFFER_ENOUGH {
            notices.push(format!(
                "the kernel caps the socket's {what} buffer at {} KiB; long frames lose datagrams \
                 (sysctl -w net.core.{limit}={BUFFER_BYTES})",
                bytes >> 10
            ));
        }
    }
    if options.busy_poll_us > 0
        && let Err(e) = socket.set_busy_poll(options.busy_poll_us)
    {
        notices.push(format!("the kernel does not poll the network device: {e}"));
    }
    Ok(notices)
}

impl Endpoint for Udp {
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
            let n_received = self.receive(now)?;
            if self.links.is_ready() {
                return Ok(());
            }
            now = self.clock.now();
            if n_received > 0 || now >= self.links.deadline() {
                self.links.transmit(now, &mut self.out);
            }
            if self.links.is_ready() || now >= end {
                return Ok(());
            }
            if now < spin_end {
                std::hint::spin_loop();
            } else if n_received == 0 {
                let until = self.links.deadline().min(end);
                let wait = Duration::from_micros(until.saturating_sub(now));
                net::wait(&[(self.out.socket.as_fd(), false)], wait);
                now = self.clock.now();
            }
        }
    }

    fn set_next(&mut self, address: SocketAddr) {
        let address = mapped(address, self.address.is_ipv6());
        let config = self.options.config.clone();
        self.links.next = Some(LinkOut::new(config, Mode::Datagrams, address, self.clock.now()));
    }

    fn carrier(&self) -> &'static str {
        "udp"
    }

    fn local_address(&self) -> SocketAddr {
        self.address
    }

    fn notices(&self) -> &[String] {
        &self.notices
    }
}
