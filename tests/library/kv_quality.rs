//! Keys and values in int8 predict texts as well as keys and values in f16.

use std::sync::Arc;

use crate::common::models::package;
use leap::engine::{Engine, KvKind, Options, Wants, score};
use leap::internals::model::Model;

/// Length of a window of tokens; the next one starts with an empty context.
const WINDOW: usize = 256;

/// Token ids of texts that the demo model was not trained on.
fn validation_ids() -> Vec<u32> {
    let json = std::fs::read_to_string(package("tests/golden/demo-validation-ids.json")).unwrap();
    let numbers = json.split(|c: char| !c.is_ascii_digit()).filter(|number| !number.is_empty());
    numbers.map(|number| number.parse().unwrap()).collect()
}

fn engine(model: &Arc<Model>, kv: KvKind) -> Engine {
    let options = Options {
        ctx_len: Some(WINDOW),
        batch: Some(64),
        max_logits: Some(64),
        kv: Some(kv),
        threads: Some(1),
        ..Options::default()
    };
    Engine::new(Arc::clone(model), &options).unwrap()
}

/// The logits after each token, given the tokens before it in its window.
fn logits(engine: &mut Engine, ids: &[u32]) -> Vec<Vec<f32>> {
    let vocab_size = engine.header().vocab_size;
    let mut stream = engine.stream().unwrap();
    let mut all = Vec::new();
    for window in ids.chunks(WINDOW) {
        stream.clear();
        for ids in window.chunks(64) {
            let logits = engine.push_batch(&mut stream, ids, Wants::All).unwrap();
            all.extend(logits.chunks_exact(vocab_size).map(<[f32]>::to_vec));
        }
    }
    all
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let n = values.len();
    values.sum::<f64>() / n as f64
}

#[test]
fn int8_loses_next_to_nothing() {
    let model = Arc::new(Model::open(&package("models/demo.bin")).unwrap());
    let mut ids = validation_ids();
    if crate::common::quick() {
        ids.truncate(2 * WINDOW + 1);
    }
    let (inputs, targets) = (&ids[..ids.len() - 1], &ids[1..]);
    let of = |kv| logits(&mut engine(&model, kv), inputs);
    let (wanted, found) = (of(KvKind::F16), of(KvKind::Int8));
    let nll = |all: &[Vec<f32>]| {
        mean(all.iter().zip(targets).map(|(logits, id)| score::nll(logits, *id)))
    };
    let worse = (nll(&found) - nll(&wanted)).exp() - 1.0;
    assert!(worse.abs() < 1e-3, "perplexity moves by {worse:+.1e}");
    let kl = mean(wanted.iter().zip(&found).map(|(a, b)| score::kl_divergence(a, b)));
    assert!(kl < 1e-4, "mean KL {kl:.1e}");
}
