//! How a ring gets its boards: the master calls each, hears what it can do, and tells it the ring. The
//! connection is opened as [`super::give`] says.
//!
//! ```text
//! call of the master                   figures, 72 bytes
//!  0 u32 0 ASK, 1 PROBE, 2 RING,        0 u32 1
//!        3 REST, 4 PREPARE, 5 KEEP      4 u32 port of the board's links
//!  4 u32 of a ring file: port on        8 u64 bytes a second that it reads
//!        which the master gives        16 u64 int8 operations a second
//!        layers, else 0                24 u64 bytes of memory for a model
//!  8 RING, PREPARE, KEEP: the ring     32 [32] name, UTF-8, zeros
//!        file; PROBE: any              64 u32 milliwatts at rest,
//!                                      68 u32 and at work; both 0 if unknown
//! ```
//!
//! ASK is answered by figures, PREPARE by `u32` 3 and a `u32` that says how much is there, in percent, the others
//! by `u32` 2; each may be answered by `u32` 0 and a text that says why
//! not. A ring file has a line for each board, among them the name that the figures gave; REST says that the
//! board has no place in the ring. PREPARE has a board fetch its layers of another ring file while it works for
//! the one that it has, and is said again until all of them are there. KEEP says that this file is the ring's from
//! now on: a board that works goes on, and does so after a restart.

use super::WireError;
use super::fields::{Writer, u32_at, u64_at};
use super::give::{MESSAGE_MAX, REASON_MAX};
use super::name::{NAME_MAX, Name, printable, put_text, text};

/// Bytes of a call before its text.
pub const CALL_LEN: usize = 8;
/// Most bytes of a ring file, or of a probe.
pub const TEXT_MAX: usize = MESSAGE_MAX - CALL_LEN;
/// Where a board's milliwatts are.
const WATTS_AT: usize = 32 + NAME_MAX;
/// Bytes of a board's figures.
pub const FIGURES_LEN: usize = 40 + NAME_MAX;

/// What a master says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call<'a> {
    /// What can you do?
    Ask,
    /// So many bytes, which take their time.
    Probe(&'a [u8]),
    /// This is the ring.
    Ring {
        /// Port on which the master gives layers.
        port: u16,
        /// The ring file.
        file: &'a str,
    },
    /// There is no place for you.
    Rest,
    /// Get your layers of this ring file, too.
    Prepare {
        /// Port on which the master gives layers.
        port: u16,
        /// The ring file.
        file: &'a str,
    },
    /// The ring has become this one.
    Keep {
        /// Port on which the master gives layers.
        port: u16,
        /// The ring file.
        file: &'a str,
    },
}

impl<'a> Call<'a> {
    /// Reads a call.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(bytes: &'a [u8]) -> Result<Call<'a>, WireError> {
        if bytes.len() < CALL_LEN {
            return Err(WireError::Truncated { need: CALL_LEN, have: bytes.len() });
        }
        let (number, rest) = (u32_at(bytes, 4), &bytes[CALL_LEN..]);
        match u32_at(bytes, 0) {
            0 => Ok(Call::Ask),
            1 => Ok(Call::Probe(rest)),
            3 => Ok(Call::Rest),
            kind @ (2 | 4 | 5) => {
                let port = u16::try_from(number).ok().filter(|port| *port > 0);
                let file = std::str::from_utf8(rest).ok();
                let found = port.zip(file).map(|(port, file)| match kind {
                    2 => Call::Ring { port, file },
                    4 => Call::Prepare { port, file },
                    _ => Call::Keep { port, file },
                });
                found.ok_or(WireError::Field("ring"))
            }
            _ => Err(WireError::Field("call")),
        }
    }

    /// Its bytes.
    pub fn emit(&self) -> Vec<u8> {
        let (kind, number, rest): (u32, u32, &[u8]) = match self {
            Call::Ask => (0, 0, &[]),
            Call::Probe(bytes) => (1, 0, bytes),
            Call::Ring { port, file } => (2, u32::from(*port), file.as_bytes()),
            Call::Rest => (3, 0, &[]),
            Call::Prepare { port, file } => (4, u32::from(*port), file.as_bytes()),
            Call::Keep { port, file } => (5, u32::from(*port), file.as_bytes()),
        };
        [&kind.to_le_bytes(), &number.to_le_bytes(), rest].concat()
    }
}

/// What a board can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figures {
    /// Port of its links.
    pub port: u16,
    /// Bytes a second that it reads.
    pub read: u64,
    /// int8 operations a second.
    pub int8: u64,
    /// Bytes of memory for a model.
    pub memory: u64,
    /// Milliwatts that it takes at rest and at work, if that is known.
    pub milliwatts: Option<(u32, u32)>,
    /// What it is called.
    pub name: Name,
}

