//! `tokenizer.bin`: a vocabulary, and a trailer that says how to use it.
//!
//! ```text
//! u32 longest token in bytes
//! per id: f32 score, u32 length, bytes            (the published format ends here)
//! trailer:
//!   u32 version (1)      u32 n_vocab
//!   u8  kind             u8  chat template        u8 merge rule      u8 zero
//!   u32 flags            u32 bos id, or all ones
//!   u32 count (≤ 8), u32 stop ids
//!   u32 count, per token that is not a normal one: u32 id (ascending), u8 token kind
//!   u32 count, per listed merge, first to apply first: u32 left id, u32 right id
//! footer, the last 12 bytes of the file:
//!   u32 bytes of the trailer   u32 CRC32 of all before the footer   u32 magic "LEAT"
//! ```
//!
//! A higher score merges first; byte-level vocabularies store minus the rank. Byte-level
//! tokens are raw bytes. SentencePiece tokens are text with spaces where the model has
//! `▁`, and byte pieces are the text `<0x0A>`.
//!
//! A file without the trailer is the published format. Its kind is inferred: `<unk>`, `<s>`
//! and `</s>` first mean SentencePiece as in Llama 2, anything else means Llama 3.

use super::cursor::Cursor;
use super::{ChatTemplate, Error};

const FOOTER_MAGIC: u32 = u32::from_le_bytes(*b"LEAT");
const FOOTER_BYTES: usize = 12;
const TRAILER_VERSION: u32 = 1;
const NO_ID: u32 = u32::MAX;
/// Most stop ids a model or tokenizer file holds.
pub const STOP_IDS_MAX: usize = 8;

/// How text becomes tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Bytes, merged inside the pieces of the Llama 3 splitter.
    ByteLevel = 0,
    /// Characters of the whole text, merged as SentencePiece BPE models are.
    SentencePiece = 1,
}

impl Kind {
    fn from_id(id: u8) -> Option<Kind> {
        [Kind::ByteLevel, Kind::SentencePiece].into_iter().find(|&k| k as u8 == id)
    }
}

/// What a vocabulary entry is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TokenKind {
    /// Text, reached by merging.
    Normal = 0,
    /// Stands for text that no other token covers.
    Unknown = 1,
    /// A marker that plain text never becomes.
    Control = 2,
    /// Text that is always one token, before anything merges.
    UserDefined = 3,
    /// One byte of a character the vocabulary lacks.
    Byte = 4,
    /// Never the result of encoding; merges may pass through it.
    Unused = 5,
}

impl TokenKind {
    const ALL: [TokenKind; 6] = [
        TokenKind::Normal,
        TokenKind::Unknown,
        TokenKind::Control,
        TokenKind::UserDefined,
        TokenKind::Byte,
        TokenKind::Unused,
    ];

    fn from_id(id: u8) -> Option<TokenKind> {
        Self::ALL.get(usize::from(id)).copied()
    }
}

/// The tokens by id, their bytes in one allocation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Vocab {
    bytes: Vec<u8>,
    /// Where each token ends in `bytes`.
    ends: Vec<u32>,
    scores: Vec<f32>,
    kinds: Vec<TokenKind>,
}

impl Vocab {
    fn with_capacity(tokens: usize, bytes: usize) -> Vocab {
        Vocab {
            bytes: Vec::with_capacity(bytes.saturating_sub(tokens * 8)),
            ends: Vec::with_capacity(tokens),
            scores: Vec::with_capacity(tokens),
            kinds: Vec::with_capacity(tokens),
        }
    }

