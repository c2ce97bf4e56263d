//! Rings of nodes give what one node gives.

mod common;

use common::models::{bits, package};
use common::rings::Recipe;
use leap::engine::score;
use leap::engine::{Engine, Generator, Logits, Prompt, Request, StopReason, StopStrings, Streams};
use leap::internals::wire::Dtype;
use leap::sampler::{Sampler, Sampling};
use leap::tokenizer::Tokenizer;

fn recipe(cuts: &[usize]) -> Recipe {
    Recipe {
        model: package("models/demo.bin"),
        cuts: cuts.to_vec(),
        is_tcp: false,
        has_key: false,
        wire: Dtype::F32,
        batch: 16,
        n_streams: 1,
        max_logits: 1,
    }
}

/// Logits after a prompt and after each of the tokens that greedy decoding chooses next.
fn run(engine: &mut Engine) -> (Vec<u32>, Vec<Vec<u32>>) {
    let prompt: Vec<u32> = (0..70).map(|i| (i * 53 % 4000) as u32).collect();
    let mut stream = engine.stream().unwrap();
    let mut sampler = Sampler::new(Sampling::GREEDY, engine.header().vocab_size);
    let (mut tokens, mut all) = (Vec::new(), Vec::new());
    let mut ids = prompt;
    for _ in 0..12 {
        let logits = engine.push(&mut stream, &ids).unwrap();
        all.push(bits(logits));
        ids = vec![sampler.sample(logits).unwrap()];
        tokens.push(ids[0]);
    }
    (tokens, all)
}

#[test]
fn rings_give_the_bits_of_one_node() {
    let wanted = run(&mut recipe(&[]).alone());
    let all = [&[2][..], &[1, 4], &[1, 2, 3, 5]];
    for cuts in if common::quick() { &all[1..2] } else { &all[..] } {
        for (is_tcp, has_key) in [(false, false), (false, true), (true, false), (true, true)] {
            let recipe = Recipe { is_tcp, has_key, ..recipe(cuts) };
            let (mut engine, workers) = recipe.ring();
            assert_eq!(engine.ring().unwrap().lines().len(), cuts.len() + 1);
            assert!(run(&mut engine) == wanted, "cuts {cuts:?}, tcp {is_tcp}, key {has_key}");
            drop((engine, workers));
        }
    }
}

#[test]
fn all_logits_of_a_batch_come_back() {
    let recipe = Recipe { max_logits: 16, ..recipe(&[3]) };
    let ids: Vec<u32> = (0..40).map(|i| (i * 17 % 4000) as u32).collect();
    let all = |engine: &mut Engine| -> Vec<u32> {
        let mut stream = engine.stream().unwrap();
        let batches = ids.chunks(16);
        batches
            .flat_map(|ids| bits(engine.push_batch(&mut stream, ids, Logits::All).unwrap()))
            .collect()
    };
    let (mut engine, _workers) = recipe.ring();
    assert!(all(&mut engine) == all(&mut recipe.alone()));
}

#[test]
fn a_stream_can_be_taken_back() {
    let recipe = recipe(&[2]);
    let ids: Vec<u32> = (0..50).map(|i| (i * 29 % 4000) as u32).collect();
    let (mut engine, _workers) = recipe.ring();
    let mut stream = engine.stream().unwrap();
    let first = bits(engine.push(&mut stream, &ids).unwrap());
    let mut other = ids[..30].to_vec();
    other.extend([5, 6, 7]);
    let kept = engine.rewind(&mut stream, &other);
    assert_eq!(kept, 30);
    engine.push(&mut stream, &other[kept..]).unwrap();
    let kept = engine.rewind(&mut stream, &ids);
    assert!(bits(engine.push(&mut stream, &ids[kept..]).unwrap()) == first);
}

#[test]
fn refused_batches_leave_the_ring_as_it_was() {
    let (mut engine, _workers) = recipe(&[2]).ring();
    let mut stream = engine.stream().unwrap();
    assert!(engine.push(&mut stream, &[u32::MAX]).is_err());
    assert!(engine.push(&mut stream, &[1; 300]).is_err());
    stream.clear();
    let logits = bits(engine.push(&mut stream, &[1, 2, 3]).unwrap());
    let mut alone = recipe(&[]).alone();
    let mut stream = alone.stream().unwrap();
    assert!(logits == bits(alone.push(&mut stream, &[1, 2, 3]).unwrap()));
}

