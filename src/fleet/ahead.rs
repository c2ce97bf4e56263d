//! Packs layers before a board gets them, while it computes with others.

use super::interrupt::is_interrupted;
use crate::engine::{Engine, Huge, Isa, Listener, Options, WeightsPlace};
use crate::model::{Model, Share};
use crate::sys::cpu;

/// Packs the weights of `share` from the model file of `place` for these kernels, on the caller's thread and
/// at the lowest priority. Weights that are packed in memory at each start are left alone.
///
/// # Errors
/// The reason why they are not packed. They are packed when the board gets the layers, which reports the reason.
pub(crate) fn pack(share: Share, place: &WeightsPlace, isa: Option<Isa>) -> Result<(), String> {
    let Some(path) = place.model.as_deref() else { return Ok(()) };
    cpu::give_way();
    let model = Model::open_part(path).map_err(|e| e.to_string())?;
    let model = model.with_share(share).map_err(|e| e.to_string())?;
    let one =
        Options { ctx_len: Some(1), batch: Some(1), threads: Some(1), isa, ..Options::default() };
    let mut engine = Engine::new(model.into(), &one).map_err(|e| e.to_string())?;
    let place = WeightsPlace { huge: Huge::Off, ..place.clone() };
    if engine.cache_file(&place).is_none() {
        return Ok(());
    }
    let listener = Listener { tell: &|_| {}, is_interrupted: &is_interrupted };
    engine.prepare(&place, listener).map(|_| ()).map_err(|e| e.to_string())
}
