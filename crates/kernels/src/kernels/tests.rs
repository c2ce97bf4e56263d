//! Every tier against scalar, bit for bit, and scalar against naive f64.

mod attend;
mod int8;
mod packed;

use half::f16;

#[cfg(target_arch = "x86_64")]
use super::avx512vnni;
use super::float::{self, LANES};
use super::{Isa, Kernels};
use crate::quant::random::Random;
use crate::quant::{Bcml1Matrix, Bcml2Matrix, Q8Activations, Q8Matrix, Q8Row};

/// True if tests should draw fewer numbers, because they run on an emulated core.
fn quick() -> bool {
    std::env::var("LEAP_TEST_QUICK").is_ok_and(|value| value == "1")
}

fn scalar() -> Kernels {
    Kernels::for_isa(Isa::Scalar).unwrap()
}

/// The other tiers of this CPU, and their variants for CPUs that prefetch differently.
fn tiers() -> impl Iterator<Item = Kernels> {
    let tiers = Isa::ALL.iter().filter(|isa| **isa != Isa::Scalar);
    tiers.filter_map(|isa| Kernels::for_isa(*isa)).flat_map(variants)
}

fn variants(kernels: Kernels) -> Vec<Kernels> {
    #[cfg(target_arch = "x86_64")]
    if kernels.isa() == Isa::Avx512Vnni {
        let tables = [&avx512vnni::TABLE, &avx512vnni::TABLE_PAST_L2];
        return tables.map(|table| Kernels::with_table(kernels.isa(), table)).to_vec();
    }
    vec![kernels]
}

/// Bits of floats; every NaN becomes the same.
fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| if x.is_nan() { u32::MAX } else { x.to_bits() }).collect()
}

#[track_caller]
fn assert_close(found: f32, wanted: f64, bound: f64) {
    let off = (f64::from(found) - wanted).abs();
    assert!(off <= bound, "{found} is {off:e} off {wanted}, more than {bound:e}");
}

/// Lengths from nothing to four vectors of 16 and a tail.
const LENGTHS: std::ops::Range<usize> = 0..4 * LANES + 4;

const BATCHES: [usize; 9] = [0, 1, 2, 3, 4, 5, 7, 8, 33];

fn matmul_q8(kernels: Kernels, w: Q8Matrix<'_>, x: Q8Activations<'_>) -> Vec<f32> {
    let mut out = vec![f32::NAN; x.m() * w.rows()];
    let mut rows: Vec<&mut [f32]> = out.chunks_exact_mut(w.rows()).collect();
    kernels.matmul_q8(w, x, &mut rows);
    out
}

/// Weights, their scales, activations, their scales.
type Operands = (Vec<i8>, Vec<f32>, Vec<i8>, Vec<f32>);

fn operands(random: &mut Random, rows: usize, m: usize, k: usize, group: usize) -> Operands {
    (
        random.bytes(rows * k, i8::MIN),
        random.floats(rows * k / group),
        random.bytes(m * k, -127),
        random.floats(m * k / group),
    )
}

#[test]
fn isa_names_lead_back() {
    for isa in Isa::ALL {
        assert_eq!(Isa::from_name(isa.name()), Some(*isa));
    }
    assert_eq!(Isa::from_name("sse9"), None);
    assert!(Kernels::for_isa(Kernels::best().isa()).is_some());
}

#[test]
fn reading_sees_every_byte_in_every_tier() {
    let mut bytes = Random(5).bytes(2048, i8::MIN).iter().map(|b| *b as u8).collect::<Vec<_>>();
    let seen = scalar().read_all(&bytes);
    for tier in tiers() {
        assert_eq!(tier.read_all(&bytes), seen, "{tier:?}");
        for i in 0..bytes.len() {
            bytes[i] ^= 1;
            assert_ne!(tier.read_all(&bytes), seen, "{tier:?} byte {i}");
            bytes[i] ^= 1;
        }
    }
}

