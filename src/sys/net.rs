//! Sockets: many datagrams in one call, connecting without waiting, waiting for several.

use std::io;
use std::mem;
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::socket::{
    self, AddressFamily, SockFlag, SockType, SockaddrLike, SockaddrStorage, setsockopt, sockopt,
};
use nix::sys::time::TimeSpec;

/// Most messages that one call takes.
pub const BATCH: usize = 8;
/// Bytes of a message at most: the kernel may join datagrams that came together.
pub const MESSAGE_BYTES: usize = 1 << 16;
/// Most datagrams that are handed to the kernel as one.
const SEGMENTS_MAX: usize = 45;
const CONTROL_BYTES: usize = 64;
/// Most sockets that are waited for at a time.
const POLLED_MAX: usize = 64;

/// Messages that one call has received: preallocated, and used again.
pub struct Batch {
    memory: Box<[u8]>,
    messages: heapless::Vec<Message, BATCH>,
    /// How many the next call asks for: all after one that got what it asked for, else one, as a
    /// call that finds fewer has looked once too often.
    wanted: usize,
}

/// One received message: datagrams of one sender, all but the last of one length.
#[derive(Clone, Copy)]
struct Message {
    from: SocketAddr,
    bytes: usize,
    segment_bytes: usize,
}

impl Default for Batch {
    fn default() -> Batch {
        let memory = vec![0; BATCH * MESSAGE_BYTES].into_boxed_slice();
        Batch { memory, messages: heapless::Vec::new(), wanted: 1 }
    }
}

impl Batch {
    /// Each datagram with its sender, in the order in which they came.
    pub fn datagrams(&mut self) -> impl Iterator<Item = (SocketAddr, &mut [u8])> {
        let (slots, _) = self.memory.as_chunks_mut::<MESSAGE_BYTES>();
        self.messages.iter().zip(slots).flat_map(|(message, slot)| {
            let datagrams = slot[..message.bytes].chunks_mut(message.segment_bytes.max(1));
            datagrams.map(|datagram| (message.from, datagram))
        })
    }
}

/// A UDP socket that takes and gives many datagrams at once.
pub struct DatagramSocket {
    socket: UdpSocket,
    /// Whether the kernel splits long messages into datagrams, and of which length.
    splits: bool,
    segment_bytes: usize,
    /// Datagrams that are handed over together. The kernel takes them from one place in much less
    /// time than from two places each.
    outgoing: Box<[u8]>,
}

/// Buffer sizes that the kernel granted, in bytes of payload and bookkeeping.
#[derive(Clone, Copy, Debug)]
pub struct BufferBytes {
    /// For what has arrived.
    pub receive: usize,
    /// For what goes out.
    pub send: usize,
}

impl DatagramSocket {
    /// A socket on `address`; an unspecified IPv6 one takes IPv4 too.
    ///
    /// # Errors
    /// The system's.
    pub fn bind(address: SocketAddr) -> io::Result<DatagramSocket> {
        let socket = DatagramSocket::bind_single(address)?;
        // Kernels that do not join datagrams give them one by one.
        let _ = setsockopt(&socket.socket, sockopt::UdpGroSegment, &true);
        Ok(socket)
    }

    /// The same, but what arrives is not joined: that costs more than it saves for few.
    ///
    /// # Errors
    /// The system's.
    pub fn bind_single(address: SocketAddr) -> io::Result<DatagramSocket> {
        let socket = UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        // Kernels that do not split datagrams take them one by one.
        let splits = setsockopt(&socket, sockopt::UdpGsoSegment, &0).is_ok();
        let outgoing = vec![0; MESSAGE_BYTES].into_boxed_slice();
        Ok(DatagramSocket { socket, splits, segment_bytes: 0, outgoing })
    }

