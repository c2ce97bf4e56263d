//! Plain Rust: what every other tier must match to the bit.

use half::f16;

use super::kv8::bodies::int8_kernels;
use super::kv8::{HALF_BITS, KvLine};
use super::table::{Blocks4, SummedRow};
use super::{float, tier};
use crate::quant::Ggml;
use crate::quant::Q8Row;
use crate::quant::bcml1::{BLOCK, Block};
use crate::quant::ggml::Form;
use crate::quant::{bcml2, bcml6};

/// Whether `f32::mul_add` is one instruction rather than a slow library call.
const FMA: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));

tier::float_kernels!(FMA, None);
tier::tile_kernels!(FMA);
int8_kernels!(FMA, false, 1, 4);

fn dots<const N: usize>(x: &[f32], rows: [&[f32]; N]) -> [f32; 4] {
    float::dots::<FMA, N>(x, rows)
}

fn dots44(x: [&[f32]; 4], rows: [&[f32]; 4]) -> [[f32; 4]; 4] {
    x.map(|x| dots(x, rows))
}

fn largest(x: &[[f32; 32]]) -> u32 {
    x.as_flattened().iter().fold(0, |max, x| x.abs().to_bits().max(max))
}

fn round(x: &[[f32; 32]], factor: f32, q: &mut [[i8; 32]]) {
    for (q, x) in q.as_flattened_mut().iter_mut().zip(x.as_flattened()) {
        *q = (x * factor + float::ROUND).to_bits() as i8;
    }
}

/// One activation row by four weight rows.
pub(super) fn dot_q8_q8_f32_1x4(x: &Q8Row<'_>, w: &[Q8Row<'_>; 4], group: usize) -> [f32; 4] {
    w.map(|w| dot_q8(x, &w, group))
}

