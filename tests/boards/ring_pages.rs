//! Streams of a ring or a team share pages of keys and values like those of one board.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::distant::Distant;
use crate::common::jobs::{Heard, Listener, alone, assert_same, mixed, run};
use crate::common::models::package;
use crate::common::rings::{LIMITS, Recipe, Telling};
use leap::engine::ring::{Held, MachineReading, WorkerOptions, run_worker};
use leap::engine::{Engine, Job, JobId, KvKind, Scheduler, WeightsPlace};
use leap::internals::model::Model;
use leap::internals::transport::Endpoint;
use leap::sampler::Sampling;
use leap::tokenizer::Tokenizer;

fn tokenizer() -> Tokenizer {
    let bytes = std::fs::read(package("models/demo.tokenizer.bin")).unwrap();
    Tokenizer::from_bytes(&bytes, None).unwrap()
}

/// A ring with layers cut at `cuts`, whose `n_streams` streams have memory for `kv_tokens` tokens.
fn recipe(cuts: &[usize], n_streams: usize, batch: usize, kv_tokens: usize) -> Recipe {
    let kv_tokens = Some(kv_tokens);
    Recipe { batch, n_streams, max_logits: 3, kv_tokens, ..Recipe::demo(cuts) }
}

/// A pseudo-random number below `n` (Xorshift).
fn below(n: usize, state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state % n as u64) as usize
}

/// Texts that begin in one of few ways.
fn alike(vocab: usize) -> Vec<Job> {
    let mut state = 0x5eed;
    (0..20)
        .map(|_| {
            let (first, n) = (below(2, &mut state), below(170, &mut state));
            let mut ids: Vec<u32> = (0..n).map(|i| ((i * 37 + first) % vocab) as u32).collect();
            ids.extend((0..1 + below(40, &mut state)).map(|i| (i * 11 % vocab) as u32));
            let sampling = Sampling { temperature: 0.8, seed: 5, ..Sampling::GREEDY };
            Job { n_predict: 1 + below(30, &mut state), sampling, ..Job::new(ids) }
        })
        .collect()
}

/// The text of each of `jobs`, and the number of prompt ids that were computed. Calls `change` before each step.
fn answers(
    engine: &mut Engine,
    jobs: &[Job],
    mut change: impl FnMut(&mut Engine),
) -> (Vec<Vec<u32>>, usize) {
    let mut scheduler = Scheduler::new(engine, usize::MAX, None).unwrap();
    let ids: Vec<JobId> = jobs.iter().map(|job| scheduler.submit(job.clone())).collect();
    let mut listener = Listener::default();
    while !scheduler.is_idle() {
        change(engine);
        scheduler.step(engine, &mut |id, event| listener.hear(id, event));
    }
    let computed = ids.iter().map(|id| listener.0[id].figures.unwrap().prompt_tokens).sum();
    (ids.iter().map(|id| listener.0.remove(id).unwrap().ids).collect(), computed)
}

/// The texts of these jobs on one board alone.
fn wanted(recipe: &Recipe, jobs: &[Job]) -> Vec<Vec<u32>> {
    let recipe = Recipe { n_streams: 1, kv_tokens: None, ..recipe.clone() };
    let alone =
        |job: &Job| answers(&mut recipe.alone(), std::slice::from_ref(job), |_| {}).0.remove(0);
    jobs.iter().map(alone).collect()
}

#[track_caller]
fn assert_no_page_is_lost(engine: &Engine, kv_tokens: usize) {
    let figures = engine.page_figures();
    assert_eq!((figures.n_pages, figures.n_used), (kv_tokens / 64, 0));
}

