//! Packed products against scalar ones from row-major weights, bit for bit.

use super::*;
use crate::kernels::packed::cut::{CUT_ROWS, TileCut};
use crate::kernels::packed::layout::NR_MAX;
use crate::kernels::packed::tile::MR_MAX;
use crate::kernels::{
    ActivationRow, Groups, Layout, MatrixDims, PACKED_GROUP_MAX, PackedB2, PackedBytesError,
    PackedQ4, PackedQ8, Q8Tiles, TileParts, TilePartsMut, TileRow,
};
use crate::quant::bcml1::Block;
use crate::quant::bcml2;

mod ggml;
mod rows;
mod six;

/// Groups and columns: one group, several, so many that few tiles take a panel in parts; with one block of 4-bit
/// weights in a group, and several.
const SHAPES: [(usize, usize); 7] =
    [(32, 32), (32, 96), (64, 320), (96, 192), (128, 256), (256, 512), (64, 2304)];

/// Rows of activations: every height of a tile, and several tiles.
fn batches() -> Vec<usize> {
    if quick() {
        (1..=8).chain([12, 13, 16, 61]).collect()
    } else {
        (1..=20).chain([27, 64]).collect()
    }
}

/// Tiers that pack weights.
fn packing() -> impl Iterator<Item = (Kernels, Layout)> {
    let stand_in = match Kernels::for_isa(Isa::AvxVnni) {
        Some(_) => None,
        None => vnni_by_avx512::tier(),
    };
    tiers().chain(stand_in).filter_map(|tier| Some((tier, tier.layout()?)))
}

fn dims(rows: usize, k: usize) -> MatrixDims {
    MatrixDims { rows, k }
}

fn pack(kernels: Kernels, layout: Layout, w: Q8Matrix<'_>) -> Vec<u8> {
    let bytes = layout.bytes_q8(dims(w.rows(), w.k()), w.group()).unwrap();
    // Bytes that packing leaves unwritten would keep this pattern.
    let mut packed = vec![0x5a; bytes];
    kernels.pack_q8(w, &mut packed);
    packed
}

/// Blocks of any codes, with parameters around zero, some of them zero.
fn blocks(random: &mut Random, n: usize) -> Vec<u8> {
    let parameter = |random: &mut Random| match random.bits() % 8 {
        0 => f16::ZERO,
        1 => f16::NEG_ZERO,
        _ => f16::from_f32(random.f32()),
    };
    (0..n)
        .flat_map(|_| {
            let (multiplier, offset) = (parameter(random), parameter(random));
            let codes = [random.bits(), random.bits(), random.bits()];
            let mut bytes = [0; 16];
            for (byte, code) in bytes.iter_mut().zip(codes.iter().flat_map(|c| c.to_le_bytes())) {
                *byte = code;
            }
            bytemuck::bytes_of(&Block::new(multiplier, offset, bytes)).to_vec()
        })
        .collect()
}

/// Row `index` of activations; every second one is already quantised.
fn activation_row<'a>(x: &'a [f32], rows: &Q8Activations<'a>, index: usize) -> ActivationRow<'a> {
    match index % 2 {
        0 => ActivationRow::F32(x),
        _ => ActivationRow::Q8(rows.row(index)),
    }
}

#[test]
fn a_quantised_row_never_holds_minus_128() {
    for (tier, _) in packing() {
        let (mut q, mut scales) = ([0; 32], [0.0]);
        let row = Q8Row { q: &[i8::MIN; 32], scales: &[2.0] };
        tier.quantize_row(ActivationRow::Q8(row), 32, &mut q, &mut scales);
        assert_eq!((q, scales), ([-127; 32], [2.0]));
    }
}

/// Activations as the scalar tier quantises them, and the sums of their blocks.
fn summed(x: &[f32], group: usize) -> (Vec<i8>, Vec<f32>, Vec<i32>) {
    let (mut q, mut scales) = (vec![0; x.len()], vec![0.0; x.len() / group]);
    scalar().quantize_q8(x, group, &mut q, &mut scales);
    let mut sums = vec![0; x.len() / 32];
    scalar().sum_q8(&q, &mut sums);
    (q, scales, sums)
}

