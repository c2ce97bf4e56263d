//! The buffers of a pass on a device.

use std::sync::Arc;

use super::device::Handle;
use super::error::GpuError;
use super::memory::{Memory, Place};
use super::states::rows_max;
use crate::format::model::{Header, Mixer, RecurrentLayers, Rope};
use crate::model::{Frequencies, Plan, Span, angles, growth};
use crate::quant::bcml1::BLOCK;

/// Buffers for the rows of a batch.
pub(super) struct Room {
    /// Residual stream, `[batch, dim]`.
    pub(super) x: Memory,
    /// f32 inputs of projections, `[batch, widest]`.
    pub(super) inputs: Memory,
    /// Quantised inputs, `[batch, widest]`, their scales and sums.
    pub(super) codes: Memory,
    pub(super) scales: Memory,
    pub(super) sums: Memory,
    pub(super) mix: MixRoom,
    /// Gate and up, `[batch, 2 * ffn_dim]`.
    pub(super) gate_up: Memory,
    /// Output of attention or of the feed-forward layer.
    pub(super) delta: Memory,
    pub(super) attention: AttentionRoom,
    pub(super) experts: ExpertRoom,
    /// Rows and logits on their way between host and device.
    pub(super) exchange: Memory,
    /// Values of each row that the host computes.
    pub(super) tables: Tables,
}

/// Buffers of attention and of recurrent layers, between a layer's norm and its output projection.
pub(super) struct MixRoom {
    /// Queries, keys and values; in a recurrent layer inputs of the convolution and gates; `[batch, width]`.
    pub(super) projected: Memory,
    /// Gates of attention's output, `[batch, width]`.
    pub(super) gates: Memory,
    /// Values that steer the updates of states, `[batch, controls]`.
    pub(super) controls: Memory,
    /// Outputs of the convolution, `[batch, channels]`.
    pub(super) convolved: Memory,
    /// Products of queries and keys, `[batch, key heads]`.
    pub(super) overlaps: Memory,
    /// Outputs of the recurrence, `[batch, width]`.
    pub(super) outputs: Memory,
}

/// Memory for attention of few rows in parts, see `shaders/attend_parts.comp`.
pub(super) struct AttentionRoom {
    pub(super) memory: Memory,
    /// Most rows.
    pub(super) rows: usize,
    /// Blocks of positions for each head of a row.
    pub(super) blocks: usize,
}

/// Buffers for mixtures; nearly empty in other models.
pub(super) struct ExpertRoom {
    /// Scores of all experts, `[batch, experts]`.
    pub(super) scores: Memory,
    /// The experts of each row, their weights, `[batch, active]`, and their outputs, `[batch, active, dim]`.
    pub(super) chosen: Memory,
    pub(super) weights: Memory,
    pub(super) outputs: Memory,
    /// Output of a shared expert, `[batch, dim]`, and its gate, `[batch]`.
    pub(super) shared: Memory,
    pub(super) shared_gates: Memory,
}

/// Values of each row of a batch that the host computes.
pub(super) struct Tables {
    memory: Memory,
    /// Each RoPE that layers use.
    ropes: Vec<Rope>,
    max_batch: usize,
    /// Half of the widest rotated part of a head.
    half: usize,
}

impl Room {
    pub(super) fn new(
        handle: &Arc<Handle>,
        header: &Header,
        plan: &Plan,
        classifies: bool,
    ) -> Result<Room, GpuError> {
        let sizes = Sizes::of(header, plan);
        let Sizes { rows, inputs, gate_up, uses, experts, shared } = sizes;
        let device = |words: u64| Memory::new(handle, 4 * words, Place::Device);
        let logits = if classifies { plan.max_logits * header.vocab_size } else { 0 };
        let exchange = (rows * header.dim as u64).max(logits as u64);
        Ok(Room {
            x: device(rows * header.dim as u64)?,
            inputs: device(inputs)?,
            codes: device(inputs / 4)?,
            scales: device(inputs / BLOCK as u64)?,
            sums: device(inputs / BLOCK as u64)?,
            mix: MixRoom::new(handle, header, plan)?,
            gate_up: device(gate_up)?,
            delta: device((rows * header.dim as u64).max(logits as u64))?,
            attention: AttentionRoom::new(handle, header, plan)?,
            experts: ExpertRoom {
                scores: device(rows * experts)?,
                chosen: device(uses)?,
                weights: device(uses)?,
                outputs: device(uses * header.dim as u64)?,
                shared: device(shared * header.dim as u64)?,
                shared_gates: device(shared)?,
            },
            exchange: Memory::new(handle, 4 * exchange, Place::Host)?,
            tables: Tables::new(handle, header, plan)?,
        })
    }

