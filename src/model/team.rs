//! How the nodes of a team share the rows of a model's matrices.
//!
//! Each node computes some rows of every product, whole ones: no sums are divided, so that the bits are
//! those of one node. It has some query heads with the KV heads that they look at, and some rows of
//! attention's output, gate and up, down, and the classifier; of a mixture some of each expert's.

use std::fmt;
use std::ops::Range;

use super::batch::ForwardError;
use super::gather::{Gather, To};
use crate::format::model::{Header, TensorKind};
use crate::kernels::PANEL_ROWS;

/// Most nodes of a team.
pub const TEAM_MAX: usize = 16;

/// The rows of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Slice {
    /// Query heads.
    pub(super) heads: Range<usize>,
    /// KV heads that they look at.
    pub(super) kv_heads: Range<usize>,
    /// Of what is added to the residual stream.
    pub(super) dim: Range<usize>,
    /// Of gate and up.
    pub(super) ffn: Range<usize>,
    /// Of the classifier.
    pub(super) vocab: Range<usize>,
}

/// What columns of a gathered row are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Columns {
    Heads,
    Dim,
    Ffn,
    Vocab,
}

/// Which rows each node of a team has.
#[derive(Clone, Debug, PartialEq)]
pub struct Team {
    own: usize,
    slices: Vec<Slice>,
    /// Of each of [`Columns`], and of each node, bytes of f32 in a row.
    parts: [Vec<Range<usize>>; 4],
    /// The model's header with this node's heads and feed-forward width.
    narrow: Header,
}

/// Shares that cannot be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SharesError {
    /// Not 1 to [`TEAM_MAX`] nodes, or this node is none of them.
    Nodes(usize),
    /// A node is to have nothing.
    Nothing,
}

impl fmt::Display for SharesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SharesError::Nodes(n) => write!(f, "a team of {n}, it may have 1 to {TEAM_MAX} nodes"),
            SharesError::Nothing => f.write_str("a node of a team whose share is 0"),
        }
    }
}

impl std::error::Error for SharesError {}

impl Slice {
    /// All rows.
    pub(super) fn whole(header: &Header) -> Slice {
        Slice {
            heads: 0..header.n_heads,
            kv_heads: 0..header.n_kv_heads,
            dim: 0..header.dim,
            ffn: 0..header.ffn_dim,
            vocab: 0..header.vocab_size,
        }
    }

    /// Its rows of a matrix of `kind`, or of one expert's.
    pub(super) fn rows(&self, kind: TensorKind, head_dim: usize) -> Range<usize> {
        let of_heads = |heads: &Range<usize>| heads.start * head_dim..heads.end * head_dim;
        match kind {
            TensorKind::Wq | TensorKind::Bq => of_heads(&self.heads),
            TensorKind::Wk | TensorKind::Wv | TensorKind::Bk | TensorKind::Bv => {
                of_heads(&self.kv_heads)
            }
            TensorKind::W1 | TensorKind::W3 | TensorKind::B1 | TensorKind::B3 => self.ffn.clone(),
            TensorKind::Embedding | TensorKind::Classifier => self.vocab.clone(),
            TensorKind::Sinks => self.heads.clone(),
            _ => self.dim.clone(),
        }
    }
}

