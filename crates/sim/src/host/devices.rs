//! Interrupts of the host that serve nobody here: network cards, disks.
//!
//! Each pCPU of a device has a line of its own, with its own stream of draws.

use vcoop_model::plan::{InterruptPlan, Plan};
use vcoop_model::rng::Stream;

use crate::clock::Event;
use crate::machine::Irq;
use crate::queue::Ns;
use crate::world::World;

/// The interrupts of a device at a pCPU.
#[derive(Clone, Debug)]
struct Line {
    device: u32,
    cpu: u32,
    stream: Stream,
    /// Interrupts taken, and the time of their handlers.
    taken: u64,
    took: Ns,
}

/// All of them.
#[derive(Clone, Debug)]
pub(crate) struct DeviceLines(Vec<Line>);

impl DeviceLines {
    pub(crate) fn new(plan: &Plan, seed: u64) -> Self {
        let devices = (0..).zip(&plan.host.interrupts);
        let line = |(device, cpu): (u32, u32)| Line {
            device,
            cpu,
            stream: Stream::interrupt(seed, device as usize, cpu),
            taken: 0,
            took: 0,
        };
        let of = |(device, plan): (u32, &InterruptPlan)| {
            plan.cpus.clone().into_iter().map(move |cpu| (device, cpu))
        };
        Self(devices.flat_map(of).map(line).collect())
    }

    /// How many there are.
    pub(crate) fn len(&self) -> u32 {
        self.0.len() as u32
    }

    /// When each interrupts first. Devices with an even period are out of step.
    pub(crate) fn first(&mut self, plan: &Plan) -> Vec<Ns> {
        let first = |line: &mut Line| {
            let period = line.stream.draw(&plan.host.interrupts[line.device as usize].period);
            line.stream.below(period.max(1))
        };
        self.0.iter_mut().map(first).collect()
    }

    /// Interrupts taken so far and the time of their handlers, by device.
    pub(crate) fn totals(&self, plan: &Plan) -> Vec<(u64, Ns)> {
        let mut all = vec![(0, 0); plan.host.interrupts.len()];
        for line in &self.0 {
            let (taken, took) = &mut all[line.device as usize];
            *taken += line.taken;
            *took += line.took;
        }
        all
    }
}

impl World<'_> {
    /// A device of the host interrupts a pCPU.
    pub(crate) fn line_fires(&mut self, line: u32) {
        let Line { device, cpu, stream, .. } = &mut self.lines.0[line as usize];
        let wait = stream.draw(&self.plan.host.interrupts[*device as usize].period);
        let cpu = *cpu;
        self.clock.set(Event::HostDevice(line), self.clock.now() + wait.max(1));
        self.interrupt(cpu, Irq::Host(line));
    }

    /// How long its handler takes.
    pub(crate) fn line_takes(&mut self, line: u32) -> Ns {
        let Line { device, stream, taken, took, .. } = &mut self.lines.0[line as usize];
        let ns = stream.draw(&self.plan.host.interrupts[*device as usize].work);
        *taken += 1;
        *took += ns;
        ns
    }
}
