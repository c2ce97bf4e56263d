//! Weights in a device's memory.

use std::sync::Arc;

use super::commands::Commands;
use super::device::Handle;
use super::error::GpuError;
use super::memory::{Memory, Place};
use super::pipelines::{Pipelines, Shader};
use crate::format::model::Encoding;
use crate::model::{Matrix, RowParts, activation_group, encoding};
use crate::quant::ggml::Steps;
use crate::quant::{Ggml, bcml1::BLOCK};

/// Rows of a panel.
pub(super) const PANEL_ROWS: usize = 32;

/// Bytes that are sent to the device at a time.
const STAGING_BYTES: u64 = 8 << 20;

/// Forms of products, numbered as in `shaders/product.comp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Plain = 0,
    Halves = 1,
    Offset = 2,
    Bcml1 = 3,
    Bcml2 = 4,
}

/// How a matrix lies in the device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    form: Form,
    is_four_bits: bool,
    /// The code of 0, for codes of 4 bits.
    pub(super) bias: i8,
    /// Columns that share parameters, and a scale of activations.
    pub(super) group: usize,
}

/// A matrix `[rows, k]` in a device's memory.
pub(super) struct Tensor {
    pub(super) rows: usize,
    pub(super) k: usize,
    /// `None` if it is f32, row-major.
    pub(super) layout: Option<Layout>,
    memory: Memory,
    /// Where parameters begin, in bytes.
    first_at: u64,
    second_at: u64,
}

/// Sends bytes to a device's memory, and gets them from there.
pub(super) struct Transfer {
    handle: Arc<Handle>,
    staging: Memory,
    /// Places of the pieces in `staging` that are not sent yet: offset there, offset at the receiver, bytes.
    pieces: Vec<[u64; 3]>,
}

impl Layout {
    /// The layout of a matrix with this encoding; `None` if it is f32.
    pub(super) fn of(encoding: Encoding) -> Option<Layout> {
        let group = activation_group(encoding)?;
        let bytes = Layout { form: Form::Plain, is_four_bits: false, bias: 0, group };
        Some(match encoding {
            Encoding::F32 | Encoding::Q8 { .. } | Encoding::Bcml6 => bytes,
            Encoding::Bcml1 => Layout { form: Form::Bcml1, is_four_bits: true, ..bytes },
            Encoding::Bcml2 => Layout { form: Form::Bcml2, is_four_bits: true, ..bytes },
            Encoding::Ggml(kind) => Layout::of_ggml(kind, bytes),
        })
    }

    fn of_ggml(kind: Ggml, bytes: Layout) -> Layout {
        let Some(form) = kind.form() else { return bytes };
        let is_four_bits = form.bits == 4 && form.steps == Steps::Even && form.n_scales == 1;
        let bias = if is_four_bits { form.zero as i8 } else { 0 };
        let form = match (form.n_scales, form.has_min) {
            (2, _) => Form::Halves,
            (_, true) => Form::Offset,
            (_, false) => Form::Plain,
        };
        Layout { form, is_four_bits, bias, ..bytes }
    }

    pub(super) fn shader(self, by_expert: bool) -> Shader {
        let Layout { form, is_four_bits, .. } = self;
        Shader::Product { form: form as u32, is_four_bits, by_expert }
    }

    /// Bytes of a panel's codes, of its first and of its second parameters, with `k` columns.
    fn panel_bytes(self, k: usize) -> [usize; 3] {
        let parameters = 4 * PANEL_ROWS * (k / self.group);
        let second = match self.form {
            Form::Plain => 0,
            Form::Bcml2 => 4 * PANEL_ROWS,
            Form::Halves | Form::Offset | Form::Bcml1 => parameters,
        };
        [PANEL_ROWS * k / if self.is_four_bits { 2 } else { 1 }, parameters, second]
    }

    /// Bytes of a matrix `[rows, k]`.
    pub(super) fn bytes(self, rows: usize, k: usize) -> u64 {
        let panels = rows.div_ceil(PANEL_ROWS) as u64;
        self.panel_bytes(k).into_iter().map(|bytes| panels * bytes as u64).sum()
    }

    /// Writes the parts of row `row` of a panel to its bytes.
    fn put(self, row: usize, parts: &RowParts, [codes, first, second]: [&mut [u8]; 3]) {
        let bias = self.bias;
        for (run, values) in parts.codes.as_chunks::<BLOCK>().0.iter().enumerate() {
            if self.is_four_bits {
                let out = &mut codes[(run * PANEL_ROWS + row) * 16..][..16];
                for (i, out) in out.iter_mut().enumerate() {
                    let code = |value: i8| value.wrapping_add(bias) as u8 & 15;
                    *out = code(values[i]) | code(values[i + 16]) << 4;
                }
                continue;
            }
            for (half, values) in values.chunks_exact(16).enumerate() {
                let out = &mut codes[((2 * run + half) * PANEL_ROWS + row) * 16..][..16];
                out.copy_from_slice(bytemuck::cast_slice(values));
            }
        }
        for (values, out) in [(&parts.first, first), (&parts.second, second)] {
            let places = out.chunks_exact_mut(4 * PANEL_ROWS);
            for (value, place) in values.iter().zip(places) {
                place[4 * row..][..4].copy_from_slice(&value.to_ne_bytes());
            }
        }
    }
}

