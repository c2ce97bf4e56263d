//! Every job of a scheduler gets the same text as alone, beside any other jobs.

use std::slice::from_ref;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::common::jobs::{Heard, Listener, alone, assert_same, finish, mixed, prompt, run};
use crate::common::models::{bits, package};
use crate::common::rings::Recipe;
use crate::common::sample;
use leap::engine::{
    DraftMode, Drafter, Engine, Job, JobId, KvMemory, NgramDrafter, Options, Scheduler, StallLimit,
    StopReason, Wants,
};
use leap::internals::model::Model;
use leap::sampler::Sampling;
use leap::tokenizer::Tokenizer;

fn tokenizer() -> Tokenizer {
    let bytes = std::fs::read(package("models/demo.tokenizer.bin")).unwrap();
    Tokenizer::from_bytes(&bytes, None).unwrap()
}

fn recipe(n_streams: usize, batch: usize, max_logits: usize) -> Recipe {
    Recipe { batch, n_streams, max_logits, ..Recipe::demo(&[]) }
}

#[test]
fn jobs_side_by_side_say_what_they_say_alone() {
    let tokenizer = tokenizer();
    let jobs = mixed(&tokenizer);
    let wanted = alone(&mut recipe(1, 64, 64).alone(), &tokenizer, &jobs);
    let reasons: Vec<_> = wanted.iter().map(|heard| heard.end.clone().unwrap().unwrap()).collect();
    for reason in [StopReason::Length, StopReason::StopString, StopReason::ContextFull] {
        assert!(reasons.contains(&reason), "{reasons:?}");
    }
    assert!(reasons.iter().any(|reason| matches!(reason, StopReason::StopId(_))), "{reasons:?}");
    let all =
        [(1, 1, 1), (2, 3, 1), (3, 16, 2), (5, 16, 16), (4, 7, 3), (11, 64, 11), (16, 256, 16)];
    for (n_streams, batch, max_logits) in if crate::common::quick() { &all[2..4] } else { &all[..] }
    {
        let found = run(&mut recipe(*n_streams, *batch, *max_logits).alone(), &tokenizer, &jobs);
        let what = format!("{n_streams} streams, batches of {batch}, {max_logits} logits");
        assert_same(&found, &wanted, &what);
    }
}

/// A pseudo-random number below `n` (Xorshift).
pub(crate) fn below(n: usize, state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state % n as u64) as usize
}

/// Jobs that come at any time, beside bad and cancelled ones. The others get the same text as alone; a cancelled job's
/// text is the beginning of that.
fn crowd(engine: &mut Engine, tokenizer: &Tokenizer, seed: u64) {
    let jobs = mixed(tokenizer);
    let wanted = alone(&mut recipe(1, 64, 64).alone(), tokenizer, &jobs);
    let mut scheduler = Scheduler::new(engine, usize::MAX, Some(tokenizer)).unwrap();
    // The cut of prompts beside decoding streams does not change texts.
    let fixed = StallLimit::Fixed(Duration::from_micros(seed));
    scheduler.limit_stalls([StallLimit::None, StallLimit::Doubled, fixed][seed as usize % 3]);
    let (mut state, mut listener) = (seed, Listener::default());
    let mut submitted: Vec<(JobId, usize)> = Vec::new();
    let mut bad = Vec::new();
    while submitted.len() < 40 {
        match below(6, &mut state) {
            0 | 1 => {
                let which = below(jobs.len(), &mut state);
                submitted.push((scheduler.submit(jobs[which].clone()), which));
            }
            2 => {
                let ids = [vec![], vec![1; 257], vec![1, u32::MAX]][below(3, &mut state)].clone();
                bad.push(scheduler.submit(Job::new(ids)));
            }
            3 if !submitted.is_empty() => {
                scheduler.cancel(submitted[below(submitted.len(), &mut state)].0);
            }
            _ => scheduler.step(engine, &mut |id, event| listener.hear(id, event)),
        }
    }
    finish(&mut scheduler, engine, &mut listener);
    for id in bad {
        assert!(matches!(&listener.0[&id].end, Some(Err(_))), "seed {seed}: {:?}", listener.0[&id]);
    }
    let mut n_cancelled = 0;
    for (id, which) in submitted {
        let (heard, wanted) = (&listener.0[&id], &wanted[which]);
        if heard.end == Some(Ok(StopReason::Interrupted)) {
            n_cancelled += 1;
            assert!(wanted.ids.starts_with(&heard.ids), "seed {seed}: job {which}");
            assert!(wanted.logits.starts_with(&heard.logits), "seed {seed}: job {which}");
        } else {
            assert_same(from_ref(heard), from_ref(wanted), &format!("seed {seed}, job {which}"));
        }
    }
    assert!((1..40).contains(&n_cancelled), "seed {seed}: {n_cancelled} were cancelled");
}