impl Team {
    /// Nodes that have parts of the model in proportion to `shares`, as nearly as whole panels of every
    /// kind of kernels allow; this one is `own`.
    ///
    /// # Errors
    /// If there are too many or too few nodes.
    pub fn new(header: &Header, shares: &[u16], own: usize) -> Result<Team, SharesError> {
        if shares.is_empty() || shares.len() > TEAM_MAX || own >= shares.len() {
            return Err(SharesError::Nodes(shares.len()));
        }
        if shares.contains(&0) {
            return Err(SharesError::Nothing);
        }
        let head_unit = PANEL_ROWS / gcd(PANEL_ROWS, header.head_dim);
        let cut = |n, unit| cut(shares, n, unit);
        let heads = cut(header.n_heads, head_unit);
        let (dim, ffn) = (cut(header.dim, PANEL_ROWS), cut(header.ffn_dim, PANEL_ROWS));
        let vocab = cut(header.vocab_size, PANEL_ROWS);
        let slice = |node: usize| {
            let heads = heads[node].clone();
            let kv_heads = kv_heads(header, &heads, head_unit);
            let [dim, ffn, vocab] = [&dim, &ffn, &vocab].map(|ranges| ranges[node].clone());
            Slice { heads, kv_heads, dim, ffn, vocab }
        };
        let slices: Vec<Slice> = (0..shares.len()).map(slice).collect();
        let bytes = |ranges: &[Range<usize>], width: usize| {
            let of_row = width * size_of::<f32>();
            ranges.iter().map(|range| range.start * of_row..range.end * of_row).collect()
        };
        let parts =
            [bytes(&heads, header.head_dim), bytes(&dim, 1), bytes(&ffn, 1), bytes(&vocab, 1)];
        let Slice { heads, kv_heads, ffn, .. } = &slices[own];
        let narrow = Header {
            n_heads: heads.len(),
            n_kv_heads: kv_heads.len(),
            ffn_dim: ffn.len(),
            ..header.clone()
        };
        Ok(Team { own, slices, parts, narrow })
    }

    /// The model's header with this node's heads and feed-forward width.
    pub(super) fn narrow(&self) -> &Header {
        &self.narrow
    }

    /// How many nodes it has.
    pub fn n_nodes(&self) -> usize {
        self.slices.len()
    }

    /// How much of `bytes` of weights this node reads.
    pub fn part_of(&self, bytes: u64) -> u64 {
        let Range { start, end } = self.own().ffn;
        let width = self.parts(Columns::Ffn).last().map_or(1, |last| last.end / size_of::<f32>());
        (u128::from(bytes) * (end - start) as u128 / width.max(1) as u128) as u64
    }

    /// Brings rows of these columns together in `all`: the first of `part` are this node's, one row after
    /// the other.
    pub(super) fn gather(
        &self,
        columns: Columns,
        part: &[f32],
        all: &mut [f32],
        to: To,
        gather: &mut dyn Gather,
    ) -> Result<(), ForwardError> {
        let (own, parts) = (self.columns(columns), self.parts(columns));
        let row_bytes = parts.last().map_or(0, |last| last.end);
        if !own.is_empty() {
            let rows = all.chunks_exact_mut(row_bytes / size_of::<f32>());
            for (row, part) in rows.zip(part.chunks_exact(own.len())) {
                row[own.clone()].copy_from_slice(part);
            }
        }
        gather.gather(bytemuck::cast_slice_mut(all), row_bytes, parts, to)
    }

    /// This node's rows.
    pub(super) fn own(&self) -> &Slice {
        &self.slices[self.own]
    }

    /// Which bytes of a row of f32 are whose.
    pub(super) fn parts(&self, columns: Columns) -> &[Range<usize>] {
        &self.parts[columns as usize]
    }

    /// The columns that this node computes, in values.
    pub(super) fn columns(&self, columns: Columns) -> Range<usize> {
        let bytes = &self.parts(columns)[self.own];
        bytes.start / size_of::<f32>()..bytes.end / size_of::<f32>()
    }
}

/// Cuts `0..n` in proportion to `shares`, at multiples of `unit`.
fn cut(shares: &[u16], n: usize, unit: usize) -> Vec<Range<usize>> {
    let total: usize = shares.iter().map(|share| usize::from(*share)).sum();
    let n_units = n.div_ceil(unit);
    let (mut sum, mut start) = (0, 0);
    let ends = shares.iter().map(|share| {
        sum += usize::from(*share);
        ((n_units * sum + total / 2) / total * unit).min(n)
    });
    ends.map(|end| std::mem::replace(&mut start, end)..end).collect()
}

/// The KV heads that `heads` look at, in whole panels.
fn kv_heads(header: &Header, heads: &Range<usize>, unit: usize) -> Range<usize> {
    if heads.is_empty() {
        return 0..0;
    }
    let group = header.n_heads / header.n_kv_heads;
    let (start, end) = (heads.start / group, heads.end.div_ceil(group));
    start / unit * unit..end.next_multiple_of(unit).min(header.n_kv_heads)
}

/// The largest number that divides both.
pub(super) fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
