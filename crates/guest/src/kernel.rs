//! The kernel of one vCPU as a state machine: which task runs, when the timer must fire, and which hooks of the boost
//! protocol run on the way.
//!
//! A task belongs to one vCPU at a time, and only that vCPU's kernel touches it. It stays there, unless the guest
//! [moves](Kernel::set_moves) its tasks: `moves` has the rules. Real-time tasks run first, by priority, FIFO among
//! equals; fair tasks take turns; SCHED_IDLE tasks run when no other task does. If tasks stay there is no tick: the
//! timer is set to the end of the next sleep, and to the end of a slice only if another task waits for it.
//!
//! | state of a task | event | next |
//! | --- | --- | --- |
//! | `Ready` | sleeps, waits for its device | `Sleeping`, `Waiting` |
//! | `Sleeping` | its time has come, seen at any entry into the kernel | `Ready` |
//! | `Waiting` | its device interrupts | `Ready` |
//! | `Ready` | it moves to another vCPU | `Absent`; `Ready` there |

use vcoop_abi::{Class, TaskIntent};
use vcoop_policy::GuestEvent;

use crate::layout::{MAX_DEVICES, MAX_TASKS};
use crate::program::{Call, DeviceSpec, Kind, TaskSpec};

mod migration;

use migration::Migrations;

/// Why the kernel was entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The timer, or the host's message in its place.
    Timer,
    /// Another vCPU.
    Ipi,
    /// The NMI gate.
    Nmi,
    /// A task's call.
    Trap,
    /// A device.
    Device(u8),
}

impl Cause {
    /// From the number of a gate.
    pub fn from_index(index: u64) -> Self {
        match index {
            0 => Self::Timer,
            1 => Self::Ipi,
            2 => Self::Nmi,
            3 => Self::Trap,
            n => Self::Device((n.saturating_sub(4)).min(MAX_DEVICES as u64 - 1) as u8),
        }
    }
}

/// What the kernel needs from the machine.
pub trait Port {
    /// The TSC.
    fn now(&mut self) -> u64;
    /// Waits, interrupts off, until the TSC shows `at`.
    fn wait_until(&mut self, at: u64);
    /// A timer interrupt has come for this deadline.
    fn timer_came(&mut self, now: u64, deadline: u64);
    /// A hook of the boost protocol.
    fn hook(&mut self, event: GuestEvent);
    /// Program the timer; 0 = none.
    fn set_timer(&mut self, deadline: u64);
    /// An interrupt made a task ready; `idle`: the vCPU was idle then.
    fn woken(&mut self, task: usize, now: u64, idle: bool);
    /// Uses the CPU: the softirq half of a device.
    fn work(&mut self, iterations: u64);
    /// Has another vCPU wake one of its tasks, by an interrupt.
    fn wake_remote(&mut self, vcpu: u64, task: usize);
    /// The tasks that other vCPUs want woken here, one bit each; clears them.
    fn take_remote(&mut self) -> u64;
    /// Have the vCPUs in a mask call a function for a task of this one, by an interrupt.
    fn interrupt_others(&mut self, vcpus: u64, task: usize);
    /// Call the functions that tasks of other vCPUs asked for.
    fn answer_calls(&mut self);
    /// The vCPUs that the host prefers to be used, one bit each.
    fn preferred(&mut self) -> u64;
    /// How many ready tasks a vCPU has, as last published by its kernel.
    fn ready(&mut self, vcpu: u64) -> u64;
    /// Publishes this vCPU's number of ready tasks, and of tasks pushed off it so far.
    fn publish(&mut self, ready: u64, pushed: u64);
    /// The vCPU that a task belongs to.
    fn owner(&mut self, task: usize) -> u64;
    /// Gives a task that does not run to another vCPU, by an interrupt.
    fn send(&mut self, vcpu: u64, task: usize);
    /// The tasks that other vCPUs have given to this one, one bit each; clears them.
    fn take_sent(&mut self) -> u64;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Absent,
    Ready,
    Sleeping(u64),
    Waiting,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    state: State,
    intent: TaskIntent,
    /// The vCPU it belongs to at first.
    vcpu: u64,
    /// The vCPUs it may run on, one bit each.
    cpus: u64,
    /// Place among equals: smaller is earlier.
    place: u64,
    /// Its device has interrupted since it last waited.
    device_pending: bool,
}

