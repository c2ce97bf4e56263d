//! Reasons why two nodes cannot be neighbours.

use std::fmt;
use std::ops::Range;

use super::fields::{u32_at, u64_at};
use super::name::Name;
use super::{Dtype, WireError};

/// A dimension in which models differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Width {
    /// Width of the activations.
    Dim = 0,
    /// Number of layers.
    Layers = 1,
    /// Width of keys, and of values.
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
    /// The nodes speak different versions of the protocol.
    Version {
        /// The connector's version.
        prev: u16,
        /// The listener's version.
        next: u16,
    },
    /// Only `next` has a key.
    KeyNeeded,
    /// Only `prev` has a key.
    KeyUnwanted,
    /// The keys differ.
    KeyDiffers,
    /// The nodes hold parts of different models.
    Model {
        /// The connector's fingerprint.
        prev: u64,
        /// The listener's fingerprint.
        next: u64,
    },
    /// The nodes compute by different numeric rules.
    Numerics {
        /// Number of the connector's rules.
        prev: u8,
        /// Number of the listener's rules.
        next: u8,
    },
    /// A dimension differs.
    Dims {
        /// The dimension.
        width: Width,
        /// The connector's value.
        prev: u32,
        /// The listener's value.
        next: u32,
    },
    /// The nodes send activations in different types.
    Dtype {
        /// The connector's type.
        prev: Dtype,
        /// The listener's type.
        next: Dtype,
    },
    /// The nodes' layers leave a gap or overlap.
    Layers {
        /// The connector's layers.
        prev: Range<u32>,
        /// The listener's layers.
        next: Range<u32>,
    },
    /// `next` has another previous node, which is alive.
    Busy {
        /// Name of that node.
        with: Name,
    },
    /// `next` waits for another previous node, which its master named.
    Stray {
        /// Name of the node that `next` waits for.
        wanted: Name,
    },
    /// `prev` looks for another node, but its HELLO came to this one.
    Elsewhere {
        /// Name of the node that `prev` looks for.
        wanted: Name,
    },
    /// A reason of a later version, by its number.
    Other(u32),
}

impl Refusal {
    /// Reads the reason from the first [`REFUSE_FIXED`](super::hello::REFUSE_FIXED) bytes of a REFUSE.
    pub(super) fn parse(bytes: &[u8]) -> Result<Refusal, WireError> {
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
            10 => Refusal::Stray { wanted: Name::new() },
            11 => Refusal::Elsewhere { wanted: Name::new() },
            12 => Refusal::Numerics { prev: a as u8, next: b as u8 },
            other => Refusal::Other(other),
        })
    }

    /// The reason's number and its two values on the wire.
    pub(super) fn figures(&self) -> (u32, u64, u64) {
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
            Refusal::Stray { .. } => (10, 0, 0),
            Refusal::Elsewhere { .. } => (11, 0, 0),
            Refusal::Numerics { prev, next } => (12, u64::from(*prev), u64::from(*next)),
            Refusal::Other(code) => (*code, 0, 0),
        }
    }

    /// Whether a node without the right key may report this reason.
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

    /// The reason and what to do about it, with these names for the two nodes.
    pub fn between<'a>(&'a self, prev: &'a str, next: &'a str) -> impl fmt::Display + 'a {
        Between { refusal: self, prev, next }
    }
}

fn width(code: u64) -> Result<Width, WireError> {
    let all = [Width::Dim, Width::Layers, Width::Kv, Width::Vocab];
    all.into_iter().find(|width| *width as u64 == code).ok_or(WireError::Field("width"))
}

fn dtype(code: u64) -> Result<Dtype, WireError> {
    u8::try_from(code).ok().and_then(Dtype::from_code).ok_or(WireError::Field("dtype"))
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

const SAME_KEY: &str = "give all nodes the same --key";

/// The node's name, or other words if the refusal names no node.
fn or_another(name: &Name) -> &str {
    if name.is_empty() { "another one" } else { name }
}

/// Says that `next`, whose master has named `wanted` as the node before it, is no neighbour of `prev`.
fn write_stray(f: &mut fmt::Formatter<'_>, wanted: &Name, prev: &str, next: &str) -> fmt::Result {
    match wanted.as_str() == next {
        true => write!(f, "{next} does without other boards for now")?,
        false => {
            let wanted = or_another(wanted);
            write!(f, "the ring has other nodes now, and {wanted} is the one before {next}")?;
        }
    }
    write!(f, "; {prev} waits until its master gives it layers")
}

impl fmt::Display for Between<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Between { refusal, prev, next } = self;
        match refusal {
            Refusal::Version { prev: a, next: b } => write!(
                f,
                "{prev} speaks protocol {a}, {next} protocol {b}; install the same release on both"
            ),
            Refusal::KeyNeeded => write!(f, "only {next} has a key; {SAME_KEY}"),
            Refusal::KeyUnwanted => write!(f, "only {prev} has a key; {SAME_KEY}"),
            Refusal::KeyDiffers => write!(f, "their keys differ; {SAME_KEY}"),
            Refusal::Model { prev: a, next: b } => write!(
                f,
                "{prev} has model {a:016x}, {next} has {b:016x}; give all nodes the same model"
            ),
            Refusal::Numerics { prev: a, next: b } => write!(
                f,
                "{prev} computes by numerics {a}, {next} by numerics {b}, which give other texts; \
                 install the same release on both"
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
            Refusal::Busy { with } => write!(
                f,
                "the node before {next} is {0}, which answers; {prev} waits until its master gives it \
                 layers; with a ring file, end {0} first",
                or_another(with)
            ),
            Refusal::Stray { wanted } => write_stray(f, wanted, prev, next),
            Refusal::Elsewhere { wanted } => write!(
                f,
                "{prev} looks for {wanted} where {next} answers; mend the addresses of the ring file"
            ),
            Refusal::Other(code) => write!(
                f,
                "for a reason of a later version, number {code}; install the same release on both"
            ),
        }
    }
}

/// The fault in layers that should follow each other, in words.
fn fault(prev: &Range<u32>, next: &Range<u32>) -> &'static str {
    match prev.end.cmp(&next.start) {
        std::cmp::Ordering::Less => "leave a gap",
        std::cmp::Ordering::Greater if next.start > 0 => "overlap",
        _ => "do not cover the model",
    }
}
