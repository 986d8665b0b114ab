//! Hostile guest kernels: a misdeed and some work by turns.

use vcoop_abi::BoostRequest;
use vcoop_model::plan::{Mode, RogueMode};

use super::{Misdeed, Op};

/// Operation `n` of a rogue: a misdeed and some work by turns.
pub(super) fn misdeed(mode: RogueMode, n: u64) -> Op {
    let work = |ns| Op::Run { ns, mode: Mode::User };
    let deed = n / 2;
    let acts = n.is_multiple_of(2);
    match mode {
        RogueMode::Forever if acts => Op::Rogue(Misdeed::Ask { preempt_off: true }),
        RogueMode::Forever => work(1_000_000),
        RogueMode::Toggle { .. } if acts => {
            Op::Rogue(Misdeed::Ask { preempt_off: deed.is_multiple_of(2) })
        }
        RogueMode::Toggle { period_ns } => work(period_ns),
        RogueMode::Scribble if n == 0 => Op::Rogue(Misdeed::Scribble),
        RogueMode::Scribble => work(1_000_000),
        // As the live guest: 64 exits with each request; the registration renewed every 32nd.
        RogueMode::MsrFlood if acts && deed % 32 == 31 => Op::Rogue(Misdeed::Register(Some(true))),
        RogueMode::MsrFlood if acts => {
            let asks = [BoostRequest::Boost, BoostRequest::Unboost, BoostRequest::None];
            Op::Rogue(Misdeed::Notify(asks[(deed / 64 % 3) as usize]))
        }
        // Nine refusals, then none, then the own area.
        RogueMode::HostileGpa if acts => Op::Rogue(Misdeed::Register(match deed % 11 {
            9 => Some(false),
            10 => Some(true),
            _ => None,
        })),
        RogueMode::MsrFlood | RogueMode::HostileGpa => work(1_000),
        RogueMode::TripleFault { after_ns } if n == 0 => work(after_ns),
        RogueMode::TripleFault { .. } => Op::Rogue(Misdeed::TripleFault),
    }
}
