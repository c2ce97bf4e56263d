//! Safe functions for the kernels of a tier, and the tiers of this CPU.

#[cfg(target_arch = "aarch64")]
use std::arch::is_aarch64_feature_detected;

use half::f16;

use super::attend::{self, Attended};
use super::isa::Isa;
use super::kv8::{self, KV_BLOCK, KvLine, store};
use super::packed::activations::{self, ActivationRow, Q8Tiles, TilePartsMut, TileRow};
use super::packed::cut::TileCut;
use super::packed::layout::{Layout, PackedB2, PackedB6, PackedGgml, PackedQ4, PackedQ8};
use super::recurrence::{Convolution, DELTA_COLUMNS, DeltaStep, ScanStep};
use super::table::{Table, call};
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512vnni, avxvnni, stream};
use super::{matmul, packed, scalar};
#[cfg(target_arch = "aarch64")]
use super::{neon, neondot, neoni8mm};
use crate::quant::{
    self, Bcml1Matrix, Bcml2Matrix, Bcml6Matrix, GgmlMatrix, Q8Activations, Q8Matrix, bcml1,
};

/// The kernels of one instruction set, which this CPU is known to have.
#[derive(Clone, Copy)]
pub struct Kernels {
    isa: Isa,
    table: &'static Table,
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Kernels").field(&self.isa).finish()
    }
}

