//! Measures the speed at which this board decodes, with several numbers of threads.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::error::PartError;
use super::figures::{self, Measuring, Own};
use super::settings::Settings;
use crate::engine::{DeviceChoice, DeviceOptions, Engine, Options, Stream, bandwidth, made_up};
use crate::format::model::{Ends, Weights};
use crate::kernels::Kernels;
use crate::model::{Model, Shape};
use crate::pool::Pool;
use crate::quant::GROUP_DEFAULT;
use crate::sys::cpu;
use crate::sys::huge::Pages;
use crate::sys::memory;
use crate::sys::power::Meter;
use crate::sys::signal;
use crate::wire::call::{SPEEDS_MAX, Speed};

/// Seconds of a quick measurement: long enough to use up a quota of processor time.
const SECONDS_QUICK: f64 = 0.1;
/// Interval between readings of the idle machine's power.
const IDLE_PERIOD: Duration = Duration::from_millis(100);
/// Longest wait for readings of the idle machine: the clock of a sensor that hangs stands still.
const IDLE_MAX: Duration = Duration::from_secs(10);
/// Runs of each measurement.
const RUNS: usize = 7;
/// Index of the rate that counts, the slowest being 0. The quickest rates are of moments in which a shared or
/// limited processor gives more than it sustains; slow ones, of which there are more, are of disturbed
/// moments.
const COUNTS: usize = 4;
/// Tokens of a text.
const CTX_LEN: usize = 288;
/// Bytes of a made-up model: few, so that it is made quickly.
const MODEL_BYTES: u64 = 240 << 20;
/// Smallest free memory with which a board is measured in huge pages. Boards with less have no room for a copy of their
/// layers there, and decode up to a tenth slower.
const HUGE_FROM: u64 = 1 << 30;
/// Limit on the bytes that are read between tokens. Twice the largest cache is read, so that it holds nothing of the
/// model, as with a larger one.
const BETWEEN_BYTES_MAX: u64 = 256 << 20;
/// Seconds in which power is measured: some sensors give means of a second.
const POWER_SECONDS: f64 = 1.0;

/// The kinds of weights, in the order of the versions of files from 2 on.
const KINDS: [Weights; 3] = [
    Weights::Q8 { group: GROUP_DEFAULT },
    Weights::Q4 { group: GROUP_DEFAULT, int8_embedding: true },
    Weights::B2 { group: GROUP_DEFAULT, ends: Ends::Int8 },
];

/// Figures of this board with the threads that `options` ask for, and its power, measured by its meter or given by
/// the user. Figures that the settings give or `folder` keeps are not measured again.
///
/// # Errors
/// If it cannot be measured.
pub(super) fn own(
    settings: &Settings,
    (options, meter): (&Options, Option<&Meter>),
    folder: &Path,
) -> Result<Own, PartError> {
    if let Some(own) = &settings.figures.own {
        return Ok(own.clone());
    }
    let kernels = Engine::kernels(None, options.isa).map_err(PartError::Engine)?;
    let milliwatts = settings.figures.milliwatts;
    let meter = meter.filter(|_| milliwatts.is_none());
    let (cpus, sensor) = (options.cpus(), meter.map_or("no sensor", Meter::name));
    let wanted = options.threads.map_or("any", |_| "these");
    let device = device_words(&options.device);
    let machine = format!("{} {cpus:?} {wanted} {sensor}{device}", kernels.isa().name());
    let measure = &mut || measure(options, meter);
    let measuring = Measuring { machine: &machine, milliwatts, measure };
    figures::own(folder, measuring, &*settings.events)
}

/// The device, in words that kept figures are known by; none for the CPUs alone.
fn device_words(DeviceOptions { choice, memory }: &DeviceOptions) -> String {
    let name = match choice {
        DeviceChoice::Cpu => return String::new(),
        DeviceChoice::Auto => "auto",
        DeviceChoice::Gpu { name } => name.as_deref().unwrap_or("gpu"),
    };
    // A name is one line of a file, whatever the user gives.
    format!(" {name:?} {memory:?}")
}

