//! Writing frames.

use std::ops::Range;

use super::{
    ASSIGNED_LEN, Activations, BoardsReport, FIGURES_LEN, Fetch, FetchPage, FrameKeep, FramePage,
    FrameSpan, HEADER_LEN, KEEP_LEN, KEEPS_MAX, Kind, KvPiece, LINE_LEN, MAGIC, NODES_MAX,
    NodeLine, PAGE_LEN, PAGES_MAX, PART_AT, Part, Parts, Pass, Reason, Repr, SPAN_LEN, Sizes,
    Split, WHY_MAX, Work, WorkFigures, open_lines_at,
};
use crate::wire::boards;
use crate::wire::fields::{Writer, put};
use crate::wire::kept::emit_keep;
use crate::wire::kv::emit_page;
use crate::wire::line::emit_line;
use crate::wire::name::{NAME_MAX, put_text};
use crate::wire::span::emit_span;

/// Writes an OPEN into `out`, for an epoch and the earlier epoch that it continues. Returns the frame's length, `None`
/// if it does not fit.
pub fn emit_open(
    (epoch, from): (u32, Option<u32>),
    sizes: &Sizes,
    parts: Parts<'_>,
    lines: &[NodeLine],
    out: &mut [u8],
) -> Option<usize> {
    let (split, n_parts) = match parts {
        Parts::Layers(layers) => (Split::Layers, layers.len()),
        Parts::Rows { shares, node, has_ends } => (Split::Rows { node, has_ends }, shares.len()),
        Parts::Drafts => (Split::Drafts, 0),
    };
    let count = |n: usize| u16::try_from(n).ok().filter(|_| n <= NODES_MAX);
    let (n_assigned, n_lines) = (count(n_parts)?, count(lines.len())?);
    let bytes = open_lines_at(n_assigned) + lines.len() * LINE_LEN;
    let (header, body) = out.get_mut(..bytes)?.split_first_chunk_mut()?;
    Repr::Open { epoch, from, sizes: *sizes, split, n_assigned, n_lines }.emit(header);
    let (parts_out, body) = body.split_at_mut(n_parts * ASSIGNED_LEN);
    let parts_out = parts_out.as_chunks_mut::<ASSIGNED_LEN>().0;
    match parts {
        Parts::Layers(layers) => emit_layers(layers, parts_out),
        Parts::Rows { shares, .. } => emit_shares(shares, parts_out),
        Parts::Drafts => {}
    }
    for (line, out) in lines.iter().zip(body.as_chunks_mut::<LINE_LEN>().0) {
        emit_line(line, out);
    }
    Some(bytes)
}

fn emit_layers(layers: &[Range<u32>], out: &mut [[u8; ASSIGNED_LEN]]) {
    for (layers, out) in layers.iter().zip(out) {
        put(out, 0, &layers.start.to_le_bytes());
        put(out, 4, &layers.end.to_le_bytes());
    }
}

fn emit_shares(shares: &[u16], out: &mut [[u8; ASSIGNED_LEN]]) {
    for (share, out) in shares.iter().zip(out) {
        *out = u64::from(*share).to_le_bytes();
    }
}

/// Writes a READY with the node's line into `out`. Returns the frame's length, `None` if it does not fit.
pub fn emit_ready(epoch: u32, line: &NodeLine, out: &mut [u8]) -> Option<usize> {
    let bytes = HEADER_LEN + LINE_LEN;
    let (header, body) = out.get_mut(..bytes)?.split_first_chunk_mut()?;
    Repr::Ready { epoch }.emit(header);
    emit_line(line, body);
    Some(bytes)
}

/// Writes a REFUSE into `out`, with as much of `why` as fits. Returns the frame's length, `None` if it does not fit.
pub fn emit_refuse(epoch: u32, why: &str, out: &mut [u8]) -> Option<usize> {
    let bytes = HEADER_LEN + WHY_MAX;
    let (header, body) = out.get_mut(..bytes)?.split_first_chunk_mut()?;
    Repr::Refuse { epoch }.emit(header);
    put_text(body, why);
    Some(bytes)
}

