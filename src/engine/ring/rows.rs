//! Activations between a transformer's buffers and the bytes of frames.

use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::model::{Row, Transformer};
use crate::ring::Rows;
use crate::wire::Dtype;
use crate::wire::frame::{Span, Wants};

/// Reads little-endian values. A frame's rows are aligned wherever the link's buffers are.
pub(super) fn read(dtype: Dtype, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        Dtype::F32 => {
            for (bytes, out) in bytes.as_chunks::<4>().0.iter().zip(out) {
                *out = f32::from_le_bytes(*bytes);
            }
        }
        Dtype::F16 => match bytemuck::try_cast_slice::<u8, f16>(bytes) {
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

/// Writes little-endian values.
pub(super) fn write(dtype: Dtype, values: &[f32], out: &mut [u8]) {
    match dtype {
        Dtype::F32 => {
            for (value, out) in values.iter().zip(out.as_chunks_mut::<4>().0) {
                *out = value.to_le_bytes();
            }
        }
        Dtype::F16 => match bytemuck::try_cast_slice_mut::<u8, f16>(out) {
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

/// The rows of the spans, with `tokens` where there are any.
pub(in crate::engine) fn from_spans(spans: &[Span], tokens: &[u32], out: &mut Vec<Row>) {
    out.clear();
    let mut tokens = tokens.iter();
    for span in spans {
        for index in 0..span.n_rows {
            let wants_logits = match span.wants {
                Wants::None => false,
                Wants::Last => index + 1 == span.n_rows,
                Wants::All => true,
            };
            let token = tokens.next().copied().unwrap_or(0);
            let pos = span.pos as usize + usize::from(index);
            out.push(Row { token, stream: span.stream.into(), pos, wants_logits });
        }
    }
}

/// Rows that a worker takes and gives: the transformer's activations.
pub(super) struct Activations<'a>(pub(super) &'a mut Transformer);

impl Rows for Activations<'_> {
    fn put(&mut self, first: usize, dtype: Dtype, bytes: &[u8]) {
        let dim = self.0.model().header().dim;
        let n_rows = bytes.len() / (dim * dtype.bytes());
        let x = self.0.activations(first + n_rows);
        read(dtype, bytes, &mut x[first * dim..]);
    }

    fn get(&mut self, row: usize, dtype: Dtype, out: &mut [u8]) {
        let dim = self.0.model().header().dim;
        let x = self.0.activations(row + 1);
        write(dtype, &x[row * dim..], out);
    }
}

/// Rows of the master: it gives the transformer's, and takes the last node's.
pub(super) struct MasterRows<'a> {
    pub(super) transformer: &'a mut Transformer,
    /// `[max_logits, dim]`.
    pub(super) returned: &'a mut [f32],
}

impl Rows for MasterRows<'_> {
    fn put(&mut self, first: usize, dtype: Dtype, bytes: &[u8]) {
        let dim = self.transformer.model().header().dim;
        let n_values = bytes.len() / dtype.bytes();
        read(dtype, bytes, &mut self.returned[first * dim..][..n_values]);
    }

    fn get(&mut self, row: usize, dtype: Dtype, out: &mut [u8]) {
        Activations(self.transformer).get(row, dtype, out);
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
            write(Dtype::F32, &values, out);
            let mut back = [9.0; 4];
            read(Dtype::F32, out, &mut back);
            assert_eq!(back, values);
            let out = &mut bytes[at..at + 8];
            write(Dtype::F16, &values, out);
            read(Dtype::F16, out, &mut back);
            assert_eq!(back, values.map(|x| f16::from_f32(x).to_f32()));
        }
    }

    #[test]
    fn spans_become_rows() {
        let spans = [
            Span { stream: 3, wants: Wants::Last, pos: 5, n_rows: 2 },
            Span { stream: 0, wants: Wants::All, pos: 9, n_rows: 1 },
        ];
        let mut rows = Vec::new();
        from_spans(&spans, &[7, 8, 9], &mut rows);
        let row = |token, stream, pos, wants_logits| Row { token, stream, pos, wants_logits };
        assert_eq!(rows, [row(7, 3, 5, false), row(8, 3, 6, true), row(9, 0, 9, true)]);
    }
}
