//! Sizes of a team's gathers, and its prompts.

use std::ops::Range;

use crate::team::{Part, To};
use crate::transport::Micros;
use crate::wire::datagram::FRAME_MAX;
use crate::wire::frame::PART_AT;

/// Sizes and costs that stay the same during a run.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) seed: u64,
    pub(super) n_nodes: usize,
    /// Gathers of a pass, in order.
    pub(super) layers: Vec<Layer>,
    /// The gather of a token that is wanted, in the same pass if the team has the whole model.
    pub(super) head: Layer,
    pub(super) is_whole: bool,
    pub(super) max_batch: usize,
    pub(super) prompt: Vec<u32>,
    pub(super) n_predict: usize,
    /// Most that a node computes before it gathers.
    pub(super) layer_us: Micros,
    /// Frames that a link holds.
    pub(super) n_banks: usize,
    /// Whether batches go in halves, where links hold their parts.
    pub(super) has_halves: bool,
    pub(super) has_key: bool,
}

impl Shape {
    /// The halves of a batch of `n` rows, or the whole.
    pub(super) fn halves(&self, n: usize) -> Vec<Range<usize>> {
        let first = n.div_ceil(2);
        let longest = self.layers.iter().flat_map(|layer| &layer.parts);
        let longest = longest.map(|part| part.iter().map(Range::len).sum::<usize>()).max();
        let fits = longest.unwrap_or(0) * first <= self.n_banks * (FRAME_MAX - PART_AT);
        let end = if self.has_halves && fits && n > 1 { first } else { n };
        [0..end, end..n].into_iter().filter(|rows| !rows.is_empty()).collect()
    }
}

/// A team's answer to a prompt.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) tokens: Vec<u32>,
    /// Time of the run, from when all nodes were ready.
    pub(super) us: Micros,
}

/// Columns of each node, and the nodes that get them all.
#[derive(Clone, Debug)]
pub(super) struct Layer {
    pub(super) row_bytes: usize,
    pub(super) parts: Vec<Part>,
    pub(super) to: To,
}

impl Layer {
    /// Nodes have `bytes` each, which begin with two ranges side by side and end with others.
    pub(super) fn new(bytes: &[usize], to: To) -> Layer {
        let (mut end, mut parts) = (0, vec![vec![0..0; 2]; bytes.len()]);
        for half in 0..2 {
            for (part, bytes) in parts.iter_mut().zip(bytes) {
                let n = if half == 0 { bytes - bytes / 3 } else { bytes / 3 };
                part[half] = end..end + n;
                end += n;
            }
        }
        Layer { row_bytes: end, parts, to }
    }
}
