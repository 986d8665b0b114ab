//! Charges one vCPU's boosted time to its own bucket, and to the VM's by leases.

use crate::action::Reason;
use crate::budget::Bucket;
use crate::config::{Budget, MIN_BOOST_NS, Ns};
use crate::stretch::Stretch;

/// Part of the VM's level that one lease takes.
const LEASE_SHARE: u64 = 8;

/// Charges boosted time to the vCPU's bucket and to the VM's.
///
/// The vCPU's bucket is charged as time passes. The VM's bucket has many users, so a vCPU *leases* from it: at the
/// start of a boost it takes an eighth of the level, at the end it returns what it did not use, and it takes again when
/// the lease runs out. Tokens leave the VM's bucket before they are used, so the vCPUs of a VM can never use more than
/// it held, and no vCPU has to be told that another one has begun to drain it. The cost: a vCPU may find the bucket
/// empty while others hold leases that they will not use up. An eighth at a time keeps that small, and a lower bound on
/// a lease keeps the number of timer events small as the level falls.
///
/// A policy that bounds how long a vCPU is boosted at once has a [`Stretch`] as well.
#[derive(Clone, Debug)]
pub(crate) struct Meter {
    bucket: Bucket,
    /// Tokens taken from the VM's bucket and not used yet. invariant: 0 unless draining.
    lease: Ns,
    /// Boosted and awake; time is charged up to here.
    since: Option<Ns>,
    boosted_ns: Ns,
    stretch: Option<Stretch>,
}

impl Meter {
    /// `longest`: the longest boost at once, if that is bounded.
    pub(crate) fn new(budget: Budget, longest: Option<Ns>, now: Ns) -> Self {
        let stretch = longest.map(|longest| Stretch::new(longest, budget.burst_ns, now));
        Self { bucket: Bucket::new(budget, now), lease: 0, since: None, boosted_ns: 0, stretch }
    }

    /// How often to halve the length of a boost, so that the buckets can pay for many: not at all while both are at
    /// least half full, then once for each halving of the level, up to three times. Expects settled accounts.
    pub(crate) fn halvings(&self, vm: &Bucket) -> u32 {
        let of = |bucket: &Bucket| {
            (1..=3).filter(|n| bucket.level() < bucket.burst() >> n).count() as u32
        };
        of(&self.bucket).max(of(vm))
    }

    /// Charges the time since the last call, if it was boosted, and refills.
    pub(crate) fn settle(&mut self, now: Ns, vm: &mut Bucket) {
        if let Some(since) = self.since {
            let ran = now.saturating_sub(since);
            self.since = Some(since.max(now));
            self.boosted_ns += ran;
            self.bucket.charge(ran);
            // A late timer: the lease was overrun, and the VM pays for it too.
            vm.charge(ran.saturating_sub(self.lease));
            self.lease = self.lease.saturating_sub(ran);
            self.stretch.iter_mut().for_each(|s| s.charge(now, ran));
        }
        self.bucket.refill(now);
        vm.refill(now);
    }

    /// Whether a boost could begin now. Expects settled accounts.
    pub(crate) fn can_start(&mut self, now: Ns, vm: &Bucket) -> Result<(), Reason> {
        if !self.bucket.has(least(&self.bucket)) {
            return Err(Reason::VcpuBudget);
        }
        if !vm.has(least(vm)) {
            return Err(Reason::VmBudget);
        }
        let at_once = self.stretch.as_mut().map_or(Ns::MAX, |s| s.begin(now));
        self.at_once(at_once)
    }

    /// Whether `left` nanoseconds at once are enough for a boost.
    fn at_once(&self, left: Ns) -> Result<(), Reason> {
        if left < least(&self.bucket) { Err(Reason::Longest) } else { Ok(()) }
    }

    fn left_at_once(&self) -> Ns {
        self.stretch.as_ref().map_or(Ns::MAX, Stretch::left)
    }

