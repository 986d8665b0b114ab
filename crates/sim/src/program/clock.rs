//! The clock of a program, which may run at another rate than the host's.

use vcoop_model::rng::Stream;

use super::{MissedPeriods, Op};
use crate::queue::Ns;

const BILLION: u64 = 1_000_000_000;

/// A clock that was at 0 together with the host's, and runs at its own rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SkewedClock {
    /// Nanoseconds of this clock in a billion of the host's.
    rate: u64,
}

impl SkewedClock {
    /// The host's clock.
    pub(crate) const HOST: Self = Self { rate: BILLION };

    /// The clock of VM number `vm`, at most `ppm` millionths faster or slower.
    pub(crate) fn of_vm(ppm: u32, seed: u64, vm: usize) -> Self {
        let most = u64::from(ppm) * 1_000;
        Self { rate: BILLION - most + Stream::clock(seed, vm).below(2 * most + 1) }
    }

    fn is_host(self) -> bool {
        self.rate == BILLION
    }

    /// Its time at a time of the host.
    #[inline]
    pub(crate) fn shows(self, host: Ns) -> Ns {
        if self.is_host() { host } else { self.scaled(host) }
    }

    #[cold]
    fn scaled(self, host: Ns) -> Ns {
        (u128::from(host) * u128::from(self.rate) / u128::from(BILLION)) as Ns
    }

    /// The host's time at which it first reaches `own`, when a timer fires.
    pub(crate) fn host_time(self, own: Ns) -> Ns {
        if self.is_host() {
            return own;
        }
        (u128::from(own) * u128::from(BILLION)).div_ceil(u128::from(self.rate)) as Ns
    }

    /// An operation with the host's times instead of this clock's. CPU times do not change.
    #[inline]
    pub(crate) fn on_host(self, op: Op) -> Op {
        if self.is_host() { op } else { self.converted(op) }
    }

    fn of_host(self, missed: MissedPeriods) -> MissedPeriods {
        MissedPeriods { last: self.host_time(missed.last), ..missed }
    }

    #[cold]
    fn converted(self, op: Op) -> Op {
        match op {
            Op::SleepUntil { at, sample } => Op::SleepUntil { at: self.host_time(at), sample },
            Op::WaitDevice { due } => Op::WaitDevice { due: self.host_time(due) },
            Op::Wait { timeout } => Op::Wait { timeout: self.host_time(timeout) },
            Op::Respond { due } => Op::Respond { due: self.host_time(due) },
            Op::Missed(missed) => Op::Missed(self.of_host(missed)),
            Op::Glitches { glitches, missed } => {
                Op::Glitches { glitches, missed: self.of_host(missed) }
            }
            Op::BusyUntil { at } => Op::BusyUntil { at: self.host_time(at) },
            op => op,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_fires_once_its_clock_shows_the_time_and_not_before() {
        for seed in 0..50 {
            let clock = SkewedClock::of_vm(500, seed, 3);
            assert!(clock.rate.abs_diff(BILLION) <= 500_000);
            for own in [0, 1, 999, 1_000_000, 123_456_789, 86_400 * BILLION] {
                let host = clock.host_time(own);
                assert!(clock.shows(host) >= own, "{clock:?} {own}");
                assert!(host == 0 || clock.shows(host - 1) < own, "{clock:?} {own}");
                assert!(host.abs_diff(own) <= own / 1_900 + 1);
            }
        }
        assert_eq!(SkewedClock::of_vm(0, 7, 3), SkewedClock::HOST);
        assert_ne!(SkewedClock::of_vm(20, 7, 3), SkewedClock::of_vm(20, 7, 4));
    }
}
