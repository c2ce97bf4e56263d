//! The tensors of an export, where their values come from, and the blocks they are converted in.

use std::iter;
use std::ops::Range;

use super::checkpoint::{INT8_GROUP, SourceTensor};
use super::error::ExportError;
use crate::format::model::{Encoding, Header, Tensor};
use crate::quant::{
    Bcml1Matrix, Bcml2Matrix, Bcml6Matrix, Ggml, GgmlMatrix, Q8Matrix, QuantError, bcml1,
};

/// Values of a block, unless a single row or head has more.
const BLOCK_LEN: usize = 1 << 20;

/// How matrices are packed for the kernels of one instruction set.
pub struct Packing {
    /// Number of the layout.
    pub layout: u32,
    /// Rows of a panel.
    pub panel_rows: usize,
    /// Packs rows of a matrix.
    pub pack: PackRows,
}

/// Packs rows of a matrix into whole panels; the last rows are padded to one.
pub type PackRows = Box<dyn Fn(QuantisedRows<'_>, &mut [u8]) + Send + Sync>;

/// Quantised rows to pack.
#[derive(Clone, Copy)]
pub enum QuantisedRows<'a> {
    /// int8.
    Q8(Q8Matrix<'a>),
    /// 4-bit blocks.
    Q4(Bcml1Matrix<'a>),
    /// Rows of BCML2.
    B2(Bcml2Matrix<'a>),
    /// Rows of BCML6.
    B6(Bcml6Matrix<'a>),
    /// Blocks of a GGUF file.
    Ggml(GgmlMatrix<'a>),
}

/// A tensor of the model file and where its values come from. Their shapes agree.
pub(super) struct TensorJob<'a> {
    pub(super) tensor: Tensor,
    pub(super) source: SourceTensor<'a>,
    /// Order of the source's rows.
    pub(super) rows: Order,
    /// Order of the values in each of the source's rows.
    pub(super) cols: Order,
    /// Change of each value.
    pub(super) change: Change,
    /// Rows of a panel; 1 if the tensor is not packed.
    pub(super) panel_rows: usize,
    /// Whether the tensor goes to the file. Other tensors give only their checksum, for the fingerprint of the whole
    /// model.
    pub(super) is_held: bool,
    /// Where the rows are in the file, if other tensors' rows stand between them. Only GGUF files have such tensors.
    pub(super) runs: Option<Runs>,
    /// Type of blocks, where it is not that of the header: rows of a GGUF file's tensor with others in blocks.
    pub(super) stored_as: Option<Ggml>,
}

/// Rows of a tensor that stand together in a file, and the distance between such runs.
#[derive(Clone, Copy)]
pub(super) struct Runs {
    /// Rows of a run.
    pub(super) rows: usize,
    /// Bytes from the start of a run to the start of the next.
    pub(super) step: u64,
}

/// Order of rows or values in a source, where a file has another.
#[derive(Clone, Copy)]
pub(super) enum Order {
    /// The file's.
    Same,
    /// RoPE pairs stand as two halves of a head.
    Halved(HalvedHeads),
    /// Value heads of one key head stand together.
    Grouped(GroupedHeads),
}

impl Order {
    /// Index in the source of `index` of the file.
    fn source(self, index: usize) -> usize {
        match self {
            Order::Same => index,
            Order::Halved(heads) => heads.source(index),
            Order::Grouped(heads) => heads.source(index),
        }
    }
}

/// Heads whose RoPE pairs stand as two halves.
#[derive(Clone, Copy)]
pub(super) struct HalvedHeads {
    /// Values of a head.
    pub(super) width: usize,
    /// Number of values in RoPE pairs, at the head's start.
    pub(super) rotary: usize,
}

impl HalvedHeads {
    /// Index in the source of value or row `index` of the model file.
    fn source(self, index: usize) -> usize {
        let HalvedHeads { width, rotary } = self;
        match index % width {
            within if within >= rotary => index,
            within => index - within + within % 2 * (rotary / 2) + within / 2,
        }
    }
}

/// Value heads of which those of one key head stand together, where a GGUF file has the first ones of all key heads,
/// then the second ones, and so on.
#[derive(Clone, Copy)]
pub(super) struct GroupedHeads {
    /// Values or rows before the first head.
    pub(super) start: usize,
    /// Values or rows of a head.
    pub(super) width: usize,
    pub(super) key_heads: usize,
    pub(super) value_heads: usize,
}

impl GroupedHeads {
    /// Index in the source of value or row `index` of the file. Behind the last head, all heads may follow again.
    fn source(self, index: usize) -> usize {
        let GroupedHeads { start, width, key_heads, value_heads } = self;
        let Some(behind) = index.checked_sub(start) else { return index };
        let head = behind / width % value_heads;
        let own = head % key_heads * (value_heads / key_heads) + head / key_heads;
        index - head * width + own * width
    }
}

/// Change of values before they are stored.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Change {
    /// `(x + plus) / divisor`.
    Linear { plus: f32, divisor: f32 },
    /// `-exp(x)`: the decay of a state from its logarithm.
    NegativeExp,
}

impl Change {
    /// Values stay as they are.
    pub(super) const NONE: Change = Change::Linear { plus: 0.0, divisor: 1.0 };

    fn apply(self, x: f32) -> f32 {
        match self {
            Change::Linear { plus, divisor } => (x + plus) / divisor,
            Change::NegativeExp => -f64::from(x).exp() as f32,
        }
    }
}

/// Some rows of a job.
pub(super) struct Block<'a> {
    /// Number of the block in the file.
    pub(super) index: usize,
    pub(super) job: &'a TensorJob<'a>,
    pub(super) rows: Range<usize>,
}

/// The blocks of all jobs, in the order of the file.
pub(super) fn blocks<'a>(jobs: &'a [TensorJob<'a>]) -> impl Iterator<Item = Block<'a>> {
    let rows = jobs.iter().flat_map(|job| {
        let n_rows = job.tensor.rows;
        let step = job.rows_per_block();
        (0..n_rows).step_by(step).map(move |row| (job, row..n_rows.min(row.saturating_add(step))))
    });
    rows.enumerate().map(|(index, (job, rows))| Block { index, job, rows })
}

impl TensorJob<'_> {
    /// Rows of a block: whole heads if rows change places, so that a block's values are in one piece, and whole panels.
    pub(super) fn rows_per_block(&self) -> usize {
        let heads = if let Order::Halved(heads) = self.rows { heads.width } else { 1 };
        let panels = self.panel_rows;
        let unit = if heads.is_multiple_of(panels) { heads } else { heads * panels };
        unit * (BLOCK_LEN / self.tensor.cols / unit).max(1)
    }

    /// The source's row for `row` of the model file.
    pub(super) fn source_row(&self, row: usize) -> usize {
        self.rows.source(row)
    }

    /// Encoding of the tensor in the file of `header`.
    pub(super) fn encoding(&self, header: &Header) -> Encoding {
        self.stored_as.map_or_else(|| header.encoding(self.tensor.id), Encoding::Ggml)
    }

    /// The pieces of `rows` that stand together in the file: how many bytes each takes, and where it begins.
    pub(super) fn pieces(&self, rows: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
        let Tensor { rows: all, offset, bytes, .. } = self.tensor;
        let row_bytes = bytes / all as u64;
        let runs = self.runs.unwrap_or(Runs { rows: all, step: bytes });
        let firsts =
            iter::successors(Some(rows.start), move |row| Some((row / runs.rows + 1) * runs.rows));
        firsts.take_while(move |row| *row < rows.end).map(move |row| {
            let (run, within) = (row / runs.rows, row % runs.rows);
            let n = (runs.rows - within).min(rows.end - row);
            let at = offset + run as u64 * runs.step + within as u64 * row_bytes;
            (n * row_bytes as usize, at)
        })
    }
}

impl Block<'_> {
    /// The block's values, counted from the start of the tensor.
    pub(super) fn values(&self) -> Range<usize> {
        self.rows.start * self.job.tensor.cols..self.rows.end * self.job.tensor.cols
    }

    /// Converts `row` of the model file to f32.
    #[inline(always)]
    pub(super) fn widen(&self, row: usize, out: &mut [f32]) {
        self.job.source.widen_row(self.job.source_row(row), out);
        let TensorJob { change, cols, .. } = self.job;
        if *change != Change::NONE {
            out.iter_mut().for_each(|x| *x = change.apply(*x));
        }
        if !matches!(cols, Order::Same) {
            let source = out.to_vec();
            for (index, x) in out.iter_mut().enumerate() {
                *x = source[cols.source(index)];
            }
        }
    }

    /// Whether the source's codes are those of the output.
    pub(super) fn has_codes(&self, group: usize) -> bool {
        self.job.source.is_int8() && group == INT8_GROUP
    }

    /// Whether the source has the output's blocks, of `kind`.
    pub(super) fn has_blocks(&self, kind: Ggml) -> bool {
        self.job.source.row_blocks(kind, 0).is_some()
    }

    /// The error that some value cannot be encoded.
    pub(super) fn not_encoded(&self, error: &QuantError) -> ExportError {
        match error {
            QuantError::Value { value, .. } if value.is_finite() => {
                let max = bcml1::WEIGHT_MAX;
                self.job
                    .source
                    .error(format!("holds {value}, and the largest value in 4 and 6 bits is {max}"))
            }
            _ => self.not_finite(),
        }
    }

    /// The error that some value is not finite.
    pub(super) fn not_finite(&self) -> ExportError {
        self.job.source.error("holds a NaN or an infinity".to_owned())
    }
}
