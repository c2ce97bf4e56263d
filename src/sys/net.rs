//! Sockets: many datagrams in one call, connecting without waiting, waiting for several.

use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::mem;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::socket::{
    self, AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, UnixAddr, setsockopt,
    sockopt,
};
use nix::sys::stat::{Mode, fchmod};
use nix::sys::time::TimeSpec;

/// Longest message in bytes: the kernel may join datagrams that came together.
pub const MESSAGE_BYTES: usize = 1 << 16;
/// Most datagrams that are handed to the kernel as one.
const SEGMENTS_MAX: usize = 45;
/// Most sockets that are waited for at a time.
pub const POLLED_MAX: usize = 64;

/// The error of a wait that took too long.
pub fn timed_out(after: Duration) -> io::Error {
    io::Error::new(ErrorKind::TimedOut, format!("timed out after {} s", after.as_secs()))
}

/// A Unix socket at `path` that listens, and that only this user may connect to from the first moment on.
///
/// # Errors
/// The system's; a path of more than 107 bytes is too long.
pub fn listen_privately(path: &Path) -> io::Result<UnixListener> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    // The file that binding makes has the mode of the socket.
    fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
    socket::bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    socket::listen(&socket, Backlog::new(64)?)?;
    Ok(UnixListener::from(socket))
}

/// A UDP socket that takes and gives many datagrams at once.
pub struct DatagramSocket {
    socket: UdpSocket,
    /// Whether the kernel splits long messages into datagrams.
    splits: Cell<bool>,
    /// Length of the datagrams that the kernel splits messages into; 0 if it does not split.
    segment_bytes: Cell<usize>,
}

/// Result of sending datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sending {
    /// The datagrams are on their way; those that cannot be delivered are lost.
    Gone,
    /// The socket has no room for them now.
    NoRoom,
    /// The path does not take datagrams of their length.
    TooLong,
}

/// Buffer sizes that the kernel granted, in bytes of payload and bookkeeping.
#[derive(Clone, Copy, Debug)]
pub struct BufferBytes {
    /// For received datagrams.
    pub receive: usize,
    /// For datagrams to send.
    pub send: usize,
}

impl DatagramSocket {
    /// A socket on `address`; an unspecified IPv6 address takes IPv4, too.
    ///
    /// # Errors
    /// The system's.
    pub fn bind(address: SocketAddr) -> io::Result<DatagramSocket> {
        let socket = DatagramSocket::bind_single(address)?;
        // Kernels that do not join datagrams deliver them one by one.
        let _ = setsockopt(&socket.socket, sockopt::UdpGroSegment, &true);
        Ok(socket)
    }

    /// Binds a socket that does not join what arrives: for few datagrams that costs more than it
    /// saves.
    ///
    /// # Errors
    /// The system's.
    pub fn bind_single(address: SocketAddr) -> io::Result<DatagramSocket> {
        let socket = UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        forbid_fragments(&socket, address.is_ipv6())?;
        // Kernels that do not split datagrams take them one by one.
        let splits = Cell::new(setsockopt(&socket, sockopt::UdpGsoSegment, &0).is_ok());
        Ok(DatagramSocket { socket, splits, segment_bytes: Cell::new(0) })
    }

    /// The address that the socket is bound to.
    ///
    /// # Errors
    /// The system's.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Asks for buffers of `bytes` and returns what the kernel gives. The kernel's limit holds unless the process has
    /// the privilege to exceed it.
    ///
    /// # Errors
    /// The system's.
    pub fn set_buffers(&self, bytes: usize) -> io::Result<BufferBytes> {
        if setsockopt(&self.socket, sockopt::RcvBufForce, &bytes).is_err() {
            setsockopt(&self.socket, sockopt::RcvBuf, &bytes)?;
        }
        if setsockopt(&self.socket, sockopt::SndBufForce, &bytes).is_err() {
            setsockopt(&self.socket, sockopt::SndBuf, &bytes)?;
        }
        // The kernel keeps and reports twice what was requested.
        let receive = socket::getsockopt(&self.socket, sockopt::RcvBuf)? / 2;
        let send = socket::getsockopt(&self.socket, sockopt::SndBuf)? / 2;
        Ok(BufferBytes { receive, send })
    }

