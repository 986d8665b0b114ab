//! Policy events over time, if a plan asks for slices.

use vcoop_model::plan::Plan;
use vcoop_model::recording::{PolicyEvent, PolicyEvents};
use vcoop_policy::PolicyStats;

use crate::queue::Ns;

/// Counts by time; VMs of one label together.
#[derive(Debug)]
pub(crate) struct EventCounts {
    events: Vec<PolicyEvents>,
    warmup_ns: Ns,
}

impl EventCounts {
    /// None, unless the plan has slices.
    pub(crate) fn new(plan: &Plan) -> Self {
        let mut events: Vec<PolicyEvents> = Vec::new();
        for vm in plan.vms.iter().filter(|_| plan.slices > 0) {
            if events.iter().all(|known| known.vm != vm.label) {
                events.push(PolicyEvents::new(&vm.label, plan.slices, plan.duration_ns));
            }
        }
        Self { events, warmup_ns: plan.warmup_ns }
    }

    /// Whether events are counted.
    pub(crate) fn is_on(&self) -> bool {
        !self.events.is_empty()
    }

    /// Counts what the policy of a vCPU of a VM of this label has just done.
    pub(crate) fn count(&mut self, vm: &str, now: Ns, before: &PolicyStats, after: &PolicyStats) {
        let Some(at) = now.checked_sub(self.warmup_ns) else { return };
        let Some(events) = self.events.iter_mut().find(|e| e.vm == vm) else { return };
        for (event, n) in [
            (PolicyEvent::Boost, after.boosts.saturating_sub(before.boosts)),
            (PolicyEvent::Throttle, after.throttles.saturating_sub(before.throttles)),
            (PolicyEvent::Denied, after.denied.saturating_sub(before.denied)),
        ] {
            (0..n).for_each(|_| events.book(at, event));
        }
    }

    /// The counts, in the order of the plan.
    pub(crate) fn finish(self) -> Vec<PolicyEvents> {
        self.events
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vcoop_testing::rig::builtin;

    #[test]
    fn what_happens_after_the_warm_up_is_counted_in_its_slice() {
        let plan = Plan {
            slices: 2,
            warmup_ns: 100,
            duration_ns: 1_000,
            ..builtin("busy-host-1", &[], &[]).remove(0)
        };
        let label = &plan.vms[0].label;
        let mut counts = EventCounts::new(&plan);
        assert!(counts.is_on());
        let none = PolicyStats::default();
        let two = PolicyStats { boosts: 2, denied: 1, ..none };
        for (now, vm) in [(99, &**label), (200, label), (700, label), (700, "another")] {
            counts.count(vm, now, &none, &two);
        }
        let events = counts.finish();
        let boosts: Vec<u32> = events[0].counts.iter().map(|counts| counts[0]).collect();
        assert_eq!(boosts, [2, 2]);
        assert!(!EventCounts::new(&Plan { slices: 0, ..plan }).is_on());
    }
}
