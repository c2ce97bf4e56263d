//! AVX-512 with VNNI: products with packed weights, and attention's tiles in [`super::zmm`]. The rest comes from
//! [`super::avx2`].
//!
//! `vpdpbusd` adds, in each of 16 lanes, four products of unsigned by signed bytes. A panel of 32 rows is two vectors
//! for each four columns. Tiles of up to 8 rows of activations, whose four bytes are broadcast from memory, make 16
//! sums in registers. Totals lie in memory.

use std::arch::x86_64::*;
use std::ops::Range;

use self::totals::Totals;
use self::vectors::{
    NR, add_products, add_scaled, add_scaled_to, and, in_order, load, load_16, load_floats,
    prefetch_both, shift, store, store_16,
};
use super::packed::cut::{TileKernel, TileSet};
use super::packed::ggml::{self, Unpacked};
use super::packed::layout::Layout;
use super::packed::matmul::place_rows;
use super::packed::table::{PART_BYTES, PackedTable, Unpack};
use super::packed::tile::{AHEAD_COLUMNS, Q8Tile, ZERO};
use super::stream::{INTO_L2, PAST_L2};
use super::table::{BlockScores, Table};
use super::{avx2, peak, zmm};
use crate::quant::bcml1::{BLOCK, BLOCK_BYTES};
use crate::quant::ggml::Form;

/// Defines `$name`: `M` rows of activations by a packed panel, with registers for the totals of `HELD` rows. It calls the
/// file's `gemm_blocks`, which prefetches more cache lines if few tiles take the panel.
macro_rules! gemm_packed {
    ($name:ident) => {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
        fn $name<const M: usize, const HELD: usize, const HINT: i32>(
            panel: &[u8],
            x: &Q8Tile<'_>,
            out: &mut [f32],
        ) {
            match x.ahead.few_tiles(HINT) {
                1 => gemm_blocks::<M, HELD, 2>(panel, x, out),
                2 => gemm_blocks::<M, HELD, 1>(panel, x, out),
                _ => gemm_blocks::<M, HELD, 0>(panel, x, out),
            }
        }
    };
}

mod b2;
mod kv8;
mod lanes;
mod runs;
mod totals;
mod vectors;

/// Bytes of a block of a packed 4-bit panel.
const PANEL_BLOCK: usize = NR * BLOCK_BYTES;

/// Bytes of an unpacked block: two floats for each row, and a byte for each code.
const UNPACKED_BLOCK: usize = NR * (8 + BLOCK);

/// Prefetch distance of weights for several rows, into L1.
const W_NEAR_BYTES: usize = 2048;

/// Prefetch distance of activations.
const X_NEAR_BYTES: usize = 512;

/// Steps of four columns that a loop takes at once; they divide a group of weights.
const STEPS: usize = AHEAD_COLUMNS / 4;

/// The tier's functions.
pub(super) static TABLE: Table = table::<INTO_L2>([&TILES_Q8, &TILES_Q4, &TILES_B2], &avx2::TABLE);
static TILES_Q8: TileSet = tiles_q8::<INTO_L2>();
static TILES_Q4: TileSet = tiles_q4::<INTO_L2>();
static TILES_B2: TileSet = b2::tiles::<INTO_L2>();

/// The tier's functions for processors that prefetch better by [`PAST_L2`].
pub(super) static TABLE_PAST_L2: Table = table::<PAST_L2>(
    [&TILES_Q8_PAST_L2, &TILES_Q4_PAST_L2, &TILES_B2_PAST_L2],
    &avx2::TABLE_PAST_L2,
);
static TILES_Q8_PAST_L2: TileSet = tiles_q8::<PAST_L2>();
static TILES_Q4_PAST_L2: TileSet = tiles_q4::<PAST_L2>();
static TILES_B2_PAST_L2: TileSet = b2::tiles::<PAST_L2>();