    /// Appends a token; its id is the old length.
    ///
    /// # Errors
    ///
    /// If the score is not a number, or all tokens together pass 4 GiB.
    pub fn push(&mut self, bytes: &[u8], score: f32, kind: TokenKind) -> Result<(), Error> {
        if score.is_nan() {
            let id = self.len();
            return Err(Error::Unsupported(format!("score of token {id} is not a number")));
        }
        let end = u32::try_from(self.bytes.len() + bytes.len())
            .map_err(|_| Error::Unsupported("vocabulary of more than 4 GiB".to_owned()))?;
        self.bytes.extend_from_slice(bytes);
        self.ends.push(end);
        self.scores.push(score);
        self.kinds.push(kind);
        Ok(())
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The bytes of a token, or `None` if `id` is not in the vocabulary.
    pub fn get(&self, id: u32) -> Option<&[u8]> {
        let index = usize::try_from(id).ok()?;
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.bytes.get(start as usize..end as usize)
    }

    /// The merge priority of a token, higher first.
    pub fn score(&self, id: u32) -> Option<f32> {
        self.scores.get(usize::try_from(id).ok()?).copied()
    }

    /// What a token is for.
    pub fn kind(&self, id: u32) -> Option<TokenKind> {
        self.kinds.get(usize::try_from(id).ok()?).copied()
    }

    /// Changes what a token is for; an unknown id changes nothing.
    pub fn set_kind(&mut self, id: u32, kind: TokenKind) {
        if let Some(slot) = usize::try_from(id).ok().and_then(|i| self.kinds.get_mut(i)) {
            *slot = kind;
        }
    }

    /// Every token in the order of ids.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &[u8], TokenKind)> {
        (0u32..).zip(&self.kinds).map(|(id, &kind)| (id, self.get(id).unwrap_or_default(), kind))
    }

    /// The first id whose bytes are `name`. Linear: for setting up, not for encoding.
    pub fn find(&self, name: &[u8]) -> Option<u32> {
        self.iter().find(|&(_, bytes, _)| bytes == name).map(|(id, ..)| id)
    }

    fn longest(&self) -> usize {
        self.iter().map(|(_, bytes, _)| bytes.len()).max().unwrap_or(0)
    }
}

/// Which neighbours merge, and in which order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Merges {
    /// Two neighbours merge if together they are a token; highest score first, then leftmost.
    ByScore,
    /// The same, but equal scores go by the left neighbour's id before its place.
    ByScoreThenLeft,
    /// Only these pairs of ids merge, earlier ones first, then leftmost.
    Listed(Vec<(u32, u32)>),
}

impl Merges {
    fn rule(&self) -> u8 {
        match self {
            Merges::ByScore => 0,
            Merges::ByScoreThenLeft => 1,
            Merges::Listed(_) => 2,
        }
    }
}

/// Details in which tokenizers of one kind differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// A piece of text that is a token is taken whole, however merging would split it.
    pub whole_pieces: bool,
    /// SentencePiece: a space is put before the text.
    pub dummy_prefix: bool,
    /// SentencePiece: characters not in the vocabulary become byte tokens.
    pub byte_fallback: bool,
    /// SentencePiece: runs of spaces count as one, and none stand at the ends.
    pub remove_extra_spaces: bool,
    /// Text after a special token gets the dummy prefix too.
    pub prefix_every_segment: bool,
    /// Text that starts with a space gets no dummy prefix.
    pub prefix_unless_space: bool,
    /// User-defined tokens split the text as special tokens do, instead of standing in it.
    pub split_at_user_defined: bool,
}

impl Flags {
    const COUNT: usize = 7;

    fn to_bools(self) -> [bool; Self::COUNT] {
        [
            self.whole_pieces,
            self.dummy_prefix,
            self.byte_fallback,
            self.remove_extra_spaces,
            self.prefix_every_segment,
            self.prefix_unless_space,
            self.split_at_user_defined,
        ]
    }

    fn to_bits(self) -> u32 {
        self.to_bools().iter().rev().fold(0, |bits, &flag| bits << 1 | u32::from(flag))
    }

    fn from_bits(bits: u32) -> Option<Flags> {
        let flag = |n: usize| bits >> n & 1 == 1;
        (bits >> Self::COUNT == 0).then(|| Flags {
            whole_pieces: flag(0),
            dummy_prefix: flag(1),
            byte_fallback: flag(2),
            remove_extra_spaces: flag(3),
            prefix_every_segment: flag(4),
            prefix_unless_space: flag(5),
            split_at_user_defined: flag(6),
        })
    }
}

/// Everything `tokenizer.bin` says.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenizerFile {
    /// How text becomes tokens.
    pub kind: Kind,
    /// Details of that.
    pub flags: Flags,
    /// The tokens.
    pub vocab: Vocab,
    /// Which neighbours merge.
    pub merges: Merges,
    /// The token every text starts with, if there is one.
    pub bos: Option<u32>,
    /// Tokens that end the text, at most [`STOP_IDS_MAX`]; the first is the end of sequence.
    pub stop_ids: Vec<u32>,
    /// How conversations are written.
    pub chat: ChatTemplate,
}

