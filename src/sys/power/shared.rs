//! State that a sensor's thread shares with its callers.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::totals::{PowerReading, Sample, Totals};
use crate::sys::cpu;

/// How long an answer of a sensor is waited for: the slowest take a tenth of it.
const PATIENCE: Duration = Duration::from_millis(300);
/// How long a thread may take to end; then it is left to itself.
const END_PATIENCE: Duration = Duration::from_secs(1);
/// A caller that looks at samples more often than this counts as looking all the time.
const LOOKED_AT: Duration = Duration::from_millis(900);

/// Samples added up, and what is wanted of the thread that brings them.
#[derive(Default)]
pub(super) struct Shared {
    state: Mutex<State>,
    /// Signalled when a sample is wanted, or has come.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    totals: Totals,
    /// Samples that callers wait for, and those of them that came.
    wanted: u64,
    done: u64,
    /// Energy that has been told without a sample of that moment, and that of it while there was work.
    told: (f64, f64),
    /// Time of the last look at a sample.
    looked: Option<Instant>,
    /// Set once a caller has waited in vain: no caller waits for this sensor any more.
    is_stuck: bool,
    has_warned: bool,
    is_ending: bool,
    has_ended: bool,
}

impl Shared {
    /// Has a thread bring samples, which ends soon after [`Shared::end`].
    pub(super) fn start(work: impl FnOnce(&Shared) + Send + 'static) -> io::Result<Arc<Shared>> {
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        thread::Builder::new().name("leap-power".to_owned()).spawn(move || {
            cpu::unpin_current_thread();
            work(&of_thread);
            of_thread.lock().has_ended = true;
            of_thread.changed.notify_all();
        })?;
        Ok(shared)
    }

    /// Asks the thread to end.
    pub(super) fn ask_to_end(&self) {
        self.lock().is_ending = true;
        self.changed.notify_all();
    }

    /// Asks the thread to end, and waits a while for it.
    pub(super) fn end(&self) {
        self.ask_to_end();
        let state = self.lock();
        let ended = self.changed.wait_timeout_while(state, END_PATIENCE, |state| !state.has_ended);
        drop(ended);
    }

    /// Waits until a sample is wanted, or `period` (of work, without work) is over since `last`; returns the
    /// number of wanted samples, or `None` at the end.
    pub(super) fn wait(&self, last: Instant, period: (Duration, Duration)) -> Option<u64> {
        let mut state = self.lock();
        loop {
            let is_busy = state.totals.is_working() || state.is_looked_at();
            let period = if is_busy { period.0 } else { period.1 };
            let left = period.saturating_sub(last.elapsed());
            if state.is_ending {
                return None;
            }
            if left.is_zero() || state.wanted > state.done {
                return Some(state.wanted);
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Adds a sample of the sensor called `name`, or notes that there was none. All up to `wanted` count as
    /// taken then.
    pub(super) fn add(&self, sample: Option<Sample>, wanted: u64, name: &str) {
        let mut state = self.lock();
        match sample {
            Some(sample) => state.totals.add(Instant::now(), sample),
            None => state.totals.count_gap(),
        }
        if state.totals.reading().is_none() {
            state.warn(name);
        }
        state.done = wanted;
        state.is_stuck = false;
        self.changed.notify_all();
    }

    pub(super) fn set_working(&self, is_working: bool) {
        let mut state = self.lock();
        state.totals.set_working(is_working);
        state.wanted += 1;
        self.changed.notify_all();
    }

    /// The reading of a new sample; `None` if none comes soon.
    pub(super) fn read(&self, name: &str) -> Option<PowerReading> {
        let mut state = self.lock();
        if state.is_stuck {
            return None;
        }
        state.wanted += 1;
        let wanted = state.wanted;
        self.changed.notify_all();
        let is_missing = |state: &mut State| state.done < wanted && !state.has_ended;
        let waited = self.changed.wait_timeout_while(state, PATIENCE, is_missing);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        if state.done < wanted {
            state.is_stuck = true;
            state.totals.count_gap();
            state.warn(name);
        }
        state.totals.reading()
    }

    /// Notes a look at the samples: while looks go on, samples come as often as during work.
    pub(super) fn look(&self) {
        let mut state = self.lock();
        if !state.is_looked_at() {
            state.wanted += 1;
            self.changed.notify_all();
        }
        state.looked = Some(Instant::now());
    }

    /// The reading of the last sample.
    pub(super) fn latest(&self) -> Option<PowerReading> {
        self.lock().totals.reading()
    }

    /// The reading of now, if the last sample is at most `age_max` old and still holds.
    pub(super) fn held(&self, age_max: Duration, name: &str) -> Option<PowerReading> {
        let now = Instant::now();
        let mut state = self.lock();
        let reading = state.totals.reading().filter(|reading| reading.age(now) <= age_max);
        if reading.is_none() {
            state.warn(name);
        }
        let mut held = reading.and_then(|_| state.totals.held(now))?;
        // The next sample may say that it was less; energy only grows.
        let (joules, working_joules) = state.told;
        state.told = (held.joules.max(joules), held.working_joules.max(working_joules));
        (held.joules, held.working_joules) = state.told;
        Some(held)
    }

    /// Waits until the thread has something to say, but no longer than `patience`.
    pub(super) fn wait_for_first(&self, patience: Duration) {
        let is_missing = |state: &mut State| state.done == 0 && !state.has_ended;
        drop(self.changed.wait_timeout_while(self.lock(), patience, is_missing));
    }

    pub(super) fn is_ending(&self) -> bool {
        self.lock().is_ending
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_looked_at(&self) -> bool {
        self.looked.is_some_and(|looked| looked.elapsed() < LOOKED_AT)
    }

    fn warn(&mut self, name: &str) {
        if !std::mem::replace(&mut self.has_warned, true) {
            log::warn!("{name} does not say what power is taken: no figures of energy meanwhile");
        }
    }
}
