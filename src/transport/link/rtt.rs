//! Round-trip time: smoothed mean and deviation, and how long to wait for an answer, as RFC 9002
//! computes them.

use super::times::ACK_DELAY_US;
use crate::transport::Micros;

/// Shortest and longest wait for an answer before it is requested.
const RTO_MIN_US: Micros = 2_000;
const RTO_MAX_US: Micros = 500_000;
/// Precision with which nodes wake up.
const GRANULARITY_US: Micros = 1_000;

/// The estimate, in microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rtt {
    srtt: Micros,
    var: Micros,
}

impl Rtt {
    pub(super) fn sample(&mut self, us: Micros) {
        let us = us.clamp(1, 10_000_000);
        if self.srtt == 0 {
            (self.srtt, self.var) = (us, us / 2);
            return;
        }
        self.var = (3 * self.var + self.srtt.abs_diff(us)) / 4;
        // A long sample says more about a node that was busy than about the path.
        self.srtt = us.min((7 * self.srtt + us).div_ceil(8));
    }

    /// Notes an answer that took `us`, and may have been delayed by its sender.
    pub(super) fn at_most(&mut self, us: Micros) {
        let us = us.max(1);
        (self.srtt, self.var) = (self.srtt.min(us), self.var.min(us));
    }

    pub(super) fn srtt_us(&self) -> u32 {
        self.srtt as u32
    }

    pub(super) fn var_us(&self) -> u32 {
        self.var as u32
    }

    /// How long to wait for an answer, after `tries` that got none.
    pub(super) fn timeout(&self, tries: u32) -> Micros {
        let first = match self.srtt {
            0 => 20_000,
            srtt => {
                let first = srtt + (4 * self.var).max(GRANULARITY_US) + ACK_DELAY_US;
                first.clamp(RTO_MIN_US, RTO_MAX_US)
            }
        };
        (first << tries.min(8)).min(RTO_MAX_US)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_follow_the_samples_and_back_off() {
        let mut rtt = Rtt::default();
        (0..100).for_each(|_| rtt.sample(10_000));
        assert_eq!(rtt.srtt_us(), 10_000);
        assert!((10_000..12_000).contains(&rtt.timeout(0)));
        assert_eq!(rtt.timeout(1), 2 * rtt.timeout(0));
        assert_eq!(rtt.timeout(u32::MAX), RTO_MAX_US);
        (0..100).for_each(|_| rtt.sample(0));
        assert_eq!(rtt.timeout(0), RTO_MIN_US);
        (0..100).for_each(|_| rtt.sample(u64::MAX));
        assert_eq!(rtt.timeout(0), RTO_MAX_US);
    }
}