/// Activations as `quantize` writes their rows of `k` values, `rows` in scalar form, to the tiles of `cut`.
fn in_tiles(
    cut: TileCut,
    x: &[f32],
    rows: &Q8Activations<'_>,
    (k, group): (usize, usize),
    quantize: impl Fn(ActivationRow<'_>, TileRow, TilePartsMut<'_>),
) -> (Vec<i8>, Vec<f32>, Vec<f32>) {
    let (mut q, mut scales) = (vec![99; x.len()], vec![99.0; x.len() / group]);
    let mut sums = vec![99.0; x.len() / 32];
    for tile in cut.tiles(x.len() / k) {
        let part = |width: usize| tile.start * width..tile.end * width;
        let (q, scales) = (&mut q[part(k)], &mut scales[part(k / group)]);
        for (row, x) in x[part(k)].chunks(k).enumerate() {
            let out = TilePartsMut { q, scales, terms: &mut sums[part(k / 32)] };
            let place = TileRow { row, rows: tile.len() };
            quantize(activation_row(x, rows, tile.start + row), place, out);
        }
    }
    (q, scales, sums)
}

/// Compares `kernels` with scalar on 4-bit weights `w` and activations `x`.
#[track_caller]
fn check_q4(kernels: Kernels, layout: Layout, w: Bcml1Matrix<'_>, x: &[f32], group: usize) {
    let (k, m) = (w.k(), x.len() / w.k());
    let (q, scales, sums) = summed(x, group);
    let rows = Q8Activations::new(&q, &scales, k, group).unwrap();
    let mut wanted = vec![f32::NAN; m * w.rows()];
    let mut out: Vec<&mut [f32]> = wanted.chunks_exact_mut(w.rows()).collect();
    scalar().matmul_q4(w, rows, &sums, &mut out);

    let cut = kernels.cut_q4();
    let (q, scales, sums) = in_tiles(cut, x, &rows, (k, group), |x, place, out| {
        kernels.quantize_tile_row_summed(x, place, group, out);
    });
    let tiles = Q8Tiles::summed(
        TileParts { q: &q, scales: &scales, terms: &sums },
        Groups { k, group },
        cut,
    );
    let mut packed = vec![0x5a; layout.bytes_q4(dims(w.rows(), k), group).unwrap()];
    kernels.pack_q4(w, &mut packed);
    let packed = PackedQ4::new(&packed, dims(w.rows(), k), group, layout).unwrap();
    let mut found = vec![f32::NAN; m * w.rows()];
    let mut out: Vec<&mut [f32]> = found.chunks_exact_mut(w.rows()).collect();
    kernels.matmul_packed_q4(packed, tiles, &mut out);
    assert!(bits(&found) == bits(&wanted), "{kernels:?} {m}x{}x{k}/{group}", w.rows());
}

#[test]
fn packed_4_bit_products_equal_scalar_in_every_tier() {
    let mut random = Random(25);
    for (tier, layout) in packing() {
        let nr = layout.panel_rows();
        for (group, k) in SHAPES {
            for rows in [1, nr - 1, nr, nr + 1, 3 * nr + 5] {
                let bytes = blocks(&mut random, rows * k / 32);
                let w = Bcml1Matrix::new(&bytes, k).unwrap();
                for m in batches() {
                    check_q4(tier, layout, w, &random.floats(m * k), group);
                }
            }
        }
    }
}

