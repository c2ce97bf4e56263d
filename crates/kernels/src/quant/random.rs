//! Random values for tests.

use half::f16;

use super::Ggml;

/// Small deterministic generator (xorshift64*); the seed is in each test.
pub struct Random(pub u64);

impl Random {
    /// 48 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    /// Uniform in -1..1, with full precision below that too.
    pub fn f32(&mut self) -> f32 {
        (self.bits() as u32 as i32) as f32 / 2_147_483_648.0
    }

    /// About normal, with a standard deviation of 1.
    pub fn normal(&mut self) -> f32 {
        (0..6).map(|_| self.f32()).sum::<f32>() / 2.0_f32.sqrt()
    }

    /// `n` floats, uniform in -1..1.
    pub fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.f32()).collect()
    }

    /// Blocks of random bytes whose floats are ordinary numbers.
    pub fn blocks(&mut self, kind: Ggml, n: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..n * kind.bytes()).map(|_| self.bits() as u8).collect();
        for block in bytes.chunks_exact_mut(kind.bytes()) {
            let halves: &[usize] = match kind {
                Ggml::Q4_1 | Ggml::Q5_1 | Ggml::Q4K | Ggml::Q5K => &[0, 2],
                Ggml::Q6K => &[208],
                Ggml::Q3K => &[108],
                Ggml::Q2K => &[80, 82],
                Ggml::Mxfp4 => &[],
                _ => &[0],
            };
            for &at in halves {
                block[at + 1] = block[at + 1] & 0x83 | 0x20;
            }
            if kind == Ggml::Mxfp4 {
                block[0] = 100 + block[0] % 40;
            }
        }
        bytes
    }

    /// `n` floats, uniform in -1..1, rounded to f16.
    pub fn f16s(&mut self, n: usize) -> Vec<f16> {
        (0..n).map(|_| f16::from_f32(self.f32())).collect()
    }

    /// Random bytes, every eighth at one end of the range.
    pub fn bytes(&mut self, n: usize, min: i8) -> Vec<i8> {
        let mut byte = || match self.bits() % 16 {
            0 => min,
            1 => i8::MAX,
            _ => (self.bits() as i8).max(min),
        };
        (0..n).map(|_| byte()).collect()
    }
}
