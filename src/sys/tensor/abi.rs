//! The module's interface as `kmod/leap_uapi.h` has it: sizes, structures, ioctls.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64};

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

pub(super) const BANK_BYTES: usize = 128 << 10;
pub(super) const META_BYTES: usize = 1024;
pub(super) const MAP_BYTES: usize = 2 * BANKS * BANK_BYTES;

pub(super) const FREE: u32 = 0;
pub(super) const FILLING: u32 = 1;
pub(super) const READY: u32 = 2;
pub(super) const HELD: u32 = 3;

/// The head of a bank or slot. The module may write to a bank's at any time.
#[repr(C)]
pub(super) struct BankMeta {
    pub(super) state: AtomicU32,
    pub(super) seq: AtomicU32,
    pub(super) session: AtomicU64,
    pub(super) n_chunks: AtomicU32,
    pub(super) frame_bytes: AtomicU32,
    pub(super) bitmap: [AtomicU64; 2],
    pub(super) conflicts: AtomicU32,
    pub(super) reserved: u32,
    pub(super) first_ns: AtomicU64,
    pub(super) ready_ns: AtomicU64,
    pub(super) crc: [AtomicU32; CHUNKS],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct AbiEndpoint {
    pub(super) family: u16,
    /// In network byte order.
    pub(super) port: u16,
    pub(super) scope: u32,
    pub(super) addr: [u8; 16],
}

#[repr(C)]
#[derive(Default)]
pub(super) struct AbiHello {
    pub(super) api_version: u32,
    pub(super) features: u32,
    pub(super) map_bytes: u32,
    pub(super) banks: u32,
}

#[repr(C)]
#[derive(Default)]
pub(super) struct AbiPeer {
    pub(super) from: AbiEndpoint,
    pub(super) session: u64,
    pub(super) first_seq: u32,
    pub(super) reserved: u32,
}

#[repr(C)]
#[derive(Default)]
pub(super) struct AbiDest {
    pub(super) to: AbiEndpoint,
    pub(super) session: u64,
    pub(super) flags: u32,
    pub(super) mtu: u32,
}

#[repr(C)]
#[derive(Default)]
pub(super) struct AbiSend {
    pub(super) slot: u32,
    pub(super) seq: u32,
    pub(super) n_chunks: u32,
    pub(super) frame_bytes: u32,
    pub(super) bitmap: [u64; 2],
    pub(super) sent: u32,
    pub(super) watch: u32,
    pub(super) watch_is_busy: u32,
    pub(super) reserved: u32,
}

#[repr(C)]
pub(super) struct AbiDatagram {
    pub(super) address: u64,
    pub(super) bytes: u32,
    pub(super) reserved: u32,
}

#[repr(C)]
#[derive(Default)]
pub(super) struct AbiReject {
    pub(super) bank: u32,
    pub(super) seq: u32,
    pub(super) bitmap: [u64; 2],
}

/// Counters of the module since the device was opened.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "named and explained in leap_uapi.h")]
pub struct DeviceStats {
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
const _: () = assert!(size_of::<BankMeta>() == 432 && size_of::<BankMeta>() <= META_BYTES);
const _: () = assert!(size_of::<AbiEndpoint>() == 24);
const _: () = assert!(size_of::<AbiHello>() == 16);
const _: () = assert!(size_of::<AbiPeer>() == 40);
const _: () = assert!(size_of::<AbiDest>() == 40);
const _: () = assert!(size_of::<AbiSend>() == 48);
const _: () = assert!(size_of::<AbiReject>() == 24);
const _: () = assert!(size_of::<AbiDatagram>() == 16);
const _: () = assert!(size_of::<DeviceStats>() == 136);
const _: () = assert!(META_BYTES + FRAME_BYTES <= BANK_BYTES);

const READ: u32 = 2 << 30;
const WRITE: u32 = 1 << 30;

const fn ioctl_number<T>(direction: u32, number: u32) -> u32 {
    direction | (size_of::<T>() as u32) << 16 | (b'L' as u32) << 8 | number
}

pub(super) const HELLO: u32 = ioctl_number::<AbiHello>(READ | WRITE, 0x40);
pub(super) const SET_PORT: u32 = ioctl_number::<AbiEndpoint>(WRITE, 0x41);
pub(super) const SET_PEER: u32 = ioctl_number::<AbiPeer>(WRITE, 0x42);
pub(super) const SET_DEST: u32 = ioctl_number::<AbiDest>(READ | WRITE, 0x43);
pub(super) const SEND: u32 = ioctl_number::<AbiSend>(READ | WRITE, 0x45);
pub(super) const TX_BUSY: u32 = ioctl_number::<u64>(READ, 0x46);
pub(super) const REJECT: u32 = ioctl_number::<AbiReject>(WRITE, 0x47);
pub(super) const STATS: u32 = ioctl_number::<DeviceStats>(READ, 0x49);
pub(super) const TAKE: u32 = ioctl_number::<AbiDatagram>(WRITE, 0x4b);
pub(super) const MOVE_PEER: u32 = ioctl_number::<AbiPeer>(WRITE, 0x4a);

pub(super) fn words(chunks: u128) -> [u64; 2] {
    [chunks as u64, (chunks >> 64) as u64]
}

pub(super) fn ioctl<T>(file: BorrowedFd<'_>, number: u32, argument: &mut T) -> io::Result<()> {
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

impl From<SocketAddr> for AbiEndpoint {
    fn from(address: SocketAddr) -> AbiEndpoint {
        let mut out = AbiEndpoint { port: address.port().to_be(), ..AbiEndpoint::default() };
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The value of `#define NAME VALUE` in the module's header.
    fn defined(name: &str) -> u64 {
        let header = include_str!("../../../kmod/leap_uapi.h");
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
        let v4 = AbiEndpoint::from(SocketAddr::from(([10, 0, 0, 1], 0x1234)));
        assert_eq!((v4.family, v4.port.to_ne_bytes()), (2, [0x12, 0x34]));
        assert_eq!(v4.addr[..5], [10, 0, 0, 1, 0]);
        let v6: SocketAddr = "[fe80::1%3]:5".parse().unwrap();
        let v6 = AbiEndpoint::from(v6);
        assert_eq!((v6.family, v6.scope, v6.addr[0], v6.addr[15]), (10, 3, 0xfe, 1));
    }
}
