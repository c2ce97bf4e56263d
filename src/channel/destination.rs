//! Whether a greeting was meant for the board that it reached.
//!
//! A stranger without the key can carry a greeting elsewhere: back to the board that sent it, or to another one that
//! has the key. So a greeting names its destination. If addresses are translated on the way (containers, public
//! addresses of machines in the cloud), the destination is none of this board's addresses, and this board cannot tell
//! whose it is. But an address in the same network as this board's own is another board's. Networks behind a router
//! count as translated: from here they look the same.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};

use crate::sys::net;
use crate::wire::noise::Message;

/// Most greetings of this process that are remembered: more than it has in flight.
const SENT_MAX: usize = 256;

/// Greetings that this process has sent.
static SENT: Mutex<VecDeque<Message>> = Mutex::new(VecDeque::new());

/// Remembers a greeting that is about to be sent.
pub(super) fn remember(greeting: &Message) {
    let mut sent = SENT.lock().unwrap_or_else(PoisonError::into_inner);
    if sent.len() == SENT_MAX {
        sent.pop_front();
    }
    sent.push_back(*greeting);
}

/// Whether a greeting for `to` that arrived `at` this board is to be answered.
pub(super) fn is_meant(greeting: &Message, to: SocketAddr, at: SocketAddr) -> bool {
    let (to, at) = (plain(to), plain(at));
    to == at || !(is_near(to.ip(), at.ip(), net::prefix_len(at.ip())) || is_own(greeting))
}

fn is_own(greeting: &Message) -> bool {
    SENT.lock().unwrap_or_else(PoisonError::into_inner).contains(greeting)
}

fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Whether both are addresses of one network, whose addresses have their first `prefix_len` bits in common.
/// If the length is unknown, that of most networks is assumed.
fn is_near(a: IpAddr, b: IpAddr, prefix_len: Option<u32>) -> bool {
    match (a, b) {
        _ if a.is_loopback() || b.is_loopback() => a.is_loopback() && b.is_loopback(),
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            (a.to_bits() ^ b.to_bits()).leading_zeros() >= prefix_len.unwrap_or(24)
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            (a.to_bits() ^ b.to_bits()).leading_zeros() >= prefix_len.unwrap_or(64)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_greeting_for_a_neighbour_is_not_answered() {
        let stranger = [9; 48];
        for (to, arrived, wanted) in [
            ("10.0.0.7:9998", "10.0.0.7:9998", true),
            ("10.0.0.7:9998", "[::ffff:10.0.0.7]:9998", true),
            ("10.0.0.8:9998", "10.0.0.7:9998", false),
            ("10.0.0.7:9997", "10.0.0.7:9998", false),
            ("127.0.0.2:9998", "127.0.0.1:9998", false),
            ("[fd00::1]:9998", "[fd00::2]:9998", false),
            // Behind a translator.
            ("3.14.15.92:9998", "10.0.0.7:9998", true),
            ("192.168.1.11:8000", "172.17.0.2:9998", true),
            ("127.0.0.1:8000", "172.17.0.2:9998", true),
        ] {
            assert_eq!(is_meant(&stranger, at(to), at(arrived)), wanted, "{to} {arrived}");
        }
    }

    #[test]
    fn neighbours_are_those_of_the_interfaces_network() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        for (a, b, prefix_len, wanted) in [
            ("10.0.5.7", "10.0.0.7", None, false),
            ("10.0.5.7", "10.0.0.7", Some(16), true),
            ("10.1.0.7", "10.0.0.7", Some(16), false),
            ("10.0.0.130", "10.0.0.7", Some(25), false),
            ("10.0.0.8", "10.0.0.7", Some(32), false),
            ("9.0.0.8", "10.0.0.7", Some(0), true),
            ("fd00:0:0:1::1", "fd00::2", None, false),
            ("fd00:0:0:1::1", "fd00::2", Some(48), true),
        ] {
            assert_eq!(is_near(ip(a), ip(b), prefix_len), wanted, "{a} {b} {prefix_len:?}");
        }
        assert_eq!(net::prefix_len(ip("127.0.0.1")), Some(8));
        assert_eq!(net::prefix_len(ip("3.14.15.92")), None);
    }

    #[test]
    fn what_this_process_sent_elsewhere_does_not_come_back() {
        let own = [8; 48];
        assert!(is_meant(&own, at("3.14.15.92:9998"), at("10.0.0.7:9998")));
        remember(&own);
        assert!(!is_meant(&own, at("3.14.15.92:9998"), at("10.0.0.7:9998")));
        assert!(is_meant(&own, at("10.0.0.7:9998"), at("10.0.0.7:9998")));
    }
}
