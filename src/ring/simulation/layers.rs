//! A stand-in for layers, and what they store.

use std::ops::Range;

use crate::ring::{Held, KvPart, KvParts, Rows};
use crate::wire::Dtype;
use crate::wire::frame::{FrameSpan, KvPiece, Sizes, Streams};

pub(super) fn mix(a: u64, b: u64) -> u64 {
    let mut z = a.wrapping_add(b.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(1);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Positions of a page of the stand-in model's keys and values.
const PAGE: usize = 4;
/// Bytes that a node may copy of them: not always enough.
pub(super) const ROOM: u64 = 2048;

/// Some layers of the stand-in model: a value depends on the layer and on all values before it
/// in its stream.
pub(super) struct Layers {
    pub(super) layers: Range<u32>,
    /// What each stream has stored in each layer, by position, `[n_streams][layers][ctx_len]`; zeros where nothing is.
    kv: Vec<Vec<Vec<u64>>>,
    ctx_len: usize,
    /// The values of the batch, by row.
    pub(super) x: Vec<u64>,
    dim: usize,
}

impl Layers {
    pub(super) fn new(layers: Range<u32>, dim: u32, ctx_len: u32) -> Layers {
        let ctx_len = (ctx_len as usize).next_multiple_of(PAGE);
        Layers { layers, kv: Vec::new(), ctx_len, x: Vec::new(), dim: dim as usize }
    }

    /// Has these layers from now on, and `n_streams` empty streams.
    pub(super) fn open(&mut self, layers: Range<u32>, n_streams: usize) {
        self.kv = vec![vec![vec![0; self.ctx_len]; layers.len()]; n_streams];
        self.layers = layers;
    }

    pub(super) fn run(&mut self, spans: &[FrameSpan]) {
        let mut rows = self.x.iter_mut();
        for span in spans {
            let kv = &mut self.kv[usize::from(span.stream)];
            for pos in span.pos as usize..span.pos as usize + usize::from(span.n_rows) {
                let x = rows.next().expect("spans have as many rows as were put");
                for (layer, kv) in self.layers.clone().zip(&mut *kv) {
                    // Where a token was lost there is none, or another one's: the wrong value shows it.
                    let before = pos.checked_sub(1).map_or(0, |before| kv[before]);
                    let value = mix(mix(layer.into(), before), *x);
                    kv[pos] = value;
                    *x = value;
                }
            }
        }
    }

    fn page(&mut self, part: KvPart) -> Option<&mut [u64]> {
        let layer = part.layer.checked_sub(self.layers.start)?;
        let stored = self.kv.get_mut(usize::from(part.stream))?.get_mut(layer as usize)?;
        stored.chunks_exact_mut(PAGE).nth(part.page as usize)
    }

    fn read(&mut self, first: usize, bytes: &[u8]) {
        self.x.resize(first, 0);
        for row in bytes.chunks_exact(self.dim * 4) {
            let (words, rest) = row.as_chunks::<8>();
            let value = u64::from_le_bytes(words[0]);
            // The row's other bytes are made from the first.
            let fill = value as u8;
            assert!(rest.iter().all(|&b| b == fill) && words[1..].iter().all(|w| *w == [fill; 8]));
            self.x.push(value);
        }
    }
}

impl KvParts for Layers {
    fn part_bytes(&self) -> usize {
        PAGE * 8
    }

    fn pages(&self, _: u32, reached: u32) -> Range<u32> {
        0..reached.div_ceil(PAGE as u32)
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

/// The layers of a node, and what it has stored.
pub(super) struct Stored {
    pub(super) layers: Layers,
    pub(super) held: Held,
}

impl Rows for Stored {
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
    pub(super) fn lose(&mut self) {
        self.layers.open(self.layers.layers.clone(), self.layers.kv.len());
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
        self.layers.open(layers.clone(), sizes.n_streams.into());
        self.held.restore(from, (layers.clone(), sizes), &mut self.layers);
        if self.held.has(from, sizes) { Streams::Kept } else { Streams::Empty }
    }
}

/// The master's rows go out from the layers, and come back elsewhere.
pub(super) struct MasterRows<'a>(pub(super) &'a mut Stored, pub(super) &'a mut Vec<u64>);

impl Rows for MasterRows<'_> {
    fn put(&mut self, first: usize, dtype: Dtype, bytes: &[u8]) {
        assert_eq!(dtype, Dtype::F32);
        let x = std::mem::take(self.1);
        let dim = self.0.layers.dim;
        let mut returned = Layers { x, kv: Vec::new(), layers: 0..0, ctx_len: 0, dim };
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
