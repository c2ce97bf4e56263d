//! Layers that move while batches are in flight: nothing is computed twice, and nothing waits for unneeded work.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use crate::common::jobs::{Heard, Listener};
use crate::common::rings::{Recipe, assert_no_setbacks, assert_nothing_lost, lead_alone};
use leap::engine::ring::Setbacks;
use leap::engine::{Engine, Job, JobId, Scheduler};

fn recipe(cuts: &[usize], teams: &[&[u16]]) -> Recipe {
    let teams = teams.iter().map(|shares| shares.to_vec()).collect();
    Recipe { batch: 9, n_streams: 4, max_logits: 9, teams, ..Recipe::demo(cuts) }
}

/// Answers to prompts of several lengths; calls `each_step` with the engine after each step.
fn answers(engine: &mut Engine, mut each_step: impl FnMut(&mut Engine, usize)) -> Vec<Heard> {
    let mut scheduler = Scheduler::new(engine, usize::MAX, None).unwrap();
    let job = |n: u32| {
        let ids: Vec<u32> = (0..n).map(|i| i * 53 % 700 + 3).collect();
        Job { n_predict: 16, ..Job::new(ids) }
    };
    let jobs = [31, 4, 23, 12, 40, 7].map(|n| scheduler.submit(job(n)));
    let mut listener = Listener::default();
    let mut n_steps = 0;
    while !scheduler.is_idle() {
        scheduler.step(engine, &mut |id, event| listener.hear(id, event));
        n_steps += 1;
        each_step(engine, n_steps);
    }
    jobs.iter().map(|job: &JobId| listener.0.remove(job).unwrap()).collect()
}

#[test]
fn a_split_amid_batches_of_many_streams_keeps_every_result() {
    let alone = answers(&mut recipe(&[], &[]).alone(), |_, _| {});
    let one: &[u16] = &[1];
    let rings: [&[&[u16]]; 2] = [&[], &[one, one, &[1, 1]]];
    for teams in rings {
        let ring = recipe(&[2, 4], teams);
        let (mut engine, _workers) = ring.ring();
        let mut n_moves = 0;
        let found = answers(&mut engine, |engine, n_steps| {
            if n_steps % 3 == 0 {
                // Layers of a place that is a team stay.
                let cut = 1 + n_steps / 3 % 3;
                engine.resplit(&[0..cut, cut..4, 4..6], &ring.place(0)).unwrap();
                n_moves += 1;
            }
        });
        for (found, alone) in found.iter().zip(&alone) {
            assert!(found.ids == alone.ids, "{teams:?}");
            let [found, alone] = [found, alone].map(|heard| heard.figures.unwrap().prompt_tokens);
            assert_eq!(found, alone, "{teams:?}");
        }
        assert!(n_moves > 5, "{n_moves}");
        assert_nothing_lost(&engine);
    }
}

#[test]
fn a_team_without_a_ring_loses_nothing_while_nothing_fails() {
    let alone = answers(&mut recipe(&[], &[]).alone(), |_, _| {});
    let mut engine = recipe(&[], &[&[2, 1]]).team_alone();
    let found = answers(&mut engine, |_, _| {});
    assert!(found.iter().zip(&alone).all(|(found, alone)| found.ids == alone.ids));
    assert_no_setbacks(&engine);
}

#[test]
fn a_team_that_changes_amid_many_streams_keeps_every_result() {
    let alone = answers(&mut recipe(&[], &[]).alone(), |_, _| {});
    let (mut engine, changes) = recipe(&[], &[&[1, 1]]).changing_team();
    let (done, is_done) = channel();
    let mut other = Some(lead_alone(done));
    let found = answers(&mut engine, |engine, n_steps| {
        if let Some(other) = other.take_if(|_| n_steps == 5) {
            changes.send(other).unwrap();
        }
        // Changes are looked for after each step, even if a result waits to be collected.
        engine.look_for_changes().unwrap();
    });
    assert_eq!(is_done.try_recv(), Ok(Ok(())));
    assert!(found.iter().zip(&alone).all(|(found, alone)| found.ids == alone.ids));
    // In the new team, boards have other rows of the stored keys and values, which are computed once more.
    let setbacks = engine.team().unwrap().setbacks();
    assert_eq!(*setbacks, Setbacks { streams_lost: 1, ..Setbacks::default() });
}

#[test]
fn a_team_whose_boards_stay_away_counts_one_loss_once() {
    static IS_OVER: AtomicBool = AtomicBool::new(false);
    let ids: Vec<u32> = (0..31).map(|i| i * 53 % 700 + 3).collect();
    let job = Job { n_predict: 40, ..Job::new(ids) };
    let is_over = || IS_OVER.load(Ordering::Relaxed);
    let (mut engine, changes) =
        recipe(&[], &[&[1, 1]]).ending_team(is_over, Duration::from_millis(200));
    let mut scheduler = Scheduler::new(&mut engine, usize::MAX, None).unwrap();
    let mut listener = Listener::default();
    let start = Instant::now();
    let mut run = |engine: &mut Engine, is_to_end: bool| {
        let id = scheduler.submit(job.clone());
        let mut n_steps = 0;
        while !scheduler.is_idle() {
            assert!(start.elapsed() < Duration::from_secs(300), "the job ends");
            scheduler.step(engine, &mut |id, event| listener.hear(id, event));
            n_steps += 1;
            if is_to_end && n_steps == 5 {
                IS_OVER.store(true, Ordering::Relaxed);
            }
        }
        listener.0.remove(&id).unwrap()
    };
    // The other board ends, and the team cannot open again.
    let lost = run(&mut engine, true);
    assert!(lost.end.as_ref().is_some_and(Result::is_err), "{:?}", lost.end);
    let (done, is_done) = channel();
    changes.send(lead_alone(done)).unwrap();
    let found = run(&mut engine, false);
    assert!(found.end.as_ref().is_some_and(Result::is_ok), "{:?}", found.end);
    assert_eq!(is_done.try_recv(), Ok(Ok(())));
    let setbacks = engine.team().unwrap().setbacks();
    // A pass is lost only if the board ended amid one.
    assert!(setbacks.streams_lost == 1 && setbacks.batches_lost <= 1, "{setbacks:?}");
}
