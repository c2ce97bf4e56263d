//! Synthetic models in memory, with the shapes of well-known models: for measurements without a file.

use std::io;

use half::f16;

use super::file::{ModelFile, packed_for};
use super::view::Model;
use crate::format::FormatError;
use crate::format::model::{
    Activation, Architecture, DeltaRule, DenseLayers, Encoding, Experts, Features, FullHeads,
    Header, LayerSet, Mixer, MoreFeatures, RecurrentLayers, Tensor, TensorId, TensorKind, Weights,
};
use crate::kernels::Layout;
use crate::quant::{
    Bcml1Matrix, Bcml2Matrix, Bcml6Matrix, Q8Matrix, STEP_BYTES, bcml1, bcml2, bcml6,
};
use crate::sys::huge::{HugeMemory, Pages};

/// Number of panels of a matrix that are generated at a time.
const PIECE_PANELS: usize = 8;

/// The shape of a well-known model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Name on the command line.
    pub name: &'static str,
    dim: usize,
    ffn_dim: usize,
    n_layers: usize,
    n_heads: usize,
    n_kv_heads: usize,
    vocab_size: usize,
    head_dim: usize,
    shared_classifier: bool,
    architecture: Architecture,
}

impl Shape {
    /// TinyLlama 1.1B, Llama 2 7B, Llama 3.2 1B and 3B, Llama 3 8B; Qwen3 0.6B, 4B and 30B-A3B, Gemma 3 1B; Qwen3.5
    /// 0.8B, 2B and 4B, LFM2 1.2B, Gemma 4 E2B.
    pub const ALL: [Shape; 14] = [
        Shape {
            name: "tinyllama",
            dim: 2048,
            ffn_dim: 5632,
            n_layers: 22,
            n_heads: 32,
            n_kv_heads: 4,
            vocab_size: 32_000,
            head_dim: 64,
            shared_classifier: false,
            architecture: Architecture::Llama,
        },
        Shape {
            name: "llama2-7b",
            dim: 4096,
            ffn_dim: 11_008,
            n_layers: 32,
            n_heads: 32,
            n_kv_heads: 32,
            vocab_size: 32_000,
            head_dim: 128,
            shared_classifier: false,
            architecture: Architecture::Llama,
        },
        Shape {
            name: "llama3-1b",
            dim: 2048,
            ffn_dim: 8192,
            n_layers: 16,
            n_heads: 32,
            n_kv_heads: 8,
            vocab_size: 128_256,
            head_dim: 64,
            shared_classifier: true,
            architecture: Architecture::Llama,
        },
        Shape {
            name: "llama3-3b",
            dim: 3072,
            ffn_dim: 8192,
            n_layers: 28,
            n_heads: 24,
            n_kv_heads: 8,
            vocab_size: 128_256,
            head_dim: 128,
            shared_classifier: true,
            architecture: Architecture::Llama,
        },
        Shape {
            name: "llama3-8b",
            dim: 4096,
            ffn_dim: 14_336,
            n_layers: 32,
            n_heads: 32,
            n_kv_heads: 8,
            vocab_size: 128_256,
            head_dim: 128,
            shared_classifier: false,
            architecture: Architecture::Llama,
        },
        Shape {
            name: "qwen3-0.6b",
            dim: 1024,
            ffn_dim: 3072,
            n_layers: 28,
            n_heads: 16,
            n_kv_heads: 8,
            vocab_size: 151_936,
            head_dim: 128,
            shared_classifier: true,
            architecture: Architecture::Qwen3,
        },
        Shape {
            name: "qwen3-4b",
            dim: 2560,
            ffn_dim: 9728,
            n_layers: 36,
            n_heads: 32,
            n_kv_heads: 8,
            vocab_size: 151_936,
            head_dim: 128,
            shared_classifier: true,
            architecture: Architecture::Qwen3,
        },
        Shape {
            name: "gemma3-1b",
            dim: 1152,
            ffn_dim: 6912,
            n_layers: 26,
            n_heads: 4,
            n_kv_heads: 1,
            vocab_size: 262_144,
            head_dim: 256,
            shared_classifier: true,
            architecture: Architecture::Gemma3,
        },
        Shape {
            name: "qwen3-30b-a3b",
            dim: 2048,
            ffn_dim: 768,
            n_layers: 48,
            n_heads: 32,
            n_kv_heads: 4,
            vocab_size: 151_936,
            head_dim: 128,
            shared_classifier: false,
            architecture: Architecture::Qwen3Moe,
        },
        Shape {
            name: "qwen3.5-0.8b",
            dim: 1024,
            ffn_dim: 3584,
            n_layers: 24,
            n_heads: 8,
            n_kv_heads: 2,
            vocab_size: 248_320,
            head_dim: 256,
            shared_classifier: true,
            architecture: Architecture::Qwen35,
        },
        Shape {
            name: "qwen3.5-2b",
            dim: 2048,
            ffn_dim: 6144,
            n_layers: 24,
            n_heads: 8,
            n_kv_heads: 2,
            vocab_size: 248_320,
            head_dim: 256,
            shared_classifier: true,
            architecture: Architecture::Qwen35,
        },
        Shape {
            name: "qwen3.5-4b",
            dim: 2560,
            ffn_dim: 9216,
            n_layers: 32,
            n_heads: 16,
            n_kv_heads: 4,
            vocab_size: 248_320,
            head_dim: 256,
            shared_classifier: true,
            architecture: Architecture::Qwen35,
        },
        Shape {
            name: "lfm2-1.2b",
            dim: 2048,
            ffn_dim: 8192,
            n_layers: 16,
            n_heads: 32,
            n_kv_heads: 8,
            vocab_size: 65_536,
            head_dim: 64,
            shared_classifier: true,
            architecture: Architecture::Lfm2,
        },
        Shape {
            name: "gemma4-e2b",
            dim: 1536,
            ffn_dim: 6144,
            n_layers: 35,
            n_heads: 8,
            n_kv_heads: 1,
            vocab_size: 262_144,
            head_dim: 256,
            shared_classifier: true,
            architecture: Architecture::Gemma4,
        },
    ];

