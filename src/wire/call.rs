//! Calls with which a master forms a ring: it calls each board, asks for its figures, and sends it the ring file. The
//! connection is opened by [`super::opening`].
//!
//! ```text
//! call of the master                   figures
//!  0 u32 0 ASK, 1 PROBE, 2 RING,        0 u32 1
//!        3 REST, 4 PREPARE, 5 KEEP,     4 u32 port of the board's links
//!        6 FORGET, 7 MASTER, 8 HOLD     8 u64 bytes of memory for a model
//!  4 u32 of a ring file: port on       16 [32] name, UTF-8, zeros
//!        which the master gives        48 [] for each number of threads that it was measured with, at
//!        layers, else 0                   most 8:
//!  8 RING, PREPARE, KEEP: the ring         0 u32 threads, not 0
//!        file; PROBE: any                  4 u32 milliwatts at rest, and
//!                                          8 u32 at work; both 0 if unknown
//!                                         12 u32 0
//!                                         16 u64[4] bytes of weights a second while it decodes: of f32, int8,
//!                                                   4-bit and 4.5-bit ones
//! ```
//!
//! MASTER has at 4 whether it takes over boards of other masters, at 8 a random `u64` of this run of the master, and at
//! 16 its name in 32 bytes. It comes first on each connection, and is answered by `u32` 4 and a text if the board works
//! for another master. HOLD is repeated while the board works for this master alone. Its answer is `u32` 5, `u32` 1 if
//! the board's links are open for this ring and else 0, a `u64` that identifies the board's ring file, and a `u64` that
//! grows while the board gets ready for it; or `u32` 0 and a text with the reason why the board cannot carry out its
//! order.
//!
//! ASK is answered by figures, PREPARE by `u32` 3 and a `u32` with the percentage of layers that are there, the others
//! by `u32` 2. Each may be answered by `u32` 0 and a text with the reason for a refusal. A ring file has a line for
//! each board, which has the name in the board's figures; REST says that the board has no place in the ring. PREPARE
//! makes a board fetch its layers of another ring file while it works for its present ring, and is repeated until all
//! of them are there. KEEP makes this file the ring's file: a board at work continues, also after a restart. FORGET
//! makes the board measure itself again at its next start, because its speed differs from its figures.

use super::WireError;
use super::fields::{Writer, u32_at, u64_at};
use super::give::{MESSAGE_MAX, REASON_MAX};
use super::name::{NAME_MAX, Name, printable, put_text, text};
use super::seal::derive;

/// Bytes of a call before its text.
pub const CALL_LEN: usize = 8;
/// Bytes of a MASTER.
const MASTER_LEN: usize = CALL_LEN + 8 + NAME_MAX;
/// Most bytes of a ring file, or of a probe.
pub const TEXT_MAX: usize = MESSAGE_MAX - CALL_LEN;
/// Bytes of a board's figures before its speeds.
const FIGURES_LEN: usize = 16 + NAME_MAX;
/// Bytes of one speed, for a number of threads.
const SPEED_LEN: usize = 48;
/// Most numbers of threads for which a board reports speeds.
pub const SPEEDS_MAX: usize = 8;
/// Most bytes of a board's figures.
pub const FIGURES_LEN_MAX: usize = FIGURES_LEN + SPEEDS_MAX * SPEED_LEN;

/// A message of a master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call<'a> {
    /// Asks for the board's figures.
    Ask,
    /// Sends these bytes, to measure the time they take.
    Probe(&'a [u8]),
    /// Sends the ring file; the board is to join this ring.
    Ring {
        /// Port on which the master gives layers.
        port: u16,
        /// The ring file.
        file: &'a str,
    },
    /// Tells the board that it has no place in the ring.
    Rest,
    /// Tells the board to fetch its layers of this other ring file, too.
    Prepare {
        /// Port on which the master gives layers.
        port: u16,
        /// The ring file.
        file: &'a str,
    },
    /// Replaces the ring file of the board's present ring.
    Keep {
        /// Port on which the master gives layers.
        port: u16,
        /// The ring file.
        file: &'a str,
    },
    /// Tells the board to measure itself again at its next start.
    Forget,
    /// Names the calling master.
    Master {
        /// Random number of this run of the master.
        run: u64,
        /// Name of the master.
        name: Name,
        /// Whether this master takes over boards that work for another one.
        is_taking: bool,
    },
    /// Tells the board to go on working for this master alone.
    Hold,
}

