//! Time from opening a model to its first token.

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::cli::weights::{self, Words};
use crate::cli::{Failure, model_files, options};
use crate::engine::{Cache, Engine, Huge, Options, WeightsPlace};
use crate::kernels::Isa;
use crate::sys::{file, memory};

/// Warm starts. The fastest counts, because other work slows the rest.
const RUNS: usize = 3;

/// Figures of a start with a prompt of one token.
pub(super) struct StartFigures {
    /// With the model and its packed weights on the disk only.
    pub(super) cold_ms: f64,
    /// With both in the system's memory.
    pub(super) warm_ms: f64,
    /// The first token of a warm start alone.
    pub(super) token_ms: f64,
    /// Memory of the process after a start, mapped files left out.
    pub(super) anonymous_bytes: u64,
    /// Bytes of buffers and KV cache; a short text uses only a part of them.
    pub(super) arena_bytes: u64,
}

/// Measures starts of the model at `path`. Weights that are packed at all are packed by a first start, which does not
/// count.
pub(super) fn measure(
    path: &Path,
    cache: &Cache,
    isa: Option<Isa>,
) -> Result<StartFigures, Failure> {
    let place =
        WeightsPlace { model: Some(path.to_owned()), cache: cache.clone(), huge: Huge::Off };
    let start = || -> Result<(StartFigures, Option<PathBuf>), Failure> {
        let begin = Instant::now();
        let options = Options { isa, ..Options::default() };
        let mut engine = Engine::new(model_files::open_whole(path)?.into(), &options)
            .map_err(options::engine_failure)?;
        weights::prepare(&mut engine, &place, Words::None)?;
        let ready = Instant::now();
        let mut stream = engine.stream().map_err(|e| Failure::runtime(&e))?;
        engine.push(&mut stream, &[0]).map_err(|e| Failure::runtime(&e))?;
        let warm_ms = begin.elapsed().as_secs_f64() * 1e3;
        let cache = engine.cache_file(&place);
        let start = StartFigures {
            cold_ms: warm_ms,
            warm_ms,
            token_ms: ready.elapsed().as_secs_f64() * 1e3,
            anonymous_bytes: memory::anonymous_bytes().unwrap_or(0),
            arena_bytes: engine.about().arena_bytes as u64,
        };
        Ok((start, cache))
    };
    let (first, cache) = start()?;
    for used in [Some(path), cache.as_deref()].into_iter().flatten() {
        file::forget(used).map_err(|e| Failure::runtime(&e))?;
    }
    let cold = start()?.0;
    let warm = (0..RUNS).map(|_| Ok(start()?.0)).collect::<Result<Vec<StartFigures>, Failure>>()?;
    // The allocator may still hold memory of earlier starts.
    let starts = [&first, &cold].into_iter().chain(&warm);
    let anonymous_bytes = starts.map(|start| start.anonymous_bytes).min().unwrap_or(0);
    let best = warm.into_iter().min_by(|a, b| a.warm_ms.total_cmp(&b.warm_ms)).unwrap_or(first);
    Ok(StartFigures { cold_ms: cold.warm_ms, anonymous_bytes, ..best })
}
