//! Division of a model's matrices, by rows, among the nodes of a team.
//!
//! For every product, each node computes some complete rows. No sum is divided, so the bits are those of one
//! node. A node has some query heads with their KV heads, and some rows of attention's output, gate and up,
//! down, and the classifier. In a mixture it has some rows of each expert's matrices. Of a recurrent layer it has some
//! heads with their states.

use std::fmt;
use std::ops::Range;

use super::batch::ForwardError;
use super::gather::{Gather, SpreadRows, To};
use super::inputs::{Given, activation_group};
use super::precision::Precision;
use super::project::MATRICES_MAX;
use crate::format::model::{
    Header, MixParts, MixRows, Mixer, MoreFeatures, Slice, TensorId, TensorKind,
};
use crate::kernels::{Kernels, PANEL_ROWS};
use crate::pool::{Chunks, Pool};

/// Maximum number of nodes in a team.
pub const TEAM_MAX: usize = 16;

/// Kind of columns of a gathered row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Columns {
    Heads,
    Dim,
    Ffn,
    Vocab,
    /// All columns of rows that only the lead holds.
    Rows,
    /// Gate and up of the dense layers of a mixture, or of those beside mixtures.
    DenseFfn,
    /// Inputs of a recurrent layer's output projection, before their norm if that is one over heads.
    Mix,
    /// Heads of layers that have heads of their own.
    FullHeads,
    /// Inputs of all layers, which only the lead holds.
    LayerInputs,
}

/// The rows of each node of a team.
#[derive(Clone, Debug, PartialEq)]
pub struct Team {
    own: usize,
    slices: Vec<Slice>,
    /// Shapes of gathered rows, by [`Columns`].
    rows: [GatheredRows; 9],
    /// The model's header with this node's numbers of heads and FFN width.
    narrow: Header,
    /// Precision in which values for the residual stream are gathered.
    wire: Precision,
}

/// Bytes that a node of a team sends for one row, by gather.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenBytes {
    /// Attention's output, or the inputs of a recurrent layer's output projection: the larger of both.
    pub heads: u64,
    /// Values for the residual stream.
    pub dim: u64,
    /// Activations of all of the row's experts.
    pub ffn: u64,
    /// Activations of the layer beside a mixture, then its output if it has norms; 0 for a gather that the model lacks.
    pub beside: [u64; 2],
    /// Logits.
    pub logits: u64,
}

/// Shape of rows that are gathered.
#[derive(Clone, Debug, PartialEq)]
struct GatheredRows {
    /// Number of values in a row.
    k: usize,
    /// Number of values that share a scale; `None` if the values stay f32.
    group: Option<usize>,
    /// Columns that this node computes, in values.
    own: Vec<Range<usize>>,
    /// Byte ranges of each node in a row: int8 values and then their scales, or f32 values.
    parts: Vec<Vec<Range<usize>>>,
}

impl GatheredRows {
    /// Rows whose columns are divided among the nodes as `columns` says.
    fn new(columns: &[Range<usize>], group: Option<usize>, own: usize) -> GatheredRows {
        let columns: Vec<_> = columns.iter().map(|range| vec![range.clone()]).collect();
        GatheredRows::of_ranges(&columns, group, own)
    }

    /// Rows of which each node computes several ranges of columns.
    fn of_ranges(columns: &[Vec<Range<usize>>], group: Option<usize>, own: usize) -> GatheredRows {
        const F32: usize = size_of::<f32>();
        let k = columns.iter().flatten().map(|range| range.end).max().unwrap_or(0);
        let part = |of: &Vec<Range<usize>>| -> Vec<Range<usize>> {
            let Some(group) = group else {
                return of.iter().map(|of| of.start * F32..of.end * F32).collect();
            };
            let scale = |column: usize| k + column / group * F32;
            let scales = of.iter().map(|of| scale(of.start)..scale(of.end));
            of.iter().cloned().chain(scales).collect()
        };
        let parts = columns.iter().map(part).collect();
        GatheredRows { k, group, own: columns[own].clone(), parts }
    }

    /// Number of columns that this node computes.
    fn width(&self) -> usize {
        self.own.iter().map(Range::len).sum()
    }

    /// Length of a row in f32.
    fn row_len(&self) -> usize {
        Given::row_len(self.k, self.group)
    }
}

/// Why a team cannot have these shares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SharesError {
    /// There are not 1 to [`TEAM_MAX`] nodes, or this node is not among them.
    Nodes(usize),
    /// A node has a share of 0.
    Nothing,
    /// The rows of the model's layers cannot be shared.
    Model(&'static str),
}

