//! How fast a machine reads its memory.

use std::hint::black_box;
use std::io;
use std::time::Instant;

use crate::kernels::Kernels;
use crate::pool::Pool;
use crate::sys::huge::HugeMemory;
use crate::sys::memory;

/// Bytes that [`best`] reads: more than caches hold.
const READ_BYTES: u64 = 256 << 20;
/// Runs of [`best`].
const READ_RUNS: usize = 3;
/// Pieces for each thread: small ones let all threads finish at about the same time.
const PIECES: usize = 16;

/// Bytes a second that `pool` reads in the best of some runs of `seconds` and more each: other work slows the rest.
///
/// # Errors
/// If the system refuses the memory.
pub(crate) fn best(kernels: &Kernels, pool: &Pool, seconds: f64) -> io::Result<f64> {
    let reader = Reader::new(kernels, pool, READ_BYTES)?;
    Ok((0..READ_RUNS).map(|_| reader.bytes_per_s(seconds)).fold(0.0, f64::max))
}

/// A pool of threads, and the memory that it reads.
pub(crate) struct Reader<'a> {
    kernels: &'a Kernels,
    pool: &'a Pool,
    memory: HugeMemory,
}

impl Reader<'_> {
    /// A reader of `bytes` of memory, or of a quarter of the free memory if that is less.
    ///
    /// # Errors
    /// If the system refuses the memory.
    pub(crate) fn new<'a>(
        kernels: &'a Kernels,
        pool: &'a Pool,
        bytes: u64,
    ) -> io::Result<Reader<'a>> {
        let free = memory::available_bytes().unwrap_or(bytes);
        let bytes = bytes.min(free / 4) as usize;
        let refused =
            |e: io::Error| io::Error::new(e.kind(), format!("no memory to measure bandwidth: {e}"));
        let mut memory = HugeMemory::new(bytes).map_err(refused)?;
        memory.as_mut_slice().fill(1);
        Ok(Reader { kernels, pool, memory })
    }

    /// Bytes a second of reading all the memory, repeated until `seconds` have passed.
    pub(crate) fn bytes_per_s(&self, seconds: f64) -> f64 {
        let memory = self.memory.as_slice();
        let pieces = PIECES * self.pool.threads();
        let part = memory.len() / pieces;
        let (start, mut bytes) = (Instant::now(), 0);
        loop {
            self.pool.run(pieces, &|i| {
                black_box(self.kernels.read_all(&memory[i * part..(i + 1) * part]));
            });
            bytes += pieces * part;
            let elapsed = start.elapsed().as_secs_f64();
            if elapsed >= seconds {
                return bytes as f64 / elapsed;
            }
        }
    }
}
