//! Attention's values in vectors of 32 bytes.

use std::arch::x86_64::*;

use super::super::float;
use super::vectors::load_8;

/// Columns of values taken at once: eight registers hold four queries' sums.
const COLUMNS: usize = 16;

/// See [`float::weigh_4`]. Compilers leave its sums in memory, and take them one by one.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::kernels) fn weigh_4(
    weights: [&[f32]; 4],
    values: &[f32],
    corrections: [f32; 4],
    mut out: [&mut [f32]; 4],
) {
    let whole = out[0].len() / COLUMNS * COLUMNS;
    for at in (0..whole).step_by(COLUMNS) {
        weigh_columns(weights, values, corrections, at, &mut out);
    }
    float::weigh_4::<true, COLUMNS>(weights, values, corrections, whole, out);
}

/// [`COLUMNS`] columns from `at` on.
#[target_feature(enable = "avx2,fma,f16c")]
fn weigh_columns(
    weights: [&[f32]; 4],
    values: &[f32],
    corrections: [f32; 4],
    at: usize,
    out: &mut [&mut [f32]; 4],
) {
    let head_dim = out[0].len();
    let mut sums = [[_mm256_setzero_ps(); COLUMNS / 8]; 4];
    for i in 0..4 {
        let (columns, _) = out[i][at..][..COLUMNS].as_chunks();
        for c in 0..COLUMNS / 8 {
            sums[i][c] = _mm256_mul_ps(load_8(&columns[c]), _mm256_set1_ps(corrections[i]));
        }
    }
    let [a, b, c, d] = weights;
    let weights = a.iter().zip(b).zip(c.iter().zip(d));
    for (((a, b), (c, d)), values) in weights.zip(values.chunks_exact(head_dim)) {
        let (columns, _) = values[at..][..COLUMNS].as_chunks();
        let columns = [load_8(&columns[0]), load_8(&columns[1])];
        let weights = [*a, *b, *c, *d];
        for i in 0..4 {
            let weight = _mm256_set1_ps(weights[i]);
            for c in 0..COLUMNS / 8 {
                sums[i][c] = _mm256_fmadd_ps(weight, columns[c], sums[i][c]);
            }
        }
    }
    for i in 0..4 {
        let (columns, _) = out[i][at..][..COLUMNS].as_chunks_mut();
        for c in 0..COLUMNS / 8 {
            store_8(&mut columns[c], sums[i][c]);
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn store_8(out: &mut [f32; 8], x: __m256) {
    // SAFETY: `out` is eight writable floats, and `storeu` needs no alignment.
    unsafe { _mm256_storeu_ps(out.as_mut_ptr(), x) }
}