#[test]
fn extreme_packed_4_bit_values_do_not_saturate() {
    let parameters = [1.0, -0.0, 65504.0, f32::INFINITY, f32::NAN].map(f16::from_f32);
    for (tier, layout) in packing() {
        for (multiplier, offset) in parameters.iter().flat_map(|a| parameters.map(|b| (*a, b))) {
            for codes in [[0; 16], [0xff; 16]] {
                let block = Block::new(multiplier, offset, codes);
                let bytes = bytemuck::bytes_of(&block).repeat(4 * (layout.panel_rows() + 1));
                let w = Bcml1Matrix::new(&bytes, 128).unwrap();
                for x in [1.0, -1.0, 0.0, -1e-30] {
                    for m in [1, 2, 3, 4, 5, 6, 8, 12] {
                        check_q4(tier, layout, w, &vec![x; 128 * m], 64);
                    }
                }
            }
        }
    }
}

/// Rows of BCML2 with any scales, zeros and codes, some of the scales zero or with their highest bit set.
fn rows_b2(random: &mut Random, rows: usize, k: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..rows {
        bytes.extend((random.f32() / 1000.0).to_le_bytes());
        for _ in 0..k / 32 {
            let scale = if random.bits().is_multiple_of(8) { 0 } else { random.bits() as u8 };
            bytes.extend([scale, random.bits() as u8]);
            bytes.extend((0..16).map(|_| random.bits() as u8));
        }
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    bytes
}

/// Compares `kernels` with scalar on weights of BCML2 and activations `x`.
#[track_caller]
fn check_b2(kernels: Kernels, layout: Layout, w: Bcml2Matrix<'_>, x: &[f32], group: usize) {
    let (k, m) = (w.k(), x.len() / w.k());
    let (q, scales, sums) = summed(x, group);
    let rows = Q8Activations::new(&q, &scales, k, group).unwrap();
    let mut wanted = vec![f32::NAN; m * w.rows()];
    let mut out: Vec<&mut [f32]> = wanted.chunks_exact_mut(w.rows()).collect();
    scalar().matmul_b2(w, rows, &sums, &mut out);

    let cut = kernels.cut_b2();
    let (q, scales, sums) = in_tiles(cut, x, &rows, (k, group), |x, place, out| {
        kernels.quantize_tile_row_int_summed(x, place, group, out);
    });
    let tiles = Q8Tiles::int_summed(
        TileParts { q: &q, scales: &scales, terms: &sums },
        Groups { k, group },
        cut,
    );
    let mut packed = vec![0x5a; layout.bytes_b2(dims(w.rows(), k)).unwrap()];
    kernels.pack_b2(w, &mut packed);
    let packed = PackedB2::new(&packed, dims(w.rows(), k), layout).unwrap();
    let mut found = vec![f32::NAN; m * w.rows()];
    let mut out: Vec<&mut [f32]> = found.chunks_exact_mut(w.rows()).collect();
    kernels.matmul_packed_b2(packed, tiles, &mut out);
    assert!(bits(&found) == bits(&wanted), "{kernels:?} {m}x{}x{k}/{group}", w.rows());
}

#[test]
fn packed_products_of_two_levels_equal_scalar_in_every_tier() {
    let mut random = Random(26);
    for (tier, layout) in packing() {
        let nr = layout.panel_rows();
        for (group, k) in SHAPES {
            for rows in [1, nr - 1, nr, nr + 1, 3 * nr + 5] {
                let bytes = rows_b2(&mut random, rows, k);
                let w = Bcml2Matrix::new(&bytes, k).unwrap();
                for m in batches() {
                    check_b2(tier, layout, w, &random.floats(m * k), group);
                }
            }
        }
    }
}

/// Sums of the longest group at both ends of their range, and steps that are not finite.
#[test]
fn extreme_packed_values_of_two_levels_do_not_overflow() {
    for (tier, layout) in packing() {
        for step in [1.0, -0.0, f32::MAX, f32::INFINITY, f32::NAN] {
            for (scale, zero, code) in
                [(127, 255, 0), (127, 0, 0xff), (127, 255, 0xff), (255, 1, 0xf0)]
            {
                let mut row = f32::to_le_bytes(step).to_vec();
                for _ in 0..2 * PACKED_GROUP_MAX / 32 {
                    row.extend(bytemuck::bytes_of(&bcml2::Block::new(scale, zero, [code; 16])));
                }
                let bytes = row.repeat(layout.panel_rows() + 1);
                let w = Bcml2Matrix::new(&bytes, 2 * PACKED_GROUP_MAX).unwrap();
                for x in [1.0, -1.0, 0.0, -1e-30] {
                    for m in [1, 2, 3, 4, 5, 6, 8, 12] {
                        let x = vec![x; 2 * PACKED_GROUP_MAX * m];
                        check_b2(tier, layout, w, &x, PACKED_GROUP_MAX);
                    }
                }
            }
        }
    }
}

/// Quantised activations in rows and in tiles.
struct Both {
    rows: (Vec<i8>, Vec<f32>),
    tiles: (Vec<i8>, Vec<f32>, Vec<f32>),
}

fn quantize_both(kernels: Kernels, x: &[f32], k: usize, group: usize) -> Both {
    let (n, groups) = (x.len(), x.len() / group);
    let mut both = Both {
        rows: (vec![0; n], vec![0.0; groups]),
        tiles: (vec![99; n], vec![99.0; groups], vec![99.0; groups]),
    };
    kernels.quantize_q8(x, group, &mut both.rows.0, &mut both.rows.1);
    let rows = Q8Activations::new(&both.rows.0, &both.rows.1, k, group).unwrap();
    let (q, scales, zeros) = &mut both.tiles;
    for tile in kernels.cut_q8().tiles(n / k) {
        let part = |width: usize| tile.start * width..tile.end * width;
        let (q, scales) = (&mut q[part(k)], &mut scales[part(k / group)]);
        for (row, x) in x[part(k)].chunks(k).enumerate() {
            let out = TilePartsMut { q, scales, terms: &mut zeros[part(k / group)] };
            let x = activation_row(x, &rows, tile.start + row);
            kernels.quantize_tile_row(x, TileRow { row, rows: tile.len() }, group, out);
        }
    }
    both
}

fn tiles_of(kernels: Kernels, both: &Both, groups: Groups) -> Q8Tiles<'_> {
    let (q, scales, terms) = &both.tiles;
    Q8Tiles::new(TileParts { q, scales, terms }, groups, kernels.cut_q8())
}

