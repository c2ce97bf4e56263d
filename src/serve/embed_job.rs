//! Texts of one request whose vectors are wanted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

use crate::engine::{EmbedError, VectorForm};

/// Vectors of all texts of a job, or why there are none.
pub(super) type Vectors = Result<Vec<Vec<f32>>, EmbedError>;

/// Texts of one request.
pub(super) struct EmbedJob {
    pub(super) texts: Vec<Vec<u32>>,
    pub(super) form: VectorForm,
    pub(super) reply: Sender<Vectors>,
    pub(super) is_gone: Arc<AtomicBool>,
}

impl EmbedJob {
    /// Whether a client waits for the vectors.
    pub(super) fn is_wanted(&self) -> bool {
        !self.is_gone.load(Ordering::Relaxed)
    }
}
