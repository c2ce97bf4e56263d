//! Conversions between the model's types (`usize`, its own floats) and those of frames.

use crate::engine::prefix::{Kind, PageToRead, PromptPage, Text};
use crate::model::{
    Batch, KV_PAGE, KvKind, PageChange, PagePair, Plan, Precision, Span, StateUse, Wants,
};
use crate::ring::PagesToRead;
use crate::wire::datagram::FRAME_MAX;
use crate::wire::frame::{
    FETCH_LEN, FetchKind, FetchPage, FrameKeep, FramePage, FrameSpan, FrameWants, HEADER_LEN,
    KEEP_IDS, Sizes,
};
use crate::wire::{Dtype, KvType};

/// Maximum number of streams, and of rows of a batch: frames number them in 16 bits.
pub(in crate::engine) const COUNT_MAX: u16 = u16::MAX;

/// Converts `span` for a frame; `None` if a number does not fit.
fn to_frame(span: &Span) -> Option<FrameSpan> {
    Some(FrameSpan {
        stream: span.stream.try_into().ok()?,
        pos: span.pos.try_into().ok()?,
        n_rows: span.n_rows.try_into().ok()?,
        is_long: span.is_long,
        state: [checkpoint(span.state.from)?, checkpoint(span.state.to)?],
        wants: match span.wants {
            Wants::None => FrameWants::None,
            Wants::Last => FrameWants::Last,
            Wants::All => FrameWants::All,
        },
    })
}

/// Converts the number of a checkpoint for a frame; `None` if it does not fit.
fn checkpoint(index: Option<u32>) -> Option<Option<u8>> {
    match index {
        None => Some(None),
        Some(index) => u8::try_from(index).ok().filter(|index| *index < u8::MAX).map(Some),
    }
}

/// Converts `spans` for a frame; `None` if a number does not fit.
pub(in crate::engine) fn to_frames(spans: &[Span], out: &mut Vec<FrameSpan>) -> Option<()> {
    out.clear();
    spans.iter().try_for_each(|span| to_frame(span).map(|span| out.push(span)))
}

/// Writes the batch of a frame's spans and `tokens` to `out`.
pub(in crate::engine) fn batch(spans: &[FrameSpan], mut tokens: &[u32], out: &mut Batch) {
    out.clear();
    for span in spans.iter().map(from_frame) {
        let (first, rest) = tokens.split_at(span.n_rows);
        out.push(span, first);
        tokens = rest;
    }
}

/// Converts a frame's span for the model.
pub(in crate::engine) fn from_frame(span: &FrameSpan) -> Span {
    Span {
        stream: span.stream.into(),
        pos: span.pos as usize,
        n_rows: span.n_rows.into(),
        is_long: span.is_long,
        state: StateUse { from: span.state[0].map(u32::from), to: span.state[1].map(u32::from) },
        wants: match span.wants {
            FrameWants::None => Wants::None,
            FrameWants::Last => Wants::Last,
            FrameWants::All => Wants::All,
        },
    }
}

/// Converts `change` for a frame. Its numbers fit, because those of the plan do.
pub(in crate::engine) fn to_page(change: &PageChange) -> FramePage {
    let pair = |pair: PagePair| (pair.page, pair.window);
    FramePage {
        stream: change.stream as u16,
        index: change.index as u32,
        to: pair(change.to),
        from: change.from.map(pair),
    }
}

/// Converts a frame's page for the model.
pub(in crate::engine) fn from_page(page: &FramePage) -> PageChange {
    let pair = |(page, window)| PagePair { page, window };
    PageChange {
        stream: page.stream.into(),
        index: page.index as usize,
        to: pair(page.to),
        from: page.from.map(pair),
    }
}

/// Converts a page to keep for a frame.
pub(in crate::engine) fn to_keep(page: &PromptPage<'_>) -> FrameKeep {
    let mut ids = [0; KEEP_IDS];
    ids[..page.ids.len()].copy_from_slice(page.ids);
    FrameKeep {
        stream: page.stream as u16,
        is_long: page.is_long,
        index: page.index as u32,
        n_whole: page.n_whole as u32,
        at: (page.at.page, page.at.window),
        state: page.state.and_then(|number| u8::try_from(number).ok()),
        n_ids: page.ids.len() as u8,
        ids,
    }
}

/// Converts a frame's page to keep for the engine.
pub(in crate::engine) fn from_keep(page: &FrameKeep) -> PromptPage<'_> {
    PromptPage {
        stream: page.stream.into(),
        is_long: page.is_long,
        index: page.index as usize,
        n_whole: page.n_whole as usize,
        ids: page.ids(),
        at: PagePair { page: page.at.0, window: page.at.1 },
        state: page.state.map(u32::from),
    }
}

