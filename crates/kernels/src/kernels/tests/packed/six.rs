//! Compares packed products of BCML6 weights with scalar ones.

use super::*;
use crate::kernels::PackedB6;
use crate::quant::{Bcml6Matrix, bcml6};

/// Rows of BCML6 with any scales and codes.
pub(super) fn rows_b6(random: &mut Random, rows: usize, k: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..rows {
        bytes.extend((random.f32() / 1000.0).to_le_bytes());
        bytes.extend((0..k / 32 * 25).map(|_| random.bits() as u8));
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    bytes
}

/// Compares `kernels` with scalar on weights of BCML6 and activations `x`.
#[track_caller]
fn check_b6(kernels: Kernels, layout: Layout, w: Bcml6Matrix<'_>, x: &[f32]) {
    let k = w.k();
    let both = quantize_both(kernels, x, k, 32);
    let rows = Q8Activations::new(&both.rows.0, &both.rows.1, k, 32).unwrap();
    let tiles = tiles_of(kernels, &both, Groups { k, group: 32 });
    let product = |multiply: &dyn Fn(&mut [&mut [f32]])| {
        let mut out = vec![f32::NAN; rows.m() * w.rows()];
        multiply(&mut out.chunks_exact_mut(w.rows()).collect::<Vec<_>>());
        bits(&out)
    };
    let wanted = product(&|out| scalar().matmul_b6(w, rows, out));
    assert!(product(&|out| kernels.matmul_b6(w, rows, out)) == wanted);
    let mut packed = vec![0x5a; layout.bytes_b6(dims(w.rows(), k)).unwrap()];
    kernels.pack_b6(w, &mut packed);
    let packed = PackedB6::new(&packed, dims(w.rows(), k), layout).unwrap();
    let found = product(&|out| kernels.matmul_packed_b6(packed, tiles, out));
    assert!(found == wanted, "{kernels:?} {}x{}x{k}", rows.m(), w.rows());
}

/// Compares `rows` rows of arbitrary BCML6 weights with scalar.
pub(super) fn check_random(
    kernels: Kernels,
    layout: Layout,
    random: &mut Random,
    (rows, k): (usize, usize),
    x: &[f32],
) {
    let bytes = rows_b6(random, rows, k);
    check_b6(kernels, layout, Bcml6Matrix::new(&bytes, k).unwrap(), x);
}

#[test]
fn packed_6_bit_products_equal_scalar_in_every_tier() {
    let mut random = Random(27);
    for (tier, layout) in packing() {
        let nr = layout.panel_rows();
        for k in [32, 64, 96, 320, 2304] {
            for rows in [1, nr - 1, nr, nr + 1, 3 * nr + 5] {
                for m in batches() {
                    let x = random.floats(m * k);
                    check_random(tier, layout, &mut random, (rows, k), &x);
                }
            }
        }
    }
}

/// The scalar product must equal that of int8 weights in groups of 32.
#[test]
fn products_of_6_bits_are_those_of_int8() {
    let mut random = Random(28);
    let (rows, k) = (5, 160);
    let bytes = rows_b6(&mut random, rows, k);
    let w = Bcml6Matrix::new(&bytes, k).unwrap();
    let blocks =
        (0..rows).flat_map(|row| w.row(row).blocks.iter().map(move |b| (w.row(row).step, b)));
    let q: Vec<i8> = blocks.clone().flat_map(|(_, block)| block.values()).collect();
    let scales: Vec<f32> = blocks.map(|(step, block)| step * f32::from(block.scale())).collect();
    let int8 = Q8Matrix::new(&q, &scales, k, 32).unwrap();
    let both = quantize_both(packing().next().unwrap().0, &random.floats(3 * k), k, 32);
    let x = Q8Activations::new(&both.rows.0, &both.rows.1, k, 32).unwrap();
    let mut found = vec![f32::NAN; 3 * rows];
    scalar().matmul_b6(w, x, &mut found.chunks_exact_mut(rows).collect::<Vec<_>>());
    assert_eq!(bits(&found), bits(&matmul_q8(scalar(), int8, x)));
}

#[test]
fn extreme_packed_6_bit_values_do_not_saturate() {
    for (tier, layout) in packing() {
        for step in [1.0, -0.0, f32::MAX, f32::INFINITY, f32::NAN] {
            for (scale, code) in [(127, 0), (127, 63), (255, 32), (0, 63)] {
                let block = bcml6::Block::new(scale, [code; 32]);
                let mut row = f32::to_le_bytes(step).to_vec();
                row.extend(bytemuck::bytes_of(&block).repeat(4));
                let bytes = row.repeat(layout.panel_rows() + 1);
                let w = Bcml6Matrix::new(&bytes, 128).unwrap();
                for x in [1.0, -1.0, 0.0, -1e-30] {
                    for m in [1, 2, 3, 4, 5, 6, 8, 12] {
                        check_b6(tier, layout, w, &vec![x; 128 * m]);
                    }
                }
            }
        }
    }
}
