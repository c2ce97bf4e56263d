//! Encodes as SentencePiece BPE models do.

use super::Tokenizer;
use super::byte_ids::NO_ID;
use super::merge::Merger;
use crate::format::tokenizer::{SPACE_MARK, TokenKind};

impl Tokenizer {
    /// `has_prefix` allows the dummy prefix, if the tokenizer has one at all.
    pub(super) fn encode_sentencepiece(&self, text: &str, has_prefix: bool, out: &mut Vec<u32>) {
        let mut text = self.normalise(text, has_prefix);
        if self.unknown.is_none() && self.flags.split_at_user_defined {
            // The library tokenizers drops unknown characters before their neighbours merge.
            text.retain(|c| self.can_write(c));
        }
        let bytes = text.as_bytes();
        let mut merger = Merger::default();
        let mut owes_unknown = false;
        let mut at = 0;
        while at < bytes.len() {
            // Short stretches stay in the processor's cache.
            let parts = self.flags.cuts_at_spaces && bytes[at] == b' ';
            if at > 0 && (parts || self.rules.is_cut(bytes[at - 1], bytes[at])) {
                self.put_merged(&mut merger, bytes, &mut owes_unknown, out);
            }
            if parts {
                self.end_unknown(&mut owes_unknown, out);
            }
            let whole = self.symbol_at(&text, at);
            let end = whole.map_or_else(|| next_char(&text, at), |(_, end)| end);
            let id = self.rules.token(&bytes[at..end]).unwrap_or(NO_ID);
            merger.push(id, at..end, whole.is_some());
            at = end;
        }
        self.put_merged(&mut merger, bytes, &mut owes_unknown, out);
        self.end_unknown(&mut owes_unknown, out);
    }

    /// Merges what `merger` holds, writes it and empties `merger`.
    fn put_merged(
        &self,
        merger: &mut Merger,
        bytes: &[u8],
        owes_unknown: &mut bool,
        out: &mut Vec<u32>,
    ) {
        merger.merge(&self.rules, bytes);
        for symbol in merger.symbols() {
            let Some(left) = self.split_of(merger, symbol.id) else {
                self.put(symbol.id, &bytes[symbol.start..symbol.end], owes_unknown, out);
                continue;
            };
            let middle = symbol.start + left;
            let mut parts = vec![(middle, symbol.end), (symbol.start, middle)];
            while let Some((start, end)) = parts.pop() {
                let id = self.rules.token(&bytes[start..end]).unwrap_or(NO_ID);
                match self.split_of(merger, id) {
                    Some(left) => parts.extend([(start + left, end), (start, start + left)]),
                    None => self.put(id, &bytes[start..end], owes_unknown, out),
                }
            }
        }
        merger.clear();
    }

    /// Length of the left part of an unused token, which must not be in the result.
    fn split_of(&self, merger: &Merger, id: u32) -> Option<usize> {
        let is_unused = self.token_kind(id) == Some(TokenKind::Unused);
        is_unused.then(|| merger.split_of(id)).flatten()
    }

    /// Writes one token, or what stands for a character without a token.
    ///
    /// An unknown token is written when its run ends: characters that are unknown too belong to the run, unless each
    /// has a token of its own. In the library tokenizers, byte tokens do not end a run, but come before its token.
    fn put(&self, id: u32, text: &[u8], owes_unknown: &mut bool, out: &mut Vec<u32>) {
        // A character whose token is unused has none.
        if id != NO_ID && self.token_kind(id) != Some(TokenKind::Unused) {
            self.end_unknown(owes_unknown, out);
            out.push(id);
        } else if self.has_bytes(text) {
            if !self.flags.split_at_user_defined {
                self.end_unknown(owes_unknown, out);
            }
            out.extend(text.iter().map(|&byte| self.byte_ids[usize::from(byte)]));
        } else {
            if self.flags.separate_unknowns {
                self.end_unknown(owes_unknown, out);
            }
            *owes_unknown = true;
        }
    }

    fn end_unknown(&self, owes_unknown: &mut bool, out: &mut Vec<u32>) {
        if std::mem::take(owes_unknown) {
            out.extend(self.unknown);
        }
    }

    /// Whether all these bytes have tokens.
    fn has_bytes(&self, text: &[u8]) -> bool {
        text.iter().all(|&byte| self.byte_ids[usize::from(byte)] != NO_ID)
    }

    /// Whether a character has a token, or its bytes have.
    fn can_write(&self, c: char) -> bool {
        let mut bytes = [0; 4];
        let text = c.encode_utf8(&mut bytes).as_bytes();
        self.rules.token(text).is_some() || self.has_bytes(text)
    }

    /// A user-defined token at `at`, unless such tokens split the text beforehand.
    fn symbol_at(&self, text: &str, at: usize) -> Option<(u32, usize)> {
        if self.flags.split_at_user_defined {
            return None;
        }
        self.user_defined.longest_at(text.as_bytes(), at)
    }

    fn normalise(&self, text: &str, has_prefix: bool) -> String {
        let flags = &self.flags;
        let mut normal = String::with_capacity(text.len() + 1);
        let is_empty = text.chars().all(|c| c == ' ' && flags.remove_extra_spaces);
        let starts_with_space = text.starts_with(' ') || text.starts_with(SPACE_MARK);
        let needs_prefix = !(flags.prefix_unless_space && starts_with_space);
        if flags.dummy_prefix && has_prefix && needs_prefix && !is_empty {
            normal.push(' ');
        }
        let mut after_space = flags.remove_extra_spaces;
        for c in text.chars() {
            if c == ' ' && after_space {
                continue;
            }
            after_space = c == ' ' && flags.remove_extra_spaces;
            normal.push(if SPACE_MARK.starts_with(c) { ' ' } else { c });
        }
        if flags.remove_extra_spaces {
            normal.truncate(normal.trim_end_matches(' ').len());
        }
        normal
    }
}

fn next_char(text: &str, at: usize) -> usize {
    at + text[at..].chars().next().map_or(0, char::len_utf8)
}
