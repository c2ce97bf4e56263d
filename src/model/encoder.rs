//! Steps of encoders like BERT, and the rows that a model of embeddings gives.
//!
//! A layer's norms are LayerNorms, and stand behind the sums: `x = norm(x + attention(x))`, `x = norm(x + ffn(x))`.
//! All operations are plain ones in one order, so they round alike everywhere.

use super::batch::Span;
use super::buffers::Buffers;
use super::pass::Pass;
use crate::format::model::TensorKind;
use crate::pool::Chunks;

/// Partial sums of a LayerNorm: value `i` belongs to sum `i % LANES`.
const LANES: usize = 16;

impl Pass<'_> {
    /// Adds an encoder's token type and positions to embeddings, and normalises them.
    pub(super) fn place_embeddings(&self, buffers: &mut Buffers<'_>) {
        let Some(kind) = self.vector(TensorKind::TokenType, 0) else { return };
        let dim = self.model.header().dim;
        let positions = self.vector(TensorKind::PositionTable, 0);
        let rows = self.spans.iter().flat_map(Span::positions);
        for (pos, x) in rows.zip(buffers.x.chunks_exact_mut(dim)) {
            add(x, kind);
            if let Some(table) = positions {
                add(x, &table[pos * dim..][..dim]);
            }
        }
        self.normalise_encoded(
            [TensorKind::EmbeddingNorm, TensorKind::EmbeddingNormBias],
            0,
            buffers,
        );
    }

    /// Applies an encoder's LayerNorm of `kinds`, weight and bias, to `x`. Other models have none.
    pub(super) fn normalise_encoded(
        &self,
        kinds: [TensorKind; 2],
        layer: usize,
        buffers: &mut Buffers<'_>,
    ) {
        let header = self.model.header();
        if header.encoder().is_none() {
            return;
        }
        let [weight, bias] = kinds.map(|kind| self.model.vector(kind, layer));
        let rows = Chunks::new(&mut buffers.x[..self.m * header.dim], header.dim);
        self.pool.run_chunks(rows, &|_, x| layer_norm(x, (weight, bias), header.norm_eps));
    }

    /// Applies the model's final norm, if it has one, to all rows of `x`, and returns them, `[m, dim]`.
    pub(super) fn hidden<'b>(&self, buffers: Buffers<'b>) -> &'b mut [f32] {
        let header = self.model.header();
        let Buffers { x, inputs, .. } = buffers;
        let (x, out) = (&x[..self.m * header.dim], &mut inputs.f32[..self.m * header.dim]);
        match self.vector(TensorKind::FinalNorm, 0) {
            Some(weight) => {
                let rows = Chunks::new(&mut *out, header.dim);
                self.pool.run_chunks(rows, &|row, out| {
                    self.kernels.rms_norm(
                        &x[row * header.dim..][..header.dim],
                        weight,
                        header.norm_eps,
                        out,
                    );
                });
            }
            None => out.copy_from_slice(x),
        }
        out
    }
}

fn add(x: &mut [f32], other: &[f32]) {
    x.iter_mut().zip(other).for_each(|(x, other)| *x += other);
}

/// LayerNorm (arXiv:1607.06450) in place, with the variance of the whole row.
fn layer_norm(x: &mut [f32], (weight, bias): (&[f32], &[f32]), eps: f32) {
    let n = x.len() as f32;
    let mean = sum(x, |x| x) / n;
    let variance = sum(x, |x| (x - mean) * (x - mean)) / n;
    let scale = 1.0 / (variance + eps).sqrt();
    for ((x, weight), bias) in x.iter_mut().zip(weight).zip(bias) {
        *x = (*x - mean) * scale * weight + bias;
    }
}

/// Sum of `f` of all values: in lanes, which are then added in order.
fn sum(x: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (whole, rest) = x.as_chunks::<LANES>();
    for values in whole {
        for (lane, x) in lanes.iter_mut().zip(values) {
            *lane += f(*x);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane += f(*x);
    }
    lanes.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_norm_is_that_of_doubles() {
        for n in [2, 16, 37, 384] {
            let x: Vec<f32> = (0..n).map(|i| (i * 37 % 101) as f32 / 7.0 - 3.0).collect();
            let weight: Vec<f32> = (0..n).map(|i| 0.5 + (i % 5) as f32).collect();
            let bias: Vec<f32> = (0..n).map(|i| (i % 3) as f32 - 1.0).collect();
            let mut found = x.clone();
            layer_norm(&mut found, (&weight, &bias), 1e-12);
            let mean = x.iter().map(|x| f64::from(*x)).sum::<f64>() / f64::from(n);
            let square = |x: &f32| (f64::from(*x) - mean).powi(2);
            let variance = x.iter().map(square).sum::<f64>() / f64::from(n);
            for (i, found) in found.iter().enumerate() {
                let wanted = (f64::from(x[i]) - mean) / (variance + 1e-12).sqrt();
                let wanted = wanted * f64::from(weight[i]) + f64::from(bias[i]);
                assert!((f64::from(*found) - wanted).abs() < 2e-5, "{n}: {found}, not {wanted}");
            }
        }
    }
}
