//! State that vCPUs of a VM share to wait for each other: locks, and how they spin and send IPIs.

use vcoop_model::named;
use vcoop_model::plan::virt::{IpiVirt, SpinLocks, SpinVirt};
use vcoop_model::plan::{HostPlan, HostSched, VmPlan};

use crate::guest::barrier::Barriers;
use crate::guest::lock::Locks;
use crate::guest::sleeping_lock::SleepingLocks;
use crate::queue::Ns;

named! {
    /// Counters of a VM, reported as events a second.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[repr(usize)]
    pub(crate) enum Count {
        IpisIcr = "ipis.icr",
        IpisCluster = "ipis.cluster",
        IpisShorthand = "ipis.shorthand",
        IpisPv = "ipis.pv",
        IpisPosted = "ipis.posted",
        IpisAsked = "ipis.asked",
        Multicasts = "multicasts",
        YieldsTried = "yields.tried",
        YieldsWon = "yields.won",
        HolderPreempted = "lock_holder_preemptions",
        WaiterPreempted = "lock_waiter_preemptions",
        PvHalts = "pv_halts",
        PvKicks = "pv_kicks",
        Shootdowns = "shootdowns",
        ShootdownsDeferred = "shootdowns.deferred",
        LockSleeps = "lock_sleeps",
    }
}

/// Counters of a VM.
pub(crate) type Counts = [u64; Count::COUNT];

/// State shared by the vCPUs of a VM. See the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct VmSync {
    pub(crate) locks: Locks,
    pub(crate) sleeping: SleepingLocks,
    pub(crate) barriers: Barriers,
    pub(crate) ipi: IpiVirt,
    pub(crate) spin: SpinVirt,
    /// PAUSE loops exit.
    pub(crate) ple: bool,
    /// Window of the first such exit, in nanoseconds.
    pub(crate) ple_window_ns: Ns,
    /// No later window is longer.
    pub(crate) ple_max_ns: Ns,
    /// How long a waiter for a paravirtual lock spins.
    pub(crate) pv_threshold_ns: Ns,
    /// Time between two checks of the waiter before it.
    pub(crate) pv_look_ns: Ns,
    /// vCPU (of the VM) that was last yielded to.
    last_boosted: u32,
    counts: Counts,
}

/// KVM's window of PAUSE-loop exiting on this host, the default and the longest. VMX counts cycles, SVM counts PAUSEs.
fn ple_windows(host: &HostPlan) -> (Ns, Ns) {
    if host.cpu.is_some_and(|cpu| cpu.has_svm()) {
        let last = |pauses: u64| (pauses * host.costs.pv_spin_ns / SpinVirt::PV_TURNS).max(1);
        return (last(SpinVirt::PLE_WINDOW_PAUSES), last(SpinVirt::PLE_MAX_PAUSES));
    }
    // Without a frequency, 3 GHz.
    let tsc_khz = host.cpu.map_or(3_000_000, |cpu| u64::from(cpu.tsc_khz));
    (SpinVirt::PLE_WINDOW_CYCLES * 1_000_000 / tsc_khz, SpinVirt::PLE_MAX_NS)
}

impl VmSync {
    pub(crate) fn new(vm: &VmPlan, host: &HostPlan) -> Self {
        let (usual, longest) = ple_windows(host);
        let locks = vm.tasks.iter().filter_map(|task| task.program.locks()).max().unwrap_or(0);
        Self {
            locks: Locks::new(locks),
            sleeping: SleepingLocks::new(locks),
            barriers: Barriers::default(),
            ipi: vm.virt.ipi,
            // KVM takes PV_UNHALT from a guest whose HLT does not exit.
            spin: SpinVirt {
                locks: match vm.virt.spin.locks {
                    SpinLocks::Pv if vm.virt.exits_off.hlt => SpinLocks::TestAndSet,
                    SpinLocks::PvTicket if vm.virt.exits_off.hlt => SpinLocks::Queued,
                    locks => locks,
                },
                ..vm.virt.spin
            },
            // POWER has no such exits.
            ple: !vm.virt.exits_off.pause && !matches!(host.sched, HostSched::Pool(_)),
            ple_window_ns: vm.virt.spin.ple_window_ns.unwrap_or(usual),
            ple_max_ns: longest,
            pv_threshold_ns: vm.virt.spin.threshold_ns.unwrap_or(host.costs.pv_spin_ns),
            pv_look_ns: (host.costs.pv_spin_ns / SpinVirt::PV_LOOKS).max(1),
            last_boosted: 0,
            counts: Counts::default(),
        }
    }

    /// What has been counted so far.
    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// Counts events.
    pub(crate) fn count(&mut self, what: Count, n: u64) {
        self.counts[what as usize] += n;
    }

    /// A vCPU (of the VM) was yielded to.
    pub(crate) fn yielded_to(&mut self, c: u32) {
        self.last_boosted = c;
    }

    /// Candidates for a yield, by number in a VM of `n` vCPUs, beginning with the one after the last that was yielded
    /// to.
    pub(crate) fn candidates(&self, n: u32) -> impl Iterator<Item = u32> + use<> {
        let last = self.last_boosted;
        (1..=n).map(move |i| (last + i) % n)
    }
}

#[cfg(test)]
mod tests {
    use vcoop_testing::rig::builtin;

    use super::*;

    #[test]
    fn vmx_counts_cycles_and_svm_counts_pauses() {
        let windows = |profile: &str| {
            let sets = [&*format!("host.profile={profile}")];
            ple_windows(&builtin("spinlock-overcommit", &["ple"], &sets)[0].host)
        };
        // 4096 cycles at 2.4 GHz.
        assert_eq!(windows("xeon-server"), (1_706, SpinVirt::PLE_MAX_NS));
        // 3000 and 65535 PAUSEs of 27 ns.
        assert_eq!(windows("epyc-server"), (81_207, 1_773_972));
    }
}
