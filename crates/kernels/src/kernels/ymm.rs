//! Products with packed weights in vectors of 32 bytes, written once for tiers that differ in one step: adding 32
//! products to eight sums.
//!
//! A panel of 16 rows is two vectors for each four columns; the four bytes of a row of activations are broadcast from
//! memory. A single row prefetches weights with `HINT`. Tiles are as high as 16 registers allow, with two sums for each
//! row.

use std::arch::x86_64::*;

pub(super) mod lanes;

/// Defines `gemm_q8_q8_f32_mx16c4` for a tier with `$features` and its step `$add`, and functions that products with
/// 4-bit weights need too. Sums begin at `zeros` if `$flipped`: weights then have a u8 bias.
macro_rules! ymm_tiles {
    ($features:literal, $add:ident, $flipped:literal) => {
        /// `M` rows of activations by a panel of 16 weight rows, in `S` sums each.
        #[target_feature(enable = $features)]
        fn gemm_q8_q8_f32_mx16c4<const M: usize, const S: usize, const HINT: i32>(
            panel: &[u8],
            x: &$crate::kernels::packed::tile::Q8Tile<'_>,
            out: &mut [f32],
        ) {
            const NR: usize = $crate::kernels::ymm::NR;
            let group_bytes = NR * (4 + x.group);
            let mut ahead = x.ahead;
            ahead.prefetch_rows(NR / 16, 0, 1);
            for (w, x) in panel.chunks_exact(group_bytes).zip(x.groups::<M, 4>()) {
                let mut dots = [[[_mm256_setzero_si256(); 2]; M]; S];
                if $flipped {
                    for i in 0..M {
                        dots[0][i] = [_mm256_castps_si256(_mm256_set1_ps(x.zeros[i])); 2];
                    }
                }
                if M != 1 && ahead.w_step >= 64 {
                    ahead.prefetch_weights(4 * x.q.len());
                }
                let (scales, w) = w.split_at(NR * 4);
                let (w, x_q) = (w.as_chunks::<{ 4 * NR }>().0, x.q.as_chunks::<4>().0);
                for (w, x_q) in w.as_chunks::<4>().0.iter().zip(x_q) {
                    for c in 0..4 {
                        if M == 1 {
                            $crate::kernels::stream::prefetch_ahead::<HINT>(w[c].as_ptr());
                        }
                        let w = load_pair(&w[c]);
                        let dots = &mut dots[c % S];
                        for i in 0..M {
                            let x = _mm256_set1_epi32(i32::from_ne_bytes(x_q[c][i]));
                            for j in 0..2 {
                                dots[i][j] = $add(dots[i][j], x, w[j]);
                            }
                        }
                    }
                }
                let scales = load_pair(&scales.as_chunks().0[0]);
                let mut totals = [[_mm256_setzero_ps(); 2]; M];
                let zero = _mm256_set1_ps($crate::kernels::packed::tile::ZERO);
                for i in 0..M {
                    for j in 0..2 {
                        let mut sum = dots[0][i][j];
                        for dots in &dots[1..] {
                            sum = _mm256_add_epi32(sum, dots[i][j]);
                        }
                        let sum = match $flipped {
                            true => _mm256_sub_ps(_mm256_castsi256_ps(sum), zero),
                            false => _mm256_cvtepi32_ps(sum),
                        };
                        totals[i][j] = _mm256_mul_ps(sum, _mm256_castsi256_ps(scales[j]));
                    }
                }
                $crate::kernels::ymm::add_scaled(out, &totals, x.scales);
            }
        }

        /// Multipliers and offsets of a block, zeros if there is none.
        #[target_feature(enable = $features)]
        fn block_parameters(
            block: Option<&[u8; $crate::kernels::ymm::PANEL_BLOCK]>,
        ) -> [[__m256; 2]; 2] {
            match block {
                Some(block) => {
                    let [multipliers, offsets] = load_pair(&block.as_chunks().0[0]);
                    [widen_pair(multipliers), widen_pair(offsets)]
                }
                None => [[_mm256_setzero_ps(); 2]; 2],
            }
        }

        /// The low (`half` 0) or high (1) codes of each byte.
        #[target_feature(enable = $features)]
        fn half_codes(both: [__m256i; 2], half: usize) -> [__m256i; 2] {
            let mask = _mm256_set1_epi8(15);
            let [a, b] = both;
            match half {
                0 => [_mm256_and_si256(a, mask), _mm256_and_si256(b, mask)],
                _ => [
                    _mm256_and_si256(_mm256_srli_epi16::<4>(a), mask),
                    _mm256_and_si256(_mm256_srli_epi16::<4>(b), mask),
                ],
            }
        }

        /// f16 to f32, exact.
        #[target_feature(enable = $features)]
        fn widen_pair(x: __m256i) -> [__m256; 2] {
            let (low, high) = (_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
            [_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)]
        }

        #[target_feature(enable = $features)]
        fn load_pair(x: &[u8; 64]) -> [__m256i; 2] {
            let (vectors, _) = x.as_chunks::<32>();
            let mut loaded = [_mm256_setzero_si256(); 2];
            for j in 0..2 {
                // SAFETY: `vectors[j]` is 32 readable bytes, and `loadu` needs no alignment.
                loaded[j] = unsafe { _mm256_loadu_si256(vectors[j].as_ptr().cast()) };
            }
            loaded
        }
    };
}

