//! Idle pCPUs: idle states and their governor.

use crate::attribution::track::State;
use crate::clock::Event;
use crate::machine::{Irq, Segment};
use crate::queue::Ns;
use crate::world::World;

impl World<'_> {
    /// Nothing to run.
    pub(crate) fn idle(&mut self, p: u32) {
        self.ticks.stop(p, &mut self.clock);
        self.tracks.idles(p, self.clock.now());
        let pc = &mut self.pcpus[p as usize];
        pc.segment = Segment::Idle;
        pc.since = self.clock.now();
        self.sibling_turns(p);
        if self.spans.is_on() {
            self.span_begin(p);
        }
    }

    /// An interrupt or a write wakes an idle pCPU: it leaves the idle state that its governor had chosen.
    pub(crate) fn leave_idle(&mut self, p: u32, by_timer: bool) {
        let since = self.pcpus[p as usize].since;
        let slept = self.clock.now() - since;
        let mut governor = self.pcpus[p as usize].idle_governor;
        let mut expected = governor.was_idle(slept, || match by_timer {
            true => Some(slept),
            false => self.next_timer(p).map(|at| at - since),
        });
        let pc = &mut self.pcpus[p as usize];
        pc.idle_ns += slept;
        pc.idle_governor = governor;
        // A core is in no deeper state than any of its threads.
        if self.smt.siblings(p).any(|q| self.is_busy(q)) {
            expected = 0;
        }
        let ns = self.costs.idle_exit(expected);
        self.begin(p, Segment::CState, ns);
    }

    /// The next timer of a pCPU, among those of its threads, vCPUs and policies.
    fn next_timer(&self, p: u32) -> Option<Ns> {
        let threads = (0..).zip(&self.threads).filter(|(_, thread)| thread.last_cpu == p);
        let vcpus = (0..).zip(&self.vcpus).filter(|(_, vcpu)| vcpu.home == p);
        let sleeps = threads.filter_map(|(t, _)| self.clock.due(Event::Sleep(t)));
        let of_vcpus = vcpus.flat_map(|(v, vcpu)| {
            let away = self.vms[vcpu.vm as usize].virt.away();
            let lapic = if away { None } else { self.clock.due(Event::Lapic(v)) };
            [lapic, self.clock.due(Event::Policy(v))]
        });
        sleeps.chain(of_vcpus.flatten()).min()
    }

    /// The idle state has been left: what waited for that now waits for the handler.
    pub(crate) fn awake(&mut self, p: u32) {
        let pc = &mut self.pcpus[p as usize];
        pc.idle_ns += self.clock.now() - pc.since;
        self.take_woken(p);
        let waking = self.pcpus[p as usize].waking;
        if self.tracks.is(waking, State::IdleExit) {
            self.tracks.set(waking, State::HostIrq, self.clock.now());
        }
        for irq in self.pcpus[p as usize].irqs.iter() {
            let track = match irq {
                Irq::Lapic(v) => self.vcpus[v as usize].track,
                Irq::Sleep(t) => self.threads[t as usize].track,
                _ => continue,
            };
            if self.tracks.is(track, State::IdleExit) {
                self.tracks.set(track, State::HostIrq, self.clock.now());
            }
        }
    }
}
