//! Tiles of activations by blocks of GGUF files, whose codes are unpacked in registers: written once for the ARM tiers,
//! which differ in their products.
//!
//! A kernel takes the rows of a panel four by four, in strips. A strip's half of a run is two vectors of codes: the low
//! halves of their bytes are two vectors of 16 codes, and the high halves two others.

use std::arch::aarch64::*;

use super::vectors::{load_bytes, load_four, widen_8};
use crate::kernels::packed::layout::Layout;
use crate::quant::bcml1::BLOCK;
use crate::quant::ggml::{EVEN, MXFP4_STEPS, NL_STEPS, table};

/// Bytes of a line of a panel's codes, in vectors.
const LINE: usize = 2;

/// Defines `tiles`, the functions of a tier with `$features`, whose panels have `$nr` rows and whose activations are in
/// blocks of `$kr` columns. The tier has in scope `Dots`, the sums of a strip with a row of activations; `begin`, which
/// makes them of a vector of first values; `add_products`; and `finish`, which gives four sums. The last two are told
/// the steps of codes.
macro_rules! run_tiles {
    ($features:literal, $nr:expr, $kr:literal) => {
        /// Strips of a panel, two by two.
        const PAIRS: usize = $nr / 8;

        /// Numbers of a panel's rows.
        type Floats = [[float32x4_t; 2]; PAIRS];

        /// Activations of half a run.
        type Half<const M: usize> = [[u8; 16]; M];

        /// Tiles of one and more rows of activations.
        pub(in $crate::kernels) fn tiles(
            form: $crate::quant::ggml::Form,
        ) -> &'static [$crate::kernels::packed::ggml::RunTile] {
            $crate::kernels::packed::ggml::by_form!(
                form,
                by_rows::<BITS, SCALES, HAS_MIN, IS_LONG, STEPS>()
            )
        }

        fn by_rows<
            const BITS: usize,
            const SCALES: usize,
            const HAS_MIN: bool,
            const IS_LONG: bool,
            const STEPS: usize,
        >() -> &'static [$crate::kernels::packed::ggml::RunTile] {
            const {
                &[
                    Runs::<1, BITS, SCALES, HAS_MIN, IS_LONG, STEPS>::gemm,
                    Runs::<2, BITS, SCALES, HAS_MIN, IS_LONG, STEPS>::gemm,
                    Runs::<3, BITS, SCALES, HAS_MIN, IS_LONG, STEPS>::gemm,
                    Runs::<4, BITS, SCALES, HAS_MIN, IS_LONG, STEPS>::gemm,
                ]
            }
        }

        /// Products of blocks of a form with `M` rows of activations. Each of its functions has its own code for each form
        /// and number of rows, so that those with one caller are inlined and totals stay in registers.
        struct Runs<
            const M: usize,
            const BITS: usize,
            const SCALES: usize,
            const HAS_MIN: bool,
            const IS_LONG: bool,
            const STEPS: usize,
        >;

        impl<
            const M: usize,
            const BITS: usize,
            const SCALES: usize,
            const HAS_MIN: bool,
            const IS_LONG: bool,
            const STEPS: usize,
        > Runs<M, BITS, SCALES, HAS_MIN, IS_LONG, STEPS>
        {
            /// `M` rows of activations by a panel of blocks in `form`.
            #[target_feature(enable = $features)]
            fn gemm(
                form: $crate::quant::ggml::Form,
                panel: &[u8],
                x: &$crate::kernels::packed::tile::Q8Tile<'_>,
                out: &mut [f32],
            ) {
                let form = form.by_constants::<BITS, SCALES, HAS_MIN, IS_LONG, STEPS>();
                let mut totals = [[[[vdupq_n_f32(0.0); 2]; PAIRS]; M]; 2];
                let mut groups = x.groups::<M, $kr>();
                for block in panel.chunks_exact(form.panel_block($nr)) {
                    let (head, runs) = block.split_at(form.panel_head($nr));
                    let head = head.as_chunks::<16>().0.as_chunks::<PAIRS>().0;
                    let d = $crate::kernels::neon::runs::widen_scales::<STEPS, PAIRS>(&head[0]);
                    let m = match form.has_min {
                        true => $crate::kernels::neon::runs::widen_halves(&head[1]),
                        false => d,
                    };
                    for run in runs.chunks_exact(form.panel_run($nr)) {
                        let Some(x) = groups.next() else { return };
                        let (parameters, codes) = run.split_at(form.parameters() * $nr);
                        let parameters = parameters.as_chunks::<8>().0.as_chunks::<PAIRS>().0;
                        let codes = codes.as_chunks::<16>().0.as_chunks::<BITS>().0;
                        let (Some(codes), Some(q)) = (codes.first_chunk(), Self::halves(x.q))
                        else {
                            return;
                        };
                        if form.has_halves() {
                            Self::add_halves(&mut totals, [d, m], parameters, (codes, q), x.scales);
                            continue;
                        }
                        let scales = if form.is_long { times(d, &parameters[0]) } else { d };
                        let less = Self::less_zeros::<0>(form.zero, &x, q);
                        if SCALES == 2 {
                            Self::add::<0, 1>(&mut totals[0], codes, q, less, scales, x.scales);
                            let less = Self::less_zeros::<1>(form.zero, &x, q);
                            let scales = times(d, &parameters[1]);
                            Self::add::<1, 2>(&mut totals[1], codes, q, less, scales, x.scales);
                            continue;
                        }
                        Self::add::<0, 2>(&mut totals[0], codes, q, less, scales, x.scales);
                        if form.has_min {
                            let offsets =
                                if form.is_long { less_times(m, &parameters[1]) } else { m };
                            Self::add_offsets(&mut totals[1], offsets, &x);
                        }
                    }
                }
                let has_others = form.has_others();
                let out = out.as_chunks_mut::<4>().0.as_chunks_mut::<2>().0;
                for i in 0..M {
                    for (pair, out) in out[i * PAIRS..][..PAIRS].iter_mut().enumerate() {
                        let [totals, others] = [totals[0][i][pair], totals[1][i][pair]];
                        for j in 0..2 {
                            let sum = vaddq_f32(totals[j], others[j]);
                            let total = if has_others { sum } else { totals[j] };
                            $crate::kernels::neon::vectors::store(&mut out[j], total);
                        }
                    }
                }
            }

            /// Adds the products of a run's offsets with the sums of activations.
            #[target_feature(enable = $features)]
            #[inline]
            fn add_offsets(
                totals: &mut [Floats; M],
                offsets: Floats,
                x: &$crate::kernels::packed::tile::TileGroup<'_, M, $kr>,
            ) {
                for i in 0..M {
                    let term = x.scales[i] * x.sum(i);
                    for pair in 0..PAIRS {
                        for j in 0..2 {
                            let total = &mut totals[i][pair][j];
                            *total = vfmaq_n_f32(*total, offsets[pair][j], term);
                        }
                    }
                }
            }

            /// Activations of a run in halves.
            #[inline(always)]
            fn halves(x: &[[[u8; $kr]; M]]) -> Option<&[Half<M>; 2]> {
                let run: &[[[u8; $kr]; M]; BLOCK / $kr] = x.first_chunk()?;
                Some(bytemuck::cast_ref(run))
            }

            /// Adds the products of a run whose halves have scales and minima, which are integers.
            #[target_feature(enable = $features)]
            #[inline]
            fn add_halves(
                totals: &mut [[Floats; M]; 2],
                [d, m]: [Floats; 2],
                factors: &[[[u8; 8]; PAIRS]],
                (codes, x): (&[[[u8; 16]; BITS]; 2 * PAIRS], &[Half<M>; 2]),
                x_scales: &[f32; M],
            ) {
                let none = vdupq_n_s32(0);
                let mut sums = [[none; M]; 2];
                for half in 0..2 {
                    for i in 0..M {
                        sums[half][i] = Self::sum_times(1, &x[half], i);
                    }
                }
                for strip in 0..2 * PAIRS {
                    let (mut products, mut offsets) = ([none; M], [none; M]);
                    for half in 0..2 {
                        let codes = $crate::kernels::neon::runs::codes::<STEPS, BITS, _>(
                            codes, strip, half,
                        );
                        let [scales, mins] =
                            $crate::kernels::neon::runs::factors(&factors[half], strip);
                        for i in 0..M {
                            let dots = add_products::<STEPS, M>(begin(none), codes, &x[half], i);
                            let dots = finish::<STEPS>(dots, none);
                            products[i] = vmlaq_s32(products[i], dots, scales);
                            offsets[i] = vmlaq_s32(offsets[i], sums[half][i], mins);
                        }
                    }
                    let (pair, j) = (strip / 2, strip % 2);
                    let less = vnegq_f32(m[pair][j]);
                    for i in 0..M {
                        let product = vmulq_f32(vcvtq_f32_s32(products[i]), d[pair][j]);
                        let total = &mut totals[0][i][pair][j];
                        *total = vfmaq_n_f32(*total, product, x_scales[i]);
                        let term = vmulq_n_f32(vcvtq_f32_s32(offsets[i]), x_scales[i]);
                        let total = &mut totals[1][i][pair][j];
                        *total = vfmaq_f32(*total, less, term);
                    }
                }
            }

            /// The sum of half a run of activations of row `i`, times `factor`.
            #[target_feature(enable = $features)]
            #[inline]
            fn sum_times(factor: u8, x: &Half<M>, i: usize) -> int32x4_t {
                let (none, w) = (vdupq_n_s32(0), [vdupq_n_s8(factor as i8); 4]);
                finish::<STEPS>(add_products::<STEPS, M>(begin(none), w, x, i), none)
            }

            /// Adds the products of halves `FROM` to `TO` of a run times the scales of weights and activations.
            #[target_feature(enable = $features)]
            #[inline]
            fn add<const FROM: usize, const TO: usize>(
                totals: &mut [Floats; M],
                codes: &[[[u8; 16]; BITS]; 2 * PAIRS],
                x: &[Half<M>; 2],
                less: [int32x4_t; M],
                scales: Floats,
                x_scales: &[f32; M],
            ) {
                for strip in 0..2 * PAIRS {
                    let mut dots = [begin(less[0]); M];
                    for i in 1..M {
                        dots[i] = begin(less[i]);
                    }
                    for half in FROM..TO {
                        let codes = $crate::kernels::neon::runs::codes::<STEPS, BITS, _>(
                            codes, strip, half,
                        );
                        for i in 0..M {
                            dots[i] = add_products::<STEPS, M>(dots[i], codes, &x[half], i);
                        }
                    }
                    for i in 0..M {
                        let dots = vcvtq_f32_s32(finish::<STEPS>(dots[i], less[i]));
                        let sum = vmulq_f32(dots, scales[strip / 2][strip % 2]);
                        let total = &mut totals[i][strip / 2][strip % 2];
                        *total = vfmaq_n_f32(*total, sum, x_scales[i]);
                    }
                }
            }

            /// The products of the code of zero, negative: `-zero * Σ q` of a run; with two scales, of its half `HALF`.
            #[target_feature(enable = $features)]
            #[inline]
            fn less_zeros<const HALF: usize>(
                zero: u8,
                x: &$crate::kernels::packed::tile::TileGroup<'_, M, $kr>,
                halves: &[Half<M>; 2],
            ) -> [int32x4_t; M] {
                let none = vdupq_n_s32(0);
                let mut less = [none; M];
                if zero == 0 {
                    return less;
                }
                for i in 0..M {
                    less[i] = match SCALES {
                        1 => vdupq_n_s32(-i32::from(zero) * x.sum(i) as i32),
                        _ => vnegq_s32(Self::sum_times(zero, &halves[HALF], i)),
                    };
                }
                less
            }
        }

        /// A block's scale times a run's integers.
        #[target_feature(enable = $features)]
        #[inline]
        fn times(mut d: Floats, scales: &[[u8; 8]; PAIRS]) -> Floats {
            for pair in 0..PAIRS {
                let [low, high] = $crate::kernels::neon::runs::widen_signed(&scales[pair]);
                d[pair] = [vmulq_f32(d[pair][0], low), vmulq_f32(d[pair][1], high)];
            }
            d
        }

        /// A block's minimum times a run's integers, negative.
        #[target_feature(enable = $features)]
        #[inline]
        fn less_times(mut m: Floats, mins: &[[u8; 8]; PAIRS]) -> Floats {
            for pair in 0..PAIRS {
                let [low, high] = $crate::kernels::neon::runs::widen_unsigned(&mins[pair]);
                let less = [vmulq_f32(m[pair][0], low), vmulq_f32(m[pair][1], high)];
                m[pair] = [vnegq_f32(less[0]), vnegq_f32(less[1])];
            }
            m
        }
    };
}