const fn table<const HINT: i32>(
    [tiles_q8, tiles_q4, tiles_b2]: [&'static TileSet; 3],
    avx2: &'static Table,
) -> Table {
    Table {
        packed: Some(PackedTable {
            layout: Layout::AVX512_VNNI,
            tiles_q8,
            tiles_q4,
            tiles_b2,
            run_tiles: runs::tiles::<HINT>,
            byte_tiles: runs::byte_tiles,
            unpack_ggml,
            place,
            // An L2 cache of 1 or 2 MiB feeds these loops.
            part_bytes: 16 * PART_BYTES,
            unpack_q4: Some(Unpack { unpack, packed_bytes: PANEL_BLOCK, bytes: UNPACKED_BLOCK }),
            unpack_b2: Some(Unpack {
                unpack: b2::unpack,
                packed_bytes: b2::PANEL_BLOCK,
                bytes: b2::UNPACKED_BLOCK,
            }),
        }),
        score_4: zmm::score_4,
        weigh_4: zmm::weigh_4,
        block_scores: Some(BlockScores { transpose: zmm::transpose, score: zmm::score_block }),
        soften: zmm::soften,
        soften_4: zmm::soften_4,
        swiglu: zmm::swiglu,
        gelu: zmm::gelu,
        convolve: zmm::convolve,
        delta_rule: zmm::delta_rule,
        scan: zmm::scan,
        score_i8: kv8::score_i8,
        score_i8_4: kv8::score_i8_4,
        weigh_i8: kv8::weigh_i8,
        weigh_i8_4: kv8::weigh_i8_4,
        spin_int8,
        ..*avx2
    }
}

/// Costs are those of weights in cache on Zen 5, except for a single row, whose kernel reads from memory. On Emerald
/// Rapids any cut into few tiles is about as fast.
const fn tiles_q8<const HINT: i32>() -> TileSet {
    let tiles = [
        TileKernel::new(1, gemv_q8_q8_f32_1x32c4::<HINT>, 20),
        TileKernel::new(2, gemm_q8_q8_f32_mx32c4::<2, HINT>, 16),
        TileKernel::new(3, gemm_q8_q8_f32_mx32c4::<3, HINT>, 16),
        TileKernel::new(4, gemm_q8_q8_f32_mx32c4::<4, HINT>, 15),
        TileKernel::new(5, gemm_q8_q8_f32_mx32c4::<5, HINT>, 15),
        TileKernel::new(6, gemm_q8_q8_f32_mx32c4::<6, HINT>, 16),
        TileKernel::new(7, gemm_q8_q8_f32_mx32c4::<7, HINT>, 18),
        TileKernel::new(8, gemm_q8_q8_f32_mx32c4::<8, HINT>, 21),
    ];
    TileSet::new(&tiles, 0)
}

/// Costs are tenths of a microsecond for 640 rows of 2048 weights in cache, measured on Zen 5. There, unpacked weights
/// are as fast as packed ones; on processors that cannot mask codes beside products, they are faster.
const fn tiles_q4<const HINT: i32>() -> TileSet {
    let tiles = [
        TileKernel::new(1, gemv_q8_q4_f32_1x32c4::<HINT>, 90),
        TileKernel::new(2, gemm_packed_q8_q4_f32_mx32c4::<2, 2, HINT>, 101),
        TileKernel::new(3, gemm_packed_q8_q4_f32_mx32c4::<3, 3, HINT>, 119),
        TileKernel::new(4, gemm_packed_q8_q4_f32_mx32c4::<4, 4, HINT>, 140),
        TileKernel::new(5, gemm_packed_q8_q4_f32_mx32c4::<5, 5, HINT>, 172),
        TileKernel::new(6, gemm_packed_q8_q4_f32_mx32c4::<6, 6, HINT>, 218),
        TileKernel::new(7, gemm_packed_q8_q4_f32_mx32c4::<7, 4, HINT>, 238),
        TileKernel::new(8, gemm_packed_q8_q4_f32_mx32c4::<8, 2, HINT>, 276),
        TileKernel::new(8, gemm_q8_q4_f32_8x32c4, 250).unpacked(),
    ];
    TileSet::new(&tiles, 65)
}

/// One row of activations by a panel, in two sums: a single sum would wait for its additions.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn gemv_q8_q8_f32_1x32c4<const HINT: i32>(panel: &[u8], x: &Q8Tile<'_>, out: &mut [f32]) {
    let group_bytes = NR * (4 + x.group);
    for (g, x) in x.groups::<1, 4>().enumerate() {
        let (scales, w) = panel[g * group_bytes..][..group_bytes].split_at(NR * 4);
        let scales = &scales.as_chunks().0[0];
        prefetch_both::<HINT>(scales);
        let mut dots = [sums_from(x.zeros), [[_mm512_setzero_si512(); 2]; 1]];
        let w = w.as_chunks::<{ 4 * NR }>().0.as_chunks::<2>().0;
        for (w, x_q) in w.iter().zip(x.q.as_chunks::<2>().0) {
            for s in 0..2 {
                prefetch_both::<HINT>(&w[s]);
                add_products(&mut dots[s], load(&w[s]), &x_q[s]);
            }
        }
        let scales = load_floats(scales);
        let mut totals = [[_mm512_setzero_ps(); 2]; 1];
        for j in 0..2 {
            let sum = _mm512_add_epi32(dots[0][0][j], dots[1][0][j]);
            totals[0][j] = _mm512_mul_ps(float_of(sum), scales[j]);
        }
        add_scaled(out, &totals, x.scales);
    }
}

