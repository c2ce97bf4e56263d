//! `/dev/leap_tensor`: the kernel module's banks and slots, mapped, and its ioctls.
//!
//! The layout is that of `kmod/leap_uapi.h`, and so are the names. The module fills banks that
//! are free and never touches one that is ready or held; it only reads slots.

mod abi;
mod open_error;

use std::fs::OpenOptions;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use abi::{API_VERSION, BANKS, CHUNK_BYTES, CHUNKS, DeviceStats, FRAME_BYTES};
pub use open_error::OpenError;

use abi::{
    AbiDatagram, AbiDest, AbiEndpoint, AbiHello, AbiPeer, AbiReject, AbiSend, BANK_BYTES, BankMeta,
    FILLING, FREE, HELD, HELLO, MAP_BYTES, META_BYTES, MOVE_PEER, READY, REJECT, SEND, SET_DEST,
    SET_PEER, SET_PORT, STATS, TAKE, TX_BUSY, ioctl, words,
};
use open_error::PATH;

/// Properties of the path to a neighbour.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// The network device cannot gather pages: the system copies a frame once when it sends.
    pub is_copied: bool,
}

/// The open device and its mapping.
pub struct Device {
    file: OwnedFd,
    map: NonNull<u8>,
    /// Banks for which an [`RxBank`] exists, as bits.
    taken_banks: AtomicU64,
    /// Slots for which a [`TxSlot`] exists, and slots that the network is known to have read, as bits.
    taken_slots: AtomicU64,
    idle_slots: AtomicU64,
}

// SAFETY: the mapping lives as long as the value; what is shared of it is read and written by
// atomic operations, and the bytes of a bank or slot only through its one handle.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Opens the device and agrees on the interface's version.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open() -> Result<Arc<Device>, OpenError> {
        let file: OwnedFd = OpenOptions::new().read(true).write(true).open(PATH)?.into();
        let mut hello = AbiHello { api_version: API_VERSION, ..AbiHello::default() };
        let greeted = ioctl(file.as_fd(), HELLO, &mut hello);
        if hello.api_version != API_VERSION {
            return Err(OpenError::Version { module: hello.api_version });
        }
        greeted?;
        // SAFETY: a new shared mapping at an address of the system's choice; the driver
        // allows no other length.
        let map = unsafe {
            libc::mmap(
                ptr::null_mut(),
                MAP_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if map == libc::MAP_FAILED {
            return Err(io::Error::last_os_error().into());
        }
        let map = NonNull::new(map.cast()).ok_or(OpenError::NoDevice)?;
        Ok(Arc::new(Device {
            file,
            map,
            taken_banks: AtomicU64::new(0),
            taken_slots: AtomicU64::new(0),
            idle_slots: AtomicU64::new(u64::MAX),
        }))
    }

    /// Sets the address where this node receives, and that it sends from. May be called once.
    ///
    /// # Errors
    /// [`OpenError::Capability`], or that another opener has the port.
    pub fn set_port(&self, local: SocketAddr) -> Result<(), OpenError> {
        self.ioctl(SET_PORT, &mut AbiEndpoint::from(local)).map_err(|e| match e.raw_os_error() {
            Some(libc::EPERM) => OpenError::Capability,
            _ => OpenError::Io(e),
        })
    }

    /// Receives frames of a new session from this neighbour, from frame 0 on, and forgets all others. `banks` must be
    /// all that were taken; they are free afterwards.
    ///
    /// # Errors
    /// The system's.
    ///
    /// # Panics
    /// If banks are missing: the module would write to memory that is being read.
    pub fn set_peer(
        &self,
        from: SocketAddr,
        session: u64,
        banks: &mut dyn Iterator<Item = &mut RxBank>,
    ) -> io::Result<()> {
        // Borrowed until the module has the banks.
        let mut banks: heapless::Vec<&mut RxBank, BANKS> = banks.collect();
        assert!(banks.iter().all(|bank| ptr::eq(&*bank.device, self)));
        assert_eq!(banks.len(), self.taken_banks.load(Ordering::Acquire).count_ones() as usize);
        banks.iter_mut().for_each(|bank| bank.is_held = false);
        self.ioctl(SET_PEER, &mut AbiPeer { from: from.into(), session, ..AbiPeer::default() })
    }

    /// Receives the same session from another address. Chunks that have arrived stay.
    ///
    /// # Errors
    /// The system's; `ENOTCONN` if the module receives another session.
    pub fn move_peer(&self, from: SocketAddr, session: u64) -> io::Result<()> {
        self.ioctl(MOVE_PEER, &mut AbiPeer { from: from.into(), session, ..AbiPeer::default() })
    }

    /// Sends to this neighbour from now on.
    ///
    /// # Errors
    /// The system's; `EMSGSIZE` if a full datagram does not pass.
    pub fn set_dest(&self, to: SocketAddr, session: u64) -> io::Result<Route> {
        let mut dest = AbiDest { to: to.into(), session, ..AbiDest::default() };
        self.ioctl(SET_DEST, &mut dest)?;
        Ok(Route { is_copied: dest.flags & 1 != 0 })
    }

    /// Sends `chunks` of frame `seq`, which lies in slot `seq % BANKS`; `crcs` has the checksum of each chunk's
    /// datagram. Returns how many datagrams the network took.
    ///
    /// # Errors
    /// The system's.
    pub fn send(
        &self,
        seq: u32,
        (n_chunks, frame_bytes): (u16, u32),
        chunks: u128,
        crcs: &[u32; CHUNKS],
    ) -> io::Result<usize> {
        let slot = seq as usize % BANKS;
        let watch = (slot + 1) % BANKS;
        let meta = self.meta(BANKS + slot);
        for (to, crc) in meta.crc.iter().zip(crcs).take(usize::from(n_chunks)) {
            to.store(*crc, Ordering::Relaxed);
        }
        let mut send = AbiSend {
            slot: slot as u32,
            seq,
            n_chunks: n_chunks.into(),
            frame_bytes,
            bitmap: words(chunks),
            watch: watch as u32,
            ..AbiSend::default()
        };
        self.idle_slots.fetch_and(!(1 << slot), Ordering::Relaxed);
        self.ioctl(SEND, &mut send)?;
        if send.watch_is_busy == 0 {
            self.idle_slots.fetch_or(1 << watch, Ordering::Relaxed);
        }
        Ok(send.sent as usize)
    }

    /// Counters of the module.
    ///
    /// # Errors
    /// The system's.
    pub fn stats(&self) -> io::Result<DeviceStats> {
        let mut stats = DeviceStats::default();
        self.ioctl(STATS, &mut stats)?;
        Ok(stats)
    }

    /// The bank of frames whose number is `index` modulo [`BANKS`]; `None` while it is taken.
    pub fn bank(self: &Arc<Device>, index: usize) -> Option<RxBank> {
        let is_new = take(&self.taken_banks, index);
        is_new.then(|| RxBank { device: Arc::clone(self), index, is_held: false })
    }

    /// The slot of frames whose number is `index` modulo [`BANKS`]; `None` while it is taken.
    pub fn slot(self: &Arc<Device>, index: usize) -> Option<TxSlot> {
        let is_new = take(&self.taken_slots, index);
        is_new.then(|| TxSlot { device: Arc::clone(self), index })
    }

    fn ioctl<T>(&self, number: u32, argument: &mut T) -> io::Result<()> {
        ioctl(self.file.as_fd(), number, argument)
    }

    /// The head of a bank, or of a slot from [`BANKS`] on.
    fn meta(&self, index: usize) -> &BankMeta {
        assert!(index < 2 * BANKS);
        // SAFETY: inside the mapping, which lives as long as `self`, page-aligned, and every
        // field that is read is an atomic number, for which any value is valid.
        unsafe { self.map.add(index * BANK_BYTES).cast::<BankMeta>().as_ref() }
    }

    fn bytes(&self, index: usize) -> NonNull<u8> {
        assert!(index < 2 * BANKS);
        // SAFETY: inside the mapping.
        unsafe { self.map.add(index * BANK_BYTES + META_BYTES) }
    }
}

