//! Joins datagrams that come in pieces, in bounded memory: a new datagram replaces an incomplete old one.

use crate::wire::datagram::{DATAGRAM_BYTES, DatagramHeader};
use crate::wire::piece::Piece;

/// Most datagrams that are joined at a time.
const PLACES: usize = 32;

/// Where pieces are collected.
#[derive(Default)]
pub(super) struct Joiner {
    places: Box<[Partial]>,
}

/// Pieces of one datagram.
struct Partial {
    /// Session and number of the datagram, its bytes and pieces.
    of: (u64, u64, usize, usize),
    /// Pieces that have arrived, as bits.
    have: u8,
    bytes: [u8; DATAGRAM_BYTES],
}

const EMPTY: Partial = Partial { of: (0, 0, 0, 0), have: 0, bytes: [0; DATAGRAM_BYTES] };

impl Joiner {
    pub(super) fn new() -> Joiner {
        Joiner { places: (0..PLACES).map(|_| EMPTY).collect() }
    }

    /// Takes a piece with its datagram's header. Returns the whole datagram, once, when no piece is missing any more.
    pub(super) fn join(&mut self, header: &DatagramHeader, piece: &Piece<'_>) -> Option<&mut [u8]> {
        // Neighbouring chunks and frames get different places.
        let index = header.seq.wrapping_mul(13).wrapping_add(header.chunk.into()) as usize % PLACES;
        let place = &mut self.places[index];
        let of = (header.session, header.counter(), piece.datagram_bytes, piece.n);
        if place.of != of {
            (place.of, place.have) = (of, 0);
        }
        place.bytes[piece.place()].copy_from_slice(piece.bytes);
        place.have |= 1 << piece.index;
        if place.have.count_ones() as usize != piece.n {
            return None;
        }
        place.have = 0;
        Some(&mut place.bytes[..piece.datagram_bytes])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::datagram::{Datagram, DatagramKind};
    use crate::wire::piece::{PIECES_BYTES, cut};

    /// The pieces of chunk `chunk` with their headers.
    fn pieces(chunk: u16, n: usize) -> Vec<(DatagramHeader, Vec<u8>)> {
        let (session, seq, n_chunks, frame_bytes) = (5, 7, 92, 128_000);
        let of =
            DatagramHeader { kind: DatagramKind::Data, session, seq, chunk, n_chunks, frame_bytes };
        let mut out = [0; PIECES_BYTES];
        let (each, all) = cut(&of, &[chunk as u8; DATAGRAM_BYTES], n, &mut out);
        let parse = |bytes: &[u8]| {
            let datagram = Datagram::new_checked(bytes).unwrap();
            (DatagramHeader::parse(&datagram).unwrap(), datagram.payload().to_vec())
        };
        out[..all].chunks(each).map(parse).collect()
    }

    fn join(joiner: &mut Joiner, (header, payload): &(DatagramHeader, Vec<u8>)) -> Option<Vec<u8>> {
        let joined = joiner.join(header, &Piece::parse(payload).unwrap());
        joined.map(|bytes| bytes.to_vec())
    }

    #[test]
    fn pieces_of_many_datagrams_come_in_any_order() {
        let mut joiner = Joiner::new();
        let all: Vec<_> = (0..PLACES as u16).map(|chunk| pieces(chunk, 3)).collect();
        for i in [2, 0, 0, 1] {
            for (chunk, pieces) in all.iter().enumerate() {
                let wanted = (i == 1).then(|| vec![chunk as u8; DATAGRAM_BYTES]);
                assert_eq!(join(&mut joiner, &pieces[i]), wanted);
            }
        }
        assert_eq!(join(&mut joiner, &all[0][1]), None, "once");
    }

    #[test]
    fn pieces_of_different_cuts_and_datagrams_do_not_mix() {
        let mut joiner = Joiner::new();
        let (halves, thirds, other) = (pieces(1, 2), pieces(1, 3), pieces(1 + PLACES as u16, 2));
        for piece in [&halves[0], &thirds[1], &halves[1], &other[0], &halves[1], &thirds[0]] {
            assert_eq!(join(&mut joiner, piece), None);
        }
        assert_eq!(join(&mut joiner, &halves[0]), None);
        assert_eq!(join(&mut joiner, &halves[1]), Some(vec![1; DATAGRAM_BYTES]));
    }
}
