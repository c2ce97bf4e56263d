//! Jobs of embeddings, and the thread that computes them.
//!
//! Requests that wait at the same time are computed together, which changes none of their vectors.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use super::embed_job::{EmbedJob, Vectors};
use super::ending;
use super::error::ApiError;
use super::jobs::{Command, Commands, JobQueue, Refusal, is_abandoned};
use super::turns::Turns;
use crate::engine::{EmbedError, Embedder, ForwardError, Outcome, VectorForm};
use crate::sys::notify;

/// How often an idle thread checks for signals.
const IDLE_LOOK: Duration = Duration::from_millis(200);
/// Most texts that are computed together.
const TEXTS: usize = 64;

/// A request that waits for its vectors. Dropping it cancels the job.
pub(super) struct EmbedTicket {
    receiver: Receiver<Vectors>,
    is_gone: Arc<AtomicBool>,
    is_over: bool,
    queue: JobQueue,
}

impl EmbedTicket {
    /// Submits texts to the thread of `queue`.
    pub(super) fn submit(
        queue: &JobQueue,
        texts: Vec<Vec<u32>>,
        form: VectorForm,
    ) -> Result<EmbedTicket, Refusal> {
        queue.open_one()?;
        let (reply, receiver) = channel();
        let is_gone = Arc::new(AtomicBool::new(false));
        let job = EmbedJob { texts, form, reply, is_gone: Arc::clone(&is_gone) };
        let ticket = EmbedTicket { receiver, is_gone, is_over: false, queue: queue.clone() };
        queue.send(Command::Embed(Box::new(job)))?;
        Ok(ticket)
    }

    /// Waits up to `patience`; `None` if there are no vectors yet.
    pub(super) fn wait(&mut self, patience: Duration) -> Option<Result<Vec<Vec<f32>>, ApiError>> {
        let vectors = match self.receiver.recv_timeout(patience) {
            Ok(vectors) => Some(vectors.map_err(ApiError::from)),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Err(Refusal::Ending.into())),
        };
        self.is_over = vectors.is_some();
        vectors
    }
}

impl Drop for EmbedTicket {
    fn drop(&mut self) {
        self.is_gone.store(true, Ordering::Relaxed);
        self.queue.close_one(!self.is_over);
    }
}

impl From<EmbedError> for ApiError {
    fn from(error: EmbedError) -> ApiError {
        let message = error.to_string();
        match error {
            EmbedError::TooLong { .. } => {
                let code = Some("context_length_exceeded");
                ApiError { code, ..ApiError::field("input", message) }
            }
            EmbedError::Empty => ApiError::field("input", message),
            EmbedError::Dimensions { .. } => ApiError::field("dimensions", message),
            _ => ApiError::new(500, message),
        }
    }
}

/// Computes embeddings until a signal ends the program.
pub(super) struct EmbedRunner<'e> {
    pub(super) embedder: &'e mut Embedder,
    pub(super) turns: Arc<Turns>,
}

/// Checked between layers: true if no client wants the vectors.
fn is_unwanted() -> bool {
    is_abandoned() || is_over()
}

fn is_over() -> bool {
    notify::alive();
    ending::is_over()
}

impl EmbedRunner<'_> {
    /// Runs until a signal asks for the end, or all senders of commands are dropped. Requests that wait then are
    /// answered if there is time.
    pub(super) fn run(mut self, commands: &Commands) {
        self.embedder.interrupt_by(is_unwanted);
        let mut waiting = VecDeque::new();
        loop {
            notify::alive();
            let is_ending = ending::is_asked_for();
            if is_ending {
                notify::stopping();
            }
            if waiting.is_empty() {
                let patience = notify::period().map_or(IDLE_LOOK, |period| period.min(IDLE_LOOK));
                match commands.receiver.recv_timeout(patience) {
                    Ok(command) => obey(command, &mut waiting),
                    Err(RecvTimeoutError::Timeout) if !is_ending => {}
                    Err(_) => return,
                }
            }
            commands.forgive();
            while let Ok(command) = commands.receiver.try_recv() {
                obey(command, &mut waiting);
            }
            waiting.retain(EmbedJob::is_wanted);
            if !waiting.is_empty() {
                self.compute(commands, take(&mut waiting));
            }
        }
    }
}

impl EmbedRunner<'_> {
    /// Computes `jobs`, which want the same form, again if a client that has gone interrupted them.
    fn compute(&mut self, commands: &Commands, mut jobs: Vec<EmbedJob>) {
        let id = self.turns.begin();
        while !jobs.is_empty() {
            let turn = self.turns.take(id);
            commands.begin_step();
            compute(self.embedder, &mut jobs);
            drop(turn);
            jobs.retain(EmbedJob::is_wanted);
            commands.forgive();
        }
        self.turns.end(id);
    }
}

fn obey(command: Command, waiting: &mut VecDeque<EmbedJob>) {
    match command {
        Command::Embed(job) => waiting.push_back(*job),
        // The endpoints of texts refuse such a model before they submit a job.
        Command::Submit(_, answers, index) => answers.end(index, Ok(Outcome::INTERRUPTED)),
        Command::Cancel(_) => {}
    }
}

/// The first jobs, as long as they want the same form and are not too many.
fn take(waiting: &mut VecDeque<EmbedJob>) -> Vec<EmbedJob> {
    let mut jobs: Vec<EmbedJob> = Vec::new();
    let mut n_texts = 0;
    while let Some(job) = waiting.front() {
        let is_other = jobs.first().is_some_and(|first| first.form != job.form);
        if !jobs.is_empty() && (is_other || n_texts + job.texts.len() > TEXTS) {
            break;
        }
        n_texts += job.texts.len();
        jobs.extend(waiting.pop_front());
    }
    jobs
}

/// Computes `jobs` and answers them. Those of an interrupted batch stay, unless the program ends.
fn compute(embedder: &mut Embedder, jobs: &mut Vec<EmbedJob>) {
    let Some(first) = jobs.first() else { return };
    let texts: Vec<Vec<u32>> = jobs.iter().flat_map(|job| job.texts.iter().cloned()).collect();
    let mut vectors = Vec::with_capacity(texts.len());
    let result = embedder.embed(&texts, first.form, &mut |_, vector| {
        vectors.push(vector.to_vec());
        true
    });
    match result {
        Err(EmbedError::Forward(ForwardError::Interrupted)) if !ending::is_over() => {}
        // One text may be at fault: the jobs are computed one by one.
        Err(_) if jobs.len() > 1 => {
            let alone = jobs.drain(..).map(|job| vec![job]).collect::<Vec<_>>();
            for mut job in alone {
                compute(embedder, &mut job);
                jobs.append(&mut job);
            }
        }
        result => {
            let mut vectors = vectors.into_iter();
            for job in jobs.drain(..) {
                let own = vectors.by_ref().take(job.texts.len()).collect();
                // A client that has gone needs no vectors.
                let _ = job.reply.send(result.clone().map(|()| own));
            }
        }
    }
}
