//! Blocks of GGUF files, packed: how they are packed, and unpacked to int8 weights.
//!
//! ```text
//! d       [nr]               f16, scale of a block
//! m       [nr]               f16, minimum of a block, if it has one
//!                            then the block's runs of 32 columns:
//! scales  [n_scales, nr]     i8, in blocks of 256 columns
//! mins    [nr]               u8, in blocks of 256 columns with a minimum
//! codes                      of a group of int8 weights in lines, eight by eight: low four bits of two lines in the
//!                            bytes of one, then the fifth bits of all eight, or the high two bits of each four
//! ```
//!
//! Codes of two bits are in lines like those of high bits. Their parameters are two bytes for each row, `[2, nr]`: for
//! each half of a run, its scale in the low four bits and its minimum in the others.
//!
//! A line has 32 bytes, or 64 in panels of 32 rows: half of a step of four columns.
//!
//! A run unpacks to a group of int8 weights ([`Plane`]), and if it has a minimum to an offset for each row. Runs with a
//! scale for each half unpack to two such groups: one has zeros for the last 16 columns, the other for the first. So
//! the kernels of int8 weights multiply all of them.

use std::ops::Range;

use super::layout::{Layout, NR_MAX};
use crate::kernels::float;
#[cfg(target_arch = "x86_64")]
use crate::kernels::packed::tile::prefetch_behind;
use crate::kernels::packed::tile::{Q8Tile, ZERO};
use crate::quant::bcml1::BLOCK;
use crate::quant::f16::half_to_f32;
use crate::quant::ggml::{Codes, EVEN, Form, MXFP4_STEPS, NL_STEPS, Steps, table};

/// Most runs that are unpacked at once: a long block.
pub(super) const RUNS_MAX: usize = 8;

