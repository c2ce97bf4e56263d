//! The block behind a model's last layer that guesses the token after the next (multi-token prediction,
//! arXiv:2404.19737; Qwen 3.5's `mtp` tensors).
//!
//! Its row at position `q` belongs to the token there, and to the final hidden state `h` of the position before:
//! ```text
//! x = join · [norm_e(embedding(token_q)), norm_h(h_{q - 1})]
//! x = layer(x)                       attends to the block's own keys and values
//! guess for q + 1 = argmax(classifier · norm(x))
//! ```
//! `h` is behind the model's final norm. A further guess takes the block's own output, behind its norm, in place of `h`.
//!
//! So the keys and values at `q` depend on the tokens up to `q` alone, and lie in the pages of those of the model's layers.
//! Where a stream goes on from a page that another one has computed, it lacks the hidden state of the position before:
//! zeros stand for it, or the state that an earlier text of the stream had there. One row of keys and values is worse
//! then, and with it perhaps some guesses; a text never changes.

use super::Share;
use super::batch::Span;
use super::buffers::Buffers;
use super::next_buffers::KEPT;
use super::pass::Pass;
use super::plan::Plan;
use crate::format::model::{Header, PANEL_ROWS_MAX, TensorKind};
use crate::kernels::MatrixDims;

/// Positions whose hidden states are kept.
pub(super) struct NextPlaces {
    /// The position after each kept one, 0 for none, `[n_streams, KEPT]`.
    after: Vec<usize>,
}

impl NextPlaces {
    /// Places of no states; `None` if the share lacks the block.
    pub(super) fn new(header: &Header, share: &Share, plan: &Plan) -> Option<NextPlaces> {
        share.has_next(header).then(|| NextPlaces { after: vec![0; plan.n_streams * KEPT] })
    }

    /// Index of the kept state of the position before `pos`, if it is there.
    fn before(&self, stream: usize, pos: usize) -> Option<usize> {
        let index = stream * KEPT + pos.checked_sub(1)? % KEPT;
        (self.after[index] == pos).then_some(index)
    }

    /// The places for the last positions of `spans`, with their rows in the batch.
    fn keep<'s>(&'s mut self, spans: &'s [Span]) -> impl Iterator<Item = (usize, usize)> + 's {
        let mut first = 0;
        let places = spans.iter().flat_map(move |span| {
            let row = first;
            first += span.n_rows;
            let n_kept = span.n_rows.min(KEPT);
            (span.n_rows - n_kept..span.n_rows).map(move |n| (span.stream, span.pos + n, row + n))
        });
        places.map(|(stream, pos, row)| {
            let index = stream * KEPT + pos % KEPT;
            self.after[index] = pos + 1;
            (index, row)
        })
    }

    /// Hidden state for row `row` of the batch of `spans`.
    fn hidden_for(&self, row: usize, spans: &[Span]) -> Hidden {
        let mut first = 0;
        for span in spans {
            if row == first {
                return self.before(span.stream, span.pos).map_or(Hidden::Unknown, Hidden::Kept);
            }
            first += span.n_rows;
            if row < first {
                break;
            }
        }
        Hidden::OfBatch(row - 1)
    }
}

/// Where a final hidden state lies.
#[derive(Clone, Copy)]
enum Hidden {
    /// In this row of `delta`, which has those of the batch.
    OfBatch(usize),
    /// At this place of the kept ones.
    Kept(usize),
    /// In the first of the block's rows: its own output.
    Own,
    /// Nowhere.
    Unknown,
}

