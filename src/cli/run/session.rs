//! A model that is ready, and its answers.

use std::cell::RefCell;
use std::io::{self, Write};
use std::sync::Arc;

use super::energy::{AnswerEnergy, EnergyWatch};
use super::flags::Run;

use super::thinking::Shown;
use crate::cli::model_files::Loaded;
use crate::cli::ring::Control;
use crate::cli::{Failure, ring, stdout_failure};
use crate::engine::{Engine, Job, JobError, JobEvent, JobId, Outcome, Scheduler};
use crate::sampler::Sampling;
use crate::sys::power::Meter;
use crate::sys::signal;

/// Limit on the tokens of an answer without -n.
const N_PREDICT: usize = 256;

/// A model that is ready, with the flags for its use.
pub(super) struct Session<'a> {
    pub(super) flags: &'a Run,
    pub(super) loaded: &'a Loaded,
    pub(super) engine: Engine,
    pub(super) scheduler: Scheduler<'a>,
    /// Socket for questions about the model's ring.
    pub(super) control: Option<Control>,
    /// Seed of the random numbers.
    pub(super) seed: u64,
    /// Adds up the machine's energy, if its power is known.
    pub(super) meter: Option<Arc<Meter>>,
    /// Energy of the last answers.
    pub(super) energy: AnswerEnergy,
}

/// Result of a prompt.
pub(super) struct Reply {
    /// The answer without thoughts.
    pub(super) text: String,
    pub(super) ids: Vec<u32>,
    pub(super) outcome: Outcome,
}

impl Session<'_> {
    /// The job that continues `prompt` with the flags' settings.
    pub(super) fn job(&self, prompt: Vec<u32>) -> Job {
        let flags = self.flags;
        let (temperature, top_p) = (flags.temp, flags.top_p);
        let (top_k, min_p) = (flags.top_k, flags.min_p);
        Job {
            sampling: Sampling { temperature, top_p, top_k, min_p, seed: self.seed },
            n_predict: flags.n_predict.unwrap_or(N_PREDICT),
            stop_ids: stop_ids(self.loaded),
            stop_strings: flags.stop.clone(),
            ..Job::new(prompt)
        }
    }

    /// Answers one job, and shows its text as it comes.
    pub(super) fn answer(
        &mut self,
        job: Job,
        screen: &Screen,
        mut shown: Shown,
    ) -> Result<Reply, Failure> {
        let (mut ids, mut outcome) = (Vec::new(), Ok(Outcome::INTERRUPTED));
        self.run(&mut std::iter::once(job), screen, &mut |_, event| match event {
            JobEvent::Text(part) => shown.push(part, &|text| screen.show(text)),
            JobEvent::Done { outcome: done, ids: answer } => {
                ids.extend_from_slice(answer);
                outcome = Ok(done);
            }
            JobEvent::Failed(error) => outcome = Err(error),
            JobEvent::Logits { .. } | JobEvent::Token { .. } => {}
        });
        let outcome = outcome.map_err(|error| self.failure(error))?;
        shown.end(&|text| screen.show(text));
        Ok(Reply { text: shown.text, ids, outcome })
    }

    /// Answers `jobs`, and reports each by its number. Stops at a signal, when text cannot be shown, or when the engine
    /// cannot go on.
    pub(super) fn run(
        &mut self,
        jobs: &mut dyn Iterator<Item = Job>,
        screen: &Screen,
        tell: &mut dyn FnMut(usize, JobEvent<'_>),
    ) {
        if let Some(ring) = self.engine.ring_mut() {
            ring.start_times();
        }
        if let Some(team) = self.engine.team_mut() {
            team.start_times();
        }
        let mut watch = self.meter.as_deref().map(EnergyWatch::begin);
        let n_queued = self.flags.streams.unwrap_or(1);
        let mut ids: Vec<JobId> = Vec::new();
        let mut is_over = false;
        loop {
            if is_over || screen.is_interrupted() {
                self.scheduler.cancel_all();
                is_over = true;
            }
            while !is_over
                && self.scheduler.n_queued() < n_queued
                && let Some(job) = jobs.next()
            {
                ids.push(self.scheduler.submit(job));
            }
            if self.scheduler.is_idle() {
                self.energy = watch.map(EnergyWatch::end).unwrap_or_default();
                return;
            }
            if let Some(control) = &self.control {
                control.visit(&mut self.engine);
            }
            self.scheduler.step(&mut self.engine, &mut |id, event| {
                is_over |= matches!(event, JobEvent::Failed(JobError::Step(_)));
                if let Ok(index) = ids.binary_search(&id) {
                    tell(index, event);
                }
            });
            if let Some(watch) = watch.as_mut().filter(|watch| watch.awaits_tokens()) {
                watch.see(self.scheduler.running().map(|figures| figures.generated_tokens).sum());
            }
        }
    }

    /// The failure, with its exit code, for the error that ended an answer.
    pub(super) fn failure(&self, error: JobError) -> Failure {
        match &error {
            JobError::Step(e) => ring::step_failure(e.clone()),
            JobError::TooLong { .. } => Failure::Usage(format!("{error}; {}", self.shorten())),
            _ => Failure::runtime(&error),
        }
    }

    /// Advice about a text that is longer than the context.
    pub(super) fn shorten(&self) -> &'static str {
        match self.engine.ctx_len() < self.engine.header().max_seq_len {
            true => "shorten it or raise --ctx",
            false => "shorten it: the model allows no more",
        }
    }
}

/// Ids that end a text: the model's and the tokenizer's.
fn stop_ids(loaded: &Loaded) -> Vec<u32> {
    let mut stop_ids = loaded.model.header().stop_ids.clone();
    stop_ids.extend_from_slice(loaded.tokenizer.stop_ids());
    stop_ids
}

/// Shows text as it comes. If showing fails, the answer is stopped.
pub(super) struct Screen {
    problem: RefCell<Option<io::Error>>,
}

impl Screen {
    pub(super) fn new() -> Screen {
        Screen { problem: RefCell::new(None) }
    }

    pub(super) fn show(&self, text: &str) {
        if self.is_open() {
            let mut stdout = io::stdout().lock();
            let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
            *self.problem.borrow_mut() = written.err();
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.problem.borrow().is_none()
    }

    /// Fails if the text could not be written, for example to a full disk. A reader that went away is no failure.
    pub(super) fn check(&self) -> Result<(), Failure> {
        match &*self.problem.borrow() {
            Some(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(stdout_failure(e)),
            _ => Ok(()),
        }
    }

    /// True if the answer should end: a signal asked for it, or it cannot be shown.
    pub(super) fn is_interrupted(&self) -> bool {
        signal::interrupted() > 0 || !self.is_open()
    }
}