/// The kernel of one vCPU.
#[derive(Debug)]
pub struct Kernel {
    tasks: [Entry; MAX_TASKS],
    devices: [DeviceSpec; MAX_DEVICES],
    vcpu: u64,
    current: Option<usize>,
    last_place: u64,
    slice: u64,
    slice_end: u64,
    preempt_off: bool,
    advance: u64,
    /// What the timer is set to; 0 = nothing.
    timer: u64,
    moves: Migrations,
}

impl Kernel {
    /// No tasks.
    pub const fn new() -> Self {
        const NONE: Entry = Entry {
            state: State::Absent,
            intent: TaskIntent::new(Class::None, 0),
            vcpu: 0,
            cpus: 0,
            place: 0,
            device_pending: false,
        };
        Self {
            tasks: [NONE; MAX_TASKS],
            devices: [DeviceSpec { wakes: 0, softirq: 0, nmi: 0, vcpu: 0 }; MAX_DEVICES],
            vcpu: 0,
            current: None,
            last_place: 0,
            slice: u64::MAX,
            slice_end: u64::MAX,
            preempt_off: false,
            advance: 0,
            timer: 0,
            moves: Migrations::NONE,
        }
    }

    /// Timer interrupts may come early by at most so many cycles: the kernel waits them out. A host
    /// that sends them early hides the time of their delivery, at the price of the wait.
    pub fn set_advance(&mut self, cycles: u64) {
        self.advance = cycles;
    }

    /// Takes the tasks of `vcpu`, all ready. `slice`: round-robin slice of fair tasks, in cycles.
    pub fn boot(&mut self, vcpu: u64, slice: u64, tasks: &[TaskSpec], devices: &[DeviceSpec]) {
        self.vcpu = vcpu;
        self.slice = slice;
        self.devices[..devices.len()].copy_from_slice(devices);
        for (entry, spec) in self.tasks.iter_mut().zip(tasks) {
            entry.vcpu = spec.vcpu;
            entry.cpus = spec.cpus;
            entry.intent = intent(spec);
            if spec.vcpu == vcpu && Kind::from_word(spec.kind) != Kind::None {
                entry.state = State::Ready;
                self.last_place += 1;
                entry.place = self.last_place;
            }
        }
    }

    /// The running task; `None` = idle.
    pub fn current(&self) -> Option<usize> {
        self.current
    }

    /// First entry: picks the task to run.
    pub fn start(&mut self, port: &mut impl Port) {
        let now = port.now();
        self.arrive(now, port);
        self.leave(now, port);
    }