#[test]
fn int8_products_equal_scalar_in_every_tier() {
    let mut random = Random(1);
    for (group, k) in [(32, 32), (32, 96), (64, 64), (64, 320), (96, 192), (128, 128), (128, 512)] {
        for m in BATCHES {
            for rows in [1, 2, 3, 4, 5, 7, 9] {
                let (wq, ws, xq, xs) = operands(&mut random, rows, m, k, group);
                let w = Q8Matrix::new(&wq, &ws, k, group).unwrap();
                let x = Q8Activations::new(&xq, &xs, k, group).unwrap();
                let wanted = bits(&matmul_q8(scalar(), w, x));
                for tier in tiers() {
                    let found = bits(&matmul_q8(tier, w, x));
                    assert_eq!(found, wanted, "{tier:?} {m}x{rows}x{k}/{group}");
                }
            }
        }
    }
}

#[test]
fn extreme_int8_values_do_not_saturate() {
    let group = 1 << 16;
    for (w, x) in [(i8::MIN, 127), (i8::MIN, -127), (i8::MAX, -127), (i8::MAX, 127)] {
        let (wq, xq) = (vec![w; group * 4], vec![x; group * 4]);
        let ones = [1.0; 4];
        let w4 = Q8Matrix::new(&wq, &ones, group, group).unwrap();
        let x4 = Q8Activations::new(&xq, &ones, group, group).unwrap();
        let wanted = (group as i64 * i64::from(w) * i64::from(x)) as f32;
        for tier in tiers().chain([scalar()]) {
            assert_eq!(matmul_q8(tier, w4, x4), [wanted; 16], "{tier:?}");
        }
    }
}

#[test]
fn int8_products_are_the_documented_sum() {
    let mut random = Random(2);
    let (k, group) = (384, 64);
    let (wq, ws, xq, xs) = operands(&mut random, 3, 2, k, group);
    let w = Q8Matrix::new(&wq, &ws, k, group).unwrap();
    let x = Q8Activations::new(&xq, &xs, k, group).unwrap();
    let found = matmul_q8(scalar(), w, x);
    for (i, j) in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)] {
        let (mut y, mut exact, mut size) = (0.0_f32, 0.0, 0.0);
        for g in 0..k / group {
            let at = |row: usize| row * k + g * group;
            let d: i32 =
                (0..group).map(|c| i32::from(wq[at(j) + c]) * i32::from(xq[at(i) + c])).sum();
            let (w_scale, x_scale) = (ws[j * k / group + g], xs[i * k / group + g]);
            y = (d as f32 * w_scale).mul_add(x_scale, y);
            let product = f64::from(d) * f64::from(w_scale) * f64::from(x_scale);
            exact += product;
            size += product.abs();
        }
        assert_eq!(found[i * 3 + j], y);
        assert_close(y, exact, 1e-6 * size);
    }
}

#[test]
fn hostile_scales_stay_in_their_rows() {
    let mut random = Random(3);
    let (wq, mut ws, xq, xs) = operands(&mut random, 5, 5, 64, 32);
    let w = Q8Matrix::new(&wq, &ws, 64, 32).unwrap();
    let x = Q8Activations::new(&xq, &xs, 64, 32).unwrap();
    let clean = matmul_q8(scalar(), w, x);
    (ws[2], ws[5], ws[8]) = (f32::NAN, f32::INFINITY, f32::MAX);
    let w = Q8Matrix::new(&wq, &ws, 64, 32).unwrap();
    let wanted = matmul_q8(scalar(), w, x);
    for (i, (dirty, clean)) in wanted.iter().zip(&clean).enumerate() {
        assert!(i % 5 != 1 || dirty.is_nan());
        assert!((1..5).contains(&(i % 5)) || dirty == clean);
    }
    for tier in tiers() {
        assert_eq!(bits(&matmul_q8(tier, w, x)), bits(&wanted), "{tier:?}");
    }
}

fn matmul_q4(kernels: Kernels, w: Bcml1Matrix<'_>, x: Q8Activations<'_>) -> Vec<f32> {
    let mut out = vec![f32::NAN; x.m() * w.rows()];
    let mut rows: Vec<&mut [f32]> = out.chunks_exact_mut(w.rows()).collect();
    let mut sums = vec![0; x.m() * x.k() / 32];
    for (i, sums) in sums.chunks_exact_mut(x.k() / 32).enumerate() {
        kernels.sum_q8(x.row(i).q, sums);
    }
    kernels.matmul_q4(w, x, &sums, &mut rows);
    out
}