impl fmt::Display for SharesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SharesError::Nodes(n) => write!(f, "a team of {n}, it may have 1 to {TEAM_MAX} nodes"),
            SharesError::Nothing => f.write_str("a node of a team whose share is 0"),
            SharesError::Model(why) => write!(f, "no team can share this model's layers: {why}"),
        }
    }
}

impl std::error::Error for SharesError {}

impl Team {
    /// Divides the model among the nodes in proportion to `shares`, to whole panels of every kernel tier.
    /// This node has index `own`.
    ///
    /// # Errors
    /// If there are too many nodes or none, `own` is not among them, or a share is 0.
    pub fn new(header: &Header, shares: &[u16], own: usize) -> Result<Team, SharesError> {
        if shares.is_empty() || shares.len() > TEAM_MAX || own >= shares.len() {
            return Err(SharesError::Nodes(shares.len()));
        }
        if shares.contains(&0) {
            return Err(SharesError::Nothing);
        }
        if let Some(why) = header.why_whole() {
            return Err(SharesError::Model(why));
        }
        let Header { head_dim, n_heads, dim, ffn_dim, vocab_size, .. } = *header;
        let (head_unit, full_dim) = (head_unit(header), header.full_head_dim());
        let (heads, head_group) =
            cut_in_groups(header, shares, TensorKind::Wo, n_heads, (head_dim, head_unit));
        let (ffn, ffn_group) =
            cut_in_groups(header, shares, TensorKind::W2, ffn_dim, (1, PANEL_ROWS));
        let (dense, dense_group) = match header.dense_ffn_dim() {
            0 => (vec![0..0; shares.len()], None),
            n => cut_in_groups(header, shares, TensorKind::DenseW2, n, (1, PANEL_ROWS)),
        };
        let dim = cut(shares, dim, PANEL_ROWS);
        let vocab = cut(shares, vocab_size, PANEL_ROWS);
        let (mix, mix_group) = cut_mix(header, shares);
        if mix.iter().any(|parts| n_first_matrices(header, parts) > MATRICES_MAX) {
            return Err(SharesError::Model(
                "a key head of its recurrent layers has too many value heads",
            ));
        }
        let slice = |node: usize| {
            let heads = heads[node].clone();
            let n_full = header.features.more.full_heads.map_or(0, |of| of.n_kv_heads);
            let [kv_heads, full_kv_heads] = [header.n_kv_heads, n_full]
                .map(|n_kv_heads| kv_heads((n_heads, n_kv_heads), &heads, head_unit));
            let all = [&dim, &ffn, &vocab, &dense, &mix];
            let [dim, ffn, vocab, dense_ffn, mix] = all.map(|ranges| ranges[node].clone());
            Slice { heads, kv_heads, dim, ffn, vocab, dense_ffn, full_kv_heads, mix }
        };
        let slices: Vec<Slice> = (0..shares.len()).map(slice).collect();
        let of_heads = |dim: usize| -> Vec<Range<usize>> {
            slices.iter().map(|Slice { heads, .. }| heads.start * dim..heads.end * dim).collect()
        };
        // Rows of heads of the other kind are whole groups, too, if their width is a multiple.
        let full_group = head_group.filter(|_| full_dim.is_multiple_of(head_dim));
        let of_lead = |width: usize| -> Vec<Range<usize>> {
            (0..shares.len()).map(|node| if node == 0 { 0 } else { width }..width).collect()
        };
        let rows = [
            GatheredRows::new(&of_heads(head_dim), head_group, own),
            GatheredRows::new(&dim, None, own),
            GatheredRows::new(&ffn, ffn_group, own),
            GatheredRows::new(&vocab, None, own),
            GatheredRows::new(&of_lead(header.dim), None, own),
            GatheredRows::new(&dense, dense_group, own),
            GatheredRows::of_ranges(&mix_values(header, &mix), mix_group, own),
            GatheredRows::new(&of_heads(full_dim), full_group, own),
            GatheredRows::new(&of_lead(header.layer_inputs()), None, own),
        ];
        let narrow = narrowed(header, &slices[own]);
        Ok(Team { own, slices, rows, narrow, wire: Precision::F32 })
    }

    /// This team, in which all nodes round values for the residual stream to `wire`.
    pub fn with_wire(mut self, wire: Precision) -> Team {
        let GatheredRows { parts, .. } = &mut self.rows[Columns::Dim as usize];
        for part in parts.iter_mut().flatten() {
            let value = |at: usize| at / self.wire.bytes() * wire.bytes();
            *part = value(part.start)..value(part.end);
        }
        self.wire = wire;
        self
    }