/// Number that identifies a ring file; 0 for an empty one.
pub fn ring_number(file: &str) -> u64 {
    match file {
        "" => 0,
        file => u64::from_le_bytes(derive(&[0; 32], "LEAP ring file", &[file.as_bytes()])).max(1),
    }
}

impl<'a> Call<'a> {
    /// Reads a call.
    ///
    /// # Errors
    /// If it is malformed.
    pub fn parse(bytes: &'a [u8]) -> Result<Call<'a>, WireError> {
        if bytes.len() < CALL_LEN {
            return Err(WireError::Truncated { need: CALL_LEN, have: bytes.len() });
        }
        let (number, rest) = (u32_at(bytes, 4), &bytes[CALL_LEN..]);
        match u32_at(bytes, 0) {
            0 => Ok(Call::Ask),
            1 => Ok(Call::Probe(rest)),
            3 => Ok(Call::Rest),
            6 => Ok(Call::Forget),
            7 if bytes.len() == MASTER_LEN && number <= 1 => Ok(Call::Master {
                run: u64_at(bytes, 8),
                name: text(&bytes[16..]),
                is_taking: number == 1,
            }),
            8 => Ok(Call::Hold),
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

    /// The call's bytes.
    pub fn emit(&self) -> Vec<u8> {
        let mut master = [0; MASTER_LEN - CALL_LEN];
        let (kind, number, rest): (u32, u32, &[u8]) = match self {
            Call::Master { run, name, is_taking } => {
                put_text(&mut master[8..], name);
                master[..8].copy_from_slice(&run.to_le_bytes());
                (7, u32::from(*is_taking), &master)
            }
            Call::Hold => (8, 0, &[]),
            Call::Ask => (0, 0, &[]),
            Call::Probe(bytes) => (1, 0, bytes),
            Call::Ring { port, file } => (2, u32::from(*port), file.as_bytes()),
            Call::Rest => (3, 0, &[]),
            Call::Forget => (6, 0, &[]),
            Call::Prepare { port, file } => (4, u32::from(*port), file.as_bytes()),
            Call::Keep { port, file } => (5, u32::from(*port), file.as_bytes()),
        };
        [&kind.to_le_bytes(), &number.to_le_bytes(), rest].concat()
    }
}

/// A board's speeds and memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figures {
    /// Port of the board's links.
    pub port: u16,
    /// Bytes of memory for a model.
    pub memory: u64,
    /// Name of the board.
    pub name: Name,
    /// The board's speeds, with all of its threads first.
    pub speeds: heapless::Vec<Speed, SPEEDS_MAX>,
}

/// A board's speed with some number of threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Speed {
    /// Number of threads.
    pub threads: u16,
    /// Bytes of weights per second of decoding, by the version of the model's file, from 1 on: f32, int8,
    /// 4-bit and 4.5-bit ones.
    pub read: [u64; 4],
    /// Milliwatts that the board takes at rest and at work, if known.
    pub milliwatts: Option<(u32, u32)>,
}

impl Speed {
    fn parse(bytes: &[u8]) -> Option<Speed> {
        let threads = u16::try_from(u32_at(bytes, 0)).ok().filter(|threads| *threads > 0)?;
        let (idle, busy) = (u32_at(bytes, 4), u32_at(bytes, 8));
        let read = [0, 1, 2, 3].map(|kind| u64_at(bytes, 16 + 8 * kind));
        let milliwatts = (busy > 0).then_some((idle, busy));
        let is_one = idle <= busy && read.iter().all(|read| *read > 0);
        is_one.then_some(Speed { threads, read, milliwatts })
    }

