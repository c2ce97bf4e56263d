//! Electric power that the machine takes: what sensors there are, and the energy between two instants.
//!
//! A sensor of watts is asked by a thread, ten times a second while work is done and once a second otherwise;
//! a counter of energy only has to be asked before it overflows. Callers never wait long for a sensor, and
//! get no figures if it did not answer all the time.

mod asked;
mod command;
mod pmic;
mod rails;
mod rapl;
mod sensor;
mod shared;
mod totals;

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use asked::AskedSensor;
use command::CommandSensor;
pub use sensor::{LockedSensor, Sensor, locked};
pub use totals::{PowerReading, Spent, WATTS_MAX};
use totals::{Sample, Totals};

/// Where the power figures come from.
pub enum PowerSource {
    /// A sensor of the machine.
    Sensor(Sensor),
    /// A command of the shell that prints watts, a line each.
    Command(String),
    /// Watts stated by the user.
    Stated {
        /// Watts without work.
        idle: f64,
        /// Watts while LEAP works.
        busy: f64,
    },
}

/// Adds up the energy that the machine takes.
pub struct Meter {
    name: String,
    kind: MeterKind,
}

enum MeterKind {
    Asked(AskedSensor),
    Command(CommandSensor),
    Stated { idle: f64, busy: f64, totals: Mutex<Totals> },
}

impl Meter {
    /// Begins to add up. Until [`Meter::set_working`] says otherwise, the machine has no work.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn start(source: PowerSource) -> io::Result<Meter> {
        let (name, kind) = match source {
            PowerSource::Sensor(sensor) => {
                (sensor.name().to_owned(), MeterKind::Asked(AskedSensor::start(sensor)?))
            }
            PowerSource::Command(command) => {
                (command::NAME.to_owned(), MeterKind::Command(CommandSensor::start(command)?))
            }
            PowerSource::Stated { idle, busy } => {
                let mut totals = Totals::default();
                totals.add(Instant::now(), Sample::Watts(idle));
                let name = "--watts, not measured".to_owned();
                (name, MeterKind::Stated { idle, busy, totals: Mutex::new(totals) })
            }
        };
        Ok(Meter { name, kind })
    }

    /// The measured part of the machine, in a few words.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Tells the meter whether LEAP works: then sensors are read more often, and energy also counts as used by answers.
    pub fn set_working(&self, is_working: bool) {
        match &self.kind {
            MeterKind::Asked(sensor) => sensor.set_working(is_working),
            MeterKind::Command(sensor) => sensor.set_working(is_working),
            MeterKind::Stated { idle, busy, totals } => {
                let mut totals = totals.lock().unwrap_or_else(PoisonError::into_inner);
                let (now, was_working) = (Instant::now(), totals.is_working());
                totals.add(now, Sample::Watts(if was_working { *busy } else { *idle }));
                totals.set_working(is_working);
                totals.add(now, Sample::Watts(if is_working { *busy } else { *idle }));
            }
        }
    }

    /// Ends the command, for a program that ends without dropping the meter.
    pub fn stop(&self) {
        if let MeterKind::Command(sensor) = &self.kind {
            sensor.stop();
        }
    }

    /// Notes whether this process computes: stated power follows that, in case other processes compute in between.
    /// Returns the energy so far, without waiting for the sensor; `None` if the sensor does not answer.
    pub fn compute(&self, is_computing: bool) -> Option<f64> {
        let reading = match &self.kind {
            MeterKind::Asked(sensor) => sensor.held(),
            MeterKind::Command(_) => self.read(),
            MeterKind::Stated { .. } => {
                self.set_working(is_computing);
                self.read()
            }
        };
        reading.map(|reading| reading.joules)
    }

    /// The total until now; `None` if the sensor does not answer.
    pub fn read(&self) -> Option<PowerReading> {
        match &self.kind {
            MeterKind::Asked(sensor) => sensor.read(),
            MeterKind::Command(sensor) => sensor.read(),
            MeterKind::Stated { totals, .. } => {
                let totals = totals.lock().unwrap_or_else(PoisonError::into_inner);
                totals.held(Instant::now())
            }
        }
    }

    /// The reading of the last sample: at most a second old, or a tenth of one for a caller that
    /// looks all the time.
    pub fn latest(&self) -> Option<PowerReading> {
        match &self.kind {
            MeterKind::Asked(sensor) => sensor.latest(),
            MeterKind::Command(_) | MeterKind::Stated { .. } => self.read(),
        }
    }
}

#[cfg(test)]
mod tests;
