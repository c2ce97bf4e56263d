//! Formats of stored keys and values, and their sizes in a page.

use std::ops::Range;

use crate::format::model::{Header, Weights};
use crate::kernels::{KV_BLOCK, KvLine, clear_kv_block, kv_block_lines};

/// Format of stored keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvKind {
    /// Half precision.
    F16,
    /// Single precision, for exact comparisons.
    F32,
    /// Bytes with scales: about half the memory of half precision.
    Int8,
}

impl KvKind {
    /// All formats.
    pub const ALL: [KvKind; 3] = [KvKind::F16, KvKind::F32, KvKind::Int8];

    /// The format for a model with these weights: f32 weights are run for exactness, others for speed.
    pub fn for_weights(weights: Weights) -> KvKind {
        match weights {
            Weights::F32 => KvKind::F32,
            Weights::Q8 { .. } | Weights::Q4 { .. } | Weights::B2 { .. } | Weights::Ggml => {
                KvKind::F16
            }
        }
    }

    /// The name used on the command line.
    pub fn name(self) -> &'static str {
        match self {
            KvKind::F16 => "f16",
            KvKind::F32 => "f32",
            KvKind::Int8 => "int8",
        }
    }

    /// The format that is called `name`.
    pub fn from_name(name: &str) -> Option<KvKind> {
        KvKind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Bytes of a unit of the cache: a value, or a line of int8.
    pub(crate) fn unit_bytes(self) -> usize {
        match self {
            KvKind::F16 => 2,
            KvKind::F32 => 4,
            KvKind::Int8 => size_of::<KvLine>(),
        }
    }
}

/// Shape of a layer's part of a page: all keys, head by head, then all values, head by head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvPart {
    kind: KvKind,
    n_kv_heads: usize,
    head_dim: usize,
    /// Number of positions.
    len: usize,
}

impl KvPart {
    /// The part of a page with `len` positions. Int8 is stored in whole blocks.
    pub fn new(kind: KvKind, header: &Header, len: usize) -> KvPart {
        KvPart::with_heads(kind, (header.n_kv_heads, header.head_dim), len)
    }

    /// The part of a layer with other heads than the model's header says.
    pub(super) fn with_heads(
        kind: KvKind,
        (n_kv_heads, head_dim): (usize, usize),
        len: usize,
    ) -> KvPart {
        let len = match kind {
            KvKind::F16 | KvKind::F32 => len,
            KvKind::Int8 => len.next_multiple_of(KV_BLOCK),
        };
        KvPart { kind, n_kv_heads, head_dim, len }
    }

    /// Width of a head.
    pub(super) fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Range of each head in the part. All heads' keys come before all heads' values.
    pub(super) fn heads(self) -> impl Iterator<Item = Range<usize>> {
        let [of_key, of_value] = self.of_head();
        let keys = (0..self.n_kv_heads).map(move |head| (head * of_key, of_key));
        let values_at = self.of_keys();
        let values = (0..self.n_kv_heads).map(move |head| (values_at + head * of_value, of_value));
        keys.chain(values).map(|(at, len)| at..at + len)
    }

    /// Number of key heads, and of value heads.
    pub(super) fn n_kv_heads(&self) -> usize {
        self.n_kv_heads
    }

    /// Units ([`KvKind::unit_bytes`]) of one head's keys, and of its values.
    pub(super) fn of_head(&self) -> [usize; 2] {
        match self.kind {
            KvKind::F16 | KvKind::F32 => [self.len.saturating_mul(self.head_dim); 2],
            KvKind::Int8 => {
                kv_block_lines(self.head_dim).map(|n| n.saturating_mul(self.len / KV_BLOCK))
            }
        }
    }

    /// Units of all heads' keys.
    pub(super) fn of_keys(&self) -> usize {
        self.n_kv_heads.saturating_mul(self.of_head()[0])
    }

    /// Units of the whole part.
    pub(super) fn of_layer(&self) -> usize {
        self.of_keys().saturating_add(self.n_kv_heads.saturating_mul(self.of_head()[1]))
    }

    /// Bytes of the whole part.
    pub fn bytes(&self) -> usize {
        self.of_layer() * self.kind.unit_bytes()
    }

    /// Zeroes the positions from `n` on in a part, given as bytes.
    pub fn clear(&self, part: &mut [u8], n: usize) {
        let unit = self.kind.unit_bytes();
        let [of_key, of_value] = self.of_head().map(|units| units * unit);
        let (keys, values) = part.split_at_mut(self.of_keys() * unit);
        keys.chunks_exact_mut(of_key).for_each(|head| self.clear_head(head, true, n));
        values.chunks_exact_mut(of_value).for_each(|head| self.clear_head(head, false, n));
    }

    /// Zeroes one head's keys or values from position `n` on.
    fn clear_head(&self, part: &mut [u8], is_key: bool, n: usize) {
        match self.kind {
            KvKind::F16 | KvKind::F32 => {
                let row = self.head_dim * self.kind.unit_bytes();
                part[n * row..].fill(0);
            }
            KvKind::Int8 => {
                let block = part.len() / (self.len / KV_BLOCK);
                for (index, block) in part.chunks_exact_mut(block).enumerate() {
                    let n = n.saturating_sub(index * KV_BLOCK).min(KV_BLOCK);
                    clear_kv_block(block, is_key, n);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn int8_takes_little_more_than_half() {
        for (head_dim, most) in [(64, 0.54), (128, 0.53), (256, 0.53), (80, 0.54), (100, 0.6)] {
            let header = Header { n_kv_heads: 4, head_dim, ..Header::blank(Weights::F32) };
            let bytes =
                |kind: KvKind| KvPart::new(kind, &header, 64).of_layer() * kind.unit_bytes();
            let ratio = bytes(KvKind::Int8) as f64 / bytes(KvKind::F16) as f64;
            assert!((0.5..most).contains(&ratio), "{head_dim}: {ratio}");
        }
    }

    #[test]
    fn what_is_behind_a_position_becomes_zero() {
        let header = Header { n_kv_heads: 3, head_dim: 6, ..Header::blank(Weights::F32) };
        for kind in KvKind::ALL {
            let part = KvPart::new(kind, &header, 64);
            let bytes = part.bytes();
            for n in [0, 1, 31, 40, 64] {
                let mut stored = vec![0xa5; bytes];
                part.clear(&mut stored, n);
                let kept = stored.iter().filter(|byte| **byte == 0xa5).count();
                assert!(stored.iter().all(|byte| [0, 0xa5].contains(byte)));
                assert_eq!(kept * 64, bytes * n, "{kind:?} {n}");
            }
        }
    }
}
