//! A GPU as a device beside the CPUs.

use std::ops::Range;
use std::sync::Arc;

use super::commands::Commands;
use super::device::Handle;
use super::error::GpuError;
use super::exact::ExactGpu;
use super::layer::{Layer, matrix_kinds};
use super::pipelines::Pipelines;
use super::places::Places;
use super::record::On;
use super::room::Room;
use super::states::{DeviceStates, layer_bytes};
use super::support::unsupported;
use super::tensors::{Layout, Loading, Tensor, Transfer};
use crate::format::model::{Header, TensorId, TensorKind};
use crate::kernels::KV_BLOCK;
use crate::model::{
    Device, ForwardError, Frequencies, KvPlace, Model, PageChange, PiecePlace, Plan, Share, Span,
    StartError, StatePlace,
};
use crate::pool::Pool;

/// Rows times layers of a submission, after which an interrupt is looked for.
const ROWS_PER_SUBMISSION: usize = 256;

/// Share of the device's memory that is used if no other amount is asked for, in percent.
const MEMORY_PERCENT: u64 = 90;

/// Which GPU, and how much of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct GpuOptions {
    /// Part of the device's name; `None` for the first that is no program on the CPU.
    pub(crate) name: Option<String>,
    /// Bytes of its memory that may be used; `None` for nine tenths.
    pub(crate) memory: Option<u64>,
    /// Bytes of weights a second that the CPUs multiply at most: a device that is slower is refused.
    pub(crate) outpace: Option<fn(&Pool) -> f64>,
}

/// The last layers of a model on a GPU.
pub(crate) struct Gpu {
    handle: Arc<Handle>,
    commands: Commands,
    pipelines: Pipelines,
    transfer: Transfer,
    model: Model,
    layers: Vec<Layer>,
    classifier: Option<Tensor>,
    room: Room,
    places: Places,
    /// States of recurrent layers; `None` in models without them.
    states: Option<DeviceStates>,
    frequencies: Frequencies,
}

impl GpuOptions {
    fn open(&self, pool: &Pool) -> Result<ExactGpu, GpuError> {
        let mut gpu = ExactGpu::open(self.name.as_deref())?;
        let Some(outpace) = self.outpace else { return Ok(gpu) };
        let (of_device, of_cpu) = (gpu.speeds()?.multiplied, outpace(pool));
        match of_device > of_cpu {
            true => Ok(gpu),
            false => Err(GpuError::Slow { device: gpu.name().to_owned(), of_device, of_cpu }),
        }
    }
}

impl Gpu {
    /// Opens a GPU and copies as many of the model's last layers to it as fit, the classifier first. The threads of
    /// `pool` prepare them.
    ///
    /// # Errors
    /// If there is no such GPU, it is not exact or too slow, no layer fits, or no shaders exist for the model.
    pub(crate) fn open(
        model: &Model,
        plan: &Plan,
        options: &GpuOptions,
        pool: &Pool,
    ) -> Result<Gpu, GpuError> {
        let header = model.header();
        if let Some(why) = unsupported(header) {
            return Err(GpuError::Unsupported(why));
        }
        let ExactGpu { handle, mut commands, mut pipelines, .. } = options.open(pool)?;
        let memory = options.memory.unwrap_or(handle.info.memory / 100 * MEMORY_PERCENT);
        let share = fitting(model, plan, memory)?;
        let model = model.view_of(share).map_err(GpuError::Model)?;
        let mut transfer = Transfer::new(&handle)?;
        let Share { layers, has_ends } = model.share().clone();
        let mut loading = Loading {
            transfer: &mut transfer,
            commands: &mut commands,
            pipelines: &pipelines,
            pool,
        };
        let mut all = Vec::with_capacity(layers.len());
        for layer in layers.clone() {
            all.push(Layer::new(&mut loading, &model, layer)?);
        }
        let kind = model.header().classifier();
        let classifier = has_ends.then(|| {
            let (_, k) = model.header().held_shape(kind);
            Tensor::new(&mut loading, &model.matrix(kind, 0), k)
        });
        let classifier = classifier.transpose()?;
        all.iter().try_for_each(|layer| layer.prepare(&mut pipelines, plan.kv))?;
        classifier.iter().try_for_each(|tensor| tensor.prepare(&mut pipelines, false))?;
        let room = Room::new(&handle, model.header(), plan, has_ends)?;
        let places = Places::new(&handle, model.header(), layers.clone(), plan)?;
        let on = (&mut commands, &pipelines);
        let states = DeviceStates::new(&handle, on, (model.header(), layers), plan)?;
        let frequencies = Frequencies::new(model.header());
        Ok(Gpu {
            handle,
            commands,
            pipelines,
            transfer,
            model,
            layers: all,
            classifier,
            room,
            places,
            states,
            frequencies,
        })
    }

