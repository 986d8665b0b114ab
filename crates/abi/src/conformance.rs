//! Checks a guest or a host against the protocol, given a trace of what it did.
//!
//! A trace is a sequence of [`Record`]s in the order in which they took effect: stores to the two areas, and the few
//! other events that the rules mention. Any source will do: a simulator, a VMM that single-steps its guest,
//! write-protected pages, a BPF program. [`check_guest`] and [`check_host`] read the trace once, without allocation,
//! and report the first violation of each rule. A [`Watch`] does the same while it happens. [`SampledCheck`] checks any guest
//! against the rules that can be judged from samples of its page.
//!
//! Some rules are about reactions to the other side's stores. A reaction takes time, so these rules have a
//! [`grace`](Limits::grace_ns): a store that a side began before it could see the other's counts as conforming.

mod guest;
mod host;
mod sampled;
mod watch;

pub use guest::{GuestCheck, check_guest};
pub use host::{HostCheck, check_host};
pub use sampled::SampledCheck;
pub use watch::Watch;

/// Who acted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Actor {
    /// The vCPU that the areas belong to.
    Guest,
    /// Another vCPU of the VM.
    OtherVcpu,
    /// The host.
    Host,
}

/// Which area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Area {
    /// [`GuestArea`](crate::GuestArea).
    Guest,
    /// [`HostArea`](crate::HostArea).
    Host,
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A store of `size` bytes at `offset`.
    Store {
        /// Where.
        area: Area,
        /// Byte offset in the area.
        offset: u16,
        /// Bytes.
        size: u8,
        /// Value, zero-extended.
        value: u64,
    },
    /// The guest area was registered (`true`) or the registration ended.
    Registered(bool),
    /// The guest wrote the notify MSR.
    Notify,
    /// The host made an interrupt visible to the vCPU for which it boosts on injection.
    Inject,
    /// The host gave the vCPU thread its means (`true`) or its baseline back.
    Applied(bool),
    /// The vCPU halted (`true`) or was woken.
    Halted(bool),
    /// The trace ends: an action that is overdue by now is a violation.
    End,
}

/// One thing that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When, in nanoseconds.
    pub at: u64,
    /// Who.
    pub by: Actor,
    /// What.
    pub operation: Operation,
}

/// Parameters of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Time a side has to react to a store of the other's, in nanoseconds.
    pub grace_ns: u64,
    /// Boosted time at once, in nanoseconds; with [`refill_ppm`](Self::refill_ppm) it bounds the
    /// time boosted and not halted. `None`: not checked.
    pub burst_ns: Option<u64>,
    /// Refill of that bound, in parts per million of the time since the first record.
    pub refill_ppm: u32,
}

impl Default for Limits {
    /// 100 us of grace, no bound on boosted time.
    fn default() -> Self {
        Self { grace_ns: 100_000, burst_ns: None, refill_ppm: 0 }
    }
}

/// The rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Rule {
    /// Only the vCPU stores to its guest area, and only the host to the host area.
    SingleWriter,
    /// Every store is one aligned 64-bit word that the layout defines.
    WholeWords,
    /// The header is stored before the area is used, and does not change.
    HeaderFirst,
    /// Every word is encoded as the layout says, reserved bits zero.
    DefinedEncoding,
    /// Guest: no store and no notification while the status is disabled.
    StatusGates,
    /// Guest: an ack never runs ahead of the ticket.
    AckWithinTicket,
    /// Guest: the ack never goes back while registered.
    AckMonotone,
    /// Guest: request = unboost is stored, and the notification sent, only when boosted.
    UnboostWhenBoosted,
    /// Guest: a notification comes with request = unboost and nothing urgent in the facts.
    NotifyMeansIt,
    /// Guest: a boost that is no longer needed is ended, by a notification or a halt.
    BoostIsAnswered,
    /// Host: the ticket never goes back while the guest is registered.
    TicketMonotone,
    /// Host: a new ticket is published before the interrupt is visible.
    TicketBeforeInterrupt,
    /// Host: while the means are applied, the status says boosted.
    StatusCoversBoost,
    /// Host: the status is disabled unless a compatible guest is registered.
    DisabledUntilRegistered,
    /// Host: a notification with request = unboost and nothing urgent ends the boost.
    NotifyEndsBoost,
    /// Host: boosted time stays within its bound.
    WithinBudget,
}

impl Rule {
    /// Number of rules.
    pub const COUNT: usize = Self::WithinBudget as usize + 1;
}

/// A rule and where it was first broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// Index of the record, from 0.
    pub record: usize,
    /// Its time.
    pub at: u64,
}

/// Outcome of a check: the first violation of each rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    first: [Option<Violation>; Rule::COUNT],
    /// Records read.
    pub records: usize,
}

impl Report {
    /// Violations, by rule.
    pub fn violations(&self) -> impl Iterator<Item = Violation> + '_ {
        self.first.iter().flatten().copied()
    }

    /// No rule was broken.
    pub fn is_conforming(&self) -> bool {
        self.violations().next().is_none()
    }

    /// Whether this rule was broken.
    pub fn broke(&self, rule: Rule) -> bool {
        self.first[rule as usize].is_some()
    }

    /// Notes a violation at the current record, unless the rule was broken before.
    fn broken(&mut self, rule: Rule, at: u64) {
        let record = self.records.saturating_sub(1);
        self.first[rule as usize].get_or_insert(Violation { rule, record, at });
    }

    fn require(&mut self, rule: Rule, holds: bool, at: u64) {
        if !holds {
            self.broken(rule, at);
        }
    }
}

/// Offsets of the words in their area, as `u16`.
mod at {
    use core::mem::offset_of;

    use crate::{GuestArea, HostArea};

    pub(super) const HEADER: u16 = 0;
    pub(super) const INTENT: u16 = offset_of!(GuestArea, intent) as u16;
    pub(super) const CS: u16 = offset_of!(GuestArea, cs) as u16;
    pub(super) const REQUEST: u16 = offset_of!(GuestArea, request) as u16;
    pub(super) const ACK: u16 = offset_of!(GuestArea, ack) as u16;
    pub(super) const DEADLINE: u16 = offset_of!(GuestArea, deadline_tsc) as u16;
    pub(super) const PONG: u16 = offset_of!(GuestArea, pong) as u16;
    pub(super) const PONG_TSC: u16 = offset_of!(GuestArea, pong_tsc) as u16;
    pub(super) const REMOTE: u16 = offset_of!(GuestArea, remote) as u16;
    pub(super) const STATUS: u16 = offset_of!(HostArea, status) as u16;
    pub(super) const TICKET: u16 = offset_of!(HostArea, ticket) as u16;
    pub(super) const BUDGET: u16 = offset_of!(HostArea, budget_left_ns) as u16;
    pub(super) const STEAL: u16 = offset_of!(HostArea, steal_ns) as u16;
    pub(super) const HINTS: u16 = offset_of!(HostArea, hints) as u16;
    pub(super) const PING: u16 = offset_of!(HostArea, ping) as u16;
    pub(super) const TELL_IDLE: u16 = offset_of!(HostArea, tell_idle) as u16;
    pub(super) const PREFERRED: u16 = offset_of!(HostArea, preferred) as u16;
    pub(super) const PREFERRED_END: u16 = PREFERRED + 32;
}

/// Whether the word decodes to something that encodes to the same word.
fn is_canonical<W: crate::Word>(word: u64) -> bool {
    W::from_word(word).to_word() == word
}

#[cfg(test)]
mod tests;