/// Measures this board with all threads that `options` ask for and, if they ask for none, with half of them,
/// a quarter and so on. Takes a second or two for each; `meter` measures power.
fn measure(options: &Options, meter: Option<&Meter>) -> Result<Vec<Speed>, PartError> {
    let kernels = Engine::kernels(None, options.isa).map_err(PartError::Engine)?;
    let cpus = options.cpus();
    let mut speeds = Vec::new();
    for threads in numbers(cpus.len(), options.threads.is_none()) {
        // Kinds of weights without a measurement of their own count as quick as memory is read.
        let read = reading(&kernels, &cpus[..threads])? as u64;
        speeds.push(Speed { threads: threads as u16, read: [read.max(1); 4], milliwatts: None });
    }
    let idle = meter.and_then(idle_watts);
    for (kind, weights) in KINDS.into_iter().enumerate() {
        let Some(model) = model(weights, &kernels) else { continue };
        for speed in &mut speeds {
            let cpus = &cpus[..speed.threads.into()];
            let mut engine = engine(&model, options, cpus)?;
            speed.read[kind + 1] = bytes_per_s(&mut engine)? as u64;
            let power = meter.zip(idle).filter(|_| kind + 1 == KINDS.len());
            speed.milliwatts = power.and_then(|power| milliwatts(&mut engine, power));
        }
    }
    Ok(speeds)
}

/// Bytes a second that `kernels` read with a thread on each of `cpus`, measured in a third of a second.
fn reading(kernels: &Kernels, cpus: &[usize]) -> Result<f64, PartError> {
    let unmeasured = |e: std::io::Error| PartError::Measure(e.to_string());
    let pool = Pool::new(cpus).map_err(unmeasured)?;
    bandwidth::best(kernels, &pool, SECONDS_QUICK).map_err(unmeasured)
}

/// Mean power of the machine without work; `None` if the sensor does not answer all the time, or if a signal ends the
/// measurement.
fn idle_watts(meter: &Meter) -> Option<f64> {
    let (begin, start) = (meter.read()?, Instant::now());
    while start.elapsed() < IDLE_MAX && signal::interrupted() == 0 {
        thread::sleep(IDLE_PERIOD);
        let spent = meter.read()?.since(&begin)?;
        if spent.seconds >= POWER_SECONDS {
            return Some(spent.watts());
        }
    }
    None
}

/// Numbers of threads: `all`, and if `has_fewer`, half of it and so on.
fn numbers(all: usize, has_fewer: bool) -> impl Iterator<Item = usize> {
    let half = move |n: &usize| Some(n / 2).filter(|n| has_fewer && *n > 0);
    std::iter::successors(Some(all), half).take(SPEEDS_MAX)
}

/// A made-up model, or one of fewer layers, if there is memory for it.
fn model(weights: Weights, kernels: &Kernels) -> Option<Arc<Model>> {
    let shape = Shape::of_bytes(weights, MODEL_BYTES);
    let has_room = memory::available_bytes().is_none_or(|free| free >= HUGE_FROM);
    let pages = if has_room { Pages::Huge } else { Pages::Small };
    let of = |layers| made_up::model(shape, layers, weights, kernels, (CTX_LEN, None), pages);
    let model = (1..=shape.n_layers()).rev().find_map(|layers| of(layers).ok());
    if model.is_none() {
        log::debug!("not measured with {weights:?}: no memory");
    }
    model.map(Arc::new)
}

fn engine(model: &Arc<Model>, options: &Options, cpus: &[usize]) -> Result<Engine, PartError> {
    let options = Options {
        ctx_len: Some(CTX_LEN),
        batch: Some(1),
        threads: Some(cpus.len()),
        cores: Some(cpus.to_vec()),
        ..options.clone()
    };
    Engine::new(Arc::clone(model), &options).map_err(PartError::Engine)
}

/// A text that is written, of tokens that mean nothing.
struct Text<'a> {
    engine: &'a mut Engine,
    stream: Stream,
    /// Memory that is read between tokens, to empty the caches.
    between: Vec<u8>,
}

