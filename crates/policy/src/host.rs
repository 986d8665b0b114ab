//! The policy of one vCPU, as a driver calls it.

use vcoop_abi::Status;

use crate::action::{Action, Actions, Reason, Rest};
use crate::config::{DynamicConfig, Means, Ns, WakeBoostConfig};
use crate::control::Control;
use crate::dynamic::Dynamic;
use crate::event::Event;
use crate::stats::PolicyStats;
use crate::vm_shared::VmShared;
use crate::wake_boost::WakeBoost;

/// The policy of one vCPU.
#[derive(Clone, Debug)]
pub enum HostPolicy {
    /// Does nothing.
    Vanilla,
    /// The means for as long as the switches are on.
    Static {
        /// The means.
        means: Means,
        /// Whether they are applied.
        applied: bool,
        /// Whether the baseline outranks the means: they would lower the thread.
        outranked: bool,
        /// Whether the thread exists.
        attached: bool,
    },
    /// Boost with the guest's help.
    Dynamic(Dynamic),
    /// Boost on wake-up, without the guest's help.
    WakeBoost(WakeBoost),
}

impl HostPolicy {
    /// `static`.
    pub fn fixed(means: Means) -> Self {
        Self::Static { means, applied: false, outranked: false, attached: true }
    }

    /// `dynamic`, starting disabled at time `now`. For a vCPU with means of its own, put them into
    /// `config.means`.
    pub fn dynamic(config: DynamicConfig, now: Ns) -> Self {
        Self::Dynamic(Dynamic::new(config, now))
    }

    /// `wake-boost`, starting disabled at time `now`.
    pub fn wake_boost(config: WakeBoostConfig, now: Ns) -> Self {
        Self::WakeBoost(WakeBoost::new(config, now))
    }

    /// What happened at time `now`, and what to do about it. Deterministic: the same event at the same time in the same
    /// state gives the same actions.
    pub fn on(&mut self, now: Ns, event: Event, vm: &mut VmShared) -> Actions {
        let mut out = Actions::new();
        self.answer(now, event, vm, &mut out);
        out
    }

    /// As [`on`](Self::on), into an empty list: returning a list copies it.
    pub(crate) fn answer(&mut self, now: Ns, event: Event, vm: &mut VmShared, out: &mut Actions) {
        match self {
            Self::Vanilla => {}
            Self::Static { means, applied, outranked, attached } => {
                match event {
                    Event::Refused if *applied => {
                        *applied = false;
                        out.push(Action::Denied(Reason::Refused));
                    }
                    Event::Baseline { outranks } => *outranked = outranks,
                    Event::Attached(there) => *attached = there,
                    _ => {}
                }
                let looks =
                    matches!(event, Event::Enable | Event::Attached(_) | Event::Baseline { .. });
                if looks && (*attached && vm.is_on() && !*outranked) != *applied {
                    *applied = !*applied;
                    out.push(if *applied { Action::Boost(*means) } else { Action::Restore });
                }
            }
            Self::Dynamic(machine) => machine.answer(now, event, vm, out),
            Self::WakeBoost(machine) => machine.answer(now, event, vm, out),
        }
    }

    /// The boost of a vCPU that can have one.
    fn control(&self) -> Option<&Control> {
        match self {
            Self::Vanilla | Self::Static { .. } => None,
            Self::Dynamic(machine) => Some(machine.control()),
            Self::WakeBoost(machine) => Some(machine.control()),
        }
    }

    /// The status the guest should see. Only `dynamic` cooperates.
    pub fn status(&self) -> Status {
        match self {
            Self::Dynamic(machine) => machine.control().status(),
            Self::Vanilla | Self::Static { .. } | Self::WakeBoost(_) => Status::Disabled,
        }
    }

    /// Whether the means are applied to the thread.
    pub fn is_boosted(&self) -> bool {
        match self {
            Self::Static { applied, .. } => *applied,
            _ => self.control().is_some_and(|control| control.status() == Status::Boosted),
        }
    }

    /// Whether the means are applied for as long as the policy is in force: all time awake is boosted, and no counter
    /// has it.
    pub fn is_boosted_for_life(&self) -> bool {
        matches!(self, Self::Static { applied: true, .. })
    }

