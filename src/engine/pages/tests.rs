//! A model of a board whose streams store, for each position, the ids up to it.

use super::*;

/// Stands for the stored keys of a position: all ids up to it.
type Stored = Vec<u32>;

struct Board {
    pages: Pages,
    /// Stored keys, `[page, position]`, of ordinary pages and of window pages.
    stored: [Vec<Vec<Stored>>; 2],
    streams: Vec<TestStream>,
    max_batch: usize,
}

struct TestStream {
    held: Held,
    ids: Vec<u32>,
}

/// A pseudo-random number below `n` (Xorshift).
fn below(n: usize, state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state % n as u64) as usize
}

impl Board {
    fn new(plan: &KvPlan, n_streams: usize, max_batch: usize) -> Board {
        let n_windows = plan.window.map_or(0, |window| window.n_pages);
        let stream = |_| TestStream { held: Held::default(), ids: Vec::new() };
        Board {
            pages: Pages::new(plan),
            stored: [plan.n_pages, n_windows].map(|n| vec![vec![Stored::new(); KV_PAGE]; n]),
            streams: (0..n_streams).map(stream).collect(),
            max_batch,
        }
    }

    /// Gives a stream another text, up to the room there is, and checks what it continues from. Returns the
    /// number of ids that were stored already.
    fn tell(&mut self, index: usize, ids: &[u32]) -> usize {
        let TestStream { held, ids: own } = &mut self.streams[index];
        self.pages.release(held, own);
        let (n, copy, _) = self.pages.adopt(held, ids);
        *own = ids[..n].to_vec();
        if let Some(PageCopy { from, to }) = copy {
            let windows = from.window.zip(to.window);
            for (group, pair) in [(0, Some((from.page, to.page))), (1, windows)] {
                if let Some((from, to)) = pair {
                    self.stored[group][to as usize] = self.stored[group][from as usize].clone();
                }
            }
        }
        self.check();
        while self.streams[index].ids.len() < ids.len() {
            let TestStream { held, ids: own } = &mut self.streams[index];
            let end = ids.len().min(own.len() + self.max_batch);
            self.pages.extend(held, own, end);
            let end = end.min(held.room());
            if end == own.len() {
                break;
            }
            while own.len() < end {
                let pos = own.len();
                own.push(ids[pos]);
                let pair = self.pages.pair_of(held.nodes[pos / KV_PAGE]);
                for (group, page) in [(0, Some(pair.page)), (1, pair.window)] {
                    if let Some(page) = page {
                        self.stored[group][page as usize][pos % KV_PAGE] = own.clone();
                    }
                }
            }
            self.check();
        }
        // Other streams can then find the full pages.
        let TestStream { held, ids: own } = &mut self.streams[index];
        self.pages.extend(held, own, own.len());
        self.check();
        n
    }

    /// Checks that every stream finds all that it attends to, and that no page is lost or held twice.
    fn check(&self) {
        let mut users = vec![0; self.pages.nodes.len()];
        for TestStream { held, ids } in &self.streams {
            let seen =
                self.pages.window.map_or(0, |plan| (ids.len() + 1).saturating_sub(plan.window));
            for pos in 0..ids.len() {
                let pair = self.pages.pair_of(held.nodes[pos / KV_PAGE]);
                let stored =
                    |group: usize, page: u32| &self.stored[group][page as usize][pos % KV_PAGE];
                assert_eq!(stored(0, pair.page), &ids[..=pos]);
                if self.pages.window.is_some() && pos >= seen {
                    assert_eq!(stored(1, pair.window.unwrap()), &ids[..=pos]);
                }
            }
            held.nodes.iter().for_each(|node| users[*node as usize] += 1);
        }
        let nodes = self.pages.nodes.iter();
        assert_eq!(nodes.map(|node| node.users).collect::<Vec<u32>>(), users);
        let figures = self.pages.figures();
        assert_eq!(figures.n_used, users.iter().filter(|n| **n > 0).count());
        let nodes = self.pages.nodes.iter();
        assert_eq!(figures.n_idle, nodes.filter(|node| node.len > 0 && node.users == 0).count());
        let mut windows: Vec<u32> = self.pages.free_windows.clone();
        windows.extend(self.pages.nodes.iter().map(|node| node.window).filter(|w| *w != NONE));
        windows.sort_unstable();
        assert!(windows.into_iter().eq(0..self.stored[1].len() as u32));
        let nodes = self.pages.nodes.iter();
        let n_used_windows = nodes.filter(|node| node.window_users > 0).count();
        assert_eq!(self.pages.n_used_windows, n_used_windows);
    }
}

fn plan(n_pages: usize, window: Option<(usize, usize)>) -> KvPlan {
    let window = window.map(|(window, n_pages)| WindowPlan { window, ring_pages: 4, n_pages });
    KvPlan { ctx_pages: 8, n_pages, window, checkpoints: 0 }
}

#[test]
fn random_texts_find_what_they_look_at() {
    let windows = [None, Some((70, 8)), Some((100, 13)), Some((1, 5))];
    for (seed, window) in (1..).zip(windows) {
        for (n_pages, n_streams) in [(8, 1), (9, 3), (20, 4)] {
            let mut board = Board::new(&plan(n_pages, window), n_streams, 50);
            let mut state = seed * 77 + n_pages as u64;
            for _ in 0..200 {
                // Few beginnings, of any length, with few ends.
                let mut ids = vec![below(2, &mut state) as u32; below(200, &mut state)];
                ids.extend(vec![2 + below(3, &mut state) as u32; below(200, &mut state)]);
                let index = below(n_streams, &mut state);
                let ids = if below(6, &mut state) == 0 { &ids[..0] } else { &ids[..] };
                board.tell(index, ids);
            }
            for index in 0..n_streams {
                board.tell(index, &[]);
            }
            assert_eq!(board.pages.n_used, 0);
            assert_eq!(board.tell(0, &[9; 500]).min(1), 0);
            assert_eq!(board.streams[0].ids.len(), 500, "one text alone has room");
        }
    }
}

#[test]
fn a_text_goes_on_from_all_but_its_last_id() {
    let mut board = Board::new(&plan(16, None), 2, 500);
    let text: Vec<u32> = (0..200).collect();
    assert_eq!(board.tell(0, &text), 0);
    // Shares the full pages of the other stream, but not its last page, which is incomplete.
    assert_eq!(board.tell(1, &text), 192);
    assert_eq!(board.pages.figures().n_used, 5);
    assert_eq!(board.tell(0, &[]), 0);
    assert_eq!(board.tell(0, &text), 199);
    assert_eq!(board.tell(0, &text[..128]), 127);
    let other: Vec<u32> = (0..70).chain(500..600).collect();
    assert_eq!(board.tell(0, &other), 70);
    assert_eq!(board.pages.figures().hits, 192 + 199 + 127 + 70);
}

#[test]
fn the_longest_unused_makes_way() {
    let mut board = Board::new(&plan(8, None), 1, 500);
    let texts: [Vec<u32>; 4] = [0, 1, 2, 3].map(|first| vec![first; 150]);
    for text in &texts[..3] {
        assert_eq!(board.tell(0, text), 0);
    }
    // Two of three pages of the first text are left.
    assert_eq!(board.tell(0, &texts[0]), 128);
    assert_eq!(board.tell(0, &texts[3]), 0);
    assert_eq!(board.tell(0, &texts[0]), 149);
    assert_eq!(board.tell(0, &texts[1]), 0);
}
