//! Kernels of recurrent layers, written once like those of [`float`](super::float).
//!
//! A state is a matrix for each head, `[rows, columns]`: its rows belong to the dimensions of keys, its columns to those
//! of values. Columns do not depend on each other, so that any number of threads may share them. Sums run over the rows
//! in order, with one fused multiply-add each. A text's bits therefore do not depend on how it is cut into batches.

use super::float::{dots, exp_within, fma};

/// Columns of a state that a call of [`Kernels::delta_rule`](super::Kernels::delta_rule) takes: these, or half of them.
pub const DELTA_COLUMNS: usize = 32;

/// One token's update of a state by the gated delta rule.
#[derive(Clone, Copy, Debug)]
pub struct DeltaStep<'a> {
    /// Normalised key, one value for each row of the state.
    pub key: &'a [f32],
    /// Normalised and scaled query, like the key.
    pub query: &'a [f32],
    /// Value, one for each column.
    pub value: &'a [f32],
    /// Factor of the old state, 0 to 1.
    pub decay: f32,
    /// Strength of the update, 0 to 1.
    pub strength: f32,
}

/// One token's update of a state-space layer.
#[derive(Clone, Copy, Debug)]
pub struct ScanStep<'a> {
    /// Input, one value for each column of the state.
    pub input: &'a [f32],
    /// Weights of the input in each row.
    pub write: &'a [f32],
    /// Weights of each row in the output.
    pub read: &'a [f32],
    /// Length of the step, above 0.
    pub step: f32,
}

/// Taps of a convolution, and what follows it.
#[derive(Clone, Copy, Debug)]
pub struct Convolution<'a> {
    /// `[taps, stride]`, of which each row begins with the taps of the channels. The last row may end with these.
    pub taps: &'a [f32],
    /// Values from a channel's tap to its next.
    pub stride: usize,
    /// Added to the result.
    pub bias: Option<&'a [f32]>,
    /// Whether the result goes through SiLU.
    pub is_activated: bool,
}

/// See [`super::Kernels::convolve`].
#[inline(always)]
pub(super) fn convolve<const FMA: bool>(
    inputs: &[&[f32]],
    Convolution { taps, stride, bias, is_activated }: Convolution<'_>,
    out: &mut [f32],
) {
    let Some((first, later)) = inputs.split_first() else { return };
    for ((out, x), tap) in out.iter_mut().zip(*first).zip(taps) {
        *out = x * tap;
    }
    for (x, taps) in later.iter().zip(taps.chunks(stride).skip(1)) {
        for ((out, x), tap) in out.iter_mut().zip(*x).zip(taps) {
            *out = fma::<FMA>(*x, *tap, *out);
        }
    }
    for (out, bias) in out.iter_mut().zip(bias.unwrap_or_default()) {
        *out += bias;
    }
    if is_activated {
        for x in out {
            *x /= 1.0 + exp_within::<FMA>(-*x);
        }
    }
}

/// See [`super::Kernels::gate`].
#[inline(always)]
pub(super) fn gate<const FMA: bool>(gate: &[f32], out: &mut [f32]) {
    for (out, gate) in out.iter_mut().zip(gate) {
        *out /= 1.0 + exp_within::<FMA>(-gate);
    }
}

/// See [`super::Kernels::delta_controls`].
#[inline(always)]
pub(super) fn delta_controls<const FMA: bool>(controls: &mut [f32], decay: &[f32], bias: &[f32]) {
    let (strengths, steps) = controls.split_at_mut(decay.len());
    for x in strengths {
        *x = 1.0 / (1.0 + exp_within::<FMA>(-*x));
    }
    for ((x, decay), bias) in steps.iter_mut().zip(decay).zip(bias) {
        *x = exp_within::<FMA>(decay * softplus::<FMA>(*x + bias));
    }
}

/// See [`super::Kernels::steps`].
#[inline(always)]
pub(super) fn steps<const FMA: bool>(x: &mut [f32], bias: &[f32]) {
    for (x, bias) in x.iter_mut().zip(bias) {
        *x = softplus::<FMA>(*x + bias);
    }
}