fn matmul_packed(kernels: Kernels, w: PackedQ8<'_>, x: Q8Tiles<'_>) -> Vec<f32> {
    let mut out = vec![f32::NAN; x.m() * w.rows()];
    let mut rows: Vec<&mut [f32]> = out.chunks_exact_mut(w.rows()).collect();
    kernels.matmul_packed_q8(w, x, &mut rows);
    out
}

/// Compares `kernels` with scalar on weights `w` and activations `x`.
#[track_caller]
fn check_product(kernels: Kernels, layout: Layout, w: Q8Matrix<'_>, x: &[f32]) {
    let (k, group) = (w.k(), w.group());
    let both = quantize_both(kernels, x, k, group);
    let rows = Q8Activations::new(&both.rows.0, &both.rows.1, k, group).unwrap();
    let tiles = tiles_of(kernels, &both, Groups { k, group });
    let packed = pack(kernels, layout, w);
    let packed = PackedQ8::new(&packed, dims(w.rows(), k), group, layout).unwrap();
    let wanted = matmul_q8(scalar(), w, rows);
    let found = matmul_packed(kernels, packed, tiles);
    let shape = format!("{}x{}x{k}/{group}", tiles.m(), w.rows());
    assert!(bits(&found) == bits(&wanted), "{kernels:?} {shape}");
}

#[test]
fn tiles_and_panels_fit_the_buffers() {
    for (tier, layout) in packing() {
        assert!(tier.cut_q8().highest() <= MR_MAX);
        assert!(tier.cut_q4().highest() <= MR_MAX);
        assert!(tier.cut_b2().highest() <= MR_MAX);
        assert!(layout.panel_rows() <= NR_MAX);
        let id = |tier: Kernels| tier.layout().map(|layout| layout.id());
        for (other, _) in packing() {
            assert_eq!(id(other) == id(tier), other.isa() == tier.isa());
        }
    }
    assert_eq!(scalar().layout(), None);
}

