//! The machine's limits, to compare kernels with: a loop that only reads, and one that only multiplies.

/// Multiplications and additions in a round of [`Kernels::spin_int8`](super::Kernels::spin_int8), the same in every tier.
pub const OPS_PER_ROUND: usize = 2 * MACS_PER_ROUND;

pub(super) const MACS_PER_ROUND: usize = 1024;

/// XOR of blocks of four cache lines. `prefetch` takes a line's address and prefetches a line some way behind it.
#[inline(always)]
pub(super) fn read_all(bytes: &[u8], prefetch: impl Fn(*const u8)) -> u64 {
    let mut seen = [0_u64; 32];
    for block in bytes.as_chunks::<8>().0.as_chunks::<32>().0 {
        for line in bytemuck::cast_slice::<[u8; 8], [u8; 64]>(block) {
            prefetch(line.as_ptr());
        }
        for i in 0..32 {
            seen[i] ^= u64::from_ne_bytes(block[i]);
        }
    }
    seen.iter().fold(0, |a, b| a ^ b)
}

/// Runs `step`, which adds `products` products to each of `N` sums, for `rounds` rounds.
#[inline(always)]
pub(super) fn spin<S: Copy, const N: usize>(
    rounds: usize,
    products: usize,
    zero: S,
    mut step: impl FnMut(&mut [S; N]),
    lane: impl Fn(S) -> i32,
) -> i32 {
    let mut sums = [zero; N];
    for _ in 0..rounds * (MACS_PER_ROUND / (products * N)) {
        step(&mut sums);
    }
    let mut total = 0_i32;
    for sum in sums {
        total = total.wrapping_add(lane(sum));
    }
    total
}
