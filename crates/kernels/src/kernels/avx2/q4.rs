//! Products of packed 4-bit weights, in assembly, because the compiler would hold too much in registers and spill it.
//!
//! A block's products are sums of i16, two vectors of 16 for each row of activations: at most `16 * 15 * 127 = 30480`.
//! They take up to twelve of the 16 registers. The others hold eight weight rows' codes each (`w_low`, `w_high`), four
//! activations of a row (`x`), products (`p`), and the mask of codes. At a block's end the first four of these hold
//! multipliers, offsets, a total, and ones; sums of i32 and totals wait in memory.
//!
//! A block of BCML2 ends with one multiplication by 16 times the scale, which also adds neighbours; the products are
//! added to totals of i32. These totals begin with the products of zeros and sums of activations, which two blocks at a
//! time compute without assembly.

use std::arch::asm;
use std::arch::x86_64::*;

use crate::kernels::packed::tile::Q8Tile;
use crate::kernels::stream::{INTO_L1, PAST_L2, ahead_bytes};
use crate::kernels::ymm::{
    NR, PANEL_BLOCK, PANEL_BLOCK_B2, add_scaled, for_pairs, pair_of_sums, scales_b2, zeros_b2,
};
use crate::quant::bcml1::BLOCK;

/// Distance before a block of BCML2 at which a block of version 3 with its codes in the same place would begin.
const LEAD_B2: usize = PANEL_BLOCK - PANEL_BLOCK_B2;

/// Bytes of an unpacked block of a panel: steps and offsets of its rows, or scales and zeros, then the codes of each
/// four columns.
pub(super) const UNPACKED_BLOCK: usize = NR * (4 + 4 + BLOCK);

/// Products of four columns with each row; those of a block's `first` columns begin its sums, `more` are added.
macro_rules! products {
    (first $step:literal by $rows:literal: $($low:ident $high:ident $row:literal)*) => {
        concat!($(
            "vpbroadcastd {x}, dword ptr [{q} + 4 * (", $step, " * ", $rows, " + ", $row, ")]\n",
            "vpmaddubsw {", stringify!($low), "}, {w_low}, {x}\n",
            "vpmaddubsw {", stringify!($high), "}, {w_high}, {x}\n",
        )*)
    };
    (more $step:literal by $rows:literal: $($low:ident $high:ident $row:literal)*) => {
        concat!($(
            "vpbroadcastd {x}, dword ptr [{q} + 4 * (", $step, " * ", $rows, " + ", $row, ")]\n",
            "vpmaddubsw {p}, {w_low}, {x}\n",
            "vpmaddubsw {x}, {w_high}, {x}\n",
            "vpaddw {", stringify!($low), "}, {", stringify!($low), "}, {p}\n",
            "vpaddw {", stringify!($high), "}, {", stringify!($high), "}, {x}\n",
        )*)
    };
}

/// A line of packed codes: its low halves are four columns, its high halves the next four.
macro_rules! packed_line {
    ($order:ident $line:literal $low_step:literal $high_step:literal $ahead:ident by $rows:literal: $($sums:tt)*) => {
        concat!(
            $ahead!($line),
            "vpand {w_low}, {mask}, ymmword ptr [{w} + 64 * ", $line, "]\n",
            "vpand {w_high}, {mask}, ymmword ptr [{w} + 64 * ", $line, " + 32]\n",
            products!($order $low_step by $rows: $($sums)*),
            "vmovdqu {w_low}, ymmword ptr [{w} + 64 * ", $line, "]\n",
            "vmovdqu {w_high}, ymmword ptr [{w} + 64 * ", $line, " + 32]\n",
            "vpsrlw {w_low}, {w_low}, 4\n",
            "vpsrlw {w_high}, {w_high}, 4\n",
            "vpand {w_low}, {w_low}, {mask}\n",
            "vpand {w_high}, {w_high}, {mask}\n",
            products!(more $high_step by $rows: $($sums)*),
        )
    };
}

