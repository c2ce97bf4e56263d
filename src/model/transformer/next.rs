//! Guesses of a transformer whose share has the block behind the model's last layer.

use super::Transformer;
use crate::model::batch::{ForwardError, Span, Wants};
use crate::model::pass::Pass;

impl Transformer {
    /// Whether this node has all layers and the block behind the last one, so that [`Transformer::guess`] may find a
    /// token.
    pub fn has_next(&self) -> bool {
        self.memory.next.is_some()
    }

    /// Stores what the block needs of the rows of `spans`, which have been through all layers.
    pub(super) fn store_next(&mut self, spans: &[Span]) {
        let Some(mut places) = self.memory.next.take() else { return };
        let layer = self.model.header().n_layers;
        let (pass, mut buffers) = self.begin(spans);
        pass.of_rows(0..pass.m).store_next(layer, &mut places, &mut buffers);
        self.memory.next = Some(places);
    }

    /// Logits of the block for the token behind `token`, which is at `span`'s only position; those of the first `n_ids`
    /// ids or a few less, at most `[vocab_size]`. The stream must hold all positions before. `is_first` says that the
    /// position before has been through the model's layers; otherwise it was guessed by the last call. `None` if the
    /// hidden state that the block needs is not there.
    ///
    /// # Errors
    /// If the position does not fit the plan.
    ///
    /// # Panics
    /// If the token is not in the vocabulary.
    pub fn guess(
        &mut self,
        span: Span,
        token: u32,
        (is_first, n_ids): (bool, usize),
    ) -> Result<Option<&mut [f32]>, ForwardError> {
        let spans = [Span { n_rows: 1, wants: Wants::Last, ..span }];
        super::batch::check_spans(&spans, &self.plan)?;
        let Some(places) = self.memory.next.take() else { return Ok(None) };
        let layer = self.model.header().n_layers;
        let (pass, mut buffers) = self.begin(&spans);
        let pass: Pass<'_> = pass.of_rows(0..1);
        pass.embed(&[token], &mut buffers);
        let is_there = pass.run_next(layer, (&places, is_first), &mut buffers);
        self.memory.next = Some(places);
        let (pass, buffers) = self.begin(&[]);
        Ok(is_there.then(|| pass.classify_first(n_ids, buffers)))
    }
}
