//! Links between neighbours, and the carriers that take their datagrams.
//!
//! - [`link`]: the protocol, without sockets and clocks.
//! - [`udp`] and [`tcp`]: an [`Endpoint`] over sockets; [`kmod`]: one over the kernel module. [`datagrams`]
//!   is shared by UDP and the module.
//! - [`carrier`] chooses among them.
//! - [`loopback`]: endpoints within a process in virtual time, over a network with faults from a seed
//!   ([`fault`]).

pub mod carrier;
pub mod datagrams;
mod doubt;
mod endpoint;
mod error;
pub mod fault;
pub mod kmod;
pub mod link;
pub mod loopback;
pub mod options;
pub mod place;
mod resolver;
mod sleep;
pub mod tcp;
mod time;
pub mod udp;

#[cfg(test)]
mod tests;

pub use endpoint::Endpoint;
pub use error::TransportError;
pub use sleep::Sleep;
pub use time::Micros;
