//! The program of a hostile kernel, as words and addresses for the guest.

use vcoop_abi::discovery::REGISTER_ENABLE;
use vcoop_abi::{BoostRequest, Word};
use vcoop_guest::layout::{HOST_WINDOW, IDT, IMAGE, RAM, area};
use vcoop_guest::program::{Step, StepOp};
use vcoop_model::plan::{Registers, RogueStep};

use crate::rates::Rates;
use crate::routine::RoutinePlace;

/// The steps of a task in this seat.
pub(crate) fn steps(program: &[RogueStep], seat: RoutinePlace, rates: &Rates) -> Vec<Step> {
    let (mut refused, mut odd) = (refused(seat).into_iter().cycle(), odd().into_iter().cycle());
    let mut steps = Vec::new();
    let mut push = |op: StepOp, arg| steps.push(Step { op: op as u64, arg });
    for &step in program {
        match step {
            RogueStep::Ask => push(StepOp::Request, BoostRequest::Boost.to_word()),
            RogueStep::End => push(StepOp::Request, BoostRequest::Unboost.to_word()),
            RogueStep::Claim(claim) => {
                let (intent, cs) = claim.words();
                push(StepOp::Intent, intent.to_word());
                push(StepOp::Section, cs.to_word());
            }
            RogueStep::Acknowledge => push(StepOp::Acknowledge, 0),
            RogueStep::Notify => push(StepOp::Notify, 0),
            RogueStep::Doorbell => push(StepOp::Doorbell, 0),
            RogueStep::Register(what) => {
                let value = match what {
                    Registers::Own => Some(own(seat)),
                    Registers::Nothing => Some(0),
                    Registers::Refused => refused.next(),
                    Registers::Odd => odd.next(),
                };
                push(StepOp::Register, value.unwrap_or(0));
            }
            RogueStep::Scribble(ns) => push(StepOp::Scribble, rates.clock.to_cycles(ns)),
            RogueStep::Deadline(ns) => push(StepOp::Deadline, rates.clock.to_cycles(ns)),
            RogueStep::Halt(ns) => push(StepOp::Sleep, rates.clock.to_cycles(ns)),
            RogueStep::Work(ns) => push(StepOp::Run, rates.iterations(ns)),
            RogueStep::Fault => push(StepOp::Fault, 0),
        }
    }
    steps
}

/// The value that registers the vCPU's own area.
fn own(seat: RoutinePlace) -> u64 {
    area(seat.vcpu) | REGISTER_ENABLE
}

/// One address of every kind that must be refused.
fn refused(seat: RoutinePlace) -> [u64; 9] {
    [
        // Unaligned, the enable bit missing, and all of the reserved bits.
        own(seat) | 2,
        area(seat.vcpu) | 0x800,
        area(seat.vcpu),
        u64::MAX,
        // The last page, whose end overflows; and one that a narrower sum would fold back.
        !0xfff | REGISTER_ENABLE,
        1 << 63 | own(seat),
        // Beyond memory: the first page, and the host's own area, which is read-only.
        RAM | REGISTER_ENABLE,
        HOST_WINDOW | REGISTER_ENABLE,
        // Another vCPU's page; of a lone vCPU, beyond memory again.
        if seat.vcpus > 1 { area((seat.vcpu + 1) % seat.vcpus) } else { RAM } | REGISTER_ENABLE,
    ]
}

/// Addresses that are legal, if odd: descriptors, code and page zero.
fn odd() -> [u64; 3] {
    [IDT | REGISTER_ENABLE, IMAGE | REGISTER_ENABLE, REGISTER_ENABLE]
}