    /// Bytes of [`Room::new`], about.
    pub(super) fn bytes(header: &Header, plan: &Plan) -> u64 {
        let Sizes { rows, inputs, gate_up, uses, experts, shared } = Sizes::of(header, plan);
        let logits = plan.max_logits as u64 * header.vocab_size as u64;
        let dim = header.dim as u64;
        4 * (AttentionRoom::floats(header, plan)
            + 2 * inputs
            + MixRoom::floats(header, plan).iter().sum::<u64>()
            + gate_up
            + logits
            + rows * (experts + 4 * dim)
            + uses * (dim + 2)
            + shared * (dim + 1))
    }
}

impl MixRoom {
    fn new(handle: &Arc<Handle>, header: &Header, plan: &Plan) -> Result<MixRoom, GpuError> {
        let device = |words: u64| Memory::new(handle, 4 * words, Place::Device);
        let [projected, gates, controls, convolved, overlaps, outputs] =
            MixRoom::floats(header, plan);
        Ok(MixRoom {
            projected: device(projected)?,
            gates: device(gates)?,
            controls: device(controls)?,
            convolved: device(convolved)?,
            overlaps: device(overlaps)?,
            outputs: device(outputs)?,
        })
    }

    /// Numbers of values, in the order of the fields.
    fn floats(header: &Header, plan: &Plan) -> [u64; 6] {
        let rows = plan.max_batch as u64;
        let q_dim = (header.n_heads * header.head_dim) as u64;
        let qkv = q_dim + 2 * (header.n_kv_heads * header.head_dim) as u64;
        let gates = if header.features.output_gate { rows * q_dim } else { 0 };
        let Some(RecurrentLayers { mixer, .. }) = header.features.recurrent else {
            return [rows * qkv, gates, 0, 0, 0, 0];
        };
        let width = (mixer.in_rows(header.dim) + mixer.gate_rows()) as u64;
        let key_heads = match mixer {
            Mixer::DeltaRule(rule) => rule.key_heads,
            Mixer::ShortConv { .. } | Mixer::StateSpace(_) => 0,
        };
        let sizes = [mixer.channels(header.dim), key_heads, mixer.out_cols(header.dim)];
        let most = rows_max(plan) as u64;
        let [convolved, overlaps, outputs] = sizes.map(|size| most * size as u64);
        let controls = rows * mixer.n_controls() as u64;
        [rows * qkv.max(width), gates, controls, convolved, overlaps, outputs]
    }
}

/// Most rows whose attention is computed in parts.
const ATTENTION_ROWS: usize = 4;

impl AttentionRoom {
    fn new(handle: &Arc<Handle>, header: &Header, plan: &Plan) -> Result<AttentionRoom, GpuError> {
        let bytes = 4 * AttentionRoom::floats(header, plan);
        Ok(AttentionRoom {
            memory: Memory::new(handle, bytes, Place::Device)?,
            rows: ATTENTION_ROWS.min(plan.max_batch),
            blocks: AttentionRoom::blocks(plan),
        })
    }

    fn blocks(plan: &Plan) -> usize {
        plan.ctx_len.div_ceil(BLOCK)
    }

    fn floats(header: &Header, plan: &Plan) -> u64 {
        let lanes = (header.n_heads * ATTENTION_ROWS.min(plan.max_batch)) as u64;
        lanes * (AttentionRoom::blocks(plan) as u64 * (BLOCK + 2 + header.head_dim) as u64 + 1)
    }
}

/// Numbers of values in a room.
struct Sizes {
    /// Rows of a batch.
    rows: u64,
    inputs: u64,
    gate_up: u64,
    /// Pairs of a row and one of its experts.
    uses: u64,
    experts: u64,
    /// Rows of a shared expert.
    shared: u64,
}

