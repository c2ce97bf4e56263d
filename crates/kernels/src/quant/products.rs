//! Sums of products for sixteen columns side by side, in one order on every machine.

/// Columns side by side.
pub const LANES: usize = 16;

/// One number for each column.
pub type Lanes = [f32; LANES];

/// Rows of sums computed together: as many as the registers of most machines hold.
pub const ROWS: usize = 4;

/// Adds each of the `vectors`, times its factor for a row, to that row of `sums`, in order.
///
/// # Panics
///
/// When there are fewer factors than vectors.
#[inline(always)]
pub fn add(sums: &mut [Lanes; ROWS], factors: [&[f32]; ROWS], vectors: &[Lanes]) {
    // Each row has a variable of its own, because compilers do not keep an indexed array in registers.
    let [a, b, c, d] = factors.map(|factors| &factors[..vectors.len()]);
    let [mut in_a, mut in_b, mut in_c, mut in_d] = *sums;
    for ((((vector, a), b), c), d) in vectors.iter().zip(a).zip(b).zip(c).zip(d) {
        add_multiple(&mut in_a, *a, vector);
        add_multiple(&mut in_b, *b, vector);
        add_multiple(&mut in_c, *c, vector);
        add_multiple(&mut in_d, *d, vector);
    }
    *sums = [in_a, in_b, in_c, in_d];
}

/// `sums` plus each of the `vectors` times its factor, in order.
///
/// # Panics
///
/// When there are fewer factors than vectors.
#[inline(always)]
pub fn sum(mut sums: Lanes, factors: &[f32], vectors: &[Lanes]) -> Lanes {
    for (vector, factor) in vectors.iter().zip(&factors[..vectors.len()]) {
        add_multiple(&mut sums, *factor, vector);
    }
    sums
}

#[inline(always)]
fn add_multiple(sums: &mut Lanes, factor: f32, vector: &Lanes) {
    for i in 0..LANES {
        sums[i] += factor * vector[i];
    }
}
