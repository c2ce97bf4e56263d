//! Keys and values in a device's memory.

use std::ops::Range;
use std::sync::Arc;

use super::device::Handle;
use super::error::GpuError;
use super::memory::{Memory, Place};
use crate::format::model::Header;
use crate::model::{KvKind, KvShape, LayerPlaces, PageChange, Plan};

/// Keys and values of some layers, in pages like the CPUs', and the streams' tables of pages.
pub(super) struct Places {
    pub(super) kv: Memory,
    pub(super) kind: KvKind,
    pub(super) shape: KvShape,
    /// Tables of the pages for layers without a window, and of those with one.
    tables: [Memory; 2],
    is_changed: bool,
}

impl Places {
    pub(super) fn new(
        handle: &Arc<Handle>,
        header: &Header,
        layers: Range<usize>,
        plan: &Plan,
    ) -> Result<Places, GpuError> {
        let shape = KvShape::new(header, layers.clone(), plan);
        let unit_bytes = plan.kv.unit_bytes();
        let bytes = plan.kv_units(header, layers) as u64 * unit_bytes as u64;
        let table = |is_windowed| {
            let bytes = size_of_val(shape.tables(is_windowed)) as u64;
            Memory::new(handle, bytes, Place::Host)
        };
        let tables = [table(false)?, table(true)?];
        let kv = Memory::new(handle, bytes, Place::Device)?;
        Ok(Places { kv, kind: plan.kv, tables, is_changed: true, shape })
    }

    /// Changes a page of a stream. Returns the ranges of bytes to copy, `(from, to)`.
    pub(super) fn change(&mut self, change: &PageChange) -> Vec<(Range<u64>, Range<u64>)> {
        let PageChange { stream, index, to, from } = *change;
        self.shape.set_page(stream, index, to.page, to.window);
        self.is_changed = true;
        let Some(from) = from else { return Vec::new() };
        let windows = from.window.zip(to.window).map(|(from, to)| (from, to, true));
        let pages = [Some((from.page, to.page, false)), windows].into_iter().flatten();
        let range = |page, is_windowed| self.bytes_of(self.shape.page_range(page, is_windowed));
        pages.map(|(from, to, of)| (range(from, of), range(to, of))).collect()
    }

    /// Bytes of a layer's part of a page; `None` if it does not exist. `layer` is counted from the first here.
    pub(super) fn part(&self, layer: usize, page: usize) -> Option<Range<u64>> {
        self.shape.part_range(layer, page).map(|units| self.bytes_of(units))
    }

    fn bytes_of(&self, units: Range<usize>) -> Range<u64> {
        let bytes = |unit: usize| unit as u64 * self.kind.unit_bytes() as u64;
        bytes(units.start)..bytes(units.end)
    }

    /// Makes changed tables visible to the device.
    pub(super) fn write_tables(&mut self) {
        if !std::mem::take(&mut self.is_changed) {
            return;
        }
        for (memory, is_windowed) in self.tables.iter_mut().zip([false, true]) {
            let table = self.shape.tables(is_windowed);
            memory.as_mut_slice()[..table.len()].copy_from_slice(table);
        }
    }

    /// Where a layer's keys and values lie, and the address of its table. `layer` is counted from the first here.
    pub(super) fn of_layer(&self, layer: usize) -> (LayerPlaces, u64) {
        let places = self.shape.places(layer);
        (places, self.tables[usize::from(places.is_windowed)].address)
    }
}
