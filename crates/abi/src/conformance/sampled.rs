//! Checks a guest against the protocol by samples of its page.

use core::sync::atomic::Ordering;

use super::{Actor, Area, GuestCheck, Limits, Operation, Record, Report, Rule, at};
use crate::layout::GuestArea;
use crate::words::{BoostRequest, Status, Word};

/// Words of the guest area, in the order in which they are read. A guest stores the ack last. So an ack that is read
/// first comes with the facts of its interrupt, or newer ones.
const WORDS: [u16; 9] = [
    at::ACK,
    at::HEADER,
    at::INTENT,
    at::CS,
    at::REQUEST,
    at::DEADLINE,
    at::PONG,
    at::PONG_TSC,
    at::REMOTE,
];

/// The check of one vCPU's guest by a host that samples its page.
///
/// The host reports its own stores before it makes them. A word that changed between two samples counts as stored by
/// the guest at the second sample. Other stores in between are not seen, and neither are the CPU and the instruction
/// that stored. So only [`SampledCheck::RULES`] are checked.
///
/// All times `at` are nanoseconds of one clock that never goes back.
#[derive(Clone, Debug)]
pub struct SampledCheck {
    check: GuestCheck,
    words: [u64; WORDS.len()],
    changes: u64,
    answers: u64,
}

impl SampledCheck {
    /// The rules that can be judged from samples.
    pub const RULES: [Rule; 7] = [
        Rule::HeaderFirst,
        Rule::DefinedEncoding,
        Rule::StatusGates,
        Rule::AckWithinTicket,
        Rule::AckMonotone,
        Rule::UnboostWhenBoosted,
        Rule::BoostIsAnswered,
    ];

    /// The page of a vCPU that is registered, as it is at time `at` in nanoseconds; the host's status is
    /// disabled and its ticket 0.
    pub fn new(limits: Limits, at: u64, area: &GuestArea) -> Self {
        let mut looks = Self {
            check: GuestCheck::new(limits),
            words: [0; WORDS.len()],
            changes: 0,
            answers: 0,
        };
        looks.stored(at, at::HEADER, area.header.load(Ordering::Acquire));
        looks.read(at, Actor::Host, Operation::Registered(true));
        // Words from before this host are not judged.
        looks.words = words(area);
        looks
    }

    /// The host is about to store a status.
    pub fn status(&mut self, at: u64, status: Status) {
        self.host_stores(at, at::STATUS, status.to_word());
    }

    /// The host is about to store a ticket.
    pub fn ticket(&mut self, at: u64, ticket: u64) {
        self.host_stores(at, at::TICKET, ticket);
    }

    /// Samples the page.
    pub fn look(&mut self, at: u64, area: &GuestArea) {
        let now = words(area);
        for (n, offset) in WORDS.into_iter().enumerate() {
            if self.words[n] == now[n] {
                continue;
            }
            self.words[n] = now[n];
            self.changes += 1;
            let unboost = offset == at::REQUEST && now[n] == BoostRequest::Unboost.to_word();
            self.answers += u64::from(unboost);
            self.stored(at, offset, now[n]);
        }
        // Overdue stores are judged also if no word has changed.
        self.read(at, Actor::Host, Operation::End);
    }

    /// Number of changed words seen.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Boosts that the guest was seen to end.
    pub fn answers(&self) -> u64 {
        self.answers
    }

    /// What was found so far. Only [`SampledCheck::RULES`] are valid in it.
    pub fn report(&self) -> Report {
        self.check.report()
    }

    fn stored(&mut self, at: u64, offset: u16, value: u64) {
        // Any vCPU may store the remote word.
        let by = if offset == at::REMOTE { Actor::OtherVcpu } else { Actor::Guest };
        self.read(at, by, Operation::Store { area: Area::Guest, offset, size: 8, value });
    }

    fn host_stores(&mut self, at: u64, offset: u16, value: u64) {
        self.read(at, Actor::Host, Operation::Store { area: Area::Host, offset, size: 8, value });
    }

    fn read(&mut self, at: u64, by: Actor, what: Operation) {
        self.check.read(Record { at, by, operation: what });
    }
}

fn words(area: &GuestArea) -> [u64; WORDS.len()] {
    WORDS.map(|offset| {
        let word = match offset {
            at::HEADER => &area.header,
            at::INTENT => &area.intent,
            at::CS => &area.cs,
            at::REQUEST => &area.request,
            at::ACK => &area.ack,
            at::DEADLINE => &area.deadline_tsc,
            at::PONG => &area.pong,
            at::PONG_TSC => &area.pong_tsc,
            _ => &area.remote,
        };
        word.load(Ordering::Acquire)
    })
}

#[cfg(test)]
mod tests {
    use super::SampledCheck;
    use crate::conformance::{Limits, Rule};
    use crate::layout::GuestArea;
    use crate::words::{BoostRequest, Class, CsState, Header, Intent, Status, TaskIntent, Word};
    use core::sync::atomic::{AtomicU64, Ordering};

