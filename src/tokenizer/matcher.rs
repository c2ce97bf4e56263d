//! Finds the longest of a set of tokens at a place in a text.

use crate::format::tokenizer::{SPACE_MARK, TokenKind, Vocab};

/// Names of tokens in sorted order, narrowed byte by byte.
pub(super) struct Matcher {
    names: Vec<(Box<str>, u32)>,
    /// Whether some name starts with this byte.
    starts: [bool; 256],
}

impl Matcher {
    /// Matches the tokens whose kind `wanted` accepts. Names that are not UTF-8 match no text. With `marks`, names of
    /// only spaces match as many `▁`.
    pub(super) fn new(vocab: &Vocab, marks: bool, wanted: impl Fn(TokenKind) -> bool) -> Matcher {
        let name = |bytes| {
            let name = std::str::from_utf8(bytes).ok()?;
            let is_spaces = marks && name.bytes().all(|byte| byte == b' ');
            Some(if is_spaces { SPACE_MARK.repeat(name.len()).into() } else { name.into() })
        };
        let mut names: Vec<(Box<str>, u32)> = vocab
            .iter()
            .filter(|&(_, bytes, kind)| wanted(kind) && !bytes.is_empty())
            .filter_map(|(id, bytes, _)| Some((name(bytes)?, id)))
            .collect();
        names.sort_unstable();
        names.dedup_by(|(later, _), (earlier, _)| later == earlier);
        let mut starts = [false; 256];
        for (name, _) in &names {
            starts[usize::from(name.as_bytes()[0])] = true;
        }
        Matcher { names, starts }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Id and end of the longest name in `text` that starts at `at`.
    ///
    /// Both ends lie between characters if `text` is UTF-8.
    pub(super) fn longest_at(&self, text: &[u8], at: usize) -> Option<(u32, usize)> {
        if !self.starts[usize::from(*text.get(at)?)] {
            return None;
        }
        let mut names = self.names.as_slice();
        let mut found = None;
        for (depth, &byte) in text[at..].iter().enumerate() {
            let byte_of = |name: &str| name.as_bytes().get(depth).copied();
            let from = names.partition_point(|(name, _)| byte_of(name) < Some(byte));
            let to = names.partition_point(|(name, _)| byte_of(name) <= Some(byte));
            names = &names[from..to];
            match names.first() {
                None => break,
                Some((name, id)) if name.len() == depth + 1 => found = Some((*id, at + depth + 1)),
                Some(_) => {}
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matcher(names: &[&str]) -> Matcher {
        let mut vocab = Vocab::default();
        for name in names {
            vocab.push(name.as_bytes(), 0.0, TokenKind::Control).unwrap();
        }
        Matcher::new(&vocab, false, |_| true)
    }

    #[test]
    fn longest_name_wins() {
        let matcher = matcher(&["<a>", "<a", "<a><b>", "x", "<a><c>"]);
        assert_eq!(matcher.longest_at(b"<a><b>", 0), Some((2, 6)));
        assert_eq!(matcher.longest_at(b"<a><d>", 0), Some((0, 3)));
        assert_eq!(matcher.longest_at(b"-<ax", 1), Some((1, 3)));
        assert_eq!(matcher.longest_at(b"-<ax", 3), Some((3, 4)));
        assert_eq!(matcher.longest_at(b"<", 0), None);
        assert_eq!(matcher.longest_at(b"<a>", 3), None);
    }

    #[test]
    fn equal_names_give_the_lowest_id() {
        assert_eq!(matcher(&["b", "a", "a"]).longest_at(b"a", 0), Some((1, 1)));
    }
}