    /// Lets the kernel poll the network device for `us` microseconds before it sleeps.
    ///
    /// # Errors
    /// The system's; more than the default needs a privilege.
    pub fn set_busy_poll(&self, us: u32) -> io::Result<()> {
        set_option(&self.socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL, us as libc::c_int)
    }

    /// Receives a message into `room`, without waiting. Returns the sender and the bytes; `None` if nothing is there.
    /// The message may be several datagrams, all but the last of one length. The first one has to contain this length:
    /// asking the kernel takes longer.
    ///
    /// # Errors
    /// The system's, but for those that mean that nothing is there.
    pub fn receive<'a>(
        &self,
        room: &'a mut [u8],
    ) -> io::Result<Option<(SocketAddr, &'a mut [u8])>> {
        match self.socket.recv_from(room) {
            Ok((bytes, from)) => Ok(Some((from, &mut room[..bytes]))),
            Err(e) => match e.kind() {
                ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionRefused => {
                    Ok(None)
                }
                _ => Err(e),
            },
        }
    }

    /// Sends `bytes` as datagrams of `datagram_bytes` (the last may be shorter), in as few calls as the kernel allows.
    ///
    /// # Panics
    /// If `datagram_bytes` is 0.
    pub fn send(&self, to: SocketAddr, bytes: &[u8], datagram_bytes: usize) -> Sending {
        for message in bytes.chunks(SEGMENTS_MAX * datagram_bytes) {
            let sending = self.send_segments(to, message, datagram_bytes);
            if sending != Sending::Gone {
                return sending;
            }
        }
        Sending::Gone
    }

    /// Sends one datagram; it is lost if there is no room.
    pub fn send_one(&self, to: SocketAddr, datagram: &[u8]) {
        // A datagram that does not fit counts as lost on the way.
        let _ = self.send_whole(to, datagram);
    }

    /// Sends `bytes` in datagrams of `segment_bytes`.
    fn send_segments(&self, to: SocketAddr, bytes: &[u8], segment_bytes: usize) -> Sending {
        if bytes.len() <= segment_bytes || !self.splits_at(segment_bytes) {
            return self.send_singly(to, bytes, segment_bytes);
        }
        match self.patiently(|| self.send_message(to, bytes)) {
            Err(e) if cannot_split(e) => {
                let sending = self.send_singly(to, bytes, segment_bytes);
                if sending != Sending::TooLong {
                    // From now on datagrams are sent one by one.
                    self.splits_at(0);
                    self.splits.set(false);
                }
                sending
            }
            Err(Errno::EAGAIN) => Sending::NoRoom,
            _ => Sending::Gone,
        }
    }

    /// Sends datagrams as [`DatagramSocket::send`] does, but each by itself: filters on the way may judge several
    /// datagrams that were handed over as one by their total length.
    ///
    /// # Panics
    /// If `datagram_bytes` is 0.
    pub fn send_singly(&self, to: SocketAddr, bytes: &[u8], datagram_bytes: usize) -> Sending {
        for datagram in bytes.chunks(datagram_bytes) {
            match self.patiently(|| self.send_whole(to, datagram)) {
                Err(Errno::EAGAIN) => return Sending::NoRoom,
                Err(Errno::EMSGSIZE) => return Sending::TooLong,
                _ => {}
            }
        }
        Sending::Gone
    }

    /// Lets the kernel split messages longer than `bytes`, or none if `bytes` is 0. The setting stays for later
    /// messages, because sending it with each of them takes longer.
    fn splits_at(&self, bytes: usize) -> bool {
        if self.splits.get() && self.segment_bytes.get() != bytes {
            self.segment_bytes.set(bytes);
            let option = setsockopt(&self.socket, sockopt::UdpGsoSegment, &(bytes as i32));
            self.splits.set(option.is_ok());
        }
        self.splits.get()
    }

    /// Sends one datagram, no matter how the previous message was split.
    fn send_whole(&self, to: SocketAddr, datagram: &[u8]) -> Result<(), Errno> {
        if datagram.len() > self.segment_bytes.get() {
            self.splits_at(0);
        }
        match self.send_message(to, datagram) {
            // Some kernels refuse a short message, too, where longer ones could not be split.
            Err(e) if cannot_split(e) && self.segment_bytes.get() > 0 => {
                self.splits_at(0);
                self.send_message(to, datagram)
            }
            result => result,
        }
    }

    /// Waits a little if the buffer is full, until the network has taken some of it.
    fn patiently(&self, send: impl Fn() -> Result<(), Errno>) -> Result<(), Errno> {
        let mut result = send();
        if matches!(result, Err(Errno::EAGAIN | Errno::ENOBUFS)) {
            let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLOUT)];
            let wait = TimeSpec::from_duration(Duration::from_millis(2));
            // The next attempt shows whether waiting helped.
            let _ = ppoll(&mut fds, Some(wait), None);
            result = send();
        }
        result
    }

    fn send_message(&self, to: SocketAddr, bytes: &[u8]) -> Result<(), Errno> {
        let sent = self.socket.send_to(bytes, to);
        sent.map(drop).map_err(|e| Errno::from_raw(e.raw_os_error().unwrap_or(0)))
    }
}

