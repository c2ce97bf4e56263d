//! A model: its weights in a mapped file, and the forward pass over them.
//!
//! [`Model`] is what the file holds and is shared freely. [`Transformer`] adds what one
//! user of it needs: threads, kernels, buffers and the KV cache.

mod attention;
mod buffers;
mod check;
mod forward;
mod interest;
mod kv;
mod packed;
mod plan;
mod project;
mod rope;
mod share;
mod synthetic;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::format;
use crate::format::model::{Encoding, Header, Part, Tensor, TensorId, TensorKind};
use crate::kernels::{Isa, Kernels, Layout, PACKED_GROUP_MAX, PackedQ4, PackedQ8};
use crate::quant::{Bcml1Matrix, Q8Matrix, bcml1};
use crate::sys::huge::HugeMemory;
use crate::sys::map::{Map, Stamp};

use share::Weights;

pub use check::CheckError;
pub use forward::{ForwardError, Row, StartError, Transformer};
pub use packed::{PackError, PackProgress, PackReport};
pub use plan::{KvType, Plan, PlanError};
pub use share::Share;
pub use synthetic::{Shape, SyntheticError};

/// Weights and configuration of a model, or of one node's share of it.
pub struct Model {
    header: Header,
    share: Share,
    weights: Weights,
    /// Of the whole file, whatever the share.
    fingerprint: OnceLock<u64>,
    /// The stored checksums of the file's tensors, if it has any.
    checksums: HashMap<TensorId, u32>,
    /// The file as it was when it was mapped.
    stamp: Option<Stamp>,
    /// How the file's matrices are packed, and for whom; `None` if they are not.
    packed_for: Option<(Isa, Layout)>,
}

enum Source {
    Map(Map),
    Static(&'static [u8]),
    Memory(HugeMemory),
}

/// Why a model cannot be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoadError {
    /// The file cannot be read.
    Io {
        /// Path as given.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is not a model this version can run.
    Format {
        /// Path as given.
        path: PathBuf,
        /// What is wrong.
        source: format::Error,
    },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (LoadError::Io { path, .. } | LoadError::Format { path, .. }) = self;
        write!(f, "cannot use model {}", path.display())
    }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            LoadError::Io { source, .. } => Some(source),
            LoadError::Format { source, .. } => Some(source),
        }
    }
}