impl TokenizerFile {
    /// Reads a `tokenizer.bin`, with or without trailer.
    ///
    /// `vocab_size` is the model's; without it, entries are read to the end of the file.
    ///
    /// # Errors
    ///
    /// Says which field is cut off or impossible, or that checksum or size do not match.
    pub fn parse(bytes: &[u8], vocab_size: Option<usize>) -> Result<TokenizerFile, Error> {
        if bytes.starts_with(&super::model::MAGIC.to_le_bytes()) {
            return Err(Error::Unsupported("this is a model file, not its tokenizer".to_owned()));
        }
        let file = match split_footer(bytes)? {
            Some((body, trailer)) => parse_trailer(trailer, body)?,
            None => infer(parse_entries(bytes, vocab_size)?)?,
        };
        match vocab_size {
            Some(wanted) if wanted != file.vocab.len() => Err(Error::Field {
                field: "n_vocab",
                value: file.vocab.len() as i64,
                wanted: format!("{wanted}, as the model has"),
            }),
            _ => Ok(file),
        }
    }

    /// The bytes of the file, with trailer.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.vocab.bytes.len() + self.vocab.len() * 8 + 4096);
        put_u32(&mut out, self.vocab.longest());
        for (id, bytes, _) in self.vocab.iter() {
            out.extend(self.vocab.score(id).unwrap_or_default().to_le_bytes());
            put_u32(&mut out, bytes.len());
            out.extend(bytes);
        }
        let body_bytes = out.len();
        self.put_trailer(&mut out);
        let trailer_bytes = out.len() - body_bytes;
        let crc = crc32fast::hash(&out);
        put_u32(&mut out, trailer_bytes);
        out.extend(crc.to_le_bytes());
        out.extend(FOOTER_MAGIC.to_le_bytes());
        out
    }

    fn put_trailer(&self, out: &mut Vec<u8>) {
        out.extend(TRAILER_VERSION.to_le_bytes());
        put_u32(out, self.vocab.len());
        out.extend([self.kind as u8, self.chat as u8, self.merges.rule(), 0]);
        out.extend(self.flags.to_bits().to_le_bytes());
        out.extend(self.bos.unwrap_or(NO_ID).to_le_bytes());
        put_u32(out, self.stop_ids.len());
        out.extend(self.stop_ids.iter().flat_map(|id| id.to_le_bytes()));
        let typed = || self.vocab.iter().filter(|(.., kind)| *kind != TokenKind::Normal);
        put_u32(out, typed().count());
        for (id, _, kind) in typed() {
            out.extend(id.to_le_bytes());
            out.push(kind as u8);
        }
        let merges = if let Merges::Listed(list) = &self.merges { list.as_slice() } else { &[] };
        put_u32(out, merges.len());
        for (left, right) in merges {
            out.extend(left.to_le_bytes());
            out.extend(right.to_le_bytes());
        }
    }
}

/// A number that tells one `tokenizer.bin` from another: FNV-1a over 64-bit words.
///
/// The last word is filled up with zeros and the length goes in first. A model file stores
/// it to recognise the tokenizer it was exported with; it is no protection against forgery.
pub fn fingerprint(bytes: &[u8]) -> u64 {
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(PRIME);
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let start = mix(0xcbf2_9ce4_8422_2325, bytes.len() as u64);
    let hash = words.iter().fold(start, |hash, &word| mix(hash, u64::from_le_bytes(word)));
    mix(hash, u64::from_le_bytes(last))
}

/// Lengths come from a [`Vocab`], which holds less than 4 GiB.
fn put_u32(out: &mut Vec<u8>, value: usize) {
    out.extend(u32::try_from(value).unwrap_or(u32::MAX).to_le_bytes());
}

/// Bytes of the entries, and of the trailer.
type BodyAndTrailer<'a> = (&'a [u8], &'a [u8]);

/// Entries and trailer, or `None` if the file has no footer.
fn split_footer(bytes: &[u8]) -> Result<Option<BodyAndTrailer<'_>>, Error> {
    let Some(footer_at) = bytes.len().checked_sub(FOOTER_BYTES) else { return Ok(None) };
    let (before, footer) = bytes.split_at(footer_at);
    let mut r = Cursor::new(footer);
    let trailer_bytes = r.u32("trailer length")?;
    let crc = r.u32("checksum")?;
    if r.u32("trailer magic")? != FOOTER_MAGIC {
        return Ok(None);
    }
    if crc32fast::hash(before) != crc {
        return Err(Error::Checksum { what: "tokenizer file".to_owned() });
    }
    let split = before.len().checked_sub(trailer_bytes as usize);
    split.map(|at| Some(before.split_at(at))).ok_or_else(|| Error::Truncated {
        what: "trailer".to_owned(),
        need: u64::from(trailer_bytes) + FOOTER_BYTES as u64,
        have: bytes.len() as u64,
    })
}

