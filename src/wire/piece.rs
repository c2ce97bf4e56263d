//! Pieces of a datagram that is too long for its path.
//!
//! ```text
//! 0 u16  bytes of the whole datagram
//! 2 u8   index of the piece
//! 3 u8   pieces, 2 to 4; all but the last are of equal length, and the last may be shorter
//! 4      the piece's bytes
//! ```
//!
//! The header's counter is the frame's number, with the chunk in the bits above: pieces of one datagram that was sent
//! twice fit each other.

use super::WireError;
use super::datagram::{DATAGRAM_BYTES, DatagramHeader, DatagramKind, HEADER_LEN};
use super::fields::u16_at;

/// Most pieces of a datagram.
pub const PIECES_MAX: usize = 4;
/// Bytes in front of a piece in its datagram.
pub const PIECE_HEAD: usize = HEADER_LEN + HEAD;
/// Most bytes of all pieces of a datagram, with the bytes in front of each.
pub const PIECES_BYTES: usize = DATAGRAM_BYTES + PIECES_MAX * PIECE_HEAD;

const HEAD: usize = 4;

/// Bytes of the longest datagram on the wire if a full one is sent in `n` pieces.
pub const fn longest(n: usize) -> usize {
    match n {
        0 | 1 => DATAGRAM_BYTES,
        n => PIECE_HEAD + DATAGRAM_BYTES.div_ceil(n),
    }
}

/// Writes the `n` pieces of `datagram`, which has the header `of`, to `out`, each with its head in front. Returns the
/// bytes of each piece but the last, and of all pieces, heads included.
///
/// # Panics
/// If `n` is below 2 or above [`PIECES_MAX`], or if `datagram` is shorter than a header or longer than
/// [`DATAGRAM_BYTES`].
pub fn cut(
    of: &DatagramHeader,
    datagram: &[u8],
    n: usize,
    out: &mut [u8; PIECES_BYTES],
) -> (usize, usize) {
    assert!((2..=PIECES_MAX).contains(&n));
    assert!((HEADER_LEN..=DATAGRAM_BYTES).contains(&datagram.len()));
    let step = datagram.len().div_ceil(n);
    let counter = u64::from(of.chunk) << 32 | u64::from(of.seq);
    let mut end = 0;
    for (index, bytes) in datagram.chunks(step).enumerate() {
        let (head, rest) = out[end..].split_first_chunk_mut().expect("there is room for all");
        let payload = &mut rest[..HEAD + bytes.len()];
        payload[..2].copy_from_slice(&(datagram.len() as u16).to_le_bytes());
        (payload[2], payload[3]) = (index as u8, n as u8);
        payload[HEAD..].copy_from_slice(bytes);
        DatagramHeader::control(DatagramKind::Piece, of.session, counter, payload.len())
            .emit_for(head, payload);
        end += HEADER_LEN + payload.len();
    }
    (PIECE_HEAD + step, end)
}

/// A piece whose fields fit each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Bytes of the whole datagram.
    pub datagram_bytes: usize,
    /// Index of the piece, below `n`.
    pub index: usize,
    /// Number of pieces.
    pub n: usize,
    /// The piece's bytes.
    pub bytes: &'a [u8],
}

