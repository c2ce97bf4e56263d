//! Decoding allocates nothing on any thread, nor, in a ring, on any node.
//!
//! The counter sees all threads but the harness's, so this file has one test: another test at the same time would be
//! counted too.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::alone_in_process;
use crate::counting::{allocated_bytes, allocations, leave_out_harness};
use crate::rings::Recipe;
use leap::engine::{
    DRAFTS_MAX, DraftMode, Drafter, Engine, Job, JobEvent, ModelDrafter, NgramDrafter, Options,
    Scheduler, Wants,
};
use leap::format::tokenizer::TokenizerFile;
use leap::internals::draft_node::DraftNodeError;
use leap::internals::draft_node::master::{DraftPlace, NodeDrafter};
use leap::internals::draft_node::node::{self, DraftNotice};
use leap::internals::model::{KvKind, Model};
use leap::internals::transport::place::HostPort;
use leap::internals::wire::Dtype;
use leap::internals::wire::seal::Key;
use leap::sampler::{Sampler, Sampling, argmax};
use leap::tokenizer::Tokenizer;

/// Tokens decoded while counting.
const N_TOKENS: usize = 50;
/// Ids of a text that the demo model knows.
const PROMPT: [u32; 5] = [4064, 589, 598, 257, 473];

fn engine(model: &Arc<Model>, kv: KvKind, threads: usize) -> Engine {
    let options = Options { kv: Some(kv), threads: Some(threads), ..Options::default() };
    Engine::new(model.clone(), &options).unwrap()
}

/// Allocations while `Engine::push_batch` and a sampler decode.
fn by_push_batch(model: &Arc<Model>, kv: KvKind, sampling: Sampling) -> usize {
    let mut engine = engine(model, kv, 2);
    let mut sampler = Sampler::new(engine.header().vocab_size);
    let mut stream = engine.stream().unwrap();
    let mut next = argmax(engine.push(&mut stream, &PROMPT).unwrap()).unwrap();
    let before = allocations();
    for pos in PROMPT.len()..PROMPT.len() + N_TOKENS {
        let logits = engine.push_batch(&mut stream, &[next], Wants::Last).unwrap();
        next = sampler.sample(&sampling, pos, logits).unwrap();
    }
    allocations() - before
}

/// Jobs of all lengths, none of which ends before it is counted.
fn jobs(sampling: Sampling, n: usize) -> Vec<Job> {
    // The first two strings begin in every other word and never complete; the last never begins.
    let stops = [" the\u{0}", ". ?\u{0}", "\u{0}"].map(str::to_owned).to_vec();
    let job = |n_ids: usize| Job {
        sampling,
        // A step generates at most three tokens.
        n_predict: 3 * N_TOKENS + 100,
        stop_strings: stops.clone(),
        ..Job::new(PROMPT.iter().copied().cycle().take(n_ids).collect())
    };
    (0..n).map(|i| job(PROMPT.len() + 20 * i)).collect()
}

/// A drafter that uses earlier text.
fn ngrams(engine: &Engine, n: usize) -> Box<dyn Drafter> {
    Box::new(NgramDrafter::new(n, engine.ctx_len()))
}

/// A drafter with a model, which borrows the threads of the main model.
fn smaller(model: &Arc<Model>, n: usize) -> Box<dyn Drafter> {
    let options = Options { n_streams: Some(n), threads: Some(1), ..Options::default() };
    let engine = Engine::new(model.clone(), &options).unwrap();
    Box::new(ModelDrafter::new(engine, true).unwrap())
}

/// A drafter with a model on another board, whose allocations count too.
fn elsewhere(model: &Arc<Model>, tokenizer: &TokenizerFile, n: usize) -> Box<dyn Drafter> {
    let options = Options { n_streams: Some(n), threads: Some(1), ..Options::default() };
    let engine = Engine::new(model.clone(), &options).unwrap();
    let tokenizer = || Tokenizer::new(tokenizer.clone()).unwrap();
    let any = "127.0.0.1:0".parse().unwrap();
    let (key, tell) = (Key::new([5; 32]), Box::new(|_: &DraftNotice| {}));
    let at = node::start((engine, Arc::new(tokenizer())), any, key.clone(), tell).unwrap();
    let place = DraftPlace { at: HostPort::new("127.0.0.1", at.port()), key };
    let lost = Box::new(|why: &DraftNodeError| panic!("{why}"));
    let drafter = NodeDrafter::start(place, &tokenizer(), (n, 4096), (lost, false)).unwrap();
    drafter.wait(Duration::from_secs(60));
    Box::new(drafter)
}

