//! What `dynamic` and `wake-boost` have in common: one vCPU's boost, its status word and its budget timer. Each policy
//! decides itself when to boost.

use vcoop_abi::Status;

use crate::action::{Action, Actions, Reason, Rest};
use crate::config::{Budget, Means, Ns};
use crate::govern::CpuTime;
use crate::meter::Meter;
use crate::repay::{LEARNING_NS, Repay};
use crate::stats::PolicyStats;
use crate::vm_shared::VmShared;

/// One vCPU's boost.
///
/// The state is the status word itself, so the word cannot disagree with it. A policy that needs no guest does not
/// publish it: the guest's hooks would wake up and notify in vain.
///
/// | from | event | to | actions |
/// | --- | --- | --- | --- |
/// | `Disabled` | enabled | `Normal`, or `Throttled` while the latch holds | `Status` |
/// | any | disabled | `Disabled` | `Restore` if boosted, `Status`, `CancelTimer` |
/// | `Normal` | a reason, budget there | `Boosted` | `Status`, `Boost` |
/// | `Normal` | a reason, budget empty | `Throttled` | `Status`, `Denied` |
/// | `Normal`, `Throttled` | a reason, baseline outranks the means | same | `Denied` |
/// | `Throttled` | a reason | `Throttled` | `Denied` |
/// | `Boosted` | no reason left | `Normal` | `Restore`, `Status` |
/// | `Boosted` | the host refused the means | `Normal` | `Status`, `Denied` |
/// | `Boosted` | budget empty, or boosted for as long as it may be at once | `Throttled` | `Restore`, `Status`, `Denied` |
/// | `Throttled` | both buckets at half their burst, penalty over; or the gap is | `Normal` | `Status` |
///
/// Half the burst is the hysteresis: with a threshold at zero a vCPU that always has a reason would
/// be boosted and restored every few microseconds, and each change costs the host more than the
/// boost is worth. The latch survives disabling, so that a guest cannot shorten its throttling by
/// registering again.
///
/// A vCPU that gives boosted time back is lowered for it in `Normal` only. A throttled vCPU gets no boosts, so it must
/// not wait longer than it would without a policy.
///
/// A boosted vCPU that is halted uses no CPU, so its time is not charged.
///
/// A budget alone lets a guest that never ends its boosts use the whole refill rate for ever, for milliseconds at a
/// time. So each time that the budget has to end a boost counts as a *strike*. After [`FREE_STRIKES`] in a row each
/// further strike makes the throttling last four times as long (from [`PENALTY_NS`], at most [`MOST_STEPS`] times). A
/// boost that ends because its reason is gone clears the strikes, if the guest says so in words that an honest guest
/// writes. So an honest guest that was overrun has a few bursts to work off what piled up meanwhile, and a guest that
/// alternates is bounded by its bucket alone. A boost that ended because it was the longest allowed
/// ([`stretch`](crate::stretch)) counts as a strike, too.
///
/// Order: `Status(Boosted)` goes before `Boost`, and `Restore` before any other status. So whenever
/// the means are applied the word says so, and a guest that reads another status need not notify.
///
/// The timer is lazy. The end of a boost leaves it armed, the begin of a boost re-arms it only to an earlier time, and
/// a timer that fires early re-arms itself: a vCPU boosted ten thousand times a second costs one timer event a budget,
/// not ten thousand. A halt cancels it: a timer that fires while the vCPU sleeps would wake an idle pCPU for nothing,
/// and mislead its idle governor.
#[derive(Clone, Debug)]
pub(crate) struct Control {
    means: Means,
    /// The guest takes part: status changes are published.
    published: bool,
    /// The policy may change the thread: it pays for boosts even if the guest takes its page away.
    governs: bool,
    status: Status,
    halted: bool,
    outranked: bool,
    /// Throttled, or disabled while throttled.
    latched: Option<Reason>,
    meter: Meter,
    /// Boosts in a row that the budget had to end.
    strikes: u32,
    /// End of the penalty: throttled at least until then.
    held_until: Ns,
    timer: Option<Ns>,
    stats: PolicyStats,
    /// What the vCPU gives back, and the boosted time as of the last account.
    repay: Option<(Repay, Ns)>,
    /// Whether the vCPU was throttled at any time since the last account.
    was_throttled: bool,
    /// No boosts until then, if boosted time is given back; `None` before the policy is first enabled.
    learns_until: Option<Ns>,
    /// Slice of the thread while it is not boosted.
    rest_slice_ns: Option<Ns>,
}