/// Writes a REPORT of the node `name` into `out`. Returns the frame's length, `None` if it does not fit.
pub fn emit_report(epoch: u32, reason: Reason, name: &str, out: &mut [u8]) -> Option<usize> {
    let bytes = HEADER_LEN + NAME_MAX;
    let (header, body) = out.get_mut(..bytes)?.split_first_chunk_mut()?;
    Repr::Report { epoch, reason }.emit(header);
    put_text(body, name);
    Some(bytes)
}

/// Writes a BOARDS into `out`. Returns the frame's length, `None` if it does not fit.
pub fn emit_boards(report: &BoardsReport, out: &mut [u8]) -> Option<usize> {
    let n = report.boards.len() as u16;
    let bytes = HEADER_LEN + boards::bytes(n);
    let (header, body) = out.get_mut(..bytes)?.split_first_chunk_mut()?;
    Repr::Boards(n).emit(header);
    boards::emit(report, header, body);
    Some(bytes)
}

/// Writes a CLOSE into `out`. Returns the frame's length, `None` if it does not fit.
pub fn emit_close(epoch: u32, out: &mut [u8]) -> Option<usize> {
    Repr::Close { epoch }.emit(out.first_chunk_mut()?);
    Some(HEADER_LEN)
}

/// Writes a MOVED into `out`. Returns the frame's length, `None` if it does not fit.
pub fn emit_moved(epoch: u32, is_over: bool, out: &mut [u8]) -> Option<usize> {
    Repr::Moved { epoch, is_over }.emit(out.first_chunk_mut()?);
    Some(HEADER_LEN)
}

/// Writes a PAGES into `out`, with as many of the first `pages` as fit. Returns the frame's length and the number of
/// its pages; `None` if no page fits.
pub fn emit_pages(epoch: u32, pages: &[FramePage], out: &mut [u8]) -> Option<(usize, usize)> {
    let (header, body) = out.split_first_chunk_mut()?;
    let n = pages.len().min(PAGES_MAX).min(body.len() / PAGE_LEN);
    // At most PAGES_MAX, so the number fits 16 bits.
    Repr::Pages { epoch, n_pages: n as u16 }.emit(header);
    for (page, out) in pages[..n].iter().zip(body.as_chunks_mut::<PAGE_LEN>().0) {
        emit_page(page, out);
    }
    (n > 0).then_some((HEADER_LEN + n * PAGE_LEN, n))
}

/// Writes a KEEP into `out`, with as many of the first `pages` as fit. Returns what [`emit_pages`] returns.
pub fn emit_keeps(epoch: u32, pages: &[FrameKeep], out: &mut [u8]) -> Option<(usize, usize)> {
    let (header, body) = out.split_first_chunk_mut()?;
    let n = pages.len().min(KEEPS_MAX).min(body.len() / KEEP_LEN);
    // At most KEEPS_MAX, so the number fits 16 bits.
    Repr::Keep { epoch, n_pages: n as u16 }.emit(header);
    for (page, out) in pages[..n].iter().zip(body.as_chunks_mut::<KEEP_LEN>().0) {
        emit_keep(page, out);
    }
    (n > 0).then_some((HEADER_LEN + n * KEEP_LEN, n))
}

/// Writes a FETCH with these pages and ids into `out`. Returns the frame's length, `None` if it does not fit.
///
/// # Panics
/// If `fetch` has other numbers of pages or ids.
pub fn emit_fetch(
    fetch: &Fetch,
    pages: &[FetchPage],
    ids: &[u32],
    out: &mut [u8],
) -> Option<usize> {
    let (header, body) = out.get_mut(..fetch.bytes())?.split_first_chunk_mut()?;
    Repr::Fetch(*fetch).emit(header);
    fetch.emit_body(pages, ids, body);
    Some(fetch.bytes())
}

/// Writes the header of a KV into `out`, which already has the bytes. Returns the frame's length, `None` if it does not
/// fit.
pub fn emit_kv(epoch: u32, piece: KvPiece, out: &mut [u8]) -> Option<usize> {
    let bytes = HEADER_LEN + piece.bytes as usize;
    Repr::Kv { epoch, piece }.emit(out.get_mut(..bytes)?.first_chunk_mut()?);
    Some(bytes)
}

