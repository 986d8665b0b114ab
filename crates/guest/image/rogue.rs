//! Hostile guests: what a malicious kernel can do to the host, each a step of a task's program.
//!
//! They run in ring 3 like any task, which is no hindrance: all of guest memory is accessible, and MSRs and ports are
//! one gate away.

use core::sync::atomic::Ordering;

use vcoop_abi::discovery::{MSR_NOTIFY, MSR_REGISTER};
use vcoop_abi::layout::PAGE_SIZE;
use vcoop_abi::words::Word;
use vcoop_abi::{CsState, GuestArea, HostArea, Intent};
use vcoop_guest::layout::{HOST_WINDOW, IDT, PORT_DOORBELL};
use vcoop_guest::program::StepOp;

use crate::instructions::{out, tsc, wrmsr, wrmsr_checked};
use crate::memory::{control, guest_area, set_timer, words};
use crate::tasks::Task;

/// Work between two rounds of nonsense: a fraction of a microsecond.
const PAUSE: u64 = 256;

impl Task {
    /// Carries out a step of a hostile kernel; ignores other steps.
    pub(crate) fn misbehave(&self, step: StepOp, arg: u64) {
        let vcpu = self.spec.vcpu;
        let area = guest_area(vcpu);
        match step {
            StepOp::Request => area.request.store(arg, Ordering::Release),
            StepOp::Intent => {
                area.intent.store(arg, Ordering::Release);
                let idle = Intent::from_word(arg).idle;
                words().vcpu[vcpu as usize].idle.store(idle.into(), Ordering::Release);
            }
            StepOp::Section => {
                let cs = CsState::from_word(arg);
                let last = CsState::from_word(area.cs.load(Ordering::Relaxed)).section;
                let section = last.wrapping_add(cs.preempt_off.into());
                area.cs.store(CsState { section, ..cs }.to_word(), Ordering::Release);
            }
            StepOp::Acknowledge => area.ack.store(host_area(vcpu).ticket(), Ordering::Release),
            StepOp::Notify => wrmsr(MSR_NOTIFY, 0),
            StepOp::Doorbell => out(PORT_DOORBELL, 0),
            StepOp::Register => {
                wrmsr_checked(MSR_REGISTER, arg);
            }
            StepOp::Scribble => self.scribble(arg),
            StepOp::Deadline => set_timer(vcpu, tsc() + arg),
            StepOp::Fault => fault(),
            _ => {}
        }
    }

    /// Writes random values to every word of another vCPU's area, and to its idle flag, for so many cycles: the host
    /// reads words that belong to no one moment and that no writer intended. Deadlines are near the present, so that
    /// the host has timers to fire.
    fn scribble(&self, cycles: u64) {
        let target = (self.spec.vcpu + 1) % control().vcpus.max(1);
        let area: &GuestArea = guest_area(target);
        let idle = &words().vcpu[target as usize].idle;
        let begun = tsc();
        let mut random = begun | 1;
        while tsc() - begun < cycles {
            let mut word = || {
                // xorshift64 (Marsaglia, 2003).
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                // Half of the words hit the defined range, or just miss it.
                if random & 1 << 40 == 0 { random } else { random >> 32 & 0xf }
            };
            area.intent.store(word(), Ordering::Relaxed);
            area.cs.store(word(), Ordering::Relaxed);
            area.request.store(word(), Ordering::Relaxed);
            area.ack.store(word(), Ordering::Relaxed);
            area.header.store(word(), Ordering::Relaxed);
            idle.store(word() & 1, Ordering::Relaxed);
            let deadline = tsc().wrapping_add(word() & 0x3f_ffff).wrapping_sub(0x10_0000);
            area.deadline_tsc.store(deadline, Ordering::Relaxed);
            self.work(PAUSE);
        }
    }
}

/// Empties the interrupt descriptor table and faults: there is no gate for the fault, none for the double
/// fault, and so no way on.
fn fault() -> ! {
    for i in 0..512 {
        // SAFETY: the table lies in guest memory, open to ring 3; that it ends this guest is
        // the point.
        unsafe { ((IDT + 8 * i) as *mut u64).write_volatile(0) };
    }
    loop {
        wrmsr(MSR_NOTIFY, 0);
    }
}

/// The host area of a vCPU.
fn host_area(vcpu: u64) -> &'static HostArea {
    // SAFETY: the host maps its areas there, readable and made of atomics, for as long as the VM lives.
    unsafe { &*((HOST_WINDOW + vcpu * PAGE_SIZE) as *const HostArea) }
}
