//! Encodes as byte-level BPE does: each piece of the text merges on its own.

use super::byte_ids::NO_ID;
use super::merge::Merger;
use super::{Tokenizer, split};

impl Tokenizer {
    pub(super) fn encode_bytes(&self, text: &str, out: &mut Vec<u32>) {
        let mut merger = Merger::default();
        let mut known = Vec::new();
        for piece in split::pieces(self.splitter, text) {
            let piece = piece.as_bytes();
            if self.flags.whole_pieces
                && let Some(id) = self.rules.token(piece)
            {
                out.push(id);
                continue;
            }
            known.clear();
            known.extend(piece.iter().filter(|&&byte| self.keeps_place(byte)));
            merger.clear();
            for (at, &byte) in known.iter().enumerate() {
                let id = self.byte_ids[usize::from(byte)];
                merger.push(id, at..at + 1, id == NO_ID);
            }
            merger.merge(&self.rules, &known);
            out.extend(merger.symbols().map(|symbol| symbol.id).filter(|&id| id != NO_ID));
        }
    }

    /// Whether a byte stands between its neighbours when they merge. It does if it has a token. A
    /// byte without a token never reaches the result, but llama.cpp drops it only after merging.
    fn keeps_place(&self, byte: u8) -> bool {
        self.flags.missing_bytes_part || self.byte_ids[usize::from(byte)] != NO_ID
    }
}
