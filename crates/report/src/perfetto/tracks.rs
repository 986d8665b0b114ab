//! The rows of a trace: numbers, names and hierarchy.

use std::io::Write;

use vcoop_model::trace_event::{ThreadId, ThreadNames};

use super::packets::Packets;
use super::schema::{
    CounterDescriptor, Data, Process, ProcessDescriptor, ProcessTree, Thread, ThreadDescriptor,
    TrackDescriptor, Unit,
};

/// Kind of a row.
#[derive(Clone, Copy, Debug)]
#[repr(u64)]
pub(super) enum Track {
    Process = 1,
    Thread,
    Pcpu,
    Throttle,
    Queue,
    Task,
    Boost,
    Budget,
    Steal,
    Samples,
    Width,
    Mask,
}

impl Track {
    /// The row's number: the kind above bit 40, below it the entity.
    pub(super) fn of(self, entity: impl Into<u64>) -> u64 {
        (self as u64) << 40 | entity.into()
    }
}

pub(super) fn task_row(vm: usize, task: u32) -> u64 {
    Track::Task.of((vm as u64) << 20 | u64::from(task))
}

/// Process of the host's own threads; 0 is the idle loop of every CPU.
const HOST: i32 = 1;

/// Names and numbers of all entities of a trace.
#[derive(Clone, Debug, Default)]
pub(super) struct Tracks {
    names: ThreadNames,
    /// Thread ids as the trace has them.
    tids: Vec<i32>,
    /// Process ids of VMs.
    pids: Vec<i32>,
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

    /// How many vCPUs a VM has.
    pub(super) fn vcpus(&self, vm: u32) -> u32 {
        let own = self.names.threads.iter().filter(|t| t.vcpu.is_some_and(|(of, _)| of == vm));
        own.count() as u32
    }

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

    /// Thread id and name in kernel events.
    pub(super) fn comm(&self, thread: Option<ThreadId>) -> (i32, String) {
        match thread {
            Some(t) => (self.tids[t as usize], self.thread_name(t)),
            None => (0, "swapper".to_owned()),
        }
    }

    fn pid_of(&self, thread: usize) -> i32 {
        self.names.threads[thread].vcpu.map_or(HOST, |(vm, _)| self.pids[vm as usize])
    }

    /// Writes all rows, except those of samples.
    pub(super) fn describe<W: Write>(&self, packets: &mut Packets<W>) {
        packets.data(Data::ProcessTree(self.tree()));
        let process = |pid: i32, name: &str| TrackDescriptor {
            uuid: Some(Track::Process.of(pid as u64)),
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
        let host = Track::Process.of(HOST as u64);
        for pcpu in 0..self.names.pcpus {
            packets.describe(row(Track::Pcpu.of(pcpu), &format!("pcpu{pcpu}"), Some(host)));
            let name = format!("pcpu{pcpu} throttling");
            packets.describe(row(Track::Throttle.of(pcpu), &name, Some(host)));
            let name = format!("pcpu{pcpu} run queue");
            packets.describe(counter(Track::Queue.of(pcpu), &name, host, Unit::Count));
        }
        for (t, thread) in self.names.threads.iter().enumerate() {
            let (id, pid) = (t as u32, self.pid_of(t));
            packets.describe(TrackDescriptor {
                uuid: Some(Track::Thread.of(id)),
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
            let vm = Track::Process.of(pid as u64);
            let name = &thread.name;
            packets.describe(row(
                Track::Boost.of(id),
                &format!("{name} boost"),
                Some(Track::Thread.of(id)),
            ));
            let budget = format!("{name} budget");
            packets.describe(counter(Track::Budget.of(id), &budget, vm, Unit::TimeNs));
            let steal = format!("{name} steal");
            packets.describe(counter(Track::Steal.of(id), &steal, vm, Unit::TimeNs));
        }
        for (vm, tasks) in self.names.tasks.iter().enumerate() {
            let Some(pid) = self.pids.get(vm) else { continue };
            let below = Track::Process.of(*pid as u64);
            let name = format!("{} vCPUs in use", self.names.vms[vm]);
            packets.describe(counter(Track::Width.of(vm as u32), &name, below, Unit::Count));
            let name = format!("{} mask", self.names.vms[vm]);
            packets.describe(row(Track::Mask.of(vm as u32), &name, Some(below)));
            for (t, name) in tasks.iter().enumerate() {
                packets.describe(row(task_row(vm, t as u32), &format!("task {name}"), Some(below)));
            }
        }
        packets.describe(row(Track::Samples.of(0u64), "samples", None));
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
    Track::Samples.of((probe as u64 + 1) << 16 | lane as u64)
}

/// A row for such a lane.
pub(super) fn lane_row(probe: usize, index: usize, name: &str) -> TrackDescriptor {
    row(lane(probe, index), name, Some(Track::Samples.of(0u64)))
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
