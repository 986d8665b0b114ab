extern crate std;

use std::vec::Vec;

use vcoop_abi::{Class, TaskIntent};
use vcoop_policy::GuestEvent as E;

use super::{Cause, Kernel, Port};
use crate::program::{Call, DeviceSpec, Kind, TaskSpec};

/// A machine that writes down what the kernel does to it.
#[derive(Debug, Default)]
struct Machine {
    now: u64,
    timer: u64,
    hooks: Vec<E>,
    woken: Vec<usize>,
    worked: u64,
    asked: Vec<(u64, usize)>,
    remote: u64,
    interrupted: Vec<(u64, usize)>,
    answered: u32,
    preferred: u64,
    ready: [u64; 4],
    sent: Vec<(u64, usize)>,
    arriving: u64,
    /// Whose a task is, where it has moved.
    owner: std::collections::BTreeMap<usize, u64>,
    pushed: u64,
}

impl Port for Machine {
    fn now(&mut self) -> u64 {
        self.now
    }
    fn wait_until(&mut self, at: u64) {
        self.now = at;
    }
    fn timer_came(&mut self, _: u64, _: u64) {}
    fn hook(&mut self, event: E) {
        self.hooks.push(event);
    }
    fn set_timer(&mut self, deadline: u64) {
        self.timer = deadline;
    }
    fn woken(&mut self, task: usize, _: u64, _: bool) {
        self.woken.push(task);
    }
    fn work(&mut self, iterations: u64) {
        self.worked += iterations;
    }
    fn wake_remote(&mut self, vcpu: u64, task: usize) {
        self.asked.push((vcpu, task));
    }
    fn take_remote(&mut self) -> u64 {
        std::mem::take(&mut self.remote)
    }
    fn interrupt_others(&mut self, vcpus: u64, task: usize) {
        self.interrupted.push((vcpus, task));
    }
    fn answer_calls(&mut self) {
        self.answered += 1;
    }
    fn preferred(&mut self) -> u64 {
        self.preferred
    }
    fn ready(&mut self, vcpu: u64) -> u64 {
        self.ready[vcpu as usize]
    }
    fn publish(&mut self, ready: u64, pushed: u64) {
        self.ready[0] = ready;
        self.pushed = pushed;
    }
    fn owner(&mut self, task: usize) -> u64 {
        self.owner.get(&task).copied().unwrap_or(u64::from(task == 3))
    }
    fn send(&mut self, vcpu: u64, task: usize) {
        self.owner.insert(task, vcpu);
        self.ready[vcpu as usize] += 1;
        self.sent.push((vcpu, task));
    }
    fn take_sent(&mut self) -> u64 {
        std::mem::take(&mut self.arriving)
    }
}

fn task(class: Class, prio: u64) -> TaskSpec {
    let kind = Kind::Loop as u64;
    TaskSpec { kind, class: class as u64, prio, cpus: u64::MAX, ..TaskSpec::default() }
}

/// Task 0: FIFO 80. Tasks 1 and 2: fair. Task 3: fair, of another vCPU.
fn rig() -> (Kernel, Machine) {
    let fair = task(Class::Fair, 20);
    let tasks = [task(Class::Fifo, 80), fair, fair, TaskSpec { vcpu: 1, ..fair }];
    let devices = [
        DeviceSpec { wakes: 1, softirq: 7, nmi: 0, vcpu: 0 },
        DeviceSpec { wakes: 4, softirq: 0, nmi: 0, vcpu: 0 },
    ];
    let (mut k, mut m) = (Kernel::new(), Machine::default());
    k.boot(0, 100, &tasks, &devices);
    k.start(&mut m);
    (k, m)
}