    /// The model's header with this node's numbers of heads and FFN width.
    pub(super) fn narrow(&self) -> &Header {
        &self.narrow
    }

    /// Number of nodes.
    pub fn n_nodes(&self) -> usize {
        self.slices.len()
    }

    /// Bytes that this node sends in the gathers of one row.
    pub fn given_bytes(&self) -> GivenBytes {
        let active = self.narrow.features.experts.map_or(1, |experts| experts.n_active as u64);
        let bytes = |columns| {
            self.rows(columns).parts[self.own].iter().map(|range| range.len() as u64).sum::<u64>()
        };
        let (dense, experts) = (bytes(Columns::DenseFfn), bytes(Columns::Ffn) * active);
        let MoreFeatures { parallel_ffn, is_shared_expert, .. } = self.narrow.features.more;
        let (ffn, beside) = match parallel_ffn {
            Some(_) if is_shared_expert => (experts, [dense, 0]),
            Some(_) => (experts, [dense, bytes(Columns::Dim)]),
            None => (experts.max(dense), [0; 2]),
        };
        GivenBytes {
            heads: [Columns::Heads, Columns::FullHeads, Columns::Mix]
                .map(bytes)
                .into_iter()
                .max()
                .unwrap_or(0),
            dim: bytes(Columns::Dim),
            ffn,
            beside,
            logits: bytes(Columns::Vocab),
        }
    }

    /// How many of `bytes` bytes of weights this node reads.
    pub fn part_of(&self, bytes: u64) -> u64 {
        let rows = self.rows(Columns::Ffn);
        (u128::from(bytes) * rows.width() as u128 / rows.k.max(1) as u128) as u64
    }

    /// Gathers rows of f32 in `all`. This node's columns come from the start of `part`, one row after the
    /// other.
    pub(super) fn gather(
        &self,
        columns: Columns,
        part: &[f32],
        all: &mut [f32],
        to: To,
        gather: &mut dyn Gather,
    ) -> Result<(), ForwardError> {
        self.put(columns, part, all);
        gather.gather(SpreadRows { to, ..self.spread(columns, all) })
    }

    /// Sends rows of `columns`, which only the lead holds, to all nodes.
    pub(super) fn share(
        &self,
        columns: Columns,
        rows: &mut [f32],
        gather: &mut dyn Gather,
    ) -> Result<(), ForwardError> {
        gather.gather(self.spread(columns, rows))
    }

    /// Copies this node's columns, from the start of `part`, to the rows of `all`.
    pub(super) fn put(&self, columns: Columns, part: &[f32], all: &mut [f32]) {
        let rows = self.rows(columns);
        if rows.width() == 0 {
            return;
        }
        for (row, mut part) in all.chunks_exact_mut(rows.k).zip(part.chunks_exact(rows.width())) {
            for own in &rows.own {
                let (values, rest) = part.split_at(own.len());
                row[own.clone()].copy_from_slice(values);
                part = rest;
            }
        }
    }

    /// The rows in the form that all nodes gather.
    fn spread<'a>(&'a self, columns: Columns, rows: &'a mut [f32]) -> SpreadRows<'a> {
        let GatheredRows { parts, .. } = self.rows(columns);
        let row_bytes = self.row_bytes(columns);
        SpreadRows { bytes: bytemuck::cast_slice_mut(rows), row_bytes, parts, to: To::All }
    }

    /// Bytes of a gathered row.
    fn row_bytes(&self, columns: Columns) -> usize {
        match columns {
            Columns::Dim => self.rows(columns).k * self.wire.bytes(),
            _ => self.row_len(columns) * size_of::<f32>(),
        }
    }

    /// Maximum bytes that a node contributes per row to a gather within a layer.
    pub(super) fn part_bytes_max(&self) -> usize {
        let bytes = |columns| {
            let parts = self.rows(columns).parts.iter();
            parts.map(|part| part.iter().map(Range::len).sum()).max().unwrap_or(0)
        };
        let active = self.narrow.features.experts.map_or(1, |experts| experts.n_active);
        let ffn = (bytes(Columns::Ffn) * active).max(bytes(Columns::DenseFfn));
        let others = [Columns::Heads, Columns::FullHeads, Columns::Mix, Columns::Dim];
        others.into_iter().map(bytes).fold(ffn, usize::max)
    }

