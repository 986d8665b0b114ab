//! What must hold for timer advance and halt polling, whatever happens.

use proptest::prelude::*;
use vcoop_policy::config::{AdvanceConfig, GuestPollConfig, HostPollConfig};
use vcoop_policy::{GuestHaltPoll, HostHaltPoll, Idle, TimerAdvance};

proptest! {
    /// It comes to what delivery takes, within KVM's noise and rounding, unless that is more than KVM
    /// learns from: 10 000 cycles beyond the first microsecond.
    #[test]
    fn an_adaptive_advance_converges(takes in 200u64..4_500, khz in 1_500_000u32..4_000_000, jitter in 0u64..40) {
        let mut a = TimerAdvance::new(AdvanceConfig::Adaptive, khz);
        let takes = takes.min(900 + 10_000 * 1_000_000 / u64::from(khz));
        for i in 0..400u64 {
            let takes = takes + i * 7 % (jitter + 1);
            a.delivered(takes as i64 - a.ns() as i64);
        }
        let noise = 100 * 1_000_000 / u64::from(khz) + jitter + 8;
        prop_assert!(a.ns().abs_diff(takes) <= noise, "{} for {takes} +- {noise}", a.ns());
    }

    /// Whatever it is told, it stays plausible.
    #[test]
    fn an_advance_is_bounded(lates in proptest::collection::vec(any::<i64>(), 1..200), small in proptest::collection::vec(-6_000i64..6_000, 1..400)) {
        let mut a = TimerAdvance::new(AdvanceConfig::Adaptive, 2_300_000);
        for late in lates.into_iter().chain(small) {
            a.delivered(late);
            prop_assert!(a.ns() <= 5_000);
        }
    }

    #[test]
    fn polls_stay_within_their_caps(
        max in 0u64..2_000_000, grow in 0u32..9, start in 0u64..100_000, shrink in 0u32..9, allow: bool,
        halts in proptest::collection::vec((0u64..4_000_000, any::<bool>()), 1..300),
    ) {
        let mut host = HostHaltPoll::new(HostPollConfig { max_ns: max, grow, grow_start_ns: start, shrink, fixed: false });
        let config = GuestPollConfig { max_ns: max, grow, grow_start_ns: start, shrink, allow_shrink: allow };
        let mut guest = GuestHaltPoll::new(config);
        for (ns, flag) in halts {
            let before = (host.ns(), guest.limit());
            host.halted(ns, true);
            prop_assert!(host.ns() <= max);
            prop_assert!(host.is_on() || host.ns() == 0);
            if ns > max && max > 0 {
                prop_assert!(host.ns() <= before.0, "a long halt never makes it grow");
            }
            guest.halted(ns);
            prop_assert!(guest.limit() <= max);
            if ns > max {
                prop_assert!(guest.limit() <= before.1);
            }
            guest.polled(flag);
            prop_assert!(!flag || guest.select() == Idle::Halt);
        }
    }
}