#[test]
fn jobs_come_and_go_at_any_time() {
    let tokenizer = tokenizer();
    for seed in if crate::common::quick() { 1..3 } else { 1..9 } {
        let (n_streams, batch) = [(3, 16), (2, 5), (5, 64), (1, 16)][seed as usize % 4];
        crowd(&mut recipe(n_streams, batch, n_streams).alone(), &tokenizer, seed);
    }
}

#[test]
fn rings_answer_jobs_as_one_node() {
    let tokenizer = tokenizer();
    let jobs = mixed(&tokenizer);
    let wanted = alone(&mut recipe(1, 64, 64).alone(), &tokenizer, &jobs);
    let teams = [vec![1, 2], vec![2, 1]];
    let all = [
        (&[3][..], 2, 16, &[][..]),
        (&[1, 4], 3, 16, &[]),
        (&[2, 4], 4, 5, &[]),
        (&[3], 1, 16, &[]),
        (&[3], 3, 16, &teams),
    ];
    for (cuts, n_streams, batch, teams) in
        if crate::common::quick() { &all[1..2] } else { &all[..] }
    {
        let recipe = recipe(*n_streams, *batch, 3);
        let recipe = Recipe { cuts: cuts.to_vec(), teams: teams.to_vec(), ..recipe };
        let (mut engine, _workers) = recipe.ring();
        let what = format!("{n_streams} streams, batches of {batch}, cuts {cuts:?}, {teams:?}");
        assert_same(&run(&mut engine, &tokenizer, &jobs), &wanted, &what);
        crowd(&mut engine, &tokenizer, 77 + *batch as u64);
    }
}

/// Layers move while batches are in flight and results wait to be collected.
#[test]
fn jobs_go_on_while_layers_move() {
    let tokenizer = tokenizer();
    let jobs = mixed(&tokenizer);
    let wanted = alone(&mut recipe(1, 64, 64).alone(), &tokenizer, &jobs);
    let recipe = Recipe { cuts: vec![2, 4], ..recipe(3, 16, 9) };
    let (mut engine, _workers, mut mover) = recipe.moving_ring();
    let mut scheduler = Scheduler::new(&mut engine, usize::MAX, Some(&tokenizer)).unwrap();
    let mut drafter = NgramDrafter::new(scheduler.n_streams(), engine.ctx_len());
    let said = jobs.iter().zip(&wanted);
    said.for_each(|(job, wanted)| drafter.end(0, &[&job.prompt[..], &wanted.ids].concat()));
    scheduler.draft(Box::new(drafter), DraftMode::Fixed(3));
    let ids: Vec<JobId> = jobs.iter().map(|job| scheduler.submit(job.clone())).collect();
    let (mut listener, mut state) = (Listener::default(), 0x5eed);
    while !scheduler.is_idle() {
        if below(3, &mut state) == 0 {
            let first = 1 + below(4, &mut state);
            let second = first + 1 + below(5 - first, &mut state);
            mover.ask(&[0..first, first..second, second..6]);
        }
        scheduler.step(&mut engine, &mut |id, event| listener.hear(id, event));
    }
    let found: Vec<Heard> = ids.iter().map(|id| listener.0.remove(id).unwrap()).collect();
    assert_same(&found, &wanted, &format!("{} moves", mover.n_moves));
    assert!(mover.n_moves > 10, "{}", mover.n_moves);
}

