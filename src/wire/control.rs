//! Payloads of ACK and PONG, and of PING.
//!
//! ```text
//! ACK, PONG                                PING
//!  0 u32  next frame that is not complete   0 u32  name of this ping
//!  4 u32  first frame there is no room for  4 u32  first frame not sent yet
//!  8 u32  name of the newest ping seen      8 u32  sender's smoothed round trip, microseconds
//! 12 u16  entries that follow              12 u32  0
//! 14 u16  0
//! 16      entries: u32 frame, 12 bytes: bit i set = chunk i is missing
//! ```
//!
//! A PING may be padded with zeros: it then probes whether datagrams of its length arrive.

use heapless::Vec;

use super::WireError;
use super::datagram::CHUNKS_MAX;
use super::fields::{Writer, u16_at, u32_at};

/// Most frames that one acknowledgement names.
pub const NACKS_MAX: usize = 8;
/// Bytes of the longest acknowledgement.
pub const ACK_MAX: usize = ACK_LEN + NACKS_MAX * NACK_LEN;
/// Bytes of a ping.
pub const PING_LEN: usize = 16;
const ACK_LEN: usize = 16;
const NACK_LEN: usize = 16;

/// One bit for each chunk of a frame.
pub type ChunkBits = u128;

/// The bits of the first `n` chunks.
///
/// # Panics
/// If `n` is above [`CHUNKS_MAX`].
pub fn all_chunks(n: usize) -> ChunkBits {
    assert!(n <= CHUNKS_MAX);
    (1 << n) - 1
}

/// Chunks of a frame that are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nack {
    /// Number of the frame.
    pub seq: u32,
    /// Missing chunks of the frame; all bits if the receiver has none of it.
    pub missing: ChunkBits,
}

/// State of the receiver: frames it has, frames it lacks, and room for more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ack {
    /// Number of the first frame that is not complete.
    pub next: u32,
    /// Number of the first frame that the receiver has no room for.
    pub window_end: u32,
    /// [`Ping::name`] of the newest ping that has arrived, 0 if none.
    pub echo: u32,
    /// Missing chunks, oldest first.
    pub nacks: Vec<Nack, NACKS_MAX>,
}

impl Ack {
    /// Reads an acknowledgement.
    ///
    /// # Errors
    /// If its length is wrong.
    pub fn parse(bytes: &[u8]) -> Result<Ack, WireError> {
        let have = bytes.len();
        if have < ACK_LEN {
            return Err(WireError::Truncated { need: ACK_LEN, have });
        }
        let n = usize::from(u16_at(bytes, 12));
        if n > NACKS_MAX {
            return Err(WireError::Field("n_nacks"));
        }
        let need = ACK_LEN + n * NACK_LEN;
        if have != need {
            return Err(WireError::Truncated { need, have });
        }
        let (entries, _) = bytes[ACK_LEN..].as_chunks::<NACK_LEN>();
        Ok(Ack {
            next: u32_at(bytes, 0),
            window_end: u32_at(bytes, 4),
            echo: u32_at(bytes, 8),
            nacks: entries.iter().map(nack).collect(),
        })
    }

    /// Writes the acknowledgement, and returns its length.
    pub fn emit(&self, out: &mut [u8; ACK_MAX]) -> usize {
        let mut out = Writer::new(out);
        out.u32(self.next).u32(self.window_end).u32(self.echo);
        out.u16(self.nacks.len() as u16).u16(0);
        for nack in &self.nacks {
            out.u32(nack.seq).put(&nack.missing.to_le_bytes()[..12]);
        }
        out.len()
    }
}

fn nack(entry: &[u8; NACK_LEN]) -> Nack {
    let mut missing = [0; 16];
    missing[..12].copy_from_slice(&entry[4..]);
    let missing = ChunkBits::from_le_bytes(missing) & all_chunks(CHUNKS_MAX);
    Nack { seq: u32_at(entry, 0), missing }
}

/// A question to the receiver about the frames it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ping {
    /// Name of this ping, which comes back in [`Ack::echo`]; never 0.
    pub name: u32,
    /// Number of the first frame that has not been sent.
    pub next: u32,
    /// Smoothed round-trip time in microseconds, 0 if unknown.
    pub srtt_us: u32,
}

impl Ping {
    /// Reads a ping.
    ///
    /// # Errors
    /// If it is too short.
    pub fn parse(bytes: &[u8]) -> Result<Ping, WireError> {
        if bytes.len() < PING_LEN {
            return Err(WireError::Truncated { need: PING_LEN, have: bytes.len() });
        }
        Ok(Ping { name: u32_at(bytes, 0), next: u32_at(bytes, 4), srtt_us: u32_at(bytes, 8) })
    }

    /// Writes the ping.
    pub fn emit(&self, out: &mut [u8; PING_LEN]) {
        Writer::new(out).u32(self.name).u32(self.next).u32(self.srtt_us).zero(4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ack() -> Ack {
        let nacks = [(8, 1), (9, all_chunks(CHUNKS_MAX))];
        let nacks = nacks.map(|(seq, missing)| Nack { seq, missing });
        Ack { next: 7, window_end: 23, echo: 5, nacks: nacks.into_iter().collect() }
    }

    #[test]
    fn what_is_emitted_parses_to_the_same() {
        let mut bytes = [0xa5; ACK_MAX];
        let len = ack().emit(&mut bytes);
        assert_eq!(Ack::parse(&bytes[..len]), Ok(ack()));
        let mut bytes = [0xa5; PING_LEN];
        let ping = Ping { name: 1, next: 2, srtt_us: 3 };
        ping.emit(&mut bytes);
        assert_eq!(Ping::parse(&bytes), Ok(ping));
    }

    #[test]
    fn an_acknowledgement_has_these_bytes() {
        let mut bytes = [0xa5; ACK_MAX];
        let len = ack().emit(&mut bytes);
        let wanted = [
            &[7, 0, 0, 0, 23, 0, 0, 0, 5, 0, 0, 0, 2, 0, 0, 0][..],
            &[8, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[9, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 15],
        ];
        assert_eq!(bytes[..len], wanted.concat());
    }

    #[test]
    fn other_lengths_are_refused() {
        let mut bytes = [0; ACK_MAX];
        let len = ack().emit(&mut bytes);
        for wrong in (0..ACK_MAX).filter(|&wrong| wrong != len) {
            assert!(Ack::parse(&bytes[..wrong]).is_err(), "{wrong}");
        }
        bytes[12] = NACKS_MAX as u8 + 1;
        assert_eq!(Ack::parse(&bytes), Err(WireError::Field("n_nacks")));
        for bytes in 0..40 {
            assert_eq!(Ping::parse(&vec![0; bytes]).is_ok(), bytes >= PING_LEN, "{bytes}");
        }
    }
}