pub(in crate::kernels) use run_tiles;

/// Rows of a panel.
const NR: usize = Layout::NEON.panel_rows();

/// Sums of products, each of two rows: four i16 for each, and two i32 for products of [`NL_STEPS`]. Those of a run of
/// five bits are at most `8 * 31 * 127 = 31496`, those of half a run of six `4 * 63 * 127 = 32004`.
#[derive(Clone, Copy)]
struct Dots {
    short: [int16x8_t; 2],
    long: [int32x4_t; 2],
}

run_tiles!("neon", NR, 4);

#[target_feature(enable = "neon")]
#[inline]
fn begin(_less: int32x4_t) -> Dots {
    Dots { short: [vdupq_n_s16(0); 2], long: [vdupq_n_s32(0); 2] }
}

/// Adds the products of half a run of four rows with row `i` of `M` of activations. Two products of [`NL_STEPS`] are at
/// most `2 * 127 * 127 = 32258`, an `i16`.
#[target_feature(enable = "neon")]
#[inline]
fn add_products<const STEPS: usize, const M: usize>(
    mut dots: Dots,
    codes: [int8x16_t; 4],
    x: &Half<M>,
    i: usize,
) -> Dots {
    let x: &[[[u8; 4]; M]; 4] = bytemuck::cast_ref(x);
    if STEPS == NL_STEPS {
        for step in [0, 2] {
            let (a, b) = (load_four(&x[step][i]), load_four(&x[step + 1][i]));
            let (c, d) = (codes[step], codes[step + 1]);
            let low = vmlal_s8(vmull_s8(vget_low_s8(c), a), vget_low_s8(d), b);
            let high = vmlal_s8(vmull_s8(vget_high_s8(c), a), vget_high_s8(d), b);
            dots.long[0] = vpadalq_s16(dots.long[0], low);
            dots.long[1] = vpadalq_s16(dots.long[1], high);
        }
        return dots;
    }
    for step in 0..4 {
        let x = load_four(&x[step][i]);
        dots.short[0] = vmlal_s8(dots.short[0], vget_low_s8(codes[step]), x);
        dots.short[1] = vmlal_s8(dots.short[1], vget_high_s8(codes[step]), x);
    }
    dots
}

