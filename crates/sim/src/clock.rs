//! The simulated clock: current time and pending events.
//!
//! Every entity that owns a timer has at most one pending event. Callers name the event; only this file knows that each
//! event has a slot of the [`EventQueue`].

use crate::queue::{EventQueue, Ns};

/// More events than this at one time are a defect of the model, not a scenario. Checked once in so many events.
const STANDSTILL: u64 = 1 << 20;

/// Events, with the number of the entity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The segment of a pCPU is over.
    Segment(u32),
    /// The scheduler tick of a pCPU.
    Tick(u32),
    /// An inter-processor interrupt reaches a pCPU.
    Ipi(u32),
    /// A posted interrupt reaches the pCPU that its vCPU runs on, or ran on last.
    Posted(u32),
    /// The scheduler's own timer of a pCPU.
    Sched(u32),
    /// The timer behind a vCPU's deadline expires.
    Lapic(u32),
    /// The policy's timer of a vCPU.
    Policy(u32),
    /// The sleep of a host thread is over.
    Sleep(u32),
    /// A device of a VM (index over all VMs).
    Device(u32),
    /// The answer of another machine, by number of the caller among those who call other machines.
    Remote(u32),
    /// The next batch of a storm.
    Storm(u32),
    /// A device of the host interrupts (number of the device's line).
    HostDevice(u32),
    /// The interval of `ratelimit-auto`.
    Ratelimit,
    /// Accounts for policies that repay boosted time are due.
    Accounts,
    /// The interval of a VM's governor.
    Govern(u32),
    /// The next step of a VM's CPU hotplug.
    Hotplug(u32),
    /// The next entry of the plan's timeline.
    Timeline,
    /// An interval view begins or ends.
    Interval(u32),
    /// The warm-up or the run is over.
    End,
}

const KINDS: usize = 19;

impl Event {
    /// Every kind, in the order of [`kind`](Self::kind).
    const ALL: [fn(u32) -> Self; KINDS] = [
        Self::Segment,
        Self::Tick,
        Self::Ipi,
        Self::Posted,
        Self::Sched,
        Self::Lapic,
        Self::Policy,
        Self::Sleep,
        Self::Device,
        Self::Remote,
        Self::Storm,
        Self::HostDevice,
        |_| Self::Ratelimit,
        |_| Self::Accounts,
        Self::Govern,
        Self::Hotplug,
        |_| Self::Timeline,
        Self::Interval,
        |_| Self::End,
    ];

    /// Its kind, and its number among events of that kind.
    #[inline(always)]
    fn kind(self) -> (usize, u32) {
        match self {
            Self::Segment(p) => (0, p),
            Self::Tick(p) => (1, p),
            Self::Ipi(p) => (2, p),
            Self::Posted(v) => (3, v),
            Self::Sched(p) => (4, p),
            Self::Lapic(v) => (5, v),
            Self::Policy(v) => (6, v),
            Self::Sleep(t) => (7, t),
            Self::Device(d) => (8, d),
            Self::Remote(r) => (9, r),
            Self::Storm(s) => (10, s),
            Self::HostDevice(l) => (11, l),
            Self::Ratelimit => (12, 0),
            Self::Accounts => (13, 0),
            Self::Govern(vm) => (14, vm),
            Self::Hotplug(vm) => (15, vm),
            Self::Timeline => (16, 0),
            Self::Interval(i) => (17, i),
            Self::End => (18, 0),
        }
    }
}

/// How many there are of each entity that has events.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entities {
    pub(crate) pcpus: u32,
    pub(crate) vcpus: u32,
    pub(crate) threads: u32,
    pub(crate) vms: u32,
    pub(crate) devices: u32,
    pub(crate) remotes: u32,
    pub(crate) storms: u32,
    pub(crate) lines: u32,
    pub(crate) intervals: u32,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Clock {
    now: Ns,
    queue: EventQueue,
    /// First slot of each kind.
    first: [u32; KINDS],
    /// Event of each slot.
    slots: Box<[Event]>,
    /// Events so far.
    events: u64,
    /// The time at the last check for a standstill.
    seen: Ns,
}

impl Clock {
    /// At time 0, without pending events.
    pub(crate) fn new(n: &Entities) -> Self {
        // In the order of the kinds.
        let counts = [
            n.pcpus,
            n.pcpus,
            n.pcpus,
            n.vcpus,
            n.pcpus,
            n.vcpus,
            n.vcpus,
            n.threads,
            n.devices,
            n.remotes,
            n.storms,
            n.lines,
            1,
            1,
            n.vms,
            n.vms,
            1,
            n.intervals,
            1,
        ];
        let mut first = [0; KINDS];
        let mut slots = Vec::new();
        for ((first, event), count) in first.iter_mut().zip(Event::ALL).zip(counts) {
            *first = slots.len() as u32;
            slots.extend((0..count).map(event));
        }
        // At most about one event a bucket: a small host has one every few microseconds.
        let shift = 12 - ((n.pcpus / 16).max(1).ilog2() * 5 / 4).min(7);
        let queue = EventQueue::with_shift(slots.len(), shift);
        Self { now: 0, queue, first, slots: slots.into(), events: 0, seen: 0 }
    }

