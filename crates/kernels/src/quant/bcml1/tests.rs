//! Values of blocks, and how close the encoder comes to the best ones.

use bytemuck::Zeroable;

use super::encode::{f16_bits, f16_not_above, to_f16};
use super::*;
use crate::quant::random::Random;

fn encoded(w: &[f32]) -> Vec<Block> {
    let mut blocks = vec![Block::zeroed(); w.len() / BLOCK];
    encode(w, &mut blocks).unwrap();
    blocks
}

/// Squared error of 32 values, exact up to f64's rounding.
fn error(w: &[f32], multiplier: f32, offset: f32, codes: impl Iterator<Item = u8>) -> f64 {
    let value = |code: u8| f64::from(code) * f64::from(multiplier) + f64::from(offset);
    w.iter().zip(codes).map(|(w, code)| (f64::from(*w) - value(code)).powi(2)).sum()
}

fn block_error(w: &[f32], block: &Block) -> f64 {
    let (multiplier, offset) = (block.multiplier().to_f32(), block.offset().to_f32());
    error(w, multiplier, offset, block.codes().into_iter())
}

/// Squared error with the nearest codes of a line rounded to f16.
fn line_error(w: &[f32], multiplier: f32, offset: f32) -> f64 {
    let round = |x| f16::from_f32(x).to_f32();
    let (multiplier, offset) = (round(multiplier), round(offset));
    let code = |w: &f32| {
        let code = (f64::from(*w) - f64::from(offset)) / f64::from(multiplier);
        code.round().clamp(0.0, 15.0) as u8
    };
    error(w, multiplier, offset, w.iter().map(code))
}

fn range(w: &[f32]) -> (f32, f32) {
    (w.iter().copied().fold(f32::MAX, f32::min), w.iter().copied().fold(f32::MIN, f32::max))
}

/// Squared error of rounding to sixteen steps from the least value to the largest.
fn range_error(w: &[f32]) -> f64 {
    let (low, high) = range(w);
    line_error(w, (high - low) / 15.0, low)
}

/// The least squared error of many lines.
fn least_error(w: &[f32]) -> f64 {
    let (low, high) = range(w);
    let width = high - low;
    let mut least = f64::MAX;
    for size in 0..80 {
        for place in 0..80 {
            let multiplier = width * (0.6 + 0.0055 * size as f32) / 15.0;
            let offset = low + width * (place as f32 - 16.0) * 0.006;
            least = least.min(line_error(w, multiplier, offset));
        }
    }
    least
}

#[test]
fn block_bytes_are_pinned() {
    let mut bytes = vec![0x00, 0x40, 0x00, 0xc5]; // 2 and -5
    bytes.extend((0..16).map(|i| i | (15 - i) << 4));
    let matrix = Bcml1Matrix::new(&bytes, 32).unwrap();
    let mut w = [0.0; 32];
    decode(matrix.row(0), &mut w);
    for i in 0..16 {
        assert_eq!(w[i], 2.0 * i as f32 - 5.0);
        assert_eq!(w[16 + i], 2.0 * (15 - i) as f32 - 5.0);
    }
    assert_eq!(bytemuck::bytes_of(&encoded(&w)[0]), bytes);
}

#[test]
fn matrix_of_partial_rows_is_refused() {
    let bytes = [0; 4 * BLOCK_BYTES];
    assert_eq!(Bcml1Matrix::new(&bytes, 64).unwrap().rows(), 2);
    assert_eq!(Bcml1Matrix::new(&bytes[..0], 64).unwrap().rows(), 0);
    for k in [0, 16, 33] {
        assert!(matches!(Bcml1Matrix::new(&bytes, k), Err(QuantError::RowLen { .. })));
    }
    assert!(matches!(Bcml1Matrix::new(&bytes, 96), Err(QuantError::Bytes { found: 80, k: 96 })));
    assert!(matches!(Bcml1Matrix::new(&bytes[1..], 64), Err(QuantError::Bytes { .. })));
}

#[test]
fn a_slice_of_rows_has_those_rows() {
    let bytes: Vec<u8> = (0..120).collect();
    // An odd address: blocks need no alignment.
    let matrix = Bcml1Matrix::new(&bytes[..], 64).unwrap().slice_rows(1..3);
    assert_eq!((matrix.rows(), matrix.k()), (2, 64));
    assert_eq!(bytemuck::cast_slice::<Block, u8>(matrix.row(1)), &bytes[80..]);
}

#[test]
fn values_on_sixteen_steps_come_back_exactly() {
    let mut random = Random(1);
    for _ in 0..2000 {
        let multiplier = f16::from_f32(random.f32().abs() + 0.01).to_f32();
        let offset = f16::from_f32(random.f32() * 8.0).to_f32();
        let mut code = || (random.bits() % 16) as f32;
        let mut w = [0.0; 32].map(|_: f32| code() * multiplier + offset);
        (w[3], w[20]) = (offset, 15.0 * multiplier + offset);
        assert_eq!(encoded(&w)[0].decode(), w, "{multiplier} {offset}");
    }
}

