//! The timers of a vCPU, as its guest sets them.

use prefetch_index::prefetch_index;

use crate::queue::Ns;

/// Purpose of a guest's timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimerFor {
    /// The tick.
    Tick,
    /// The timer of the guest's scheduler.
    Level,
    /// The sleep of a task.
    Task(u32),
}

impl TimerFor {
    /// One word, because every sleep of a task compares some of them.
    #[inline(always)]
    fn key(self) -> u32 {
        match self {
            Self::Tick => 0,
            Self::Level => 1,
            Self::Task(t) => t + 2,
        }
    }

    #[inline(always)]
    fn of_key(key: u32) -> Self {
        match key {
            0 => Self::Tick,
            1 => Self::Level,
            task => Self::Task(task - 2),
        }
    }
}

/// The timers of a vCPU: at most one for each purpose.
#[derive(Clone, Debug)]
pub(crate) struct GuestTimers {
    /// invariant: sorted by time and key, latest first.
    timers: Vec<(Ns, u32)>,
}

impl GuestTimers {
    /// No timers, with room for the usual number.
    pub(crate) fn new() -> Self {
        Self { timers: Vec::with_capacity(16) }
    }

    /// Time of the next one; `Ns::MAX`: none.
    #[inline]
    pub(crate) fn next(&self) -> Ns {
        self.timers.last().map_or(Ns::MAX, |t| t.0)
    }

    /// Time of the next one other than the tick; `Ns::MAX`: none.
    pub(crate) fn next_but_tick(&self) -> Ns {
        let others = |timer: &&(Ns, u32)| timer.1 != TimerFor::Tick.key();
        self.timers.iter().rev().find(others).map_or(Ns::MAX, |timer| timer.0)
    }

    /// Whether there is one for this purpose.
    #[inline]
    pub(crate) fn has(&self, what: TimerFor) -> bool {
        self.timers.iter().any(|t| t.1 == what.key())
    }

    /// Sets a timer; replaces the one for the same purpose.
    #[inline]
    pub(crate) fn set(&mut self, what: TimerFor, at: Ns) {
        self.cancel(what);
        let new = (at, what.key());
        let i = self.timers.partition_point(|&timer| timer > new);
        self.timers.insert(i, new);
    }

    /// Removes the timer for a purpose.
    #[inline]
    pub(crate) fn cancel(&mut self, what: TimerFor) {
        if let Some(i) = self.timers.iter().position(|t| t.1 == what.key()) {
            self.timers.remove(i);
        }
    }

    /// Removes the next timer that is due by `now`.
    #[inline]
    pub(crate) fn pop_due(&mut self, now: Ns) -> Option<TimerFor> {
        let &(at, key) = self.timers.last()?;
        if at > now {
            return None;
        }
        self.timers.pop();
        Some(TimerFor::of_key(key))
    }

    /// Purpose of the timer number `i` of those due by `now`.
    pub(crate) fn due(&self, i: usize, now: Ns) -> Option<TimerFor> {
        let timer = self.timers.iter().rev().nth(i).filter(|timer| timer.0 <= now)?;
        Some(TimerFor::of_key(timer.1))
    }

    /// Moves all timers `ns` later.
    pub(crate) fn postpone(&mut self, ns: Ns) {
        self.timers.iter_mut().for_each(|(at, _)| *at += ns);
    }

    /// Fetches into the cache what [`next`](Self::next) reads.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch_index(&self.timers, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_fire_by_time_one_for_each_purpose() {
        let mut timers = GuestTimers::new();
        assert_eq!((timers.next(), timers.pop_due(Ns::MAX)), (Ns::MAX, None));
        timers.set(TimerFor::Task(1), 30);
        timers.set(TimerFor::Tick, 20);
        timers.set(TimerFor::Task(0), 20);
        timers.set(TimerFor::Level, 10);
        timers.set(TimerFor::Level, 40);
        timers.set(TimerFor::Task(2), 5);
        timers.cancel(TimerFor::Task(2));
        assert!(timers.has(TimerFor::Tick) && !timers.has(TimerFor::Task(2)));
        assert_eq!((timers.next(), timers.next_but_tick()), (20, 20));
        assert_eq!((timers.due(1, 25), timers.due(2, 25)), (Some(TimerFor::Task(0)), None));
        timers.postpone(100);
        assert_eq!(timers.pop_due(119), None);
        timers.cancel(TimerFor::Task(0));
        assert_eq!((timers.next(), timers.next_but_tick()), (120, 130));
        timers.set(TimerFor::Task(0), 120);
        let all: Vec<TimerFor> = std::iter::from_fn(|| timers.pop_due(140)).collect();
        let [first, second] = [TimerFor::Tick, TimerFor::Task(0)];
        assert_eq!(all, [first, second, TimerFor::Task(1), TimerFor::Level]);
    }
}
