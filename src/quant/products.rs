//! Sums of products for sixteen columns side by side, in one order on every machine.

/// Columns side by side.
pub const LANES: usize = 16;

/// A number of each column.
pub type Lanes = [f32; LANES];

/// Rows of sums that are made together: as many as the registers of most machines hold.
pub const ROWS: usize = 4;

/// Adds to each row of `sums` the `vectors` times that row's `factors`, one after the other.
///
/// # Panics
///
/// When there are fewer factors than vectors.
#[inline(always)]
pub fn add(sums: &mut [Lanes; ROWS], factors: [&[f32]; ROWS], vectors: &[Lanes]) {
    let factors = factors.map(|factors| &factors[..vectors.len()]);
    let mut own = *sums;
    for (n, vector) in vectors.iter().enumerate() {
        for row in 0..ROWS {
            for i in 0..LANES {
                own[row][i] += factors[row][n] * vector[i];
            }
        }
    }
    *sums = own;
}
