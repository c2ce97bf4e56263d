//! Byte pair encoding: neighbours merge, best pair first.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::ops::Range;

use super::TokenizerError;
use super::table::TokenTable;
use crate::format::tokenizer::{Merges, TokenKind, TokenizerKind, Vocab};

/// A vocabulary, and the merges of its tokens with their order.
pub(super) struct Rules {
    pub(super) vocab: Vocab,
    table: TokenTable,
    order: Order,
    /// Longest token in bytes; longer text is not looked up.
    longest: usize,
    /// A bit for each pair of bytes that are neighbours in some token.
    joined: Vec<u64>,
    has_unused: bool,
}

enum Order {
    Score,
    ScoreThenLeft,
    Listed(PairIndex),
}

/// Place in the list and resulting id, by pair of ids.
type PairIndex = HashMap<(u32, u32), (u32, u32)>;

impl Rules {
    /// Takes the tokens that merging may reach.
    pub(super) fn new(
        kind: TokenizerKind,
        vocab: Vocab,
        merges: Merges,
    ) -> Result<Rules, TokenizerError> {
        let reachable = |token: TokenKind| match kind {
            TokenizerKind::ByteLevel | TokenizerKind::WordPiece => token == TokenKind::Normal,
            TokenizerKind::SentencePiece => {
                matches!(token, TokenKind::Normal | TokenKind::UserDefined | TokenKind::Unused)
            }
        };
        let table = TokenTable::new(&vocab, reachable);
        let order = match merges {
            Merges::ByScore => Order::Score,
            Merges::ByScoreThenLeft => Order::ScoreThenLeft,
            Merges::Listed(list) => Order::Listed(index(&list, &vocab, &table)?),
        };
        let mut longest = 0;
        let mut joined = vec![0; 1 << 10];
        for (_, bytes, _) in vocab.iter().filter(|&(.., kind)| reachable(kind)) {
            longest = longest.max(bytes.len());
            for pair in bytes.windows(2) {
                let (word, bit) = joint(pair[0], pair[1]);
                joined[word] |= bit;
            }
        }
        let has_unused = vocab.iter().any(|(_, b, k)| k == TokenKind::Unused && !b.is_empty());
        Ok(Rules { vocab, table, order, longest, joined, has_unused })
    }

    /// The token with exactly these bytes.
    pub(super) fn token(&self, bytes: &[u8]) -> Option<u32> {
        (bytes.len() <= self.longest).then(|| self.table.find(&self.vocab, bytes)).flatten()
    }

    /// Whether no merge crosses the boundary between two bytes: no token has them side by side.
    ///
    /// Text may be cut there without changing the result. Never true in a vocabulary with unused tokens, because their
    /// division depends on earlier text.
    pub(super) fn is_cut(&self, before: u8, after: u8) -> bool {
        let (word, bit) = joint(before, after);
        !self.has_unused && self.joined[word] & bit == 0
    }

    /// The token that two neighbours merge into, and its place in the order: lower is sooner.
    fn pair(&self, text: &[u8], left: &Symbol, right: &Symbol) -> Option<(u64, u32)> {
        if let Order::Listed(pairs) = &self.order {
            let &(place, id) = pairs.get(&(left.id, right.id))?;
            return Some((place.into(), id));
        }
        let id = self.token(&text[left.start..right.end])?;
        let tie = if matches!(self.order, Order::ScoreThenLeft) { left.id } else { 0 };
        Some((u64::from(falling(self.vocab.score(id)?)) << 32 | u64::from(tie), id))
    }
}

fn joint(before: u8, after: u8) -> (usize, u64) {
    let index = usize::from(before) << 8 | usize::from(after);
    (index / 64, 1 << (index % 64))
}

/// Maps numbers to integers so that a higher number gives a lower integer.
fn falling(score: f32) -> u32 {
    // Adding zero turns -0 into 0, which is equal.
    let bits = (score + 0.0).to_bits();
    if bits >> 31 == 1 { bits } else { !(bits | 1 << 31) }
}

fn index(
    list: &[(u32, u32)],
    vocab: &Vocab,
    table: &TokenTable,
) -> Result<PairIndex, TokenizerError> {
    let mut pairs = HashMap::with_capacity(list.len());
    for (place, &(left, right)) in (0u32..).zip(list) {
        let joined = [vocab.get(left).unwrap_or_default(), vocab.get(right).unwrap_or_default()];
        let id = table.find(vocab, &joined.concat());
        let id = id.ok_or(TokenizerError::MissingMerge { left, right })?;
        pairs.entry((left, right)).or_insert((place, id));
    }
    Ok(pairs)
}

/// A piece of text that will not be split any more.
#[derive(Clone, Copy, Debug)]
pub(super) struct Symbol {
    /// The symbol's token, or [`NO_ID`](super::byte_ids::NO_ID) for a character without one.
    pub(super) id: u32,
    /// Start of the symbol in the text.
    pub(super) start: usize,
    /// End of the symbol in the text.
    pub(super) end: usize,
    is_frozen: bool,
    prev: usize,
    next: usize,
}

impl Symbol {
    /// A symbol that was merged into its left neighbour covers nothing.
    fn is_merged(&self) -> bool {
        self.start == self.end
    }
}

/// A possible merge, sooner ones first.
///
/// A candidate is out of date once the left symbol and its neighbour no longer end at `end`: symbols only grow, and a
/// new pair is looked up whenever one does.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    order: u64,
    left: usize,
    end: usize,
    id: u32,
}