/// The answers to `prompts`, on `n` streams.
fn answers(engine: &mut Engine, tokenizer: &Tokenizer, prompts: &[&str], n: usize) -> Vec<String> {
    let (ctx_len, vocab_size) = (engine.ctx_len(), engine.header().vocab_size);
    let begin = || {
        let sampler = Sampler::new(Sampling::GREEDY, vocab_size);
        Generator::new(tokenizer, sampler, StopStrings::new(Vec::new()), ctx_len)
    };
    let request = Request {
        prompt: &[],
        n_predict: 20,
        stop_ids: &[],
        starts_text: false,
        is_interrupted: &|| false,
    };
    let mut ids = prompts.iter().map(|prompt| {
        let mut ids: Vec<u32> = tokenizer.bos().into_iter().collect();
        tokenizer.encode(prompt, &mut ids);
        Prompt { ids, starts_text: false }
    });
    let mut texts = vec![String::new(); prompts.len()];
    let mut streams = Streams::new(engine, n).unwrap();
    let result = streams.run(engine, &request, &mut || ids.next(), &begin, &mut |answer| {
        assert_eq!(answer.outcome.reason, StopReason::Length);
        texts[answer.index] = answer.text;
    });
    result.unwrap();
    texts
}

#[test]
fn streams_side_by_side_answer_as_alone() {
    let bytes = std::fs::read(package("models/demo.tokenizer.bin")).unwrap();
    let tokenizer = Tokenizer::from_bytes(&bytes, None).unwrap();
    let prompts = [
        "Once upon a time",
        "The old fox",
        "One day a girl found",
        "In the forest",
        "A small boat",
    ];
    let one = recipe(&[]);
    let wanted = answers(&mut one.alone(), &tokenizer, &prompts, 1);
    assert!(wanted.iter().all(|text| !text.is_empty()));
    let many = Recipe { n_streams: 3, max_logits: 3, ..recipe(&[1, 4]) };
    assert_eq!(answers(&mut many.alone(), &tokenizer, &prompts, 3), wanted);
    let (mut engine, _workers) = many.ring();
    assert_eq!(answers(&mut engine, &tokenizer, &prompts, 3), wanted);
    let (mut engine, _workers) = Recipe { n_streams: 3, max_logits: 3, ..recipe(&[3]) }.ring();
    assert_eq!(answers(&mut engine, &tokenizer, &prompts, 3), wanted);
}

/// Tokens that a stream is given before the next one begins anew.
const WINDOW: usize = 128;

/// Mean negative log-likelihood of `ids`, each after those before it in its window.
fn nll(engine: &mut Engine, ids: &[u32]) -> f64 {
    let vocab_size = engine.header().vocab_size;
    let batch = engine.max_batch();
    let mut stream = engine.stream().unwrap();
    let mut sum = 0.0;
    for (inputs, targets) in ids.chunks(WINDOW).zip(ids[1..].chunks(WINDOW)) {
        stream.clear();
        for (inputs, targets) in inputs.chunks(batch).zip(targets.chunks(batch)) {
            let logits = engine.push_batch(&mut stream, inputs, Logits::All).unwrap();
            let rows = logits.chunks_exact(vocab_size).zip(targets);
            sum += rows.map(|(logits, &id)| score::nll(logits, id)).sum::<f64>();
        }
    }
    sum / (ids.len() - 1) as f64
}

/// Token ids of texts that the demo model was not trained on.
fn validation_ids() -> Vec<u32> {
    let json = std::fs::read_to_string(package("tests/golden/demo-validation-ids.json")).unwrap();
    let numbers = json.split(|c: char| !c.is_ascii_digit()).filter(|number| !number.is_empty());
    numbers.map(|number| number.parse().unwrap()).collect()
}

#[test]
fn half_precision_on_the_wire_does_not_move_perplexity() {
    let mut ids = validation_ids();
    if common::quick() {
        ids.truncate(WINDOW + 1);
    }
    // One hop there and one back, and the most that the model's layers can be spread over.
    for cuts in [&[3][..], &[1, 2, 3, 4, 5]] {
        let recipe = Recipe { max_logits: 16, ..recipe(cuts) };
        let (mut engine, _workers) = recipe.ring();
        let wanted = nll(&mut engine, &ids);
        let (mut engine, _workers) = Recipe { wire: Dtype::F16, ..recipe }.ring();
        let found = nll(&mut engine, &ids);
        let moved = (found - wanted).exp() - 1.0;
        let [found, wanted] = [found.exp(), wanted.exp()];
        assert!(moved.abs() < 1e-3, "cuts {cuts:?}: {wanted} in f32, {found} in f16, {moved:+.1e}");
    }
}
