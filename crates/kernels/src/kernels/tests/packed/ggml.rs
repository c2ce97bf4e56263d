//! Compares packed products of a GGUF file's blocks with scalar ones.

use super::*;
use crate::kernels::PackedGgml;
use crate::quant::{Ggml, GgmlMatrix};

/// Compares `kernels` with scalar on weights `w` and activations `x`.
#[track_caller]
fn check_ggml(kernels: Kernels, layout: Layout, w: GgmlMatrix<'_>, x: &[f32]) {
    let (k, kind) = (w.k(), w.kind());
    let both = quantize_both(kernels, x, k, 32);
    let rows = Q8Activations::new(&both.rows.0, &both.rows.1, k, 32).unwrap();
    let tiles = tiles_of(kernels, &both, Groups { k, group: 32 });
    let product = |multiply: &dyn Fn(&mut [&mut [f32]])| {
        let mut out = vec![f32::NAN; rows.m() * w.rows()];
        multiply(&mut out.chunks_exact_mut(w.rows()).collect::<Vec<_>>());
        bits(&out)
    };
    let wanted = product(&|out| scalar().matmul_ggml(w, rows, out));
    let mut packed = vec![0x5a; layout.bytes_ggml(kind, dims(w.rows(), k)).unwrap()];
    kernels.pack_ggml(w, &mut packed);
    let packed = PackedGgml::new(&packed, dims(w.rows(), k), kind, layout).unwrap();
    let found = product(&|out| kernels.matmul_packed_ggml(packed, tiles, out));
    assert!(found == wanted, "{kernels:?} {} {}x{}x{k}", kind.name(), rows.m(), w.rows());
}

#[test]
fn packed_products_of_gguf_blocks_equal_scalar_in_every_tier() {
    let mut random = Random(41);
    for (tier, layout) in packing() {
        let nr = layout.panel_rows();
        for kind in Ggml::ALL {
            for k in [1, 2, 3, 9, 10].map(|n| n * kind.len()) {
                for rows in [1, nr, 2 * nr + 5] {
                    let bytes = random.blocks(kind, rows * k / kind.len());
                    let w = GgmlMatrix::new(kind, &bytes, k).unwrap();
                    for m in [1, 2, 5, 13] {
                        check_ggml(tier, layout, w, &random.floats(m * k));
                    }
                    // More tiles than each panel is multiplied by at once.
                    if k == 2 * kind.len() && rows != nr {
                        check_ggml(tier, layout, w, &random.floats(75 * k));
                    }
                }
            }
        }
    }
}

/// Enough rows that x86-64 unpacks panels once for all of them: every height of the last tile, in one and several parts of
/// a panel, the last of which may be shorter.
#[test]
fn products_of_gguf_blocks_with_many_rows_equal_scalar_in_every_tier() {
    let mut random = Random(44);
    for (tier, layout) in packing() {
        let nr = layout.panel_rows();
        for kind in Ggml::ALL {
            for (k, rows) in [(256, nr + 3), (768, nr), (1280, 2 * nr - 1)] {
                let bytes = random.blocks(kind, rows * k / kind.len());
                let w = GgmlMatrix::new(kind, &bytes, k).unwrap();
                for m in 31..=if quick() { 33 } else { 43 } {
                    check_ggml(tier, layout, w, &random.floats(m * k));
                }
            }
        }
        let bytes = random.blocks(Ggml::Q6K, nr);
        let w = GgmlMatrix::new(Ggml::Q6K, &bytes, 256).unwrap();
        check_ggml(tier, layout, w, &random.floats((CUT_ROWS + 33) * 256));
    }
}

/// Codes of 0 and all ones with activations of one sign: the largest sums.
#[test]
fn extreme_codes_of_gguf_blocks_do_not_saturate() {
    for (tier, layout) in packing() {
        for kind in Ggml::ALL {
            for code in [0, 0x77, 0x80, 0xff] {
                let mut bytes = Random(45).blocks(kind, layout.panel_rows());
                // Scales of blocks are in the first four or last two bytes.
                for block in bytes.chunks_exact_mut(kind.bytes()) {
                    let end = block.len() - 2;
                    block[4..end].fill(code);
                }
                let w = GgmlMatrix::new(kind, &bytes, kind.len()).unwrap();
                for x in [1.0, -1.0] {
                    check_ggml(tier, layout, w, &vec![x; 3 * kind.len()]);
                    check_ggml(tier, layout, w, &vec![x; 33 * kind.len()]);
                }
            }
        }
    }
}

/// Scales of weights and activations for which sums with a bias are not exact, or products are 0.
#[test]
fn unusual_scales_of_gguf_blocks_do_the_same_in_every_tier() {
    let mut random = Random(46);
    for (tier, layout) in packing() {
        for kind in Ggml::ALL {
            let (k, rows) = (2 * kind.len(), layout.panel_rows() + 1);
            let bytes: Vec<u8> =
                (0..rows * kind.row_bytes(k)).map(|_| random.bits() as u8).collect();
            let w = GgmlMatrix::new(kind, &bytes, k).unwrap();
            check_ggml(tier, layout, w, &random.floats(33 * k));
            let bytes = random.blocks(kind, rows * 2);
            let w = GgmlMatrix::new(kind, &bytes, k).unwrap();
            let mut x = random.floats(33 * k);
            for size in [1e-36, 0.0, f32::NAN] {
                x[k..2 * k].iter_mut().for_each(|x| *x *= size);
                check_ggml(tier, layout, w, &x);
            }
        }
    }
}

#[test]
fn bytes_of_any_kind_do_the_same_in_every_tier() {
    let mut random = Random(42);
    for (tier, layout) in packing() {
        for kind in Ggml::ALL {
            let (k, rows) = (2 * kind.len(), layout.panel_rows());
            for _ in 0..20 {
                let bytes: Vec<u8> =
                    (0..rows * kind.row_bytes(k)).map(|_| random.bits() as u8).collect();
                let w = GgmlMatrix::new(kind, &bytes, k).unwrap();
                check_ggml(tier, layout, w, &random.floats(3 * k));
            }
        }
    }
}

/// A product is that of the values, but for the rounding of activations and sums.
#[test]
fn products_of_gguf_blocks_are_those_of_their_values() {
    let mut random = Random(43);
    for kind in Ggml::ALL {
        let k = 2 * kind.len();
        let bytes = random.blocks(kind, 2);
        let mut values = vec![0.0; k];
        kind.widen(&bytes, &mut values);
        let x = random.floats(k);
        let (mut q, mut scales) = (vec![0; k], vec![0.0; k / 32]);
        scalar().quantize_q8(&x, 32, &mut q, &mut scales);
        let mut found = [0.0];
        let rows = Q8Activations::new(&q, &scales, k, 32).unwrap();
        let w = GgmlMatrix::new(kind, &bytes, k).unwrap();
        scalar().matmul_ggml(w, rows, &mut [&mut found]);
        let products = values.iter().zip(&q).enumerate();
        let products =
            products.map(|(i, (w, q))| f64::from(*w) * f64::from(*q) * f64::from(scales[i / 32]));
        let (wanted, size) =
            products.fold((0.0, 0.0), |(sum, size), product| (sum + product, size + product.abs()));
        let error = (f64::from(found[0]) - wanted).abs();
        assert!(error <= 1e-5 * size, "{}: {} {wanted}", kind.name(), found[0]);
    }
}
