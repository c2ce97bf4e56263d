//! Whether two boards know the same tokens.

use sha2::{Digest, Sha256};

use crate::tokenizer::Tokenizer;
use crate::wire::draft::HASH_LEN;

/// Tokens, as another board tells them apart from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Vocabulary {
    /// How many there are.
    pub(super) len: u32,
    /// The hash of all.
    pub(super) hash: [u8; HASH_LEN],
}

impl Vocabulary {
    pub(super) fn new(tokenizer: &Tokenizer) -> Vocabulary {
        let len = tokenizer.vocab_len() as u32;
        Vocabulary { len, hash: hash(tokenizer, len) }
    }
}

/// The hash of the first `n` tokens.
pub(super) fn hash(tokenizer: &Tokenizer, n: u32) -> [u8; HASH_LEN] {
    let mut hash = Sha256::new();
    for bytes in (0..n).map_while(|id| tokenizer.token_bytes(id)) {
        hash.update((bytes.len() as u32).to_le_bytes());
        hash.update(bytes);
    }
    hash.finalize().into()
}