    /// Begins to charge. Expects settled accounts.
    pub(crate) fn start(&mut self, now: Ns, vm: &mut Bucket) -> Result<(), Reason> {
        if self.since.is_some() {
            return Ok(());
        }
        self.can_start(now, vm)?;
        self.extend(vm);
        self.since = Some(now);
        Ok(())
    }

    /// Stops charging and gives the rest of the lease back. Expects settled accounts.
    pub(crate) fn stop(&mut self, vm: &mut Bucket) {
        if let (Some(now), Some(stretch)) = (self.since.take(), &mut self.stretch) {
            stretch.end(now);
        }
        vm.give_back(self.lease);
        self.lease = 0;
    }

    /// Called when [`time_left`](Self::time_left) may be over: takes another lease if that was the
    /// limit. Expects settled accounts.
    pub(crate) fn renew(&mut self, vm: &mut Bucket) -> Result<(), Reason> {
        if self.bucket.time_to_empty() == Some(0) {
            return Err(Reason::VcpuBudget);
        }
        self.at_once(self.left_at_once())?;
        if self.lease == 0 {
            if !vm.has(least(vm)) {
                return Err(Reason::VmBudget);
            }
            self.extend(vm);
        }
        Ok(())
    }

    /// How long the boost can go on before [`renew`](Self::renew) must be asked.
    pub(crate) fn time_left(&self) -> Ns {
        let left = self.bucket.time_to_empty().unwrap_or(Ns::MAX).min(self.lease);
        left.min(self.left_at_once())
    }

    /// How long until what ended or prevented a boost is over: until half of the boost is
    /// worked off, or until both buckets are at half their burst. `None`: never. Expects settled accounts and nothing
    /// being charged.
    pub(crate) fn recovery(&self, now: Ns, reason: Option<Reason>, vm: &Bucket) -> Option<Ns> {
        if let (Some(Reason::Longest), Some(stretch)) = (reason, &self.stretch) {
            return Some(stretch.recovery(now, least(&self.bucket)));
        }
        let half = |b: &Bucket| b.time_until((b.burst() / 2).max(least(b)));
        Some(half(&self.bucket)?.max(half(vm)?))
    }

    pub(crate) fn boosted_ns(&self) -> Ns {
        self.boosted_ns
    }

    /// Boosted time at `now`, as if settled.
    pub(crate) fn boosted_at(&self, now: Ns) -> Ns {
        self.boosted_ns + self.since.map_or(0, |since| now.saturating_sub(since))
    }

    /// Level of the vCPU's bucket at `now`, as if settled.
    pub(crate) fn level_at(&self, now: Ns) -> Ns {
        let mut bucket = self.bucket;
        if let Some(since) = self.since {
            bucket.charge(now.saturating_sub(since));
        }
        bucket.refill(now);
        bucket.level()
    }

    fn extend(&mut self, vm: &mut Bucket) {
        let share = (vm.level() / LEASE_SHARE).max(least(vm));
        self.lease += vm.take(share.min(self.bucket.time_to_empty().unwrap_or(share)));
    }
}

/// Level below which a bucket counts as empty for a new boost or lease; never zero, so that an
/// empty bucket always counts.
fn least(bucket: &Bucket) -> Ns {
    MIN_BOOST_NS.min(bucket.burst() / 4).max(1)
}

#[cfg(test)]
mod tests {
    use super::{Bucket, Budget, Meter, Reason};

    const BIG: Budget = Budget { burst_ns: 100_000_000, refill_ppm: 0 };
    const VM: Budget = Budget { burst_ns: 8_000_000, refill_ppm: 0 };

    #[test]
    fn unused_lease_goes_back() {
        let (mut vm, mut m) = (Bucket::new(VM, 0), Meter::new(BIG, None, 0));
        m.start(0, &mut vm).unwrap();
        assert_eq!(vm.level(), 7_000_000);
        assert_eq!((m.boosted_at(30_000), m.level_at(30_000)), (30_000, BIG.burst_ns - 30_000));
        m.settle(30_000, &mut vm);
        m.stop(&mut vm);
        assert_eq!((vm.level(), m.boosted_ns()), (7_970_000, 30_000));
    }

