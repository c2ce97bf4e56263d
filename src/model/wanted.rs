//! Layers that only rows with wanted logits have to go through: the last ones of a model in which they use the keys and
//! values of earlier layers (`n_shared_kv`). Of a prompt that is the last row. Rows do not depend on each other there, so
//! that each has the same bits.

use std::ops::Range;

use super::batch::{ForwardError, Span, wanted_rows};
use super::buffers::Buffers;
use super::pass::Pass;

/// Most spans of a batch whose rows are thinned out. A batch has one for each stream.
const SPANS_MAX: usize = 64;

impl Pass<'_> {
    /// Computes the share's layers on `x`, on a node that has all of the matrices' rows. Unless all rows are needed, those
    /// without wanted logits may lack the model's last layers.
    pub(super) fn layers(
        &self,
        needs_all: bool,
        buffers: &mut Buffers<'_>,
    ) -> Result<(), ForwardError> {
        let header = self.model.header();
        let layers = self.model.share().own_layers(header);
        let first = (header.n_layers - header.features.more.n_shared_kv).max(layers.start);
        let n_wanted: usize = self.spans.iter().map(Span::n_wanted).sum();
        let is_thin = n_wanted < self.m && self.spans.len() <= SPANS_MAX;
        if needs_all || !is_thin || first >= layers.end {
            return self.each_layer(layers, buffers);
        }
        self.each_layer(layers.start..first, buffers)?;
        self.layers_of_wanted(first..layers.end, n_wanted, buffers)
    }

    /// Computes `layers` on the `n_wanted` rows whose logits are wanted. They move to the buffers' first rows, and back.
    fn layers_of_wanted(
        &self,
        layers: Range<usize>,
        n_wanted: usize,
        buffers: &mut Buffers<'_>,
    ) -> Result<(), ForwardError> {
        let thinned = |span: &Span| {
            let n_rows = span.n_wanted();
            let pos = span.pos + span.n_rows - n_rows;
            (n_rows > 0).then_some(Span { pos, n_rows, ..*span })
        };
        let spans: heapless::Vec<Span, SPANS_MAX> = self.spans.iter().filter_map(thinned).collect();
        let (dim, all) = (self.model.header().dim, self.model.header().layer_inputs());
        for (to, from) in wanted_rows(self.spans).enumerate() {
            buffers.x.copy_within(from * dim..(from + 1) * dim, to * dim);
            buffers.tables.layer_inputs.copy_within(from * all..(from + 1) * all, to * all);
        }
        let (interrupt, slice) = (self.interrupt.again(), self.slice.clone());
        let pass = Pass { spans: &spans, m: n_wanted, interrupt, slice, ..*self };
        if n_wanted > 0 {
            pass.each_layer(layers, buffers)?;
        }
        let (mut end, mut left) = (self.m, n_wanted);
        for span in self.spans.iter().rev() {
            for to in (end - span.n_wanted()..end).rev() {
                left -= 1;
                buffers.x.copy_within(left * dim..(left + 1) * dim, to * dim);
            }
            end -= span.n_rows;
        }
        Ok(())
    }
}