#[test]
fn real_time_runs_first_and_its_wake_up_preempts() {
    let (mut k, mut m) = rig();
    assert_eq!(k.current(), Some(0));
    k.call(Call::SleepUntil(50), &mut m);
    assert_eq!((k.current(), m.timer), (Some(1), 50));
    m.now = 51;
    m.hooks.clear();
    k.interrupt(Cause::Timer, &mut m);
    assert_eq!((k.current(), m.woken.as_slice()), (Some(0), [0].as_slice()));
    let rt = TaskIntent::fifo(80);
    let expected = [
        E::IrqEnter,
        E::RtEnqueued(rt),
        E::IrqExit { softirq_pending: false },
        E::TaskSwitch { next: rt, pending: None },
    ];
    assert_eq!(m.hooks, expected);
}

#[test]
fn fair_tasks_take_turns_and_only_then_is_there_a_tick() {
    let (mut k, mut m) = rig();
    k.call(Call::SleepUntil(1_000_000), &mut m);
    assert_eq!((k.current(), m.timer), (Some(1), 100));
    m.now = 100;
    k.interrupt(Cause::Timer, &mut m);
    assert_eq!((k.current(), m.timer), (Some(2), 200));
    m.now = 130;
    k.interrupt(Cause::Ipi, &mut m);
    assert_eq!(k.current(), Some(2), "an interrupt does not cost the slice");
    k.call(Call::SleepUntil(1_000_001), &mut m);
    assert_eq!((k.current(), m.timer), (Some(1), 1_000_000), "alone: no tick");
}

#[test]
fn nothing_to_do_is_idle_with_the_timer_set() {
    let (mut k, mut m) = rig();
    for until in [30, 20, 10] {
        k.call(Call::SleepUntil(until), &mut m);
    }
    assert_eq!((k.current(), m.timer), (None, 10));
    assert_eq!(m.hooks.last(), Some(&E::IdleEnter));
    m.now = 20;
    k.interrupt(Cause::Timer, &mut m);
    assert_eq!((k.current(), m.woken.as_slice()), (Some(1), [1, 2].as_slice()));
}

#[test]
fn a_device_wakes_its_task_and_its_softirq_half_runs_first() {
    let (mut k, mut m) = rig();
    k.call(Call::WaitDevice, &mut m);
    assert_eq!(k.current(), Some(1));
    m.hooks.clear();
    k.interrupt(Cause::Device(0), &mut m);
    assert_eq!((k.current(), m.worked), (Some(0), 7));
    let order: Vec<bool> = m.hooks.iter().map(|h| matches!(h, E::SoftirqExit)).collect();
    assert!(m.hooks.contains(&E::IrqExit { softirq_pending: true }));
    assert!(
        order.iter().position(|x| *x)
            < m.hooks.iter().position(|h| matches!(h, E::TaskSwitch { .. }))
    );
    // An interrupt that comes while the task does not wait is not forgotten.
    k.interrupt(Cause::Device(0), &mut m);
    k.call(Call::WaitDevice, &mut m);
    assert_eq!(k.current(), Some(0));
    k.call(Call::WaitDevice, &mut m);
    assert_eq!(k.current(), Some(1));
}

#[test]
fn a_preempt_disabled_section_is_not_preempted() {
    let (mut k, mut m) = rig();
    k.call(Call::SleepUntil(50), &mut m);
    k.call(Call::PreemptOff, &mut m);
    m.now = 60;
    k.interrupt(Cause::Timer, &mut m);
    assert_eq!(k.current(), Some(1));
    k.call(Call::PreemptOn, &mut m);
    assert_eq!(k.current(), Some(0));
}

#[test]
fn only_own_tasks_run() {
    let (mut k, mut m) = rig();
    for _ in 0..3 {
        k.call(Call::WaitDevice, &mut m);
    }
    assert_eq!(k.current(), None);
    assert_eq!(m.timer, 0, "nothing to wait for");
}

#[test]
fn a_device_wakes_tasks_of_other_vcpus_by_an_interrupt() {
    let (mut k, mut m) = rig();
    k.interrupt(Cause::Device(1), &mut m);
    assert_eq!(m.asked, [(1, 3)]);
    // And the other side of it.
    k.call(Call::WaitDevice, &mut m);
    assert_eq!(k.current(), Some(1));
    m.remote = 1;
    k.interrupt(Cause::Ipi, &mut m);
    assert_eq!((k.current(), m.remote), (Some(0), 0));
}

