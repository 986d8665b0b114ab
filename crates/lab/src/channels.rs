//! Lines between callers and servers, and how each end is notified.
//!
//! A line with an end in a VM is in that VM's memory; one between two threads of the host is in ours. A notification
//! into a VM is a device interrupt, whoever sends it, with the boost that the policy gives. A notification out of a VM
//! is a port write, which KVM turns into a signal of the receiver's [`EventSignal`] (ioeventfd) without an exit to user
//! space.

use std::sync::Arc;

use vcoop_guest::layout::{LINE_STRIDE, LINES, MAX_DEVICES, MAX_LINES, PORT_CALL, VECTOR_DEVICE};
use vcoop_guest::line::Line;
use vcoop_guest::program::{DeviceSpec, LineSpec};
use vcoop_model::distinct;
use vcoop_model::plan::{Act, Phase, Plan, Program, Target};
use vcoop_policy::Injection;

use crate::common::Common;
use crate::error::Error;
use crate::event_signal::EventSignal;
use crate::lab_vm::LabVm;

/// Where a line is.
#[derive(Clone, Debug)]
enum LinePlace {
    /// Between two threads of the host.
    Ours(Arc<Line>),
    /// In a VM's table.
    Guest(u32, u64),
}

/// How an end is notified.
#[derive(Clone, Debug)]
enum Notification {
    /// A thread of the host.
    EventSignal(Arc<EventSignal>),
    /// A task of a VM: a device interrupt.
    Device { vm: u32, vcpu: u32, vector: u8 },
    /// A task of the other end's VM: its guest notifies it.
    Guest,
}

/// A line of the plan.
#[derive(Clone, Debug)]
pub(crate) struct Channel {
    pub(crate) caller: Target,
    pub(crate) server: Target,
    place: LinePlace,
    tell_caller: Notification,
    tell_server: Notification,
}

/// All lines of a plan.
#[derive(Debug, Default)]
pub(crate) struct Channels {
    pub(crate) wires: Vec<Channel>,
    /// Event signal of each host task; unused by tasks without calls.
    bells: Vec<Arc<EventSignal>>,
    /// By VM.
    pub(crate) guests: Vec<GuestLines>,
}

/// The lines of a VM.
#[derive(Clone, Debug, Default)]
pub(crate) struct GuestLines {
    pub(crate) specs: Vec<LineSpec>,
    /// Devices, numbered after those of the plan, whose interrupts notify tasks.
    pub(crate) devices: Vec<DeviceSpec>,
    /// Server and caller of each line.
    ends: Vec<(Target, Target)>,
}

impl GuestLines {
    /// First line that a task serves, and how many.
    pub(crate) fn served_by(&self, task: Target) -> (u64, u64) {
        let first = self.ends.iter().position(|(server, _)| *server == task).unwrap_or(0);
        let lines = self.ends.iter().filter(|(server, _)| *server == task).count();
        (first as u64, lines as u64)
    }

    /// The line on which a task calls a server.
    pub(crate) fn between(&self, caller: Target, server: Target) -> u64 {
        self.ends.iter().position(|ends| *ends == (server, caller)).unwrap_or(0) as u64
    }
}

fn vm_of(at: Target) -> Option<u32> {
    match at {
        Target::Host(_) => None,
        Target::Guest { vm, .. } => Some(vm),
    }
}

/// vCPU that takes a task's messages.
fn irq_vcpu(program: &Program) -> u32 {
    let of_call = |phase: &Phase| match phase {
        Phase::Call { irq_vcpu, .. } => Some(*irq_vcpu),
        _ => None,
    };
    let vcpu = match program {
        Program::Serve { irq_vcpu, .. } | Program::Ping { irq_vcpu, .. } => Some(*irq_vcpu),
        Program::Cycle { phases } => phases.iter().find_map(of_call),
        Program::Routine { acts } => acts.iter().find_map(|act| match act {
            Act::Do(phase) => of_call(phase),
            _ => None,
        }),
        _ => None,
    };
    vcpu.unwrap_or(0)
}

fn unsupported(plan: &Plan, at: Target, why: String) -> Error {
    let level = vm_of(at).map_or("host", |vm| &plan.vms[vm as usize].name);
    Error::unsupported(format!("task {level}.{}", plan.task(at).name), why)
}

impl Channels {
    /// The lines of a plan.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`]: a call from one VM to another, or more lines or devices than a guest
    /// has room for. [`Error::Kernel`]: no more file descriptors.
    pub(crate) fn new(plan: &Plan) -> Result<Self, Error> {
        let bells: Result<Vec<_>, _> =
            plan.host_tasks.iter().map(|_| EventSignal::new().map(Arc::new)).collect();
        let guests = vec![GuestLines::default(); plan.vms.len()];
        let mut wiring = Self { wires: Vec::new(), bells: bells?, guests };
        let hosts = (0..plan.host_tasks.len()).map(|i| Target::Host(i as u32));
        let inside = (0..).zip(&plan.vms).flat_map(|(vm, plan)| {
            (0..plan.tasks.len()).map(move |t| Target::Guest { vm, task: t as u32 })
        });
        let mut calls = distinct(hosts.chain(inside).flat_map(|caller| {
            plan.task(caller).program.servers().map(move |server| (server, caller))
        }));
        // The lines of a server lie side by side.
        let key = |at: &Target| match *at {
            Target::Host(i) => (0, 0, i),
            Target::Guest { vm, task } => (1, vm, task),
        };
        calls.sort_by_key(|(server, caller)| (key(server), key(caller)));
        for (server, caller) in calls {
            let wire = wiring.wire(plan, caller, server)?;
            wiring.wires.push(wire);
        }
        Ok(wiring)
    }