impl AsFd for Device {
    /// Readable when a bank is ready.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: the mapping that `open` made; handles to parts of it hold an `Arc` of `self`.
        let _ = unsafe { libc::munmap(self.map.as_ptr().cast(), MAP_BYTES) };
    }
}

/// Sets a bit. Returns whether it was clear.
fn take(mask: &AtomicU64, index: usize) -> bool {
    assert!(index < BANKS);
    mask.fetch_or(1 << index, Ordering::AcqRel) & 1 << index == 0
}
/// A bank's report on the frame in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BankReport {
    /// Number of the frame.
    pub seq: u32,
    /// Session of the frame.
    pub session: u64,
    /// Number of the frame's chunks.
    pub n_chunks: u16,
    /// Bytes of all chunks of the frame.
    pub frame_bytes: u32,
    /// The chunks that have arrived, as bits.
    pub chunks: u128,
}

/// A bank to receive into. A chunk can be read once it has arrived, the whole frame while the bank is held.
pub struct RxBank {
    device: Arc<Device>,
    index: usize,
    is_held: bool,
}

impl RxBank {
    fn meta(&self) -> &BankMeta {
        self.device.meta(self.index)
    }

    /// Whether a frame is complete and not held.
    pub fn is_ready(&self) -> bool {
        self.meta().state.load(Ordering::Acquire) == READY
    }

    /// The frame in the bank; `None` if it is free or held.
    pub fn report(&self) -> Option<BankReport> {
        let meta = self.meta();
        let state = meta.state.load(Ordering::Acquire);
        if state != FILLING && state != READY {
            return None;
        }
        Some(BankReport {
            seq: meta.seq.load(Ordering::Relaxed),
            session: meta.session.load(Ordering::Relaxed),
            n_chunks: meta.n_chunks.load(Ordering::Relaxed).min(CHUNKS as u32) as u16,
            frame_bytes: meta.frame_bytes.load(Ordering::Relaxed).min(FRAME_BYTES as u32),
            chunks: self.chunks(),
        })
    }