/// Blocks of any codes, with small multipliers and offsets.
fn blocks(random: &mut Random, n: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..n {
        for parameter in random.f16s(2) {
            bytes.extend(parameter.to_le_bytes());
        }
        bytes.extend((0..16).map(|_| random.bits() as u8));
    }
    bytes
}

#[test]
fn four_bit_products_equal_scalar_in_every_tier() {
    let mut random = Random(14);
    for (group, k) in [(32, 32), (32, 96), (64, 64), (64, 320), (96, 192), (128, 128), (128, 512)] {
        for m in BATCHES {
            for rows in [1, 2, 3, 4, 5, 7, 9] {
                let bytes = blocks(&mut random, rows * k / 32);
                let w = Bcml1Matrix::new(&bytes, k).unwrap();
                let (_, _, xq, xs) = operands(&mut random, 0, m, k, group);
                let x = Q8Activations::new(&xq, &xs, k, group).unwrap();
                let wanted = bits(&matmul_q4(scalar(), w, x));
                for tier in tiers() {
                    let found = bits(&matmul_q4(tier, w, x));
                    assert_eq!(found, wanted, "{tier:?} {m}x{rows}x{k}/{group}");
                }
            }
        }
    }
}

#[test]
fn four_bit_products_are_the_documented_sum() {
    let mut random = Random(15);
    let (m, rows, k, group) = (2, 3, 384, 96);
    let bytes = blocks(&mut random, rows * k / 32);
    let w = Bcml1Matrix::new(&bytes, k).unwrap();
    let (_, _, xq, xs) = operands(&mut random, 0, m, k, group);
    let x = Q8Activations::new(&xq, &xs, k, group).unwrap();
    let found = matmul_q4(scalar(), w, x);
    for (i, j) in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)] {
        let (mut y, mut exact) = (0.0_f32, 0.0);
        for g in 0..k / group {
            let x_scale = xs[i * k / group + g];
            let (mut t, mut d) = (-0.0_f32, 0);
            for b in g * 3..g * 3 + 3 {
                let block = &bytes[(j * k / 32 + b) * 20..];
                let float = |at| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
                let x = &xq[i * k + b * 32..][..32];
                let code = |v: usize| i32::from(block[4 + v % 16] >> (v / 16 * 4) & 15);
                d += (0..32).map(|v| code(v) * i32::from(x[v])).sum::<i32>();
                let s: i32 = x.iter().map(|x| i32::from(*x)).sum();
                t = (s as f32).mul_add(float(2), t);
                let next = if b % 3 == 2 { 0.0 } else { float(20) };
                t = (d as f32).mul_add(float(0) - next, t);
                let value = |v| f64::from(code(v)) * f64::from(float(0)) + f64::from(float(2));
                let products = (0..32).map(|v| value(v) * f64::from(x[v]));
                exact += products.sum::<f64>() * f64::from(x_scale);
            }
            y = t.mul_add(x_scale, y);
        }
        assert_eq!(found[i * rows + j], y);
        assert_close(y, exact, 1e-2);
    }
}

#[test]
fn extreme_four_bit_values_do_not_saturate() {
    let group = 1 << 16;
    for (code, x) in [(0xff, 127), (0xff, -127), (0xf0, 127), (0x0f, -127), (0, -127)] {
        // Multiplier 1 and offset one half, in groups of the largest size.
        let block = [vec![0, 0x3c, 0, 0x38], vec![code; 16]].concat();
        let bytes = block.repeat(4 * group / 32);
        let (xq, ones) = (vec![x; group * 4], [1.0; 4]);
        let w = Bcml1Matrix::new(&bytes, group).unwrap();
        let x4 = Q8Activations::new(&xq, &ones, group, group).unwrap();
        let codes = group / 2 * usize::from((code >> 4) + (code & 15));
        let wanted = (codes as f64 + 0.5 * group as f64) * f64::from(x);
        let found = matmul_q4(scalar(), w, x4);
        assert_close(found[0], wanted, 1e-5 * wanted.abs());
        for tier in tiers() {
            assert_eq!(matmul_q4(tier, w, x4), found, "{tier:?}");
        }
    }
}