/// Strikes in a row that carry no penalty.
const FREE_STRIKES: u32 = 4;

/// Throttling after the first strike beyond those; each further one makes it four times as long.
const PENALTY_NS: Ns = 20_000_000;

/// A timer that is this late counts as lost, and any event does its work: no driver's mistake may leave a boost without
/// an end.
const LOST_NS: Ns = 1_000_000;

/// Steps of the penalty: 20 ms times 4^5 is a good twenty seconds.
const MOST_STEPS: u32 = 5;

impl Control {
    pub(crate) fn new(
        means: Means,
        budget: Budget,
        longest: Option<Ns>,
        published: bool,
        repays: bool,
        rest_slice_ns: Option<Ns>,
        now: Ns,
    ) -> Self {
        let repays = repays && !matches!(means, Means::Slice(_));
        Self {
            means,
            published,
            governs: false,
            status: Status::Disabled,
            halted: false,
            outranked: false,
            latched: None,
            meter: Meter::new(budget, longest, now),
            strikes: 0,
            held_until: 0,
            timer: None,
            stats: PolicyStats::default(),
            repay: repays.then(Default::default),
            was_throttled: false,
            learns_until: None,
            rest_slice_ns,
        }
    }

    pub(crate) fn status(&self) -> Status {
        self.status
    }

    pub(crate) fn is_boosted(&self) -> bool {
        self.status == Status::Boosted
    }

    pub(crate) fn is_halted(&self) -> bool {
        self.halted
    }

    /// Whether boosted time is given back, which needs accounts of what the thread ran.
    pub(crate) fn repays(&self) -> bool {
        self.repay.is_some()
    }

    /// What the thread has while it is not boosted.
    pub(crate) fn rest(&self) -> Rest {
        let pays = self.governs && self.status != Status::Throttled;
        let repay = self.repay.as_ref().filter(|_| pays);
        Rest {
            levels: repay.map_or(0, |(repay, _)| repay.levels()),
            slice_ns: self.rest_slice_ns.filter(|_| self.status != Status::Disabled),
        }
    }

    pub(crate) fn budget_left(&self, now: Ns) -> Ns {
        self.meter.level_at(now)
    }

    pub(crate) fn boosted_at(&self, now: Ns) -> Ns {
        self.meter.boosted_at(now)
    }

    pub(crate) fn stats(&self) -> PolicyStats {
        PolicyStats { boosted_ns: self.meter.boosted_ns(), ..self.stats }
    }

    /// Counts a boost that a recheck ended.
    pub(crate) fn count_raced(&mut self) {
        self.stats.raced += 1;
    }

    /// Counts a boost that the guest ended.
    pub(crate) fn count_notified(&mut self) {
        self.stats.notified += 1;
    }

    /// Brings the accounts up to `now`; first thing on every event.
    pub(crate) fn settle(&mut self, now: Ns, vm: &mut VmShared) {
        self.meter.settle(now, &mut vm.bucket);
    }

    /// `governs`: the policy may change the thread. `takes_part`: the guest takes part, where it has to.
    pub(crate) fn set_enabled(
        &mut self,
        now: Ns,
        governs: bool,
        takes_part: bool,
        vm: &mut VmShared,
        out: &mut Actions,
    ) {
        let before = self.rest();
        self.governs = governs;
        match (self.status, governs && takes_part) {
            (Status::Disabled, true) => {
                self.learns_until.get_or_insert(now.saturating_add(LEARNING_NS));
                if self.recovery(now, vm) == Some(0) {
                    self.latched = None;
                }
                let throttled = self.latched.is_some();
                self.set(if throttled { Status::Throttled } else { Status::Normal }, out);
            }
            (Status::Disabled, false) | (_, true) => {}
            (_, false) => {
                self.restore(Status::Disabled, vm, out);
                if self.timer.take().is_some() {
                    out.push(Action::CancelTimer);
                }
            }
        }
        self.rests(before, out);
    }