#[test]
fn jobs_on_a_ring_share_less_memory_than_they_need() {
    let tokenizer = tokenizer();
    let jobs = mixed(&tokenizer);
    let teams = [vec![1, 2], vec![2, 1]];
    let wanted = alone(&mut recipe(&[], 1, 64, 256).alone(), &tokenizer, &jobs);
    let all =
        [(&[2, 4][..], 8, 64, 256, &[][..]), (&[3], 7, 7, 320, &[]), (&[3], 4, 16, 256, &teams)];
    for (cuts, n_streams, batch, kv_tokens, teams) in all {
        let recipe = recipe(cuts, n_streams, batch, kv_tokens);
        let (mut engine, _workers) = Recipe { teams: teams.to_vec(), ..recipe }.ring();
        for _ in 0..2 {
            let found: Vec<Heard> = run(&mut engine, &tokenizer, &jobs);
            assert_same(&found, &wanted, &format!("cuts {cuts:?}, teams {teams:?}"));
            assert_no_page_is_lost(&engine, kv_tokens);
        }
    }
}

#[test]
fn streams_of_a_team_that_is_no_ring_share_pages() {
    let tokenizer = tokenizer();
    let jobs = mixed(&tokenizer);
    let said = alone(&mut recipe(&[], 1, 64, 256).alone(), &tokenizer, &jobs);
    let texts = alike(4000);
    let wanted = wanted(&recipe(&[], 1, 16, 256), &texts);
    let recipe = Recipe { teams: vec![vec![2, 1]], ..recipe(&[], 4, 16, 256) };
    let mut engine = recipe.team_alone();
    for _ in 0..2 {
        assert_same(&run(&mut engine, &tokenizer, &jobs), &said, "jobs");
        assert_no_page_is_lost(&engine, 256);
    }
    let (found, computed) = answers(&mut engine, &texts, |_| {});
    assert!(found == wanted);
    let n_ids: usize = texts.iter().map(|job| job.prompt.len()).sum();
    assert!(computed < n_ids, "{computed} of {n_ids}");
    answers(&mut engine, &texts[..1], |_| {});
    let (found, computed) = answers(&mut engine, &texts[..1], |_| {});
    assert!(found == wanted[..1]);
    assert_eq!(computed, 1);
}

#[test]
fn texts_on_a_ring_share_their_beginnings() {
    for (cuts, kv_tokens) in [(&[][..], 256), (&[2, 4], 256), (&[3], 1024)] {
        let recipe = recipe(cuts, 5, 24, kv_tokens);
        let jobs = alike(4000);
        let wanted = wanted(&recipe, &jobs);
        let (mut engine, _workers) = recipe.ring();
        let (found, computed) = answers(&mut engine, &jobs, |_| {});
        assert!(found == wanted, "{cuts:?}");
        let n_ids: usize = jobs.iter().map(|job| job.prompt.len()).sum();
        assert!(computed < n_ids, "{computed} of {n_ids}");
        assert_no_page_is_lost(&engine, kv_tokens);
        // For a stored prompt, only the last id is computed.
        answers(&mut engine, &jobs[..1], |_| {});
        let (found, computed) = answers(&mut engine, &jobs[..1], |_| {});
        assert!(found == wanted[..1]);
        assert_eq!(computed, 1);
    }
}

/// Pages travel with the layers, each once; so do those that no stream holds.
#[test]
fn pages_move_with_their_layers() {
    let kinds = [KvKind::Int8, KvKind::F16];
    for kv in if crate::common::quick() { &kinds[..1] } else { &kinds[..] } {
        let kv = *kv;
        let recipe = Recipe { kv, ..recipe(&[2, 4], 4, 24, 512) };
        let jobs = alike(4000);
        let wanted = wanted(&recipe, &jobs);
        let (mut engine, _workers, mut mover) = recipe.moving_ring();
        let mut state = 0x5eed;
        let mut split = || {
            let first = 1 + below(4, &mut state);
            let second = first + 1 + below(5 - first, &mut state);
            [0..first, first..second, second..6]
        };
        let mut n_steps = 0;
        let (found, _) = answers(&mut engine, &jobs, |_| {
            n_steps += 1;
            if n_steps % 5 == 0 {
                mover.ask(&split());
            }
        });
        assert!(found == wanted);
        assert!(mover.n_moves > 5, "{}", mover.n_moves);
        assert_no_page_is_lost(&engine, 512);
        // Pages that no stream holds have moved, too.
        answers(&mut engine, &jobs[..1], |_| {});
        for _ in 0..3 {
            engine.resplit(&split(), &recipe.place(0)).unwrap();
        }
        let (found, computed) = answers(&mut engine, &jobs[..1], |_| {});
        assert!(found == wanted[..1]);
        assert_eq!(computed, 1);
    }
}

