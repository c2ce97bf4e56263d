//! The tokens of a vocabulary.

use crate::format::FormatError;

/// SentencePiece's mark for a space. Vocabularies and normalised texts have a space instead.
pub const SPACE_MARK: &str = "\u{2581}";

/// Purpose of a vocabulary entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TokenKind {
    /// Text that merges produce.
    Normal = 0,
    /// Represents text that no other token covers.
    Unknown = 1,
    /// A marker that plain text never becomes.
    Control = 2,
    /// Text that is always one token, matched before merges.
    UserDefined = 3,
    /// One byte of a character that the vocabulary lacks. A piece not written like `<0x0A>` is only decoded.
    Byte = 4,
    /// Never a result of encoding, but possible as an intermediate result of merges.
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

    pub(super) fn from_id(id: u8) -> Option<TokenKind> {
        Self::ALL.get(usize::from(id)).copied()
    }
}

/// Tokens by id; all bytes are in one allocation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Vocab {
    pub(super) bytes: Vec<u8>,
    /// End of each token in `bytes`.
    ends: Vec<u32>,
    scores: Vec<f32>,
    kinds: Vec<TokenKind>,
}

impl Vocab {
    pub(super) fn with_capacity(tokens: usize, bytes: usize) -> Vocab {
        Vocab {
            bytes: Vec::with_capacity(bytes.saturating_sub(tokens * 8)),
            ends: Vec::with_capacity(tokens),
            scores: Vec::with_capacity(tokens),
            kinds: Vec::with_capacity(tokens),
        }
    }

    /// Appends a token. Its id is the length before.
    ///
    /// # Errors
    ///
    /// If the score is not a number, or all tokens together exceed 4 GiB.
    pub fn push(&mut self, bytes: &[u8], score: f32, kind: TokenKind) -> Result<(), FormatError> {
        if score.is_nan() {
            let id = self.len();
            return Err(FormatError::Unsupported(format!("score of token {id} is not a number")));
        }
        let end = u32::try_from(self.bytes.len() + bytes.len())
            .map_err(|_| FormatError::Unsupported("vocabulary of more than 4 GiB".to_owned()))?;
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

    /// Bytes of a token; `None` if `id` is not in the vocabulary.
    pub fn get(&self, id: u32) -> Option<&[u8]> {
        let index = usize::try_from(id).ok()?;
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.bytes.get(start as usize..end as usize)
    }

    /// Merge priority of a token; higher scores merge first.
    pub fn score(&self, id: u32) -> Option<f32> {
        self.scores.get(usize::try_from(id).ok()?).copied()
    }

    /// Purpose of a token.
    pub fn kind(&self, id: u32) -> Option<TokenKind> {
        self.kinds.get(usize::try_from(id).ok()?).copied()
    }

    /// Changes the purpose of a token. Does nothing for an unknown id.
    pub fn set_kind(&mut self, id: u32, kind: TokenKind) {
        if let Some(slot) = usize::try_from(id).ok().and_then(|i| self.kinds.get_mut(i)) {
            *slot = kind;
        }
    }

    /// Every token, in the order of ids.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &[u8], TokenKind)> {
        (0u32..).zip(&self.kinds).map(|(id, &kind)| (id, self.get(id).unwrap_or_default(), kind))
    }

    /// The first id with these bytes. A linear search: for set-up, not for encoding.
    pub fn find(&self, name: &[u8]) -> Option<u32> {
        self.iter().find(|&(_, bytes, _)| bytes == name).map(|(id, ..)| id)
    }

    pub(super) fn longest(&self) -> usize {
        self.iter().map(|(_, bytes, _)| bytes.len()).max().unwrap_or(0)
    }
}

/// The byte of a piece such as `<0x0A>`.
pub fn byte_piece(piece: &[u8]) -> Option<u8> {
    let digits = piece.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    let digits = std::str::from_utf8(digits).ok().filter(|d| d.len() == 2)?;
    let is_hex = digits.bytes().all(|d| d.is_ascii_hexdigit());
    is_hex.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// Whether a byte piece has no small letter among its digits; all libraries write it like this.
pub fn is_capital_piece(piece: &[u8]) -> bool {
    !piece.iter().skip(3).any(u8::is_ascii_lowercase)
}
