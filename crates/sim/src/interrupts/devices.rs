//! Devices of VMs: each interrupts one vCPU of its VM, at its own times.

use vcoop_model::plan::DevicePlan;
use vcoop_model::rng::Stream;

use crate::clock::{Clock, Event};
use crate::queue::Ns;

#[derive(Clone, Debug)]
struct Device<'p> {
    plan: &'p DevicePlan,
    vm: u32,
    /// The first vCPU of its VM.
    first: u32,
    stream: Stream,
}

/// All devices, numbered over all VMs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Devices<'p>(Vec<Device<'p>>);

impl<'p> Devices<'p> {
    /// Adds a device of a VM whose first vCPU is `first`.
    pub(crate) fn add(&mut self, plan: &'p DevicePlan, vm: u32, first: u32, seed: u64) {
        let stream = Stream::device(seed, self.0.len());
        self.0.push(Device { plan, vm, first, stream });
    }

    /// Starts the devices of a VM.
    pub(crate) fn start(&mut self, vm: u32, clock: &mut Clock) {
        for (d, device) in (0..).zip(&mut self.0).filter(|(_, device)| device.vm == vm) {
            let wait = device.stream.draw(&device.plan.period);
            clock.set(Event::Device(d), clock.now() + wait);
        }
    }

    /// A device fires, and is set for the next time; returns the vCPU that it interrupts.
    pub(crate) fn fires(&mut self, d: u32, clock: &mut Clock) -> u32 {
        let device = &mut self.0[d as usize];
        let wait = device.stream.draw(&device.plan.period);
        clock.set(Event::Device(d), clock.now() + wait.max(1));
        device.first + device.plan.vcpu
    }

    /// The vCPU that a device interrupts, and whether by an NMI.
    pub(crate) fn target(&self, d: u32) -> (u32, bool) {
        let device = &self.0[d as usize];
        (device.first + device.plan.vcpu, device.plan.nmi)
    }

    /// Time of the softirq half of an interrupt; 0: it has none.
    pub(crate) fn softirq_takes(&mut self, d: u32) -> Ns {
        let device = &mut self.0[d as usize];
        device.stream.draw(&device.plan.softirq)
    }

    /// The VM and the task that wait for a device.
    pub(crate) fn wakes(&self, d: u32) -> Option<(u32, u32)> {
        let device = &self.0[d as usize];
        Some((device.vm, device.plan.wakes?))
    }
}

#[cfg(test)]
mod tests {
    use vcoop_model::plan::Dist;

    use super::*;
    use crate::clock::Entities;

    #[test]
    fn a_device_fires_at_its_period_from_when_its_vm_starts() {
        let plan = DevicePlan {
            name: "net".into(),
            period: Dist::Const(500),
            vcpu: 1,
            nmi: true,
            softirq: Dist::Const(20),
            wakes: Some(3),
        };
        let mut clock = Clock::new(&Entities { pcpus: 1, devices: 2, ..Entities::default() });
        let mut devices = Devices::default();
        devices.add(&plan, 0, 0, 7);
        devices.add(&plan, 1, 4, 7);
        clock.pass(100);
        devices.start(1, &mut clock);
        for at in [600, 1_100] {
            assert_eq!(clock.next(), Some((at, Event::Device(1))));
            clock.advance(at);
            assert_eq!(devices.fires(1, &mut clock), 5);
        }
        assert_eq!(devices.target(1), (5, true));
        assert_eq!((devices.softirq_takes(1), devices.wakes(1)), (20, Some((1, 3))));
    }
}
