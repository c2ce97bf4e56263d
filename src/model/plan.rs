//! Sizes of a run, decided and checked before the first token.

use std::fmt;
use std::ops::Range;

use super::kv_kind::{KvKind, KvPart};
use super::share::Share;
use crate::format::model::Header;

/// Most streams of a run: far more than a machine answers at the same time, and few enough that their tables are made at
/// once.
const STREAMS_MAX: usize = 1 << 20;

/// Sizes of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Longest context of a stream, in tokens.
    pub ctx_len: usize,
    /// Most rows of one forward pass.
    pub max_batch: usize,
    /// Most rows of one forward pass whose logits are wanted.
    pub max_logits: usize,
    /// Number of streams with a KV cache of their own.
    pub n_streams: usize,
    /// Format of stored keys and values.
    pub kv: KvKind,
    /// Number of pages of the KV cache; `None` for full contexts of all streams.
    pub kv_pages: Option<usize>,
}

/// Checkpoints of states for each stream, and the fewest and most in all. Frames of a ring have a byte for their number.
const CHECKPOINTS_PER_STREAM: usize = 2;
const CHECKPOINTS_MIN: usize = 4;
const CHECKPOINTS_MAX: usize = 254;

/// Positions in a page of the KV cache: whole softmax blocks, so that a block's keys lie together.
pub const KV_PAGE: usize = 64;

/// Pages of the KV cache. Each stream has a table of its positions' pages, and a second table for layers with
/// a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvPlan {
    /// Number of pages of a full context.
    pub ctx_pages: usize,
    /// Number of pages for layers without a window.
    pub n_pages: usize,
    /// Pages for layers with a window, if the window is shorter than the context.
    pub window: Option<WindowPlan>,
    /// Number of checkpoints of states; 0 in models without recurrent layers.
    pub checkpoints: usize,
}

/// Pages for layers with a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowPlan {
    /// Positions that a token attends to, including its own.
    pub window: usize,
    /// Number of pages that a stream needs at a time, wherever in a page its batches begin.
    pub ring_pages: usize,
    /// Number of pages in all.
    pub n_pages: usize,
}

/// A page of the KV cache, with the page for layers with a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagePair {
    /// Page for layers without a window.
    pub page: u32,
    /// Page for layers with a window; `None` if there is none, or it does not change.
    pub window: Option<u32>,
}

/// A new page of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageChange {
    /// Index of the stream.
    pub stream: usize,
    /// Index of the page in the stream's table.
    pub index: usize,
    /// Pages that hold the stream's positions after the change.
    pub to: PagePair,
    /// Pages to copy there first, if any.
    pub from: Option<PagePair>,
}

/// Why a plan is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanError {
    /// The context is longer than the model allows, or empty.
    ContextLength {
        /// Tokens asked for.
        wanted: usize,
        /// Tokens the model allows.
        max: usize,
    },
    /// A count is 0: rows of a batch, wanted logits or streams.
    Count(&'static str),
    /// More streams than [`STREAMS_MAX`] are asked for.
    Streams(usize),
    /// The KV cache has fewer pages than a context needs.
    KvPages {
        /// Tokens that the pages have room for.
        tokens: usize,
        /// Tokens of a context.
        ctx_len: usize,
    },
    /// The buffers would need more bytes than there are addresses.
    TooLarge,
    /// Boards cannot share the model's layers.
    Whole(&'static str),
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanError::ContextLength { wanted, max } => {
                write!(f, "context of {wanted} tokens, the model allows 1 to {max}")
            }
            PlanError::Count(what) => write!(f, "0 {what}, there has to be 1 at least"),
            PlanError::Streams(wanted) => {
                write!(f, "{wanted} streams, there may be {STREAMS_MAX} at most")
            }
            PlanError::KvPages { tokens, ctx_len } => write!(
                f,
                "memory for keys and values of {tokens} tokens, a context of {ctx_len} needs more"
            ),
            PlanError::TooLarge => write!(f, "context and batch need more memory than exists"),
            PlanError::Whole(why) => {
                write!(f, "several boards cannot share this model's layers: {why}")
            }
        }
    }
}

impl std::error::Error for PlanError {}

