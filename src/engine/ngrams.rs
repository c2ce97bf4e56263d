//! Drafts from the text so far: the ids that followed earlier occurrences of its last few ids.

use super::drafts::{DRAFTS_MAX, DraftKind, Drafter};

/// Number of equal ids that make a match.
const N: usize = 3;
/// Number of equal ids that make a long n-gram. Further ones are not counted.
const N_LONG: usize = 8;
/// Ids kept of texts that have ended: some tens of pages.
const ARCHIVE_LEN: usize = 1 << 16;

/// Looks for a text's last ids in the earlier text, and in texts that have ended. Takes constant time per
/// token, however long texts are, and allocates only in [`NgramDrafter::new`].
pub struct NgramDrafter {
    texts: Vec<Text>,
    archive: Archive,
}

/// A running text; the caller holds its ids.
struct Text {
    index: Index,
    /// Number of ids that are in the index.
    len: usize,
}

/// Texts that have ended, one after the other, in a ring buffer.
struct Archive {
    ids: Vec<u32>,
    index: Index,
    /// Number of ids pushed so far.
    end: usize,
}

/// Positions after the latest occurrences of [`N`] ids, by the hash of these. Hashes may collide, so a
/// position is only a hint.
struct Index(Vec<u32>);

impl NgramDrafter {
    /// A drafter for `n_lanes` texts at a time, of up to `ctx_len` ids each.
    pub fn new(n_lanes: usize, ctx_len: usize) -> NgramDrafter {
        let text = |_| Text { index: Index::new(ctx_len), len: 0 };
        let index = Index::new(ARCHIVE_LEN);
        NgramDrafter {
            texts: (0..n_lanes).map(text).collect(),
            archive: Archive { ids: vec![0; ARCHIVE_LEN], index, end: 0 },
        }
    }
}

impl Drafter for NgramDrafter {
    fn begin(&mut self, lane: usize, _prompt: &[u32]) {
        let text = &mut self.texts[lane];
        text.index.0.fill(0);
        text.len = 0;
    }

    fn draft(
        &mut self,
        lane: usize,
        ids: &[u32],
        _worth: &dyn Fn(DraftKind) -> usize,
        drafts: &mut Vec<u32>,
    ) -> DraftKind {
        let own = self.texts[lane].find(ids);
        let own =
            own.map(|end| (n_same(ids, |back| ids[..end].iter().rev().nth(back).copied()), end));
        let archive = &self.archive;
        let old = archive.find(ids);
        let old =
            old.map(|end| (n_same(ids, |back| archive.id((end - 1).checked_sub(back)?)), end));
        // At equal length a match in the text itself is more likely to be right.
        let n_same = match (own, old) {
            (own, Some((n, end))) if n >= N && own.is_none_or(|(n_own, _)| n_own < n) => {
                drafts.extend((end..archive.end).map_while(|at| archive.id(at)).take(DRAFTS_MAX));
                n
            }
            (Some((n, end)), _) if n >= N => {
                // A text that repeats its end goes on repeating it.
                let next = ids[end..].iter().copied().cycle();
                drafts.extend(next.take(DRAFTS_MAX));
                n
            }
            _ => 0,
        };
        if n_same >= N_LONG { DraftKind::LongNgram } else { DraftKind::Ngram }
    }

    fn end(&mut self, _lane: usize, ids: &[u32]) {
        for &id in ids {
            self.archive.push(id);
        }
    }
}

/// Number of equal ids at the end of `ids` and of another text, at most [`N_LONG`]. `other` gives that text's
/// ids by distance from its end.
fn n_same(ids: &[u32], other: impl Fn(usize) -> Option<u32>) -> usize {
    let pairs = ids.iter().rev().take(N_LONG).enumerate();
    pairs.take_while(|(back, id)| other(*back) == Some(**id)).count()
}

impl Text {
    /// Position after an earlier occurrence of the last of `ids`, if there is one. All but the last few ids
    /// must equal those of the previous call.
    fn find(&mut self, ids: &[u32]) -> Option<usize> {
        for end in self.len.max(N)..ids.len() {
            self.index.set(&ids[..end], end);
        }
        self.len = ids.len();
        self.index.get(ids).filter(|end| (1..ids.len()).contains(end))
    }
}

impl Archive {
    /// The id at position `at`, unless it was overwritten.
    fn id(&self, at: usize) -> Option<u32> {
        let is_there = at < self.end && self.end - at <= self.ids.len();
        is_there.then(|| self.ids[at % self.ids.len()])
    }