#[target_feature(enable = "neon")]
#[inline]
fn finish<const STEPS: usize>(dots: Dots, less: int32x4_t) -> int32x4_t {
    let [low, high] = match STEPS {
        NL_STEPS => dots.long,
        _ => [vpaddlq_s16(dots.short[0]), vpaddlq_s16(dots.short[1])],
    };
    vaddq_s32(vpaddq_s32(low, high), less)
}

/// The codes of half `half` of strip `strip` of a run, or the integers that they stand for: those of the first vector's low and high halves of bytes, then those
/// of the second one's. Panels have four rows for each of `STRIPS`.
#[target_feature(enable = "neon")]
#[inline]
pub(in crate::kernels) fn codes<const STEPS: usize, const BITS: usize, const STRIPS: usize>(
    run: &[[[u8; 16]; BITS]; STRIPS],
    strip: usize,
    half: usize,
) -> [int8x16_t; 4] {
    // Where the codes are, and the bits above their low four: vectors, and the places of these bits in a byte. Codes of two
    // bits are like the high ones of six.
    let (at, high, from) = if 4 * STRIPS == NR {
        let (at, bits) = (2 * LINE * half + strip, if BITS == 5 { 1 } else { 2 });
        let high = strip + if BITS == 2 { 0 } else { 4 * LINE };
        let high = high + if BITS == 5 { 0 } else { LINE * half };
        let first = if BITS == 5 { 4 * half } else { 0 };
        ([at, at + LINE], [high, high], [first, first + bits, first + 2 * bits, first + 3 * bits])
    } else {
        let start = BITS * LINE * half;
        let (at, high) = (start + LINE * strip, start + if BITS == 2 { 0 } else { 4 * LINE });
        match BITS {
            2 | 6 => {
                let (high, first) = (high + strip / 2 * LINE, strip % 2 * 4);
                ([at, at + 1], [high, high + 1], [first, first + 2, first, first + 2])
            }
            _ => (
                [at, at + 1],
                [high, high + 1],
                [2 * strip, 2 * strip + 1, 2 * strip, 2 * strip + 1],
            ),
        }
    };
    let (low, mask) = (vdupq_n_u8(15), vdupq_n_u8(if BITS == 6 { 48 } else { 16 }));
    let load = |at: usize| load_bytes(&run[at / BITS][at % BITS]);
    if BITS == 2 {
        let [a, b] = high.map(load);
        let code = |four, from: usize| {
            let two = vandq_u8(vshlq_u8(four, vdupq_n_s8(-(from as i8))), vdupq_n_u8(3));
            vreinterpretq_s8_u8(two)
        };
        return [code(a, from[0]), code(a, from[1]), code(b, from[2]), code(b, from[3])];
    }
    let (a, b) = (load(at[0]), load(at[1]));
    let mut w = [vandq_u8(a, low), vshrq_n_u8::<4>(a), vandq_u8(b, low), vshrq_n_u8::<4>(b)];
    if BITS > 4 {
        let high = [load(high[0]), load(high[1])];
        for j in 0..4 {
            let distance = vdupq_n_s8(4 - from[j] as i8);
            w[j] = vbslq_u8(mask, vshlq_u8(high[j / 2], distance), w[j]);
        }
    }
    if STEPS != EVEN {
        let integers = const { table(STEPS, 0) };
        let integers = load_bytes(&integers);
        for w in &mut w {
            *w = vqtbl1q_u8(integers, *w);
        }
    }
    [
        vreinterpretq_s8_u8(w[0]),
        vreinterpretq_s8_u8(w[1]),
        vreinterpretq_s8_u8(w[2]),
        vreinterpretq_s8_u8(w[3]),
    ]
}

