//! The handshake: HELLO, WELCOME, CONFIRM, REFUSE, and which neighbours fit.
//!
//! ```text
//! HELLO, 160 bytes                    WELCOME, 184 bytes               node, 72 bytes
//!   0 u16 protocol version              0 u16 protocol version           0 u64 model
//!   2 u8  1 = has a key                 2 u8  1 = has a key              8 u32 dim
//!   3 u8  0                             3 u8  0                         12 u32 layers of the model
//!   4 u32 0                             4 u32 frames it can hold        16 u32 KV width
//!   8 u64 instance                      8 u64 instance                  20 u32 vocabulary
//!  16 [16] nonce                       16 [16] nonce of the HELLO       24 u32 first layer
//!  32 u64 session it has, or 0         32 [16] nonce                    28 u32 layer behind its last
//!  40 node                             48 node                          32 u8  dtype on the wire
//! 112 [48] greeting                   120 [48] answer                   33 u8  1 = master
//!                                     168 [16] tag                      34 u8  bytes of the name
//! CONFIRM, 192 bytes                                                    35 [5] 0
//!   0 the HELLO it belongs to         REFUSE, 128 bytes                 40 [32] name, UTF-8
//! 160 [16] nonce of the WELCOME         0 [16] nonce of the HELLO
//! 176 [16] tag                         16 u32 reason
//!                                      20 u32 0
//!                                      24 2 × u64 figures of the reason
//!                                      40 u8  bytes of the listener's name
//!                                      41 u8  bytes of the other name
//!                                      42 [6] 0
//!                                      48 [32] name of the listener
//!                                      80 [32] name of the neighbour that keeps it busy
//!                                     112 [16] tag
//! ```
//!
//! A CONFIRM repeats the HELLO, so that a listener remembers nothing until it is proven. Greeting and
//! answer are [`super::noise`]'s messages, tags are [`super::seal`]'s; all are zero without a key. The
//! first 32 bytes of a HELLO and the first 40 of a REFUSE stay as they are in later versions; another
//! version's HELLO is refused by these 40 alone.

use std::fmt;
use std::ops::Range;

use heapless::String;

use super::fields::{Writer, array, u16_at, u32_at, u64_at};
use super::noise::{MESSAGE_LEN, Message};
use super::{Dtype, Error};

/// Version of the protocol; only equal ones talk.
pub const PROTOCOL: u16 = 2;
/// Bytes of a HELLO.
pub const HELLO_LEN: usize = 160;
/// Bytes of a WELCOME.
pub const WELCOME_LEN: usize = 184;
/// Bytes of a CONFIRM.
pub const CONFIRM_LEN: usize = HELLO_LEN + 32;
/// Bytes of a REFUSE.
pub const REFUSE_LEN: usize = 128;
/// Bytes of it that all versions have.
pub const REFUSE_FIXED: usize = 40;
/// Bytes of a HELLO before the greeting.
pub const HELLO_SEEN: usize = HELLO_LEN - MESSAGE_LEN;
/// Bytes of a WELCOME before the answer.
pub const WELCOME_SEEN: usize = WELCOME_TAGGED - MESSAGE_LEN;
/// Bytes of a WELCOME before the tag.
pub const WELCOME_TAGGED: usize = WELCOME_LEN - 16;
/// Bytes of a REFUSE before the tag.
pub const REFUSE_TAGGED: usize = REFUSE_LEN - 16;
/// Most bytes of a node's name.
pub const NAME_MAX: usize = 32;

/// A random number that is used once.
pub type Nonce = [u8; 16];
/// Proof that the sender has the key.
pub type Tag = [u8; 16];
/// A node's name; control characters are replaced when it is read.
pub type Name = String<NAME_MAX>;

/// As much of `name` as fits, without control characters.
pub fn name(name: &str) -> Name {
    printable(name)
}

/// As much of `text` as fits, without control characters.
pub(super) fn printable<const N: usize>(text: &str) -> String<N> {
    let mut out = String::new();
    for c in text.chars() {
        let c = if c.is_control() { '?' } else { c };
        if out.push(c).is_err() {
            break;
        }
    }
    out
}