    fn emit(&self, out: &mut [u8]) {
        let (idle, busy) = self.milliwatts.unwrap_or_default();
        let mut out = Writer::new(out);
        out.u32(self.threads.into()).u32(idle).u32(busy).u32(0);
        self.read.iter().for_each(|read| {
            out.u64(*read);
        });
    }
}

impl Figures {
    fn parse(bytes: &[u8]) -> Result<Figures, WireError> {
        let have = bytes.len();
        if have < FIGURES_LEN + SPEED_LEN {
            return Err(WireError::Truncated { need: FIGURES_LEN + SPEED_LEN, have });
        }
        let (head, speeds) = bytes.split_at(FIGURES_LEN);
        let found: Option<heapless::Vec<Speed, SPEEDS_MAX>> =
            speeds.chunks_exact(SPEED_LEN).take(SPEEDS_MAX).map(Speed::parse).collect();
        let is_whole = speeds.len() % SPEED_LEN == 0 && have <= FIGURES_LEN_MAX;
        let port = u16::try_from(u32_at(head, 4)).ok().filter(|port| *port > 0);
        let (memory, name) = (u64_at(head, 8), text(&head[16..]));
        match (port, found) {
            (Some(port), Some(speeds)) if is_whole => Ok(Figures { port, memory, name, speeds }),
            _ => Err(WireError::Field("figures")),
        }
    }

    fn emit(&self) -> Vec<u8> {
        let mut bytes = vec![0; FIGURES_LEN + self.speeds.len() * SPEED_LEN];
        let (head, speeds) = bytes.split_at_mut(FIGURES_LEN);
        put_text(&mut head[16..], &self.name);
        Writer::new(head).u32(1).u32(self.port.into()).u64(self.memory);
        for (speed, out) in self.speeds.iter().zip(speeds.chunks_exact_mut(SPEED_LEN)) {
            speed.emit(out);
        }
        bytes
    }
}

/// State of a board's work for the master that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldState {
    /// [`ring_number`] of the board's ring file.
    pub ring: u64,
    /// Whether the board's links are open.
    pub is_ready: bool,
    /// A number that changes while the board makes progress with opening them.
    pub progress: u64,
}

/// An answer of a board.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Speeds and memory of the board.
    Figures(Figures),
    /// The board has taken the message.
    Done,
    /// Percentage of the board's layers that are there.
    Prepared(u32),
    /// The reason for a refusal.
    Refused(heapless::String<REASON_MAX>),
    /// Name of the other master that the board works for.
    Busy(heapless::String<REASON_MAX>),
    /// The board works for this master.
    Held(HeldState),
}

impl Reply {
    /// The reply that refuses, with the reason.
    pub fn refused(why: &str) -> Reply {
        Reply::Refused(printable(why))
    }

    /// The reply with the name of the master that the board works for.
    pub fn busy(with: &str) -> Reply {
        Reply::Busy(printable(with))
    }

    /// Reads an answer.
    ///
    /// # Errors
    /// If it is malformed.
    pub fn parse(bytes: &[u8]) -> Result<Reply, WireError> {
        let have = bytes.len();
        match bytes.first_chunk().map(|kind| u32::from_le_bytes(*kind)) {
            Some(0) => Ok(Reply::Refused(text(&bytes[4..]))),
            Some(1) => Figures::parse(bytes).map(Reply::Figures),
            None => Err(WireError::Truncated { need: 4, have }),
            Some(2) => Ok(Reply::Done),
            Some(3) if have == 8 && u32_at(bytes, 4) <= 100 => {
                Ok(Reply::Prepared(u32_at(bytes, 4)))
            }
            Some(4) => Ok(Reply::Busy(text(&bytes[4..]))),
            Some(5) if have == 24 && u32_at(bytes, 4) <= 1 => {
                let (ring, is_ready) = (u64_at(bytes, 8), u32_at(bytes, 4) == 1);
                let progress = u64_at(bytes, 16);
                Ok(Reply::Held(HeldState { ring, is_ready, progress }))
            }
            Some(_) => Err(WireError::Field("reply")),
        }
    }