    /// What the thread did since the last account. Expects settled accounts.
    pub(crate) fn ran(&mut self, since: CpuTime, out: &mut Actions) {
        let boosted = self.meter.boosted_ns();
        let Some((repay, last)) = &mut self.repay else { return };
        let boosted = boosted.saturating_sub(core::mem::replace(last, boosted));
        if !self.governs {
            return;
        }
        let before = repay.levels();
        let throttled = self.status == Status::Throttled;
        let lowered = !core::mem::replace(&mut self.was_throttled, throttled);
        let levels = repay.on(since, boosted, lowered);
        if throttled {
            return;
        }
        self.stats.lowered_ns += since.busy_ns.saturating_add(since.steal_ns) * u64::from(before);
        if levels != before {
            out.push(Action::Rest(self.rest()));
        }
    }

    /// How often to halve a boost of fixed length, so that the budget lasts. Expects settled accounts.
    pub(crate) fn halvings(&self, vm: &VmShared) -> u32 {
        self.meter.halvings(&vm.bucket)
    }

    /// How often to halve a boost of fixed length because of what the vCPU owes.
    pub(crate) fn owed_halvings(&self) -> u32 {
        self.repay.as_ref().map_or(0, |(repay, _)| repay.halvings())
    }

    /// The baseline changed. Boosting a thread whose baseline outranks the means would lower it.
    pub(crate) fn set_outranked(&mut self, outranked: bool, vm: &mut VmShared, out: &mut Actions) {
        self.outranked = outranked;
        if outranked && self.is_boosted() {
            self.restore(Status::Normal, vm, out);
        }
    }

    /// The means were not applied after all: the host refused them.
    pub(crate) fn refused(&mut self, vm: &mut VmShared, out: &mut Actions) {
        if self.is_boosted() {
            self.meter.stop(&mut vm.bucket);
            self.stats.boosts = self.stats.boosts.saturating_sub(1);
            self.set(Status::Normal, out);
            self.deny(Reason::Refused, out);
        }
    }

    /// A reason to boost. True if the means were applied by this call.
    pub(crate) fn boost(&mut self, now: Ns, vm: &mut VmShared, out: &mut Actions) -> bool {
        match self.status {
            Status::Disabled | Status::Boosted => return false,
            _ if self.outranked => {
                self.deny(Reason::Baseline, out);
                return false;
            }
            Status::Throttled => {
                self.deny(self.latched.unwrap_or(Reason::VcpuBudget), out);
                return false;
            }
            Status::Normal if self.repays() && self.learns_until.is_some_and(|end| now < end) => {
                self.deny(Reason::Learning, out);
                return false;
            }
            Status::Normal => {}
        }
        let granted = if self.halted {
            self.meter.can_start(now, &vm.bucket)
        } else {
            self.meter.start(now, &mut vm.bucket)
        };
        if let Err(reason) = granted {
            self.throttle(reason, vm, out);
            return false;
        }
        self.stats.boosts += 1;
        self.set(Status::Boosted, out);
        out.push(Action::Boost(self.means));
        true
    }

    /// No reason left. True if the means were applied until now. `given_back`: the guest ended the boost and its words
    /// can be believed, so the strikes are cleared.
    pub(crate) fn end(&mut self, given_back: bool, vm: &mut VmShared, out: &mut Actions) -> bool {
        let boosted = self.is_boosted();
        if boosted {
            if given_back {
                self.strikes = 0;
            }
            self.restore(Status::Normal, vm, out);
        }
        boosted
    }

    /// The vCPU sleeps: nothing is charged from here on.
    pub(crate) fn halt(&mut self, vm: &mut VmShared, out: &mut Actions) {
        self.halted = true;
        self.meter.stop(&mut vm.bucket);
        if self.status != Status::Throttled && self.timer.take().is_some() {
            out.push(Action::CancelTimer);
        }
    }

    /// The thread has just begun, or is about to go, and is not asleep. It is not boosted.
    pub(crate) fn awake(&mut self) {
        self.halted = false;
    }

    /// The vCPU is awake: a boost is charged from here on, or ends if there is no budget.
    pub(crate) fn wake(&mut self, now: Ns, vm: &mut VmShared, out: &mut Actions) {
        self.halted = false;
        if self.is_boosted()
            && let Err(reason) = self.meter.start(now, &mut vm.bucket)
        {
            self.throttle(reason, vm, out);
        }
    }