impl Pass<'_> {
    /// Remembers the embeddings of the batch, which are in `x`.
    pub(super) fn remember_embeddings(&self, buffers: &mut Buffers<'_>) {
        let (x, next) = (&*buffers.x, &mut buffers.tables.next);
        if !next.embedded.is_empty() {
            let n = self.m * self.model.header().dim;
            next.embedded[..n].copy_from_slice(&x[..n]);
        }
    }

    /// Stores the block's keys and values of the batch, whose rows of the last layer are in `x` and stay there.
    pub(super) fn store_next(
        &self,
        layer: usize,
        places: &mut NextPlaces,
        buffers: &mut Buffers<'_>,
    ) {
        let dim = self.model.header().dim;
        let n = self.m * dim;
        self.normalise(buffers.x[..n].chunks_exact(dim), buffers.delta);
        buffers.tables.next.rows[..n].copy_from_slice(&buffers.x[..n]);
        self.join(layer, &|row| places.hidden_for(row, self.spans), buffers);
        for (place, row) in places.keep(self.spans) {
            let hidden = &buffers.delta[row * dim..][..dim];
            buffers.tables.next.kept[place * dim..][..dim].copy_from_slice(hidden);
        }
        self.turn(layer, &mut 0, buffers);
        let (attention, own_layer) = self.prepare_attention(layer, buffers);
        attention.store_all(self.pool, own_layer, buffers);
        buffers.x[..n].copy_from_slice(&buffers.tables.next.rows[..n]);
    }

    /// Computes the block on one row, whose embedding is in `x`. Writes its output, behind its norm, to the classifier's
    /// inputs. `is_first` says that the hidden state is the model's; `false`, with nothing computed, if that is not kept.
    pub(super) fn run_next(
        &self,
        layer: usize,
        (places, is_first): (&NextPlaces, bool),
        buffers: &mut Buffers<'_>,
    ) -> bool {
        let header = self.model.header();
        let [span] = self.spans else { return false };
        let hidden = match is_first {
            true => places.before(span.stream, span.pos).map(Hidden::Kept),
            false => Some(Hidden::Own),
        };
        let Some(hidden) = hidden else { return false };
        self.remember_embeddings(buffers);
        self.join(layer, &|_| hidden, buffers);
        if self.each_layer(layer..layer + 1, buffers).is_err() {
            return false;
        }
        let weight = self.model.vector(TensorKind::NextNorm, layer);
        let own = &mut buffers.tables.next.rows[..header.dim];
        self.kernels.rms_norm(&buffers.x[..header.dim], weight, header.norm_eps, own);
        buffers.inputs.f32[..header.dim].copy_from_slice(own);
        true
    }

    /// Logits of the one row that has been through the block's norm, for about the first `n_ids` ids: whole panels of the
    /// classifier.
    pub(super) fn classify_first<'b>(&self, n_ids: usize, buffers: Buffers<'b>) -> &'b mut [f32] {
        let (header, projector) = (self.model.header(), self.projector());
        let n = match n_ids < header.vocab_size {
            true => (n_ids / PANEL_ROWS_MAX * PANEL_ROWS_MAX).max(PANEL_ROWS_MAX),
            false => header.vocab_size,
        };
        let n = n.min(header.vocab_size);
        let Buffers { mut inputs, logits, .. } = buffers;
        let classifier = self.matrix(header.classifier(), 0).slice_rows(0..n);
        let dims = MatrixDims { rows: 1, k: header.dim };
        let prepared = projector.prepare(&mut inputs, dims, &classifier, None);
        let logits = &mut logits[..n];
        projector.project(prepared, &[classifier], logits);
        logits
    }

    /// Writes the block's inputs to `x`: of each row of the batch its embedding, joined with the hidden state that
    /// `hidden` finds.
    fn join(
        &self,
        layer: usize,
        hidden: &(dyn Fn(usize) -> Hidden + Sync),
        buffers: &mut Buffers<'_>,
    ) {
        let header = self.model.header();
        let (dim, eps, kernels) = (header.dim, header.norm_eps, self.kernels);
        let [of_embedding, of_hidden] = [TensorKind::NextEmbeddingNorm, TensorKind::NextHiddenNorm]
            .map(|kind| self.model.vector(kind, layer));
        let Buffers { x, delta, inputs, tables, .. } = buffers;
        let (delta, next) = (&**delta, &tables.next);
        let fill = |row: usize, out: &mut [f32]| {
            let (embedded, joined) = out.split_at_mut(dim);
            kernels.rms_norm(&next.embedded[row * dim..][..dim], of_embedding, eps, embedded);
            match hidden(row) {
                Hidden::OfBatch(row) => {
                    kernels.rms_norm(&delta[row * dim..][..dim], of_hidden, eps, joined);
                }
                Hidden::Kept(place) => {
                    kernels.rms_norm(&next.kept[place * dim..][..dim], of_hidden, eps, joined);
                }
                Hidden::Own => kernels.rms_norm(&next.rows[..dim], of_hidden, eps, joined),
                Hidden::Unknown => joined.fill(0.0),
            }
        };
        let (projector, matrix) = (self.projector(), self.matrix(TensorKind::NextJoin, layer));
        let dims = MatrixDims { rows: self.m, k: 2 * dim };
        let prepared = projector.prepare(inputs, dims, &matrix, Some(&fill));
        projector.project(prepared, &[matrix], x);
    }
}