/// The blocks' scales of all rows as f32, exact: f16 values, or bf16 ones with [`MXFP4_STEPS`].
#[target_feature(enable = "neon")]
#[inline]
pub(in crate::kernels) fn widen_scales<const STEPS: usize, const PAIRS: usize>(
    x: &[[u8; 16]; PAIRS],
) -> [[float32x4_t; 2]; PAIRS] {
    if STEPS != MXFP4_STEPS {
        return widen_halves(x);
    }
    let mut floats = [[vdupq_n_f32(0.0); 2]; PAIRS];
    for pair in 0..PAIRS {
        let x = vreinterpretq_u16_u8(load_bytes(&x[pair]));
        let (low, high) = (vshll_n_u16::<16>(vget_low_u16(x)), vshll_high_n_u16::<16>(x));
        floats[pair] = [vreinterpretq_f32_u32(low), vreinterpretq_f32_u32(high)];
    }
    floats
}

/// Scales and minima of half a run of the four rows of a strip, from bytes that have both.
#[target_feature(enable = "neon")]
#[inline]
pub(in crate::kernels) fn factors<const PAIRS: usize>(
    both: &[[u8; 8]; PAIRS],
    strip: usize,
) -> [int32x4_t; 2] {
    let both = vmovl_u8(vcreate_u8(u64::from_le_bytes(both[strip / 2])));
    let both = match strip.is_multiple_of(2) {
        true => vget_low_u16(both),
        false => vget_high_u16(both),
    };
    let both = vmovl_u16(both);
    [vandq_u32(both, vdupq_n_u32(15)), vshrq_n_u32::<4>(both)].map(|x| vreinterpretq_s32_u32(x))
}

