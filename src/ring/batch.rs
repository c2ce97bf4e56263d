//! Batches on their way in and out, frame by frame.

use super::{Link, Rows};
use crate::group::{Agreed, Broken};
use crate::wire::Dtype;
use crate::wire::frame::{
    self, Activations, FIGURES_LEN, Frame, FrameSpan, FrameWants, NODES_MAX, SPAN_LEN, Sizes,
    WorkFigures,
};

/// Work figures of the nodes that a batch has been through.
pub(super) type Figures = heapless::Vec<WorkFigures, NODES_MAX>;

/// The batch being received.
#[derive(Default)]
pub(super) struct Incoming {
    /// Header of the batch, once a frame has come.
    header: Option<Activations>,
    /// Rows that have come.
    received: usize,
    /// Place of the first row.
    first_row: usize,
    pub(super) spans: Vec<FrameSpan>,
    pub(super) figures: Figures,
}

impl Incoming {
    /// Room for the spans of the largest batch.
    pub(super) fn reserve(&mut self, sizes: &Sizes) {
        self.spans.reserve(usize::from(sizes.max_batch).saturating_sub(self.spans.len()));
    }

    /// Rows of a batch of which nothing has come yet are put from `row` on.
    pub(super) fn put_from(&mut self, row: usize) {
        if self.header.is_none() {
            self.first_row = row;
        }
    }

    /// Place of the first row.
    pub(super) fn first_row(&self) -> usize {
        self.first_row
    }

    /// Forgets what has come.
    pub(super) fn clear(&mut self) {
        self.header = None;
    }

    /// Bytes that it keeps on the heap.
    #[cfg(test)]
    pub(super) fn heap_bytes(&self) -> usize {
        self.spans.capacity() * size_of::<FrameSpan>()
    }

    /// Takes one frame of a batch, whose rows go to `rows`; says whether that was the last.
    ///
    /// # Errors
    /// If the frame does not go on where the last one ended, or does not fit `sizes`.
    pub(super) fn take(
        &mut self,
        frame: &Frame<'_>,
        header: &Activations,
        sizes: &Sizes,
        rows: &mut impl Rows,
    ) -> Result<bool, Broken> {
        match &self.header {
            None => self.begin(frame, header, sizes)?,
            Some(first) if first.batch != header.batch || first.n_rows != header.n_rows => {
                return Err(Broken("a batch without its end"));
            }
            Some(_) => {}
        }
        if usize::from(header.first_row) != self.received
            || header.rows > header.n_rows - header.first_row.min(header.n_rows)
            || (header.rows == 0 && header.n_rows > 0)
            || header.dtype != sizes.wire
            || header.dim != sizes.dim
        {
            return Err(Broken("rows out of order"));
        }
        rows.put(self.first_row + self.received, header.dtype, frame.rows());
        self.received += usize::from(header.rows);
        let is_complete = self.received == usize::from(header.n_rows);
        if is_complete {
            self.header = None;
        }
        Ok(is_complete)
    }

    fn begin(
        &mut self,
        frame: &Frame<'_>,
        header: &Activations,
        sizes: &Sizes,
    ) -> Result<(), Broken> {
        let agreed = Agreed::from(sizes);
        agreed.check_counts(header.n_rows, header.n_spans)?;
        self.spans.clear();
        for span in frame.spans() {
            self.spans.push(span.map_err(|_| Broken("a span without meaning"))?);
        }
        if header.n_spans > 0 {
            let n_rows = agreed.check_spans(&self.spans)?;
            if n_rows != usize::from(header.n_rows) {
                return Err(Broken("spans that do not fit their rows"));
            }
        }
        self.figures.clear();
        // A frame has no more figures than this holds.
        self.figures.extend(frame.figures());
        (self.header, self.received) = (Some(*header), 0);
        Ok(())
    }
}

/// The batch being sent.
#[derive(Default)]
pub(super) struct Outgoing {
    epoch: u32,
    batch: u32,
    /// Spans that receivers compute; empty if the rows only come back to the master.
    spans: Vec<FrameSpan>,
    figures: Figures,
    /// Indices of the rows to send.
    rows: Vec<u16>,
    /// Number of rows sent so far.
    sent: usize,
    /// Whether another frame has to be sent.
    is_active: bool,
}