#[test]
fn hostile_four_bit_parameters_stay_in_their_rows() {
    let mut random = Random(16);
    let mut bytes = blocks(&mut random, 5 * 2);
    let (_, _, xq, xs) = operands(&mut random, 0, 5, 64, 64);
    let x = Q8Activations::new(&xq, &xs, 64, 64).unwrap();
    let clean = matmul_q4(scalar(), Bcml1Matrix::new(&bytes, 64).unwrap(), x);
    // Rows 1 to 4: a NaN, an infinity, the largest and a subnormal number.
    for (row, half) in [(1, 0x7e00), (2, 0xfc00), (3, 0x7bff), (4, 0x0001_u16)] {
        bytes[row * 40..][..2].copy_from_slice(&half.to_le_bytes());
        bytes[row * 40 + 22..][..2].copy_from_slice(&half.to_le_bytes());
    }
    let w = Bcml1Matrix::new(&bytes, 64).unwrap();
    let wanted = matmul_q4(scalar(), w, x);
    for (i, (dirty, clean)) in wanted.iter().zip(&clean).enumerate() {
        assert!(i % 5 != 1 || dirty.is_nan());
        assert!(i % 5 != 0 || dirty == clean);
    }
    for tier in tiers() {
        assert_eq!(bits(&matmul_q4(tier, w, x)), bits(&wanted), "{tier:?}");
    }
}

#[test]
fn activation_quantiser_equals_scalar_in_every_tier() {
    let mut random = Random(4);
    for group in [32, 64, 96, 128] {
        let mut x = random.floats(40 * group);
        for (i, x) in x.chunks_exact_mut(group).enumerate() {
            // Scales from below the least normal number to the largest.
            let scale = 2.0_f32.powi(i as i32 * 7 - 145);
            x.iter_mut().for_each(|x| *x *= scale);
        }
        x[group + 3] = f32::NAN;
        x[2 * group + 5] = f32::NEG_INFINITY;
        x[3 * group..4 * group].fill(0.0);
        let run = |kernels: Kernels| {
            let (mut q, mut scales) = (vec![1; x.len()], vec![1.0; 40]);
            kernels.quantize_q8(&x, group, &mut q, &mut scales);
            let mut sums = vec![i32::MAX; x.len() / 32];
            kernels.sum_q8(&q, &mut sums);
            (q, bits(&scales), sums)
        };
        let wanted = run(scalar());
        let sum = |q: &[i8]| q.iter().map(|q| i32::from(*q)).sum::<i32>();
        assert_eq!(wanted.2, wanted.0.chunks(32).map(sum).collect::<Vec<_>>());
        for tier in tiers() {
            assert_eq!(run(tier), wanted, "{tier:?} {group}");
        }
    }
}

#[test]
fn activations_round_half_to_even_and_stay_in_range() {
    let mut x = [0.0; 32];
    x[..8].copy_from_slice(&[127.0, -127.0, 0.5, -0.5, 1.5, -2.5, 0.50000006, 126.49999]);
    for kernels in tiers().chain([scalar()]) {
        let (mut q, mut scale) = ([0; 32], [0.0]);
        kernels.quantize_q8(&x, 32, &mut q, &mut scale);
        assert_eq!((q[..8].to_vec(), scale), (vec![127, -127, 0, 0, 2, -2, 1, 126], [1.0]));
    }
    let mut random = Random(5);
    for _ in 0..20_000 {
        let max = f32::from_bits(random.bits() as u32 & 0x7fff_ffff);
        let x = [max, -max, max.next_down(), 0.0].repeat(8);
        let (mut q, mut scale) = ([0; 32], [0.0]);
        scalar().quantize_q8(&x, 32, &mut q, &mut scale);
        assert!(q[0] == -q[1]);
        assert!([0, 127].contains(&q[0]), "{max:e} gives {}", q[0]);
    }
}

#[test]
fn groups_that_cannot_be_scaled_are_defined() {
    let quantize = |x: f32| {
        let (mut q, mut scale) = ([1; 32], [1.0]);
        scalar().quantize_q8(&[x; 32], 32, &mut q, &mut scale);
        assert!(scale[0] > 0.0 || q == [0; 32]);
        scale[0]
    };
    for tiny in [0.0, -0.0, f32::from_bits(1), f32::MIN_POSITIVE] {
        assert_eq!(quantize(tiny).to_bits(), 0);
    }
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        assert!(quantize(bad).is_nan());
    }
    assert!(quantize(1e-36) > 0.0);
}

