//! A mixture of experts on a device, in the order of `model/mixture.rs`.

use bytemuck::{Pod, Zeroable};

use super::error::GpuError;
use super::pipelines::{Pipelines, Shader};
use super::record::{On, Uses};
use super::tensors::Tensor;
use super::vectors::Vectors;
use crate::format::model::{Activation, Experts, TensorKind};

/// The experts of a layer. Its router is among the layer's vectors.
pub(super) struct Mixture {
    pub(super) experts: Experts,
    /// Gates, ups and downs of all experts, one below the other.
    pub(super) tensors: [Tensor; 3],
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct ChoosePush {
    scores: u64,
    chosen: u64,
    weights: u64,
    /// Biases of router and choice, and scales.
    vectors: [u64; 3],
    m: u32,
    n: u32,
    active: u32,
    features: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct MixPush {
    outputs: u64,
    weights: u64,
    y: u64,
    dim: u32,
    active: u32,
}

/// Bits of [`ChoosePush::features`].
const SIGMOID: u32 = 8;
const NORMALISED: u32 = 16;

impl Mixture {
    /// Makes the pipelines that the mixture needs.
    ///
    /// # Errors
    /// If the driver fails.
    pub(super) fn prepare(&self, pipelines: &mut Pipelines) -> Result<(), GpuError> {
        let own = [
            Shader::ProductF32 { by_expert: false },
            Shader::Choose,
            Shader::Mix,
            Shader::Add { by_expert: true },
        ];
        own.into_iter().try_for_each(|shader| pipelines.prepare(shader).map(|_| ()))?;
        self.tensors.iter().try_for_each(|tensor| tensor.prepare(pipelines, true))
    }

    /// Records the mixture's work on the normalised rows in `room.inputs`, and writes its output to `room.delta`.
    pub(super) fn record(&self, on: &mut On<'_, '_>, vectors: &Vectors, activation: Activation) {
        let (room, Experts { n, n_active, .. }) = (on.room, self.experts);
        let [gates, ups, downs] = &self.tensors;
        let (ffn_dim, dim) = (gates.rows / n, downs.rows / n);
        self.choose(on, vectors, dim);
        let chosen = room.experts.chosen.address;
        let n_uses = on.m * n_active;
        let of_gates = Uses { chosen, n: n_uses, share: n_active, rows: ffn_dim };
        on.project_uses(&[gates, ups], room.gate_up.address, of_gates);
        for (kind, column) in [(TensorKind::B1, 0), (TensorKind::B3, ffn_dim)] {
            if let Some(bias) = vectors.get(kind) {
                let places = [ffn_dim, 2 * ffn_dim, column];
                on.add_of_experts((room.gate_up.address, bias), places, of_gates);
            }
        }
        on.activate(activation, ffn_dim, n_uses);
        let of_downs = Uses { share: 1, rows: dim, ..of_gates };
        on.project_uses(&[downs], room.experts.outputs.address, of_downs);
        if let Some(bias) = vectors.get(TensorKind::B2) {
            on.add_of_experts((room.experts.outputs.address, bias), [dim, dim, 0], of_downs);
        }
        let push = MixPush {
            outputs: room.experts.outputs.address,
            weights: room.experts.weights.address,
            y: room.delta.address,
            dim: dim as u32,
            active: n_active as u32,
        };
        on.recorder.dispatch(Shader::Mix, &push, [dim.div_ceil(64), on.m]);
    }

    /// Chooses the experts of the rows.
    fn choose(&self, on: &mut On<'_, '_>, vectors: &Vectors, dim: usize) {
        let (room, experts) = (on.room, self.experts);
        let router = vectors.get(TensorKind::Router).unwrap_or(0);
        on.project_f32((router, [experts.n, dim]), room.experts.scores.address);
        let kinds = [TensorKind::RouterBias, TensorKind::ChoiceBias, TensorKind::ExpertScale];
        let found = kinds.map(|kind| vectors.get(kind));
        let of_vectors = (0..).zip(&found).map(|(bit, of)| u32::from(of.is_some()) << bit);
        let features = of_vectors.sum::<u32>()
            + SIGMOID * u32::from(experts.is_sigmoid)
            + NORMALISED * u32::from(experts.is_normalised);
        let push = ChoosePush {
            scores: room.experts.scores.address,
            chosen: room.experts.chosen.address,
            weights: room.experts.weights.address,
            vectors: found.map(|address| address.unwrap_or(0)),
            m: on.m as u32,
            n: experts.n as u32,
            active: experts.n_active as u32,
            features,
        };
        on.recorder.dispatch(Shader::Choose, &push, [on.m.div_ceil(32), 1]);
    }
}