/// Reads exactly `count` entries, or all there are, and nothing may follow.
fn parse_entries(bytes: &[u8], count: Option<usize>) -> Result<Vocab, Error> {
    let mut r = Cursor::new(bytes);
    let longest = r.u32("max_token_bytes")?;
    // No more than the file can hold, whatever it says.
    let mut vocab = Vocab::with_capacity(count.unwrap_or(0).min(bytes.len() / 8), bytes.len());
    while count.map_or(r.pos() < bytes.len(), |n| vocab.len() < n) {
        let score = r.f32("token score")?;
        let len = r.u32("token length")?;
        vocab.push(r.take("token bytes", len as usize)?, score, TokenKind::Normal)?;
    }
    if r.pos() < bytes.len() {
        return Err(Error::TrailingBytes { end: r.pos() as u64, have: bytes.len() as u64 });
    }
    if vocab.is_empty() || (longest as usize) < vocab.longest() || longest as usize > bytes.len() {
        return Err(Error::Field {
            field: "max_token_bytes",
            value: i64::from(longest),
            wanted: format!("{}, the longest of {} tokens", vocab.longest(), vocab.len()),
        });
    }
    Ok(vocab)
}

fn parse_trailer(trailer: &[u8], body: &[u8]) -> Result<TokenizerFile, Error> {
    let mut r = Cursor::new(trailer);
    let version = r.u32("trailer version")?;
    if version != TRAILER_VERSION {
        return Err(Error::Unsupported(format!("tokenizer trailer version {version}")));
    }
    let n_vocab = r.u32("n_vocab")?;
    let mut vocab = parse_entries(body, Some(n_vocab as usize))?;
    let unknown = |what: &str, id: u32| Error::Unsupported(format!("tokenizer {what} {id}"));
    let kind = r.u8("kind")?;
    let kind = Kind::from_id(kind).ok_or_else(|| unknown("kind", kind.into()))?;
    let chat = r.u8("chat template")?;
    let chat = ChatTemplate::from_id(chat).ok_or_else(|| unknown("chat template", chat.into()))?;
    let rule = r.u8("merge rule")?;
    r.u8("reserved byte")?;
    let flags = r.u32("flags")?;
    let flags = Flags::from_bits(flags).ok_or_else(|| unknown("flags", flags))?;
    let bos = Some(r.u32("bos id")?).filter(|&id| id != NO_ID);
    let bos = bos.map(|id| check_id("bos id", id, n_vocab)).transpose()?;
    let stop_ids = parse_stop_ids(&mut r, n_vocab)?;
    parse_kinds(&mut r, &mut vocab, n_vocab)?;
    let listed = parse_merges(&mut r, n_vocab)?;
    let merges = match rule {
        0 => Merges::ByScore,
        1 => Merges::ByScoreThenLeft,
        2 => Merges::Listed(listed),
        _ => return Err(unknown("merge rule", rule.into())),
    };
    if r.pos() < trailer.len() {
        let (end, have) = (body.len() + r.pos(), body.len() + trailer.len());
        return Err(Error::TrailingBytes { end: end as u64, have: have as u64 });
    }
    Ok(TokenizerFile { kind, flags, vocab, merges, bos, stop_ids, chat })
}

fn check_id(field: &'static str, id: u32, n_vocab: u32) -> Result<u32, Error> {
    if id < n_vocab {
        return Ok(id);
    }
    Err(Error::Field { field, value: i64::from(id), wanted: format!("less than {n_vocab}") })
}

fn parse_stop_ids(r: &mut Cursor<'_>, n_vocab: u32) -> Result<Vec<u32>, Error> {
    let count = r.u32("stop id count")?;
    if count as usize > STOP_IDS_MAX {
        let wanted = format!("at most {STOP_IDS_MAX}");
        return Err(Error::Field { field: "stop id count", value: count.into(), wanted });
    }
    (0..count).map(|_| check_id("stop id", r.u32("stop id")?, n_vocab)).collect()
}

