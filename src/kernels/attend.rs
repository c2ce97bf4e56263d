//! Attention by online softmax (arXiv:1805.02867, arXiv:2205.14135).
//!
//! Positions are taken in blocks of [`BLOCK`], counted from the first position attended to, so a
//! cut between runs changes nothing. For each block: scores, their largest against the largest so
//! far, a correction of what was summed, then the block's values. Scratch lies on the stack.

use half::f16;

use super::Table;
use super::float::{BLOCK, Softmax};

/// Floats of keys or values converted at a time: a block of 128 each.
const SCRATCH: usize = BLOCK * 128;

/// Longest head: one position has to fit the scratch.
pub const HEAD_DIM_MAX: usize = SCRATCH;

/// Query heads that share a pass over the keys and values.
const QUERIES: usize = 16;

/// Keys and values of consecutive positions of one head, each `[n, head_dim]`.
#[derive(Debug, Clone, Copy)]
pub enum KvRun<'a> {
    /// As computed.
    F32 {
        /// Keys.
        keys: &'a [f32],
        /// Values.
        values: &'a [f32],
    },
    /// As [`store_kv`](super::Kernels::store_kv) stores them.
    F16 {
        /// Keys.
        keys: &'a [f16],
        /// Values.
        values: &'a [f16],
    },
}

impl KvRun<'_> {
    /// Positions in the run, once its lengths are found to agree.
    fn positions(&self, head_dim: usize) -> usize {
        let (keys, values) = match self {
            KvRun::F32 { keys, values } => (keys.len(), values.len()),
            KvRun::F16 { keys, values } => (keys.len(), values.len()),
        };
        assert_eq!(keys, values);
        assert!(keys.is_multiple_of(head_dim));
        keys / head_dim
    }
}

#[derive(Clone, Copy)]
enum Part {
    Keys,
    Values,
}

/// What all queries of a call share.
struct Context<'a> {
    table: &'a Table,
    kv: &'a [KvRun<'a>],
    head_dim: usize,
    scale: f32,
    /// Positions in all runs.
    len: usize,
}

/// See [`super::Kernels::attend`].
pub(super) fn attend(
    table: &Table,
    q: &[f32],
    kv: &[KvRun<'_>],
    head_dim: usize,
    scale: f32,
    out: &mut [f32],
) {
    assert!(head_dim != 0);
    assert!(head_dim <= HEAD_DIM_MAX);
    assert!(q.len().is_multiple_of(head_dim));
    assert_eq!(q.len(), out.len());
    let len = kv.iter().map(|run| run.positions(head_dim)).sum();
    let context = Context { table, kv, head_dim, scale, len };
    let mut scratch = [0.0; SCRATCH];
    for (q, out) in q.chunks(QUERIES * head_dim).zip(out.chunks_mut(QUERIES * head_dim)) {
        context.attend(q, out, &mut scratch);
    }
}

impl Context<'_> {
    /// Attention for up to [`QUERIES`] queries.
    fn attend(&self, q: &[f32], out: &mut [f32], scratch: &mut [f32; SCRATCH]) {
        let mut scores = [[0.0; BLOCK]; QUERIES];
        let mut states = [Softmax::EMPTY; QUERIES];
        out.fill(0.0);
        for start in (0..self.len).step_by(BLOCK) {
            let end = self.len.min(start + BLOCK);
            self.score(q, start, end, &mut scores, scratch);
            self.weigh(start, end, &mut scores, &mut states, out, scratch);
        }
        if self.len > 0 {
            for (out, state) in out.chunks_exact_mut(self.head_dim).zip(&states) {
                out.iter_mut().for_each(|out| *out /= state.sum);
            }
        }
    }

    /// Scores of a block for each query; those past `end` are negative infinity.
    fn score(
        &self,
        q: &[f32],
        start: usize,
        end: usize,
        scores: &mut [[f32; BLOCK]; QUERIES],
        scratch: &mut [f32; SCRATCH],
    ) {
        self.for_pieces(Part::Keys, start, end, scratch, |at, keys| {
            for (q, scores) in q.chunks_exact(self.head_dim).zip(scores.iter_mut()) {
                let scores = &mut scores[at..at + keys.len() / self.head_dim];
                // SAFETY: a table comes from `for_isa` alone, which checked that this CPU has its
                // features.
                unsafe { (self.table.score)(q, keys, self.scale, scores) }
            }
        });
        for scores in scores {
            scores[end - start..].fill(f32::NEG_INFINITY);
        }
    }

    /// Turns a block's scores into weights and adds the values times their weights to `out`.
    fn weigh(
        &self,
        start: usize,
        end: usize,
        scores: &mut [[f32; BLOCK]; QUERIES],
        states: &mut [Softmax; QUERIES],
        out: &mut [f32],
        scratch: &mut [f32; SCRATCH],
    ) {
        let mut corrections = [1.0; QUERIES];
        let n_q = out.len() / self.head_dim;
        for i in 0..n_q {
            // SAFETY: a table comes from `for_isa` alone, which checked that this CPU has its
            // features.
            corrections[i] = unsafe { (self.table.soften)(&mut scores[i], &mut states[i]) };
        }
        self.for_pieces(Part::Values, start, end, scratch, |at, values| {
            for (i, out) in out.chunks_exact_mut(self.head_dim).enumerate() {
                let weights = &scores[i][at..at + values.len() / self.head_dim];
                // SAFETY: as above.
                unsafe { (self.table.weigh)(weights, values, corrections[i], out) }
                corrections[i] = 1.0;
            }
        });
    }

    /// Calls `f` with keys or values of the positions `start..end` as f32, in order, piece by piece,
    /// and with each piece's distance from `start`.
    fn for_pieces(
        &self,
        part: Part,
        start: usize,
        end: usize,
        scratch: &mut [f32; SCRATCH],
        mut f: impl FnMut(usize, &[f32]),
    ) {
        let mut run_start = 0;
        for run in self.kv {
            let run_end = run_start + run.positions(self.head_dim);
            let mut pos = start.max(run_start);
            while pos < end.min(run_end) {
                let n = (end.min(run_end) - pos).min(SCRATCH / self.head_dim);
                let from = (pos - run_start) * self.head_dim;
                f(pos - start, self.read(run, part, from, n * self.head_dim, scratch));
                pos += n;
            }
            run_start = run_end;
        }
    }

    /// `len` floats of a run from `from` on, converted into `scratch` if need be.
    fn read<'a>(
        &self,
        run: &KvRun<'a>,
        part: Part,
        from: usize,
        len: usize,
        scratch: &'a mut [f32; SCRATCH],
    ) -> &'a [f32] {
        let stored = match (*run, part) {
            (KvRun::F32 { keys, .. }, Part::Keys) => return &keys[from..][..len],
            (KvRun::F32 { values, .. }, Part::Values) => return &values[from..][..len],
            (KvRun::F16 { keys, .. }, Part::Keys) => keys,
            (KvRun::F16 { values, .. }, Part::Values) => values,
        };
        // SAFETY: a table comes from `for_isa` alone, which checked that this CPU has its features.
        unsafe { (self.table.widen)(&stored[from..][..len], &mut scratch[..len]) };
        &scratch[..len]
    }
}
