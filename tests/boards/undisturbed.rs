//! Streams whose neighbours end or wait in mid-answer, or whose draft node ends: their texts stay the same, nothing is
//! computed twice, and nothing waits for unneeded work.

use std::fs;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::common::jobs::{Heard, Listener};
use crate::common::models::package;
use crate::common::rings::{Recipe, assert_no_setbacks, assert_nothing_lost};
use crate::draft_node::Place;
use leap::engine::{DRAFTS_MAX, DraftMode, Engine, Job, JobId, Scheduler, StopReason};
use leap::internals::draft_node::master::{DraftPlace, NodeDrafter};
use leap::internals::transport::place::HostPort;
use leap::internals::wire::seal::Key;
use leap::tokenizer::Tokenizer;

/// Far longer than any step here takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn recipe(cuts: &[usize], teams: &[&[u16]]) -> Recipe {
    let teams = teams.iter().map(|shares| shares.to_vec()).collect();
    let max_logits = 4 + DRAFTS_MAX;
    Recipe { batch: 9, n_streams: 4, max_logits, teams, ..Recipe::demo(cuts) }
}

/// Runs `test` with a ring, a ring with a team in it, and a team without a ring. None may lose anything.
fn each_group(of: fn(&[usize], &[&[u16]]) -> Recipe, test: impl Fn(&mut Engine, &str)) {
    let one: &[u16] = &[1];
    let rings: [(&str, &[&[u16]]); 2] =
        [("a ring", &[]), ("a ring with a team", &[one, one, &[1, 1]])];
    for (what, teams) in rings {
        let (mut engine, _workers) = of(&[2, 4], teams).ring();
        test(&mut engine, what);
        assert_nothing_lost(&engine);
    }
    let mut engine = of(&[], &[&[2, 1]]).team_alone();
    test(&mut engine, "a team");
    assert_no_setbacks(&engine);
}

/// Jobs whose prompts have these lengths. No two prompts begin alike, in any round, so nothing stored is shared.
fn jobs(lens: &[u32], n_predict: usize, round: u32) -> Vec<Job> {
    let ids = |n: u32| (0..n).map(|i| (i * 53 + n * 17 + round * 31) % 700 + 3).collect();
    lens.iter().map(|n| Job { n_predict, ..Job::new(ids(*n)) }).collect()
}

