//! Links over the kernel module: DATA goes and comes through `/dev/leap_tensor`, everything else through a UDP socket
//! on the same port. The datagrams are those of UDP, so that the neighbour may use either.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;

use super::datagrams::{self, Carrier, Datagrams};
use super::link::{BANKS_MAX, Burst, LinkIn, LinkOut, Links, Sending, Wire};
use super::options::CarrierOptions;
use super::sleep::Sleep;
use super::{Micros, TransportError};
use crate::sys::net::DatagramSocket;
use crate::sys::tensor::{self, Device};
use crate::wire::datagram::{CHUNK_BYTES, CHUNKS_MAX, DATAGRAM_BYTES};

// A bank of the module is a bank of the protocol.
const _: () = assert!(tensor::CHUNK_BYTES == CHUNK_BYTES);
const _: () = assert!(tensor::CHUNKS == CHUNKS_MAX);
const _: () = assert!(tensor::BANKS == BANKS_MAX);

/// Both links of a node over the kernel module.
pub type Kmod = Datagrams<Module>;

/// The module, and the socket beside it.
pub struct Module {
    socket: DatagramSocket,
    device: Arc<Device>,
    /// Destination and session of the module's datagrams.
    dest: Option<(SocketAddr, u64)>,
    /// Buffer for datagrams that leave through the socket, because the module cannot send them.
    room: Box<[u8]>,
    notices: Vec<String>,
}

impl Kmod {
    /// Listens for the previous node and opens the link to the next, if one is given.
    ///
    /// # Errors
    /// [`TransportError::Kernel`] if the module cannot be used; else as for UDP.
    pub fn open(options: CarrierOptions) -> Result<Kmod, TransportError> {
        let device = Device::open().map_err(|source| TransportError::Kernel { source })?;
        let (listen, resolver) = options.addresses()?;
        // Frames are the module's, which the system would look for this socket to join.
        let (socket, address) = datagrams::listen(listen, DatagramSocket::bind_single)?;
        device.set_port(address).map_err(|source| TransportError::Kernel { source })?;
        let prev = LinkIn::of_kernel(&device, options.config.clone());
        // Polling the socket also finds frames for the module.
        let notices = datagrams::poll_device(&socket, options.busy_poll_us).into_iter().collect();
        let room = vec![0; CHUNKS_MAX * DATAGRAM_BYTES].into_boxed_slice();
        let module = Module { socket, device, dest: None, room, notices };
        Ok(Datagrams::new(options, module, (address, resolver), prev))
    }

    /// Whether the module is there, and may be opened.
    pub fn is_available() -> bool {
        Device::open().is_ok()
    }
}

impl Module {
    /// Sets where the module sends. False if the module cannot send there.
    fn aim_at(&mut self, to: SocketAddr, session: u64) -> bool {
        if self.dest == Some((to, session)) {
            return true;
        }
        match self.device.set_dest(canonical(to), session) {
            Ok(route) => {
                self.dest = Some((to, session));
                if route.is_copied {
                    self.tell("the network device does not read frames where they lie: they are copied once");
                }
                true
            }
            Err(e) => {
                self.tell(&format!("frames leave through the socket, not the module: {e}"));
                false
            }
        }
    }
}

impl Wire for Module {
    fn burst(&mut self, to: SocketAddr, burst: &Burst<'_>) -> Sending {
        let header = burst.header();
        if !self.aim_at(to, header.session) {
            let mut bytes = 0;
            for datagram in burst.datagrams() {
                bytes += datagram.write(&mut self.room[bytes..]);
            }
            return self.socket.send(to, &self.room[..bytes], DATAGRAM_BYTES);
        }
        let size = (header.n_chunks, header.frame_bytes);
        match self.device.send(header.seq, size, burst.chunks(), burst.crcs()) {
            Err(e) if e.raw_os_error() == Some(libc::EMSGSIZE) => return Sending::TooLong,
            // A datagram that the network refuses counts as lost on the way.
            Err(e) => log::debug!("leap_tensor: {e}"),
            Ok(_) => {}
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

impl Carrier for Module {
    const NAME: &'static str = "kernel";
    const SOCKET_RESTS_US: Micros = datagrams::GLANCE_US;

    fn socket(&self) -> &DatagramSocket {
        &self.socket
    }

    fn link_to(&self, options: &CarrierOptions, address: SocketAddr, now: Micros) -> LinkOut {
        LinkOut::of_kernel(&self.device, options.config.clone(), address, now)
    }

    fn collect(&mut self, links: &mut Links, now: Micros) -> io::Result<()> {
        let Some(prev) = &mut links.prev else { return Ok(()) };
        prev.follow_session(|from, session, banks| match banks {
            Some(banks) => self.device.set_peer(canonical(from), session, banks),
            None => self.device.move_peer(canonical(from), session),
        })?;
        prev.collect(now);
        Ok(())
    }

    /// Watches the next frame's bank until it is complete.
    fn glance(&self, links: &mut Links, is_over: impl Fn() -> bool) {
        let is_there = || links.prev.as_ref().is_some_and(LinkIn::is_next_ready);
        while !is_over() && !is_there() {
            std::hint::spin_loop();
        }
    }

    fn join<'a>(&'a self, sleep: &mut Sleep<'a>) {
        sleep.on(self.socket.as_fd(), false);
        sleep.on(self.device.as_fd(), false);
    }

    fn tell(&mut self, notice: &str) {
        if !self.notices.iter().any(|told| told == notice) {
            log::info!("{notice}");
            self.notices.push(notice.to_owned());
        }
    }

    fn notices(&self) -> &[String] {
        &self.notices
    }
}

impl Drop for Module {
    /// Logs the module's counters, which show whether it was used.
    fn drop(&mut self) {
        if let Ok(stats) = self.device.stats() {
            log::debug!("leap_tensor: {stats:?}");
        }
    }
}

/// `address` in the module's form: IPv4 addresses are never mapped to IPv6.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::from((ip, address.port())),
        IpAddr::V6(_) => address,
    }
}