/// A line of four columns' unpacked codes.
macro_rules! unpacked_line {
    ($order:ident $step:literal by $rows:literal: $($sums:tt)*) => {
        concat!(
            "vmovdqu {w_low}, ymmword ptr [{w} + 64 * ", $step, " + 128]\n",
            "vmovdqu {w_high}, ymmword ptr [{w} + 64 * ", $step, " + 160]\n",
            products!($order $step by $rows: $($sums)*),
        )
    };
}

/// Multiplies a block's packed codes.
macro_rules! packed_codes {
    ($ahead:ident by $rows:literal: $($sums:tt)*) => {
        concat!(
            $ahead!(0),
            packed_line!(first 1 0 1 $ahead by $rows: $($sums)*),
            packed_line!(more 2 2 3 $ahead by $rows: $($sums)*),
            packed_line!(more 3 4 5 $ahead by $rows: $($sums)*),
            packed_line!(more 4 6 7 $ahead by $rows: $($sums)*),
        )
    };
}

/// Multiplies a block's unpacked codes.
macro_rules! unpacked_codes {
    ($ahead:ident by $rows:literal: $($sums:tt)*) => {
        concat!(
            unpacked_line!(first 0 by $rows: $($sums)*),
            unpacked_line!(more 1 by $rows: $($sums)*),
            unpacked_line!(more 2 by $rows: $($sums)*),
            unpacked_line!(more 3 by $rows: $($sums)*),
            unpacked_line!(more 4 by $rows: $($sums)*),
            unpacked_line!(more 5 by $rows: $($sums)*),
            unpacked_line!(more 6 by $rows: $($sums)*),
            unpacked_line!(more 7 by $rows: $($sums)*),
        )
    };
}

/// Loads eight weight rows' multipliers, less those of the group's next block, and their offsets.
macro_rules! packed_parameters {
    ($half:literal $end:literal) => {
        concat!(
            "vcvtph2ps {w_low}, xmmword ptr [{w} + 16 * ",
            $half,
            "]\n",
            "vcvtph2ps {w_high}, xmmword ptr [{w} + 16 * ",
            $half,
            " + 32]\n",
            "cmp {n}, 1\n",
            "je ",
            $end,
            "f\n",
            "vcvtph2ps {x}, xmmword ptr [{w} + {block} + 16 * ",
            $half,
            "]\n",
            "vsubps {w_low}, {w_low}, {x}\n",
            $end,
            ":\n",
        )
    };
}

/// Loads the parameters of unpacked weights.
macro_rules! unpacked_parameters {
    ($half:literal $end:literal) => {
        concat!(
            "vmovups {w_low}, ymmword ptr [{w} + 32 * ",
            $half,
            "]\n",
            "vmovups {w_high}, ymmword ptr [{w} + 32 * ",
            $half,
            " + 64]\n",
        )
    };
}

/// Adds a block's sums of eight weight rows to totals.
macro_rules! add_sums {
    ($half:literal: $($sum:ident $row:literal)*) => {
        concat!($(
            "vpmaddwd {", stringify!($sum), "}, {", stringify!($sum), "}, {p}\n",
            "vpaddd {", stringify!($sum), "}, {", stringify!($sum), "}, ymmword ptr [{dots} + 64 * ", $row,
            " + 32 * ", $half, "]\n",
            "vmovdqa ymmword ptr [{dots} + 64 * ", $row, " + 32 * ", $half, "], {", stringify!($sum), "}\n",
            "vcvtdq2ps {", stringify!($sum), "}, {", stringify!($sum), "}\n",
            "vbroadcastss {x}, dword ptr [{sums} + 4 * ", $row, "]\n",
            "vfmadd213ps {x}, {w_high}, ymmword ptr [{totals} + 64 * ", $row, " + 32 * ", $half, "]\n",
            "vfmadd231ps {x}, {", stringify!($sum), "}, {w_low}\n",
            "vmovaps ymmword ptr [{totals} + 64 * ", $row, " + 32 * ", $half, "], {x}\n",
        )*)
    };
}

