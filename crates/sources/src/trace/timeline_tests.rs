use super::super::event::{Comm, Event, EventKind, SwitchOut};
use super::{IDLE, Meter, Span, State, Timeline};
use proptest::prelude::*;
use vcoop_threads::tsc::Clock;

fn comm(name: &str) -> Comm {
    let mut comm = Comm::default();
    comm[..name.len()].copy_from_slice(name.as_bytes());
    comm
}

fn at(time: u64, what: EventKind) -> Event {
    Event { time, cpu: 0, kind: what }
}

fn switch(time: u64, prev: i32, runnable: bool, next: i32, name: &str) -> Event {
    let leaves = if runnable { SwitchOut::Runnable } else { SwitchOut::Asleep };
    at(time, EventKind::Switch { prev, leaves, next, comm: comm(name) })
}

/// Thread 5 is tracked; one cycle is a nanosecond.
fn timeline(events: &[Event]) -> Timeline {
    let mut t = Timeline::new(Clock::new(0, 1_000_000));
    t.know(5, "guest", true);
    events.iter().for_each(|e| t.apply(e));
    t.settle(1_000);
    t
}

fn states(t: &Timeline, from: u64, to: u64) -> Option<Vec<(State, u64)>> {
    let spans = t.spans(5, from, to)?;
    assert!(spans.windows(2).all(|w| w[0].to == w[1].from), "a gap: {spans:?}");
    Some(spans.iter().map(|s: &Span| (s.state, s.to - s.from)).collect())
}

fn ran(t: &Timeline, from: u64, to: u64) -> Vec<(String, u64)> {
    let mut out = Vec::new();
    t.ran(0, from, to, |who, a, b| {
        out.push((who.map_or("?", |w| t.name(w)).to_owned(), b - a));
    });
    out
}

#[test]
fn a_thread_goes_through_its_states() {
    use State::{Asleep, Preempted, Running, Waking};
    let t = timeline(&[
        switch(100, 0, true, 5, "vcpu0"),
        switch(150, 5, true, 9, "make"),
        switch(180, 9, true, 5, "vcpu0"),
        // While it runs: nothing.
        at(190, EventKind::Waking { tid: 5, cpu: 0, by: None }),
        switch(200, 5, false, 0, "swapper/0"),
        at(230, EventKind::Waking { tid: 5, cpu: 0, by: None }),
        at(235, EventKind::Wakeup { tid: 5, cpu: 0 }),
        switch(240, 0, true, 7, "kworker/0:1"),
        switch(260, 7, false, 5, "vcpu0"),
    ]);
    let want = [(Running, 50), (Preempted, 30), (Running, 20), (Asleep, 30), (Waking, 30)];
    assert_eq!(states(&t, 100, 260).unwrap(), want);
    assert_eq!(states(&t, 160, 190).unwrap(), [(Preempted, 20), (Running, 10)]);
    let at = Span { state: Preempted, from: 150, to: 170, cpu: 0 };
    assert_eq!((t.span_at(5, 170), t.span_at(5, 1_001)), (Some(at), None));
    assert_eq!(states(&t, 990, 1_000).unwrap(), [(Running, 10)]);
    assert_eq!(states(&t, 90, 110), None, "before it was first seen");
    assert_eq!(states(&t, 990, 1_001), None, "not settled yet");
    let want = [("idle", 10), ("kworker", 20)].map(|(n, ns)| (n.to_owned(), ns));
    assert_eq!(ran(&t, 230, 260), want);
    assert_eq!(ran(&t, 150, 180), [("make".to_owned(), 30)]);
    assert_eq!(ran(&t, 50, 150), [("?".to_owned(), 50), ("guest".to_owned(), 50)]);
    t.ran(0, 200, 230, |who, _, _| assert_eq!(who, Some(IDLE)));
}

#[test]
fn what_a_thread_did_before_its_first_event_follows_from_it() {
    use State::{Asleep, Preempted, Running, Waking};
    let first = |event: Event| {
        let mut t = Timeline::new(Clock::new(0, 1_000_000));
        t.know(5, "guest", true);
        t.were_there(50);
        assert!(t.is_unseen(5));
        t.apply(&event);
        t.settle(200);
        assert!(!t.is_unseen(5));
        assert_eq!(t.spans(5, 49, 60), None, "before the recording");
        states(&t, 50, 200).unwrap()
    };
    let switched = |prev, runnable, next| first(switch(100, prev, runnable, next, "vcpu0"));
    assert_eq!(switched(5, true, 0), [(Running, 50), (Preempted, 100)]);
    assert_eq!(switched(5, false, 0), [(Running, 50), (Asleep, 100)]);
    assert_eq!(switched(0, true, 5), [(Preempted, 50), (Running, 100)]);
    let woken = first(at(100, EventKind::Waking { tid: 5, cpu: 0, by: None }));
    assert_eq!(woken, [(Asleep, 50), (Waking, 100)]);
}

