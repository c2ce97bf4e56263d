//! Products with packed weights in vectors of 32 bytes, written once for the tiers that differ in
//! one step only: adding 32 products to eight sums.
//!
//! A panel of 16 rows is two vectors for each four columns; the four bytes of a row of activations
//! are broadcast from memory. Tiles are as high as 16 registers hold two sums for each row.

/// Defines `gemm_q8_q8_f32_mx16c4` for a tier with `$features` and its step `$add`, whose sums
/// start at the biases if `$flipped`.
macro_rules! ymm_tiles {
    ($features:literal, $add:ident, $flipped:literal) => {
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
                for i in 0..M {
                    if $flipped {
                        dots[i] = [_mm256_set1_epi32(x.biases[i]); 2];
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
            for (out, sums) in out.as_chunks_mut::<8>().0.iter_mut().zip(sums.as_flattened()) {
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
pub(super) const NR: usize = 16;

/// How far ahead of the weights in use others are asked for.
pub(super) const PREFETCH_BYTES: usize = 4096;
