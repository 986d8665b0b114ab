//! Decomposes a sample by the timeline.
//!
//! A sample is cut at every change of its thread's state between the time it was due and its first
//! instruction. Cuts are taken in nanoseconds from the due time, so the parts add up to the sample
//! exactly, whatever is rounded.

use std::collections::BTreeMap;

use vcoop_guest::ring::Sample;
use vcoop_model::plan::Ns;
use vcoop_model::recording::{Part, Parts};
use vcoop_sources::trace::{IDLE, Label, Span, State, Tid, Timeline};
use vcoop_threads::tsc::Clock;

/// Parts of a sample, and the threads on the CPU while it waited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AttributedSample {
    pub(crate) parts: Parts,
    /// By label, largest first.
    pub(crate) ran: Vec<(Label, Ns)>,
}

/// Cuts a sample.
struct Attribution<'a> {
    timeline: &'a Timeline,
    clock: &'a Clock,
    due: u64,
    latency: Ns,
    /// Time up to which it is booked.
    done: Ns,
    parts: Parts,
    ran: BTreeMap<Label, Ns>,
}

impl<'a> Attribution<'a> {
    fn new(timeline: &'a Timeline, clock: &'a Clock, due: u64, latency: Ns) -> Self {
        let (parts, ran) = (Parts::default(), BTreeMap::new());
        Self { timeline, clock, due, latency, done: 0, parts, ran }
    }

    /// Books the time up to `to` as this part; returns how much that was.
    fn until(&mut self, to: u64, part: Part) -> Ns {
        let at = self.clock.to_ns(to.saturating_sub(self.due));
        let ns = at.clamp(self.done, self.latency) - self.done;
        self.parts[part as usize] += ns;
        self.done += ns;
        ns
    }

    /// Books a wait for a CPU, and the threads on that CPU. A thread that is woken on an idle CPU waits for that CPU to
    /// leave its idle state.
    fn wait(&mut self, span: &Span, part: Part) {
        let timeline = self.timeline;
        timeline.ran(span.cpu, span.from, span.to, |who, _, to| match who {
            Some(IDLE) if span.state == State::Waking => {
                self.until(to, Part::CState);
            }
            Some(IDLE) | None => {
                self.until(to, part);
            }
            Some(label) => {
                let ns = self.until(to, part);
                *self.ran.entry(label).or_default() += ns;
            }
        });
    }

    /// Follows a thread; `asleep`, `running` and `guest` say as which parts these states are booked.
    fn follow(&mut self, tid: Tid, from: u64, to: u64, meaning: [Part; 3]) -> Option<()> {
        let [asleep, running, guest] = meaning;
        for span in self.timeline.spans(tid, from, to)? {
            match span.state {
                State::Waking => self.wait(&span, Part::WakeToRun),
                State::Preempted => self.wait(&span, Part::PreemptedToRun),
                State::Asleep | State::Blocked | State::Polling => {
                    self.until(span.to, asleep);
                }
                State::Running => {
                    self.until(span.to, running);
                }
                State::Guest => {
                    self.until(span.to, guest);
                }
                State::Unknown => return None,
            }
        }
        Some(())
    }

    /// The decomposition; `rest`: the part that gets the last rounding.
    fn close(mut self, rest: Part) -> AttributedSample {
        self.parts[rest as usize] += self.latency - self.done;
        debug_assert_eq!(self.parts.iter().sum::<Ns>(), self.latency);
        let mut ran: Vec<_> = self.ran.into_iter().filter(|(_, ns)| *ns > 0).collect();
        ran.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
        AttributedSample { parts: self.parts, ran }
    }
}

