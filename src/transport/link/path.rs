//! The longest datagrams that the path to the next node takes.
//!
//! Datagrams that are too long for the path travel in pieces. A path that narrows is noticed in two ways: the system
//! reports it, or long chunks are reported missing time and again while short ones arrive. Now and then a ping of full
//! length tests whether the path takes longer datagrams again.

use std::net::SocketAddr;

use super::burst::{Burst, Mode};
use super::wire::Wire;
use crate::sys::net::Sending;
use crate::transport::Micros;
use crate::wire::datagram::DATAGRAM_BYTES;
use crate::wire::piece::{PIECE_HEAD, PIECES_BYTES, cut, longest};

/// Pieces of a full datagram on the narrowest path: it takes IP packets of 576 bytes.
const SHORTEST: usize = 3;
/// Datagrams become shorter after this many answers in a row that miss retransmitted long chunks.
const LOST_MAX: u32 = 4;
/// First and longest pause between two tests of longer datagrams; pause after a test that succeeded.
const ASK_US: (Micros, Micros) = (5_000_000, 160_000_000);
const ASK_NEXT_US: Micros = 250_000;

/// The path of a link.
pub(super) struct Path {
    /// Pieces that a full datagram travels in; 0 over a stream, which takes any length.
    n_pieces: usize,
    /// Answers in a row that miss long chunks which were retransmitted.
    n_lost: u32,
    /// The ping that tests longer datagrams.
    asked: Option<u32>,
    ask_at: Micros,
    pause: Micros,
}

impl Path {
    /// A path that takes full datagrams, until it shows that it does not.
    pub(super) fn new(mode: Mode) -> Path {
        let n_pieces = usize::from(mode == Mode::Datagrams);
        Path { n_pieces, n_lost: 0, asked: None, ask_at: Micros::MAX, pause: ASK_US.0 }
    }

    /// Bytes of the longest datagram.
    pub(super) fn longest(&self) -> usize {
        if self.n_pieces == 0 { usize::MAX } else { longest(self.n_pieces) }
    }

    /// A datagram longer than this has the path's full length: its arrival shows that the path takes this length.
    pub(super) fn telling(&self) -> usize {
        self.longest() - 1
    }

    /// Datagrams longer than this would be cut if the path were one step narrower: these are lost if it has become so.
    pub(super) fn long(&self) -> usize {
        match self.n_pieces {
            n @ 1..SHORTEST => longest(n + 1),
            _ => usize::MAX,
        }
    }

    /// Makes datagrams one step shorter, because the system reports them as too long, or because they do not arrive.
    /// False if there is no shorter step.
    fn shorten(&mut self, now: Micros) -> bool {
        self.n_lost = 0;
        if !(1..SHORTEST).contains(&self.n_pieces) {
            return false;
        }
        self.n_pieces += 1;
        self.asked = None;
        self.ask_at = now + self.pause;
        log::info!("the path takes no longer datagrams than {} bytes", self.longest());
        true
    }

    /// Notes that retransmitted long chunks are missing.
    pub(super) fn on_lost(&mut self, now: Micros) {
        self.n_lost += 1;
        if self.n_lost >= LOST_MAX {
            self.shorten(now);
        }
    }

    /// Notes that long chunks have arrived.
    pub(super) fn on_passed(&mut self) {
        self.n_lost = 0;
    }

    /// Bytes of the ping `name`, if it has to test longer datagrams.
    pub(super) fn ask(&mut self, now: Micros, name: u32) -> Option<usize> {
        if self.n_pieces <= 1 || now < self.ask_at {
            return None;
        }
        self.asked = Some(name);
        self.pause = (2 * self.pause).min(ASK_US.1);
        self.ask_at = now + self.pause;
        Some(longest(self.n_pieces - 1))
    }

    /// Notes that the ping `name` was answered.
    pub(super) fn on_echo(&mut self, now: Micros, name: u32) {
        if self.asked.take_if(|asked| *asked == name).is_some() {
            self.n_pieces -= 1;
            (self.pause, self.ask_at, self.n_lost) = (ASK_US.0, now + ASK_NEXT_US, 0);
            log::info!("the path takes datagrams of {} bytes again", self.longest());
        }
    }

    /// Notes that the neighbour has another address, and so perhaps another path.
    pub(super) fn on_move(&mut self, now: Micros) {
        (self.pause, self.n_lost) = (ASK_US.0, 0);
        if self.n_pieces > 1 {
            self.ask_at = now;
        }
    }

    /// Sends chunks of a frame in datagrams of the path's length. False if there is no room now.
    pub(super) fn burst(
        &mut self,
        now: Micros,
        wire: &mut impl Wire,
        to: SocketAddr,
        burst: &Burst<'_>,
    ) -> bool {
        loop {
            let sending = match burst.longest() <= self.longest() {
                true => wire.burst(to, burst),
                false => self.pieces(wire, to, burst),
            };
            match sending {
                Sending::Gone => return true,
                Sending::NoRoom => return false,
                Sending::TooLong if self.shorten(now) => {}
                // The chunks count as lost on the way.
                Sending::TooLong => return true,
            }
        }
    }

    fn pieces(&self, wire: &mut impl Wire, to: SocketAddr, burst: &Burst<'_>) -> Sending {
        let room = self.longest() - PIECE_HEAD;
        let (mut whole, mut pieces) = ([0; DATAGRAM_BYTES], [0; PIECES_BYTES]);
        for (header, datagram) in burst.numbered() {
            let bytes = datagram.write(&mut whole);
            let sending = if bytes <= self.longest() {
                wire.pieces(to, &whole[..bytes], bytes)
            } else {
                let n = bytes.div_ceil(room);
                let (each, all) = cut(&header, &whole[..bytes], n, &mut pieces);
                wire.pieces(to, &pieces[..all], each)
            };
            if sending != Sending::Gone {
                return sending;
            }
        }
        Sending::Gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_datagrams_pass_where_every_host_takes_packets() {
        // RFC 791: 576 bytes, of which IP and UDP have 28.
        assert!(longest(SHORTEST) <= 576 - 28);
        assert!(longest(2) <= 1280 - 48, "RFC 8200");
        assert!(longest(1) <= 1500 - 48);
    }

    #[test]
    fn a_path_is_asked_again_ever_more_rarely() {
        let mut path = Path::new(Mode::Datagrams);
        assert_eq!(path.ask(Micros::MAX, 1), None, "it takes all there is");
        (0..LOST_MAX).for_each(|_| path.on_lost(0));
        assert_eq!(path.longest(), longest(2));
        path.on_lost(0);
        path.on_passed();
        (1..LOST_MAX).for_each(|_| path.on_lost(0));
        assert_eq!(path.longest(), longest(2), "not in a row");
        let mut asked = Vec::new();
        for s in 0..1_000 {
            if path.ask(s * 1_000_000, s as u32 + 1).is_some() {
                asked.push(s);
            }
        }
        assert_eq!(asked, [5, 15, 35, 75, 155, 315, 475, 635, 795, 955]);
        path.on_echo(0, 3);
        assert_eq!(path.longest(), longest(2), "another ping");
        path.on_echo(0, 956);
        assert_eq!(path.longest(), DATAGRAM_BYTES);
    }
}
