//! Conversations against the reference: each turn continues the end of another, so that a stream goes on, or goes back
//! to where turns fork.

use std::fs;

use leap::engine::{Engine, Options, Stream, score};
use leap::format::model::Weights;
use leap::internals::model::KvKind;
use leap::sampler::argmax;
use serde_json::Value;

use crate::common::models::{FAMILIES, GGUF_FILES, export, folder_of, ids};
use crate::common::{quick, sample};

/// A turn, and the reference's results.
struct Turn {
    /// Index of the turn whose end this one continues; `None` for a conversation's first.
    from: Option<usize>,
    prompt: Vec<u32>,
    last_logits: Vec<f32>,
    greedy: Vec<u32>,
}

fn turns(checkpoint: &str) -> Option<Vec<Turn>> {
    let text = fs::read_to_string(folder_of(checkpoint).join("golden-turns.json")).ok()?;
    let golden: Value = serde_json::from_str(&text).unwrap();
    let turn = |turn: &Value| Turn {
        from: usize::try_from(turn["from"].as_i64().unwrap()).ok(),
        prompt: ids(&turn["prompt_ids"]),
        last_logits: serde_json::from_value(turn["last_logits"].clone()).unwrap(),
        greedy: ids(&turn["greedy_ids"]),
    };
    Some(golden["turns"].as_array().unwrap().iter().map(turn).collect())
}

/// Gives `stream` the ids of `text` before the last turn's prompt, then the turn; returns the text with its answer.
fn take(engine: &mut Engine, stream: &mut Stream, text: &[u32], turn: &Turn) -> Vec<u32> {
    let mut text = [text, &turn.prompt].concat();
    let kept = engine.rewind(stream, &text);
    let logits = engine.push(stream, &text[kept..]).unwrap();
    let drift = score::drift(&turn.last_logits, logits);
    assert!(drift <= 2e-4, "drift {drift:e}");
    let mut next = argmax(logits).unwrap();
    for (index, id) in turn.greedy.iter().enumerate() {
        assert_eq!(next, *id, "greedy token {index}");
        text.push(next);
        next = argmax(engine.push(stream, &[next]).unwrap()).unwrap();
    }
    text
}

#[test]
fn turns_of_conversations_are_as_the_reference() {
    let mut n_checked = 0;
    for checkpoint in sample(FAMILIES.into_iter().chain(GGUF_FILES)) {
        let Some(turns) = turns(checkpoint) else { continue };
        let model = export(checkpoint, Weights::F32);
        for batch in [7, 64] {
            let options = Options {
                ctx_len: Some(400),
                batch: Some(batch),
                kv: Some(KvKind::F32),
                threads: Some(1),
                ..Options::default()
            };
            let mut engine = Engine::new(model.clone(), &options).unwrap();
            let mut stream = engine.stream().unwrap();
            let mut texts: Vec<Vec<u32>> = Vec::new();
            for turn in &turns {
                let before = turn.from.map_or(&[][..], |from| &texts[from]);
                texts.push(take(&mut engine, &mut stream, before, turn));
            }
        }
        n_checked += 1;
    }
    assert!(n_checked >= if quick() { 2 } else { 2 * GGUF_FILES.len() });
}
