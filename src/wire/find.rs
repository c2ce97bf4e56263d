//! The search for boards that wait for calls: a master sends a datagram to all of its network, and boards with its key
//! answer.
//!
//! ```text
//! question and answer, 48 bytes
//!  0 u32 magic "LEPF", of an answer "LEPA"
//!  4 u32 version
//!  8 [16] nonce of the question, repeated in its answers
//! 24 u64 of an answer: random number of the board, which may answer from two addresses
//! 32 [16] tag over the bytes before it and, in an answer, its sender's address
//! ```
//!
//! An answer is no longer than its question, so that a forged sender address gains nothing.

use std::net::IpAddr;

use super::fields::{Writer, u32_at, u64_at};
use super::hello::Tag;
use super::opening::VERSION;
use super::seal::{Key, is_equal};

/// Bytes of a question, and of an answer.
pub const FIND_LEN: usize = 48;
/// Bytes before the tag.
const BODY_LEN: usize = 32;

const ASK: u32 = u32::from_le_bytes(*b"LEPF");
const ANSWER: u32 = u32::from_le_bytes(*b"LEPA");

/// Random bytes that distinguish a question from all others.
pub type Nonce = [u8; 16];

/// The broadcast that asks which boards wait.
pub fn question(key: &Key, nonce: &Nonce) -> [u8; FIND_LEN] {
    emit(key, ASK, nonce, (0, None))
}

/// The nonce of a question; `None` unless `bytes` are a question made with the key.
pub fn asked(key: &Key, bytes: &[u8]) -> Option<Nonce> {
    parse(key, ASK, bytes, None).map(|(nonce, _)| nonce)
}

/// The answer of `board` to the question with this nonce. It is valid only if sent from the address `from`.
pub fn answer(key: &Key, nonce: &Nonce, board: u64, from: IpAddr) -> [u8; FIND_LEN] {
    emit(key, ANSWER, nonce, (board, Some(from)))
}

/// The board that answers; `None` unless `bytes` are an answer to the question with this nonce and came from the
/// address that they name.
pub fn board(key: &Key, bytes: &[u8], nonce: &Nonce, from: IpAddr) -> Option<u64> {
    let (answered, board) = parse(key, ANSWER, bytes, Some(from))?;
    (answered == *nonce).then_some(board)
}

fn emit(
    key: &Key,
    magic: u32,
    nonce: &Nonce,
    (board, from): (u64, Option<IpAddr>),
) -> [u8; FIND_LEN] {
    let mut bytes = [0; FIND_LEN];
    Writer::new(&mut bytes).u32(magic).u32(VERSION);
    bytes[8..24].copy_from_slice(nonce);
    bytes[24..BODY_LEN].copy_from_slice(&board.to_le_bytes());
    let tag = tag(key, &bytes[..BODY_LEN], from);
    bytes[BODY_LEN..].copy_from_slice(&tag);
    bytes
}

fn parse(key: &Key, magic: u32, bytes: &[u8], from: Option<IpAddr>) -> Option<(Nonce, u64)> {
    let bytes: &[u8; FIND_LEN] = bytes.try_into().ok()?;
    let is_ours = u32_at(bytes, 0) == magic && u32_at(bytes, 4) == VERSION;
    let found = bytes[BODY_LEN..].try_into().ok()?;
    let is_proved = is_ours && is_equal(&tag(key, &bytes[..BODY_LEN], from), &found);
    is_proved.then(|| (bytes[8..24].try_into().unwrap_or_default(), u64_at(bytes, 24)))
}

fn tag(key: &Key, body: &[u8], from: Option<IpAddr>) -> Tag {
    match from.map(|from| from.to_canonical()) {
        None => key.tag("LEAP find", &[body]),
        Some(IpAddr::V4(ip)) => key.tag("LEAP find", &[body, &ip.octets()]),
        Some(IpAddr::V6(ip)) => key.tag("LEAP find", &[body, &ip.octets()]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boards_with_the_key_are_found() {
        let (key, other) = (Key::new([7; 32]), Key::new([8; 32]));
        let (nonce, later) = ([3; 16], [4; 16]);
        let (here, there) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let question = question(&key, &nonce);
        assert_eq!(asked(&key, &question), Some(nonce));
        let answered = answer(&key, &nonce, 11, here);
        assert_eq!(board(&key, &answered, &nonce, here), Some(11));
        let mapped = "::ffff:10.0.0.1".parse().unwrap();
        assert_eq!(board(&key, &answered, &nonce, mapped), Some(11));
        assert_eq!(board(&key, &answered, &later, here), None);
        // An answer that another machine forwards, or sends back, is not valid.
        assert_eq!(board(&key, &answered, &nonce, there), None);
        assert!(asked(&other, &question).is_none());
        assert!(asked(&key, &answered).is_none());
        assert_eq!(board(&key, &question, &nonce, here), None);
        for at in 0..FIND_LEN {
            let (mut question, mut answered) = (question, answered);
            question[at] ^= 1;
            answered[at] ^= 1;
            assert!(asked(&key, &question).is_none());
            assert_eq!(board(&key, &answered, &nonce, here), None);
        }
        assert!(asked(&key, &question[..FIND_LEN - 1]).is_none());
    }
}