/// The sum as a float: its bits read as f32, less [`ZERO`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn float_of(sum: __m512i) -> __m512 {
    _mm512_sub_ps(_mm512_castsi512_ps(sum), _mm512_set1_ps(ZERO))
}

/// Values in a group of most files: the default of `leap export`.
const USUAL: usize = crate::quant::GROUP_DEFAULT;

/// `M` rows of activations by a panel. The compiler knows the length of groups of [`USUAL`] values.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn gemm_q8_q8_f32_mx32c4<const M: usize, const HINT: i32>(
    panel: &[u8],
    x: &Q8Tile<'_>,
    out: &mut [f32],
) {
    match (x.ahead.few_tiles(HINT), x.group == USUAL) {
        (1, true) => gemm_groups::<M, true, 8>(panel, x, out),
        (1, false) => gemm_groups::<M, false, 8>(panel, x, out),
        (2, true) => gemm_groups::<M, true, 4>(panel, x, out),
        (2, false) => gemm_groups::<M, false, 4>(panel, x, out),
        (_, true) => gemm_groups::<M, true, 0>(panel, x, out),
        (_, false) => gemm_groups::<M, false, 0>(panel, x, out),
    }
}

/// The loop over groups, which prefetches `LINES` cache lines of weights every [`STEPS`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn gemm_groups<const M: usize, const IS_USUAL: bool, const LINES: usize>(
    panel: &[u8],
    x: &Q8Tile<'_>,
    out: &mut [f32],
) {
    let group = if IS_USUAL { USUAL } else { x.group };
    let mut ahead = x.ahead;
    let group_bytes = NR * (4 + group);
    let out = &mut out.as_chunks_mut::<16>().0.as_chunks_mut::<2>().0[..M];
    let mut totals = Totals::<__m512, M, 4>::of(_mm512_setzero_ps());
    for (i, out) in out.iter().enumerate() {
        for (j, out) in out.iter().enumerate() {
            totals.set(i, j, load_16(out));
        }
    }
    let groups = x.scales.len() / M;
    for (g, x) in x.groups::<M, 4>().enumerate() {
        let (scales, w) = panel[g * group_bytes..][..group_bytes].split_at(NR * 4);
        ahead.prefetch_rows(NR / 16, g, groups);
        let mut dots = sums_from(x.zeros);
        let x_q = x.q[..group / 4].as_chunks::<STEPS>().0;
        let w = w.as_chunks::<{ 4 * NR }>().0.as_chunks::<STEPS>().0;
        match LINES {
            0 => ahead.prefetch_weights(group),
            // With those of the codes, this makes half of a group's lines, or all of them.
            4 => ahead.prefetch_lines::<1>(64),
            _ => ahead.prefetch_lines::<2>(128),
        }
        for (w, x_q) in w.iter().zip(x_q) {
            if LINES == 0 {
                prefetch_near(w, x_q);
            }
            ahead.prefetch_lines::<LINES>(64 * LINES);
            for s in 0..STEPS {
                add_products(&mut dots, load(&w[s]), &x_q[s]);
            }
            in_order(&mut dots);
        }
        let scales = load_floats(&scales.as_chunks().0[0]);
        for (i, dots) in dots.iter().enumerate() {
            let x_scale = _mm512_set1_ps(x.scales[i]);
            for j in 0..2 {
                let sum = _mm512_mul_ps(float_of(dots[j]), scales[j]);
                totals.set(i, j, _mm512_fmadd_ps(sum, x_scale, totals.get(i, j)));
            }
        }
    }
    for (i, out) in out.iter_mut().enumerate() {
        for (j, out) in out.iter_mut().enumerate() {
            store_16(out, totals.get(i, j));
        }
    }
}

