//! CRC32 (IEEE 802.3) of bytes while they are copied or moved, so that they pass through the CPU only once.
//!
//! With AVX-512 the bytes are a polynomial over GF(2), 64 bytes of which are carried forward at a time by carry-less
//! multiplications ("Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009, in its form
//! for reflected bits).

use std::ops::Range;

/// Bytes of the head that a checksum begins with: three words and half of the fourth.
pub const HEAD_BYTES: usize = 28;

/// Copies `from` to the front of `to`. Returns the CRC32 of `head`'s first [`HEAD_BYTES`] in
/// little-endian order, and of what was copied.
///
/// The head is passed in registers: bytes that were just written are slow to read back in another width.
///
/// # Panics
/// If `to` is shorter than `from`.
#[inline]
pub fn copy(head: [u64; 4], from: &[u8], to: &mut [u8]) -> u32 {
    let to = &mut to[..from.len()];
    #[cfg(target_arch = "x86_64")]
    if has_avx512(from.len()) {
        let [a, b, c, d] = head;
        // SAFETY: the CPU has what it takes. `from` may be read and `to` written, both for as many bytes,
        // and they are apart.
        return unsafe { avx512::pass(a, b, c, d, from.as_ptr(), to.as_mut_ptr(), from.len()) };
    }
    let sum = plain(head, from);
    to.copy_from_slice(from);
    sum
}

/// Moves `from` in `memory` to `to`, which is not behind it. Returns the same as [`copy`].
///
/// # Panics
/// If `from` is not in `memory`, or `to` behind its start.
#[inline]
pub fn slide(head: [u64; 4], memory: &mut [u8], from: Range<usize>, to: usize) -> u32 {
    assert!(to <= from.start);
    let len = from.len();
    let memory = &mut memory[..from.start + len];
    #[cfg(target_arch = "x86_64")]
    if has_avx512(len) {
        let [a, b, c, d] = head;
        let start = memory.as_mut_ptr();
        // SAFETY: `from` begins inside `memory` or at its end.
        let source = unsafe { start.add(from.start) };
        // SAFETY: `to` is not behind `from`.
        let target = unsafe { start.add(to) };
        // SAFETY: the CPU has what it takes. Both ends are in `memory`, which may be read and written, and
        // the target is not behind the source.
        return unsafe { avx512::pass(a, b, c, d, source, target, len) };
    }
    let sum = plain(head, &memory[from.clone()]);
    memory.copy_within(from, to);
    sum
}

fn plain(head: [u64; 4], bytes: &[u8]) -> u32 {
    let head = head.map(u64::to_le_bytes);
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&head.as_flattened()[..HEAD_BYTES]);
    hasher.update(bytes);
    hasher.finalize()
}