#[test]
fn error_is_near_the_least_there_is() {
    let mut random = Random(2);
    let (mut found, mut least, mut plain) = (0.0, 0.0, 0.0);
    for n in 0..200 {
        let spread = 2.0_f32.powi(-(n % 8));
        let w: Vec<f32> = (0..32).map(|_| random.normal() * spread).collect();
        let scale = f64::from(spread).powi(-2);
        found += block_error(&w, &encoded(&w)[0]) * scale;
        least += least_error(&w) * scale;
        plain += range_error(&w) * scale;
    }
    assert!(found < least * 1.035, "{found} {least}");
    assert!(found < plain * 0.82, "{found} {plain}");
}

#[test]
fn no_block_is_worse_than_its_plain_range() {
    let mut random = Random(3);
    let mut one_in = |n: u64, w: f32| if random.bits().is_multiple_of(n) { w } else { 0.0 };
    let outlier: Vec<f32> = (0..3200).map(|_| one_in(20, 1.0)).collect();
    let mut random = Random(4);
    let mut blocks: Vec<Vec<f32>> = Vec::new();
    for exponent in -40..16 {
        let scale = 2.0_f32.powi(exponent);
        for centre in [0.0, 1.0, -0.3, 700.0, -60000.0] {
            let centre = f32::clamp(centre * scale, -60000.0, 60000.0);
            for outliers in outlier.chunks(32).take(4) {
                let w = outliers.iter().map(|o| random.normal() * (0.01 + o) * scale + centre);
                blocks.push(w.map(|w| w.clamp(-WEIGHT_MAX, WEIGHT_MAX)).collect());
            }
            blocks.push((0..32).map(|_| random.f32() * scale.min(5e3) + centre).collect());
            blocks.push((0..32).map(|i| centre + scale.min(5e3) * (i % 2) as f32).collect());
            blocks.push((0..32).map(|i| centre + scale.min(5e3) * (i / 31) as f32).collect());
            blocks.push(vec![centre; 32]);
        }
    }
    let w = blocks.concat();
    for (w, block) in w.chunks(32).zip(encoded(&w)) {
        let (found, plain) = (block_error(w, &block), range_error(w));
        assert!(found <= plain, "{found:e} {plain:e} {w:?}");
    }
}

#[test]
fn constants_keep_more_than_f16_has() {
    let mut random = Random(5);
    for _ in 0..2000 {
        let w = random.f32() * 2.0_f32.powi((random.bits() % 28) as i32 - 12);
        for decoded in encoded(&[w; 32])[0].decode() {
            // The 15 steps, each rounded to 2^-24 at worst, make up for the rounded offset.
            let bound = (w.abs() * 2.0_f32.powi(-20)).max(2.0_f32.powi(-21));
            assert!((decoded - w).abs() <= bound, "{w:e} {decoded:e}");
        }
    }
    for w in [0.0, -0.0, f32::MIN_POSITIVE, f32::from_bits(1), -1e-30] {
        assert_eq!(encoded(&[w; 32])[0].decode(), [0.0; 32]);
    }
    for w in [WEIGHT_MAX, -WEIGHT_MAX, 1.0, -0.375, 2.0_f32.powi(-24)] {
        assert_eq!(encoded(&[w; 32])[0].decode(), [w; 32]);
    }
}

#[test]
fn values_to_the_ends_of_f16_are_encoded_and_none_beyond() {
    let mut w = [0.0; 96];
    (w[40], w[50]) = (WEIGHT_MAX, -WEIGHT_MAX);
    for (w, decoded) in w[32..64].iter().zip(encoded(&w)[1].decode()) {
        assert!((w - decoded).abs() <= 2.0 * WEIGHT_MAX / 15.0, "{w} {decoded}");
    }
    let beyond = WEIGHT_MAX.next_up();
    for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, beyond, -beyond, f32::MAX] {
        let mut w = w;
        (w[77], w[78]) = (bad, f32::NAN);
        match encode(&w, &mut [Block::zeroed(); 3]) {
            Err(QuantError::Value { index: 77, value }) => {
                assert_eq!(value.to_bits(), bad.to_bits())
            }
            other => panic!("{bad}: {other:?}"),
        }
    }
}

#[test]
fn a_block_does_not_depend_on_its_neighbours() {
    let mut random = Random(6);
    let w: Vec<f32> = (0..19 * 32).map(|i| random.normal() + (i / 32 * 100) as f32).collect();
    let together = encoded(&w);
    for (w, block) in w.chunks(32).zip(together) {
        assert_eq!(encoded(w), [block]);
    }
}

#[test]
fn rounding_to_f16_agrees_with_the_library() {
    for bits in 0..0x7c00_u16 {
        let x = f16::from_bits(bits).to_f32();
        let middle = (x + f16::from_bits(bits + 1).to_f32().min(WEIGHT_MAX)) / 2.0;
        for x in [x, x.next_up(), x.next_down(), middle, middle.next_up(), middle.next_down()] {
            for x in [x, -x] {
                let wanted = f16::from_f32(x.clamp(-WEIGHT_MAX, WEIGHT_MAX)).to_f32();
                assert_eq!(to_f16(x), wanted, "{x:e}");
                assert_eq!(f16_bits(wanted), u32::from(f16::from_f32(wanted).to_bits()));
                let below = f16_not_above(x.clamp(-WEIGHT_MAX, WEIGHT_MAX));
                assert!(below <= x.max(-WEIGHT_MAX));
                assert!(x - below <= (x.abs() / 1000.0).max(6e-8), "{x:e} {below:e}");
            }
        }
    }
}