#[test]
fn batches_are_cut_into_tiles_that_have_kernels() {
    for (tier, _) in packing() {
        for cut in [tier.cut_q8(), tier.cut_q4(), tier.cut_b2()] {
            for m in (0..100).chain(CUT_ROWS - 20..CUT_ROWS + 20).chain([5 * CUT_ROWS + 7]) {
                let mut next = 0;
                for tile in cut.tiles(m) {
                    assert_eq!(tile.start, next);
                    assert!((1..=cut.highest()).contains(&tile.len()));
                    assert_eq!(tile.start / CUT_ROWS, (tile.end - 1) / CUT_ROWS);
                    next = tile.end;
                }
                assert_eq!(next, m);
            }
            // Parts are cut like the whole.
            let whole = cut.tiles(2 * CUT_ROWS + 5).map(|tile| tile.len());
            let parts = [CUT_ROWS, CUT_ROWS, 5].into_iter().flat_map(|m| cut.tiles(m));
            assert!(whole.eq(parts.map(|tile| tile.len())));
        }
    }
}

#[test]
fn packed_products_equal_scalar_in_every_tier() {
    let mut random = Random(21);
    for (tier, layout) in packing() {
        let nr = layout.panel_rows();
        for (group, k) in SHAPES {
            for rows in [1, nr - 1, nr, nr + 1, 2 * nr, 3 * nr + 5] {
                let w = (random.bytes(rows * k, i8::MIN), random.floats(rows * k / group));
                let w = Q8Matrix::new(&w.0, &w.1, k, group).unwrap();
                for m in batches() {
                    check_product(tier, layout, w, &random.floats(m * k));
                }
            }
        }
    }
}

#[test]
fn many_tiles_of_long_packed_rows_equal_scalar() {
    let mut random = Random(24);
    let (group, k) = (64, 8448);
    for (tier, layout) in packing() {
        let rows = layout.panel_rows() + 1;
        // More rows than are cut at once.
        let m = if quick() { 61 } else { CUT_ROWS + 5 };
        let w = (random.bytes(rows * k, i8::MIN), random.floats(rows * k / group));
        let x = random.floats(m * k);
        check_product(tier, layout, Q8Matrix::new(&w.0, &w.1, k, group).unwrap(), &x);
        let bytes = blocks(&mut random, rows * k / 32);
        check_q4(tier, layout, Bcml1Matrix::new(&bytes, k).unwrap(), &x, group);
        let bytes = rows_b2(&mut random, rows, k);
        check_b2(tier, layout, Bcml2Matrix::new(&bytes, k).unwrap(), &x, group);
        six::check_random(tier, layout, &mut random, (rows, k), &x);
    }
}

#[test]
fn extreme_packed_values_do_not_saturate() {
    for (tier, layout) in packing() {
        for (group, rows) in [(32, 1), (PACKED_GROUP_MAX, layout.panel_rows() + 1)] {
            for (w, x) in [(i8::MIN, 1.0), (i8::MIN, -1.0), (i8::MAX, 1.0), (i8::MAX, -1.0)] {
                let w = (vec![w; 2 * group * rows], vec![1.0; 2 * rows]);
                let w = Q8Matrix::new(&w.0, &w.1, 2 * group, group).unwrap();
                for m in 1..=MR_MAX {
                    check_product(tier, layout, w, &vec![x; 2 * group * m]);
                }
            }
        }
    }
}

#[test]
fn hostile_scales_stay_in_their_packed_rows() {
    let mut random = Random(22);
    for (tier, layout) in packing() {
        let rows = layout.panel_rows() + 3;
        let (q, mut scales) = (random.bytes(rows * 64, i8::MIN), random.floats(rows * 2));
        (scales[2], scales[5], scales[8]) = (f32::NAN, f32::INFINITY, f32::MAX);
        let w = Q8Matrix::new(&q, &scales, 64, 32).unwrap();
        let mut x = random.floats(5 * 64);
        (x[64], x[2 * 64]) = (f32::NAN, f32::MAX);
        check_product(tier, layout, w, &x);
        check_product(tier, layout, w, &x[64..2 * 64]);
    }
}