/// Whether [`avx512::pass`] may be called for `bytes`.
#[cfg(target_arch = "x86_64")]
#[inline]
fn has_avx512(bytes: usize) -> bool {
    bytes >= avx512::BLOCK
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vbmi")
        && is_x86_feature_detected!("pclmulqdq")
        && is_x86_feature_detected!("vpclmulqdq")
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::*;

    /// Bytes of a vector.
    pub(super) const BLOCK: usize = 64;
    /// CRC-32's polynomial without its highest term, x^31 in the lowest bit.
    const POLYNOMIAL: u32 = 0xedb8_8320;

    /// `x^n` modulo the polynomial.
    const fn power(n: usize) -> u32 {
        let (mut remainder, mut i) = (1 << 31, 0);
        while i < n {
            remainder = (remainder >> 1) ^ if remainder & 1 == 1 { POLYNOMIAL } else { 0 };
            i += 1;
        }
        remainder
    }

    /// Multipliers that carry the two halves of 16 bytes forward by `bytes`. Products of reflected numbers
    /// are one bit short.
    const fn carry(bytes: usize) -> [i64; 2] {
        [(power(8 * bytes + 32) as i64) << 1, (power(8 * bytes - 32) as i64) << 1]
    }

    /// See [`super::copy`]. The head is one block of its own with zeros in front, which change nothing.
    ///
    /// # Safety
    /// - `len` is a block or more.
    /// - That many bytes may be read from `from` on and written from `to` on.
    /// - They do not overlap, or `to` is not behind `from`.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,pclmulqdq,vpclmulqdq")]
    pub(super) unsafe fn pass(
        a: u64,
        b: u64,
        c: u64,
        d: u64,
        from: *const u8,
        to: *mut u8,
        len: usize,
    ) -> u32 {
        let head = _mm512_set_epi64(d as i64, c as i64, b as i64, a as i64, 0, 0, 0, 0);
        // The head's 28 bytes move to the end. A checksum begins with its first 32 bits inverted.
        let up = _mm512_set_epi32(14, 13, 12, 11, 10, 9, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0);
        let head = _mm512_maskz_permutexvar_epi32(0xfe00, up, head);
        let inverted = _mm512_maskz_set1_epi32(0x0200, -1);
        let by_one = everywhere(const { carry(BLOCK) });
        let by_two = everywhere(const { carry(2 * BLOCK) });
        // SAFETY: the caller's `len` bytes; `at` is a block or more before their end.
        let load_at = |at: usize| unsafe { _mm512_loadu_si512(from.add(at).cast()) };
        // SAFETY: as above.
        let store_at = |at: usize, x| unsafe { _mm512_storeu_si512(to.add(at).cast(), x) };
        // Loaded before it is overwritten.
        let last = load_at(len - BLOCK);
        // Two independent sums hide the latency of the multiplications.
        let (mut even, mut odd) = (_mm512_setzero_si512(), _mm512_xor_si512(head, inverted));
        let mut at = 0;
        while at + 2 * BLOCK <= len {
            let (x, y) = (load_at(at), load_at(at + BLOCK));
            store_at(at, x);
            store_at(at + BLOCK, y);
            even = add(even, by_two, x);
            odd = add(odd, by_two, y);
            at += 2 * BLOCK;
        }
        let mut sum = add(even, by_one, odd);
        if at + BLOCK <= len {
            let x = load_at(at);
            store_at(at, x);
            sum = add(sum, by_one, x);
            at += BLOCK;
        }
        if at < len {
            store_at(len - BLOCK, last);
            sum = add_rest(sum, by_one, last, len - at);
        }
        !remainder(sum)
    }

    #[target_feature(enable = "avx512f")]
    fn everywhere([low, high]: [i64; 2]) -> __m512i {
        _mm512_set4_epi64(high, low, high, low)
    }

    #[target_feature(enable = "avx512f")]
    fn load(block: &[u8; BLOCK]) -> __m512i {
        // SAFETY: `block` is 64 readable bytes, and `loadu` needs no alignment.
        unsafe { _mm512_loadu_si512(block.as_ptr().cast()) }
    }

    /// `sum` carried forward with the multipliers `carry`, plus `block`.
    #[target_feature(enable = "avx512f,vpclmulqdq")]
    fn add(sum: __m512i, carry: __m512i, block: __m512i) -> __m512i {
        let low = _mm512_clmulepi64_epi128(sum, carry, 0x00);
        let high = _mm512_clmulepi64_epi128(sum, carry, 0x11);
        _mm512_ternarylogic_epi64(low, high, block, 0x96)
    }

    /// Adds the last `rest` bytes of `last`, the block that ends the message.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,vpclmulqdq")]
    fn add_rest(sum: __m512i, by_one: __m512i, last: __m512i, rest: usize) -> __m512i {
        static TURN: [u8; 2 * BLOCK] = {
            let (mut turn, mut i) = ([0; 2 * BLOCK], 0);
            while i < turn.len() {
                turn[i] = (i % BLOCK) as u8;
                i += 1;
            }
            turn
        };
        let turn = TURN[rest..].first_chunk().expect("the rest is shorter than a block");
        // The sum's first bytes are at the end: they are a block before the others.
        let turned = _mm512_permutexvar_epi8(load(turn), sum);
        let end = !(u64::MAX >> rest);
        let block = _mm512_mask_blend_epi8(end, turned, last);
        add(_mm512_maskz_mov_epi8(end, turned), by_one, block)
    }

    /// `sum` as a polynomial modulo CRC-32's.
    #[target_feature(enable = "avx512f,pclmulqdq,vpclmulqdq")]
    fn remainder(sum: __m512i) -> u32 {
        let [[a, b], [c, d], [e, f]] = const { [carry(48), carry(32), carry(16)] };
        let carries = _mm512_set_epi64(0, 0, f, e, d, c, b, a);
        let sum = add(sum, carries, _mm512_maskz_mov_epi64(0xc0, sum));
        let half = _mm256_xor_si256(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
        let sum = _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
        // 128 bits to 96, to 64, and by Barrett's method to 32.
        let low = _mm_set_epi32(0, -1, 0, -1);
        let product = _mm_clmulepi64_si128(sum, _mm_set_epi64x(f, e), 0x10);
        let sum = _mm_xor_si128(_mm_srli_si128(sum, 8), product);
        let by_64 = _mm_set_epi64x(0, const { (power(64) as i64) << 1 });
        let product = _mm_clmulepi64_si128(_mm_and_si128(sum, low), by_64, 0x00);
        let sum = _mm_xor_si128(_mm_srli_si128(sum, 4), product);
        let barrett = _mm_set_epi64x(0x1_f701_1641, 0x1_db71_0641);
        let quotient = _mm_clmulepi64_si128(_mm_and_si128(sum, low), barrett, 0x10);
        let product = _mm_clmulepi64_si128(_mm_and_si128(quotient, low), barrett, 0x00);
        (_mm_cvtsi128_si64(_mm_srli_si128(_mm_xor_si128(sum, product), 4))) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_have_the_checksum_of_their_bytes() {
        let bytes: Vec<u8> =
            (0..5000_u32).map(|i| (i.wrapping_mul(0x9e37_79b1) >> 13) as u8).collect();
        let heads = [[0; 4], [u64::MAX; 4], [1, 2 << 40, 0x0123_4567_89ab_cdef, 9 << 31]];
        for (i, len) in (0..600).chain([1_384, 1_400, 4_096, 4_097]).enumerate() {
            let (from, head) = (&bytes[i % 67..][..len], heads[i % heads.len()]);
            let head_bytes = head.map(u64::to_le_bytes);
            let whole = [&head_bytes.as_flattened()[..HEAD_BYTES], from].concat();
            let wanted = crc32fast::hash(&whole);
            assert_eq!(plain(head, from), wanted, "{len} bytes");
            let mut to = vec![0xa5; len];
            assert_eq!(copy(head, from, &mut to), wanted, "{len} bytes");
            assert_eq!(to, from);
            for shift in [0, 1, 32, 63, 64, 65, 1000] {
                let mut memory = [&vec![0xa5; shift], from, &[7]].concat();
                assert_eq!(slide(head, &mut memory, shift..shift + len, 0), wanted, "{len} bytes");
                assert_eq!(memory[..len], *from, "{len} bytes by {shift}");
                assert_eq!(memory[len..].last(), Some(&7));
            }
        }
    }

    #[test]
    fn bytes_behind_a_copy_stay() {
        let mut to = [1; 100];
        copy([0; 4], &[2; 65], &mut to);
        assert_eq!(to[65..], [1; 35]);
    }
}
