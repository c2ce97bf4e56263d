//! The choice of a carrier.

use super::kmod::Kmod;
use super::options::CarrierOptions;
use super::tcp::Tcp;
use super::udp::Udp;
use super::{Endpoint, TransportError};
use crate::sys::tensor::OpenError;

/// A carrier of frames: the kernel module, datagrams or streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// The kernel module, or datagrams where it is not to be used.
    Auto,
    /// The kernel module.
    Kernel,
    /// Datagrams.
    Udp,
    /// Streams.
    Tcp,
}

impl Carrier {
    /// Opens the links with `options`. `without_kernel` hears why datagrams take the place of the module.
    ///
    /// # Errors
    /// [`TransportError`].
    pub fn open(
        self,
        options: CarrierOptions,
        without_kernel: &mut dyn FnMut(&OpenError),
    ) -> Result<Box<dyn Endpoint>, TransportError> {
        match self {
            Carrier::Tcp => Tcp::open(options).map(|tcp| Box::new(tcp) as _),
            Carrier::Udp => Udp::open(options).map(|udp| Box::new(udp) as _),
            Carrier::Kernel => Kmod::open(options).map(|kmod| Box::new(kmod) as _),
            Carrier::Auto => match Kmod::open(options.clone()) {
                Err(TransportError::Kernel { source }) => {
                    without_kernel(&source);
                    Carrier::Udp.open(options, without_kernel)
                }
                other => other.map(|kmod| Box::new(kmod) as _),
            },
        }
    }
}
