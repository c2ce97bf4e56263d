//! The KV cache: where the keys and values of each position lie.
//!
//! A layer's is a ring: position `pos` lies in slot `pos % len`. Where a sliding window is shorter than the
//! context, `len` is just large enough that a batch never overwrites what its own rows look back to.

use std::ops::Range;

use heapless::Vec;

use super::buffers::KvValues;
use super::plan::Plan;
use crate::format::model::Header;
use crate::kernels::{Kernels, KvRun};

/// Shape of the cache.
pub(super) struct KvShape {
    pub(super) n_kv_heads: usize,
    pub(super) head_dim: usize,
    /// Of each layer of the share, from its first.
    layers: std::vec::Vec<KvLayer>,
    /// Values of a stream.
    stream: usize,
    /// Of the layers of the whole model where a token does not see all before it.
    windowed: Option<Windowed>,
}

/// One layer's part of a stream's cache.
#[derive(Clone, Copy)]
struct KvLayer {
    /// First value.
    start: usize,
    /// Positions held.
    len: usize,
}

/// Layers with a window.
#[derive(Clone, Copy)]
struct Windowed {
    /// Positions that a token can look back, itself included.
    window: usize,
    /// Positions held.
    len: usize,
}

/// What one stream has stored of one layer.
#[derive(Clone, Copy)]
pub(super) struct KvLane {
    pub(super) stream: usize,
    /// Counted from the share's first.
    pub(super) layer: usize,
}

impl KvShape {
    /// Of `layers`, a share of the model, as `plan` has it.
    pub(super) fn new(header: &Header, layers: Range<usize>, plan: &Plan) -> KvShape {
        let layer = |layer: usize| KvLayer {
            start: plan.kv_values(header, layers.start..layer),
            len: plan.kv_len(header.layer(layer).window),
        };
        // A model has one window. Where a ring's other nodes have it, it counts here too.
        let windowed = header.layers().find_map(|layer| layer.window);
        KvShape {
            n_kv_heads: header.n_kv_heads,
            head_dim: header.head_dim,
            layers: layers.clone().map(layer).collect(),
            stream: plan.kv_values(header, layers),
            windowed: windowed.map(|window| Windowed { window, len: plan.kv_len(Some(window)) }),
        }
    }

    /// Whether what the token at `pos` looks back to is stored still, once `reached` positions
    /// have been. Layers without a window hold all.
    pub(super) fn holds_before(&self, reached: usize, pos: usize) -> bool {
        self.windowed.is_none_or(|Windowed { window, len }| {
            reached.saturating_sub(len) <= first_visible(pos, window)
        })
    }

    /// First value of a head's keys; its values follow `values_after_keys` later.
    fn head_start(&self, lane: KvLane, head: usize) -> usize {
        let KvLayer { start, len } = self.layers[lane.layer];
        lane.stream * self.stream + start + head * len * self.head_dim
    }

    fn values_after_keys(&self, layer: usize) -> usize {
        self.n_kv_heads * self.layers[layer].len * self.head_dim
    }
}

impl KvLayer {
    /// The slots of `positions`: one range, or two where the ring wraps.
    fn slots(&self, positions: Range<usize>) -> Vec<Range<usize>, 2> {
        let mut slots = Vec::new();
        let start = positions.start % self.len;
        let end = start + positions.len();
        // Two ranges at most, as the vector holds.
        let _ = slots.push(start..end.min(self.len));
        if end > self.len {
            let _ = slots.push(0..end - self.len);
        }
        slots
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
        let slot = pos % shape.layers[lane.layer].len * shape.head_dim;
        let heads = k.chunks_exact(shape.head_dim).zip(v.chunks_exact(shape.head_dim));
        for (head, (k, v)) in heads.enumerate() {
            let k_at = shape.head_start(lane, head) + slot;
            for (at, x) in [(k_at, k), (k_at + shape.values_after_keys(lane.layer), v)] {
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
        let v_at = k_at + shape.values_after_keys(lane.layer);
        let slots = shape.layers[lane.layer].slots(positions).into_iter();
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

    use crate::format::model::{Features, LayerSet, Weights};
    use crate::model::Precision;

    const PLAN: Plan =
        Plan { ctx_len: 100, max_batch: 4, max_logits: 1, n_streams: 2, kv: Precision::F32 };

    /// Three heads of 4 in three layers, of which the middle one sees all.
    fn header() -> Header {
        let full_layers = LayerSet::new(1..2).unwrap();
        Header {
            n_layers: 3,
            n_heads: 3,
            n_kv_heads: 3,
            head_dim: 4,
            sliding_window: Some(6),
            features: Features { full_layers, ..Features::default() },
            ..Header::blank(Weights::F32)
        }
    }

    #[test]
    fn window_includes_the_position_itself() {
        assert_eq!([2, 5, 6].map(|pos| first_visible(pos, 6)), [0, 0, 1]);
        assert_eq!(first_visible(7, usize::MAX), 0);
    }

    #[test]
    fn what_later_positions_took_the_place_of_is_gone() {
        // Wherever the layers with windows are.
        for layers in [0..3, 1..2] {
            let shape = KvShape::new(&header(), layers, &PLAN);
            assert!((0..=10).all(|pos| shape.holds_before(10, pos)));
            // The token at 11 looks back to 6, the oldest of ten that are stored.
            assert!(shape.holds_before(16, 11));
            assert!(!shape.holds_before(16, 10));
            assert!(shape.holds_before(17, 12));
        }
        let whole = Header { sliding_window: None, ..header() };
        assert!(KvShape::new(&whole, 0..3, &PLAN).holds_before(100, 1));
    }

    #[test]
    fn ring_wraps_into_two_ranges_in_order_of_position() {
        let layer = KvLayer { start: 0, len: 10 };
        let slots = |positions| -> std::vec::Vec<(usize, usize)> {
            layer.slots(positions).iter().map(|slots| (slots.start, slots.end)).collect()
        };
        assert_eq!(slots(1..7), [(1, 7)]);
        assert_eq!(slots(4..10), [(4, 10)]);
        assert_eq!(slots(7..13), [(7, 10), (0, 3)]);
        assert_eq!(slots(12..18), [(2, 8)]);
    }

    /// A layer with a window holds ten positions, one without all hundred.
    #[test]
    fn layers_have_what_their_windows_need_and_do_not_overlap() {
        let shape = KvShape::new(&header(), 0..3, &PLAN);
        let heads = [(0, 0, 0), (0, 0, 2), (0, 1, 0), (0, 2, 0), (0, 2, 1), (1, 0, 0)];
        let starts =
            heads.map(|(stream, layer, h)| shape.head_start(KvLane { stream, layer }, h) / 40);
        assert_eq!(starts, [0, 2, 6, 66, 67, 72]);
        assert_eq!([0, 1].map(|layer| shape.values_after_keys(layer) / 40), [3, 30]);
        let share = KvShape::new(&header(), 1..3, &PLAN);
        assert_eq!(share.head_start(KvLane { stream: 1, layer: 1 }, 0) / 40, 66 + 60);
        assert_eq!(PLAN.kv_values(&header(), 0..3) / 40, 72);
    }
}