impl Kernels {
    /// The kernels for `isa`, or `None` if this CPU cannot run them.
    pub fn for_isa(isa: Isa) -> Option<Kernels> {
        let table = match isa {
            Isa::Scalar => &scalar::TABLE,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2
                if is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c") =>
            {
                stream::better(&avx2::TABLE, &avx2::TABLE_PAST_L2)
            }
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni
                if Kernels::for_isa(Isa::Avx2).is_some() && is_x86_feature_detected!("avxvnni") =>
            {
                stream::better(&avxvnni::TABLE, &avxvnni::TABLE_PAST_L2)
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni
                if Kernels::for_isa(Isa::Avx2).is_some()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni") =>
            {
                stream::better(&avx512vnni::TABLE, &avx512vnni::TABLE_PAST_L2)
            }
            #[cfg(target_arch = "aarch64")]
            Isa::Neon if is_aarch64_feature_detected!("neon") => &neon::TABLE,
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDot
                if is_aarch64_feature_detected!("neon")
                    && is_aarch64_feature_detected!("dotprod") =>
            {
                &neondot::TABLE
            }
            #[cfg(target_arch = "aarch64")]
            Isa::NeonI8mm
                if Kernels::for_isa(Isa::NeonDot).is_some()
                    && is_aarch64_feature_detected!("i8mm") =>
            {
                &neoni8mm::TABLE
            }
            _ => return None,
        };
        Some(Kernels { isa, table })
    }

    /// The best kernels this CPU can run.
    pub fn best() -> Kernels {
        let scalar = Kernels { isa: Isa::Scalar, table: &scalar::TABLE };
        Isa::ALL.iter().rev().find_map(|isa| Kernels::for_isa(*isa)).unwrap_or(scalar)
    }

    /// Kernels with this table; the caller knows that this CPU can run them.
    #[cfg(all(test, target_arch = "x86_64"))]
    pub(super) fn with_table(isa: Isa, table: &'static Table) -> Kernels {
        Kernels { isa, table }
    }

    /// f16 to f32, exact.
    #[cfg(test)]
    pub(super) fn widen(&self, x: &[f16], out: &mut [f32]) {
        assert_eq!(x.len(), out.len());
        call!(self.table.widen(x, out))
    }

    /// The instruction set of these kernels.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// `out = x · wᵀ`: weights `w` are `[rows, k]`, `x` is `[m, k]`, `out` has `m` rows.
    ///
    /// # Panics
    ///
    /// When `k` is 0, `w` or `x` is no whole number of rows, or `out` is not `m` rows of one value for each weight row.
    pub fn matmul_f32(&self, w: &[f32], k: usize, x: &[f32], out: &mut [&mut [f32]]) {
        matmul::matmul_f32(self.table, w, k, x, out);
    }

    /// `out = x · wᵀ` of quantised rows, as the module describes. `out` has a row for each row of `x`, with a value for
    /// each row of `w`. Threads share the rows of `w`.
    ///
    /// # Panics
    ///
    /// When `w` and `x` differ in `k` or in their groups, or `out` does not have that shape.
    pub fn matmul_q8(&self, w: Q8Matrix<'_>, x: Q8Activations<'_>, out: &mut [&mut [f32]]) {
        matmul::matmul_q8(self.table, w, x, out);
    }

    /// The packed layout that these kernels want; `None` if they take weights unpacked.
    pub fn layout(&self) -> Option<Layout> {
        self.table.packed.as_ref().map(|packed| packed.layout)
    }

    /// The cut of batches into tiles for packed int8 weights.
    ///
    /// # Panics
    ///
    /// When there is no [`Kernels::layout`].
    pub fn cut_q8(&self) -> TileCut {
        TileCut::new(self.table.packed().tiles_q8)
    }

    /// The cut of batches into tiles for packed 4-bit weights.
    ///
    /// # Panics
    ///
    /// See [`Kernels::cut_q8`].
    pub fn cut_q4(&self) -> TileCut {
        TileCut::new(self.table.packed().tiles_q4)
    }

    /// The cut of batches into tiles for packed weights of BCML2.
    ///
    /// # Panics
    ///
    /// See [`Kernels::cut_q8`].
    pub fn cut_b2(&self) -> TileCut {
        TileCut::new(self.table.packed().tiles_b2)
    }

    /// Packs `w`, whole panels of a matrix or its last rows, into `out`.
    ///
    /// # Panics
    ///
    /// When there is no [`Kernels::layout`], or `out` is not as long as its
    /// [`bytes_q8`](Layout::bytes_q8).
    pub fn pack_q8(&self, w: Q8Matrix<'_>, out: &mut [u8]) {
        self.table.packed().layout.pack_q8(w, out);
    }

    /// `out = x · wᵀ` with packed weights; the same bits as [`Kernels::matmul_q8`].
    ///
    /// # Panics
    ///
    /// When `w` and `x` differ in `k` or in their groups, either is not in the layout of these kernels, or `out` is not
    /// `m` rows of one value for each weight row.
    pub fn matmul_packed_q8(&self, w: PackedQ8<'_>, x: Q8Tiles<'_>, out: &mut [&mut [f32]]) {
        packed::matmul::matmul_q8(self.table.packed(), w, x, out);
    }

    /// Packs `w`, whole panels of a 4-bit matrix or its last rows, into `out`.
    ///
    /// # Panics
    ///
    /// When there is no [`Kernels::layout`], or `out` is not as long as its
    /// [`bytes_q4`](Layout::bytes_q4).
    pub fn pack_q4(&self, w: Bcml1Matrix<'_>, out: &mut [u8]) {
        self.table.packed().layout.pack_q4(w, out);
    }

    /// `out = x · wᵀ` with packed weights; the same bits as [`Kernels::matmul_q4`].
    ///
    /// # Panics
    ///
    /// When `w` and `x` differ in `k` or are not in the layout of these kernels, `x` has no sums, or `out` is not `m`
    /// rows of one value for each weight row.
    pub fn matmul_packed_q4(&self, w: PackedQ4<'_>, x: Q8Tiles<'_>, out: &mut [&mut [f32]]) {
        packed::matmul::matmul_q4(self.table.packed(), w, x, out);
    }

    /// Packs `w`, whole panels of a matrix of BCML2 or its last rows, into `out`.
    ///
    /// # Panics
    ///
    /// When there is no [`Kernels::layout`], or `out` is not as long as its
    /// [`bytes_b2`](Layout::bytes_b2).
    pub fn pack_b2(&self, w: Bcml2Matrix<'_>, out: &mut [u8]) {
        self.table.packed().layout.pack_b2(w, out);
    }

    /// `out = x · wᵀ` with packed weights; the same bits as [`Kernels::matmul_b2`].
    ///
    /// # Panics
    ///
    /// When `w` and `x` differ in `k` or are not in the layout of these kernels, `x` has no integer sums, or `out` is
    /// not `m` rows of one value for each weight row.
    pub fn matmul_packed_b2(&self, w: PackedB2<'_>, x: Q8Tiles<'_>, out: &mut [&mut [f32]]) {
        packed::matmul::matmul_b2(self.table.packed(), w, x, out);
    }

    /// Packs `w`, whole panels of a matrix of BCML6 or its last rows, into `out`.
    ///
    /// # Panics
    ///
    /// When there is no [`Kernels::layout`], or `out` is not as long as its
    /// [`bytes_b6`](Layout::bytes_b6).
    pub fn pack_b6(&self, w: Bcml6Matrix<'_>, out: &mut [u8]) {
        self.table.packed().layout.pack_b6(w, out);
    }

    /// `out = x · wᵀ` with packed weights; the same bits as [`Kernels::matmul_b6`]. `x` are tiles for int8 weights in
    /// groups of 32.
    ///
    /// # Panics
    ///
    /// See [`Kernels::matmul_packed_q8`]; and when the activations' group is not 32.
    pub fn matmul_packed_b6(&self, w: PackedB6<'_>, x: Q8Tiles<'_>, out: &mut [&mut [f32]]) {
        packed::matmul::matmul_b6(self.table, w, x, out);
    }

    /// Packs `w`, whole panels of a matrix of a GGUF file's blocks or its last rows, into `out`.
    ///
    /// # Panics
    ///
    /// When there is no [`Kernels::layout`], or `out` is not as long as its
    /// [`bytes_ggml`](Layout::bytes_ggml).
    pub fn pack_ggml(&self, w: GgmlMatrix<'_>, out: &mut [u8]) {
        self.table.packed().layout.pack_ggml(w, out);
    }

    /// `out = x · wᵀ` with packed weights; the same bits as [`Kernels::matmul_ggml`]. `x` are tiles for int8 weights in
    /// groups of 32.
    ///
    /// # Panics
    ///
    /// See [`Kernels::matmul_packed_q8`]; and when the activations' group is not 32.
    pub fn matmul_packed_ggml(&self, w: PackedGgml<'_>, x: Q8Tiles<'_>, out: &mut [&mut [f32]]) {
        packed::matmul::matmul_ggml(self.table, w, x, out);
    }

    /// Quantises a row like [`Kernels::quantize_tile_row_summed`], for packed weights of BCML2: terms are the bits of
    /// `i32` sums.
    ///
    /// # Panics
    ///
    /// See [`Kernels::quantize_tile_row`].
    pub fn quantize_tile_row_int_summed(
        &self,
        x: ActivationRow<'_>,
        place: TileRow,
        group: usize,
        out: TilePartsMut<'_>,
    ) {
        activations::quantize_tile_row_int_summed(self.table, x, place, group, out);
    }

    /// Quantises like [`Kernels::quantize_tile_row`], for packed 4-bit weights: `group` is that of the activations, and
    /// terms are sums.
    ///
    /// # Panics
    ///
    /// See [`Kernels::quantize_tile_row`].
    pub fn quantize_tile_row_summed(
        &self,
        x: ActivationRow<'_>,
        place: TileRow,
        group: usize,
        out: TilePartsMut<'_>,
    ) {
        activations::quantize_tile_row_summed(self.table, x, place, group, out);
    }

    /// Quantises `x`, a row of a tile of activations, for packed weights in groups of `group`. [`Kernels::cut_q8`]
    /// gives the height of tiles; `out` is the tile's part of what [`Q8Tiles`] joins. Its terms must be zeros; they
    /// stay unchanged if no kernel reads them.
    ///
    /// # Panics
    ///
    /// When there is no [`Kernels::layout`], the group cannot be packed or does not divide the row, the tile has no
    /// such row or is too high, or the lengths do not fit together.
    pub fn quantize_tile_row(
        &self,
        x: ActivationRow<'_>,
        place: TileRow,
        group: usize,
        out: TilePartsMut<'_>,
    ) {
        activations::quantize_tile_row(self.table, x, place, group, out);
    }

    /// `out = x · wᵀ` of 4-bit weights and quantised rows, as the module describes; otherwise like
    /// [`Kernels::matmul_q8`]. `sums` are those of `x`: [`Kernels::sum_q8`].
    ///
    /// # Panics
    ///
    /// When `w` and `x` differ in `k`, `sums` are not `[m, k / 32]`, or `out` does not have the shape of the result.
    pub fn matmul_q4(
        &self,
        w: Bcml1Matrix<'_>,
        x: Q8Activations<'_>,
        sums: &[i32],
        out: &mut [&mut [f32]],
    ) {
        matmul::matmul_q4(self.table, w, x, sums, out);
    }

    /// `out = x · wᵀ` of weights of BCML2 and quantised rows, as the module describes; otherwise like
    /// [`Kernels::matmul_q4`].
    ///
    /// # Panics
    ///
    /// See [`Kernels::matmul_q4`]; and when the activations' group is longer than
    /// [`GROUP_MAX`](super::PACKED_GROUP_MAX).
    pub fn matmul_b2(
        &self,
        w: Bcml2Matrix<'_>,
        x: Q8Activations<'_>,
        sums: &[i32],
        out: &mut [&mut [f32]],
    ) {
        matmul::matmul_b2(w, x, sums, out);
    }

    /// `out = x · wᵀ` of weights of BCML6 and quantised rows, as the module describes; otherwise like
    /// [`Kernels::matmul_q8`].
    ///
    /// # Panics
    ///
    /// See [`Kernels::matmul_q8`]; and when the activations' group is not 32.
    pub fn matmul_b6(&self, w: Bcml6Matrix<'_>, x: Q8Activations<'_>, out: &mut [&mut [f32]]) {
        matmul::matmul_b6(w, x, out);
    }

    /// `out = x · wᵀ` of weights in a GGUF file's blocks and quantised rows, as the module describes; otherwise like
    /// [`Kernels::matmul_q8`].
    ///
    /// # Panics
    ///
    /// See [`Kernels::matmul_q8`]; and when the activations' group is not 32.
    pub fn matmul_ggml(&self, w: GgmlMatrix<'_>, x: Q8Activations<'_>, out: &mut [&mut [f32]]) {
        matmul::matmul_ggml(w, x, out);
    }

    /// Quantises a row like [`Kernels::quantize_q8`], from any kind of [`ActivationRow`].
    ///
    /// # Panics
    ///
    /// When the lengths do not fit together, or [`Kernels::quantize_q8`] does not take `group`.
    pub fn quantize_row(
        &self,
        x: ActivationRow<'_>,
        group: usize,
        q: &mut [i8],
        scales: &mut [f32],
    ) {
        match x {
            ActivationRow::F32(x) => self.quantize_q8(x, group, q, scales),
            x => activations::quantize_row(self.table, x, group, (q, scales)),
        }
    }

    /// Quantises activations as the module describes. `x` may have any number of rows, because groups are independent.
    ///
    /// # Panics
    ///
    /// When `group` is 0 or no multiple of 32, `x` is no whole number of groups, or `q` or `scales`
    /// does not fit it.
    pub fn quantize_q8(&self, x: &[f32], group: usize, q: &mut [i8], scales: &mut [f32]) {
        assert!(group != 0);
        assert!(group.is_multiple_of(quant::GROUP_MIN));
        assert!(x.len().is_multiple_of(group));
        assert_eq!(x.len(), q.len());
        assert_eq!(x.len() / group, scales.len());
        call!(self.table.quantize_q8(x, group, q, scales))
    }

    /// Sums each 32 values of `q`: the factors of offsets in [`Kernels::matmul_q4`].
    ///
    /// # Panics
    ///
    /// When `q` is not 32 values for each of `sums`.
    pub fn sum_q8(&self, q: &[i8], sums: &mut [i32]) {
        assert_eq!(q.len(), sums.len() * bcml1::BLOCK);
        call!(self.table.sum_q8(q, sums))
    }

    /// `out = q * scale`: rows of a quantised embedding.
    ///
    /// # Panics
    ///
    /// See [`quant::dequantize`].
    pub fn dequantize_q8(&self, q: &[i8], scales: &[f32], group: usize, out: &mut [f32]) {
        quant::dequantize(q, scales, group, out);
    }

    /// `out = x / sqrt(mean(x²) + eps) * weight` (RMSNorm, arXiv:1910.07467), for one row.
    ///
    /// # Panics
    ///
    /// When the lengths differ.
    pub fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        assert_eq!(x.len(), weight.len());
        assert_eq!(x.len(), out.len());
        call!(self.table.rms_norm(x, weight, eps, out))
    }