/// Calls of [`is_interrupted`] until it returns true.
static LEFT: AtomicU32 = AtomicU32::new(u32::MAX);
/// Lock for tests that use [`LEFT`].
static ASKING: Mutex<()> = Mutex::new(());

fn is_interrupted() -> bool {
    LEFT.fetch_sub(1, Ordering::Relaxed) == 0
}

/// Runs jobs; one of `every` steps is interrupted in the middle of a batch. If `said` has the answers, they are
/// drafted.
pub(crate) fn interrupted(
    engine: &mut Engine,
    tokenizer: Option<&Tokenizer>,
    (jobs, said): (&[Job], &[Vec<u32>]),
    every: u32,
) -> Vec<Vec<u32>> {
    let _asking = ASKING.lock().unwrap_or_else(PoisonError::into_inner);
    engine.interrupt_by(is_interrupted);
    let mut scheduler = Scheduler::new(engine, usize::MAX, tokenizer).unwrap();
    let mut drafter = NgramDrafter::new(scheduler.n_streams(), engine.ctx_len());
    for (job, answer) in jobs.iter().zip(said) {
        drafter.end(0, &[&job.prompt[..], answer].concat());
    }
    scheduler.draft(Box::new(drafter), DraftMode::Fixed(6));
    let ids: Vec<JobId> = jobs.iter().map(|job| scheduler.submit(job.clone())).collect();
    let mut listener = Listener::default();
    let (mut n_steps, mut n_interrupts) = (0, 0);
    // Calls during the last whole step. A ring also asks while it waits, more often on a slow machine.
    let mut n_asked = 1;
    while !scheduler.is_idle() {
        n_steps += 1;
        // Most steps must be whole, or the jobs would never end.
        let is_whole = n_steps % every != 0;
        let left = if is_whole { u32::MAX } else { n_steps * 7 % n_asked };
        LEFT.store(left, Ordering::Relaxed);
        scheduler.step(engine, &mut |id, event| listener.hear(id, event));
        let after = LEFT.load(Ordering::Relaxed);
        match is_whole {
            true => n_asked = (u32::MAX - after).max(1),
            // The counter went below zero and wrapped.
            false => n_interrupts += u32::from(after > left),
        }
    }
    LEFT.store(u32::MAX, Ordering::Relaxed);
    assert!(n_interrupts > 3, "{n_interrupts} of {n_steps} steps were interrupted");
    ids.iter().map(|id| listener.0.remove(id).unwrap().ids).collect()
}

fn ids(heard: Vec<Heard>) -> Vec<Vec<u32>> {
    heard.into_iter().map(|heard| heard.ids).collect()
}

#[test]
fn interrupted_batches_are_run_again() {
    let tokenizer = tokenizer();
    let jobs = mixed(&tokenizer);
    let wanted = ids(alone(&mut recipe(1, 64, 64).alone(), &tokenizer, &jobs));
    for said in [&[][..], &wanted] {
        let mut engine = recipe(3, 16, 9).alone();
        assert_eq!(interrupted(&mut engine, Some(&tokenizer), (&jobs, said), 3), wanted);
    }
}

#[test]
fn a_ring_goes_on_after_interrupted_batches() {
    let tokenizer = tokenizer();
    let jobs = &mixed(&tokenizer);
    let wanted = ids(alone(&mut recipe(1, 64, 64).alone(), &tokenizer, jobs));
    let (mut engine, _workers) = Recipe { cuts: vec![2, 4], ..recipe(3, 16, 9) }.ring();
    assert_eq!(interrupted(&mut engine, Some(&tokenizer), (jobs, &wanted), 2), wanted);
}

