//! The buffers of a forward pass, carved from the arena in one place.

use half::f16;

use super::Share;
use super::inputs::Inputs;
use super::kv_kind::KvKind;
use super::next_buffers::NextBuffers;
use super::plan::{Plan, PlanError};
use super::recurrent_buffers::RecurrentBuffers;
use super::routes::Routes;
use super::state::StateShape;
use super::team::{Columns, Team};
use crate::arena::{Carver, Exhausted};
use crate::format::model::Header;
use crate::kernels::KvLine;

/// Keys and values in pages, `[page, layer, K or V, kv_head, page_len, head_dim]`, or int8 blocks in place of
/// the last two dimensions. Pages of layers without a window come first, then those of layers with a window.
pub(super) enum KvValues<'a> {
    F16(&'a mut [f16]),
    F32(&'a mut [f32]),
    Int8(&'a mut [KvLine]),
}

/// Values of each row beside those that layers compute.
pub(super) struct RowTables<'a> {
    /// RoPE cosines and sines of all kinds of layers, `[batch, angles_max]` each.
    pub(super) angles: [&'a mut [f32]; 2],
    /// Inputs of all layers, `[batch, layer_inputs]`, and behind them room for one row; empty if there are none.
    pub(super) layer_inputs: &'a mut [f32],
    pub(super) next: NextBuffers<'a>,
}

/// Everything a forward pass writes.
pub(super) struct Buffers<'a> {
    /// Residual stream, `[batch, dim]`.
    pub(super) x: &'a mut [f32],
    /// Queries, keys, values and gates of each row side by side, `[batch, qkv_dim_max + gate_dim]`.
    pub(super) qkv: &'a mut [f32],
    /// Gate and up projection side by side, `[batch, 2 * ffn_dim]`, with room for at least one row of each
    /// active expert.
    pub(super) gate_up: &'a mut [f32],
    /// Output of attention or of the feed-forward layer, to be added to `x`, `[batch, dim]`.
    pub(super) delta: &'a mut [f32],
    pub(super) inputs: Inputs<'a>,
    pub(super) routes: Routes<'a>,
    pub(super) tables: RowTables<'a>,
    /// `[max_logits, vocab_size]`; empty if the share has no classifier.
    pub(super) logits: &'a mut [f32],
    /// This node's columns of the rows to gather; empty if there is no team.
    pub(super) part: &'a mut [f32],
    /// Gathered inputs of output and down projections, or gathered rows in f16 to add to `x`; empty if there
    /// is no team.
    pub(super) acts: &'a mut [f32],
    pub(super) recurrent: RecurrentBuffers<'a>,
    pub(super) kv: KvValues<'a>,
}

impl Plan {
    /// Bytes of all buffers and of the KV cache for a share of a model.
    ///
    /// # Errors
    /// If `self` does not fit the model.
    pub fn bytes(&self, header: &Header, share: &Share) -> Result<usize, PlanError> {
        self.team_bytes(header, share, None)
    }

    /// Bytes of the buffers of a team's node; of a node without a team if `team` is `None`.
    pub(super) fn team_bytes(
        &self,
        header: &Header,
        share: &Share,
        team: Option<&Team>,
    ) -> Result<usize, PlanError> {
        self.check(header)?;
        let mut carver = Carver::counting();
        match Buffers::carve((header, share, team), self, &mut carver) {
            Ok(_) if carver.used() <= isize::MAX as usize => Ok(carver.used()),
            _ => Err(PlanError::TooLarge),
        }
    }
}

/// Number of values in [`Buffers::part`] and [`Buffers::acts`].
fn team_values(header: &Header, team: &Team, plan: &Plan, logits: usize) -> [usize; 2] {
    let active = header.features.experts.map_or(0, |experts| experts.n_active);
    let width = |columns| team.width(columns);
    let of_rows = [
        width(Columns::Heads),
        width(Columns::Dim),
        width(Columns::Ffn).saturating_mul(active.max(1)),
        width(Columns::DenseFfn),
        width(Columns::Mix),
        width(Columns::FullHeads),
    ];
    // At least 1, because an empty buffer means that there is no team.
    let widest = of_rows.into_iter().max().unwrap_or(0).max(1);
    let part = plan.max_batch.saturating_mul(widest);
    let part = part.max(logits.saturating_mul(width(Columns::Vocab)));
    let of_experts = team.row_len(Columns::Ffn).saturating_mul(active.max(1));
    let others = [Columns::Heads, Columns::FullHeads, Columns::DenseFfn, Columns::Mix];
    let inputs = others.into_iter().fold(of_experts, |most, of| most.max(team.row_len(of)));
    let acts = inputs.max(header.dim.div_ceil(2));
    [part, plan.max_batch.saturating_mul(acts)]
}

/// Width of a row of [`Buffers::gate_up`].
fn gate_up_dim(header: &Header) -> usize {
    (2 * header.ffn_dim_max()).max(header.features.more.layer_input_dim)
}

impl<'a> RowTables<'a> {
    fn carve(
        (header, share): (&Header, &Share),
        plan: &Plan,
        carver: &mut Carver<'a>,
    ) -> Result<RowTables<'a>, Exhausted> {
        let max_batch = plan.max_batch;
        let pairs = max_batch.saturating_mul(header.angles_max());
        let inputs = max_batch.saturating_add(1).saturating_mul(header.layer_inputs());
        Ok(RowTables {
            angles: [carver.take("cos", pairs)?, carver.take("sin", pairs)?],
            layer_inputs: carver.take("layers' inputs", inputs)?,
            next: NextBuffers::carve(header, share, plan, carver)?,
        })
    }
}