/// A tile of activations by a panel whose codes are unpacked in registers. Arguments: the form of the panel's blocks; the
/// blocks of a panel; a tile; and `t * nr` results, which are written in the order of rows.
pub(in crate::kernels) type RunTile = unsafe fn(Form, &[u8], &Q8Tile<'_>, &mut [f32]);

/// Offsets of runs, `[runs, nr]`, and their factors for the halves of runs, if these have any.
pub(in crate::kernels) type Offsets<'a> = (&'a [f32], Option<&'a [[u8; 2]]>);

/// Unpacked runs of a panel.
pub(in crate::kernels) struct Unpacked<'a> {
    /// Groups of int8 weights, one plane for each scale of a run.
    pub(super) planes: [&'a mut [u8]; 2],
    /// `[runs, nr]`; unused if runs have no offset.
    pub(super) offsets: &'a mut [f32],
    /// Factors of offsets for the halves of runs, `[runs, nr]`; unused if they have none.
    pub(super) mins: &'a mut [[u8; 2]],
}

impl Layout {
    /// Bytes of a line of codes.
    fn line(self) -> usize {
        if self.nr == NR_MAX { 64 } else { 32 }
    }
}

impl Form {
    /// Bytes of a block of a panel of `nr` rows.
    #[inline(always)]
    pub(in crate::kernels) fn panel_block(self, nr: usize) -> usize {
        self.panel_head(nr) + self.columns() / BLOCK * self.panel_run(nr)
    }

    /// Bytes before the runs of such a block.
    #[inline(always)]
    pub(in crate::kernels) fn panel_head(self, nr: usize) -> usize {
        nr * (2 + 2 * usize::from(self.has_min))
    }

    /// Bytes of a run of such a block.
    #[inline(always)]
    pub(in crate::kernels) fn panel_run(self, nr: usize) -> usize {
        nr * (self.parameters() + BLOCK * self.bits / 8)
    }

    /// Bytes of a run's parameters for each row.
    #[inline(always)]
    pub(in crate::kernels) fn parameters(self) -> usize {
        if self.is_long { self.n_scales + usize::from(self.has_min) } else { 0 }
    }

    /// This form with its properties as constants.
    #[inline(always)]
    pub(in crate::kernels) fn by_constants<
        const BITS: usize,
        const SCALES: usize,
        const HAS_MIN: bool,
        const IS_LONG: bool,
        const STEPS: usize,
    >(
        self,
    ) -> Form {
        let zero = if HAS_MIN || STEPS != EVEN { 0 } else { self.zero };
        let steps = match STEPS {
            NL_STEPS => Steps::Nl,
            MXFP4_STEPS => Steps::Mxfp4,
            _ => Steps::Even,
        };
        Form { bits: BITS, steps, n_scales: SCALES, has_min: HAS_MIN, is_long: IS_LONG, zero }
    }

    /// Whether results are two sums: one of first halves and one of second halves of runs, or one of products and one of
    /// offsets.
    #[inline(always)]
    pub(in crate::kernels) fn has_others(self) -> bool {
        self.n_scales == 2 || self.has_min
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
    let start = form.panel_head(nr) + i * form.panel_run(nr);
    if form.has_halves() {
        for (half, (scale, min)) in run.scales.iter().zip(run.mins).enumerate() {
            block[start + half * nr + row] = *scale as u8 | min << 4;
        }
    } else if form.is_long {
        for (n, scale) in run.scales[..form.n_scales].iter().enumerate() {
            block[start + n * nr + row] = *scale as u8;
        }
        if form.has_min {
            block[start + form.n_scales * nr + row] = run.mins[0];
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
    let end = form.panel_head(nr) + (i + 1) * len;
    let out = &mut block[end - nr * BLOCK * form.bits / 8..end];
    out.fill(0);
    let line = layout.line();
    for (codes, out) in codes.chunks_exact(8 * line).zip(out.chunks_exact_mut(form.bits * line)) {
        for (i, code) in codes.iter().enumerate() {
            let (l, j) = (i / line, i % line);
            if form.bits == 2 {
                out[l / 4 * line + j] |= code << (l % 4 * 2);
                continue;
            }
            out[l / 2 * line + j] |= (code & 15) << (l % 2 * 4);
            match form.bits {
                5 => out[4 * line + j] |= (code >> 4) << l,
                6 => out[(4 + l / 4) * line + j] |= (code >> 4) << (l % 4 * 2),
                _ => {}
            }
        }
    }
}

/// Run `i` of a row of a panel's block: what [`put`] and [`join`] wrote.
pub(super) fn get(layout: Layout, form: Form, (row, i): (usize, usize), block: &[u8]) -> Codes {
    let (nr, line) = (layout.nr, layout.line());
    let half = |at: usize| u16::from_ne_bytes(block.as_chunks().0[at * nr + row]);
    let run = &block[form.panel_head(nr) + i * form.panel_run(nr)..][..form.panel_run(nr)];
    let (parameters, codes) = run.split_at(form.parameters() * nr);
    let code = |i: usize| {
        let at = layout.byte(row, i);
        let lines = &codes[at / (8 * line) * form.bits * line..][..form.bits * line];
        let (l, j) = (at / line % 8, at % line);
        if form.bits == 2 {
            return lines[l / 4 * line + j] >> (l % 4 * 2) & 3;
        }
        let high = match form.bits {
            5 => lines[4 * line + j] >> l & 1,
            6 => lines[(4 + l / 4) * line + j] >> (l % 4 * 2) & 3,
            _ => 0,
        };
        lines[l / 2 * line + j] >> (l % 2 * 4) & 15 | high << 4
    };
    let parameter = |at: usize| parameters.get(at * nr + row).copied().unwrap_or(1);
    let (scales, mins) = match form.has_halves() {
        true => {
            let both = [0, 1].map(parameter);
            (both.map(|both| (both & 15) as i8), both.map(|both| both >> 4))
        }
        false => (
            [0, form.n_scales - 1].map(|at| parameter(at) as i8),
            if form.has_min { [parameter(form.n_scales); 2] } else { [1; 2] },
        ),
    };
    let m = if form.has_min { half(1) } else { 0 };
    Codes { codes: std::array::from_fn(code), d: half(0), m, scales, mins }
}

/// The value of `$value` for a form of blocks; in it the constants `BITS`, `SCALES`, `HAS_MIN`, `IS_LONG` and `STEPS` are
/// the form's. So each form has code of its own, with constant shifts and sizes.
macro_rules! by_form {
    ($form:expr, $value:expr) => {{
        use $crate::kernels::packed::ggml::by_form as of;
        use $crate::quant::ggml::Steps::{Even, Mxfp4, Nl};
        let form = $form;
        match (form.bits, form.n_scales, form.has_min, form.is_long, form.steps) {
            (2, ..) => of!(2, 1, true, true, EVEN, $value),
            (4, 1, false, _, Even) => of!(4, 1, false, false, EVEN, $value),
            (4, 1, true, false, Even) => of!(4, 1, true, false, EVEN, $value),
            (4, 1, true, true, Even) => of!(4, 1, true, true, EVEN, $value),
            (4, _, _, _, Even) => of!(4, 2, false, true, EVEN, $value),
            (5, _, false, _, Even) => of!(5, 1, false, false, EVEN, $value),
            (5, _, true, false, Even) => of!(5, 1, true, false, EVEN, $value),
            (5, _, true, true, Even) => of!(5, 1, true, true, EVEN, $value),
            (_, _, _, _, Even) => of!(6, 2, false, true, EVEN, $value),
            (_, _, _, false, Nl) => of!(4, 1, false, false, NL_STEPS, $value),
            (_, _, _, true, Nl) => of!(4, 1, false, true, NL_STEPS, $value),
            (_, _, _, _, Mxfp4) => of!(4, 1, false, false, MXFP4_STEPS, $value),
        }
    }};
    ($bits:literal, $scales:literal, $min:literal, $long:literal, $steps:ident, $value:expr) => {{
        const BITS: usize = $bits;
        const SCALES: usize = $scales;
        const HAS_MIN: bool = $min;
        const IS_LONG: bool = $long;
        const STEPS: usize = $crate::quant::ggml::$steps;
        $value
    }};
}

pub(in crate::kernels) use by_form;

/// Unpacks blocks of a panel in this form, whose lines have `LINE` bytes.
#[inline(always)]
pub(in crate::kernels) fn unpack<const LINE: usize>(
    layout: Layout,
    form: Form,
    blocks: &[u8],
    out: &mut Unpacked<'_>,
) {
    by_form!(
        form,
        unpack_as::<LINE, BITS, SCALES, HAS_MIN, IS_LONG, STEPS>(layout, form, blocks, out)
    );
}

#[inline(always)]
fn unpack_as<
    const LINE: usize,
    const BITS: usize,
    const SCALES: usize,
    const HAS_MIN: bool,
    const IS_LONG: bool,
    const STEPS: usize,
>(
    layout: Layout,
    form: Form,
    blocks: &[u8],
    out: &mut Unpacked<'_>,
) {
    let (nr, group_bytes) = (layout.nr, layout.group_bytes(BLOCK));
    let (runs, run_bytes) = (form.columns() / BLOCK, form.panel_run(nr));
    let mut halves = [[0.0; NR_MAX]; 2];
    for (b, block) in blocks.chunks_exact(form.panel_block(nr)).enumerate() {
        let (head, rest) = block.split_at(nr * (2 + 2 * usize::from(HAS_MIN)));
        match STEPS {
            MXFP4_STEPS => widen_bfloats(&head[..2 * nr], &mut halves[0][..nr]),
            _ => widen_halves(&head[..2 * nr], &mut halves[0][..nr]),
        }
        if HAS_MIN {
            widen_halves(&head[2 * nr..], &mut halves[1][..nr]);
        }
        let [d, m] = halves.each_ref().map(|half| &half[..nr]);
        for (i, run) in rest.chunks_exact(run_bytes).enumerate() {
            let at = b * runs + i;
            #[cfg(target_arch = "x86_64")]
            prefetch_behind(run);
            let (parameters, codes) = run.split_at(run.len() - nr * BLOCK * BITS / 8);
            let [first, second] = &mut out.planes;
            let first = group_of(first, at * group_bytes..(at + 1) * group_bytes, 4 * nr);
            let second = group_of(second, at * group_bytes..(at + 1) * group_bytes, 4 * nr);
            let offsets = match HAS_MIN {
                true => &mut out.offsets[at * nr..][..nr],
                false => &mut [],
            };
            if BITS == 2 {
                first.0.copy_from_slice(bytemuck::cast_slice(d));
                unpack_halves::<LINE>(layout, parameters, codes, first.1);
                unpack_minima(m, parameters, offsets, &mut out.mins[at * nr..][..nr]);
                continue;
            }
            unpack_scales::<IS_LONG>(d, parameters, first.0);
            if SCALES == 2 {
                unpack_scales::<IS_LONG>(d, &parameters[nr..], second.0);
            }
            let values = [&mut *first.1, &mut *second.1];
            unpack_codes::<LINE, BITS, SCALES, STEPS>(layout, form.zero, codes, values);
            if HAS_MIN {
                unpack_offsets::<IS_LONG>(
                    m,
                    &parameters[if IS_LONG { SCALES * nr } else { 0 }..],
                    offsets,
                );
            }
        }
    }
}

/// Offsets of a run: the minima of its block, which integers multiply in long ones.
#[inline(always)]
fn unpack_offsets<const IS_LONG: bool>(m: &[f32], mins: &[u8], offsets: &mut [f32]) {
    match IS_LONG {
        true => {
            let mins = &mins[..offsets.len()];
            for row in 0..offsets.len() {
                offsets[row] = -(m[row] * f32::from(mins[row]));
            }
        }
        false => offsets.copy_from_slice(m),
    }
}

/// Offsets of a run, and their factors for its halves.
#[inline(always)]
fn unpack_minima(m: &[f32], parameters: &[u8], offsets: &mut [f32], mins: &mut [[u8; 2]]) {
    let nr = offsets.len();
    for row in 0..nr {
        offsets[row] = -m[row];
        mins[row] = [0, 1].map(|half| parameters[half * nr + row] >> 4);
    }
}

/// The scales and codes of a group at `place` of a plane; none, if there is no such plane.
#[inline(always)]
fn group_of(plane: &mut [u8], place: Range<usize>, scale_bytes: usize) -> (&mut [u8], &mut [u8]) {
    match plane.is_empty() {
        true => (&mut [], &mut []),
        false => plane[place].split_at_mut(scale_bytes),
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

/// Widens bf16 values of all rows.
#[inline(always)]
fn widen_bfloats(bytes: &[u8], out: &mut [f32]) {
    let halves = &bytes.as_chunks::<2>().0[..out.len()];
    for row in 0..out.len() {
        out[row] = f32::from_bits(u32::from(u16::from_ne_bytes(halves[row])) << 16);
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
fn unpack_codes<const LINE: usize, const BITS: usize, const SCALES: usize, const STEPS: usize>(
    layout: Layout,
    zero: u8,
    codes: &[u8],
    planes: [&mut [u8]; 2],
) {
    // A flipped layout wants u8 with the bias.
    let less = layout.flip.wrapping_sub(zero);
    let integers = table(STEPS, layout.flip);
    let half = layout.nr * BLOCK / 2;
    let codes: &[[[u8; LINE]; BITS]] = codes.as_chunks().0.as_chunks().0;
    let [first, second] = planes;
    if SCALES == 1 {
        let out: &mut [[[[u8; LINE]; 4]; 2]] =
            first.as_chunks_mut().0.as_chunks_mut().0.as_chunks_mut().0;
        for (lines, [a, b]) in codes.iter().zip(out) {
            if STEPS == EVEN {
                four_lines::<LINE, BITS, 0>(lines, less, a);
                four_lines::<LINE, BITS, 1>(lines, less, b);
            } else {
                look_up::<LINE, BITS, 0>(lines, &integers, a);
                look_up::<LINE, BITS, 1>(lines, &integers, b);
            }
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
        four_lines::<LINE, BITS, 0>(
            lines,
            less,
            if a < n { &mut first[a] } else { &mut second[a] },
        );
        four_lines::<LINE, BITS, 1>(
            lines,
            less,
            if b < n { &mut first[b] } else { &mut second[b] },
        );
    }
}

/// Unpacks a run's codes of two bits, times the scales of their halves.
#[inline(always)]
fn unpack_halves<const LINE: usize>(
    layout: Layout,
    parameters: &[u8],
    codes: &[u8],
    out: &mut [u8],
) {
    let (nr, kr) = (layout.nr, layout.kr());
    let codes: &[[u8; LINE]] = codes.as_chunks().0;
    let mut factors = [0; NR_MAX * BLOCK / 2];
    let factors = &mut factors[..nr * BLOCK / 2];
    let lines = factors.len() / LINE;
    let out: &mut [[u8; LINE]] = out.as_chunks_mut().0;
    for (half, out) in out.chunks_exact_mut(lines).enumerate() {
        for row in 0..nr {
            let scale = parameters[half * nr + row] & 15;
            for c in 0..BLOCK / 2 / kr {
                factors[layout.place(row, c) * kr..][..kr].fill(scale);
            }
        }
        let factors: &[[u8; LINE]] = factors.as_chunks().0;
        for (i, (out, factors)) in out.iter_mut().zip(factors).enumerate() {
            let l = half * lines + i;
            let (codes, from) = (&codes[l / 4], l % 4 * 2);
            for j in 0..LINE {
                out[j] = ((codes[j] >> from & 3) * factors[j]).wrapping_add(layout.flip);
            }
        }
    }
}

/// Unpacks the first (`HALF` 0) or last (1) four of eight lines.
#[inline(always)]
fn four_lines<const LINE: usize, const BITS: usize, const HALF: usize>(
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

/// Unpacks four of eight lines whose codes stand for the integers of a table.
#[inline(always)]
fn look_up<const LINE: usize, const BITS: usize, const HALF: usize>(
    lines: &[[u8; LINE]; BITS],
    integers: &[u8; 16],
    out: &mut [[u8; LINE]; 4],
) {
    for i in 0..4 {
        let mut codes = lines[2 * HALF + i / 2];
        for code in &mut codes {
            *code = *code >> (i % 2 * 4) & 15;
        }
        look_up_line(&codes, integers, &mut out[i]);
    }
}

/// The integers of a line of codes.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
fn look_up_line<const LINE: usize>(codes: &[u8; LINE], integers: &[u8; 16], out: &mut [u8; LINE]) {
    use std::arch::aarch64::*;
    for (codes, out) in codes.as_chunks::<16>().0.iter().zip(out.as_chunks_mut::<16>().0) {
        // SAFETY: all three are 16 bytes, and every CPU of this architecture has NEON.
        unsafe {
            let found = vqtbl1q_u8(vld1q_u8(integers.as_ptr()), vld1q_u8(codes.as_ptr()));
            vst1q_u8(out.as_mut_ptr(), found);
        }
    }
}

/// The integers of a line of codes: a choice for each integer, which the compiler makes of whole vectors.
#[cfg(not(target_arch = "aarch64"))]
#[inline(always)]
fn look_up_line<const LINE: usize>(codes: &[u8; LINE], integers: &[u8; 16], out: &mut [u8; LINE]) {
    for (code, integer) in (0..).zip(integers) {
        for j in 0..LINE {
            out[j] = if codes[j] == code { *integer } else { out[j] };
        }
    }
}

/// Adds the products of runs' offsets with the sums of the tile's rows to `out`, `[t, nr]`.
#[inline(always)]
pub(in crate::kernels) fn add_offsets<const FMA: bool>(
    layout: Layout,
    (offsets, mins): Offsets<'_>,
    x: &Q8Tile<'_>,
    out: &mut [f32],
) {
    let nr = layout.nr;
    let t = out.len() / nr;
    for (g, offsets) in offsets.chunks_exact(nr).enumerate() {
        let (zeros, scales) = (&x.zeros[g * t..][..t], &x.scales[g * t..][..t]);
        if let Some(mins) = mins {
            let (q, mins) = (&x.q[g * t * BLOCK..][..t * BLOCK], &mins[g * nr..][..nr]);
            for row in 0..t {
                let sums = sums_of_halves(q, t, row, layout.kr());
                for (i, out) in out[row * nr..][..nr].iter_mut().enumerate() {
                    let sum = sums[0] * i32::from(mins[i][0]) + sums[1] * i32::from(mins[i][1]);
                    *out = float::fma::<FMA>(offsets[i], scales[row] * sum as f32, *out);
                }
            }
            continue;
        }
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

/// Sums of the halves of a run of activations: row `row` of `t`, in blocks of `kr` columns.
#[inline(always)]
fn sums_of_halves(q: &[i8], t: usize, row: usize, kr: usize) -> [i32; 2] {
    let mut sums = [0; 2];
    for (c, blocks) in q.chunks_exact(t * kr).enumerate() {
        let block = blocks[row * kr..][..kr].iter();
        sums[c * kr / (BLOCK / 2)] += block.map(|q| i32::from(*q)).sum::<i32>();
    }
    sums
}
