//! Compares packed products of a GGUF file's blocks with scalar ones.

use super::*;
use crate::kernels::PackedGgml;
use crate::quant::{Ggml, GgmlMatrix};

/// Types whose matrices are multiplied as they are.
fn kinds() -> impl Iterator<Item = Ggml> {
    Ggml::ALL.into_iter().filter(|kind| kind.is_multiplied())
}

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
        for kind in kinds() {
            for k in [1, 2, 3, 9, 10].map(|n| n * kind.len()) {
                for rows in [1, nr, 2 * nr + 5] {
                    let bytes = random.blocks(kind, rows * k / kind.len());
                    let w = GgmlMatrix::new(kind, &bytes, k).unwrap();
                    for m in [1, 2, 5, 13] {
                        check_ggml(tier, layout, w, &random.floats(m * k));
                    }
                    // More tiles than each panel is multiplied by at once, and panels that are unpacked once.
                    if k == 2 * kind.len() && rows != nr {
                        check_ggml(tier, layout, w, &random.floats(75 * k));
                    }
                }
            }
        }
    }
}

#[test]
fn bytes_of_any_kind_do_the_same_in_every_tier() {
    let mut random = Random(42);
    for (tier, layout) in packing() {
        for kind in kinds() {
            let (k, rows) = (2 * kind.len(), layout.panel_rows());
            for _ in 0..20 {
                let bytes: Vec<u8> =
                    (0..rows * kind.row_bytes(k)).map(|_| random.next() as u8).collect();
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
    for kind in kinds() {
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