/// Defines `gemm_q8_q4_f32_mx16c4` for a tier with [`ymm_tiles`]; `$add` adds products of codes to eight sums.
macro_rules! ymm_code_tiles {
    ($features:literal, $add:ident) => {
        /// `M` rows of activations by a panel of 16 rows of 4-bit weights; low and high codes have `S` sums.
        #[target_feature(enable = $features)]
        fn gemm_q8_q4_f32_mx16c4<const M: usize, const S: usize, const HINT: i32>(
            panel: &[u8],
            x: &$crate::kernels::packed::tile::Q8Tile<'_>,
            out: &mut [f32],
        ) {
            use $crate::kernels::ymm::{NR, PANEL_BLOCK};
            let mut ahead = x.ahead;
            ahead.prefetch_rows(NR / 16, 0, 1);
            let groups = panel.chunks_exact(PANEL_BLOCK * x.blocks());
            for (w, x) in groups.zip(x.summed_groups::<M, 4>()) {
                // With many tiles, each would prefetch less than a line.
                if M != 1 && ahead.w_step >= 64 {
                    ahead.prefetch_weights(4 * x.q.len());
                }
                let mut dots = [[[_mm256_setzero_si256(); 2]; M]; S];
                let mut totals = [[_mm256_set1_ps(-0.0); 2]; M];
                let w = w.as_chunks::<PANEL_BLOCK>().0;
                let [mut multipliers, mut offsets] = block_parameters(w.first());
                let blocks = x.q.as_chunks::<8>().0.iter().zip(x.sums);
                for ((b, w_block), (x_q, x_sums)) in w.iter().enumerate().zip(blocks) {
                    let codes = &w_block.as_chunks::<64>().0[1..];
                    for (w, x_q) in codes.iter().zip(x_q.as_chunks::<2>().0) {
                        if M == 1 {
                            $crate::kernels::stream::prefetch_ahead::<HINT>(w.as_ptr());
                        }
                        let both = load_pair(w);
                        for (half, x_q) in x_q.iter().enumerate() {
                            let w = half_codes(both, half);
                            for i in 0..M {
                                let x = _mm256_set1_epi32(i32::from_ne_bytes(x_q[i]));
                                for j in 0..2 {
                                    let dots = &mut dots[half % S][i][j];
                                    *dots = $add(*dots, x, w[j]);
                                }
                            }
                        }
                    }
                    let [next_multipliers, next_offsets] = block_parameters(w.get(b + 1));
                    for i in 0..M {
                        for j in 0..2 {
                            let x_sum = _mm256_set1_ps(x_sums[i]);
                            let total = _mm256_fmadd_ps(x_sum, offsets[j], totals[i][j]);
                            let mut sum = dots[0][i][j];
                            for dots in &dots[1..] {
                                sum = _mm256_add_epi32(sum, dots[i][j]);
                            }
                            let step = _mm256_sub_ps(multipliers[j], next_multipliers[j]);
                            totals[i][j] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), step, total);
                        }
                    }
                    (multipliers, offsets) = (next_multipliers, next_offsets);
                }
                $crate::kernels::ymm::add_scaled(out, &totals, x.scales);
            }
        }
    };
}