#[test]
fn events_that_were_lost_say_nothing_of_before() {
    let mut t = Timeline::new(Clock::new(0, 1_000_000));
    t.know(5, "guest", true);
    t.were_there(50);
    t.apply(&at(90, EventKind::Lost { since: 80 }));
    t.apply(&switch(100, 5, false, 0, "swapper/0"));
    t.settle(200);
    assert_eq!(t.spans(5, 85, 150), None);
    let all = t.all_spans(5, 85, 150).unwrap();
    let all: Vec<_> = all.iter().map(|s| (s.state, s.to - s.from)).collect();
    assert_eq!(all, [(State::Unknown, 15), (State::Asleep, 50)]);
}

#[test]
fn a_wake_up_that_overtakes_the_sleep_is_not_lost() {
    use State::{Asleep, Running, Waking};
    // The waker on another CPU was traced first, and put it on a queue after the switch.
    let t = timeline(&[
        switch(100, 0, true, 5, "vcpu0"),
        at(195, EventKind::Waking { tid: 5, cpu: 0, by: None }),
        switch(200, 5, false, 0, "swapper/0"),
        at(203, EventKind::Wakeup { tid: 5, cpu: 0 }),
        switch(210, 0, true, 5, "vcpu0"),
    ]);
    let want = [(Running, 50), (Asleep, 3), (Waking, 7), (Running, 5)];
    assert_eq!(states(&t, 150, 215).unwrap(), want);
}

#[test]
fn a_thread_that_the_kernel_blocks_is_not_asleep() {
    use State::{Blocked, Running, Waking};
    let leaves = SwitchOut::Blocked;
    let blocked = EventKind::Switch { prev: 5, leaves, next: 0, comm: comm("swapper/0") };
    let t = timeline(&[
        switch(100, 0, true, 5, "vcpu0"),
        at(130, blocked),
        at(170, EventKind::Waking { tid: 5, cpu: 0, by: None }),
        switch(180, 0, true, 5, "vcpu0"),
    ]);
    let want = [(Running, 30), (Blocked, 40), (Waking, 10), (Running, 20)];
    assert_eq!(states(&t, 100, 200).unwrap(), want);
}

#[test]
fn polling_counts_as_halted_and_guest_mode_is_told_apart() {
    use State::{Asleep, Guest, Polling, Running, Waking};
    let t = timeline(&[
        switch(100, 0, true, 5, "vcpu0"),
        at(110, EventKind::Entry { tid: 5 }),
        at(150, EventKind::Exit { tid: 5, reason: None }),
        at(190, EventKind::HaltOver { tid: 5, ns: 30 }),
        at(195, EventKind::Entry { tid: 5 }),
        at(200, EventKind::Exit { tid: 5, reason: None }),
        // Polled for 20, then slept.
        switch(230, 5, false, 0, "swapper/0"),
        at(260, EventKind::Wakeup { tid: 5, cpu: 0 }),
        switch(270, 0, true, 5, "vcpu0"),
        at(275, EventKind::HaltOver { tid: 5, ns: 65 }),
    ]);
    let want = [(Running, 10), (Guest, 40), (Running, 10), (Polling, 30), (Running, 5)];
    assert_eq!(states(&t, 100, 195).unwrap(), want);
    let want = [(Running, 10), (Polling, 20), (Asleep, 30), (Waking, 10), (Running, 30)];
    assert_eq!(states(&t, 200, 300).unwrap(), want);
    assert!(t.sees_entries(5) && !t.sees_entries(6));
}

#[test]
fn what_was_lost_is_unknown_until_it_is_seen_again() {
    use State::{Preempted, Running};
    let t = timeline(&[
        switch(100, 0, true, 5, "vcpu0"),
        switch(150, 5, true, 9, "make"),
        switch(160, 9, true, 5, "vcpu0"),
        at(180, EventKind::Lost { since: 155 }),
        at(185, EventKind::Waking { tid: 5, cpu: 0, by: None }),
        switch(200, 5, true, 9, "make"),
    ]);
    assert_eq!(states(&t, 100, 155).unwrap(), [(Running, 50), (Preempted, 5)]);
    assert_eq!(states(&t, 100, 156), None);
    assert_eq!(states(&t, 190, 210), None);
    assert_eq!(states(&t, 200, 210).unwrap(), [(Preempted, 10)]);
    assert_eq!(ran(&t, 150, 210)[1], ("?".to_owned(), 45));
}

