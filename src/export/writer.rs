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

use crc32fast::Hasher;

use super::checkpoint::{INT8_GROUP, SourceTensor};
use super::error::ExportError;
use crate::format::model::{
    Encoding, FileShare, Header, PACKED_ALIGN, Packed, Tensor, TensorKind, fingerprint,
};
use crate::quant::{self, Bcml1Matrix, Q8Matrix, bcml1};
use crate::sys::file::AtomicFile;
use crate::sys::map::Map;
use crate::sys::simd::{self, Work};

/// Values of a block, unless a single row or head has more.
const BLOCK_LEN: usize = 1 << 20;
/// How many blocks ahead of the workers the system is asked to read.
const BLOCKS_AHEAD: usize = 32;
/// How often the caller hears of progress when the disk is slow.
const TICK: Duration = Duration::from_millis(100);

/// How far an export is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportProgress {
    /// Bytes written.
    pub done_bytes: u64,
    /// Bytes the file will have.
    pub total_bytes: u64,
}

/// How matrices are packed for the kernels of one instruction set.
pub struct Packing {
    /// Number of the layout.
    pub layout: u32,
    /// Rows of a panel.
    pub panel_rows: usize,
    /// Packs rows of a matrix.
    pub pack: PackRows,
}

/// Packs rows of a matrix into whole panels; the last rows are padded to one.
pub type PackRows = Box<dyn Fn(QuantisedRows<'_>, &mut [u8]) + Send + Sync>;

/// Quantised rows to pack.
#[derive(Clone, Copy)]
pub enum QuantisedRows<'a> {
    /// int8.
    Q8(Q8Matrix<'a>),
    /// 4-bit blocks.
    Q4(Bcml1Matrix<'a>),
}

/// A tensor of the model file and where its values come from. Their shapes agree.
pub(super) struct TensorJob<'a> {
    pub(super) tensor: Tensor,
    pub(super) source: SourceTensor<'a>,
    /// The heads, if the source has each one's RoPE pairs as two halves.
    pub(super) halved_heads: Option<HalvedHeads>,
    /// What becomes of each value.
    pub(super) change: Change,
    /// Rows of a panel; 1 if the tensor is not packed.
    pub(super) panel_rows: usize,
    /// Whether the tensor goes to the file. Of others only the checksum counts, for the
    /// fingerprint of the whole model.
    pub(super) is_held: bool,
}

/// Heads whose RoPE pairs stand as two halves.
#[derive(Clone, Copy)]
pub(super) struct HalvedHeads {
    /// Values of a head.
    pub(super) width: usize,
    /// How many of them are in pairs, the first.
    pub(super) rotary: usize,
}

impl HalvedHeads {
    /// Where the source has value or row `index` of the model file.
    fn source(self, index: usize) -> usize {
        let HalvedHeads { width, rotary } = self;
        match index % width {
            within if within >= rotary => index,
            within => index - within + within % 2 * (rotary / 2) + within / 2,
        }
    }
}

/// What becomes of values before they are stored.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Change {
    /// Is added first.
    pub(super) plus: f32,
    /// Divides then.
    pub(super) divisor: f32,
}

impl Change {
    /// Values stay as they are.
    pub(super) const NONE: Change = Change { plus: 0.0, divisor: 1.0 };
}

/// Some rows of a job.
struct Block<'a> {
    /// Number of the block in the file.
    index: usize,
    job: &'a TensorJob<'a>,
    rows: Range<usize>,
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
    crcs: Crcs,
}

/// Checksums of a block's parts.
#[derive(Clone, Default)]
struct Crcs {
    codes: Hasher,
    floats: Hasher,
    panels: Hasher,
}

/// What all blocks are converted with.
#[derive(Clone, Copy)]
struct Converter<'a> {
    header: &'a Header,
    packing: Option<&'a Packing>,
}

