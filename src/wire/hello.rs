//! The handshake: HELLO, WELCOME, CONFIRM and REFUSE, and the check that two nodes may be neighbours.
//!
//! ```text
//! HELLO, 200 bytes                    WELCOME, 192 bytes               node, 80 bytes
//!   0 u16 protocol version              0 u16 protocol version           0 u64 model
//!   2 u8  1 = has a key                 2 u8  1 = has a key              8 u32 dim
//!   3 u8  bytes of the target's name    3 u8  0                         12 u32 layers of the model
//!   4 u32 0                             4 u32 frames it can hold        16 u32 KV width
//!   8 u64 instance                      8 u64 instance                  20 u32 vocabulary
//!  16 [16] nonce                       16 [16] nonce of the HELLO       24 u32 × 2 layers of its file
//!  32 u64 session it has, or 0         32 [16] nonce                    32 u32 × 2 wanted layers, or 0 0
//!  40 node                             48 node                          40 u8  dtype on the wire
//! 120 [32] name of the target         128 [48] answer                   41 u8  1 = master
//! 152 [48] greeting                   176 [16] tag                      42 u8  bytes of the name
//! CONFIRM, 232 bytes                                                    43 u8  numerics
//!   0 the HELLO it belongs to         REFUSE, 128 bytes                 44 [4] 0
//! 200 [16] nonce of the WELCOME         0 [16] nonce of the HELLO       48 [32] name, UTF-8
//! 216 [16] tag                         16 u32 reason
//!                                      20 u32 0
//!                                      24 2 × u64 figures of the reason
//!                                      40 u8  bytes of the listener's name
//!                                      41 u8  bytes of the other name
//!                                      42 [6] 0
//!                                      48 [32] name of the listener
//!                                      80 [32] name of the neighbour that keeps it busy, or that
//!                                              is wanted
//!                                     112 [16] tag
//! ```
//!
//! A range of layers is given as its first layer and the layer behind its last. The handshake does not decide which
//! layers a node has: the opening of the ring does ([`super::frame`]). The wanted layers are those that the node's own
//! user named.
//!
//! A HELLO names its target if the sender knows that node's name. The greeting covers everything before it: a HELLO
//! that an attacker forwards to another node opens nothing there, and neither does a HELLO that is sent back to its
//! sender.
//!
//! A CONFIRM repeats the HELLO, so that a listener stores nothing before the connector is proven. Greeting and answer
//! are messages of [`super::noise`], tags are those of [`super::seal`]; all are zero without a key. The first 32 bytes
//! of a HELLO and the first 40 of a REFUSE have the same layout in all later versions; the refusal of another version's
//! HELLO has only these 40.

use std::ops::Range;

use super::fields::{Writer, array, u16_at, u32_at, u64_at};
use super::name::name_at;
use super::noise::{MESSAGE_LEN, Message};
use super::{Dtype, WireError};
use crate::numerics::NUMERICS;

pub use super::name::{NAME_MAX, Name, name};
pub use super::refusal::{Refusal, Width};

/// Version of the protocol; both ends must have the same.
pub const PROTOCOL: u16 = 16;
/// Bytes of a HELLO.
pub const HELLO_LEN: usize = 200;
/// Bytes of a WELCOME.
pub const WELCOME_LEN: usize = 192;
/// Bytes of a CONFIRM.
pub const CONFIRM_LEN: usize = HELLO_LEN + 32;
/// Bytes of a REFUSE.
pub const REFUSE_LEN: usize = 128;
/// Bytes of a REFUSE that have the same layout in all versions.
pub const REFUSE_FIXED: usize = 40;
/// Bytes of a HELLO before the greeting.
pub const HELLO_SEEN: usize = HELLO_LEN - MESSAGE_LEN;
/// Bytes of a WELCOME before the answer.
pub const WELCOME_SEEN: usize = WELCOME_TAGGED - MESSAGE_LEN;
/// Bytes of a WELCOME before the tag.
pub const WELCOME_TAGGED: usize = WELCOME_LEN - 16;
/// Bytes of a REFUSE before the tag.
pub const REFUSE_TAGGED: usize = REFUSE_LEN - 16;

/// A random number that is used once.
pub type Nonce = [u8; 16];
/// Proof that the sender has the key.
pub type Tag = [u8; 16];
/// A node's identity, and the settings that neighbours must agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingInfo {
    /// Number of the numeric rules, see `NUMERICS`.
    pub numerics: u8,
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
    /// Layers in the node's file.
    pub held: Range<u32>,
    /// Layers that the node's user wants it to have unless the master assigns others; `None` if not set.
    pub wish: Option<Range<u32>>,
    /// Type in which the node sends and expects activations.
    pub dtype: Dtype,
    /// Whether the node is the master, where the ring begins and ends.
    pub is_master: bool,
    /// The node's name in messages.
    pub name: Name,
}

