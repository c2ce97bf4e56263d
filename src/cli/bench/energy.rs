//! Energy per token, in all and beyond the power of the idle machine.

use std::thread;
use std::time::Duration;

use super::text::{ids, push};
use crate::cli::Failure;
use crate::engine::Engine;
use crate::sys::power::{Meter, PowerReading, Spent};
use crate::sys::signal;

/// Seconds of a measurement: sensors answer ten times a second, and some give means over a second.
pub(super) const SECONDS: f64 = 5.0;
/// Interval between readings of the idle machine's power.
const IDLE_PERIOD: Duration = Duration::from_millis(100);
/// Tokens between two readings of the meter, if the context has room for them.
const STRETCH: usize = 256;

/// Energy of decoding after `depth` tokens of context.
pub(super) struct EnergyFigure {
    pub(super) depth: usize,
    pub(super) tokens: usize,
    pub(super) spent: Spent,
    /// Power of the idle machine.
    pub(super) idle_watts: f64,
}

impl EnergyFigure {
    pub(super) fn joules_per_token(&self) -> f64 {
        self.spent.joules / self.tokens as f64
    }

    /// Energy per token beyond what the idle machine would have taken.
    pub(super) fn added_joules_per_token(&self) -> f64 {
        (self.spent.joules - self.idle_watts * self.spent.seconds) / self.tokens as f64
    }

    pub(super) fn tokens_per_s(&self) -> f64 {
        self.tokens as f64 / self.spent.seconds
    }
}

/// Context length that measuring after `depth` tokens takes.
pub(super) fn ctx_len(depth: usize) -> usize {
    depth.saturating_add(STRETCH)
}

/// Mean power of the machine over `seconds` without work.
pub(in crate::cli) fn idle_watts(meter: &Meter, seconds: f64) -> Result<f64, Failure> {
    let begin = read(meter)?;
    loop {
        thread::sleep(IDLE_PERIOD);
        let spent = spent(&begin, &read(meter)?)?;
        if spent.seconds >= seconds {
            return Ok(spent.watts());
        }
    }
}

/// Measures the energy of decoding for `seconds` after a context of `depth` tokens.
pub(super) fn decode(
    engine: &mut Engine,
    (meter, idle_watts): (&Meter, f64),
    depth: usize,
    seconds: f64,
) -> Result<EnergyFigure, Failure> {
    let mut stream = engine.stream().map_err(|e| Failure::runtime(&e))?;
    let stretch = STRETCH.min(engine.ctx_len().saturating_sub(depth)).max(1);
    let mut sum = Spent { joules: 0.0, seconds: 0.0 };
    let mut tokens = 0;
    meter.set_working(true);
    while sum.seconds < seconds {
        let text = ids(engine, 0..depth + 1);
        let kept = engine.rewind(&mut stream, &text).min(depth);
        push(engine, &mut stream, depth - kept)?;
        let begin = read(meter)?;
        for _ in 0..stretch {
            push(engine, &mut stream, 1)?;
            if signal::interrupted() != 0 {
                return Err(Failure::Interrupted);
            }
        }
        let part = spent(&begin, &read(meter)?)?;
        sum.joules += part.joules;
        sum.seconds += part.seconds;
        tokens += stretch;
    }
    meter.set_working(false);
    Ok(EnergyFigure { depth, tokens, spent: sum, idle_watts })
}

fn read(meter: &Meter) -> Result<PowerReading, Failure> {
    meter.read().ok_or_else(|| lost(meter))
}

fn spent(from: &PowerReading, to: &PowerReading) -> Result<Spent, Failure> {
    let gone = || Failure::Runtime("the sensor of power did not answer all the time".to_owned());
    to.since(from).ok_or_else(gone)
}

fn lost(meter: &Meter) -> Failure {
    Failure::Runtime(format!("{}: no answer of the sensor of power", meter.name()))
}

#[cfg(all(test, feature = "demo"))]
mod tests {
    use super::*;
    use crate::engine::Options;
    use crate::sys::power::PowerSource;

    #[test]
    fn a_token_costs_its_time_of_the_power() {
        let meter = Meter::start(PowerSource::Stated { idle: 1.0, busy: 5.0 }).unwrap();
        let idle = idle_watts(&meter, 0.01).ok().unwrap();
        let options = Options { threads: Some(1), ctx_len: Some(64), ..Options::default() };
        let mut engine = Engine::open("models/demo.bin".as_ref(), &options).unwrap();
        let figure = decode(&mut engine, (&meter, idle), 60, 0.02).ok().unwrap();
        assert!((idle - 1.0).abs() < 1e-6 && figure.tokens.is_multiple_of(4), "{idle}");
        let watts = figure.joules_per_token() * figure.tokens_per_s();
        let added = figure.added_joules_per_token() * figure.tokens_per_s();
        assert!((watts - 5.0).abs() < 1e-6 && (added - 4.0).abs() < 1e-6, "{watts} {added}");
    }
}
