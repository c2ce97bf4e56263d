//! Memory of one frame in the form it travels in.
//!
//! The sender keeps a frame in its bank, sealed, until the frame is acknowledged; the receiver collects a frame's
//! chunks in any order. Plain bytes of a frame lie together: the sender moves them apart for headers and seals when the
//! frame is complete, and the receiver closes up a sealed frame.

use std::hint::black_box;

use bytemuck::Zeroable;

use super::burst::{Burst, ChunkLayout, Mode};
use crate::sys::crc;
use crate::sys::tensor::{RxBank, TxSlot};
use crate::wire::control::{ChunkBits, all_chunks};
use crate::wire::datagram::{
    CHUNK_BYTES, CHUNKS_MAX, DATAGRAM_BYTES, Datagram, DatagramHeader, DatagramKind, FRAME_MAX,
    HEADER_LEN, TAG_BYTES, checksum, emit_words,
};
use crate::wire::seal::SessionKeys;

/// One cache line, so that frames are aligned for any element.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct CacheLine([u8; 64]);

/// Room before a frame in this process's own memory: as many bytes as its headers and tags take. Chunks
/// are spread towards the front, so none overwrites one that is still to be moved.
const FRONT_BYTES: usize = CHUNKS_MAX * (HEADER_LEN + TAG_BYTES);
/// Bytes of a bank in this process's own memory.
const MEMORY_BYTES: usize = FRONT_BYTES + FRAME_MAX + TAG_BYTES;

const _: () = assert!(FRONT_BYTES.is_multiple_of(align_of::<CacheLine>()));
const _: () = assert!(MEMORY_BYTES >= CHUNKS_MAX * DATAGRAM_BYTES);

/// Most bytes that are prefetched: an L1 data cache has 32 KiB or more.
const PREFETCH_BYTES_MAX: usize = 32 << 10;

/// Where a frame lies.
enum BankMemory {
    /// In this process's own memory.
    Own(Box<[CacheLine]>),
    /// In a bank of the kernel module, which receives into it.
    Bank(RxBank),
    /// In a slot of the kernel module, which sends from it.
    Slot(TxSlot),
}

impl BankMemory {
    fn bytes(&self) -> &[u8] {
        match self {
            BankMemory::Own(lines) => bytemuck::cast_slice(lines),
            BankMemory::Bank(bank) => bank.bytes(),
            BankMemory::Slot(slot) => slot.bytes(),
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            BankMemory::Own(lines) => bytemuck::cast_slice_mut(lines),
            BankMemory::Bank(bank) => bank.bytes_mut(),
            BankMemory::Slot(slot) => slot.bytes_mut(),
        }
    }
}

/// One frame and its state.
pub(super) struct Bank {
    memory: BankMemory,
    layout: ChunkLayout,
    /// Checksum of each chunk's datagram, if the kernel module sends it.
    crcs: [u32; CHUNKS_MAX],
    header: DatagramHeader,
    /// Chunks that have arrived, as bits.
    have: ChunkBits,
    /// Plain bytes of a complete frame; 0 until it is complete.
    frame_bytes: usize,
}

const EMPTY: DatagramHeader = DatagramHeader {
    kind: DatagramKind::Data,
    session: 0,
    seq: 0,
    chunk: 0,
    n_chunks: 0,
    frame_bytes: 0,
};

/// Result of storing a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deposit {
    /// The chunk was missing.
    New,
    /// The chunk was the last one missing.
    Complete,
    /// The chunk had arrived before.
    Duplicate,
    /// The chunk is damaged, contradicts the frame's other chunks, or its seal is not the session's.
    Forged,
}

impl Bank {
    pub(super) fn new() -> Bank {
        let lines = vec![CacheLine::zeroed(); MEMORY_BYTES.div_ceil(64)];
        Bank::in_memory(BankMemory::Own(lines.into_boxed_slice()))
    }

    /// A bank that the kernel module fills.
    pub(super) fn of_kernel(bank: RxBank) -> Bank {
        Bank::in_memory(BankMemory::Bank(bank))
    }

    /// A bank that the kernel module sends from.
    pub(super) fn of_slot(slot: TxSlot) -> Bank {
        Bank::in_memory(BankMemory::Slot(slot))
    }

    fn in_memory(memory: BankMemory) -> Bank {
        let (layout, crcs) = (ChunkLayout::SLOTS, [0; CHUNKS_MAX]);
        Bank { memory, layout, crcs, header: EMPTY, have: 0, frame_bytes: 0 }
    }

