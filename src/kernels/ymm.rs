//! Products with packed weights in vectors of 32 bytes, written once for the tiers that differ in
//! one step only: adding 32 products to eight sums.
//!
//! A panel of 16 rows is two vectors for each four columns; the four bytes of a row of activations
//! are broadcast from memory. Tiles are as high as 16 registers hold two sums for each row.

/// Defines `gemm_q8_q8_f32_mx16c4` for a tier with `$features` and its step `$add`, whose sums
/// start at the biases if `$flipped`; and `gemm_q8_q4_f32_mx16c4`, whose step for codes is
/// `$add_codes`, and which `$finish` makes eight sums of in the end.
macro_rules! ymm_tiles {
    ($features:literal, $add:ident, $flipped:literal, $add_codes:ident, $finish:ident) => {
        /// `M` rows of activations by a panel of 16 rows of weights.
        #[target_feature(enable = $features)]
        fn gemm_q8_q8_f32_mx16c4<const M: usize>(
            panel: &[u8],
            x: &$crate::kernels::packed::Tile<'_>,
            out: &mut [f32],
        ) {
            const NR: usize = $crate::kernels::ymm::NR;
            let mut sums = [[_mm256_setzero_ps(); 2]; M];
            for (w, x) in panel.chunks_exact(NR * (4 + x.group)).zip(x.groups::<M, 4>()) {
                let (w_scales, w) = w.split_at(NR * 4);
                let mut dots = [[_mm256_setzero_si256(); 2]; M];
                if $flipped {
                    for (dots, bias) in dots.iter_mut().zip(x.biases) {
                        *dots = [_mm256_set1_epi32(*bias); 2];
                    }
                }
                for (w, x) in w.as_chunks::<{ 4 * NR }>().0.iter().zip(x.q) {
                    if M == 1 {
                        let ahead = w.as_ptr().wrapping_add($crate::kernels::ymm::PREFETCH_BYTES);
                        _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
                    }
                    let w = load_pair(w);
                    for i in 0..M {
                        let x = _mm256_set1_epi32(i32::from_ne_bytes(x[i]));
                        for j in 0..2 {
                            dots[i][j] = $add(dots[i][j], x, w[j]);
                        }
                    }
                }
                let w_scales = load_pair(&w_scales.as_chunks().0[0]);
                for i in 0..M {
                    let x_scale = _mm256_set1_ps(x.scales[i]);
                    for j in 0..2 {
                        let scales = _mm256_mul_ps(_mm256_castsi256_ps(w_scales[j]), x_scale);
                        let dots = _mm256_cvtepi32_ps(dots[i][j]);
                        sums[i][j] = _mm256_fmadd_ps(dots, scales, sums[i][j]);
                    }
                }
            }
            store_sums(out, sums.as_flattened());
        }

        /// `M` rows of activations by a panel of 16 rows of 4-bit weights.
        #[target_feature(enable = $features)]
        fn gemm_q8_q4_f32_mx16c4<const M: usize>(
            panel: &[u8],
            x: &$crate::kernels::packed::Tile<'_>,
            out: &mut [f32],
        ) {
            const BLOCK: usize = $crate::quant::bcml1::BLOCK;
            const PANEL_BLOCK: usize =
                $crate::kernels::ymm::NR * $crate::kernels::packed::BLOCK_BYTES;
            let mut sums = [[_mm256_setzero_ps(); 2]; M];
            let groups = panel.chunks_exact(PANEL_BLOCK * (x.group / BLOCK));
            for (w, x) in groups.zip(x.summed_groups::<M, 4>()) {
                // What a product is added to and stays the same, its zero signed.
                let mut totals = [[_mm256_set1_ps(-0.0); 2]; M];
                let blocks = x.q.as_chunks::<8>().0.iter().zip(x.sums);
                for (w, (x_q, x_sums)) in w.as_chunks::<PANEL_BLOCK>().0.iter().zip(blocks) {
                    let lines = w.as_chunks::<64>().0;
                    let mut dots = [[_mm256_setzero_si256(); 2]; M];
                    for (w, x_q) in lines[1..].iter().zip(x_q.as_chunks::<2>().0) {
                        if M == 1 {
                            let ahead =
                                w.as_ptr().wrapping_add($crate::kernels::ymm::PREFETCH_BYTES);
                            _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
                        }
                        let both = load_pair(w);
                        for (half, x_q) in x_q.iter().enumerate() {
                            let w = half_codes(both, half);
                            for i in 0..M {
                                let x = _mm256_set1_epi32(i32::from_ne_bytes(x_q[i]));
                                for j in 0..2 {
                                    dots[i][j] = $add_codes(dots[i][j], x, w[j]);
                                }
                            }
                        }
                    }
                    let [multipliers, offsets] = load_pair(&lines[0]);
                    let (multipliers, offsets) = (widen_pair(multipliers), widen_pair(offsets));
                    for i in 0..M {
                        let x_sum = _mm256_set1_ps(x_sums[i]);
                        for j in 0..2 {
                            let total = _mm256_fmadd_ps(x_sum, offsets[j], totals[i][j]);
                            let dots = _mm256_cvtepi32_ps($finish(dots[i][j]));
                            totals[i][j] = _mm256_fmadd_ps(dots, multipliers[j], total);
                        }
                    }
                }
                for i in 0..M {
                    let x_scale = _mm256_set1_ps(x.scales[i]);
                    for j in 0..2 {
                        sums[i][j] = _mm256_fmadd_ps(totals[i][j], x_scale, sums[i][j]);
                    }
                }
            }
            store_sums(out, sums.as_flattened());
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
        fn store_sums(out: &mut [f32], sums: &[__m256]) {
            for (out, sums) in out.as_chunks_mut::<8>().0.iter_mut().zip(sums) {
                // SAFETY: `out` is eight writable floats, and `storeu` needs no alignment.
                unsafe { _mm256_storeu_ps(out.as_mut_ptr(), *sums) };
            }
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

pub(super) use ymm_tiles;

/// Rows of a panel.
pub(super) const NR: usize = super::Layout::AVX2.panel_rows();

/// How far ahead of the weights in use others are asked for.
pub(super) const PREFETCH_BYTES: usize = 4096;
