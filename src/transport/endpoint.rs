//! The interface that every carrier offers to a node.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::link::Links;
use super::sleep::Sleep;
use crate::wire::hello::Name;

/// A node's two links over one carrier. Nothing is allocated for frames.
pub trait Endpoint: Send {
    /// Both links.
    fn links(&mut self) -> &mut Links;

    /// Sends due frames and takes arrived ones. Returns as soon as a frame, an event or requested room waits, at the
    /// latest after `wait`; [`Duration::ZERO`] never waits. While the node computes, call this method every few
    /// milliseconds, so that neighbours get answers.
    ///
    /// Delivered frames are acknowledged by a later call, so that frames sent in reply go first.
    ///
    /// # Errors
    /// The system's, if the carrier cannot be used any more.
    fn service(&mut self, wait: Duration) -> io::Result<()>;

    /// Makes `sleep` end when something comes here, or a link has something to do. Call it right after servicing the
    /// endpoint, when nothing waits; service the endpoint again afterwards.
    fn join<'a>(&'a mut self, sleep: &mut Sleep<'a>);

    /// Sets the name of the next node for later calls of [`set_next`](Endpoint::set_next); `None` if it is unknown.
    fn expect_next(&mut self, name: Option<Name>);

    /// Opens the link to the next node. It replaces the link that is there.
    fn set_next(&mut self, address: SocketAddr);

    /// Name of the carrier.
    fn carrier(&self) -> &'static str;

    /// Address at which the previous node reaches this one.
    fn local_address(&self) -> SocketAddr;

    /// Notices for the user, one line each; the list grows with time.
    fn notices(&self) -> &[String];
}