/// Prefetches nothing: kernels of several rows prefetch a whole group at once.
macro_rules! not_ahead {
    ($line:literal) => {
        ""
    };
}

/// Prefetches a line into all levels of cache.
macro_rules! into_l1 {
    ($line:literal) => {
        concat!("prefetcht0 byte ptr [{w} + {ahead} + 64 * ", $line, "]\n")
    };
}

/// Prefetches past the L2 cache.
macro_rules! past_l2 {
    ($line:literal) => {
        concat!("prefetchnta byte ptr [{w} + {ahead} + 64 * ", $line, "]\n")
    };
}

/// Runs `$body` for each activation group of `$x`, with `$blocks` blocks: its weights are `$w` of `$panel`, its
/// activations `$group`. Prefetches the weights of the next tile.
macro_rules! each_group {
    ($rows:literal by $block:ident: $panel:ident $x:ident, $blocks:ident $w:ident $group:ident => $body:block) => {
        let $blocks = $x.blocks();
        assert!($blocks != 0);
        let mut ahead = $x.ahead;
        ahead.prefetch_rows(NR / 16, 0, 1);
        let groups = $panel.chunks_exact($blocks * $block);
        for ($w, $group) in groups.zip($x.summed_groups::<$rows, 4>()) {
            // With many tiles, each would prefetch less than a line.
            if $rows != 1 && ahead.w_step >= 64 {
                ahead.prefetch_weights(4 * $group.q.len());
            }
            assert_eq!($group.q.len(), 8 * $blocks);
            $body
        }
    };
}

/// A kernel for tiles of `$rows` rows, with blocks of `$block` bytes whose codes and parameters `$codes` and
/// `$parameters` load. Each row is given by the names of its two sums, and its number.
macro_rules! gemm_q4 {
    ($name:ident: $rows:literal, $codes:ident $parameters:ident of $block:ident, $ahead:ident
     $($low:ident $high:ident $row:literal),*; $($operands:tt)*) => {
        /// Rows of activations by a panel of 16 weight rows.
        #[target_feature(enable = "avx2,fma,f16c")]
        pub(super) fn $name(panel: &[u8], x: &Q8Tile<'_>, out: &mut [f32]) {
            let out = out.first_chunk_mut::<{ $rows * NR }>().expect("results of all rows");
            each_group!($rows by $block: panel x, blocks w x => {
                assert_eq!(x.sums.len(), blocks);
                let mut dots = [[_mm256_setzero_si256(); 2]; $rows];
                let mut totals = [[_mm256_set1_ps(-0.0); 2]; $rows];
                // SAFETY: of each of `blocks` blocks (not 0), this reads `$block` bytes of `w`, multipliers of the next
                // block if there is one, 32 bytes of `x.q` and a float of `x.sums` for each row; the lengths were
                // checked above. It reads and writes two vectors for each row of `dots` and `totals`. Everything else
                // is in named registers.
                unsafe {
                    asm!(
                        "2:",
                        $codes!($ahead by $rows: $($low $high $row)*),
                        "vpcmpeqw {p}, {p}, {p}",
                        "vpabsw {p}, {p}",
                        $parameters!(0 "3"),
                        add_sums!(0: $($low $row)*),
                        $parameters!(1 "4"),
                        add_sums!(1: $($high $row)*),
                        "add {w}, {block}",
                        concat!("add {q}, 32 * ", $rows),
                        concat!("add {sums}, 4 * ", $rows),
                        "dec {n}",
                        "jnz 2b",
                        w = inout(reg) w.as_ptr() => _, q = inout(reg) x.q.as_ptr() => _,
                        sums = inout(reg) x.sums.as_ptr() => _, n = inout(reg) blocks => _,
                        dots = in(reg) dots.as_mut_ptr(), totals = in(reg) totals.as_mut_ptr(),
                        block = const $block,
                        w_low = out(ymm_reg) _, w_high = out(ymm_reg) _, x = out(ymm_reg) _, p = out(ymm_reg) _,
                        $($low = out(ymm_reg) _, $high = out(ymm_reg) _,)*
                        $($operands)*
                        options(nostack)
                    );
                }
                add_scaled(out, &totals, x.scales);
            });
        }
    };
}

