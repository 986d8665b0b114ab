//! The guest's rules.

use super::{Actor, Area, Limits, Operation, Record, Report, Rule, at, is_canonical};
use crate::words::{BoostRequest, CsState, Header, Intent, Status, Word};

/// The check of [`check_guest`], record by record: the state of both sides so far.
#[derive(Clone, Debug, Default)]
pub struct GuestCheck {
    limits: Limits,
    report: Report,
    header: Option<u64>,
    registered: bool,
    status: Status,
    /// Time of the last change of status.
    status_since: u64,
    /// When the status was last boosted.
    boosted_until: Option<u64>,
    ticket: u64,
    ack: u64,
    intent: Intent,
    cs: CsState,
    request: BoostRequest,
    halted: bool,
    /// Since when the guest should have ended its boost; `None`: it need not.
    owes_since: Option<u64>,
}

/// Checks the guest of a trace against the protocol. The trace must also contain the host's stores to status and
/// ticket.
pub fn check_guest(trace: impl IntoIterator<Item = Record>, limits: Limits) -> Report {
    let mut check = GuestCheck::new(limits);
    trace.into_iter().for_each(|record| check.read(record));
    check.report()
}

impl GuestCheck {
    /// A check before the first record.
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Reads the next record.
    pub fn read(&mut self, record: Record) {
        self.report.records += 1;
        self.overdue(record.at);
        self.record(record);
        self.owe(record.at);
    }

    /// What was found so far.
    pub fn report(&self) -> Report {
        self.report
    }

    fn record(&mut self, Record { at: now, by, operation: what }: Record) {
        match (by, what) {
            (Actor::Host, Operation::Store { area: Area::Host, offset, value, .. }) => {
                self.host_stored(offset, value, now);
            }
            (Actor::Guest, Operation::Store { area: Area::Guest, offset, size, value }) => {
                self.stored(offset, size, value, now);
            }
            (
                Actor::OtherVcpu,
                Operation::Store { area: Area::Guest, offset: at::REMOTE, size: 8, .. },
            ) => {}
            (Actor::Guest | Actor::OtherVcpu, Operation::Store { .. }) => {
                self.report.broken(Rule::SingleWriter, now);
            }
            (Actor::Guest, Operation::Notify) => self.notified(now),
            (_, Operation::Registered(on)) => {
                self.registered = on;
                let ours = |word| Header::from_word(word).is_compatible();
                self.report.require(Rule::HeaderFirst, !on || self.header.is_some_and(ours), now);
                self.ack = self.ticket.min(self.ack);
            }
            (_, Operation::Halted(on)) => self.halted = on,
            _ => {}
        }
    }

    fn host_stored(&mut self, offset: u16, value: u64, now: u64) {
        match offset {
            at::STATUS => {
                let new = Status::from_word(value);
                if self.status == Status::Boosted {
                    self.boosted_until = Some(now);
                }
                if new != self.status {
                    self.status_since = now;
                }
                self.status = new;
            }
            at::TICKET => self.ticket = value,
            _ => {}
        }
    }

    fn stored(&mut self, offset: u16, size: u8, value: u64, now: u64) {
        let known = matches!(
            offset,
            at::HEADER
                | at::INTENT
                | at::CS
                | at::REQUEST
                | at::ACK
                | at::DEADLINE
                | at::PONG
                | at::PONG_TSC
                | at::REMOTE
        );
        self.report.require(Rule::WholeWords, known && size == 8, now);
        if !known || size != 8 {
            return;
        }
        if offset == at::HEADER {
            let changed = self.header.is_some_and(|h| h != value) && self.registered;
            self.report.require(Rule::HeaderFirst, !changed, now);
            self.header = Some(value);
            return;
        }
        // A guest that read the status just before it changed may still store.
        let gated = self.status == Status::Disabled && self.past_grace(self.status_since, now);
        self.report.require(Rule::StatusGates, !(gated && self.registered), now);
        let canonical = match offset {
            at::INTENT => {
                self.intent = Intent::from_word(value);
                is_canonical::<Intent>(value)
            }
            at::CS => {
                self.cs = CsState::from_word(value);
                is_canonical::<CsState>(value)
            }
            at::REQUEST => {
                self.request = BoostRequest::from_word(value);
                let unboost = self.request == BoostRequest::Unboost;
                let fits = !unboost || self.was_boosted(now);
                self.report.require(Rule::UnboostWhenBoosted, fits, now);
                is_canonical::<BoostRequest>(value)
            }
            at::ACK => {
                self.report.require(Rule::AckWithinTicket, value <= self.ticket, now);
                self.report.require(Rule::AckMonotone, value >= self.ack, now);
                self.ack = value;
                true
            }
            _ => true,
        };
        self.report.require(Rule::DefinedEncoding, canonical, now);
    }

    fn notified(&mut self, now: u64) {
        self.report.require(Rule::UnboostWhenBoosted, self.was_boosted(now), now);
        let means_it = self.request == BoostRequest::Unboost && !self.is_urgent();
        self.report.require(Rule::NotifyMeansIt, means_it, now);
        let gated = self.status == Status::Disabled && self.past_grace(self.status_since, now);
        self.report.require(Rule::StatusGates, !gated, now);
        // The rest is the host's.
        self.owes_since = None;
    }

    fn is_urgent(&self) -> bool {
        self.cs.in_interrupt() || self.intent.is_urgent()
    }

    fn was_boosted(&self, now: u64) -> bool {
        self.status == Status::Boosted
            || self.boosted_until.is_some_and(|until| !self.past_grace(until, now))
    }

    fn past_grace(&self, since: u64, now: u64) -> bool {
        now.saturating_sub(since) > self.limits.grace_ns
    }

    /// Starts or stops the clock of an unanswered boost. An unacknowledged ticket stops it: the
    /// interrupt will bring the guest back to its check.
    fn owe(&mut self, now: u64) {
        let owes = self.registered
            && self.status == Status::Boosted
            && !self.halted
            && !self.is_urgent()
            && !self.cs.preempt_off
            && !self.intent.idle
            && self.request == BoostRequest::None
            && self.ack >= self.ticket;
        self.owes_since = if owes { self.owes_since.or(Some(now)) } else { None };
    }

    fn overdue(&mut self, now: u64) {
        let late = self.owes_since.is_some_and(|since| self.past_grace(since, now));
        self.report.require(Rule::BoostIsAnswered, !late, now);
    }
}
