//! A model's file, open for as long as some of its weights are used.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::share::Share;
use super::source::Source;
use crate::format::FormatError;
use crate::format::model::{Header, TensorId};
use crate::kernels::{Isa, Layout, PACKED_GROUP_MAX};
use crate::sys::huge::HugeMemory;
use crate::sys::map::{OpenFile, Stamp};

/// A model's file: what it is, and what is known of it. Its weights are mapped by its users
/// ([`Model`](super::Model)); it stays the same file even if it is renamed.
pub struct ModelFile {
    pub(super) source: Source,
    header: Header,
    fingerprint: OnceLock<u64>,
    /// The stored checksums of the file's tensors, if it has any.
    checksums: HashMap<TensorId, u32>,
    /// How the file's matrices are packed, and for which kernels; `None` if they are not.
    packed_for: Option<(Isa, Layout)>,
    /// Whose tensors match their checksums: each layer's, and those of the ends.
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
    /// Opens the model file at `path`, whichever layers it holds, and checks its header.
    ///
    /// # Errors
    /// If the file cannot be mapped, or is not a model whose every tensor lies inside it.
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

    /// A file of made-up weights in memory. It has no checksums to compare.
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
        let checked = Mutex::new(vec![false; header.n_layers + 1]);
        drop(whole);
        Ok(Ok(ModelFile { source, header, fingerprint, checksums, packed_for, checked }))
    }

    /// The file's header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Which part of the model the file holds.
    pub fn share(&self) -> Share {
        Share::of_file(&self.header)
    }

    /// The kernels that the file's matrices are packed for, and their layout.
    pub(super) fn packed_for(&self) -> Option<(Isa, Layout)> {
        self.packed_for
    }

    /// Fingerprint of the model's content: see [`Header::fingerprint`]. The first call reads a file without
    /// checksums as a whole.
    ///
    /// # Errors
    /// If it has to be, and cannot be mapped or was written to.
    pub fn fingerprint(&self) -> io::Result<u64> {
        if let Some(fingerprint) = self.known_fingerprint() {
            return Ok(fingerprint);
        }
        let whole = self.source.all()?;
        Ok(*self.fingerprint.get_or_init(|| self.header.fingerprint(whole.as_slice())))
    }

    /// Fingerprint of the file, if it is known without reading the file.
    pub fn known_fingerprint(&self) -> Option<u64> {
        self.fingerprint.get().copied()
    }

    /// The file as it was when it was opened; `None` for a model in memory.
    pub fn stamp(&self) -> Option<&Stamp> {
        match &self.source {
            Source::File(file) => Some(file.stamp()),
            Source::Static(_) | Source::Memory(_) => None,
        }
    }

    /// Flags of the parts whose tensors match their checksums: each layer, then the ends.
    pub fn checked(&self) -> Vec<bool> {
        self.lock_checked().clone()
    }

    /// Takes the results of an earlier process for this very file: its fingerprint, and the parts whose
    /// tensors match their checksums.
    pub fn believe(&self, fingerprint: u64, checked: &[bool]) {
        self.fingerprint.get_or_init(|| fingerprint);
        for (own, other) in self.lock_checked().iter_mut().zip(checked) {
            *own |= other;
        }
    }

    /// The stored checksum of tensor `id`, if the file has any.
    pub(super) fn checksum(&self, id: TensorId) -> Option<u32> {
        self.checksums.get(&id).copied()
    }

    /// Whether nothing is known yet of tensor `id`, which has a checksum.
    pub(super) fn is_unchecked(&self, id: TensorId) -> bool {
        self.checksums.contains_key(&id) && !self.lock_checked()[self.part_of(id)]
    }

    /// Notes that the tensors of `share` match their checksums.
    pub(super) fn set_checked(&self, share: &Share) {
        let mut checked = self.lock_checked();
        checked[share.layers.clone()].fill(true);
        checked[self.header.n_layers] |= share.has_ends;
    }

    fn part_of(&self, id: TensorId) -> usize {
        if id.kind.is_per_layer() { id.layer } else { self.header.n_layers }
    }

    fn lock_checked(&self) -> MutexGuard<'_, Vec<bool>> {
        // A list of flags stays valid when a thread panics while it holds the lock.
        self.checked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The kernels that a file's matrices are packed for; `None` if they are not packed.
pub(super) fn packed_for(header: &Header) -> Result<Option<(Isa, Layout)>, FormatError> {
    let Some(packed) = header.packed else { return Ok(None) };
    let is_same = |layout: &Layout| {
        let group = header.weights.group().unwrap_or(0);
        layout.panel_rows() == packed.panel_rows && group <= PACKED_GROUP_MAX
    };
    let isa = Isa::from_layout(packed.layout);
    match isa.and_then(|isa| Some((isa, isa.layout().filter(is_same)?))) {
        Some(found) => Ok(Some(found)),
        None => Err(FormatError::Unsupported(format!(
            "weights packed in layout {:#06x}, which this version does not have; \
             export the model again",
            packed.layout
        ))),
    }
}