    /// The buffer of `m` gathered rows of `columns`: `acts`, but `delta` for values for the residual stream
    /// in f32.
    pub(super) fn gathered<'a>(
        &'a self,
        (columns, m): (Columns, usize),
        [delta, acts]: [&'a mut [f32]; 2],
    ) -> SpreadRows<'a> {
        let place = match columns {
            Columns::Dim if self.wire == Precision::F32 => delta,
            _ => acts,
        };
        // A row of f16 may end in the middle of an f32.
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(place);
        let row_bytes = self.row_bytes(columns);
        let parts = &self.rows(columns).parts;
        SpreadRows { bytes: &mut bytes[..m * row_bytes], row_bytes, parts, to: To::All }
    }

    /// Writes this node's columns of values for the residual stream, from the start of `part`, to the buffer
    /// where `m` rows are gathered.
    pub(super) fn put_added(&self, m: usize, part: &[f32], delta: &mut [f32], acts: &mut [f32]) {
        let rows @ GatheredRows { parts, k, .. } = self.rows(Columns::Dim);
        if self.wire == Precision::F32 {
            return self.put(Columns::Dim, part, &mut delta[..m * k]);
        }
        let SpreadRows { bytes, row_bytes, .. } = self.gathered((Columns::Dim, m), [delta, acts]);
        let width = rows.width();
        if width > 0 {
            let rows = bytes.chunks_exact_mut(row_bytes).zip(part.chunks_exact(width));
            rows.for_each(|(row, part)| {
                self.wire.write(part, &mut row[parts[self.own][0].clone()])
            });
        }
    }

    /// Writes the gathered values for the residual stream to `delta`, unless they are there already.
    pub(super) fn take_added(&self, m: usize, delta: &mut [f32], acts: &mut [f32]) {
        if self.wire != Precision::F32 {
            let all = m * self.rows(Columns::Dim).k;
            let bytes: &[u8] = bytemuck::cast_slice(acts);
            // This includes the node's own columns: they are rounded on all nodes alike.
            self.wire.read(&bytes[..all * self.wire.bytes()], &mut delta[..all]);
        }
    }

    /// Writes this node's columns of a projection's inputs, from the start of `part`, to the buffer where `m`
    /// rows are gathered. Quantises them if each node's columns are whole groups.
    pub(super) fn put_inputs(
        &self,
        (columns, m): (Columns, usize),
        (kernels, pool): (&Kernels, &Pool),
        part: &[f32],
        acts: &mut [f32],
    ) {
        let rows @ GatheredRows { k, group, own, .. } = self.rows(columns);
        let row_len = self.row_len(columns);
        let acts = &mut acts[..m * row_len];
        let Some(group) = *group else { return self.put(columns, part, acts) };
        let write = |row: usize, out: &mut [f32]| {
            let (q, scales) = out.split_at_mut(k / size_of::<f32>());
            let q: &mut [i8] = bytemuck::cast_slice_mut(q);
            let mut part = &part[row * rows.width()..][..rows.width()];
            for own in own {
                let (values, rest) = part.split_at(own.len());
                let scales = &mut scales[own.start / group..own.end / group];
                kernels.quantize_q8(values, group, &mut q[own.clone()], scales);
                part = rest;
            }
        };
        pool.run_chunks(Chunks::new(acts, row_len), &write);
    }

    /// The gathered inputs.
    pub(super) fn given<'a>(&self, columns: Columns, acts: &'a [f32]) -> Given<'a> {
        let GatheredRows { k, group, .. } = *self.rows(columns);
        Given { rows: acts, k, group }
    }

    /// This node's rows.
    pub fn own(&self) -> &Slice {
        &self.slices[self.own]
    }

    fn rows(&self, columns: Columns) -> &GatheredRows {
        &self.rows[columns as usize]
    }

    /// Number of columns that this node computes.
    pub(super) fn width(&self, columns: Columns) -> usize {
        self.rows(columns).width()
    }

    /// Length of a gathered row, in f32.
    pub(super) fn row_len(&self, columns: Columns) -> usize {
        self.rows(columns).row_len()
    }
}

