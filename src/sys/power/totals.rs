//! Energy added up from samples.

use std::time::{Duration, Instant};

/// More power than any machine that runs LEAP draws: a sensor that reports more is broken.
pub const WATTS_MAX: f64 = 10_000.0;
/// Shortest time over which a counter's power is computed: the counter moves in steps of a millisecond.
const COUNTED_MIN: Duration = Duration::from_millis(50);

/// A reading of a sensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Sample {
    /// Power at this moment.
    Watts(f64),
    /// Energy since the previous sample; the first sample counts nothing.
    Joules(f64),
}

/// Totals at a point in time.
#[derive(Clone, Copy, Debug)]
pub struct PowerReading {
    /// Energy since the meter began.
    pub joules: f64,
    /// Energy while LEAP worked, in joules.
    pub working_joules: f64,
    /// Latest power, once it is known.
    pub watts: Option<f64>,
    at: Instant,
    gaps: u64,
}

/// Energy between two readings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spent {
    /// The energy.
    pub joules: f64,
    /// The time.
    pub seconds: f64,
}

impl PowerReading {
    /// Age of the reading.
    pub(super) fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.at)
    }

    /// Energy since `earlier`; `None` if the sensor did not answer all the time.
    pub fn since(&self, earlier: &PowerReading) -> Option<Spent> {
        let seconds = self.at.checked_duration_since(earlier.at)?.as_secs_f64();
        let joules = (self.joules - earlier.joules).max(0.0);
        (self.gaps == earlier.gaps && seconds > 0.0).then_some(Spent { joules, seconds })
    }
}

impl Spent {
    /// Average power over that time.
    pub fn watts(&self) -> f64 {
        self.joules / self.seconds
    }
}

/// The last sample.
#[derive(Clone, Copy, Debug)]
struct Last {
    at: Instant,
    watts: Option<f64>,
    was_working: bool,
}

/// The sum of samples.
#[derive(Debug, Default)]
pub(super) struct Totals {
    joules: f64,
    working_joules: f64,
    last: Option<Last>,
    /// How often the sensor did not answer.
    gaps: u64,
    is_working: bool,
}

impl Totals {
    /// Adds the energy since the previous sample. A sample that no machine can cause is a gap.
    pub(super) fn add(&mut self, now: Instant, sample: Sample) {
        let seconds =
            self.last.map_or(Duration::ZERO, |last| now.saturating_duration_since(last.at));
        let before = self.last.and_then(|last| last.watts);
        let (joules, watts) = match sample {
            Sample::Watts(watts) if !(0.0..=WATTS_MAX).contains(&watts) => return self.count_gap(),
            Sample::Watts(watts) => {
                let mean = (before.unwrap_or(watts) + watts) / 2.0;
                (mean * seconds.as_secs_f64(), Some(watts))
            }
            Sample::Joules(joules) => {
                let most = WATTS_MAX * (seconds + COUNTED_MIN).as_secs_f64();
                if self.last.is_some() && !(0.0..=most).contains(&joules) {
                    return self.count_gap();
                }
                let counted = self.last.map_or(0.0, |_| joules);
                let is_long = seconds >= COUNTED_MIN;
                (counted, if is_long { Some(counted / seconds.as_secs_f64()) } else { before })
            }
        };
        self.joules += joules;
        if self.last.is_some_and(|last| last.was_working) {
            self.working_joules += joules;
        }
        self.last = Some(Last { at: now, watts, was_working: self.is_working });
    }

    /// Counts a gap: the sensor did not answer, and the energy until it does is unknown.
    pub(super) fn count_gap(&mut self) {
        self.gaps += 1;
        self.last = None;
    }

    pub(super) fn is_working(&self) -> bool {
        self.is_working
    }

    pub(super) fn set_working(&mut self, is_working: bool) {
        self.is_working = is_working;
    }

    /// The reading of the last sample; `None` if the sensor did not answer then.
    pub(super) fn reading(&self) -> Option<PowerReading> {
        let Last { at, watts, .. } = self.last?;
        let Totals { joules, working_joules, gaps, .. } = *self;
        Some(PowerReading { joules, working_joules, watts, at, gaps })
    }

    /// The reading at `now`, if the power has been that of the last sample.
    pub(super) fn held(&self, now: Instant) -> Option<PowerReading> {
        let mut held = self.reading()?;
        let seconds = now.saturating_duration_since(held.at).as_secs_f64();
        let joules = held.watts? * seconds;
        held.joules += joules;
        if self.last?.was_working {
            held.working_joules += joules;
        }
        held.at = held.at.max(now);
        Some(held)
    }
}