macro_rules! gemm_packed {
    ($name:ident: $rows:literal, $ahead:ident $($sums:tt)*) => {
        gemm_q4!($name: $rows, packed_codes packed_parameters of PANEL_BLOCK, $ahead $($sums)*
            mask = in(ymm_reg) _mm256_set1_epi8(15),);
    };
}

gemm_q4!(gemm_q8_q4_f32_1x16c4: 1, packed_codes packed_parameters of PANEL_BLOCK, into_l1 a0 b0 0;
    mask = in(ymm_reg) _mm256_set1_epi8(15), ahead = const ahead_bytes(INTO_L1),);
gemm_q4!(gemm_q8_q4_f32_1x16c4_past_l2: 1, packed_codes packed_parameters of PANEL_BLOCK, past_l2 a0 b0 0;
    mask = in(ymm_reg) _mm256_set1_epi8(15), ahead = const ahead_bytes(PAST_L2),);
gemm_packed!(gemm_q8_q4_f32_2x16c4: 2, not_ahead a0 b0 0, a1 b1 1;);
gemm_packed!(gemm_q8_q4_f32_3x16c4: 3, not_ahead a0 b0 0, a1 b1 1, a2 b2 2;);
gemm_packed!(gemm_q8_q4_f32_4x16c4: 4, not_ahead a0 b0 0, a1 b1 1, a2 b2 2, a3 b3 3;);
gemm_packed!(gemm_q8_q4_f32_5x16c4: 5, not_ahead a0 b0 0, a1 b1 1, a2 b2 2, a3 b3 3, a4 b4 4;);
gemm_q4!(gemm_q8_q4_f32_4x16c4_unpacked: 4, unpacked_codes unpacked_parameters of UNPACKED_BLOCK, not_ahead
    a0 b0 0, a1 b1 1, a2 b2 2, a3 b3 3;);
gemm_q4!(gemm_q8_q4_f32_6x16c4_unpacked: 6, unpacked_codes unpacked_parameters of UNPACKED_BLOCK, not_ahead
    a0 b0 0, a1 b1 1, a2 b2 2, a3 b3 3, a4 b4 4, a5 b5 5;);

/// Multipliers of a block's sums of BCML2, 16 times the scales, twice in 32 bits: eight rows, then the other eight.
macro_rules! packed_scales {
    () => {
        concat!(
            "vpmovzxbd {w_low}, qword ptr [{w} + {lead}]\n",
            "vpmovzxbd {w_high}, qword ptr [{w} + {lead} + 8]\n",
            "vpmulld {w_low}, {w_low}, {sixteens}\n",
            "vpmulld {w_high}, {w_high}, {sixteens}\n",
        )
    };
}

/// Loads the scales of unpacked weights.
macro_rules! unpacked_scales {
    () => {
        concat!(
            "vmovdqu {w_low}, ymmword ptr [{w} + {lead}]\n",
            "vmovdqu {w_high}, ymmword ptr [{w} + {lead} + 32]\n",
        )
    };
}

