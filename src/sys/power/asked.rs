//! A sensor that a thread reads.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::sensor::Sensor;
use super::shared::Shared;
use super::totals::PowerReading;

/// Interval between samples with work, and without.
const PERIOD: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// Interval between samples of a sensor that counts by itself, with work and without.
const COUNTER_PERIOD: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(1));
/// Longest time for which a sample is used.
const AGE_MAX: Duration = Duration::from_secs(2);

/// A sensor, and the thread that reads it.
pub(super) struct AskedSensor {
    name: String,
    shared: Arc<Shared>,
}

impl AskedSensor {
    pub(super) fn start(mut sensor: Sensor) -> io::Result<AskedSensor> {
        let name = sensor.name().to_owned();
        let period = if sensor.is_counter() { COUNTER_PERIOD } else { PERIOD };
        let shared = Shared::start(move |shared| {
            shared.add(sensor.sample(), 0, sensor.name());
            let mut last = Instant::now();
            while let Some(wanted) = shared.wait(last, period) {
                last = Instant::now();
                let sample = sensor.sample();
                shared.add(sample, wanted, sensor.name());
            }
        })?;
        // Waits for the first sample, so that later calls that do not wait find one.
        shared.read(&name);
        Ok(AskedSensor { name, shared })
    }

    pub(super) fn set_working(&self, is_working: bool) {
        self.shared.set_working(is_working);
    }

    pub(super) fn read(&self) -> Option<PowerReading> {
        self.shared.read(&self.name)
    }

    /// The reading extrapolated to now, if the last sample is not too old.
    pub(super) fn held(&self) -> Option<PowerReading> {
        self.shared.look();
        self.shared.held(AGE_MAX, &self.name)
    }

    pub(super) fn latest(&self) -> Option<PowerReading> {
        self.shared.look();
        self.shared.latest()
    }
}

impl Drop for AskedSensor {
    fn drop(&mut self) {
        self.shared.end();
    }
}