#[cfg(feature = "pickle")]
#[test]
fn sliding_windows_keep_what_interrupted_batches_need() {
    use leap::format::model::Weights;

    let model = crate::common::models::export("mistral-tiny", Weights::F32);
    let vocab = model.header().vocab_size as u32;
    assert!(model.header().sliding_window.is_some_and(|window| window < 60));
    let options = |n_streams, batch| Options {
        n_streams: Some(n_streams),
        batch: Some(batch),
        max_logits: Some(n_streams.max(8)),
        ..Options::default()
    };
    let prompt = |n: u32| -> Vec<u32> { (0..n).map(|i| i * 37 % vocab).collect() };
    let job = |n| Job { n_predict: 25, ..Job::new(prompt(n)) };
    let jobs = [job(3), job(70), job(70), job(40), Job { wants_logits: true, ..job(60) }];
    let mut alone = Engine::new(Arc::clone(&model), &options(1, 64)).unwrap();
    let wanted = jobs.iter().map(|job| {
        let mut scheduler = Scheduler::new(&mut alone, 1, None).unwrap();
        let id = scheduler.submit(job.clone());
        let mut listener = Listener::default();
        finish(&mut scheduler, &mut alone, &mut listener);
        listener.0.remove(&id).unwrap().ids
    });
    let wanted: Vec<_> = wanted.collect();
    let mut engine = Engine::new(model, &options(2, 9)).unwrap();
    assert_eq!(interrupted(&mut engine, None, (&jobs, &wanted), 3), wanted);
}

#[test]
fn a_prompt_goes_on_from_the_stream_that_holds_most_of_it() {
    let tokenizer = tokenizer();
    let mut engine = recipe(3, 16, 3).alone();
    let mut scheduler = Scheduler::new(&mut engine, 3, Some(&tokenizer)).unwrap();
    let mut listener = Listener::default();
    let texts = ["The old fox went home", "Once upon a time, there was", "The old fox"];
    let computed: Vec<usize> = texts
        .iter()
        .map(|text| {
            let ids = prompt(&tokenizer, text);
            let id = scheduler.submit(Job { n_predict: 3, ..Job::new(ids) });
            finish(&mut scheduler, &mut engine, &mut listener);
            listener.0[&id].figures.unwrap().prompt_tokens
        })
        .collect();
    let lengths: Vec<usize> = texts.iter().map(|text| prompt(&tokenizer, text).len()).collect();
    // The prompts share the token that begins every text. All of the last prompt is stored; only its last id is
    // computed, for its logits.
    assert_eq!(computed, [lengths[0], lengths[1] - 1, 1]);
}

/// An engine of `n_streams` streams that share memory for `kv_tokens` tokens.
fn sharing(n_streams: usize, batch: usize, kv_tokens: usize) -> Engine {
    let recipe = recipe(n_streams, batch, n_streams);
    let kv_memory = KvMemory::Tokens(kv_tokens);
    let options = Options { kv_memory, ..recipe.options() };
    Engine::new(Arc::new(Model::open(&recipe.model).unwrap()), &options).unwrap()
}

/// Jobs that are preempted and computed again repeat no text, and get the same text as alone.
#[test]
fn jobs_share_less_memory_than_they_need() {
    let tokenizer = tokenizer();
    let jobs = mixed(&tokenizer);
    let wanted = alone(&mut recipe(1, 64, 64).alone(), &tokenizer, &jobs);
    for (n_streams, batch, kv_tokens) in sample([(8, 64, 256), (11, 7, 320)]) {
        let mut engine = sharing(n_streams, batch, kv_tokens);
        assert_same(&run(&mut engine, &tokenizer, &jobs), &wanted, "shared memory");
        for seed in if crate::common::quick() { 21..22 } else { 21..25 } {
            crowd(&mut engine, &tokenizer, seed);
            let figures = engine.page_figures();
            assert_eq!((figures.n_pages, figures.n_used), (kv_tokens / 64, 0), "a page is lost");
        }
        let said = ids(wanted.clone());
        assert_eq!(interrupted(&mut engine, Some(&tokenizer), (&jobs, &said), 3), said);
    }
    let recipe = recipe(2, 16, 2);
    let options = Options { kv_memory: KvMemory::Tokens(192), ..recipe.options() };
    let error = Engine::new(Arc::new(Model::open(&recipe.model).unwrap()), &options);
    let error = error.map(drop).unwrap_err().to_string();
    assert_eq!(error, "memory for keys and values of 192 tokens, a context of 256 needs more");
}