    /// The first of these shapes with a minimal vocabulary, and as many layers as have about `bytes` bytes of
    /// weights of this kind.
    pub fn of_bytes(weights: Weights, bytes: u64) -> Shape {
        let shape = Shape { vocab_size: 1024, ..Shape::ALL[0] };
        let end = |layers| shape.with_layers(layers).header(weights).tensors_end();
        shape.with_layers(bytes.div_ceil(end(2) - end(1)).max(1) as usize)
    }

    /// The shape called `name`.
    pub fn from_name(name: &str) -> Option<Shape> {
        Shape::ALL.into_iter().find(|shape| shape.name == name)
    }

    /// Number of layers.
    pub fn n_layers(&self) -> usize {
        self.n_layers
    }

    /// This shape with `n_layers` layers.
    pub fn with_layers(self, n_layers: usize) -> Shape {
        Shape { n_layers, ..self }
    }

    /// The header of a model of this shape.
    pub fn header(&self, weights: Weights) -> Header {
        Header {
            weights,
            dim: self.dim,
            ffn_dim: self.ffn_dim,
            n_layers: self.n_layers,
            n_heads: self.n_heads,
            n_kv_heads: self.n_kv_heads,
            vocab_size: self.vocab_size,
            max_seq_len: 8192,
            shared_classifier: self.shared_classifier,
            head_dim: self.head_dim,
            sliding_window: matches!(
                self.architecture,
                Architecture::Gemma3 | Architecture::Gemma4
            )
            .then_some(512),
            architecture: self.architecture,
            features: self.features(),
            has_extension: true,
            ..Header::blank(weights)
        }
    }
}