    #[inline(always)]
    fn slot(&self, event: Event) -> u32 {
        let (kind, number) = event.kind();
        self.first[kind] + number
    }

    /// The current time.
    #[inline(always)]
    pub(crate) fn now(&self) -> Ns {
        self.now
    }

    /// Events so far.
    #[inline(always)]
    pub(crate) fn events(&self) -> u64 {
        self.events
    }

    /// Schedules an event, instead of the time set before.
    #[inline(always)]
    pub(crate) fn set(&mut self, event: Event, at: Ns) {
        self.queue.set(self.slot(event), at);
    }

    /// Schedules an event by a time: an earlier one stays.
    #[inline(always)]
    pub(crate) fn set_earlier(&mut self, event: Event, at: Ns) {
        let slot = self.slot(event);
        if self.queue.time(slot).is_none_or(|due| due > at) {
            self.queue.set(slot, at);
        }
    }

    /// Cancels an event.
    #[inline(always)]
    pub(crate) fn cancel(&mut self, event: Event) {
        self.queue.cancel(self.slot(event));
    }

    /// When an event is pending, its time.
    #[inline(always)]
    pub(crate) fn due(&self, event: Event) -> Option<Ns> {
        self.queue.time(self.slot(event))
    }

    /// Whether an event is pending.
    #[inline(always)]
    pub(crate) fn is_pending(&self, event: Event) -> bool {
        self.due(event).is_some()
    }

    /// Removes the next event and returns it with its time; [`advance`](Self::advance) moves the clock there.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> Option<(Ns, Event)> {
        let (at, slot) = self.queue.pop()?;
        debug_assert!(at >= self.now, "time went back");
        Some((at, self.slots[slot as usize]))
    }

    /// Moves the clock to an event.
    #[inline(always)]
    pub(crate) fn advance(&mut self, to: Ns) {
        self.now = self.now.max(to);
        self.events += 1;
        if self.events.is_multiple_of(STANDSTILL) {
            self.goes_on();
        }
    }

    /// Records that time has advanced since the last check.
    #[cold]
    fn goes_on(&mut self) {
        assert!(
            self.now > self.seen,
            "the model stands still at {} ns: {STANDSTILL} events at one moment",
            self.now
        );
        self.seen = self.now;
    }

    /// Moves the clock to a time before the next event.
    pub(crate) fn pass(&mut self, to: Ns) {
        self.now = self.now.max(to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock() -> Clock {
        Clock::new(&Entities {
            pcpus: 3,
            vcpus: 2,
            threads: 4,
            vms: 2,
            devices: 1,
            remotes: 2,
            storms: 1,
            lines: 3,
            intervals: 2,
        })
    }

    #[test]
    fn every_event_has_a_slot_of_its_own() {
        let clock = clock();
        for (slot, &event) in (0..).zip(&clock.slots) {
            assert_eq!(clock.slot(event), slot, "{event:?}");
        }
    }

    #[test]
    fn events_come_by_time_and_in_the_order_in_which_they_were_set() {
        let mut clock = clock();
        clock.set(Event::Govern(1), 700);
        clock.set(Event::Tick(2), 500);
        clock.set(Event::Lapic(0), 500);
        clock.set(Event::End, 100);
        clock.set(Event::End, 900);
        clock.set(Event::Sleep(3), 600);
        clock.cancel(Event::Sleep(3));
        clock.set_earlier(Event::Govern(1), 800);
        clock.set_earlier(Event::Remote(1), 650);
        assert!(clock.is_pending(Event::Tick(2)) && !clock.is_pending(Event::Sleep(3)));
        let mut seen = Vec::new();
        while let Some((at, event)) = clock.next() {
            clock.advance(at);
            seen.push((clock.now(), event));
        }
        let [tick, lapic] = [(500, Event::Tick(2)), (500, Event::Lapic(0))];
        let remote = (650, Event::Remote(1));
        assert_eq!(seen, [tick, lapic, remote, (700, Event::Govern(1)), (900, Event::End)]);
        assert_eq!(clock.events(), 5);
    }

    #[test]
    #[should_panic(expected = "the model stands still at 3 ns")]
    fn a_model_that_stands_still_is_a_defect() {
        let mut clock = clock();
        for _ in 0..2 * STANDSTILL {
            clock.advance(3);
        }
    }
}
