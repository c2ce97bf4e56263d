//! The vectors of a layer in a device's memory.

use super::error::GpuError;
use super::memory::Memory;
use super::tensors::Loading;
use crate::format::model::TensorKind;
use crate::model::Model;

/// Vectors of a layer in one piece of memory.
pub(super) struct Vectors {
    /// Holds them all.
    memory: Memory,
    /// Address of each that the layer has.
    places: Vec<(TensorKind, u64)>,
}

impl Vectors {
    /// Copies the vectors of `layer` to the device.
    ///
    /// # Errors
    /// If there is no room on the device, or its driver fails.
    pub(super) fn new(
        loading: &mut Loading<'_>,
        model: &Model,
        layer: usize,
    ) -> Result<Vectors, GpuError> {
        use TensorKind::{
            AttentionNorm, AttentionPostNorm, B1, B2, B3, Bk, Bo, Bq, Bv, ChoiceBias, ExpertScale,
            FfnNorm, FfnPostNorm, KNorm, MixControls, MixConv, MixConvBias, MixDecay, MixNorm,
            MixSkip, MixStepBias, QNorm, Router, RouterBias, SharedGate, Sinks,
        };
        let header = model.header();
        let has = |kind: &TensorKind| header.has(*kind) && header.has_in(*kind, layer);
        // Kinds in one group follow each other: shaders take them as one vector.
        let groups: [&[TensorKind]; 10] = [
            &[Bq, Bk, Bv],
            &[B1, B3],
            &[AttentionNorm],
            &[FfnNorm],
            &[QNorm],
            &[KNorm],
            &[Bo],
            &[B2],
            &[AttentionPostNorm],
            &[FfnPostNorm],
        ];
        let mut values: Vec<f32> = Vec::new();
        let mut places = Vec::new();
        let more = [Sinks, Router, RouterBias, ChoiceBias, ExpertScale, SharedGate];
        let mixers = [MixControls, MixConv, MixConvBias, MixDecay, MixNorm, MixSkip, MixStepBias];
        let all = groups.into_iter().flatten().copied().chain(more).chain(mixers);
        for kind in all.filter(has) {
            places.push((kind, 4 * values.len() as u64));
            values.extend_from_slice(model.vector(kind, layer));
        }
        let Loading { transfer, commands, pipelines, .. } = loading;
        let memory = transfer.place(4 * values.len() as u64)?;
        let bytes = bytemuck::cast_slice(&values);
        transfer.send((commands, pipelines), bytes, (&memory, 0))?;
        places.iter_mut().for_each(|(_, at)| *at += memory.address);
        Ok(Vectors { memory, places })
    }

    /// Address of the vector of `kind`, if the layer has it.
    pub(super) fn get(&self, kind: TensorKind) -> Option<u64> {
        debug_assert!(self.memory.address != 0);
        self.places.iter().find(|(known, _)| *known == kind).map(|(_, address)| *address)
    }
}
