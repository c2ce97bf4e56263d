//! The batch that a member receives.

use crate::group::{Agreed, Broken};
use crate::wire::frame::{FrameSpan, PAGE_WORDS, PAGES_MAX};
use crate::wire::team::{Opening, PassPiece, Work};

/// Spans and ids of the batch.
pub(super) struct Incoming {
    pub(super) work: Work,
    pub(super) spans: Vec<FrameSpan>,
    pub(super) tokens: Vec<u32>,
    /// Its number, while it is not complete.
    seq: Option<u32>,
}

impl Default for Incoming {
    fn default() -> Incoming {
        Incoming { work: Work::Ids, spans: Vec::new(), tokens: Vec::new(), seq: None }
    }
}

impl Incoming {
    /// Room for the largest batch, and none begun.
    pub(super) fn reserve(&mut self, opening: &Opening) {
        self.forget();
        self.spans.reserve(opening.max_batch.into());
        self.tokens.reserve(opening.max_batch.into());
    }

    /// Forgets what has come.
    pub(super) fn forget(&mut self) {
        self.spans.clear();
        self.tokens.clear();
        self.seq = None;
    }

    /// Takes one frame of batch `seq`; says whether that was the last.
    ///
    /// # Errors
    /// If it does not continue the last one, or does not fit `opening`.
    pub(super) fn take(
        &mut self,
        seq: u32,
        piece: &PassPiece<'_>,
        opening: &Opening,
    ) -> Result<bool, Broken> {
        if piece.first_span == 0 && piece.first_token == 0 {
            self.forget();
            (self.seq, self.work) = (Some(seq), piece.work);
        }
        if matches!(piece.work, Work::Ids | Work::Logits(_)) && !opening.has_ends {
            return Err(Broken(
                "ids, or rows for logits, where there are none of the model's ends",
            ));
        }
        if !is_agreed(piece, opening) {
            return Err(Broken("a batch larger than agreed"));
        }
        let (n_spans, n_tokens) = (usize::from(piece.n_spans), usize::from(piece.n_tokens));
        if (self.seq, self.work) != (Some(seq), piece.work)
            || self.spans.len() != usize::from(piece.first_span)
            || self.tokens.len() != usize::from(piece.first_token)
            || self.spans.len() + piece.spans().len() > n_spans
            || self.tokens.len() + piece.tokens().len() > n_tokens
        {
            return Err(Broken("a batch out of order"));
        }
        for span in piece.spans() {
            self.spans.push(span.map_err(|_| Broken("a span without meaning"))?);
        }
        self.tokens.extend(piece.tokens());
        if self.spans.len() < n_spans || self.tokens.len() < n_tokens {
            return Ok(false);
        }
        self.seq = None;
        self.check(opening).map(|()| true)
    }

    /// Checks that streams and positions exist, and that spans and ids are as many rows.
    fn check(&self, opening: &Opening) -> Result<(), Broken> {
        let rows = Agreed::from(opening).check_spans(&self.spans)?;
        let is_full = match self.work {
            Work::Ids => rows == self.tokens.len(),
            Work::Rows | Work::Logits(_) | Work::Pages => rows <= opening.max_batch.into(),
        };
        if is_full { Ok(()) } else { Err(Broken("spans that do not fit their rows")) }
    }
}

/// Whether a batch has as many spans and ids as its work allows.
fn is_agreed(piece: &PassPiece<'_>, opening: &Opening) -> bool {
    let PassPiece { n_spans, n_tokens, .. } = *piece;
    match piece.work {
        Work::Ids => n_spans <= n_tokens && n_tokens <= opening.max_batch,
        Work::Rows => n_spans <= opening.max_batch && n_tokens == 0,
        Work::Logits(rows) => {
            (1..=opening.max_logits).contains(&rows) && (n_spans, n_tokens) == (0, 0)
        }
        Work::Pages => n_spans == 0 && usize::from(n_tokens) <= PAGES_MAX * PAGE_WORDS,
    }
}
