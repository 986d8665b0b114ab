extern crate std;

use std::vec::Vec;

use super::{
    Actor, Area, Limits, Operation, Record, Report, Rule, Watch, at, check_guest, check_host,
};
use crate::words::{BoostRequest, CsState, Header, Intent, Status, TaskIntent, Word};

const LIMITS: Limits = Limits { grace_ns: 100, burst_ns: Some(10_000), refill_ppm: 0 };

fn guest(at: u64, offset: u16, value: u64) -> Record {
    let what = Operation::Store { area: Area::Guest, offset, size: 8, value };
    Record { at, by: Actor::Guest, operation: what }
}

fn host(at: u64, offset: u16, value: u64) -> Record {
    let what = Operation::Store { area: Area::Host, offset, size: 8, value };
    Record { at, by: Actor::Host, operation: what }
}

fn event(at: u64, what: Operation) -> Record {
    let by = if what == Operation::Notify { Actor::Guest } else { Actor::Host };
    Record { at, by, operation: what }
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
        event(2, Operation::Registered(true)),
        status(3, Status::Normal),
        host(10, at::TICKET, 1),
        status(11, Status::Boosted),
        event(12, Operation::Applied(true)),
        event(13, Operation::Inject),
        guest(20, at::CS, in_irq.to_word()),
        request(21, BoostRequest::Boost),
        guest(22, at::DEADLINE, 12_345),
        guest(30, at::CS, CsState::default().to_word()),
        request(31, BoostRequest::None),
        guest(32, at::ACK, 1),
        request(40, BoostRequest::Unboost),
        event(41, Operation::Notify),
        event(50, Operation::Applied(false)),
        status(51, Status::Normal),
        event(9_000, Operation::End),
    ]
}

/// The life with one record changed, replaced or swapped must break exactly this rule.
fn broken(check: impl Fn(&[Record]) -> Report, change: impl Fn(&mut [Record]), rule: Rule) {
    let mut trace = life();
    change(&mut trace);
    let report = check(&trace);
    assert!(report.broke(rule), "{rule:?} not found: {report:?}");
    assert!(!report.is_conforming());
}

/// The life with this change conforms.
fn allowed(check: impl Fn(&[Record]) -> Report, change: impl Fn(&mut [Record])) {
    let mut trace = life();
    change(&mut trace);
    let report = check(&trace);
    assert!(report.is_conforming(), "{:?}", report.violations().collect::<Vec<_>>());
}

/// The rules that a trace breaks.
fn rules(report: Report) -> Vec<Rule> {
    report.violations().map(|violation| violation.rule).collect()
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
    find(&|t| t[10] = guest(22, at::INTENT, 0xff), Rule::DefinedEncoding);
    // A status that is stored once more is as old as before.
    let still_off = |t: &mut [Record]| {
        t[16] = status(51, Status::Disabled);
        t[17] = status(140, Status::Disabled);
        t[18] = guest(160, at::CS, 0);
    };
    find(&still_off, Rule::StatusGates);
    let rings_when_off = |t: &mut [Record]| {
        t[13] = status(33, Status::Disabled);
        t[14] = event(34, Operation::End);
        t[15].at = 134;
    };
    find(&rings_when_off, Rule::StatusGates);
    let never_boosted = |t: &mut [Record]| t[5] = status(11, Status::Throttled);
    find(&never_boosted, Rule::UnboostWhenBoosted);
}

#[test]
fn what_a_guest_may_do_is_not_found() {
    let fine = |change: &dyn Fn(&mut [Record])| allowed(as_guest, change);
    // Another vCPU puts an urgent task on its queue.
    fine(&|t| t[10] = Record { by: Actor::OtherVcpu, ..guest(22, at::REMOTE, 1 << 16) });
    fine(&|t| t[10] = guest(22, at::HEADER, Header::OURS.to_word()));
    fine(&|t| t[18] = guest(9_000, at::ACK, 1));
    // The running task is still urgent, and no word says so.
    let rt = Intent { running: TaskIntent::fifo(1), ..Intent::default() };
    fine(&|t| {
        t[11] = guest(30, at::INTENT, rt.to_word());
        t[12] = guest(31, at::CS, 0);
        t[13] = request(32, BoostRequest::None);
        t[14] = guest(33, at::ACK, 1);
        t[15] = event(5_000, Operation::End);
    });
    // It halts instead of ringing.
    fine(&|t| {
        t[14] = event(40, Operation::Halted(true));
        t[15] = event(5_000, Operation::End);
    });
    // It has looked at the status just before that was taken back.
    fine(&|t| {
        t[14] = status(40, Status::Normal);
        t[15] = request(140, BoostRequest::Unboost);
    });
    // Its boost was a long one.
    fine(&|t| {
        for (i, record) in t[11..].iter_mut().enumerate() {
            record.at = 5_000 + i as u64;
        }
    });
}

