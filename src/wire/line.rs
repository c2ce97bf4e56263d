//! A node's line in OPEN and READY: its description and its answer.

use std::ops::Range;

use super::WireError;
use super::fields::{put, u16_at, u32_at, u64_at};
use super::name::{Name, put_text, text};

/// Bytes of a node's line.
pub const LINE_LEN: usize = 100;
const ISA_MAX: usize = 16;

/// A node's answer to an OPEN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Status {
    /// The node is ready.
    #[default]
    Ready,
    /// The node keeps contexts of up to this many tokens.
    Context(u32),
    /// The node keeps up to this many streams.
    Streams(u32),
    /// The node takes batches of up to this many rows.
    Batch(u32),
    /// The node has not enough memory.
    Memory,
    /// Neither the master nor the node's user assigns layers.
    Unassigned,
    /// The node's file lacks these layers.
    Lacks,
    /// The node's weights do not match their checksums.
    Damaged,
    /// The node is a team that has other layers, which are fixed.
    Fixed,
    /// A board of the node's team cannot take its part.
    Team,
}

/// A node's KV of the streams that an OPEN continues from an earlier epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Streams {
    /// The node does not say.
    #[default]
    Untold,
    /// The node has no positions.
    Empty,
    /// The node has all KV that its layers had.
    Kept,
}

/// The network path from a node of a ring to the next one, or from a team's member to its lead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Way {
    /// Round trip in microseconds; 0 if unknown.
    pub rtt_us: u32,
    /// Bytes of the longest datagram on this path; 0 over a stream.
    pub datagram_bytes: u32,
    /// Carrier of the link.
    pub carrier: heapless::String<8>,
}

/// A node's line: its name, machine and state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeLine {
    /// Name of the node.
    pub name: Name,
    /// Instruction set of its kernels.
    pub isa: heapless::String<ISA_MAX>,
    /// Layers that the node has taken, or cannot take.
    pub layers: Range<u32>,
    /// Layers in the node's file.
    pub held: Range<u32>,
    /// Bytes of weights that the node reads per token.
    pub bytes_per_token: u64,
    /// The path to the next node; in a team the path to the lead.
    pub way: Way,
    /// Boards that compute; more than one if the node is a team.
    pub nodes: u16,
    /// Threads that compute, on all of these boards.
    pub threads: u16,
    /// The node's answer.
    pub status: Status,
    /// The node's KV of streams.
    pub streams: Streams,
    /// Whether the node keeps beginnings of prompts in files.
    pub keeps: bool,
    /// Whether the node can embed ids if a team has the model's ends; otherwise it is given rows.
    pub embeds: bool,
}

pub(super) fn parse_line(bytes: &[u8; LINE_LEN]) -> Result<NodeLine, WireError> {
    let detail = u32_at(bytes, 72);
    let status = match bytes[70] {
        0 => Status::Ready,
        1 => Status::Context(detail),
        2 => Status::Streams(detail),
        3 => Status::Batch(detail),
        4 => Status::Memory,
        5 => Status::Unassigned,
        6 => Status::Lacks,
        7 => Status::Damaged,
        8 => Status::Fixed,
        9 => Status::Team,
        _ => return Err(WireError::Field("status")),
    };
    let streams = match bytes[71] {
        0 => Streams::Untold,
        1 => Streams::Empty,
        2 => Streams::Kept,
        _ => return Err(WireError::Field("what is there of streams")),
    };
    Ok(NodeLine {
        name: text(&bytes[..32]),
        isa: text(&bytes[32..48]),
        layers: u32_at(bytes, 48)..u32_at(bytes, 52),
        bytes_per_token: u64_at(bytes, 56),
        way: Way {
            rtt_us: u32_at(bytes, 64),
            datagram_bytes: u32_at(bytes, 84),
            carrier: text(&bytes[76..84]),
        },
        threads: u16_at(bytes, 68),
        held: u32_at(bytes, 88)..u32_at(bytes, 92),
        nodes: u16_at(bytes, 96),
        status,
        streams,
        keeps: is_set(bytes[98], "whether it keeps prefixes")?,
        embeds: is_set(bytes[99], "whether it embeds")?,
    })
}

fn is_set(byte: u8, what: &'static str) -> Result<bool, WireError> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(WireError::Field(what)),
    }
}

pub(super) fn emit_line(line: &NodeLine, out: &mut [u8]) {
    let (status, detail) = match line.status {
        Status::Ready => (0, 0),
        Status::Context(max) => (1, max),
        Status::Streams(max) => (2, max),
        Status::Batch(max) => (3, max),
        Status::Memory => (4, 0),
        Status::Unassigned => (5, 0),
        Status::Lacks => (6, 0),
        Status::Damaged => (7, 0),
        Status::Fixed => (8, 0),
        Status::Team => (9, 0),
    };
    out.fill(0);
    put_text(&mut out[..32], &line.name);
    put_text(&mut out[32..48], &line.isa);
    put(out, 48, &line.layers.start.to_le_bytes());
    put(out, 52, &line.layers.end.to_le_bytes());
    put(out, 56, &line.bytes_per_token.to_le_bytes());
    put(out, 64, &line.way.rtt_us.to_le_bytes());
    put(out, 68, &line.threads.to_le_bytes());
    (out[70], out[71]) = (status, line.streams as u8);
    put(out, 72, &detail.to_le_bytes());
    put_text(&mut out[76..84], &line.way.carrier);
    put(out, 84, &line.way.datagram_bytes.to_le_bytes());
    put(out, 88, &line.held.start.to_le_bytes());
    put(out, 92, &line.held.end.to_le_bytes());
    put(out, 96, &line.nodes.to_le_bytes());
    (out[98], out[99]) = (line.keeps.into(), line.embeds.into());
}