/// Allocations while `n` jobs of a scheduler decode, and other prompts are computed.
fn by_scheduler(
    engine: &mut Engine,
    drafter: Box<dyn Drafter>,
    tokenizer: &Tokenizer,
    sampling: Sampling,
    n: usize,
) -> usize {
    let mut scheduler = Scheduler::new(engine, n, Some(tokenizer)).unwrap();
    scheduler.draft(drafter, DraftMode::Fixed(2));
    let mut n_bytes = 0;
    let mut steps = |scheduler: &mut Scheduler<'_>, n_steps: usize| {
        for _ in 0..n_steps {
            scheduler.step(engine, &mut |_, event| match event {
                JobEvent::Text(text) => n_bytes += text.len(),
                event => panic!("{event:?}"),
            });
        }
    };
    for job in jobs(sampling, n) {
        scheduler.submit(job);
    }
    // Threads allocate when they first work.
    steps(&mut scheduler, 30);
    let before = allocations();
    steps(&mut scheduler, N_TOKENS);
    let allocated = allocations() - before;
    assert!(!scheduler.is_idle() && n_bytes > N_TOKENS, "{n_bytes}");
    allocated
}

/// Bytes that a job allocates from submission to end, besides its own prompt, stop ids and strings.
fn bytes_of_a_job(engine: &mut Engine, tokenizer: &Tokenizer, sampling: Sampling) -> usize {
    let mut scheduler = Scheduler::new(engine, 1, Some(tokenizer)).unwrap();
    let mut bytes = 0;
    // The first job allocates the queue.
    for _ in 0..2 {
        let job = jobs(sampling, 1).remove(0);
        let before = allocated_bytes();
        scheduler.submit(job);
        while !scheduler.is_idle() {
            scheduler.step(engine, &mut |_, _| {});
        }
        bytes = allocated_bytes() - before;
    }
    bytes
}

/// Allocations on all nodes of a ring while it decodes.
fn by_ring(recipe: &Recipe) -> usize {
    let (mut engine, _workers) = recipe.ring();
    let mut stream = engine.stream().unwrap();
    let mut next = argmax(engine.push(&mut stream, &PROMPT).unwrap()).unwrap();
    let mut decode = |n: usize| {
        for _ in 0..n {
            let logits = engine.push_batch(&mut stream, &[next], Wants::Last).unwrap();
            next = argmax(logits).unwrap();
        }
    };
    // Threads allocate when they first work.
    decode(10);
    let before = allocations();
    decode(N_TOKENS);
    allocations() - before
}

#[test]
fn decoding_allocates_nothing() {
    let _alone = alone_in_process();
    leave_out_harness();
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("models");
    let model = Arc::new(Model::open(&models.join("demo.bin")).unwrap());
    let bytes = std::fs::read(models.join("demo.tokenizer.bin")).unwrap();
    let file = TokenizerFile::parse(&bytes, Some(model.header().vocab_size)).unwrap();
    let tokenizer = Tokenizer::new(file.clone()).unwrap();

    let random = Sampling { temperature: 0.9, top_p: 0.95, top_k: 40, min_p: 0.05, seed: 7 };
    assert_eq!(by_push_batch(&model, KvKind::F32, Sampling::GREEDY), 0);
    assert_eq!(by_push_batch(&model, KvKind::F16, random), 0);
    assert_eq!(by_push_batch(&model, KvKind::Int8, random), 0);
    for sampling in [Sampling::GREEDY, random, Sampling { top_p: 1.0, top_k: 0, ..random }] {
        for (n_streams, batch) in [(1, 256), (3, 16), (4, 2)] {
            let options = Options {
                n_streams: Some(n_streams),
                batch: Some(batch),
                max_logits: Some((n_streams + DRAFTS_MAX).min(batch)),
                threads: Some(2),
                ..Options::default()
            };
            let mut engine = Engine::new(model.clone(), &options).unwrap();
            let elsewhere = elsewhere(&model, &file, n_streams);
            for drafter in [ngrams(&engine, n_streams), smaller(&model, n_streams), elsewhere] {
                let counted = by_scheduler(&mut engine, drafter, &tokenizer, sampling, n_streams);
                assert_eq!(counted, 0, "{sampling:?}, {n_streams} streams");
            }
            let bytes = bytes_of_a_job(&mut engine, &tokenizer, sampling);
            assert!((1..1024).contains(&bytes), "a job takes {bytes} bytes");
        }
    }
    for (is_tcp, has_key) in [(false, false), (false, true), (true, false), (true, true)] {
        let recipe = Recipe { is_tcp, has_key, wire: Dtype::F16, ..Recipe::demo(&[1, 4]) };
        assert_eq!(by_ring(&recipe), 0, "tcp {is_tcp}, key {has_key}");
        let many = Recipe { n_streams: 4, max_logits: 4, ..recipe };
        let (mut engine, _workers) = many.ring();
        let drafter = ngrams(&engine, 4);
        let counted = by_scheduler(&mut engine, drafter, &tokenizer, random, 4);
        assert_eq!(counted, 0, "4 streams, tcp {is_tcp}, key {has_key}");
    }
    // The counter itself must work.
    let before = allocations();
    drop(std::hint::black_box(Box::new(1)));
    assert!(allocations() > before);
}
