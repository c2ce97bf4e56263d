//! Blocks of GGUF files, packed: how they are packed, and unpacked to int8 weights.
//!
//! ```text
//! d       [nr]               f16, scale of a block
//! m       [nr]               f16, minimum of a block, if it has one
//!                            then the block's runs of 32 columns:
//! scales  [n_scales, nr]     i8, in blocks of 256 columns
//! mins    [nr]               u8, in blocks of 256 columns with a minimum
//! codes   [nr / 8, 32 bits]  of each 256 values of a group of int8 weights in eight lines of 32: low four bits of two
//!                            lines in each 32 bytes, then the fifth bits of all eight in 32, or the high two bits of
//!                            four lines in each 32
//! ```
//!
//! A run unpacks to a group of int8 weights ([`Plane`]), and if it has a minimum to an offset for each row. Runs with a
//! scale for each half unpack to two such groups: one has zeros for the last 16 columns, the other for the first. So
//! the kernels of int8 weights multiply all of them.

use super::layout::{Layout, NR_MAX};
use crate::kernels::float;
#[cfg(target_arch = "x86_64")]
use crate::kernels::packed::tile::prefetch_behind;
use crate::kernels::packed::tile::{Q8Tile, ZERO};
use crate::quant::bcml1::BLOCK;
use crate::quant::f16::half_to_f32;
use crate::quant::ggml::{Codes, Form};

/// Bytes of a line of codes.
const LINE: usize = 32;

/// Codes of eight lines.
type Lines = [[u8; LINE]; 8];

/// Most runs that are unpacked at once: a long block.
pub(super) const RUNS_MAX: usize = 8;

/// Unpacked runs of a panel.
pub(in crate::kernels) struct Unpacked<'a> {
    /// Groups of int8 weights, one plane for each scale of a run.
    pub(super) planes: [&'a mut [u8]; 2],
    /// `[runs, nr]`; empty if runs have no offset.
    pub(super) offsets: &'a mut [f32],
}

impl Form {
    /// Bytes of a block of a panel of `nr` rows.
    pub(super) fn panel_block(self, nr: usize) -> usize {
        let (mins, runs) = (usize::from(self.has_min), self.len() / BLOCK);
        nr * (2 + 2 * mins) + runs * self.panel_run(nr)
    }

    /// Bytes of a run of such a block.
    fn panel_run(self, nr: usize) -> usize {
        let parameters = if self.is_long { self.n_scales + usize::from(self.has_min) } else { 0 };
        nr * (parameters + BLOCK * self.bits / 8)
    }
}

/// Writes the parameters and codes of a row's run `i` to its block of a panel; `codes` collects the codes of all rows.
pub(super) fn put(
    layout: Layout,
    form: Form,
    (row, i): (usize, usize),
    run: &Codes,
    block: &mut [u8],
    codes: &mut [u8],
) {
    let nr = layout.nr;
    let mut put_half = |at: usize, bits: u16| {
        block[2 * (at * nr + row)..][..2].copy_from_slice(&bits.to_ne_bytes());
    };
    put_half(0, run.d);
    if form.has_min {
        put_half(1, run.m);
    }
    if form.is_long {
        let start = nr * (2 + 2 * usize::from(form.has_min)) + i * form.panel_run(nr);
        for (n, scale) in run.scales[..form.n_scales].iter().enumerate() {
            block[start + n * nr + row] = *scale as u8;
        }
        if form.has_min {
            block[start + form.n_scales * nr + row] = run.min;
        }
    }
    let kr = layout.kr();
    for (c, run) in run.codes.chunks_exact(kr).enumerate() {
        codes[layout.place(row, c) * kr..][..kr].copy_from_slice(run);
    }
}

/// Joins the codes of run `i` of all rows, and writes them to their block of a panel.
pub(super) fn join(layout: Layout, form: Form, i: usize, codes: &[u8], block: &mut [u8]) {
    let (nr, len) = (layout.nr, form.panel_run(layout.nr));
    let end = nr * (2 + 2 * usize::from(form.has_min)) + (i + 1) * len;
    let out = &mut block[end - nr * BLOCK * form.bits / 8..end];
    let lines: &[Lines] = codes.as_chunks().0.as_chunks().0;
    for (lines, out) in lines.iter().zip(out.chunks_exact_mut(form.bits * LINE)) {
        out.fill(0);
        let out = out.as_chunks_mut::<LINE>().0;
        for (l, line) in lines.iter().enumerate() {
            for (j, code) in line.iter().enumerate() {
                out[l / 2][j] |= (code & 15) << (l % 2 * 4);
                match form.bits {
                    5 => out[4][j] |= (code >> 4) << l,
                    6 => out[4 + l / 4][j] |= (code >> 4) << (l % 4 * 2),
                    _ => {}
                }
            }
        }
    }
}

