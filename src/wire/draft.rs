//! Drafts that another board makes for a master's texts. The connection is opened by [`super::opening`].
//!
//! ```text
//! ask of the master                      answer of the draft node
//!  0 u32 17 HASH, 18 TOKEN, 19 TEXT,      0 u32 16 NODE, 17 HASH, 18 TOKEN,
//!        20 PING                                19 DRAFT, 20 PONG
//!  4 u32 HASH: tokens; TOKEN: its id;     4 NODE: u32 texts, u32 tokens that it knows, u32 longest text in
//!        TEXT: which text                    ids, [32] hash of all tokens; HASH: [32] hash; TOKEN: its bytes,
//!                                            of which as many as 64 are sent; DRAFT: u32 which text
//!  8 u32 TEXT: serial number              8 u32 DRAFT: serial number
//! 12 u32 TEXT: ids that stay as they     12 u32 DRAFT: ids of this draft that came before
//!        were                            16 u32 × DRAFT: ids
//! 16 u32 TEXT: ids that are wanted
//! 20 u32 × TEXT: ids
//! ```
//!
//! The node becomes a member of the master's group, by frames of [`super::frame`]. An OPEN without parts comes first;
//! its streams are the texts wanted at the same time. Its answer is READY and then NODE, or REFUSE. HASH is answered by
//! the SHA-256 of the first tokens, each as a `u32` length and its bytes: it shows the master whether both have equal
//! tokens. TEXT replaces the text behind the ids that stay. The text is complete when ids are wanted. The node then
//! sends its draft in several DRAFTs in a row, each with the ids that are ready. The next TEXT with the same index
//! starts a new draft. If the new text is the beginning of the known text with its draft, the rest of the draft stays
//! and is sent at once.

use super::fields::{array, u32_at};
use super::frame::{self, Frame, HEADER_LEN, NodeLine, Parts, Repr, Sizes, Split, WHY_MAX, Why};
use super::give::MESSAGE_MAX;
use super::{Dtype, KvType, WireError};

/// Most texts at the same time.
pub const TEXTS_MAX: usize = 16;
/// Most ids that may be wanted at a time.
pub const WANTED_MAX: usize = 32;
/// Most bytes of a token that are sent.
pub const TOKEN_MAX: usize = 64;
/// Bytes of a hash.
pub const HASH_LEN: usize = 32;
/// Most ids of a TEXT.
pub const IDS_MAX: usize = (MESSAGE_MAX - TEXT_LEN) / 4;
/// Most bytes of any answer.
pub const ANSWER_MAX: usize = HEADER_LEN + WHY_MAX;

/// Bytes of a TEXT and of a DRAFT before their ids.
const TEXT_LEN: usize = 20;
const DRAFT_LEN: usize = 16;
const NODE_LEN: usize = 16 + HASH_LEN;

const _: () = assert!(ANSWER_MAX >= DRAFT_LEN + 4 * WANTED_MAX && ANSWER_MAX >= NODE_LEN);

/// Token ids on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ids<'a>(&'a [u8]);

impl<'a> Ids<'a> {
    fn parse(bytes: &'a [u8], n_max: usize) -> Result<Ids<'a>, WireError> {
        match bytes.len() {
            len if len % 4 != 0 => {
                Err(WireError::Truncated { need: len.next_multiple_of(4), have: len })
            }
            len if len / 4 > n_max => Err(WireError::Oversize { len }),
            _ => Ok(Ids(bytes)),
        }
    }

    /// The ids.
    pub fn iter(self) -> impl Iterator<Item = u32> + 'a {
        self.0.as_chunks::<4>().0.iter().map(|id| u32::from_le_bytes(*id))
    }

    /// Number of ids.
    pub fn len(self) -> usize {
        self.0.len() / 4
    }

    /// Whether there are no ids.
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }
}

/// Replaces the content of `out` by the OPEN of `epoch` for `n_texts` texts at the same time.
pub fn emit_open(epoch: u32, n_texts: u16, out: &mut Vec<u8>) {
    // Sizes that a draft node chooses itself are 0.
    let sizes = Sizes {
        ctx_len: 0,
        n_streams: n_texts,
        n_pages: 0,
        max_batch: 0,
        max_logits: 0,
        kv: KvType::F16,
        wire: Dtype::F32,
        dim: 0,
    };
    put_frame(out, |out| frame::emit_open((epoch, None), &sizes, Parts::Drafts, &[], out));
}

