//! The rows of a trace: their numbers, their names and who is below whom.

use std::io::Write;

use vcoop_model::trace_event::{ThreadId, ThreadNames};

use super::packets::Packets;
use super::schema::counter_descriptor::Unit;
use super::schema::process_tree::{Process, Thread};
use super::schema::trace_packet::Data;
use super::schema::{
    CounterDescriptor, ProcessDescriptor, ProcessTree, ThreadDescriptor, TrackDescriptor,
};

/// A row's number says what it is: the kind above bit 40, below it the entity.
const KIND: u32 = 40;
const PROCESS: u64 = 1;
const THREAD: u64 = 2;
const PCPU: u64 = 3;
const THROTTLE: u64 = 4;
const QUEUE: u64 = 5;
const TASK: u64 = 6;
const BOOST: u64 = 7;
const BUDGET: u64 = 8;
const STEAL: u64 = 9;
const SAMPLES: u64 = 10;
const WIDTH: u64 = 11;
const MASK: u64 = 12;

/// Process of the host's own threads; 0 is the idle loop of every CPU.
const HOST: i32 = 1;

/// Names and numbers of everybody in a trace.
#[derive(Clone, Debug, Default)]
pub(super) struct Tracks {
    names: ThreadNames,
    /// Thread ids as the trace has them.
    tids: Vec<i32>,
    /// Process ids of VMs.
    pids: Vec<i32>,
}

fn number(kind: u64, entity: u64) -> u64 {
    kind << KIND | entity
}

impl Tracks {
    /// Threads are numbered in the order of the names, each VM's process before its vCPUs.
    pub(super) fn new(names: &ThreadNames) -> Self {
        let mut next = HOST;
        let (mut tids, mut pids) = (Vec::new(), Vec::new());
        for thread in &names.threads {
            let vm = thread.vcpu.map(|(vm, _)| vm as usize);
            if vm.is_some_and(|vm| vm >= pids.len()) {
                next += 1;
                pids.push(next);
            }
            next += 1;
            tids.push(next);
        }
        Self { names: names.clone(), tids, pids }
    }

    pub(super) fn thread(&self, thread: ThreadId) -> u64 {
        number(THREAD, u64::from(thread))
    }

    pub(super) fn pcpu(&self, pcpu: u32) -> u64 {
        number(PCPU, u64::from(pcpu))
    }

    pub(super) fn throttle(&self, pcpu: u32) -> u64 {
        number(THROTTLE, u64::from(pcpu))
    }

    pub(super) fn queue(&self, pcpu: u32) -> u64 {
        number(QUEUE, u64::from(pcpu))
    }

    pub(super) fn task(&self, vm: usize, task: u32) -> u64 {
        number(TASK, (vm as u64) << 20 | u64::from(task))
    }

    pub(super) fn boost(&self, thread: ThreadId) -> u64 {
        number(BOOST, u64::from(thread))
    }

    pub(super) fn budget(&self, thread: ThreadId) -> u64 {
        number(BUDGET, u64::from(thread))
    }

    pub(super) fn steal(&self, thread: ThreadId) -> u64 {
        number(STEAL, u64::from(thread))
    }

    pub(super) fn width(&self, vm: u32) -> u64 {
        number(WIDTH, u64::from(vm))
    }

    pub(super) fn mask(&self, vm: u32) -> u64 {
        number(MASK, u64::from(vm))
    }

    /// How many vCPUs a VM has.
    pub(super) fn vcpus(&self, vm: u32) -> u32 {
        let own = self.names.threads.iter().filter(|t| t.vcpu.is_some_and(|(of, _)| of == vm));
        own.count() as u32
    }

    /// The VM of a vCPU.
    pub(super) fn vm_of(&self, thread: ThreadId) -> Option<usize> {
        self.names.threads[thread as usize].vcpu.map(|(vm, _)| vm as usize)
    }

    pub(super) fn thread_name(&self, thread: ThreadId) -> String {
        self.names.threads[thread as usize].name.clone()
    }

    pub(super) fn task_name(&self, vm: Option<usize>, task: Option<u32>) -> String {
        match (vm, task) {
            (Some(vm), Some(task)) => self.names.tasks[vm][task as usize].clone(),
            _ => "guest".to_owned(),
        }
    }

    pub(super) fn exit(&self, reason: &str) -> String {
        format!("exit {reason}")
    }

    /// Thread id and name as kernel events have them.
    pub(super) fn comm(&self, thread: Option<ThreadId>) -> (i32, String) {
        match thread {
            Some(t) => (self.tids[t as usize], self.thread_name(t)),
            None => (0, "swapper".to_owned()),
        }
    }

