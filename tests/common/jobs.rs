//! Jobs for schedulers, and their events.
#![allow(dead_code, reason = "every test crate compiles this module; not all schedule jobs")]

use std::collections::BTreeMap;

use leap::engine::{Engine, Job, JobEvent, JobFigures, JobId, Scheduler, StopReason};
use leap::sampler::Sampling;
use leap::tokenizer::Tokenizer;

/// Events of a job.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heard {
    pub(crate) text: String,
    pub(crate) ids: Vec<u32>,
    /// Rows of the prompt's logits, as bits.
    pub(crate) logits: Vec<u32>,
    pub(crate) end: Option<Result<StopReason, String>>,
    pub(crate) figures: Option<JobFigures>,
}

/// The events of all jobs.
#[derive(Default)]
pub(crate) struct Listener(pub(crate) BTreeMap<JobId, Heard>);

impl Listener {
    pub(crate) fn hear(&mut self, id: JobId, event: JobEvent<'_>) {
        let heard = self.0.entry(id).or_default();
        assert!(heard.end.is_none(), "{id:?} has ended, and says {event:?}");
        match event {
            JobEvent::Text(part) => {
                assert!(!part.is_empty());
                heard.text += part;
            }
            // No job here asks for single tokens.
            JobEvent::Token { id: token, .. } => panic!("{id:?} tells of {token}"),
            JobEvent::Logits { logits, .. } => {
                heard.logits.extend(logits.iter().map(|x| x.to_bits()));
            }
            JobEvent::Done { outcome, ids } => {
                heard.ids = ids.to_vec();
                (heard.end, heard.figures) = (Some(Ok(outcome.reason)), Some(outcome.figures));
            }
            JobEvent::Failed(error) => heard.end = Some(Err(error.to_string())),
        }
    }

    pub(crate) fn has_ended(&self, id: JobId) -> bool {
        self.0.get(&id).is_some_and(|heard| heard.end.is_some())
    }
}

/// Steps until all jobs have ended.
pub(crate) fn finish(scheduler: &mut Scheduler<'_>, engine: &mut Engine, listener: &mut Listener) {
    while !scheduler.is_idle() {
        scheduler.step(engine, &mut |id, event| listener.hear(id, event));
    }
}

/// Runs `jobs` on all streams of `engine`, and returns the events of each.
pub(crate) fn run(engine: &mut Engine, tokenizer: &Tokenizer, jobs: &[Job]) -> Vec<Heard> {
    let mut scheduler = Scheduler::new(engine, usize::MAX, Some(tokenizer)).unwrap();
    let ids: Vec<JobId> = jobs.iter().map(|job| scheduler.submit(job.clone())).collect();
    let mut listener = Listener::default();
    finish(&mut scheduler, engine, &mut listener);
    ids.iter().map(|id| listener.0.remove(id).unwrap()).collect()
}

/// The answers to jobs that run at the same time, and the number of prompt ids computed for each.
pub(crate) fn answers(engine: &mut Engine, jobs: &[Job]) -> Vec<(Vec<u32>, usize)> {
    let mut scheduler = Scheduler::new(engine, usize::MAX, None).unwrap();
    let ids: Vec<JobId> = jobs.iter().map(|job| scheduler.submit(job.clone())).collect();
    let mut listener = Listener::default();
    finish(&mut scheduler, engine, &mut listener);
    assert_eq!(engine.page_figures().n_used, 0, "a page is lost");
    let figures = |id| listener.0[id].figures.unwrap().prompt_tokens;
    ids.iter().map(|id| (listener.0[id].ids.clone(), figures(id))).collect()
}

/// Runs `jobs` one after the other, and returns the events of each.
pub(crate) fn alone(engine: &mut Engine, tokenizer: &Tokenizer, jobs: &[Job]) -> Vec<Heard> {
    jobs.iter().flat_map(|job| run(engine, tokenizer, std::slice::from_ref(job))).collect()
}

/// Checks that two runs of the same jobs gave the same results.
#[track_caller]
pub(crate) fn assert_same(found: &[Heard], wanted: &[Heard], what: &str) {
    assert_eq!(found.len(), wanted.len());
    for (index, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        let said = |heard: &Heard| (heard.text.clone(), heard.ids.clone(), heard.end.clone());
        assert_eq!(said(found), said(wanted), "{what}: job {index}");
        assert!(found.logits == wanted.logits, "{what}: logits of job {index}");
    }
}

pub(crate) fn prompt(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    let mut ids: Vec<u32> = tokenizer.bos().into_iter().collect();
    tokenizer.encode(text, &mut ids);
    ids
}

/// Jobs that differ in every way that jobs can: length of the prompt, sampling, and what ends them. Some share a
/// prefix.
pub(crate) fn mixed(tokenizer: &Tokenizer) -> Vec<Job> {
    let random = |seed| Sampling { temperature: 0.9, top_p: 0.95, top_k: 40, min_p: 0.0, seed };
    let long = |n: u32| -> Vec<u32> { (0..n).map(|i| i * 53 % 4000).collect() };
    let job = |text: &str, n_predict| Job { n_predict, ..Job::new(prompt(tokenizer, text)) };
    vec![
        job("Once upon a time", 24),
        Job { sampling: random(3), ..job("The old fox", 30) },
        Job { n_predict: 9, ..Job::new(long(150)) },
        Job {
            stop_strings: vec![" owl".to_owned(), "een".to_owned()],
            ..job("Once upon a time", 40)
        },
        Job { sampling: Sampling { min_p: 0.05, ..random(4) }, ..job("The old fox", 17) },
        Job { sampling: random(u64::MAX), n_predict: 12, ..Job::new(long(77)) },
        Job { n_predict: 0, wants_logits: true, ..Job::new(long(37)) },
        Job { starts_text: true, stop_ids: (0..4000).step_by(3).collect(), ..job("One day", 50) },
        Job { wants_logits: true, sampling: random(9), ..job("In the forest, a girl", 11) },
        // This job runs to the end of the context.
        Job { n_predict: usize::MAX, ..Job::new(long(240)) },
        job("", 1),
    ]
}