impl<'a> Piece<'a> {
    /// Reads a payload.
    ///
    /// # Errors
    /// If it is malformed.
    pub fn parse(payload: &'a [u8]) -> Result<Piece<'a>, WireError> {
        let have = payload.len();
        let (head, bytes) =
            payload.split_at_checked(HEAD).ok_or(WireError::Truncated { need: HEAD, have })?;
        let piece = Piece {
            datagram_bytes: usize::from(u16_at(head, 0)),
            index: usize::from(head[2]),
            n: usize::from(head[3]),
            bytes,
        };
        if !(HEADER_LEN..=DATAGRAM_BYTES).contains(&piece.datagram_bytes) {
            return Err(WireError::Field("datagram_bytes"));
        }
        if !(2..=PIECES_MAX).contains(&piece.n) {
            return Err(WireError::Field("n_pieces"));
        }
        if piece.index >= piece.n {
            return Err(WireError::Field("piece"));
        }
        let need = piece.place().len();
        if bytes.len() != need || need == 0 {
            return Err(WireError::Truncated { need, have: bytes.len() });
        }
        Ok(piece)
    }

    /// Range of the piece in the datagram.
    pub fn place(&self) -> std::ops::Range<usize> {
        let step = self.datagram_bytes.div_ceil(self.n);
        let start = (self.index * step).min(self.datagram_bytes);
        start..(start + step).min(self.datagram_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::datagram::{Datagram, split};

    const OF: DatagramHeader = DatagramHeader {
        kind: DatagramKind::Data,
        session: 5,
        seq: 7,
        chunk: 3,
        n_chunks: 9,
        frame_bytes: 12_000,
    };

    #[test]
    fn pieces_cover_a_datagram() {
        for bytes in [HEADER_LEN + 1, 700, 753, 1000, DATAGRAM_BYTES - 1, DATAGRAM_BYTES] {
            let datagram: Vec<u8> = (0..bytes).map(|i| i as u8).collect();
            for n in 2..=PIECES_MAX {
                let mut out = [0xa5; PIECES_BYTES];
                let (each, all) = cut(&OF, &datagram, n, &mut out);
                assert!(each <= longest(n));
                let mut whole = vec![0; bytes];
                let pieces: Vec<_> = out[..all].chunks(each).map(<[u8]>::to_vec).collect();
                assert_eq!(pieces.len(), n);
                assert!(split(&mut out[..all]).eq(pieces.iter().map(|piece| &piece[..])));
                for piece in &pieces {
                    let piece = Datagram::new_checked(&piece[..]).unwrap();
                    let header = DatagramHeader::parse(&piece).unwrap();
                    assert_eq!((header.kind, header.session), (DatagramKind::Piece, 5));
                    assert_eq!(header.counter(), 3 << 32 | 7);
                    let piece = Piece::parse(piece.payload()).unwrap();
                    assert_eq!((piece.datagram_bytes, piece.n), (bytes, n));
                    whole[piece.place()].copy_from_slice(piece.bytes);
                }
                assert!(whole == datagram);
            }
        }
    }

    #[test]
    fn a_piece_has_these_bytes() {
        let mut out = [0xa5; PIECES_BYTES];
        let (each, all) = cut(&OF, &[9; 64], 2, &mut out);
        assert_eq!((each, all), (68, 136));
        let wanted = [
            b'L', b'E', b'P', b'1', 1, 8, 3, 0, 5, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 1, 0, 36, 0,
            36, 0, 0, 0,
        ];
        assert_eq!(out[68..96], wanted);
        assert_eq!(out[100..105], [64, 0, 1, 2, 9]);
    }

    #[test]
    fn nonsense_is_refused() {
        let parse = |head: [u8; 4], bytes: usize| {
            let payload = [&head[..], &vec![0; bytes]].concat();
            Piece::parse(&payload).map(|piece| piece.index)
        };
        assert_eq!(parse([100, 0, 1, 2], 50), Ok(1));
        assert_eq!(parse([100, 0, 1, 2], 51), Err(WireError::Truncated { need: 50, have: 51 }));
        assert_eq!(parse([100, 0, 2, 2], 50), Err(WireError::Field("piece")));
        assert_eq!(parse([100, 0, 0, 1], 100), Err(WireError::Field("n_pieces")));
        assert_eq!(parse([100, 0, 0, 5], 20), Err(WireError::Field("n_pieces")));
        assert_eq!(parse([31, 0, 0, 2], 16), Err(WireError::Field("datagram_bytes")));
        assert_eq!(parse([0, 6, 0, 2], 768), Err(WireError::Field("datagram_bytes")));
        assert_eq!(Piece::parse(&[1, 2, 3]), Err(WireError::Truncated { need: 4, have: 3 }));
    }
}
