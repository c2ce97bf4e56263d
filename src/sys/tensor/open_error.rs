//! Why the device cannot be used.

use std::io;

use super::abi::API_VERSION;

pub(super) const PATH: &str = "/dev/leap_tensor";

/// Why the device cannot be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The device is missing: the module is not loaded.
    NoDevice,
    /// This user may not open the device.
    Permission,
    /// Setting neighbours needs CAP_NET_ADMIN.
    Capability,
    /// The device is open as often as the module allows.
    Busy,
    /// The module speaks another version of the interface.
    Version {
        /// The module's version.
        module: u32,
    },
    /// Anything else.
    Io(io::Error),
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            OpenError::NoDevice => write!(f, "no {PATH}, the module leap_transport is not loaded"),
            OpenError::Permission => write!(f, "no permission for {PATH} (group leap)"),
            OpenError::Capability => write!(f, "{PATH} needs the capability CAP_NET_ADMIN"),
            OpenError::Busy => write!(f, "{PATH} is open as often as the module allows"),
            OpenError::Version { module } => {
                write!(f, "the module's interface has version {module}, this program {API_VERSION}")
            }
            OpenError::Io(source) => write!(f, "{PATH}: {source}"),
        }
    }
}

impl std::error::Error for OpenError {}

impl From<io::Error> for OpenError {
    fn from(source: io::Error) -> OpenError {
        match source.raw_os_error() {
            Some(libc::ENOENT | libc::ENXIO | libc::ENODEV) => OpenError::NoDevice,
            Some(libc::EACCES | libc::EPERM) => OpenError::Permission,
            Some(libc::EBUSY) => OpenError::Busy,
            _ => OpenError::Io(source),
        }
    }
}
