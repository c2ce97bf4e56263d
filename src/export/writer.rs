//! Converts tensors in blocks of rows and writes the model file.
//!
//! Worker threads take blocks in the order of the file, convert them and hand them to the
//! calling thread, which writes: the next blocks are quantised while one is written. Blocks
//! in flight and their buffers are bounded, so memory does not grow with the model.
//!
//! Matrices that are to be packed for one instruction set go through the caller's function block by
//! block: a block is whole panels, and panels stand in the file in the order of their rows.

use std::num::NonZero;
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use bytemuck::Zeroable;
use crc32fast::Hasher;

use super::calibration::Calibration;
use super::error::ExportError;
use super::job::{Block, Order, Packing, QuantisedRows, TensorJob, blocks};
use crate::format::FormatError;
use crate::format::model::{
    Encoding, FileShare, Header, PACKED_ALIGN, Packed, Tensor, fingerprint,
};
use crate::quant::feedback::Feedback;
use crate::quant::{
    self, Bcml1Matrix, Bcml2Matrix, Bcml6Matrix, Ggml, GgmlMatrix, Q8Matrix, bcml1, bcml2, bcml6,
    ggml,
};
use crate::sys::file::AtomicFile;
use crate::sys::map::Map;
use crate::sys::simd::{self, Work};

/// How many blocks ahead of the workers the system is asked to read.
const BLOCKS_AHEAD: usize = 32;
/// How often the caller hears of progress when the disk is slow.
const TICK: Duration = Duration::from_millis(100);

/// Progress of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportProgress {
    /// Bytes written.
    pub done_bytes: u64,
    /// Bytes of the complete file.
    pub total_bytes: u64,
}

/// A converted block. `codes` are int8 values or 4-bit blocks; `floats` are the scales of int8
/// values, or f32 values themselves. If the matrix is packed, `panels` hold both in the kernels'
/// layout, and go to the file instead of them.
#[derive(Default)]
struct Converted {
    index: usize,
    is_held: bool,
    codes: Vec<u8>,
    codes_at: u64,
    floats: Vec<f32>,
    floats_at: u64,
    panels: Vec<u8>,
    panels_at: u64,
    /// Bytes and places of the block's pieces, if its rows do not all stand together.
    pieces: Vec<(usize, u64)>,
    crcs: Crcs,
}

/// Checksums of a block's parts.
#[derive(Clone, Default)]
struct Crcs {
    codes: Hasher,
    floats: Hasher,
    panels: Hasher,
}

/// Settings with which all blocks are converted.
#[derive(Clone, Copy)]
pub(super) struct Converter<'a> {
    pub(super) header: &'a Header,
    pub(super) packing: Option<&'a Packing>,
    pub(super) calibration: Option<&'a Calibration>,
}

