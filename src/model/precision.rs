//! Half and single precision: the formats of rows that are sent.

use half::f16;
use half::slice::HalfFloatSliceExt;

/// Format of floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Half precision: half the bytes.
    F16,
    /// Single precision, for exact comparisons.
    F32,
}

impl Precision {
    /// Bytes of one value.
    pub fn bytes(self) -> usize {
        match self {
            Precision::F16 => 2,
            Precision::F32 => 4,
        }
    }

    /// The name used on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Precision::F16 => "f16",
            Precision::F32 => "f32",
        }
    }

    /// Reads little-endian values. Aligned values are read faster.
    pub fn read(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            Precision::F32 => {
                for (bytes, out) in bytes.as_chunks::<4>().0.iter().zip(out) {
                    *out = f32::from_le_bytes(*bytes);
                }
            }
            Precision::F16 => match bytemuck::try_cast_slice::<u8, f16>(bytes) {
                Ok(values) if cfg!(target_endian = "little") && values.len() == out.len() => {
                    values.convert_to_f32_slice(out);
                }
                _ => {
                    for (bytes, out) in bytes.as_chunks::<2>().0.iter().zip(out) {
                        *out = f16::from_le_bytes(*bytes).to_f32();
                    }
                }
            },
        }
    }

    /// Reads the hidden states, `[dim]` each, of rows of `width` values.
    pub(super) fn read_states<'a>(
        self,
        bytes: &[u8],
        width: usize,
        out: impl Iterator<Item = &'a mut [f32]>,
    ) {
        for (row, out) in bytes.chunks_exact(width * self.bytes()).zip(out) {
            self.read(&row[..out.len() * self.bytes()], out);
        }
    }

    /// Writes values as little-endian.
    pub fn write(self, values: &[f32], out: &mut [u8]) {
        match self {
            Precision::F32 => {
                for (value, out) in values.iter().zip(out.as_chunks_mut::<4>().0) {
                    *out = value.to_le_bytes();
                }
            }
            Precision::F16 => match bytemuck::try_cast_slice_mut::<u8, f16>(out) {
                Ok(out) if cfg!(target_endian = "little") && out.len() == values.len() => {
                    out.convert_from_f32_slice(values);
                }
                _ => {
                    for (value, out) in values.iter().zip(out.as_chunks_mut::<2>().0) {
                        *out = f16::from_f32(*value).to_le_bytes();
                    }
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_at_any_address() {
        let values = [0.0, -1.5, 65504.0, 1.0 / 3.0];
        let mut bytes = [0; 17];
        for at in [0, 1] {
            let out = &mut bytes[at..at + 16];
            Precision::F32.write(&values, out);
            let mut back = [9.0; 4];
            Precision::F32.read(out, &mut back);
            assert_eq!(back, values);
            let out = &mut bytes[at..at + 8];
            Precision::F16.write(&values, out);
            Precision::F16.read(out, &mut back);
            assert_eq!(back, values.map(|x| f16::from_f32(x).to_f32()));
        }
    }
}
