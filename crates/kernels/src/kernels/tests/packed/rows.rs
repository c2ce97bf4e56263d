//! Rows that are read from packed matrices against those of the matrices that were packed, for the layouts of all CPUs.

use super::six::rows_b6;
use super::*;
use crate::kernels::{PackedB6, PackedGgml};
use crate::quant::{Bcml6Matrix, Ggml, GgmlMatrix, bcml1, bcml6, dequantize};

/// Compares each row of a matrix, which `wanted` and `found` write.
#[track_caller]
fn check_rows(
    what: &str,
    dims: MatrixDims,
    wanted: impl Fn(usize, &mut [f32]),
    found: impl Fn(usize, &mut [f32]),
) {
    for row in 0..dims.rows {
        let read = |write: &dyn Fn(usize, &mut [f32])| {
            let mut out = vec![f32::NAN; dims.k];
            write(row, &mut out);
            bits(&out)
        };
        assert_eq!(read(&wanted), read(&found), "{what}, row {row} of {dims:?}");
    }
}

fn check_layout(random: &mut Random, layout: Layout, dims: MatrixDims) {
    let MatrixDims { rows, k } = dims;
    for group in [32, 64].into_iter().filter(|group| k.is_multiple_of(*group)) {
        let (q, scales) = (random.bytes(rows * k, -127), random.floats(rows * k / group));
        let w = Q8Matrix::new(&q, &scales, k, group).unwrap();
        let mut packed = vec![0x5a; layout.bytes_q8(dims, group).unwrap()];
        layout.pack_q8(w, &mut packed);
        let packed = PackedQ8::new(&packed, dims, group, layout).unwrap();
        let plain = |row: usize, out: &mut [f32]| {
            dequantize(w.row(row).q, w.row(row).scales, group, out);
        };
        check_rows("int8", dims, plain, |row, out| packed.read_row(row, out));
    }

    let bytes = blocks(random, rows * k / 32);
    let w = Bcml1Matrix::new(&bytes, k).unwrap();
    let mut packed = vec![0x5a; layout.bytes_q4(dims, 32).unwrap()];
    layout.pack_q4(w, &mut packed);
    let packed = PackedQ4::new(&packed, dims, 32, layout).unwrap();
    let plain = |row: usize, out: &mut [f32]| bcml1::decode(w.row(row), out);
    check_rows("BCML1", dims, plain, |row, out| packed.read_row(row, out));

    let bytes = rows_b2(random, rows, k);
    let w = Bcml2Matrix::new(&bytes, k).unwrap();
    let mut packed = vec![0x5a; layout.bytes_b2(dims).unwrap()];
    layout.pack_b2(w, &mut packed);
    let packed = PackedB2::new(&packed, dims, layout).unwrap();
    let plain = |row: usize, out: &mut [f32]| bcml2::decode(w.row(row), out);
    check_rows("BCML2", dims, plain, |row, out| packed.read_row(row, out));

    let bytes = rows_b6(random, rows, k);
    let w = Bcml6Matrix::new(&bytes, k).unwrap();
    let mut packed = vec![0x5a; layout.bytes_b6(dims).unwrap()];
    layout.pack_b6(w, &mut packed);
    let packed = PackedB6::new(&packed, dims, layout).unwrap();
    let plain = |row: usize, out: &mut [f32]| bcml6::decode(w.row(row), out);
    check_rows("BCML6", dims, plain, |row, out| packed.read_row(row, out));

    for kind in Ggml::ALL {
        if !k.is_multiple_of(kind.len()) {
            continue;
        }
        let bytes = random.blocks(kind, rows * k / kind.len());
        let w = GgmlMatrix::new(kind, &bytes, k).unwrap();
        let mut packed = vec![0x5a; layout.bytes_ggml(kind, dims).unwrap()];
        layout.pack_ggml(w, &mut packed);
        let packed = PackedGgml::new(&packed, dims, kind, layout).unwrap();
        let plain = |row: usize, out: &mut [f32]| kind.widen(w.row(row), out);
        check_rows(kind.name(), dims, plain, |row, out| packed.read_row(row, out));
    }
}

#[test]
fn rows_of_packed_matrices_are_those_that_were_packed() {
    let mut random = Random(53);
    for layout in Isa::ALL.iter().filter_map(|isa| isa.layout()) {
        let nr = layout.panel_rows();
        for (rows, k) in [(1, 32), (nr - 1, 96), (nr, 64), (2 * nr + 3, 256), (nr + 1, 768)] {
            check_layout(&mut random, layout, dims(rows, k));
        }
    }
}
