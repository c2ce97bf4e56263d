//! Tiles of activations by runs of a GGUF file that were unpacked to bytes: written once for the x86-64 tiers, which
//! differ in their vectors. See [`packed::bytes`](crate::kernels::packed::bytes).

/// Defines `byte_tiles`, the functions of a tier with `$features`, in a file with the functions of
/// [`run_tiles`](super::run_tiles::run_tiles), which unpack the codes. `$add(sums, w, x)` adds the products of a step of
/// four columns with unsigned codes, and `$add_two` those of two steps, which are taken together if `$in_pairs`;
/// `$add_signed` adds those with the integers of [`NL_STEPS`](crate::quant::ggml::NL_STEPS) if these have no `$nl_bias`.
macro_rules! byte_tiles {
    (
        $features:literal,
        ($add:ident, $add_two:ident, $add_signed:ident),
        $in_pairs:literal,
        $nl_bias:literal,
        [$($rows:literal)*]
    ) => {
        use $crate::kernels::packed::bytes::{ByteTile, ByteTiles, Bytes, RUNS_MAX, W_LEAST, are_usual};
        use $crate::kernels::packed::tile::ZERO;

        /// Tiles of one and more rows of activations, and what unpacks runs for them.
        pub(in $crate::kernels) fn byte_tiles(form: $crate::quant::ggml::Form) -> ByteTiles {
            $crate::kernels::packed::ggml::by_form!(
                form,
                ByteTiles {
                    unpack: Runs::<1, BITS, SCALES, HAS_MIN, IS_LONG, STEPS, 0>::unpack,
                    tiles: match STEPS == NL_STEPS && $nl_bias == 0 {
                        true => ByteRuns::<1, 0, true>::TILES,
                        false => ByteRuns::<SCALES, { mins::<BITS, HAS_MIN>() }, false>::TILES,
                    },
                }
            )
        }

        impl<
            const BITS: usize,
            const SCALES: usize,
            const HAS_MIN: bool,
            const IS_LONG: bool,
            const STEPS: usize,
        > Runs<1, BITS, SCALES, HAS_MIN, IS_LONG, STEPS, 0>
        {
            /// Unpacks blocks of a panel.
            #[target_feature(enable = $features)]
            fn unpack(form: $crate::quant::ggml::Form, blocks: &[u8], out: &mut Bytes) {
                let form = form.by_constants::<BITS, SCALES, HAS_MIN, IS_LONG, STEPS>();
                out.zero = if STEPS == EVEN { form.zero } else { Self::BIAS };
                out.n_runs = 0;
                let lines_out = out.codes.as_chunks_mut::<LINE>().0.as_chunks_mut::<2>().0;
                let lines_out = lines_out.as_chunks_mut::<4>().0.as_chunks_mut::<2>().0;
                let scales_out = out.scales.as_chunks_mut::<NR>().0.as_chunks_mut::<SCALES>().0;
                let less_out = out.less.as_chunks_mut::<NR>().0.as_chunks_mut::<SCALES>().0;
                let offsets_out = out.offsets.as_chunks_mut::<NR>().0;
                let mins_out = out.mins.as_chunks_mut::<NR>().0;
                for block in blocks.chunks_exact(form.panel_block(NR)) {
                    let (head, runs) = block.split_at(form.panel_head(NR));
                    let (d, m) = Self::head(form, head);
                    for run in runs.chunks_exact(form.panel_run(NR)) {
                        let at = out.n_runs;
                        $crate::kernels::packed::tile::prefetch_behind(run);
                        let (parameters, codes) = run.split_at(form.parameters() * NR);
                        let parameters = parameters.as_chunks::<NR>().0;
                        for i in 0..SCALES {
                            let scales = match form.is_long && !form.has_halves() {
                                true => times(d, &parameters[i]),
                                false => d,
                            };
                            let zero = set_floats(-ZERO);
                            store_pair(&mut scales_out[at][i], scales);
                            store_pair(
                                &mut less_out[at][i],
                                [mul(zero, scales[0]), mul(zero, scales[1])],
                            );
                        }
                        if form.has_halves() {
                            let less = m.map(|m| sub_floats(set_floats(-0.0), m));
                            store_pair(&mut offsets_out[at], less);
                            join_mins(&parameters[0], &parameters[1], &mut mins_out[at]);
                        } else if HAS_MIN {
                            let offsets =
                                if IS_LONG { less_times(m, &parameters[SCALES]) } else { m };
                            store_pair(&mut offsets_out[at], offsets);
                        }
                        let lines = codes.as_chunks::<LINE>().0.as_chunks::<BITS>().0;
                        for (half, out) in lines_out[at].iter_mut().enumerate() {
                            for step in 0..4 {
                                let mut codes = Self::codes(&lines[half], step, false);
                                if form.has_halves() {
                                    codes = times_scales(codes, &parameters[half]);
                                }
                                store(&mut out[step][0], codes[0]);
                                store(&mut out[step][1], codes[1]);
                            }
                        }
                        out.n_runs += 1;
                    }
                }
                out.is_usual = are_usual(&out.scales[..out.n_runs * SCALES * NR], W_LEAST);
            }
        }

        /// Minima of a run: one for all of it, or one for each half.
        const fn mins<const BITS: usize, const HAS_MIN: bool>() -> usize {
            match HAS_MIN {
                true if BITS == 2 => 2,
                is_one => is_one as usize,
            }
        }

        /// Products of runs of bytes with rows of activations.
        struct ByteRuns<const SCALES: usize, const MINS: usize, const IS_WIDE: bool>;

        impl<const SCALES: usize, const MINS: usize, const IS_WIDE: bool>
            ByteRuns<SCALES, MINS, IS_WIDE>
        {
            const TILES: &'static [ByteTile] = &[$(Self::gemm::<$rows>,)*];

            /// `M` rows of activations by some runs of a panel.
            #[target_feature(enable = $features)]
            fn gemm<const M: usize>(
                w: &Bytes,
                x: &$crate::kernels::packed::tile::Q8Tile<'_>,
                [y, others]: [&mut [f32]; 2],
            ) {
                let q = x.q_bytes().as_chunks().0.as_chunks().0.as_chunks().0;
                let scales = x.scales.as_chunks().0;
                let mut starts = [[[START; M]; SCALES]; RUNS_MAX];
                if MINS == 0 {
                    Self::begin(w, q, x.zeros.as_chunks().0, &mut starts);
                }
                Self::add_runs::<0, M>(w, q, scales, &starts, y);
                if SCALES == 2 {
                    Self::add_runs::<1, M>(w, q, scales, &starts, others);
                }
                match MINS {
                    0 => {}
                    1 => Self::add_offsets::<M>(w, scales, x.zeros.as_chunks().0, others),
                    _ => Self::add_offsets_of_halves::<M>(w, scales, q, others),
                }
                if w.is_last && (SCALES == 2 || MINS > 0) {
                    let others = others.as_chunks().0[..2 * M].iter();
                    for (y, other) in y.as_chunks_mut().0[..2 * M].iter_mut().zip(others) {
                        store_floats(y, add_floats(load_floats(y), load_floats(other)));
                    }
                }
            }

            /// Subtracts the products of the code of zero from the beginnings of sums. Forms with an offset have none.
            #[target_feature(enable = $features)]
            #[inline]
            fn begin<const M: usize>(
                w: &Bytes,
                q: &[[[[u8; 4]; M]; 4]],
                zeros: &[[f32; M]],
                starts: &mut [[[i32; M]; SCALES]; RUNS_MAX],
            ) {
                if SCALES == 2 {
                    let halves = starts.as_flattened_mut().iter_mut().zip(q).take(2 * w.n_runs);
                    for (starts, q) in halves {
                        let sums = sums_times(w.zero, q);
                        for i in 0..M {
                            starts[i] -= sums[i];
                        }
                    }
                    return;
                }
                let zero = i32::from(w.zero);
                for (starts, zeros) in starts.as_flattened_mut().iter_mut().zip(zeros) {
                    for i in 0..M {
                        // Floats like `ZERO` count in steps of 1, as their bits do.
                        starts[i] -= zero * ((START - zeros[i].to_bits() as i32) >> 7);
                    }
                }
            }

            /// Adds products of runs, or of their halves `HALF` if these have a scale each.
            #[target_feature(enable = $features)]
            #[inline]
            fn add_runs<const HALF: usize, const M: usize>(
                w: &Bytes,
                q: &[[[[u8; 4]; M]; 4]],
                x_scales: &[[f32; M]],
                starts: &[[[i32; M]; SCALES]; RUNS_MAX],
                out: &mut [f32],
            ) {
                let lines = w.codes.as_chunks::<LINE>().0.as_chunks::<2>().0.as_chunks::<4>().0;
                let scales = w.scales.as_chunks::<NR>().0.as_chunks::<SCALES>().0;
                let less = w.less.as_chunks::<NR>().0.as_chunks::<SCALES>().0;
                let out = &mut out.as_chunks_mut::<{ NR / 2 }>().0.as_chunks_mut::<2>().0[..M];
                let mut totals = Self::before::<M>(w, out);
                for run in 0..w.n_runs.min(RUNS_MAX) {
                    let halves = 2 * run + HALF..2 * run + HALF + 2 / SCALES;
                    let (lines, q) = (&lines[halves.clone()], &q[halves]);
                    let x_scales = &x_scales[run];
                    if HALF == 0 {
                        w.prefetch::<M>(run, q);
                    }
                    let mut dots = [[zero_ints(); 2]; M];
                    for i in 0..M {
                        dots[i] = [set_ints(starts[run][HALF][i]); 2];
                    }
                    Self::add_half(&mut dots, &lines[0], &q[0]);
                    if SCALES == 1 {
                        Self::add_half(&mut dots, &lines[1], &q[1]);
                    }
                    let scales = load_pair(&scales[run][HALF]);
                    let less = load_pair(&less[run][HALF]);
                    for i in 0..M {
                        let x_scale = set_floats(x_scales[i]);
                        for j in 0..2 {
                            let sum = fma(floats_at(dots[i][j]), scales[j], less[j]);
                            totals[i][j] = fma(sum, x_scale, totals[i][j]);
                        }
                    }
                }
                for i in 0..M {
                    store_floats(&mut out[i][0], totals[i][0]);
                    store_floats(&mut out[i][1], totals[i][1]);
                }
            }

            /// The sums of earlier runs.
            #[target_feature(enable = $features)]
            #[inline]
            fn before<const M: usize>(w: &Bytes, out: &[[[f32; NR / 2]; 2]]) -> Sums<Floats, M> {
                let mut totals = [[zero_floats(); 2]; M];
                if !w.is_first {
                    for i in 0..M {
                        totals[i] = [load_floats(&out[i][0]), load_floats(&out[i][1])];
                    }
                }
                totals
            }

            /// Adds the products of half a run.
            #[target_feature(enable = $features)]
            #[inline]
            fn add_half<const M: usize>(
                dots: &mut Sums<Ints, M>,
                lines: &[[[u8; LINE]; 2]; 4],
                x: &[[[u8; 4]; M]; 4],
            ) {
                if $in_pairs && !IS_WIDE {
                    for (lines, x) in lines.as_chunks::<2>().0.iter().zip(x.as_chunks::<2>().0) {
                        let w = [load_both(&lines[0]), load_both(&lines[1])];
                        for i in 0..M {
                            let x = [four(&x[0][i]), four(&x[1][i])];
                            for j in 0..2 {
                                dots[i][j] = $add_two(dots[i][j], [w[0][j], w[1][j]], x);
                            }
                        }
                    }
                } else {
                    for (lines, x) in lines.iter().zip(x) {
                        let w = load_both(lines);
                        for i in 0..M {
                            let x = four(&x[i]);
                            for j in 0..2 {
                                dots[i][j] = match IS_WIDE {
                                    true => $add_signed(dots[i][j], w[j], x),
                                    false => $add(dots[i][j], w[j], x),
                                };
                            }
                        }
                    }
                }
                in_order(dots);
            }

            /// Adds the products of offsets with the sums of activations times the minima of halves.
            #[target_feature(enable = $features)]
            #[inline]
            fn add_offsets_of_halves<const M: usize>(
                w: &Bytes,
                x_scales: &[[f32; M]],
                q: &[[[[u8; 4]; M]; 4]],
                out: &mut [f32],
            ) {
                let (offsets, mins) = (w.offsets.as_chunks::<NR>().0, w.mins.as_chunks::<NR>().0);
                let out = &mut out.as_chunks_mut::<{ NR / 2 }>().0.as_chunks_mut::<2>().0[..M];
                let mut totals = Self::before::<M>(w, out);
                for run in 0..w.n_runs.min(RUNS_MAX) {
                    let [first, second] = [2 * run, 2 * run + 1].map(|half| sums_times(1, &q[half]));
                    let offsets = load_pair(&offsets[run]);
                    let mins = mins[run].as_chunks::<{ NR / 2 }>().0;
                    for i in 0..M {
                        let sums = set_ints(first[i] & 0xffff | second[i] << 16);
                        let x_scale = set_floats(x_scales[run][i]);
                        for j in 0..2 {
                            let sum = mul_pairs(load_ints(&mins[j]), sums);
                            let term = mul(x_scale, floats_of(sum));
                            totals[i][j] = fma(offsets[j], term, totals[i][j]);
                        }
                    }
                }
                for i in 0..M {
                    store_floats(&mut out[i][0], totals[i][0]);
                    store_floats(&mut out[i][1], totals[i][1]);
                }
            }

            /// Adds the products of offsets with the sums of activations.
            #[target_feature(enable = $features)]
            #[inline]
            fn add_offsets<const M: usize>(
                w: &Bytes,
                x_scales: &[[f32; M]],
                zeros: &[[f32; M]],
                out: &mut [f32],
            ) {
                let offsets = w.offsets.as_chunks::<NR>().0;
                let out = &mut out.as_chunks_mut::<{ NR / 2 }>().0.as_chunks_mut::<2>().0[..M];
                let mut totals = Self::before::<M>(w, out);
                let mut terms = [[0.0; M]; RUNS_MAX];
                for (terms, (scales, zeros)) in terms.iter_mut().zip(x_scales.iter().zip(zeros)) {
                    for i in 0..M {
                        // Exact: both are integers below 2^24, and their difference is a multiple of 128.
                        terms[i] = scales[i] * ((ZERO - zeros[i]) * (1.0 / 128.0));
                    }
                }
                for (offsets, terms) in offsets.iter().zip(&terms).take(w.n_runs) {
                    let offsets = load_pair(offsets);
                    for i in 0..M {
                        let term = set_floats(terms[i]);
                        for j in 0..2 {
                            totals[i][j] = fma(offsets[j], term, totals[i][j]);
                        }
                    }
                }
                for i in 0..M {
                    store_floats(&mut out[i][0], totals[i][0]);
                    store_floats(&mut out[i][1], totals[i][1]);
                }
            }
        }

        /// Bytes that are codes times the scales of half a run.
        #[target_feature(enable = $features)]
        #[inline]
        fn times_scales(codes: [Ints; 2], factors: &[u8; NR]) -> [Ints; 2] {
            let factors = factors.as_chunks().0;
            let times = |codes, factors| {
                let scales = and(widen_bytes(factors), set_ints(15));
                let scales = mul_ints(scales, set_ints(1 << 16 | 1));
                let (low, high) = (set_ints(0x00ff_00ff), set_ints(0xff00_ff00_u32 as i32));
                or(mul_shorts(and(codes, low), scales), mul_shorts(and(codes, high), scales))
            };
            [times(codes[0], &factors[0]), times(codes[1], &factors[1])]
        }

        /// Joins the minima of the halves of a run: the second one's is in the high 16 bits.
        #[target_feature(enable = $features)]
        #[inline]
        fn join_mins(first: &[u8; NR], second: &[u8; NR], out: &mut [i32; NR]) {
            let (first, second) = (first.as_chunks().0.iter(), second.as_chunks().0);
            for (out, (first, second)) in out.as_chunks_mut().0.iter_mut().zip(first.zip(second)) {
                let [first, second] = [first, second].map(|both| shift_right_4(widen_bytes(both)));
                store_ints(out, or(first, mul_ints(second, set_ints(1 << 16))));
            }
        }

        /// Sums begin at these bits of a float.
        const START: i32 = ZERO.to_bits() as i32;

        /// The sum of each row's activations of half a run, times `factor`.
        #[target_feature(enable = $features)]
        #[inline]
        fn sums_times<const M: usize>(factor: u8, q: &[[[u8; 4]; M]; 4]) -> [i32; M] {
            const LANES: usize = LINE / 4;
            let (vectors, rest) = q.as_flattened().as_flattened().as_chunks::<LINE>();
            let mut sums = [0; M];
            if LANES.is_multiple_of(M) && rest.is_empty() {
                let mut lanes = [0; LANES];
                let add = |sums, q| $add(sums, set_bytes(factor), load(q));
                store_ints(&mut lanes, vectors.iter().fold(zero_ints(), add));
                for lanes in lanes.as_chunks::<M>().0 {
                    for i in 0..M {
                        sums[i] += lanes[i];
                    }
                }
                return sums;
            }
            let mut steps = [[0; M]; 4];
            let (lanes, last_lanes) = steps.as_flattened_mut().as_chunks_mut::<LANES>();
            for (q, lanes) in vectors.iter().zip(lanes) {
                store_ints(lanes, $add(zero_ints(), set_bytes(factor), load(q)));
            }
            for (q, lane) in rest.as_chunks::<4>().0.iter().zip(last_lanes) {
                *lane = q.iter().map(|q| i32::from(factor) * i32::from(*q as i8)).sum();
            }
            for i in 0..M {
                sums[i] = steps[0][i] + steps[1][i] + steps[2][i] + steps[3][i];
            }
            sums
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn load_both(lines: &[[u8; LINE]; 2]) -> [Ints; 2] {
            [load(&lines[0]), load(&lines[1])]
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn load_pair(x: &[f32; NR]) -> [Floats; 2] {
            let x = x.as_chunks().0;
            [load_floats(&x[0]), load_floats(&x[1])]
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn store_pair(out: &mut [f32; NR], x: [Floats; 2]) {
            let out = out.as_chunks_mut().0;
            store_floats(&mut out[0], x[0]);
            store_floats(&mut out[1], x[1]);
        }
    };
}

pub(super) use byte_tiles;
