//! Rows of quantised matrices as the integers and floats of their products, for devices with a layout of their own.

use half::f16;

use super::matrix::Matrix;
use crate::quant::bcml1::BLOCK;
use crate::quant::ggml::{Form, Run};

/// A row of a quantised matrix. See [`kernels`](crate::kernels) for how parts are multiplied.
#[derive(Default)]
pub(crate) struct RowParts {
    /// `[k]`. Integers; codes of 0 to 15 in BCML1 and BCML2.
    pub(crate) codes: Vec<i8>,
    /// Scale of each group, or of first halves of runs; a BCML1 block's multiplier; bits `scale | zero << 16` of a BCML2
    /// block.
    pub(crate) first: Vec<f32>,
    /// Scale of second halves, if they have their own; offset of each run or block; bits `minimum | minimum << 8 |
    /// offset << 16` of a run whose halves have minima, its offset an f16; a row's step in BCML2.
    pub(crate) second: Vec<f32>,
}

impl RowParts {
    /// Reads row `index` of `matrix` in place of what was read before. f32 matrices have no parts.
    ///
    /// # Panics
    /// If there is no such row.
    pub(crate) fn read(&mut self, matrix: &Matrix<'_>, index: usize) {
        self.codes.clear();
        self.first.clear();
        self.second.clear();
        match matrix {
            Matrix::F32 { .. } => {}
            Matrix::Q8(matrix) => {
                let row = matrix.row(index);
                self.codes.extend_from_slice(row.q);
                self.first.extend_from_slice(row.scales);
            }
            Matrix::PackedQ8(matrix) => {
                for (scale, codes) in matrix.groups_of(index) {
                    self.first.push(scale);
                    self.codes.extend(codes);
                }
            }
            Matrix::B6(matrix) => {
                let row = matrix.row(index);
                for block in row.blocks {
                    self.group((row.step * f32::from(block.scale()), block.values()));
                }
            }
            Matrix::PackedB6(matrix) => matrix.blocks_of(index).for_each(|block| self.group(block)),
            Matrix::Q4(matrix) => {
                for block in matrix.row(index) {
                    let (multiplier, offset) = (block.multiplier(), block.offset());
                    self.block((multiplier.to_f32(), offset.to_f32(), block.codes()));
                }
            }
            Matrix::PackedQ4(matrix) => matrix.blocks_of(index).for_each(|block| self.block(block)),
            Matrix::B2(matrix) => {
                let row = matrix.row(index);
                let blocks = row.blocks.iter().map(|of| (of.scale(), of.zero, of.codes()));
                self.two_levels(row.step, blocks);
            }
            Matrix::PackedB2(matrix) => {
                let (step, blocks) = matrix.blocks_of(index);
                self.two_levels(step, blocks);
            }
            Matrix::Ggml(matrix) => {
                let kind = matrix.kind();
                kind.runs(matrix.row(index)).for_each(|run| self.run(&run, kind.form()));
            }
            Matrix::PackedGgml(matrix) => {
                let form = matrix.kind().form();
                matrix.for_runs(index, |run| self.run(&run, form));
            }
        }
    }

    fn group(&mut self, (scale, codes): (f32, [i8; BLOCK])) {
        self.first.push(scale);
        self.codes.extend_from_slice(&codes);
    }

    fn block(&mut self, (multiplier, offset, codes): (f32, f32, [u8; BLOCK])) {
        self.first.push(multiplier);
        self.second.push(offset);
        self.codes.extend(codes.map(|code| code as i8));
    }

    fn two_levels(&mut self, step: f32, blocks: impl Iterator<Item = (u8, u8, [u8; BLOCK])>) {
        for (scale, zero, codes) in blocks {
            self.first.push(f32::from_bits(u32::from(scale) | u32::from(zero) << 16));
            self.codes.extend(codes.map(|code| code as i8));
        }
        self.second.push(step);
    }

    fn run(&mut self, run: &Run, form: Option<Form>) {
        self.first.push(run.scales[0]);
        self.second.push(match form {
            Some(Form { n_scales: 2, .. }) => run.scales[1],
            Some(form) if form.has_halves() => {
                let offset = u32::from(f16::from_f32(run.offset).to_bits());
                f32::from_bits(u32::from(u16::from_le_bytes(run.mins)) | offset << 16)
            }
            _ => run.offset,
        });
        self.codes.extend_from_slice(&run.codes);
    }
}
