//! Decoding allocates nothing, on any thread; on a ring, in any of its nodes.
//!
//! The counter sees the whole process, so this file holds one test: another one at the same
//! time would be counted too.

#[path = "common/counting.rs"]
mod counting;
#[path = "common/rings.rs"]
mod rings;

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::sync::Arc;

use counting::allocations;
use leap::engine::{Engine, Generator, Logits, Options, Request, StopReason, StopStrings};
use leap::format::tokenizer::TokenizerFile;
use leap::internals::model::{KvType, Model};
use leap::internals::wire::Dtype;
use leap::sampler::{Sampler, Sampling};
use leap::tokenizer::Tokenizer;
use rings::Recipe;

/// Tokens decoded while counting.
const N_TOKENS: usize = 50;
/// Ids of a text that the demo model knows.
const PROMPT: [u32; 5] = [4064, 589, 598, 257, 473];

fn engine(model: &Arc<Model>, kv: KvType, threads: usize) -> Engine {
    let options = Options { kv: Some(kv), threads: Some(threads), ..Options::default() };
    Engine::new(model.clone(), &options).unwrap()
}

/// Allocations while `Engine::push_batch` and a sampler decode.
fn by_push_batch(model: &Arc<Model>, kv: KvType, sampling: Sampling) -> usize {
    let mut engine = engine(model, kv, 2);
    let mut sampler = Sampler::new(sampling, engine.header().vocab_size);
    let mut stream = engine.stream().unwrap();
    let mut next = sampler.sample(engine.push(&mut stream, &PROMPT).unwrap()).unwrap();
    let before = allocations();
    for _ in 0..N_TOKENS {
        let logits = engine.push_batch(&mut stream, &[next], Logits::Last).unwrap();
        next = sampler.sample(logits).unwrap();
    }
    allocations() - before
}

/// Allocations between the first text that a generator shows and its last token.
fn by_generator(model: &Arc<Model>, tokenizer: &Tokenizer, sampling: Sampling) -> usize {
    let mut engine = engine(model, KvType::F16, 1);
    let mut stream = engine.stream().unwrap();
    let sampler = Sampler::new(sampling, engine.header().vocab_size);
    // The first two begin in every other word and never end; the last is never begun.
    let stops = [" the\u{0}", ". ?\u{0}", "\u{0}"].map(str::to_owned).to_vec();
    let mut generator =
        Generator::new(tokenizer, sampler, StopStrings::new(stops), engine.ctx_len());
    let counts: [Cell<usize>; N_TOKENS + 1] = [const { Cell::new(0) }; N_TOKENS + 1];
    let n_counts = Cell::new(0);
    let text = RefCell::new(String::with_capacity(4096));
    let is_interrupted = || {
        // Asked before the prompt too, when there is no text yet.
        if !text.borrow().is_empty() && n_counts.get() < counts.len() {
            counts[n_counts.get()].set(allocations());
            n_counts.set(n_counts.get() + 1);
        }
        false
    };
    let request = Request {
        prompt: &PROMPT,
        n_predict: N_TOKENS + 30,
        stop_ids: &[],
        starts_text: false,
        is_interrupted: &is_interrupted,
    };
    let outcome = generator.run(&mut engine, &mut stream, &request, &mut |part| {
        text.borrow_mut().push_str(part);
    });
    let outcome = outcome.unwrap();
    assert_eq!(outcome.reason, StopReason::Length);
    assert_eq!(n_counts.get(), counts.len(), "{}", text.borrow());
    counts[N_TOKENS].get() - counts[0].get()
}

/// Allocations in all nodes of a ring while it decodes.
fn by_ring(recipe: &Recipe) -> usize {
    let (mut engine, _workers) = recipe.ring();
    let mut sampler = Sampler::new(Sampling::GREEDY, engine.header().vocab_size);
    let mut stream = engine.stream().unwrap();
    let mut next = sampler.sample(engine.push(&mut stream, &PROMPT).unwrap()).unwrap();
    let mut decode = |n: usize| {
        for _ in 0..n {
            let logits = engine.push_batch(&mut stream, &[next], Logits::Last).unwrap();
            next = sampler.sample(logits).unwrap();
        }
    };
    // Threads allocate when they first do something.
    decode(10);
    let before = allocations();
    decode(N_TOKENS);
    allocations() - before
}

#[test]
fn decoding_allocates_nothing() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("models");
    let model = Arc::new(Model::open(&models.join("demo.bin")).unwrap());
    let bytes = std::fs::read(models.join("demo.tokenizer.bin")).unwrap();
    let file = TokenizerFile::parse(&bytes, Some(model.header().vocab_size)).unwrap();
    let tokenizer = Tokenizer::new(file).unwrap();

    let random = Sampling { temperature: 0.9, top_p: 0.95, top_k: 40, seed: 7 };
    assert_eq!(by_push_batch(&model, KvType::F32, Sampling::GREEDY), 0);
    assert_eq!(by_push_batch(&model, KvType::F16, random), 0);
    for sampling in [Sampling::GREEDY, random, Sampling { top_p: 1.0, top_k: 0, ..random }] {
        assert_eq!(by_generator(&model, &tokenizer, sampling), 0, "{sampling:?}");
    }
    for (is_tcp, has_key) in [(false, false), (false, true), (true, false), (true, true)] {
        let recipe = Recipe {
            model: models.join("demo.bin"),
            cuts: vec![1, 4],
            is_tcp,
            has_key,
            wire: Dtype::F16,
            batch: 16,
            n_streams: 1,
            max_logits: 1,
        };
        assert_eq!(by_ring(&recipe), 0, "tcp {is_tcp}, key {has_key}");
    }
    // The counter counts.
    let before = allocations();
    drop(std::hint::black_box(Box::new(1)));
    assert!(allocations() > before);
}