impl Text<'_> {
    fn new(engine: &mut Engine) -> Result<Text<'_>, PartError> {
        let stream = engine.stream().map_err(|e| PartError::Measure(e.to_string()))?;
        let free = memory::available_bytes().unwrap_or(u64::MAX);
        let between = (2 * cpu::cache_bytes()).min(BETWEEN_BYTES_MAX).min(free / 2);
        let between = vec![1; between as usize];
        let mut text = Text { engine, stream, between };
        // The first token pays for one-time work.
        text.token()?;
        Ok(text)
    }

    fn token(&mut self) -> Result<(), PartError> {
        if self.stream.pos() == CTX_LEN {
            self.stream.clear();
        }
        self.engine.push(&mut self.stream, &[1]).map_err(|e| PartError::Measure(e.to_string()))?;
        // A slow board takes its time, and may be told to end.
        if signal::interrupted() != 0 { Err(PartError::Interrupted) } else { Ok(()) }
    }

    /// Writes for this number of seconds, and one token at least. Returns tokens a second; the reads between them do not
    /// count.
    fn write(&mut self, seconds: f64) -> Result<f64, PartError> {
        let (mut elapsed, mut n) = (0.0, 0);
        while elapsed < seconds {
            // One byte of each cache line.
            black_box(self.between.iter().step_by(64).map(|byte| u64::from(*byte)).sum::<u64>());
            let start = Instant::now();
            self.token()?;
            elapsed += start.elapsed().as_secs_f64();
            n += 1;
        }
        Ok(f64::from(n) / elapsed)
    }
}

/// Bytes of weights read per second of decoding, at the speed that a board with shared or limited time sustains.
fn bytes_per_s(engine: &mut Engine) -> Result<f64, PartError> {
    let mut text = Text::new(engine)?;
    let mut rates = [0.0_f64; RUNS];
    for rate in &mut rates {
        *rate = text.write(SECONDS_QUICK)?;
    }
    rates.sort_by(f64::total_cmp);
    Ok((rates[COUNTS] * engine.model().bytes_per_token() as f64).max(1.0))
}

/// Power of the machine at rest and while it decodes; `None` if the sensor does not answer all the time.
fn milliwatts(engine: &mut Engine, (meter, idle): (&Meter, f64)) -> Option<(u32, u32)> {
    let mut text = Text::new(engine).ok()?;
    meter.set_working(true);
    let begin = meter.read();
    let written = text.write(POWER_SECONDS);
    let end = meter.read();
    meter.set_working(false);
    written.ok()?;
    let busy = end?.since(&begin?)?.watts().max(idle);
    (busy > 0.0).then_some(((idle * 1e3).round() as u32, (busy * 1e3).round().max(1.0) as u32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::power::PowerSource;

    #[test]
    fn figures_with_a_device_are_known_by_it() {
        let words = |choice, memory| device_words(&DeviceOptions { choice, memory });
        let gpu = |name: &str| DeviceChoice::Gpu { name: Some(name.to_owned()) };
        let all = [
            words(DeviceChoice::Cpu, None),
            words(DeviceChoice::Auto, None),
            words(DeviceChoice::Gpu { name: None }, None),
            words(gpu("one\nline"), None),
            words(gpu("one\nline"), Some(1 << 30)),
        ];
        assert_eq!(all[0], "");
        for (i, words) in all.iter().enumerate() {
            assert!(!words.contains('\n') && !all[i + 1..].contains(words), "{all:?}");
        }
    }

    #[test]
    fn all_threads_are_halved_down_to_one() {
        assert_eq!(numbers(6, true).collect::<Vec<_>>(), [6, 3, 1]);
        assert_eq!(numbers(1, true).collect::<Vec<_>>(), [1]);
        assert_eq!(numbers(6, false).collect::<Vec<_>>(), [6]);
        assert_eq!(numbers(4096, true).count(), SPEEDS_MAX);
    }

    #[test]
    fn a_board_tells_how_quick_it_is_and_what_it_takes() {
        let meter = Meter::start(PowerSource::Stated { idle: 2.0, busy: 5.0 }).unwrap();
        let options = Options { threads: Some(1), ..Options::default() };
        let speeds = measure(&options, Some(&meter)).ok().unwrap();
        let [speed] = &speeds[..] else { panic!("{speeds:?}") };
        assert_eq!((speed.threads, speed.milliwatts), (1, Some((2000, 5000))));
        // Each is a measurement of its own, and no weights are read more quickly than memory is.
        let [f32, rest @ ..] = speed.read;
        assert!(rest.iter().all(|read| *read > 1 && *read != f32), "{speed:?}");
    }
}
