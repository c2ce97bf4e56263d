//! Messages between nodes, as bytes. All are little-endian, and lengths and fields are checked before use.
//!
//! - [`datagram`]: the 32-byte header that everything on a link carries.
//! - [`hello`]: the handshake, and the reasons to refuse it.
//! - [`piece`]: datagrams that are too long for their path.
//! - [`control`]: acknowledgements, missing chunks, probes.
//! - [`frame`]: the messages between the nodes of a group, inside the frames that a link delivers.
//! - [`noise`] and [`seal`]: the key exchange of links with a shared key, their keys and nonces.
//! - [`opening`]: how a board opens a TCP connection to another one, which [`talk`] seals.
//! - [`give`]: how a board gets its layers from another one, over such a connection.
//! - [`call`]: how a master gives boards their places in a ring, over such a connection. [`find`]: how it finds them.
//! - [`draft`]: how another board drafts tokens for a master's texts, over such a connection.
//!
//! Nothing here opens a socket, reads a clock or allocates by a size that a peer sent.

mod activations;
mod boards;
pub mod call;
pub mod control;
pub mod datagram;
pub mod draft;
mod fields;
mod figures;
pub mod find;
pub mod frame;
pub mod give;
pub mod hello;
mod kept;
mod kv;
mod line;
mod name;
pub mod noise;
pub mod opening;
mod parts;
mod pass;
pub mod piece;
mod reason;
mod refusal;
pub mod seal;
mod sizes;
mod span;
pub mod talk;

use std::fmt;

/// Type of activations on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Dtype {
    /// 4 bytes per element.
    #[default]
    F32 = 0,
    /// 2 bytes per element.
    F16 = 1,
}

impl Dtype {
    /// The type that `code` stands for on the wire.
    pub fn from_code(code: u8) -> Option<Dtype> {
        [Dtype::F32, Dtype::F16].into_iter().find(|dtype| *dtype as u8 == code)
    }

    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::F16 => 2,
        }
    }

    /// The name that options and messages use.
    pub fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "f32",
            Dtype::F16 => "f16",
        }
    }
}

/// Type of a node's stored keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum KvType {
    /// 4 bytes per element.
    F32 = 0,
    /// 2 bytes per element.
    F16 = 1,
    /// 1 byte per element, and scales.
    Int8 = 2,
}

impl KvType {
    /// The type that `code` stands for on the wire.
    pub fn from_code(code: u8) -> Option<KvType> {
        [KvType::F32, KvType::F16, KvType::Int8].into_iter().find(|kv| *kv as u8 == code)
    }
}

/// Reasons for refusing bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WireError {
    /// Fewer bytes than the fields demand.
    Truncated {
        /// Bytes that are needed.
        need: usize,
        /// Bytes that are there.
        have: usize,
    },
    /// More bytes than this kind can have.
    Oversize {
        /// Bytes that the fields demand.
        len: usize,
    },
    /// Not one of LEAP's frames, or a version with an unknown layout.
    Magic,
    /// A field holds a value without a meaning.
    Field(&'static str),
    /// The bytes were damaged on the way.
    Checksum,
    /// Sealed without the key, or damaged.
    Seal,
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WireError::Truncated { need, have } => {
                write!(f, "truncated: {have} bytes where {need} are needed")
            }
            WireError::Oversize { len } => write!(f, "oversize: {len} bytes"),
            WireError::Magic => write!(f, "not a datagram of this protocol"),
            WireError::Field(name) => write!(f, "{name} has no meaning"),
            WireError::Checksum => write!(f, "checksum does not match"),
            WireError::Seal => write!(f, "seal does not match"),
        }
    }
}

impl std::error::Error for WireError {}
