//! Hostile guest kernels: a violation and some work by turns.

use vcoop_abi::BoostRequest;
use vcoop_model::plan::{Mode, RogueMode};

use super::{Op, Violation};

/// Operation `n` of a rogue: a violation and some work by turns.
pub(super) fn violation(mode: RogueMode, n: u64) -> Op {
    let work = |ns| Op::Run { ns, mode: Mode::User };
    let nth = n / 2;
    let acts = n.is_multiple_of(2);
    match mode {
        RogueMode::Forever if acts => Op::Rogue(Violation::Ask { preempt_off: true }),
        RogueMode::Forever => work(1_000_000),
        RogueMode::Toggle { .. } if acts => {
            Op::Rogue(Violation::Ask { preempt_off: nth.is_multiple_of(2) })
        }
        RogueMode::Toggle { period_ns } => work(period_ns),
        RogueMode::Scribble if n == 0 => Op::Rogue(Violation::Scribble),
        RogueMode::Scribble => work(1_000_000),
        // As the live guest: 64 exits with each request; the registration renewed every 32nd.
        RogueMode::MsrFlood if acts && nth % 32 == 31 => Op::Rogue(Violation::Register(Some(true))),
        RogueMode::MsrFlood if acts => {
            let asks = [BoostRequest::Boost, BoostRequest::Unboost, BoostRequest::None];
            Op::Rogue(Violation::Notify(asks[(nth / 64 % 3) as usize]))
        }
        // Nine refusals, then none, then the own area.
        RogueMode::HostileGpa if acts => Op::Rogue(Violation::Register(match nth % 11 {
            9 => Some(false),
            10 => Some(true),
            _ => None,
        })),
        RogueMode::MsrFlood | RogueMode::HostileGpa => work(1_000),
        RogueMode::TripleFault { after_ns } if n == 0 => work(after_ns),
        RogueMode::TripleFault { .. } => Op::Rogue(Violation::TripleFault),
    }
}