/// Texts with common beginnings: each job gets the same answer as alone, and stored ids are not computed.
fn share_beginnings(model: &Arc<Model>, kv_tokens: usize) {
    let options = |n_streams, kv_memory| Options {
        n_streams: Some(n_streams),
        batch: Some(24),
        ctx_len: Some(256),
        kv_memory,
        ..Options::default()
    };
    let vocab = model.header().vocab_size;
    let mut state = kv_tokens as u64;
    let jobs: Vec<Job> = (0..24)
        .map(|_| {
            let (first, n) = (below(2, &mut state), below(180, &mut state));
            let mut ids: Vec<u32> = (0..n).map(|i| ((i * 37 + first) % vocab) as u32).collect();
            ids.extend((0..1 + below(40, &mut state)).map(|i| (i * 11 % vocab) as u32));
            let sampling = Sampling { temperature: 0.8, seed: 5, ..Sampling::GREEDY };
            Job { n_predict: 1 + below(30, &mut state), sampling, ..Job::new(ids) }
        })
        .collect();
    let run = |engine: &mut Engine, jobs: &[Job]| -> (Vec<Vec<u32>>, usize) {
        let mut scheduler = Scheduler::new(engine, usize::MAX, None).unwrap();
        let ids: Vec<JobId> = jobs.iter().map(|job| scheduler.submit(job.clone())).collect();
        let mut listener = Listener::default();
        finish(&mut scheduler, engine, &mut listener);
        let computed = ids.iter().map(|id| listener.0[id].figures.unwrap().prompt_tokens).sum();
        (ids.iter().map(|id| listener.0.remove(id).unwrap().ids).collect(), computed)
    };
    let wanted: Vec<Vec<u32>> = jobs
        .iter()
        .map(|job| {
            let mut alone = Engine::new(Arc::clone(model), &options(1, KvMemory::Whole)).unwrap();
            run(&mut alone, from_ref(job)).0.remove(0)
        })
        .collect();
    let mut engine =
        Engine::new(Arc::clone(model), &options(5, KvMemory::Tokens(kv_tokens))).unwrap();
    let (found, computed) = run(&mut engine, &jobs);
    assert!(found == wanted, "{kv_tokens}");
    let n_ids: usize = jobs.iter().map(|job| job.prompt.len()).sum();
    let figures = engine.page_figures();
    assert_eq!(figures.n_used, 0);
    assert!(computed < n_ids, "{computed} of {n_ids}");
    // For a stored prompt, only the last id is computed.
    let (found, _) = run(&mut engine, &jobs[..1]);
    assert!(found == wanted[..1]);
    let (found, computed) = run(&mut engine, &jobs[..1]);
    assert!(found == wanted[..1]);
    assert_eq!(computed, 1);
}

#[test]
fn texts_share_their_beginnings() {
    let model = Arc::new(Model::open(&package("models/demo.bin")).unwrap());
    for kv_tokens in sample([256, 1024]) {
        share_beginnings(&model, kv_tokens);
    }
}

#[cfg(feature = "pickle")]
#[test]
fn texts_with_windows_share_their_beginnings() {
    for checkpoint in sample(["mistral-tiny", "gemma3-tiny", "gptoss-tiny"]) {
        let model = crate::common::models::export(checkpoint, leap::format::model::Weights::F32);
        assert!(model.header().sliding_window.is_some_and(|window| window < 60));
        for kv_tokens in [256, 640] {
            share_beginnings(&model, kv_tokens);
        }
    }
}

/// A prompt that several jobs have at the same time is computed once.
#[test]
fn a_prompt_of_many_is_computed_once() {
    let mut engine = sharing(5, 32, 1024);
    let prompt: Vec<u32> = (0..150).map(|i| i * 53 % 4000).collect();
    let mut scheduler = Scheduler::new(&mut engine, 5, None).unwrap();
    let mut listener = Listener::default();
    let jobs =
        [(); 4].map(|()| scheduler.submit(Job { n_predict: 20, ..Job::new(prompt.clone()) }));
    finish(&mut scheduler, &mut engine, &mut listener);
    let computed = jobs.map(|id| listener.0[&id].figures.unwrap().prompt_tokens);
    assert_eq!(computed, [150, 22, 22, 22]);
    assert!(jobs.iter().all(|id| listener.0[id].ids == listener.0[&jobs[0]].ids));
}