/// A weight matrix `[rows, k]`.
#[derive(Clone, Copy)]
pub enum Matrix<'a> {
    /// f32, row-major.
    F32 {
        /// `[rows, k]`.
        w: &'a [f32],
        /// Columns.
        k: usize,
    },
    /// int8 with group scales, row-major.
    Q8(Q8Matrix<'a>),
    /// int8 with group scales, in the layout of the kernels in use.
    PackedQ8(PackedQ8<'a>),
    /// 4-bit blocks, row-major.
    Q4(Bcml1Matrix<'a>),
    /// 4-bit blocks, in the layout of the kernels in use.
    PackedQ4(PackedQ4<'a>),
}

impl<'a> Matrix<'a> {
    /// Number of rows: outputs of a projection.
    pub fn rows(&self) -> usize {
        match self {
            Matrix::F32 { w, k } => w.len() / k,
            Matrix::Q8(matrix) => matrix.rows(),
            Matrix::PackedQ8(matrix) => matrix.rows(),
            Matrix::Q4(matrix) => matrix.rows(),
            Matrix::PackedQ4(matrix) => matrix.rows(),
        }
    }

    /// The matrix of rows `range` alone: whole panels of a packed one, or its end.
    pub fn slice_rows(&self, range: Range<usize>) -> Matrix<'a> {
        match self {
            Matrix::F32 { w, k } => Matrix::F32 { w: &w[range.start * k..range.end * k], k: *k },
            Matrix::Q8(matrix) => Matrix::Q8(matrix.slice_rows(range)),
            Matrix::PackedQ8(matrix) => Matrix::PackedQ8(matrix.slice_rows(range)),
            Matrix::Q4(matrix) => Matrix::Q4(matrix.slice_rows(range)),
            Matrix::PackedQ4(matrix) => Matrix::PackedQ4(matrix.slice_rows(range)),
        }
    }

    /// `bytes` as the quantised matrix of `kind` that was packed in `layout`.
    ///
    /// # Panics
    /// If it has not that many bytes, or cannot be packed.
    fn packed(bytes: &'a [u8], header: &Header, kind: TensorKind, layout: Layout) -> Matrix<'a> {
        let shape = header.shape(kind);
        let matrix = match (header.weights.encoding(kind), header.weights.group()) {
            (Encoding::Q8 { group }, _) => {
                PackedQ8::new(bytes, shape, group, layout).map(Matrix::PackedQ8)
            }
            (Encoding::Bcml1, Some(group)) => {
                PackedQ4::new(bytes, shape, group, layout).map(Matrix::PackedQ4)
            }
            _ => unreachable!("f32 matrices are not packed"),
        };
        matrix.expect("a packed matrix has the length that its layout gives")
    }

    /// Writes row `index` as f32 to `out`, `[k]`.
    pub fn read_row(&self, index: usize, kernels: &Kernels, out: &mut [f32]) {
        match self {
            Matrix::F32 { w, k } => out.copy_from_slice(&w[index * k..][..*k]),
            Matrix::Q8(matrix) => {
                let row = matrix.row(index);
                kernels.dequantize_q8(row.q, row.scales, matrix.group(), out);
            }
            Matrix::Q4(matrix) => bcml1::decode(matrix.row(index), out),
            Matrix::PackedQ8(_) | Matrix::PackedQ4(_) => {
                unreachable!("rows are read from the model, packed weights only multiplied by")
            }
        }
    }
}

impl Model {
    /// Maps the model file at `path` and checks its header.
    ///
    /// # Errors
    /// If the file cannot be mapped, is not a model whose every tensor lies inside it, or holds
    /// only some of the layers.
    pub fn open(path: &Path) -> Result<Model, LoadError> {
        let model = Model::open_part(path)?;
        match model.check_whole() {
            Ok(()) => Ok(model),
            Err(source) => Err(LoadError::Format { path: path.to_owned(), source }),
        }
    }

    /// Refuses a model whose file holds only some layers.
    ///
    /// # Errors
    /// Names the layers.
    pub fn check_whole(&self) -> Result<(), format::Error> {
        let Some(Part { layers: Range { start, end }, .. }) = &self.header.part else {
            return Ok(());
        };
        Err(format::Error::Unsupported(format!(
            "the file holds only layers {start}..{end} of {}, for one node of a ring",
            self.header.n_layers
        )))
    }

    /// Maps the model file at `path`, whichever layers it holds: [`Model::share`] tells.
    ///
    /// # Errors
    /// If the file cannot be mapped, or is not a model whose every tensor lies inside it.
    pub fn open_part(path: &Path) -> Result<Model, LoadError> {
        let io_error = |source| LoadError::Io { path: path.to_owned(), source };
        let map = Map::open(path).map_err(io_error)?;
        Model::new(Source::Map(map))
            .map_err(|source| LoadError::Format { path: path.to_owned(), source })
    }

    /// Uses a model file that is part of the program.
    ///
    /// # Errors
    /// If the bytes are not a model file, or do not start at a multiple of 4.
    pub fn from_static(bytes: &'static [u8]) -> Result<Model, format::Error> {
        if !(bytes.as_ptr() as usize).is_multiple_of(align_of::<f32>()) {
            return Err(format::Error::Unsupported("a model at an odd address".to_owned()));
        }
        Model::new(Source::Static(bytes))
    }

    fn new(source: Source) -> Result<Model, format::Error> {
        let header = Header::parse(source.bytes())?;
        let share = Share::of_file(&header);
        let bytes = source.bytes();
        let fingerprint = OnceLock::new();
        if header.has_extension {
            fingerprint.get_or_init(|| header.fingerprint(bytes));
        }
        let checksums = match &source {
            // Made-up weights have none.
            Source::Memory(_) => HashMap::new(),
            Source::Static(_) | Source::Map(_) => {
                let ids = header.tensors().map(|tensor| tensor.id);
                ids.zip(header.checksums(bytes)).collect()
            }
        };
        let stamp = match &source {
            Source::Map(map) => map.stamp().ok(),
            Source::Static(_) | Source::Memory(_) => None,
        };
        let packed_for = packed_for(&header)?;
        let weights = Weights::whole(&header, source);
        Ok(Model { header, share, weights, fingerprint, checksums, stamp, packed_for })
    }

    /// The model with the weights of `share` alone; nothing else of its file stays mapped.
    ///
    /// # Errors
    /// If the file cannot be mapped, or the share's layers are none or not the model's, or the
    /// file does not hold them.
    pub fn with_share(self, share: Share) -> io::Result<Model> {
        let Range { start, end } = share.layers;
        if start >= end || !self.share.includes(&share) {
            let own = &self.share;
            let ends = if share.has_ends && !own.has_ends { " and the embedding" } else { "" };
            let what = format!(
                "no layers {start}..{end}{ends} where there are {}..{} of {}",
                own.layers.start, own.layers.end, self.header.n_layers
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        // Of the whole file, which is not mapped afterwards.
        self.fingerprint();
        let weights = self.weights.narrow(&share)?;
        Ok(Model { share, weights, ..self })
    }

    /// What the file says about the model.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The kernels that the file's matrices are packed for, and that alone can run the model;
    /// `None` if they are not packed.
    pub fn packed_for(&self) -> Option<Isa> {
        self.packed_for.map(|(isa, _)| isa)
    }

    /// Which part of the model this is.
    pub fn share(&self) -> &Share {
        &self.share
    }

    /// Stands for the model's content: see [`Header::fingerprint`]. A file without checksums is
    /// read as a whole when this is asked for the first time.
    pub fn fingerprint(&self) -> u64 {
        *self.fingerprint.get_or_init(|| self.header.fingerprint(self.weights.whole_file()))
    }

    /// The same, unless the file would have to be read for it.
    pub fn known_fingerprint(&self) -> Option<u64> {
        self.fingerprint.get().copied()
    }

    /// Says what the fingerprint is, if the file would have to be read to find out. The caller has
    /// it from an earlier process that did, and knows the file to be the same.
    pub fn assume_fingerprint(&self, fingerprint: u64) {
        self.fingerprint.get_or_init(|| fingerprint);
    }

    /// The file as it was when it was mapped; `None` for a model in memory.
    pub fn stamp(&self) -> Option<&Stamp> {
        self.stamp.as_ref()
    }

    /// Bytes of weights that decoding one token reads here: everything of the share but the embedding, of
    /// which one row is read, unless it is the classifier too.
    pub fn bytes_per_token(&self) -> u64 {
        let is_read = |t: &Tensor| t.id.kind.is_norm() || self.header.is_multiplied(t.id.kind);
        let held = self.header.tensors().filter(|tensor| self.share.holds(tensor.id));
        held.filter(is_read).map(|t| t.bytes).sum()
    }

    /// The norm weights `id`, `[dim]`.
    pub(crate) fn norm(&self, kind: TensorKind, layer: usize) -> &[f32] {
        floats(self.tensor_bytes(TensorId { kind, layer }))
    }

    /// The matrix of `kind` in `layer` (0 if the kind is not per layer).
    pub(crate) fn matrix(&self, kind: TensorKind, layer: usize) -> Matrix<'_> {
        let bytes = self.content(TensorId { kind, layer });
        let is_packed = self.header.packing_of(kind).is_some();
        if let Some((_, layout)) = self.packed_for.filter(|_| is_packed) {
            return Matrix::packed(bytes, &self.header, kind, layout);
        }
        let (rows, k) = self.header.shape(kind);
        match self.header.weights.encoding(kind) {
            Encoding::F32 => Matrix::F32 { w: floats(bytes), k },
            Encoding::Q8 { group } => {
                let (q, scales) = bytes.split_at(rows * k);
                let matrix = Q8Matrix::new(bytemuck::cast_slice(q), floats(scales), k, group);
                Matrix::Q8(matrix.expect("the header's group size divides every matrix"))
            }
            Encoding::Bcml1 => {
                let matrix = Bcml1Matrix::new(bytes, k);
                Matrix::Q4(matrix.expect("the header's group size divides every matrix"))
            }
        }
    }

    /// The bytes of a tensor without what fills it up.
    fn content(&self, id: TensorId) -> &[u8] {
        &self.tensor_bytes(id)[..self.header.content_bytes(id.kind) as usize]
    }

    fn tensor_bytes(&self, id: TensorId) -> &[u8] {
        self.weights.tensor(id)
    }
}

/// The kernels that a file's matrices are packed for; `None` if they are not packed.
fn packed_for(header: &Header) -> Result<Option<(Isa, Layout)>, format::Error> {
    let Some(packed) = header.packed else { return Ok(None) };
    let is_same = |layout: &Layout| {
        let group = header.weights.group().unwrap_or(0);
        layout.panel_rows() == packed.panel_rows && group <= PACKED_GROUP_MAX
    };
    let isa = Isa::from_layout(packed.layout);
    match isa.and_then(|isa| Some((isa, isa.layout().filter(is_same)?))) {
        Some(found) => Ok(Some(found)),
        None => Err(format::Error::Unsupported(format!(
            "weights packed in layout {:#06x}, which this version does not have; \
             export the model again",
            packed.layout
        ))),
    }
}

impl Source {
    fn bytes(&self) -> &[u8] {
        match self {
            Source::Map(map) => map.as_bytes(),
            Source::Static(bytes) => bytes,
            Source::Memory(memory) => memory.as_slice(),
        }
    }
}

/// Tensors start at multiples of 4 in a file that starts at one.
fn floats(bytes: &[u8]) -> &[f32] {
    bytemuck::cast_slice(bytes)
}