#[test]
fn packed_parts_are_the_parts_of_the_whole() {
    let mut random = Random(23);
    let (k, group, m) = (96, 32, CUT_ROWS + 29);
    for (tier, layout) in packing() {
        let nr = layout.panel_rows();
        let rows = 5 * nr - 3;
        let w = (random.bytes(rows * k, i8::MIN), random.floats(rows * k / group));
        let w = Q8Matrix::new(&w.0, &w.1, k, group).unwrap();
        let whole = pack(tier, layout, w);
        let parts: Vec<u8> = [0..2 * nr, 2 * nr..4 * nr, 4 * nr..rows]
            .into_iter()
            .flat_map(|range| pack(tier, layout, w.slice_rows(range)))
            .collect();
        assert!(parts == whole);

        let packed = PackedQ8::new(&whole, dims(rows, k), group, layout).unwrap();
        let both = quantize_both(tier, &random.floats(m * k), k, group);
        let tiles = tiles_of(tier, &both, Groups { k, group });
        let wanted = matmul_packed(tier, packed, tiles);
        for columns in [0..nr, nr..4 * nr, 4 * nr..rows] {
            for batch in [0..CUT_ROWS, CUT_ROWS..m] {
                let found = matmul_packed(
                    tier,
                    packed.slice_rows(columns.clone()),
                    tiles.slice_rows(batch.clone()),
                );
                for (row, found) in batch.zip(found.chunks_exact(columns.len())) {
                    assert_eq!(bits(found), bits(&wanted[row * rows..][columns.clone()]));
                }
            }
        }
    }
}

#[test]
fn bytes_of_another_shape_are_no_packed_matrix() {
    for (_, layout) in packing() {
        let bytes = vec![0; layout.bytes_q8(dims(40, 64), 32).unwrap()];
        let new = |bytes, rows, k, group| PackedQ8::new(bytes, dims(rows, k), group, layout);
        assert!(new(&bytes, 40, 64, 32).is_ok());
        assert!(matches!(new(&bytes[1..], 40, 64, 32), Err(PackedBytesError::Bytes { .. })));
        assert!(matches!(new(&bytes, 40, 128, 32), Err(PackedBytesError::Bytes { .. })));
        for (rows, k, group) in [
            (40, 64, 0),
            (40, 64, 48),
            (40, 64, 16),
            (40, 0, 32),
            (40, 96, 64),
            (40, 2 * PACKED_GROUP_MAX, 2 * PACKED_GROUP_MAX),
            (usize::MAX, 64, 32),
            (usize::MAX / 64, 1 << 40, 32),
        ] {
            assert!(
                matches!(new(&bytes, rows, k, group), Err(PackedBytesError::Shape { .. })),
                "{rows}"
            );
        }
        assert_eq!(layout.bytes_q8(dims(0, 64), 32), Some(0));
    }
}

/// AVX-VNNI's kernels with the AVX-512 encoding of the same instruction, which many CPUs have alone.
#[cfg(target_arch = "x86_64")]
mod vnni_by_avx512 {
    use std::arch::x86_64::*;

    use super::*;
    use crate::kernels::avx2;
    use crate::kernels::packed::cut::{TileKernel, TileSet};
    use crate::kernels::packed::matmul::place_rows;
    use crate::kernels::packed::table::{PART_BYTES, PackedTable};
    use crate::kernels::stream::INTO_L1;
    use crate::kernels::table::Table;
    use crate::kernels::ymm::{ymm_b2_tiles, ymm_code_tiles, ymm_tiles};