    /// The address it is bound to.
    ///
    /// # Errors
    /// The system's.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Asks for buffers of `bytes` and returns what the kernel gives. Its limit holds unless
    /// the process may exceed it.
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
        // The kernel keeps and tells twice what was asked for.
        let receive = socket::getsockopt(&self.socket, sockopt::RcvBuf)? / 2;
        let send = socket::getsockopt(&self.socket, sockopt::SndBuf)? / 2;
        Ok(BufferBytes { receive, send })
    }

    /// Lets the kernel poll the network device for `us` microseconds before it sleeps.
    ///
    /// # Errors
    /// The system's; more than the default needs a privilege.
    pub fn set_busy_poll(&self, us: u32) -> io::Result<()> {
        let us = us as libc::c_int;
        let bytes = mem::size_of_val(&us) as libc::socklen_t;
        let fd = self.socket.as_raw_fd();
        // SAFETY: the option's value is an int, and `us` is one that lives during the call.
        let result = unsafe {
            let value: *const libc::c_int = &us;
            libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_BUSY_POLL, value.cast(), bytes)
        };
        Errno::result(result)?;
        Ok(())
    }

    /// Receives what has arrived, without waiting. Returns the number of messages; one may be
    /// several datagrams.
    ///
    /// # Errors
    /// The system's, but for those that mean that nothing is there.
    pub fn receive(&self, batch: &mut Batch) -> io::Result<usize> {
        batch.messages.clear();
        let mut names: heapless::Vec<libc::sockaddr_storage, BATCH> = heapless::Vec::new();
        let mut controls = [Control([0; CONTROL_BYTES]); BATCH];
        let mut parts: heapless::Vec<libc::iovec, BATCH> = heapless::Vec::new();
        let mut headers: heapless::Vec<libc::mmsghdr, BATCH> = heapless::Vec::new();
        let (slots, _) = batch.memory.as_chunks_mut::<MESSAGE_BYTES>();
        for slot in &mut slots[..batch.wanted] {
            let part = libc::iovec { iov_base: slot.as_mut_ptr().cast(), iov_len: slot.len() };
            // SAFETY: these are plain C structures, for which zeros are a value.
            let (name, header) = unsafe { (mem::zeroed(), mem::zeroed()) };
            // There is room: no more are wanted than a batch has slots.
            let _ = (parts.push(part), names.push(name), headers.push(header));
        }
        for (i, header) in headers.iter_mut().enumerate() {
            header.msg_hdr.msg_name = (&raw mut names[i]).cast();
            header.msg_hdr.msg_namelen = mem::size_of::<libc::sockaddr_storage>() as _;
            header.msg_hdr.msg_iov = &raw mut parts[i];
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = controls[i].0.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = CONTROL_BYTES as _;
        }
        let (fd, n) = (self.socket.as_raw_fd(), headers.len());
        let flags = libc::MSG_DONTWAIT as _;
        // SAFETY: every header points to a name, a control buffer and one slot of the lengths
        // it says, all of which live until the call returns; no timeout is given.
        let n = unsafe {
            libc::recvmmsg(fd, headers.as_mut_ptr(), n as _, flags, std::ptr::null_mut())
        };
        let n = match Errno::result(n) {
            Ok(n) => n as usize,
            Err(Errno::EAGAIN | Errno::EINTR | Errno::ECONNREFUSED) => 0,
            Err(e) => return Err(e.into()),
        };
        batch.wanted = if n == batch.wanted { BATCH } else { 1 };
        for (header, name) in headers[..n].iter().zip(&names) {
            // A truncated message is no datagram of ours; one of zero bytes neither.
            let is_whole = header.msg_hdr.msg_flags & libc::MSG_TRUNC == 0;
            let bytes = if is_whole { header.msg_len as usize } else { 0 };
            let from = decode(name).unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0)));
            let segment_bytes = joined_bytes(&header.msg_hdr).unwrap_or(bytes);
            // As many as there are slots.
            let _ = batch.messages.push(Message { from, bytes, segment_bytes });
        }
        Ok(n)
    }

    /// Sends datagrams in as few calls as the kernel allows; `write` writes one to the front of some
    /// room, and returns its length. All but the last must be of one length. True if they are on their
    /// way; false if there is no room for them now. Those that cannot be delivered are lost.
    ///
    /// # Panics
    /// If one is longer than 1/45 of [`MESSAGE_BYTES`].
    pub fn send<T>(
        &mut self,
        to: SocketAddr,
        mut datagrams: impl Iterator<Item = T>,
        write: impl Fn(&T, &mut [u8]) -> usize,
    ) -> bool {
        loop {
            let (mut bytes, mut segment_bytes) = (0, 0);
            for datagram in datagrams.by_ref().take(SEGMENTS_MAX) {
                let len = write(&datagram, &mut self.outgoing[bytes..]);
                bytes += len;
                segment_bytes = segment_bytes.max(len);
            }
            if bytes == 0 {
                return true;
            }
            if !self.send_segments(to, bytes, segment_bytes) {
                return false;
            }
        }
    }

    /// Sends one datagram; it is lost if there is no room.
    pub fn send_one(&self, to: SocketAddr, datagram: &[u8]) {
        // What is lost on the way is as lost here.
        let _ = self.send_message(to, datagram);
    }

    /// Sends the first `bytes` that wait, in datagrams of `segment_bytes`.
    fn send_segments(&mut self, to: SocketAddr, bytes: usize, segment_bytes: usize) -> bool {
        if bytes > segment_bytes && self.splits_at(segment_bytes) {
            match self.send_patiently(to, &self.outgoing[..bytes]) {
                // The device or the path cannot: from now on one by one.
                Err(Errno::EIO | Errno::EINVAL | Errno::EMSGSIZE | Errno::EOPNOTSUPP) => {
                    self.splits_at(0);
                    self.splits = false;
                }
                Err(Errno::EAGAIN) => return false,
                _ => return true,
            }
        }
        let mut datagrams = self.outgoing[..bytes].chunks(segment_bytes);
        datagrams.all(|datagram| self.send_patiently(to, datagram) != Err(Errno::EAGAIN))
    }

    /// Lets the kernel split what is longer than `bytes`, which it keeps for the messages to come: to
    /// say it beside each of them takes longer.
    fn splits_at(&mut self, bytes: usize) -> bool {
        if self.splits && self.segment_bytes != bytes {
            self.segment_bytes = bytes;
            self.splits = setsockopt(&self.socket, sockopt::UdpGsoSegment, &(bytes as i32)).is_ok();
        }
        self.splits
    }

    /// Waits a little if the buffer is full: the wire empties it.
    fn send_patiently(&self, to: SocketAddr, bytes: &[u8]) -> Result<(), Errno> {
        let mut result = self.send_message(to, bytes);
        if matches!(result, Err(Errno::EAGAIN | Errno::ENOBUFS)) {
            let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLOUT)];
            let wait = TimeSpec::from_duration(Duration::from_millis(2));
            // Whether it helped shows in the next attempt.
            let _ = ppoll(&mut fds, Some(wait), None);
            result = self.send_message(to, bytes);
        }
        result
    }

    fn send_message(&self, to: SocketAddr, bytes: &[u8]) -> Result<(), Errno> {
        let sent = self.socket.send_to(bytes, to);
        sent.map(drop).map_err(|e| Errno::from_raw(e.raw_os_error().unwrap_or(0)))
    }
}

