//! A stand-in for layers, and what they store.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use crate::ring::{Held, KvPart, KvParts, PagesToRead, Rows};
use crate::simulation::mix;
use crate::wire::Dtype;
use crate::wire::frame::{FrameKeep, FramePage, FrameSpan, KvPiece, Sizes, Streams};

/// Positions of a page of the stand-in model's keys and values.
pub(super) const PAGE: usize = 4;
/// Bytes that a node may copy of them: not always enough.
pub(super) const ROOM: u64 = 3072;

/// Some layers of the stand-in model: a value depends on the layer and on all values before it
/// in its stream.
pub(super) struct Layers {
    pub(super) layers: Range<u32>,
    /// Stored values of each layer, `[layers][n_pages]`; zeros where nothing is stored.
    kv: Vec<Vec<[u64; PAGE]>>,
    /// The pages of each stream.
    tables: Vec<Vec<u32>>,
    /// The values of the batch, by row.
    pub(super) x: Vec<u64>,
    dim: usize,
}

impl Layers {
    pub(super) fn new(layers: Range<u32>, dim: u32) -> Layers {
        Layers { layers, kv: Vec::new(), tables: Vec::new(), x: Vec::new(), dim: dim as usize }
    }

    /// Has these layers from now on, and so many pages and streams, all empty.
    pub(super) fn open(&mut self, layers: Range<u32>, n_pages: usize, n_streams: usize) {
        self.kv = vec![vec![[0; PAGE]; n_pages]; layers.len()];
        self.tables = vec![Vec::new(); n_streams];
        self.layers = layers;
    }

    /// Implements [`Rows::set_page`].
    pub(super) fn set_page(&mut self, page: &FramePage) -> bool {
        let FramePage { index, to: (to, _), from, .. } = *page;
        let table = &mut self.tables[usize::from(page.stream)];
        table.resize(table.len().max(index as usize + 1), u32::MAX);
        table[index as usize] = to;
        if let Some((from, _)) = from {
            self.kv.iter_mut().for_each(|pages| pages[to as usize] = pages[from as usize]);
        }
        true
    }

    pub(super) fn run(&mut self, spans: &[FrameSpan]) {
        let mut rows = self.x.iter_mut();
        for span in spans {
            let table = &self.tables[usize::from(span.stream)];
            let place = |pos: usize| (table[pos / PAGE] as usize, pos % PAGE);
            for pos in span.pos as usize..span.pos as usize + usize::from(span.n_rows) {
                let x = rows.next().expect("spans have as many rows as were put");
                let (page, at) = place(pos);
                for (layer, pages) in self.layers.clone().zip(&mut self.kv) {
                    // Where a token was lost there is none, or another one's: the wrong value shows it.
                    let before = pos.checked_sub(1).map_or(0, |before| {
                        let (page, at) = place(before);
                        pages[page][at]
                    });
                    let value = mix(mix(layer.into(), before), *x);
                    pages[page][at] = value;
                    *x = value;
                }
            }
        }
    }

    fn page(&mut self, part: KvPart) -> Option<&mut [u64; PAGE]> {
        let layer = part.layer.checked_sub(self.layers.start)?;
        self.kv.get_mut(layer as usize)?.get_mut(part.page as usize)
    }

    fn read(&mut self, first: usize, bytes: &[u8]) {
        let rows = bytes.chunks_exact(self.dim * 4);
        self.x.resize(self.x.len().max(first + rows.len()), 0);
        for (x, row) in self.x[first..].iter_mut().zip(rows) {
            let (words, rest) = row.as_chunks::<8>();
            let value = u64::from_le_bytes(words[0]);
            // The row's other bytes are made from the first.
            let fill = value as u8;
            assert!(rest.iter().all(|&b| b == fill) && words[1..].iter().all(|w| *w == [fill; 8]));
            *x = value;
        }
    }
}

impl KvParts for Layers {
    fn part_bytes(&self, _: u32) -> Option<usize> {
        Some(PAGE * 8)
    }

    fn is_windowed(&self, _: u32) -> bool {
        false
    }

    fn read(&mut self, part: KvPart, out: &mut [u8]) -> bool {
        let Some(page) = self.page(part) else { return false };
        for (value, out) in page.iter().zip(out.as_chunks_mut::<8>().0) {
            *out = value.to_le_bytes();
        }
        true
    }

    fn write(&mut self, part: KvPart, first: usize, bytes: &[u8]) -> bool {
        let Some(page) = self.page(part).and_then(|page| page.get_mut(first / 8..)) else {
            return false;
        };
        let (values, rest) = bytes.as_chunks::<8>();
        let is_fit = rest.is_empty() && values.len() <= page.len() && first.is_multiple_of(8);
        for (value, bytes) in page.iter_mut().zip(values) {
            *value = u64::from_le_bytes(*bytes);
        }
        is_fit
    }
}

/// Key of a page in a node's files: the node, its layers, and the text up to the page's end.
type PageKey = (usize, Range<u32>, Vec<u32>);

/// Files of all nodes, which outlive them: all layers' values by page.
pub(super) type Files = Arc<Mutex<HashMap<PageKey, Vec<[u64; PAGE]>>>>;

/// The layers of a node, and what it has stored.
pub(super) struct Stored {
    node: usize,
    files: Option<Files>,
    /// Text of each stream, for PAGES.
    texts: Vec<Vec<u32>>,
    pub(super) layers: Layers,
    pub(super) held: Held,
}

impl Stored {
    pub(super) fn new(node: usize, files: Option<Files>, layers: Layers, held: Held) -> Stored {
        Stored { node, files, texts: vec![Vec::new(); 8], layers, held }
    }

