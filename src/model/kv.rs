//! The KV cache: the layout of the keys and values of each position.
//!
//! Keys and values lie in pages of [`KV_PAGE`] positions. A table lists a stream's pages, and the caller may change it:
//! streams can share equal beginnings. Layers with a window that is shorter than the context have pages and a
//! table of their own, in which later positions overwrite earlier ones. That table is just large enough that
//! a batch never overwrites positions in the windows of its own rows.

use std::ops::Range;

use super::buffers::KvValues;
use super::kv_kind::KvPart;
use super::plan::{KV_PAGE, KvPlan, PageChange, PagePair, Plan, WindowPlan};
use crate::format::model::Header;
use crate::kernels::{Kernels, KvPages, KvStored};

/// Shape of the cache, and the streams' tables.
pub(crate) struct KvShape {
    /// Layers of the share, from its first.
    layers: Vec<KvLayer>,
    /// Pages of layers without a window.
    whole: PageGroup,
    /// Pages of layers with a window.
    windowed: PageGroup,
    /// The model's window, if layers with a window have pages of their own.
    window: Option<WindowPlan>,
}

/// Position of a layer's part within a page.
#[derive(Clone, Copy)]
struct KvLayer {
    /// Whether the layer has pages of the group for windows.
    is_windowed: bool,
    /// Unit at which the part begins in a page.
    start: usize,
    part: KvPart,
    /// Whether the layer stores keys and values: recurrent layers have none, and others use those of an earlier layer.
    is_stored: bool,
}

/// Where a layer's keys and values lie, in units.
#[cfg(feature = "gpu")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerPlaces {
    /// Whether the layer has pages of the group for windows.
    pub(crate) is_windowed: bool,
    /// Unit at which the layer's part of page 0 begins.
    pub(crate) start: usize,
    /// Units of a page.
    pub(crate) page: usize,
    /// Number of pages in a stream's table.
    pub(crate) table_len: usize,
    /// Units of a head's keys in a page, and of its values.
    pub(crate) head: usize,
}

/// Pages of the layers with a window or of the others, with the streams' tables.
struct PageGroup {
    /// Unit at which the first page begins.
    start: usize,
    /// Units of a page.
    page: usize,
    /// Number of pages in a stream's table.
    n: usize,
    /// Number of pages in all.
    n_pages: usize,
    /// Page tables, `[n_streams, n]`.
    tables: Vec<u32>,
}

/// One stream in one layer.
#[derive(Clone, Copy)]
pub(super) struct KvLane {
    pub(super) stream: usize,
    /// Index of the layer in the share.
    pub(super) layer: usize,
}

impl KvShape {
    /// Layout of the KV cache of `layers`, with the sizes of `plan`. If there are enough pages, each stream's
    /// table begins with pages of its own.
    pub(crate) fn new(header: &Header, layers: Range<usize>, plan: &Plan) -> KvShape {
        let KvPlan { ctx_pages, n_pages, window, .. } = plan.kv_plan(header);
        let [page, window_page] = plan.page_units(header, layers.clone());
        let (ring_pages, n_window_pages) =
            window.map_or((0, 0), |window| (window.ring_pages, window.n_pages));
        let mut ends = [0; 2];
        let mut all: Vec<KvLayer> = Vec::with_capacity(layers.len());
        for layer in layers.clone() {
            let is_windowed = window.is_some() && header.layer(layer).window.is_some();
            let end = &mut ends[usize::from(is_windowed)];
            let start = *end;
            let spec = header.layer(layer);
            all.push(match plan.kv_part_of(header, layer) {
                Some(part) => {
                    *end += part.of_layer();
                    KvLayer { is_windowed, start, part, is_stored: true }
                }
                None if spec.mixer.is_some() => {
                    KvLayer { is_windowed, start, part: plan.kv_part(header), is_stored: false }
                }
                // The other layer is an earlier one of the same share.
                None => KvLayer { is_stored: false, ..all[spec.kv_layer - layers.start] },
            });
        }
        KvShape {
            layers: all,
            whole: PageGroup::new(0, page, (plan.n_streams, ctx_pages, n_pages)),
            windowed: PageGroup::new(
                n_pages * page,
                window_page,
                (plan.n_streams, ring_pages, n_window_pages),
            ),
            window,
        }
    }

