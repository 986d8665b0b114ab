//! Conversion to and from the page shape of the public pvsched v3 work.
//!
//! That page has the same three parts (negotiation at 0, guest facts at 64, host feedback at 128)
//! in one page, and the same rule: each fact is one aligned little-endian word, and each word has one
//! writer. Some of its words say less than ours, and some say other things:
//!
//! | ours | theirs | what is lost |
//! | --- | --- | --- |
//! | [`Intent`] | `task_intent` (64) | nothing for Linux classes; *stop* becomes FIFO 99 |
//! | [`CsState`] | `cs_state` (72) | nesting depths become flags; no section numbers |
//! | ack | `interrupt_ack` (80) | nothing |
//! | [`BoostRequest`](crate::BoostRequest) | none | they judge by the facts alone |
//! | [`Status`] | `applied_state` (128) | theirs also says *what* was applied |
//! | ticket | `interrupt_ticket` (136) | nothing; theirs is opaque and 0 is none |
//!
//! The shape was still moving when this was written, so nothing else in this crate depends on it.

use crate::words::{Class, CsState, Intent, Status, TaskIntent};

/// Offset of `task_intent`.
pub const TASK_INTENT: usize = 64;
/// Offset of `cs_state`.
pub const CS_STATE: usize = 72;
/// Offset of `interrupt_ack`.
pub const INTERRUPT_ACK: usize = 80;
/// Offset of `applied_state`.
pub const APPLIED_STATE: usize = 128;
/// Offset of `interrupt_ticket`.
pub const INTERRUPT_TICKET: usize = 136;

/// Scheduling policy numbers, as `sched_setattr` has them.
const NORMAL: u8 = 0;
const FIFO: u8 = 1;
const RR: u8 = 2;
const BATCH: u8 = 3;
const IDLE: u8 = 5;
const DEADLINE: u8 = 6;

const PENDING_VALID: u8 = 1 << 0;
const CPU_IDLE: u8 = 1 << 1;

const CS_NMI: u64 = 1 << 0;
const CS_HARDIRQ: u64 = 1 << 1;
const CS_SOFTIRQ: u64 = 1 << 2;
const CS_PREEMPT_OFF: u64 = 1 << 3;

/// Hint of `applied_state`: notify when urgency drops.
const HINT_KICK_DEBOOST: u8 = 1 << 0;
/// Flags of `applied_state`: one of the two debts is being paid off.
const THROTTLED: u8 = 1 << 0 | 1 << 1;
const TOTAL_THROTTLED: u8 = 1 << 1;

/// `{policy, nice, rt_prio}` of a task.
fn describe(task: TaskIntent) -> [u8; 3] {
    let task = task.canonical();
    match task.class {
        Class::Fifo => [FIFO, 0, task.prio],
        Class::Rr => [RR, 0, task.prio],
        Class::Deadline => [DEADLINE, 0, 0],
        Class::Idle => [IDLE, 0, 0],
        Class::Stop => [FIFO, 0, 99],
        // nice = prio - 20, as a signed byte.
        Class::Fair => [NORMAL, task.prio.wrapping_sub(20), 0],
        Class::None => [NORMAL, 0, 0],
    }
}

fn parse([policy, nice, rt_prio]: [u8; 3]) -> TaskIntent {
    let nice = i8::from_le_bytes([nice]).clamp(-20, 19);
    let (class, prio) = match policy {
        NORMAL | BATCH => (Class::Fair, (nice + 20).unsigned_abs()),
        FIFO => (Class::Fifo, rt_prio),
        RR => (Class::Rr, rt_prio),
        IDLE => (Class::Idle, 0),
        DEADLINE => (Class::Deadline, 0),
        _ => (Class::None, 0),
    };
    TaskIntent::new(class, prio).canonical()
}

/// Our intent as their `task_intent`.
pub fn task_intent(intent: Intent) -> u64 {
    let [a, b, c] = describe(intent.running);
    let [d, e, f] = intent.pending.map_or([0; 3], describe);
    let pending = if intent.pending.is_some() { PENDING_VALID } else { 0 };
    let idle = if intent.idle { CPU_IDLE } else { 0 };
    u64::from_le_bytes([a, b, c, d, e, f, pending | idle, 0])
}

