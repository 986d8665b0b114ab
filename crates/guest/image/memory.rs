//! Memory that vCPUs share with the host and with each other, and the timer: a deadline may be a word there.

use core::sync::atomic::Ordering;

use vcoop_abi::GuestArea;
use vcoop_guest::layout::{CONTROL, Control, PORT_DOORBELL, STATS, TaskStats, WORDS, Words, area};

use crate::instructions::{IA32_TSC_DEADLINE, out, wrmsr};

/// The words of all vCPUs that change while they run.
pub(crate) fn words() -> &'static Words {
    // SAFETY: zeroed memory of this size, made of atomics.
    unsafe { &*(WORDS as *const Words) }
}

/// The words that the host wrote before the start.
pub(crate) fn control() -> &'static Control {
    // SAFETY: the host wrote a `Control` there before the first instruction.
    unsafe { &*(CONTROL as *const Control) }
}

/// A vCPU's guest area.
pub(crate) fn guest_area(vcpu: u64) -> &'static GuestArea {
    // SAFETY: zeroed memory of this vCPU, made of atomics.
    unsafe { &*(area(vcpu) as *const GuestArea) }
}

/// A task's counters.
pub(crate) fn stats(task: usize) -> &'static TaskStats {
    // SAFETY: zeroed memory, one entry a task, made of atomics.
    unsafe { &*(STATS as *const TaskStats).add(task) }
}

/// Sets this vCPU's timer to `deadline`; 0: off.
pub(crate) fn set_timer(vcpu: u64, deadline: u64) {
    if control().exitless == 0 {
        wrmsr(IA32_TSC_DEADLINE, deadline);
        return;
    }
    guest_area(vcpu).deadline_tsc.store(deadline, Ordering::Release);
    // Pairs with the host's fence between storing its next look and reading the deadline: one
    // of the two sees the other.
    GuestArea::fence();
    let next_look = words().vcpu[vcpu as usize].next_look.load(Ordering::Acquire);
    if deadline != 0 && deadline < next_look {
        out(PORT_DOORBELL, 0);
    }
}

/// The vCPU that a task belongs to.
pub(crate) fn owner(task: usize) -> u64 {
    let moved = stats(task).owner.load(Ordering::Acquire);
    moved.checked_sub(1).unwrap_or(control().task[task].vcpu)
}