#[test]
fn an_early_timer_interrupt_is_waited_out_if_it_is_not_too_early() {
    let (mut k, mut m) = rig();
    k.set_advance(20);
    k.call(Call::SleepUntil(50), &mut m);
    m.now = 10;
    k.interrupt(Cause::Timer, &mut m);
    assert_eq!((k.current(), m.now), (Some(1), 10), "too early: nothing happens");
    m.now = 31;
    k.interrupt(Cause::Timer, &mut m);
    assert_eq!((k.current(), m.now), (Some(0), 50));
}

#[test]
fn a_task_wakes_another_that_waits_or_will() {
    let (mut k, mut m) = rig();
    // Task 0 goes to wait; task 1 runs, and wakes it.
    k.call(Call::WaitDevice, &mut m);
    assert_eq!(k.current(), Some(1));
    k.call(Call::Wake(0), &mut m);
    assert_eq!((k.current(), m.woken.as_slice()), (Some(0), [0].as_slice()));
    // It wakes task 1, which does not wait: that will not wait the next time.
    k.call(Call::Wake(1), &mut m);
    k.call(Call::SleepUntil(1_000_000), &mut m);
    assert_eq!(k.current(), Some(1));
    k.call(Call::WaitDevice, &mut m);
    assert_eq!(k.current(), Some(1), "somebody woke it before");
    // One of another vCPU gets an interrupt; one that does not exist gets nothing.
    k.call(Call::Wake(3), &mut m);
    assert_eq!(m.asked, [(1, 3)]);
    k.call(Call::Wake(u64::MAX), &mut m);
    k.call(Call::Wake(64), &mut m);
    assert_eq!((m.asked.len(), k.current()), (1, Some(1)));
}

#[test]
fn functions_are_called_by_the_interrupt_and_change_nobodys_turn() {
    let (mut k, mut m) = rig();
    let current = k.current();
    k.call(Call::Interrupt(0b110), &mut m);
    assert_eq!(m.interrupted, [(0b110, 0)]);
    k.interrupt(Cause::Ipi, &mut m);
    assert_eq!((m.answered, k.current()), (1, current));
    k.interrupt(Cause::Timer, &mut m);
    assert_eq!(m.answered, 1, "by that interrupt alone");
}

/// [`rig`] on vCPU 0 of three, with a tick of 40; tasks 0, 1 and 2 are ready. The others have so many
/// ready tasks.
fn moving(preferred: u64, others: [u64; 2]) -> (Kernel, Machine) {
    let fair = task(Class::Fair, 20);
    let tasks =
        [task(Class::Fifo, 80), fair, TaskSpec { cpus: 1, ..fair }, TaskSpec { vcpu: 1, ..fair }];
    let ready = [0, others[0], others[1], 0];
    let (mut k, mut m) = (Kernel::new(), Machine { preferred, ready, ..Machine::default() });
    k.boot(0, 100, &tasks, &[]);
    k.set_moves(3, 40);
    k.start(&mut m);
    (k, m)
}

#[test]
fn a_task_that_wakes_up_goes_where_it_runs_at_once() {
    let (mut k, mut m) = moving(u64::MAX, [1, 0]);
    k.call(Call::SleepUntil(20), &mut m);
    assert_eq!((k.current(), m.ready[0]), (Some(1), 2), "tasks 1 and 2 are left");
    k.call(Call::SleepUntil(30), &mut m);
    // The real-time one preempts the running task here; the fair one would wait, and vCPU 2 is idle.
    m.now = 31;
    k.interrupt(Cause::Timer, &mut m);
    assert_eq!((k.current(), m.sent.as_slice()), (Some(0), [(2, 1)].as_slice()));
    assert_eq!(m.woken, [0], "who moves is woken where it arrives");
}

#[test]
fn nobody_idle_elsewhere_means_here() {
    let (mut k, mut m) = moving(u64::MAX, [1, 1]);
    for until in [1_000, 30] {
        k.call(Call::SleepUntil(until), &mut m);
    }
    m.now = 31;
    k.interrupt(Cause::Timer, &mut m);
    assert_eq!((m.sent.len(), m.woken.as_slice()), (0, [1].as_slice()));
}