    /// Computes `layers`, counted from the first here, on `m` rows that attend to up to `blocks` blocks of positions. The
    /// first layer takes the rows from `room.exchange`, and the last one gives them back there.
    fn run(&mut self, layers: Range<usize>, m: usize, blocks: usize) -> Result<(), GpuError> {
        let Gpu { commands, pipelines, room, places, states, layers: all, model, .. } = self;
        let bytes = 4 * (m * model.header().dim) as u64;
        commands.run(pipelines, |recorder| {
            if layers.start == 0 {
                recorder.copy((&room.exchange, 0), (&room.x, 0), bytes);
            }
            for index in layers.clone() {
                let on = On { recorder: &mut *recorder, room, m, blocks };
                all[index].record(on, (places, states.as_ref()), index);
            }
            if layers.end == all.len() {
                recorder.copy((&room.x, 0), (&room.exchange, 0), bytes);
            }
        })
    }

    /// Makes the states that `spans` continue and that are not there yet, and prepares their update.
    fn begin_states(&mut self, spans: &[Span]) -> Result<(), ForwardError> {
        let failed = |error: GpuError| ForwardError::Device(error.to_string());
        let Gpu { commands, pipelines, room, states: Some(states), layers, .. } = self else {
            return Ok(());
        };
        states.begin(spans)?;
        states.copy((commands, pipelines)).map_err(failed)?;
        let mut done = 0;
        while done < states.all.replays().len() {
            done = states.fill_replays(done);
            let states = &*states;
            if states.is_idle() {
                continue;
            }
            let replayed = commands.run(pipelines, |recorder| {
                for (index, layer) in layers.iter().enumerate() {
                    let on = On { recorder: &mut *recorder, room, m: 0, blocks: 0 };
                    layer.replay(on, states, index);
                }
            });
            replayed.map_err(failed)?;
        }
        states.all.replayed();
        states.fill(spans);
        Ok(())
    }

    fn run_all(
        &mut self,
        spans: &[Span],
        x: &mut [f32],
        is_interrupted: Option<fn() -> bool>,
    ) -> Result<(), ForwardError> {
        let failed = |error: GpuError| ForwardError::Device(error.to_string());
        let m: usize = spans.iter().map(|span| span.n_rows).sum();
        if m == 0 || self.layers.is_empty() {
            return Ok(());
        }
        self.begin_states(spans)?;
        self.room.tables.fill(self.model.header(), &self.frequencies, spans);
        self.places.write_tables();
        self.room.exchange.as_mut_slice()[..x.len()].copy_from_slice(x);
        let ends = spans.iter().filter(|span| span.n_rows > 0).map(|span| span.pos + span.n_rows);
        let blocks = ends.max().unwrap_or(0).div_ceil(KV_BLOCK);
        let step = (ROWS_PER_SUBMISSION / m).max(1);
        for first in (0..self.layers.len()).step_by(step) {
            if is_interrupted.is_some_and(|is_interrupted| is_interrupted()) {
                return Err(ForwardError::Interrupted);
            }
            let layers = first..self.layers.len().min(first + step);
            self.run(layers, m, blocks).map_err(failed)?;
        }
        x.copy_from_slice(&self.room.exchange.as_mut_slice()[..x.len()]);
        self.states.iter_mut().for_each(|states| states.all.end(spans));
        Ok(())
    }

