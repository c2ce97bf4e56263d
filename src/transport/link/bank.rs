//! Memory of one frame in the form it travels in.
//!
//! The sender keeps a frame in its bank, sealed, until it is acknowledged; the receiver collects
//! the chunks of one in any order. Plain bytes of a frame lie together: the sender moves them apart
//! for headers and seals when the frame is complete, and the receiver closes up a sealed one.

use std::hint::black_box;

use bytemuck::Zeroable;

use crate::sys::crc;
use crate::sys::tensor::{RxBank, TxSlot};
use crate::wire::control::{Chunks, all_chunks};
use crate::wire::datagram::{
    CHUNK_BYTES, CHUNKS_MAX, DATAGRAM_BYTES, Datagram, FRAME_MAX, HEADER_LEN, Header, Kind,
    TAG_BYTES, checksum, emit_words,
};
use crate::wire::seal::SessionKeys;

/// Whether frames travel in chunks or whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In datagrams of one chunk each.
    Datagrams,
    /// In one piece, over a connection.
    Stream,
}

/// One cache line, so that frames are aligned for any element.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct CacheLine([u8; 64]);

/// Bytes in front of a frame that is written in this process's own memory: what headers and seals
/// take. Chunks of it thus never move up.
const FRONT_BYTES: usize = CHUNKS_MAX * (HEADER_LEN + TAG_BYTES);
/// Bytes of a bank there.
const MEMORY_BYTES: usize = FRONT_BYTES + FRAME_MAX + TAG_BYTES;

const _: () = assert!(FRONT_BYTES.is_multiple_of(align_of::<CacheLine>()));
const _: () = assert!(MEMORY_BYTES >= CHUNKS_MAX * DATAGRAM_BYTES);

/// Bytes that are worth having in the CPU's nearest cache before they are written.
const WARM_BYTES_MAX: usize = 32 << 10;

/// Where a frame lies.
enum Memory {
    /// In this process's own memory.
    Own(Box<[CacheLine]>),
    /// Where the kernel module puts what it receives.
    Bank(RxBank),
    /// Where the kernel module sends from.
    Slot(TxSlot),
}

impl Memory {
    fn bytes(&self) -> &[u8] {
        match self {
            Memory::Own(lines) => bytemuck::cast_slice(lines),
            Memory::Bank(bank) => bank.bytes(),
            Memory::Slot(slot) => slot.bytes(),
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Memory::Own(lines) => bytemuck::cast_slice_mut(lines),
            Memory::Bank(bank) => bank.bytes_mut(),
            Memory::Slot(slot) => slot.bytes_mut(),
        }
    }
}

/// Where the chunks of a frame lie in its memory.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Layout {
    /// Where the first one begins.
    start: usize,
    /// From each one's begin to the next one's.
    step: usize,
}

impl Layout {
    /// Side by side, as they are collected, and as the kernel module takes them.
    const SLOTS: Layout = Layout { start: 0, step: CHUNK_BYTES };
    /// Each behind its header, side by side.
    const DATAGRAMS: Layout = Layout { start: HEADER_LEN, step: DATAGRAM_BYTES };

    fn at(self, chunk: usize) -> usize {
        self.start + chunk * self.step
    }
}

/// One frame and what is known of it.
pub(super) struct Bank {
    memory: Memory,
    layout: Layout,
    /// Checksum of each chunk's datagram, where the kernel module sends it.
    crcs: [u32; CHUNKS_MAX],
    header: Header,
    /// Chunks that are here.
    have: Chunks,
    /// Plain bytes of a complete frame.
    frame_bytes: usize,
}

const EMPTY: Header =
    Header { kind: Kind::Data, session: 0, seq: 0, chunk: 0, n_chunks: 0, frame_bytes: 0 };

/// What became of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deposit {
    /// It was missing.
    New,
    /// It was the last one missing.
    Complete,
    /// It was here already.
    Duplicate,
    /// It is damaged, contradicts the frame's other chunks, or its seal is not the session's.
    Forged,
}

impl Bank {
    pub(super) fn new() -> Bank {
        let lines = vec![CacheLine::zeroed(); MEMORY_BYTES.div_ceil(64)];
        Bank::in_memory(Memory::Own(lines.into_boxed_slice()))
    }