impl Tensor {
    /// Copies `matrix` to the device.
    ///
    /// # Errors
    /// If there is no room on the device, or its driver fails.
    pub(super) fn new(
        transfer: &mut Transfer,
        (commands, pipelines): (&mut Commands, &Pipelines),
        matrix: &Matrix<'_>,
        k: usize,
    ) -> Result<Tensor, GpuError> {
        let rows = matrix.rows();
        let Some(layout) = Layout::of(encoding(matrix)) else {
            let Matrix::F32 { w, .. } = matrix else { unreachable!("other matrices have layouts") };
            let bytes: &[u8] = bytemuck::cast_slice(w);
            let memory = transfer.place(bytes.len() as u64)?;
            transfer.send((&mut *commands, pipelines), bytes, (&memory, 0))?;
            transfer.flush((commands, pipelines), &memory)?;
            return Ok(Tensor { rows, k, layout: None, memory, first_at: 0, second_at: 0 });
        };
        let of_panel = layout.panel_bytes(k);
        let panels = rows.div_ceil(PANEL_ROWS);
        let starts = [0, panels * of_panel[0], panels * (of_panel[0] + of_panel[1])];
        let memory = transfer.place(layout.bytes(rows, k))?;
        let mut parts = RowParts::default();
        let mut panel = of_panel.map(|bytes| vec![0; bytes]);
        for index in 0..panels {
            panel.iter_mut().for_each(|bytes| bytes.fill(0));
            for row in 0..PANEL_ROWS.min(rows - index * PANEL_ROWS) {
                parts.read(matrix, index * PANEL_ROWS + row);
                let [codes, first, second] = &mut panel;
                layout.put(row, &parts, [codes, first, second]);
            }
            for ((bytes, start), len) in panel.iter().zip(starts).zip(of_panel) {
                let at = (start + index * len) as u64;
                transfer.send((&mut *commands, pipelines), bytes, (&memory, at))?;
            }
        }
        transfer.flush((commands, pipelines), &memory)?;
        let [_, first_at, second_at] = starts.map(|start| start as u64);
        Ok(Tensor { rows, k, layout: Some(layout), memory, first_at, second_at })
    }

    /// Addresses of codes or values, and of first and second parameters.
    pub(super) fn addresses(&self) -> [u64; 3] {
        [0, self.first_at, self.second_at].map(|at| self.memory.address + at)
    }
}

impl Transfer {
    pub(super) fn new(handle: &Arc<Handle>) -> Result<Transfer, GpuError> {
        let staging = Memory::new(handle, STAGING_BYTES, Place::Host)?;
        Ok(Transfer { handle: Arc::clone(handle), staging, pieces: Vec::new() })
    }

    /// Room for `bytes` bytes on the device.
    ///
    /// # Errors
    /// If there is none.
    pub(super) fn place(&self, bytes: u64) -> Result<Memory, GpuError> {
        Memory::new(&self.handle, bytes, Place::Device)
    }

    /// Copies `bytes` to a place in the device's memory, at the latest when [`Transfer::flush`] is called.
    ///
    /// # Errors
    /// If the driver fails.
    ///
    /// # Panics
    /// If there is no such place, or pieces for other memory wait.
    pub(super) fn send(
        &mut self,
        device: (&mut Commands, &Pipelines),
        bytes: &[u8],
        (to, at): (&Memory, u64),
    ) -> Result<(), GpuError> {
        let (commands, pipelines) = device;
        let step = STAGING_BYTES as usize;
        for (piece, at) in bytes.chunks(step).zip((at..).step_by(step)) {
            let mut used = self.pieces.last().map_or(0, |[from, _, bytes]| from + bytes);
            if used + piece.len() as u64 > STAGING_BYTES {
                self.flush((&mut *commands, pipelines), to)?;
                used = 0;
            }
            let place = &mut self.staging.as_mut_slice::<u8>()[used as usize..][..piece.len()];
            place.copy_from_slice(piece);
            self.pieces.push([used, at, piece.len() as u64]);
        }
        Ok(())
    }

    /// Sends all pieces that wait for `to`.
    ///
    /// # Errors
    /// If the driver fails.
    pub(super) fn flush(
        &mut self,
        (commands, pipelines): (&mut Commands, &Pipelines),
        to: &Memory,
    ) -> Result<(), GpuError> {
        let (staging, pieces) = (&self.staging, &self.pieces);
        if !pieces.is_empty() {
            commands.run(pipelines, |recorder| {
                for [from, at, bytes] in pieces {
                    recorder.copy((staging, *from), (to, *at), *bytes);
                }
            })?;
        }
        self.pieces.clear();
        Ok(())
    }

    /// Copies a place in the device's memory to `out`.
    ///
    /// # Errors
    /// If the driver fails.
    ///
    /// # Panics
    /// If there is no such place.
    pub(super) fn fetch(
        &mut self,
        (commands, pipelines): (&mut Commands, &Pipelines),
        (from, at): (&Memory, u64),
        out: &mut [u8],
    ) -> Result<(), GpuError> {
        let places = (at..).step_by(STAGING_BYTES as usize);
        for (piece, at) in out.chunks_mut(STAGING_BYTES as usize).zip(places) {
            let staging = &self.staging;
            commands.run(pipelines, |recorder| {
                recorder.copy((from, at), (staging, 0), piece.len() as u64);
            })?;
            piece.copy_from_slice(&self.staging.as_mut_slice::<u8>()[..piece.len()]);
        }
        Ok(())
    }
}