#[test]
fn a_prompt_and_decoding_streams_both_go_on() {
    let tokenizer = tokenizer();
    for (n_decoding, batch) in [(2, 16), (4, 2), (1, 1)] {
        let mut engine = recipe(n_decoding + 1, batch, n_decoding + 1).alone();
        let mut scheduler = Scheduler::new(&mut engine, usize::MAX, Some(&tokenizer)).unwrap();
        let mut listener = Listener::default();
        let ids = prompt(&tokenizer, "Once upon a time");
        let sampling = Sampling { temperature: 1.0, ..Sampling::GREEDY };
        let job = Job { n_predict: 200, sampling, ..Job::new(ids) };
        let decoding: Vec<JobId> = (0..n_decoding).map(|_| scheduler.submit(job.clone())).collect();
        let texts = |listener: &Listener| -> Vec<usize> {
            decoding
                .iter()
                .map(|id| listener.0.get(id).map_or(0, |heard| heard.text.len()))
                .collect()
        };
        while texts(&listener).contains(&0) {
            scheduler.step(&mut engine, &mut |id, event| listener.hear(id, event));
        }
        let before = texts(&listener);
        let long: Vec<u32> = (0..40).map(|i| i * 53 % 4000).collect();
        let long = scheduler.submit(Job { n_predict: 1, ..Job::new(long) });
        let mut n_steps = 0;
        while !listener.has_ended(long) {
            scheduler.step(&mut engine, &mut |id, event| listener.hear(id, event));
            n_steps += 1;
        }
        // A step is a batch here. Each batch has a row of the prompt, or all rows left over by the others; if lanes
        // take turns, the prompt comes after all others.
        let wanted =
            if batch > n_decoding { 40_usize.div_ceil(batch - n_decoding) } else { 40 * 3 };
        assert!(n_steps <= wanted + 2, "{n_steps} steps beside {n_decoding}, batches of {batch}");
        let after = texts(&listener);
        assert!(before.iter().zip(&after).all(|(b, a)| a > b), "{before:?} became {after:?}");
        assert!(
            decoding.iter().all(|id| !listener.has_ended(*id)),
            "they have not ended before it"
        );
    }
}

#[test]
fn logits_of_a_prompt_are_those_of_a_stream() {
    let tokenizer = tokenizer();
    let ids: Vec<u32> = (0..100).map(|i| i * 17 % 4000).collect();
    let mut engine = recipe(1, 16, 16).alone();
    let mut wanted = Vec::new();
    {
        let mut stream = engine.stream().unwrap();
        for ids in ids.chunks(16) {
            wanted.extend(bits(engine.push_batch(&mut stream, ids, Wants::All).unwrap()));
        }
    }
    let job = Job { wants_logits: true, n_predict: 0, ..Job::new(ids) };
    // The second time, a stream holds the prompt, and all its logits must still come.
    for _ in 0..2 {
        assert!(run(&mut engine, &tokenizer, from_ref(&job))[0].logits == wanted);
    }
}

#[test]
fn another_engines_streams_are_refused() {
    let tokenizer = tokenizer();
    let (mut one, mut other) = (recipe(1, 16, 1).alone(), recipe(1, 16, 1).alone());
    let mut scheduler = Scheduler::new(&mut one, 1, Some(&tokenizer)).unwrap();
    let id = scheduler.submit(Job { n_predict: 2, ..Job::new(vec![1, 2, 3]) });
    let mut listener = Listener::default();
    finish(&mut scheduler, &mut other, &mut listener);
    assert_eq!(listener.0[&id].end, Some(Err("the stream belongs to another engine".to_owned())));
    let id = scheduler.submit(Job { n_predict: 2, ..Job::new(vec![1, 2, 3]) });
    finish(&mut scheduler, &mut one, &mut listener);
    assert_eq!(listener.0[&id].end, Some(Ok(StopReason::Length)));
}
