//! A model's file, which stays open while some of its weights are in use.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::share::Share;
use super::source::Source;
use crate::format::FormatError;
use crate::format::model::{Header, TensorId, Weights};
use crate::kernels::{Isa, Layout, PACKED_GROUP_MAX};
use crate::sys::huge::HugeMemory;
use crate::sys::map::{OpenFile, Stamp};

/// Version of the bytes of a panel of a GGUF file's blocks. Increase it when they change.
const BLOCKS_ORDER: u32 = 2;

/// A model's file: its header, and what is known about its content. Each user ([`Model`](super::Model)) maps
/// its own weights. Renaming the file does not matter.
pub struct ModelFile {
    pub(super) source: Source,
    header: Header,
    fingerprint: OnceLock<u64>,
    /// The stored checksums of the file's tensors, if it has any.
    checksums: HashMap<TensorId, u32>,
    /// The kernels that the file's matrices are packed for, and the layout; `None` if they are not packed.
    packed_for: Option<(Isa, Layout)>,
    /// Whether tensors match their checksums: a flag for each layer, then one for embedding and classifier.
    checked: Mutex<Vec<bool>>,
}

/// Why a model cannot be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoadError {
    /// The file cannot be read.
    Io {
        /// Path as given.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The file is not a model this version can run.
    Format {
        /// Path as given.
        path: PathBuf,
        /// The defect.
        source: FormatError,
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

impl ModelFile {
    /// Opens the model file at `path`, with all of the model's layers or some, and checks its header.
    ///
    /// # Errors
    /// If the file cannot be mapped, or is not a model with every tensor inside the file.
    pub fn open(path: &Path) -> Result<ModelFile, LoadError> {
        let io_error = |source| LoadError::Io { path: path.to_owned(), source };
        let source = Source::File(OpenFile::open(path).map_err(io_error)?);
        let parsed = ModelFile::parse(source).map_err(io_error)?;
        parsed.map_err(|source| LoadError::Format { path: path.to_owned(), source })
    }

    /// Uses a model file that is part of the program.
    ///
    /// # Errors
    /// If the bytes are not a model file, or do not start at a multiple of 4.
    pub fn from_static(bytes: &'static [u8]) -> Result<ModelFile, FormatError> {
        if !(bytes.as_ptr() as usize).is_multiple_of(align_of::<f32>()) {
            return Err(FormatError::Unsupported("a model at an odd address".to_owned()));
        }
        ModelFile::in_memory(Source::Static(bytes))
    }

    /// A file of synthetic weights in memory. It has no checksums to compare.
    pub(super) fn made_up(memory: HugeMemory) -> Result<ModelFile, FormatError> {
        let file = ModelFile::in_memory(Source::Memory(Arc::new(memory)))?;
        Ok(ModelFile { checksums: HashMap::new(), ..file })
    }

    fn in_memory(source: Source) -> Result<ModelFile, FormatError> {
        ModelFile::parse(source).expect("only files can fail to be mapped")
    }

    fn parse(source: Source) -> io::Result<Result<ModelFile, FormatError>> {
        let whole = source.all()?;
        let bytes = whole.as_slice();
        let parsed = || {
            let header = Header::parse(bytes)?;
            let packed_for = packed_for(&header)?;
            Ok((header, packed_for))
        };
        let (header, packed_for) = match parsed() {
            Ok(parsed) => parsed,
            Err(e) => return Ok(Err(e)),
        };
        let fingerprint = OnceLock::new();
        if header.has_extension {
            fingerprint.get_or_init(|| header.fingerprint(bytes));
        }
        let ids = header.tensors().map(|tensor| tensor.id);
        let checksums = ids.zip(header.checksums(bytes)).collect();
        let checked = Mutex::new(vec![false; header.n_layers_and_next() + 1]);
        drop(whole);
        Ok(Ok(ModelFile { source, header, fingerprint, checksums, packed_for, checked }))
    }

    /// The file's header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The part of the model that the file holds.
    pub fn share(&self) -> Share {
        Share::of_file(&self.header)
    }

    /// The kernels that the file's matrices are packed for, and their layout.
    pub(super) fn packed_for(&self) -> Option<(Isa, Layout)> {
        self.packed_for
    }

    /// Fingerprint of the model's content, see [`Header::fingerprint`]. If the file has no checksums, the
    /// first call reads all of it.
    ///
    /// # Errors
    /// If the file has to be read, and cannot be mapped or was written to.
    pub fn fingerprint(&self) -> io::Result<u64> {
        if let Some(fingerprint) = self.known_fingerprint() {
            return Ok(fingerprint);
        }
        let whole = self.source.all()?;
        Ok(*self.fingerprint.get_or_init(|| self.header.fingerprint(whole.as_slice())))
    }

    /// Fingerprint of the model, if it is known without reading the file.
    pub fn known_fingerprint(&self) -> Option<u64> {
        self.fingerprint.get().copied()
    }

    /// Stamp of the file from when it was opened; `None` for a model in memory.
    pub fn stamp(&self) -> Option<&Stamp> {
        match &self.source {
            Source::File(file) => Some(file.stamp()),
            Source::Static(_) | Source::Memory(_) => None,
        }
    }

    /// Whether tensors match their checksums: a flag for each layer, then one for embedding and classifier.
    pub fn checked(&self) -> Vec<bool> {
        self.lock_checked().clone()
    }

    /// Takes over the results of an earlier process for the same file: its fingerprint, and flags like those
    /// of [`ModelFile::checked`].
    pub fn believe(&self, fingerprint: u64, checked: &[bool]) {
        self.fingerprint.get_or_init(|| fingerprint);
        for (own, other) in self.lock_checked().iter_mut().zip(checked) {
            *own |= other;
        }
    }

    /// Stored checksum of tensor `id`, if the file has one.
    pub(super) fn checksum(&self, id: TensorId) -> Option<u32> {
        self.checksums.get(&id).copied()
    }

    /// Whether tensor `id` has a checksum and has not been compared with it.
    pub(super) fn is_unchecked(&self, id: TensorId) -> bool {
        self.checksums.contains_key(&id) && !self.lock_checked()[self.part_of(id)]
    }

    /// Notes that the tensors of `share` match their checksums.
    pub(super) fn set_checked(&self, share: &Share) {
        let mut checked = self.lock_checked();
        checked[share.layers.clone()].fill(true);
        checked[self.header.n_layers_and_next()] |= share.has_ends;
    }

    fn part_of(&self, id: TensorId) -> usize {
        if id.kind.is_per_layer() { id.layer } else { self.header.n_layers_and_next() }
    }

    fn lock_checked(&self) -> MutexGuard<'_, Vec<bool>> {
        // A thread that panicked with the lock leaves a valid list of flags.
        self.checked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The kernels that a file's matrices are packed for, and their layout; `None` if they are not packed.
///
/// # Errors
/// If this version does not have the layout.
pub fn packed_for(header: &Header) -> Result<Option<(Isa, Layout)>, FormatError> {
    let Some(packed) = header.packed else { return Ok(None) };
    let is_same = |layout: &Layout| {
        let group = header.weights.group().unwrap_or(0);
        layout.panel_rows() == packed.panel_rows && group <= PACKED_GROUP_MAX
    };
    let isa = Isa::from_layout(packed.layout ^ order_of_blocks(header.weights));
    match isa.and_then(|isa| Some((isa, isa.layout().filter(is_same)?))) {
        Some(found) => Ok(Some(found)),
        None => Err(FormatError::Unsupported(format!(
            "weights packed in layout {:#06x}, which this version does not have; \
             export the model again",
            packed.layout
        ))),
    }
}

/// Number, in a model file's header, of `layout` for matrices in the encoding `weights`.
pub fn layout_number(layout: Layout, weights: Weights) -> u32 {
    layout.id() | order_of_blocks(weights)
}

/// The part of a layout's number that tells the order of blocks.
fn order_of_blocks(weights: Weights) -> u32 {
    if weights == Weights::Ggml { BLOCKS_ORDER << 16 } else { 0 }
}
