//! The batches that fit the sizes agreed on when an epoch was opened.

use crate::wire::frame::{FrameSpan, Sizes};

/// A description of a malformed message: no correct node sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken(pub(crate) &'static str);

/// Bounds of the batches of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Agreed {
    ctx_len: u32,
    n_streams: u16,
    max_batch: u16,
    max_logits: u16,
}

impl From<&Sizes> for Agreed {
    fn from(sizes: &Sizes) -> Agreed {
        let Sizes { ctx_len, n_streams, max_batch, max_logits, .. } = *sizes;
        Agreed { ctx_len, n_streams, max_batch, max_logits }
    }
}

impl Agreed {
    /// Checks that a batch may have `n_rows` rows and `n_spans` spans.
    pub(crate) fn check_counts(&self, n_rows: u16, n_spans: u16) -> Result<(), Broken> {
        match n_rows <= self.max_batch && n_spans <= self.max_batch {
            true => Ok(()),
            false => Err(Broken("a batch larger than agreed")),
        }
    }

    /// Checks that streams and positions of `spans` exist, and returns the number of their rows.
    pub(crate) fn check_spans(&self, spans: &[FrameSpan]) -> Result<usize, Broken> {
        let is_sound = |span: &FrameSpan| {
            let end = u64::from(span.pos) + u64::from(span.n_rows);
            span.stream < self.n_streams && span.n_rows > 0 && end <= u64::from(self.ctx_len)
        };
        if !spans.iter().all(is_sound) {
            return Err(Broken("a span of no stream"));
        }
        let wanted: usize = spans.iter().map(FrameSpan::n_wanted).sum();
        if wanted > usize::from(self.max_logits) {
            return Err(Broken("a batch that wants more logits than agreed"));
        }
        Ok(spans.iter().map(|span| usize::from(span.n_rows)).sum())
    }
}