/// What neighbours must agree on, and who a node is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RingInfo {
    /// Fingerprint of the model.
    pub model: u64,
    /// Width of the activations.
    pub dim: u32,
    /// Layers of the whole model.
    pub n_layers: u32,
    /// Width of keys and of values.
    pub kv_dim: u32,
    /// Tokens of the vocabulary.
    pub vocab_size: u32,
    /// First layer of the node.
    pub first_layer: u32,
    /// The layer behind the node's last.
    pub end_layer: u32,
    /// How it sends and wants activations.
    pub dtype: Dtype,
    /// Whether it is the master, where the ring begins and ends.
    pub is_master: bool,
    /// Its name in messages.
    pub name: Name,
}

impl RingInfo {
    /// The node's layers.
    pub fn layers(&self) -> Range<u32> {
        self.first_layer..self.end_layer
    }

    /// Whether `next` may follow this node in a ring.
    ///
    /// # Errors
    /// The first thing that does not fit.
    pub fn check_next(&self, next: &RingInfo) -> Result<(), Refusal> {
        if self.model != next.model {
            return Err(Refusal::Model { prev: self.model, next: next.model });
        }
        let widths = [
            (self.dim, next.dim, Width::Dim),
            (self.n_layers, next.n_layers, Width::Layers),
            (self.kv_dim, next.kv_dim, Width::Kv),
            (self.vocab_size, next.vocab_size, Width::Vocab),
        ];
        for (prev, next, width) in widths {
            if prev != next {
                return Err(Refusal::Dims { width, prev, next });
            }
        }
        if self.dtype != next.dtype {
            return Err(Refusal::Dtype { prev: self.dtype, next: next.dtype });
        }
        let (have, want) = match next.is_master {
            true => (self.end_layer, self.n_layers),
            false => (self.end_layer, next.first_layer),
        };
        match have == want && (!next.is_master || next.first_layer == 0) {
            true => Ok(()),
            false => Err(Refusal::Layers { prev: self.layers(), next: next.layers() }),
        }
    }

    fn parse(bytes: &[u8]) -> Result<RingInfo, Error> {
        Ok(RingInfo {
            model: u64_at(bytes, 0),
            dim: u32_at(bytes, 8),
            n_layers: u32_at(bytes, 12),
            kv_dim: u32_at(bytes, 16),
            vocab_size: u32_at(bytes, 20),
            first_layer: u32_at(bytes, 24),
            end_layer: u32_at(bytes, 28),
            dtype: Dtype::from_code(bytes[32]).ok_or(Error::Field("dtype"))?,
            is_master: bytes[33] & 1 == 1,
            name: name_at(bytes, 40, bytes[34])?,
        })
    }

    fn emit(&self, out: &mut Writer<'_>) {
        out.u64(self.model).u32(self.dim).u32(self.n_layers).u32(self.kv_dim);
        out.u32(self.vocab_size).u32(self.first_layer).u32(self.end_layer);
        out.u8(self.dtype as u8).u8(u8::from(self.is_master)).u8(self.name.len() as u8).zero(5);
        out.put(self.name.as_bytes()).zero(NAME_MAX - self.name.len());
    }
}

/// Asks for a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Version of the protocol.
    pub protocol: u16,
    /// Whether the connector has a key.
    pub has_key: bool,
    /// Random, one for each run of a node.
    pub instance: u64,
    /// Random, one for each HELLO of another content.
    pub nonce: Nonce,
    /// The session that the connector would rather keep, or 0.
    pub resume: u64,
    /// The connector.
    pub node: RingInfo,
    /// Its share of the key exchange, over all before it.
    pub greeting: Message,
}

impl Hello {
    /// Reads a HELLO of this protocol version.
    ///
    /// # Errors
    /// [`Error::Field`] `protocol` for another one: see [`Hello::stranger`].
    pub fn parse(bytes: &[u8]) -> Result<Hello, Error> {
        if bytes.len() != HELLO_LEN {
            return Err(Error::Truncated { need: HELLO_LEN, have: bytes.len() });
        }
        if u16_at(bytes, 0) != PROTOCOL {
            return Err(Error::Field("protocol"));
        }
        Ok(Hello {
            protocol: u16_at(bytes, 0),
            has_key: bytes[2] & 1 == 1,
            instance: u64_at(bytes, 8),
            nonce: array(bytes, 16),
            resume: u64_at(bytes, 32),
            node: RingInfo::parse(&bytes[40..112])?,
            greeting: array(bytes, HELLO_SEEN),
        })
    }

