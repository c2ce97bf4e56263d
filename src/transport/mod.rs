//! Links between neighbours, and the carriers that take their datagrams.
//!
//! - [`link`]: the protocol, without sockets and clocks.
//! - [`udp`] and [`tcp`]: an [`Endpoint`] over sockets; [`kmod`]: one over the kernel module.
//!   [`datagrams`] is what it and UDP share.
//! - [`loopback`]: endpoints within a process in virtual time, over a network that [`fault`]
//!   makes as bad as wanted, from a seed.

pub mod datagrams;
mod doubt;
pub mod fault;
pub mod kmod;
pub mod link;
pub mod loopback;
pub mod options;
mod resolver;
pub mod tcp;
pub mod udp;

#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use link::Links;

use crate::sys::tensor::OpenError;

/// Microseconds since some origin.
pub type Micros = u64;

/// A node's two links over one carrier. Nothing is allocated for frames.
pub trait Endpoint: Send {
    /// Both links.
    fn links(&mut self) -> &mut Links;

    /// Sends what is due and takes what has arrived. Returns as soon as a frame, an event or
    /// room that was asked for waits, at the latest after `wait`; [`Duration::ZERO`] never waits. While a node computes
    /// it must be called every few milliseconds, for the neighbours' sake.
    ///
    /// Frames that are delivered are acknowledged by a later call, so that frames a node sends
    /// in reply go first.
    ///
    /// # Errors
    /// The system's, when the carrier is of no more use.
    fn service(&mut self, wait: Duration) -> io::Result<()>;

    /// Opens the link to the next node, in place of one that is there.
    fn set_next(&mut self, address: SocketAddr);

    /// Name of the carrier.
    fn carrier(&self) -> &'static str;

    /// Where the previous node reaches this one.
    fn local_address(&self) -> SocketAddr;

    /// What the user should know: one line each, more of them as time goes by.
    fn notices(&self) -> &[String];
}

/// Why a carrier did not start.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A host name that could not be resolved.
    Resolve {
        /// The name and port.
        host: String,
        /// The system's reason; none if it has no address.
        source: Option<io::Error>,
    },
    /// The kernel module is not to be used.
    Kernel {
        /// Why.
        source: OpenError,
    },
    /// An address that could not be listened on.
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Resolve { host, .. } => write!(f, "cannot find the host {host}"),
            Error::Kernel { .. } => write!(f, "the kernel module is not to be used"),
            Error::Listen { address, .. } => write!(f, "cannot listen on {address}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Resolve { source, .. } => source.as_ref().map(|e| e as _),
            Error::Kernel { source } => Some(source),
            Error::Listen { source, .. } => Some(source),
        }
    }
}
