//! A transformer whose last layers are computed by a device beside the CPUs.

use std::sync::Arc;

use super::{Beside, Transformer, allocate};
use crate::model::batch::{ForwardError, Span};
use crate::model::device::{Device, OpenDevice};
use crate::model::packed::PackedWeights;
use crate::model::plan::{PageChange, Plan};
use crate::model::share::Share;
use crate::model::start_error::StartError;

impl Transformer {
    /// Has the device that `open` opens compute the last layers, as many as it takes. The streams' KV is lost. When the
    /// share changes, the device is opened again.
    ///
    /// # Errors
    /// If the device cannot be used, the model's file cannot be mapped again, or the machine does not have enough memory.
    /// Nothing is changed then.
    ///
    /// # Panics
    /// If the device takes other layers, or there is a team.
    pub fn use_device(&mut self, open: OpenDevice) -> Result<(), StartError> {
        let device = open(&self.model, &self.plan, &self.pool).map_err(StartError::Device)?;
        let (whole, given) = (self.model.share().clone(), device.model().share().layers.clone());
        assert!(self.team.is_none() && self.beside.is_none());
        assert!(given.end == whole.layers.end && given.start >= whole.layers.start);
        let layers = whole.layers.start..given.start;
        let own = Share { layers, has_ends: whole.has_ends };
        let model = Arc::new(self.model.view_of(own).map_err(StartError::Share)?);
        self.memory = allocate(&model, &self.plan, None)?;
        if model.packed_for().is_some() {
            self.packed = PackedWeights::of_model(&model);
        }
        self.model = model;
        self.beside = Some(Beside { device, open, share: whole, failure: None });
        Ok(())
    }

    /// Opens the device again, if there was one, for layers that the CPUs have just got. They keep them if that fails.
    pub(super) fn open_device_again(&mut self) {
        let Some(Beside { device, open, .. }) = self.beside.take() else { return };
        // Its memory is needed.
        drop(device);
        if let Err(error) = self.use_device(open) {
            log::warn!("{error}; the CPU computes all layers from now on");
        }
    }

    /// Takes back the layers of the device beside the CPUs if it has failed; `false` then, because the streams' KV is
    /// lost. The layers' weights are used unpacked.
    ///
    /// # Errors
    /// If the model's file cannot be mapped again, or the machine does not have enough memory. Nothing is changed then.
    pub fn without_failed_device(&mut self) -> Result<bool, StartError> {
        let Some(Beside { share, failure: Some(why), .. }) = &self.beside else { return Ok(true) };
        let model = Arc::new(self.model.view_of(share.clone()).map_err(StartError::Share)?);
        self.memory = allocate(&model, &self.plan, None)?;
        if model.packed_for().is_some() {
            self.packed = PackedWeights::of_model(&model);
        }
        log::warn!("{why}; the CPU computes all layers from now on");
        (self.model, self.beside) = (model, None);
        Ok(false)
    }

    /// Name of the device beside the CPUs, and the number of layers that it computes.
    pub fn device_beside(&self) -> Option<(&str, usize)> {
        let Beside { device, .. } = self.beside.as_ref()?;
        Some((device.name(), device.model().share().layers.len()))
    }

    pub(super) fn bytes_beside(&self) -> u64 {
        let Some(Beside { device, .. }) = &self.beside else { return 0 };
        let (header, share) = (device.model().header(), device.model().share());
        // Ends are counted with the CPUs' layers.
        let layers = Share { has_ends: false, ..share.clone() };
        header.bytes_per_token(|id| layers.holds(id))
    }

    /// Bytes of the weights that the device beside the CPUs has, as a file has them.
    pub fn device_weight_bytes(&self) -> u64 {
        let Some(Beside { device, .. }) = &self.beside else { return 0 };
        let (header, share) = (device.model().header(), device.model().share());
        header.tensors().filter(|tensor| share.holds(tensor.id)).map(|tensor| tensor.bytes).sum()
    }

    /// Part of the bytes of a token's weights that the device beside the CPUs reads, 0 to 1.
    pub fn part_beside(&self) -> f64 {
        let Some(Beside { device, .. }) = &self.beside else { return 0.0 };
        let (header, share) = (device.model().header(), device.model().share());
        let bytes = header.bytes_per_token(|id| share.holds(id));
        bytes as f64 / (self.model.bytes_per_token() + self.bytes_beside()) as f64
    }

    /// Changes the plan of the device beside the CPUs, if there is one. If it has no room for the plan beside its layers,
    /// returns the share, to be divided anew.
    pub(super) fn share_without_room(&mut self, plan: &Plan) -> Option<Share> {
        let Beside { device, share, .. } = self.beside.as_mut()?;
        device.set_plan(plan).is_err().then(|| share.clone())
    }

    pub(super) fn run_layers_beside(&mut self, spans: &[Span]) -> Result<(), ForwardError> {
        let Some(mut beside) = self.beside.take() else { return Ok(()) };
        let is_interrupted = self.is_interrupted;
        let dim = self.model.header().dim;
        let (pass, buffers) = self.begin(spans);
        let x = &mut buffers.x[..pass.m * dim];
        let result = beside.device.run_layers(spans, x, is_interrupted);
        self.put_beside(beside, result)
    }

    /// Puts the device back after a pass. Notes whether it failed.
    fn put_beside(
        &mut self,
        mut beside: Beside,
        result: Result<(), ForwardError>,
    ) -> Result<(), ForwardError> {
        if let Err(ForwardError::Device(why)) = &result {
            beside.failure = Some(why.clone());
        }
        self.beside = Some(beside);
        result
    }

    /// Logits of the `m` rows in the inputs' buffer, which have been through the final norm.
    pub(super) fn classify_rows(&mut self, m: usize) -> Result<&mut [f32], ForwardError> {
        let Some(mut beside) = self.beside.take() else { return self.classify_here(m) };
        if !beside.device.model().share().has_ends {
            self.beside = Some(beside);
            return self.classify_here(m);
        }
        let header = self.model.header();
        let (dim, vocab_size) = (header.dim, header.vocab_size);
        let (_, buffers) = self.begin(&[]);
        let (x, logits) = (&buffers.inputs.f32[..m * dim], &mut buffers.logits[..m * vocab_size]);
        let result = match m {
            0 => Ok(()),
            _ => beside.device.classify(x, logits),
        };
        self.put_beside(beside, result)?;
        let (pass, buffers) = self.begin(&[]);
        let logits = &mut buffers.logits[..m * vocab_size];
        pass.cap_logits(logits);
        Ok(logits)
    }

    fn classify_here(&mut self, m: usize) -> Result<&mut [f32], ForwardError> {
        let (pass, buffers) = self.begin(&[]);
        pass.classify(m, buffers, None)
    }

    pub(super) fn change_page_beside(&mut self, change: &PageChange) {
        if let Some(beside) = &mut self.beside {
            beside.device.change_page(change);
        }
    }

    /// The device, if it has `layer`.
    pub(super) fn beside_for(&mut self, layer: usize) -> Option<&mut dyn Device> {
        let beside = self.beside.as_mut()?;
        let is_there = beside.device.model().share().layers.contains(&layer);
        is_there.then_some(&mut *beside.device)
    }
}