impl Shape {
    /// Features of the shape's model family.
    fn features(&self) -> Features {
        let of_qwen3 = Features { qk_norm: true, ..Features::default() };
        let experts = Experts {
            n: 128,
            n_active: 8,
            is_normalised: true,
            has_biases: false,
            is_sigmoid: false,
        };
        match self.architecture {
            Architecture::Qwen3 => of_qwen3,
            Architecture::Qwen3Moe => Features { experts: Some(experts), ..of_qwen3 },
            Architecture::Gemma3 => Features {
                post_norms: true,
                activation: Activation::GeluTanh,
                embedding_scale: (self.dim as f32).sqrt(),
                full_layers: LayerSet::new((5..self.n_layers).step_by(6)).unwrap_or_default(),
                local_theta: Some(10_000.0),
                ..of_qwen3
            },
            Architecture::Gemma4 => self.gemma4(of_qwen3),
            Architecture::Qwen35 => Features {
                output_gate: true,
                rotary_dim: Some(self.head_dim / 4),
                recurrent: self.recurrent(|layer| layer % 4 != 3),
                ..of_qwen3
            },
            Architecture::Lfm2 => Features {
                recurrent: self.recurrent(|layer| ![2, 5, 8, 10, 12, 14].contains(&layer)),
                ..of_qwen3
            },
            _ => Features::default(),
        }
    }

    /// Gemma 4 E2B's features. Its last layers, four of seven, have a feed-forward layer of twice the width, and no keys
    /// and values.
    fn gemma4(&self, alike: Features) -> Features {
        let n_shared_kv = if self.n_layers < 15 { 0 } else { self.n_layers * 4 / 7 };
        let set = |layers| LayerSet::new(layers).unwrap_or_default();
        let wide = set((self.n_layers - n_shared_kv..self.n_layers).step_by(1));
        let full_layers = set((4..self.n_layers).step_by(5));
        Features {
            post_norms: true,
            activation: Activation::GeluTanh,
            embedding_scale: (self.dim as f32).sqrt(),
            attention_scale: Some(1.0),
            local_theta: Some(10_000.0),
            dense: (n_shared_kv > 0)
                .then_some(DenseLayers { layers: wide, ffn_dim: 2 * self.ffn_dim }),
            more: MoreFeatures {
                full_heads: (!full_layers.is_empty())
                    .then_some(FullHeads { head_dim: 2 * self.head_dim, n_kv_heads: 1 }),
                value_norm: true,
                layer_scales: true,
                n_shared_kv,
                layer_input_dim: 256,
                logit_cap: Some(30.0),
                ..MoreFeatures::default()
            },
            full_layers,
            ..alike
        }
    }

    /// The recurrent layers of Qwen3.5 or LFM2.
    fn recurrent(&self, is_recurrent: impl Fn(usize) -> bool) -> Option<RecurrentLayers> {
        let layers = LayerSet::new((0..self.n_layers).filter(|layer| is_recurrent(*layer)))?;
        let rule = DeltaRule {
            taps: 4,
            key_heads: 16,
            value_heads: if self.dim > 2048 { 32 } else { 16 },
            key_dim: 128,
            value_dim: 128,
            is_tiled: false,
        };
        let mixer = match self.architecture {
            Architecture::Lfm2 => Mixer::ShortConv { taps: 3 },
            _ => Mixer::DeltaRule(rule),
        };
        (!layers.is_empty()).then_some(RecurrentLayers { layers, mixer })
    }
}

/// Why there is no synthetic model.
#[derive(Debug)]
#[non_exhaustive]
pub enum SyntheticError {
    /// The machine does not have this much memory.
    Memory(io::Error),
    /// The header does not describe a valid model.
    Format(FormatError),
}