#[test]
fn a_guest_that_registers_again_begins_where_the_new_ticket_is() {
    for (ticket, ack) in [(0, 0), (5, 1)] {
        allowed(as_guest, |t| {
            t[14] = event(40, Operation::Registered(false));
            t[15] = host(41, at::TICKET, ticket);
            t[16] = event(42, Operation::Registered(true));
            t[18] = guest(90, at::ACK, ack);
        });
    }
}

#[test]
fn a_store_of_another_size_says_nothing_else() {
    let half = |record: Record| {
        let Operation::Store { area, offset, value, .. } = record.operation else { unreachable!() };
        Record { operation: Operation::Store { area, offset, size: 4, value }, ..record }
    };
    let mut trace = life();
    trace[10] = half(guest(22, at::REQUEST, 77));
    assert_eq!(rules(as_guest(&trace)), [Rule::WholeWords]);
    trace = life();
    trace[10] = half(host(22, at::STATUS, 77));
    assert_eq!(rules(as_host(&trace)), [Rule::WholeWords]);
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
    find(&|t| t[10] = host(22, at::HINTS, 1 << 40), Rule::DefinedEncoding);
    find(&|t| t[1] = host(1, at::HEADER, 7), Rule::DefinedEncoding);
    find(&|t| t[1] = event(1, Operation::End), Rule::HeaderFirst);
    find(&|t| t.swap(4, 7), Rule::TicketBeforeInterrupt);
    find(&|t| t[10] = event(22, Operation::Inject), Rule::TicketBeforeInterrupt);
    find(&|t| t.swap(5, 6), Rule::StatusCoversBoost);
    find(&|t| t.swap(16, 17), Rule::StatusCoversBoost);
    find(&|t| t[0] = guest(0, at::HEADER, 0), Rule::DisabledUntilRegistered);
    find(&|t| t[2] = event(2, Operation::End), Rule::DisabledUntilRegistered);
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
        t[16] = event(50, Operation::Halted(true));
    };
    let mut trace = life();
    asleep(&mut trace);
    assert!(as_host(&trace).is_conforming(), "halted time is free: {:?}", as_host(&trace));
}

#[test]
fn what_a_host_may_do_is_not_found() {
    let fine = |change: &dyn Fn(&mut [Record])| allowed(as_host, change);
    fine(&|t| t[10] = host(22, at::HEADER, Header::OURS.to_word()));
    fine(&|t| t[10] = host(22, at::TICKET, 1));
    fine(&|t| t[10] = host(22, at::HINTS, 0b1_1111));
    fine(&|t| t[16].at = 141);
}

/// A host that keeps the boost is found, unless the notification did not mean it or a new reason came.
#[test]
fn a_host_owes_the_end_of_a_boost_only_to_who_is_done() {
    let keeps = |t: &mut [Record]| {
        t[16] = host(50, at::STEAL, 1);
        t[17] = host(51, at::STEAL, 2);
    };
    broken(as_host, keeps, Rule::NotifyEndsBoost);
    let not_urgent = |t: &mut [Record]| {
        keeps(t);
        t[17] = guest(51, at::CS, 0);
    };
    broken(as_host, not_urgent, Rule::NotifyEndsBoost);
    let rt = Intent { running: TaskIntent::fifo(1), ..Intent::default() };
    let reasons: [(usize, Record); 7] = [
        (11, guest(30, at::DEADLINE, 0)),
        (11, guest(30, at::CS, CsState { nmi: 1, ..CsState::default() }.to_word())),
        (12, guest(31, at::INTENT, rt.to_word())),
        (13, guest(32, at::DEADLINE, 0)),
        (14, guest(40, at::DEADLINE, 0)),
        (16, request(50, BoostRequest::Boost)),
        (6, event(12, Operation::End)),
    ];
    for (at, record) in reasons {
        allowed(as_host, |t| {
            keeps(t);
            // The budget is not the subject.
            t[18].at = 1_000;
            t[at] = record;
        });
    }
    allowed(as_host, |t| {
        t[16] = host(50, at::TICKET, 2);
        t[17] = event(51, Operation::Inject);
        t[18].at = 1_000;
    });
}

