//! Which vCPU a task runs on, in a guest that moves its tasks.
//!
//! As in Linux, as far as it matters to a host that shares its pCPUs: a task that wakes up goes to an idle vCPU, and a
//! tick moves a waiting task to one. vCPUs that the host prefers not to be used ([`Port::preferred`]) are left out, by
//! the rules of `vcoop-sched`'s `avoid`:
//!
//! - no task that wakes up is placed there, and no waiting task is moved there;
//! - the tick of such a vCPU pushes off the task that *runs* there, one a tick. A waiting task leaves when its turn
//!   comes, or with its next sleep;
//! - affinity is never broken: a task that may run only on such vCPUs stays there.
//!
//! A task moves when it is ready and does not run: its registers are saved, and only the vCPU that it belongs to reads
//! them. The giver first stores the new owner, then sends the task. So a wake-up that comes before the task has arrived
//! is kept for it, and one that comes too late is passed on.

use super::{Entry, Kernel, State, rank};
use crate::kernel::Port;
use crate::layout::MAX_TASKS;

/// What a kernel needs to move tasks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Migrations {
    /// The guest's vCPUs, one bit each; 0: tasks stay where they are.
    vcpus: u64,
    /// Time between two ticks, in TSC cycles, and when the next one is due.
    tick: u64,
    next: u64,
    /// Tasks that were woken on their way here.
    early: u64,
    /// Tasks that ticks pushed off this vCPU.
    pushed: u64,
}

impl Migrations {
    /// Tasks do not move.
    pub(super) const NONE: Self = Self { vcpus: 0, tick: 0, next: u64::MAX, early: 0, pushed: 0 };

    /// Whether tasks move.
    pub(super) fn any(&self) -> bool {
        self.vcpus != 0
    }

    /// When a busy vCPU ticks next; never, if tasks do not move.
    pub(super) fn next_tick(&self) -> u64 {
        self.next
    }

    /// A task was woken that belongs to this vCPU but has not arrived yet.
    pub(super) fn woken_early(&mut self, task: usize) {
        self.early |= 1 << task;
    }
}

impl Kernel {
    /// From now on tasks move between the first `vcpus` vCPUs, with a tick of `tick` TSC cycles. If `tick` is 0, they
    /// do not.
    pub fn set_moves(&mut self, vcpus: u64, tick: u64) {
        if tick != 0 && vcpus != 0 {
            let vcpus = u64::MAX >> (64 - vcpus.min(64));
            self.moves = Migrations { vcpus, tick, next: 0, ..Migrations::NONE };
        }
    }

    /// Takes in the tasks that other vCPUs have given to this one.
    pub(super) fn arrive(&mut self, now: u64, port: &mut impl Port) {
        if !self.moves.any() {
            return;
        }
        let sent = port.take_sent();
        for task in (0..MAX_TASKS).filter(|t| sent >> t & 1 != 0) {
            self.tasks[task].device_pending = self.moves.early >> task & 1 != 0;
            self.moves.early &= !(1 << task);
            self.enqueue(task, now, self.current.is_none(), port);
        }
    }

    /// The vCPUs where a task should be: the preferred ones among those it may use, or all of those if none is
    /// preferred.
    fn usable(&self, task: usize, port: &mut impl Port) -> u64 {
        let own = self.tasks[task].cpus & self.moves.vcpus;
        let open = own & port.preferred();
        match (open, own) {
            (0, 0) => 1 << self.vcpu,
            (0, own) => own,
            (open, _) => open,
        }
    }

    /// Where a task that wakes up goes: here if it would run at once, else to an idle vCPU, else here or to the vCPU
    /// with the fewest ready tasks.
    pub(super) fn place(&self, task: usize, port: &mut impl Port) -> u64 {
        let usable = self.usable(task, port);
        let here = usable >> self.vcpu & 1 != 0;
        let mine = rank(&self.tasks[task]);
        let rivals = |t: &Entry| t.state == State::Ready && rank(t) >= mine;
        if here && !self.tasks.iter().any(rivals) {
            return self.vcpu;
        }
        match self.least(usable, port) {
            Some((0, vcpu)) => vcpu,
            _ if here => self.vcpu,
            least => least.map_or(self.vcpu, |(_, vcpu)| vcpu),
        }
    }

    /// The other vCPU with the fewest ready tasks, and their number.
    fn least(&self, vcpus: u64, port: &mut impl Port) -> Option<(u64, u64)> {
        let others = (0..64).filter(|v| vcpus >> v & 1 != 0 && *v != self.vcpu);
        others.map(|v| (port.ready(v), v)).min()
    }

    /// Gives a ready task to another vCPU.
    pub(super) fn give(&mut self, task: usize, to: u64, port: &mut impl Port) {
        self.tasks[task].state = State::Absent;
        let pending = core::mem::take(&mut self.tasks[task].device_pending);
        port.send(to, task);
        if pending {
            port.wake_remote(to, task);
        }
    }

    /// On the way out of the kernel: does a tick's work if one is due, and publishes the number of ready tasks.
    pub(super) fn balance(&mut self, now: u64, port: &mut impl Port) {
        if now >= self.moves.next {
            self.moves.next = now + self.moves.tick;
            if let Some(current) = self.current {
                self.tick(current, port);
            }
        }
        let ready = self.tasks.iter().filter(|t| t.state == State::Ready).count();
        port.publish(ready as u64, self.moves.pushed);
    }

    fn tick(&mut self, current: usize, port: &mut impl Port) {
        let runs = self.tasks[current].state == State::Ready && !self.preempt_off;
        let usable = self.usable(current, port);
        if runs && usable >> self.vcpu & 1 == 0 {
            if let Some((_, to)) = self.least(usable, port) {
                self.moves.pushed += 1;
                self.give(current, to, port);
            }
            return;
        }
        // One that waits goes to a vCPU with nothing to do.
        for task in (0..MAX_TASKS).filter(|t| *t != current) {
            if self.tasks[task].state == State::Ready {
                let usable = self.usable(task, port);
                if let Some((0, to)) = self.least(usable, port) {
                    return self.give(task, to, port);
                }
            }
        }
    }
}