/// Defines `gemm_q8_b2_f32_mx16c4` for a tier with [`ymm_tiles`]. Steps add to eight sums: `$add` four products of
/// bytes, `$add_pairs` two of 16 bits.
macro_rules! ymm_b2_tiles {
    ($features:literal, $add:ident, $add_pairs:ident) => {
        /// `M` rows of activations by a panel of 16 weight rows of BCML2; low and high codes have `S` sums.
        #[target_feature(enable = $features)]
        fn gemm_q8_b2_f32_mx16c4<const M: usize, const S: usize, const HINT: i32>(
            panel: &[u8],
            x: &$crate::kernels::packed::tile::Q8Tile<'_>,
            out: &mut [f32],
        ) {
            use $crate::kernels::ymm::{NR, PANEL_BLOCK_B2, PARAMETERS_B2};
            let mut ahead = x.ahead;
            ahead.prefetch_rows(NR / 16, 0, 1);
            let groups = panel.chunks_exact(PANEL_BLOCK_B2 * x.blocks());
            for (w, x) in groups.zip(x.summed_groups::<M, 4>()) {
                // With many tiles, each would prefetch less than a line.
                if M != 1 && ahead.w_step >= 64 {
                    ahead.prefetch_weights(4 * x.q.len());
                }
                let w = w.as_chunks::<PANEL_BLOCK_B2>().0;
                let mut totals = [[_mm256_setzero_si256(); 2]; M];
                $crate::kernels::ymm::for_pairs!((w, next) in w, (sums, next_sums) in x.sums, M => {
                    let zeros = $crate::kernels::ymm::zeros_b2::<128>(w, next);
                    for i in 0..M {
                        let sums = $crate::kernels::ymm::pair_of_sums(sums[i], next_sums[i]);
                        for j in 0..2 {
                            totals[i][j] = $add_pairs(totals[i][j], sums, zeros[j]);
                        }
                    }
                });
                let blocks = x.q.as_chunks::<8>().0.iter().zip(x.sums);
                for (block, (x_q, x_sums)) in w.iter().zip(blocks) {
                    if M == 1 {
                        $crate::kernels::stream::prefetch_ahead::<HINT>(block.as_ptr());
                    }
                    // With codes less 8, sums are at most `8 * 32 * 127` from 0, which fits 16 bits.
                    let mut dots = [[[_mm256_setzero_si256(); 2]; M]; S];
                    for i in 0..M {
                        dots[0][i] = [_mm256_set1_epi32(-8 * (x_sums[i].to_bits() as i32)); 2];
                    }
                    let codes = block[PARAMETERS_B2..].as_chunks::<64>().0;
                    for (w, x_q) in codes.iter().zip(x_q.as_chunks::<2>().0) {
                        if M == 1 {
                            $crate::kernels::stream::prefetch_ahead::<HINT>(w.as_ptr());
                        }
                        let both = load_pair(w);
                        for (half, x_q) in x_q.iter().enumerate() {
                            let w = half_codes(both, half);
                            for i in 0..M {
                                let x = _mm256_set1_epi32(i32::from_ne_bytes(x_q[i]));
                                for j in 0..2 {
                                    let dots = &mut dots[half % S][i][j];
                                    *dots = $add(*dots, x, w[j]);
                                }
                            }
                        }
                    }
                    add_multiples(&mut totals, &dots, $crate::kernels::ymm::scales_b2(block));
                }
                $crate::kernels::ymm::add_scaled_ints(out, &totals, x.scales);
            }
        }

        /// Adds a block's sums, in `S` parts, times 16 times its scales.
        #[target_feature(enable = $features)]
        #[inline]
        fn add_multiples<const M: usize, const S: usize>(
            totals: &mut [[__m256i; 2]; M],
            dots: &[[[__m256i; 2]; M]; S],
            scales: [__m256i; 2],
        ) {
            for i in 0..M {
                for j in 0..2 {
                    let mut sum = dots[0][i][j];
                    for dots in &dots[1..] {
                        sum = _mm256_add_epi32(sum, dots[i][j]);
                    }
                    let scale = _mm256_slli_epi16::<4>(scales[j]);
                    totals[i][j] = $add_pairs(totals[i][j], sum, scale);
                }
            }
        }
    };
}

/// Takes blocks of a group two by two, each with the sums of its activations. If their number is odd, the last has no
/// partner, and that one's sums, one for each of `$rows`, are 0.
macro_rules! for_pairs {
    (($w:ident, $next:ident) in $blocks:expr, ($sums:ident, $next_sums:ident) in $all_sums:expr, $rows:expr => $body:block) => {
        let (blocks, last_block) = $blocks.as_chunks::<2>();
        let (sums, last_sums) = $all_sums.as_chunks::<2>();
        for ([$w, next], [$sums, $next_sums]) in blocks.iter().zip(sums) {
            let $next = Some(next);
            $body
        }
        if let ([$w], [$sums]) = (last_block, last_sums) {
            let ($next, $next_sums) = (last_block.get(1), &[0.0; $rows]);
            $body
        }
    };
}

pub(super) use {for_pairs, ymm_b2_tiles, ymm_code_tiles, ymm_tiles};