    /// A bank that the kernel module fills.
    pub(super) fn of_kernel(bank: RxBank) -> Bank {
        Bank::in_memory(Memory::Bank(bank))
    }

    /// A bank that the kernel module sends from.
    pub(super) fn of_slot(slot: TxSlot) -> Bank {
        Bank::in_memory(Memory::Slot(slot))
    }

    fn in_memory(memory: Memory) -> Bank {
        let (layout, crcs) = (Layout::SLOTS, [0; CHUNKS_MAX]);
        Bank { memory, layout, crcs, header: EMPTY, have: 0, frame_bytes: 0 }
    }

    /// Bytes that it takes, whatever it holds.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.memory.bytes().len()
    }

    /// Whether another frame may be written: the network has read the one before.
    pub(super) fn is_idle(&self) -> bool {
        match &self.memory {
            Memory::Slot(slot) => slot.is_idle(),
            _ => true,
        }
    }

    /// The kernel module's bank, if it is one.
    pub(super) fn kernel_mut(&mut self) -> Option<&mut RxBank> {
        match &mut self.memory {
            Memory::Bank(bank) => Some(bank),
            _ => None,
        }
    }

    /// Room for a frame to be sent.
    pub(super) fn buffer(&mut self) -> &mut [u8] {
        let start = match self.memory {
            Memory::Own(_) => FRONT_BYTES,
            _ => 0,
        };
        &mut self.memory.bytes_mut()[start..][..FRAME_MAX]
    }

    /// Reads the memory of a frame of `bytes`, so that the CPU's nearest cache holds it, as far as it
    /// may stay there.
    pub(super) fn warm(&self, bytes: usize) {
        if let Memory::Own(lines) = &self.memory {
            let warm_bytes = (FRONT_BYTES + bytes).min(WARM_BYTES_MAX);
            let lines = &lines[..warm_bytes / size_of::<CacheLine>()];
            black_box(lines.iter().fold(0, |sum, line| sum ^ line.0[0]));
        }
    }

    /// Makes the first `bytes` of the buffer frame `seq` of `session`, ready to travel.
    pub(super) fn close(
        &mut self,
        bytes: usize,
        (session, seq): (u64, u32),
        mode: Mode,
        keys: Option<&SessionKeys>,
    ) {
        let tag_bytes = if keys.is_some() { TAG_BYTES } else { 0 };
        let (n_chunks, plain) = match mode {
            Mode::Stream => (1, FRAME_MAX),
            Mode::Datagrams => {
                let plain = CHUNK_BYTES - tag_bytes;
                (bytes.div_ceil(plain), plain)
            }
        };
        self.header = Header {
            kind: Kind::Data,
            session,
            seq,
            chunk: 0,
            n_chunks: n_chunks as u16,
            frame_bytes: (bytes + n_chunks * tag_bytes) as u32,
        };
        self.have = all_chunks(n_chunks);
        match &self.memory {
            Memory::Own(_) => self.spread(bytes, plain, keys),
            _ => self.fill_slots(bytes, plain, keys),
        }
    }

    /// Makes datagrams of `bytes` in the buffer, `plain` of them in each but the last.
    fn spread(&mut self, bytes: usize, plain: usize, keys: Option<&SessionKeys>) {
        self.layout = Layout::DATAGRAMS;
        let memory = self.memory.bytes_mut();
        for chunk in 0..usize::from(self.header.n_chunks) {
            let header = Header { chunk: chunk as u16, ..self.header };
            let from = FRONT_BYTES + chunk * plain;
            let mut from = from..from + plain.min(bytes - chunk * plain);
            let at = self.layout.at(chunk);
            if let Some(keys) = keys {
                memory.copy_within(from, at);
                from = at..at + header.payload_bytes();
                seal(&header, keys, &mut memory[from.clone()]);
            }
            let mut words = header.words();
            words[3] |= u64::from(crc::slide(words, memory, from, at)) << 32;
            let raw = memory[..at].last_chunk_mut().expect("a header goes before each chunk");
            emit_words(words, raw);
        }
    }

    /// Makes chunks of `bytes` in the buffer, `plain` of them in each but the last, with their
    /// checksums beside them, as the kernel module takes them.
    fn fill_slots(&mut self, bytes: usize, plain: usize, keys: Option<&SessionKeys>) {
        let n_chunks = usize::from(self.header.n_chunks);
        let memory = self.memory.bytes_mut();
        if keys.is_some() {
            // From the end, as chunks move up.
            for chunk in (1..n_chunks).rev() {
                let end = bytes.min((chunk + 1) * plain);
                memory.copy_within(chunk * plain..end, self.layout.at(chunk));
            }
        }
        for chunk in 0..n_chunks {
            let header = Header { chunk: chunk as u16, ..self.header };
            let payload = &mut memory[self.layout.at(chunk)..][..header.payload_bytes()];
            if let Some(keys) = keys {
                seal(&header, keys, payload);
            }
            let mut raw = [0; HEADER_LEN];
            header.emit(&mut raw, |_| 0);
            self.crcs[chunk] = checksum(&raw, payload);
        }
    }

    /// The frame as it travels.
    pub(super) fn burst(&self, chunks: Chunks) -> Burst<'_> {
        let (memory, layout, crcs) = (self.memory.bytes(), self.layout, &self.crcs);
        Burst { header: self.header, layout, crcs, memory, chunks: chunks & self.have }
    }

    /// Bytes of the frame as it travels.
    pub(super) fn travel_bytes(&self) -> u32 {
        self.header.frame_bytes
    }

    /// Chunks whose datagrams are longer than `bytes`.
    pub(super) fn longer_than(&self, bytes: usize) -> Chunks {
        let n_chunks = usize::from(self.header.n_chunks);
        let last = Header { chunk: self.header.n_chunks.saturating_sub(1), ..self.header };
        let is_full_long = bytes < DATAGRAM_BYTES;
        let is_last_long = n_chunks > 0 && bytes < HEADER_LEN + last.payload_bytes();
        let n_before = n_chunks.saturating_sub(1);
        let before = if is_full_long { all_chunks(n_before) } else { 0 };
        before | Chunks::from(is_last_long) << n_before
    }

    /// All chunks of the frame.
    pub(super) fn all(&self) -> Chunks {
        all_chunks(usize::from(self.header.n_chunks))
    }

    /// Forgets the frame that was collected here.
    pub(super) fn clear(&mut self) {
        (self.header, self.have, self.frame_bytes) = (EMPTY, 0, 0);
        if let Memory::Bank(bank) = &mut self.memory {
            bank.release();
        }
    }

    /// Collects in the memory of `other` from now on, and that one in this one's, if both are free
    /// to do so.
    pub(super) fn take_memory(&mut self, other: &mut Bank) {
        let is_own = |bank: &Bank| matches!(bank.memory, Memory::Own(_));
        if is_own(self) && is_own(other) && !self.is_begun() && !other.is_begun() {
            std::mem::swap(&mut self.memory, &mut other.memory);
        }
    }

    /// Whether a chunk has arrived.
    pub(super) fn is_begun(&self) -> bool {
        self.have != 0
    }

    /// Whether every chunk has arrived.
    pub(super) fn is_complete(&self) -> bool {
        self.frame_bytes > 0
    }

    /// Chunks that have not arrived; all there can be if none has.
    pub(super) fn missing(&self) -> Chunks {
        match self.is_begun() {
            true => self.all() & !self.have,
            false => all_chunks(CHUNKS_MAX),
        }
    }

    /// Takes a chunk. `header` is that of `datagram`, which is proven here: once it is copied, the
    /// chunk is still missing if it was damaged.
    pub(super) fn deposit(
        &mut self,
        header: &Header,
        datagram: &Datagram<&[u8]>,
        keys: Option<&mut SessionKeys>,
    ) -> Deposit {
        let bit = 1 << header.chunk;
        let same = |a: &Header, b: &Header| {
            (a.seq, a.n_chunks, a.frame_bytes) == (b.seq, b.n_chunks, b.frame_bytes)
        };
        if self.is_begun() && !same(&self.header, header) {
            return Deposit::Forged;
        }
        if self.have & bit != 0 {
            return datagram.prove().map_or(Deposit::Forged, |()| Deposit::Duplicate);
        }
        let (raw, payload) = (datagram.header_bytes(), datagram.payload());
        let at = usize::from(header.chunk) * CHUNK_BYTES;
        let slot = &mut self.memory.bytes_mut()[at..at + payload.len()];
        if crc::copy(datagram.words(), payload, slot) != datagram.crc() {
            return Deposit::Forged;
        }
        let is_sealed = keys.is_some();
        if keys.is_some_and(|keys| keys.open(header, raw, slot).is_err()) {
            return Deposit::Forged;
        }
        self.header = *header;
        self.have |= bit;
        if self.have != self.all() {
            return Deposit::New;
        }
        self.close_up(is_sealed);
        Deposit::Complete
    }

    /// Takes the chunks of frame `seq` of `session` that the kernel module has put here since
    /// the last time. Says how many were good and how many bad; these are to come again.
    pub(super) fn collect(
        &mut self,
        (session, seq): (u64, u32),
        mut keys: Option<&mut SessionKeys>,
    ) -> (u32, u32) {
        let Memory::Bank(bank) = &mut self.memory else { return (0, 0) };
        let Some(report) = bank.report() else { return (0, 0) };
        let header = Header {
            kind: Kind::Data,
            session,
            seq,
            chunk: 0,
            n_chunks: report.n_chunks,
            frame_bytes: report.frame_bytes,
        };
        let is_ours = (report.session, report.seq) == (session, seq) && header.check().is_ok();
        if !is_ours || (self.have != 0 && self.header != header) {
            return (0, 0);
        }
        let new = report.chunks & all_chunks(usize::from(report.n_chunks)) & !self.have;
        let (mut good, mut left) = (0, new);
        while left != 0 {
            let chunk = left.trailing_zeros() as usize;
            left &= left - 1;
            let header = Header { chunk: chunk as u16, ..header };
            let keys = keys.as_deref_mut();
            if bank.chunk_mut(chunk).is_some_and(|(crc, slot)| proves(&header, crc, slot, keys)) {
                good |= 1 << chunk;
            }
        }
        if good != new {
            // The bank may have been given to another session meanwhile; then there is
            // nothing to reject.
            let _ = bank.reject(seq, new & !good);
        }
        (self.header, self.have) = (header, self.have | good);
        if self.have == 0 {
            self.header = EMPTY;
        } else if self.have == all_chunks(usize::from(header.n_chunks)) && bank.hold() {
            self.close_up(keys.is_some());
        }
        (good.count_ones(), (new & !good).count_ones())
    }

    /// Moves the plain bytes of a sealed frame together.
    fn close_up(&mut self, is_sealed: bool) {
        let n_chunks = usize::from(self.header.n_chunks);
        self.frame_bytes = self.header.frame_bytes as usize;
        if !is_sealed {
            return;
        }
        self.frame_bytes -= n_chunks * TAG_BYTES;
        let plain = CHUNK_BYTES - TAG_BYTES;
        let memory = self.memory.bytes_mut();
        for chunk in 1..n_chunks {
            let bytes = plain.min(self.frame_bytes - chunk * plain);
            let at = chunk * CHUNK_BYTES;
            memory.copy_within(at..at + bytes, chunk * plain);
        }
    }

    /// The plain bytes of a complete frame.
    pub(super) fn frame(&self) -> &[u8] {
        &self.memory.bytes()[..self.frame_bytes]
    }
}

