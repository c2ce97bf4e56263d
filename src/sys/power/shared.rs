//! State that a sensor's thread shares with its callers.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::totals::{PowerReading, Sample, Totals};
use crate::sys::cpu;

/// Longest wait for an answer of a sensor: the slowest sensors take a tenth of it.
const PATIENCE: Duration = Duration::from_millis(300);
/// How long a thread may take to end. After that it is left alone.
const END_PATIENCE: Duration = Duration::from_secs(1);
/// A caller that looks at samples more often than this counts as looking all the time.
const LOOKED_AT: Duration = Duration::from_millis(900);

/// Totals of the samples, and requests to the thread that takes them.
#[derive(Default)]
pub(super) struct Shared {
    state: Mutex<State>,
    /// Signalled when a sample is wanted, or has come.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    totals: Totals,
    /// Samples that were requested, and those that were taken.
    wanted: u64,
    done: u64,
    /// Largest energy that was reported by extrapolation, and its part during work, in joules.
    told: (f64, f64),
    /// Time of the last look at a sample.
    looked: Option<Instant>,
    /// Set when a caller has waited in vain: callers do not wait again until a sample comes.
    is_stuck: bool,
    has_warned: bool,
    is_ending: bool,
    has_ended: bool,
}

impl Shared {
    /// Starts a thread that takes samples. It ends soon after [`Shared::end`].
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

    /// Waits until a sample is requested, or `period` (with work, without work) has passed since `last`. Returns the
    /// number of requested samples, or `None` at the end.
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

    /// Adds a sample of the sensor called `name`, or notes that there was none. All requests up to `wanted` count as
    /// done then.
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

    /// Requests a sample, and returns the reading with it; `None` if none comes soon.
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

    /// Notes that a caller looks at the samples. While callers go on looking, samples come as often as during work.
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

    /// The reading extrapolated to now, if the last sample is at most `age_max` old.
    pub(super) fn held(&self, age_max: Duration, name: &str) -> Option<PowerReading> {
        let now = Instant::now();
        let mut state = self.lock();
        let reading = state.totals.reading().filter(|reading| reading.age(now) <= age_max);
        if reading.is_none() {
            state.warn(name);
        }
        let mut held = reading.and_then(|_| state.totals.held(now))?;
        // The next sample may show less than was extrapolated, but reported energy only grows.
        let (joules, working_joules) = state.told;
        state.told = (held.joules.max(joules), held.working_joules.max(working_joules));
        (held.joules, held.working_joules) = state.told;
        Some(held)
    }

    /// Waits until the thread has taken a sample or failed, but no longer than `patience`.
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