/// Adds a block's sums times their multipliers to totals.
macro_rules! add_multiples {
    ($($low:ident $high:ident $row:literal)*) => {
        concat!(
            $(add_multiples!($low by w_low at $row 0), add_multiples!($high by w_high at $row 1),)*
        )
    };
    ($sum:ident by $scales:ident at $row:literal $half:literal) => {
        concat!(
            "vpmaddwd {", stringify!($sum), "}, {", stringify!($sum), "}, {", stringify!($scales), "}\n",
            "vpaddd {", stringify!($sum), "}, {", stringify!($sum), "}, ymmword ptr [{totals} + 64 * ", $row,
            " + 32 * ", $half, "]\n",
            "vmovdqa ymmword ptr [{totals} + 64 * ", $row, " + 32 * ", $half, "], {", stringify!($sum), "}\n",
        )
    };
}

/// A kernel for tiles of `$rows` rows, with blocks of `$block` bytes that `w` points `$lead` bytes before. `$codes` and
/// `$scales` load a block's, `$zeros` those of two blocks. Each row is given by the names of its two sums, and its
/// number.
macro_rules! gemm_b2 {
    ($name:ident: $rows:literal, $codes:ident $scales:ident $zeros:ident of $block:ident after $lead:expr,
     $ahead:ident $($low:ident $high:ident $row:literal),*; $($operands:tt)*) => {
        /// Rows of activations by a panel of 16 weight rows of BCML2.
        #[target_feature(enable = "avx2,fma,f16c")]
        pub(super) fn $name(panel: &[u8], x: &Q8Tile<'_>, out: &mut [f32]) {
            let out = out.first_chunk_mut::<{ $rows * NR }>().expect("results of all rows");
            each_group!($rows by $block: panel x, blocks w x => {
                let mut totals = [[_mm256_setzero_si256(); 2]; $rows];
                let w = w.as_chunks::<$block>().0;
                for_pairs!((w, next) in w, (sums, next_sums) in x.sums, $rows => {
                    add_zeros(&mut totals, $zeros(w, next), [sums, next_sums]);
                });
                // SAFETY: of each of `blocks` blocks (not 0), this reads `$block` bytes of `w`, whose pointer stands
                // `$lead` bytes before them, and 32 bytes of `x.q` for each row; the lengths were checked above. It
                // reads and writes two vectors for each row of `totals`. Everything else is in named registers.
                unsafe {
                    asm!(
                        "2:",
                        $codes!($ahead by $rows: $($low $high $row)*),
                        $scales!(),
                        add_multiples!($($low $high $row)*),
                        "add {w}, {block}",
                        concat!("add {q}, 32 * ", $rows),
                        "dec {n}",
                        "jnz 2b",
                        w = inout(reg) w.as_ptr().cast::<u8>().wrapping_sub($lead) => _, q = inout(reg) x.q.as_ptr() => _,
                        n = inout(reg) blocks => _, totals = in(reg) totals.as_mut_ptr(),
                        block = const $block, lead = const $lead,
                        w_low = out(ymm_reg) _, w_high = out(ymm_reg) _, x = out(ymm_reg) _, p = out(ymm_reg) _,
                        $($low = out(ymm_reg) _, $high = out(ymm_reg) _,)*
                        $($operands)*
                        options(nostack)
                    );
                }
                let mut floats = [[_mm256_setzero_ps(); 2]; $rows];
                for i in 0..$rows {
                    for j in 0..2 {
                        floats[i][j] = _mm256_cvtepi32_ps(totals[i][j]);
                    }
                }
                add_scaled(out, &floats, x.scales);
            });
        }
    };
}

/// Adds the products of two blocks' zeros and sums of activations to totals.
#[target_feature(enable = "avx2,fma,f16c")]
fn add_zeros<const M: usize>(
    totals: &mut [[__m256i; 2]; M],
    zeros: [__m256i; 2],
    [sums, next_sums]: [&[f32; M]; 2],
) {
    for i in 0..M {
        let sums = pair_of_sums(sums[i], next_sums[i]);
        for j in 0..2 {
            totals[i][j] = _mm256_add_epi32(totals[i][j], _mm256_madd_epi16(zeros[j], sums));
        }
    }
}