/// A guest's sample, whose task runs on the vCPU with this thread. `fired`: when the injector fired
/// for it, if that is known. Times are in order: due, fired, woken, taken.
///
/// `None`: the trace has a gap there, or does not reach that far.
pub(crate) fn guest(
    timeline: &Timeline,
    clock: &Clock,
    tid: Tid,
    sample: &Sample,
    fired: Option<u64>,
) -> Option<AttributedSample> {
    let latency = clock.to_ns(sample.taken - sample.due);
    let mut ledger = Attribution::new(timeline, clock, sample.due, latency);
    let mut asleep = Part::TimerSlack;
    if let Some(fired) = fired {
        ledger.until(fired, Part::TimerSlack);
        // From here on an interrupt is on its way.
        asleep = Part::Delivery;
    }
    let from = fired.unwrap_or(sample.due);
    // Outside of guest mode it exits or enters. Without KVM's events neither can be distinguished from delivery.
    ledger.follow(tid, from, sample.woken, [asleep, Part::EntryExit, Part::Delivery])?;
    let outside = if timeline.sees_entries(tid) { Part::EntryExit } else { Part::GuestSwitch };
    let meaning = [Part::Delivery, outside, Part::GuestSwitch];
    ledger.follow(tid, sample.woken, sample.taken, meaning)?;
    Some(ledger.close(Part::GuestSwitch))
}

/// A host thread's sample, due at `due` and taken at `taken` by the TSC, so late.
///
/// `None`: as for [`guest`].
pub(crate) fn host(
    timeline: &Timeline,
    clock: &Clock,
    tid: Tid,
    (due, taken): (u64, u64),
    latency: Ns,
) -> Option<AttributedSample> {
    let mut ledger = Attribution::new(timeline, clock, due, latency);
    let meaning = [Part::TimerSlack, Part::HostSwitch, Part::HostSwitch];
    ledger.follow(tid, due, taken, meaning)?;
    Some(ledger.close(Part::HostSwitch))
}

#[cfg(test)]
mod tests {
    use super::{guest, host};
    use proptest::prelude::*;
    use vcoop_guest::ring::Sample;
    use vcoop_model::recording::{Part, Parts};
    use vcoop_sources::trace::{Comm, Event, EventKind, SwitchOut, Timeline};
    use vcoop_threads::tsc::Clock;

    fn comm(name: &str) -> Comm {
        let mut comm = Comm::default();
        comm[..name.len()].copy_from_slice(name.as_bytes());
        comm
    }

    fn switch(time: u64, prev: i32, runnable: bool, next: i32, name: &str) -> Event {
        let leaves = if runnable { SwitchOut::Runnable } else { SwitchOut::Asleep };
        let what = EventKind::Switch { prev, leaves, next, comm: comm(name) };
        Event { time, cpu: 0, kind: what }
    }

    fn timeline(khz: u32, events: &[Event]) -> (Timeline, Clock) {
        let clock = Clock::new(0, khz);
        let mut t = Timeline::new(clock);
        t.know(5, "guest", true);
        t.know(8, "hog", false);
        events.iter().for_each(|e| t.apply(e));
        t.settle(1_000_000);
        (t, clock)
    }

    fn named(parts: &[(Part, u64)]) -> Parts {
        let mut all = Parts::default();
        parts.iter().for_each(|(p, ns)| all[*p as usize] += ns);
        all
    }

    #[test]
    fn a_vcpu_that_was_preempted_waits_for_the_hogs() {
        let (t, clock) = timeline(
            1_000_000,
            &[
                switch(50, 0, true, 5, "vcpu0"),
                switch(90, 5, true, 8, "hog"),
                switch(400, 8, true, 31, "kworker/0:2"),
                switch(420, 31, false, 8, "hog"),
                switch(500, 8, true, 5, "vcpu0"),
                switch(530, 5, true, 8, "hog"),
                switch(560, 8, true, 5, "vcpu0"),
            ],
        );
        let sample = Sample { due: 100, taken: 600, woken: 520, ..Sample::default() };
        let a = guest(&t, &clock, 5, &sample, Some(110)).unwrap();
        let want = [
            (Part::TimerSlack, 10),
            (Part::PreemptedToRun, 390 + 30),
            (Part::EntryExit, 20),
            (Part::GuestSwitch, 10 + 40),
        ];
        assert_eq!(a.parts, named(&want));
        let ran: Vec<_> = a.ran.iter().map(|(l, ns)| (t.name(*l), *ns)).collect();
        assert_eq!(ran, [("hog", 400), ("kworker", 20)]);
    }

