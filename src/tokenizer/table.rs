//! Finds a token by its bytes.

use std::hash::{BuildHasher, RandomState};

use crate::format::tokenizer::{TokenKind, Vocab};

const EMPTY: u32 = u32::MAX;

/// A hash table of ids; the bytes stay in the vocabulary.
///
/// Hashes are keyed at random: no vocabulary can be made to collide. At most half of the table is full.
pub(super) struct TokenTable {
    slots: Vec<u32>,
    hasher: RandomState,
}

impl TokenTable {
    /// A table of the tokens whose kind `wanted` accepts; the lowest id stands for equal bytes.
    pub(super) fn new(vocab: &Vocab, wanted: impl Fn(TokenKind) -> bool) -> TokenTable {
        let slots = vec![EMPTY; (vocab.len() * 2).next_power_of_two().max(2)];
        let mut table = TokenTable { slots, hasher: RandomState::new() };
        for (id, bytes, kind) in vocab.iter() {
            if wanted(kind) && !bytes.is_empty() {
                let slot = table.slot(vocab, bytes);
                if table.slots[slot] == EMPTY {
                    table.slots[slot] = id;
                }
            }
        }
        table
    }

    pub(super) fn find(&self, vocab: &Vocab, bytes: &[u8]) -> Option<u32> {
        Some(self.slots[self.slot(vocab, bytes)]).filter(|&id| id != EMPTY)
    }

    /// The slot of `bytes`, or the one where they would be.
    fn slot(&self, vocab: &Vocab, bytes: &[u8]) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = self.hasher.hash_one(bytes) as usize & mask;
        while self.slots[slot] != EMPTY && vocab.get(self.slots[slot]) != Some(bytes) {
            slot = (slot + 1) & mask;
        }
        slot
    }
}