/// Factors of the sums of activations of a block and the next.
#[target_feature(enable = "avx2,fma,f16c")]
fn packed_zeros(block: &[u8; PANEL_BLOCK_B2], next: Option<&[u8; PANEL_BLOCK_B2]>) -> [__m256i; 2] {
    zeros_b2::<0>(block, next)
}

/// Zeros of unpacked blocks; the first block of a pair holds the zeros of both.
#[target_feature(enable = "avx2,fma,f16c")]
fn unpacked_zeros(block: &[u8; UNPACKED_BLOCK], _: Option<&[u8; UNPACKED_BLOCK]>) -> [__m256i; 2] {
    let zeros = &block.as_chunks::<32>().0[2..];
    [load(&zeros[0]), load(&zeros[1])]
}

#[target_feature(enable = "avx2,fma,f16c")]
fn load(x: &[u8; 32]) -> __m256i {
    // SAFETY: `x` is 32 readable bytes, and `loadu` needs no alignment.
    unsafe { _mm256_loadu_si256(x.as_ptr().cast()) }
}

/// Factors that turn scales into multipliers of 32 bits.
#[target_feature(enable = "avx2,fma,f16c")]
fn sixteens() -> __m256i {
    _mm256_set1_epi16(16)
}

/// Scales and zeros in front of the codes of an unpacked block: its own, and the next block's zeros if there is one.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn unpacked_parameters_b2(
    block: &[u8; PANEL_BLOCK_B2],
    next: Option<&[u8; PANEL_BLOCK_B2]>,
) -> [[__m256i; 2]; 2] {
    let ([a, b], by) = (scales_b2(block), sixteens());
    [[_mm256_mullo_epi32(a, by), _mm256_mullo_epi32(b, by)], packed_zeros(block, next)]
}

macro_rules! gemm_packed_b2 {
    ($name:ident: $rows:literal, $ahead:ident $($sums:tt)*) => {
        gemm_b2!($name: $rows, packed_codes packed_scales packed_zeros of PANEL_BLOCK_B2 after LEAD_B2,
            $ahead $($sums)* mask = in(ymm_reg) _mm256_set1_epi8(15), sixteens = in(ymm_reg) sixteens(),);
    };
}

macro_rules! gemm_unpacked_b2 {
    ($name:ident: $rows:literal, $($sums:tt)*) => {
        gemm_b2!($name: $rows, unpacked_codes unpacked_scales unpacked_zeros of UNPACKED_BLOCK after 0,
            not_ahead $($sums)*);
    };
}

gemm_packed_b2!(gemm_q8_b2_f32_1x16c4: 1, into_l1 a0 b0 0; ahead = const ahead_bytes(INTO_L1),);
gemm_packed_b2!(gemm_q8_b2_f32_1x16c4_past_l2: 1, past_l2 a0 b0 0; ahead = const ahead_bytes(PAST_L2),);
gemm_packed_b2!(gemm_q8_b2_f32_2x16c4: 2, not_ahead a0 b0 0, a1 b1 1;);
gemm_packed_b2!(gemm_q8_b2_f32_3x16c4: 3, not_ahead a0 b0 0, a1 b1 1, a2 b2 2;);
gemm_packed_b2!(gemm_q8_b2_f32_4x16c4: 4, not_ahead a0 b0 0, a1 b1 1, a2 b2 2, a3 b3 3;);
gemm_packed_b2!(gemm_q8_b2_f32_5x16c4: 5, not_ahead a0 b0 0, a1 b1 1, a2 b2 2, a3 b3 3, a4 b4 4;);
gemm_unpacked_b2!(gemm_q8_b2_f32_4x16c4_unpacked: 4, a0 b0 0, a1 b1 1, a2 b2 2, a3 b3 3;);
gemm_unpacked_b2!(gemm_q8_b2_f32_6x16c4_unpacked: 6,
    a0 b0 0, a1 b1 1, a2 b2 2, a3 b3 3, a4 b4 4, a5 b5 5;);
