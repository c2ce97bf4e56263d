//! The sending side of a link, and the control datagrams of its sessions.

use std::net::SocketAddr;

use super::burst::Burst;
use crate::sys::net::Sending;
use crate::wire::WireError;
use crate::wire::datagram::{DATAGRAM_BYTES, DatagramHeader, DatagramKind, HEADER_LEN, TAG_BYTES};
use crate::wire::seal::SessionKeys;

/// Output for datagrams. It may lose some of them.
pub trait Wire {
    /// Sends chunks of a frame. If there is no room, the sender tries again later.
    fn burst(&mut self, to: SocketAddr, burst: &Burst<'_>) -> Sending;
    /// Sends a datagram of any other kind.
    fn control(&mut self, to: SocketAddr, datagram: &[u8]);
    /// Sends datagrams that lie side by side, of `datagram_bytes` each but the last, which may be shorter.
    fn pieces(&mut self, to: SocketAddr, bytes: &[u8], datagram_bytes: usize) -> Sending {
        for datagram in bytes.chunks(datagram_bytes) {
            self.control(to, datagram);
        }
        Sending::Gone
    }
}

/// Sends a control datagram of a session, sealed if it has keys.
pub(super) fn send_control(
    wire: &mut impl Wire,
    to: SocketAddr,
    (kind, session, counter): (DatagramKind, u64, u64),
    keys: Option<&SessionKeys>,
    payload: &[u8],
) {
    let tag_bytes = if keys.is_some() { TAG_BYTES } else { 0 };
    let end = HEADER_LEN + payload.len() + tag_bytes;
    let mut datagram = [0; DATAGRAM_BYTES];
    let (raw, rest) = datagram.split_first_chunk_mut().expect("it is longer than a header");
    let body = &mut rest[..end - HEADER_LEN];
    body[..payload.len()].copy_from_slice(payload);
    let header = DatagramHeader::control(kind, session, counter, body.len());
    header.emit(raw, |_| 0);
    if let Some(keys) = keys {
        keys.seal(&header, raw, body);
    }
    header.emit_for(raw, body);
    wire.control(to, &datagram[..end]);
}

/// The plain payload of a session's control datagram.
pub(super) fn open_control<'a>(
    header: &DatagramHeader,
    bytes: &'a mut [u8],
    keys: Option<&mut SessionKeys>,
) -> Result<&'a [u8], WireError> {
    let (raw, payload) = bytes.split_at_mut(HEADER_LEN);
    let len = match keys {
        Some(keys) => keys.open(header, raw, payload)?,
        None => payload.len(),
    };
    Ok(&payload[..len])
}
