//! AVX-VNNI: only products with packed weights differ from [`super::avx2`]. `vpdpbusd` adds, in
//! each of eight lanes, four products of unsigned by signed bytes.

use std::arch::x86_64::*;

use super::packed::cut::{TileKernel, TileSet};
use super::packed::layout::Layout;
use super::packed::matmul::place_rows;
use super::packed::table::{PART_BYTES, PackedTable};
use super::stream::{INTO_L1, PAST_L2};
use super::table::Table;
use super::ymm::{ymm_b2_tiles, ymm_code_tiles, ymm_tiles};
use super::{avx2, peak};

mod kv8;
mod runs;

/// The tier's functions.
pub(super) static TABLE: Table = table::<INTO_L1>([&TILES_Q8, &TILES_Q4, &TILES_B2], &avx2::TABLE);

/// The tier's functions for processors that prefetch better by [`super::stream::PAST_L2`].
pub(super) static TABLE_PAST_L2: Table = table::<PAST_L2>(
    [&TILES_Q8_PAST_L2, &TILES_Q4_PAST_L2, &TILES_B2_PAST_L2],
    &avx2::TABLE_PAST_L2,
);

const fn table<const HINT: i32>(
    [tiles_q8, tiles_q4, tiles_b2]: [&'static TileSet; 3],
    avx2: &'static Table,
) -> Table {
    Table {
        packed: Some(PackedTable {
            layout: Layout::AVX_VNNI,
            tiles_q8,
            tiles_q4,
            tiles_b2,
            run_tiles: runs::tiles::<HINT>,
            byte_tiles: runs::byte_tiles,
            unpack_ggml: avx2::unpack_ggml,
            place: place_rows,
            part_bytes: PART_BYTES,
            unpack_b2: None,
            unpack_q4: None,
        }),
        score_i8: kv8::score_i8,
        score_i8_4: kv8::score_i8_4,
        weigh_i8: kv8::weigh_i8,
        weigh_i8_4: kv8::weigh_i8_4,
        spin_int8,
        ..*avx2
    }
}

static TILES_Q8: TileSet = tiles_q8::<INTO_L1>();
static TILES_Q8_PAST_L2: TileSet = tiles_q8::<PAST_L2>();

/// Costs are hundredths of a millisecond of two layers of TinyLlama's shape, measured on Zen 5.
const fn tiles_q8<const HINT: i32>() -> TileSet {
    let tiles = [
        TileKernel::new(1, gemm_q8_q8_f32_mx16c4::<1, 2, HINT>, 350),
        TileKernel::new(2, gemm_q8_q8_f32_mx16c4::<2, 2, INTO_L1>, 130),
        TileKernel::new(3, gemm_q8_q8_f32_mx16c4::<3, 2, INTO_L1>, 170),
        TileKernel::new(4, gemm_q8_q8_f32_mx16c4::<4, 1, INTO_L1>, 210),
        TileKernel::new(5, gemm_q8_q8_f32_mx16c4::<5, 1, INTO_L1>, 250),
        TileKernel::new(6, gemm_q8_q8_f32_mx16c4::<6, 1, INTO_L1>, 290),
    ];
    TileSet::new(&tiles, 0)
}

static TILES_Q4: TileSet = tiles_q4::<INTO_L1>();
static TILES_Q4_PAST_L2: TileSet = tiles_q4::<PAST_L2>();

/// Tiles for 4-bit weights.
const fn tiles_q4<const HINT: i32>() -> TileSet {
    let tiles = [
        TileKernel::new(1, gemm_q8_q4_f32_mx16c4::<1, 2, HINT>, 150),
        TileKernel::new(2, gemm_q8_q4_f32_mx16c4::<2, 1, INTO_L1>, 120),
        TileKernel::new(3, gemm_q8_q4_f32_mx16c4::<3, 1, INTO_L1>, 175),
        TileKernel::new(4, gemm_q8_q4_f32_mx16c4::<4, 1, INTO_L1>, 225),
    ];
    TileSet::new(&tiles, 0)
}

static TILES_B2: TileSet = tiles_b2::<INTO_L1>();
static TILES_B2_PAST_L2: TileSet = tiles_b2::<PAST_L2>();

/// Tiles for weights of BCML2. Costs are instructions per block of a panel.
const fn tiles_b2<const HINT: i32>() -> TileSet {
    let tiles = [
        TileKernel::new(1, gemm_q8_b2_f32_mx16c4::<1, 2, HINT>, 100),
        TileKernel::new(2, gemm_q8_b2_f32_mx16c4::<2, 1, INTO_L1>, 135),
        TileKernel::new(3, gemm_q8_b2_f32_mx16c4::<3, 1, INTO_L1>, 170),
        TileKernel::new(4, gemm_q8_b2_f32_mx16c4::<4, 1, INTO_L1>, 216),
    ];
    TileSet::new(&tiles, 0)
}

ymm_tiles!("avx2,fma,f16c,avxvnni", add_products, true);
ymm_code_tiles!("avx2,fma,f16c,avxvnni", add_products);
ymm_b2_tiles!("avx2,fma,f16c,avxvnni", add_products, add_pairs);

/// Adds 32 products to eight sums; `w` is unsigned: weights with a u8 bias, or codes.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
fn add_products(sums: __m256i, x: __m256i, w: __m256i) -> __m256i {
    _mm256_dpbusd_avx_epi32(sums, w, x)
}

/// Adds products of 16 bits, two to each of eight sums.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
fn add_pairs(sums: __m256i, x: __m256i, w: __m256i) -> __m256i {
    _mm256_dpwssd_avx_epi32(sums, w, x)
}

/// See [`super::Kernels::spin_int8`]: 32 products an instruction.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
fn spin_int8(rounds: usize) -> i32 {
    let x = _mm256_set1_epi8(std::hint::black_box(3));
    let step = |sums: &mut [__m256i; 8]| {
        for sum in sums {
            *sum = add_products(*sum, x, x);
        }
    };
    let lane = |sums| _mm256_extract_epi32::<0>(sums);
    peak::spin(rounds, 32, _mm256_setzero_si256(), step, lane)
}
