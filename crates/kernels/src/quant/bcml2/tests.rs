//! Values of blocks, and how close the encoder comes to lines of floats.

use bytemuck::Zeroable;

use super::super::bcml1;
use super::super::q8::QuantError;
use super::*;
use crate::quant::random::Random;

fn encoded(w: &[f32], k: usize) -> Vec<u8> {
    let mut bytes = vec![0x5a; w.len() / k * row_bytes(k)];
    encode(w, k, &mut bytes).unwrap();
    bytes
}

fn decoded(bytes: &[u8], k: usize) -> Vec<f32> {
    let matrix = Bcml2Matrix::new(bytes, k).unwrap();
    let mut w = vec![f32::NAN; matrix.rows() * k];
    for (row, w) in w.chunks_exact_mut(k).enumerate() {
        decode(matrix.row(row), w);
    }
    w
}

fn error(w: &[f32], decoded: &[f32]) -> f64 {
    w.iter().zip(decoded).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum()
}

#[test]
fn row_bytes_are_pinned() {
    let mut bytes = 0.5_f32.to_le_bytes().to_vec();
    bytes.extend([0x80 | 3, 40]);
    bytes.extend((0..16).map(|i| i | (15 - i) << 4));
    bytes.extend([0, 0]);
    assert_eq!(bytes.len(), row_bytes(32));
    let w = decoded(&bytes, 32);
    for i in 0..16 {
        assert_eq!(w[i], 0.5 * 3.0 * (16.0 * i as f32 - 40.0));
        assert_eq!(w[16 + i], 0.5 * 3.0 * (16.0 * (15 - i) as f32 - 40.0));
    }
}

#[test]
fn matrix_of_partial_rows_is_refused() {
    let bytes = [0; 2 * row_bytes(64)];
    assert_eq!(Bcml2Matrix::new(&bytes, 64).unwrap().rows(), 2);
    assert_eq!(Bcml2Matrix::new(&bytes[..0], 64).unwrap().rows(), 0);
    for k in [0, 16, 33] {
        assert!(matches!(Bcml2Matrix::new(&bytes, k), Err(QuantError::RowLen { .. })));
    }
    assert!(matches!(Bcml2Matrix::new(&bytes, 96), Err(QuantError::Bytes { found: 80, k: 96 })));
    assert!(matches!(Bcml2Matrix::new(&bytes[1..], 64), Err(QuantError::Bytes { .. })));
}

#[test]
fn a_slice_of_rows_has_those_rows() {
    let bytes: Vec<u8> = (0..160).collect();
    let matrix = Bcml2Matrix::new(&bytes, 64).unwrap();
    let slice = matrix.slice_rows(1..3);
    assert_eq!((slice.rows(), slice.k()), (2, 64));
    assert_eq!(slice.row(1).blocks, matrix.row(2).blocks);
    assert_eq!(slice.row(1).step.to_bits(), matrix.row(2).step.to_bits());
}

/// Rows of blocks of unequal size, like those of weights with outliers.
#[test]
fn error_is_that_of_lines_of_floats() {
    let mut random = Random(2);
    let k = 2048;
    let w: Vec<f32> = (0..40 * k)
        .map(|i| random.normal() * 2.0_f32.powi(-((i / 32 % 4) as i32)) * 0.02)
        .collect();
    let found = error(&w, &decoded(&encoded(&w, k), k));
    let mut blocks = vec![bcml1::Block::zeroed(); w.len() / BLOCK];
    bcml1::encode(&w, &mut blocks).unwrap();
    let mut lines = vec![0.0; w.len()];
    bcml1::decode(&blocks, &mut lines);
    let wanted = error(&w, &lines);
    assert!(found < wanted * 1.03, "{found} {wanted}");
}

#[test]
fn blocks_on_one_side_of_zero_are_encoded() {
    let mut random = Random(3);
    for sign in [1.0, -1.0] {
        for centre in [0.5, 1.0, 3.0] {
            let w: Vec<f32> = (0..64).map(|_| sign * (centre + 0.2 * random.f32())).collect();
            for (w, decoded) in w.iter().zip(decoded(&encoded(&w, 64), 64)) {
                assert!((w - decoded).abs() < (centre + 0.2) / 29.0, "{w} {decoded}");
            }
        }
    }
}

#[test]
fn zeros_and_numbers_too_small_for_a_step_are_zeros() {
    for w in [0.0, -0.0, f32::from_bits(1), -1e-42] {
        assert!(decoded(&encoded(&[w; 64], 64), 64).iter().all(|w| *w == 0.0), "{w:e}");
    }
    // A block of zeros beside one that has values.
    let mut w = [0.0; 64];
    w[40] = 1.0;
    assert_eq!(decoded(&encoded(&w, 64), 64)[..32], [0.0; 32]);
}

#[test]
fn values_to_the_ends_of_f16_are_encoded_and_none_beyond() {
    let mut w = [0.0; 192];
    (w[40], w[50]) = (bcml1::WEIGHT_MAX, -bcml1::WEIGHT_MAX);
    for (w, decoded) in w.iter().zip(decoded(&encoded(&w, 96), 96)) {
        assert!((w - decoded).abs() <= 2.0 * bcml1::WEIGHT_MAX / 15.0, "{w} {decoded}");
    }
    let beyond = bcml1::WEIGHT_MAX.next_up();
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, beyond, -beyond, f32::MAX] {
        let mut w = w;
        w[177] = bad;
        let mut out = [0; 2 * row_bytes(96)];
        assert!(matches!(encode(&w, 96, &mut out), Err(QuantError::Value { index: 177, .. })));
    }
}

#[test]
fn a_row_does_not_depend_on_its_neighbours() {
    let mut random = Random(6);
    let k = 19 * 32;
    let w: Vec<f32> = (0..3 * k).map(|i| random.normal() * (1 + i / k * 100) as f32).collect();
    let together = encoded(&w, k);
    for (w, row) in w.chunks_exact(k).zip(together.chunks_exact(row_bytes(k))) {
        assert_eq!(encoded(w, k), row);
    }
}
