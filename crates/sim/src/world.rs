//! The state of a run, and the loop that takes it from event to event.

use vcoop_abi::conformance::Watch;
use vcoop_model::plan::Plan;
use vcoop_model::profile::Costs;
use vcoop_model::recording::{InUse, PolicyEvents};
use vcoop_policy::govern::GovernorDriver;
use vcoop_sched::{CpuId, CpuSet, EntId, Scheduler};

use crate::attribution::probe::Probe;
use crate::attribution::track::{NONE, State, Tracks};
use crate::guest::halt_times::HaltTimes;
use crate::host::devices::DeviceLines;
use crate::machine::{Irq, Pcpu, Thread, Ticks, Vcpu, Vm};
use crate::messages::call::Calls;
use crate::messages::mailbox::Mailbox;
use crate::observe::Spans;
use crate::policy_driver::preferred::PreferredMask;
use crate::queue::{EventQueue, Ns};
use crate::xen::intervals::Views;
use crate::xen::ratelimit_driver::RatelimitDriver;
use crate::xen::storm::Storms;

/// More events than this at one moment are a defect of the model, not a scenario.
const STANDSTILL: u64 = 1 << 20;

/// What a slot of the event queue stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Slot {
    Segment(u32),
    Irq(u32, Irq),
    Lapic(u32),
    Sleep(u32),
    Boost(u32),
    Device(u32),
    Remote(u32),
    Storm(u32),
    Line(u32),
    Tune,
    Accounts,
    Govern(u32),
    Plug(u32),
    Timeline,
    View(u32),
    End,
}

/// First slot of each kind.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slots {
    pub(crate) segment: u32,
    pub(crate) tick: u32,
    pub(crate) ipi: u32,
    pub(crate) sched: u32,
    pub(crate) lapic: u32,
    pub(crate) boost: u32,
    pub(crate) sleep: u32,
    pub(crate) device: u32,
    pub(crate) remote: u32,
    pub(crate) storm: u32,
    pub(crate) line: u32,
    pub(crate) tune: u32,
    pub(crate) accounts: u32,
    pub(crate) govern: u32,
    pub(crate) plug: u32,
    pub(crate) timeline: u32,
    pub(crate) view: u32,
    pub(crate) end: u32,
}

/// Everything. See the [module](self).
#[derive(Debug)]
pub(crate) struct World<'p> {
    pub(crate) plan: &'p Plan,
    pub(crate) costs: &'p Costs,
    pub(crate) now: Ns,
    pub(crate) queue: EventQueue,
    pub(crate) slots: Slots,
    pub(crate) kinds: Box<[Slot]>,
    pub(crate) events: u64,
    pub(crate) host: Scheduler,
    pub(crate) pcpus: Vec<Pcpu>,
    pub(crate) threads: Vec<Thread>,
    pub(crate) vcpus: Vec<Vcpu>,
    pub(crate) vms: Vec<Vm>,
    /// (VM, index in its plan) of each device.
    pub(crate) devices: Vec<(u32, u32)>,
    pub(crate) device_streams: Vec<vcoop_model::rng::Stream>,
    pub(crate) calls: Calls,
    pub(crate) mail: Vec<Mailbox>,
    pub(crate) storms: Storms,
    pub(crate) views: Views,
    pub(crate) tracks: Tracks,
    pub(crate) probes: Vec<Probe>,
    pub(crate) labels: Vec<String>,
    pub(crate) ticks: Ticks,
    /// pCPU that fires exitless and posted timers; [`NONE`]: the one where the vCPU ran last.
    pub(crate) housekeeping: u32,
    /// Speed of work beside a busy sibling, in millionths; 0: siblings do not matter.
    pub(crate) smt_ppm: u32,
    /// Full-nohz pCPUs, and whether there are any.
    pub(crate) nohz: CpuSet,
    pub(crate) has_nohz: bool,
    pub(crate) lines: DeviceLines,
    /// The pCPU that executes what happens now, and pays for it.
    pub(crate) cpu: u32,
    pub(crate) next_timeline: usize,
    /// Sets ratelimits, if the policy is that.
    pub(crate) tuner: Option<RatelimitDriver>,
    /// Counts by time, where the plan asks for them.
    pub(crate) policy_events: Vec<PolicyEvents>,
    pub(crate) in_use: Vec<InUse>,
    /// Of each VM for which the host polls: its halts.
    pub(crate) halts: Vec<Option<HaltTimes>>,
    /// Of each VM: what decides how many vCPUs it uses, and how many it does.
    pub(crate) governors: Vec<Option<GovernorDriver>>,
    pub(crate) masks: Vec<PreferredMask>,
    /// Who watches.
    pub(crate) spans: Spans<'p>,
    /// What a guest did that ends the run.
    pub(crate) fault: Option<String>,
    /// Checkers of the vCPUs' pages; none: nobody checks.
    pub(crate) watched: Vec<Option<Watch>>,
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
        let mut moved = 0;
        self.queue.set(self.slots.end, warmup);
        if let Some(first) = self.plan.timeline.first() {
            self.queue.set(self.slots.timeline, first.at_ns);
        }
        while let Some((time, slot)) = self.queue.pop() {
            debug_assert!(time >= self.now, "time went back");
            if time >= self.spans.turns && self.span_turns(time) {
                break;
            }
            if time > self.now {
                self.now = time;
                moved = self.events;
            }
            self.events += 1;
            assert!(
                self.events - moved < STANDSTILL,
                "the model stands still at {} ns: {STANDSTILL} events at one moment",
                self.now
            );
            if self.events & 0xffff == 0 && stop() {
                break;
            }
            match self.kinds[slot as usize] {
                Slot::Segment(p) => self.segment_ends(p),
                Slot::Irq(p, irq) => self.interrupt(p, irq),
                Slot::Lapic(v) => self.lapic_expires(v),
                Slot::Sleep(t) => self.sleep_expires(t),
                Slot::Boost(v) => self.interrupt(self.vcpus[v as usize].home, Irq::Boost(v)),
                Slot::Device(d) => self.device_fires(d),
                Slot::Remote(r) => self.remote_answers(r),
                Slot::Storm(s) => self.storm_asks(s),
                Slot::Line(l) => self.line_fires(l),
                Slot::Tune => self.tune_due(),
                Slot::Accounts => self.accounts_due(),
                Slot::Govern(vm) => self.govern_due(vm),
                Slot::Plug(vm) => self.plug(vm),
                Slot::Timeline => self.timeline(),
                Slot::View(i) => self.view_turns(i),
                Slot::End if start.is_none() => {
                    start = Some(self.totals());
                    self.queue.set(self.slots.end, warmup + self.plan.duration_ns);
                }
                Slot::End => break,
            }
            if self.fault.is_some() {
                break;
            }
        }
        self.span_ends();
        let end = self.totals();
        (start.unwrap_or_else(|| end.clone()), end)
    }

    fn timeline(&mut self) {
        let plan = self.plan;
        while let Some(event) = plan.timeline.get(self.next_timeline) {
            if event.at_ns > self.now {
                self.queue.set(self.slots.timeline, event.at_ns);
                return;
            }
            self.next_timeline += 1;
            self.apply_timeline(&event.action);
            if self.pcpus[self.cpu as usize].resched {
                self.interrupt(self.cpu, Irq::Ipi);
            }
        }
    }

    /// Time each label had on a pCPU, up to now.
    pub(crate) fn charge_ran(&mut self, p: u32) {
        if self.tracks.is_empty() {
            // Nobody will ask. The table is as large as pCPUs times labels: it is left alone.
            return;
        }
        let pc = &mut self.pcpus[p as usize];
        pc.ran[pc.ran_label as usize] += self.now - pc.ran_since;
        pc.ran_since = self.now;
    }

    /// Changes a thread's attribution state, if it is tracked.
    #[inline(always)]
    pub(crate) fn state(&mut self, track: u32, state: State) {
        if track != NONE {
            self.tracks.set(track, state, self.now);
        }
    }

    /// What runs has run until now: brings every thread's time up to date.
    pub(crate) fn charge_all(&mut self) {
        for p in 0..self.pcpus.len() as u32 {
            self.host.charge(self.now, CpuId(p));
        }
        self.host_notes();
    }

    pub(crate) fn thread_of(&self, v: u32) -> EntId {
        EntId(self.vcpus[v as usize].thread)
    }
}

