//! Drafts from the text so far: the ids that followed earlier occurrences of its last few ids.

use super::drafts::{DRAFTS_MAX, DraftKind, Drafter};

/// Ids that have to be the same.
const N: usize = 3;
/// Equal ids of a long n-gram. More are not counted.
const N_LONG: usize = 8;
/// Ids of texts that have ended that are kept: some tens of pages.
const ARCHIVE_LEN: usize = 1 << 16;

/// Looks for a text's last ids in the earlier text, and in texts that have ended. Takes constant time for
/// each token, however long texts are, and allocates only when made.
pub struct NgramDrafter {
    texts: Vec<Text>,
    archive: Archive,
}

/// A running text, whose ids the caller has.
struct Text {
    index: Index,
    /// Ids that have been looked at.
    len: usize,
}

/// Texts that have ended, one after the other. Later ones take the places of the first.
struct Archive {
    ids: Vec<u32>,
    index: Index,
    /// Ids that came so far.
    end: usize,
}

/// Positions behind the latest occurrences of N ids, by their hash. Hashes may collide, so a position is a
/// hint.
struct Index(Vec<u32>);

impl NgramDrafter {
    /// For `n_lanes` texts of up to `ctx_len` ids at the same time.
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
        // At equal length a match in the text itself is likelier to be right.
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

/// Length of the common end of `ids` and the text in `other`, which counts from its end.
fn n_same(ids: &[u32], other: impl Fn(usize) -> Option<u32>) -> usize {
    let pairs = ids.iter().rev().take(N_LONG).enumerate();
    pairs.take_while(|(back, id)| other(*back) == Some(**id)).count()
}

impl Text {
    /// Position behind an earlier occurrence of the last of `ids`, if there is one. All but the last few ids
    /// are those of the previous call.
    fn find(&mut self, ids: &[u32]) -> Option<usize> {
        for end in self.len.max(N)..ids.len() {
            self.index.set(&ids[..end], end);
        }
        self.len = ids.len();
        self.index.get(ids).filter(|end| (1..ids.len()).contains(end))
    }
}

impl Archive {
    /// The id at a place, if it is there still.
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

    /// Where the last of `ids` went to, if they are there.
    fn find(&self, ids: &[u32]) -> Option<usize> {
        let back = (self.end as u32).wrapping_sub(self.index.get(ids)? as u32) as usize;
        self.end.checked_sub(back).filter(|end| *end > 0)
    }
}

impl Index {
    /// For `n` ids, or the last of more.
    fn new(n: usize) -> Index {
        Index(vec![0; 2 * n.clamp(128, ARCHIVE_LEN).next_power_of_two()])
    }

    /// Notes that the last of `ids` went up to `end`.
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
        // A product's upper bits depend on all of its factors'.
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
        // Long enough for places that are counted modulo 2^16 to come again.
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
            // Others may have the same hash.
            assert!(n_found > 60, "{n_found}");
            assert!(drafts(&mut drafter, 1, &[7, 8, 9]).0.is_empty());
            if round > 1 {
                assert!(drafts(&mut drafter, 1, &[round - 2, round + 1, round + 4]).0.is_empty());
            }
            drafter.begin(1, &[]);
        }
    }
}
