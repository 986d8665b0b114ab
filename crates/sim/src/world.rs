//! The state of a run, and the loop that takes it from event to event.
//!
//! A part that needs only the clock, its own state and what it is told is a type of its own, with private fields:
//! [`Clock`], [`HostTicks`], [`Calls`], [`PreferredVcpus`], [`Tracks`] and the others. What touches several of them (an
//! interrupt that preempts a vCPU, a message that wakes a task) is a method of [`World`], in the file of its subject.

use vcoop_model::plan::Plan;
use vcoop_model::profile::CostKey;
use vcoop_policy::govern::GovernorDriver;
use vcoop_sched::{CpuId, EntId};

use crate::attribution::probe::Probes;
use crate::attribution::track::{State, Tracks};
use crate::clock::{Clock, Event};
use crate::host::devices::DeviceLines;
use crate::host::nohz::HostTicks;
use crate::host::scheduler::Scheduler;
use crate::host::smt::Smt;
use crate::interrupts::devices::Devices;
use crate::machine::{Irq, Pcpu, Thread, Vcpu, Vm};
use crate::messages::call::Calls;
use crate::messages::mailbox::Mailboxes;
use crate::observe::Spans;
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
    /// The pCPU that executes what happens now, and pays for it.
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
    /// Of each VM: what decides how many vCPUs it uses.
    pub(crate) governors: Vec<Option<GovernorDriver>>,
    pub(crate) preferred: PreferredVcpus<'p>,
    pub(crate) next_timeline: usize,
    pub(crate) page_checks: PageChecks,
    /// Counts by time, where the plan asks for them.
    pub(crate) event_counts: EventCounts,

    // What is measured and told.
    pub(crate) tracks: Tracks,
    pub(crate) probes: Probes,
    pub(crate) spans: Spans<'p>,
    /// What a guest did that ends the run.
    pub(crate) fault: Option<String>,

    // The Xen study.
    /// Sets ratelimits, if the policy is that.
    pub(crate) ratelimits: Option<RatelimitDriver>,
    pub(crate) storms: Storms<'p>,
    pub(crate) views: Views,
}

impl World<'_> {
    /// Runs to the end of the plan; the snapshot taken when the warm-up ends and the one at the
    /// end. `stop` is asked now and then: true ends the run early.
    pub(crate) fn run(
        &mut self,
        stop: &dyn Fn() -> bool,
    ) -> (crate::result::Totals, crate::result::Totals) {
        let warmup = self.plan.warmup_ns;
        let mut start = None;
        self.clock.set(Event::End, warmup);
        if let Some(first) = self.plan.timeline.first() {
            self.clock.set(Event::Timeline, first.at_ns);
        }
        while let Some((time, event)) = self.clock.next() {
            if self.spans.is_due(time) && self.span_turns(time) {
                break;
            }
            self.clock.advance(time);
            if self.clock.events() & 0xffff == 0 && stop() {
                break;
            }
            match event {
                Event::Segment(p) => self.segment_ends(p),
                Event::Tick(p) => self.interrupt(p, Irq::Tick),
                Event::Ipi(p) => self.interrupt(p, Irq::Ipi),
                Event::Sched(p) => self.interrupt(p, Irq::Sched),
                Event::Lapic(v) => self.lapic_expires(v),
                Event::Policy(v) => self.interrupt(self.vcpus[v as usize].home, Irq::Boost(v)),
                Event::Sleep(t) => self.sleep_expires(t),
                Event::Device(d) => self.device_fires(d),
                Event::Remote(r) => self.remote_answers(r),
                Event::Storm(s) => self.storm_asks(s),
                Event::HostDevice(l) => {
                    let p = self.lines.fires(l, &mut self.clock);
                    self.interrupt(p, Irq::Host(l));
                }
                Event::Ratelimit => self.ratelimit_due(),
                Event::Accounts => self.accounts_due(),
                Event::Govern(vm) => self.govern_due(vm),
                Event::Hotplug(vm) => self.hotplug_step(vm),
                Event::Timeline => self.timeline(),
                Event::Interval(i) => self.view_turns(i),
                Event::End if start.is_none() => {
                    start = Some(self.totals());
                    self.clock.set(Event::End, warmup + self.plan.duration_ns);
                }
                Event::End => break,
            }
            if self.fault.is_some() {
                break;
            }
        }
        self.spans.end(self.clock.now());
        let end = self.totals();
        (start.unwrap_or_else(|| end.clone()), end)
    }

    fn timeline(&mut self) {
        let plan = self.plan;
        while let Some(event) = plan.timeline.get(self.next_timeline) {
            if event.at_ns > self.clock.now() {
                self.clock.set(Event::Timeline, event.at_ns);
                return;
            }
            self.next_timeline += 1;
            self.apply_timeline(&event.action);
            if self.pcpus[self.cpu as usize].resched {
                self.interrupt(self.cpu, Irq::Ipi);
            }
        }
    }

    /// The pCPU that executes pays for more work before it does anything else.
    #[inline]
    pub(crate) fn pay(&mut self, ns: Ns) {
        self.pcpus[self.cpu as usize].extra += ns;
    }

    /// It pays for a mechanism.
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

    /// What runs has run until now: brings every thread's time up to date.
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
