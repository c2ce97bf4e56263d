//! `/dev/leap_tensor`: the kernel module's banks and slots, mapped, and its ioctls.
//!
//! The layout is that of `kmod/leap_uapi.h`, and so are the names. The module fills banks that
//! are free and never touches one that is ready or held; it only reads slots.

use std::fs::OpenOptions;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The interface's version.
pub const API_VERSION: u32 = 2;
/// Banks to receive into, and slots to send from.
pub const BANKS: usize = 64;
/// Most bytes of a frame's payload that a bank or slot holds.
pub const FRAME_BYTES: usize = CHUNKS * CHUNK_BYTES;
/// Most chunks of a frame.
pub const CHUNKS: usize = 92;
/// Room of a chunk.
pub const CHUNK_BYTES: usize = 1400;

const PATH: &str = "/dev/leap_tensor";
const BANK_BYTES: usize = 128 << 10;
const META_BYTES: usize = 1024;
const MAP_BYTES: usize = 2 * BANKS * BANK_BYTES;

const FREE: u32 = 0;
const FILLING: u32 = 1;
const READY: u32 = 2;
const HELD: u32 = 3;

/// The head of a bank or slot. The module may write to a bank's at any time.
#[repr(C)]
struct Meta {
    state: AtomicU32,
    seq: AtomicU32,
    session: AtomicU64,
    n_chunks: AtomicU32,
    frame_bytes: AtomicU32,
    bitmap: [AtomicU64; 2],
    conflicts: AtomicU32,
    reserved: u32,
    first_ns: AtomicU64,
    ready_ns: AtomicU64,
    crc: [AtomicU32; CHUNKS],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Endpoint {
    family: u16,
    /// In network order.
    port: u16,
    scope: u32,
    addr: [u8; 16],
}

#[repr(C)]
#[derive(Default)]
struct Hello {
    api_version: u32,
    features: u32,
    map_bytes: u32,
    banks: u32,
}

#[repr(C)]
#[derive(Default)]
struct Peer {
    from: Endpoint,
    session: u64,
    first_seq: u32,
    reserved: u32,
}

#[repr(C)]
#[derive(Default)]
struct Dest {
    to: Endpoint,
    session: u64,
    flags: u32,
    mtu: u32,
}

#[repr(C)]
#[derive(Default)]
struct Send {
    slot: u32,
    seq: u32,
    n_chunks: u32,
    frame_bytes: u32,
    bitmap: [u64; 2],
    sent: u32,
    watch: u32,
    watch_is_busy: u32,
    reserved: u32,
}

#[repr(C)]
struct Datagram {
    address: u64,
    bytes: u32,
    reserved: u32,
}

#[repr(C)]
#[derive(Default)]
struct Reject {
    bank: u32,
    seq: u32,
    bitmap: [u64; 2],
}

/// What the module has counted since the device was opened.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "named and explained in leap_uapi.h")]
pub struct Stats {
    pub rx_datagrams: u64,
    pub rx_bytes: u64,
    pub rx_frames: u64,
    pub rx_duplicate: u64,
    pub rx_old: u64,
    pub rx_ahead: u64,
    pub rx_conflict: u64,
    pub rx_malformed: u64,
    pub rx_bad_length: u64,
    pub rx_bad_checksum: u64,
    pub rx_gso: u64,
    pub rx_gso_dropped: u64,
    pub wakeups: u64,
    pub tx_frames: u64,
    pub tx_datagrams: u64,
    pub tx_bytes: u64,
    pub tx_failed: u64,
}

// `leap_main.c` asserts the same sizes; change both or none.
const _: () = assert!(size_of::<Meta>() == 432 && size_of::<Meta>() <= META_BYTES);
const _: () = assert!(size_of::<Endpoint>() == 24);
const _: () = assert!(size_of::<Hello>() == 16);
const _: () = assert!(size_of::<Peer>() == 40);
const _: () = assert!(size_of::<Dest>() == 40);
const _: () = assert!(size_of::<Send>() == 48);
const _: () = assert!(size_of::<Reject>() == 24);
const _: () = assert!(size_of::<Datagram>() == 16);
const _: () = assert!(size_of::<Stats>() == 136);
const _: () = assert!(META_BYTES + FRAME_BYTES <= BANK_BYTES);

const READ: u32 = 2 << 30;
const WRITE: u32 = 1 << 30;

const fn ioctl_number<T>(direction: u32, number: u32) -> u32 {
    direction | (size_of::<T>() as u32) << 16 | (b'L' as u32) << 8 | number
}

const HELLO: u32 = ioctl_number::<Hello>(READ | WRITE, 0x40);
const SET_PORT: u32 = ioctl_number::<Endpoint>(WRITE, 0x41);
const SET_PEER: u32 = ioctl_number::<Peer>(WRITE, 0x42);
const SET_DEST: u32 = ioctl_number::<Dest>(READ | WRITE, 0x43);
const SEND: u32 = ioctl_number::<Send>(READ | WRITE, 0x45);
const TX_BUSY: u32 = ioctl_number::<u64>(READ, 0x46);
const REJECT: u32 = ioctl_number::<Reject>(WRITE, 0x47);
const STATS: u32 = ioctl_number::<Stats>(READ, 0x49);
const TAKE: u32 = ioctl_number::<Datagram>(WRITE, 0x4b);
const MOVE_PEER: u32 = ioctl_number::<Peer>(WRITE, 0x4a);

/// Why the device is not to be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no device: the module is not loaded.
    NoDevice,
    /// Not for this user.
    Permission,
    /// Neighbours may not be named without CAP_NET_ADMIN.
    Capability,
    /// Open as often as the module allows.
    Busy,
    /// The module speaks another version of the interface.
    Version {
        /// The module's version.
        module: u32,
    },
    /// Anything else.
    Io(io::Error),
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            OpenError::NoDevice => write!(f, "no {PATH}, the module leap_transport is not loaded"),
            OpenError::Permission => write!(f, "no permission for {PATH} (group leap)"),
            OpenError::Capability => write!(f, "{PATH} needs the capability CAP_NET_ADMIN"),
            OpenError::Busy => write!(f, "{PATH} is open as often as the module allows"),
            OpenError::Version { module } => {
                write!(f, "the module's interface has version {module}, this program {API_VERSION}")
            }
            OpenError::Io(source) => write!(f, "{PATH}: {source}"),
        }
    }
}

