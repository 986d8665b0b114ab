//! The shared page of a vCPU.

use vcoop_abi::{BoostRequest, Class, CsState, GuestWords, Status, TaskIntent, Word};
use vcoop_model::plan::Claim;
use vcoop_policy::guest::{HostView, Stores};
use vcoop_sched::config::Policy;

/// The shared page of one vCPU, as both sides see it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Page {
    /// What the guest has stored.
    intent: u64,
    cs: u64,
    request: u64,
    ack: u64,
    status: Status,
    ticket: u64,
    /// The guest's kernel is hostile: it writes anything and never ends a boost.
    rogue: bool,
    /// State of the generator, if another vCPU scribbles here; 0 = none.
    scribbled: u64,
}

impl Page {
    /// Words as the host reads them. Under a scribbler each word is random, and differs at each reading.
    pub(crate) fn words(&mut self) -> GuestWords {
        if self.scribbled == 0 {
            return GuestWords::from_raw(self.intent, self.cs, self.request, self.ack);
        }
        let [intent, cs, request, ack] = [(); 4].map(|()| self.nonsense());
        GuestWords::from_raw(intent, cs, request, ack)
    }

    pub(crate) fn view(&self) -> HostView {
        HostView { status: self.status, ticket: self.ticket }
    }

    pub(crate) fn store(&mut self, stores: &Stores) {
        self.intent = stores.intent.unwrap_or(self.intent);
        self.cs = stores.cs.unwrap_or(self.cs);
        self.request = stores.request.unwrap_or(self.request);
        self.ack = stores.ack.unwrap_or(self.ack);
    }

    /// The status in the host area.
    pub(crate) fn status(&self) -> Status {
        self.status
    }

    pub(crate) fn set_status(&mut self, status: Status) {
        self.status = status;
    }

    pub(crate) fn set_ticket(&mut self, ticket: u64) {
        self.ticket = ticket;
    }

    /// Whether the guest's kernel on this vCPU is hostile.
    pub(crate) fn is_rogue(&self) -> bool {
        self.rogue
    }

    /// Whether this vCPU's kernel wrote what the host reads.
    pub(crate) fn is_honest(&self) -> bool {
        !self.rogue && self.scribbled == 0
    }

    /// Another vCPU scribbles here from now on; `seed` is not 0.
    pub(crate) fn scribble(&mut self, seed: u64) {
        if self.scribbled == 0 {
            self.scribbled = seed;
        }
    }

    /// The next word of a scribbler: never the same, and half of them small, so that they hit defined values or just
    /// miss them.
    pub(crate) fn nonsense(&mut self) -> u64 {
        // xorshift64 (Marsaglia, 2003): never 0, and one word of state in a `Copy` page.
        self.scribbled ^= self.scribbled << 13;
        self.scribbled ^= self.scribbled >> 7;
        self.scribbled ^= self.scribbled << 17;
        let word = self.scribbled;
        if word & 1 << 40 == 0 { word } else { word >> 32 & 0xf }
    }

    /// A hostile kernel writes these words from now on.
    pub(crate) fn take_over(&mut self) {
        self.rogue = true;
    }

    /// The hostile kernel stores this request.
    pub(crate) fn request(&mut self, request: BoostRequest) {
        self.request = request.to_word();
    }

    /// The hostile kernel acknowledges the last interrupt.
    pub(crate) fn acknowledge(&mut self) {
        self.ack = self.ticket;
    }

    /// The hostile kernel claims this state.
    pub(crate) fn claim(&mut self, claim: Claim) {
        let (intent, cs) = claim.words();
        let last = CsState::from_word(self.cs).section;
        let section = last.wrapping_add(cs.preempt_off.into());
        self.cs = CsState { section, ..cs }.to_word();
        self.intent = intent.to_word();
    }
}

/// Description of a task with this policy in the intent word.
pub(crate) fn intent(policy: Policy) -> TaskIntent {
    match policy {
        Policy::Fifo(prio) => TaskIntent::fifo(prio),
        Policy::Rr(prio) => TaskIntent::rr(prio),
        Policy::Normal { nice, .. } => {
            TaskIntent { prio: (i16::from(nice) + 20) as u8, ..TaskIntent::FAIR }.canonical()
        }
        Policy::Idle => TaskIntent { prio: 39, ..TaskIntent::FAIR },
        Policy::Deadline { .. } => TaskIntent::new(Class::Deadline, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_side_stores_the_other_reads() {
        let mut page = Page::default();
        let boost = BoostRequest::Boost.to_word();
        page.store(&Stores { request: Some(boost), ..Stores::default() });
        let words = page.words();
        assert_eq!(words, GuestWords::from_raw(0, 0, boost, 0));
        assert_eq!(page.words(), words, "and the same twice");
        page.set_status(Status::Boosted);
        page.set_ticket(3);
        assert_eq!(page.view(), HostView { status: Status::Boosted, ticket: 3 });
        assert!(page.is_honest());
    }

    #[test]
    fn a_page_that_is_scribbled_on_reads_differently_each_time() {
        let mut page = Page::default();
        page.scribble(1);
        assert!(!page.is_honest() && !page.is_rogue());
        assert_ne!(page.words(), page.words());
    }
}