/// Layers with windows have pages of their own, in which later positions replace earlier ones.
#[cfg(feature = "pickle")]
#[test]
fn texts_with_windows_share_their_beginnings_on_a_ring() {
    use crate::common::folder::Folder;
    use crate::common::models::export_to;
    use leap::format::model::Weights;

    let all = ["gemma3-tiny", "mistral-tiny", "gptoss-tiny", "gemma4-tiny", "gemma4moe-tiny"];
    for checkpoint in crate::common::sample(all) {
        let folder = Folder::new();
        let model = export_to(&folder, checkpoint, Weights::F32);
        for kv_tokens in [256, 640] {
            let recipe = Recipe { model: model.clone(), ..recipe(&[1], 5, 24, kv_tokens) };
            let alone = recipe.alone();
            let (n_layers, vocab) = (alone.header().n_layers, alone.header().vocab_size);
            let last = alone.header().joined_from().min(n_layers - 1);
            assert!(alone.header().sliding_window.is_some_and(|window| window < 60));
            let jobs = alike(vocab);
            let wanted = wanted(&recipe, &jobs);
            let (mut engine, _workers, mut mover) = recipe.moving_ring();
            let mut n_steps = 0;
            let (found, _) = answers(&mut engine, &jobs, |_| {
                n_steps += 1;
                let cut = [last, 1][n_steps / 10 % 2];
                if n_steps % 10 == 0 {
                    mover.ask(&[0..cut, cut..n_layers]);
                }
            });
            assert!(mover.n_moves > 3, "{}", mover.n_moves);
            assert!(found == wanted, "{checkpoint}, {kv_tokens}");
            assert_no_page_is_lost(&engine, kv_tokens);
        }
    }
}

/// A worker whose device loses its stored rows from time to time.
fn forget(
    telling: Telling,
    (share, _): (Model, WeightsPlace),
    endpoint: Box<dyn Endpoint>,
    is_interrupted: &AtomicBool,
) {
    let options = WorkerOptions {
        name: &format!("node{}", telling.index),
        wish: Some(share.share().layers.clone()),
        limits: LIMITS,
        prepare: &|_, _| Ok(None),
        elsewhere: &|_, _, _| None,
        prefixes: None,
        meter: &|_| MachineReading::default(),
        report: &|_| None,
        is_interrupted: &|| is_interrupted.load(Ordering::Relaxed),
    };
    let mut stage = Distant::losing(Arc::new(share), 30 + 7 * telling.index);
    run_worker(&mut stage, endpoint, &options, &mut Held::default(), &mut |_| {}).unwrap();
}

#[test]
fn what_a_node_loses_is_computed_again() {
    let tokenizer = tokenizer();
    let jobs = mixed(&tokenizer);
    let recipe = recipe(&[2, 4], 4, 16, 320);
    let said = alone(&mut Recipe { kv_tokens: None, ..recipe.clone() }.alone(), &tokenizer, &jobs);
    let texts = alike(4000);
    let wanted = wanted(&recipe, &texts);
    let (mut engine, _workers) = recipe.ring_of(forget);
    assert_same(&run(&mut engine, &tokenizer, &jobs), &said, "jobs");
    assert_no_page_is_lost(&engine, 320);
    assert!(answers(&mut engine, &texts, |_| {}).0 == wanted);
    assert_no_page_is_lost(&engine, 320);
    // With a single stream, the caller need not notice.
    let ids: Vec<u32> = (0..120).map(|i| i * 29 % 4000).collect();
    let all = |engine: &mut Engine| -> Vec<Vec<f32>> {
        let mut stream = engine.stream().unwrap();
        ids.chunks(3).map(|ids| engine.push(&mut stream, ids).unwrap().to_vec()).collect()
    };
    let found = all(&mut engine);
    assert!(found == all(&mut Recipe { kv_tokens: None, ..recipe }.alone()));
}
