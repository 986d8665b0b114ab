//! The tasks of calibration: one operation, repeated.

use core::sync::atomic::Ordering;

use vcoop_abi::discovery::MSR_NOTIFY;
use vcoop_guest::layout::{HOST_WINDOW, PORT_NOTHING, VECTOR_DEVICE};
use vcoop_guest::program::{Call, Op};
use vcoop_guest::ring::Sample;

mod registers;

use super::Task;
use crate::instructions::{self, IA32_TSC_DEADLINE, X2APIC_EOI, X2APIC_ICR, tsc, wrmsr};
use crate::memory::words;

/// A deadline this far away (10 s and more) is never reached.
const FAR: u64 = 1 << 35;
/// Turns of a loop of two instructions: some microseconds.
const HELD: u64 = 8192;
/// No vCPU has this number.
const NOBODY: u64 = 200;

pub(super) fn run(task: &Task) -> ! {
    let spec = task.spec;
    let op = Op::from_word(spec.op);
    let own = &words().vcpu[spec.vcpu as usize % words().vcpu.len()];
    if op == Op::Echo {
        loop {
            task.call(Call::WaitDevice);
            let taken = tsc();
            task.sample(own.fired.load(Ordering::Relaxed), taken, 0);
        }
    }
    if op == Op::Gaps {
        gaps(task);
    }
    let device = u64::from(VECTOR_DEVICE);
    loop {
        if spec.period_tsc > 0 {
            task.sleep_until(tsc() + spec.period_tsc);
        }
        let due = tsc();
        let mut changed = false;
        match op {
            Op::Clock | Op::Echo | Op::Gaps => {}
            Op::Registers => changed = registers::changed(due, HELD),
            Op::Gate => instructions::null(),
            Op::Cpuid => {
                instructions::cpuid(0);
            }
            Op::TimerMsr => wrmsr(IA32_TSC_DEADLINE, due + FAR),
            Op::IcrNobody => wrmsr(X2APIC_ICR, NOBODY << 32 | device),
            Op::Eoi => wrmsr(X2APIC_EOI, 0),
            Op::Port => instructions::out(PORT_NOTHING, 0),
            Op::NotifyMsr => wrmsr(MSR_NOTIFY, 0),
            // SAFETY: the host areas are mapped; the store faults to the host, which drops it.
            Op::Store => unsafe { (HOST_WINDOW as *mut u64).write_volatile(0) },
            Op::SelfInterrupt => wrmsr(X2APIC_ICR, spec.vcpu << 32 | (device + 1)),
            Op::SelfWake => {
                own.fired.store(due, Ordering::Relaxed);
                wrmsr(X2APIC_ICR, spec.vcpu << 32 | device);
            }
            Op::Interrupt => {
                words().vcpu[1].fired.store(due, Ordering::Relaxed);
                wrmsr(X2APIC_ICR, 1 << 32 | device);
            }
        }
        let taken = tsc();
        if let Some(ring) = task.ring() {
            ring.push(Sample { due, taken, missed: changed.into(), ..Sample::default() });
        }
    }
}

/// Samples everything that takes the CPU away.
fn gaps(task: &Task) -> ! {
    let mut last = tsc();
    loop {
        let now = tsc();
        if now - last > task.spec.buffer_tsc
            && let Some(ring) = task.ring()
        {
            ring.push(Sample { due: last, taken: now, ..Sample::default() });
        }
        last = now;
    }
}
