//! The queue between the connections, which want answers, and the thread that runs the engine.
//!
//! A connection submits jobs with [`JobQueue::submit`] and reads answers from its [`Ticket`]; the engine's thread
//! takes [`Command`]s and writes text into the ticket's [`Answers`]. A reader that is slow, or gone, never stops
//! the engine: text waits there, and a dropped ticket cancels its jobs.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::embed_job::EmbedJob;
use crate::engine::{Job, JobError, Outcome};

/// Number of the queue whose jobs no client waits for; 0 if there is none.
static ABANDONED: AtomicU64 = AtomicU64::new(0);
/// Number of the queue whose engine steps; none has this number before the first step.
static STEPPING: AtomicU64 = AtomicU64::new(u64::MAX);

/// Whether no client waits for what the engine that steps computes. It checks this between layers.
pub(super) fn is_abandoned() -> bool {
    ABANDONED.load(Ordering::Relaxed) == STEPPING.load(Ordering::Relaxed)
}

/// Commands from connections to the engine's thread.
pub(super) enum Command {
    /// Answer this job at this index of the answers.
    Submit(Box<Job>, Arc<Answers>, usize),
    /// Cancel these answers, because their client has gone.
    Cancel(Arc<Answers>),
    /// Compute the vectors of these texts.
    Embed(Box<EmbedJob>),
}

/// Queue to which connections submit jobs.
#[derive(Clone)]
pub(super) struct JobQueue {
    /// Number of this queue among those of all models.
    number: u64,
    commands: Sender<Command>,
    /// Jobs that were submitted and have not ended.
    open: Arc<AtomicUsize>,
    open_max: usize,
}

/// The engine's end of a queue. It is disconnected when all senders are dropped.
pub(super) struct Commands {
    pub(super) receiver: Receiver<Command>,
    number: u64,
}

/// Why jobs are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The queue is full.
    Full,
    /// The server is about to end.
    Ending,
}

/// State of the answers of one request.
#[derive(Default)]
pub(super) struct Answers {
    answers: Mutex<Vec<Answered>>,
    has_news: Condvar,
}

/// Changes of an answer since it was last read.
#[derive(Default)]
pub(super) struct Answered {
    /// New text.
    pub(super) text: String,
    /// New tokens, if the client asked for them.
    pub(super) tokens: Vec<TokenOdds>,
    /// How the answer ended, once it has.
    pub(super) end: Option<Result<Outcome, JobError>>,
}

/// A token that was chosen, and how likely it was.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TokenOdds {
    pub(super) id: u32,
    pub(super) logprob: f32,
    /// The likeliest tokens at this position, with their log probabilities.
    pub(super) likeliest: Vec<(u32, f32)>,
}

/// The answers of one request. Dropping the ticket cancels those that have not ended.
pub(super) struct Ticket {
    queue: JobQueue,
    answers: Arc<Answers>,
    n_open: usize,
}

impl JobQueue {
    /// A queue for up to `open_max` running and waiting jobs, and the end for the engine's thread.
    pub(super) fn new(open_max: usize) -> (JobQueue, Commands) {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let (commands, receiver) = channel();
        let queue = JobQueue { number, commands, open: Arc::default(), open_max };
        (queue, Commands { receiver, number })
    }

    /// Submits `jobs` to the engine.
    pub(super) fn submit(&self, jobs: Vec<Job>) -> Result<Ticket, Refusal> {
        let n = jobs.len();
        let room = |open: usize| open.checked_add(n).filter(|&open| open <= self.open_max);
        let taken = self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room);
        taken.map_err(|_| Refusal::Full)?;
        let answers = Arc::new(Answers::default());
        answers.lock().resize_with(n, Answered::default);
        let ticket = Ticket { queue: self.clone(), answers: Arc::clone(&answers), n_open: n };
        for (index, job) in jobs.into_iter().enumerate() {
            let command = Command::Submit(Box::new(job), Arc::clone(&answers), index);
            self.commands.send(command).map_err(|_| Refusal::Ending)?;
        }
        Ok(ticket)
    }
}

impl JobQueue {
    /// Counts one more open job.
    pub(super) fn open_one(&self) -> Result<(), Refusal> {
        let room = |open: usize| open.checked_add(1).filter(|&open| open <= self.open_max);
        let taken = self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room);
        taken.map(drop).map_err(|_| Refusal::Full)
    }

    /// Counts one open job less. If its client has gone, and no other job is open, the running batch is interrupted.
    pub(super) fn close_one(&self, is_abandoned: bool) {
        if self.open.fetch_sub(1, Ordering::Relaxed) == 1 && is_abandoned {
            ABANDONED.store(self.number, Ordering::Relaxed);
        }
    }

    pub(super) fn send(&self, command: Command) -> Result<(), Refusal> {
        self.commands.send(command).map_err(|_| Refusal::Ending)
    }
}