#[test]
fn fused_multiply_add_through_f64_is_exact() {
    let mut random = Random(6);
    let mut any = || f32::from_bits(random.bits() as u32);
    for _ in 0..1_000_000 {
        let (a, b, mut c) = (any(), any(), any());
        // A sum near a tie of the product is where double rounding fails.
        if c.to_bits() & 3 == 0 {
            c = a * b * f32::from_bits((c.to_bits() & 0x80ff_ffff) | 0x3000_0000);
        }
        let (found, wanted) = (float::fma::<false>(a, b, c), a.mul_add(b, c));
        assert_eq!(bits(&[found]), bits(&[wanted]), "{a:e} {b:e} {c:e}");
    }
}

#[test]
fn exp_keeps_its_bound_and_its_ends() {
    let (exp, exp_to_one) = (float::exp_within::<true>, float::exp_to_one::<true>);
    let mut worst = 0.0_f64;
    for i in 0..2_000_000 {
        let x = -86.9 + i as f32 * (174.9 / 2_000_000.0);
        let found = exp(x);
        let wanted = f64::from(x).exp();
        worst = worst.max((f64::from(found) / wanted - 1.0).abs());
    }
    assert!(worst < 1e-7, "{worst:e}");
    assert_eq!((exp(0.0), exp(-0.0), exp_to_one(0.0)), (1.0, 1.0, 1.0));
    for x in [88.0, 89.0, f32::MAX, f32::INFINITY] {
        assert_eq!(exp(x), exp(88.0));
    }
    for x in [-87.0, -87.4, f32::MIN, f32::NEG_INFINITY] {
        assert_eq!((exp(x), exp_to_one(x)), (0.0, 0.0));
    }
    assert!(exp(88.0).is_normal() && exp(-86.98).is_normal());
    assert!(exp(f32::NAN).is_nan() && exp_to_one(f32::NAN).is_nan());
}

#[test]
fn exp_is_never_subnormal() {
    // Values around the one where it becomes 0.
    for bits in 87.1_f32.to_bits() - 100_000..87.1_f32.to_bits() {
        assert!(!float::exp_to_one::<true>(-f32::from_bits(bits)).is_subnormal());
    }
}

#[test]
fn float_products_equal_scalar_and_keep_their_bound() {
    let mut random = Random(7);
    for k in LENGTHS.skip(1).chain([288, 1000]) {
        for (m, rows) in [(0, 3), (1, 1), (2, 5), (3, 4), (5, 7)] {
            let (w, x) = (random.floats(rows * k), random.floats(m * k));
            let run = |kernels: Kernels| {
                let mut out = vec![f32::NAN; m * rows];
                let mut views: Vec<&mut [f32]> = out.chunks_exact_mut(rows).collect();
                kernels.matmul_f32(&w, k, &x, &mut views);
                out
            };
            let found = run(scalar());
            for tier in tiers() {
                assert_eq!(bits(&run(tier)), bits(&found), "{tier:?} {m}x{rows}x{k}");
            }
            for (i, found) in found.iter().enumerate() {
                let (x, w) = (&x[i / rows * k..][..k], &w[i % rows * k..][..k]);
                let products = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
                let size: f64 = products.clone().map(f64::abs).sum();
                let bound = ((k / LANES + 5) as f64) * 2.0_f64.powi(-24) * size;
                assert_close(*found, products.sum(), bound);
            }
        }
    }
}

#[test]
fn elementwise_kernels_equal_scalar_in_every_tier() {
    let mut random = Random(8);
    for n in LENGTHS.chain([1000]) {
        let mut x = random.floats(n);
        let y = random.floats(n);
        if n > 40 {
            x[7] = f32::NAN;
            (x[21], x[22], x[23]) = (200.0, -200.0, f32::INFINITY);
            (x[33], x[34]) = (-1e-40, f32::NEG_INFINITY);
        }
        let run = |kernels: Kernels| {
            let (mut sum, mut gated, mut norm) = (x.clone(), vec![0.0; n], vec![0.0; n]);
            kernels.add(&mut sum, &y);
            kernels.swiglu(&x, &y, &mut gated);
            kernels.rms_norm(&y, &x, 1e-5, &mut norm);
            let mut gelu = vec![0.0; n];
            kernels.gelu(&x, &mut gelu);
            let mut kv = vec![f16::ONE; n];
            kernels.store_kv(&x, &mut kv);
            let kv: Vec<f32> = kv.iter().map(|x| x.to_f32()).collect();
            [bits(&sum), bits(&gated), bits(&norm), bits(&gelu), bits(&kv)]
        };
        let wanted = run(scalar());
        for tier in tiers() {
            assert_eq!(run(tier), wanted, "{tier:?} {n}");
        }
    }
}