    /// Whether all positions in the window before `pos` are still stored, after `reached` positions were, if
    /// each stream has its own pages. Layers without a window hold all positions.
    pub(super) fn holds_before(&self, reached: usize, pos: usize) -> bool {
        self.window.is_none_or(|WindowPlan { window, ring_pages, .. }| {
            let oldest = reached.div_ceil(KV_PAGE).saturating_sub(ring_pages) * KV_PAGE;
            oldest <= first_visible(pos, window)
        })
    }

    /// Assigns `page` to a stream's positions from `index * KV_PAGE` on, and `window`, if there is one, to
    /// the same positions in layers with a window.
    pub(crate) fn set_page(&mut self, stream: usize, index: usize, page: u32, window: Option<u32>) {
        let PageGroup { n, tables, .. } = &mut self.whole;
        tables[stream * *n + index] = page;
        if let Some(window) = window {
            let PageGroup { n, tables, .. } = &mut self.windowed;
            tables[stream * *n + index % *n] = window;
        }
    }

    /// Range of a page, in units.
    pub(crate) fn page_range(&self, page: u32, is_windowed: bool) -> Range<usize> {
        let group = if is_windowed { &self.windowed } else { &self.whole };
        let start = group.start + page as usize * group.page;
        start..start + group.page
    }

    /// Whether the stream, the index and the pages of `change` exist.
    pub(super) fn has(&self, change: &PageChange) -> bool {
        let PageChange { stream, index, to, from } = *change;
        let is_page = |PagePair { page, window }: PagePair| {
            let has_window = |window| (window as usize) < self.windowed.n_pages;
            (page as usize) < self.whole.n_pages && window.is_none_or(has_window)
        };
        index < self.whole.n
            && stream < self.whole.tables.len() / self.whole.n
            && is_page(to)
            && from.is_none_or(is_page)
    }

    /// Range of a layer's part of a page, in units; `None` if it does not exist, or is an earlier layer's.
    pub(crate) fn part_range(&self, layer: usize, page: usize) -> Option<Range<usize>> {
        let is_stored = self.layers.get(layer).is_some_and(|layer| layer.is_stored);
        let is_there = is_stored && page < self.group(layer).n_pages;
        is_there.then(|| {
            let (group, own) = (self.group(layer), &self.layers[layer]);
            let start = group.start + page * group.page + own.start;
            start..start + own.part.of_layer()
        })
    }

    /// Numbers by which a device finds the keys and values of a layer.
    #[cfg(feature = "gpu")]
    pub(crate) fn places(&self, layer: usize) -> LayerPlaces {
        let (group, own) = (self.group(layer), &self.layers[layer]);
        LayerPlaces {
            is_windowed: own.is_windowed,
            start: group.start + own.start,
            page: group.page,
            table_len: group.n,
            head: own.part.of_head()[0],
        }
    }

    /// Page tables of all streams, for layers with a window or for the others: `[n_streams, table_len]`.
    #[cfg(feature = "gpu")]
    pub(crate) fn tables(&self, is_windowed: bool) -> &[u32] {
        if is_windowed { &self.windowed.tables } else { &self.whole.tables }
    }

    fn group(&self, layer: usize) -> &PageGroup {
        if self.layers[layer].is_windowed { &self.windowed } else { &self.whole }
    }

    /// Unit at which a layer's part of the page of `pos` begins.
    fn place(&self, lane: KvLane, pos: usize) -> usize {
        let group = self.group(lane.layer);
        let page = group.table(lane.stream)[pos / KV_PAGE % group.n] as usize;
        group.start + page * group.page + self.layers[lane.layer].start
    }
}

