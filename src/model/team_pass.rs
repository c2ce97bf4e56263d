//! The forward pass of a node of a team: all nodes exchange their results four times per layer, once more where a
//! mixture has a shared expert, and twice more where it has a feed-forward layer with norms beside it.
//!
//! A long batch is computed as two halves in turn: while one half's rows are sent, the other half is
//! computed. Models with layers beside mixtures or with inputs of each layer compute it as a whole.

use super::batch::ForwardError;
use super::buffers::Buffers;
use super::gather::{Gather, SpreadRows};
use super::pass::{Ffn, Pass};
use super::project::Source;
use super::team::{Columns, Team};
use crate::format::model::{MoreFeatures, TensorKind};
use crate::kernels::MatrixDims;
use crate::pool::TILE_ROWS;

/// Smallest batch that is split in two halves. A split batch reads the weights twice.
const CUT_MIN: usize = 160;
/// Smallest half of a split batch.
const HALF_MIN: usize = 64;

/// Steps of a layer; a gather follows each.
const STEPS: [Step; 6] =
    [Step::Attend, Step::Output, Step::Beside, Step::BesideDown, Step::Gate, Step::Down];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Computes queries, keys, values and attention; in a recurrent layer all up to the output projection's inputs.
    Attend,
    /// Computes the output projection of attention, or of a recurrent layer.
    Output,
    /// Computes gate and up of the feed-forward layer beside a mixture that has one.
    Beside,
    /// Computes down of such a layer if it has norms, which take whole rows.
    BesideDown,
    /// Computes gate and up.
    Gate,
    /// Computes down.
    Down,
}

/// Some rows of a batch, and the kind and number of their rows to gather.
struct Half<'a> {
    pass: Pass<'a>,
    gathered: Option<(Columns, usize)>,
}

/// Two halves of some rows of a batch, or all these rows as the only element.
struct Halves<'a> {
    all: heapless::Vec<Half<'a>, 2>,
    team: &'a Team,
    /// Maximum number of rows of a batch.
    max_batch: usize,
}

/// Computes the share's layers on `x`, on a node of `team`.
pub(super) fn layers_in_team(
    pass: &Pass<'_>,
    team: &Team,
    buffers: &mut Buffers<'_>,
    gather: &mut dyn Gather,
) -> Result<(), ForwardError> {
    let header = pass.model.header();
    let MoreFeatures { parallel_ffn, layer_input_dim, .. } = header.features.more;
    let is_whole = parallel_ffn.is_some() || layer_input_dim > 0;
    let start_max = if is_whole { 0 } else { gather.start_max() };
    let half_max = start_max / team.part_bytes_max().max(1) / TILE_ROWS * TILE_ROWS;
    let max_batch = buffers.x.len() / pass.model.header().dim;
    let mut first = 0;
    for rows in cut(pass.m, half_max, team.n_nodes()) {
        let mut halves = Halves { all: heapless::Vec::new(), team, max_batch };
        for n in rows.into_iter().filter(|n| *n > 0) {
            // There are at most two halves.
            let _ = halves.all.push(Half { pass: pass.of_rows(first..first + n), gathered: None });
            first += n;
        }
        halves.run(pass, buffers, gather)?;
    }
    Ok(())
}

/// Splits a batch of `m` rows into pairs of halves of up to `half_max` rows. One pair after the other goes
/// through the layers. All nodes split alike. A batch stays whole if it or its halves would be too short.
fn cut(m: usize, half_max: usize, n_nodes: usize) -> impl Iterator<Item = [usize; 2]> {
    let is_cut = n_nodes > 1 && half_max >= HALF_MIN && m >= CUT_MIN;
    let n_pairs = if is_cut { m.div_ceil(half_max.saturating_mul(2)) } else { 1 };
    let of_half = |rows: usize| rows.div_ceil(2).next_multiple_of(TILE_ROWS).min(rows);
    let each = if is_cut { 2 * of_half(m.div_ceil(n_pairs)) } else { m };
    (0..n_pairs).map(move |pair| {
        let rows = each.min(m.saturating_sub(pair * each));
        let first = if is_cut { of_half(rows) } else { rows };
        [first, rows - first]
    })
}