/// Unpacks blocks of a panel in this form. Each form has code of its own, with constant shifts.
#[inline(always)]
pub(in crate::kernels) fn unpack(
    layout: Layout,
    form: Form,
    blocks: &[u8],
    out: &mut Unpacked<'_>,
) {
    match form {
        Form { bits: 4, n_scales: 2, .. } => {
            unpack_as::<4, 2, false, true>(layout, form, blocks, out)
        }
        Form { bits: 4, has_min: false, .. } => {
            unpack_as::<4, 1, false, false>(layout, form, blocks, out);
        }
        Form { bits: 4, is_long: false, .. } => {
            unpack_as::<4, 1, true, false>(layout, form, blocks, out);
        }
        Form { bits: 4, .. } => unpack_as::<4, 1, true, true>(layout, form, blocks, out),
        Form { bits: 5, has_min: false, .. } => {
            unpack_as::<5, 1, false, false>(layout, form, blocks, out);
        }
        Form { bits: 5, is_long: false, .. } => {
            unpack_as::<5, 1, true, false>(layout, form, blocks, out);
        }
        Form { bits: 5, .. } => unpack_as::<5, 1, true, true>(layout, form, blocks, out),
        _ => unpack_as::<6, 2, false, true>(layout, form, blocks, out),
    }
}

#[inline(always)]
fn unpack_as<const BITS: usize, const SCALES: usize, const HAS_MIN: bool, const IS_LONG: bool>(
    layout: Layout,
    form: Form,
    blocks: &[u8],
    out: &mut Unpacked<'_>,
) {
    let (nr, group_bytes) = (layout.nr, layout.group_bytes(BLOCK));
    let (runs, run_bytes) = (form.len() / BLOCK, form.panel_run(nr));
    let mut halves = [[0.0; NR_MAX]; 2];
    for (b, block) in blocks.chunks_exact(form.panel_block(nr)).enumerate() {
        let (head, rest) = block.split_at(nr * (2 + 2 * usize::from(HAS_MIN)));
        widen_halves(&head[..2 * nr], &mut halves[0][..nr]);
        if HAS_MIN {
            widen_halves(&head[2 * nr..], &mut halves[1][..nr]);
        }
        let [d, m] = halves.each_ref().map(|half| &half[..nr]);
        for (i, run) in rest.chunks_exact(run_bytes).enumerate() {
            let at = b * runs + i;
            #[cfg(target_arch = "x86_64")]
            prefetch_behind(run);
            let (parameters, codes) = run.split_at(run.len() - nr * BLOCK * BITS / 8);
            let planes = out.planes.each_mut().map(|plane| match plane.is_empty() {
                true => &mut [][..],
                false => &mut plane[at * group_bytes..][..group_bytes],
            });
            let [first, second] = planes.map(|plane| {
                let middle = plane.len().min(4 * nr);
                plane.split_at_mut(middle)
            });
            unpack_scales::<IS_LONG>(d, parameters, first.0);
            if SCALES == 2 {
                unpack_scales::<IS_LONG>(d, &parameters[nr..], second.0);
            }
            let values = [&mut *first.1, &mut *second.1];
            unpack_codes::<BITS, SCALES>(layout, form.zero, codes, values);
            if HAS_MIN {
                let offsets = &mut out.offsets[at * nr..][..nr];
                match IS_LONG {
                    true => {
                        let mins = &parameters[SCALES * nr..][..nr];
                        for row in 0..nr {
                            offsets[row] = -(m[row] * f32::from(mins[row]));
                        }
                    }
                    false => offsets.copy_from_slice(m),
                }
            }
        }
    }
}

/// Widens halves of all rows.
#[inline(always)]
fn widen_halves(bytes: &[u8], out: &mut [f32]) {
    let halves = &bytes.as_chunks::<2>().0[..out.len()];
    for row in 0..out.len() {
        out[row] = half_to_f32(u16::from_ne_bytes(halves[row]));
    }
}

/// Scales of a run: those of the block times integers, if it has these.
#[inline(always)]
fn unpack_scales<const IS_LONG: bool>(d: &[f32], scales: &[u8], out: &mut [u8]) {
    let nr = d.len();
    let out = &mut out.as_chunks_mut::<4>().0[..nr];
    match IS_LONG {
        true => {
            let scales = &scales[..nr];
            for row in 0..nr {
                out[row] = (d[row] * f32::from(scales[row] as i8)).to_ne_bytes();
            }
        }
        false => {
            for row in 0..nr {
                out[row] = d[row].to_ne_bytes();
            }
        }
    }
}