    /// Version and nonce of a HELLO of another version, to refuse it by.
    pub fn stranger(bytes: &[u8]) -> Option<(u16, Nonce)> {
        let has_fixed_part = bytes.len() >= 32 && u16_at(bytes, 0) != PROTOCOL;
        has_fixed_part.then(|| (u16_at(bytes, 0), array(bytes, 16)))
    }

    /// Writes all of it.
    pub fn emit(&self, out: &mut [u8; HELLO_LEN]) {
        let mut out = Writer::new(out);
        out.u16(self.protocol).u8(u8::from(self.has_key)).zero(5).u64(self.instance);
        out.put(&self.nonce).u64(self.resume);
        self.node.emit(&mut out);
        out.put(&self.greeting);
    }
}

/// Offers a session: the one in the datagram's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Whether the listener has a key.
    pub has_key: bool,
    /// Frames that the listener can hold.
    pub n_banks: u32,
    /// The listener's run.
    pub instance: u64,
    /// The HELLO this answers.
    pub hello_nonce: Nonce,
    /// Goes back in the CONFIRM, so that only who reads this can send one.
    pub nonce: Nonce,
    /// The listener.
    pub node: RingInfo,
    /// Its share of the key exchange.
    pub answer: Message,
    /// Over the HELLO, the session and all before it, under what was exchanged.
    pub tag: Tag,
}

impl Welcome {
    /// Reads a WELCOME.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(bytes: &[u8]) -> Result<Welcome, Error> {
        if bytes.len() != WELCOME_LEN {
            return Err(Error::Truncated { need: WELCOME_LEN, have: bytes.len() });
        }
        if u16_at(bytes, 0) != PROTOCOL {
            return Err(Error::Field("protocol"));
        }
        Ok(Welcome {
            has_key: bytes[2] & 1 == 1,
            n_banks: u32_at(bytes, 4),
            instance: u64_at(bytes, 8),
            hello_nonce: array(bytes, 16),
            nonce: array(bytes, 32),
            node: RingInfo::parse(&bytes[48..120])?,
            answer: array(bytes, WELCOME_SEEN),
            tag: array(bytes, WELCOME_TAGGED),
        })
    }

    /// Writes all of it.
    pub fn emit(&self, out: &mut [u8; WELCOME_LEN]) {
        let mut out = Writer::new(out);
        out.u16(PROTOCOL).u8(u8::from(self.has_key)).zero(1).u32(self.n_banks);
        out.u64(self.instance).put(&self.hello_nonce).put(&self.nonce);
        self.node.emit(&mut out);
        out.put(&self.answer).put(&self.tag);
    }
}

/// Takes the session in the datagram's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confirm {
    /// The HELLO as it was sent.
    pub hello: [u8; HELLO_LEN],
    /// The WELCOME this answers.
    pub welcome_nonce: Nonce,
    /// Over all before it, under the session's key.
    pub tag: Tag,
}

impl Confirm {
    /// Reads a CONFIRM.
    ///
    /// # Errors
    /// If it has not its length.
    pub fn parse(bytes: &[u8]) -> Result<Confirm, Error> {
        if bytes.len() != CONFIRM_LEN {
            return Err(Error::Truncated { need: CONFIRM_LEN, have: bytes.len() });
        }
        Ok(Confirm {
            hello: array(bytes, 0),
            welcome_nonce: array(bytes, HELLO_LEN),
            tag: array(bytes, HELLO_LEN + 16),
        })
    }

    /// Writes all of it.
    pub fn emit(&self, out: &mut [u8; CONFIRM_LEN]) {
        Writer::new(out).put(&self.hello).put(&self.welcome_nonce).put(&self.tag);
    }
}

/// A figure that models differ in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Width {
    /// Width of the activations.
    Dim = 0,
    /// Number of layers.
    Layers = 1,
    /// Width of keys and of values.
    Kv = 2,
    /// Size of the vocabulary.
    Vocab = 3,
}

impl Width {
    fn name(self) -> &'static str {
        match self {
            Width::Dim => "dim",
            Width::Layers => "n_layers",
            Width::Kv => "kv_dim",
            Width::Vocab => "vocab_size",
        }
    }
}

