//! AVX-VNNI: only products with packed weights differ from [`super::avx2`]. `vpdpbusd` adds, in
//! each of eight lanes, four products of unsigned by signed bytes.

use std::arch::x86_64::*;

use super::packed::{Layout, PART_BYTES, PackedTable, TileFn, place_rows, tiles_of};
use super::ymm::ymm_tiles;
use super::{Table, avx2, peak};

/// The tier's functions.
pub(super) static TABLE: Table = table(&avx2::TABLE);

/// The same for processors that are better at [`super::stream::PAST_L2`].
pub(super) static TABLE_PAST_L2: Table = table(&avx2::TABLE_PAST_L2);

const fn table(avx2: &'static Table) -> Table {
    Table {
        packed: Some(PackedTable {
            layout: Layout::AVX_VNNI,
            tiles_q8: &TILES_Q8,
            tiles_q4: &TILES_Q4,
            place: place_rows,
            part_bytes: PART_BYTES,
            unpack_q4: None,
        }),
        spin_int8,
        ..*avx2
    }
}

static TILES_Q8: [TileFn; 6] = tiles_of!(gemm_q8_q8_f32_mx16c4: 1 2 3 4 5 6);
static TILES_Q4: [TileFn; 6] = tiles_of!(gemm_q8_q4_f32_mx16c4: 1 2 3 4 5 6);

ymm_tiles!("avx2,fma,f16c,avxvnni", add_products, true, add_products, unused);

/// Adds 32 products to eight sums; `w` is unsigned: flipped weights or codes.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
fn add_products(sums: __m256i, x: __m256i, w: __m256i) -> __m256i {
    _mm256_dpbusd_avx_epi32(sums, w, x)
}

/// Codes have no sums of their own.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
fn unused(sums: __m256i, _: __m256i) -> __m256i {
    sums
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