    /// The name of a page's file, unless that is one that the node has no room for.
    fn key(&self, text: &[u32]) -> Option<PageKey> {
        let node = mix(self.node as u64, text.len() as u64);
        let has_room = !mix(node, text[text.len() - 1].into()).is_multiple_of(7);
        has_room.then(|| (self.node, self.layers.layers.clone(), text.to_vec()))
    }

    /// Reads pages, no more than `n_max`.
    pub(super) fn read_pages(
        &mut self,
        (wanted, n_max): (&PagesToRead, usize),
        (epoch, sizes): (u32, &Sizes),
    ) -> usize {
        let Some(files) = self.files.clone() else { return 0 };
        let files = files.lock().unwrap();
        let mut n = 0;
        for page in wanted.pages.iter().take(n_max) {
            let key = self.key(&wanted.ids[..(page.index as usize + 1) * PAGE]);
            let Some(values) = key.and_then(|key| files.get(&key)) else { break };
            for (pages, values) in self.layers.kv.iter_mut().zip(values) {
                pages[page.page as usize] = *values;
            }
            self.held.has_read(page, sizes);
            n += 1;
        }
        if n > 0 {
            self.held.computed(epoch, sizes);
        }
        n
    }
}

impl Rows for Stored {
    fn keep(&mut self, page: &FrameKeep, _: &Sizes) -> bool {
        let text = &mut self.texts[usize::from(page.stream)];
        if page.index == 0 {
            text.clear();
        }
        if text.len() != page.index as usize * PAGE {
            return true;
        }
        text.extend_from_slice(page.ids());
        let key = self.key(&self.texts[usize::from(page.stream)]);
        if let Some((files, key)) = self.files.as_ref().zip(key) {
            let at = page.at.0 as usize;
            let values: Vec<[u64; PAGE]> = self.layers.kv.iter().map(|pages| pages[at]).collect();
            files.lock().unwrap().insert(key, values);
        }
        true
    }

    fn set_page(&mut self, page: &FramePage, sizes: &Sizes) -> bool {
        self.held.has_page(page, sizes);
        self.layers.set_page(page)
    }

    fn put(&mut self, first: usize, dtype: Dtype, bytes: &[u8]) {
        assert_eq!(dtype, Dtype::F32);
        self.layers.read(first, bytes);
    }

    fn get(&mut self, row: usize, _: Dtype, out: &mut [u8]) {
        out.fill(self.layers.x[row] as u8);
        out[..8].copy_from_slice(&self.layers.x[row].to_le_bytes());
    }

    fn give_kv(&mut self, out: &mut [u8]) -> Option<KvPiece> {
        self.held.give(&self.layers.layers, out)
    }

    fn take_kv(&mut self, piece: &KvPiece, bytes: &[u8], sizes: &Sizes) -> Option<bool> {
        let is_own = self.layers.layers.contains(&piece.layer);
        is_own.then(|| self.held.take(piece, (bytes, sizes), &mut self.layers))
    }

    fn moved(&mut self, epoch: u32, sizes: &Sizes) {
        self.held.moved(epoch, sizes);
    }
}

impl Stored {
    /// Loses what was stored, as a team does of which a board is lost.
    pub(super) fn lose_kv(&mut self) {
        let n_pages = self.layers.kv.first().map_or(0, Vec::len);
        self.layers.open(self.layers.layers.clone(), n_pages, self.layers.tables.len());
        self.held.clear();
    }

    /// Has these layers from now on; streams go on from epoch `from`, if that is known.
    pub(super) fn open(
        &mut self,
        layers: &Range<u32>,
        from: Option<u32>,
        sizes: &Sizes,
    ) -> Streams {
        if self.held.is_intact(from, sizes) && self.layers.layers == *layers {
            return Streams::Kept;
        }
        if from.is_some() {
            self.held.set_aside(self.layers.layers.clone(), ROOM, &mut self.layers);
        }
        self.layers.open(layers.clone(), sizes.n_pages as usize, sizes.n_streams.into());
        self.held.restore(from, (layers.clone(), sizes), &mut self.layers);
        if self.held.has(from, sizes) { Streams::Kept } else { Streams::Empty }
    }
}

/// The master's rows go out from the layers, and come back elsewhere.
pub(super) struct MasterRows<'a>(pub(super) &'a mut Stored, pub(super) &'a mut Vec<u64>);

impl Rows for MasterRows<'_> {
    fn keep(&mut self, page: &FrameKeep, sizes: &Sizes) -> bool {
        self.0.keep(page, sizes)
    }

    fn set_page(&mut self, page: &FramePage, sizes: &Sizes) -> bool {
        self.0.set_page(page, sizes)
    }

    fn put(&mut self, first: usize, dtype: Dtype, bytes: &[u8]) {
        assert_eq!(dtype, Dtype::F32);
        let x = std::mem::take(self.1);
        let dim = self.0.layers.dim;
        let mut returned = Layers { x, dim, ..Layers::new(0..0, 0) };
        returned.read(first, bytes);
        *self.1 = returned.x;
    }

    fn get(&mut self, row: usize, dtype: Dtype, out: &mut [u8]) {
        self.0.get(row, dtype, out);
    }

    fn give_kv(&mut self, out: &mut [u8]) -> Option<KvPiece> {
        self.0.give_kv(out)
    }

    fn take_kv(&mut self, piece: &KvPiece, bytes: &[u8], sizes: &Sizes) -> Option<bool> {
        self.0.take_kv(piece, bytes, sizes)
    }

    fn moved(&mut self, epoch: u32, sizes: &Sizes) {
        self.0.moved(epoch, sizes);
    }
}