/// Four activation rows by four weight rows: `[activation][weight]`.
pub(super) fn dot_q8_q8_f32_4x4(
    x: &[Q8Row<'_>; 4],
    w: &[Q8Row<'_>; 4],
    group: usize,
) -> [[f32; 4]; 4] {
    x.map(|x| w.map(|w| dot_q8(&x, &w, group)))
}

fn dot_q8(x: &Q8Row<'_>, w: &Q8Row<'_>, group: usize) -> f32 {
    let values = x.q.chunks_exact(group).zip(w.q.chunks_exact(group));
    let scales = x.scales.iter().zip(w.scales);
    values.zip(scales).fold(0.0, |y, ((x, w), (x_scale, w_scale))| {
        float::fma::<FMA>(dot_i8(x, w) as f32 * w_scale, *x_scale, y)
    })
}

/// One activation row by four weight rows of 4 bits.
pub(super) fn dot_q8_q4_f32_1x4(x: &SummedRow<'_>, w: &Blocks4<'_>, group: usize) -> [f32; 4] {
    w.map(|w| dot_q4(x, w, group))
}

/// Four activation rows by four weight rows of 4 bits: `[activation][weight]`.
pub(super) fn dot_q8_q4_f32_4x4(
    x: &[SummedRow<'_>; 4],
    w: &Blocks4<'_>,
    group: usize,
) -> [[f32; 4]; 4] {
    x.map(|x| w.map(|w| dot_q4(&x, w, group)))
}

fn dot_q4(x: &SummedRow<'_>, w: &[Block], group: usize) -> f32 {
    let values = x.row.q.chunks_exact(group).zip(x.sums.chunks_exact(group / BLOCK));
    let groups = values.zip(w.chunks_exact(group / BLOCK)).zip(x.row.scales);
    groups.fold(0.0, |y, (((q, sums), w), x_scale)| {
        let (mut dot, mut total) = (0, -0.0);
        for (b, (q, sum)) in q.as_chunks::<BLOCK>().0.iter().zip(sums).enumerate() {
            let next = w.get(b + 1).map_or(0.0, |w| w.multiplier().to_f32());
            dot +=
                w[b].codes().iter().zip(q).map(|(w, q)| i32::from(*w) * i32::from(*q)).sum::<i32>();
            total = float::fma::<FMA>(*sum as f32, w[b].offset().to_f32(), total);
            total = float::fma::<FMA>(dot as f32, w[b].multiplier().to_f32() - next, total);
        }
        float::fma::<FMA>(total, *x_scale, y)
    })
}

/// An activation row by a row of BCML2.
pub(super) fn dot_q8_b2(x: &SummedRow<'_>, w: &bcml2::Row<'_>, group: usize) -> f32 {
    let values = x.row.q.chunks_exact(group).zip(x.sums.chunks_exact(group / BLOCK));
    let groups = values.zip(w.blocks.chunks_exact(group / BLOCK)).zip(x.row.scales);
    let y = groups.fold(0.0, |y, (((q, sums), w), x_scale)| {
        let blocks = w.iter().zip(q.as_chunks::<BLOCK>().0).zip(sums);
        let total = blocks.map(|((w, q), sum)| {
            let products = w.codes().into_iter().zip(q).map(|(w, q)| i32::from(w) * i32::from(*q));
            let dot: i32 = products.sum();
            i32::from(w.scale()) * (bcml2::ZERO_PARTS * dot - i32::from(w.zero) * sum)
        });
        float::fma::<FMA>(total.sum::<i32>() as f32, *x_scale, y)
    });
    y * w.step
}

/// An activation row by a row of BCML6, whose blocks are like groups of int8 weights.
pub(super) fn dot_q8_b6(x: &Q8Row<'_>, w: &bcml6::Row<'_>) -> f32 {
    let blocks = x.q.as_chunks::<BLOCK>().0.iter().zip(x.scales).zip(w.blocks);
    blocks.fold(0.0, |y, ((q, x_scale), w_block)| {
        let w_scale = w.step * f32::from(w_block.scale());
        float::fma::<FMA>(dot_i8(q, &w_block.values()) as f32 * w_scale, *x_scale, y)
    })
}

/// An activation row by a row of a GGUF file's blocks, whose runs are like groups of int8 weights. Runs with two scales
/// have a sum for each half, and runs with offsets one for these. The halves of runs may have factors of the offset.
pub(super) fn dot_q8_ggml(x: &Q8Row<'_>, kind: Ggml, w: &[u8]) -> f32 {
    let (mut y, mut others) = ([0.0; 2], 0.0);
    let halves = kind.form().map_or(1, |form| form.n_scales);
    for ((q, x_scale), run) in x.q.as_chunks::<BLOCK>().0.iter().zip(x.scales).zip(kind.runs(w)) {
        let parts = q.chunks_exact(BLOCK / halves).zip(run.codes.chunks_exact(BLOCK / halves));
        for ((y, (q, codes)), scale) in y.iter_mut().zip(parts).zip(run.scales) {
            *y = float::fma::<FMA>(dot_i8(q, codes) as f32 * scale, *x_scale, *y);
        }
        let sums = q.chunks_exact(BLOCK / 2).map(|q| q.iter().copied().map(i32::from).sum::<i32>());
        let sum: i32 = sums.zip(run.mins).map(|(sum, min)| sum * i32::from(min)).sum();
        others = float::fma::<FMA>(run.offset, x_scale * sum as f32, others);
    }
    match kind.form() {
        Some(Form { n_scales: 2, .. }) => y[0] + y[1],
        Some(Form { has_min: true, .. }) => y[0] + others,
        _ => y[0],
    }
}

fn dot_i8(a: &[i8], b: &[i8]) -> i32 {
    a.iter().zip(b).map(|(a, b)| i32::from(*a) * i32::from(*b)).sum()
}

/// See [`int8_kernels`].
type Sums = [i32; 16];

fn sums_from(start: i32) -> Sums {
    [start; 16]
}

fn floats(sums: Sums) -> [f32; 16] {
    sums.map(|sum| sum as f32)
}

/// Joins the sums of the upper and lower halves of codes.
fn joined([high, low]: [Sums; 2]) -> Sums {
    std::array::from_fn(|i| (high[i] << HALF_BITS) + low[i])
}

fn load_keys(line: &KvLine) -> &KvLine {
    line
}

fn load_values(line: &KvLine) -> &KvLine {
    line
}

fn add_keys(mut sums: Sums, line: &KvLine, q: [i8; 4]) -> Sums {
    for (sum, four) in sums.iter_mut().zip(line.fours()) {
        *sum += dot_i8(four, &q);
    }
    sums
}

fn in_order(_: &mut [Sums]) {}

fn add_values(sums: Sums, line: &KvLine, codes: [i8; 4]) -> Sums {
    add_keys(sums, line, codes)
}

/// f16 to f32, exact.
#[inline]
pub(super) fn widen(x: &[f16], out: &mut [f32]) {
    for (out, x) in out.iter_mut().zip(x) {
        *out = x.to_f32();
    }
}

/// See [`super::Kernels::store_kv`].
pub(super) fn narrow(x: &[f32], out: &mut [f16]) {
    for (out, x) in out.iter_mut().zip(x) {
        *out = f16::from_f32(x.clamp(-F16_MAX, F16_MAX));
    }
}

/// Largest finite f16.
pub(super) const F16_MAX: f32 = 65504.0;

/// See [`super::Kernels::read_all`]. There is no portable prefetch.
fn read_all(bytes: &[u8]) -> u64 {
    super::peak::read_all(bytes, |_| ())
}

/// See [`super::Kernels::spin_int8`]: a dot product with bytes in cache.
fn spin_int8(rounds: usize) -> i32 {
    let bytes = std::hint::black_box([3_i8; super::peak::MACS_PER_ROUND]);
    (0..rounds).fold(0_i32, |sum, _| sum.wrapping_add(dot_i8(std::hint::black_box(&bytes), &bytes)))
}