/// How many there are of each entity that has slots.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entities {
    pub(crate) pcpus: u32,
    pub(crate) vcpus: u32,
    pub(crate) threads: u32,
    pub(crate) vms: u32,
    pub(crate) devices: u32,
    pub(crate) remotes: u32,
    pub(crate) storms: u32,
    pub(crate) lines: u32,
    pub(crate) views: u32,
}

/// Names every slot, in the order of [`Slots`].
pub(crate) fn number(n: Entities) -> (Slots, Box<[Slot]>) {
    let mut kinds = Vec::new();
    let slots = Slots {
        segment: extend(&mut kinds, n.pcpus, Slot::Segment),
        tick: extend(&mut kinds, n.pcpus, |p| Slot::Irq(p, Irq::Tick)),
        ipi: extend(&mut kinds, n.pcpus, |p| Slot::Irq(p, Irq::Ipi)),
        sched: extend(&mut kinds, n.pcpus, |p| Slot::Irq(p, Irq::Sched)),
        lapic: extend(&mut kinds, n.vcpus, Slot::Lapic),
        boost: extend(&mut kinds, n.vcpus, Slot::Boost),
        sleep: extend(&mut kinds, n.threads, Slot::Sleep),
        device: extend(&mut kinds, n.devices, Slot::Device),
        remote: extend(&mut kinds, n.remotes, Slot::Remote),
        storm: extend(&mut kinds, n.storms, Slot::Storm),
        line: extend(&mut kinds, n.lines, Slot::Line),
        tune: extend(&mut kinds, 1, |_| Slot::Tune),
        accounts: extend(&mut kinds, 1, |_| Slot::Accounts),
        govern: extend(&mut kinds, n.vms, Slot::Govern),
        plug: extend(&mut kinds, n.vms, Slot::Plug),
        timeline: extend(&mut kinds, 1, |_| Slot::Timeline),
        view: extend(&mut kinds, n.views, Slot::View),
        end: extend(&mut kinds, 1, |_| Slot::End),
    };
    (slots, kinds.into())
}

fn extend(kinds: &mut Vec<Slot>, n: u32, f: impl Fn(u32) -> Slot) -> u32 {
    let first = kinds.len() as u32;
    kinds.extend((0..n).map(f));
    first
}
