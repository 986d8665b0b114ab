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
}

fn task(class: Class, prio: u64) -> TaskSpec {
    TaskSpec { kind: Kind::Loop as u64, class: class as u64, prio, ..TaskSpec::default() }
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