    fn multiply_classifier(&mut self, x: &[f32], logits: &mut [f32]) -> Result<(), GpuError> {
        let Gpu { commands, pipelines, room, classifier: Some(classifier), .. } = self else {
            unreachable!("only a device with the ends is asked to classify");
        };
        let m = x.len() / classifier.k;
        room.exchange.as_mut_slice()[..x.len()].copy_from_slice(x);
        let (bytes_in, bytes_out) = (size_of_val(x) as u64, size_of_val(logits) as u64);
        commands.run(pipelines, |recorder| {
            recorder.copy((&room.exchange, 0), (&room.inputs, 0), bytes_in);
            let mut on = On { recorder: &mut *recorder, room, m, blocks: 0 };
            on.project(&[classifier], room.delta.address, false);
            recorder.copy((&room.delta, 0), (&room.exchange, 0), bytes_out);
        })?;
        logits.copy_from_slice(&room.exchange.as_mut_slice()[..logits.len()]);
        Ok(())
    }
}

impl Device for Gpu {
    fn name(&self) -> &str {
        &self.handle.info.name
    }

    fn model(&self) -> &Model {
        &self.model
    }

    fn set_plan(&mut self, plan: &Plan) -> Result<(), StartError> {
        let failed = |error: GpuError| StartError::Device(error.to_string());
        let (header, share) = (self.model.header(), self.model.share());
        if let Some(why) = unsupported(header) {
            return Err(failed(GpuError::Unsupported(why)));
        }
        // Keys and values may have another format than before.
        let mut layers = self.layers.iter();
        layers.try_for_each(|layer| layer.prepare(&mut self.pipelines, plan.kv)).map_err(failed)?;
        let room = Room::new(&self.handle, header, plan, share.has_ends).map_err(failed)?;
        let layers = share.layers.clone();
        let places = Places::new(&self.handle, header, layers.clone(), plan).map_err(failed)?;
        let on = (&mut self.commands, &self.pipelines);
        let states = DeviceStates::new(&self.handle, on, (header, layers), plan).map_err(failed)?;
        (self.room, self.places, self.states) = (room, places, states);
        Ok(())
    }

    fn run_layers(
        &mut self,
        spans: &[Span],
        x: &mut [f32],
        is_interrupted: Option<fn() -> bool>,
    ) -> Result<(), ForwardError> {
        self.run_all(spans, x, is_interrupted)
    }

    fn classify(&mut self, x: &[f32], logits: &mut [f32]) -> Result<(), ForwardError> {
        let classified = self.multiply_classifier(x, logits);
        classified.map_err(|error| ForwardError::Device(error.to_string()))
    }

    fn change_page(&mut self, change: &PageChange) {
        let copies = self.places.change(change);
        let kv = &self.places.kv;
        if copies.is_empty() {
            return;
        }
        let copied = self.commands.run(&self.pipelines, |recorder| {
            for (from, to) in copies {
                recorder.copy((kv, from.start), (kv, to.start), from.end - from.start);
            }
        });
        // The next pass fails too, and tells of it.
        if let Err(error) = copied {
            log::warn!("{error}");
        }
    }

    fn read_kv(&mut self, KvPlace { layer, page }: KvPlace, out: &mut [u8]) -> bool {
        let Gpu { commands, pipelines, transfer, places, model, .. } = self;
        let layer = layer.checked_sub(model.share().layers.start);
        let Some(part) = layer.and_then(|layer| places.part(layer, page)) else { return false };
        let is_whole = part.end - part.start == out.len() as u64;
        is_whole && transfer.fetch((commands, pipelines), (&places.kv, part.start), out).is_ok()
    }