/// Reads an OPEN: its epoch, and the number of texts wanted at the same time, up to [`TEXTS_MAX`].
///
/// # Errors
/// If `bytes` are no such OPEN, or want too many texts.
pub fn parse_open(bytes: &[u8]) -> Result<(u32, usize), WireError> {
    match Frame::parse(bytes)?.repr() {
        Repr::Open { epoch, sizes, split: Split::Drafts, .. } => match sizes.n_streams.into() {
            n_texts if n_texts <= TEXTS_MAX => Ok((epoch, n_texts)),
            _ => Err(WireError::Field("texts")),
        },
        _ => Err(WireError::Field("what is opened")),
    }
}

/// Replaces the content of `out` by the node's reply to the OPEN of `epoch`: its line if it is ready, or the reason for
/// a refusal.
pub fn emit_reply(epoch: u32, reply: Result<&NodeLine, &str>, out: &mut Vec<u8>) {
    put_frame(out, |out| match reply {
        Ok(line) => frame::emit_ready(epoch, line, out),
        Err(why) => frame::emit_refuse(epoch, why, out),
    });
}

/// Reads the reply to the OPEN of `epoch`.
///
/// # Errors
/// If `bytes` are no such reply.
pub fn parse_reply(bytes: &[u8], epoch: u32) -> Result<Result<NodeLine, Why>, WireError> {
    let frame = Frame::parse(bytes)?;
    match frame.repr() {
        Repr::Ready { epoch: of } if of == epoch => {
            let line = frame.lines().next().transpose()?;
            line.map(Ok).ok_or(WireError::Field("line"))
        }
        Repr::Refuse { epoch: of } if of == epoch => Ok(Err(frame.why())),
        _ => Err(WireError::Field("reply")),
    }
}

fn put_frame(out: &mut Vec<u8>, emit: impl FnOnce(&mut [u8]) -> Option<usize>) {
    out.resize(ANSWER_MAX, 0);
    // Every frame of this module fits.
    let len = emit(out).unwrap_or(0);
    out.truncate(len);
}

/// A message of a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask<'a> {
    /// Asks for the hash of this number of tokens.
    Hash(u32),
    /// Asks for the bytes of this token.
    Token(u32),
    /// Asks for a draft of this text.
    Text(Text<'a>),
    /// Asks whether the other end is alive.
    Ping,
}

/// A text, or a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text<'a> {
    /// Index of the text.
    pub index: u32,
    /// Serial number of the text's state, which tells its drafts from those of earlier states.
    pub serial: u32,
    /// Number of ids at the beginning that stay.
    pub from: u32,
    /// Number of ids that are wanted, up to [`WANTED_MAX`]; 0 if more of the text follows.
    pub wanted: u32,
    /// Ids behind the beginning that stays.
    pub ids: Ids<'a>,
}

impl<'a> Ask<'a> {
    /// Reads an ask.
    ///
    /// # Errors
    /// If it is malformed.
    pub fn parse(bytes: &'a [u8]) -> Result<Ask<'a>, WireError> {
        let have = bytes.len();
        if have < 8 {
            return Err(WireError::Truncated { need: 8, have });
        }
        let number = u32_at(bytes, 4);
        match (u32_at(bytes, 0), have) {
            (17, 8) => Ok(Ask::Hash(number)),
            (18, 8) => Ok(Ask::Token(number)),
            (20, 8) if number == 0 => Ok(Ask::Ping),
            (19, TEXT_LEN..) => {
                let [serial, from, wanted] = [8, 12, 16].map(|at| u32_at(bytes, at));
                if number as usize >= TEXTS_MAX || wanted as usize > WANTED_MAX {
                    return Err(WireError::Field("text"));
                }
                let ids = Ids::parse(&bytes[TEXT_LEN..], IDS_MAX)?;
                Ok(Ask::Text(Text { index: number, serial, from, wanted, ids }))
            }
            _ => Err(WireError::Field("ask")),
        }
    }

    /// Replaces the content of `out` by the ask's bytes, at most [`MESSAGE_MAX`].
    pub fn emit(&self, out: &mut Vec<u8>) {
        let (kind, number) = match self {
            Ask::Hash(n) => (17, *n),
            Ask::Token(id) => (18, *id),
            Ask::Text(text) => return emit_text(text, text.ids.iter(), out),
            Ask::Ping => (20, 0),
        };
        put(out, &[kind, number]);
    }
}

/// Writes `text` to `out`, with `ids` in place of its own ids.
pub fn emit_text(text: &Text<'_>, ids: impl Iterator<Item = u32>, out: &mut Vec<u8>) {
    put(out, &[19, text.index, text.serial, text.from, text.wanted]);
    ids.for_each(|id| out.extend_from_slice(&id.to_le_bytes()));
}

fn put(out: &mut Vec<u8>, fields: &[u32]) {
    out.clear();
    fields.iter().for_each(|field| out.extend_from_slice(&field.to_le_bytes()));
}

/// A message of a draft node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// Abilities of the node.
    Node(Node),
    /// The hash of the tokens that were asked for.
    Hash([u8; HASH_LEN]),
    /// The bytes of a token.
    Token(&'a [u8]),
    /// Ids of a draft.
    Draft(Draft<'a>),
    /// Answers [`Ask::Ping`].
    Pong,
}

/// Abilities of a draft node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// Texts at the same time; at most the number asked for.
    pub n_texts: u32,
    /// Tokens in its vocabulary.
    pub vocab_len: u32,
    /// Ids of its longest text.
    pub ctx_len: u32,
    /// Hash of all its tokens.
    pub hash: [u8; HASH_LEN],
}

/// A part of a draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draft<'a> {
    /// Index of the text.
    pub index: u32,
    /// Serial number of the text's state.
    pub serial: u32,
    /// Ids of this draft in earlier answers.
    pub at: u32,
    /// The next ids: at least one, and together with `at` no more than are wanted.
    pub ids: Ids<'a>,
}

