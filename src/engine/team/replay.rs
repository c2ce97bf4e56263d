//! What the nodes of a team have to be told again when it is opened anew.

use crate::wire::frame::{FrameSpan, FrameWants, Sizes};

/// The ids of all streams, as far as they are answered, and how many of them this epoch's nodes have.
pub(super) struct Replay {
    /// By stream.
    history: Vec<Vec<u32>>,
    /// Which streams' texts are long.
    is_long: Vec<bool>,
    /// The next to send again: stream and position.
    next: (usize, usize),
    max_batch: usize,
}

impl Replay {
    /// Nothing yet, with room for all that there can be.
    pub(super) fn new(sizes: &Sizes) -> Replay {
        let ids = |_| Vec::with_capacity(sizes.ctx_len as usize);
        Replay {
            history: (0..sizes.n_streams).map(ids).collect(),
            is_long: vec![false; sizes.n_streams.into()],
            next: (0, 0),
            max_batch: sizes.max_batch.into(),
        }
    }

    /// The nodes have forgotten everything.
    pub(super) fn restart(&mut self) {
        self.next = (0, 0);
    }

    /// A batch of `tokens` in these spans is answered.
    pub(super) fn record(&mut self, spans: &[FrameSpan], mut tokens: &[u32]) {
        for span in spans {
            let (first, rest) = tokens.split_at(span.n_rows.into());
            let stream = usize::from(span.stream);
            self.is_long[stream] = span.is_long;
            let history = &mut self.history[stream];
            history.truncate(span.pos as usize);
            history.extend_from_slice(first);
            tokens = rest;
        }
    }

    /// The next batch to send again, in one span.
    pub(super) fn next_batch(&mut self) -> Option<(FrameSpan, &[u32])> {
        while self.next.1 >= self.history.get(self.next.0)?.len() {
            self.next = (self.next.0 + 1, 0);
        }
        let (stream, pos) = self.next;
        let ids = &self.history[stream];
        let end = ids.len().min(pos + self.max_batch);
        let n_rows = (end - pos) as u16;
        self.next.1 = end;
        let span = FrameSpan {
            stream: stream as u16,
            wants: FrameWants::None,
            pos: pos as u32,
            n_rows,
            is_long: self.is_long[stream],
        };
        Some((span, &ids[pos..end]))
    }
}