/// A text being merged; keeps its memory from one text to the next.
#[derive(Default)]
pub(super) struct Merger {
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Reverse<Candidate>>,
    /// For unused tokens, the length of the left part they were last made of.
    splits: HashMap<u32, usize>,
}

impl Merger {
    pub(super) fn clear(&mut self) {
        self.symbols.clear();
        self.queue.clear();
        self.splits.clear();
    }

    /// Appends a symbol; a frozen one never merges. Symbols must follow each other in the text without gaps.
    pub(super) fn push(&mut self, id: u32, stretch: Range<usize>, is_frozen: bool) {
        let index = self.symbols.len();
        let (start, end) = (stretch.start, stretch.end);
        // Neighbours beyond the ends are indices that no symbol has.
        let (prev, next) = (index.wrapping_sub(1), index + 1);
        self.symbols.push(Symbol { id, start, end, is_frozen, prev, next });
    }

    /// Merges until no pair is left to merge.
    pub(super) fn merge(&mut self, rules: &Rules, text: &[u8]) {
        for left in 1..self.symbols.len() {
            self.consider(rules, text, left - 1);
        }
        while let Some(Reverse(best)) = self.queue.pop() {
            let left = self.symbols[best.left];
            let right = match self.symbols.get(left.next) {
                Some(right) if !left.is_merged() && right.end == best.end => *right,
                _ => continue,
            };
            self.symbols[left.next].end = right.start;
            if let Some(after) = self.symbols.get_mut(right.next) {
                after.prev = best.left;
            }
            self.symbols[best.left] =
                Symbol { id: best.id, end: right.end, next: right.next, ..left };
            self.consider(rules, text, left.prev);
            self.consider(rules, text, best.left);
        }
    }

    /// Queues the merge of symbol `left` with the next one, if there is such a merge.
    fn consider(&mut self, rules: &Rules, text: &[u8], left: usize) {
        let Some(first) = self.symbols.get(left) else { return };
        let Some(second) = self.symbols.get(first.next) else { return };
        if first.is_frozen || second.is_frozen {
            return;
        }
        if let Some((order, id)) = rules.pair(text, first, second) {
            if rules.has_unused && rules.vocab.kind(id) == Some(TokenKind::Unused) {
                self.splits.insert(id, first.end - first.start);
            }
            self.queue.push(Reverse(Candidate { order, left, end: second.end, id }));
        }
    }

    /// The symbols that are left, in order.
    pub(super) fn symbols(&self) -> impl Iterator<Item = &Symbol> {
        self.symbols.iter().filter(|symbol| !symbol.is_merged())
    }

    /// Where an unused token of this id divides, if merging made it.
    pub(super) fn split_of(&self, id: u32) -> Option<usize> {
        self.splits.get(&id).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merge(tokens: &[(&str, f32)], merges: Merges, text: &str) -> Vec<u32> {
        let mut vocab = Vocab::default();
        for (token, score) in tokens {
            vocab.push(token.as_bytes(), *score, TokenKind::Normal).unwrap();
        }
        let rules = Rules::new(TokenizerKind::ByteLevel, vocab, merges).unwrap();
        let mut merger = Merger::default();
        for at in 0..text.len() {
            let id = rules.token(&text.as_bytes()[at..=at]).unwrap();
            merger.push(id, at..at + 1, false);
        }
        merger.merge(&rules, text.as_bytes());
        merger.symbols().map(|symbol| symbol.id).collect()
    }

    #[test]
    fn higher_score_merges_first_then_leftmost() {
        let tokens = [("a", 0.), ("b", 0.), ("aa", -2.), ("ab", -1.), ("aab", -3.)];
        assert_eq!(merge(&tokens, Merges::ByScore, "aaaab"), [2, 4]);
        assert_eq!(merge(&tokens, Merges::ByScore, "aab"), [4]);
        assert_eq!(merge(&tokens, Merges::ByScore, "aaa"), [2, 0]);
    }

    #[test]
    fn ties_go_by_left_id_where_the_rule_says_so() {
        let tokens = [("b", 0.), ("a", 0.), ("c", 0.), ("ab", -1.), ("bc", -1.)];
        assert_eq!(merge(&tokens, Merges::ByScore, "abc"), [3, 2]);
        assert_eq!(merge(&tokens, Merges::ByScoreThenLeft, "abc"), [1, 4]);
    }

    #[test]
    fn listed_merges_are_the_only_ones() {
        let tokens = [("a", 0.), ("b", 0.), ("ab", 0.), ("aba", 0.), ("ba", 0.)];
        let merges = || Merges::Listed(vec![(1, 0), (0, 4)]);
        assert_eq!(merge(&tokens, merges(), "aba"), [3]);
        assert_eq!(merge(&tokens, merges(), "ab"), [0, 1]);
    }

    #[test]
    fn listed_merge_into_no_token_is_refused() {
        let mut vocab = Vocab::default();
        vocab.push(b"a", 0., TokenKind::Normal).unwrap();
        let rules = Rules::new(TokenizerKind::ByteLevel, vocab, Merges::Listed(vec![(0, 0)]));
        assert_eq!(rules.err(), Some(TokenizerError::MissingMerge { left: 0, right: 0 }));
    }

    #[test]
    fn scores_fall_as_integers_rise() {
        let scores = [f32::INFINITY, 7.5, 1.0, 0.0, -1e-9, -1.0, -1e9, f32::NEG_INFINITY];
        assert!(scores.windows(2).all(|pair| falling(pair[0]) < falling(pair[1])));
        assert_eq!(falling(0.0), falling(-0.0));
    }
}
