//! A board's requests for layers to another board: a TCP connection over which it names the layers, and gets them piece
//! by piece.
//!
//! ```text
//! opening of both ends, greeting, answer: see `opening`
//! then messages: u16 length, and that number of sealed bytes: see `talk`
//!
//! question, 84 bytes                   offer, 40 bytes
//!  0 u32 0 WANT, 1 HASH, 2 PIECE,       0 u32 1
//!        3 CANNOT                       4 u32 0
//!  4 u32 first layer; piece
//!  8 u32 layer behind the last, or      8 u32 × 2 layers
//!        0 for all that follow         16 u64 bytes of the file
//! 12 u32 1 on a further connection     24 u64 fingerprint of the model
//! 16 [32] name, UTF-8, zeros           32 u64 number of the rows; 0 for all rows
//! 48 u16 nodes of the board's team, or 0
//! 50 u16 index of the board in the team
//! 52 u16[16] shares of the nodes, zeros
//! ```
//!
//! WANT comes first: all rows of these layers, or the rows of one node of a team. Its answer is an offer, or `u32` 0
//! and a text with the reason for a refusal. HASH is answered by the SHA-256 of a piece, PIECE by its bytes, in one
//! message each. CANNOT is followed by a message like a refusal, `u32` 0 and a text: the board cannot keep these layers
//! for this reason. It has no answer. An offer is a file of these layers ([`crate::format`]); its pieces are [`PIECE_BYTES`] each, in order,
//! and the last one has the remaining bytes. A board may send questions before earlier ones are answered, and open
//! further connections for pieces of the same file.

use std::ops::Range;

use super::WireError;
use super::fields::{Writer, u16_at, u32_at, u64_at};
use super::frame::TEAM_NODES_MAX as NODES_MAX;
use super::name::{NAME_MAX, Name, printable, put_text, text};

/// Bytes of a question.
pub const QUESTION_LEN: usize = ROWS_AT + 4 + 2 * NODES_MAX;
/// Offset of a question's rows.
const ROWS_AT: usize = 16 + NAME_MAX;
/// Bytes of an offer.
pub const OFFER_LEN: usize = 40;
/// Bytes of every piece but the last.
pub const PIECE_BYTES: u64 = MESSAGE_MAX as u64;
/// Most bytes of a message.
pub const MESSAGE_MAX: usize = 1 << 15;
/// Bytes of the hash of a piece.
pub const HASH_LEN: usize = 32;
/// Most bytes of a text with a reason.
pub const REASON_MAX: usize = 256;

/// The rows of a team's node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Share of each node, in proportion to the others.
    pub shares: heapless::Vec<u16, NODES_MAX>,
    /// Index of the node in the team.
    pub own: u16,
}

impl Rows {
    fn parse(bytes: &[u8]) -> Result<Option<Rows>, WireError> {
        let (n, own) = (usize::from(u16_at(bytes, 0)), u16_at(bytes, 2));
        let shares = bytes[4..].as_chunks().0.iter().map(|share| u16::from_le_bytes(*share));
        let rows = Rows { shares: shares.take(n).collect(), own };
        let is_one = n <= NODES_MAX && usize::from(own) < n && !rows.shares.contains(&0);
        match (n, own) {
            (0, 0) => Ok(None),
            _ if is_one => Ok(Some(rows)),
            _ => Err(WireError::Field("rows")),
        }
    }

    fn emit(&self, out: &mut [u8]) {
        let mut out = Writer::new(out);
        out.u16(self.shares.len() as u16).u16(self.own);
        self.shares.iter().for_each(|share| {
            out.u16(*share);
        });
    }
}

/// A question of a board.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Asks for these layers, for a board of this name; for all from `start` on if `end` is 0.
    Want {
        /// First layer.
        start: u32,
        /// Layer behind the last.
        end: u32,
        /// The rows of these layers; `None` for all.
        rows: Option<Rows>,
        /// Name of the board.
        name: Name,
        /// Whether the board has another connection for this file already.
        is_further: bool,
    },
    /// Asks for the hash of a piece.
    Hash(u32),
    /// Asks for the bytes of a piece.
    Piece(u32),
    /// Asks for nothing: the board cannot keep what it wanted. The next message says why.
    Cannot,
}

impl Question {
    /// Reads a question.
    ///
    /// # Errors
    /// If it is malformed.
    pub fn parse(bytes: &[u8]) -> Result<Question, WireError> {
        if bytes.len() != QUESTION_LEN {
            return Err(WireError::Truncated { need: QUESTION_LEN, have: bytes.len() });
        }
        match u32_at(bytes, 0) {
            0 => Ok(Question::Want {
                start: u32_at(bytes, 4),
                end: u32_at(bytes, 8),
                rows: Rows::parse(&bytes[ROWS_AT..])?,
                name: text(&bytes[16..ROWS_AT]),
                is_further: u32_at(bytes, 12) == 1,
            }),
            1 => Ok(Question::Hash(u32_at(bytes, 4))),
            2 => Ok(Question::Piece(u32_at(bytes, 4))),
            3 => Ok(Question::Cannot),
            _ => Err(WireError::Field("question")),
        }
    }

