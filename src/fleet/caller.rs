//! Calls boards, one at a time.

use std::net::SocketAddr;

use super::events::{Event, Teller};
use super::interrupt::is_interrupted;
use crate::call::master::{CallError, Called};
use crate::ring::Address;
use crate::transport::place::HostPort;
use crate::wire::seal::Key;

/// A master's means to call boards, and the listener of its events.
#[derive(Clone)]
pub(crate) struct Caller {
    /// The key that all boards share.
    pub(crate) key: Key,
    /// Hears what happens.
    pub(crate) events: Teller,
}

/// Why a board does not do what it is told.
pub(super) struct Failed {
    /// True if the board may do it later. So may one whose answer proves no key: another machine may have sent it.
    pub(super) may_pass: bool,
    /// True if the user ended the call.
    pub(super) is_interruption: bool,
    pub(super) why: String,
}

impl Caller {
    /// Calls the board at `place`, and talks with it.
    pub(super) fn call<T>(
        &self,
        place: &Address,
        talk: impl FnOnce(&mut Called<'_>) -> Result<T, CallError>,
    ) -> Result<T, Failed> {
        let at = HostPort::new(&place.host, place.port).resolve(|_: &SocketAddr| true);
        let at =
            at.map_err(|e| Failed { may_pass: true, is_interruption: false, why: e.to_string() })?;
        let called = Called::new(at, &self.key, &is_interrupted);
        called.and_then(|mut called| talk(&mut called)).map_err(|e| Failed {
            may_pass: e.may_pass() || !e.is_proven(),
            is_interruption: e.is_interruption(),
            why: e.to_string(),
        })
    }

    /// Tells the listener of an event.
    pub(super) fn tell(&self, event: &Event<'_>) {
        self.events.tell(event);
    }
}
