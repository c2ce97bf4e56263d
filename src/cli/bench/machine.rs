//! Limits of the machine: reading memory, and multiplying int8 values.

use std::hint::black_box;
use std::time::Instant;

use crate::cli::Failure;
use crate::engine::bandwidth::Reader;
use crate::kernels::Kernels;
use crate::kernels::peak::OPS_PER_ROUND;
use crate::pool::Pool;

/// Bytes of memory to read: far more than any cache holds.
const READ_BYTES: u64 = 1 << 30;
/// Bytes to read beside a model, which leaves less memory.
const READ_BESIDE_BYTES: u64 = READ_BYTES / 4;
/// Seconds of repeated reading that one measurement takes, about as long as some tokens: a shared machine is faster for
/// a moment.
const READ_SECONDS: f64 = 0.3;
/// Runs of each measurement. The best counts, because other work slows the rest.
pub(super) const RUNS: usize = 3;
/// Seconds that a run of multiplications takes, about as long as a long prompt: a shared or cool machine is faster for
/// a moment.
const SPIN_SECONDS: f64 = 1.0;
/// Seconds of a trial run, from which the length of a full run follows.
const TRIAL_SECONDS: f64 = 0.02;

/// The machine's limits with some number of threads.
#[derive(Clone, Copy)]
pub(super) struct MachineLimits {
    pub(super) read_bytes_per_s: f64,
    pub(super) int8_ops_per_s: f64,
}

/// A pool of threads with its measured limits, and the means to measure them again.
pub(super) struct MeasuredMachine {
    kernels: Kernels,
    pool: Pool,
    limits: MachineLimits,
    /// Rounds of multiplications that take [`SPIN_SECONDS`].
    rounds: usize,
}

impl MeasuredMachine {
    /// Measures what `kernels` can do with a thread on each of `cpus`.
    pub(super) fn measure(kernels: Kernels, cpus: &[usize]) -> Result<MeasuredMachine, Failure> {
        let pool = Pool::new(cpus).map_err(|e| Failure::runtime(&e))?;
        let read_bytes_per_s = read_bandwidth(&kernels, &pool, READ_BYTES)?;
        let rounds = rounds(&kernels, &pool);
        let spin = || int8_ops_per_s(&kernels, &pool, rounds);
        let limits = MachineLimits { read_bytes_per_s, int8_ops_per_s: best(spin) };
        Ok(MeasuredMachine { kernels, pool, limits, rounds })
    }

    pub(super) fn limits(&self) -> MachineLimits {
        self.limits
    }

    /// The limits, with the bandwidth measured in turn with runs of `work`: a machine that others use too changes
    /// within seconds.
    pub(super) fn reading_beside(
        &self,
        mut work: impl FnMut() -> Result<(), Failure>,
    ) -> Result<MachineLimits, Failure> {
        let reader = Reader::new(&self.kernels, &self.pool, READ_BESIDE_BYTES);
        let reader = reader.map_err(|e| Failure::runtime(&e))?;
        let mut read_bytes_per_s = 0.0_f64;
        for _ in 0..RUNS {
            read_bytes_per_s = read_bytes_per_s.max(reader.bytes_per_s(READ_SECONDS));
            work()?;
        }
        Ok(MachineLimits { read_bytes_per_s, ..self.limits })
    }

    /// The limits, with the int8 peak measured in turn with runs of `work`.
    pub(super) fn multiplying_beside(
        &self,
        mut work: impl FnMut() -> Result<(), Failure>,
    ) -> Result<MachineLimits, Failure> {
        let mut peak = 0.0_f64;
        for _ in 0..RUNS {
            peak = peak.max(int8_ops_per_s(&self.kernels, &self.pool, self.rounds));
            work()?;
        }
        Ok(MachineLimits { int8_ops_per_s: peak, ..self.limits })
    }
}

/// Bytes a second that `pool` reads from `bytes` of memory, or from a quarter of the free memory if that is less.
pub(in crate::cli) fn read_bandwidth(
    kernels: &Kernels,
    pool: &Pool,
    bytes: u64,
) -> Result<f64, Failure> {
    let reader = Reader::new(kernels, pool, bytes).map_err(|e| Failure::runtime(&e))?;
    Ok(best(|| reader.bytes_per_s(0.0)))
}

fn int8_ops_per_s(kernels: &Kernels, pool: &Pool, rounds: usize) -> f64 {
    let start = Instant::now();
    pool.run(pool.threads(), &|_| {
        black_box(kernels.spin_int8(black_box(rounds)));
    });
    (rounds * OPS_PER_ROUND * pool.threads()) as f64 / start.elapsed().as_secs_f64()
}

/// Rounds of multiplications that take each thread [`SPIN_SECONDS`].
fn rounds(kernels: &Kernels, pool: &Pool) -> usize {
    let mut rounds = 1 << 10;
    loop {
        let rate = best(|| int8_ops_per_s(kernels, pool, rounds));
        let per_s = rate / (OPS_PER_ROUND * pool.threads()) as f64;
        if rounds as f64 >= per_s * TRIAL_SECONDS {
            return (per_s * SPIN_SECONDS) as usize;
        }
        rounds *= 2;
    }
}

/// The best rate of some runs.
fn best(run: impl Fn() -> f64) -> f64 {
    (0..RUNS).map(|_| run()).fold(0.0, f64::max)
}