/// Unpacks a run's codes to its planes, four lines at a time. The first columns of all rows come first in every layout,
/// so each four lines belong to one half of the run. Iterators of slices are few here: the compiler calls them instead of
/// inlining them, because all forms are in one function.
#[inline(always)]
fn unpack_codes<const BITS: usize, const SCALES: usize>(
    layout: Layout,
    zero: u8,
    codes: &[u8],
    planes: [&mut [u8]; 2],
) {
    // A flipped layout wants u8 with the bias.
    let less = layout.flip.wrapping_sub(zero);
    let half = layout.nr * BLOCK / 2;
    let codes: &[[[u8; LINE]; BITS]] = codes.as_chunks().0.as_chunks().0;
    let [first, second] = planes;
    if SCALES == 1 {
        let out: &mut [[[[u8; LINE]; 4]; 2]] =
            first.as_chunks_mut().0.as_chunks_mut().0.as_chunks_mut().0;
        for (lines, [a, b]) in codes.iter().zip(out) {
            four_lines::<BITS, 0>(lines, less, a);
            four_lines::<BITS, 1>(lines, less, b);
        }
        return;
    }
    first[half..].fill(layout.flip);
    second[..half].fill(layout.flip);
    let [first, second]: [&mut [[[u8; LINE]; 4]]; 2] =
        [first, second].map(|out| out.as_chunks_mut().0.as_chunks_mut().0);
    let n = half / (4 * LINE);
    for (i, lines) in codes.iter().enumerate() {
        let (a, b) = (2 * i, 2 * i + 1);
        four_lines::<BITS, 0>(lines, less, if a < n { &mut first[a] } else { &mut second[a] });
        four_lines::<BITS, 1>(lines, less, if b < n { &mut first[b] } else { &mut second[b] });
    }
}

/// Unpacks the first (`HALF` 0) or last (1) four of eight lines.
#[inline(always)]
fn four_lines<const BITS: usize, const HALF: usize>(
    lines: &[[u8; LINE]; BITS],
    less: u8,
    out: &mut [[u8; LINE]; 4],
) {
    let (a, b) = (&lines[2 * HALF], &lines[2 * HALF + 1]);
    match BITS {
        4 => {
            for j in 0..LINE {
                out[0][j] = (a[j] & 15).wrapping_add(less);
                out[1][j] = (a[j] >> 4).wrapping_add(less);
                out[2][j] = (b[j] & 15).wrapping_add(less);
                out[3][j] = (b[j] >> 4).wrapping_add(less);
            }
        }
        5 => {
            for j in 0..LINE {
                let high = lines[4][j] >> (4 * HALF);
                out[0][j] = (a[j] & 15 | high << 4 & 16).wrapping_add(less);
                out[1][j] = (a[j] >> 4 | high << 3 & 16).wrapping_add(less);
                out[2][j] = (b[j] & 15 | high << 2 & 16).wrapping_add(less);
                out[3][j] = (b[j] >> 4 | high << 1 & 16).wrapping_add(less);
            }
        }
        _ => {
            for j in 0..LINE {
                let high = lines[4 + HALF][j];
                out[0][j] = (a[j] & 15 | high << 4 & 48).wrapping_add(less);
                out[1][j] = (a[j] >> 4 | high << 2 & 48).wrapping_add(less);
                out[2][j] = (b[j] & 15 | high & 48).wrapping_add(less);
                out[3][j] = (b[j] >> 4 | high >> 2 & 48).wrapping_add(less);
            }
        }
    }
}

/// Adds the products of runs' offsets, `[runs, nr]`, with the sums of the tile's rows to `out`, `[t, nr]`.
#[inline(always)]
pub(in crate::kernels) fn add_offsets<const FMA: bool>(
    nr: usize,
    offsets: &[f32],
    x: &Q8Tile<'_>,
    out: &mut [f32],
) {
    let t = out.len() / nr;
    for (g, offsets) in offsets.chunks_exact(nr).enumerate() {
        let (zeros, scales) = (&x.zeros[g * t..][..t], &x.scales[g * t..][..t]);
        for row in 0..t {
            // Exact: both are integers below 2^24, and their difference is a multiple of 128.
            let sum = (ZERO - zeros[row]) * (1.0 / 128.0);
            let term = scales[row] * sum;
            for (out, offset) in out[row * nr..][..nr].iter_mut().zip(offsets) {
                *out = float::fma::<FMA>(*offset, term, *out);
            }
        }
    }
}
