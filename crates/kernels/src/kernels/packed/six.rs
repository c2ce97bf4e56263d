//! Codes of 6 bits of a packed matrix: how they are joined, and unpacked to int8 weights.

use super::layout::Layout;
use crate::quant::bcml1::BLOCK;
use crate::quant::bcml6::{BLOCK_BYTES, ZERO};

/// Bytes of a line.
const LINE: usize = 64;

/// Codes of four lines.
type Lines = [[u8; LINE]; 4];

/// Codes of four lines joined: the low four bits of the first two, those of the others, and the high two bits of all.
type Joined = [[u8; LINE]; 3];

/// Joins `codes`, which are fours of whole lines.
pub(super) fn join(codes: &[u8], out: &mut [u8]) {
    let lines: &[Lines] = codes.as_chunks().0.as_chunks().0;
    let out: &mut [Joined] = out.as_chunks_mut().0.as_chunks_mut().0;
    for ([a, b, c, d], out) in lines.iter().zip(out) {
        for i in 0..LINE {
            out[0][i] = a[i] & 15 | b[i] << 4;
            out[1][i] = c[i] & 15 | d[i] << 4;
            out[2][i] = a[i] >> 4 | b[i] >> 4 << 2 | c[i] >> 4 << 4 | d[i] >> 4 << 6;
        }
    }
}

/// Code `i` of those that [`join`] joined.
pub(super) fn code(joined: &[u8], i: usize) -> u8 {
    let joined: &[Joined] = joined.as_chunks().0.as_chunks().0;
    let (lines, l, j) = (&joined[i / (4 * LINE)], i / LINE % 4, i % LINE);
    lines[l / 2][j] >> (l % 2 * 4) & 15 | (lines[2][j] >> (2 * l) & 3) << 4
}

/// Unpacks blocks of a panel, whose rows have these `steps`, to groups of int8 weights in the same layout: a scale for
/// each row, and the codes less [`ZERO`].
#[inline(always)]
pub(in crate::kernels) fn unpack(layout: Layout, steps: &[u8], blocks: &[u8], out: &mut [u8]) {
    let nr = layout.nr;
    // A flipped layout wants u8 with the bias.
    let less = layout.flip.wrapping_sub(ZERO);
    let steps = &steps.as_chunks::<4>().0[..nr];
    let groups = out.chunks_exact_mut(layout.group_bytes(BLOCK));
    for (block, out) in blocks.chunks_exact(nr * BLOCK_BYTES).zip(groups) {
        let ((scales, joined), (out_scales, out)) = (block.split_at(nr), out.split_at_mut(4 * nr));
        let out_scales = out_scales.as_chunks_mut::<4>().0.iter_mut();
        for ((out, scale), step) in out_scales.zip(scales).zip(steps) {
            *out = (f32::from_ne_bytes(*step) * f32::from(*scale)).to_ne_bytes();
        }
        let joined: &[Joined] = joined.as_chunks().0.as_chunks().0;
        let out: &mut [Lines] = out.as_chunks_mut().0.as_chunks_mut().0;
        for ([ab, cd, high], [a, b, c, d]) in joined.iter().zip(out) {
            for i in 0..LINE {
                let high = high[i];
                a[i] = (ab[i] & 15 | high << 4 & 0x30).wrapping_add(less);
                b[i] = (ab[i] >> 4 | high << 2 & 0x30).wrapping_add(less);
                c[i] = (cd[i] & 15 | high & 0x30).wrapping_add(less);
                d[i] = (cd[i] >> 4 | high >> 2 & 0x30).wrapping_add(less);
            }
        }
    }
}
