//! The admission test for reservations (`sched_setattr`).
//!
//! Facts from `kernel/sched/deadline.c` and `kernel/sched/syscalls.c` (6.15), checked against a
//! 6.18 kernel with two CPUs. The root domain is the whole level:
//!
//! - the sum of `runtime/period` may not exceed 95 % of every CPU (`sched_rt_runtime_us`);
//! - a fair server counts with its own share, on every CPU: with the usual 5 %, 90 % remain;
//! - an entity has to be allowed on every CPU;
//! - the share of an entity that leaves counts until its zero-lag time.
//!
//! With admission control off (`sched_rt_runtime_us = -1`) only the limits of the parameters hold.

use alloc::vec::Vec;

use crate::config::{Ns, RtGuard};
use crate::{CpuSet, EntId, Refusal};

/// Fixed-point one of the kernel's bandwidths.
const UNIT: u32 = 20;

/// `sched_rt_runtime_us` of `sched_rt_period_us`, by default.
const SHARE: (Ns, Ns) = (950_000, 1_000_000);

/// Shortest runtime: the kernel's arithmetic drops ten bits.
const MIN_RUNTIME: Ns = 1024;

/// `sched_deadline_period_{min,max}_us`, by default.
const PERIOD: core::ops::RangeInclusive<Ns> = 100_000..=4_194_304_000;

/// Whether the kernel takes these parameters, all in nanoseconds: runtime at least 1024,
/// runtime <= deadline <= period, period 100 us to 4.194304 s (the kernel's defaults).
///
/// # Errors
/// [`Refusal::Parameters`].
pub fn check_reservation(runtime: Ns, deadline: Ns, period: Ns) -> Result<(), Refusal> {
    let ordered = runtime <= deadline && deadline <= period;
    if runtime >= MIN_RUNTIME && ordered && PERIOD.contains(&period) {
        Ok(())
    } else {
        Err(Refusal::Parameters)
    }
}

/// `runtime/period` as the kernel counts it.
fn bandwidth(runtime: Ns, period: Ns) -> u64 {
    ((u128::from(runtime) << UNIT) / u128::from(period.max(1))) as u64
}

/// The bandwidth account of a level.
#[derive(Clone, Debug)]
pub(crate) struct Admission {
    on: bool,
    limit: u64,
    cpus: u32,
    used: u64,
    /// Share of each entity; 0 if it has none.
    shares: Vec<u64>,
    /// Entities that have left, and the time until which their share counts.
    leaving: Vec<(Ns, EntId)>,
}

impl Admission {
    pub(crate) fn new(on: bool, guard: RtGuard, cpus: u32) -> Self {
        let server = guard.fair_server().map_or(0, |s| bandwidth(s.runtime_ns, s.period_ns));
        let limit = bandwidth(SHARE.0, SHARE.1).saturating_sub(server) * u64::from(cpus);
        Self { on, limit, cpus, used: 0, shares: Vec::new(), leaving: Vec::new() }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.on
    }

    /// Drops entities whose zero-lag time has passed, and calls `gone` for each.
    pub(crate) fn expire(&mut self, now: Ns, mut gone: impl FnMut(EntId)) {
        let Self { leaving, shares, used, .. } = self;
        leaving.retain(|&(at, e)| {
            let past = at <= now;
            if past {
                *used -= core::mem::take(&mut shares[e.index()]);
                gone(e);
            }
            !past
        });
    }

    /// Admits `e` with a share, which replaces an earlier one; or returns why not.
    pub(crate) fn enter(
        &mut self,
        e: EntId,
        (runtime, period): (Ns, Ns),
        allowed: &CpuSet,
    ) -> Result<(), Refusal> {
        if self.shares.len() <= e.index() {
            self.shares.resize(e.index() + 1, 0);
        }
        let (old, new) = (self.shares[e.index()], bandwidth(runtime, period));
        if self.on {
            if allowed.len() < self.cpus {
                return Err(Refusal::Affinity);
            }
            if self.used - old + new > self.limit {
                return Err(Refusal::Bandwidth);
            }
        }
        self.leaving.retain(|&(_, left)| left != e);
        self.used = self.used - old + new;
        self.shares[e.index()] = new;
        Ok(())
    }

    /// `e` has left the class; its share counts until `zero_lag`.
    pub(crate) fn leave(&mut self, e: EntId, zero_lag: Ns) {
        self.leaving.push((zero_lag, e));
    }

    /// Panics if the account does not balance.
    pub(crate) fn check(&self) {
        assert_eq!(self.used, self.shares.iter().sum::<u64>(), "reserved bandwidth");
        assert!(!self.on || self.used <= self.limit, "bandwidth {} reserved", self.used);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Ns = 1_000_000;
    const SERVER: RtGuard = RtGuard::FAIR_SERVER;

    /// How many entities with a bandwidth of one percent fit.
    fn fit(guard: RtGuard, cpus: u32) -> u32 {
        let mut a = Admission::new(true, guard, cpus);
        let all = CpuSet::first_n(cpus);
        let refused = (0..1000).find(|&i| a.enter(EntId(i), (MS, 100 * MS), &all).is_err());
        a.check();
        refused.unwrap_or(1000)
    }

    #[test]
    fn the_sum_is_bounded_as_on_linux() {
        // 180 is what a 6.18 kernel with fair servers took on two CPUs.
        assert_eq!(fit(SERVER, 2), 180);
        assert_eq!(fit(RtGuard::Off, 2), 190);
        assert_eq!(fit(RtGuard::Off, 1), 95);
    }

    #[test]
    fn a_share_counts_until_the_zero_lag_time() {
        let mut a = Admission::new(true, RtGuard::Off, 1);
        let all = CpuSet::first_n(1);
        a.enter(EntId(0), (50, 100), &all).unwrap();
        // A change counts once.
        a.enter(EntId(0), (60, 100), &all).unwrap();
        assert_eq!(a.enter(EntId(1), (50, 100), &all), Err(Refusal::Bandwidth));
        a.leave(EntId(0), 10);
        assert_eq!(a.enter(EntId(1), (50, 100), &all), Err(Refusal::Bandwidth));
        a.expire(10, |e| assert_eq!(e, EntId(0)));
        a.enter(EntId(1), (50, 100), &all).unwrap();
        a.check();
    }

    #[test]
    fn affinity_has_to_cover_the_domain() {
        let one = CpuSet::first_n(1);
        let mut a = Admission::new(true, RtGuard::Off, 2);
        assert_eq!(a.enter(EntId(0), (1, 100), &one), Err(Refusal::Affinity));
        let mut a = Admission::new(false, RtGuard::Off, 2);
        assert_eq!(a.enter(EntId(0), (100, 100), &one), Ok(()));
        assert_eq!(a.enter(EntId(1), (300, 100), &one), Ok(()), "no bound either");
    }

    #[test]
    fn limits_of_the_parameters() {
        let ok = |r, d, p| check_reservation(r, d, p).is_ok();
        assert!(ok(1024, 100_000, 100_000) && !ok(1023, 100_000, 100_000));
        assert!(!ok(2000, 99_999, 99_999) && ok(2000, 50_000, 100_000));
        assert!(!ok(2 * MS, MS, MS) && !ok(MS, 3 * MS, 2 * MS) && ok(MS, MS, MS));
        assert!(ok(MS, MS, 4_194_304_000) && !ok(MS, MS, 4_194_304_001));
    }
}