impl PageGroup {
    fn new(start: usize, page: usize, (n_streams, n, n_pages): (usize, usize, usize)) -> PageGroup {
        // Until the tables are set, any page will do.
        let tables = (0..n_streams * n).map(|index| (index % n_pages.max(1)) as u32).collect();
        PageGroup { start, page, n, n_pages, tables }
    }

    fn table(&self, stream: usize) -> &[u32] {
        &self.tables[stream * self.n..][..self.n]
    }
}

/// First position that the token at `pos` attends to in a layer with this window.
pub(super) fn first_visible(pos: usize, window: usize) -> usize {
    (pos + 1).saturating_sub(window)
}

impl<'a> KvValues<'a> {
    /// The units of `range` as bytes.
    pub(super) fn into_bytes(self, range: Range<usize>) -> &'a mut [u8] {
        match self {
            KvValues::F16(kv) => bytemuck::cast_slice_mut(&mut kv[range]),
            KvValues::F32(kv) => bytemuck::cast_slice_mut(&mut kv[range]),
            KvValues::Int8(kv) => bytemuck::cast_slice_mut(&mut kv[range]),
        }
    }
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
        let part = shape.layers[lane.layer].part;
        let head_dim = part.head_dim();
        let rows = k.chunks_exact(head_dim).chain(v.chunks_exact(head_dim));
        let (at, pos) = (shape.place(lane, pos), pos % KV_PAGE);
        let row = pos * head_dim..(pos + 1) * head_dim;
        for (index, (x, head)) in rows.zip(part.heads()).enumerate() {
            let head = at + head.start..at + head.end;
            match self {
                KvValues::F16(kv) => kernels.store_kv(x, &mut kv[head][row.clone()]),
                KvValues::F32(kv) => kv[head][row.clone()].copy_from_slice(x),
                KvValues::Int8(kv) if index < part.n_kv_heads() => {
                    kernels.store_key_i8(x, &mut kv[head], pos);
                }
                KvValues::Int8(kv) => kernels.store_value_i8(x, &mut kv[head], pos),
            }
        }
    }

    /// Copies the units of `from` to where `to` begins.
    pub(super) fn copy(&mut self, from: Range<usize>, to: Range<usize>) {
        match self {
            KvValues::F16(kv) => kv.copy_within(from, to.start),
            KvValues::F32(kv) => kv.copy_within(from, to.start),
            KvValues::Int8(kv) => kv.copy_within(from, to.start),
        }
    }

    /// Keys and values of `head` in the stream and layer of `lane`.
    pub(super) fn pages<'a>(
        &'a self,
        shape: &'a KvShape,
        lane: KvLane,
        head: usize,
    ) -> KvPages<'a> {
        let group = shape.group(lane.layer);
        let KvLayer { start, part, .. } = shape.layers[lane.layer];
        let [of_key, of_value] = part.of_head();
        KvPages {
            stored: match self {
                KvValues::F16(kv) => KvStored::F16(&kv[group.start..]),
                KvValues::F32(kv) => KvStored::F32(&kv[group.start..]),
                KvValues::Int8(kv) => KvStored::Int8(&kv[group.start..]),
            },
            table: group.table(lane.stream),
            page_shift: KV_PAGE.ilog2(),
            page_step: group.page,
            keys_at: start + head * of_key,
            values_at: start + part.of_keys() + head * of_value,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::format::model::{Features, FullHeads, LayerSet, MoreFeatures, Weights};
    use crate::model::KvKind;

    const PLAN: Plan = Plan {
        ctx_len: 1000,
        max_batch: 40,
        max_logits: 1,
        n_streams: 2,
        kv: KvKind::F32,
        kv_pages: None,
    };

    /// Three heads of 4 values in three layers; only the middle layer has no window.
    fn header() -> Header {
        let full_layers = LayerSet::new(1..2).unwrap();
        Header {
            n_layers: 3,
            n_heads: 3,
            n_kv_heads: 3,
            head_dim: 4,
            sliding_window: Some(60),
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
        // The result does not depend on which layers have windows.
        for layers in [0..3, 1..2] {
            let shape = KvShape::new(&header(), layers, &PLAN);
            assert!((0..=192).all(|pos| shape.holds_before(192, pos)));
            // The first of four pages is overwritten; the token at 123 attends back to 64.
            assert!(shape.holds_before(193, 123));
            assert!(!shape.holds_before(193, 122));
            assert!(shape.holds_before(256, 123));
        }
        let whole = Header { sliding_window: None, ..header() };
        assert!(KvShape::new(&whole, 0..3, &PLAN).holds_before(1000, 1));
    }

    /// In a layer with a window a stream has three pages, in one without it has sixteen. No places overlap.
    #[test]
    fn layers_have_what_their_windows_need_and_do_not_overlap() {
        for (layers, kv) in [(0..3, KvKind::F32), (1..3, KvKind::F16), (0..3, KvKind::Int8)] {
            let plan = Plan { kv, ..PLAN };
            let shape = KvShape::new(&header(), layers.clone(), &plan);
            let mut places: Vec<usize> = Vec::new();
            for (layer, stream) in (0..layers.len()).flat_map(|layer| [(layer, 0), (layer, 1)]) {
                let n = if layers.start + layer == 1 { 16 * KV_PAGE } else { 3 * KV_PAGE };
                let lane = KvLane { stream, layer };
                assert_eq!(shape.place(lane, 0), shape.place(lane, n));
                for page in (0..n).step_by(KV_PAGE) {
                    let at = shape.place(lane, page);
                    assert!((page..page + KV_PAGE).all(|pos| shape.place(lane, pos) == at));
                    let heads = shape.layers[layer].part.heads();
                    places.extend(heads.flat_map(|head| at + head.start..at + head.end));
                }
            }
            places.sort_unstable();
            assert!(places.windows(2).all(|pair| pair[0] < pair[1]));
            assert_eq!(places.len(), plan.kv_units(&header(), layers));
        }
    }

    /// Layers 0 and 1 store their own keys and values, of unlike heads; 2 and 3 store none.
    #[test]
    fn layers_that_use_others_keys_and_values_take_no_room() {
        let full_layers = LayerSet::new([1, 3].into_iter()).unwrap();
        let more = MoreFeatures {
            full_heads: Some(FullHeads { head_dim: 8, n_kv_heads: 1 }),
            n_shared_kv: 2,
            ..MoreFeatures::default()
        };
        let features = Features { full_layers, more, ..Features::default() };
        let header = Header { n_layers: 4, features, ..header() };
        for ctx_len in [1000, 40] {
            let plan = Plan { ctx_len, ..PLAN };
            let shape = KvShape::new(&header, 0..4, &plan);
            let lane = |layer| KvLane { stream: 1, layer };
            for pos in [0, 30, ctx_len - 1] {
                assert_eq!(shape.place(lane(0), pos), shape.place(lane(2), pos));
                assert_eq!(shape.place(lane(1), pos), shape.place(lane(3), pos));
                assert_ne!(shape.place(lane(0), pos), shape.place(lane(1), pos));
            }
            let units: usize = (0..2).map(|layer| plan.kv_units(&header, layer..layer + 1)).sum();
            assert_eq!(plan.kv_units(&header, 0..4), units);
            assert_eq!(plan.kv_units(&header, 2..4), 0);
            let part_len = |layer| shape.part_range(layer, 0).map(|units| units.len());
            let len = KV_PAGE.min(ctx_len);
            let wanted = [Some(2 * 3 * 4 * len), Some(2 * 8 * len), None, None];
            assert_eq!([0, 1, 2, 3].map(part_len), wanted);
        }
    }

    #[test]
    fn a_short_context_has_a_page_of_its_length() {
        let plan = Plan { ctx_len: 5, ..PLAN };
        assert_eq!(plan.kv_units(&header(), 0..3), 2 * 3 * 5 * 24);
        // One block, with 9 lines for each key and 9 for each value.
        let plan = Plan { kv: KvKind::Int8, ..plan };
        assert_eq!(plan.kv_units(&header(), 0..3), 2 * 3 * 3 * 18);
    }
}