    /// Bytes of the bank's memory.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.memory.bytes().len()
    }

    /// Asks whether another frame may be written, because the network has read the one before.
    pub(super) fn ask_idle(&self) -> bool {
        match &self.memory {
            BankMemory::Slot(slot) => slot.ask_idle(),
            _ => true,
        }
    }

    /// Whether the kernel module has completed a frame in this bank that was not taken yet.
    pub(super) fn is_ready(&self) -> bool {
        matches!(&self.memory, BankMemory::Bank(bank) if bank.is_ready())
    }

    /// The kernel module's bank, if the memory is one.
    pub(super) fn kernel_mut(&mut self) -> Option<&mut RxBank> {
        match &mut self.memory {
            BankMemory::Bank(bank) => Some(bank),
            _ => None,
        }
    }

    /// Room for a frame to be sent.
    pub(super) fn buffer(&mut self) -> &mut [u8] {
        let start = match self.memory {
            BankMemory::Own(_) => FRONT_BYTES,
            _ => 0,
        };
        &mut self.memory.bytes_mut()[start..][..FRAME_MAX]
    }

    /// Reads the memory of a frame of `bytes` into L1, up to [`PREFETCH_BYTES_MAX`].
    pub(super) fn prefetch(&self, bytes: usize) {
        if let BankMemory::Own(lines) = &self.memory {
            let prefetch_bytes = (FRONT_BYTES + bytes).min(PREFETCH_BYTES_MAX);
            let lines = &lines[..prefetch_bytes / size_of::<CacheLine>()];
            black_box(lines.iter().fold(0, |sum, line| sum ^ line.0[0]));
        }
    }

    /// Makes frame `seq` of `session` from the first `bytes` of the buffer, ready to travel.
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
        self.header = DatagramHeader {
            kind: DatagramKind::Data,
            session,
            seq,
            chunk: 0,
            n_chunks: n_chunks as u16,
            frame_bytes: (bytes + n_chunks * tag_bytes) as u32,
        };
        self.have = all_chunks(n_chunks);
        match &self.memory {
            BankMemory::Own(_) => self.spread(bytes, plain, keys),
            _ => self.fill_slots(bytes, plain, keys),
        }
    }

    /// Makes datagrams of the first `bytes` of the buffer, with `plain` bytes in each but the last.
    fn spread(&mut self, bytes: usize, plain: usize, keys: Option<&SessionKeys>) {
        self.layout = ChunkLayout::DATAGRAMS;
        let memory = self.memory.bytes_mut();
        for chunk in 0..usize::from(self.header.n_chunks) {
            let header = DatagramHeader { chunk: chunk as u16, ..self.header };
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

    /// Makes chunks of the first `bytes` of the buffer, with `plain` bytes in each but the last, and their checksums,
    /// as the kernel module takes them.
    fn fill_slots(&mut self, bytes: usize, plain: usize, keys: Option<&SessionKeys>) {
        let n_chunks = usize::from(self.header.n_chunks);
        let memory = self.memory.bytes_mut();
        if keys.is_some() {
            // From the end, because chunks move up.
            for chunk in (1..n_chunks).rev() {
                let end = bytes.min((chunk + 1) * plain);
                memory.copy_within(chunk * plain..end, self.layout.at(chunk));
            }
        }
        for chunk in 0..n_chunks {
            let header = DatagramHeader { chunk: chunk as u16, ..self.header };
            let payload = &mut memory[self.layout.at(chunk)..][..header.payload_bytes()];
            if let Some(keys) = keys {
                seal(&header, keys, payload);
            }
            let mut raw = [0; HEADER_LEN];
            header.emit(&mut raw, |_| 0);
            self.crcs[chunk] = checksum(&raw, payload);
        }
    }

    /// The frame's `chunks`, to be sent.
    pub(super) fn burst(&self, chunks: ChunkBits) -> Burst<'_> {
        let (memory, layout, crcs) = (self.memory.bytes(), self.layout, &self.crcs);
        Burst { header: self.header, layout, crcs, memory, chunks: chunks & self.have }
    }

    /// Length of the frame, tags included.
    pub(super) fn travel_bytes(&self) -> u32 {
        self.header.frame_bytes
    }

    /// Chunks whose datagrams are longer than `bytes`.
    pub(super) fn longer_than(&self, bytes: usize) -> ChunkBits {
        let n_chunks = usize::from(self.header.n_chunks);
        let last = DatagramHeader { chunk: self.header.n_chunks.saturating_sub(1), ..self.header };
        let is_full_long = bytes < DATAGRAM_BYTES;
        let is_last_long = n_chunks > 0 && bytes < HEADER_LEN + last.payload_bytes();
        let n_before = n_chunks.saturating_sub(1);
        let before = if is_full_long { all_chunks(n_before) } else { 0 };
        before | ChunkBits::from(is_last_long) << n_before
    }

    /// All chunks of the frame.
    pub(super) fn all(&self) -> ChunkBits {
        all_chunks(usize::from(self.header.n_chunks))
    }

    /// Forgets the received frame.
    pub(super) fn clear(&mut self) {
        (self.header, self.have, self.frame_bytes) = (EMPTY, 0, 0);
        if let BankMemory::Bank(bank) = &mut self.memory {
            bank.release();
        }
    }

    /// Swaps memory with `other`, if both are this process's own and empty.
    pub(super) fn take_memory(&mut self, other: &mut Bank) {
        let is_own = |bank: &Bank| matches!(bank.memory, BankMemory::Own(_));
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

    /// Chunks that have not arrived; all that a frame can have if none has arrived.
    pub(super) fn missing(&self) -> ChunkBits {
        match self.is_begun() {
            true => self.all() & !self.have,
            false => all_chunks(CHUNKS_MAX),
        }
    }

    /// Takes a chunk. `header` is that of `datagram`, whose checksum is compared during the copy: a damaged
    /// chunk stays missing.
    pub(super) fn deposit(
        &mut self,
        header: &DatagramHeader,
        datagram: &Datagram<&[u8]>,
        keys: Option<&mut SessionKeys>,
    ) -> Deposit {
        let bit = 1 << header.chunk;
        let same = |a: &DatagramHeader, b: &DatagramHeader| {
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

    /// Takes the chunks of frame `seq` of `session` that the kernel module has put here since the last call.
    /// Returns the numbers of good and of bad ones; bad ones have to come again.
    pub(super) fn collect(
        &mut self,
        (session, seq): (u64, u32),
        mut keys: Option<&mut SessionKeys>,
    ) -> (u32, u32) {
        let BankMemory::Bank(bank) = &mut self.memory else { return (0, 0) };
        let Some(report) = bank.report() else { return (0, 0) };
        let header = DatagramHeader {
            kind: DatagramKind::Data,
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
            let header = DatagramHeader { chunk: chunk as u16, ..header };
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
fn seal(header: &DatagramHeader, keys: &SessionKeys, payload: &mut [u8]) {
    let mut raw = [0; HEADER_LEN];
    header.emit(&mut raw, |_| 0);
    keys.seal(header, &raw, payload);
}

/// Whether a chunk is what its sender sent; a sealed one is then opened.
fn proves(
    header: &DatagramHeader,
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

#[cfg(test)]
mod tests {
    use super::super::burst::OutgoingDatagram;
    use super::*;

    fn keys() -> SessionKeys {
        SessionKeys::new(&[1; 64])
    }

    fn carry(bytes: usize, mode: Mode, keys: Option<SessionKeys>, rotate: usize) -> Vec<u8> {
        let mut sender = Bank::new();
        sender.buffer()[..bytes].iter_mut().enumerate().for_each(|(i, b)| *b = (i % 251) as u8);
        sender.close(bytes, (5, 9), mode, keys.as_ref());
        let mut keys = keys;
        let mut deposit = |bank: &mut Bank, header: &DatagramHeader, datagram: &Datagram<&[u8]>| {
            bank.deposit(header, datagram, keys.as_mut())
        };
        let burst = sender.burst(ChunkBits::MAX);
        let mut datagrams: Vec<_> = burst.datagrams().map(|outgoing| outgoing.to_vec()).collect();
        let n = datagrams.len();
        datagrams.rotate_left(rotate % n);
        let mut receiver = Bank::new();
        for (i, bytes) in datagrams.iter().enumerate() {
            let datagram = Datagram::new_checked(&bytes[..]).unwrap();
            let header = DatagramHeader::parse(&datagram).unwrap();
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
        for (chunks, wanted) in [
            (0, vec![]),
            (ChunkBits::MAX, vec![6]),
            (0b10_1101, vec![1, 2, 1]),
            (0b11_0000, vec![2]),
        ] {
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
        let mut deposit = |header: DatagramHeader, keys| {
            let bytes = OutgoingDatagram::Parts { header, payload: &[0; CHUNK_BYTES] }.to_vec();
            bank.deposit(&header, &Datagram::new_checked(&bytes[..]).unwrap(), keys)
        };
        let first = DatagramHeader { n_chunks: 3, frame_bytes: 3000, ..EMPTY };
        assert_eq!(deposit(first, None), Deposit::New);
        for other in [
            DatagramHeader { chunk: 1, frame_bytes: 2900, ..first },
            DatagramHeader { chunk: 1, n_chunks: 2, ..first },
            DatagramHeader { chunk: 1, seq: 1, ..first },
        ] {
            assert_eq!(deposit(other, None), Deposit::Forged);
        }
        assert_eq!(
            deposit(DatagramHeader { chunk: 1, ..first }, Some(&mut keys())),
            Deposit::Forged
        );
        assert_eq!(bank.missing(), 0b110);
    }
}
