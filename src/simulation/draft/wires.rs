//! Simulated connections of a master with its draft node. A connection loses and reorders nothing, as TCP does; lost
//! datagrams and a cut make messages late.

use std::collections::VecDeque;

use crate::channel::ChannelError;
use crate::engine::draft_node::caller::Line;
use crate::transport::Micros;
use crate::transport::fault::{Dice, Faults};

/// Delay until a lost datagram is sent again.
const AGAIN_US: Micros = 200_000;

/// The network between both boards.
pub(super) struct Cable {
    pub(super) faults: Faults,
    pub(super) is_cut: bool,
    dice: Dice,
}

impl Cable {
    pub(super) fn new(seed: u64, faults: Faults) -> Cable {
        Cable { faults, is_cut: false, dice: Dice::new(seed) }
    }

    /// Time of a message from one board to the other.
    pub(super) fn delay_us(&mut self) -> Micros {
        let Faults { delay_us, loss, .. } = &self.faults;
        let mut delay = delay_us.start + self.dice.below(delay_us.end - delay_us.start);
        while self.dice.chance(*loss) {
            delay += AGAIN_US;
        }
        delay
    }
}

/// One direction of a connection.
#[derive(Default)]
pub(super) struct Way {
    /// Messages under way, and the times of their arrival. An empty one ends the connection.
    messages: VecDeque<(Micros, Vec<u8>)>,
}

impl Way {
    /// Sends a message at `now`.
    pub(super) fn send(&mut self, now: Micros, bytes: &[u8], cable: &mut Cable) {
        let last = self.messages.back().map_or(0, |(at, _)| *at);
        self.messages.push_back((last.max(now + cable.delay_us()), bytes.to_vec()));
    }

    /// Ends the connection.
    pub(super) fn end(&mut self, now: Micros, cable: &mut Cable) {
        self.send(now, &[], cable);
    }

    /// Time of the next arrival, unless the cable is cut.
    pub(super) fn next(&self, cable: &Cable) -> Option<Micros> {
        self.messages.front().map(|(at, _)| *at).filter(|_| !cable.is_cut)
    }

    /// Takes the next message if it has arrived.
    pub(super) fn take(&mut self, now: Micros, cable: &Cable) -> Option<Vec<u8>> {
        self.next(cable).filter(|at| *at <= now)?;
        self.messages.pop_front().map(|(_, bytes)| bytes)
    }

    /// Notes that the cable is mended at `now`: messages that it kept arrive later.
    pub(super) fn mend(&mut self, now: Micros) {
        self.messages.iter_mut().for_each(|(at, _)| *at = (*at).max(now + AGAIN_US));
    }
}

/// A connection.
#[derive(Default)]
pub(super) struct Wire {
    pub(super) to_node: Way,
    pub(super) to_master: Way,
}

/// The sending end of a way, for the time of a call.
pub(super) struct Sending<'a>(pub(super) &'a mut Way, pub(super) Micros, pub(super) &'a mut Cable);

impl Line for Sending<'_> {
    fn send(&mut self, bytes: &[u8]) -> Result<(), ChannelError> {
        let Sending(way, now, cable) = self;
        way.send(*now, bytes, cable);
        Ok(())
    }
}

/// Messages that a node sends once it has computed them.
#[derive(Default)]
pub(super) struct Kept(pub(super) Vec<Vec<u8>>);

impl Line for Kept {
    fn send(&mut self, bytes: &[u8]) -> Result<(), ChannelError> {
        self.0.push(bytes.to_vec());
        Ok(())
    }
}