impl Commands {
    /// Clears the flag that jobs were abandoned. A sender sets the flag before it sends its command, so none is missed.
    pub(super) fn forgive(&self) {
        let _ = ABANDONED.compare_exchange(self.number, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Notes that this queue's engine steps, until another one does.
    pub(super) fn begin_step(&self) {
        STEPPING.store(self.number, Ordering::Relaxed);
    }
}

impl Answers {
    fn lock(&self) -> MutexGuard<'_, Vec<Answered>> {
        // No code panics while it holds the lock.
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds text to answer `index`.
    pub(super) fn put(&self, index: usize, text: &str) {
        self.lock()[index].text.push_str(text);
        self.has_news.notify_one();
    }

    /// Adds a token to answer `index`. The reader gets it together with the answer's next text.
    pub(super) fn put_token(&self, index: usize, token: TokenOdds) {
        self.lock()[index].tokens.push(token);
    }

    /// Ends answer `index`.
    pub(super) fn end(&self, index: usize, end: Result<Outcome, JobError>) {
        self.lock()[index].end = Some(end);
        self.has_news.notify_one();
    }
}

impl Ticket {
    /// Waits up to `patience` for news. Returns one element for each answer.
    pub(super) fn news(&mut self, patience: Duration) -> Vec<Answered> {
        let is_quiet = |answers: &mut Vec<Answered>| {
            answers.iter().all(|answer| answer.text.is_empty() && answer.end.is_none())
        };
        let answers =
            self.answers.has_news.wait_timeout_while(self.answers.lock(), patience, is_quiet);
        let (mut answers, wait) = answers.unwrap_or_else(PoisonError::into_inner);
        if wait.timed_out() {
            // Tokens stay until the text that they complete.
            return answers.iter().map(|_| Answered::default()).collect();
        }
        let news: Vec<Answered> = answers.iter_mut().map(std::mem::take).collect();
        let n_ended = news.iter().filter(|answer| answer.end.is_some()).count();
        self.n_open -= n_ended;
        self.queue.open.fetch_sub(n_ended, Ordering::Relaxed);
        news
    }

    /// Whether all answers have ended.
    pub(super) fn is_over(&self) -> bool {
        self.n_open == 0
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.n_open > 0 {
            let before = self.queue.open.fetch_sub(self.n_open, Ordering::Relaxed);
            // If other jobs share the batch, abandoning it would make them wait for it twice.
            if before == self.n_open {
                ABANDONED.store(self.queue.number, Ordering::Relaxed);
            }
            // Without an engine there is nothing to cancel.
            let _ = self.queue.commands.send(Command::Cancel(Arc::clone(&self.answers)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs(n: usize) -> Vec<Job> {
        (0..n).map(|_| Job::new(vec![1])).collect()
    }

    #[test]
    fn a_full_queue_refuses_until_answers_end() {
        let (queue, _commands) = JobQueue::new(3);
        let mut two = queue.submit(jobs(2)).ok().unwrap();
        assert_eq!(queue.submit(jobs(2)).err(), Some(Refusal::Full));
        let one = queue.submit(jobs(1)).ok().unwrap();
        two.answers.end(1, Ok(Outcome::INTERRUPTED));
        assert!(two.news(Duration::ZERO)[1].end.is_some() && !two.is_over());
        assert_eq!(queue.open.load(Ordering::Relaxed), 2);
        drop((one, two));
        assert_eq!(queue.open.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn text_is_given_once_and_a_dropped_ticket_cancels() {
        let (queue, commands) = JobQueue::new(1);
        let mut ticket = queue.submit(jobs(1)).ok().unwrap();
        ticket.answers.put(0, "a");
        ticket.answers.put(0, "b");
        assert_eq!(ticket.news(Duration::from_secs(9))[0].text, "ab");
        // A token that completes no text yet is told with the one that does.
        ticket.answers.put_token(0, TokenOdds { id: 1, logprob: 0.0, likeliest: Vec::new() });
        let quiet = &ticket.news(Duration::ZERO)[0];
        assert!(quiet.text.is_empty() && quiet.tokens.is_empty());
        ticket.answers.put(0, "c");
        assert_eq!(ticket.news(Duration::from_secs(9))[0].tokens.len(), 1);
        drop(ticket);
        assert!(matches!(commands.receiver.recv(), Ok(Command::Submit(..))));
        assert!(matches!(commands.receiver.recv(), Ok(Command::Cancel(_))));
    }

    #[test]
    fn a_queue_without_an_engine_refuses() {
        let (queue, commands) = JobQueue::new(1);
        drop(commands);
        assert_eq!(queue.submit(jobs(1)).err(), Some(Refusal::Ending));
        assert_eq!(queue.open.load(Ordering::Relaxed), 0);
    }
}