/// Sums of products that begin at `zeros`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn sums_from<const M: usize>(zeros: &[f32; M]) -> [[__m512i; 2]; M] {
    let mut sums = [[_mm512_setzero_si512(); 2]; M];
    for i in 0..M {
        sums[i] = [_mm512_castps_si512(_mm512_set1_ps(zeros[i])); 2];
    }
    sums
}

/// One row of activations by a panel of 4-bit weights. One sum has the low codes, the other the high codes times 16,
/// which costs less than to shift each of them.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn gemv_q8_q4_f32_1x32c4<const HINT: i32>(panel: &[u8], x: &Q8Tile<'_>, out: &mut [f32]) {
    let (low, high) = (_mm512_set1_epi8(15), _mm512_set1_epi8(-16));
    let groups = panel.chunks_exact(PANEL_BLOCK * x.blocks());
    for (w, x) in groups.zip(x.summed_groups::<1, 4>()) {
        let mut dots = [[[_mm512_setzero_si512(); 2]; 1]; 2];
        let mut totals = [[_mm512_set1_ps(-0.0); 2]; 1];
        let w = w.as_chunks::<PANEL_BLOCK>().0;
        let [mut multipliers, mut offsets] = parameters(w.first());
        let blocks = x.q.as_chunks::<8>().0.iter().zip(x.sums);
        for ((b, block), (x_q, [x_sum])) in w.iter().enumerate().zip(blocks) {
            let lines = block.as_chunks::<{ 4 * NR }>().0;
            prefetch_both::<HINT>(&lines[0]);
            for (w, x_q) in lines[1..].iter().zip(x_q.as_chunks::<2>().0) {
                prefetch_both::<HINT>(w);
                add_products(&mut dots[0], and(load(w), low), &x_q[0]);
                add_products(&mut dots[1], and(load(w), high), &x_q[1]);
            }
            let [next_multipliers, next_offsets] = parameters(w.get(b + 1));
            let [[low], [high]] = dots;
            for j in 0..2 {
                let total = _mm512_fmadd_ps(_mm512_set1_ps(*x_sum), offsets[j], totals[0][j]);
                let sum = _mm512_add_epi32(low[j], _mm512_srai_epi32::<4>(high[j]));
                let step = _mm512_sub_ps(multipliers[j], next_multipliers[j]);
                totals[0][j] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), step, total);
            }
            (multipliers, offsets) = (next_multipliers, next_offsets);
        }
        add_scaled(out, &totals, x.scales);
    }
}