    fn write_kv(&mut self, KvPlace { layer, page }: KvPlace, first: usize, bytes: &[u8]) -> bool {
        let Gpu { commands, pipelines, transfer, places, model, .. } = self;
        let layer = layer.checked_sub(model.share().layers.start);
        let Some(part) = layer.and_then(|layer| places.part(layer, page)) else { return false };
        let (at, len) = (part.start + first as u64, bytes.len() as u64);
        if at + len > part.end {
            return false;
        }
        transfer.send((commands, pipelines), bytes, (&places.kv, at)).is_ok()
    }

    fn read_state(&mut self, part: StatePlace, out: &mut [u8]) -> bool {
        let Gpu { commands, pipelines, transfer, states, model, .. } = self;
        let layer = part.layer.checked_sub(model.share().layers.start);
        let on = (transfer, commands, &*pipelines);
        let states = states.as_ref().zip(layer);
        states.is_some_and(|(states, layer)| states.read(on, StatePlace { layer, ..part }, out))
    }

    fn write_state(&mut self, part: StatePlace, bytes: &[u8]) -> bool {
        let Gpu { commands, pipelines, transfer, states, model, .. } = self;
        let layer = part.layer.checked_sub(model.share().layers.start);
        let on = (transfer, commands, &*pipelines);
        let states = states.as_mut().zip(layer);
        states.is_some_and(|(states, layer)| states.write(on, StatePlace { layer, ..part }, bytes))
    }

    fn read_state_piece(&mut self, place: PiecePlace, out: &mut [u8]) -> bool {
        let Gpu { commands, pipelines, transfer, states, model, .. } = self;
        let layer = place.layer.checked_sub(model.share().layers.start);
        let on = (transfer, commands, &*pipelines);
        let states = states.as_ref().zip(layer);
        states.is_some_and(|(states, layer)| {
            states.read_piece(on, PiecePlace { layer, ..place }, out)
        })
    }

    fn write_state_piece(&mut self, place: PiecePlace, first: usize, bytes: &[u8]) -> bool {
        let Gpu { commands, pipelines, transfer, states, model, .. } = self;
        let layer = place.layer.checked_sub(model.share().layers.start);
        let on = (transfer, commands, &*pipelines);
        let states = states.as_mut().zip(layer);
        states.is_some_and(|(states, layer)| {
            states.write_piece(on, PiecePlace { layer, ..place }, (first, bytes))
        })
    }
}

/// The last layers of the model that fit `memory` bytes beside their keys and values and the buffers.
fn fitting(model: &Model, plan: &Plan, memory: u64) -> Result<Share, GpuError> {
    let (header, whole) = (model.header(), model.share());
    let mut left = memory.checked_sub(Room::bytes(header, plan));
    let mut take = |bytes: u64| {
        let rest = left.and_then(|left| left.checked_sub(bytes));
        left = rest.or(left);
        rest.is_some()
    };
    let classifier = tensor_bytes(header, header.classifier(), 0);
    let has_ends = whole.has_ends && take(classifier);
    let mut start = whole.layers.end;
    let bytes = |layer: usize| {
        let kinds = matrix_kinds(header, layer).into_iter();
        let weights: u64 = kinds.map(|kind| tensor_bytes(header, kind, layer)).sum();
        let states = header.mixer(layer).map_or(0, |_| layer_bytes(header, plan));
        let units = plan.kv_units(header, layer..layer + 1);
        weights + states + (units * plan.kv.unit_bytes()) as u64
    };
    while start > whole.layers.start && take(bytes(start - 1)) {
        start -= 1;
    }
    match start < whole.layers.end {
        true => Ok(Share { layers: start..whole.layers.end, has_ends }),
        false => {
            let needed = Room::bytes(header, plan) + bytes(start - 1);
            let needed = needed + if has_ends { classifier } else { 0 };
            Err(GpuError::Room { needed, allowed: memory })
        }
    }
}

/// Bytes of a matrix on a device.
fn tensor_bytes(header: &Header, kind: TensorKind, layer: usize) -> u64 {
    let (rows, k) = header.held_shape(kind);
    match Layout::of(header.encoding(TensorId { kind, layer })) {
        Some(layout) => layout.bytes(rows, k),
        None => 4 * rows as u64 * k as u64,
    }
}
