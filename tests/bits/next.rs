//! Guesses of the block behind the last layer: those of the reference, and with the same bits however texts were cut, on
//! every tier, in company, and behind rejected drafts.

use std::fs;
use std::sync::Arc;

use leap::engine::score;
use leap::format::model::Weights;
use leap::internals::kernels::{Isa, Kernels};
use leap::internals::model::{Batch, KvKind, Model, Plan, Span, Stage, Transformer, Wants};
use leap::internals::pool::Pool;
use leap::sampler::argmax;
use serde_json::Value;

use crate::common::models::{bits, export, folder_of, ids, isas};
use crate::common::sample;

const CHECKPOINTS: [&str; 2] = ["qwen35-tiny", "qwen35moe-tiny"];
const CTX_LEN: usize = 128;

fn transformer(model: &Model, (isa, threads): (Isa, usize), kv: KvKind) -> Transformer {
    let next = model.with_next().unwrap().expect("the file has the block");
    let plan = Plan {
        ctx_len: CTX_LEN,
        max_batch: CTX_LEN,
        max_logits: CTX_LEN,
        n_streams: 3,
        kv,
        kv_pages: None,
    };
    let pool = Pool::new(&vec![0; threads]).unwrap();
    Transformer::new(Arc::new(next), Kernels::for_isa(isa).unwrap(), pool, plan).unwrap()
}

fn run(of: &mut Transformer, (stream, pos): (usize, usize), ids: &[u32], wants: Wants) -> Vec<u32> {
    let mut batch = Batch::with_capacity(CTX_LEN);
    batch.push(Span { stream, pos, n_rows: ids.len(), wants, ..Span::EMPTY }, ids);
    bits(of.forward(&batch).unwrap())
}

fn guess(of: &mut Transformer, (stream, pos): (usize, usize), id: u32, is_first: bool) -> Vec<f32> {
    let span = Span { stream, pos, ..Span::EMPTY };
    let found = of.guess(span, id, (is_first, usize::MAX)).unwrap();
    found.expect("the position before was computed").to_vec()
}

/// The guesses behind `ids`, whose last one has not been computed, and their logits.
fn chain(of: &mut Transformer, stream: usize, ids: &[u32], n: usize) -> (Vec<u32>, Vec<Vec<u32>>) {
    let (mut pos, mut id) = (ids.len() - 1, ids[ids.len() - 1]);
    let (mut guessed, mut all) = (Vec::new(), Vec::new());
    while guessed.len() < n {
        let logits = guess(of, (stream, pos), id, guessed.is_empty());
        id = argmax(&logits).unwrap();
        pos += 1;
        guessed.push(id);
        all.push(bits(&logits));
    }
    (guessed, all)
}

#[test]
fn guesses_are_as_the_reference() {
    let of_gguf = ["qwen35-tiny/qwen35-tiny-bf16.gguf", "qwen35moe-tiny/qwen35moe-tiny-bf16.gguf"];
    for checkpoint in sample(CHECKPOINTS.into_iter().chain(of_gguf)) {
        let model = export(checkpoint, Weights::F32);
        let text = fs::read_to_string(folder_of(checkpoint).join("guesses.json")).unwrap();
        let golden: Value = serde_json::from_str(&text).unwrap();
        for case in golden["cases"].as_array().unwrap() {
            let (text, wanted) = (ids(&case["ids"]), ids(&case["argmax_per_position"]));
            let mut found = transformer(&model, (Isa::Scalar, 1), KvKind::F32);
            // Nothing was computed before the first token.
            let first = Span::EMPTY;
            assert!(found.guess(first, text[0], (true, usize::MAX)).unwrap().is_none());
            for (pos, id) in text.iter().enumerate() {
                if pos > 0 {
                    let logits = guess(&mut found, (0, pos), *id, true);
                    assert_eq!(argmax(&logits), Some(wanted[pos]), "{checkpoint}, {pos}");
                }
                if pos > 0 && pos + 1 == text.len() {
                    let last: Vec<f32> =
                        serde_json::from_value(case["last_logits"].clone()).unwrap();
                    let logits = guess(&mut found, (0, pos), *id, true);
                    let drift = score::drift(&last, &logits);
                    assert!(drift <= 2e-4, "{checkpoint}, {pos}: {drift:e}");
                    let (guessed, _) = chain(&mut found, 0, &text, 5);
                    assert_eq!(guessed, ids(&case["chain"]), "{checkpoint}, {pos}");
                }
                run(&mut found, (0, pos), &[*id], Wants::None);
            }
        }
    }
}

