//! Opens a session: the HELLO that is repeated, and the CONFIRM of a WELCOME.

use std::net::SocketAddr;

use super::super::handshake::Agreed;
use super::super::wire::{Wire, send_control};
use crate::transport::Micros;
use crate::wire::datagram::DatagramKind;
use crate::wire::hello::{CONFIRM_LEN, HELLO_LEN};
use crate::wire::noise::Ephemeral;

/// First and longest pause between two HELLOs.
pub(super) const HELLO_US: (Micros, Micros) = (50_000, 1_000_000);
/// How often a CONFIRM is repeated before the connector begins again.
pub(super) const CONFIRM_TRIES: u32 = 8;
pub(super) const CONFIRM_US: Micros = 50_000;

/// The HELLO that is being repeated.
pub(super) struct Attempt {
    pub(super) hello: [u8; HELLO_LEN],
    /// Secret of the HELLO's share of the key exchange.
    pub(super) ephemeral: Ephemeral,
    pub(super) resume: u64,
    pub(super) at: Micros,
    pub(super) sent_at: Micros,
    pub(super) pause: Micros,
    pub(super) counter: u64,
}

/// A WELCOME that was answered.
pub(super) struct Offer {
    pub(super) agreed: Agreed,
    pub(super) confirm: [u8; CONFIRM_LEN],
    pub(super) at: Micros,
    pub(super) sent_at: Micros,
    pub(super) tries: u32,
}

impl Offer {
    pub(super) fn send(&mut self, now: Micros, wire: &mut impl Wire, places: &[SocketAddr]) {
        let id = (DatagramKind::Confirm, self.agreed.id, u64::from(self.tries));
        for place in different(places) {
            send_control(wire, place, id, None, &self.confirm);
        }
        self.tries += 1;
        (self.sent_at, self.at) = (now, now + CONFIRM_US);
    }
}

/// Each of `places` once.
pub(super) fn different(places: &[SocketAddr]) -> impl Iterator<Item = SocketAddr> {
    let is_first = |i: usize| !places[..i].contains(&places[i]);
    (0..places.len()).filter(move |&i| is_first(i)).map(|i| places[i])
}
