//! Values of blocks, and how close the encoder comes to them.

use super::super::q8::QuantError;
use super::*;
use crate::quant::random::Random;

/// About normal, with a standard deviation of 1.
fn normals(seed: u64, n: usize) -> Vec<f32> {
    let mut random = Random(seed);
    (0..n).map(|_| random.normal()).collect()
}

fn encoded(w: &[f32], k: usize) -> Vec<u8> {
    let mut bytes = vec![0x5a; w.len() / k * row_bytes(k)];
    encode(w, k, &mut bytes).unwrap();
    bytes
}

fn decoded(bytes: &[u8], k: usize) -> Vec<f32> {
    let matrix = Bcml6Matrix::new(bytes, k).unwrap();
    let mut w = vec![f32::NAN; matrix.rows() * k];
    for (row, w) in w.chunks_exact_mut(k).enumerate() {
        decode(matrix.row(row), w);
    }
    w
}

#[test]
fn row_bytes_are_pinned() {
    let mut bytes = 0.5_f32.to_le_bytes().to_vec();
    bytes.push(0x80 | 3);
    bytes.extend((0..16).map(|i| i | (15 - i) << 4));
    bytes.extend([0b11_10_01_00; 8]);
    bytes.extend([0; 3]);
    assert_eq!(bytes.len(), row_bytes(32));
    let w = decoded(&bytes, 32);
    for (i, w) in w.iter().enumerate() {
        let low = if i < 16 { i } else { 31 - i };
        assert_eq!(*w, 0.5 * 3.0 * ((low + 16 * (i / 8)) as f32 - 32.0), "{i}");
    }
    assert_eq!([32, 64, 96, 128].map(row_bytes), [32, 56, 80, 104]);
}

#[test]
fn codes_come_back() {
    let codes = std::array::from_fn(|i| (i * 37 % 64) as u8);
    let block = Block::new(0xff, codes);
    assert_eq!((block.codes(), block.scale()), (codes, 127));
    assert_eq!(block.values(), codes.map(|code| code as i8 - 32));
}

#[test]
fn normal_weights_are_off_by_a_28th() {
    let w = normals(3, 64 * 352);
    let d = decoded(&encoded(&w, 352), 352);
    let square = |x: f64| x * x;
    let off: f64 = w.iter().zip(&d).map(|(w, d)| square(f64::from(w - d))).sum();
    let all: f64 = w.iter().map(|w| square(f64::from(*w))).sum();
    assert!((off / all).sqrt() < 1.0 / 28.0, "{}", (off / all).sqrt());
    // No weight is off by more than an eighth of its block's largest.
    for (w, d) in w.as_chunks::<BLOCK>().0.iter().zip(d.as_chunks::<BLOCK>().0) {
        let largest = w.iter().fold(0.0, |max: f32, w| max.max(w.abs()));
        for (w, d) in w.iter().zip(d) {
            assert!((w - d).abs() <= largest / 8.0, "{w} {d}");
        }
    }
}

#[test]
fn zeros_and_vanishing_weights_become_zeros() {
    for tiny in [0.0, -0.0, f32::from_bits(1), -1e-44] {
        let bytes = encoded(&[tiny; 64], 64);
        assert_eq!(bytes[..4], [0; 4]);
        assert!(decoded(&bytes, 64).iter().all(|w| *w == 0.0));
    }
    let mut w = vec![0.0; 96];
    w[40] = 31.0;
    let d = decoded(&encoded(&w, 96), 96);
    assert!(d.iter().enumerate().all(|(i, d)| i == 40 || *d == 0.0));
    assert!((d[40] - 31.0).abs() < 1e-5);
}

#[test]
fn weights_that_are_too_large_or_no_numbers_are_refused() {
    for bad in [f32::NAN, f32::INFINITY, -65505.0] {
        let mut w = vec![1.0; 128];
        w[99] = bad;
        let error = encode(&w, 64, &mut vec![0; 2 * row_bytes(64)]).unwrap_err();
        assert!(matches!(error, QuantError::Value { index: 99, .. }), "{error}");
    }
}
