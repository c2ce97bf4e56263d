//! A connection's socket, of the network or of this machine.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
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

    /// A read that takes longer fails. `timeout` must not be zero.
    pub(super) fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => stream.set_read_timeout(Some(timeout)),
            Socket::Unix(stream) => stream.set_read_timeout(Some(timeout)),
        }
    }

    /// Tells the other end that nothing more comes.
    pub(super) fn stop_sending(&self) {
        // A socket that is closed already needs no word.
        let _ = match self {
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Socket::Unix(stream) => stream.shutdown(Shutdown::Write),
        };
    }

    /// Who is at the other end: an address, or `unix` for a program of this machine.
    pub(in crate::serve) fn client(&self) -> String {
        match self {
            Socket::Tcp(stream) => match stream.peer_addr() {
                Ok(address) => address.ip().to_canonical().to_string(),
                Err(_) => "-".to_owned(),
            },
            Socket::Unix(_) => "unix".to_owned(),
        }
    }

    /// Whether the other end has closed it.
    pub(super) fn is_hung_up(&self) -> bool {
        net::is_hung_up(self.as_fd())
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

impl Read for Socket {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.read(out),
            Socket::Unix(stream) => stream.read(out),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.write(bytes),
            Socket::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => stream.flush(),
            Socket::Unix(stream) => stream.flush(),
        }
    }
}
