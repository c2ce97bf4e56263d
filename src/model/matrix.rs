//! A weight matrix in any of its encodings.

use std::ops::Range;

use crate::format::model::{Encoding, Header, TensorId};
use crate::kernels::{
    Kernels, Layout, MatrixDims, PackedB2, PackedB6, PackedGgml, PackedQ4, PackedQ8,
};
use crate::quant::{
    Bcml1Matrix, Bcml2Matrix, Bcml6Matrix, GgmlMatrix, Q8Matrix, bcml1, bcml2, bcml6,
};

/// A weight matrix `[rows, k]`.
#[derive(Clone, Copy)]
pub enum Matrix<'a> {
    /// f32, row-major.
    F32 {
        /// `[rows, k]`.
        w: &'a [f32],
        /// Number of columns.
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
    /// Rows of BCML2.
    B2(Bcml2Matrix<'a>),
    /// BCML2, in the layout of the kernels in use.
    PackedB2(PackedB2<'a>),
    /// Rows of BCML6.
    B6(Bcml6Matrix<'a>),
    /// BCML6, in the layout of the kernels in use.
    PackedB6(PackedB6<'a>),
    /// Blocks of a GGUF file, row-major.
    Ggml(GgmlMatrix<'a>),
    /// Blocks of a GGUF file, in the layout of the kernels in use.
    PackedGgml(PackedGgml<'a>),
}

impl<'a> Matrix<'a> {
    /// Number of rows, which is the number of a projection's outputs.
    pub fn rows(&self) -> usize {
        match self {
            Matrix::F32 { w, k } => w.len() / k,
            Matrix::Q8(matrix) => matrix.rows(),
            Matrix::PackedQ8(matrix) => matrix.rows(),
            Matrix::Q4(matrix) => matrix.rows(),
            Matrix::PackedQ4(matrix) => matrix.rows(),
            Matrix::B2(matrix) => matrix.rows(),
            Matrix::PackedB2(matrix) => matrix.rows(),
            Matrix::B6(matrix) => matrix.rows(),
            Matrix::PackedB6(matrix) => matrix.rows(),
            Matrix::Ggml(matrix) => matrix.rows(),
            Matrix::PackedGgml(matrix) => matrix.rows(),
        }
    }

    /// The rows `range`. For a packed matrix it must begin at a panel's first row, and end at a panel's last
    /// row or the last of all.
    pub fn slice_rows(&self, range: Range<usize>) -> Matrix<'a> {
        match self {
            Matrix::F32 { w, k } => Matrix::F32 { w: &w[range.start * k..range.end * k], k: *k },
            Matrix::Q8(matrix) => Matrix::Q8(matrix.slice_rows(range)),
            Matrix::PackedQ8(matrix) => Matrix::PackedQ8(matrix.slice_rows(range)),
            Matrix::Q4(matrix) => Matrix::Q4(matrix.slice_rows(range)),
            Matrix::PackedQ4(matrix) => Matrix::PackedQ4(matrix.slice_rows(range)),
            Matrix::B2(matrix) => Matrix::B2(matrix.slice_rows(range)),
            Matrix::PackedB2(matrix) => Matrix::PackedB2(matrix.slice_rows(range)),
            Matrix::B6(matrix) => Matrix::B6(matrix.slice_rows(range)),
            Matrix::PackedB6(matrix) => Matrix::PackedB6(matrix.slice_rows(range)),
            Matrix::Ggml(matrix) => Matrix::Ggml(matrix.slice_rows(range)),
            Matrix::PackedGgml(matrix) => Matrix::PackedGgml(matrix.slice_rows(range)),
        }
    }

    /// The quantised matrix `id`, packed in `layout`, in `bytes`.
    ///
    /// # Panics
    /// If `bytes` has another length than the layout gives, or the matrix cannot be packed.
    pub(super) fn packed(
        bytes: &'a [u8],
        header: &Header,
        id: TensorId,
        layout: Layout,
    ) -> Matrix<'a> {
        let (rows, k) = header.held_shape(id.kind);
        let dims = MatrixDims { rows, k };
        let matrix = match (header.encoding(id), header.weights.group()) {
            (Encoding::Q8 { group }, _) => {
                PackedQ8::new(bytes, dims, group, layout).map(Matrix::PackedQ8)
            }
            (Encoding::Bcml1, Some(group)) => {
                PackedQ4::new(bytes, dims, group, layout).map(Matrix::PackedQ4)
            }
            (Encoding::Bcml2, _) => PackedB2::new(bytes, dims, layout).map(Matrix::PackedB2),
            (Encoding::Bcml6, _) => PackedB6::new(bytes, dims, layout).map(Matrix::PackedB6),
            (Encoding::Ggml(kind), _) => {
                PackedGgml::new(bytes, dims, kind, layout).map(Matrix::PackedGgml)
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
            Matrix::PackedQ8(matrix) => matrix.read_row(index, out),
            Matrix::Q4(matrix) => bcml1::decode(matrix.row(index), out),
            Matrix::PackedQ4(matrix) => matrix.read_row(index, out),
            Matrix::B2(matrix) => bcml2::decode(matrix.row(index), out),
            Matrix::PackedB2(matrix) => matrix.read_row(index, out),
            Matrix::B6(matrix) => bcml6::decode(matrix.row(index), out),
            Matrix::PackedB6(matrix) => matrix.read_row(index, out),
            Matrix::Ggml(matrix) => matrix.kind().widen(matrix.row(index), out),
            Matrix::PackedGgml(matrix) => matrix.read_row(index, out),
        }
    }
}
