//! Downloads of models: from Hugging Face's hub ([`hub`]) and from Ollama's registry ([`registry`]).
//!
//! A thread of its own downloads. The caller's thread shows progress, and may leave at any time: what has arrived stays
//! on the disk, and the next download goes on from there.

mod client;
mod disk;
mod hub;
mod pieces;
mod proxy;
mod registry;
mod shared;
mod transfer;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;

use super::choice::MachineRoom;
use super::error::StoreError;
use super::name::ModelName;
use shared::{Shared, TELL_PERIOD};

pub(crate) use shared::PullEvent;

/// Fetches the model that `name` names, into the folder of the program that it is named after. If a repository has several
/// models and `name` names none of them, the one that suits `room` best is fetched.
///
/// `tell` is called ten times a second, and ends the download by [`ControlFlow::Break`].
///
/// # Errors
/// The reason in one sentence. What has arrived is kept for the next call.
pub(crate) fn pull(
    name: &ModelName,
    room: MachineRoom,
    tell: &mut dyn FnMut(PullEvent<'_>) -> ControlFlow<()>,
) -> Result<(), StoreError> {
    let shared = Arc::new(Shared::default());
    let (sender, result) = channel();
    let (name, own) = (name.clone(), Arc::clone(&shared));
    let fetch = move || {
        let pulled = match &name {
            ModelName::Hub(name) => hub::pull(name, &room, &own),
            ModelName::Ollama(name) => registry::pull(name, &own),
        };
        // Sending fails if the caller has left, which is no failure.
        let _ = sender.send(pulled);
    };
    let thread = thread::Builder::new().name("pull".to_owned());
    thread.spawn(fetch).map_err(|e| StoreError::Runtime(format!("no thread can start: {e}")))?;
    loop {
        let pulled = result.recv_timeout(TELL_PERIOD);
        if shared.tell(tell).is_break() {
            shared.is_ended.store(true, Ordering::Relaxed);
            return Err(StoreError::Interrupted);
        }
        match pulled {
            Ok(pulled) => return pulled,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(StoreError::Runtime("the download's thread ended".to_owned()));
            }
        }
    }
}
