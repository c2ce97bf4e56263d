//! Files that have only some rows of their model's matrices: those of one board of a team.

use std::ops::Range;

use super::fingerprint::fingerprint_with;
use super::header::{FileShare, Header};
use super::kinds::{TensorKind, TensorRole};
use super::mix_parts::{MixParts, MixRows};
use super::slice::Slice;
use super::tensors::Tensor;
use super::weights::Encoding;
use crate::format::FormatError;

impl Slice {
    /// All rows of the model of `header`.
    pub fn whole(header: &Header) -> Slice {
        Slice {
            heads: 0..header.n_heads,
            kv_heads: 0..header.n_kv_heads,
            dim: 0..header.dim,
            ffn: 0..header.ffn_dim,
            vocab: 0..header.vocab_size,
            dense_ffn: 0..header.dense_ffn_dim(),
            full_kv_heads: 0..header.features.more.full_heads.map_or(0, |of| of.n_kv_heads),
            mix: MixParts::all(header).map_or(0..0, |all| all.parts()),
        }
    }

    /// Widths of an item of each range in rows of matrices: of heads those in layers of both kinds; none of parts of
    /// recurrent layers.
    fn widths(header: &Header) -> [[usize; 2]; 8] {
        let (own, full) = (header.head_dim, header.full_head_dim());
        let mut all = [[1; 2]; 8];
        (all[0], all[1], all[6], all[7]) = ([own, full], [own; 2], [full; 2], [0; 2]);
        all
    }

    /// Rows in a matrix of `kind` of the model of `header`, or in one expert's part of it. Only recurrent layers have
    /// several ranges.
    pub fn rows(
        &self,
        kind: TensorKind,
        header: &Header,
    ) -> impl Iterator<Item = Range<usize>> + use<> {
        let which = match kind {
            TensorKind::MixIn => Some(MixRows::Inputs),
            TensorKind::MixGate => Some(MixRows::Values),
            _ => None,
        };
        let mix = which.and_then(|which| {
            MixParts::new(header, self.mix.clone()).map(|parts| parts.ranges(which))
        });
        let range = which.is_none().then(|| self.range(kind, header));
        mix.into_iter().flatten().chain(range)
    }

    /// Rows in a matrix of `kind` that is not one of recurrent layers' first projections.
    fn range(&self, kind: TensorKind, header: &Header) -> Range<usize> {
        let of = |heads: &Range<usize>, dim: usize| heads.start * dim..heads.end * dim;
        let of_heads = |heads| of(heads, header.head_dim);
        let of_full = |heads| of(heads, header.full_head_dim());
        match kind {
            TensorKind::Wq | TensorKind::Bq | TensorKind::OutputGate => of_heads(&self.heads),
            TensorKind::Wk | TensorKind::Wv | TensorKind::Bk | TensorKind::Bv => {
                of_heads(&self.kv_heads)
            }
            TensorKind::W1 | TensorKind::W3 | TensorKind::B1 | TensorKind::B3 => self.ffn.clone(),
            TensorKind::DenseW1 | TensorKind::DenseW3 => self.dense_ffn.clone(),
            TensorKind::FullWq => of_full(&self.heads),
            TensorKind::FullWk | TensorKind::FullWv => of_full(&self.full_kv_heads),
            TensorKind::Embedding | TensorKind::Classifier => self.vocab.clone(),
            TensorKind::Sinks => self.heads.clone(),
            _ => self.dim.clone(),
        }
    }
}

impl Header {
    /// Rows of each matrix that the file has; `None` for all.
    pub fn slice(&self) -> Option<&Slice> {
        self.share.as_ref().and_then(|share| share.slice.as_ref())
    }