/// The texts of two streams.
fn texts(model: &Model) -> [Vec<u32>; 2] {
    let n = model.header().vocab_size;
    [5, 60].map(|first| (0..100).map(|i| ((i * 37 + first * 11) % n) as u32).collect())
}

#[test]
fn guesses_have_the_same_bits_on_every_tier_and_however_texts_are_cut() {
    for checkpoint in sample(CHECKPOINTS) {
        let model = export(checkpoint, Weights::Q8 { group: 32 });
        let text = &texts(&model)[0];
        let mut wanted = None;
        for isa in isas() {
            for (size, threads) in [(1, 1), (17, 1), (64, 2), (99, 1)] {
                let mut found = transformer(&model, (isa, threads), KvKind::F16);
                for at in (0..99).step_by(size) {
                    run(&mut found, (0, at), &text[at..(at + size).min(99)], Wants::None);
                }
                let own = chain(&mut found, 0, text, 6);
                let wanted = wanted.get_or_insert_with(|| own.clone());
                assert!(*wanted == own, "{checkpoint}, {isa:?} by {size}");
            }
        }
    }
}

#[test]
fn guesses_have_the_same_bits_in_company_and_behind_rejected_drafts() {
    for checkpoint in sample(CHECKPOINTS) {
        let model = export(checkpoint, Weights::Q8 { group: 32 });
        let texts = texts(&model);
        let alone = texts.each_ref().map(|text| {
            let mut found = transformer(&model, (Isa::Scalar, 1), KvKind::Int8);
            run(&mut found, (1, 0), &text[..99], Wants::None);
            chain(&mut found, 1, text, 6)
        });
        let mut found = transformer(&model, (Isa::Scalar, 1), KvKind::Int8);
        let mut batch = Batch::with_capacity(CTX_LEN);
        for (stream, text) in texts.iter().enumerate() {
            batch.push(Span { stream, n_rows: 60, ..Span::EMPTY }, &text[..60]);
        }
        found.forward(&batch).unwrap();
        // Texts go on by one or more of the drafts that were verified.
        let mut at = [60; 2];
        while at != [99; 2] {
            for (stream, text) in texts.iter().enumerate() {
                if at[stream] == 99 {
                    continue;
                }
                let (guessed, _) = chain(&mut found, stream, &text[..=at[stream]], 4);
                let n_right = (at[stream] % 4).min(98 - at[stream]);
                let mut ids = text[at[stream]..=at[stream] + n_right].to_vec();
                ids.extend(&guessed[n_right..]);
                run(&mut found, (stream, at[stream]), &ids, Wants::All);
                at[stream] += 1 + n_right;
            }
        }
        for (stream, text) in texts.iter().enumerate() {
            let own = chain(&mut found, stream, text, 6);
            assert!(own == alone[stream], "{checkpoint}, stream {stream}");
        }
    }
}

/// The model's own bits do not depend on the block.
#[test]
fn the_block_changes_no_logits() {
    for checkpoint in sample(CHECKPOINTS) {
        let model = export(checkpoint, Weights::Q8 { group: 32 });
        let text = &texts(&model)[1];
        let mut with = transformer(&model, (Isa::Scalar, 1), KvKind::F16);
        let plan = *with.about().plan;
        let kernels = Kernels::for_isa(Isa::Scalar).unwrap();
        let pool = Pool::new(&[0]).unwrap();
        let mut without = Transformer::new(Arc::clone(&model), kernels, pool, plan).unwrap();
        assert!(with.has_next() && !without.has_next());
        assert!(without.guess(Span::EMPTY, 1, (true, usize::MAX)).unwrap().is_none());
        for (at, size) in [(0, 50), (50, 1), (51, 40)] {
            let ids = &text[at..at + size];
            let found = run(&mut with, (0, at), ids, Wants::All);
            assert!(found == run(&mut without, (0, at), ids, Wants::All), "{checkpoint} at {at}");
            chain(&mut with, 0, &text[..at + size + 1], 5);
            // Fewer ids have the same logits.
            let (span, id) = (Span { pos: at + size, ..Span::EMPTY }, text[at + size]);
            let all = guess(&mut with, (0, at + size), id, true);
            let few = with.guess(span, id, (true, 300)).unwrap().unwrap();
            assert_eq!(few.len(), 256);
            assert!(bits(few) == bits(&all[..256]), "{checkpoint} at {at}");
        }
    }
}