    fn wire(&mut self, plan: &Plan, caller: Target, server: Target) -> Result<Channel, Error> {
        let (from, to) = (vm_of(caller), vm_of(server));
        let place = match (from, to) {
            (None, None) => LinePlace::Ours(Arc::new(Line::default())),
            (Some(a), Some(b)) if a != b => {
                let why = "a call from one VM to another is made in the simulator only";
                return Err(unsupported(plan, caller, why.to_owned()));
            }
            (Some(vm), _) | (_, Some(vm)) => {
                let lines = &mut self.guests[vm as usize];
                if lines.specs.len() == MAX_LINES {
                    let why = format!("its VM has room for {MAX_LINES} callers and servers");
                    return Err(unsupported(plan, caller, why));
                }
                let end = |at| match at {
                    Target::Guest { task, .. } => u64::from(task) + 1,
                    Target::Host(_) => 0,
                };
                lines.specs.push(LineSpec { caller: end(caller), server: end(server) });
                lines.ends.push((server, caller));
                LinePlace::Guest(vm, lines.specs.len() as u64 - 1)
            }
        };
        let tell_caller = self.tell(plan, caller, to)?;
        let tell_server = self.tell(plan, server, from)?;
        Ok(Channel { caller, server, place, tell_caller, tell_server })
    }

    /// How to notify a task, from a VM or from the host.
    fn tell(&mut self, plan: &Plan, at: Target, from: Option<u32>) -> Result<Notification, Error> {
        let (vm, task_number) = match at {
            Target::Host(i) => {
                return Ok(Notification::EventSignal(Arc::clone(&self.bells[i as usize])));
            }
            Target::Guest { vm, .. } if from == Some(vm) => return Ok(Notification::Guest),
            Target::Guest { vm, task } => (vm, task),
        };
        let vcpu = irq_vcpu(&plan.task(at).program);
        let wakes = u64::from(task_number) + 1;
        let own = plan.vms[vm as usize].devices.len();
        let devices = &mut self.guests[vm as usize].devices;
        let n = devices.iter().position(|d| d.wakes == wakes).unwrap_or_else(|| {
            devices.push(DeviceSpec { wakes, softirq: 0, nmi: 0, vcpu: vcpu.into() });
            devices.len() - 1
        });
        if own + n >= MAX_DEVICES {
            let why = format!("its VM has room for {MAX_DEVICES} devices, one for each such task");
            return Err(unsupported(plan, at, why));
        }
        Ok(Notification::Device { vm, vcpu, vector: VECTOR_DEVICE + (own + n) as u8 })
    }

    /// Has KVM signal host tasks at a VM's port writes. If KVM refuses, the vCPU's thread does it, with an exit to user
    /// space.
    pub(crate) fn connect(&self, vm: u32, driver: &mut LabVm) {
        for wire in &self.wires {
            let LinePlace::Guest(of, line) = wire.place else { continue };
            let bell = match (&wire.tell_caller, &wire.tell_server) {
                (Notification::EventSignal(bell), _) | (_, Notification::EventSignal(bell))
                    if of == vm =>
                {
                    bell
                }
                _ => continue,
            };
            driver.machine.ring_on_write(PORT_CALL, line as u8, bell);
            driver.bells.push((line as u8, Arc::clone(bell)));
        }
    }

    /// The event signal of a host task.
    pub(crate) fn bell(&self, host_task: u32) -> &EventSignal {
        &self.bells[host_task as usize]
    }
}

impl Channel {
    /// The line.
    pub(crate) fn line<'a>(&'a self, vms: &'a [LabVm]) -> &'a Line {
        match &self.place {
            LinePlace::Ours(line) => line,
            LinePlace::Guest(vm, n) => vms[*vm as usize].machine.ram.at(LINES + n * LINE_STRIDE),
        }
    }

    /// Notifies the server of a call; for threads of the host.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub(crate) fn tell_server(&self, common: &Common, vms: &[LabVm]) -> Result<(), Error> {
        tell(&self.tell_server, common, vms)
    }

    /// Notifies the caller of an answer; for threads of the host.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub(crate) fn tell_caller(&self, common: &Common, vms: &[LabVm]) -> Result<(), Error> {
        tell(&self.tell_caller, common, vms)
    }
}

fn tell(how: &Notification, common: &Common, vms: &[LabVm]) -> Result<(), Error> {
    match how {
        Notification::EventSignal(bell) => bell.ring(),
        Notification::Device { vm, vcpu, vector } => {
            vms[*vm as usize].inject(common, *vcpu, Injection::Device, *vector)?;
        }
        Notification::Guest => {}
    }
    Ok(())
}
