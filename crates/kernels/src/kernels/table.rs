//! The functions of a tier, their arguments, and how they are called.

use half::f16;

use super::float::{BLOCK, ScoresMut4, Softmax};
use super::kv8::{KeyQuery, KvLine};
use super::packed::ggml::Offsets;
use super::packed::layout::Layout;
use super::packed::table::PackedTable;
use super::packed::tile::Q8Tile;
use super::recurrence::{Convolution, DeltaStep, ScanStep};
use crate::quant::Q8Row;
use crate::quant::bcml1::Block;

/// Four rows of one operand.
pub(super) type Rows4<'a> = [Q8Row<'a>; 4];

/// Rows of floats of four queries.
pub(super) type Floats4<'a> = [&'a [f32]; 4];

/// Rows of floats of four queries, to be written.
pub(super) type FloatsMut4<'a> = [&'a mut [f32]; 4];

/// Weights of a block's positions, of four queries.
pub(super) type Weights4<'a> = [&'a [f32; BLOCK]; 4];

/// Floats of keys or values that share a quantisation step.
pub(super) type Floats32 = [f32; 32];

/// Four rows of 4-bit weights.
pub(super) type Blocks4<'a> = [&'a [Block]; 4];

/// An activation row with the sums of each 32 of its values.
#[derive(Clone, Copy)]
pub(super) struct SummedRow<'a> {
    pub(super) row: Q8Row<'a>,
    pub(super) sums: &'a [i32],
}