    /// Rows of a tensor of `kind` that the file has, in each of its parts; `None` if it has all.
    fn cut_of(&self, kind: TensorKind) -> Option<Cut<'_>> {
        let is_cut = self.is_multiplied(kind) && !is_whole(kind);
        let slice = self.slice().filter(|_| is_cut)?;
        let (rows, cols) = self.shape(kind);
        let n = if kind.is_per_expert() { self.n_ffns() } else { 1 };
        Some(Cut { n, each: rows / n, cols, slice })
    }

    /// Shape, `[rows, cols]`, of a tensor of `kind` in the file.
    pub fn held_shape(&self, kind: TensorKind) -> (usize, usize) {
        match self.cut_of(kind) {
            Some(Cut { n, cols, slice, .. }) => {
                (n * slice.rows(kind, self).map(|rows| rows.len()).sum::<usize>(), cols)
            }
            None => self.shape(kind),
        }
    }

    /// Whether the file's rows include tensors of `kind`. An embedding that is only looked up is left out, and the
    /// projection to layers' inputs: the node that embeds for a team has them.
    pub(super) fn has_rows_of(&self, kind: TensorKind) -> bool {
        let is_looked_up = kind.role() == TensorRole::Embedding && !self.is_multiplied(kind);
        self.slice().is_none() || !(is_looked_up || kind == TensorKind::InputProjection)
    }

    /// Byte ranges, in tensor `from` of `whole`, of the rows that this file has. `whole` is the header of the
    /// same model's file with all rows.
    pub(super) fn places_in(&self, whole: &Header, from: &Tensor) -> Vec<Range<u64>> {
        let kind = from.id.kind;
        let Some(Cut { n, each, cols, slice }) = self.cut_of(kind) else {
            return std::iter::once(0..from.bytes).collect();
        };
        // The last panel of a packed matrix is filled up with rows.
        let panel = self.packing_of(kind).map_or(1, |packed| packed.panel_rows);
        let all = (n * each).next_multiple_of(panel);
        let places = |from: u64, row_bytes: u64| {
            let parts = (0..n).flat_map(|part| {
                slice
                    .rows(kind, self)
                    .map(move |own| part * each + own.start..part * each + own.end)
            });
            let ends = parts.map(|Range { start, end }| {
                start..if start == end { start } else { end.next_multiple_of(panel) }
            });
            let place = move |rows: Range<usize>| {
                let [start, end] = [rows.start, rows.end].map(|row| from + row as u64 * row_bytes);
                start..end
            };
            ends.map(place).collect::<Vec<_>>()
        };
        match self.encoding(from.id) {
            Encoding::Q8 { group } if self.packing_of(kind).is_none() => {
                let scales = 4 * (cols / group) as u64;
                let q = places(0, cols as u64);
                q.into_iter().chain(places((all * cols) as u64, scales)).collect()
            }
            _ => places(0, whole.content_bytes(from.id) / all.max(1) as u64),
        }
    }

    /// Checks that the file's rows lie within the model's, and can be cut out of packed matrices.
    pub(super) fn check_slice(&self) -> Result<(), FormatError> {
        let Some(FileShare { slice: Some(slice), .. }) = &self.share else { return Ok(()) };
        let whole = Slice::whole(self);
        let panel = self.packed.map_or(1, |packed| packed.panel_rows);
        let limits = slice.ranges().into_iter().zip(whole.ranges());
        let is_cut_well = |((own, all), widths): ((&Range<usize>, &Range<usize>), [usize; 2])| {
            let is_joint = |end: usize| {
                let is_panel = |width: usize| (end * width).is_multiple_of(panel);
                end == all.end || widths.into_iter().all(is_panel)
            };
            let is_within = own.start <= own.end && own.end <= all.end;
            is_within && is_joint(own.start) && is_joint(own.end)
        };
        let is_joint_in = |kind| {
            let all = self.shape(kind).0;
            let is_joint = |end: usize| end == all || end.is_multiple_of(panel);
            !self.has(kind)
                || slice.rows(kind, self).all(|rows| is_joint(rows.start) && is_joint(rows.end))
        };
        let are_cut_well = limits.zip(Slice::widths(self)).all(is_cut_well)
            && [TensorKind::MixIn, TensorKind::MixGate].into_iter().all(is_joint_in);
        match are_cut_well {
            true => Ok(()),
            false => Err(FormatError::Unsupported("rows that the model does not have".to_owned())),
        }
    }

    /// Fingerprint of these rows of the model with this `fingerprint`; unchanged if the file has all rows.
    pub fn fingerprint_of_rows(&self, fingerprint: u64) -> u64 {
        let Some(slice) = self.slice() else { return fingerprint };
        fingerprint_with(fingerprint, &slice.emit())
    }
}

/// Whether all boards of a team have a matrix whole: those of a layer's input, which are small.
fn is_whole(kind: TensorKind) -> bool {
    matches!(kind, TensorKind::InputGate | TensorKind::InputOut)
}

/// Rows of a matrix of `n` parts with `each` rows: those of `slice` in each part.
struct Cut<'a> {
    n: usize,
    each: usize,
    cols: usize,
    slice: &'a Slice,
}
