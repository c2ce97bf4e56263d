//! Error feedback for blocks of ggml's Q4_K.

use super::grid::Grid;
use super::{Feedback, Format, Tile};
use crate::quant::ggml::encode::{
    Line, Q4_K_BYTES, begin_q4_k, best_line, nearest, put_scale_and_min,
};
use crate::quant::ggml::{self, SHORT};
use crate::quant::products::{LANES, Lanes};
use crate::quant::q8::QuantError;

/// Groups of a block of Q4_K.
const GROUPS: usize = ggml::LONG / SHORT;

/// Rows of Q4_K, whose blocks have their two factors already.
struct Q4KRows<'a> {
    row_blocks: usize,
    blocks: &'a mut [[u8; Q4_K_BYTES]],
    factors: Vec<(f32, f32)>,
    /// Codes of scales and minima of a tile.
    scales: [(u8, u8); LANES],
}

impl Q4KRows<'_> {
    /// Index of the block of row `i` of a tile.
    fn block(&self, tile: &Tile, i: usize) -> usize {
        (tile.first + i) * self.row_blocks + tile.group / GROUPS
    }
}

impl Format for Q4KRows<'_> {
    fn fit(&mut self, tile: &Tile, targets: &[Lanes], _: &[f32]) -> Result<Grid, QuantError> {
        let (mut multiplier, mut offset) = ([0.0; LANES], [0.0; LANES]);
        for i in 0..LANES {
            let mut group = [0.0; SHORT];
            for (value, target) in group.iter_mut().zip(targets) {
                *value = target[i];
            }
            let (d, m) = self.factors[self.block(tile, i.min(tile.rows - 1))];
            self.scales[i] = nearest(best_line(&group), (d, m), &group);
            let (scale, min) = self.scales[i];
            (multiplier[i], offset[i]) = (d * f32::from(scale), -m * f32::from(min));
        }
        Ok(Grid { multiplier, offset, least: 0.0, largest: 15.0 })
    }

    fn put(&mut self, tile: &Tile, codes: &[Lanes]) {
        let group = tile.group % GROUPS;
        for i in 0..tile.rows {
            let index = self.block(tile, i);
            let (head, bytes) = self.blocks[index].split_at_mut(16);
            put_scale_and_min(&mut head[4..], group, self.scales[i]);
            for (byte, code) in bytes[group / 2 * SHORT..].iter_mut().zip(codes) {
                *byte |= (code[i] as u8) << (group % 2 * 4);
            }
        }
    }
}

impl Feedback<'_> {
    /// Encodes to blocks of Q4_K. The factors of a block are chosen beforehand, for its original weights and a little
    /// more. Compiled once, for the oldest CPU.
    ///
    /// # Errors
    ///
    /// None that finite weights could cause.
    ///
    /// # Panics
    ///
    /// When `out` is not as long as the rows need.
    #[inline(never)]
    pub fn encode_q4_k(&self, out: &mut [u8]) -> Result<(), QuantError> {
        let row_blocks = self.k / ggml::LONG;
        let blocks: &mut [[u8; Q4_K_BYTES]] = out.as_chunks_mut().0;
        assert_eq!(blocks.len() * ggml::LONG, self.w.len());
        let values = self.w.as_chunks::<{ ggml::LONG }>().0.iter();
        let begin = |(w, block)| begin_with_room(w, block);
        let factors = values.zip(blocks.iter_mut()).map(begin).collect();
        let scales = [(0, 0); LANES];
        self.sweep(SHORT, &mut Q4KRows { row_blocks, blocks, factors, scales })
    }
}

/// Writes the factors of a block for weights `w`, with room for what feedback adds, and returns them.
fn begin_with_room(w: &[f32; ggml::LONG], block: &mut [u8; Q4_K_BYTES]) -> (f32, f32) {
    /// Factor by which feedback enlarges the largest scale of a block, about.
    const ROOM: f32 = 1.1;
    let mut lines = [Line { scale: 0.0, min: 0.0 }; GROUPS];
    for (line, group) in lines.iter_mut().zip(w.as_chunks::<SHORT>().0) {
        let Line { scale, min } = best_line(group);
        *line = Line { scale: ROOM * scale, min: ROOM * min };
    }
    begin_q4_k(&lines, block)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::Ggml;
    use crate::quant::feedback::column_start;
    use crate::quant::random::Random;

    /// Errors of neighbours add up: the sum of `(e[j] + 0.9 e[j - 1])²`.
    fn damage(w: &[f32], k: usize, bytes: &[u8]) -> f32 {
        let mut decoded = vec![0.0; w.len()];
        Ggml::Q4K.widen(bytes, &mut decoded);
        let rows = w.chunks_exact(k).zip(decoded.chunks_exact(k));
        rows.map(|(w, q)| {
            let errors: Vec<f32> = w.iter().zip(q).map(|(w, q)| w - q).collect();
            let pairs = errors.windows(2).map(|pair| (pair[1] + 0.9 * pair[0]).powi(2));
            errors[0] * errors[0] + pairs.sum::<f32>()
        })
        .sum()
    }

    #[test]
    fn outputs_are_nearer_than_without_feedback() {
        let k = 512;
        let mut triangle = vec![0.0; column_start(k)];
        for j in 0..k {
            triangle[column_start(j) + j] = 1.0;
            if let Some(before) = j.checked_sub(1) {
                triangle[column_start(j) + before] = 0.9;
            }
        }
        let w: Vec<f32> = {
            let mut random = Random(7);
            (0..19 * k).map(|_| random.normal()).collect()
        };
        let mut bytes = vec![0; w.len() / ggml::LONG * Q4_K_BYTES];
        ggml::encode(Ggml::Q4K, &w, &mut bytes);
        let plain = damage(&w, k, &bytes);
        Feedback::new(&w, k, &triangle).encode_q4_k(&mut bytes).unwrap();
        let fed_back = damage(&w, k, &bytes);
        assert!(fed_back < 0.95 * plain, "{fed_back} {plain}");
    }
}
