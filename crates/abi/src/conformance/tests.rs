use super::{Actor, Area, Limits, Record, Report, Rule, What, at, check_guest, check_host};
use crate::words::{BoostRequest, CsState, Header, Status, Word};

const LIMITS: Limits = Limits { grace_ns: 100, burst_ns: Some(10_000), refill_ppm: 0 };

fn guest(at: u64, offset: u16, value: u64) -> Record {
    let what = What::Store { area: Area::Guest, offset, size: 8, value };
    Record { at, by: Actor::Guest, what }
}

fn host(at: u64, offset: u16, value: u64) -> Record {
    let what = What::Store { area: Area::Host, offset, size: 8, value };
    Record { at, by: Actor::Host, what }
}

fn event(at: u64, what: What) -> Record {
    let by = if what == What::Notify { Actor::Guest } else { Actor::Host };
    Record { at, by, what }
}

fn status(at: u64, s: Status) -> Record {
    host(at, at::STATUS, s.to_word())
}

fn request(at: u64, r: BoostRequest) -> Record {
    guest(at, at::REQUEST, r.to_word())
}

/// A life: registered, boosted for an interrupt, ended by the guest.
fn life() -> [Record; 19] {
    let in_irq = CsState { hardirq: 1, ..CsState::default() };
    [
        guest(0, at::HEADER, Header::OURS.to_word()),
        host(1, at::HEADER, Header::OURS.to_word()),
        event(2, What::Registered(true)),
        status(3, Status::Normal),
        host(10, at::TICKET, 1),
        status(11, Status::Boosted),
        event(12, What::Applied(true)),
        event(13, What::Inject),
        guest(20, at::CS, in_irq.to_word()),
        request(21, BoostRequest::Boost),
        guest(22, at::DEADLINE, 12_345),
        guest(30, at::CS, CsState::default().to_word()),
        request(31, BoostRequest::None),
        guest(32, at::ACK, 1),
        request(40, BoostRequest::Unboost),
        event(41, What::Notify),
        event(50, What::Applied(false)),
        status(51, Status::Normal),
        event(9_000, What::End),
    ]
}

/// The life with one record changed, replaced or swapped must break exactly this rule.
fn broken(check: impl Fn(&[Record]) -> Report, change: impl Fn(&mut [Record]), rule: Rule) {
    let mut trace = life();
    change(&mut trace);
    let report = check(&trace);
    assert!(report.broke(rule), "{rule:?} not found: {report:?}");
}

fn as_guest(t: &[Record]) -> Report {
    check_guest(t.iter().copied(), LIMITS)
}

fn as_host(t: &[Record]) -> Report {
    check_host(t.iter().copied(), LIMITS)
}

#[test]
fn an_honest_life_conforms() {
    for report in [as_guest(&life()), as_host(&life())] {
        assert!(report.is_conforming(), "{report:?}");
        assert_eq!(report.records, life().len());
    }
}

#[test]
fn guest_rules_are_found_broken() {
    let find = |change: &dyn Fn(&mut [Record]), rule| broken(as_guest, change, rule);
    find(&|t| t[8].by = Actor::OtherVcpu, Rule::SingleWriter);
    find(
        &|t| t[10] = Record { by: Actor::Guest, ..status(22, Status::Boosted) },
        Rule::SingleWriter,
    );
    find(&|t| t[10] = guest(22, 68, 0), Rule::WholeWords);
    find(&|t| t[0] = guest(0, at::HEADER, 0), Rule::HeaderFirst);
    find(&|t| t[10] = guest(22, at::HEADER, 0), Rule::HeaderFirst);
    find(&|t| t[10] = request(22, BoostRequest::None).with_value(77), Rule::DefinedEncoding);
    find(&|t| t[18] = guest(9_000, at::ACK, 2), Rule::AckWithinTicket);
    find(&|t| t[18] = guest(9_000, at::ACK, 0), Rule::AckMonotone);
    find(&|t| t[18] = request(9_000, BoostRequest::Unboost), Rule::UnboostWhenBoosted);
    find(&|t| t[14] = request(40, BoostRequest::None), Rule::NotifyMeansIt);
    find(&|t| t[11] = guest(30, at::DEADLINE, 0), Rule::NotifyMeansIt);
    let deaf = |t: &mut [Record]| {
        t[17] = status(51, Status::Disabled);
        t[18] = guest(9_000, at::CS, 0);
    };
    find(&deaf, Rule::StatusGates);
    let silent = |t: &mut [Record]| {
        for (i, r) in t[14..18].iter_mut().enumerate() {
            *r = guest(40 + i as u64, at::DEADLINE, 0);
        }
    };
    find(&silent, Rule::BoostIsAnswered);
}

#[test]
fn host_rules_are_found_broken() {
    let find = |change: &dyn Fn(&mut [Record]), rule| broken(as_host, change, rule);
    find(
        &|t| t[10] = Record { by: Actor::Host, ..request(22, BoostRequest::None) },
        Rule::SingleWriter,
    );
    find(&|t| t[10] = host(22, at::PREFERRED + 4, 0), Rule::WholeWords);
    find(&|t| t[10] = host(22, at::HEADER, 0), Rule::HeaderFirst);
    find(&|t| t[10] = host(22, at::STATUS, 9), Rule::DefinedEncoding);
    find(&|t| t[10] = host(22, at::TICKET, 0), Rule::TicketMonotone);
    find(&|t| t.swap(4, 7), Rule::TicketBeforeInterrupt);
    find(&|t| t.swap(5, 6), Rule::StatusCoversBoost);
    find(&|t| t.swap(16, 17), Rule::StatusCoversBoost);
    find(&|t| t[0] = guest(0, at::HEADER, 0), Rule::DisabledUntilRegistered);
    find(&|t| t[2] = event(2, What::End), Rule::DisabledUntilRegistered);
    let deaf = |t: &mut [Record]| {
        t[16] = host(50, at::STEAL, 1);
        t[17] = host(51, at::STEAL, 2);
    };
    find(&deaf, Rule::NotifyEndsBoost);
    let greedy = |t: &mut [Record]| {
        deaf(t);
        t[18].at = 10_013;
    };
    find(&greedy, Rule::WithinBudget);
    let asleep = |t: &mut [Record]| {
        greedy(t);
        t[16] = event(50, What::Halted(true));
    };
    let mut trace = life();
    asleep(&mut trace);
    assert!(as_host(&trace).is_conforming(), "halted time is free: {:?}", as_host(&trace));
}

#[test]
fn a_guest_that_looked_just_before_the_status_changed_conforms() {
    let mut trace = life();
    trace[17] = status(51, Status::Disabled);
    trace[18] = guest(151, at::CS, 0);
    assert!(as_guest(&trace).is_conforming(), "{:?}", as_guest(&trace));
    trace[18] = guest(152, at::CS, 0);
    assert!(as_guest(&trace).broke(Rule::StatusGates));
}

#[test]
fn the_first_violation_is_kept() {
    let mut trace = life();
    trace[10] = host(22, at::STATUS, 9);
    trace[18] = host(9_000, at::STATUS, 9);
    let report = as_host(&trace);
    let found = report.violations().find(|v| v.rule == Rule::DefinedEncoding).unwrap();
    assert_eq!((found.record, found.at), (10, 22));
}

impl Record {
    fn with_value(mut self, new: u64) -> Self {
        if let What::Store { value, .. } = &mut self.what {
            *value = new;
        }
        self
    }
}
