//! Rows whose logits are not wanted are not taken through the last layers where those need no keys and values of their
//! own. The others have the same bits.

use std::sync::Arc;

use leap::format::model::Weights;
use leap::internals::kernels::Kernels;
use leap::internals::model::{Batch, KvKind, Model, Plan, Span, Stage, Transformer, Wants};
use leap::internals::pool::Pool;

use crate::common::models::{bits, export, isas};

const N_IDS: usize = 60;

fn transformer(model: &Arc<Model>, kernels: Kernels) -> Transformer {
    let (kv, kv_pages) = (KvKind::F16, None);
    let plan =
        Plan { ctx_len: 64, max_batch: N_IDS, max_logits: N_IDS, n_streams: 4, kv, kv_pages };
    Transformer::new(Arc::clone(model), kernels, Pool::new(&[0]).unwrap(), plan).unwrap()
}

/// The ids of a stream's text.
fn text(model: &Model, stream: usize) -> Vec<u32> {
    let n = model.header().vocab_size;
    (0..N_IDS).map(|i| ((i * 37 + stream * 101 + 5) % n) as u32).collect()
}

#[test]
fn rows_have_the_same_bits_whichever_are_wanted() {
    for checkpoint in ["gemma4-tiny", "gemma4moe-tiny"] {
        let model = export(checkpoint, Weights::Q8 { group: 32 });
        let vocab = model.header().vocab_size;
        for isa in isas() {
            let made = || transformer(&model, Kernels::for_isa(isa).unwrap());
            let wanted: Vec<Vec<u32>> = (0..4)
                .map(|stream| {
                    let mut batch = Batch::with_capacity(N_IDS);
                    let span = Span { n_rows: N_IDS, wants: Wants::All, ..Span::EMPTY };
                    batch.push(span, &text(&model, stream));
                    bits(made().forward(&batch).unwrap())
                })
                .collect();
            let mut found = made();
            // Rows of each stream in one batch, and which logits of them.
            let batches = [
                [(9, Wants::None), (5, Wants::Last), (3, Wants::All), (1, Wants::Last)],
                [(30, Wants::Last), (20, Wants::None), (1, Wants::Last), (9, Wants::All)],
                [(1, Wants::None), (30, Wants::None), (20, Wants::None), (5, Wants::None)],
                [(1, Wants::All), (1, Wants::Last), (30, Wants::None), (20, Wants::Last)],
            ];
            let mut at = [0; 4];
            for parts in batches {
                let mut batch = Batch::with_capacity(N_IDS);
                let mut rows = Vec::new();
                for (stream, (n_rows, wants)) in parts.into_iter().enumerate() {
                    let pos = at[stream];
                    at[stream] += n_rows;
                    let span = Span { stream, pos, n_rows, wants, ..Span::EMPTY };
                    rows.extend(
                        (at[stream] - span.n_wanted()..at[stream]).map(|pos| (stream, pos)),
                    );
                    batch.push(span, &text(&model, stream)[pos..at[stream]]);
                }
                let logits = bits(found.forward(&batch).unwrap());
                assert_eq!(logits.len(), rows.len() * vocab);
                for ((stream, pos), own) in rows.into_iter().zip(logits.chunks_exact(vocab)) {
                    let wanted = &wanted[stream][pos * vocab..][..vocab];
                    assert!(own == wanted, "{checkpoint}, {isa:?}, stream {stream}, {pos}");
                }
            }
        }
    }
}

/// Vectors of texts need all rows.
#[test]
fn all_rows_are_computed_where_all_are_needed() {
    let model = export("gemma4-tiny", Weights::Q8 { group: 32 });
    let hidden = |wants: Wants, needs_all: bool| {
        let mut transformer = transformer(&model, Kernels::best());
        let mut batch = Batch::with_capacity(N_IDS);
        batch.push(Span { n_rows: N_IDS, wants, ..Span::EMPTY }, &text(&model, 0));
        transformer.embed(&batch).unwrap();
        match needs_all {
            true => transformer.run_all_rows(batch.spans()).unwrap(),
            false => transformer.run_layers(batch.spans()).unwrap(),
        }
        bits(transformer.hidden(batch.spans()))
    };
    let all = hidden(Wants::All, false);
    assert!(hidden(Wants::None, true) == all);
    assert!(hidden(Wants::None, false) != all, "the last layers were computed for nothing");
}
