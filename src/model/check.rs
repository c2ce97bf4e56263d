//! Compares each tensor's bytes with its checksum, to find out whether the weights are those that were
//! exported.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::view::Model;
use crate::format::model::TensorId;
use crate::pool::Pool;

/// Number of tensors per thread between two polls for an interrupt.
const TENSORS_PER_THREAD: usize = 4;

/// Why the weights of a model cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CheckError {
    /// A tensor's bytes are not those that were exported.
    Damaged {
        /// The damaged tensor.
        tensor: TensorId,
    },
    /// The caller ended the work.
    Interrupted,
}

impl fmt::Display for CheckError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CheckError::Damaged { tensor } => {
                write!(f, "the file is damaged: the checksum of {tensor} does not match its bytes")
            }
            CheckError::Interrupted => write!(f, "interrupted while comparing checksums"),
        }
    }
}

impl std::error::Error for CheckError {}

impl Model {
    /// Compares the share's tensors with their checksums, on all threads of `pool`. Skips those in `known`
    /// and those compared before. Polls `is_interrupted`. Afterwards the whole share counts as compared.
    pub(super) fn check(
        &self,
        known: &[TensorId],
        pool: &Pool,
        is_interrupted: &dyn Fn() -> bool,
    ) -> Result<(), CheckError> {
        let ids = self.header().tensors().map(|tensor| tensor.id);
        let is_open = |id: &TensorId| self.share().holds(*id) && self.file().is_unchecked(*id);
        let ids: Vec<_> = ids.filter(is_open).filter(|id| !known.contains(id)).collect();
        for ids in ids.chunks(TENSORS_PER_THREAD * pool.threads()) {
            if is_interrupted() {
                return Err(CheckError::Interrupted);
            }
            let damaged = AtomicUsize::new(usize::MAX);
            pool.run(ids.len(), &|index| {
                if self.check_tensor(ids[index]).is_err() {
                    damaged.fetch_min(index, Ordering::Relaxed);
                }
            });
            if let Some(tensor) = ids.get(damaged.into_inner()) {
                return Err(CheckError::Damaged { tensor: *tensor });
            }
        }
        self.file().set_checked(self.share());
        Ok(())
    }

    /// Checksum of a tensor's bytes, which equals the stored one if there is one.
    pub(super) fn check_tensor(&self, tensor: TensorId) -> Result<u32, CheckError> {
        let crc = crc32fast::hash(self.tensor_bytes(tensor));
        match self.file().checksum(tensor) {
            Some(stored) if stored != crc => Err(CheckError::Damaged { tensor }),
            _ => Ok(crc),
        }
    }
}