/// Rows of a panel.
pub(super) const NR: usize = super::packed::layout::Layout::AVX2.panel_rows();

/// Bytes of a block of a panel of 4-bit weights.
pub(super) const PANEL_BLOCK: usize = NR * crate::quant::bcml1::BLOCK_BYTES;

/// Bytes of a block of a panel of BCML2.
pub(super) const PANEL_BLOCK_B2: usize = NR * crate::quant::bcml2::BLOCK_BYTES;

/// Bytes of a BCML2 block's scales and zeros.
pub(super) const PARAMETERS_B2: usize = 2 * NR;

/// The scales of a block of BCML2, each in 32 bits.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn scales_b2(block: &[u8; PANEL_BLOCK_B2]) -> [__m256i; 2] {
    let rows = block.as_chunks::<8>().0;
    [widen_bytes(&rows[0]), widen_bytes(&rows[1])]
}

/// Factors of the sums of activations of a block and the next one; those of the next are the upper 16 bits of each 32.
/// Products are those of codes less `FROM` sixteenths.
///
/// ```text
/// scale * (16 * d - zero * s) = 16 * scale * (d - FROM / 16 * s) + scale * (FROM - zero) * s
/// ```
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn zeros_b2<const FROM: i16>(
    block: &[u8; PANEL_BLOCK_B2],
    next: Option<&[u8; PANEL_BLOCK_B2]>,
) -> [__m256i; 2] {
    let zeros = block_zeros::<FROM>(block);
    let next = match next {
        Some(next) => block_zeros::<FROM>(next),
        None => _mm256_setzero_si256(),
    };
    [_mm256_unpacklo_epi16(zeros, next), _mm256_unpackhi_epi16(zeros, next)]
}

/// Zeros of one block in 16 bits, in the order for joining two blocks.
#[target_feature(enable = "avx2,fma,f16c")]
fn block_zeros<const FROM: i16>(block: &[u8; PANEL_BLOCK_B2]) -> __m256i {
    let rows = block.as_chunks::<NR>().0;
    let mut parameters = [_mm256_setzero_si256(); 2];
    for (parameters, rows) in parameters.iter_mut().zip(rows) {
        // SAFETY: `rows` is 16 readable bytes, and `loadu` needs no alignment.
        *parameters = _mm256_cvtepu8_epi16(unsafe { _mm_loadu_si128(rows.as_ptr().cast()) });
    }
    let [scales, zeros] = parameters;
    let products = _mm256_mullo_epi16(scales, _mm256_sub_epi16(_mm256_set1_epi16(FROM), zeros));
    // Joining works in each 128-bit half.
    _mm256_permute4x64_epi64::<0b11_01_10_00>(products)
}

/// Two sums of activations, stored as the bits of integers, as a pair of 16 bits.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn pair_of_sums(sum: f32, next: f32) -> __m256i {
    let [sum, next] = [sum, next].map(|sum| _mm256_castps_si256(_mm256_set1_ps(sum)));
    _mm256_blend_epi16::<0b1010_1010>(sum, _mm256_slli_epi32::<16>(next))
}

/// Eight bytes, each in 32 bits.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn widen_bytes(x: &[u8; 8]) -> __m256i {
    _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(i64::from_le_bytes(*x)))
}

/// Adds integer totals times their scales to `out`, like [`add_scaled`].
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn add_scaled_ints<const M: usize>(
    out: &mut [f32],
    totals: &[[__m256i; 2]; M],
    scales: &[f32; M],
) {
    let mut floats = [[_mm256_setzero_ps(); 2]; M];
    for i in 0..M {
        for j in 0..2 {
            floats[i][j] = _mm256_cvtepi32_ps(totals[i][j]);
        }
    }
    add_scaled(out, &floats, scales);
}

/// Adds each row's totals times its scale to `out`, `[M, 16]`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn add_scaled<const M: usize>(
    out: &mut [f32],
    totals: &[[__m256; 2]; M],
    scales: &[f32; M],
) {
    let (out, _) = out.as_chunks_mut::<8>();
    for i in 0..M {
        for j in 0..2 {
            let out = &mut out[2 * i + j];
            // SAFETY: `out` is eight readable floats, and `loadu` needs no alignment.
            let sum = unsafe { _mm256_loadu_ps(out.as_ptr()) };
            let sum = _mm256_fmadd_ps(totals[i][j], _mm256_set1_ps(scales[i]), sum);
            // SAFETY: `out` is eight writable floats, and `storeu` needs no alignment.
            unsafe { _mm256_storeu_ps(out.as_mut_ptr(), sum) };
        }
    }
}
