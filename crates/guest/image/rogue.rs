//! Hostile guests: what a kernel that means harm can do to the host, each way a task of its own.
//!
//! They run in ring 3 like any task, which hinders them in nothing: all of guest memory is open to
//! it, and MSRs and ports are one gate away.

use core::sync::atomic::Ordering;

use vcoop_abi::discovery::{MSR_NOTIFY, MSR_REGISTER, REGISTER_ENABLE};
use vcoop_abi::words::Word;
use vcoop_abi::{BoostRequest, CsState, Intent, TaskIntent};
use vcoop_guest::layout::{HOST_WINDOW, IDT, IMAGE, PORT_DOORBELL, RAM, area};
use vcoop_guest::program::Kind;

use crate::gates::{out, tsc, wrmsr, wrmsr_checked};
use crate::machine::{control, guest_area, words};
use crate::tasks::{CHUNK, Task};

/// Work between two misdeeds where those are the point: a fraction of a microsecond.
const PAUSE: u64 = 256;

impl Task {
    /// Does what its kind says, for ever.
    pub(crate) fn rogue(&self) -> ! {
        match Kind::from_word(self.spec.kind) {
            Kind::RogueScribble => self.scribble(),
            Kind::RogueMsrFlood => self.msr_flood(),
            Kind::RogueHostileGpa => self.hostile_gpa(),
            Kind::RogueTripleFault => self.triple_fault(),
            _ => self.ask_for_ever(),
        }
    }

    /// Writes its area itself and never gives a boost back. It also claims to halt, because halted
    /// time is not charged.
    fn ask_for_ever(&self) -> ! {
        let idle = &words().vcpu[self.spec.vcpu as usize].idle;
        let area = guest_area(self.spec.vcpu);
        let toggles = Kind::from_word(self.spec.kind) == Kind::RogueToggle;
        let mut section = 0_u32;
        let mut next = 0;
        loop {
            if tsc() >= next {
                next = tsc() + self.spec.period_tsc;
                section = section.wrapping_add(1);
                let cs = CsState { preempt_off: toggles, section, ..CsState::default() };
                let asked = if toggles { BoostRequest::None } else { BoostRequest::Boost };
                let intent = Intent { running: TaskIntent::FAIR, ..Intent::default() };
                area.intent.store(intent.to_word(), Ordering::Release);
                area.cs.store(cs.to_word(), Ordering::Release);
                area.request.store(asked.to_word(), Ordering::Release);
                area.ack.store(0, Ordering::Release);
                idle.store(1, Ordering::Release);
            }
            self.work(CHUNK);
        }
    }

    /// Nonsense in every word of another vCPU's area, and in its claim to be idle: what the host
    /// reads is of no one moment, and no writer ever meant it. Deadlines lie around now, so that
    /// the host has something to fire.
    fn scribble(&self) -> ! {
        let vcpus = control().vcpus.max(1);
        let target = (self.spec.vcpu + 1) % vcpus;
        let area = guest_area(target);
        let idle = &words().vcpu[target as usize].idle;
        let mut random = tsc() | 1;
        loop {
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

    /// One exit after the other, asking for a boost and giving it back by turns.
    fn msr_flood(&self) -> ! {
        let area = guest_area(self.spec.vcpu);
        let asks = [BoostRequest::Boost, BoostRequest::Unboost, BoostRequest::None];
        for i in 0_usize.. {
            area.request.store(asks[i / 64 % 3].to_word(), Ordering::Release);
            wrmsr(MSR_NOTIFY, i as u64);
            match i % 32 {
                0 => {
                    wrmsr_checked(MSR_REGISTER, self.own());
                }
                8 | 24 => out(PORT_DOORBELL, 0),
                _ => {}
            }
            self.work(PAUSE);
        }
        unreachable!()
    }

    /// Every address that must be refused, some that are legal and odd, the end of its registration
    /// and the own page again; and a boost in between, to see whether the budget forgets.
    fn hostile_gpa(&self) -> ! {
        let neighbour = (self.spec.vcpu + 1) % control().vcpus.max(1);
        let mine = guest_area(self.spec.vcpu);
        let tries = [
            // Unaligned, the enable bit missing, and all of the reserved bits.
            self.own() | 2,
            area(self.spec.vcpu) | 0x800,
            area(self.spec.vcpu),
            u64::MAX,
            // The last page, whose end overflows; and one that a narrower sum would fold back.
            !0xfff | REGISTER_ENABLE,
            1 << 63 | self.own(),
            // Beyond memory: the first page, and the host's own area, which is read-only.
            RAM | REGISTER_ENABLE,
            HOST_WINDOW | REGISTER_ENABLE,
            // Another vCPU's page.
            area(neighbour) | REGISTER_ENABLE,
            // Legal, if odd: descriptors, code and page zero.
            IDT | REGISTER_ENABLE,
            IMAGE | REGISTER_ENABLE,
            REGISTER_ENABLE,
            0,
            self.own(),
        ];
        loop {
            for value in tries {
                wrmsr_checked(MSR_REGISTER, value);
                mine.request.store(BoostRequest::Boost.to_word(), Ordering::Release);
                self.work(PAUSE);
            }
            self.work(CHUNK);
        }
    }

    /// Works until its time has come, empties the interrupt descriptor table and faults: there is
    /// no gate for the fault, none for the double fault, and so no way on.
    fn triple_fault(&self) -> ! {
        let end = tsc() + self.spec.period_tsc;
        while tsc() < end {
            self.work(CHUNK);
        }
        for i in 0..512 {
            // SAFETY: the table lies in guest memory, open to ring 3; that it ends this guest is
            // the point.
            unsafe { ((IDT + 8 * i) as *mut u64).write_volatile(0) };
        }
        loop {
            wrmsr(MSR_NOTIFY, 0);
        }
    }

    /// What registers its own area.
    fn own(&self) -> u64 {
        area(self.spec.vcpu) | REGISTER_ENABLE
    }
}