impl Sizes {
    fn of(header: &Header, plan: &Plan) -> Sizes {
        let rows = plan.max_batch as u64;
        let (n_active, experts) =
            header.features.experts.map_or((0, 0), |of| (of.n_active as u64, of.n as u64));
        // A dense layer has one feed-forward part, a mixture one for each use.
        let uses = rows * n_active;
        let ffn = (header.ffn_dim_max() as u64 * rows).max(header.ffn_dim as u64 * uses);
        let mixer = header.features.recurrent.map(|recurrent| recurrent.mixer);
        let mixed = mixer.map_or(0, |mixer| mixer.out_cols(header.dim));
        let inputs = (rows * header.dim.max(header.q_dim_max()).max(mixed) as u64).max(ffn);
        let shared = header.features.more.parallel_ffn.map_or(0, |_| rows);
        Sizes { rows, inputs, gate_up: 2 * ffn, uses, experts, shared }
    }
}

impl Tables {
    fn new(handle: &Arc<Handle>, header: &Header, plan: &Plan) -> Result<Tables, GpuError> {
        let mut ropes: Vec<Rope> = Vec::new();
        for rope in header.layers().filter_map(|layer| layer.rope) {
            if !ropes.contains(&rope) {
                ropes.push(rope);
            }
        }
        let half = ropes.iter().map(|rope| rope.dim / 2).max().unwrap_or(0);
        let words = plan.max_batch * (3 + 2 * half * ropes.len());
        let memory = Memory::new(handle, 4 * words as u64, Place::Host)?;
        Ok(Tables { memory, ropes, max_batch: plan.max_batch, half })
    }

    /// Writes streams, positions, growths and angles of the rows of `spans`.
    pub(super) fn fill(&mut self, header: &Header, frequencies: &Frequencies, spans: &[Span]) {
        let Tables { memory, ropes, max_batch, half } = self;
        let rows = || {
            spans
                .iter()
                .flat_map(|span| (span.pos..span.pos + span.n_rows).map(move |pos| (span, pos)))
        };
        let (places, floats) = memory.as_mut_slice::<u32>().split_at_mut(2 * *max_batch);
        for (place, (span, pos)) in places.as_chunks_mut::<2>().0.iter_mut().zip(rows()) {
            *place = [span.stream as u32, pos as u32];
        }
        let floats: &mut [f32] = bytemuck::cast_slice_mut(floats);
        let (growths, tables) = floats.split_at_mut(*max_batch);
        // All layers that have a temperature have the same one.
        let temperature = header.layers().find_map(|layer| layer.temperature);
        for (place, (_, pos)) in growths.iter_mut().zip(rows()) {
            *place = temperature.map_or(1.0, |temperature| growth(temperature, pos));
        }
        let of_rope = (2 * *max_batch * *half).max(1);
        for (rope, table) in ropes.iter().zip(tables.chunks_exact_mut(of_rope)) {
            let (cosines, sines) = table.split_at_mut(*max_batch * *half);
            let half = rope.dim / 2;
            let out = cosines.chunks_exact_mut(half).zip(sines.chunks_exact_mut(half));
            for ((cosines, sines), (span, pos)) in out.zip(rows()) {
                let frequencies = frequencies.of(*rope, span.is_long);
                angles((frequencies, rope.magnitude), pos, cosines, sines);
            }
        }
    }

    /// Address of the rows' streams and positions.
    pub(super) fn rows(&self) -> u64 {
        self.memory.address
    }

    /// Address of the factors of the rows' queries.
    pub(super) fn growths(&self) -> u64 {
        self.memory.address + 8 * self.max_batch as u64
    }

    /// Addresses of the cosines and sines of `rope`.
    pub(super) fn angles(&self, rope: Rope) -> [u64; 2] {
        let index = self.ropes.iter().position(|known| *known == rope).unwrap_or(0) as u64;
        let table = 4 * (self.max_batch * self.half) as u64;
        let start = self.memory.address + 12 * self.max_batch as u64 + 2 * index * table;
        [start, start + table]
    }
}