/// A scan: the tokens, decay and skip, the state, and the outputs.
type Scan = unsafe fn(&[ScanStep<'_>], (f32, f32), &mut [f32], &mut [f32]);

/// An update of a state: the tokens, the state, and the outputs.
type Update = unsafe fn(&[DeltaStep<'_>], &mut [f32], &mut [f32]);

/// The functions of one tier. Callers have checked lengths: a function may assume what its method in
/// [`Kernels`](super::Kernels) asserts, but must stay within memory even if that is wrong.
pub(super) struct Table {
    // One or four activation rows by four weight rows; the last argument is the activations' group.
    pub(super) dot_q8_q8_f32_1x4: unsafe fn(&Q8Row<'_>, &Rows4<'_>, usize) -> [f32; 4],
    pub(super) dot_q8_q8_f32_4x4: unsafe fn(&Rows4<'_>, &Rows4<'_>, usize) -> [[f32; 4]; 4],
    pub(super) dot_q8_q4_f32_1x4: unsafe fn(&SummedRow<'_>, &Blocks4<'_>, usize) -> [f32; 4],
    pub(super) dot_q8_q4_f32_4x4:
        unsafe fn(&[SummedRow<'_>; 4], &Blocks4<'_>, usize) -> [[f32; 4]; 4],
    pub(super) dot_f32_f32_f32_1x4: unsafe fn(&[f32], [&[f32]; 4]) -> [f32; 4],
    pub(super) quantize_q8: unsafe fn(&[f32], usize, &mut [i8], &mut [f32]),
    pub(super) sum_q8: unsafe fn(&[i8], &mut [i32]),
    pub(super) rms_norm: unsafe fn(&[f32], &[f32], f32, &mut [f32]),
    pub(super) rope: unsafe fn(&mut [f32], usize, &[f32], &[f32]),
    pub(super) swiglu: unsafe fn(&[f32], &[f32], &mut [f32]),
    pub(super) add: unsafe fn(&mut [f32], &[f32]),
    /// A convolution of one position; see [`super::recurrence`].
    pub(super) convolve: unsafe fn(&[&[f32]], Convolution<'_>, &mut [f32]),
    pub(super) gate: unsafe fn(&[f32], &mut [f32]),
    pub(super) gelu: unsafe fn(&[f32], &mut [f32]),
    pub(super) delta_controls: unsafe fn(&mut [f32], &[f32], &[f32]),
    pub(super) delta_rule: Update,
    pub(super) steps: unsafe fn(&mut [f32], &[f32]),
    pub(super) scan: Scan,
    pub(super) score: unsafe fn(&[f32], &[f32], f32, &mut [f32]),
    pub(super) soften: unsafe fn(&mut [f32; BLOCK], &mut Softmax) -> f32,
    pub(super) weigh: unsafe fn(&[f32], &[f32], f32, &mut [f32]),
    // `score` of four queries at a time.
    pub(super) score_4: unsafe fn(Floats4<'_>, &[f32], f32, FloatsMut4<'_>),
    pub(super) soften_4: unsafe fn(ScoresMut4<'_>, [&mut Softmax; 4]) -> [f32; 4],
    pub(super) weigh_4: unsafe fn(Floats4<'_>, &[f32], [f32; 4], FloatsMut4<'_>),
    /// Set if the tier transposes keys for many queries.
    pub(super) block_scores: Option<BlockScores>,
    // Attention to int8 keys and values: one block of keys, or of a group of values.
    pub(super) score_i8: unsafe fn(KeyQuery<'_>, &[KvLine], f32, &mut [f32; BLOCK]),
    pub(super) score_i8_4: unsafe fn([KeyQuery<'_>; 4], &[KvLine], f32, ScoresMut4<'_>),
    pub(super) weigh_i8: unsafe fn(&[f32; BLOCK], &[KvLine], f32, &mut [f32]),
    pub(super) weigh_i8_4: unsafe fn(Weights4<'_>, &[KvLine], [f32; 4], FloatsMut4<'_>),
    /// Quantises a group of keys or values and returns its scale; see [`super::kv8`].
    pub(super) quantize_kv: unsafe fn(&[Floats32], &mut [[i8; 32]]) -> f16,
    pub(super) widen: unsafe fn(&[f16], &mut [f32]),
    pub(super) narrow: unsafe fn(&[f32], &mut [f16]),
    pub(super) read_all: unsafe fn(&[u8]) -> u64,
    pub(super) spin_int8: unsafe fn(usize) -> i32,
    /// `-128 * Σ q` of each group: cancels the u8 bias of packed weights, see [`super::packed`].
    pub(super) biases: unsafe fn(&[i8], usize, &mut [i32]),
    /// Unpacks some blocks of 6 bits of a panel, with its steps; see [`six::unpack`](super::packed::six::unpack).
    pub(super) unpack_b6: unsafe fn(Layout, &[u8], &[u8], &mut [u8]),
    /// Adds products of offsets; see [`ggml::add_offsets`](super::packed::ggml::add_offsets).
    pub(super) add_offsets: unsafe fn(Layout, Offsets<'_>, &Q8Tile<'_>, &mut [f32]),
    /// `None` if the tier takes weights unpacked.
    pub(super) packed: Option<PackedTable>,
}

/// Scores of whole blocks of positions by transposed keys.
#[derive(Clone, Copy)]
pub(super) struct BlockScores {
    /// Transposes keys `[BLOCK, head_dim]` into `[head_dim, BLOCK]`; `head_dim` is a multiple of
    /// [`LANES`](super::float::LANES).
    pub(super) transpose: unsafe fn(&[f32], &mut [[f32; BLOCK]]),
    /// A table's `score_4`, with transposed keys.
    pub(super) score: unsafe fn(Floats4<'_>, &[[f32; BLOCK]], f32, ScoresMut4<'_>),
}

impl Table {
    /// The tier's functions for packed weights.
    pub(super) fn packed(&self) -> &PackedTable {
        self.packed.as_ref().expect("only a tier with a layout is given packed weights")
    }
}

/// Calls a function of a tier: `call!(table.add(x, y))`, or one that was taken from its table before.
///
/// A [`Table`] is only used through kernels from `Kernels::for_isa`. That makes them only if this CPU has the features
/// that the table's functions are compiled for.
macro_rules! call {
    ($function:ident $(. $field:ident)* ($($argument:expr),* $(,)?)) => {
        // SAFETY: a caller must guarantee only the CPU's features, which were checked when the kernels were made: see
        // above.
        unsafe { ($function $(. $field)*)($($argument),*) }
    };
}

pub(super) use call;