    fn push(&mut self, id: u32) {
        let n = self.ids.len();
        self.ids[self.end % n] = id;
        self.end += 1;
        let last: Option<[u32; N]> = (self.end >= N)
            .then(|| std::array::from_fn(|index| self.ids[(self.end - N + index) % n]));
        if let Some(last) = last {
            self.index.set(&last, self.end);
        }
    }

    /// Position after an occurrence of the last of `ids`, if there is one.
    fn find(&self, ids: &[u32]) -> Option<usize> {
        let back = (self.end as u32).wrapping_sub(self.index.get(ids)? as u32) as usize;
        self.end.checked_sub(back).filter(|end| *end > 0)
    }
}

impl Index {
    /// An index for `n` ids, or for the last [`ARCHIVE_LEN`] of more.
    fn new(n: usize) -> Index {
        Index(vec![0; 2 * n.clamp(128, ARCHIVE_LEN).next_power_of_two()])
    }

    /// Notes that an occurrence of the last of `ids` ends before position `end`.
    fn set(&mut self, ids: &[u32], end: usize) {
        if let Some(place) = self.place(ids) {
            // Texts are shorter than 2^32 ids; the reader knows how far back a position can be.
            self.0[place] = end as u32;
        }
    }

    fn get(&self, ids: &[u32]) -> Option<usize> {
        self.place(ids).map(|place| self.0[place] as usize)
    }

    fn place(&self, ids: &[u32]) -> Option<usize> {
        let last: &[u32; N] = ids.last_chunk()?;
        let hash = last.iter().fold(0u64, |hash, id| {
            (hash.rotate_left(5) ^ u64::from(*id)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        });
        // The upper bits of a product depend on all bits of its factors.
        Some((hash >> (u64::BITS - self.0.len().ilog2())) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drafts(drafter: &mut NgramDrafter, lane: usize, ids: &[u32]) -> (Vec<u32>, DraftKind) {
        let mut drafts = Vec::new();
        let kind = drafter.draft(lane, ids, &|_| 0, &mut drafts);
        (drafts, kind)
    }

    #[test]
    fn what_followed_before_is_the_draft() {
        let mut drafter = NgramDrafter::new(2, 100);
        let ids: Vec<u32> = (1..30).chain([5, 6, 7]).collect();
        let wanted: Vec<u32> = (8..8 + DRAFTS_MAX as u32).collect();
        assert_eq!(drafts(&mut drafter, 1, &ids[..20]), (vec![], DraftKind::Ngram));
        assert_eq!(drafts(&mut drafter, 1, &ids), (wanted, DraftKind::Ngram));
        assert!(drafts(&mut drafter, 0, &[5, 6, 7]).0.is_empty());
        let ids: Vec<u32> = (1..30).chain(5..14).collect();
        assert_eq!(drafts(&mut drafter, 0, &ids).1, DraftKind::LongNgram);
        drafter.begin(0, &[]);
        assert!(drafts(&mut drafter, 0, &[1, 2]).0.is_empty());
    }

    #[test]
    fn a_repeated_end_is_repeated() {
        let mut drafter = NgramDrafter::new(1, 100);
        let found = drafts(&mut drafter, 0, &[9, 1, 2, 3, 1, 2, 3]).0;
        assert_eq!(found[..7], [1, 2, 3, 1, 2, 3, 1]);
    }

    #[test]
    fn texts_that_have_ended_are_found_until_others_take_their_places() {
        let mut drafter = NgramDrafter::new(2, 100);
        // Long enough that positions modulo 2^16 repeat.
        for round in 0..3 {
            let text: Vec<u32> = (0..50_000).map(|id| id * 3 + round).collect();
            drafter.end(0, &text);
            let mut n_found = 0;
            for at in (0..49_900).step_by(499) {
                let found = drafts(&mut drafter, 1, &text[at..at + 4]).0;
                let is_right = found == text[at + 4..at + 4 + DRAFTS_MAX];
                assert!(is_right || found.is_empty(), "{round}, {at}: {found:?}");
                n_found += usize::from(is_right);
                drafter.begin(1, &[]);
            }
            // Other n-grams may have replaced one with an equal hash.
            assert!(n_found > 60, "{n_found}");
            assert!(drafts(&mut drafter, 1, &[7, 8, 9]).0.is_empty());
            if round > 1 {
                assert!(drafts(&mut drafter, 1, &[round - 2, round + 1, round + 4]).0.is_empty());
            }
            drafter.begin(1, &[]);
        }
    }
}
