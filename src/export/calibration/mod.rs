//! The moments of the inputs of a model's matrices, for an encoder that minimises the error of their outputs.
//!
//! [`Moments`] adds up the second moments of a matrix's inputs and turns them into the triangle that
//! [`crate::quant::feedback`] wants; [`Calibration`] keeps the triangles in a file without a name, because those of a
//! whole model are about as large as the model.

mod moments;
mod parallel;
mod symmetric;

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::path::Path;

pub use moments::Moments;

use crate::format::model::{TensorId, TensorKind};
use crate::sys::file::AtomicFile;
use crate::sys::map::Map;

/// Key of a matrix; the number distinguishes the matrices of experts.
pub type MatrixId = (TensorId, usize);

/// The triangles of a model's matrices.
pub struct Calibration {
    file: AtomicFile,
    places: HashMap<MatrixId, Range<usize>>,
    /// Length of the file in bytes.
    len: usize,
    /// The file, once it is complete.
    map: Option<Map>,
}

impl Calibration {
    /// A calibration without triangles. Its file lies in the folder of `out` until the calibration is dropped.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub fn create(out: &Path) -> io::Result<Calibration> {
        let file = AtomicFile::create(out)?;
        Ok(Calibration { file, places: HashMap::new(), len: 0, map: None })
    }

    /// Adds the triangle made of a matrix's `moments`, if these suffice: a matrix whose inputs were fewer than an
    /// eighth of its columns, or all zeros, is encoded as without a calibration. Returns whether it was added.
    ///
    /// # Errors
    /// If the disk is full.
    pub fn add(&mut self, id: MatrixId, moments: Moments) -> io::Result<bool> {
        let Some(triangle) = moments.into_triangle() else { return Ok(false) };
        let bytes: &[u8] = bytemuck::cast_slice(&triangle);
        self.file.write_all_at(bytes, self.len as u64)?;
        self.places.insert(id, self.len..self.len + bytes.len());
        self.len += bytes.len();
        Ok(true)
    }

    /// Makes what was added readable.
    ///
    /// # Errors
    /// If the file cannot be mapped.
    pub fn finish(&mut self) -> io::Result<()> {
        if self.len > 0 {
            self.map = Some(Map::open(self.file.temporary_path())?);
        }
        Ok(())
    }

    /// The triangle for a matrix of the model file, or of `expert` in it, if there is one.
    pub(super) fn triangle(&self, id: TensorId, expert: usize) -> Option<&[f32]> {
        let range = self.places.get(&(inputs_of(id), expert))?;
        self.map.as_ref().map(|map| bytemuck::cast_slice(&map.as_bytes()[range.clone()]))
    }
}

/// The first of the matrices that have the inputs of `id`.
fn inputs_of(id: TensorId) -> TensorId {
    let kind = match id.kind {
        TensorKind::Wk | TensorKind::Wv => TensorKind::Wq,
        TensorKind::FullWk | TensorKind::FullWv => TensorKind::FullWq,
        TensorKind::W3 => TensorKind::W1,
        TensorKind::DenseW3 => TensorKind::DenseW1,
        other => other,
    };
    TensorId { kind, ..id }
}
