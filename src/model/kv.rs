//! The KV cache: where the keys and values of each position lie.
//!
//! With a sliding window it is a ring: position `pos` lies in slot `pos % kv_len`, and
//! `kv_len` is large enough that a batch never overwrites what its own rows look back to.

use std::ops::Range;

use heapless::Vec;

use super::buffers::KvValues;
use crate::format::model::Header;
use crate::kernels::{Kernels, KvRun};

/// Shape of the cache.
#[derive(Clone, Copy)]
pub(super) struct KvShape {
    /// Layers of the share; they are counted from its first.
    pub(super) n_layers: usize,
    pub(super) n_kv_heads: usize,
    /// Positions held.
    pub(super) kv_len: usize,
    pub(super) head_dim: usize,
    /// Positions that a token can look back, in the layer where it sees most of them.
    pub(super) widest_window: usize,
}

/// What one stream has stored of one layer.
#[derive(Clone, Copy)]
pub(super) struct KvLane {
    pub(super) stream: usize,
    /// Counted from the share's first.
    pub(super) layer: usize,
}

impl KvShape {
    pub(super) fn new(header: &Header, n_layers: usize, kv_len: usize) -> KvShape {
        KvShape {
            n_layers,
            n_kv_heads: header.n_kv_heads,
            kv_len,
            head_dim: header.head_dim,
            widest_window: header.widest_window(),
        }
    }

    /// Whether what the token at `pos` looks back to is stored still, once `reached` positions
    /// have been.
    pub(super) fn holds_before(&self, reached: usize, pos: usize) -> bool {
        reached.saturating_sub(self.kv_len) <= first_visible(pos, self.widest_window)
    }

    /// The slots of `positions`: one range, or two where the ring wraps.
    fn slots(&self, positions: Range<usize>) -> Vec<Range<usize>, 2> {
        let mut slots = Vec::new();
        let start = positions.start % self.kv_len;
        let end = start + positions.len();
        // Two ranges at most, as the vector holds.
        let _ = slots.push(start..end.min(self.kv_len));
        if end > self.kv_len {
            let _ = slots.push(0..end - self.kv_len);
        }
        slots
    }

    /// First value of a head's keys; its values follow `n_kv_heads` heads later.
    fn head_start(&self, lane: KvLane, head: usize) -> usize {
        let heads = (lane.stream * self.n_layers + lane.layer) * 2 * self.n_kv_heads + head;
        heads * self.kv_len * self.head_dim
    }

    fn values_after_keys(&self) -> usize {
        self.n_kv_heads * self.kv_len * self.head_dim
    }
}

/// First position that the token at `pos` attends to in a layer with this window.
pub(super) fn first_visible(pos: usize, window: usize) -> usize {
    (pos + 1).saturating_sub(window)
}

impl KvValues<'_> {
    /// Stores keys and values of one position, `[n_kv_heads, head_dim]` each.
    pub(super) fn store(
        &mut self,
        shape: &KvShape,
        (lane, pos): (KvLane, usize),
        (k, v): (&[f32], &[f32]),
        kernels: &Kernels,
    ) {
        let slot = pos % shape.kv_len * shape.head_dim;
        let heads = k.chunks_exact(shape.head_dim).zip(v.chunks_exact(shape.head_dim));
        for (head, (k, v)) in heads.enumerate() {
            let k_at = shape.head_start(lane, head) + slot;
            for (at, x) in [(k_at, k), (k_at + shape.values_after_keys(), v)] {
                let range = at..at + shape.head_dim;
                match self {
                    KvValues::F16(kv) => kernels.store_kv(x, &mut kv[range]),
                    KvValues::F32(kv) => kv[range].copy_from_slice(x),
                }
            }
        }
    }

    /// The keys and values of `head` at `positions`, in order.
    pub(super) fn runs(
        &self,
        shape: &KvShape,
        lane: KvLane,
        head: usize,
        positions: Range<usize>,
    ) -> Vec<KvRun<'_>, 2> {
        let k_at = shape.head_start(lane, head);
        let v_at = k_at + shape.values_after_keys();
        let slots = shape.slots(positions).into_iter();
        let runs = slots.map(|slots| {
            let (start, end) = (slots.start * shape.head_dim, slots.end * shape.head_dim);
            let (k, v) = (k_at + start..k_at + end, v_at + start..v_at + end);
            match self {
                KvValues::F16(kv) => KvRun::F16 { keys: &kv[k], values: &kv[v] },
                KvValues::F32(kv) => KvRun::F32 { keys: &kv[k], values: &kv[v] },
            }
        });
        runs.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: KvShape =
        KvShape { n_layers: 2, n_kv_heads: 3, kv_len: 10, head_dim: 4, widest_window: 6 };

    #[test]
    fn window_includes_the_position_itself() {
        assert_eq!([2, 5, 6].map(|pos| first_visible(pos, 6)), [0, 0, 1]);
        assert_eq!(first_visible(7, usize::MAX), 0);
    }

    #[test]
    fn what_later_positions_took_the_place_of_is_gone() {
        assert!((0..=10).all(|pos| SHAPE.holds_before(10, pos)));
        // The token at 11 looks back to 6, the oldest of ten that are stored.
        assert!(SHAPE.holds_before(16, 11));
        assert!(!SHAPE.holds_before(16, 10));
        assert!(SHAPE.holds_before(17, 12));
        let whole = KvShape { kv_len: 100, widest_window: usize::MAX, ..SHAPE };
        assert!(whole.holds_before(100, 1));
    }

    #[test]
    fn ring_wraps_into_two_ranges_in_order_of_position() {
        let slots = |positions| -> std::vec::Vec<(usize, usize)> {
            SHAPE.slots(positions).iter().map(|slots| (slots.start, slots.end)).collect()
        };
        assert_eq!(slots(1..7), [(1, 7)]);
        assert_eq!(slots(4..10), [(4, 10)]);
        assert_eq!(slots(7..13), [(7, 10), (0, 3)]);
        assert_eq!(slots(12..18), [(2, 8)]);
    }

    #[test]
    fn heads_do_not_overlap() {
        let heads = [(0, 0, 0), (0, 0, 2), (0, 1, 0), (1, 0, 0)];
        let starts =
            heads.map(|(stream, layer, h)| SHAPE.head_start(KvLane { stream, layer }, h) / 40);
        assert_eq!(starts, [0, 2, 6, 12]);
        assert_eq!(SHAPE.values_after_keys() / 40, 3);
    }
}