/// The model's header with the numbers of heads and FFN widths of `slice`.
fn narrowed(header: &Header, slice: &Slice) -> Header {
    let Slice { heads, kv_heads, full_kv_heads, ffn, dense_ffn, .. } = slice;
    let mut narrow = Header {
        n_heads: heads.len(),
        n_kv_heads: kv_heads.len(),
        ffn_dim: ffn.len(),
        ..header.clone()
    };
    if let Some(dense) = &mut narrow.features.dense {
        dense.ffn_dim = dense_ffn.len();
    }
    if let Some(full) = &mut narrow.features.more.full_heads {
        full.n_kv_heads = full_kv_heads.len();
    }
    if let Some(ffn_dim) = &mut narrow.features.more.parallel_ffn {
        *ffn_dim = dense_ffn.len();
    }
    narrow
}

/// Divides `0..n` at multiples of `unit`; each item stands for `width` inputs of weights of `kind`. If the
/// nodes' work stays nearly equal, the ranges begin at groups of activations, and the group's length is
/// returned.
fn cut_in_groups(
    header: &Header,
    shares: &[u16],
    kind: TensorKind,
    n: usize,
    (width, unit): (usize, usize),
) -> (Vec<Range<usize>>, Option<usize>) {
    let fine = cut(shares, n, unit);
    let first = (0..header.n_layers).find(|layer| header.has_in(kind, *layer));
    let id = TensorId { kind, layer: first.unwrap_or(0) };
    let group = activation_group(header.encoding(id));
    let Some(group) = group else { return (fine, None) };
    let of_group = group / gcd(group, width);
    let coarse = cut(shares, n, unit * of_group / gcd(unit, of_group));
    let is_fair = coarse.iter().zip(&fine).all(|(coarse, fine)| coarse.len() * 8 <= fine.len() * 9);
    if is_fair { (coarse, Some(group)) } else { (fine, None) }
}

/// Divides the parts of recurrent layers, at whole panels of rows. Returns the length of groups of activations, too, if
/// each node's inputs of the output projection are whole groups: a state space's are not, as a norm follows the gather.
fn cut_mix(header: &Header, shares: &[u16]) -> (Vec<Range<usize>>, Option<usize>) {
    let Some(all) = MixParts::all(header) else { return (vec![0..0; shares.len()], None) };
    let (n, unit) = (all.parts().len(), all.unit(PANEL_ROWS));
    if matches!(all.mixer(), Mixer::StateSpace(_)) {
        return (cut(shares, n, unit), None);
    }
    let (parts, group) =
        cut_in_groups(header, shares, TensorKind::MixOut, n, (all.value_width(), unit));
    let is_in_groups = |group: &usize| {
        let values = mix_values(header, &parts);
        let mut ends = values.iter().flatten().flat_map(|range| [range.start, range.end]);
        ends.all(|end| end.is_multiple_of(*group))
    };
    let group = group.filter(is_in_groups);
    (parts, group)
}

/// Matrices that a node multiplies by a recurrent layer's input, if it has these parts.
fn n_first_matrices(header: &Header, parts: &Range<usize>) -> usize {
    MixParts::new(header, parts.clone()).map_or(0, |parts| {
        parts.ranges(MixRows::Inputs).count() + parts.ranges(MixRows::Values).count()
    })
}

/// Columns of the output projection of recurrent layers whose values each node computes, of which it has these parts.
fn mix_values(header: &Header, parts: &[Range<usize>]) -> Vec<Vec<Range<usize>>> {
    let values = |parts: &Range<usize>| -> Vec<Range<usize>> {
        let own = MixParts::new(header, parts.clone());
        own.map_or_else(Vec::new, |own| own.ranges(MixRows::Values).collect())
    };
    parts.iter().map(values).collect()
}

/// Divides `0..n` in proportion to `shares`, at multiples of `unit`.
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

/// Number of heads that are whole panels in layers of both kinds of heads.
fn head_unit(header: &Header) -> usize {
    let dims = [header.head_dim, header.full_head_dim()];
    // Units are powers of two, so the largest is a multiple of the other.
    let units =
        dims.into_iter().filter(|dim| *dim > 0).map(|dim| PANEL_ROWS / gcd(PANEL_ROWS, dim));
    units.max().unwrap_or(1)
}

/// The KV heads that `heads` attend with, in whole panels; none if there are none of this kind.
fn kv_heads(
    (n_heads, n_kv_heads): (usize, usize),
    heads: &Range<usize>,
    unit: usize,
) -> Range<usize> {
    if heads.is_empty() || n_kv_heads == 0 {
        return 0..0;
    }
    let group = n_heads / n_kv_heads;
    let (start, end) = (heads.start / group, heads.end.div_ceil(group));
    start / unit * unit..end.next_multiple_of(unit).min(n_kv_heads)
}

/// Greatest common divisor.
pub(super) fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