/// Writes the model file and returns its length.
pub(super) fn write(
    (header, packing): (&Header, Option<&Packing>),
    jobs: &[TensorJob<'_>],
    out: &Path,
    verify: bool,
    mut progress: impl FnMut(ExportProgress) -> ControlFlow<()>,
) -> Result<u64, ExportError> {
    let failed = |source| ExportError::Write { path: out.to_owned(), source };
    let table_at = header.tensors_end();
    let total_bytes = table_at + 4 * header.n_tensors() as u64;
    let mut file = create(out, total_bytes)?;
    let mut done_bytes = header.len_bytes() as u64;
    let blocks = convert_all(Converter { header, packing }, jobs, |converted| {
        if let Some(converted) = converted.filter(|converted| converted.is_held) {
            done_bytes += converted.write(&file).map_err(failed)?;
        }
        check(progress(ExportProgress { done_bytes, total_bytes }))
    })?;
    let (header, table) = finish(header, jobs, &blocks);
    file.write_all_at(&table, table_at).map_err(failed)?;
    file.write_all_at(&header.emit(), 0).map_err(failed)?;
    if verify {
        file.sync_and_forget().map_err(failed)?;
        verify_file(file.temporary_path(), out)?;
    }
    // Not left to `commit`: it takes long, and the caller may lose patience.
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

/// Reads the file at `path` again, which will be called `out`.
fn verify_file(path: &Path, out: &Path) -> Result<(), ExportError> {
    let map =
        Map::open(path).map_err(|source| ExportError::Write { path: out.to_owned(), source })?;
    map.advise_sequential();
    let verified = Header::parse(map.as_bytes()).and_then(|header| header.verify(map.as_bytes()));
    verified.map(|_| ()).map_err(|source| ExportError::Verify { path: out.to_owned(), source })
}

/// Converts every block and calls `write` with each, in about the order of the file, and
/// with none where there is nothing to write yet. Returns the blocks' checksums.
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
                // Those that are there do the work.
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

/// Passes on what the workers send until they are done, and `None` where they are slow.
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

/// Converts blocks until there are none or nobody takes them.
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

/// A lock whose holder never leaves its contents half changed, even by a panic.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Hands out blocks, and has the system read the coming ones.
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

/// The blocks of all jobs, in the order of the file.
fn blocks<'a>(jobs: &'a [TensorJob<'a>]) -> impl Iterator<Item = Block<'a>> {
    let rows = jobs.iter().flat_map(|job| {
        let n_rows = job.tensor.rows;
        let step = job.rows_per_block();
        (0..n_rows).step_by(step).map(move |row| (job, row..n_rows.min(row.saturating_add(step))))
    });
    rows.enumerate().map(|(index, (job, rows))| Block { index, job, rows })
}

impl TensorJob<'_> {
    /// Whole heads where rows change places, so that a block's values are in one piece, and whole
    /// panels.
    fn rows_per_block(&self) -> usize {
        let is_matrix = !self.tensor.id.kind.is_vector();
        let halved = self.halved_heads.filter(|_| is_matrix);
        let (heads, panels) = (halved.map_or(1, |halved| halved.width), self.panel_rows);
        let unit = if heads.is_multiple_of(panels) { heads } else { heads * panels };
        unit * (BLOCK_LEN / self.tensor.cols / unit).max(1)
    }

    /// The source's row for `row` of the model file.
    fn source_row(&self, row: usize) -> usize {
        let is_matrix = !self.tensor.id.kind.is_vector();
        self.halved_heads.filter(|_| is_matrix).map_or(row, |halved| halved.source(row))
    }
}

impl Block<'_> {
    /// The block's values, counted from the start of the tensor.
    fn values(&self) -> Range<usize> {
        self.rows.start * self.job.tensor.cols..self.rows.end * self.job.tensor.cols
    }

    /// Converts `row` of the model file to f32.
    #[inline(always)]
    fn widen(&self, row: usize, out: &mut [f32]) {
        self.job.source.widen_row(self.job.source_row(row), out);
        let TensorJob { change, halved_heads, tensor, .. } = self.job;
        if *change != Change::NONE {
            out.iter_mut().for_each(|x| *x = (*x + change.plus) / change.divisor);
        }
        if let Some(halved) = halved_heads.filter(|_| tensor.id.kind.is_vector()) {
            let source = out.to_vec();
            for (index, x) in out.iter_mut().enumerate() {
                *x = source[halved.source(index)];
            }
        }
    }

    fn not_finite(&self) -> ExportError {
        self.job.source.error("holds a NaN or an infinity".to_owned())
    }
}

/// The part of a conversion that is compiled for wide vectors.
struct Quantise<'a, 'b> {
    into: &'a mut Converted,
    encoding: Encoding,
    block: &'a Block<'b>,
    row: &'a mut Vec<f32>,
}

impl Work for Quantise<'_, '_> {
    type Output = Result<(), ExportError>;

    #[inline(always)]
    fn run(self) -> Result<(), ExportError> {
        let Quantise { into, encoding, block, row } = self;
        match encoding {
            Encoding::F32 => into.fill_f32(block),
            Encoding::Q8 { group } => into.fill_q8(group, block, row),
            Encoding::Bcml1 => into.fill_bcml1(block, row),
        }
    }
}

impl Converted {
    /// Converts `block` into this buffer; `row` is scratch space.
    fn fill(
        &mut self,
        Converter { header, packing }: Converter<'_>,
        block: &Block<'_>,
        row: &mut Vec<f32>,
    ) -> Result<(), ExportError> {
        self.index = block.index;
        self.is_held = block.job.is_held;
        self.codes.clear();
        self.floats.clear();
        self.panels.clear();
        let kind = block.job.tensor.id.kind;
        let encoding = header.encoding(kind);
        simd::run(Quantise { into: self, encoding, block, row })?;
        let is_packed = self.is_held && header.packing_of(kind).is_some();
        if let Some(packing) = packing.filter(|_| is_packed) {
            self.pack(packing, encoding, block);
        }
        self.crcs = Crcs {
            codes: crc(&self.codes),
            floats: crc(bytemuck::cast_slice(&self.floats)),
            panels: crc(&self.panels),
        };
        Ok(())
    }

    /// Packs the codes and scales that are there.
    fn pack(&mut self, packing: &Packing, encoding: Encoding, block: &Block<'_>) {
        let Tensor { cols, offset, .. } = block.job.tensor;
        let (codes, scales) = (&self.codes, &self.floats);
        let row_bytes = (codes.len() + size_of_val(&scales[..])) / block.rows.len();
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
        let is_kept = source.is_int8() && group == INT8_GROUP;
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

    #[inline(always)]
    fn fill_bcml1(&mut self, block: &Block<'_>, wide: &mut Vec<f32>) -> Result<(), ExportError> {
        let Tensor { cols, offset, .. } = block.job.tensor;
        let row_bytes = cols / bcml1::BLOCK * bcml1::BLOCK_BYTES;
        self.codes_at = offset + (block.rows.start * row_bytes) as u64;
        self.codes.resize(block.rows.len() * row_bytes, 0);
        wide.resize(cols, 0.0);
        for (row, out) in block.rows.clone().zip(self.codes.chunks_exact_mut(row_bytes)) {
            block.widen(row, wide);
            bcml1::encode(wide, bytemuck::cast_slice_mut(out)).map_err(|error| match error {
                quant::QuantError::Value { value, .. } if value.is_finite() => {
                    let max = bcml1::WEIGHT_MAX;
                    block.job.source.error(format!("holds {value}, 4 bits go to {max} at most"))
                }
                _ => block.not_finite(),
            })?;
        }
        Ok(())
    }

    /// Writes the block to its places and returns the number of bytes.
    fn write(&self, file: &AtomicFile) -> std::io::Result<u64> {
        let mut bytes = 0;
        let floats: &[u8] = bytemuck::cast_slice(&self.floats);
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

/// The header, complete now, and the table of checksums.
fn finish(header: &Header, jobs: &[TensorJob<'_>], blocks: &[Crcs]) -> (Header, Vec<u8>) {
    let (mut plain, mut stored) = (Vec::new(), Vec::new());
    let mut rest = blocks;
    for job in jobs {
        let n_blocks = job.tensor.rows.div_ceil(job.rows_per_block());
        let (own, others) = rest.split_at(n_blocks);
        rest = others;
        // A tensor is all its codes, then all its scales.
        let codes = own.iter().map(|crcs| &crcs.codes);
        let as_plain = join(codes.chain(own.iter().map(|crcs| &crcs.floats)));
        let kind = job.tensor.id.kind;
        if !(header.shared_classifier && kind == TensorKind::Classifier) {
            plain.extend(as_plain.clone().finalize().to_le_bytes());
        }
        if !job.is_held {
            continue;
        }
        let mut as_stored = match header.packing_of(kind) {
            Some(_) => join(own.iter().map(|crcs| &crcs.panels)),
            None => as_plain,
        };
        let padding = job.tensor.bytes - header.content_bytes(kind);
        as_stored.update(&[0; PACKED_ALIGN as usize][..padding as usize]);
        stored.extend(as_stored.finalize().to_le_bytes());
    }
    let whole = header.plain();
    let fingerprint = fingerprint(&whole.emit(), &plain);
    let packed = header.packed.map(|packed| Packed { fingerprint, ..packed });
    let share = header.share.clone().map(|share| FileShare { fingerprint, ..share });
    (Header { packed, share, ..whole }, stored)
}

/// The checksum of parts that follow each other.
fn join<'a>(parts: impl Iterator<Item = &'a Hasher>) -> Hasher {
    parts.fold(Hasher::new(), |mut crc, part| {
        crc.combine(part);
        crc
    })
}