impl Default for RingInfo {
    fn default() -> RingInfo {
        RingInfo {
            numerics: NUMERICS,
            model: 0,
            dim: 0,
            n_layers: 0,
            kv_dim: 0,
            vocab_size: 0,
            held: 0..0,
            wish: None,
            dtype: Dtype::default(),
            is_master: false,
            name: Name::new(),
        }
    }
}

impl RingInfo {
    /// Whether `next` may follow this node in a ring.
    ///
    /// # Errors
    /// The first property that does not fit.
    pub fn check_next(&self, next: &RingInfo) -> Result<(), Refusal> {
        if self.numerics != next.numerics {
            return Err(Refusal::Numerics { prev: self.numerics, next: next.numerics });
        }
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
        let (Some(own), Some(others)) = (&self.wish, &next.wish) else { return Ok(()) };
        let fits = match next.is_master {
            true => own.end == self.n_layers && others.start == 0,
            false => own.end == others.start,
        };
        match fits {
            true => Ok(()),
            false => Err(Refusal::Layers { prev: own.clone(), next: others.clone() }),
        }
    }

    fn parse(bytes: &[u8]) -> Result<RingInfo, WireError> {
        Ok(RingInfo {
            numerics: bytes[43],
            model: u64_at(bytes, 0),
            dim: u32_at(bytes, 8),
            n_layers: u32_at(bytes, 12),
            kv_dim: u32_at(bytes, 16),
            vocab_size: u32_at(bytes, 20),
            held: u32_at(bytes, 24)..u32_at(bytes, 28),
            wish: Some(u32_at(bytes, 32)..u32_at(bytes, 36)).filter(|wish| !wish.is_empty()),
            dtype: Dtype::from_code(bytes[40]).ok_or(WireError::Field("dtype"))?,
            is_master: bytes[41] & 1 == 1,
            name: name_at(bytes, 48, bytes[42])?,
        })
    }

    fn emit(&self, out: &mut Writer<'_>) {
        out.u64(self.model).u32(self.dim).u32(self.n_layers).u32(self.kv_dim);
        let wish = self.wish.clone().unwrap_or(0..0);
        out.u32(self.vocab_size).u32(self.held.start).u32(self.held.end);
        out.u32(wish.start).u32(wish.end);
        out.u8(self.dtype as u8).u8(u8::from(self.is_master)).u8(self.name.len() as u8);
        out.u8(self.numerics).zero(4);
        out.put(self.name.as_bytes()).zero(NAME_MAX - self.name.len());
    }
}

/// A request for a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Version of the protocol.
    pub protocol: u16,
    /// Whether the connector has a key.
    pub has_key: bool,
    /// Random number of this run of the connector.
    pub instance: u64,
    /// Random number; differs between HELLOs of different content.
    pub nonce: Nonce,
    /// The session that the connector prefers to continue, or 0.
    pub resume: u64,
    /// The connector.
    pub node: RingInfo,
    /// Name of the node that the connector looks for; empty if unknown.
    pub to: Name,
    /// The connector's message of the key exchange, over everything before it.
    pub greeting: Message,
}

impl Hello {
    /// Reads a HELLO of this protocol version.
    ///
    /// # Errors
    /// [`WireError::Field`] `protocol` for another version: see [`Hello::stranger`].
    pub fn parse(bytes: &[u8]) -> Result<Hello, WireError> {
        if bytes.len() != HELLO_LEN {
            return Err(WireError::Truncated { need: HELLO_LEN, have: bytes.len() });
        }
        if u16_at(bytes, 0) != PROTOCOL {
            return Err(WireError::Field("protocol"));
        }
        Ok(Hello {
            protocol: u16_at(bytes, 0),
            has_key: bytes[2] & 1 == 1,
            instance: u64_at(bytes, 8),
            nonce: array(bytes, 16),
            resume: u64_at(bytes, 32),
            node: RingInfo::parse(&bytes[40..120])?,
            to: name_at(bytes, 120, bytes[3])?,
            greeting: array(bytes, HELLO_SEEN),
        })
    }

    /// Version and nonce of a HELLO of another version, for its refusal.
    pub fn stranger(bytes: &[u8]) -> Option<(u16, Nonce)> {
        let has_fixed_part = bytes.len() >= 32 && u16_at(bytes, 0) != PROTOCOL;
        has_fixed_part.then(|| (u16_at(bytes, 0), array(bytes, 16)))
    }

    /// Writes the HELLO.
    pub fn emit(&self, out: &mut [u8; HELLO_LEN]) {
        let mut out = Writer::new(out);
        out.u16(self.protocol).u8(u8::from(self.has_key)).u8(self.to.len() as u8).zero(4);
        out.u64(self.instance).put(&self.nonce).u64(self.resume);
        self.node.emit(&mut out);
        out.put(self.to.as_bytes()).zero(NAME_MAX - self.to.len());
        out.put(&self.greeting);
    }
}

