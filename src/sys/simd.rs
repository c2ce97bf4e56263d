//! Plain loops, compiled for the vectors that the machine has.
//!
//! Programs are compiled for the oldest CPU of their architecture. [`run`] has the same code again with 256-bit and
//! with 512-bit vectors, so that loops that the compiler vectorises gain from newer CPUs. Results are the same bits,
//! because no two operations are fused.

/// Work to run in some instruction set. `run` and all that it calls in its loops must be `#[inline(always)]`: functions
/// that are not inlined are compiled for the oldest CPU.
pub trait Work {
    /// Result of the work.
    type Output;
    /// Does the work.
    fn run(self) -> Self::Output;
}

/// Does the work with the widest vectors that gain something.
pub fn run<W: Work>(work: W) -> W::Output {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
        {
            // SAFETY: the CPU has these three features, as was just seen.
            return unsafe { run_avx512(work) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the CPU has AVX2, as was just seen.
            return unsafe { run_avx2(work) };
        }
    }
    work.run()
}

/// # Safety
///
/// - The CPU must have AVX-512 F, BW and VL.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn run_avx512<W: Work>(work: W) -> W::Output {
    work.run()
}

/// # Safety
///
/// - The CPU must have AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn run_avx2<W: Work>(work: W) -> W::Output {
    work.run()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Sum<'a>(&'a [f32]);

    impl Work for Sum<'_> {
        type Output = f32;

        #[inline(always)]
        fn run(self) -> f32 {
            self.0.iter().fold(0.0, |sum, x| sum + x * 1.1)
        }
    }

    #[test]
    fn results_are_those_of_plain_code() {
        let numbers: Vec<f32> = (0..1000).map(|i| i as f32 * 0.37).collect();
        let plain = Sum(&numbers).run().to_bits();
        assert_eq!(run(Sum(&numbers)).to_bits(), plain);
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the CPU has AVX2, as was just seen.
            assert_eq!(unsafe { run_avx2(Sum(&numbers)) }.to_bits(), plain);
        }
    }
}
