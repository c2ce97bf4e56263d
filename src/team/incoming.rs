//! The batch that a member receives.

use super::opening::Opening;
use crate::group::{Agreed, Broken};
use crate::wire::frame::{Frame, FramePage, FrameSpan, Pass, Work};

/// Spans and ids of the batch, and the pages that came before it.
pub(super) struct Incoming {
    pub(super) work: Work,
    pub(super) spans: Vec<FrameSpan>,
    pub(super) tokens: Vec<u32>,
    pub(super) pages: Vec<FramePage>,
    /// Number of the batch, while it is not complete.
    seq: Option<u32>,
}

impl Default for Incoming {
    fn default() -> Incoming {
        Incoming {
            work: Work::Ids,
            spans: Vec::new(),
            tokens: Vec::new(),
            pages: Vec::new(),
            seq: None,
        }
    }
}

impl Incoming {
    /// Room for the largest batch, and none begun.
    pub(super) fn reserve(&mut self, opening: &Opening) {
        self.forget();
        self.spans.reserve(opening.sizes.max_batch.into());
        self.tokens.reserve(opening.sizes.max_batch.into());
    }

    /// Forgets what has come.
    pub(super) fn forget(&mut self) {
        self.spans.clear();
        self.tokens.clear();
        self.seq = None;
    }

    /// Takes pages that streams have from the next batch on.
    ///
    /// # Errors
    /// If one has no meaning.
    pub(super) fn take_pages(&mut self, frame: &Frame<'_>) -> Result<(), Broken> {
        self.pages.clear();
        for page in frame.pages() {
            self.pages.push(page.map_err(|_| Broken("a page without meaning"))?);
        }
        Ok(())
    }

    /// Takes one frame of a batch; says whether that was the last.
    ///
    /// # Errors
    /// If it does not continue the last one, or does not fit `opening`.
    pub(super) fn take(
        &mut self,
        frame: &Frame<'_>,
        pass: &Pass,
        opening: &Opening,
    ) -> Result<bool, Broken> {
        if pass.first_span == 0 && pass.first_token == 0 {
            self.forget();
            (self.seq, self.work) = (Some(pass.batch), pass.work);
        }
        if matches!(pass.work, Work::Ids | Work::Logits(_)) && !opening.has_ends {
            return Err(Broken(
                "ids, or rows for logits, where there are none of the model's ends",
            ));
        }
        if !is_agreed(pass, opening) {
            return Err(Broken("a batch larger than agreed"));
        }
        let (n_spans, n_tokens) = (usize::from(pass.n_spans), usize::from(pass.n_tokens));
        if (self.seq, self.work) != (Some(pass.batch), pass.work)
            || self.spans.len() != usize::from(pass.first_span)
            || self.tokens.len() != usize::from(pass.first_token)
            || self.spans.len() + frame.spans().len() > n_spans
            || self.tokens.len() + frame.tokens().len() > n_tokens
        {
            return Err(Broken("a batch out of order"));
        }
        for span in frame.spans() {
            self.spans.push(span.map_err(|_| Broken("a span without meaning"))?);
        }
        self.tokens.extend(frame.tokens());
        if self.spans.len() < n_spans || self.tokens.len() < n_tokens {
            return Ok(false);
        }
        self.seq = None;
        self.check(opening).map(|()| true)
    }

    /// Checks that streams and positions exist, and that spans and ids are as many rows.
    fn check(&self, opening: &Opening) -> Result<(), Broken> {
        let rows = Agreed::from(&opening.sizes).check_spans(&self.spans)?;
        let is_full = match self.work {
            Work::Ids => rows == self.tokens.len(),
            Work::Rows | Work::Logits(_) => rows <= opening.sizes.max_batch.into(),
        };
        if is_full { Ok(()) } else { Err(Broken("spans that do not fit their rows")) }
    }
}

/// Whether a batch has as many spans and ids as its work allows. An empty batch has no work.
fn is_agreed(pass: &Pass, opening: &Opening) -> bool {
    let (Pass { n_spans, n_tokens, .. }, sizes) = (*pass, &opening.sizes);
    match pass.work {
        Work::Ids => (1..=n_tokens).contains(&n_spans) && n_tokens <= sizes.max_batch,
        Work::Rows => (1..=sizes.max_batch).contains(&n_spans) && n_tokens == 0,
        Work::Logits(rows) => {
            (1..=sizes.max_logits).contains(&rows) && (n_spans, n_tokens) == (0, 0)
        }
    }
}