impl Plan {
    /// Checks whether the plan fits the model of `header`.
    ///
    /// # Errors
    /// The first size that does not fit.
    pub(crate) fn check(&self, header: &Header) -> Result<(), PlanError> {
        if self.ctx_len == 0 || self.ctx_len > header.max_seq_len {
            let max = header.max_seq_len;
            return Err(PlanError::ContextLength { wanted: self.ctx_len, max });
        }
        let counts = [
            ("streams", self.n_streams),
            ("rows of a batch", self.max_batch),
            ("logits of a batch", self.max_logits),
        ];
        if let Some((what, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return Err(PlanError::Count(what));
        }
        if self.n_streams > STREAMS_MAX {
            return Err(PlanError::Streams(self.n_streams));
        }
        match self.kv_pages {
            Some(n) if n < self.ctx_len.div_ceil(KV_PAGE) => {
                let tokens = n * KV_PAGE;
                Err(PlanError::KvPages { tokens, ctx_len: self.ctx_len })
            }
            _ => Ok(()),
        }
    }

    /// Number of checkpoints of states; 0 in models without recurrent layers.
    pub fn checkpoints(&self, header: &Header) -> usize {
        let n = CHECKPOINTS_PER_STREAM.saturating_mul(self.n_streams);
        if header.has_state() { n.clamp(CHECKPOINTS_MIN, CHECKPOINTS_MAX) } else { 0 }
    }

    /// Pages of a model's KV cache. They depend on the whole model, so all nodes of a ring have the same
    /// number.
    pub fn kv_plan(&self, header: &Header) -> KvPlan {
        let ctx_pages = self.ctx_len.div_ceil(KV_PAGE).max(1);
        let n_pages = self.kv_pages.unwrap_or(ctx_pages.saturating_mul(self.n_streams));
        // All layers with a window have the same one.
        let window = header.layers().find_map(|layer| layer.window);
        let window = window.and_then(|window| {
            let ring_pages = window.saturating_add(self.max_batch).div_ceil(KV_PAGE) + 1;
            // Room for as many contexts as the other layers have room for.
            let n_pages = n_pages.saturating_mul(ring_pages).div_ceil(ctx_pages).max(ring_pages);
            (ring_pages < ctx_pages).then_some(WindowPlan { window, ring_pages, n_pages })
        });
        KvPlan { ctx_pages, n_pages, window, checkpoints: self.checkpoints(header) }
    }

    /// Shape of a layer's part of a page. The page has the context's length if that is shorter.
    pub fn kv_part(&self, header: &Header) -> KvPart {
        KvPart::new(self.kv, header, KV_PAGE.min(self.ctx_len))
    }

    /// Shape of one layer's part of a page; `None` if it stores nothing.
    pub(crate) fn kv_part_of(&self, header: &Header, layer: usize) -> Option<KvPart> {
        let spec = header.layer(layer);
        let heads = (spec.n_kv_heads, spec.head_dim);
        let part = KvPart::with_heads(self.kv, heads, KV_PAGE.min(self.ctx_len));
        (spec.kv_layer == layer && spec.mixer.is_none()).then_some(part)
    }

    /// Units of a page of the KV cache: in those of `layers` without a window, and in those with one.
    /// Saturating.
    pub(super) fn page_units(&self, header: &Header, layers: Range<usize>) -> [usize; 2] {
        let windows = self.kv_plan(header).window;
        let is_windowed = |layer: usize| windows.is_some() && header.layer(layer).window.is_some();
        let mut units = [0usize; 2];
        for layer in layers {
            if let Some(part) = self.kv_part_of(header, layer) {
                let all = &mut units[usize::from(is_windowed(layer))];
                *all = all.saturating_add(part.of_layer());
            }
        }
        units
    }

    /// Bytes of the KV cache for one context, in whole pages.
    pub fn context_bytes(&self, header: &Header, share: &Share) -> usize {
        let [of_page, of_window_page] = self.page_units(header, share.layers.clone());
        let KvPlan { ctx_pages, window, .. } = self.kv_plan(header);
        let of_windows = window.map_or(0, |window| window.ring_pages * of_window_page);
        let units = ctx_pages.saturating_mul(of_page).saturating_add(of_windows);
        units.saturating_mul(self.kv.unit_bytes())
    }

    /// Number of pages of the KV cache in `bytes` bytes, for all layers of `whole`, the model with or without the block
    /// behind its last layer.
    pub fn pages_in(&self, bytes: u64, header: &Header, whole: &Share) -> usize {
        let of_context = self.context_bytes(header, whole);
        let KvPlan { ctx_pages, .. } = self.kv_plan(header);
        let pages = u128::from(bytes) * ctx_pages as u128 / of_context.max(1) as u128;
        usize::try_from(pages).unwrap_or(usize::MAX)
    }

    /// Units of the whole KV cache in `layers`, saturating.
    pub(crate) fn kv_units(&self, header: &Header, layers: Range<usize>) -> usize {
        let [of_page, of_window_page] = self.page_units(header, layers);
        let KvPlan { n_pages, window, .. } = self.kv_plan(header);
        let n_window_pages = window.map_or(0, |window| window.n_pages);
        let of_windows = n_window_pages.saturating_mul(of_window_page);
        n_pages.saturating_mul(of_page).saturating_add(of_windows)
    }
}
