//! Checks one vCPU's page for conformance, from what the host sees.

use vcoop_abi::conformance::{Limits, Watch};
use vcoop_abi::{BoostRequest, CsState, GuestWords, Intent};
use vcoop_model::plan::Ns;

/// The guest's stores are seen when the policy reads them, and either side may lose its CPU for a while.
const LIMITS: Limits = Limits { grace_ns: 50_000_000, burst_ns: None, refill_ppm: 0 };

/// What checks a page.
#[derive(Debug)]
pub(crate) struct PageCheck {
    pub(crate) watch: Watch,
    /// Whether the guest's rules are checked, too.
    guest: bool,
    seen: Option<(Intent, CsState, BoostRequest, u64)>,
}

impl PageCheck {
    pub(crate) fn new(guest: bool, at: Ns) -> Self {
        Self { watch: Watch::new(LIMITS, at), guest, seen: None }
    }

    /// The guest's words were read: changed words were stored since the last read.
    pub(crate) fn reads(&mut self, at: Ns, words: &GuestWords) {
        let now = (
            words.intent.decode(),
            words.cs.decode(),
            words.request.decode(),
            words.ack.bounded(u64::MAX),
        );
        let before = self.seen.replace(now);
        if before.is_none_or(|seen| seen.0 != now.0) {
            self.watch.intent(at, now.0);
        }
        if before.is_none_or(|seen| seen.1 != now.1) {
            self.watch.cs(at, now.1);
        }
        if before.is_none_or(|seen| seen.2 != now.2) {
            self.watch.request(at, now.2);
        }
        if before.is_none_or(|seen| seen.3 != now.3) {
            self.watch.ack(at, now.3);
        }
    }

    /// The first rule of each side that was broken.
    pub(crate) fn broken(&self) -> Option<String> {
        let (guest, host) = self.watch.reports();
        let guest = guest.violations().next().filter(|_| self.guest);
        let first = [("guest", guest), ("host", host.violations().next())];
        let told = first.into_iter().find_map(|(side, v)| v.map(|v| (side, v)));
        told.map(|(side, v)| format!("the {side} broke {:?} at {} ns", v.rule, v.at))
    }
}