/// Why two nodes cannot be neighbours. `prev` opened the link, `next` listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// They speak different versions of the protocol.
    Version {
        /// The connector's.
        prev: u16,
        /// The listener's.
        next: u16,
    },
    /// Only `next` has a key.
    KeyNeeded,
    /// Only `prev` has a key.
    KeyUnwanted,
    /// The keys differ.
    KeyDiffers,
    /// They hold parts of different models.
    Model {
        /// The connector's fingerprint.
        prev: u64,
        /// The listener's.
        next: u64,
    },
    /// A dimension differs.
    Dims {
        /// Which one.
        width: Width,
        /// The connector's.
        prev: u32,
        /// The listener's.
        next: u32,
    },
    /// They send activations in different types.
    Dtype {
        /// The connector's.
        prev: Dtype,
        /// The listener's.
        next: Dtype,
    },
    /// Their layers leave a gap or overlap.
    Layers {
        /// The connector's.
        prev: Range<u32>,
        /// The listener's.
        next: Range<u32>,
    },
    /// `next` has another previous node, which answers.
    Busy {
        /// Its name.
        with: Name,
    },
    /// A later version's reason.
    Other(u32),
}

impl Refusal {
    /// The reason of a REFUSE whose first [`REFUSE_FIXED`] bytes these are.
    fn parse(bytes: &[u8]) -> Result<Refusal, Error> {
        let (a, b) = (u64_at(bytes, 24), u64_at(bytes, 32));
        Ok(match u32_at(bytes, 16) {
            1 => Refusal::Version { prev: a as u16, next: b as u16 },
            2 => Refusal::KeyNeeded,
            3 => Refusal::KeyUnwanted,
            4 => Refusal::KeyDiffers,
            5 => Refusal::Model { prev: a, next: b },
            6 => Refusal::Dims { width: width(a >> 32)?, prev: a as u32, next: b as u32 },
            7 => Refusal::Dtype { prev: dtype(a)?, next: dtype(b)? },
            8 => Refusal::Layers { prev: range(a), next: range(b) },
            9 => Refusal::Busy { with: Name::new() },
            other => Refusal::Other(other),
        })
    }

    /// Its number and figures.
    fn figures(&self) -> (u32, u64, u64) {
        let packed = |range: &Range<u32>| u64::from(range.end) << 32 | u64::from(range.start);
        match self {
            Refusal::Version { prev, next } => (1, u64::from(*prev), u64::from(*next)),
            Refusal::KeyNeeded => (2, 0, 0),
            Refusal::KeyUnwanted => (3, 0, 0),
            Refusal::KeyDiffers => (4, 0, 0),
            Refusal::Model { prev, next } => (5, *prev, *next),
            Refusal::Dims { width, prev, next } => {
                (6, (*width as u64) << 32 | u64::from(*prev), u64::from(*next))
            }
            Refusal::Dtype { prev, next } => (7, *prev as u64, *next as u64),
            Refusal::Layers { prev, next } => (8, packed(prev), packed(next)),
            Refusal::Busy { .. } => (9, 0, 0),
            Refusal::Other(code) => (*code, 0, 0),
        }
    }

    /// Whether nobody needs the key to know it.
    pub fn is_keyless(&self) -> bool {
        matches!(
            self,
            Refusal::Version { .. }
                | Refusal::KeyNeeded
                | Refusal::KeyUnwanted
                | Refusal::KeyDiffers
                | Refusal::Other(_)
        )
    }

    /// The reason and what to do about it, where the two nodes are called so.
    pub fn between<'a>(&'a self, prev: &'a str, next: &'a str) -> impl fmt::Display + 'a {
        Between { refusal: self, prev, next }
    }
}

/// Says that there will be no session, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refuse {
    /// The HELLO this answers.
    pub hello_nonce: Nonce,
    /// Why.
    pub refusal: Refusal,
    /// The listener's name; empty if it speaks another version.
    pub name: Name,
    /// Over all before it, under the key.
    pub tag: Tag,
}

impl Refuse {
    /// Reads a REFUSE; one of another version for what all versions have.
    ///
    /// # Errors
    /// If it is too short, or the reason's figures make no sense.
    pub fn parse(bytes: &[u8]) -> Result<Refuse, Error> {
        if bytes.len() < REFUSE_FIXED {
            return Err(Error::Truncated { need: REFUSE_FIXED, have: bytes.len() });
        }
        let mut refusal = Refusal::parse(bytes)?;
        let hello_nonce = array(bytes, 0);
        if bytes.len() != REFUSE_LEN {
            return Ok(Refuse { hello_nonce, refusal, name: Name::new(), tag: Tag::default() });
        }
        if let Refusal::Busy { with } = &mut refusal {
            *with = name_at(bytes, 80, bytes[41])?;
        }
        let name = name_at(bytes, 48, bytes[40])?;
        Ok(Refuse { hello_nonce, refusal, name, tag: array(bytes, 112) })
    }

