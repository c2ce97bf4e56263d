//! The opening of a TCP connection between two boards, before the first sealed message.
//!
//! ```text
//! opening, 16 bytes, of both ends      destination, 24 bytes, of the caller
//!  0 u32 magic "LEPG"                   0 [16] IPv6 address, or IPv4 in IPv6
//!  4 u32 version                       16 u16 port
//!  8 u32 purpose: 1 orders,            18 [6] 0
//!        2 layers, 3 guesses
//! 12 u32 0
//! ```
//!
//! The caller sends its opening, the destination and a greeting. The listener sends its own opening, and then an answer
//! to the greeting or a no: 48 bytes, the first of which is the reason and the others 0. Greeting and answer are
//! messages of [`super::noise`]. The caller's opening and destination are their prologue: a greeting that an attacker
//! forwards to a port of another purpose, or to another board, opens nothing there.

use std::net::{IpAddr, SocketAddr};

use super::WireError;
use super::fields::{Writer, u32_at};
use super::noise::{MESSAGE_LEN, Message};

/// Bytes of an opening, which both ends send.
pub const OPENING_LEN: usize = 16;
/// Bytes of a destination.
pub const DESTINATION_LEN: usize = 24;
/// Bytes of the greeting's prologue.
pub const PROLOGUE_LEN: usize = OPENING_LEN + DESTINATION_LEN;

const MAGIC: u32 = u32::from_le_bytes(*b"LEPG");
/// Version of the openings; both ends must have the same.
pub const VERSION: u32 = 8;

/// Purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Purpose {
    /// A master calls a board: [`super::call`].
    Orders = 1,
    /// A board gets layers: [`super::give`].
    Layers = 2,
    /// A master asks for drafts of texts: [`super::draft`].
    Guesses = 3,
}

/// The opening of a connection for this purpose.
pub fn opening(purpose: Purpose) -> [u8; OPENING_LEN] {
    let mut bytes = [0; OPENING_LEN];
    Writer::new(&mut bytes).u32(MAGIC).u32(VERSION).u32(purpose as u32);
    bytes
}

/// The fields of an opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// Version of the sender.
    pub version: u32,
    /// Purpose of the connection; `None` if this version does not know it.
    pub purpose: Option<Purpose>,
}

impl Opening {
    /// Reads an opening.
    ///
    /// # Errors
    /// [`WireError::Field`] if these bytes are something else.
    pub fn parse(bytes: &[u8; OPENING_LEN]) -> Result<Opening, WireError> {
        if u32_at(bytes, 0) != MAGIC {
            return Err(WireError::Field("magic"));
        }
        let all = [Purpose::Orders, Purpose::Layers, Purpose::Guesses];
        let purpose = all.into_iter().find(|purpose| *purpose as u32 == u32_at(bytes, 8));
        Ok(Opening { version: u32_at(bytes, 4), purpose })
    }
}

/// Bytes that the caller sends before its greeting to `to`: the greeting's prologue.
pub fn prologue(purpose: Purpose, to: SocketAddr) -> [u8; PROLOGUE_LEN] {
    let mut bytes = [0; PROLOGUE_LEN];
    bytes[..OPENING_LEN].copy_from_slice(&opening(purpose));
    let ip = match to.ip().to_canonical() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    Writer::new(&mut bytes[OPENING_LEN..]).put(&ip.octets()).u16(to.port());
    bytes
}

/// The address in a destination.
pub fn destination(bytes: &[u8; DESTINATION_LEN]) -> SocketAddr {
    let (ip, port) = bytes.split_at(16);
    let ip: [u8; 16] = ip.try_into().unwrap_or_default();
    SocketAddr::new(IpAddr::from(ip).to_canonical(), u16::from_le_bytes([port[0], port[1]]))
}

/// Reasons for not answering a greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum No {
    /// The greeting was made with another key.
    Key = 1,
    /// The greeting was meant for another address.
    Destination = 2,
}

impl No {
    /// Reads a no; `None` if the bytes are an answer.
    pub fn parse(bytes: &Message) -> Option<No> {
        let is_no = bytes[1..] == [0; MESSAGE_LEN - 1];
        [No::Key, No::Destination].into_iter().find(|no| is_no && *no as u8 == bytes[0])
    }

    /// The bytes of the no.
    pub fn emit(self) -> Message {
        let mut bytes = [0; MESSAGE_LEN];
        bytes[0] = self as u8;
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_opening_says_its_version_and_purpose() {
        for purpose in [Purpose::Orders, Purpose::Layers, Purpose::Guesses] {
            let wanted = Opening { version: VERSION, purpose: Some(purpose) };
            assert_eq!(Opening::parse(&opening(purpose)), Ok(wanted));
        }
        let mut later = opening(Purpose::Orders);
        (later[4], later[8]) = (9, 9);
        assert_eq!(Opening::parse(&later), Ok(Opening { version: 9, purpose: None }));
        assert!(Opening::parse(b"GET / HTTP/1.1\r\n").is_err());
    }

    #[test]
    fn a_destination_is_the_address_that_was_meant() {
        for (to, wanted) in [
            ("10.0.0.7:9998", "10.0.0.7:9998"),
            ("[::ffff:10.0.0.7]:9998", "10.0.0.7:9998"),
            ("[fe80::7]:1", "[fe80::7]:1"),
        ] {
            let bytes = prologue(Purpose::Layers, to.parse().unwrap());
            assert_eq!(bytes[..OPENING_LEN], opening(Purpose::Layers));
            let named = destination(bytes[OPENING_LEN..].first_chunk().unwrap());
            assert_eq!(named, wanted.parse().unwrap());
        }
    }

    #[test]
    fn a_no_is_no_answer() {
        for no in [No::Key, No::Destination] {
            assert_eq!(No::parse(&no.emit()), Some(no));
        }
        for other in [[0; MESSAGE_LEN], [1; MESSAGE_LEN]] {
            assert_eq!(No::parse(&other), None);
        }
    }
}
