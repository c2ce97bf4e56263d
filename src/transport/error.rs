//! Why a carrier did not start.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use crate::sys::tensor::OpenError;

/// Why a carrier did not start.
#[derive(Debug)]
#[non_exhaustive]
pub enum TransportError {
    /// A host name that could not be resolved.
    Resolve {
        /// The name and port.
        host: String,
        /// The system's reason; `None` if the host has no suitable address.
        source: Option<io::Error>,
    },
    /// The kernel module cannot be used.
    Kernel {
        /// The reason.
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

impl fmt::Display for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TransportError::Resolve { host, .. } => write!(f, "cannot find the host {host}"),
            TransportError::Kernel { .. } => write!(f, "the kernel module is not to be used"),
            TransportError::Listen { address, .. } => write!(f, "cannot listen on {address}"),
        }
    }
}

impl std::error::Error for TransportError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            TransportError::Resolve { source, .. } => source.as_ref().map(|e| e as _),
            TransportError::Kernel { source } => Some(source),
            TransportError::Listen { source, .. } => Some(source),
        }
    }
}
