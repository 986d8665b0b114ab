//! The event loop of a run.

use crate::clock::Event;
use crate::machine::Irq;
use crate::result::Totals;
use crate::world::World;

impl World<'_> {
    /// Runs to the end of the plan. Returns the counters at the end of the warm-up and at the end. `stop` is called now
    /// and then: true ends the run early.
    pub(crate) fn run(&mut self, stop: &dyn Fn() -> bool) -> (Totals, Totals) {
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
                Event::Ipi(p) => self.ipi_arrives(p),
                Event::Posted(v) => self.posted_arrives(v),
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
}
