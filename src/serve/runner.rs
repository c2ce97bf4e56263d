//! The thread that runs the engine: takes jobs from the queue, and steps the scheduler.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use super::ending;
use super::jobs::{self, Answers, Command, Commands, TokenOdds};
use super::lost::GivenUp;
use super::metrics::{Metrics, Totals};
use super::turns::Turns;
use crate::engine::{
    Engine, JobError, JobEvent, JobId, Odds, Outcome, PageFigures, Scheduler, StepError,
};
use crate::sys::notify;

/// How often an idle engine checks for signals.
const IDLE_LOOK: Duration = Duration::from_millis(200);

/// Interval between updates of the nodes' figures.
const NODES_PERIOD: Duration = Duration::from_millis(500);

/// Checked between layers by an engine without a ring: true if no client wants any of its answers.
fn is_abandoned() -> bool {
    jobs::is_abandoned() || is_over()
}

/// Checked by an engine with a ring while it waits. A client that left is noticed when its next token is there: work
/// that other boards have begun is not worth interrupting.
fn is_over() -> bool {
    notify::alive();
    ending::is_over()
}

/// Callback that may use the engine between two steps of its work.
pub(crate) type Visit = Box<dyn FnMut(&mut Engine)>;

/// A job that runs or waits, and where its answer goes.
struct Running {
    id: JobId,
    answers: Arc<Answers>,
    index: usize,
}

/// Answers jobs until a signal ends the program.
pub(super) struct Runner<'e, 't> {
    engine: &'e mut Engine,
    scheduler: Scheduler<'t>,
    running: Vec<Running>,
    metrics: Arc<Metrics>,
    /// Totals of answers that have ended.
    ended: Totals,
    /// When the nodes' figures were last updated.
    told_nodes: Option<Instant>,
    is_ending: bool,
    turns: Arc<Turns>,
    /// By which name `turns` knows of work, if it does.
    working: Option<u64>,
    given_up: Arc<GivenUp>,
}

impl<'e, 't> Runner<'e, 't> {
    pub(super) fn new(
        engine: &'e mut Engine,
        scheduler: Scheduler<'t>,
        (metrics, turns): (Arc<Metrics>, Arc<Turns>),
        given_up: Arc<GivenUp>,
    ) -> Runner<'e, 't> {
        engine.interrupt_by(if engine.ring().is_some() { is_over } else { is_abandoned });
        Runner {
            engine,
            scheduler,
            running: Vec::new(),
            metrics,
            ended: Totals::default(),
            told_nodes: None,
            is_ending: false,
            turns,
            working: None,
            given_up,
        }
    }

    /// Runs until a signal asks for the end, or all senders of commands are dropped. Running answers then have some time to end
    /// ([`ending`]); new requests are refused at once. `visit` is called between two steps.
    ///
    /// # Errors
    /// If the engine cannot go on.
    pub(super) fn run(mut self, commands: &Commands, mut visit: Visit) -> Result<(), StepError> {
        let result = self.run_until_the_end(commands, &mut visit);
        self.working.iter().for_each(|id| self.turns.end(*id));
        self.metrics.rest();
        if let Err(error) = &result {
            for Running { answers, index, .. } in self.running.drain(..) {
                answers.end(index, Err(JobError::Step(error.clone())));
            }
        }
        result
    }

    fn run_until_the_end(
        &mut self,
        commands: &Commands,
        visit: &mut Visit,
    ) -> Result<(), StepError> {
        loop {
            notify::alive();
            if !self.is_ending && ending::is_asked_for() {
                notify::stopping();
                self.is_ending = true;
            }
            if !self.is_ending {
                self.wait_for_work(commands);
            } else if ending::is_over() {
                self.scheduler.cancel_all();
            }
            self.obey_all(commands);
            visit(self.engine);
            self.tell_meter();
            match self.step(commands) {
                Err(error) if error.is_lost() => self.wait_for_boards(&error, commands)?,
                result => result?,
            }
            if self.is_ending && self.scheduler.is_idle() {
                self.count_pages();
                return Ok(());
            }
        }
    }

    /// Waits for lost boards for as long as it takes. Requests that wait for a stream, and those that come meanwhile, are
    /// refused with the reason.
    fn wait_for_boards(&mut self, error: &StepError, commands: &Commands) -> Result<(), StepError> {
        log::warn!("{error}; waits for its boards");
        self.given_up.set(Some(error.to_string()));
        let result = loop {
            self.obey_all(commands);
            for Running { id, answers, index } in self.running.drain(..) {
                self.scheduler.cancel(id);
                answers.end(index, Err(JobError::Step(error.clone())));
            }
            match self.engine.reopen() {
                Err(error) if error.is_lost() && !ending::is_over() => {
                    self.given_up.set(Some(error.to_string()));
                }
                // A signal ended the wait; the caller sees it.
                Err(StepError::Interrupted) => break Ok(()),
                result => break result,
            }
        };
        self.given_up.set(None);
        result
    }