/// Converts pages to read for a frame, up to the number that fits.
pub(in crate::engine) fn to_read((ids, is_long): Text<'_>, pages: &[PageToRead]) -> PagesToRead {
    let room = FRAME_MAX.saturating_sub(HEADER_LEN + pages.len() * FETCH_LEN) / 4;
    let ids = &ids[..ids.len().min(room)];
    let has_ids = |page: &&PageToRead| page.index < ids.len().div_ceil(KV_PAGE);
    let is_cut = ids.len() == room;
    let pages = pages.iter().take_while(has_ids).take(u16::MAX.into());
    let pages = pages.map(|page| FetchPage {
        index: page.index as u32,
        kind: match page.kind {
            Kind::Whole => FetchKind::Whole,
            Kind::Windowed => FetchKind::Windowed,
            Kind::State => FetchKind::State,
        },
        page: page.page,
    });
    // A page that is cut off would have another name.
    let len = if is_cut { ids.len() / KV_PAGE * KV_PAGE } else { ids.len() };
    PagesToRead { is_long, ids: ids[..len].to_vec(), pages: pages.collect() }
}

/// Converts a frame's pages to read for the engine.
pub(in crate::engine) fn from_read(pages: &[FetchPage]) -> Vec<PageToRead> {
    let page = |page: &FetchPage| PageToRead {
        index: page.index as usize,
        kind: match page.kind {
            FetchKind::Whole => Kind::Whole,
            FetchKind::Windowed => Kind::Windowed,
            FetchKind::State => Kind::State,
        },
        page: page.page,
    };
    pages.iter().map(page).collect()
}

/// Sizes that all nodes of a ring use for `plan`; `None` if a number does not fit into a frame.
pub(in crate::engine) fn sizes(plan: &Plan, dim: usize, wire: Dtype) -> Option<Sizes> {
    let n_pages = plan.kv_pages.unwrap_or_else(|| {
        let of_context = plan.ctx_len.div_ceil(KV_PAGE).max(1);
        of_context.saturating_mul(plan.n_streams)
    });
    Some(Sizes {
        ctx_len: u32::try_from(plan.ctx_len).ok()?,
        n_streams: u16::try_from(plan.n_streams).ok()?,
        n_pages: u32::try_from(n_pages).ok()?,
        max_batch: u16::try_from(plan.max_batch).ok()?,
        max_logits: u16::try_from(plan.max_logits).ok()?,
        kv: match plan.kv {
            KvKind::F16 => KvType::F16,
            KvKind::F32 => KvType::F32,
            KvKind::Int8 => KvType::Int8,
        },
        wire,
        dim: u32::try_from(dim).ok()?,
    })
}

/// The plan with these sizes.
pub(in crate::engine) fn plan(sizes: &Sizes) -> Plan {
    Plan {
        ctx_len: sizes.ctx_len as usize,
        max_batch: sizes.max_batch.into(),
        max_logits: sizes.max_logits.into(),
        n_streams: sizes.n_streams.into(),
        kv: match sizes.kv {
            KvType::F16 => KvKind::F16,
            KvType::F32 => KvKind::F32,
            KvType::Int8 => KvKind::Int8,
        },
        kv_pages: Some(sizes.n_pages as usize),
    }
}

/// Format of floats of type `dtype`.
pub(in crate::engine) fn precision(dtype: Dtype) -> Precision {
    match dtype {
        Dtype::F16 => Precision::F16,
        Dtype::F32 => Precision::F32,
    }
}

/// A frame has room for the ids of a page.
const _: () = assert!(KEEP_IDS == KV_PAGE);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_come_back_and_none_is_cut_to_fit() {
        let span = Span {
            stream: 65_535,
            pos: 1 << 31,
            n_rows: 65_535,
            wants: Wants::Last,
            is_long: false,
            state: StateUse { from: Some(3), to: Some(253) },
        };
        for wants in [Wants::None, Wants::Last, Wants::All] {
            let span = Span { wants, ..span };
            assert_eq!(to_frame(&span).map(|span| from_frame(&span)), Some(span));
        }
        assert_eq!(to_frame(&Span { stream: 65_536, ..span }), None);
        assert_eq!(to_frame(&Span { n_rows: 65_536, ..span }), None);
        assert_eq!(to_frame(&Span { pos: 1 << 32, ..span }), None);
        let state = StateUse { from: None, to: Some(255) };
        assert_eq!(to_frame(&Span { state, ..span }), None);
    }
}