impl<'a> Buffers<'a> {
    /// Takes every buffer that `plan` asks for, always in the same order: the next call finds the KV cache at
    /// the same place.
    pub(super) fn carve(
        (header, share, team): (&Header, &Share, Option<&Team>),
        plan: &Plan,
        carver: &mut Carver<'a>,
    ) -> Result<Buffers<'a>, Exhausted> {
        let rows = |width: usize| plan.max_batch.saturating_mul(width);
        let own = team.map_or(header, Team::narrow);
        // A batch of one row uses all of its experts at once.
        let n_active = header.features.experts.map_or(0, |experts| experts.n_active);
        let rows_or_experts = plan.max_batch.max(n_active);
        let logits = if share.has_ends { plan.max_logits } else { 0 };
        let kv_units = plan.kv_units(own, share.layers.clone());
        let state = StateShape::new(header, share.layers.clone(), (plan, team.map(Team::own)));
        let [part, acts] = team.map_or([0; 2], |team| team_values(header, team, plan, logits));
        Ok(Buffers {
            x: carver.take("x", rows(header.dim))?,
            qkv: carver.take("qkv", rows(own.qkv_dim_max() + own.gate_dim()))?,
            gate_up: carver.take("gate_up", rows_or_experts.saturating_mul(gate_up_dim(own)))?,
            delta: carver.take("delta", rows(header.dim))?,
            inputs: Inputs::carve(header, rows_or_experts, carver)?,
            routes: Routes::carve(header, plan.max_batch, carver)?,
            tables: RowTables::carve((header, share), plan, carver)?,
            logits: carver.take("logits", logits.saturating_mul(header.vocab_size))?,
            part: carver.take("a node's part", part)?,
            acts: carver.take("gathered inputs", acts)?,
            recurrent: RecurrentBuffers::carve(state, plan.max_batch, carver)?,
            kv: match plan.kv {
                KvKind::F16 => KvValues::F16(carver.take("KV cache", kv_units)?),
                KvKind::F32 => KvValues::F32(carver.take("KV cache", kv_units)?),
                KvKind::Int8 => KvValues::Int8(carver.take("KV cache", kv_units)?),
            },
        })
    }

    /// The buffers from row `first` of the batch on; `max_batch` is their number of rows. Experts chosen for
    /// rows from `first` on are kept apart from those of earlier rows.
    pub(super) fn after(&mut self, first: usize, max_batch: usize) -> Buffers<'_> {
        fn rest<T>(all: &mut [T], first: usize, n: usize) -> &mut [T] {
            let width = all.len() / n;
            &mut all[first * width..]
        }
        let Buffers { x, qkv, gate_up, delta, inputs, routes, tables, logits, part, acts, .. } =
            self;
        let Buffers { recurrent, kv, .. } = self;
        let RowTables { angles: [cos, sin], layer_inputs, next } = tables;
        Buffers {
            x: rest(x, first, max_batch),
            qkv,
            gate_up,
            delta: rest(delta, first, max_batch),
            inputs: inputs.whole(),
            routes: Routes {
                scores: rest(routes.scores, first, max_batch),
                chosen: rest(routes.chosen, first, max_batch),
                places: rest(routes.places, first, max_batch),
                rows: rest(routes.rows, first, max_batch),
                ends: rest(routes.ends, usize::from(first > 0), 2),
                outputs: routes.outputs,
                beside: routes.beside,
            },
            tables: RowTables {
                angles: [rest(cos, first, max_batch), rest(sin, first, max_batch)],
                // A batch of models that have these is not computed in halves.
                layer_inputs,
                next: next.whole(),
            },
            logits,
            part,
            acts: rest(acts, first, max_batch),
            recurrent: recurrent.whole(),
            kv: match kv {
                KvValues::F16(kv) => KvValues::F16(kv),
                KvValues::F32(kv) => KvValues::F32(kv),
                KvValues::Int8(kv) => KvValues::Int8(kv),
            },
        }
    }
}
