//! Links over UDP: all chunks of a frame in one call if the kernel splits and joins datagrams (`UDP_SEGMENT`,
//! `UDP_GRO`).

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use super::datagrams::{self, Carrier, Datagrams};
use super::link::{Burst, LinkIn, LinkOut, Links, Mode, Sending, Wire};
use super::options::CarrierOptions;
use super::sleep::Sleep;
use super::{Micros, TransportError};
use crate::sys::net::DatagramSocket;
use crate::wire::datagram::DATAGRAM_BYTES;

/// Socket buffer that is requested from the kernel: some frames, with the kernel's own bookkeeping.
const BUFFER_BYTES: usize = 4 << 20;
/// With a smaller buffer a single frame may not fit.
const BUFFER_ENOUGH: usize = 1 << 20;

/// Both links of a node over one UDP socket.
pub type Udp = Datagrams<Socket>;

/// The carrier UDP: a socket, and nothing beside it.
pub struct Socket {
    socket: DatagramSocket,
    notices: Vec<String>,
}

impl Udp {
    /// Listens for the previous node and opens the link to the next, if one is given.
    ///
    /// # Errors
    /// A host that cannot be found, an address that cannot be listened on.
    pub fn open(options: CarrierOptions) -> Result<Udp, TransportError> {
        let (listen, resolver) = options.addresses()?;
        let (socket, address) = datagrams::listen(listen, DatagramSocket::bind)?;
        let notices =
            tune(&socket, &options).map_err(|source| TransportError::Listen { address, source })?;
        let prev = LinkIn::new(options.config.clone());
        Ok(Datagrams::new(options, Socket { socket, notices }, (address, resolver), prev))
    }
}

impl Wire for Socket {
    fn burst(&mut self, to: SocketAddr, burst: &Burst<'_>) -> Sending {
        for run in burst.runs() {
            let sending = self.socket.send(to, run, DATAGRAM_BYTES);
            if sending != Sending::Gone {
                return sending;
            }
        }
        Sending::Gone
    }

    fn pieces(&mut self, to: SocketAddr, bytes: &[u8], datagram_bytes: usize) -> Sending {
        self.socket.send_singly(to, bytes, datagram_bytes)
    }

    fn control(&mut self, to: SocketAddr, datagram: &[u8]) {
        self.socket.send_one(to, datagram);
    }
}

impl Carrier for Socket {
    const NAME: &'static str = "udp";
    const SOCKET_RESTS_US: Micros = 0;

    fn socket(&self) -> &DatagramSocket {
        &self.socket
    }

    fn link_to(&self, options: &CarrierOptions, address: SocketAddr, now: Micros) -> LinkOut {
        LinkOut::new(options.config.clone(), Mode::Datagrams, address, now)
    }

    fn collect(&mut self, _: &mut Links, _: Micros) -> io::Result<()> {
        Ok(())
    }

    fn glance(&self, _: &mut Links, _: impl Fn() -> bool) {
        std::hint::spin_loop();
    }

    fn join<'a>(&'a self, sleep: &mut Sleep<'a>) {
        sleep.on(self.socket.as_fd(), false);
    }

    fn tell(&mut self, notice: &str) {
        if !self.notices.iter().any(|told| told == notice) {
            self.notices.push(notice.to_owned());
        }
    }

    fn notices(&self) -> &[String] {
        &self.notices
    }
}

/// Sets the socket's buffers. Returns notices about what the kernel does not grant.
fn tune(socket: &DatagramSocket, options: &CarrierOptions) -> io::Result<Vec<String>> {
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
    notices.extend(datagrams::poll_device(socket, options.busy_poll_us));
    Ok(notices)
}
