//! The tokens of a vocabulary.

use crate::format::FormatError;

/// SentencePiece's mark for a space. Vocabularies and normalised texts have the space.
pub const SPACE_MARK: &str = "\u{2581}";

/// Purpose of a vocabulary entry.
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
    /// One byte of a character the vocabulary lacks; a piece of another form is only ever decoded.
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

    pub(super) fn from_id(id: u8) -> Option<TokenKind> {
        Self::ALL.get(usize::from(id)).copied()
    }
}

/// The tokens by id, their bytes in one allocation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Vocab {
    pub(super) bytes: Vec<u8>,
    /// Where each token ends in `bytes`.
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

    /// Appends a token; its id is the old length.
    ///
    /// # Errors
    ///
    /// If the score is not a number, or all tokens together pass 4 GiB.
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

    /// Purpose of a token.
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

    pub(super) fn longest(&self) -> usize {
        self.iter().map(|(_, bytes, _)| bytes.len()).max().unwrap_or(0)
    }
}

/// The byte that a piece such as `<0x0A>` stands for.
pub fn byte_piece(piece: &[u8]) -> Option<u8> {
    let digits = piece.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    let digits = std::str::from_utf8(digits).ok().filter(|d| d.len() == 2)?;
    let is_hex = digits.bytes().all(|d| d.is_ascii_hexdigit());
    is_hex.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// Whether a byte piece has no small letter among its digits, as all libraries write it.
pub fn is_capital_piece(piece: &[u8]) -> bool {
    !piece.iter().skip(3).any(u8::is_ascii_lowercase)
}
