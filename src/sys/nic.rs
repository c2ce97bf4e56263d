//! Network devices: settings of their drivers, and ports that are free.

use std::io;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::fd::AsRawFd;

/// Words of `struct ethtool_coalesce`, `struct ethtool_eee` and `struct ethtool_value`
/// (linux/ethtool.h), the command first.
const COALESCE_WORDS: usize = 23;
const EEE_WORDS: usize = 10;
const VALUE_WORDS: usize = 2;
const ETHTOOL_GCOALESCE: u32 = 0x0e;
const ETHTOOL_GSG: u32 = 0x18;
const ETHTOOL_GEEE: u32 = 0x44;

/// Microseconds that the driver of `interface` waits for more packets before it interrupts;
/// `None` if it does not say.
pub fn rx_coalesce_us(interface: &str) -> Option<u32> {
    let words = ethtool::<COALESCE_WORDS>(interface, ETHTOOL_GCOALESCE)?;
    Some(words[1])
}

/// Whether the link of `interface` sleeps between packets (energy-efficient Ethernet); `None`
/// if the driver does not say.
pub fn is_eee_active(interface: &str) -> Option<bool> {
    let words = ethtool::<EEE_WORDS>(interface, ETHTOOL_GEEE)?;
    Some(words[4] != 0)
}

/// Whether `interface` sends packets whose parts lie in several places; `None` if the driver
/// does not say.
pub fn can_gather(interface: &str) -> Option<bool> {
    let words = ethtool::<VALUE_WORDS>(interface, ETHTOOL_GSG)?;
    Some(words[1] != 0)
}

/// Whether a ring node could listen on UDP and TCP `port` now.
///
/// # Errors
/// The system's: the port is taken, or may not be used by this process.
pub fn try_port(port: u16) -> io::Result<()> {
    UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))?;
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
    Ok(())
}

/// Asks the driver of `interface` to fill the structure of `N` words that belongs to `command`.
fn ethtool<const N: usize>(interface: &str, command: u32) -> Option<[u32; N]> {
    let mut words = [0; N];
    words[0] = command;
    // SAFETY: all zeros are a valid `ifreq`: it holds numbers, arrays of them and pointers.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let name = interface.as_bytes();
    // The name needs its terminating zero.
    if name.is_empty() || name.len() >= request.ifr_name.len() {
        return None;
    }
    for (to, &byte) in request.ifr_name.iter_mut().zip(name) {
        *to = byte.cast_signed() as libc::c_char;
    }
    request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).ok()?;
    // SAFETY: the descriptor is open, the name ends in a zero, and `ifru_data` points to the
    // whole structure that `command` has the kernel write; both outlive the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &mut request) };
    (result == 0).then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_do_not_answer_are_none() {
        for name in ["", "lo", "no-such-device", "a-name-far-too-long-for-a-device"] {
            assert_eq!(is_eee_active(name), None, "{name}");
        }
        assert_eq!(rx_coalesce_us("no-such-device"), None);
        assert_eq!(can_gather("no-such-device"), None);
    }

    #[test]
    fn the_loopback_gathers() {
        assert_ne!(can_gather("lo"), Some(false));
    }

    #[test]
    fn a_taken_port_is_told() {
        let taken = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        assert_eq!(try_port(port).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }
}
