//! Texts to measure with.

use std::ops::Range;

use crate::cli::Failure;
use crate::engine::{Engine, Stream};

/// Made-up ids for these positions of a text: valid, and far apart.
pub(super) fn ids(engine: &Engine, places: Range<usize>) -> Vec<u32> {
    let vocab_size = engine.header().vocab_size;
    places.map(|place| (place * 7919 % vocab_size) as u32).collect()
}

/// Appends `n` ids to the stream.
pub(super) fn push(engine: &mut Engine, stream: &mut Stream, n: usize) -> Result<(), Failure> {
    let ids = ids(engine, stream.pos()..stream.pos() + n);
    engine.push(stream, &ids).map_err(|e| Failure::runtime(&e))?;
    Ok(())
}