/// Results of jobs; calls `each_step` before each step but the first.
fn answers(
    engine: &mut Engine,
    scheduler: &mut Scheduler<'_>,
    jobs: &[Job],
    mut each_step: impl FnMut(&mut Scheduler<'_>, &[JobId], usize),
) -> Vec<Heard> {
    let ids: Vec<JobId> = jobs.iter().map(|job| scheduler.submit(job.clone())).collect();
    let mut listener = Listener::default();
    let mut n_steps = 0;
    while !scheduler.is_idle() {
        scheduler.step(engine, &mut |id, event| listener.hear(id, event));
        n_steps += 1;
        each_step(scheduler, &ids, n_steps);
    }
    ids.iter().map(|id| listener.0.remove(id).unwrap()).collect()
}

/// Results of jobs on one board alone, with memory for all.
fn alone(jobs: &[Job]) -> Vec<Heard> {
    let mut engine = recipe(&[], &[]).alone();
    let mut scheduler = Scheduler::new(&mut engine, usize::MAX, None).unwrap();
    answers(&mut engine, &mut scheduler, jobs, |_, _, _| {})
}

/// Tokens of the prompt that were computed.
fn computed(heard: &Heard) -> usize {
    heard.figures.unwrap().prompt_tokens
}

const LENS: [u32; 6] = [31, 4, 23, 12, 40, 7];

#[test]
fn clients_that_leave_in_mid_answer_cost_the_others_nothing() {
    each_group(recipe, |engine, what| {
        let mut scheduler = Scheduler::new(engine, usize::MAX, None).unwrap();
        // A client leaves during prompts, during answers, and before its job has a stream.
        for (round, (leaver, at)) in
            [(0, 1), (0, 3), (1, 6), (2, 15), (4, 2), (3, 30)].iter().enumerate()
        {
            let jobs = jobs(&LENS, 40, round as u32);
            let wanted = alone(&jobs);
            let found = answers(engine, &mut scheduler, &jobs, |scheduler, ids, n_steps| {
                if n_steps == *at {
                    scheduler.cancel(ids[*leaver]);
                }
            });
            for (index, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
                if index == *leaver && found.end == Some(Ok(StopReason::Interrupted)) {
                    assert!(wanted.ids.starts_with(&found.ids), "{what}: {index} of round {round}");
                    continue;
                }
                assert_eq!(found.ids, wanted.ids, "{what}: {index} of round {round}");
                assert_eq!(computed(found), computed(wanted), "{what}: {index} of round {round}");
            }
            assert_eq!(found[*leaver].end, Some(Ok(StopReason::Interrupted)), "{what}: {round}");
        }
    });
}

#[test]
fn those_who_come_after_all_have_left_find_nothing_lost() {
    each_group(recipe, |engine, what| {
        let mut scheduler = Scheduler::new(engine, usize::MAX, None).unwrap();
        for (round, at) in [2, 7, 20].into_iter().enumerate() {
            let round = 2 * round as u32;
            let left =
                answers(engine, &mut scheduler, &jobs(&LENS, 16, round), |scheduler, _, n| {
                    if n == at {
                        scheduler.cancel_all();
                    }
                });
            assert!(left.iter().any(|heard| heard.end == Some(Ok(StopReason::Interrupted))));
            let jobs = jobs(&LENS, 16, round + 1);
            let found = answers(engine, &mut scheduler, &jobs, |_, _, _| {});
            for (found, wanted) in found.iter().zip(&alone(&jobs)) {
                assert_eq!(found.ids, wanted.ids, "{what}: {round}");
                assert_eq!(computed(found), computed(wanted), "{what}: {round}");
            }
        }
    });
}

/// Calls of [`is_interrupted`] until the user interrupts.
static CALLS_LEFT: AtomicI64 = AtomicI64::new(i64::MAX);

/// The user of one test.
fn is_interrupted() -> bool {
    CALLS_LEFT.fetch_sub(1, Ordering::Relaxed) <= 0
}

#[test]
fn a_conversation_whose_answers_are_interrupted_keeps_what_is_stored() {
    each_group(recipe, |engine, what| {
        engine.interrupt_by(is_interrupted);
        let mut scheduler = Scheduler::new(engine, usize::MAX, None).unwrap();
        let mut n_cut = 0;
        // In the midst of computing, of gathers, and of waits for results.
        for (round, n_calls) in [1, 3, 10, 30, 100, 300, 1_000, 3_000].into_iter().enumerate() {
            let question = jobs(&[40, 17], 30, round as u32);
            CALLS_LEFT.store(n_calls, Ordering::Relaxed);
            let cut = answers(engine, &mut scheduler, &question, |scheduler, _, _| {
                if CALLS_LEFT.load(Ordering::Relaxed) <= 0 {
                    scheduler.cancel_all();
                }
            });
            CALLS_LEFT.store(i64::MAX, Ordering::Relaxed);
            let is_cut = |heard: &Heard| heard.end == Some(Ok(StopReason::Interrupted));
            n_cut += cut.iter().filter(|heard| is_cut(heard)).count();
            let next = |(job, heard): (&Job, &Heard)| {
                let prompt = [&job.prompt, &heard.ids, &[3, 5, 7][..]].concat();
                Job { n_predict: 12, ..Job::new(prompt) }
            };
            let next: Vec<Job> = question.iter().zip(&cut).map(next).collect();
            let found = answers(engine, &mut scheduler, &next, |_, _, _| {});
            for (found, wanted) in found.iter().zip(&alone(&next)) {
                assert_eq!(found.ids, wanted.ids, "{what}: after {n_calls} calls");
            }
        }
        assert!(n_cut > 2, "{what}: {n_cut} are cut");
    });
}

#[test]
fn streams_that_wait_for_memory_and_go_on_lose_no_batch_of_others() {
    let small =
        |cuts: &[usize], teams: &[&[u16]]| Recipe { kv_tokens: Some(256), ..recipe(cuts, teams) };
    each_group(small, |engine, what| {
        let mut scheduler = Scheduler::new(engine, usize::MAX, None).unwrap();
        // Each answer fits the memory; all of them together do not.
        let jobs = jobs(&[70, 64, 75, 80, 66], 60, 0);
        let found = answers(engine, &mut scheduler, &jobs, |_, _, _| {});
        for (found, wanted) in found.iter().zip(&alone(&jobs)) {
            assert_eq!(found.ids, wanted.ids, "{what}");
        }
    });
}

/// Sends a signal to a program.
fn signal(program: &Child, name: &str) {
    let pid = program.id().to_string();
    assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
}

#[test]
fn a_draft_node_that_stays_or_goes_in_mid_answer_costs_no_batch() {
    let bytes = fs::read(package("models/demo.tokenizer.bin")).unwrap();
    let tokenizer = Tokenizer::from_bytes(&bytes, None).unwrap();
    let boards = Place::new();
    let key = fs::read(boards.path("key")).unwrap().try_into().unwrap();
    each_group(recipe, |engine, what| {
        // With the first it stays.
        for (round, name) in ["CONT", "KILL", "STOP"].into_iter().enumerate() {
            let node = boards.node("models/demo-draft.bin", 0);
            let place =
                DraftPlace { at: HostPort::new("127.0.0.1", node.port), key: Key::new(key) };
            let told = (Box::new(|_: &_| {}) as Box<_>, false);
            let drafter = NodeDrafter::start(place, &tokenizer, (4, 256), told).unwrap();
            drafter.wait(PATIENCE);
            let mut scheduler = Scheduler::new(engine, usize::MAX, None).unwrap();
            scheduler.draft(Box::new(drafter), DraftMode::Fixed(4));
            let jobs = jobs(&LENS, 60, round as u32);
            let found = answers(engine, &mut scheduler, &jobs, |_, _, n_steps| {
                if n_steps == 40 {
                    signal(&node.child, name);
                }
            });
            for (found, wanted) in found.iter().zip(&alone(&jobs)) {
                assert_eq!(found.ids, wanted.ids, "{what}: {name}");
                assert_eq!(computed(found), computed(wanted), "{what}: {name}");
            }
        }
    });
}