impl std::error::Error for OpenError {}

impl From<io::Error> for OpenError {
    fn from(source: io::Error) -> OpenError {
        match source.raw_os_error() {
            Some(libc::ENOENT | libc::ENXIO | libc::ENODEV) => OpenError::NoDevice,
            Some(libc::EACCES | libc::EPERM) => OpenError::Permission,
            Some(libc::EBUSY) => OpenError::Busy,
            _ => OpenError::Io(source),
        }
    }
}

/// The way to a neighbour.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// The network device cannot gather pages: the system copies a frame once when it sends.
    pub is_copied: bool,
}

/// The open device and its mapping.
pub struct Device {
    file: OwnedFd,
    map: NonNull<u8>,
    /// Banks that a [`RxBank`] exists for.
    taken_banks: AtomicU64,
    /// Slots that a [`TxSlot`] exists for, and those the network is known to be done with.
    taken_slots: AtomicU64,
    idle_slots: AtomicU64,
}

// SAFETY: the mapping lives as long as the value; what is shared of it is read and written by
// atomic operations, and the bytes of a bank or slot only through its one handle.
unsafe impl std::marker::Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Opens the device and agrees on the interface's version.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open() -> Result<Arc<Device>, OpenError> {
        let file: OwnedFd = OpenOptions::new().read(true).write(true).open(PATH)?.into();
        let mut hello = Hello { api_version: API_VERSION, ..Hello::default() };
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

    /// Where this node receives and sends from. Once only.
    ///
    /// # Errors
    /// [`OpenError::Capability`], or that another opener has the port.
    pub fn set_port(&self, local: SocketAddr) -> Result<(), OpenError> {
        self.ioctl(SET_PORT, &mut Endpoint::from(local)).map_err(|e| match e.raw_os_error() {
            Some(libc::EPERM) => OpenError::Capability,
            _ => OpenError::Io(e),
        })
    }

    /// Receives frames from 0 on of a session, from this neighbour, and forgets all others.
    /// `banks` are all that were taken: they are free afterwards.
    ///
    /// # Errors
    /// The system's.
    ///
    /// # Panics
    /// If banks are missing: what is read through them would be written to.
    pub fn set_peer(
        &self,
        from: SocketAddr,
        session: u64,
        banks: &mut dyn Iterator<Item = &mut RxBank>,
    ) -> io::Result<()> {
        // Borrowed until the module has them.
        let mut banks: heapless::Vec<&mut RxBank, BANKS> = banks.collect();
        assert!(banks.iter().all(|bank| ptr::eq(&*bank.device, self)));
        assert_eq!(banks.len(), self.taken_banks.load(Ordering::Acquire).count_ones() as usize);
        banks.iter_mut().for_each(|bank| bank.is_held = false);
        self.ioctl(SET_PEER, &mut Peer { from: from.into(), session, ..Peer::default() })
    }

    /// Receives the same session from another address; all that was received of it stays.
    ///
    /// # Errors
    /// The system's; `ENOTCONN` if the module receives another session.
    pub fn move_peer(&self, from: SocketAddr, session: u64) -> io::Result<()> {
        self.ioctl(MOVE_PEER, &mut Peer { from: from.into(), session, ..Peer::default() })
    }

    /// Sends to this neighbour from now on.
    ///
    /// # Errors
    /// The system's; `EMSGSIZE` if a full datagram does not pass.
    pub fn set_dest(&self, to: SocketAddr, session: u64) -> io::Result<Route> {
        let mut dest = Dest { to: to.into(), session, ..Dest::default() };
        self.ioctl(SET_DEST, &mut dest)?;
        Ok(Route { is_copied: dest.flags & 1 != 0 })
    }

    /// Sends `chunks` of frame `seq`, which lies in slot `seq % BANKS`; `crcs` has the checksum of
    /// each chunk's datagram. Says how many the network took.
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
        let mut send = Send {
            slot: slot as u32,
            seq,
            n_chunks: n_chunks.into(),
            frame_bytes,
            bitmap: words(chunks),
            watch: watch as u32,
            ..Send::default()
        };
        self.idle_slots.fetch_and(!(1 << slot), Ordering::Relaxed);
        self.ioctl(SEND, &mut send)?;
        if send.watch_is_busy == 0 {
            self.idle_slots.fetch_or(1 << watch, Ordering::Relaxed);
        }
        Ok(send.sent as usize)
    }

    /// What the module has counted.
    ///
    /// # Errors
    /// The system's.
    pub fn stats(&self) -> io::Result<Stats> {
        let mut stats = Stats::default();
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
    fn meta(&self, index: usize) -> &Meta {
        assert!(index < 2 * BANKS);
        // SAFETY: inside the mapping, which lives as long as `self`, page-aligned, and every
        // field that is read is an atomic number, for which any value is valid.
        unsafe { self.map.add(index * BANK_BYTES).cast::<Meta>().as_ref() }
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

/// Sets a bit; whether it was clear.
fn take(mask: &AtomicU64, index: usize) -> bool {
    assert!(index < BANKS);
    mask.fetch_or(1 << index, Ordering::AcqRel) & 1 << index == 0
}

fn words(chunks: u128) -> [u64; 2] {
    [chunks as u64, (chunks >> 64) as u64]
}

fn ioctl<T>(file: BorrowedFd<'_>, number: u32, argument: &mut T) -> io::Result<()> {
    loop {
        // SAFETY: `number` was made from the size of `T`, which is as much as the driver
        // reads and writes; every `T` here is plain numbers without padding.
        let result = unsafe { libc::ioctl(file.as_raw_fd(), number as _, ptr::from_mut(argument)) };
        if result >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

impl From<SocketAddr> for Endpoint {
    fn from(address: SocketAddr) -> Endpoint {
        let mut out = Endpoint { port: address.port().to_be(), ..Endpoint::default() };
        match address.ip() {
            IpAddr::V4(ip) => {
                out.family = libc::AF_INET as u16;
                out.addr[..4].copy_from_slice(&ip.octets());
            }
            IpAddr::V6(ip) => {
                out.family = libc::AF_INET6 as u16;
                out.addr = ip.octets();
            }
        }
        if let SocketAddr::V6(v6) = address {
            out.scope = v6.scope_id();
        }
        out
    }
}

/// What a bank says of the frame in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BankReport {
    /// Number of the frame.
    pub seq: u32,
    /// Its session.
    pub session: u64,
    /// Its chunks.
    pub n_chunks: u16,
    /// Bytes of its chunks together.
    pub frame_bytes: u32,
    /// The chunks that are there.
    pub chunks: u128,
}

/// A bank to receive into. Chunks can be seen once they are there, and all of it while it is
/// held.
pub struct RxBank {
    device: Arc<Device>,
    index: usize,
    is_held: bool,
}

impl RxBank {
    fn meta(&self) -> &Meta {
        self.device.meta(self.index)
    }

    /// Whether a frame is complete and not held.
    pub fn is_ready(&self) -> bool {
        self.meta().state.load(Ordering::Acquire) == READY
    }

    /// What is in the bank; `None` if it is free or held.
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

    /// The chunks that are there, as bits.
    fn chunks(&self) -> u128 {
        let [low, high] = &self.meta().bitmap;
        u128::from(low.load(Ordering::Acquire)) | u128::from(high.load(Ordering::Acquire)) << 64
    }

    /// The checksum that came with a chunk, and the room of a chunk, if the chunk is there.
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

    /// Puts a datagram of the session that came another way where the module would.
    ///
    /// # Errors
    /// The system's; `ENOTCONN` if the module receives another session.
    pub fn take(&mut self, datagram: &[u8]) -> io::Result<()> {
        let (address, bytes) =
            (datagram.as_ptr().expose_provenance() as u64, datagram.len() as u32);
        self.device.ioctl(TAKE, &mut Datagram { address, bytes, reserved: 0 })
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

    /// Gives chunks of a frame back: they are to come again.
    ///
    /// # Errors
    /// The system's; `ESTALE` if the bank holds nothing of the frame.
    pub fn reject(&mut self, seq: u32, chunks: u128) -> io::Result<()> {
        self.is_held = false;
        let bank = self.index as u32;
        self.device.ioctl(REJECT, &mut Reject { bank, seq, bitmap: words(chunks) })
    }

    /// The frame; nothing unless the bank is held.
    pub fn bytes(&self) -> &[u8] {
        let len = if self.is_held { FRAME_BYTES } else { 0 };
        // SAFETY: `len` bytes inside the mapping. The module writes to no held bank, this is
        // the bank's only handle, and giving it back takes `&mut self`.
        unsafe { std::slice::from_raw_parts(self.device.bytes(self.index).as_ptr(), len) }
    }

    /// The frame, to be changed in place; nothing unless the bank is held.
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
    /// Whether the network has read all it was given of this slot, so that another frame can
    /// be written.
    pub fn is_idle(&self) -> bool {
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

    /// The value of `#define NAME VALUE` in the module's header.
    fn defined(name: &str) -> u64 {
        let header = include_str!("../../kmod/leap_uapi.h");
        let line = header.lines().find_map(|l| l.strip_prefix("#define ")?.strip_prefix(name));
        let value = line.unwrap_or_else(|| panic!("{name} is not defined")).trim();
        value.trim_end_matches('U').parse().unwrap_or_else(|e| panic!("{name} {value}: {e}"))
    }

    #[test]
    fn constants_are_those_of_the_header() {
        for (name, value) in [
            ("LEAP_API_VERSION", u64::from(API_VERSION)),
            ("LEAP_BANKS", BANKS as u64),
            ("LEAP_BANK_BYTES", BANK_BYTES as u64),
            ("LEAP_META_BYTES", META_BYTES as u64),
            ("LEAP_MAX_CHUNKS", CHUNKS as u64),
            ("LEAP_BANK_FREE", FREE.into()),
            ("LEAP_BANK_FILLING", FILLING.into()),
            ("LEAP_BANK_READY", READY.into()),
            ("LEAP_BANK_HELD", HELD.into()),
        ] {
            assert_eq!(defined(&format!("{name}\t")), value, "{name}");
        }
        assert_eq!(defined("LEAP_SLOT_BYTES\t"), CHUNK_BYTES as u64);
    }

    #[test]
    fn addresses_are_as_the_module_reads_them() {
        let v4 = Endpoint::from(SocketAddr::from(([10, 0, 0, 1], 0x1234)));
        assert_eq!((v4.family, v4.port.to_ne_bytes()), (2, [0x12, 0x34]));
        assert_eq!(v4.addr[..5], [10, 0, 0, 1, 0]);
        let v6: SocketAddr = "[fe80::1%3]:5".parse().unwrap();
        let v6 = Endpoint::from(v6);
        assert_eq!((v6.family, v6.scope, v6.addr[0], v6.addr[15]), (10, 3, 0xfe, 1));
    }

    #[test]
    fn a_missing_device_is_told() {
        if !std::path::Path::new(PATH).exists() {
            let error = Device::open().err().unwrap();
            assert!(matches!(error, OpenError::NoDevice), "{error}");
        }
    }
}