/// Their `task_intent` as our intent. Total.
pub fn from_task_intent(word: u64) -> Intent {
    let [a, b, c, d, e, f, flags, _] = word.to_le_bytes();
    Intent {
        running: parse([a, b, c]),
        pending: (flags & PENDING_VALID != 0).then(|| parse([d, e, f])),
        idle: flags & CPU_IDLE != 0,
    }
}

/// Our critical-section state as their `cs_state`.
pub fn cs_state(cs: CsState) -> u64 {
    let flag = |on: bool, bit: u64| if on { bit } else { 0 };
    flag(cs.nmi != 0, CS_NMI)
        | flag(cs.hardirq != 0, CS_HARDIRQ)
        | flag(cs.softirq != 0, CS_SOFTIRQ)
        | flag(cs.preempt_off, CS_PREEMPT_OFF)
}

/// Their `cs_state` as ours: depth 1 for a set flag, section 0. A host that reads it sees
/// consecutive sections as one.
pub fn from_cs_state(word: u64) -> CsState {
    CsState {
        nmi: u8::from(word & CS_NMI != 0),
        hardirq: u8::from(word & CS_HARDIRQ != 0),
        softirq: u8::from(word & CS_SOFTIRQ != 0),
        preempt_off: word & CS_PREEMPT_OFF != 0,
        section: 0,
    }
}

/// Our status as their `applied_state`, given what is applied to the thread now. `None`: there is
/// no word for it (their header carries "disabled").
pub fn applied_state(status: Status, applied: TaskIntent) -> Option<u64> {
    let (hints, flags) = match status {
        Status::Disabled => return None,
        Status::Normal => (0, 0),
        Status::Boosted => (HINT_KICK_DEBOOST, 0),
        Status::Throttled => (0, TOTAL_THROTTLED),
    };
    let [a, b, c] = describe(applied);
    Some(u64::from_le_bytes([a, b, c, hints, flags, 0, 0, 0]))
}

/// Their `applied_state` as our status: throttled by a flag, boosted by the hint that asks for the
/// notification.
pub fn from_applied_state(word: u64) -> Status {
    let [_, _, _, hints, flags, ..] = word.to_le_bytes();
    if flags & THROTTLED != 0 {
        Status::Throttled
    } else if hints & HINT_KICK_DEBOOST != 0 {
        Status::Boosted
    } else {
        Status::Normal
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intents_survive_the_round_trip() {
        let tasks = [
            TaskIntent::FAIR,
            TaskIntent::new(Class::Fair, 0),
            TaskIntent::new(Class::Fair, 39),
            TaskIntent::fifo(1),
            TaskIntent::rr(99),
            TaskIntent::new(Class::Deadline, 0),
            TaskIntent::new(Class::Idle, 0),
        ];
        for running in tasks {
            for pending in tasks.map(Some).into_iter().chain([None]) {
                for idle in [false, true] {
                    let intent = Intent { running, pending, idle };
                    assert_eq!(from_task_intent(task_intent(intent)), intent);
                }
            }
        }
    }

    #[test]
    fn known_words() {
        let running = TaskIntent::new(Class::Fair, 15);
        let intent = Intent { running, pending: Some(TaskIntent::fifo(80)), idle: false };
        // SCHED_OTHER, nice -5; SCHED_FIFO 80; pending valid.
        assert_eq!(task_intent(intent).to_le_bytes(), [0, 0xfb, 0, 1, 0, 80, 1, 0]);
        let cs = CsState { hardirq: 2, preempt_off: true, section: 9, ..CsState::default() };
        assert_eq!(cs_state(cs), 0b1010);
        for word in 0..16 {
            assert_eq!(cs_state(from_cs_state(word)), word);
        }
        assert_eq!(from_cs_state(!0xf), CsState::default());
    }

    #[test]
    fn hostile_words_have_a_meaning() {
        for word in [u64::MAX, 0x7f7f_7f7f_7f7f_7f7f, 0x80_8080, 1 << 63] {
            let intent = from_task_intent(word);
            assert_eq!(intent.running, intent.running.canonical());
            from_cs_state(word);
            from_applied_state(word);
        }
    }

    #[test]
    fn statuses_survive_where_there_is_a_word() {
        for status in [Status::Normal, Status::Boosted, Status::Throttled] {
            let word = applied_state(status, TaskIntent::rr(8)).unwrap();
            assert_eq!(from_applied_state(word), status);
        }
        assert_eq!(applied_state(Status::Disabled, TaskIntent::FAIR), None);
    }
}
