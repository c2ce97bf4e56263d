//! Sealed messages over a connection that loses nothing: transport messages of the Noise Protocol Framework (revision
//! 34, section 3), after the exchange of [`super::noise`].
//!
//! Each end counts the messages in both directions, so that a message that an attacker omits, repeats or moves does not
//! open.

use std::fmt;

use snow::TransportState;

/// Bytes that sealing adds to a message.
pub const SEAL_BYTES: usize = 16;
/// Most bytes of a sealed message.
pub const SEALED_MAX: usize = 65535;

/// One end of a sealed connection.
pub struct Talk(TransportState);

impl Talk {
    pub(super) fn new(state: TransportState) -> Talk {
        Talk(state)
    }

    /// Seals the next message into `out`, and returns its sealed length.
    ///
    /// # Panics
    /// If `message` and [`SEAL_BYTES`] together are longer than `out` or [`SEALED_MAX`].
    pub fn seal(&mut self, message: &[u8], out: &mut [u8]) -> usize {
        self.0
            .write_message(message, out)
            .expect("the message is short, and one of fewer than 2^64")
    }

    /// Opens the next message into `out`, and returns its length. `None` if `sealed` is not the other end's next
    /// message, or longer than `out`.
    pub fn open(&mut self, sealed: &[u8], out: &mut [u8]) -> Option<usize> {
        self.0.read_message(sealed, out).ok()
    }
}

impl fmt::Debug for Talk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Talk")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::noise::End;

    const A: End<'_> = End { key: &[1; 32], ephemeral: &[2; 32], prologue: b"LEAP prologue" };
    const B: End<'_> = End { ephemeral: &[3; 32], ..A };

    fn talk() -> (Talk, Talk) {
        let (answer, b) = B.accept(&A.greeting()).unwrap();
        (A.conclude(&answer).unwrap(), b)
    }

    #[test]
    fn each_direction_is_understood_in_its_order() {
        let (mut a, mut b) = talk();
        let (mut sealed, mut out) = ([0; 64], [0; 64]);
        for message in [&b"layers"[..], b"", b"pieces"] {
            let len = a.seal(message, &mut sealed);
            assert_eq!(len, message.len() + SEAL_BYTES);
            assert_eq!(b.open(&sealed[..len], &mut out), Some(message.len()));
            assert_eq!(&out[..message.len()], message);
            let len = b.seal(message, &mut sealed);
            assert_eq!(a.open(&sealed[..len], &mut out), Some(message.len()));
        }
    }

    #[test]
    fn what_is_changed_repeated_or_sent_back_does_not_open() {
        let (mut a, mut b) = talk();
        let (mut sealed, mut out) = ([0; 64], [0; 64]);
        let len = a.seal(b"layers", &mut sealed);
        for bit in 0..8 * len {
            sealed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(b.open(&sealed[..len], &mut out), None, "{bit}");
            sealed[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(a.open(&sealed[..len], &mut out), None);
        assert_eq!(b.open(&sealed[..len - 1], &mut out), None);
        assert_eq!(b.open(&sealed[..len], &mut [0; 5]), None);
        assert_eq!(b.open(&sealed[..len], &mut out), Some(6));
        assert_eq!(b.open(&sealed[..len], &mut out), None);
    }

    #[test]
    fn only_peers_with_the_key_talk() {
        let greeting = A.greeting();
        assert!(End { key: &[9; 32], ..B }.accept(&greeting).is_none());
        let (answer, _) = B.accept(&greeting).unwrap();
        assert!(End { prologue: b"LEAP", ..A }.conclude(&answer).is_none());
    }
}