/// Writes ACTIVATIONS without its rows into `out`. Returns the room for the rows, `[rows, dim]`; `None` if the frame
/// does not fit.
///
/// # Panics
/// If `header` has other numbers of spans or figures.
pub fn emit_activations<'o>(
    header: &Activations,
    spans: &[FrameSpan],
    figures: &[WorkFigures],
    out: &'o mut [u8],
) -> Option<&'o mut [u8]> {
    assert_eq!(usize::from(header.n_spans), spans.len());
    assert_eq!(usize::from(header.n_figures), figures.len());
    let (head, body) = out.get_mut(..header.bytes())?.split_first_chunk_mut()?;
    Repr::Activations(*header).emit(head);
    let (span_bytes, body) = body.split_at_mut(spans.len() * SPAN_LEN);
    for (span, out) in spans.iter().zip(span_bytes.as_chunks_mut::<SPAN_LEN>().0) {
        emit_span(span, out);
    }
    let (figure_bytes, rows) = body.split_at_mut(figures.len() * FIGURES_LEN);
    for (figure, out) in figures.iter().zip(figure_bytes.as_chunks_mut::<FIGURES_LEN>().0) {
        figure.emit(out);
    }
    Some(rows)
}

/// Writes a PASS into `out`, with as much of a batch as fits after its first `n_sent` spans and ids. Returns the
/// frame's length and the numbers of spans and ids sent so far, this frame's included; `None` if nothing fits.
///
/// # Panics
/// If a batch has more than 65,535 ids or spans.
pub fn emit_pass(
    (epoch, batch): (u32, u32),
    work: Work,
    spans: &[FrameSpan],
    tokens: &[u32],
    n_sent: (usize, usize),
    out: &mut [u8],
) -> Option<(usize, (usize, usize))> {
    assert!(spans.len().max(tokens.len()) <= usize::from(u16::MAX));
    // The assertion bounds all of these numbers.
    let count = |n: usize| n as u16;
    let (header, body) = out.split_first_chunk_mut()?;
    let span_end = spans.len().min(n_sent.0 + body.len() / SPAN_LEN);
    let room = body.len() - (span_end - n_sent.0) * SPAN_LEN;
    let token_end = match span_end == spans.len() {
        true => tokens.len().min(n_sent.1 + room / 4),
        false => n_sent.1,
    };
    let (spans_here, tokens_here) = (&spans[n_sent.0..span_end], &tokens[n_sent.1..token_end]);
    let pass = Pass {
        epoch,
        batch,
        work,
        n_tokens: count(tokens.len()),
        n_spans: count(spans.len()),
        first_token: count(n_sent.1),
        first_span: count(n_sent.0),
        tokens: count(tokens_here.len()),
        spans: count(spans_here.len()),
    };
    Repr::Pass(pass).emit(header);
    let (span_bytes, body) = body.split_at_mut(spans_here.len() * SPAN_LEN);
    for (span, out) in spans_here.iter().zip(span_bytes.as_chunks_mut::<SPAN_LEN>().0) {
        emit_span(span, out);
    }
    for (token, out) in tokens_here.iter().zip(body.as_chunks_mut().0) {
        *out = token.to_le_bytes();
    }
    Some((pass.bytes(), (span_end, token_end)))
}

/// Writes a PART without its bytes into `out`; `part` has the offset of the first byte. Returns the room for the bytes
/// that fit, `None` if none fit.
pub fn emit_part(part: Part, out: &mut [u8]) -> Option<&mut [u8]> {
    let (head, room) = out.split_at_mut_checked(PART_AT)?;
    let n = room.len().min(part.part_bytes.checked_sub(part.offset)? as usize);
    Writer::new(head).u32(MAGIC).u8(Kind::Part as u8).zero(3);
    part.emit(head);
    Some(&mut room[..n]).filter(|room| !room.is_empty())
}