/// What a board answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// What it can do.
    Figures(Figures),
    /// It has heard.
    Done,
    /// So many percent of its layers are there.
    Prepared(u32),
    /// Why it will not.
    Refused(heapless::String<REASON_MAX>),
}

impl Reply {
    /// Says why not.
    pub fn refused(why: &str) -> Reply {
        Reply::Refused(printable(why))
    }

    /// Reads an answer.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(bytes: &[u8]) -> Result<Reply, WireError> {
        let have = bytes.len();
        match bytes.first_chunk().map(|kind| u32::from_le_bytes(*kind)) {
            Some(0) => Ok(Reply::Refused(text(&bytes[4..]))),
            Some(1) if have == FIGURES_LEN => {
                let port = u16::try_from(u32_at(bytes, 4)).ok().filter(|port| *port > 0);
                let (read, int8) = (u64_at(bytes, 8), u64_at(bytes, 16));
                let (idle, busy) = (u32_at(bytes, WATTS_AT), u32_at(bytes, WATTS_AT + 4));
                match port {
                    Some(port) if read > 0 && int8 > 0 && idle <= busy => {
                        Ok(Reply::Figures(Figures {
                            port,
                            read,
                            int8,
                            memory: u64_at(bytes, 24),
                            milliwatts: (busy > 0).then_some((idle, busy)),
                            name: text(&bytes[32..WATTS_AT]),
                        }))
                    }
                    _ => Err(WireError::Field("figures")),
                }
            }
            Some(1) | None => Err(WireError::Truncated { need: FIGURES_LEN, have }),
            Some(2) => Ok(Reply::Done),
            Some(3) if have == 8 && u32_at(bytes, 4) <= 100 => {
                Ok(Reply::Prepared(u32_at(bytes, 4)))
            }
            Some(_) => Err(WireError::Field("reply")),
        }
    }

    /// Its bytes.
    pub fn emit(&self) -> Vec<u8> {
        match self {
            Reply::Figures(Figures { port, read, int8, memory, milliwatts, name }) => {
                let mut bytes = [0; FIGURES_LEN];
                put_text(&mut bytes[32..WATTS_AT], name);
                let (idle, busy) = milliwatts.unwrap_or_default();
                Writer::new(&mut bytes[WATTS_AT..]).u32(idle).u32(busy);
                let mut out = Writer::new(&mut bytes);
                out.u32(1).u32(u32::from(*port)).u64(*read).u64(*int8).u64(*memory);
                bytes.to_vec()
            }
            Reply::Done => 2u32.to_le_bytes().to_vec(),
            Reply::Prepared(percent) => [3u32.to_le_bytes(), percent.to_le_bytes()].concat(),
            Reply::Refused(why) => super::give::emit_reason(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::hello::name;

    fn figures() -> Figures {
        let milliwatts = Some((2800, 8100));
        Figures { port: 9999, read: 7, int8: 8, memory: 9, milliwatts, name: name("pi") }
    }

    #[test]
    fn what_is_said_is_heard() {
        let ring = Call::Ring { port: 9998, file: "desk 10.0.0.1 0..3\n" };
        let (port, file) = (9998, "desk 10.0.0.1 0..3\n");
        let others = [Call::Prepare { port, file }, Call::Keep { port, file }];
        for call in [Call::Ask, Call::Probe(&[5; 9]), ring, Call::Rest].into_iter().chain(others) {
            assert_eq!(Call::parse(&call.emit()), Ok(call));
        }
        let why = Reply::refused("no");
        let unknown = Reply::Figures(Figures { milliwatts: None, ..figures() });
        for reply in [Reply::Figures(figures()), unknown, Reply::Done, Reply::Prepared(40), why] {
            assert_eq!(Reply::parse(&reply.emit()), Ok(reply));
        }
    }

    #[test]
    fn what_has_no_meaning_is_refused() {
        let call = Call::Ring { port: 9998, file: "x" }.emit();
        for len in 0..CALL_LEN {
            assert!(Call::parse(&call[..len]).is_err());
        }
        for (at, byte) in [(0, 6), (6, 1), (8, 0xff)] {
            let mut call = call.clone();
            call[at] = byte;
            assert!(Call::parse(&call).is_err(), "{at}");
        }
        assert!(Call::parse(&Call::Ring { port: 0, file: "" }.emit()).is_err());
        let reply = Reply::Figures(figures()).emit();
        for len in 0..FIGURES_LEN {
            assert!(Reply::parse(&reply[..len]).is_err());
        }
        let generous = Figures { milliwatts: Some((2, 1)), ..figures() };
        for nothing in
            [Figures { read: 0, ..figures() }, Figures { port: 0, ..figures() }, generous]
        {
            assert!(Reply::parse(&Reply::Figures(nothing).emit()).is_err());
        }
        assert!(Reply::parse(&[9; 4]).is_err());
        assert!(Reply::parse(&Reply::Prepared(101).emit()).is_err());
    }
}