    const LIMITS: Limits = Limits { grace_ns: 100, burst_ns: None, refill_ppm: 0 };

    /// A registered guest that runs a fair task, and a host that boosts it at 1000.
    fn boosted() -> (SampledCheck, GuestArea) {
        let area = GuestArea::default();
        area.header.store(Header::OURS.to_word(), Ordering::Relaxed);
        let mut looks = SampledCheck::new(LIMITS, 0, &area);
        looks.status(10, Status::Normal);
        let fair = TaskIntent { class: Class::Fair, prio: 20, declared: false };
        let intent = Intent { running: fair, ..Intent::default() };
        area.intent.store(intent.to_word(), Ordering::Relaxed);
        looks.look(20, &area);
        looks.ticket(1000, 1);
        looks.status(1000, Status::Boosted);
        (looks, area)
    }

    #[test]
    fn a_guest_that_answers_conforms_and_its_answers_are_counted() {
        let (mut looks, area) = boosted();
        area.cs.store(CsState { hardirq: 1, ..CsState::default() }.to_word(), Ordering::Relaxed);
        area.request.store(BoostRequest::Boost.to_word(), Ordering::Relaxed);
        looks.look(1200, &area);
        area.cs.store(0, Ordering::Relaxed);
        area.ack.store(1, Ordering::Relaxed);
        area.request.store(BoostRequest::Unboost.to_word(), Ordering::Relaxed);
        looks.look(1250, &area);
        looks.status(1260, Status::Normal);
        looks.look(9000, &area);
        assert!(looks.report().is_conforming(), "{:?}", looks.report());
        assert_eq!((looks.changes(), looks.answers()), (6, 1));
    }

    #[test]
    fn each_word_is_looked_at_and_only_the_end_of_a_boost_is_an_answer() {
        let (mut looks, area) = boosted();
        let GuestArea { cs, request, ack, deadline_tsc, pong, pong_tsc, remote, .. } = &area;
        let mut changes = looks.changes();
        for word in [ack, deadline_tsc, pong, pong_tsc, remote, cs] {
            word.store(1, Ordering::Relaxed);
            looks.look(1001, &area);
            changes += 1;
            assert_eq!((looks.changes(), looks.answers()), (changes, 0));
        }
        for answers in 1..3 {
            request.store(BoostRequest::Boost.to_word(), Ordering::Relaxed);
            looks.look(1002, &area);
            assert_eq!(looks.answers(), answers - 1);
            request.store(BoostRequest::Unboost.to_word(), Ordering::Relaxed);
            looks.look(1002, &area);
            assert_eq!(looks.answers(), answers);
        }
        // Its own vCPUs may tell one another of tasks, whatever the host's status.
        looks.status(1003, Status::Disabled);
        remote.store(1 << 16, Ordering::Relaxed);
        looks.look(9000, &area);
        assert!(looks.report().is_conforming(), "{:?}", looks.report());
    }

    #[test]
    fn what_can_be_seen_is_found() {
        let assert_found = |looks: &SampledCheck, rule| {
            assert!(looks.report().broke(rule), "{rule:?}");
            assert!(SampledCheck::RULES.contains(&rule));
        };
        let (asks, ends) = (BoostRequest::Boost.to_word(), BoostRequest::Unboost.to_word());
        // A status of the host, what the guest stores after it and where, and when that is looked at.
        type Word = fn(&GuestArea) -> &AtomicU64;
        let cases: [(Option<Status>, Word, u64, u64, Rule); 5] = [
            (None, |area| &area.header, 1, 1001, Rule::HeaderFirst),
            (None, |area| &area.request, 7, 1001, Rule::DefinedEncoding),
            (None, |area| &area.ack, 2, 1001, Rule::AckWithinTicket),
            (Some(Status::Disabled), |area| &area.request, asks, 1102, Rule::StatusGates),
            (Some(Status::Normal), |area| &area.request, ends, 1102, Rule::UnboostWhenBoosted),
        ];
        for (status, word, value, at, rule) in cases {
            let (mut looks, area) = boosted();
            status.into_iter().for_each(|status| looks.status(1001, status));
            word(&area).store(value, Ordering::Relaxed);
            looks.look(at, &area);
            assert_found(&looks, rule);
        }
        let (mut looks, area) = boosted();
        for (at, ack) in [(1001, 1), (1002, 0)] {
            area.ack.store(ack, Ordering::Relaxed);
            looks.look(at, &area);
        }
        assert_found(&looks, Rule::AckMonotone);
        let (mut looks, area) = boosted();
        area.ack.store(1, Ordering::Relaxed);
        looks.look(1001, &area);
        looks.look(1101, &area);
        assert!(!looks.report().broke(Rule::BoostIsAnswered));
        looks.look(1102, &area);
        assert_found(&looks, Rule::BoostIsAnswered);
    }
}
