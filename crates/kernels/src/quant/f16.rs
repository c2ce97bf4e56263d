//! Half precision, as checkpoints and ggml's blocks store it.

/// The value of an IEEE half, without a branch.
///
/// Exponent and mantissa, moved into place, are the value times 2^-112, also for subnormals;
/// the largest exponent, infinity and NaN, must stay the largest.
#[inline(always)]
pub fn half_to_f32(half: u16) -> f32 {
    const TWO_POW_112: f32 = f32::from_bits((127 + 112) << 23);
    let magnitude = f32::from_bits(u32::from(half & 0x7fff) << 13) * TWO_POW_112;
    let is_finite = half & 0x7c00 != 0x7c00;
    let exponent = if is_finite { 0 } else { 0x7f80_0000 };
    f32::from_bits(magnitude.to_bits() | exponent | u32::from(half & 0x8000) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_converts_exactly() {
        for bits in 0..=u16::MAX {
            let (ours, wanted) = (half_to_f32(bits), half::f16::from_bits(bits).to_f32());
            match wanted.is_nan() {
                true => assert!(ours.is_nan(), "{bits:#x}"),
                false => assert_eq!(ours.to_bits(), wanted.to_bits(), "{bits:#x}"),
            }
        }
    }
}