    #[test]
    fn an_idle_vcpu_is_woken_from_an_idle_cpu() {
        let events = [
            switch(50, 0, true, 5, "vcpu0"),
            switch(60, 5, false, 0, "swapper/0"),
            Event { time: 105, cpu: 1, kind: EventKind::Waking { tid: 5, cpu: 0, by: None } },
            switch(120, 0, true, 8, "hog"),
            switch(130, 8, false, 5, "vcpu0"),
            Event { time: 133, cpu: 0, kind: EventKind::Entry { tid: 5 } },
        ];
        let (t, clock) = timeline(1_000_000, &events);
        let sample = Sample { due: 100, taken: 150, woken: 140, ..Sample::default() };
        let common = [
            (Part::CState, 15),
            (Part::WakeToRun, 10),
            (Part::EntryExit, 3),
            (Part::Delivery, 7),
            (Part::GuestSwitch, 10),
        ];
        // KVM's own timer: no event shows when it fired before the thread was woken.
        let lapic = guest(&t, &clock, 5, &sample, None).unwrap();
        let want = [&common[..], &[(Part::TimerSlack, 5)]].concat();
        assert_eq!(lapic.parts, named(&want));
        let exitless = guest(&t, &clock, 5, &sample, Some(102)).unwrap();
        let want = [&common[..], &[(Part::TimerSlack, 2), (Part::Delivery, 3)]].concat();
        assert_eq!(exitless.parts, named(&want));
        let a = host(&t, &clock, 5, (100, 150), 49).unwrap();
        let want = [
            (Part::TimerSlack, 5),
            (Part::CState, 15),
            (Part::WakeToRun, 10),
            (Part::HostSwitch, 19),
        ];
        assert_eq!(a.parts, named(&want), "what the two clocks disagree on is at the end");
    }

    #[test]
    fn a_gap_is_no_guess() {
        let lost = Event { time: 300, cpu: 0, kind: EventKind::Lost { since: 200 } };
        let (t, clock) = timeline(1_000_000, &[switch(50, 0, true, 5, "vcpu0"), lost]);
        let sample = |due, taken| Sample { due, taken, woken: due, ..Sample::default() };
        assert!(guest(&t, &clock, 5, &sample(100, 200), None).is_some());
        assert!(guest(&t, &clock, 5, &sample(100, 201), None).is_none());
        assert!(guest(&t, &clock, 6, &sample(100, 110), None).is_none(), "nobody we know");
        assert!(host(&t, &clock, 5, (40, 60), 20).is_none(), "before it was seen");
    }

    proptest! {
        /// The parts add up exactly at any rate of the clock, and no thread ran instead for longer than the waits.
        #[test]
        fn parts_add_up(
            khz in 900_000_u32..5_000_000,
            steps in prop::collection::vec((1_u64..9_000, 0_u8..5, any::<bool>()), 1..40),
            due in 0_u64..200_000,
            lengths in (0_u64..50_000, 0_u64..50_000, 0_u64..50_000),
            exitless: bool,
        ) {
            let mut time = 0;
            let events: Vec<Event> = steps.into_iter().map(|(after, kind, flag)| {
                time += after;
                let what = match kind {
                    0 => return switch(time, 5, flag, 8, "hog"),
                    1 => return switch(time, 8, flag, 5, "vcpu0"),
                    2 => EventKind::Wakeup { tid: 5, cpu: 0 },
                    3 => EventKind::Entry { tid: 5 },
                    _ => EventKind::HaltOver { tid: 5, ns: after },
                };
                Event { time, cpu: 0, kind: what }
            }).collect();
            let (t, clock) = timeline(khz, &events);
            let fired = due + lengths.0;
            let woken = fired + lengths.1;
            let taken = woken + lengths.2;
            let sample = Sample { due, taken, woken, ..Sample::default() };
            if let Some(a) = guest(&t, &clock, 5, &sample, exitless.then_some(fired)) {
                prop_assert_eq!(a.parts.iter().sum::<u64>(), clock.to_ns(taken - due));
                let waits = a.parts[Part::WakeToRun as usize] + a.parts[Part::PreemptedToRun as usize];
                prop_assert!(a.ran.iter().map(|(_, ns)| ns).sum::<u64>() <= waits);
            }
            let latency = clock.to_ns(taken - due) + 17;
            if let Some(a) = host(&t, &clock, 5, (due, taken), latency) {
                prop_assert_eq!(a.parts.iter().sum::<u64>(), latency);
            }
        }
    }
}