#[test]
fn boosted_time_is_bounded_by_burst_and_refill() {
    // Boosted from 12 on; 10 000 at once, and half of the time since 0.
    let limits = Limits { grace_ns: u64::MAX, burst_ns: Some(10_000), refill_ppm: 500_000 };
    for (end, within) in [(20_024, true), (20_025, false)] {
        let mut trace = life();
        trace[16] = host(50, at::STEAL, 1);
        trace[17] = host(5_000, at::STEAL, 2);
        trace[18].at = end;
        let report = check_host(trace, limits);
        assert_eq!(rules(report).is_empty(), within, "{end}: {report:?}");
    }
}

/// The life as reported by an observer of both sides.
fn watched(change: impl Fn(&mut [Record]), off: Option<[u64; 2]>) -> (Report, Report) {
    let mut trace = life();
    change(&mut trace);
    let mut watch = Watch::new(LIMITS, 0);
    let mut off = off.into_iter().flatten().zip([true, false]).peekable();
    for record in trace.into_iter().skip(2) {
        while let Some((at, on)) = off.next_if(|(at, _)| *at <= record.at) {
            watch.off(at, on);
        }
        let at = record.at;
        match record.operation {
            Operation::Store { offset, value, .. } => match offset {
                at::STATUS if record.by == Actor::Host => {
                    watch.status(at, Status::from_word(value));
                }
                at::TICKET if record.by == Actor::Host => watch.ticket(at, value),
                at::INTENT => watch.intent(at, Intent::from_word(value)),
                at::CS => watch.cs(at, CsState::from_word(value)),
                at::REQUEST => watch.request(at, BoostRequest::from_word(value)),
                at::ACK => watch.ack(at, value),
                _ => watch.read(record),
            },
            what => watch.event(at, what),
        }
    }
    watch.reports()
}

#[test]
fn who_watches_finds_what_the_checks_find() {
    let pairs = |change: &dyn Fn(&mut [Record])| {
        let mut trace = life();
        change(&mut trace);
        let found = watched(change, None);
        assert_eq!(found, (as_guest(&trace), as_host(&trace)));
        found
    };
    let (guest_side, host_side) = pairs(&|_| ());
    assert!(guest_side.is_conforming() && host_side.is_conforming());
    // Without any one of these records guest or host breaks a rule.
    for without in [2, 4, 5, 11, 14, 16] {
        let (guest_side, host_side) = pairs(&|t| t[without].operation = Operation::End);
        assert!(!guest_side.is_conforming() || !host_side.is_conforming(), "{without}");
    }
    let rt = Intent { running: TaskIntent::fifo(1), ..Intent::default() };
    let (guest_side, _) = pairs(&|t| t[12] = guest(31, at::INTENT, rt.to_word()));
    assert!(guest_side.broke(Rule::NotifyMeansIt));
}

#[test]
fn a_guest_without_a_pcpu_is_not_late() {
    // It would ring at 41, and does at 2041; its host takes no longer than before.
    let late = |t: &mut [Record]| {
        for record in &mut t[14..] {
            record.at += 2_000;
        }
    };
    let (guest_side, host_side) = watched(late, None);
    assert!(guest_side.broke(Rule::BoostIsAnswered) && host_side.is_conforming());
    assert!(watched(late, Some([35, 2_035])).0.is_conforming());
    // Time with a pCPU counts before and after, and two times without one add up.
    assert!(watched(late, Some([35, 1_900])).0.broke(Rule::BoostIsAnswered));
    assert!(watched(late, Some([200, 2_035])).0.broke(Rule::BoostIsAnswered));
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
        if let Operation::Store { value, .. } = &mut self.operation {
            *value = new;
        }
        self
    }
}
