//! The host's rules.

use super::{Actor, Area, Limits, Operation, Record, Report, Rule, at, is_canonical};
use crate::words::{BoostRequest, CsState, Header, Hints, Intent, Status, Word};

/// The check of [`check_host`], record by record: the state of both sides so far.
#[derive(Clone, Debug, Default)]
pub struct HostCheck {
    limits: Limits,
    report: Report,
    header: Option<u64>,
    guest_header: u64,
    registered: bool,
    status: Status,
    ticket: u64,
    /// The ticket at the last injection.
    injected: u64,
    intent: Intent,
    cs: CsState,
    request: BoostRequest,
    ack: u64,
    applied: bool,
    halted: bool,
    /// Time of the first and of the latest record.
    span: Option<(u64, u64)>,
    boosted_ns: u64,
    /// Since when the host should have ended the boost; `None`: it need not.
    owes_since: Option<u64>,
}

/// Checks the host of a trace against the protocol. The trace must also contain the guest's stores.
pub fn check_host(trace: impl IntoIterator<Item = Record>, limits: Limits) -> Report {
    let mut check = HostCheck::new(limits);
    trace.into_iter().for_each(|record| check.read(record));
    check.report()
}

impl HostCheck {
    /// A check before the first record.
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Reads the next record.
    pub fn read(&mut self, record: Record) {
        self.report.records += 1;
        self.pass(record.at);
        self.record(record);
    }

    /// What was found so far.
    pub fn report(&self) -> Report {
        self.report
    }

    /// Time goes on to `now`.
    fn pass(&mut self, now: u64) {
        let (first, last) = self.span.unwrap_or((now, now));
        if self.applied && !self.halted {
            self.boosted_ns += now.saturating_sub(last);
        }
        self.span = Some((first, last.max(now)));
        if let Some(burst) = self.limits.burst_ns {
            let elapsed = u128::from(now.saturating_sub(first));
            let refill = elapsed * u128::from(self.limits.refill_ppm);
            let allowed = u128::from(burst) * 1_000_000 + refill;
            let within = u128::from(self.boosted_ns) * 1_000_000 <= allowed;
            self.report.require(Rule::WithinBudget, within, now);
        }
        let late = self.owes_since.is_some_and(|s| now.saturating_sub(s) > self.limits.grace_ns);
        self.report.require(Rule::NotifyEndsBoost, !late, now);
    }

    fn record(&mut self, Record { at: now, by, operation: what }: Record) {
        match (by, what) {
            (Actor::Host, Operation::Store { area: Area::Host, offset, size, value }) => {
                self.stored(offset, size, value, now);
            }
            (Actor::Host, Operation::Store { area: Area::Guest, .. }) => {
                self.report.broken(Rule::SingleWriter, now);
            }
            (_, Operation::Store { area: Area::Guest, offset, value, .. }) => {
                self.guest_stored(offset, value);
            }
            // The guest's stores to the host area never take effect: it is mapped read-only.
            (_, Operation::Store { .. }) => {}
            (_, Operation::Registered(on)) => {
                self.registered = on;
                self.report.require(Rule::HeaderFirst, !on || self.header.is_some(), now);
            }
            (_, Operation::Notify) => {
                let means_it = self.request == BoostRequest::Unboost
                    && !self.cs.in_interrupt()
                    && !self.intent.is_urgent()
                    && self.ack == self.ticket;
                if self.applied && means_it {
                    self.owes_since = Some(now);
                }
            }
            (_, Operation::Inject) => {
                let gated = self.status == Status::Disabled;
                let fresh = self.ticket > self.injected;
                self.report.require(Rule::TicketBeforeInterrupt, gated || fresh, now);
                self.injected = self.ticket;
                // A new reason: the boost may stay.
                self.owes_since = None;
            }
            (_, Operation::Applied(on)) => {
                let covered = !on || self.status == Status::Boosted;
                self.report.require(Rule::StatusCoversBoost, covered, now);
                self.applied = on;
                self.owes_since = None;
            }
            (_, Operation::Halted(on)) => {
                self.halted = on;
                self.owes_since = None;
            }
            (_, Operation::End) => {}
        }
    }

    fn stored(&mut self, offset: u16, size: u8, value: u64, now: u64) {
        let known = matches!(
            offset,
            at::HEADER
                | at::STATUS
                | at::TICKET
                | at::BUDGET
                | at::STEAL
                | at::HINTS
                | at::PING
                | at::TELL_IDLE
        ) || (at::PREFERRED..at::PREFERRED_END).contains(&offset)
            && offset.is_multiple_of(8);
        self.report.require(Rule::WholeWords, known && size == 8, now);
        if !known || size != 8 {
            return;
        }
        match offset {
            at::HEADER => {
                let changed = self.header.is_some_and(|h| h != value) && self.registered;
                self.report.require(Rule::HeaderFirst, !changed, now);
                self.report.require(Rule::DefinedEncoding, is_canonical::<Header>(value), now);
                self.header = Some(value);
            }
            at::STATUS => {
                self.report.require(Rule::DefinedEncoding, is_canonical::<Status>(value), now);
                self.status = Status::from_word(value);
                let covered = !self.applied || self.status == Status::Boosted;
                self.report.require(Rule::StatusCoversBoost, covered, now);
                let peer = Header::from_word(self.guest_header).is_compatible();
                let allowed = self.status == Status::Disabled || (self.registered && peer);
                self.report.require(Rule::DisabledUntilRegistered, allowed, now);
            }
            at::TICKET => {
                self.report.require(Rule::TicketMonotone, value >= self.ticket, now);
                self.ticket = value;
            }
            at::HINTS => {
                self.report.require(Rule::DefinedEncoding, is_canonical::<Hints>(value), now);
            }
            _ => {}
        }
    }

    fn guest_stored(&mut self, offset: u16, value: u64) {
        match offset {
            at::HEADER => self.guest_header = value,
            at::INTENT => self.intent = Intent::from_word(value),
            at::CS => self.cs = CsState::from_word(value),
            at::REQUEST => self.request = BoostRequest::from_word(value),
            at::ACK => self.ack = value,
            _ => return,
        }
        // Something urgent again: what the notification asked for is off.
        if self.request == BoostRequest::Boost {
            self.owes_since = None;
        }
    }
}