    /// The question's bytes.
    pub fn emit(&self) -> [u8; QUESTION_LEN] {
        let mut bytes = [0; QUESTION_LEN];
        let fields = match self {
            Question::Want { start, end, rows, name, is_further } => {
                put_text(&mut bytes[16..ROWS_AT], name);
                rows.iter().for_each(|rows| rows.emit(&mut bytes[ROWS_AT..]));
                (0, *start, *end, u32::from(*is_further))
            }
            Question::Hash(piece) => (1, *piece, 0, 0),
            Question::Piece(piece) => (2, *piece, 0, 0),
            Question::Cannot => (3, 0, 0, 0),
        };
        Writer::new(&mut bytes).u32(fields.0).u32(fields.1).u32(fields.2).u32(fields.3);
        bytes
    }
}

/// A board's offer of layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The layers.
    pub layers: Range<u32>,
    /// Bytes of the file with these layers.
    pub bytes: u64,
    /// Fingerprint of the model.
    pub fingerprint: u64,
    /// Number that identifies the rows; 0 for all rows.
    pub rows: u64,
}

impl Offer {
    /// Number of pieces of the file.
    pub fn n_pieces(&self) -> u64 {
        self.bytes.div_ceil(PIECE_BYTES)
    }

    /// The offer's bytes.
    pub fn emit(&self) -> [u8; OFFER_LEN] {
        let mut bytes = [0; OFFER_LEN];
        let Offer { layers, bytes: len, fingerprint, rows } = self;
        let mut out = Writer::new(&mut bytes);
        out.u32(1).u32(0).u32(layers.start).u32(layers.end).u64(*len).u64(*fingerprint);
        out.u64(*rows);
        bytes
    }
}

/// The answer to WANT: an offer, or the reason for a refusal.
pub type Answer = Result<Offer, heapless::String<REASON_MAX>>;

/// Reads the answer to WANT.
///
/// # Errors
/// If it is malformed.
pub fn parse_answer(bytes: &[u8]) -> Result<Answer, WireError> {
    let have = bytes.len();
    match bytes.first_chunk().map(|kind| u32::from_le_bytes(*kind)) {
        Some(0) => Ok(Err(text(&bytes[4..]))),
        Some(1) if have == OFFER_LEN => {
            let offer = Offer {
                layers: u32_at(bytes, 8)..u32_at(bytes, 12),
                bytes: u64_at(bytes, 16),
                fingerprint: u64_at(bytes, 24),
                rows: u64_at(bytes, 32),
            };
            match offer.layers.is_empty() || offer.n_pieces() > u64::from(u32::MAX) {
                true => Err(WireError::Field("offer")),
                false => Ok(Ok(offer)),
            }
        }
        Some(1) | None => Err(WireError::Truncated { need: OFFER_LEN, have }),
        Some(_) => Err(WireError::Field("answer")),
    }
}

/// The bytes of a refusal with this reason.
pub fn emit_reason(why: &str) -> Vec<u8> {
    let why: heapless::String<REASON_MAX> = printable(why);
    [&0u32.to_le_bytes(), why.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_read_as_they_were_asked() {
        let want = |rows: Option<Rows>| Question::Want {
            is_further: rows.is_some(),
            start: 3,
            end: 0,
            rows,
            name: crate::wire::hello::name("pi"),
        };
        let rows =
            |shares: &[u16], own| Some(Rows { shares: shares.iter().copied().collect(), own });
        let of_team = [want(rows(&[40, 20, 1], 2)), want(rows(&[u16::MAX; NODES_MAX], 15))];
        let others = [want(None), Question::Hash(7), Question::Piece(u32::MAX), Question::Cannot];
        for question in of_team.into_iter().chain(others) {
            assert_eq!(Question::parse(&question.emit()), Ok(question));
        }
        for (shares, own) in [(&[40, 20][..], 2), (&[40, 0], 0), (&[], 1)] {
            let question = want(rows(shares, own)).emit();
            assert_eq!(Question::parse(&question), Err(WireError::Field("rows")));
        }
        let mut many = want(rows(&[1; NODES_MAX], 0)).emit();
        many[ROWS_AT] += 1;
        assert_eq!(Question::parse(&many), Err(WireError::Field("rows")));
        assert_eq!(Question::parse(&[4; QUESTION_LEN]), Err(WireError::Field("question")));
        assert!(Question::parse(&[0; QUESTION_LEN - 1]).is_err());
        assert!(Question::parse(&[0; QUESTION_LEN + 1]).is_err());
    }

    #[test]
    fn answers_are_read_as_they_were_given() {
        let offer = Offer { layers: 3..8, bytes: 3 * PIECE_BYTES + 1, fingerprint: 9, rows: 7 };
        assert_eq!(parse_answer(&offer.emit()), Ok(Ok(offer.clone())));
        assert_eq!(offer.n_pieces(), 4);
        let why = parse_answer(&emit_reason("no\nlayers")).unwrap().unwrap_err();
        assert_eq!(why, "no?layers");
        assert!(
            parse_answer(&emit_reason(&"é".repeat(300))).unwrap().unwrap_err().len() <= REASON_MAX
        );
    }

    #[test]
    fn answers_without_meaning_are_refused() {
        let offer = Offer { layers: 3..8, bytes: 1, fingerprint: 9, rows: 0 };
        for len in 0..OFFER_LEN {
            assert!(parse_answer(&offer.emit()[..len]).is_err(), "{len}");
        }
        let backwards = Offer { layers: 8..8, ..offer.clone() };
        assert!(parse_answer(&backwards.emit()).is_err());
        let endless = Offer { bytes: u64::MAX, ..offer };
        assert!(parse_answer(&endless.emit()).is_err());
        assert!(parse_answer(&[9; 40]).is_err());
    }
}
