//! Interrupts of host devices that concern no VM: network cards, disks.
//!
//! Each pCPU of a device has its own line, with its own stream of draws.

use vcoop_model::plan::{InterruptPlan, Plan};
use vcoop_model::rng::Stream;

use crate::clock::{Clock, Event};
use crate::queue::Ns;

/// The interrupts of a device at a pCPU.
#[derive(Clone, Debug)]
struct Line<'p> {
    plan: &'p InterruptPlan,
    cpu: u32,
    stream: Stream,
    /// Interrupts taken, and the time of their handlers.
    taken: u64,
    took: Ns,
}

/// All lines, those of a device adjacent.
#[derive(Clone, Debug)]
pub(crate) struct DeviceLines<'p>(Vec<Line<'p>>);

impl<'p> DeviceLines<'p> {
    pub(crate) fn new(plan: &'p Plan, seed: u64) -> Self {
        let mut lines = Vec::new();
        for (device, plan) in plan.host.interrupts.iter().enumerate() {
            for &cpu in &plan.cpus {
                let stream = Stream::interrupt(seed, device, cpu);
                lines.push(Line { plan, cpu, stream, taken: 0, took: 0 });
            }
        }
        Self(lines)
    }

    /// Number of lines.
    pub(crate) fn len(&self) -> u32 {
        self.0.len() as u32
    }

    /// Schedules the first interrupt of each line. Devices with a constant period are out of phase.
    pub(crate) fn start(&mut self, clock: &mut Clock) {
        for (i, line) in (0..).zip(&mut self.0) {
            let period = line.stream.draw(&line.plan.period);
            clock.set(Event::HostDevice(i), line.stream.below(period.max(1)));
        }
    }

    /// A line interrupts its pCPU, and will again. Returns the pCPU.
    pub(crate) fn fires(&mut self, i: u32, clock: &mut Clock) -> u32 {
        let line = &mut self.0[i as usize];
        let wait = line.stream.draw(&line.plan.period);
        clock.set(Event::HostDevice(i), clock.now() + wait.max(1));
        line.cpu
    }

    /// The interrupt is taken. Returns how long its handler takes.
    pub(crate) fn takes(&mut self, i: u32) -> Ns {
        let line = &mut self.0[i as usize];
        let ns = line.stream.draw(&line.plan.work);
        line.taken += 1;
        line.took += ns;
        ns
    }

    /// Interrupts taken so far and the time of their handlers, by device.
    pub(crate) fn totals(&self, plan: &Plan) -> Vec<(u64, Ns)> {
        let mut lines = self.0.iter();
        let of = |device: &InterruptPlan| {
            let own = lines.by_ref().take(device.cpus.len());
            own.fold((0, 0), |(n, ns), line| (n + line.taken, ns + line.took))
        };
        plan.host.interrupts.iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use vcoop_model::plan::Dist;

    use super::*;
    use crate::clock::Entities;
    use vcoop_testing::rig::builtin;

    #[test]
    fn every_line_fires_on_its_pcpu_and_is_counted_for_its_device() {
        let mut plan = builtin("busy-host-1", &[], &[]).remove(0);
        let device = |name: &str, work, cpus: &[u32]| InterruptPlan {
            name: name.into(),
            period: Dist::Const(1_000),
            work: Dist::Const(work),
            cpus: cpus.into(),
        };
        plan.host.interrupts = vec![device("nic", 30, &[0, 2]), device("disk", 50, &[1])];
        let mut lines = DeviceLines::new(&plan, 1);
        let n = Entities { pcpus: 3, lines: lines.len(), ..Entities::default() };
        let mut clock = Clock::new(&n);
        lines.start(&mut clock);
        let mut fired = [0; 3];
        while let Some((at, Event::HostDevice(line))) = clock.next().filter(|next| next.0 < 10_000)
        {
            clock.advance(at);
            fired[lines.fires(line, &mut clock) as usize] += 1;
            lines.takes(line);
        }
        assert_eq!(fired, [10; 3]);
        assert_eq!(lines.totals(&plan), [(20, 600), (10, 500)]);
    }
}