/// Unpacks panels of 4-bit weights in groups of `n` blocks: steps, offsets and codes of 32 columns.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn unpack(panel: &[u8], n: usize, out: &mut [u8]) {
    let mask = _mm512_set1_epi8(15);
    let groups = panel.as_chunks::<PANEL_BLOCK>().0.chunks(n);
    for (w, out) in groups.zip(out.as_chunks_mut::<UNPACKED_BLOCK>().0.chunks_mut(n)) {
        let [mut multipliers, mut offsets] = parameters(w.first());
        for (b, out) in out.iter_mut().enumerate() {
            let [next_multipliers, next_offsets] = parameters(w.get(b + 1));
            let out = out.as_chunks_mut::<{ 4 * NR }>().0;
            for j in 0..2 {
                let step = _mm512_sub_ps(multipliers[j], next_multipliers[j]);
                store(&mut out[0], j, _mm512_castps_si512(step));
                store(&mut out[1], j, _mm512_castps_si512(offsets[j]));
            }
            let lines = w[b].as_chunks::<{ 4 * NR }>().0;
            for (line, out) in lines[1..].iter().zip(out[2..].as_chunks_mut::<2>().0) {
                let both = load(line);
                let (low, high) = (and(both, mask), and(shift(both), mask));
                for j in 0..2 {
                    store(&mut out[0], j, low[j]);
                    store(&mut out[1], j, high[j]);
                }
            }
            (multipliers, offsets) = (next_multipliers, next_offsets);
        }
    }
}

/// Eight rows of activations by a panel that [`unpack`] unpacked.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn gemm_q8_q4_f32_8x32c4(panel: &[u8], x: &Q8Tile<'_>, out: &mut [f32]) {
    const M: usize = 8;
    let (n, mut ahead) = (x.blocks(), x.ahead);
    let mut totals = Totals::<__m512, M, 2>::of(_mm512_setzero_ps());
    let out = &mut out.as_chunks_mut::<16>().0.as_chunks_mut::<2>().0[..M];
    let groups = x.scales.len() / M;
    for (i, x) in x.summed_groups::<M, 4>().enumerate() {
        ahead.prefetch_rows(NR / 16, i, groups);
        let mut dots = [[_mm512_setzero_si512(); 2]; M];
        let w = &panel.as_chunks::<UNPACKED_BLOCK>().0[i * n..][..n];
        let blocks = w.iter().zip(x.q.as_chunks::<8>().0).zip(x.sums);
        for (b, ((w, x_q), x_sums)) in blocks.enumerate() {
            let lines = w.as_chunks::<{ 4 * NR }>().0;
            ahead.prefetch_weights(BLOCK);
            for (w, x_q) in lines[2..].as_chunks::<STEPS>().0.iter().zip(x_q.as_chunks::<STEPS>().0)
            {
                for s in 0..STEPS {
                    add_products(&mut dots, load(&w[s]), &x_q[s]);
                }
            }
            let [steps, offsets] = [load_floats(&lines[0]), load_floats(&lines[1])];
            for i in 0..M {
                let x_sum = _mm512_set1_ps(x_sums[i]);
                for j in 0..2 {
                    let total = _mm512_fmadd_ps(x_sum, offsets[j], totals.before(b, i, j));
                    let total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[i][j]), steps[j], total);
                    if b + 1 < n {
                        totals.set(i, j, total);
                    } else {
                        add_scaled_to(&mut out[i][j], total, x.scales[i]);
                    }
                }
            }
        }
    }
}

gemm_packed!(gemm_packed_q8_q4_f32_mx32c4);