impl std::fmt::Display for SyntheticError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SyntheticError::Memory(e) => write!(f, "no memory for the model: {e}"),
            SyntheticError::Format(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for SyntheticError {}

impl Model {
    /// A model with the shape of `header` and arbitrary weights, in memory, in huge pages if there are any.
    /// If the header says that it is packed, the weights are generated in packed form, without a second copy.
    ///
    /// # Errors
    /// If there is not enough memory, or the header's fields do not fit together.
    pub fn synthetic(header: &Header) -> Result<Model, SyntheticError> {
        Model::synthetic_in(header, Pages::Huge)
    }

    /// Generates weights like [`Model::synthetic`], in memory with `pages`.
    ///
    /// # Errors
    /// See [`Model::synthetic`].
    pub fn synthetic_in(header: &Header, pages: Pages) -> Result<Model, SyntheticError> {
        header.check().map_err(SyntheticError::Format)?;
        let layout = packed_for(header).map_err(SyntheticError::Format)?.map(|(_, layout)| layout);
        // The checksums of synthetic weights are never compared; they stay zero.
        let bytes = header.tensors_end().saturating_add(4 * header.n_tensors() as u64);
        let mut memory = HugeMemory::in_pages(usize::try_from(bytes).unwrap_or(usize::MAX), pages)
            .map_err(SyntheticError::Memory)?;
        let file = memory.as_mut_slice();
        let head = header.emit();
        file[..head.len()].copy_from_slice(&head);
        // In a packed file a shared classifier is stored apart from the embedding, with the same values.
        let classifier = header.plain().classifier();
        for mut tensor in header.tensors() {
            let (kind, start) = (tensor.id.kind, tensor.offset as usize);
            if kind == TensorKind::Classifier {
                tensor.id.kind = classifier;
            }
            let out = &mut file
                [start..start + header.content_bytes(TensorId { kind, ..tensor.id }) as usize];
            let layout = layout.filter(|_| header.packing_of(kind).is_some());
            match layout {
                Some(layout) => fill_packed(
                    header.encoding(TensorId { kind, ..tensor.id }),
                    layout,
                    &tensor,
                    out,
                ),
                None => fill(header.encoding(TensorId { kind, ..tensor.id }), &tensor, 0, out),
            }
        }
        let file = ModelFile::made_up(memory).map_err(SyntheticError::Format)?;
        Ok(Model::in_memory(file))
    }
}

/// Generates the rows of a tensor from `start` on. The weights keep activations in range, and have no pattern
/// that a CPU could profit from.
fn fill(encoding: Encoding, tensor: &Tensor, start: usize, out: &mut [u8]) {
    let Tensor { id, rows, cols, .. } = *tensor;
    let scale = 1.0 / (cols as f32).sqrt();
    if id.kind.is_vector() {
        // States have to fade.
        let value = if id.kind == TensorKind::MixDecay { -1.0_f32 } else { 1.0 };
        return bytemuck::cast_slice_mut(out).fill(value);
    }
    let (values, scales) = match encoding {
        Encoding::Q8 { .. } => out.split_at_mut(rows * cols),
        _ => out.split_at_mut(out.len()),
    };
    bytemuck::cast_slice_mut(scales).fill(scale / 64.0);
    let row_bytes = values.len() / rows;
    for (row, values) in values.chunks_exact_mut(row_bytes).enumerate() {
        let place = (id.kind as u64) << 48 | (id.layer as u64) << 32 | (start + row) as u64;
        let mut random = place.wrapping_add(1).wrapping_mul(0x2545_f491_4f6c_dd1d);
        match encoding {
            Encoding::F32 => {
                for x in bytemuck::cast_slice_mut::<u8, f32>(values) {
                    *x = scale * f32::from(next(&mut random) as i8) / 64.0;
                }
            }
            Encoding::Q8 { .. } => {
                for q in values.as_chunks_mut::<8>().0 {
                    *q = next(&mut random).to_le_bytes();
                }
            }
            Encoding::Bcml1 => fill_blocks(scale, &mut random, values),
            Encoding::Bcml2 => fill_row(scale, cols, &mut random, values),
            Encoding::Bcml6 => fill_row_of_six(scale, cols, &mut random, values),
            Encoding::Ggml(_) => unreachable!("no shape has blocks of a GGUF file"),
        }
    }
}

fn fill_blocks(scale: f32, random: &mut u64, out: &mut [u8]) {
    let multiplier = f16::from_f32(scale / 4.0).to_le_bytes();
    let offset = f16::from_f32(scale * -1.875).to_le_bytes();
    for block in out.as_chunks_mut::<{ bcml1::BLOCK_BYTES }>().0 {
        block[..2].copy_from_slice(&multiplier);
        block[2..4].copy_from_slice(&offset);
        block[4..12].copy_from_slice(&next(random).to_le_bytes());
        block[12..].copy_from_slice(&next(random).to_le_bytes());
    }
}

/// A row of BCML2 with values in the range of [`fill_blocks`].
fn fill_row(scale: f32, cols: usize, random: &mut u64, out: &mut [u8]) {
    let (step, blocks) = out.split_at_mut(STEP_BYTES);
    step.copy_from_slice(&(scale / 4.0 / 16.0 / 64.0).to_le_bytes());
    let blocks = &mut blocks[..cols / bcml2::BLOCK * bcml2::BLOCK_BYTES];
    for block in blocks.as_chunks_mut::<{ bcml2::BLOCK_BYTES }>().0 {
        block[..2].copy_from_slice(&[64, 120]);
        block[2..10].copy_from_slice(&next(random).to_le_bytes());
        block[10..].copy_from_slice(&next(random).to_le_bytes());
    }
}

/// A row of BCML6 with values in the range of [`fill_blocks`].
fn fill_row_of_six(scale: f32, cols: usize, random: &mut u64, out: &mut [u8]) {
    let (step, blocks) = out.split_at_mut(STEP_BYTES);
    step.copy_from_slice(&(scale / 16.0 / 64.0).to_le_bytes());
    let blocks = &mut blocks[..cols / bcml6::BLOCK * bcml6::BLOCK_BYTES];
    for block in blocks.as_chunks_mut::<{ bcml6::BLOCK_BYTES }>().0 {
        block[0] = 64;
        for codes in block[1..].as_chunks_mut::<8>().0 {
            *codes = next(random).to_le_bytes();
        }
    }
}

/// Generates a tensor in the packed order of `layout`, a few panels at a time.
fn fill_packed(encoding: Encoding, layout: Layout, tensor: &Tensor, out: &mut [u8]) {
    let (k, panel_rows) = (tensor.cols, layout.panel_rows());
    // A packed row has as many bytes as a plain one, but the last panel is filled up with rows.
    let row_bytes = out.len() / tensor.rows.next_multiple_of(panel_rows);
    let piece_rows = PIECE_PANELS * panel_rows;
    let mut plain = vec![0.0_f32; piece_rows * row_bytes / size_of::<f32>()];
    for (index, out) in out.chunks_mut(piece_rows * row_bytes).enumerate() {
        let start = index * piece_rows;
        let rows = piece_rows.min(tensor.rows - start);
        let plain = &mut bytemuck::cast_slice_mut(&mut plain)[..rows * row_bytes];
        fill(encoding, &Tensor { rows, ..*tensor }, start, plain);
        const WHOLE: &str = "the header's groups divide rows";
        match encoding {
            Encoding::F32 | Encoding::Ggml(_) => unreachable!("a file does not hold these packed"),
            Encoding::Q8 { group } => {
                let (q, scales) = plain.split_at(rows * k);
                let scales = bytemuck::cast_slice(scales);
                let matrix = Q8Matrix::new(bytemuck::cast_slice(q), scales, k, group);
                layout.pack_q8(matrix.expect(WHOLE), out);
            }
            Encoding::Bcml1 => layout.pack_q4(Bcml1Matrix::new(plain, k).expect(WHOLE), out),
            Encoding::Bcml2 => layout.pack_b2(Bcml2Matrix::new(plain, k).expect(WHOLE), out),
            Encoding::Bcml6 => layout.pack_b6(Bcml6Matrix::new(plain, k).expect(WHOLE), out),
        }
    }
}

/// Marsaglia's xorshift (Xorshift RNGs, 2003).
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_consistent_headers() {
        for shape in Shape::ALL {
            assert_eq!(Shape::from_name(shape.name), Some(shape));
            let header = shape.header(Weights::Q8 { group: 64 });
            assert_eq!(header.check(), Ok(()), "{}", shape.name);
        }
    }
}
