//! Weights in a device's memory.

use std::sync::Arc;

use super::commands::Commands;
use super::device::Handle;
use super::error::GpuError;
use super::memory::{Memory, Place};
use super::pipelines::{Pipelines, Shader};
use crate::format::model::Encoding;
use crate::model::{Matrix, RowParts, activation_group, encoding};
use crate::pool::{Chunks, Pool};
use crate::quant::ggml::Steps;
use crate::quant::{Ggml, bcml1::BLOCK};

/// Rows of a panel.
pub(super) const PANEL_ROWS: usize = 32;

/// Bytes that are sent to the device at a time.
const STAGING_BYTES: u64 = 32 << 20;

/// Forms of products, numbered as in `shaders/product.comp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Plain = 0,
    Halves = 1,
    Offset = 2,
    Bcml1 = 3,
    Bcml2 = 4,
    Minima = 5,
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
}

/// A device that weights are sent to, and the threads that prepare them.
pub(super) struct Loading<'a> {
    pub(super) transfer: &'a mut Transfer,
    pub(super) commands: &'a mut Commands,
    pub(super) pipelines: &'a Pipelines,
    pub(super) pool: &'a Pool,
}

/// Sends bytes to a device's memory, and gets them from there.
pub(super) struct Transfer {
    handle: Arc<Handle>,
    staging: Memory,
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
            _ if form.has_halves() => Form::Minima,
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
            Form::Halves | Form::Offset | Form::Bcml1 | Form::Minima => parameters,
        };
        [PANEL_ROWS * k / if self.is_four_bits { 2 } else { 1 }, parameters, second]
    }

    /// Bytes of a panel.
    pub(super) fn stride(self, k: usize) -> usize {
        self.panel_bytes(k).into_iter().sum()
    }

    /// Bytes of a matrix `[rows, k]`.
    pub(super) fn bytes(self, rows: usize, k: usize) -> u64 {
        rows.div_ceil(PANEL_ROWS) as u64 * self.stride(k) as u64
    }

    /// Writes panel `index` of `matrix` to `out`.
    fn fill(self, matrix: &Matrix<'_>, index: usize, k: usize, out: &mut [u8]) {
        out.fill(0);
        let [of_codes, of_first, _] = self.panel_bytes(k);
        let (codes, rest) = out.split_at_mut(of_codes);
        let (first, second) = rest.split_at_mut(of_first);
        let mut parts = RowParts::default();
        let rows = PANEL_ROWS.min(matrix.rows() - index * PANEL_ROWS);
        for row in 0..rows {
            parts.read(matrix, index * PANEL_ROWS + row);
            self.put(row, &parts, [codes, first, second]);
        }
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
    /// Copies `matrix` to the device. Threads of the pool bring it into its layout.
    ///
    /// # Errors
    /// If there is no room on the device, or its driver fails.
    pub(super) fn new(
        loading: &mut Loading<'_>,
        matrix: &Matrix<'_>,
        k: usize,
    ) -> Result<Tensor, GpuError> {
        let Loading { transfer, commands, pipelines, pool } = loading;
        let rows = matrix.rows();
        let Some(layout) = Layout::of(encoding(matrix)) else {
            let Matrix::F32 { w, .. } = matrix else { unreachable!("other matrices have layouts") };
            let bytes: &[u8] = bytemuck::cast_slice(w);
            let memory = transfer.place(bytes.len() as u64)?;
            transfer.send((commands, pipelines), bytes, (&memory, 0))?;
            return Ok(Tensor { rows, k, layout: None, memory });
        };
        let memory = transfer.place(layout.bytes(rows, k))?;
        let (stride, panels) = (layout.stride(k), rows.div_ceil(PANEL_ROWS));
        let step = (STAGING_BYTES as usize / stride).max(1);
        for from in (0..panels).step_by(step) {
            let len = step.min(panels - from) * stride;
            let to = (&memory, (from * stride) as u64);
            transfer.fill((commands, pipelines), to, len, |bytes| {
                pool.run_chunks(Chunks::new(bytes, stride), &|panel, out| {
                    layout.fill(matrix, from + panel, k, out);
                });
            })?;
        }
        Ok(Tensor { rows, k, layout: Some(layout), memory })
    }

    /// Memory for a matrix `[rows, k]`, with any content.
    ///
    /// # Errors
    /// If there is no room on the device.
    pub(super) fn blank(
        handle: &Arc<Handle>,
        encoding: Encoding,
        [rows, k]: [usize; 2],
    ) -> Result<Tensor, GpuError> {
        let layout = Layout::of(encoding);
        let bytes = layout.map_or(4 * (rows * k) as u64, |layout| layout.bytes(rows, k));
        let memory = Memory::new(handle, bytes, Place::Device)?;
        Ok(Tensor { rows, k, layout, memory })
    }

    /// Bytes of the matrix.
    pub(super) fn bytes(&self) -> u64 {
        self.memory.bytes
    }

    /// Addresses of codes or values, and of a panel's first and second parameters.
    pub(super) fn addresses(&self) -> [u64; 3] {
        let start = self.memory.address;
        let [codes, first, _] = self.layout.map_or([0; 3], |layout| layout.panel_bytes(self.k));
        [start, start + codes as u64, start + (codes + first) as u64]
    }
}

impl Transfer {
    pub(super) fn new(handle: &Arc<Handle>) -> Result<Transfer, GpuError> {
        let staging = Memory::new(handle, STAGING_BYTES, Place::Host)?;
        Ok(Transfer { handle: Arc::clone(handle), staging })
    }

    /// Room for `bytes` bytes on the device.
    ///
    /// # Errors
    /// If there is none.
    pub(super) fn place(&self, bytes: u64) -> Result<Memory, GpuError> {
        Memory::new(&self.handle, bytes, Place::Device)
    }

    /// Copies `bytes` to a place in the device's memory.
    ///
    /// # Errors
    /// If the driver fails.
    ///
    /// # Panics
    /// If there is no such place.
    pub(super) fn send(
        &mut self,
        (commands, pipelines): (&mut Commands, &Pipelines),
        bytes: &[u8],
        (to, at): (&Memory, u64),
    ) -> Result<(), GpuError> {
        let step = STAGING_BYTES as usize;
        for (piece, at) in bytes.chunks(step).zip((at..).step_by(step)) {
            let place = (to, at);
            self.fill((commands, pipelines), place, piece.len(), |out| out.copy_from_slice(piece))?;
        }
        Ok(())
    }

    /// Copies `len` bytes that `write` writes to a place in the device's memory.
    ///
    /// # Errors
    /// If the driver fails.
    ///
    /// # Panics
    /// If there is no such place, or no memory for `len` bytes at a time.
    fn fill(
        &mut self,
        (commands, pipelines): (&mut Commands, &Pipelines),
        (to, at): (&Memory, u64),
        len: usize,
        write: impl FnOnce(&mut [u8]),
    ) -> Result<(), GpuError> {
        write(&mut self.staging.as_mut_slice::<u8>()[..len]);
        let staging = &self.staging;
        commands.run(pipelines, |recorder| recorder.copy((staging, 0), (to, at), len as u64))
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
