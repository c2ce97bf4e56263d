//! Stand-ins for the large model, which decides, and for the small one, which drafts.

use std::cell::Cell;
use std::rc::Rc;

use crate::channel::ChannelError;
use crate::engine::draft_node::session::{DraftModel, Read};
use crate::engine::draft_node::vocabulary::Vocabulary;
use crate::simulation::mix;
use crate::transport::Micros;

/// Tokens of both models.
pub(super) const VOCAB_LEN: u32 = 500;
/// Longest time for a token of a node that surely answers in time.
const QUICK_US: Micros = 50_000;
/// Most ids of a text that are read at a time.
const READ_MAX: usize = 16;

fn sum(ids: &[u32]) -> u64 {
    ids.iter().fold(77, |sum, id| mix(sum, u64::from(*id)))
}

/// The id that the large model chooses after `ids`.
pub(super) fn choice(ids: &[u32]) -> u32 {
    (sum(ids) % u64::from(VOCAB_LEN)) as u32
}

/// The id that the small model expects after `ids`: mostly the right one. `None` if it cannot say.
pub(super) fn draft(ids: &[u32]) -> Option<u32> {
    let sum = sum(ids);
    match mix(sum, 1) % 100 {
        0 => None,
        1..20 => Some((mix(sum, 2) % u64::from(VOCAB_LEN)) as u32),
        _ => Some(choice(ids)),
    }
}

/// The vocabulary of the large model, or another one of equal length.
pub(super) fn vocabulary(is_other: bool) -> Vocabulary {
    Vocabulary { len: VOCAB_LEN, hash: [u8::from(is_other); 32] }
}

/// The small model of a draft node.
pub(super) struct SmallModel {
    /// Whether its tokens are others, so that all of its drafts are useless.
    pub(super) is_other: bool,
    /// Number of streams that are free.
    n_free: Rc<Cell<usize>>,
    /// Time for each token.
    token_us: Micros,
    /// Time that was computed since this was last taken.
    pub(super) worked_us: Cell<Micros>,
}

/// A stream of the small model.
pub(super) struct SmallStream {
    ids: Vec<u32>,
    n_free: Rc<Cell<usize>>,
}

impl Drop for SmallStream {
    fn drop(&mut self) {
        self.n_free.set(self.n_free.get() + 1);
    }
}

impl SmallModel {
    pub(super) fn new(n_streams: usize, token_us: Micros, is_other: bool) -> SmallModel {
        let n_free = Rc::new(Cell::new(n_streams));
        SmallModel { is_other, n_free, token_us, worked_us: Cell::new(0) }
    }

    /// Whether a master can use it: its tokens are the same, and it answers pings while it reads.
    pub(super) fn is_useful(&self) -> bool {
        !self.is_other && self.token_us <= QUICK_US
    }
}

impl DraftModel for SmallModel {
    type Stream = SmallStream;

    fn stream(&self) -> Option<SmallStream> {
        self.n_free.set(self.n_free.get().checked_sub(1)?);
        Some(SmallStream { ids: Vec::new(), n_free: Rc::clone(&self.n_free) })
    }

    fn read(&self, stream: &mut SmallStream, ids: &[u32], _: bool) -> Result<Read, ChannelError> {
        let pairs = stream.ids.iter().zip(ids);
        let same = pairs.take_while(|(old, new)| old == new).count();
        // The last id is read again if nothing is new, because it gives the next one.
        let begin = same.min(ids.len() - 1);
        let end = ids.len().min(begin + READ_MAX);
        stream.ids.truncate(begin);
        stream.ids.extend_from_slice(&ids[begin..end]);
        self.worked_us.set(self.worked_us.get() + (end - begin) as u64 * self.token_us);
        match draft(&stream.ids) {
            _ if end < ids.len() => Ok(Read::Part),
            None => Ok(Read::Nothing),
            Some(id) if self.is_other => Ok(Read::Next((id + 1) % VOCAB_LEN)),
            Some(id) => Ok(Read::Next(id)),
        }
    }
}