/// Seals a chunk whose plain bytes are in front of `payload`.
fn seal(header: &Header, keys: &SessionKeys, payload: &mut [u8]) {
    let mut raw = [0; HEADER_LEN];
    header.emit(&mut raw, |_| 0);
    keys.seal(header, &raw, payload);
}

/// Whether a chunk is what its sender sent; a sealed one is then opened.
fn proves(
    header: &Header,
    crc: u32,
    slot: &mut [u8; CHUNK_BYTES],
    keys: Option<&mut SessionKeys>,
) -> bool {
    let payload = &mut slot[..header.payload_bytes()];
    let mut raw = [0; HEADER_LEN];
    header.emit(&mut raw, |_| 0);
    match keys {
        Some(keys) => keys.open(header, &raw, payload).is_ok(),
        None => checksum(&raw, payload) == crc,
    }
}

/// Chunks of one frame, to be sent together.
pub struct Burst<'a> {
    header: Header,
    layout: Layout,
    crcs: &'a [u32; CHUNKS_MAX],
    memory: &'a [u8],
    chunks: Chunks,
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
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The chunks, as bits.
    pub fn chunks(&self) -> Chunks {
        self.chunks
    }

    /// Checksum of every datagram of the frame, if it lies in a slot of the kernel module.
    pub fn crcs(&self) -> &[u32; CHUNKS_MAX] {
        self.crcs
    }

    /// Bytes of the longest datagram.
    pub(super) fn longest(&self) -> usize {
        let first = Header { chunk: self.chunks.trailing_zeros() as u16, ..self.header };
        if self.chunks == 0 { 0 } else { HEADER_LEN + first.payload_bytes() }
    }

    /// Each chunk's datagram, in order. All but the frame's last are of one length.
    pub fn datagrams(&self) -> impl Iterator<Item = Outgoing<'_>> {
        self.numbered().map(|(_, datagram)| datagram)
    }

    /// The same, each with its header.
    pub(super) fn numbered(&self) -> impl Iterator<Item = (Header, Outgoing<'_>)> {
        let mut left = self.chunks;
        std::iter::from_fn(move || {
            let chunk = left.trailing_zeros() as usize;
            left &= left.checked_sub(1)?;
            let header = Header { chunk: chunk as u16, ..self.header };
            let at = self.layout.at(chunk);
            let end = at + header.payload_bytes();
            let datagram = match self.layout {
                Layout::DATAGRAMS => Outgoing::Whole(&self.memory[at - HEADER_LEN..end]),
                _ => Outgoing::Parts { header, payload: &self.memory[at..end] },
            };
            Some((header, datagram))
        })
    }

    /// The datagrams where they lie side by side, [`DATAGRAM_BYTES`] each but for the last: one run
    /// after the other. A stream's frame is one. None lie so where the kernel module sends from.
    pub fn runs(&self) -> impl Iterator<Item = &[u8]> {
        let mut left = if self.layout == Layout::DATAGRAMS { self.chunks } else { 0 };
        std::iter::from_fn(move || {
            let first = left.trailing_zeros();
            let n = left.checked_shr(first)?.trailing_ones();
            left &= Chunks::MAX << (first + n);
            let last = Header { chunk: (first + n - 1) as u16, ..self.header };
            let end = self.layout.at(usize::from(last.chunk)) + last.payload_bytes();
            Some(&self.memory[first as usize * DATAGRAM_BYTES..end])
        })
    }
}