impl Halves<'_> {
    /// Computes the layers of `pass`, which is that of the whole batch, on the halves.
    fn run(
        &mut self,
        pass: &Pass<'_>,
        buffers: &mut Buffers<'_>,
        gather: &mut dyn Gather,
    ) -> Result<(), ForwardError> {
        let mut filled = 0;
        for layer in pass.model.share().layers.clone() {
            pass.turn(layer, &mut filled, buffers);
            for step in STEPS {
                let is_there = match step {
                    Step::Beside => has_beside(pass, layer),
                    Step::BesideDown => pass.has_norm_beside(layer),
                    _ => true,
                };
                if !is_there {
                    continue;
                }
                for index in 0..self.all.len() {
                    self.finish(index, buffers, gather)?;
                    self.take(index, (layer, step), buffers);
                    self.start(index, buffers, gather)?;
                }
            }
        }
        let Some(last) = pass.model.share().layers.clone().last() else { return Ok(()) };
        for index in 0..self.all.len() {
            self.finish(index, buffers, gather)?;
            let pass = &self.all[index].pass;
            let buffers = &mut buffers.after(pass.first, self.max_batch);
            add_feed_forward(pass, self.team, last, buffers);
        }
        Ok(())
    }

    /// Waits for the gather of a half, if there is one.
    fn finish(
        &mut self,
        index: usize,
        buffers: &mut Buffers<'_>,
        gather: &mut dyn Gather,
    ) -> Result<(), ForwardError> {
        if self.all[index].gathered.is_none() {
            return Ok(());
        }
        let mut rows = self.spread(buffers);
        // The oldest rows come first.
        if index > 0 {
            rows.reverse();
        }
        match self.all.len() {
            1 => rows.pop().map_or(Ok(()), |rows| gather.gather(rows))?,
            _ => gather.finish(&mut rows)?,
        }
        drop(rows);
        self.all[index].gathered = None;
        Ok(())
    }

    /// Computes one step of a half, and puts this node's part into the buffer to gather.
    fn take(&mut self, index: usize, at: (usize, Step), buffers: &mut Buffers<'_>) {
        let Half { pass, gathered } = &mut self.all[index];
        let buffers = &mut buffers.after(pass.first, self.max_batch);
        let columns = compute(pass, self.team, at, buffers);
        let m = match columns {
            Columns::Ffn => pass.mixture(at.0).map_or(pass.m, |mixture| mixture.n_uses()),
            _ => pass.m,
        };
        let Buffers { part, delta, acts, .. } = buffers;
        match columns {
            Columns::Dim => self.team.put_added(m, part, delta, acts),
            _ => self.team.put_inputs((columns, m), (pass.kernels, pass.pool), part, acts),
        }
        *gathered = Some((columns, m));
    }

    /// Starts the gather of a half. If there is only one, does nothing: there is nothing to compute during
    /// the gather.
    fn start(
        &self,
        index: usize,
        buffers: &mut Buffers<'_>,
        gather: &mut dyn Gather,
    ) -> Result<(), ForwardError> {
        if self.all.len() == 1 {
            return Ok(());
        }
        let mut rows = self.spread(buffers);
        if index == 0 {
            rows.reverse();
        }
        gather.start(&mut rows)
    }

    /// The rows to gather, of all halves.
    fn spread<'b>(&'b self, buffers: &'b mut Buffers<'_>) -> heapless::Vec<SpreadRows<'b>, 2> {
        let Buffers { delta, acts, .. } = buffers;
        let (mut delta, mut acts) = (&mut **delta, &mut **acts);
        let (dim, of_acts) = (delta.len() / self.max_batch, acts.len() / self.max_batch);
        let first = self.all.first().map_or(0, |half| half.pass.first);
        (delta, acts) = (&mut delta[first * dim..], &mut acts[first * of_acts..]);
        let halves = self.all.iter().filter_map(|Half { pass, gathered }| {
            let (own_delta, rest) = std::mem::take(&mut delta).split_at_mut(pass.m * dim);
            delta = rest;
            let (own_acts, rest) = std::mem::take(&mut acts).split_at_mut(pass.m * of_acts);
            acts = rest;
            gathered.map(|of| self.team.gathered(of, [own_delta, own_acts]))
        });
        halves.collect()
    }
}

/// Computes one step of a layer, up to this node's part of the next gather. Returns the kind of columns to
/// gather.
fn compute(
    pass: &Pass<'_>,
    team: &Team,
    (layer, step): (usize, Step),
    buffers: &mut Buffers<'_>,
) -> Columns {
    let header = pass.model.header();
    let states = pass.positions.states.filter(|_| header.mixer(layer).is_some());
    match step {
        Step::Attend => {
            if layer > pass.model.share().layers.start {
                add_feed_forward(pass, team, layer - 1, buffers);
            }
            if let Some(states) = states {
                pass.project_mix(layer, states.shape, buffers);
                pass.advance(layer, states, buffers);
                pass.end_parts(layer, states.shape, buffers);
                return Columns::Mix;
            }
            pass.attend(layer, buffers);
            of_heads(pass, layer)
        }
        Step::Output => {
            if let Some(states) = states {
                pass.normalise_mixed(layer, states.shape, buffers);
                let k = states.shape.parts.whole().out_cols(header.dim);
                let of = (Columns::Mix, TensorKind::MixOut, k);
                project_given(pass, team, layer, of, buffers);
                return Columns::Dim;
            }
            let [_, _, _, wo] = pass.attention_kinds(layer);
            let of = (of_heads(pass, layer), wo, pass.q_dim(layer));
            project_given(pass, team, layer, of, buffers);
            Columns::Dim
        }
        Step::Beside => {
            add_attention(pass, team, layer, buffers);
            pass.gate(layer, buffers);
            Columns::DenseFfn
        }
        Step::BesideDown => {
            project_down(pass, team, layer, buffers);
            Columns::Dim
        }
        Step::Gate => gate(pass, team, layer, buffers),
        Step::Down => {
            match pass.mixture(layer) {
                Some(mixture) => {
                    mixture.down_in_team(team, buffers);
                    if !pass.has_norm_beside(layer) {
                        pass.add_shared(buffers);
                    }
                }
                None => project_down(pass, team, layer, buffers),
            }
            Columns::Dim
        }
    }
}