    /// Whether the budget prevents boosts.
    pub fn is_throttled(&self) -> bool {
        self.control().is_some_and(|control| control.status() == Status::Throttled)
    }

    /// Whether the policy needs the guest's words. If not, events that carry words may come with
    /// [`GuestWords::SILENT`](vcoop_abi::GuestWords::SILENT), or not at all.
    pub fn reads_guest(&self) -> bool {
        matches!(self, Self::Dynamic(_))
    }

    /// Whether the policy gives boosted time back, and so needs [`Event::Ran`].
    pub fn repays(&self) -> bool {
        self.control().is_some_and(Control::repays)
    }

    /// What the thread has while it is not boosted: the value of the last [`Action::Rest`].
    pub fn rest(&self) -> Rest {
        self.control().map(Control::rest).unwrap_or_default()
    }

    /// Whether the policy reacts to [`Event::Asked`]; if not, senders of IPIs need not ask.
    pub fn hears_senders(&self) -> bool {
        matches!(self, Self::Dynamic(machine) if machine.hears_senders())
    }

    /// Boosted time left in the vCPU's own bucket as of `now`; what the host publishes as
    /// `budget_left_ns`. Zero for policies without a budget.
    pub fn budget_left(&self, now: Ns) -> Ns {
        self.control().map_or(0, |control| control.budget_left(now))
    }

    /// Time boosted and awake until `now`, in nanoseconds; the counter in [`stats`](Self::stats) ends with the last
    /// event.
    pub fn boosted_at(&self, now: Ns) -> Ns {
        self.control().map_or(0, |control| control.boosted_at(now))
    }

    /// Counters. All zero for `vanilla` and `static`.
    pub fn stats(&self) -> PolicyStats {
        self.control().map(Control::stats).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use vcoop_abi::GuestWords;

    use super::{HostPolicy, VmShared};
    use crate::action::{Action, Reason};
    use crate::config::Means;
    use crate::event::{Event, Injection};

    #[test]
    fn vanilla_does_nothing() {
        let mut vm = VmShared::unbudgeted(0);
        let mut p = HostPolicy::Vanilla;
        for event in [Event::Enable, Event::Injected(Injection::Nmi), Event::Woken, Event::Timer] {
            assert!(p.on(5, event, &mut vm).is_empty());
        }
    }

    #[test]
    fn static_follows_the_switches_only() {
        let mut vm = VmShared::unbudgeted(0);
        let mut p = HostPolicy::fixed(Means::Nice(-20));
        assert_eq!(*p.on(0, Event::Enable, &mut vm), [Action::Boost(Means::Nice(-20))]);
        assert!(p.on(1, Event::Enable, &mut vm).is_empty());
        assert!(p.on(2, Event::Halted(GuestWords::SILENT), &mut vm).is_empty());
        assert!(p.is_boosted());
        vm.set_global(false);
        assert_eq!(*p.on(3, Event::Enable, &mut vm), [Action::Restore]);
        assert!(!p.is_boosted());
    }

    #[test]
    fn static_boosts_each_thread_that_a_vcpu_gets() {
        let (means, mut vm) = (Means::Fifo(1), VmShared::unbudgeted(0));
        let mut p = HostPolicy::fixed(means);
        assert_eq!(*p.on(0, Event::Enable, &mut vm), [Action::Boost(means)]);
        assert_eq!(*p.on(1, Event::Attached(false), &mut vm), [Action::Restore]);
        assert!(p.on(2, Event::Enable, &mut vm).is_empty());
        assert_eq!(*p.on(3, Event::Attached(true), &mut vm), [Action::Boost(means)]);
    }

    #[test]
    fn refused_means_are_not_in_force() {
        let means =
            Means::Deadline { runtime_ns: 1_000_000, deadline_ns: 4_000_000, period_ns: 4_000_000 };
        let mut vm = VmShared::unbudgeted(0);
        let mut p = HostPolicy::fixed(means);
        assert_eq!(*p.on(0, Event::Enable, &mut vm), [Action::Boost(means)]);
        assert_eq!(*p.on(0, Event::Refused, &mut vm), [Action::Denied(Reason::Refused)]);
        assert!(!p.is_boosted());
        // The next look at the switches asks again.
        assert_eq!(*p.on(1, Event::Enable, &mut vm), [Action::Boost(means)]);
    }
}