impl Outgoing {
    /// Room for the largest batch.
    pub(super) fn reserve(&mut self, sizes: &Sizes) {
        let rows = usize::from(sizes.max_batch);
        self.spans.reserve(rows.saturating_sub(self.spans.len()));
        self.rows.reserve(rows.saturating_sub(self.rows.len()));
    }

    /// Begins to send batch number `batch`: all rows with their spans, or only those whose
    /// logits are wanted.
    pub(super) fn begin(
        &mut self,
        (epoch, batch): (u32, u32),
        spans: &[FrameSpan],
        figures: &Figures,
        only_wanted: bool,
    ) {
        (self.epoch, self.batch, self.sent, self.is_active) = (epoch, batch, 0, true);
        self.figures.clone_from(figures);
        self.spans.clear();
        self.rows.clear();
        if !only_wanted {
            self.spans.extend_from_slice(spans);
        }
        let mut row = 0;
        for span in spans {
            let end = row + span.n_rows;
            let first = match span.wants {
                _ if !only_wanted => row,
                FrameWants::None => end,
                FrameWants::Last => end - 1,
                FrameWants::All => row,
            };
            self.rows.extend(first..end);
            row = end;
        }
    }

    /// Drops what has not been sent.
    pub(super) fn clear(&mut self) {
        self.is_active = false;
    }

    /// Bytes that it keeps on the heap.
    #[cfg(test)]
    pub(super) fn heap_bytes(&self) -> usize {
        self.spans.capacity() * size_of::<FrameSpan>() + self.rows.capacity() * size_of::<u16>()
    }

    /// Sends what the link takes now; says whether everything is on its way.
    pub(super) fn send(
        &mut self,
        sizes: &Sizes,
        link: &mut impl Link,
        rows: &mut impl Rows,
    ) -> bool {
        while self.is_active {
            let Some(out) = link.reserve() else { return false };
            let bytes = self.emit(sizes, out, rows);
            link.commit(bytes);
            self.is_active = self.sent < self.rows.len();
        }
        true
    }

    /// Writes the next frame; returns its length.
    fn emit(&mut self, sizes: &Sizes, out: &mut [u8], rows: &mut impl Rows) -> usize {
        let mut header = Activations {
            epoch: self.epoch,
            batch: self.batch,
            dtype: sizes.wire,
            dim: sizes.dim,
            n_rows: self.rows.len() as u16,
            first_row: self.sent as u16,
            rows: 0,
            n_spans: self.spans.len() as u16,
            n_figures: self.figures.len() as u16,
        };
        let room = out.len().saturating_sub(header.rows_at()) / header.row_bytes();
        header.rows = room.min(self.rows.len() - self.sent) as u16;
        let body = frame::emit_activations(&header, &self.spans, &self.figures, out);
        let body = body.expect("sizes are checked against a frame's length");
        let chosen = &self.rows[self.sent..self.sent + usize::from(header.rows)];
        for (&row, out) in chosen.iter().zip(body.chunks_exact_mut(header.row_bytes())) {
            rows.get(usize::from(row), header.dtype, out);
        }
        self.sent += chosen.len();
        header.bytes()
    }
}

/// Whether frames of `frame_bytes` can carry batches of these sizes, row by row.
pub(crate) fn fits(sizes: &Sizes, frame_bytes: usize) -> bool {
    let row = sizes.dim as usize * sizes.wire.bytes();
    let head =
        frame::HEADER_LEN + usize::from(sizes.max_batch) * SPAN_LEN + NODES_MAX * FIGURES_LEN;
    row > 0 && head + row <= frame_bytes
}

/// Most frames of a result.
pub(super) fn frames_per_result(sizes: &Sizes, frame_bytes: usize) -> usize {
    let row = sizes.dim as usize * sizes.wire.bytes();
    let per_frame =
        frame_bytes.saturating_sub(frame::HEADER_LEN + NODES_MAX * FIGURES_LEN) / row.max(1);
    usize::from(sizes.max_logits).div_ceil(per_frame.max(1)).max(1)
}

/// Bytes that a decoded token takes on each hop.
pub(crate) fn token_bytes(dim: u32, wire: Dtype) -> usize {
    frame::HEADER_LEN + SPAN_LEN + dim as usize * wire.bytes()
}