impl AsFd for DatagramSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Room for control messages, aligned for their headers.
#[derive(Clone, Copy)]
#[repr(align(8))]
struct Control([u8; CONTROL_BYTES]);

/// The length of the datagrams that the kernel joined into one message, if it did.
fn joined_bytes(header: &libc::msghdr) -> Option<usize> {
    // SAFETY: the kernel filled the control buffer and its length; the macros stay inside.
    let mut message = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !message.is_null() {
        // SAFETY: `message` is not null, so it points to a whole header in the control buffer.
        let (level, kind) = unsafe { ((*message).cmsg_level, (*message).cmsg_type) };
        if (level, kind) == (libc::SOL_UDP, libc::UDP_GRO) {
            // SAFETY: the data of this message is an int.
            let bytes = unsafe { libc::CMSG_DATA(message).cast::<libc::c_int>().read_unaligned() };
            return usize::try_from(bytes).ok().filter(|&bytes| bytes > 0);
        }
        // SAFETY: as for the first one.
        message = unsafe { libc::CMSG_NXTHDR(header, message) };
    }
    None
}

fn decode(name: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let pointer: *const libc::sockaddr_storage = name;
    // SAFETY: the storage is as long as any address, and says by its family what it holds.
    let storage = unsafe { SockaddrStorage::from_raw(pointer.cast(), None) }?;
    let v4 = storage.as_sockaddr_in().map(|a| SocketAddr::V4(SocketAddrV4::from(*a)));
    v4.or_else(|| storage.as_sockaddr_in6().map(|a| SocketAddr::V6(SocketAddrV6::from(*a))))
}