    /// Whether the armed time is so long ago that the timer must have been lost. Its time is dropped then.
    pub(crate) fn lost_timer(&mut self, now: Ns, out: &mut Actions) -> bool {
        let lost = self.timer.take_if(|armed| armed.saturating_add(LOST_NS) <= now).is_some();
        if lost {
            out.push(Action::CancelTimer);
        }
        lost
    }

    /// The armed time has come: ends a boost whose budget is used up, and a throttling whose
    /// buckets have recovered.
    pub(crate) fn on_timer(&mut self, now: Ns, vm: &mut VmShared, out: &mut Actions) {
        if self.timer.is_some_and(|at| at <= now) {
            self.timer = None;
        }
        match self.status {
            Status::Boosted if !self.halted => {
                if let Err(reason) = self.meter.renew(&mut vm.bucket) {
                    if let Some(steps) = self.strikes.checked_sub(FREE_STRIKES) {
                        let penalty = PENALTY_NS << (2 * steps.min(MOST_STEPS));
                        self.held_until = now.saturating_add(penalty);
                    }
                    self.strikes = self.strikes.saturating_add(1);
                    self.throttle(reason, vm, out);
                }
            }
            Status::Throttled if self.recovery(now, vm) == Some(0) => {
                self.latched = None;
                let before = self.rest();
                self.set(Status::Normal, out);
                self.rests(before, out);
            }
            _ => {}
        }
    }

    /// Makes sure that the timer fires when the budget or `also` (an absolute time) needs it; called last on every
    /// event.
    pub(crate) fn arm(&mut self, now: Ns, also: Option<Ns>, vm: &VmShared, out: &mut Actions) {
        let own = match self.status {
            Status::Boosted if !self.halted => Some(self.meter.time_left()),
            // At least one nanosecond ahead: recovery that is due is noticed by a timer event.
            Status::Throttled => self.recovery(now, vm).map(|t| t.max(1)),
            _ => None,
        };
        let own = own.map(|t| now.saturating_add(t));
        let also = also.filter(|_| self.is_boosted());
        let Some(at) = own.into_iter().chain(also).min() else { return };
        if at != Ns::MAX && self.timer.is_none_or(|armed| at < armed) {
            self.timer = Some(at);
            out.push(Action::ArmTimer(at));
        }
    }

    /// How long until a throttling is over. `None`: never.
    fn recovery(&self, now: Ns, vm: &VmShared) -> Option<Ns> {
        let recovered = self.meter.recovery(now, self.latched, &vm.bucket)?;
        Some(recovered.max(self.held_until.saturating_sub(now)))
    }

    fn deny(&mut self, reason: Reason, out: &mut Actions) {
        self.stats.denied += 1;
        out.push(Action::Denied(reason));
    }

    /// Counts a boost denied because its only reason was a section that is too long.
    pub(crate) fn deny_long_section(&mut self, out: &mut Actions) {
        self.deny(Reason::LongSection, out);
    }

    fn throttle(&mut self, reason: Reason, vm: &mut VmShared, out: &mut Actions) {
        self.stats.throttles += 1;
        self.stats.too_long += u64::from(reason == Reason::Longest);
        self.stats.by_vm += u64::from(reason == Reason::VmBudget);
        self.latched = Some(reason);
        // If it is boosted, `restore` sets the rest as well.
        let before = (!self.is_boosted()).then(|| self.rest());
        self.restore(Status::Throttled, vm, out);
        before.into_iter().for_each(|before| self.rests(before, out));
        self.deny(reason, out);
    }

    /// The thread rested like this before.
    fn rests(&self, before: Rest, out: &mut Actions) {
        if self.rest() != before {
            out.push(Action::Rest(self.rest()));
        }
    }

    /// Takes the means away, if they are applied, and goes to another status.
    fn restore(&mut self, to: Status, vm: &mut VmShared, out: &mut Actions) {
        if self.is_boosted() {
            self.meter.stop(&mut vm.bucket);
            out.push(Action::Restore);
        }
        self.set(to, out);
    }

    fn set(&mut self, status: Status, out: &mut Actions) {
        self.status = status;
        self.was_throttled |= status == Status::Throttled;
        if self.published {
            out.push(Action::Status(status));
        }
    }
}