#[test]
fn meters_are_read_where_asked() {
    let mut t = Timeline::new(Clock::new(0, 1_000_000));
    t.know(5, "guest", true);
    [120, 170, 900].into_iter().for_each(|m| t.mark(m));
    for e in [
        switch(100, 0, true, 5, "vcpu0"),
        switch(150, 5, true, 9, "make"),
        switch(180, 9, false, 5, "vcpu0"),
        switch(200, 5, false, 0, "swapper/0"),
        at(300, EventKind::Waking { tid: 5, cpu: 0, by: None }),
        // The kernel counts from the queue on.
        at(305, EventKind::Wakeup { tid: 5, cpu: 0 }),
        switch(310, 0, false, 5, "vcpu0"),
    ] {
        t.apply(&e);
    }
    assert_eq!(t.meters().len(), 2);
    t.settle(900);
    let meters: Vec<Meter> = t.meters().iter().map(|m| m[&5]).collect();
    // A wait that is not over counts for nothing yet.
    let want = [(20, 0), (50, 0), (70 + 590, 35)].map(|(exec, wait)| Meter { exec, wait });
    assert_eq!(meters, want);
}

#[test]
fn names_of_strangers_are_grouped_and_printable() {
    for (name, label) in [
        ("kworker/0:1", "kworker"),
        ("lto cgu.3", "lto"),
        ("CPU 12/KVM", "CPU/KVM"),
        ("CPU 3/TCG", "CPU/TCG"),
        ("x\x1b[31m", "x?[31m"),
        ("", "nameless"),
    ] {
        assert_eq!(super::readable(&comm(name)), label);
    }
}

#[test]
fn history_and_names_are_bounded() {
    let mut t = timeline(&[]);
    for i in 0..200_000_u64 {
        let name = format!("t{i}");
        t.apply(&switch(2 * i, 5, true, 10 + i as i32, &name));
        t.apply(&switch(2 * i + 1, 10 + i as i32, true, 5, "vcpu0"));
    }
    t.settle(400_000);
    assert!(t.names.len() <= super::MOST_LABELS && t.foreign.len() <= super::MOST_THREADS);
    assert!(t.tracks[&5].segments.len() <= super::MOST_SEGMENTS);
    assert_eq!(t.spans(5, 0, 10), None, "forgotten");
    assert_eq!(t.spans(5, 399_990, 400_000).unwrap().len(), 10);
    t.prune(399_995);
    assert_eq!(t.spans(5, 399_990, 400_000), None);
    assert_eq!(t.spans(5, 399_995, 400_000).unwrap().len(), 5);
}

proptest! {
    /// Whatever the events, in order of time: the spans cover a known stretch without a gap.
    #[test]
    fn spans_cover_or_are_refused(
        events in prop::collection::vec((0_u64..40, 0_u8..8, any::<bool>(), 0_u64..60), 0..60),
        from in 0_u64..1_000,
        length in 0_u64..500,
    ) {
        let mut time = 0;
        let events: Vec<Event> = events
            .into_iter()
            .map(|(after, kind, flag, n)| {
                time += after;
                match kind {
                    0 => switch(time, 5, flag, 9, "make"),
                    1 => switch(time, 9, flag, 5, "vcpu0"),
                    2 => at(time, EventKind::Waking { tid: 5, cpu: 0, by: None }),
                    3 => at(time, EventKind::Wakeup { tid: 5, cpu: 0 }),
                    4 => at(time, EventKind::Entry { tid: 5 }),
                    5 => at(time, EventKind::Exit { tid: 5, reason: None }),
                    6 => at(time, EventKind::HaltOver { tid: 5, ns: n }),
                    _ => at(time, EventKind::Lost { since: time.saturating_sub(n) }),
                }
            })
            .collect();
        let mut t = Timeline::new(Clock::new(0, 1_000_000));
        t.know(5, "guest", true);
        events.iter().for_each(|e| t.apply(e));
        t.settle(5_000);
        let segments: Vec<u64> = t.tracks[&5].segments.iter().map(|s| s.from).collect();
        prop_assert!(segments.is_sorted(), "{segments:?}");
        if let Some(spans) = t.spans(5, from, from + length) {
            prop_assert_eq!(spans.iter().map(|s| s.to - s.from).sum::<u64>(), length);
            prop_assert!(spans.windows(2).all(|w| w[0].to == w[1].from));
        }
        let mut sum = 0;
        t.ran(0, from, from + length, |_, a, b| sum += b - a);
        prop_assert_eq!(sum, length);
    }
}
