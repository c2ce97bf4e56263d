//! Jobs of embeddings, and the thread that computes them.
//!
//! Requests that wait at the same time are computed together, which changes none of their vectors.

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
            EmbedError::Forward(ForwardError::Interrupted) => Refusal::Ending.into(),
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
    pub(super) fn run(self, commands: &Commands) {
        self.embedder.interrupt_by(is_unwanted);
        let mut running = Vec::new();
        let mut working = None;
        loop {
            notify::alive();
            let is_ending = ending::is_asked_for();
            if is_ending {
                notify::stopping();
            }
            if running.is_empty() {
                working.take().into_iter().for_each(|id| self.turns.end(id));
                let patience = notify::period().map_or(IDLE_LOOK, |period| period.min(IDLE_LOOK));
                match commands.receiver.recv_timeout(patience) {
                    Ok(command) => obey(command, &mut running),
                    Err(RecvTimeoutError::Timeout) if !is_ending => {}
                    Err(_) => return,
                }
            }
            commands.forgive();
            while let Ok(command) = commands.receiver.try_recv() {
                obey(command, &mut running);
            }
            running.retain(|running| running.job.is_wanted());
            if !running.is_empty() {
                let id = *working.get_or_insert_with(|| self.turns.begin());
                let _turn = self.turns.take(id);
                commands.begin_step();
                step(self.embedder, &mut running);
            }
        }
    }
}

fn obey(command: Command, running: &mut Vec<Running>) {
    match command {
        Command::Embed(job) => running.push(Running::new(*job)),
        // The endpoints of texts refuse such a model before they submit a job.
        Command::Submit(_, answers, index) => answers.end(index, Ok(Outcome::INTERRUPTED)),
        Command::Cancel(_) => {}
    }
}

/// A job, and the vectors of its first texts.
struct Running {
    job: EmbedJob,
    vectors: Vec<Vec<f32>>,
}

impl Running {
    fn new(job: EmbedJob) -> Running {
        Running { vectors: Vec::with_capacity(job.texts.len()), job }
    }

    /// Texts without a vector.
    fn rest(&self) -> &[Vec<u32>] {
        &self.job.texts[self.vectors.len()..]
    }

    fn answer(self, error: Option<EmbedError>) {
        // A client that has gone needs no vectors.
        let _ = self.job.reply.send(error.map_or(Ok(self.vectors), Err));
    }
}

/// Computes the next batch of texts, and answers the jobs that are through. The next call begins with another job, so
/// that a long one does not keep others waiting. An interrupted batch is computed again, unless the program ends.
fn step(embedder: &mut Embedder, running: &mut Vec<Running>) {
    let form = running[0].job.form;
    let n_jobs = running.iter().take_while(|running| running.job.form == form).count();
    let alike = &mut running[..n_jobs];
    let n = embedder.n_at_once(alike.iter().flat_map(Running::rest));
    let (n_first, result) = (alike[0].rest().len(), batch(embedder, alike, n));
    // A text of a later job may be at fault.
    let result = match &result {
        Err(error) if n > n_first && !is_interruption(error) => batch(embedder, alike, n_first),
        _ => result,
    };
    match result {
        Ok(()) => running.rotate_left(1),
        Err(error) if is_interruption(&error) && !ending::is_over() => {}
        Err(error) => running.remove(0).answer(Some(error)),
    }
    for done in running.extract_if(.., |running| running.rest().is_empty()) {
        done.answer(None);
    }
}

fn is_interruption(error: &EmbedError) -> bool {
    matches!(error, EmbedError::Forward(ForwardError::Interrupted))
}

/// Computes the next `n` texts.
fn batch(embedder: &mut Embedder, running: &mut [Running], n: usize) -> Result<(), EmbedError> {
    let texts: Vec<Vec<u32>> = running.iter().flat_map(Running::rest).take(n).cloned().collect();
    let mut vectors = Vec::with_capacity(n);
    embedder.embed(&texts, running[0].job.form, &mut |_, vector| {
        vectors.push(vector.to_vec());
        true
    })?;
    let mut vectors = vectors.into_iter();
    for running in running {
        let n_missing = running.rest().len();
        running.vectors.extend(vectors.by_ref().take(n_missing));
    }
    Ok(())
}
