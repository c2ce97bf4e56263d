//! What drafts cost: passes of few rows of a stream, after each of which a token is chosen.

use std::time::Instant;

use super::text::{ids, push};
use crate::cli::Failure;
use crate::engine::{Engine, Wants};

/// Most rows of a pass: a token and its drafts.
pub(super) const ROWS_MAX: usize = 16;

/// Passes of each number of rows, in turn; the best counts, as others are slowed by something else.
const ROUNDS: usize = 5;

/// What passes of few rows take.
pub(super) struct RowsFigure {
    /// The context before them.
    pub(super) depth: usize,
    /// Seconds of a pass of `index + 1` rows.
    pub(super) seconds: [f64; ROWS_MAX],
}

/// Measures passes of 1 to [`ROWS_MAX`] rows after a context of `depth` tokens.
pub(super) fn rows(engine: &mut Engine, depth: usize) -> Result<RowsFigure, Failure> {
    let mut stream = engine.stream().map_err(|e| Failure::runtime(&e))?;
    let ids = ids(engine, 0..depth + ROWS_MAX);
    let mut seconds = [f64::INFINITY; ROWS_MAX];
    for _ in 0..ROUNDS {
        for (rows, best) in (1..).zip(&mut seconds) {
            let kept = engine.rewind(&mut stream, &ids[..=depth]);
            push(engine, &mut stream, depth - kept)?;
            let start = Instant::now();
            let pass = engine.push_batch(&mut stream, &ids[depth..depth + rows], Wants::All);
            pass.map_err(|e| Failure::runtime(&e))?;
            *best = best.min(start.elapsed().as_secs_f64());
        }
    }
    Ok(RowsFigure { depth, seconds })
}
