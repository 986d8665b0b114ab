//! Checks a page while both sides use it.

use super::at;
use super::{Actor, Area, GuestCheck, HostCheck, Limits, Operation, Record, Report};
use crate::words::{BoostRequest, CsState, Header, Intent, Status, Word};

/// Both checks of one vCPU's page, fed with words instead of offsets.
///
/// A vCPU that has lost its pCPU cannot react. So the guest's rules are checked on a separate clock, which stands still
/// while the vCPU is [off](Self::off).
///
/// All times `at` are nanoseconds of one clock that never goes back.
#[derive(Clone, Debug)]
pub struct Watch {
    guest: GuestCheck,
    host: HostCheck,
    /// Since when the vCPU has had no pCPU, and the sum of such times before.
    off_since: Option<u64>,
    off_ns: u64,
}

impl Watch {
    /// A page with both headers in place, and nothing registered, at time `at` in nanoseconds.
    pub fn new(limits: Limits, at: u64) -> Self {
        let mut watch = Self {
            guest: GuestCheck::new(limits),
            host: HostCheck::new(limits),
            off_since: None,
            off_ns: 0,
        };
        watch.guest_stores(at, at::HEADER, Header::OURS.to_word());
        watch.host_stores(at, at::HEADER, Header::OURS.to_word());
        watch
    }

    /// Reads a record of any kind.
    pub fn read(&mut self, record: Record) {
        let at = self.off_since.unwrap_or(record.at).saturating_sub(self.off_ns);
        self.guest.read(Record { at, ..record });
        self.host.read(record);
    }

    /// The vCPU has lost its pCPU, or has one again.
    pub fn off(&mut self, at: u64, off: bool) {
        if let Some(since) = self.off_since.take() {
            self.off_ns += at.saturating_sub(since);
        }
        self.off_since = off.then_some(at);
    }

    fn guest_stores(&mut self, at: u64, offset: u16, value: u64) {
        let what = Operation::Store { area: Area::Guest, offset, size: 8, value };
        self.read(Record { at, by: Actor::Guest, operation: what });
    }

    fn host_stores(&mut self, at: u64, offset: u16, value: u64) {
        let what = Operation::Store { area: Area::Host, offset, size: 8, value };
        self.read(Record { at, by: Actor::Host, operation: what });
    }

    /// The guest stored its intent.
    pub fn intent(&mut self, at: u64, intent: Intent) {
        self.guest_stores(at, at::INTENT, intent.to_word());
    }

    /// The guest stored the state of its critical sections.
    pub fn cs(&mut self, at: u64, cs: CsState) {
        self.guest_stores(at, at::CS, cs.to_word());
    }

    /// The guest stored a request.
    pub fn request(&mut self, at: u64, request: BoostRequest) {
        self.guest_stores(at, at::REQUEST, request.to_word());
    }

    /// The guest acknowledged a ticket.
    pub fn ack(&mut self, at: u64, ack: u64) {
        self.guest_stores(at, at::ACK, ack);
    }

    /// The host published a status.
    pub fn status(&mut self, at: u64, status: Status) {
        self.host_stores(at, at::STATUS, status.to_word());
    }

    /// The host published a ticket.
    pub fn ticket(&mut self, at: u64, ticket: u64) {
        self.host_stores(at, at::TICKET, ticket);
    }

    /// Something else happened: a registration, a notification, an injection, a boost, a halt.
    pub fn event(&mut self, at: u64, what: Operation) {
        let by = if what == Operation::Notify { Actor::Guest } else { Actor::Host };
        self.read(Record { at, by, operation: what });
    }

    /// What was found so far: of the guest, and of the host.
    pub fn reports(&self) -> (Report, Report) {
        (self.guest.report(), self.host.report())
    }
}
