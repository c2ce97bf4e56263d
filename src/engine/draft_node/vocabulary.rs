//! Tests whether two boards know the same tokens.

use sha2::{Digest, Sha256};

use crate::tokenizer::Tokenizer;
use crate::wire::draft::HASH_LEN;

/// Identifies a vocabulary to another board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Vocabulary {
    /// Number of tokens.
    pub(crate) len: u32,
    /// Hash of all tokens.
    pub(crate) hash: [u8; HASH_LEN],
}

impl Vocabulary {
    pub(super) fn new(tokenizer: &Tokenizer) -> Vocabulary {
        let len = tokenizer.vocab_len() as u32;
        Vocabulary { len, hash: hash(tokenizer, len) }
    }
}

/// Hash of the first `n` tokens.
pub(super) fn hash(tokenizer: &Tokenizer, n: u32) -> [u8; HASH_LEN] {
    let mut hash = Sha256::new();
    for bytes in (0..n).map_while(|id| tokenizer.token_bytes(id)) {
        hash.update((bytes.len() as u32).to_le_bytes());
        hash.update(bytes);
    }
    hash.finalize().into()
}