/// Writes the model file and returns its length.
pub(super) fn write(
    converter: Converter<'_>,
    jobs: &[TensorJob<'_>],
    out: &Path,
    verify: bool,
    progress: impl FnMut(ExportProgress) -> ControlFlow<()>,
) -> Result<u64, ExportError> {
    let failed = |source| ExportError::Write { path: out.to_owned(), source };
    let header = converter.header;
    let table_at = header.tensors_end();
    let data = header.len_bytes() as u64..table_at + 4 * header.n_tensors() as u64;
    let file = create(out, data.end)?;
    let end = |file: &mut AtomicFile, blocks: &[Crcs]| {
        let (header, table) = finish(header, jobs, blocks);
        file.write_all_at(&table, table_at).map_err(failed)?;
        file.write_all_at(&header.emit(), 0).map_err(failed)?;
        if verify {
            file.sync_and_forget().map_err(failed)?;
            verify_file(file.temporary_path(), out)?;
        }
        Ok(())
    };
    write_tensors(converter, jobs, (file, out, data), end, progress)
}

/// The head of a GGUF file, and the file's length.
pub(super) struct GgufFrame {
    pub(super) head: Vec<u8>,
    pub(super) file_bytes: u64,
}

/// Writes a GGUF file and returns its length. `read` reads the head before the tensors are converted.
pub(super) fn write_gguf(
    converter: Converter<'_>,
    jobs: &[TensorJob<'_>],
    (frame, out, verify): (&GgufFrame, &Path, bool),
    read: impl FnOnce(&Path) -> Result<(), ExportError>,
    progress: impl FnMut(ExportProgress) -> ControlFlow<()>,
) -> Result<u64, ExportError> {
    let failed = |source| ExportError::Write { path: out.to_owned(), source };
    let GgufFrame { head, file_bytes } = frame;
    let file = create(out, *file_bytes)?;
    // Not every file system reserves.
    file.set_len(*file_bytes).map_err(failed)?;
    file.write_all_at(head, 0).map_err(failed)?;
    read(file.temporary_path())?;
    let end = |file: &mut AtomicFile, blocks: &[Crcs]| {
        if verify {
            file.sync_and_forget().map_err(failed)?;
            let map = Map::open(file.temporary_path()).map_err(failed)?;
            verify_gguf(map.as_bytes(), (head, jobs, blocks))
                .map_err(|source| ExportError::Verify { path: out.to_owned(), source })?;
        }
        Ok(())
    };
    let data = head.len() as u64..*file_bytes;
    write_tensors(converter, jobs, (file, out, data), end, progress)
}

/// Converts all tensors into `file`, which has them in the range `data` and will be called `out`, and gives it its
/// name. `end` writes what depends on the tensors' checksums.
fn write_tensors(
    converter: Converter<'_>,
    jobs: &[TensorJob<'_>],
    (mut file, out, data): (AtomicFile, &Path, Range<u64>),
    end: impl FnOnce(&mut AtomicFile, &[Crcs]) -> Result<(), ExportError>,
    mut progress: impl FnMut(ExportProgress) -> ControlFlow<()>,
) -> Result<u64, ExportError> {
    let failed = |source| ExportError::Write { path: out.to_owned(), source };
    let Range { start: mut done_bytes, end: total_bytes } = data;
    let blocks = convert_all(converter, jobs, |converted| {
        if let Some(converted) = converted.filter(|converted| converted.is_held) {
            done_bytes += converted.write(&file).map_err(failed)?;
        }
        check(progress(ExportProgress { done_bytes, total_bytes }))
    })?;
    end(&mut file, &blocks)?;
    // Not left to `commit`: syncing takes long, and the caller may end the work until then.
    file.sync().map_err(failed)?;
    check(progress(ExportProgress { done_bytes: total_bytes, total_bytes }))?;
    file.commit().map_err(failed)?;
    Ok(total_bytes)
}

fn check(flow: ControlFlow<()>) -> Result<(), ExportError> {
    match flow {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(ExportError::Interrupted),
    }
}

fn create(out: &Path, bytes: u64) -> Result<AtomicFile, ExportError> {
    let failed = |source: std::io::Error| match source.kind() {
        std::io::ErrorKind::InvalidInput => {
            ExportError::Output { path: out.to_owned(), problem: source.to_string() }
        }
        _ => ExportError::Write { path: out.to_owned(), source },
    };
    let file = AtomicFile::create(out).map_err(failed)?;
    file.reserve(bytes).map_err(|e| {
        failed(std::io::Error::new(e.kind(), format!("{bytes} bytes are needed: {e}")))
    })?;
    Ok(file)
}

/// Verifies the file at `path`, which will be called `out`, by reading it again.
fn verify_file(path: &Path, out: &Path) -> Result<(), ExportError> {
    let map =
        Map::open(path).map_err(|source| ExportError::Write { path: out.to_owned(), source })?;
    map.advise_sequential();
    let verified = Header::parse(map.as_bytes()).and_then(|header| header.verify(map.as_bytes()));
    verified.map(|_| ()).map_err(|source| ExportError::Verify { path: out.to_owned(), source })
}

/// Compares the whole GGUF file `file` with its head and the checksums of its tensors' blocks.
fn verify_gguf(
    file: &[u8],
    (head, jobs, blocks): (&[u8], &[TensorJob<'_>], &[Crcs]),
) -> Result<(), FormatError> {
    let differs = |what: &str| FormatError::Checksum { what: what.to_owned() };
    if !file.starts_with(head) {
        return Err(differs("fields"));
    }
    for (job, own) in blocks_of(jobs, blocks) {
        let crc =
            join(own.iter().map(|crcs| &crcs.codes).chain(own.iter().map(|crcs| &crcs.floats)));
        let mut found = Hasher::new();
        for (len, at) in job.pieces(0..job.tensor.rows) {
            let piece = file.get(at as usize..).and_then(|rest| rest.get(..len));
            found.update(piece.unwrap_or_default());
        }
        if found.finalize() != crc.finalize() {
            return Err(differs(&job.tensor.id.to_string()));
        }
    }
    Ok(())
}

/// Converts every block and calls `write` with each, in about the order of the file, and with `None` while there is
/// nothing to write. Returns the blocks' checksums.
fn convert_all(
    converter: Converter<'_>,
    jobs: &[TensorJob<'_>],
    mut write: impl FnMut(Option<&Converted>) -> Result<(), ExportError>,
) -> Result<Vec<Crcs>, ExportError> {
    let n_threads = thread::available_parallelism().map_or(1, NonZero::get);
    let queue = Mutex::new(Queue::new(jobs));
    let free = Mutex::new(Vec::new());
    let mut crcs = vec![Crcs::default(); blocks(jobs).count()];
    thread::scope(|scope| {
        let (sender, receiver) = sync_channel(n_threads);
        for index in 0..n_threads {
            let (sender, queue, free) = (sender.clone(), &queue, &free);
            let work = move || work(converter, queue, free, &sender);
            match thread::Builder::new().spawn_scoped(scope, work) {
                // The other threads do the work.
                Err(source) if index == 0 => return Err(ExportError::Thread { source }),
                _ => {}
            }
        }
        drop(sender);
        // An error returns here and drops the receiver, which ends the workers.
        collect(receiver, |converted| {
            write(converted.as_ref())?;
            if let Some(converted) = converted {
                crcs[converted.index] = converted.crcs.clone();
                lock(&free).push(converted);
            }
            Ok(())
        })
    })?;
    Ok(crcs)
}

/// Passes on what the workers send until they are done, and `None` after each [`TICK`] without a block.
fn collect(
    receiver: Receiver<Result<Converted, ExportError>>,
    mut write: impl FnMut(Option<Converted>) -> Result<(), ExportError>,
) -> Result<(), ExportError> {
    loop {
        match receiver.recv_timeout(TICK) {
            Ok(converted) => write(Some(converted?))?,
            Err(RecvTimeoutError::Timeout) => write(None)?,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// Converts blocks until there are none or the receiver has gone.
fn work<'a, I: Iterator<Item = Block<'a>>>(
    converter: Converter<'_>,
    queue: &Mutex<Queue<I>>,
    free: &Mutex<Vec<Converted>>,
    sender: &SyncSender<Result<Converted, ExportError>>,
) {
    let mut row = Vec::new();
    loop {
        let Some(block) = lock(queue).next() else { return };
        block.job.source.advise_populate(block.rows.clone());
        let mut converted = lock(free).pop().unwrap_or_default();
        let result = converted.fill(converter, &block, &mut row);
        block.job.source.advise_dont_need(block.rows.clone());
        if sender.send(result.map(|()| converted)).is_err() {
            return;
        }
    }
}

/// Locks a mutex whose holder never leaves the contents half changed, even by a panic.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Hands out blocks, and makes the system read the coming ones.
struct Queue<I> {
    next: I,
    ahead: I,
}

impl<'a> Queue<()> {
    fn new(jobs: &'a [TensorJob<'a>]) -> Queue<impl Iterator<Item = Block<'a>>> {
        let mut queue = Queue { next: blocks(jobs), ahead: blocks(jobs) };
        for _ in 0..BLOCKS_AHEAD {
            queue.read_ahead();
        }
        queue
    }
}

impl<'a, I: Iterator<Item = Block<'a>>> Queue<I> {
    fn next(&mut self) -> Option<Block<'a>> {
        self.read_ahead();
        self.next.next()
    }

    fn read_ahead(&mut self) {
        if let Some(block) = self.ahead.next() {
            block.job.source.advise_will_need(block.rows.clone());
        }
    }
}

/// The part of a conversion that is compiled for wide vectors.
struct Quantise<'a, 'b> {
    into: &'a mut Converted,
    converter: Converter<'a>,
    block: &'a Block<'b>,
    row: &'a mut Vec<f32>,
}

impl Work for Quantise<'_, '_> {
    type Output = Result<(), ExportError>;

    #[inline(always)]
    fn run(self) -> Result<(), ExportError> {
        let Quantise { into, converter, block, row } = self;
        let encoding = match block.job.encoding(converter.header) {
            // They are the same bytes.
            Encoding::Ggml(Ggml::Q4_1) if !block.has_blocks(Ggml::Q4_1) => Encoding::Bcml1,
            encoding => encoding,
        };
        match encoding {
            Encoding::F32 => into.fill_f32(block),
            Encoding::Q8 { group } => into.fill_q8(group, block, row),
            Encoding::Ggml(kind) => into.fill_ggml(kind, block, row),
            encoding => into.fill_blocks(encoding, block, row),
        }?;
        match converter.calibration {
            Some(calibration) => into.feed_back((converter.header, calibration), block, row),
            None => Ok(()),
        }
    }
}

impl Converted {
    /// Converts `block` into this buffer; `row` is scratch space.
    fn fill(
        &mut self,
        converter: Converter<'_>,
        block: &Block<'_>,
        row: &mut Vec<f32>,
    ) -> Result<(), ExportError> {
        let Converter { header, packing, .. } = converter;
        self.index = block.index;
        self.is_held = block.job.is_held;
        self.codes.clear();
        self.floats.clear();
        self.panels.clear();
        self.pieces.clear();
        if block.job.runs.is_some() {
            self.pieces.extend(block.job.pieces(block.rows.clone()));
        }
        let kind = block.job.tensor.id.kind;
        let encoding = header.encoding(block.job.tensor.id);
        simd::run(Quantise { into: self, converter, block, row })?;
        let is_packed = self.is_held && header.packing_of(kind).is_some();
        if let Some(packing) = packing.filter(|_| is_packed) {
            let bytes = header.content_bytes(block.job.tensor.id) as usize;
            self.pack(packing, encoding, (block, bytes));
        }
        self.crcs = Crcs {
            codes: crc(&self.codes),
            floats: crc(bytemuck::cast_slice(&self.floats)),
            panels: crc(&self.panels),
        };
        Ok(())
    }

    /// Packs the codes and scales of a block of a tensor that takes `bytes` in the file.
    fn pack(&mut self, packing: &Packing, encoding: Encoding, (block, bytes): (&Block<'_>, usize)) {
        let Tensor { rows, cols, offset, .. } = block.job.tensor;
        let (codes, scales) = (&self.codes, &self.floats);
        let row_bytes = bytes / rows.next_multiple_of(packing.panel_rows);
        let rows = block.rows.len().next_multiple_of(packing.panel_rows);
        self.panels_at = offset + (block.rows.start * row_bytes) as u64;
        self.panels.resize(rows * row_bytes, 0);
        let rows = match encoding {
            Encoding::F32 => unreachable!("f32 matrices are not packed"),
            Encoding::Q8 { group } => {
                Q8Matrix::new(bytemuck::cast_slice(codes), scales, cols, group)
                    .map(QuantisedRows::Q8)
            }
            Encoding::Bcml1 => Bcml1Matrix::new(codes, cols).map(QuantisedRows::Q4),
            Encoding::Bcml2 => Bcml2Matrix::new(codes, cols).map(QuantisedRows::B2),
            Encoding::Bcml6 => Bcml6Matrix::new(codes, cols).map(QuantisedRows::B6),
            Encoding::Ggml(kind) => GgmlMatrix::new(kind, codes, cols).map(QuantisedRows::Ggml),
        };
        (packing.pack)(rows.expect("blocks are whole rows"), &mut self.panels);
    }

    #[inline(always)]
    fn fill_f32(&mut self, block: &Block<'_>) -> Result<(), ExportError> {
        let Tensor { cols, offset, .. } = block.job.tensor;
        let values = block.values();
        self.floats_at = offset + 4 * values.start as u64;
        self.floats.resize(values.len(), 0.0);
        for (row, out) in block.rows.clone().zip(self.floats.chunks_exact_mut(cols)) {
            block.widen(row, out);
        }
        if is_finite(&self.floats) { Ok(()) } else { Err(block.not_finite()) }
    }

    #[inline(always)]
    fn fill_q8(
        &mut self,
        group: usize,
        block: &Block<'_>,
        wide: &mut Vec<f32>,
    ) -> Result<(), ExportError> {
        let Tensor { rows, cols, offset, .. } = block.job.tensor;
        let values = block.values();
        self.codes_at = offset + values.start as u64;
        self.floats_at = offset + (rows * cols) as u64 + (4 * (values.start / group)) as u64;
        self.codes.resize(values.len(), 0);
        self.floats.resize(values.len() / group, 0.0);
        wide.resize(cols, 0.0);
        let TensorJob { source, .. } = block.job;
        let is_kept = block.has_codes(group);
        let out = self.codes.chunks_exact_mut(cols).zip(self.floats.chunks_exact_mut(cols / group));
        for (row, (q, scales)) in block.rows.clone().zip(out) {
            if is_kept {
                source.split_row(block.job.source_row(row), q, scales);
                continue;
            }
            block.widen(row, wide);
            quant::quantize(wide, group, bytemuck::cast_slice_mut(q), scales);
        }
        // A group that holds anything but finite numbers has a NaN as its scale.
        if is_finite(&self.floats) { Ok(()) } else { Err(block.not_finite()) }
    }

    /// Copies the blocks of a GGUF file; other rows are encoded.
    #[inline(always)]
    fn fill_ggml(
        &mut self,
        kind: Ggml,
        block: &Block<'_>,
        wide: &mut Vec<f32>,
    ) -> Result<(), ExportError> {
        let Tensor { cols, offset, .. } = block.job.tensor;
        let row_bytes = kind.row_bytes(cols);
        self.codes_at = offset + (block.rows.start * row_bytes) as u64;
        self.codes.resize(block.rows.len() * row_bytes, 0);
        wide.resize(cols, 0.0);
        for (row, out) in block.rows.clone().zip(self.codes.chunks_exact_mut(row_bytes)) {
            match block.job.source.row_blocks(kind, block.job.source_row(row)) {
                Some(blocks) => out.copy_from_slice(blocks),
                None => {
                    block.widen(row, wide);
                    if !is_finite(wide) {
                        return Err(block.not_finite());
                    }
                    ggml::encode(kind, wide, out);
                }
            }
            kind.widen(out, wide);
            if !is_finite(wide) {
                return Err(block.not_finite());
            }
        }
        Ok(())
    }

    /// Encodes rows in one of the block formats.
    #[inline(always)]
    fn fill_blocks(
        &mut self,
        encoding: Encoding,
        block: &Block<'_>,
        wide: &mut Vec<f32>,
    ) -> Result<(), ExportError> {
        let Tensor { cols, offset, .. } = block.job.tensor;
        let blocks = cols / bcml1::BLOCK;
        let row_bytes = match encoding {
            Encoding::Bcml2 => bcml2::row_bytes(cols),
            Encoding::Bcml6 => bcml6::row_bytes(cols),
            _ => blocks * bcml1::BLOCK_BYTES,
        };
        self.codes_at = offset + (block.rows.start * row_bytes) as u64;
        self.codes.resize(block.rows.len() * row_bytes, 0);
        wide.resize(cols, 0.0);
        let (mut lines, mut multipliers) =
            (vec![bcml1::Block::zeroed(); blocks], vec![0.0; blocks]);
        for (row, out) in block.rows.clone().zip(self.codes.chunks_exact_mut(row_bytes)) {
            block.widen(row, wide);
            let encoded = match encoding {
                Encoding::Bcml2 => bcml2::encode_row(wide, &mut lines, out),
                Encoding::Bcml6 => bcml6::encode_row(wide, &mut multipliers, out),
                _ => bcml1::encode(wide, bytemuck::cast_slice_mut(out)),
            };
            encoded.map_err(|error| block.not_encoded(&error))?;
        }
        Ok(())
    }

    /// Encodes the block's rows again, with feedback from weight to weight, for matrices whose inputs were measured. An
    /// error names the first weights that cannot be encoded.
    #[inline(always)]
    fn feed_back(
        &mut self,
        (header, calibration): (&Header, &Calibration),
        block: &Block<'_>,
        wide: &mut Vec<f32>,
    ) -> Result<(), ExportError> {
        let Tensor { id, rows, cols, .. } = block.job.tensor;
        // Inputs were measured in the order of the source.
        let is_measured = matches!(block.job.cols, Order::Same);
        if id.kind.is_vector() || !is_measured {
            return Ok(());
        }
        let rows_of_one = header.rows_of_one(id.kind).unwrap_or(rows);
        let encoding = header.encoding(id);
        let is_kept = match encoding {
            Encoding::Q8 { group } => block.has_codes(group),
            Encoding::Ggml(kind) => block.has_blocks(kind),
            _ => false,
        };
        let mut row = block.rows.start;
        while row < block.rows.end {
            let expert = row / rows_of_one;
            let end = block.rows.end.min((expert + 1) * rows_of_one);
            let triangle = calibration.triangle(id, expert).filter(|_| !is_kept);
            if let Some(triangle) = triangle {
                wide.resize((end - row) * cols, 0.0);
                for (row, wide) in (row..end).zip(wide.chunks_exact_mut(cols)) {
                    block.widen(row, wide);
                }
                let first = row - block.rows.start;
                let values = first * cols..(end - block.rows.start) * cols;
                let feedback = Feedback::new(wide, cols, triangle);
                self.encode_again(encoding, &feedback, values)
                    .map_err(|error| block.not_encoded(&error))?;
            }
            row = end;
        }
        Ok(())
    }

    /// Encodes `values` of the block.
    #[inline(always)]
    fn encode_again(
        &mut self,
        encoding: Encoding,
        feedback: &Feedback<'_>,
        values: Range<usize>,
    ) -> Result<(), quant::QuantError> {
        match encoding {
            // Not encoded again: f32 values, and embedding and classifier, whose inputs are not measured.
            Encoding::F32 | Encoding::Bcml6 => {}
            Encoding::Q8 { group } => {
                let scales = &mut self.floats[values.start / group..values.end / group];
                let q = bytemuck::cast_slice_mut(&mut self.codes[values]);
                feedback.encode_q8(group, q, scales);
            }
            Encoding::Ggml(kind @ Ggml::Q4K) => {
                let bytes = |at: usize| at / kind.len() * kind.bytes();
                feedback.encode_q4_k(&mut self.codes[bytes(values.start)..bytes(values.end)])?;
            }
            Encoding::Bcml1 | Encoding::Ggml(Ggml::Q4_1) => {
                let bytes = |at: usize| at / bcml1::BLOCK * bcml1::BLOCK_BYTES;
                let blocks = &mut self.codes[bytes(values.start)..bytes(values.end)];
                feedback.encode_bcml1(bytemuck::cast_slice_mut(blocks))?;
            }
            // Eight bits are exact enough.
            Encoding::Ggml(_) => {}
            Encoding::Bcml2 => {
                let row_bytes = bcml2::row_bytes(feedback.k());
                let rows = values.start / feedback.k()..values.end / feedback.k();
                let out = &mut self.codes[rows.start * row_bytes..rows.end * row_bytes];
                feedback.encode_bcml2(out)?;
            }
        }
        Ok(())
    }

    /// Writes the block to its places and returns the number of bytes.
    fn write(&self, file: &AtomicFile) -> std::io::Result<u64> {
        let floats: &[u8] = bytemuck::cast_slice(&self.floats);
        if !self.pieces.is_empty() {
            let mut rest = if self.codes.is_empty() { floats } else { &self.codes };
            for (len, at) in &self.pieces {
                let (piece, others) = rest.split_at(*len);
                file.write_all_at(piece, *at)?;
                rest = others;
            }
            return Ok(self.pieces.iter().map(|(len, _)| *len as u64).sum());
        }
        let mut bytes = 0;
        let parts = match self.panels.is_empty() {
            true => [(&*self.codes, self.codes_at), (floats, self.floats_at)],
            false => [(&*self.panels, self.panels_at), (&[], 0)],
        };
        for (part, at) in parts {
            file.write_all_at(part, at)?;
            bytes += part.len() as u64;
        }
        Ok(bytes)
    }
}

/// Compares magnitudes as bits, which vectorises: infinities and NaNs are the largest.
#[inline(always)]
fn is_finite(values: &[f32]) -> bool {
    let largest = values.iter().map(|value| value.abs().to_bits()).max();
    largest.unwrap_or(0) < f32::INFINITY.to_bits()
}

fn crc(bytes: &[u8]) -> Hasher {
    let mut crc = Hasher::new();
    crc.update(bytes);
    crc
}

/// The complete header, and the table of checksums.
fn finish(header: &Header, jobs: &[TensorJob<'_>], blocks: &[Crcs]) -> (Header, Vec<u8>) {
    let (mut plain, mut stored) = (Vec::new(), Vec::new());
    for (job, own) in blocks_of(jobs, blocks) {
        // A tensor is all its codes, then all its scales.
        let codes = own.iter().map(|crcs| &crcs.codes);
        let mut as_plain = join(codes.chain(own.iter().map(|crcs| &crcs.floats)));
        let padding = job.tensor.bytes - header.content_bytes(job.tensor.id);
        let padding = &[0; PACKED_ALIGN as usize][..padding as usize];
        if header.packed.is_none() {
            as_plain.update(padding);
        }
        plain.extend(as_plain.clone().finalize().to_le_bytes());
        if !job.is_held {
            continue;
        }
        let mut as_stored = match header.packing_of(job.tensor.id.kind) {
            Some(_) => join(own.iter().map(|crcs| &crcs.panels)),
            None => as_plain,
        };
        if header.packed.is_some() {
            as_stored.update(padding);
        }
        stored.extend(as_stored.finalize().to_le_bytes());
    }
    let whole = header.plain();
    let fingerprint = fingerprint(&whole.emit(), &plain);
    let packed = header.packed.map(|packed| Packed { fingerprint, ..packed });
    let share = header.share.clone().map(|share| FileShare { fingerprint, ..share });
    (Header { packed, share, ..whole }, stored)
}

/// Each job with the checksums of its blocks.
fn blocks_of<'a>(
    jobs: &'a [TensorJob<'a>],
    blocks: &'a [Crcs],
) -> impl Iterator<Item = (&'a TensorJob<'a>, &'a [Crcs])> {
    let mut rest = blocks;
    jobs.iter().map(move |job| {
        let n_blocks = job.tensor.rows.div_ceil(job.rows_per_block());
        let (own, others) = rest.split_at(n_blocks);
        rest = others;
        (job, own)
    })
}

/// The checksum of parts that follow each other.
fn join<'a>(parts: impl Iterator<Item = &'a Hasher>) -> Hasher {
    parts.fold(Hasher::new(), |mut crc, part| {
        crc.combine(part);
        crc
    })
}