fn parse_kinds(r: &mut Cursor<'_>, vocab: &mut Vocab, n_vocab: u32) -> Result<(), Error> {
    let mut next = 0;
    for _ in 0..r.u32("typed token count")? {
        let id = check_id("typed token id", r.u32("typed token id")?, n_vocab)?;
        let kind = r.u8("token kind")?;
        let kind = TokenKind::from_id(kind)
            .ok_or_else(|| Error::Unsupported(format!("kind {kind} of token {id}")))?;
        if id < next {
            let wanted = format!("at least {next}, in ascending order");
            return Err(Error::Field { field: "typed token id", value: id.into(), wanted });
        }
        vocab.set_kind(id, kind);
        next = id + 1;
    }
    Ok(())
}

fn parse_merges(r: &mut Cursor<'_>, n_vocab: u32) -> Result<Vec<(u32, u32)>, Error> {
    let mut merges = Vec::new();
    for _ in 0..r.u32("merge count")? {
        let left = check_id("merge left id", r.u32("merge left id")?, n_vocab)?;
        let right = check_id("merge right id", r.u32("merge right id")?, n_vocab)?;
        merges.push((left, right));
    }
    Ok(merges)
}

/// What the published format leaves unsaid.
fn infer(vocab: Vocab) -> Result<TokenizerFile, Error> {
    let starts_with = |wanted: [&[u8]; 3]| {
        wanted.iter().zip(0u32..).all(|(&bytes, id)| vocab.get(id) == Some(bytes))
    };
    // Some exporters put line breaks around the two control tokens.
    if starts_with([b"<unk>", b"<s>", b"</s>"]) || starts_with([b"<unk>", b"\n<s>\n", b"\n</s>\n"])
    {
        infer_llama2(&vocab)
    } else {
        infer_llama3(&vocab)
    }
}

fn infer_llama2(published: &Vocab) -> Result<TokenizerFile, Error> {
    let mut vocab = Vocab::default();
    let mut n_bytes = 0;
    for (id, bytes, _) in published.iter() {
        let (bytes, kind) = match id {
            0 => (bytes, TokenKind::Unknown),
            1 => (b"<s>".as_slice(), TokenKind::Control),
            2 => (b"</s>".as_slice(), TokenKind::Control),
            3..259 if byte_piece(bytes) == u8::try_from(id - 3).ok() => {
                n_bytes += 1;
                (bytes, TokenKind::Byte)
            }
            _ => (bytes, TokenKind::Normal),
        };
        vocab.push(bytes, published.score(id).unwrap_or_default(), kind)?;
    }
    let flags = Flags {
        dummy_prefix: true,
        byte_fallback: n_bytes == 256,
        prefix_every_segment: true,
        ..Flags::default()
    };
    Ok(TokenizerFile {
        kind: Kind::SentencePiece,
        flags,
        vocab,
        merges: Merges::ByScore,
        bos: Some(1),
        stop_ids: vec![2],
        chat: ChatTemplate::None,
    })
}

/// Published files score tokens by their id or by minus it; both mean that ids are ranks.
fn infer_llama3(published: &Vocab) -> Result<TokenizerFile, Error> {
    let bos = published.find(b"<|begin_of_text|>");
    let mut vocab = Vocab::default();
    for (id, bytes, _) in published.iter() {
        let is_special = bos.is_some_and(|bos| id >= bos);
        let kind = if is_special { TokenKind::Control } else { TokenKind::Normal };
        vocab.push(bytes, -(id as f32), kind)?;
    }
    let stops: [&[u8]; 3] = [b"<|end_of_text|>", b"<|eom_id|>", b"<|eot_id|>"];
    let stop_ids: Vec<u32> = stops.iter().filter_map(|name| vocab.find(name)).collect();
    let has_headers = vocab.find(b"<|start_header_id|>").is_some();
    Ok(TokenizerFile {
        kind: Kind::ByteLevel,
        flags: Flags { whole_pieces: true, ..Flags::default() },
        vocab,
        merges: Merges::ByScore,
        bos,
        stop_ids,
        chat: if has_headers { ChatTemplate::Llama3 } else { ChatTemplate::None },
    })
}

/// The byte that a piece such as `<0x0A>` stands for.
pub fn byte_piece(piece: &[u8]) -> Option<u8> {
    let digits = piece.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    let digits = std::str::from_utf8(digits).ok().filter(|d| d.len() == 2)?;
    let is_hex = digits.bytes().all(|d| d.is_ascii_hexdigit());
    is_hex.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests;
