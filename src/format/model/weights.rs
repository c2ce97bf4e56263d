//! Encodings of a model's weights.

use std::fmt;

use crate::quant::bcml1::{BLOCK, BLOCK_BYTES};
use crate::quant::{Ggml, bcml2, bcml6};

/// Flag of the header's extension: embedding and classifier are int8.
pub(super) const FLAG_INT8_EMBEDDING: u32 = 1;

/// Flag of the header's extension: embedding and classifier have 6 bits.
pub(super) const FLAG_SIX_BIT_EMBEDDING: u32 = 2;

/// Encoding of the matrices; vectors are always f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weights {
    /// Version 1: f32.
    F32,
    /// Version 2: int8 with one f32 scale per `group` consecutive values of a row.
    Q8 {
        /// Values per scale.
        group: usize,
    },
    /// Version 3: 4-bit blocks.
    Q4 {
        /// Activations per scale, and values per scale of int8 matrices.
        group: usize,
        /// Whether the embedding and the classifier are int8.
        int8_embedding: bool,
    },
    /// Version 4: 4-bit blocks with scales in two levels.
    B2 {
        /// Values per scale of int8 matrices.
        group: usize,
        /// Encoding of the embedding and the classifier.
        ends: Ends,
    },
    /// Version 5: the blocks of a GGUF file, of a type for each tensor: [`Header::ggml`](super::Header::ggml).
    Ggml,
}

/// Encoding of the embedding and the classifier in version 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// 4.5 bits per value, like other matrices.
    FourBits,
    /// int8.
    Int8,
    /// [BCML6](crate::quant::bcml6).
    SixBits,
}

/// Encoding of one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// f32.
    F32,
    /// int8 with one f32 scale per `group` consecutive values of a row.
    Q8 {
        /// Values per scale.
        group: usize,
    },
    /// [BCML1](crate::quant::bcml1) blocks.
    Bcml1,
    /// Rows of [BCML2](crate::quant::bcml2).
    Bcml2,
    /// Rows of [BCML6](crate::quant::bcml6).
    Bcml6,
    /// Rows of a GGUF file's [blocks](crate::quant::ggml).
    Ggml(Ggml),
}

impl Weights {
    /// Version number of a file with these weights.
    pub fn version(self) -> i32 {
        match self {
            Weights::F32 => 1,
            Weights::Q8 { .. } => 2,
            Weights::Q4 { .. } => 3,
            Weights::B2 { .. } => 4,
            Weights::Ggml => 5,
        }
    }

    /// Values per scale of int8 matrices, and of activations; `None` if these stay f32.
    pub fn group(self) -> Option<usize> {
        match self {
            Weights::F32 => None,
            Weights::Q8 { group } | Weights::Q4 { group, .. } | Weights::B2 { group, .. } => {
                Some(group)
            }
            Weights::Ggml => Some(BLOCK),
        }
    }

    pub(super) fn flags(self) -> u32 {
        match self {
            Weights::Q4 { int8_embedding: true, .. } | Weights::B2 { ends: Ends::Int8, .. } => {
                FLAG_INT8_EMBEDDING
            }
            Weights::B2 { ends: Ends::SixBits, .. } => FLAG_SIX_BIT_EMBEDDING,
            _ => 0,
        }
    }

    /// The weights with the encoding of embedding and classifier that the extension's flags name; `None` if
    /// the flags are not valid here.
    pub(super) fn with_flags(self, flags: u32) -> Option<Weights> {
        match (self, flags) {
            (_, 0) => Some(self),
            (Weights::Q4 { group, .. }, FLAG_INT8_EMBEDDING) => {
                Some(Weights::Q4 { group, int8_embedding: true })
            }
            (Weights::B2 { group, .. }, FLAG_INT8_EMBEDDING) => {
                Some(Weights::B2 { group, ends: Ends::Int8 })
            }
            (Weights::B2 { group, .. }, FLAG_SIX_BIT_EMBEDDING) => {
                Some(Weights::B2 { group, ends: Ends::SixBits })
            }
            _ => None,
        }
    }
}

impl Encoding {
    /// Name of the encoding in tables.
    pub fn name(self) -> &'static str {
        match self {
            Encoding::F32 => "f32",
            Encoding::Q8 { .. } => "int8",
            Encoding::Bcml1 => "BCML1",
            Encoding::Bcml2 => "BCML2",
            Encoding::Bcml6 => "BCML6",
            Encoding::Ggml(kind) => kind.name(),
        }
    }

    /// Bytes of a matrix `[rows, cols]`, which consists of whole groups and blocks.
    pub(super) fn bytes(self, rows: u64, cols: u64) -> Option<u64> {
        let len = rows.checked_mul(cols)?;
        match self {
            Encoding::F32 => len.checked_mul(4),
            Encoding::Q8 { group } => len.checked_add((len / group as u64).checked_mul(4)?),
            Encoding::Bcml1 => (len / BLOCK as u64).checked_mul(BLOCK_BYTES as u64),
            // There are fewer than 2^31 columns.
            Encoding::Bcml2 => rows.checked_mul(bcml2::row_bytes(cols as usize) as u64),
            Encoding::Bcml6 => rows.checked_mul(bcml6::row_bytes(cols as usize) as u64),
            Encoding::Ggml(kind) => rows.checked_mul(kind.row_bytes(cols as usize) as u64),
        }
    }

    /// Bytes of a matrix `[rows, cols]` that is packed; `rows` fill whole panels.
    pub(super) fn packed_bytes(self, rows: u64, cols: u64) -> Option<u64> {
        match self {
            Encoding::Ggml(kind) => rows.checked_mul(packed_row_bytes(kind, cols)?),
            _ => self.bytes(rows, cols),
        }
    }
}

/// Bytes that a row of `cols` values takes in a panel. Codes keep the bits of their form, or become int8 with an f32
/// scale for each run.
fn packed_row_bytes(kind: Ggml, cols: u64) -> Option<u64> {
    let (len, bytes) = match kind.form() {
        Some(form) => {
            let n_mins = usize::from(form.has_min);
            let parameters = if form.is_long { form.n_scales + n_mins } else { 0 };
            let of_run = parameters + BLOCK * form.bits / 8;
            (form.columns(), 2 + 2 * n_mins + form.columns() / BLOCK * of_run)
        }
        None => (BLOCK, size_of::<f32>() + BLOCK),
    };
    (cols / len as u64).checked_mul(bytes as u64)
}

impl fmt::Display for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Weights::F32 => write!(f, "f32"),
            Weights::Q8 { group } => write!(f, "int8, groups of {group}"),
            Weights::Q4 { int8_embedding: true, .. } => write!(f, "4-bit BCML1, embedding int8"),
            Weights::Q4 { int8_embedding: false, .. } => write!(f, "4-bit BCML1"),
            Weights::B2 { ends: Ends::Int8, .. } => write!(f, "4.5-bit BCML2, embedding int8"),
            Weights::B2 { ends: Ends::SixBits, .. } => {
                write!(f, "4.5-bit BCML2, embedding 6-bit BCML6")
            }
            Weights::B2 { ends: Ends::FourBits, .. } => write!(f, "4.5-bit BCML2"),
            Weights::Ggml => write!(f, "blocks of a GGUF file"),
        }
    }
}