/// Makes the system retransmit lost packets of a stream soon, and not at ever longer intervals: on a radio that loses
/// many packets in a row, the stream would stand still for minutes. Changes nothing on a system that cannot do that.
pub fn repeat_soon(stream: &TcpStream) {
    /// Longest pause between retransmissions, in milliseconds; systems from 2025 on know it.
    const TCP_RTO_MAX_MS: i32 = 44;
    let _ = set_option(stream, libc::IPPROTO_TCP, libc::TCP_THIN_LINEAR_TIMEOUTS, 1);
    let _ = set_option(stream, libc::IPPROTO_TCP, TCP_RTO_MAX_MS, 1_000);
}

/// Makes datagrams travel whole or not at all, on IPv4 and, from a socket of IPv6, on both.
fn forbid_fragments(socket: &UdpSocket, is_ipv6: bool) -> io::Result<()> {
    if is_ipv6 {
        let how = libc::IPV6_PMTUDISC_DO;
        set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, how)?;
    }
    set_option(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)
}

fn set_option(socket: &impl AsRawFd, level: i32, name: i32, value: libc::c_int) -> io::Result<()> {
    let bytes = mem::size_of_val(&value) as libc::socklen_t;
    // SAFETY: the value of the options here is an int, and `value` is one that lives during the call.
    let result = unsafe {
        let value: *const libc::c_int = &value;
        libc::setsockopt(socket.as_raw_fd(), level, name, value.cast(), bytes)
    };
    Errno::result(result)?;
    Ok(())
}

/// Whether a device or a path does not take messages that are to be split.
fn cannot_split(error: Errno) -> bool {
    matches!(error, Errno::EIO | Errno::EINVAL | Errno::EMSGSIZE | Errno::EOPNOTSUPP)
}

impl AsFd for DatagramSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Begins to connect a stream. It can be written to once it is connected.
///
/// # Errors
/// The system's, when it knows at once that this cannot succeed.
pub fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let fd = socket::socket(family, SockType::Stream, flags, None)?;
    match socket::connect(fd.as_raw_fd(), &SockaddrStorage::from(address)) {
        Ok(()) | Err(Errno::EINPROGRESS) => {}
        Err(e) => return Err(e.into()),
    }
    // SAFETY: `fd` is a stream socket without another owner.
    Ok(unsafe { TcpStream::from_raw_fd(fd.into_raw_fd()) })
}