    /// Rotates each pair `(2i, 2i + 1)` of each head by its angle (RoPE, arXiv:2104.09864).
    ///
    /// `x` is `[n_heads, head_dim]` of one position; `cos` and `sin` are `[head_dim / 2]`.
    ///
    /// # Panics
    ///
    /// When `head_dim` is 0 or odd, or a length does not fit it.
    pub fn rope(&self, x: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32]) {
        assert!(head_dim != 0);
        assert!(head_dim.is_multiple_of(2));
        assert!(x.len().is_multiple_of(head_dim));
        assert_eq!(cos.len(), head_dim / 2);
        assert_eq!(sin.len(), head_dim / 2);
        call!(self.table.rope(x, head_dim, cos, sin))
    }

    /// `out = silu(gate) * up` with `silu(g) = g / (1 + exp(-g))` (SwiGLU, arXiv:2002.05202).
    ///
    /// # Panics
    ///
    /// When the lengths differ.
    pub fn swiglu(&self, gate: &[f32], up: &[f32], out: &mut [f32]) {
        assert_eq!(gate.len(), up.len());
        assert_eq!(gate.len(), out.len());
        call!(self.table.swiglu(gate, up, out))
    }

    /// `x += y`.
    ///
    /// # Panics
    ///
    /// When the lengths differ.
    pub fn add(&self, x: &mut [f32], y: &[f32]) {
        assert_eq!(x.len(), y.len());
        call!(self.table.add(x, y))
    }

    /// One position of a depthwise convolution: `out[c] = Σ inputs[j][c] * taps[j][c]`, the oldest input first.
    ///
    /// # Panics
    ///
    /// When there is no input, or a length differs from that of `out`.
    pub fn convolve(&self, inputs: &[&[f32]], convolution: Convolution<'_>, out: &mut [f32]) {
        assert!(!inputs.is_empty());
        assert!(inputs.iter().all(|input| input.len() == out.len()));
        assert!(convolution.stride >= out.len());
        let n_taps = (inputs.len() - 1) * convolution.stride + out.len();
        assert!((n_taps..=inputs.len() * convolution.stride).contains(&convolution.taps.len()));
        assert!(convolution.bias.is_none_or(|bias| bias.len() == out.len()));
        call!(self.table.convolve(inputs, convolution, out))
    }

    /// Turns projections `x` into the steps of a scan: `softplus(x + bias)`.
    ///
    /// # Panics
    ///
    /// When the lengths differ.
    pub fn steps(&self, x: &mut [f32], bias: &[f32]) {
        assert_eq!(x.len(), bias.len());
        call!(self.table.steps(x, bias))
    }

    /// A state-space layer (Mamba-2, arXiv:2405.21060) for some columns of a head's state, token by token:
    ///
    /// ```text
    /// S = exp(decay * step) * S + write · (step * input)ᵀ;  out = Sᵀ · read + skip * input
    /// ```
    ///
    /// `factors` are `decay`, which is negative, and `skip`. `state` is `[rows, columns]`, `out` `[steps, columns]`.
    ///
    /// # Panics
    ///
    /// When there is no step, columns are not [`DELTA_COLUMNS`](super::DELTA_COLUMNS) or half of them, or a length does
    /// not fit.
    pub fn scan(
        &self,
        steps: &[ScanStep<'_>],
        factors: (f32, f32),
        state: &mut [f32],
        out: &mut [f32],
    ) {
        let (rows, columns) = (steps[0].write.len(), steps[0].input.len());
        assert!(columns == DELTA_COLUMNS || columns == DELTA_COLUMNS / 2);
        assert!(steps.iter().all(|step| step.write.len() == rows && step.read.len() == rows));
        assert!(steps.iter().all(|step| step.input.len() == columns));
        assert_eq!(state.len(), rows * columns);
        assert_eq!(out.len(), steps.len() * columns);
        call!(self.table.scan(steps, factors, state, out))
    }

    /// GELU by the error function (arXiv:1606.08415): `out = x · (1 + erf(x / sqrt(2))) / 2`.
    ///
    /// # Panics
    ///
    /// When the lengths differ.
    pub fn gelu(&self, x: &[f32], out: &mut [f32]) {
        assert_eq!(x.len(), out.len());
        call!(self.table.gelu(x, out))
    }

    /// `out *= sigmoid(gate)`.
    ///
    /// # Panics
    ///
    /// When the lengths differ.
    pub fn gate(&self, gate: &[f32], out: &mut [f32]) {
        assert_eq!(gate.len(), out.len());
        call!(self.table.gate(gate, out))
    }

    /// Turns a token's projections, `[2, heads]`, into the strength of each head's update, `sigmoid(x)`, and the factor
    /// of its old state, `exp(decay * softplus(x + bias))`; `decay` is negative.
    ///
    /// # Panics
    ///
    /// When the lengths do not fit.
    pub fn delta_controls(&self, controls: &mut [f32], decay: &[f32], bias: &[f32]) {
        assert_eq!(controls.len(), 2 * decay.len());
        assert_eq!(decay.len(), bias.len());
        call!(self.table.delta_controls(controls, decay, bias))
    }

    /// The gated delta rule (arXiv:2412.06464) for some columns of a head's state, token by token:
    ///
    /// ```text
    /// S = decay * S;  d = strength * (value - Sᵀ · key);  S = S + key · dᵀ;  out = Sᵀ · query
    /// ```
    ///
    /// `state` is `[rows, columns]`, `out` `[steps, columns]`.
    ///
    /// # Panics
    ///
    /// When there is no step, columns are not [`DELTA_COLUMNS`](super::DELTA_COLUMNS) or half of them, or a length does
    /// not fit.
    pub fn delta_rule(&self, steps: &[DeltaStep<'_>], state: &mut [f32], out: &mut [f32]) {
        let (rows, columns) = (steps[0].key.len(), steps[0].value.len());
        assert!(columns == DELTA_COLUMNS || columns == DELTA_COLUMNS / 2);
        assert!(steps.iter().all(|step| step.key.len() == rows && step.query.len() == rows));
        assert!(steps.iter().all(|step| step.value.len() == columns));
        assert_eq!(state.len(), rows * columns);
        assert_eq!(out.len(), steps.len() * columns);
        call!(self.table.delta_rule(steps, state, out))
    }

    /// Attention of queries that share one key/value head: `softmax(q · Kᵀ * scale) · V`.
    ///
    /// `q` and `out` have a row for each of consecutive positions: `[n_q, head_dim]` of the query heads that share the
    /// keys and values. Each query looks at its own position and up to `window - 1` before it. Scores that overflow or
    /// are NaN make their query's output NaN.
    ///
    /// # Panics
    ///
    /// When `head_dim` is 0 or above [`HEAD_DIM_MAX`](super::HEAD_DIM_MAX), `window` is 0, a needed page does not
    /// exist, or a length does not fit.
    pub fn attend(&self, q: &[&[f32]], to: &Attended<'_>, out: &mut [&mut [f32]]) {
        attend::attend(self.table, q, to, out);
    }

    /// Converts a key or value for the cache: to the nearest f16, ties to even. Values beyond f16, also infinities,
    /// become its largest finite value (±65504), so one outlier does not turn a whole softmax into NaN. A NaN stays
    /// NaN.
    ///
    /// # Panics
    ///
    /// When the lengths differ.
    pub fn store_kv(&self, x: &[f32], out: &mut [f16]) {
        assert_eq!(x.len(), out.len());
        call!(self.table.narrow(x, out))
    }

    /// Stores a key as int8, at `position` of a head's part of a page: blocks of [`KV_BLOCK`] positions, each of as
    /// many lines as [`kv_block_lines`](super::kv_block_lines) says. Values beyond f16 are treated as by
    /// [`Kernels::store_kv`]. A NaN makes all values NaN that share its scale.
    ///
    /// # Panics
    ///
    /// When there is no such position.
    pub fn store_key_i8(&self, x: &[f32], part: &mut [KvLine], position: usize) {
        let [n, _] = kv8::block_lines(x.len());
        let block = &mut part[position / KV_BLOCK * n..][..n];
        store::store_key(self.table, x, block, position % KV_BLOCK);
    }

    /// Stores a value as int8, at `position` of a head's part of a page; see [`Kernels::store_key_i8`].
    ///
    /// # Panics
    ///
    /// When there is no such position.
    pub fn store_value_i8(&self, x: &[f32], part: &mut [KvLine], position: usize) {
        let [_, n] = kv8::block_lines(x.len());
        let block = &mut part[position / KV_BLOCK * n..][..n];
        store::store_value(self.table, x, block, position % KV_BLOCK);
    }

    /// Reads `bytes` in order with next to no computation, to measure how fast weights could be read. The result
    /// depends on every whole 256 bytes, so the compiler can leave out no read.
    pub fn read_all(&self, bytes: &[u8]) -> u64 {
        call!(self.table.read_all(bytes))
    }

    /// Does `rounds` of [`OPS_PER_ROUND`](super::peak::OPS_PER_ROUND) int8 multiplications and additions in registers,
    /// as fast as the tier can. The result depends on all of them.
    pub fn spin_int8(&self, rounds: usize) -> i32 {
        call!(self.table.spin_int8(rounds))
    }
}
