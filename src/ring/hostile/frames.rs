//! The frames that neighbours send.

use super::*;

pub(super) fn pages(epoch: u32) -> Vec<u8> {
    let mut out = vec![7; FRAME_MAX];
    let (bytes, n) = frame::emit_pages(epoch, &[PAGE, PAGE], &mut out).unwrap();
    assert_eq!(n, 2);
    out.truncate(bytes);
    out
}

pub(super) fn keep(epoch: u32) -> Vec<u8> {
    let mut out = vec![7; FRAME_MAX];
    let page = FrameKeep {
        stream: 1,
        is_long: false,
        index: 0,
        n_whole: 4,
        at: (3, None),
        state: None,
        n_ids: 64,
        ids: [9; 64],
    };
    let (bytes, _) = frame::emit_keeps(epoch, &[page], &mut out).unwrap();
    out.truncate(bytes);
    out
}

pub(super) fn fetch(epoch: u32, batch: u32, n_pages: u16) -> Vec<u8> {
    let mut out = vec![7; FRAME_MAX];
    let pages = vec![FetchPage { index: 0, kind: FetchKind::Whole, page: 3 }; n_pages.into()];
    let fetch = Fetch { epoch, batch, is_long: false, n_pages, n_found: n_pages, n_ids: 3 };
    let bytes = frame::emit_fetch(&fetch, &pages, &[1, 2, 3], &mut out).unwrap();
    out.truncate(bytes);
    out
}

pub(super) fn piece(epoch: u32, piece: KvPiece) -> Vec<u8> {
    let mut out = vec![7; FRAME_MAX];
    let bytes = frame::emit_kv(epoch, piece, &mut out).unwrap();
    out.truncate(bytes);
    out
}

pub(super) fn moved(epoch: u32, is_over: bool) -> Vec<u8> {
    let mut out = vec![0; FRAME_MAX];
    let bytes = frame::emit_moved(epoch, is_over, &mut out).unwrap();
    out.truncate(bytes);
    out
}

pub(super) fn open(epoch: u32, lines: &[NodeLine]) -> Vec<u8> {
    let mut out = vec![0; FRAME_MAX];
    let bytes =
        frame::emit_open((epoch, None), &SIZES, Parts::Layers(&[0..1, 1..2]), lines, &mut out)
            .unwrap();
    out.truncate(bytes);
    out
}

/// Rows of a batch: with spans to a worker, without them the result for the master.
pub(super) fn rows(epoch: u32, batch: u32, n_rows: u16, spans: &[FrameSpan]) -> Vec<u8> {
    let header = Activations {
        epoch,
        batch,
        dtype: Dtype::F32,
        dim: SIZES.dim,
        n_rows,
        first_row: 0,
        rows: n_rows,
        n_spans: spans.len() as u16,
        n_figures: 1,
    };
    let mut out = vec![0; header.bytes()];
    frame::emit_activations(&header, spans, &[WorkFigures::default()], &mut out).unwrap().fill(9);
    out
}

pub(super) fn down(epoch: u32) -> Vec<u8> {
    let mut out = vec![0; FRAME_MAX];
    let bytes = frame::emit_report(epoch, Reason::Reset, &hello::name("node0"), &mut out).unwrap();
    out.truncate(bytes);
    out
}
