//! An endpoint's two links as the state machines see them.

use super::{Event, Link, Reason, Side};
use crate::transport::{Endpoint, link};
use crate::wire::frame;

/// The links of an endpoint, for the time of one poll.
pub(crate) struct Hop<'a> {
    endpoint: &'a mut dyn Endpoint,
}

impl<'a> Hop<'a> {
    /// The links of `endpoint`.
    pub(crate) fn new(endpoint: &'a mut dyn Endpoint) -> Hop<'a> {
        endpoint.links().begin_turn();
        Hop { endpoint }
    }

    /// Tells the master what the node called `name` is doing; it is repeated, and need not arrive.
    pub(crate) fn say(&mut self, name: &str, reason: Reason) {
        if self.is_up(Side::Next)
            && let Some(out) = self.reserve()
            && let Some(bytes) = frame::emit_report(0, reason, name, out)
        {
            self.commit(bytes);
        }
    }

    /// Whether frames have been sent that the next node has not confirmed.
    pub(crate) fn is_sending(&mut self) -> bool {
        self.endpoint.links().next.as_ref().is_some_and(|next| next.in_flight() > 0)
    }
}

impl Link for Hop<'_> {
    fn reserve(&mut self) -> Option<&mut [u8]> {
        self.endpoint.links().next.as_mut()?.reserve()
    }

    fn commit(&mut self, bytes: usize) {
        if let Some(next) = &mut self.endpoint.links().next {
            next.commit(bytes);
        }
    }

    fn front(&mut self) -> Option<&[u8]> {
        self.endpoint.links().prev.as_mut()?.front()
    }

    fn leave(&mut self) {
        if let Some(prev) = &mut self.endpoint.links().prev {
            prev.leave();
        }
    }

    fn release(&mut self) {
        if let Some(prev) = &mut self.endpoint.links().prev {
            prev.release();
        }
    }

    fn next_event(&mut self) -> Option<Event> {
        let links = self.endpoint.links();
        let prev = links.prev.as_mut().and_then(|prev| prev.next_event());
        if let Some(event) = prev {
            return Some(told(Side::Prev, event));
        }
        let next = links.next.as_mut()?.next_event()?;
        Some(told(Side::Next, next))
    }

    fn is_up(&mut self, side: Side) -> bool {
        let links = self.endpoint.links();
        let state = match side {
            Side::Next => links.next.as_ref().map(|next| next.state()),
            Side::Prev => links.prev.as_ref().map(|prev| prev.state()),
        };
        state == Some(&link::LinkState::Up)
    }

    fn rtt_us(&mut self) -> u32 {
        self.endpoint.links().next.as_ref().map_or(0, |next| next.stats().srtt_us)
    }

    fn datagram_bytes(&mut self) -> u32 {
        self.endpoint.links().next.as_ref().map_or(0, |next| next.stats().datagram_bytes)
    }

    fn carrier(&self) -> &'static str {
        self.endpoint.carrier()
    }
}

fn told(side: Side, event: link::LinkEvent) -> Event {
    match event {
        link::LinkEvent::Up { .. } => Event::Up(side),
        link::LinkEvent::Lost => Event::Silent(side),
        link::LinkEvent::Reset => Event::Reset(side),
        link::LinkEvent::Refused(refused) => {
            Event::Refused { what: refused.to_string(), is_final: refused.is_final() }
        }
        link::LinkEvent::Unheard(unheard) => {
            Event::Refused { what: unheard.to_string(), is_final: false }
        }
    }
}