    /// Handles an interrupt. Afterwards [`current`](Self::current) runs.
    pub fn interrupt(&mut self, cause: Cause, port: &mut impl Port) {
        let nmi = cause == Cause::Nmi;
        port.hook(if nmi { GuestEvent::NmiEnter } else { GuestEvent::IrqEnter });
        let mut now = port.now();
        if cause == Cause::Timer && self.timer != 0 {
            port.timer_came(now, self.timer);
        }
        if cause == Cause::Timer && now < self.timer && self.timer - now <= self.advance {
            port.wait_until(self.timer);
            now = port.now().max(self.timer);
        }
        if self.timer != 0 && now >= self.timer {
            // It fired, from either timer: it is set to nothing now.
            self.timer = 0;
        }
        let idle = self.current.is_none();
        self.arrive(now, port);
        self.expire(now, idle, port);
        if cause == Cause::Ipi {
            port.answer_calls();
            let wanted = port.take_remote();
            for task in (0..MAX_TASKS as u64).filter(|t| wanted >> t & 1 != 0) {
                self.wake(task, now, idle, port);
            }
        }
        let mut softirq = 0;
        for i in 0..self.devices.len() {
            let d = self.devices[i];
            let fired = match cause {
                Cause::Device(n) => usize::from(n) == i,
                Cause::Nmi => d.nmi != 0 && d.vcpu == self.vcpu,
                _ => false,
            };
            if fired {
                softirq += d.softirq;
                self.wake_by_device(d.wakes, now, idle, port);
            }
        }
        if nmi {
            port.hook(GuestEvent::NmiExit);
        } else {
            port.hook(GuestEvent::IrqExit { softirq_pending: softirq > 0 });
        }
        if softirq > 0 {
            port.hook(GuestEvent::SoftirqEnter);
            port.work(softirq);
            port.hook(GuestEvent::SoftirqExit);
        }
        self.leave(now, port);
    }

    /// Handles a call of the running task. Afterwards [`current`](Self::current) runs.
    pub fn call(&mut self, call: Call, port: &mut impl Port) {
        let now = port.now();
        let Some(current) = self.current else { return self.leave(now, port) };
        self.arrive(now, port);
        match call {
            Call::SleepUntil(at) => {
                if at > now {
                    self.tasks[current].state = State::Sleeping(at);
                    self.preempt_off = false;
                }
            }
            Call::WaitDevice => {
                if !core::mem::take(&mut self.tasks[current].device_pending) {
                    self.tasks[current].state = State::Waiting;
                    self.preempt_off = false;
                }
            }
            Call::PreemptOff => {
                self.preempt_off = true;
                port.hook(GuestEvent::PreemptOff);
            }
            Call::PreemptOn => {
                self.preempt_off = false;
                port.hook(GuestEvent::PreemptOn);
            }
            Call::Wake(task) => self.wake(task, now, false, port),
            Call::Interrupt(vcpus) => port.interrupt_others(vcpus, current),
        }
        self.expire(now, false, port);
        self.leave(now, port);
    }

    fn wake_by_device(&mut self, wakes: u64, now: u64, idle: bool, port: &mut impl Port) {
        if let Some(task) = wakes.checked_sub(1) {
            self.wake(task, now, idle, port);
        }
    }

    /// Wakes a task of any vCPU; ignores numbers beyond the table.
    fn wake(&mut self, task: u64, now: u64, idle: bool, port: &mut impl Port) {
        let Some(task) = usize::try_from(task).ok().filter(|t| *t < MAX_TASKS) else { return };
        let home = if self.moves.any() { port.owner(task) } else { self.tasks[task].vcpu };
        if home != self.vcpu {
            port.wake_remote(home, task);
        } else if self.moves.any() && self.tasks[task].state == State::Absent {
            // On its way here.
            self.moves.woken_early(task);
        } else {
            self.device_came(task, now, idle, port);
        }
    }

    fn device_came(&mut self, task: usize, now: u64, idle: bool, port: &mut impl Port) {
        match self.tasks[task].state {
            State::Waiting => self.make_ready(task, now, idle, port),
            State::Absent => {}
            State::Ready | State::Sleeping(_) => self.tasks[task].device_pending = true,
        }
    }

    /// Makes tasks ready whose sleep is over.
    fn expire(&mut self, now: u64, idle: bool, port: &mut impl Port) {
        for task in 0..MAX_TASKS {
            if matches!(self.tasks[task].state, State::Sleeping(at) if at <= now) {
                self.make_ready(task, now, idle, port);
            }
        }
    }

    /// Makes a task ready on this vCPU or on a better one.
    fn make_ready(&mut self, task: usize, now: u64, idle: bool, port: &mut impl Port) {
        if self.moves.any() {
            let to = self.place(task, port);
            if to != self.vcpu {
                return self.give(task, to, port);
            }
        }
        self.enqueue(task, now, idle, port);
    }