/// Computes gate and up of a dense layer or of experts. Adds attention's output first, unless the layer beside the
/// mixture was computed from the sum; its output is kept then.
fn gate(pass: &Pass<'_>, team: &Team, layer: usize, buffers: &mut Buffers<'_>) -> Columns {
    match has_beside(pass, layer) {
        true if pass.has_norm_beside(layer) => {
            team.take_added(pass.m, buffers.delta, buffers.acts);
            pass.normalise_beside(layer, buffers);
        }
        true => {
            project_down(pass, team, layer, buffers);
            pass.gate_shared(layer, buffers);
        }
        false => add_attention(pass, team, layer, buffers),
    }
    let Some(mixture) = pass.mixture(layer) else {
        pass.gate(layer, buffers);
        return pass.ffn(layer).columns;
    };
    mixture.gate(buffers);
    Columns::Ffn
}

/// Columns of attention's output in `layer`.
fn of_heads(pass: &Pass<'_>, layer: usize) -> Columns {
    if pass.spec(layer).has_full_heads { Columns::FullHeads } else { Columns::Heads }
}

/// Whether `layer` is a mixture with a feed-forward layer beside it.
fn has_beside(pass: &Pass<'_>, layer: usize) -> bool {
    let header = pass.model.header();
    header.features.more.parallel_ffn.is_some() && !header.is_dense(layer)
}

fn add_attention(pass: &Pass<'_>, team: &Team, layer: usize, buffers: &mut Buffers<'_>) {
    team.take_added(pass.m, buffers.delta, buffers.acts);
    pass.add_attention(layer, buffers);
}

fn add_feed_forward(pass: &Pass<'_>, team: &Team, layer: usize, buffers: &mut Buffers<'_>) {
    team.take_added(pass.m, buffers.delta, buffers.acts);
    if has_beside(pass, layer) && pass.has_norm_beside(layer) {
        pass.add_beside(layer, buffers);
    }
    pass.add_feed_forward(layer, buffers);
    pass.add_layer_input(layer, buffers);
    pass.scale_layer(layer, buffers);
}

/// Multiplies down of a dense layer or of a shared expert by its gathered inputs, and writes the result to `part`.
fn project_down(pass: &Pass<'_>, team: &Team, layer: usize, buffers: &mut Buffers<'_>) {
    let Ffn { columns, down, width, .. } = pass.ffn(layer);
    project_given(pass, team, layer, (columns, down, width), buffers);
}

/// Multiplies the matrix of `kind` by its gathered inputs, and writes the result to `part`.
fn project_given(
    pass: &Pass<'_>,
    team: &Team,
    layer: usize,
    (columns, kind, k): (Columns, TensorKind, usize),
    buffers: &mut Buffers<'_>,
) {
    let Buffers { part, acts, inputs, .. } = buffers;
    let (projector, matrix) = (pass.projector(), pass.rows(kind, layer));
    let source = Source::Given(team.given(columns, acts));
    let inputs = projector.prepare_from(source, inputs, MatrixDims { rows: pass.m, k }, &matrix);
    projector.project(inputs, &[matrix], part);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_long_enough_and_not_too_long() {
        let pairs = |m, half_max| cut(m, half_max, 2).collect::<Vec<_>>();
        assert_eq!(pairs(1, usize::MAX), [[1, 0]]);
        assert_eq!(pairs(159, 512), [[159, 0]]);
        assert_eq!(pairs(160, 512), [[96, 64]]);
        assert_eq!(pairs(482, 512), [[256, 226]]);
        assert_eq!(pairs(512, 256), [[256, 256]]);
        assert_eq!(pairs(512, 224), [[128, 128], [128, 128]]);
        assert_eq!(pairs(512, 32), [[512, 0]]);
        for (m, half_max) in (1..2_000).flat_map(|m| [64, 96, 480].map(|half_max| (m, half_max))) {
            let halves = pairs(m, half_max).concat();
            assert_eq!(halves.iter().sum::<usize>(), m);
            assert!(m < CUT_MIN || halves.iter().all(|half| *half <= half_max), "{m}: {halves:?}");
        }
        assert_eq!(cut(512, 256, 1).collect::<Vec<_>>(), [[512, 0]], "there is no other node");
    }
}