/// f16 to f32 of all rows, exact.
#[target_feature(enable = "neon")]
#[inline]
pub(in crate::kernels) fn widen_halves<const PAIRS: usize>(
    x: &[[u8; 16]; PAIRS],
) -> [[float32x4_t; 2]; PAIRS] {
    let mut floats = [[vdupq_n_f32(0.0); 2]; PAIRS];
    for pair in 0..PAIRS {
        floats[pair] = widen_8(vreinterpretq_u16_u8(load_bytes(&x[pair])));
    }
    floats
}

#[target_feature(enable = "neon")]
#[inline]
pub(in crate::kernels) fn widen_signed(x: &[u8; 8]) -> [float32x4_t; 2] {
    let x = vmovl_s8(vcreate_s8(u64::from_le_bytes(*x)));
    [vcvtq_f32_s32(vmovl_s16(vget_low_s16(x))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(x)))]
}

#[target_feature(enable = "neon")]
#[inline]
pub(in crate::kernels) fn widen_unsigned(x: &[u8; 8]) -> [float32x4_t; 2] {
    let x = vmovl_u8(vcreate_u8(u64::from_le_bytes(*x)));
    [vcvtq_f32_u32(vmovl_u16(vget_low_u16(x))), vcvtq_f32_u32(vmovl_u16(vget_high_u16(x)))]
}