#[test]
fn rms_norm_and_swiglu_match_f64() {
    let mut random = Random(9);
    let (x, w) = (random.floats(288), random.floats(288));
    let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / 288.0;
    let mut norm = vec![0.0; 288];
    scalar().rms_norm(&x, &w, 1e-5, &mut norm);
    let gate: Vec<f32> = x.iter().map(|x| x * 30.0).collect();
    let silu = |g: f32| f64::from(g) / (1.0 + (-f64::from(g)).exp());
    let wanted: Vec<f64> = gate.iter().zip(&w).map(|(g, w)| silu(*g) * f64::from(*w)).collect();
    let mut gated = vec![0.0; 288];
    scalar().swiglu(&gate, &w, &mut gated);
    for i in 0..288 {
        let wanted_norm = f64::from(x[i]) * f64::from(w[i]) / (mean + 1e-5).sqrt();
        assert_close(norm[i], wanted_norm, 1e-6 * wanted_norm.abs());
        assert_close(gated[i], wanted[i], 4e-7 * wanted[i].abs() + 1e-37);
    }
}

#[test]
fn rope_rotates_neighbours_and_equals_scalar_in_every_tier() {
    let mut random = Random(10);
    for head_dim in (2..80).step_by(2).chain([128]) {
        let x = random.floats(3 * head_dim);
        let (cos, sin) = (random.floats(head_dim / 2), random.floats(head_dim / 2));
        let run = |kernels: Kernels| {
            let mut x = x.clone();
            kernels.rope(&mut x, head_dim, &cos, &sin);
            x
        };
        let found = run(scalar());
        for tier in tiers() {
            assert_eq!(bits(&run(tier)), bits(&found), "{tier:?} {head_dim}");
        }
        for i in 0..3 * head_dim / 2 {
            let [a, b, c, s] =
                [x[2 * i], x[2 * i + 1], cos[i % (head_dim / 2)], sin[i % (head_dim / 2)]]
                    .map(f64::from);
            assert_close(found[2 * i], a * c - b * s, 2.4e-7);
            assert_close(found[2 * i + 1], a * s + b * c, 2.4e-7);
        }
    }
}

#[test]
fn every_f16_and_what_lies_between_is_converted_alike() {
    let f16s: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
    let mut wanted = vec![0.0; f16s.len()];
    super::scalar::widen(&f16s, &mut wanted);
    // Each value, the midpoint to the next one, and the neighbours of both.
    let between: Vec<f32> = (0..0xffff_u16)
        .filter(|i| i & 0x7fff < 0x7c00)
        .flat_map(|i| {
            let a = f16::from_bits(i).to_f32();
            let middle = (a + f16::from_bits(i + 1).to_f32()) / 2.0;
            [a, a.next_up(), a.next_down(), middle, middle.next_up(), middle.next_down()]
        })
        .chain([65504.0, 65519.0, 65520.0, 1e30, -1e30, f32::INFINITY, f32::NEG_INFINITY, f32::NAN])
        .collect();
    let narrow = |kernels: Kernels| {
        let mut out = vec![f16::ZERO; between.len()];
        kernels.store_kv(&between, &mut out);
        let nan_as_one = |x: &f16| if x.is_nan() { f16::NAN } else { *x };
        out.iter().map(nan_as_one).map(f16::to_bits).collect::<Vec<_>>()
    };
    let stored = narrow(scalar());
    let (max, min, nan) = (0x7bff, 0xfbff, f16::NAN.to_bits());
    assert_eq!(stored[stored.len() - 8..], [max, max, max, max, min, max, min, nan]);
    for tier in tiers() {
        let mut found = vec![0.0; f16s.len()];
        tier.widen(&f16s, &mut found);
        assert_eq!(bits(&found), bits(&wanted), "{tier:?}");
        assert!(narrow(tier) == stored, "{tier:?}");
    }
}