impl<'a> Answer<'a> {
    /// Reads an answer.
    ///
    /// # Errors
    /// If it is malformed.
    pub fn parse(bytes: &'a [u8]) -> Result<Answer<'a>, WireError> {
        let have = bytes.len();
        if have < 4 {
            return Err(WireError::Truncated { need: 4, have });
        }
        match (u32_at(bytes, 0), have) {
            (16, NODE_LEN) => {
                let [n_texts, vocab_len, ctx_len] = [4, 8, 12].map(|at| u32_at(bytes, at));
                match n_texts as usize <= TEXTS_MAX && ctx_len > 0 {
                    true => Ok(Answer::Node(Node {
                        n_texts,
                        vocab_len,
                        ctx_len,
                        hash: array(bytes, 16),
                    })),
                    false => Err(WireError::Field("node")),
                }
            }
            (17, 36) => Ok(Answer::Hash(array(bytes, 4))),
            (18, _) if have <= 4 + TOKEN_MAX => Ok(Answer::Token(&bytes[4..])),
            (19, DRAFT_LEN..) => {
                let [index, serial, at] = [4, 8, 12].map(|at| u32_at(bytes, at));
                let n_max = WANTED_MAX.saturating_sub(at as usize);
                let ids = Ids::parse(&bytes[DRAFT_LEN..], n_max)?;
                match ids.is_empty() || index as usize >= TEXTS_MAX {
                    true => Err(WireError::Field("draft")),
                    false => Ok(Answer::Draft(Draft { index, serial, at, ids })),
                }
            }
            (20, 4) => Ok(Answer::Pong),
            _ => Err(WireError::Field("answer")),
        }
    }

    /// Replaces the content of `out` by the answer's bytes, at most [`ANSWER_MAX`].
    pub fn emit(&self, out: &mut Vec<u8>) {
        match self {
            Answer::Node(node) => {
                put(out, &[16, node.n_texts, node.vocab_len, node.ctx_len]);
                out.extend_from_slice(&node.hash);
            }
            Answer::Hash(hash) => {
                put(out, &[17]);
                out.extend_from_slice(hash);
            }
            Answer::Token(bytes) => {
                put(out, &[18]);
                out.extend_from_slice(&bytes[..bytes.len().min(TOKEN_MAX)]);
            }
            Answer::Draft(draft) => emit_draft(draft, draft.ids.iter(), out),
            Answer::Pong => put(out, &[20]),
        }
    }
}

/// Writes `draft` to `out`, with `ids` in place of its own ids.
pub fn emit_draft(draft: &Draft<'_>, ids: impl Iterator<Item = u32>, out: &mut Vec<u8>) {
    put(out, &[19, draft.index, draft.serial, draft.at]);
    ids.for_each(|id| out.extend_from_slice(&id.to_le_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDS: [u8; 8] = [1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];

    fn texts() -> [Text<'static>; 2] {
        let whole = Text { index: 15, serial: 7, from: 9, wanted: 32, ids: Ids(&IDS) };
        [whole, Text { wanted: 0, ids: Ids(&[]), ..whole }]
    }

    #[test]
    fn what_is_asked_is_heard() {
        let mut bytes = Vec::new();
        let [whole, part] = texts().map(Ask::Text);
        for ask in [Ask::Hash(9), Ask::Token(u32::MAX), whole, part, Ask::Ping] {
            ask.emit(&mut bytes);
            assert_eq!(Ask::parse(&bytes), Ok(ask));
        }
        assert!(Ids(&IDS).iter().eq([1, u32::MAX]));
    }

    #[test]
    fn what_is_answered_is_heard() {
        let mut bytes = Vec::new();
        let node = Node { n_texts: 3, vocab_len: 4096, ctx_len: 512, hash: [7; HASH_LEN] };
        let draft = Draft { index: 2, serial: u32::MAX, at: 30, ids: Ids(&IDS) };
        let others = [Answer::Hash([8; HASH_LEN]), Answer::Token(b"the"), Answer::Pong];
        let answers = [Answer::Node(node), Answer::Draft(draft)];
        for answer in answers.into_iter().chain(others) {
            answer.emit(&mut bytes);
            assert_eq!(Answer::parse(&bytes), Ok(answer));
            assert!(bytes.len() <= ANSWER_MAX);
        }
        Answer::Token(&[b'a'; 999]).emit(&mut bytes);
        assert_eq!(Answer::parse(&bytes), Ok(Answer::Token(&[b'a'; TOKEN_MAX])));
    }

    #[test]
    fn a_draft_node_joins_as_a_member_does() {
        let mut bytes = Vec::new();
        for n_texts in [0, 16] {
            emit_open(7, n_texts, &mut bytes);
            assert_eq!(parse_open(&bytes), Ok((7, n_texts.into())));
        }
        emit_open(7, 17, &mut bytes);
        assert!(parse_open(&bytes).is_err());
        let line = NodeLine { threads: 4, ..NodeLine::default() };
        emit_reply(7, Ok(&line), &mut bytes);
        assert_eq!(parse_reply(&bytes, 7), Ok(Ok(line)));
        assert!(parse_open(&bytes).is_err() && parse_reply(&bytes, 8).is_err());
        emit_reply(7, Err("no room"), &mut bytes);
        assert_eq!(parse_reply(&bytes, 7).unwrap().unwrap_err().as_str(), "no room");
        assert!(bytes.len() <= ANSWER_MAX && Answer::parse(&bytes).is_err());
    }

    #[test]
    fn asks_without_meaning_are_refused() {
        let mut whole = Vec::new();
        Ask::Text(texts()[0]).emit(&mut whole);
        for len in 0..whole.len() {
            assert_eq!(Ask::parse(&whole[..len]).is_ok(), [20, 24].contains(&len), "{len}");
        }
        // An unknown kind, and a text and numbers of ids that are out of range.
        for (at, byte) in [(0, 21), (0, 0), (4, 16), (7, 1), (16, 33), (19, 1)] {
            let mut bytes = whole.clone();
            bytes[at] = byte;
            assert!(Ask::parse(&bytes).is_err(), "{at}");
        }
        for kind in [17, 18, 20] {
            assert!(Ask::parse(&[kind, 0, 0, 0, 0, 0, 0, 0, 0]).is_err());
        }
        let mut long = whole[..TEXT_LEN].to_vec();
        long.resize(TEXT_LEN + 4 * (IDS_MAX + 1), 0);
        assert!(Ask::parse(&long).is_err());
    }

    #[test]
    fn answers_without_meaning_are_refused() {
        let mut whole = Vec::new();
        Answer::Draft(Draft { index: 2, serial: 5, at: 30, ids: Ids(&IDS) }).emit(&mut whole);
        for len in 0..whole.len() {
            assert_eq!(Answer::parse(&whole[..len]).is_ok(), len == 20, "{len}");
        }
        // An unknown kind, a text out of range, more ids than may be wanted, and an overflow.
        for (at, byte) in [(0, 21), (1, 1), (4, 16), (12, 31), (15, 0xff)] {
            let mut bytes = whole.clone();
            bytes[at] = byte;
            assert!(Answer::parse(&bytes).is_err(), "{at}");
        }
        let node = Node { n_texts: 17, vocab_len: 1, ctx_len: 1, hash: [0; HASH_LEN] };
        for nothing in [node, Node { n_texts: 1, ctx_len: 0, ..node }] {
            Answer::Node(nothing).emit(&mut whole);
            assert!(Answer::parse(&whole).is_err());
        }
        assert!(Answer::parse(&[17; 35]).is_err());
        assert!(Answer::parse(&[&[18, 0, 0, 0][..], &[b'a'; TOKEN_MAX + 1]].concat()).is_err());
    }
}