/// A stream that is being connected: it can be written once it is connected.
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
    // SAFETY: `fd` is a stream socket that nobody else owns.
    Ok(unsafe { TcpStream::from_raw_fd(fd.into_raw_fd()) })
}

/// Waits until one of `fds` can be read, or written if it says so, for at most `timeout`.
/// Signals end the wait.
pub fn wait(fds: &[(BorrowedFd<'_>, bool)], timeout: Duration) {
    let mut polled: heapless::Vec<PollFd<'_>, POLLED_MAX> = heapless::Vec::new();
    for (fd, is_writer) in fds {
        let write = if *is_writer { PollFlags::POLLOUT } else { PollFlags::empty() };
        if polled.push(PollFd::new(*fd, PollFlags::POLLIN | write)).is_err() {
            break;
        }
    }
    // Callers look at all of them anyway, whatever ended the wait.
    let _ = ppoll(&mut polled, Some(TimeSpec::from_duration(timeout)), None);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(address: &str) -> (DatagramSocket, DatagramSocket) {
        let bind = || DatagramSocket::bind(address.parse().unwrap()).unwrap();
        (bind(), bind())
    }

    fn collect(socket: &DatagramSocket, n: usize) -> Vec<(SocketAddr, Vec<u8>)> {
        let mut batch = Batch::default();
        let mut all = Vec::new();
        for _ in 0..100 {
            wait(&[(socket.as_fd(), false)], Duration::from_millis(100));
            socket.receive(&mut batch).unwrap();
            all.extend(batch.datagrams().map(|(from, bytes)| (from, bytes.to_vec())));
            if all.len() >= n {
                break;
            }
        }
        all
    }

    #[test]
    fn many_datagrams_arrive_as_they_were_sent() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let (mut a, b) = pair(address);
            b.set_buffers(1 << 20).unwrap();
            let (from, to) = (a.local_address().unwrap(), b.local_address().unwrap());
            for splits in [true, false] {
                a.splits &= splits;
                for n in [1, 2, 45, 46, 92] {
                    let len = |i: usize| if i + 1 == n { 65 } else { 1432 };
                    assert!(a.send(to, 0..n, |&i, room| {
                        room[..len(i)].fill(i as u8);
                        len(i)
                    }));
                    let got = collect(&b, n);
                    assert_eq!(got.len(), n);
                    for (i, (sender, bytes)) in got.iter().enumerate() {
                        assert_eq!(*sender, from);
                        assert_eq!(*bytes, vec![i as u8; len(i)]);
                    }
                }
            }
        }
    }

    #[test]
    fn an_empty_socket_has_nothing() {
        let (a, _) = pair("127.0.0.1:0");
        let mut batch = Batch::default();
        assert_eq!(a.receive(&mut batch).unwrap(), 0);
        assert_eq!(batch.datagrams().count(), 0);
    }
}
