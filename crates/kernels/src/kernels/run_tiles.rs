//! Tiles of activations by blocks of GGUF files, whose codes are unpacked in registers: written once for the x86-64
//! tiers, which differ in their vectors.
//!
//! A line of a panel's codes is a vector. It has codes of four columns: those of the first half of the rows are the low
//! halves of bytes, those of the other rows the high halves.

/// Defines `tiles`, the functions of a tier with `$features`, which has `NR`, `LINE` and the vectors' operations in scope.
/// `$add_two(sums, w, x)` adds the products of two steps of four columns, and `$add_wide` those of the integers of
/// [`NL_STEPS`](crate::quant::ggml::NL_STEPS) plus `$nl_bias`. If `$in_place`, high codes of four bits stay where they
/// are and count 16 times, which costs less than to shift each of them. Tiles have `$rows` rows.
macro_rules! run_tiles {
    (
        $features:literal,
        ($add_two:ident, $add_wide:ident),
        $nl_bias:literal,
        $in_place:literal,
        [$($rows:literal)*]
    ) => {
        use $crate::quant::ggml::{EVEN, MXFP4_STEPS, NL_STEPS};

        /// Sums or totals of `M` rows of activations.
        type Sums<T, const M: usize> = [[T; 2]; M];

        /// Tiles of one and more rows of activations; they prefetch weights with `HINT`.
        pub(in $crate::kernels) fn tiles<const HINT: i32>(
            form: $crate::quant::ggml::Form,
        ) -> &'static [$crate::kernels::packed::ggml::RunTile] {
            $crate::kernels::packed::ggml::by_form!(
                form,
                by_rows::<BITS, SCALES, HAS_MIN, IS_LONG, STEPS, HINT>()
            )
        }

        fn by_rows<
            const BITS: usize,
            const SCALES: usize,
            const HAS_MIN: bool,
            const IS_LONG: bool,
            const STEPS: usize,
            const HINT: i32,
        >() -> &'static [$crate::kernels::packed::ggml::RunTile] {
            const {
                &[$(Runs::<$rows, BITS, SCALES, HAS_MIN, IS_LONG, STEPS, HINT>::gemm,)*]
            }
        }

        /// Products of blocks of a form with `M` rows of activations. Each of its functions has its own code for each form
        /// and number of rows. Those with a `HALF` of a run have one caller, so that they are inlined and sums stay in
        /// registers.
        struct Runs<
            const M: usize,
            const BITS: usize,
            const SCALES: usize,
            const HAS_MIN: bool,
            const IS_LONG: bool,
            const STEPS: usize,
            const HINT: i32,
        >;

        impl<
            const M: usize,
            const BITS: usize,
            const SCALES: usize,
            const HAS_MIN: bool,
            const IS_LONG: bool,
            const STEPS: usize,
            const HINT: i32,
        > Runs<M, BITS, SCALES, HAS_MIN, IS_LONG, STEPS, HINT>
        {
            /// Whether high codes stay where they are.
            const IN_PLACE: bool = $in_place && BITS == 4 && STEPS == EVEN;

            /// The integers of codes, plus [`Self::BIAS`].
            const TABLE: [u8; 16] = $crate::quant::ggml::table(STEPS, Self::BIAS);

            /// Makes the integers of a table fit unsigned bytes.
            const BIAS: u8 = match STEPS {
                NL_STEPS => $nl_bias,
                MXFP4_STEPS => 12,
                _ => 0,
            };

            /// `M` rows of activations by a panel of blocks in `form`.
            #[target_feature(enable = $features)]
            fn gemm(
                form: $crate::quant::ggml::Form,
                panel: &[u8],
                x: &$crate::kernels::packed::tile::Q8Tile<'_>,
                out: &mut [f32],
            ) {
                let form = form.by_constants::<BITS, SCALES, HAS_MIN, IS_LONG, STEPS>();
                let zero = if STEPS == EVEN { form.zero } else { Self::BIAS };
                let mut totals = [[[zero_floats(); 2]; M]; 2];
                let mut groups = x.groups::<M, 4>();
                for block in panel.chunks_exact(form.panel_block(NR)) {
                    let (head, runs) = block.split_at(form.panel_head(NR));
                    let (d, m) = Self::head(form, head);
                    for run in runs.chunks_exact(form.panel_run(NR)) {
                        let Some(x) = groups.next() else { return };
                        let (parameters, codes) = run.split_at(form.parameters() * NR);
                        let parameters = parameters.as_chunks::<NR>().0;
                        let lines = codes.as_chunks::<LINE>().0.as_chunks::<BITS>().0;
                        let q = x.q.as_chunks().0.first_chunk();
                        let (Some(lines), Some(q)) = (lines.first_chunk(), q) else { return };
                        if form.has_halves() {
                            Self::add_halves(&mut totals, [d, m], parameters, (lines, q), x.scales);
                            continue;
                        }
                        let scales = if form.is_long { times(d, &parameters[0]) } else { d };
                        let mut dots = Self::less_zeros::<0>(zero, &x, q);
                        Self::add_half::<0>(&mut dots, lines, q);
                        if SCALES == 2 {
                            Self::add_totals::<0>(&mut totals[0], &dots, scales, x.scales);
                            dots = Self::less_zeros::<1>(zero, &x, q);
                        }
                        Self::add_half::<1>(&mut dots, lines, q);
                        let scales = if SCALES == 2 { times(d, &parameters[1]) } else { scales };
                        let sums = &mut totals[SCALES - 1];
                        Self::add_totals::<1>(sums, &dots, scales, x.scales);
                        if SCALES == 1 && form.has_min {
                            let offsets = if form.is_long { less_times(m, &parameters[1]) } else { m };
                            Self::add_offsets(&mut totals[1], offsets, &x);
                        }
                    }
                }
                let out = out.as_chunks_mut::<{ NR / 2 }>().0.as_chunks_mut::<2>().0;
                for i in 0..M {
                    for j in 0..2 {
                        let [total, other] = [totals[0][i][j], totals[1][i][j]];
                        let total = if form.has_others() { add_floats(total, other) } else { total };
                        store_floats(&mut out[i][j], total);
                    }
                }
            }

            /// Scales of a block, and its minima if it has them.
            #[target_feature(enable = $features)]
            #[inline]
            fn head(form: $crate::quant::ggml::Form, head: &[u8]) -> ([Floats; 2], [Floats; 2]) {
                let head = head.as_chunks::<{ 2 * NR }>().0;
                let d = match STEPS {
                    MXFP4_STEPS => widen_bfloats(&head[0]),
                    _ => widen_halves(&head[0]),
                };
                (d, if form.has_min { widen_halves(&head[1]) } else { d })
            }

            /// Sums that begin with the products of the code of zero, negative: `-zero * Σ q`. With two scales, the sums
            /// are those of half a run.
            #[target_feature(enable = $features)]
            #[inline]
            fn less_zeros<const HALF: usize>(
                zero: u8,
                x: &$crate::kernels::packed::tile::TileGroup<'_, M, 4>,
                q: &[[[[u8; 4]; M]; 4]; 2],
            ) -> Sums<Ints, M> {
                let q = &q[HALF];
                let mut dots = [[zero_ints(); 2]; M];
                if zero == 0 {
                    return dots;
                }
                for i in 0..M {
                    let less = match SCALES {
                        1 => set_ints(-i32::from(zero) * x.sum(i) as i32),
                        _ => sub_ints(zero_ints(), Self::sum_times(zero, q, i)),
                    };
                    dots[i] = [less, if Self::IN_PLACE { times_16(less) } else { less }];
                }
                dots
            }

            /// Adds the products of a run whose halves have scales and minima, which are integers.
            #[target_feature(enable = $features)]
            #[inline]
            fn add_halves(
                totals: &mut [Sums<Floats, M>; 2],
                [d, m]: [[Floats; 2]; 2],
                factors: &[[u8; NR]],
                (lines, q): (&[[[u8; LINE]; BITS]; 2], &[[[[u8; 4]; M]; 4]; 2]),
                x_scales: &[f32; M],
            ) {
                let mut sums = [[[zero_ints(); 2]; M]; 2];
                let mut dots = [[zero_ints(); 2]; M];
                Self::add_half::<0>(&mut dots, lines, q);
                Self::add_times(&mut sums, &factors[0], &dots, &q[0]);
                dots = [[zero_ints(); 2]; M];
                Self::add_half::<1>(&mut dots, lines, q);
                Self::add_times(&mut sums, &factors[1], &dots, &q[1]);
                Self::add_totals::<0>(&mut totals[0], &sums[0], d, x_scales);
                for i in 0..M {
                    let x_scale = set_floats(x_scales[i]);
                    for j in 0..2 {
                        let less = sub_floats(set_floats(-0.0), m[j]);
                        let term = mul(x_scale, floats_of(sums[1][i][j]));
                        totals[1][i][j] = fma(less, term, totals[1][i][j]);
                    }
                }
            }

            /// Adds the products of half a run times its scales, and the sums of its activations times its minima.
            #[target_feature(enable = $features)]
            #[inline]
            fn add_times(
                sums: &mut [Sums<Ints, M>; 2],
                factors: &[u8; NR],
                dots: &Sums<Ints, M>,
                q: &[[[u8; 4]; M]; 4],
            ) {
                for (j, factors) in factors.as_chunks().0.iter().enumerate() {
                    let both = widen_bytes(factors);
                    let (scales, mins) = (and(both, set_ints(15)), shift_right_4(both));
                    for i in 0..M {
                        let products = mul_ints(dots[i][j], scales);
                        sums[0][i][j] = add_ints(sums[0][i][j], products);
                        let offsets = mul_ints(Self::sum_times(1, q, i), mins);
                        sums[1][i][j] = add_ints(sums[1][i][j], offsets);
                    }
                }
            }

            /// The sum of activations of half a run of row `i`, times `factor`.
            #[target_feature(enable = $features)]
            #[inline]
            fn sum_times(factor: u8, q: &[[[u8; 4]; M]; 4], i: usize) -> Ints {
                let w = [set_bytes(factor); 2];
                let sum = $add_two(zero_ints(), w, [four(&q[0][i]), four(&q[1][i])]);
                $add_two(sum, w, [four(&q[2][i]), four(&q[3][i])])
            }

            /// Adds the products of half a run.
            #[target_feature(enable = $features)]
            #[inline]
            fn add_half<const HALF: usize>(
                dots: &mut Sums<Ints, M>,
                lines: &[[[u8; LINE]; BITS]; 2],
                x: &[[[[u8; 4]; M]; 4]; 2],
            ) {
                match M {
                    1 | 2 => Self::add_lines::<HALF>(dots, &lines[HALF], &x[HALF]),
                    _ => Self::add_lines_apart(dots, &lines[HALF], &x[HALF]),
                }
            }

            /// A call of its own: the compiler would keep the totals of many rows in registers, and sums in memory.
            #[target_feature(enable = $features)]
            #[inline(never)]
            fn add_lines_apart(
                dots: &mut Sums<Ints, M>,
                lines: &[[u8; LINE]; BITS],
                x: &[[[u8; 4]; M]; 4],
            ) {
                Self::add_lines::<0>(dots, lines, x);
            }

            /// Adds the products of eight lines of codes, four steps of columns.
            #[target_feature(enable = $features)]
            #[inline]
            fn add_lines<const HALF: usize>(
                dots: &mut Sums<Ints, M>,
                lines: &[[u8; LINE]; BITS],
                x: &[[[u8; 4]; M]; 4],
            ) {
                for at in (0..BITS * LINE).step_by(64) {
                    $crate::kernels::stream::prefetch_ahead::<HINT>(
                        lines.as_flattened()[at..].as_ptr(),
                    );
                }
                for step in [0, 2] {
                    let a = Self::codes(lines, step, Self::IN_PLACE);
                    let b = Self::codes(lines, step + 1, Self::IN_PLACE);
                    for i in 0..M {
                        let x = [four(&x[step][i]), four(&x[step + 1][i])];
                        for j in 0..2 {
                            dots[i][j] = match STEPS {
                                NL_STEPS => $add_wide(dots[i][j], [a[j], b[j]], x),
                                _ => $add_two(dots[i][j], [a[j], b[j]], x),
                            };
                        }
                    }
                }
            }

            /// The codes of step `step` of four, or the integers that they stand for; high codes of four bits `in_place`.
            #[target_feature(enable = $features)]
            #[inline]
            fn codes(lines: &[[u8; LINE]; BITS], step: usize, in_place: bool) -> [Ints; 2] {
                if BITS == 2 {
                    let (four, from) = (load(&lines[step / 2]), step % 2 * 4);
                    let mask = set_bytes(3);
                    return [and(to_bit_0(four, from), mask), and(to_bit_0(four, from + 2), mask)];
                }
                let (both, low) = (load(&lines[step]), set_bytes(15));
                if in_place {
                    return [and(both, low), and(both, set_bytes(0xf0))];
                }
                let mut w = [and(both, low), and(shift_right_4(both), low)];
                if STEPS != EVEN {
                    let table = load_table(&Self::TABLE);
                    return [look_up(table, w[0]), look_up(table, w[1])];
                }
                // The places of the bits above the low four.
                let (high, from, mask) = match BITS {
                    4 => return w,
                    5 => (load(&lines[4]), [2 * step, 2 * step + 1], set_bytes(16)),
                    _ => {
                        let from = step % 2 * 4;
                        (load(&lines[4 + step / 2]), [from, from + 2], set_bytes(48))
                    }
                };
                for j in 0..2 {
                    w[j] = or(w[j], and(to_bit_4(high, from[j]), mask));
                }
                w
            }

            /// Adds sums of products times the scales of weights and activations.
            #[target_feature(enable = $features)]
            #[inline]
            fn add_totals<const HALF: usize>(
                totals: &mut Sums<Floats, M>,
                dots: &Sums<Ints, M>,
                scales: [Floats; 2],
                x_scales: &[f32; M],
            ) {
                for i in 0..M {
                    let [low, high] = dots[i];
                    let dots = [low, if Self::IN_PLACE { over_16(high) } else { high }];
                    let x_scale = set_floats(x_scales[i]);
                    for j in 0..2 {
                        let sum = mul(floats_of(dots[j]), scales[j]);
                        totals[i][j] = fma(sum, x_scale, totals[i][j]);
                    }
                }
            }

            /// Adds the products of a run's offsets with the sums of activations.
            #[target_feature(enable = $features)]
            #[inline]
            fn add_offsets(
                totals: &mut Sums<Floats, M>,
                offsets: [Floats; 2],
                x: &$crate::kernels::packed::tile::TileGroup<'_, M, 4>,
            ) {
                for i in 0..M {
                    let term = set_floats(x.scales[i] * x.sum(i));
                    for j in 0..2 {
                        totals[i][j] = fma(offsets[j], term, totals[i][j]);
                    }
                }
            }
        }

        /// Four activations, all along a vector.
        #[target_feature(enable = $features)]
        #[inline]
        fn four(x: &[u8; 4]) -> Ints {
            set_ints(i32::from_ne_bytes(*x))
        }

        /// A block's scale times a run's integers.
        #[target_feature(enable = $features)]
        #[inline]
        fn times(d: [Floats; 2], scales: &[u8; NR]) -> [Floats; 2] {
            let scales = scales.as_chunks().0;
            [mul(d[0], widen_signed(&scales[0])), mul(d[1], widen_signed(&scales[1]))]
        }

        /// A block's minimum times a run's integers, negative. The product is exact, so its sign may change before.
        #[target_feature(enable = $features)]
        #[inline]
        fn less_times(m: [Floats; 2], mins: &[u8; NR]) -> [Floats; 2] {
            let (mins, zero) = (mins.as_chunks().0, set_floats(-0.0));
            [
                mul(sub_floats(zero, m[0]), widen_unsigned(&mins[0])),
                mul(sub_floats(zero, m[1]), widen_unsigned(&mins[1])),
            ]
        }
    };
}

pub(super) use run_tiles;