    /// The chunks that have arrived, as bits.
    fn chunks(&self) -> u128 {
        let [low, high] = &self.meta().bitmap;
        u128::from(low.load(Ordering::Acquire)) | u128::from(high.load(Ordering::Acquire)) << 64
    }

    /// The checksum that came with a chunk, and the memory of the chunk, if the chunk has arrived.
    pub fn chunk_mut(&mut self, chunk: usize) -> Option<(u32, &mut [u8; CHUNK_BYTES])> {
        if chunk >= CHUNKS || self.chunks() & 1 << chunk == 0 {
            return None;
        }
        let crc = self.meta().crc[chunk].load(Ordering::Relaxed);
        // SAFETY: inside the mapping. A chunk that is there is not written to by the module
        // before it is given back, which takes `&mut self` of this, the bank's only handle.
        let bytes = unsafe {
            self.device.bytes(self.index).add(chunk * CHUNK_BYTES).cast::<[u8; _]>().as_mut()
        };
        Some((crc, bytes))
    }

    /// Stores a datagram of the session that did not come through the module, where the module would store it.
    ///
    /// # Errors
    /// The system's; `ENOTCONN` if the module receives another session.
    pub fn take(&mut self, datagram: &[u8]) -> io::Result<()> {
        let (address, bytes) =
            (datagram.as_ptr().expose_provenance() as u64, datagram.len() as u32);
        self.device.ioctl(TAKE, &mut AbiDatagram { address, bytes, reserved: 0 })
    }

    /// Takes a complete frame; false if there is none.
    pub fn hold(&mut self) -> bool {
        let state = &self.meta().state;
        let held = state.compare_exchange(READY, HELD, Ordering::AcqRel, Ordering::Relaxed);
        self.is_held |= held.is_ok();
        held.is_ok()
    }

    /// Gives a held bank back, for the frame [`BANKS`] later.
    pub fn release(&mut self) {
        if std::mem::take(&mut self.is_held) {
            self.meta().state.store(FREE, Ordering::Release);
        }
    }

    /// Gives chunks of a frame back, to receive them again.
    ///
    /// # Errors
    /// The system's; `ESTALE` if the bank holds nothing of the frame.
    pub fn reject(&mut self, seq: u32, chunks: u128) -> io::Result<()> {
        self.is_held = false;
        let bank = self.index as u32;
        self.device.ioctl(REJECT, &mut AbiReject { bank, seq, bitmap: words(chunks) })
    }

    /// The frame; empty unless the bank is held.
    pub fn bytes(&self) -> &[u8] {
        let len = if self.is_held { FRAME_BYTES } else { 0 };
        // SAFETY: `len` bytes inside the mapping. The module writes to no held bank, this is
        // the bank's only handle, and giving it back takes `&mut self`.
        unsafe { std::slice::from_raw_parts(self.device.bytes(self.index).as_ptr(), len) }
    }

    /// The frame, to be changed in place; empty unless the bank is held.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let len = if self.is_held { FRAME_BYTES } else { 0 };
        // SAFETY: as in `bytes`.
        unsafe { std::slice::from_raw_parts_mut(self.device.bytes(self.index).as_ptr(), len) }
    }
}

impl Drop for RxBank {
    fn drop(&mut self) {
        self.release();
        self.device.taken_banks.fetch_and(!(1 << self.index), Ordering::AcqRel);
    }
}

/// A slot to send from.
pub struct TxSlot {
    device: Arc<Device>,
    index: usize,
}

impl TxSlot {
    /// Whether the network has read all it was given of this slot, so that another frame can be written. Asks the
    /// module, unless the answer is known.
    pub fn ask_idle(&self) -> bool {
        if self.device.idle_slots.load(Ordering::Relaxed) & 1 << self.index != 0 {
            return true;
        }
        let mut busy = u64::MAX;
        if self.device.ioctl(TX_BUSY, &mut busy).is_err() {
            return false;
        }
        self.device.idle_slots.store(!busy, Ordering::Relaxed);
        busy & 1 << self.index == 0
    }

    /// The slot's bytes.
    pub fn bytes(&self) -> &[u8] {
        let bytes = self.device.bytes(BANKS + self.index).as_ptr();
        // SAFETY: inside the mapping. The module only reads slots, and this is its only handle.
        unsafe { std::slice::from_raw_parts(bytes, FRAME_BYTES) }
    }

    /// The slot's bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let bytes = self.device.bytes(BANKS + self.index).as_ptr();
        // SAFETY: as in `bytes`.
        unsafe { std::slice::from_raw_parts_mut(bytes, FRAME_BYTES) }
    }
}

impl Drop for TxSlot {
    fn drop(&mut self) {
        self.device.taken_slots.fetch_and(!(1 << self.index), Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_device_is_told() {
        if !std::path::Path::new(PATH).exists() {
            let error = Device::open().err().unwrap();
            assert!(matches!(error, OpenError::NoDevice), "{error}");
        }
    }
}