/// The loop over blocks, which prefetches `LINES` cache lines of weights with every two vectors of codes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn gemm_blocks<const M: usize, const HELD: usize, const LINES: usize>(
    panel: &[u8],
    x: &Q8Tile<'_>,
    out: &mut [f32],
) {
    let (mask, mut ahead) = (_mm512_set1_epi8(15), x.ahead);
    let groups = panel.chunks_exact(PANEL_BLOCK * x.blocks());
    let out = &mut out.as_chunks_mut::<16>().0.as_chunks_mut::<2>().0[..M];
    ahead.prefetch_rows(NR / 16, 0, 1);
    for (w, x) in groups.zip(x.summed_groups::<M, 4>()) {
        let mut dots = [[_mm512_setzero_si512(); 2]; M];
        let mut totals = Totals::<__m512, M, HELD>::of(_mm512_set1_ps(-0.0));
        let w = w.as_chunks::<PANEL_BLOCK>().0;
        let blocks = x.q.as_chunks::<8>().0.iter().zip(x.sums);
        for ((b, block), (x_q, x_sums)) in w.iter().enumerate().zip(blocks) {
            let lines = block.as_chunks::<{ 4 * NR }>().0;
            if LINES == 0 {
                ahead.prefetch_weights(BLOCK);
            }
            ahead.prefetch_lines::<LINES>(64 * LINES);
            for (w, x_q) in lines[1..].iter().zip(x_q.as_chunks::<2>().0) {
                ahead.prefetch_lines::<LINES>(64 * LINES);
                let both = load(w);
                add_products(&mut dots, and(both, mask), &x_q[0]);
                add_products(&mut dots, and(shift(both), mask), &x_q[1]);
                in_order(&mut dots);
            }
            let [multipliers, offsets] = parameters(Some(block));
            let [next_multipliers, _] = parameters(w.get(b + 1));
            let mut steps = multipliers;
            for j in 0..2 {
                steps[j] = _mm512_sub_ps(multipliers[j], next_multipliers[j]);
            }
            for i in 0..M {
                let x_sum = _mm512_set1_ps(x_sums[i]);
                for j in 0..2 {
                    let total = _mm512_fmadd_ps(x_sum, offsets[j], totals.before(b, i, j));
                    let total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[i][j]), steps[j], total);
                    totals.set(i, j, total);
                }
            }
        }
        for (i, out) in out.iter_mut().enumerate() {
            for (j, out) in out.iter_mut().enumerate() {
                add_scaled_to(out, totals.get(i, j), x.scales[i]);
            }
        }
    }
}

/// Multipliers and offsets of a block, zeros if there is none.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn parameters(block: Option<&[u8; PANEL_BLOCK]>) -> [[__m512; 2]; 2] {
    match block {
        Some(block) => {
            let [multipliers, offsets] = load(&block.as_chunks().0[0]);
            [widen(multipliers), widen(offsets)]
        }
        None => [[_mm512_setzero_ps(); 2]; 2],
    }
}

/// f16 to f32, exact.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn widen(x: __m512i) -> [__m512; 2] {
    let (low, high) = (_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64::<1>(x));
    [_mm512_cvtph_ps(low), _mm512_cvtph_ps(high)]
}

/// See [`place_rows`]: whole rows of a panel are two vectors each.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn place(y: &[f32], columns: Range<usize>, out: &mut [&mut [f32]]) {
    if columns.len() < NR {
        return place_rows(y, columns, out);
    }
    for (out, y) in out.iter_mut().zip(y.as_chunks::<NR>().0) {
        let (out, _) = out[columns.start..][..NR].as_chunks_mut::<16>();
        for (out, y) in out.iter_mut().zip(y.as_chunks::<16>().0) {
            store_16(out, load_16(y));
        }
    }
}

/// Prefetches int8 weights and activations some way behind this step's: both stream from L2. 4-bit weights are partly
/// in L1, and prefetching them costs more than it saves.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn prefetch_near<const M: usize>(w: &[[u8; 4 * NR]; STEPS], x: &[[[u8; 4]; M]; STEPS]) {
    for line in (0..size_of_val(x)).step_by(64) {
        _mm_prefetch::<_MM_HINT_T0>(x.as_ptr().cast::<i8>().wrapping_add(X_NEAR_BYTES + line));
    }
    for line in (0..size_of_val(w)).step_by(64) {
        _mm_prefetch::<_MM_HINT_T0>(w.as_ptr().cast::<i8>().wrapping_add(W_NEAR_BYTES + line));
    }
}

/// See [`ggml::unpack`]: lines have 64 bytes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn unpack_ggml(layout: Layout, form: Form, blocks: &[u8], out: &mut Unpacked<'_>) {
    ggml::unpack::<64>(layout, form, blocks, out);
}

/// See [`super::Kernels::spin_int8`]: 64 products an instruction.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn spin_int8(rounds: usize) -> i32 {
    let x = _mm512_set1_epi8(std::hint::black_box(3));
    let step = |sums: &mut [__m512i; 16]| {
        for sum in sums {
            *sum = _mm512_dpbusd_epi32(*sum, x, x);
        }
    };
    peak::spin(rounds, 64, _mm512_setzero_si512(), step, |sums| {
        _mm_cvtsi128_si32(_mm512_castsi512_si128(sums))
    })
}