/// The broadcast addresses of the networks that this machine is on: IPv4, without the loopback.
///
/// # Errors
/// The system's.
pub fn broadcasts() -> io::Result<Vec<Ipv4Addr>> {
    let wanted = InterfaceFlags::IFF_UP | InterfaceFlags::IFF_BROADCAST;
    let mut found = Vec::new();
    for interface in getifaddrs()?.filter(|interface| interface.flags.contains(wanted)) {
        let ip = |address: Option<SockaddrStorage>| Some(address?.as_sockaddr_in()?.ip());
        let Some((address, mask)) = ip(interface.address).zip(ip(interface.netmask)) else {
            continue;
        };
        let broadcast = address | !mask;
        // Networks of one or two addresses have no broadcast address.
        if mask.to_bits().trailing_zeros() > 1 && !found.contains(&broadcast) {
            found.push(broadcast);
        }
    }
    Ok(found)
}

/// Length of the network's prefix of `own`, an address of this machine; `None` if no interface has this address.
pub fn prefix_len(own: IpAddr) -> Option<u32> {
    let ip = |address: Option<SockaddrStorage>| {
        let address = address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    };
    let mut interfaces = getifaddrs().ok()?;
    let interface = interfaces.find(|interface| ip(interface.address) == Some(own))?;
    match ip(interface.netmask)? {
        IpAddr::V4(mask) => Some(mask.to_bits().leading_ones()),
        IpAddr::V6(mask) => Some(mask.to_bits().leading_ones()),
    }
}

/// Whether the error means that this process or the system has no file descriptor or memory left for another socket.
pub fn is_out_of_files(e: &io::Error) -> bool {
    let full = [Errno::EMFILE, Errno::ENFILE, Errno::ENOBUFS, Errno::ENOMEM];
    full.iter().any(|errno| e.raw_os_error() == Some(*errno as i32))
}

/// Whether a stream is over in both directions: nothing that is sent arrives any more. A TCP peer that has closed its
/// socket answers the next bytes with a reset, and only then is this true. For a Unix socket it is true at once.
pub fn is_hung_up(fd: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::new(fd, PollFlags::empty())];
    // The kernel reports these without being asked to.
    let over = PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
    match ppoll(&mut polled, Some(TimeSpec::from_duration(Duration::ZERO)), None) {
        Ok(_) => polled[0].revents().is_some_and(|events| events.intersects(over)),
        Err(e) => e != Errno::EINTR,
    }
}

/// Whether the other end of a stream will send no more, and all that it sent has been read.
pub fn has_ended(fd: BorrowedFd<'_>) -> bool {
    let flags = socket::MsgFlags::MSG_PEEK | socket::MsgFlags::MSG_DONTWAIT;
    match socket::recv(fd.as_raw_fd(), &mut [0], flags) {
        Ok(n) => n == 0,
        Err(e) => !matches!(e, Errno::EAGAIN | Errno::EINTR),
    }
}

/// Whether a stream has something to read, or has ended.
pub fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let flags = socket::MsgFlags::MSG_PEEK | socket::MsgFlags::MSG_DONTWAIT;
    !matches!(socket::recv(fd.as_raw_fd(), &mut [0], flags), Err(Errno::EAGAIN | Errno::EINTR))
}