    /// The answer's bytes.
    pub fn emit(&self) -> Vec<u8> {
        match self {
            Reply::Figures(figures) => figures.emit(),
            Reply::Done => 2u32.to_le_bytes().to_vec(),
            Reply::Prepared(percent) => [3u32.to_le_bytes(), percent.to_le_bytes()].concat(),
            Reply::Refused(why) => super::give::emit_reason(why),
            Reply::Busy(with) => [&4u32.to_le_bytes(), with.as_bytes()].concat(),
            Reply::Held(HeldState { ring, is_ready, progress }) => {
                let head = u64::from(*is_ready) << 32 | 5;
                [head.to_le_bytes(), ring.to_le_bytes(), progress.to_le_bytes()].concat()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::hello::name;

    fn figures() -> Figures {
        let all = Speed { threads: 4, read: [7, 8, 9, 10], milliwatts: Some((2800, 8100)) };
        let one = Speed { threads: 1, read: [3; 4], milliwatts: None };
        let speeds = [all, one].into_iter().collect();
        Figures { port: 9999, memory: 9, name: name("pi"), speeds }
    }

    #[test]
    fn what_is_said_is_heard() {
        let ring = Call::Ring { port: 9998, file: "desk 10.0.0.1 0..3\n" };
        let (port, file) = (9998, "desk 10.0.0.1 0..3\n");
        let others = [Call::Prepare { port, file }, Call::Keep { port, file }];
        let plain = [Call::Ask, Call::Probe(&[5; 9]), ring, Call::Rest, Call::Forget, Call::Hold];
        for call in plain.into_iter().chain(others) {
            assert_eq!(Call::parse(&call.emit()), Ok(call));
        }
        for is_taking in [false, true] {
            let call = Call::Master { run: u64::MAX - 1, name: name("desk"), is_taking };
            assert_eq!(Call::parse(&call.emit()), Ok(call));
        }
        let why = Reply::refused("no");
        let figures = Reply::Figures(figures());
        let held =
            |is_ready| Reply::Held(HeldState { ring: u64::MAX, is_ready, progress: 1 << 40 });
        let (busy, held, ready) = (Reply::busy("it works"), held(false), held(true));
        for reply in [figures, Reply::Done, Reply::Prepared(40), why, busy, held, ready] {
            assert_eq!(Reply::parse(&reply.emit()), Ok(reply));
        }
    }

    #[test]
    fn what_has_no_meaning_is_refused() {
        let call = Call::Ring { port: 9998, file: "x" }.emit();
        for len in 0..CALL_LEN {
            assert!(Call::parse(&call[..len]).is_err());
        }
        for (at, byte) in [(0, 7), (0, 9), (6, 1), (8, 0xff)] {
            let mut call = call.clone();
            call[at] = byte;
            assert!(Call::parse(&call).is_err(), "{at}");
        }
        assert!(Call::parse(&Call::Ring { port: 0, file: "" }.emit()).is_err());
        let reply = Reply::Figures(figures()).emit();
        let of_one = FIGURES_LEN + SPEED_LEN;
        for len in (0..reply.len()).filter(|len| *len != of_one) {
            assert!(Reply::parse(&reply[..len]).is_err(), "{len}");
        }
        let more = [&reply[..], &reply[FIGURES_LEN..].repeat(SPEEDS_MAX / 2)].concat();
        assert!(Reply::parse(&more).is_err());
        let with = |change: &dyn Fn(&mut Figures)| {
            let mut figures = figures();
            change(&mut figures);
            Reply::parse(&Reply::Figures(figures).emit())
        };
        assert!(with(&|_| {}).is_ok());
        assert!(with(&|figures| figures.port = 0).is_err());
        assert!(with(&|figures| figures.speeds.clear()).is_err());
        assert!(with(&|figures| figures.speeds[1].threads = 0).is_err());
        assert!(with(&|figures| figures.speeds[1].read[3] = 0).is_err());
        assert!(with(&|figures| figures.speeds[0].milliwatts = Some((2, 1))).is_err());
        assert!(Reply::parse(&[9; 4]).is_err());
        assert!(Reply::parse(&Reply::Prepared(101).emit()).is_err());
    }
}
