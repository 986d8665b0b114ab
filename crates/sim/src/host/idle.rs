//! The pCPU at rest: idle states and their governor.

use crate::attribution::track::State;
use crate::machine::{Irq, Segment};
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

    /// An interrupt finds the pCPU idle: it leaves the idle state its governor had chosen.
    pub(crate) fn leave_idle(&mut self, p: u32) {
        let pc = &mut self.pcpus[p as usize];
        let slept = self.clock.now() - pc.since;
        let expected = pc.idle_times.typical_or(slept);
        pc.idle_ns += slept;
        pc.idle_times.add(slept);
        let ns = self.costs.idle_exit(expected);
        self.begin(p, Segment::CState, ns);
    }

    /// Out of the idle state: what waited for that now waits for the handler.
    pub(crate) fn awake(&mut self, p: u32) {
        let pc = &mut self.pcpus[p as usize];
        pc.idle_ns += self.clock.now() - pc.since;
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