/// Waits until one of `fds` can be read, or written if its flag is set, for at most `timeout`. Signals end the wait.
pub fn wait(fds: &[(BorrowedFd<'_>, bool)], timeout: Duration) {
    let mut polled: heapless::Vec<PollFd<'_>, POLLED_MAX> = heapless::Vec::new();
    for (fd, is_writer) in fds {
        let write = if *is_writer { PollFlags::POLLOUT } else { PollFlags::empty() };
        if polled.push(PollFd::new(*fd, PollFlags::POLLIN | write)).is_err() {
            break;
        }
    }
    // Callers check all of them anyway, whatever ended the wait.
    let _ = ppoll(&mut polled, Some(TimeSpec::from_duration(timeout)), None);
}

/// A port that is free for TCP and for UDP, for a test. The system, which gives connections ports from 32768 on, does not
/// take it in between.
#[cfg(test)]
pub(crate) fn free_port() -> u16 {
    use std::net::TcpListener;
    use std::sync::atomic::{AtomicU16, Ordering};

    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 10_000 + (std::process::id() % 500) as u16 * 40;
    let is_free = |port: &u16| {
        let at = (Ipv4Addr::LOCALHOST, *port);
        TcpListener::bind(at).is_ok() && UdpSocket::bind(at).is_ok()
    };
    let mut ports = (0..1000).map(|_| first.saturating_add(NEXT.fetch_add(1, Ordering::Relaxed)));
    ports.find(is_free).expect("some port is free")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(address: &str) -> (DatagramSocket, DatagramSocket) {
        let bind = || DatagramSocket::bind(address.parse().unwrap()).unwrap();
        (bind(), bind())
    }

    /// At least `n` datagrams. The first one of a message contains the length of all but the last.
    fn collect(socket: &DatagramSocket, n: usize) -> Vec<(SocketAddr, Vec<u8>)> {
        let mut room = vec![0; MESSAGE_BYTES];
        let mut all = Vec::new();
        for _ in 0..1000 {
            wait(&[(socket.as_fd(), false)], Duration::from_millis(100));
            if let Some((from, message)) = socket.receive(&mut room).unwrap() {
                let len = usize::from(u16::from_le_bytes([message[0], message[1]]));
                all.extend(message.chunks(len).map(|bytes| (from, bytes.to_vec())));
            }
            if all.len() >= n {
                break;
            }
        }
        all
    }

    #[test]
    fn many_datagrams_arrive_as_they_were_sent() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let (a, b) = pair(address);
            b.set_buffers(1 << 20).unwrap();
            let (from, to) = (a.local_address().unwrap(), b.local_address().unwrap());
            for splits in [true, false] {
                a.splits.set(a.splits.get() && splits);
                for n in [1, 2, 45, 46, 92] {
                    let len = |i: usize| if i + 1 == n { 65 } else { 1432 };
                    let content = |i| {
                        let mut bytes = vec![i as u8; len(i)];
                        bytes[..2].copy_from_slice(&(len(i) as u16).to_le_bytes());
                        bytes
                    };
                    let sent: Vec<u8> = (0..n).flat_map(content).collect();
                    assert_eq!(a.send(to, &sent, 1432), Sending::Gone);
                    let got = collect(&b, n);
                    assert_eq!(got.len(), n);
                    for (i, (sender, bytes)) in got.iter().enumerate() {
                        assert_eq!(*sender, from);
                        assert_eq!(*bytes, content(i));
                    }
                }
            }
        }
    }

    #[test]
    fn a_long_datagram_after_short_ones_arrives_whole() {
        let (a, _) = pair("127.0.0.1:0");
        // A socket that joins datagrams would hide that this one came in pieces.
        let b = DatagramSocket::bind_single("127.0.0.1:0".parse().unwrap()).unwrap();
        let to = b.local_address().unwrap();
        let mut room = vec![0; MESSAGE_BYTES];
        let mut lengths = |n: usize| -> Vec<usize> {
            wait(&[(b.as_fd(), false)], Duration::from_secs(1));
            (0..n).map_while(|_| Some(b.receive(&mut room).unwrap()?.1.len())).collect()
        };
        for is_alone in [true, false] {
            assert_eq!(a.send(to, &[1; 300], 100), Sending::Gone);
            assert_eq!(lengths(3), [100; 3]);
            match is_alone {
                true => a.send_one(to, &[1; 1400]),
                false => assert_eq!(a.send(to, &[1; 1400], 1400), Sending::Gone),
            }
            assert_eq!(lengths(2), [1400]);
        }
    }

    #[test]
    fn an_empty_socket_has_nothing() {
        let (a, _) = pair("127.0.0.1:0");
        assert_eq!(a.receive(&mut [0; 100]).unwrap(), None);
    }
}