/// A datagram of a chunk.
pub enum Outgoing<'a> {
    /// As it travels.
    Whole(&'a [u8]),
    /// Without its checksum, which is made as it is written. It lies where the kernel module sends from.
    Parts {
        /// What goes before the payload.
        header: Header,
        /// The chunk.
        payload: &'a [u8],
    },
}

impl Outgoing<'_> {
    /// Writes it to the front of `room`, and returns its length.
    ///
    /// # Panics
    /// If `room` is shorter.
    pub fn write(&self, room: &mut [u8]) -> usize {
        match *self {
            Outgoing::Whole(bytes) => {
                room[..bytes.len()].copy_from_slice(bytes);
                bytes.len()
            }
            Outgoing::Parts { header, payload } => {
                let (raw, rest) =
                    room.split_first_chunk_mut().expect("there is room for a datagram");
                let mut words = header.words();
                words[3] |= u64::from(crc::copy(words, payload, rest)) << 32;
                emit_words(words, raw);
                HEADER_LEN + payload.len()
            }
        }
    }

    /// The same in memory of its own.
    pub fn to_vec(&self) -> Vec<u8> {
        let bytes = match self {
            Outgoing::Whole(bytes) => bytes.len(),
            Outgoing::Parts { payload, .. } => HEADER_LEN + payload.len(),
        };
        let mut room = vec![0; bytes];
        self.write(&mut room);
        room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> SessionKeys {
        SessionKeys::new(&[1; 64])
    }

    fn carry(bytes: usize, mode: Mode, keys: Option<SessionKeys>, rotate: usize) -> Vec<u8> {
        let mut sender = Bank::new();
        sender.buffer()[..bytes].iter_mut().enumerate().for_each(|(i, b)| *b = (i % 251) as u8);
        sender.close(bytes, (5, 9), mode, keys.as_ref());
        let mut keys = keys;
        let mut deposit = |bank: &mut Bank, header: &Header, datagram: &Datagram<&[u8]>| {
            bank.deposit(header, datagram, keys.as_mut())
        };
        let burst = sender.burst(Chunks::MAX);
        let mut datagrams: Vec<_> = burst.datagrams().map(|outgoing| outgoing.to_vec()).collect();
        let n = datagrams.len();
        datagrams.rotate_left(rotate % n);
        let mut receiver = Bank::new();
        for (i, bytes) in datagrams.iter().enumerate() {
            let datagram = Datagram::new_checked(&bytes[..]).unwrap();
            let header = Header::parse(&datagram).unwrap();
            let mut damaged = bytes.clone();
            damaged[HEADER_LEN] ^= 1;
            let damaged = Datagram::new_checked(&damaged[..]).unwrap();
            let wanted = if i + 1 == n { Deposit::Complete } else { Deposit::New };
            assert_eq!(deposit(&mut receiver, &header, &damaged), Deposit::Forged);
            assert_eq!(deposit(&mut receiver, &header, &datagram), wanted);
            assert_eq!(deposit(&mut receiver, &header, &damaged), Deposit::Forged);
            assert_eq!(deposit(&mut receiver, &header, &datagram), Deposit::Duplicate);
        }
        receiver.frame().to_vec()
    }

    #[test]
    fn frames_of_every_kind_arrive_whole() {
        for bytes in [1, 1383, 1384, 1385, 1400, 1401, 2768, 16_384, FRAME_MAX] {
            let wanted: Vec<u8> = (0..bytes).map(|i| (i % 251) as u8).collect();
            for mode in [Mode::Datagrams, Mode::Stream] {
                assert!(carry(bytes, mode, None, 1) == wanted, "{bytes} {mode:?}");
                assert!(carry(bytes, mode, Some(keys()), 3) == wanted, "{bytes} {mode:?} sealed");
            }
        }
    }

    #[test]
    fn runs_are_the_datagrams_side_by_side() {
        let mut bank = Bank::new();
        bank.close(5 * CHUNK_BYTES + 1, (5, 9), Mode::Datagrams, None);
        for (chunks, wanted) in
            [(0, vec![]), (Chunks::MAX, vec![6]), (0b10_1101, vec![1, 2, 1]), (0b11_0000, vec![2])]
        {
            let burst = bank.burst(chunks);
            let runs: Vec<_> = burst.runs().collect();
            let n_datagrams: Vec<_> =
                runs.iter().map(|run| run.len().div_ceil(DATAGRAM_BYTES)).collect();
            assert_eq!(n_datagrams, wanted);
            let datagrams: Vec<_> = burst.datagrams().map(|outgoing| outgoing.to_vec()).collect();
            assert_eq!(runs.concat(), datagrams.concat());
        }
    }

    #[test]
    fn chunks_that_contradict_each_other_are_refused() {
        let mut bank = Bank::new();
        let mut deposit = |header: Header, keys| {
            let bytes = Outgoing::Parts { header, payload: &[0; CHUNK_BYTES] }.to_vec();
            bank.deposit(&header, &Datagram::new_checked(&bytes[..]).unwrap(), keys)
        };
        let first = Header { n_chunks: 3, frame_bytes: 3000, ..EMPTY };
        assert_eq!(deposit(first, None), Deposit::New);
        for other in [
            Header { chunk: 1, frame_bytes: 2900, ..first },
            Header { chunk: 1, n_chunks: 2, ..first },
            Header { chunk: 1, seq: 1, ..first },
        ] {
            assert_eq!(deposit(other, None), Deposit::Forged);
        }
        assert_eq!(deposit(Header { chunk: 1, ..first }, Some(&mut keys())), Deposit::Forged);
        assert_eq!(bank.missing(), 0b110);
    }
}