    /// Writes all of it.
    pub fn emit(&self, out: &mut [u8; REFUSE_LEN]) {
        let (code, a, b) = self.refusal.figures();
        let other = match &self.refusal {
            Refusal::Busy { with } => with.as_bytes(),
            _ => &[],
        };
        let mut out = Writer::new(out);
        out.put(&self.hello_nonce).u32(code).u32(0).u64(a).u64(b);
        out.u8(self.name.len() as u8).u8(other.len() as u8).zero(6);
        out.put(self.name.as_bytes()).zero(NAME_MAX - self.name.len());
        out.put(other).zero(NAME_MAX - other.len()).put(&self.tag);
    }
}

/// The name of `len` bytes in the [`NAME_MAX`] at `at`.
fn name_at(bytes: &[u8], at: usize, len: u8) -> Result<Name, Error> {
    let stored = bytes[at..at + NAME_MAX].get(..len.into()).ok_or(Error::Field("name"))?;
    let stored = std::str::from_utf8(stored).map_err(|_| Error::Field("name"))?;
    Ok(name(stored))
}

fn width(code: u64) -> Result<Width, Error> {
    let all = [Width::Dim, Width::Layers, Width::Kv, Width::Vocab];
    all.into_iter().find(|width| *width as u64 == code).ok_or(Error::Field("width"))
}

fn dtype(code: u64) -> Result<Dtype, Error> {
    u8::try_from(code).ok().and_then(Dtype::from_code).ok_or(Error::Field("dtype"))
}

fn range(packed: u64) -> Range<u32> {
    packed as u32..(packed >> 32) as u32
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.between("the previous node", "the next node").fmt(f)
    }
}

struct Between<'a> {
    refusal: &'a Refusal,
    prev: &'a str,
    next: &'a str,
}

impl fmt::Display for Between<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Between { refusal, prev, next } = self;
        match refusal {
            Refusal::Version { prev: a, next: b } => write!(
                f,
                "{prev} speaks protocol {a}, {next} protocol {b}; install the same release on both"
            ),
            Refusal::KeyNeeded => {
                write!(f, "only {next} has a key; give all nodes the same --key")
            }
            Refusal::KeyUnwanted => {
                write!(f, "only {prev} has a key; give all nodes the same --key")
            }
            Refusal::KeyDiffers => write!(f, "their keys differ; give all nodes the same --key"),
            Refusal::Model { prev: a, next: b } => write!(
                f,
                "{prev} has model {a:016x}, {next} has {b:016x}; give all nodes the same model"
            ),
            Refusal::Dims { width, prev: a, next: b } => write!(
                f,
                "{} is {a} on {prev}, {b} on {next}; give all nodes the same model",
                width.name()
            ),
            Refusal::Dtype { prev: a, next: b } => write!(
                f,
                "activations are {} on {prev}, {} on {next}; give all nodes the same --wire",
                a.name(),
                b.name()
            ),
            Refusal::Layers { prev: a, next: b } => write!(
                f,
                "layers {}..{} of {prev} and {}..{} of {next} {}; mend the ring file, or --split \
                 and --end",
                a.start,
                a.end,
                b.start,
                b.end,
                fault(a, b)
            ),
            Refusal::Busy { with } => {
                let with = if with.is_empty() { "another one" } else { with };
                write!(f, "the node before {next} is {with}, which answers; end that one first")
            }
            Refusal::Other(code) => write!(
                f,
                "for a reason of a later version, number {code}; install the same release on both"
            ),
        }
    }
}

/// What is wrong with layers that should follow each other.
fn fault(prev: &Range<u32>, next: &Range<u32>) -> &'static str {
    match prev.end.cmp(&next.start) {
        std::cmp::Ordering::Less => "leave a gap",
        std::cmp::Ordering::Greater if next.start > 0 => "overlap",
        _ => "do not cover the model",
    }
}

#[cfg(test)]
mod tests;