    fn wait_for_work(&mut self, commands: &Commands) {
        if self.scheduler.is_idle() {
            self.tell_meter();
            let patience = notify::period().map_or(IDLE_LOOK, |period| period.min(IDLE_LOOK));
            match commands.receiver.recv_timeout(patience) {
                Ok(command) => self.obey(command),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => self.is_ending = true,
            }
        }
    }

    fn obey_all(&mut self, commands: &Commands) {
        // A ticket sets the flag before it sends its command, so the command is taken here or in the next turn.
        commands.forgive();
        loop {
            match commands.receiver.try_recv() {
                Ok(command) => self.obey(command),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return,
            }
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit(_, answers, index) if self.is_ending => {
                answers.end(index, Ok(Outcome::INTERRUPTED));
            }
            Command::Submit(job, answers, index) => {
                let id = self.scheduler.submit(*job);
                self.running.push(Running { id, answers, index });
            }
            // Dropped, so that the client sees that there are none.
            Command::Embed(_) => {}
            Command::Cancel(answers) => {
                let meant = self.running.iter().filter(|one| Arc::ptr_eq(&one.answers, &answers));
                meant.for_each(|one| self.scheduler.cancel(one.id));
            }
        }
    }

    fn step(&mut self, commands: &Commands) -> Result<(), StepError> {
        let turns = Arc::clone(&self.turns);
        // A ring waits for other boards for most of a step, and must not keep the cores from other models.
        let takes_turns = self.engine.ring().is_none();
        let turn = self.working.filter(|_| takes_turns).map(|id| turns.take(id));
        self.scheduler.share(takes_turns && turns.are_shared());
        if turn.is_some() {
            commands.begin_step();
        }
        let (running, metrics, ended) = (&mut self.running, &self.metrics, &mut self.ended);
        let mut failure = None;
        self.scheduler.step(self.engine, &mut |id, event| {
            let Some(at) = running.iter().position(|one| one.id == id) else { return };
            let Running { answers, index, .. } = &running[at];
            let end = match event {
                JobEvent::Text(text) => return answers.put(*index, text),
                JobEvent::Token { id, odds: Odds { logprob, likeliest } } => {
                    let likeliest = likeliest.to_vec();
                    return answers.put_token(*index, TokenOdds { id, logprob, likeliest });
                }
                JobEvent::Logits { .. } => return,
                JobEvent::Done { outcome, .. } => {
                    metrics.count_answer(&outcome);
                    ended.add(&outcome.figures);
                    Ok(outcome)
                }
                JobEvent::Failed(error) => {
                    if let JobError::Step(error) = &error {
                        failure = Some(error.clone());
                    }
                    Err(error)
                }
            };
            answers.end(*index, end);
            running.swap_remove(at);
        });
        drop(turn);
        let n_queued = self.scheduler.n_queued();
        self.metrics.set_jobs(self.running.len().saturating_sub(n_queued), n_queued);
        self.tell_figures();
        failure.map_or(Ok(()), Err)
    }

    /// Tells the meter when work begins and ends.
    fn tell_meter(&mut self) {
        match (self.scheduler.is_idle(), self.working) {
            (false, None) => self.working = Some(self.turns.begin()),
            (true, Some(id)) => {
                self.working = None;
                self.turns.end(id);
            }
            _ => {}
        }
    }

    /// Updates the metrics with running answers included, so that speeds move before answers end.
    fn tell_figures(&mut self) {
        let mut totals = self.ended;
        self.scheduler.running().for_each(|figures| totals.add(&figures));
        self.metrics.set_totals(&totals);
        self.metrics.set_pages(&self.engine.page_figures());
        let is_due = self.told_nodes.is_none_or(|told| told.elapsed() > NODES_PERIOD);
        if is_due {
            let n_layers = self.engine.model().header().n_layers;
            match (self.engine.ring(), self.engine.team()) {
                (Some(ring), _) => self.metrics.set_nodes(ring),
                (None, Some(team)) => self.metrics.set_team(team, n_layers),
                (None, None) => {}
            }
            self.told_nodes = Some(Instant::now());
        }
    }

    /// Logs the use of KV pages. After the last answer, a page in use is a leak.
    fn count_pages(&self) {
        let PageFigures { n_pages, n_used, n_idle, hits, .. } = self.engine.page_figures();
        log::debug!("{n_pages} pages, {n_idle} idle, {n_used} lost; {hits} tokens were held");
    }
}