    fn pid_of(&self, thread: usize) -> i32 {
        self.names.threads[thread].vcpu.map_or(HOST, |(vm, _)| self.pids[vm as usize])
    }

    /// Writes all rows, but for those of samples.
    pub(super) fn describe<W: Write>(&self, packets: &mut Packets<W>) {
        packets.data(Data::ProcessTree(self.tree()));
        let process = |pid: i32, name: &str| TrackDescriptor {
            uuid: Some(number(PROCESS, pid as u64)),
            process: Some(ProcessDescriptor {
                pid: Some(pid),
                process_name: Some(name.to_owned()),
            }),
            ..TrackDescriptor::default()
        };
        packets.describe(process(HOST, "host"));
        for (pid, name) in self.pids.iter().zip(&self.names.vms) {
            packets.describe(process(*pid, name));
        }
        let host = number(PROCESS, HOST as u64);
        for pcpu in 0..self.names.pcpus {
            packets.describe(row(self.pcpu(pcpu), &format!("pcpu{pcpu}"), Some(host)));
            let name = format!("pcpu{pcpu} throttling");
            packets.describe(row(self.throttle(pcpu), &name, Some(host)));
            let name = format!("pcpu{pcpu} run queue");
            packets.describe(counter(self.queue(pcpu), &name, host, Unit::Count));
        }
        for (t, thread) in self.names.threads.iter().enumerate() {
            let (id, pid) = (t as u32, self.pid_of(t));
            packets.describe(TrackDescriptor {
                uuid: Some(self.thread(id)),
                thread: Some(ThreadDescriptor {
                    pid: Some(pid),
                    tid: Some(self.tids[t]),
                    thread_name: Some(thread.name.clone()),
                }),
                ..TrackDescriptor::default()
            });
            if thread.vcpu.is_none() {
                continue;
            }
            let vm = number(PROCESS, pid as u64);
            let name = &thread.name;
            packets.describe(row(self.boost(id), &format!("{name} boost"), Some(self.thread(id))));
            let budget = format!("{name} budget");
            packets.describe(counter(self.budget(id), &budget, vm, Unit::TimeNs));
            let steal = format!("{name} steal");
            packets.describe(counter(self.steal(id), &steal, vm, Unit::TimeNs));
        }
        for (vm, tasks) in self.names.tasks.iter().enumerate() {
            let Some(pid) = self.pids.get(vm) else { continue };
            let below = number(PROCESS, *pid as u64);
            let name = format!("{} vCPUs in use", self.names.vms[vm]);
            packets.describe(counter(self.width(vm as u32), &name, below, Unit::Count));
            let name = format!("{} mask", self.names.vms[vm]);
            packets.describe(row(self.mask(vm as u32), &name, Some(below)));
            for (t, name) in tasks.iter().enumerate() {
                packets.describe(row(
                    self.task(vm, t as u32),
                    &format!("task {name}"),
                    Some(below),
                ));
            }
        }
        packets.describe(row(number(SAMPLES, 0), "samples", None));
    }

    fn tree(&self) -> ProcessTree {
        let process = |pid: i32, name: &str| Process {
            pid: Some(pid),
            ppid: Some(0),
            cmdline: vec![name.to_owned()],
        };
        let vms = self.pids.iter().zip(&self.names.vms).map(|(pid, name)| process(*pid, name));
        let threads = self.names.threads.iter().enumerate().map(|(t, thread)| Thread {
            tid: Some(self.tids[t]),
            name: Some(thread.name.clone()),
            tgid: Some(self.pid_of(t)),
        });
        ProcessTree {
            processes: [process(HOST, "host")].into_iter().chain(vms).collect(),
            threads: threads.collect(),
        }
    }
}

/// Lane of a probe's samples.
pub(super) fn lane(probe: usize, lane: usize) -> u64 {
    number(SAMPLES, (probe as u64 + 1) << 16 | lane as u64)
}

/// A row for such a lane.
pub(super) fn lane_row(probe: usize, index: usize, name: &str) -> TrackDescriptor {
    row(lane(probe, index), name, Some(number(SAMPLES, 0)))
}

fn row(uuid: u64, name: &str, parent: Option<u64>) -> TrackDescriptor {
    TrackDescriptor {
        uuid: Some(uuid),
        name: Some(name.to_owned()),
        parent_uuid: parent,
        ..TrackDescriptor::default()
    }
}

fn counter(uuid: u64, name: &str, parent: u64, unit: Unit) -> TrackDescriptor {
    let counter = Some(CounterDescriptor { unit: Some(unit as i32) });
    TrackDescriptor { counter, ..row(uuid, name, Some(parent)) }
}