/// An offer of the session in the datagram's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Whether the listener has a key.
    pub has_key: bool,
    /// Frames that the listener can hold.
    pub n_banks: u32,
    /// Random number of this run of the listener.
    pub instance: u64,
    /// Nonce of the HELLO that this answers.
    pub hello_nonce: Nonce,
    /// Nonce that the CONFIRM repeats, so that only a node that received this WELCOME can send one.
    pub nonce: Nonce,
    /// The listener.
    pub node: RingInfo,
    /// The listener's message of the key exchange.
    pub answer: Message,
    /// Tag over the HELLO, the session and everything before the tag, under the exchanged secret.
    pub tag: Tag,
}

impl Welcome {
    /// Reads a WELCOME.
    ///
    /// # Errors
    /// If it is malformed.
    pub fn parse(bytes: &[u8]) -> Result<Welcome, WireError> {
        if bytes.len() != WELCOME_LEN {
            return Err(WireError::Truncated { need: WELCOME_LEN, have: bytes.len() });
        }
        if u16_at(bytes, 0) != PROTOCOL {
            return Err(WireError::Field("protocol"));
        }
        Ok(Welcome {
            has_key: bytes[2] & 1 == 1,
            n_banks: u32_at(bytes, 4),
            instance: u64_at(bytes, 8),
            hello_nonce: array(bytes, 16),
            nonce: array(bytes, 32),
            node: RingInfo::parse(&bytes[48..128])?,
            answer: array(bytes, WELCOME_SEEN),
            tag: array(bytes, WELCOME_TAGGED),
        })
    }

    /// Writes the WELCOME.
    pub fn emit(&self, out: &mut [u8; WELCOME_LEN]) {
        let mut out = Writer::new(out);
        out.u16(PROTOCOL).u8(u8::from(self.has_key)).zero(1).u32(self.n_banks);
        out.u64(self.instance).put(&self.hello_nonce).put(&self.nonce);
        self.node.emit(&mut out);
        out.put(&self.answer).put(&self.tag);
    }
}

/// Acceptance of the session in the datagram's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confirm {
    /// The HELLO, byte for byte.
    pub hello: [u8; HELLO_LEN],
    /// Nonce of the WELCOME that this answers.
    pub welcome_nonce: Nonce,
    /// Tag over everything before it, under the session's key.
    pub tag: Tag,
}

impl Confirm {
    /// Reads a CONFIRM.
    ///
    /// # Errors
    /// If its length is wrong.
    pub fn parse(bytes: &[u8]) -> Result<Confirm, WireError> {
        if bytes.len() != CONFIRM_LEN {
            return Err(WireError::Truncated { need: CONFIRM_LEN, have: bytes.len() });
        }
        Ok(Confirm {
            hello: array(bytes, 0),
            welcome_nonce: array(bytes, HELLO_LEN),
            tag: array(bytes, HELLO_LEN + 16),
        })
    }

    /// Writes the CONFIRM.
    pub fn emit(&self, out: &mut [u8; CONFIRM_LEN]) {
        Writer::new(out).put(&self.hello).put(&self.welcome_nonce).put(&self.tag);
    }
}

/// Refusal of a session, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refuse {
    /// Nonce of the HELLO that this answers.
    pub hello_nonce: Nonce,
    /// The reason.
    pub refusal: Refusal,
    /// The listener's name; empty if it speaks another version.
    pub name: Name,
    /// Tag over everything before it, under the shared key.
    pub tag: Tag,
}

impl Refuse {
    /// Reads a REFUSE. Of another version's REFUSE it reads the part that all versions have.
    ///
    /// # Errors
    /// If it is too short, or the reason's values have no meaning.
    pub fn parse(bytes: &[u8]) -> Result<Refuse, WireError> {
        if bytes.len() < REFUSE_FIXED {
            return Err(WireError::Truncated { need: REFUSE_FIXED, have: bytes.len() });
        }
        let mut refusal = Refusal::parse(bytes)?;
        let hello_nonce = array(bytes, 0);
        if bytes.len() != REFUSE_LEN {
            return Ok(Refuse { hello_nonce, refusal, name: Name::new(), tag: Tag::default() });
        }
        if let Refusal::Busy { with: other }
        | Refusal::Stray { wanted: other }
        | Refusal::Elsewhere { wanted: other } = &mut refusal
        {
            *other = name_at(bytes, 80, bytes[41])?;
        }
        let name = name_at(bytes, 48, bytes[40])?;
        Ok(Refuse { hello_nonce, refusal, name, tag: array(bytes, 112) })
    }

    /// Writes the REFUSE.
    pub fn emit(&self, out: &mut [u8; REFUSE_LEN]) {
        let (code, a, b) = self.refusal.figures();
        let other = match &self.refusal {
            Refusal::Busy { with: other }
            | Refusal::Stray { wanted: other }
            | Refusal::Elsewhere { wanted: other } => other.as_bytes(),
            _ => &[],
        };
        let mut out = Writer::new(out);
        out.put(&self.hello_nonce).u32(code).u32(0).u64(a).u64(b);
        out.u8(self.name.len() as u8).u8(other.len() as u8).zero(6);
        out.put(self.name.as_bytes()).zero(NAME_MAX - self.name.len());
        out.put(other).zero(NAME_MAX - other.len()).put(&self.tag);
    }
}

#[cfg(test)]
mod tests;
