//! The chunks of a frame as outgoing datagrams.

use crate::sys::crc;
use crate::wire::control::ChunkBits;
use crate::wire::datagram::{
    CHUNK_BYTES, CHUNKS_MAX, DATAGRAM_BYTES, DatagramHeader, HEADER_LEN, emit_words,
};

/// Whether frames travel in chunks or whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In datagrams of one chunk each.
    Datagrams,
    /// In one piece, over a connection.
    Stream,
}

/// Where the chunks of a frame lie in its memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct ChunkLayout {
    /// Offset of the first chunk.
    start: usize,
    /// Distance from a chunk's start to that of the next one.
    step: usize,
}

impl ChunkLayout {
    /// Side by side: received frames, and frames that the kernel module sends.
    pub(super) const SLOTS: ChunkLayout = ChunkLayout { start: 0, step: CHUNK_BYTES };
    /// Each behind its header, so that datagrams lie side by side.
    pub(super) const DATAGRAMS: ChunkLayout =
        ChunkLayout { start: HEADER_LEN, step: DATAGRAM_BYTES };

    pub(super) fn at(self, chunk: usize) -> usize {
        self.start + chunk * self.step
    }
}

/// Chunks of one frame, to be sent together.
pub struct Burst<'a> {
    pub(super) header: DatagramHeader,
    pub(super) layout: ChunkLayout,
    pub(super) crcs: &'a [u32; CHUNKS_MAX],
    pub(super) memory: &'a [u8],
    pub(super) chunks: ChunkBits,
}

impl Burst<'_> {
    /// How many chunks there are.
    pub fn len(&self) -> usize {
        self.chunks.count_ones() as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.chunks == 0
    }

    /// Number, chunks and bytes of the frame, and its session.
    pub fn header(&self) -> &DatagramHeader {
        &self.header
    }

    /// The chunks, as bits.
    pub fn chunks(&self) -> ChunkBits {
        self.chunks
    }

    /// Checksum of every datagram of the frame, if it lies in a slot of the kernel module.
    pub fn crcs(&self) -> &[u32; CHUNKS_MAX] {
        self.crcs
    }

    /// Length of the longest datagram.
    pub(super) fn longest(&self) -> usize {
        let first = DatagramHeader { chunk: self.chunks.trailing_zeros() as u16, ..self.header };
        if self.chunks == 0 { 0 } else { HEADER_LEN + first.payload_bytes() }
    }

    /// Each chunk's datagram, in order. All but the frame's last are of one length.
    pub fn datagrams(&self) -> impl Iterator<Item = OutgoingDatagram<'_>> {
        self.numbered().map(|(_, datagram)| datagram)
    }

    /// Each chunk's datagram, in order, with its header.
    pub(super) fn numbered(&self) -> impl Iterator<Item = (DatagramHeader, OutgoingDatagram<'_>)> {
        let mut left = self.chunks;
        std::iter::from_fn(move || {
            let chunk = left.trailing_zeros() as usize;
            left &= left.checked_sub(1)?;
            let header = DatagramHeader { chunk: chunk as u16, ..self.header };
            let at = self.layout.at(chunk);
            let end = at + header.payload_bytes();
            let datagram = match self.layout {
                ChunkLayout::DATAGRAMS => {
                    OutgoingDatagram::Whole(&self.memory[at - HEADER_LEN..end])
                }
                _ => OutgoingDatagram::Parts { header, payload: &self.memory[at..end] },
            };
            Some((header, datagram))
        })
    }

    /// Runs of datagrams that lie side by side, [`DATAGRAM_BYTES`] each but the last. A stream's frame is one run. A
    /// frame in a slot of the kernel module has no runs.
    pub fn runs(&self) -> impl Iterator<Item = &[u8]> {
        let mut left = if self.layout == ChunkLayout::DATAGRAMS { self.chunks } else { 0 };
        std::iter::from_fn(move || {
            let first = left.trailing_zeros();
            let n = left.checked_shr(first)?.trailing_ones();
            left &= ChunkBits::MAX << (first + n);
            let last = DatagramHeader { chunk: (first + n - 1) as u16, ..self.header };
            let end = self.layout.at(usize::from(last.chunk)) + last.payload_bytes();
            Some(&self.memory[first as usize * DATAGRAM_BYTES..end])
        })
    }
}

/// A datagram of a chunk.
pub enum OutgoingDatagram<'a> {
    /// The datagram's bytes, complete.
    Whole(&'a [u8]),
    /// Header without its checksum, which is computed during writing, and payload in the kernel module's memory.
    Parts {
        /// Header in front of the payload.
        header: DatagramHeader,
        /// The chunk.
        payload: &'a [u8],
    },
}

impl OutgoingDatagram<'_> {
    /// Writes the datagram to the front of `room`, and returns its length.
    ///
    /// # Panics
    /// If `room` is shorter than the datagram.
    pub fn write(&self, room: &mut [u8]) -> usize {
        match *self {
            OutgoingDatagram::Whole(bytes) => {
                room[..bytes.len()].copy_from_slice(bytes);
                bytes.len()
            }
            OutgoingDatagram::Parts { header, payload } => {
                let (raw, rest) =
                    room.split_first_chunk_mut().expect("there is room for a datagram");
                let mut words = header.words();
                words[3] |= u64::from(crc::copy(words, payload, rest)) << 32;
                emit_words(words, raw);
                HEADER_LEN + payload.len()
            }
        }
    }

    /// The datagram's bytes in memory of their own.
    pub fn to_vec(&self) -> Vec<u8> {
        let bytes = match self {
            OutgoingDatagram::Whole(bytes) => bytes.len(),
            OutgoingDatagram::Parts { payload, .. } => HEADER_LEN + payload.len(),
        };
        let mut room = vec![0; bytes];
        self.write(&mut room);
        room
    }
}
