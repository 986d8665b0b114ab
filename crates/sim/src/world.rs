//! The state of a run.
//!
//! A part that needs only the clock, its own state and its arguments is its own type, with private fields: [`Clock`],
//! [`HostTicks`], [`Calls`], [`PreferredVcpus`], [`Tracks`] and the others. Work on several parts (an interrupt that
//! preempts a vCPU, a message that wakes a task) is a method of [`World`], in the file of its subject.

use vcoop_model::plan::Plan;
use vcoop_model::profile::CostKey;
use vcoop_policy::govern::GovernorDriver;
use vcoop_sched::{CpuId, EntId};

use crate::attribution::probe::Probes;
use crate::attribution::track::{State, Tracks};
use crate::clock::Clock;
use crate::host::devices::DeviceLines;
use crate::host::host_ticks::HostTicks;
use crate::host::scheduler::Scheduler;
use crate::host::smt::Smt;
use crate::interrupts::devices::Devices;
use crate::machine::{Pcpu, Thread, Vcpu, Vm};
use crate::messages::call::Calls;
use crate::messages::mailbox::Mailboxes;
use crate::observe::spans::Spans;
use crate::policy_driver::event_counts::EventCounts;
use crate::policy_driver::page_checks::PageChecks;
use crate::policy_driver::preferred::PreferredVcpus;
use crate::price::Prices;
use crate::queue::Ns;
use crate::xen::intervals::Views;
use crate::xen::ratelimit_driver::RatelimitDriver;
use crate::xen::storm::Storms;

/// The machine and the parts that work on it. See the [module](self).
#[derive(Debug)]
pub(crate) struct World<'p> {
    pub(crate) plan: &'p Plan,
    pub(crate) costs: Prices,
    pub(crate) clock: Clock,

    // The machine: what runs on what.
    pub(crate) host: Scheduler,
    pub(crate) pcpus: Vec<Pcpu>,
    pub(crate) threads: Vec<Thread>,
    pub(crate) vcpus: Vec<Vcpu>,
    pub(crate) vms: Vec<Vm>,
    /// The pCPU that executes the present event, and pays for it.
    pub(crate) cpu: u32,
    pub(crate) ticks: HostTicks,
    pub(crate) smt: Smt,
    /// Devices of the host, and of VMs.
    pub(crate) lines: DeviceLines<'p>,
    pub(crate) devices: Devices<'p>,

    // Messages.
    pub(crate) calls: Calls,
    pub(crate) mail: Mailboxes,

    // Policies; those of a vCPU are with the vCPU.
    /// Governor of each VM.
    pub(crate) governors: Vec<Option<GovernorDriver>>,
    /// Weight of each VM, for governors.
    pub(crate) weights: Vec<Option<u64>>,
    pub(crate) preferred: PreferredVcpus<'p>,
    pub(crate) next_timeline: usize,
    pub(crate) page_checks: PageChecks,
    /// Counts over time, if the plan asks for them.
    pub(crate) event_counts: EventCounts,

    // Measurements and traces.
    pub(crate) tracks: Tracks,
    pub(crate) probes: Probes,
    pub(crate) spans: Spans<'p>,
    /// Fault of a guest that ends the run.
    pub(crate) fault: Option<String>,

    // The Xen study.
    /// Sets ratelimits, under the policy that does.
    pub(crate) ratelimits: Option<RatelimitDriver>,
    pub(crate) storms: Storms<'p>,
    pub(crate) views: Views,
}

impl World<'_> {
    /// The executing pCPU pays for more work before it does anything else.
    #[inline]
    pub(crate) fn pay(&mut self, ns: Ns) {
        self.pcpus[self.cpu as usize].extra += ns;
    }

    /// The executing pCPU pays for a mechanism.
    #[inline]
    pub(crate) fn pay_for(&mut self, key: CostKey) {
        let ns = self.costs.of(key);
        self.pay(ns);
    }

    /// Changes a thread's attribution state, if it is tracked.
    #[inline(always)]
    pub(crate) fn state(&mut self, track: u32, state: State) {
        self.tracks.set(track, state, self.clock.now());
    }

    /// Charges all running threads up to now.
    pub(crate) fn charge_all(&mut self) {
        for p in 0..self.pcpus.len() as u32 {
            self.host.charge(self.clock.now(), CpuId(p));
        }
        self.host_notes();
    }

    pub(crate) fn thread_of(&self, v: u32) -> EntId {
        EntId(self.vcpus[v as usize].thread)
    }
}