/// See [`super::Kernels::scan`].
#[inline(always)]
pub(super) fn scan<const FMA: bool>(
    steps: &[ScanStep<'_>],
    factors: (f32, f32),
    state: &mut [f32],
    out: &mut [f32],
) {
    let columns = steps.first().map_or(0, |step| step.input.len());
    match columns {
        DELTA_COLUMNS => scan_columns::<FMA, DELTA_COLUMNS>(steps, factors, state, out),
        _ => scan_columns::<FMA, { DELTA_COLUMNS / 2 }>(steps, factors, state, out),
    }
}

#[inline(always)]
fn scan_columns<const FMA: bool, const N: usize>(
    steps: &[ScanStep<'_>],
    (decay, skip): (f32, f32),
    state: &mut [f32],
    out: &mut [f32],
) {
    let state = state.as_chunks_mut::<N>().0;
    for (step, out) in steps.iter().zip(out.as_chunks_mut::<N>().0) {
        let old = exp_within::<FMA>(decay * step.step);
        let Some(input) = step.input.first_chunk() else { continue };
        let read = scan_rows::<FMA, N>(state, step, (old, &multiply(step.step, input)));
        *out = multiply_add::<FMA, N>(skip, input, &read);
    }
}

/// Updates all rows, and returns the sums that the step reads from the new ones.
#[inline(always)]
fn scan_rows<const FMA: bool, const N: usize>(
    state: &mut [[f32; N]],
    step: &ScanStep<'_>,
    (old, input): (f32, &[f32; N]),
) -> [f32; N] {
    let mut sums = [0.0; N];
    for (row, (write, read)) in state.iter_mut().zip(step.write.iter().zip(step.read)) {
        *row = multiply_add::<FMA, N>(*write, input, &multiply(old, row));
        sums = multiply_add::<FMA, N>(*read, row, &sums);
    }
    sums
}

/// `ln(1 + exp(x))`; `x` itself from 20 on, where the difference is below its rounding.
#[inline(always)]
pub(super) fn softplus<const FMA: bool>(x: f32) -> f32 {
    // ln(1 + z) = 2 artanh(w) for w = z / (2 + z), and |w| is at most 1/3.
    let z = exp_within::<FMA>(-x.abs());
    let w = z / (2.0 + z);
    let square = w * w;
    let mut sum = 1.0 / 19.0;
    for odd in [17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        sum = fma::<FMA>(sum, square, 1.0 / odd);
    }
    let positive = if x > 0.0 { x } else { 0.0 };
    // Unlike `max`, this lets a NaN pass.
    if x > 20.0 { x } else { fma::<FMA>(2.0 * w, sum, positive) }
}

/// See [`super::Kernels::delta_rule`].
#[inline(always)]
pub(super) fn delta_rule<const FMA: bool>(
    steps: &[DeltaStep<'_>],
    state: &mut [f32],
    out: &mut [f32],
) {
    let columns = steps.first().map_or(0, |step| step.value.len());
    match columns {
        DELTA_COLUMNS => delta_columns::<FMA, DELTA_COLUMNS>(steps, state, out),
        _ => delta_columns::<FMA, { DELTA_COLUMNS / 2 }>(steps, state, out),
    }
}

#[inline(always)]
fn delta_columns<const FMA: bool, const N: usize>(
    steps: &[DeltaStep<'_>],
    state: &mut [f32],
    out: &mut [f32],
) {
    let state = state.as_chunks_mut::<N>().0;
    let Some(first) = steps.first() else { return };
    let mut sums = sums::<FMA, N>(state, first);
    for (index, (step, out)) in steps.iter().zip(out.as_chunks_mut::<N>().0).enumerate() {
        let [differences, result] = read::<FMA, N>(step, &sums);
        *out = result;
        // Sums behind the last token are not read.
        let next = steps.get(index + 1).unwrap_or(step);
        sums = update::<FMA, N>(state, step, &differences, next);
    }
}

/// Products of a state with a key, and with a query.
type Sums<const N: usize> = [[f32; N]; 2];

/// `Sᵀ · key` and `Sᵀ · query`.
#[inline(always)]
fn sums<const FMA: bool, const N: usize>(state: &[[f32; N]], step: &DeltaStep<'_>) -> Sums<N> {
    let [mut by_key, mut by_query] = [[0.0; N]; 2];
    for ((row, key), query) in state.iter().zip(step.key).zip(step.query) {
        by_key = multiply_add::<FMA, N>(*key, row, &by_key);
        by_query = multiply_add::<FMA, N>(*query, row, &by_query);
    }
    [by_key, by_query]
}

/// The token's addition to the state, in the direction of its key; and its output, from the new state.
#[inline(always)]
fn read<const FMA: bool, const N: usize>(step: &DeltaStep<'_>, sums: &Sums<N>) -> [[f32; N]; 2] {
    let Some(value) = step.value.first_chunk() else { return [[0.0; N]; 2] };
    let [by_key, by_query] = sums;
    let [overlap, ..] = dots::<FMA, 1>(step.key, [step.query]);
    let missing = multiply_add::<FMA, N>(-step.decay, by_key, value);
    let differences = multiply(step.strength, &missing);
    let result = multiply_add::<FMA, N>(overlap, &differences, &multiply(step.decay, by_query));
    [differences, result]
}

/// Updates all rows, and returns the next token's sums: rows are read once for both.
#[inline(always)]
fn update<const FMA: bool, const N: usize>(
    state: &mut [[f32; N]],
    step: &DeltaStep<'_>,
    differences: &[f32; N],
    next: &DeltaStep<'_>,
) -> Sums<N> {
    let [mut by_key, mut by_query] = [[0.0; N]; 2];
    let keys = step.key.iter().zip(next.key.iter().zip(next.query));
    for (row, (key, (next_key, next_query))) in state.iter_mut().zip(keys) {
        let new = multiply_add::<FMA, N>(*key, differences, &multiply(step.decay, row));
        by_key = multiply_add::<FMA, N>(*next_key, &new, &by_key);
        by_query = multiply_add::<FMA, N>(*next_query, &new, &by_query);
        *row = new;
    }
    [by_key, by_query]
}

/// `factor * x`.
#[inline(always)]
fn multiply<const N: usize>(factor: f32, x: &[f32; N]) -> [f32; N] {
    let mut y = [0.0; N];
    for j in 0..N {
        y[j] = factor * x[j];
    }
    y
}

/// `factor * x + y`.
#[inline(always)]
fn multiply_add<const FMA: bool, const N: usize>(
    factor: f32,
    x: &[f32; N],
    y: &[f32; N],
) -> [f32; N] {
    let mut sum = [0.0; N];
    for j in 0..N {
        sum[j] = fma::<FMA>(factor, x[j], y[j]);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{Isa, Kernels};

    /// Numbers that look random, in -1 to 1.
    fn numbers(seed: u32, n: usize) -> Vec<f32> {
        let mut x = seed.wrapping_mul(2_654_435_761) | 1;
        let next = |_| {
            x ^= x << 13;
            x ^= x >> 17;
            x ^= x << 5;
            (x as f32 / u32::MAX as f32) * 2.0 - 1.0
        };
        (0..n).map(next).collect()
    }

    fn bits(x: &[f32]) -> Vec<u32> {
        x.iter().map(|x| x.to_bits()).collect()
    }

    fn tiers() -> impl Iterator<Item = Kernels> {
        Isa::ALL.iter().filter_map(|isa| Kernels::for_isa(*isa))
    }

    const ROWS: usize = 48;
    const TOKENS: usize = 23;

    /// Keys, queries and values of a text.
    struct Text {
        keys: Vec<f32>,
        queries: Vec<f32>,
        values: Vec<f32>,
        columns: usize,
    }

    impl Text {
        fn new(columns: usize) -> Text {
            let keys = numbers(1, TOKENS * ROWS);
            let keys = keys.iter().map(|x| x / (ROWS as f32).sqrt()).collect();
            let (queries, values) = (numbers(2, TOKENS * ROWS), numbers(3, TOKENS * columns));
            Text { keys, queries, values, columns }
        }

        fn steps(&self) -> Vec<DeltaStep<'_>> {
            let step = |t: usize| DeltaStep {
                key: &self.keys[t * ROWS..][..ROWS],
                query: &self.queries[t * ROWS..][..ROWS],
                value: &self.values[t * self.columns..][..self.columns],
                decay: 1.0 - t as f32 / 40.0,
                strength: 0.2 + t as f32 / 30.0,
            };
            (0..TOKENS).map(step).collect()
        }
    }

    #[test]
    fn delta_rule_is_the_papers() {
        let text = Text::new(16);
        let start = numbers(4, ROWS * 16);
        let mut state: Vec<f64> = start.iter().map(|x| f64::from(*x)).collect();
        let (mut found, mut out) = (start.clone(), vec![0.0; TOKENS * 16]);
        let scalar = Kernels::for_isa(Isa::Scalar).unwrap();
        scalar.delta_rule(&text.steps(), &mut found, &mut out);
        for (t, step) in text.steps().iter().enumerate() {
            state.iter_mut().for_each(|s| *s *= f64::from(step.decay));
            for j in 0..16 {
                let dot = |x: &[f32], state: &[f64]| -> f64 {
                    (0..ROWS).map(|i| f64::from(x[i]) * state[i * 16 + j]).sum()
                };
                let missing = f64::from(step.value[j]) - dot(step.key, &state);
                let added = f64::from(step.strength) * missing;
                (0..ROWS).for_each(|i| state[i * 16 + j] += f64::from(step.key[i]) * added);
                let wanted = dot(step.query, &state);
                assert!((f64::from(out[t * 16 + j]) - wanted).abs() < 1e-5, "token {t}");
            }
        }
        assert!(found.iter().zip(&state).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-5));
    }

    #[test]
    fn texts_have_the_same_bits_on_every_tier_and_in_any_pieces() {
        for columns in [16, 32] {
            let text = Text::new(columns);
            let steps = text.steps();
            let start = numbers(4, ROWS * columns);
            let mut wanted = None;
            for kernels in tiers() {
                for cut in [1, 2, 7, TOKENS] {
                    let (mut state, mut out) = (start.clone(), Vec::new());
                    for steps in steps.chunks(cut) {
                        let mut some = vec![0.0; steps.len() * columns];
                        kernels.delta_rule(steps, &mut state, &mut some);
                        out.extend(some);
                    }
                    let found = (bits(&out), bits(&state));
                    assert_eq!(&found, wanted.get_or_insert(found.clone()), "{kernels:?} by {cut}");
                }
            }
        }
    }

    #[test]
    fn convolutions_and_gates_have_the_same_bits_on_every_tier() {
        let n = 83;
        let inputs: Vec<Vec<f32>> = (0..4).map(|tap| numbers(5 + tap, n)).collect();
        let inputs: Vec<&[f32]> = inputs.iter().map(Vec::as_slice).collect();
        let taps = numbers(10, 4 * n);
        let mut wanted = None;
        for kernels in tiers() {
            let [mut plain, mut active] = [vec![0.0; n], vec![0.0; n]];
            let convolution =
                Convolution { taps: &taps, stride: n, bias: None, is_activated: false };
            kernels.convolve(&inputs, convolution, &mut plain);
            let convolution = Convolution { is_activated: true, ..convolution };
            kernels.convolve(&inputs, convolution, &mut active);
            let bias = Some(&*active);
            let mut shifted = vec![0.0; n];
            kernels.convolve(
                &inputs,
                Convolution { bias, is_activated: false, ..convolution },
                &mut shifted,
            );
            let some: Vec<&[f32]> = inputs.iter().map(|input| &input[20..50]).collect();
            let mut part = vec![0.0; 30];
            kernels.convolve(&some, Convolution { taps: &taps[20..], ..convolution }, &mut part);
            assert_eq!(bits(&part), bits(&active[20..50]), "{kernels:?}: channels alone");
            let sums = plain.iter().zip(&active).map(|(a, b)| a + b);
            assert_eq!(shifted, sums.collect::<Vec<_>>());
            let mut controls: Vec<f32> = numbers(11, 2 * n).iter().map(|x| x * 30.0).collect();
            let decay: Vec<f32> = numbers(12, n).iter().map(|x| -4.0 * x.abs()).collect();
            kernels.delta_controls(&mut controls, &decay, &numbers(13, n));
            let mut gated = plain.clone();
            kernels.gate(&active, &mut gated);
            let found = [&plain, &active, &controls, &gated].map(|x| bits(x));
            assert_eq!(&found, wanted.get_or_insert(found.clone()), "{kernels:?}");
            for c in 0..n {
                let sum: f32 = (0..4).map(|tap| inputs[tap][c] * taps[tap * n + c]).sum();
                assert!((plain[c] - sum).abs() < 1e-6);
                let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
                assert!((active[c] - sum * sigmoid(sum)).abs() < 1e-6);
                assert!((gated[c] - sum * sigmoid(active[c])).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn scans_are_mamba_2s_on_every_tier_and_in_any_pieces() {
        for columns in [16, 32] {
            let (inputs, weights) = (numbers(21, TOKENS * columns), numbers(22, 2 * TOKENS * ROWS));
            let step = |t: usize| ScanStep {
                input: &inputs[t * columns..][..columns],
                write: &weights[2 * t * ROWS..][..ROWS],
                read: &weights[(2 * t + 1) * ROWS..][..ROWS],
                step: 0.1 + t as f32 / 10.0,
            };
            let steps: Vec<ScanStep<'_>> = (0..TOKENS).map(step).collect();
            let start = numbers(4, ROWS * columns);
            let mut exact: Vec<f64> = start.iter().map(|x| f64::from(*x)).collect();
            let mut wanted = Vec::new();
            for step in &steps {
                let old = (-0.7 * f64::from(step.step)).exp();
                for (at, s) in exact.iter_mut().enumerate() {
                    let (row, column) = (at / columns, at % columns);
                    let added = step.step * step.input[column] * step.write[row];
                    *s = old * *s + f64::from(added);
                }
                wanted.extend((0..columns).map(|column| {
                    let rows = (0..ROWS)
                        .map(|row| exact[row * columns + column] * f64::from(step.read[row]));
                    rows.sum::<f64>() + 0.3 * f64::from(step.input[column])
                }));
            }
            let mut first = None;
            for kernels in tiers() {
                for cut in [1, 5, TOKENS] {
                    let (mut state, mut out) = (start.clone(), Vec::new());
                    for steps in steps.chunks(cut) {
                        let mut some = vec![0.0; steps.len() * columns];
                        kernels.scan(steps, (-0.7, 0.3), &mut state, &mut some);
                        out.extend(some);
                    }
                    assert!(out.iter().zip(&wanted).all(|(a, b)| (f64::from(*a) - b).abs() < 2e-5));
                    let found = (bits(&out), bits(&state));
                    assert_eq!(&found, first.get_or_insert(found.clone()), "{kernels:?} by {cut}");
                }
            }
        }
    }

    #[test]
    fn softplus_is_close_everywhere() {
        for x in (-2_000..3_000).map(|x| x as f32 / 50.0) {
            let wanted = f64::from(x).exp().ln_1p();
            let found = f64::from(softplus::<false>(x));
            assert!((found - wanted).abs() <= 3e-7 * wanted + 1e-30, "{x}: {found}, not {wanted}");
        }
        assert!(softplus::<false>(f32::NAN).is_nan());
    }
}
