//! Socket of a connection: TCP or Unix.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::sys::net;

/// A stream between two programs.
pub(in crate::serve) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Prepares a socket that was accepted: small pieces leave at once, and a write that takes longer than
    /// `patience` fails.
    pub(in crate::serve) fn prepare(&self, patience: Duration) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => {
                stream.set_nonblocking(false)?;
                stream.set_nodelay(true)?;
                stream.set_write_timeout(Some(patience))
            }
            Socket::Unix(stream) => {
                stream.set_nonblocking(false)?;
                stream.set_write_timeout(Some(patience))
            }
        }
    }

    /// Makes reads fail after `timeout`, which must not be zero.
    pub(super) fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => stream.set_read_timeout(Some(timeout)),
            Socket::Unix(stream) => stream.set_read_timeout(Some(timeout)),
        }
    }

    /// Tells the other end that nothing more comes.
    pub(super) fn stop_sending(&self) {
        // Fails only if the socket is closed already.
        let _ = match self {
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Socket::Unix(stream) => stream.shutdown(Shutdown::Write),
        };
    }

    /// Closes both directions. A thread that reads or writes sees that.
    pub(in crate::serve) fn close(&self) {
        // Fails only if the socket is closed already.
        let _ = match self {
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Socket::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }

    /// The address at the other end, if it has one.
    pub(in crate::serve) fn address(&self) -> Option<IpAddr> {
        match self {
            Socket::Tcp(stream) => stream.peer_addr().ok().map(|peer| peer.ip().to_canonical()),
            Socket::Unix(_) => None,
        }
    }

    /// The client: its address, or `unix` for a program of this machine.
    pub(in crate::serve) fn client(&self) -> String {
        match (self, self.address()) {
            (Socket::Unix(_), _) => "unix".to_owned(),
            (Socket::Tcp(_), Some(address)) => address.to_string(),
            (Socket::Tcp(_), None) => "-".to_owned(),
        }
    }

    /// Whether the connection is gone in both directions.
    pub(super) fn is_hung_up(&self) -> bool {
        net::is_hung_up(self.as_fd())
    }

    /// Whether the other end sends no more. It may still read, or be gone: only the next send tells.
    pub(super) fn has_ended(&self) -> bool {
        net::has_ended(self.as_fd())
    }

    /// Reads available bytes, or waits for some. Returns 0 if the other end sends no more.
    pub(super) fn read(&self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => (&*stream).read(out),
            Socket::Unix(stream) => (&*stream).read(out),
        }
    }

    /// Sends all of `bytes`.
    pub(super) fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => (&*stream).write_all(bytes),
            Socket::Unix(stream) => (&*stream).write_all(bytes),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(stream) => stream.as_fd(),
            Socket::Unix(stream) => stream.as_fd(),
        }
    }
}