    static TABLE: Table = Table {
        packed: Some(PackedTable {
            layout: Layout::AVX_VNNI,
            tiles_q8: &TILES_Q8,
            tiles_q4: &TILES_Q4,
            tiles_b2: &TILES_B2,
            run_tiles: |_| &[],
            byte_tiles: |_| unreachable!("panels are unpacked to int8 without tiles for few rows"),
            unpack_ggml: avx2::unpack_ggml,
            place: place_rows,
            part_bytes: PART_BYTES,
            unpack_b2: None,
            unpack_q4: None,
        }),
        ..avx2::TABLE
    };
    static TILES_Q8: TileSet = TileSet::new(
        &[
            TileKernel::new(1, gemm_q8_q8_f32_mx16c4::<1, 2, INTO_L1>, 20),
            TileKernel::new(2, gemm_q8_q8_f32_mx16c4::<2, 1, INTO_L1>, 30),
            TileKernel::new(3, gemm_q8_q8_f32_mx16c4::<3, 1, INTO_L1>, 40),
            TileKernel::new(4, gemm_q8_q8_f32_mx16c4::<4, 1, INTO_L1>, 50),
            TileKernel::new(5, gemm_q8_q8_f32_mx16c4::<5, 1, INTO_L1>, 60),
            TileKernel::new(6, gemm_q8_q8_f32_mx16c4::<6, 1, INTO_L1>, 70),
        ],
        0,
    );
    static TILES_Q4: TileSet = TileSet::new(
        &[
            TileKernel::new(1, gemm_q8_q4_f32_mx16c4::<1, 2, INTO_L1>, 20),
            TileKernel::new(2, gemm_q8_q4_f32_mx16c4::<2, 1, INTO_L1>, 30),
            TileKernel::new(3, gemm_q8_q4_f32_mx16c4::<3, 1, INTO_L1>, 40),
            TileKernel::new(4, gemm_q8_q4_f32_mx16c4::<4, 1, INTO_L1>, 50),
            TileKernel::new(5, gemm_q8_q4_f32_mx16c4::<5, 1, INTO_L1>, 60),
            TileKernel::new(6, gemm_q8_q4_f32_mx16c4::<6, 1, INTO_L1>, 70),
        ],
        0,
    );

    static TILES_B2: TileSet = TileSet::new(
        &[
            TileKernel::new(1, gemm_q8_b2_f32_mx16c4::<1, 2, INTO_L1>, 20),
            TileKernel::new(2, gemm_q8_b2_f32_mx16c4::<2, 1, INTO_L1>, 30),
            TileKernel::new(3, gemm_q8_b2_f32_mx16c4::<3, 1, INTO_L1>, 40),
            TileKernel::new(4, gemm_q8_b2_f32_mx16c4::<4, 1, INTO_L1>, 50),
            TileKernel::new(5, gemm_q8_b2_f32_mx16c4::<5, 1, INTO_L1>, 60),
            TileKernel::new(6, gemm_q8_b2_f32_mx16c4::<6, 1, INTO_L1>, 70),
        ],
        0,
    );

    ymm_tiles!("avx2,fma,f16c,avx512vl,avx512vnni", add_products, true);
    ymm_code_tiles!("avx2,fma,f16c,avx512vl,avx512vnni", add_products);
    ymm_b2_tiles!("avx2,fma,f16c,avx512vl,avx512vnni", add_products, add_pairs);

    #[target_feature(enable = "avx512vl,avx512vnni")]
    fn add_products(sums: __m256i, x: __m256i, w: __m256i) -> __m256i {
        _mm256_dpbusd_epi32(sums, w, x)
    }

    #[target_feature(enable = "avx512vl,avx512vnni")]
    fn add_pairs(sums: __m256i, x: __m256i, w: __m256i) -> __m256i {
        _mm256_dpwssd_epi32(sums, w, x)
    }

    /// The tier, if this CPU has AVX-512 VNNI.
    pub(super) fn tier() -> Option<Kernels> {
        let kernels = Kernels::with_table(Isa::AvxVnni, &TABLE);
        Kernels::for_isa(Isa::Avx512Vnni).map(|_| kernels)
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod vnni_by_avx512 {
    use super::*;

    pub(super) fn tier() -> Option<Kernels> {
        None
    }
}
