//! What the machine can do: reading memory, and multiplying int8 values.

use std::hint::black_box;
use std::time::Instant;

use crate::cli::Failure;
use crate::kernels::Kernels;
use crate::kernels::peak::OPS_PER_ROUND;
use crate::pool::Pool;
use crate::sys::{huge::HugeMemory, memory};

/// Memory that is read: far more than any cache holds.
const READ_BYTES: u64 = 1 << 30;
/// Runs of each measurement; the best counts.
const RUNS: usize = 3;
/// Seconds that a run of multiplications should take, as a long prompt does: for a moment a shared
/// or cool machine is quicker.
const SPIN_SECONDS: f64 = 1.0;
/// Seconds after which it is known how many that will be.
const TRIAL_SECONDS: f64 = 0.02;
/// Pieces for each thread, so that all finish at about the same time.
const PIECES: usize = 16;

/// The machine's limits with some number of threads.
pub(super) struct Limits {
    pub(super) read_bytes_per_s: f64,
    pub(super) int8_ops_per_s: f64,
}

/// Measures both with a thread on each of `cpus`.
pub(super) fn measure(kernels: &Kernels, cpus: &[usize]) -> Result<Limits, Failure> {
    let pool = Pool::new(cpus).map_err(|e| Failure::runtime(&e))?;
    Ok(Limits {
        read_bytes_per_s: read_bandwidth(kernels, &pool, READ_BYTES)?,
        int8_ops_per_s: int8_peak(kernels, &pool),
    })
}

/// Bytes a second that `pool` reads from `bytes` of memory, less if they are not free.
pub(in crate::cli) fn read_bandwidth(
    kernels: &Kernels,
    pool: &Pool,
    bytes: u64,
) -> Result<f64, Failure> {
    let free = memory::available_bytes().unwrap_or(bytes);
    let bytes = bytes.min(free / 4) as usize;
    let mut memory = HugeMemory::new(bytes)
        .map_err(|e| Failure::Runtime(format!("no memory to measure bandwidth: {e}")))?;
    memory.as_mut_slice().fill(1);
    let pieces = PIECES * pool.threads();
    let part = bytes / pieces;
    let seconds = best(|| {
        pool.run(pieces, &|i| {
            black_box(kernels.read_all(&memory.as_slice()[i * part..(i + 1) * part]));
        });
    });
    Ok((part * pieces) as f64 / seconds)
}

fn int8_peak(kernels: &Kernels, pool: &Pool) -> f64 {
    let spin = |rounds: usize| {
        pool.run(pool.threads(), &|_| {
            black_box(kernels.spin_int8(black_box(rounds)));
        });
    };
    let mut rounds = 1 << 10;
    let mut trial = best(|| spin(rounds));
    while trial < TRIAL_SECONDS {
        rounds *= 2;
        trial = best(|| spin(rounds));
    }
    rounds = (rounds as f64 * SPIN_SECONDS / trial) as usize;
    (rounds * OPS_PER_ROUND * pool.threads()) as f64 / best(|| spin(rounds))
}

/// Seconds of the quickest of some runs: others were slowed by something else.
fn best(mut run: impl FnMut()) -> f64 {
    let time = |()| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    };
    [(); RUNS].map(time).into_iter().fold(f64::INFINITY, f64::min)
}