    fn enqueue(&mut self, task: usize, now: u64, idle: bool, port: &mut impl Port) {
        self.last_place += 1;
        let entry = &mut self.tasks[task];
        entry.state = State::Ready;
        entry.place = self.last_place;
        port.woken(task, now, idle);
        if entry.intent.is_urgent() {
            port.hook(GuestEvent::RtEnqueued(entry.intent));
        }
    }

    /// Picks the task to run, sets the timer for it, and tells the host.
    fn leave(&mut self, now: u64, port: &mut impl Port) {
        if self.moves.any() {
            self.balance(now, port);
        }
        let stays = self.current.filter(|c| self.tasks[*c].state == State::Ready);
        if let Some(c) = stays
            && now >= self.slice_end
        {
            // The slice is over: behind its equals. A FIFO task has none.
            self.last_place += 1;
            self.tasks[c].place = self.last_place;
            self.slice_end = u64::MAX;
        }
        let next = if self.preempt_off { stays } else { None }.or_else(|| self.best(None));
        if next != self.current || self.slice_end == u64::MAX {
            self.slice_end = now.saturating_add(self.slice);
        }
        self.set_timer(next, port);
        match next {
            None => port.hook(GuestEvent::IdleEnter),
            Some(task) if next != self.current => {
                let pending = self.best(next).map(|t| self.tasks[t].intent);
                let pending = pending.filter(|t| t.is_urgent());
                // It has looked for a boost already: no second hook on the way out.
                port.hook(GuestEvent::TaskSwitch { next: self.tasks[task].intent, pending });
            }
            Some(_) => port.hook(GuestEvent::UserReturn),
        }
        self.current = next;
    }

    fn set_timer(&mut self, next: Option<usize>, port: &mut impl Port) {
        let sleeps = self.tasks.iter().filter_map(|t| match t.state {
            State::Sleeping(at) => Some(at),
            _ => None,
        });
        let mut at = sleeps.min().unwrap_or(u64::MAX);
        if let Some(task) = next {
            let mine = rank(&self.tasks[task]);
            let rivals =
                |(i, t): (usize, &Entry)| i != task && t.state == State::Ready && rank(t) == mine;
            let sliced = self.tasks[task].intent.class != Class::Fifo;
            if sliced && self.tasks.iter().enumerate().any(rivals) {
                at = at.min(self.slice_end);
            } else {
                self.slice_end = u64::MAX;
            }
            at = at.min(self.moves.next_tick());
        }
        let at = if at == u64::MAX { 0 } else { at };
        if at != self.timer {
            self.timer = at;
            port.set_timer(at);
        }
    }

    /// The most urgent ready task other than `but`.
    fn best(&self, but: Option<usize>) -> Option<usize> {
        let ready = self
            .tasks
            .iter()
            .enumerate()
            .filter(|(i, t)| t.state == State::Ready && Some(*i) != but);
        ready.max_by_key(|(_, t)| (rank(t), core::cmp::Reverse(t.place))).map(|(i, _)| i)
    }
}

impl Default for Kernel {
    fn default() -> Self {
        Self::new()
    }
}

/// Real-time tasks by priority, then all fair ones alike, then SCHED_IDLE.
fn rank(t: &Entry) -> u8 {
    match t.intent.class {
        Class::Fair => 2,
        Class::Idle | Class::None => 1,
        _ => t.intent.urgency(),
    }
}

fn intent(spec: &TaskSpec) -> TaskIntent {
    let class = match spec.class {
        2 => Class::Fifo,
        3 => Class::Rr,
        5 => Class::Idle,
        _ => Class::Fair,
    };
    TaskIntent::new(class, spec.prio.min(99) as u8).canonical()
}

#[cfg(test)]
mod tests;