#[test]
fn nothing_is_placed_on_a_vcpu_to_keep_off_and_the_tick_pushes_off_who_runs_there() {
    // Here is to be kept off, and vCPU 2 too; vCPU 1 has three tasks.
    let (mut k, mut m) = moving(0b010, [3, 0]);
    k.call(Call::SleepUntil(30), &mut m);
    assert_eq!((k.current(), m.timer), (Some(1), 30), "nothing moves before its tick");
    m.now = 31;
    k.interrupt(Cause::Timer, &mut m);
    assert_eq!(m.sent, [(1, 0)], "it wakes up elsewhere, busy as that is");
    assert_eq!(m.timer, 40, "a tick, though nobody waits");
    m.now = 40;
    k.interrupt(Cause::Timer, &mut m);
    assert_eq!((m.sent.as_slice(), m.pushed), ([(1, 0), (1, 1)].as_slice(), 1));
    // Task 2 may run here only: it stays.
    assert_eq!((k.current(), m.ready[0]), (Some(2), 1));
    m.now = 80;
    k.interrupt(Cause::Timer, &mut m);
    assert_eq!((k.current(), m.sent.len()), (Some(2), 2));
}

#[test]
fn a_tick_gives_one_that_waits_to_an_idle_vcpu_and_only_there() {
    let (mut k, mut m) = moving(0b011, [1, 0]);
    k.call(Call::SleepUntil(1_000), &mut m);
    k.call(Call::SleepUntil(1_000), &mut m);
    assert_eq!(k.current(), Some(2));
    // Task 3 has come here meanwhile, and waits.
    (m.arriving, m.now) = (1 << 3, 10);
    m.owner.insert(3, 0);
    k.interrupt(Cause::Ipi, &mut m);
    assert_eq!(m.ready[0], 2);
    m.now = 50;
    k.interrupt(Cause::Timer, &mut m);
    assert_eq!(m.sent, [], "the idle one is to be kept off");
    (m.ready[1], m.now) = (0, 100);
    k.interrupt(Cause::Timer, &mut m);
    assert_eq!(m.sent, [(1, 3)]);
}

#[test]
fn a_wake_up_finds_its_task_wherever_it_is() {
    let (mut k, mut m) = moving(u64::MAX, [1, 1]);
    // One of another vCPU.
    k.call(Call::Wake(3), &mut m);
    assert_eq!(m.asked, [(1, 3)]);
    // It has been given to us, and has not arrived: the wake-up waits for it.
    m.owner.insert(3, 0);
    k.call(Call::Wake(3), &mut m);
    m.arriving = 1 << 3;
    k.interrupt(Cause::Ipi, &mut m);
    for _ in 0..3 {
        k.call(Call::SleepUntil(1_000_000), &mut m);
    }
    assert_eq!(k.current(), Some(3));
    k.call(Call::WaitDevice, &mut m);
    assert_eq!(k.current(), Some(3), "somebody woke it before");
    k.call(Call::WaitDevice, &mut m);
    assert_eq!(k.current(), None);
    // It has gone on, and the wake-up came here: passed on.
    m.owner.insert(3, 2);
    m.remote = 1 << 3;
    k.interrupt(Cause::Ipi, &mut m);
    assert_eq!(m.asked.last(), Some(&(2, 3)));
}

#[test]
fn a_section_with_preemption_off_ends_where_it_began() {
    let (mut k, mut m) = moving(0b010, [0, 0]);
    k.call(Call::SleepUntil(1_000), &mut m);
    k.call(Call::PreemptOff, &mut m);
    m.now = 50;
    k.interrupt(Cause::Timer, &mut m);
    assert_eq!((k.current(), m.pushed), (Some(1), 0));
    k.call(Call::PreemptOn, &mut m);
    m.now = 100;
    k.interrupt(Cause::Timer, &mut m);
    assert_eq!(m.pushed, 1);
}
