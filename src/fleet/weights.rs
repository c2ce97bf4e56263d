//! Prepares the weights of a board's part.

use super::error::PartError;
use super::events::{Event, Events};
use super::interrupt::is_interrupted;
use crate::engine::{Engine, Listener, Preparing, WeightsPlace};

/// Prepares weights of which the board reads this `part`, from 0 to 1. `step` is called again and again during the work.
///
/// # Errors
/// If they cannot be used.
pub(super) fn prepare(
    engine: &mut Engine,
    place: &WeightsPlace,
    part: f64,
    (events, step): (&dyn Events, &dyn Fn()),
) -> Result<(), PartError> {
    events.tell(&Event::Prepares);
    let tell = |what: Preparing<'_>| {
        if matches!(what, Preparing::Packing(_)) {
            step();
        }
        let fits = |larger: &crate::engine::LargerThanMemory| {
            larger.weights as f64 * part <= larger.free as f64
        };
        match &what {
            Preparing::Larger(larger) if fits(larger) => {}
            what => events.tell(&Event::Weights(what)),
        }
    };
    let listener = Listener { tell: &tell, is_interrupted: &is_interrupted };
    let prepared = engine.prepare(place, listener);
    prepared.map(|_| ()).map_err(|e| PartError::Weights(place.model.clone(), e))
}