    #[test]
    fn a_lone_vcpu_can_use_the_vm_budget_up_but_for_one_least_lease() {
        let (mut vm, mut m) = (Bucket::new(VM, 0), Meter::new(BIG, None, 0));
        m.start(0, &mut vm).unwrap();
        let mut now = 0;
        let end = loop {
            now += m.time_left();
            m.settle(now, &mut vm);
            if let Err(reason) = m.renew(&mut vm) {
                break reason;
            }
        };
        assert_eq!(end, Reason::VmBudget);
        assert!((7_980_000..=8_000_000).contains(&now), "{now}");
    }

    #[test]
    fn overrun_lease_is_the_vms_debt() {
        let (mut vm, mut m) = (Bucket::new(VM, 0), Meter::new(BIG, None, 0));
        m.start(0, &mut vm).unwrap();
        m.settle(20_000_000, &mut vm);
        m.stop(&mut vm);
        assert_eq!((vm.level(), vm.debt()), (0, 12_000_000));
    }

    #[test]
    fn a_boost_ends_when_it_has_been_the_longest_and_begins_again_once_half_is_worked_off() {
        let small = Budget { burst_ns: 2_000_000, refill_ppm: 1_000_000 };
        let (mut vm, mut m) = (Bucket::new(BIG, 0), Meter::new(small, Some(1_000_000), 0));
        m.start(0, &mut vm).unwrap();
        let mut now = 0;
        let why = loop {
            let left = m.time_left();
            now += left;
            m.settle(now, &mut vm);
            if let Err(why) = m.renew(&mut vm) {
                break why;
            }
        };
        // The longest, the excess, and what the excess gained meanwhile.
        assert_eq!(why, Reason::Longest);
        assert!((2_990_000..3_020_000).contains(&now), "{now}");
        m.stop(&mut vm);
        let recovery = m.recovery(now, Some(why), &vm).unwrap();
        assert_eq!(recovery, 500_000);
        now += 1_000;
        m.settle(now, &mut vm);
        assert_eq!(m.start(now, &mut vm), Err(Reason::Longest));
        now += recovery;
        m.settle(now, &mut vm);
        assert_eq!(m.start(now, &mut vm), Ok(()));
        let left = m.time_left();
        assert!((500_000..520_000).contains(&left), "{left}");
        // A vCPU that is boosted already begins no new boost, however little is left.
        m.settle(now + left, &mut vm);
        let level = vm.level();
        assert_eq!(m.start(now + left, &mut vm), Ok(()));
        assert_eq!(vm.level(), level, "nor another lease");
    }

    #[test]
    fn boosts_are_halved_as_the_emptier_bucket_falls() {
        let of = |own_used, vm_used| {
            let (mut vm, mut m) = (Bucket::new(VM, 0), Meter::new(VM, None, 0));
            m.bucket.charge(own_used);
            vm.charge(vm_used);
            m.halvings(&vm)
        };
        let used = [(0, 0), (4_000_000, 0), (4_000_001, 1), (6_000_001, 2), (7_000_001, 3)];
        for (used, halvings) in used.into_iter().chain([(8_000_000, 3)]) {
            assert_eq!((of(used, 0), of(0, used)), (halvings, halvings), "{used}");
        }
    }

    #[test]
    fn an_empty_budget_never_starts() {
        let none = Budget { burst_ns: 0, refill_ppm: 500_000 };
        let mut vm = Bucket::new(VM, 0);
        assert_eq!(Meter::new(none, None, 0).start(0, &mut vm), Err(Reason::VcpuBudget));
        let mut vm = Bucket::new(none, 0);
        assert_eq!(Meter::new(BIG, None, 0).start(0, &mut vm), Err(Reason::VmBudget));
        assert_eq!(Meter::new(BIG, None, 0).recovery(0, None, &vm), None);
    }
}
