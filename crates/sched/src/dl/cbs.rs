//! The constant bandwidth server of one entity: how long it may run, and by when.
//!
//! After Abeni and Buttazzo, "Integrating multimedia applications in hard real-time systems" (1998), in the form of
//! `kernel/sched/deadline.c` (6.15). An entity reserves `runtime` in each `period`, to be served within `deadline`
//! of the period's start. It has an absolute deadline, and the runtime that is left until then:
//!
//! ```text
//! event                         condition                          then
//! becomes runnable              deadline passed                    new period from now
//! becomes runnable              left/(deadline - now) exceeds      new period from now; if the relative
//!                               runtime/deadline                   deadline is shorter than the period, left
//!                                                                  is cut to that density instead
//! becomes runnable              deadline passed, period not        throttled until the period ends (relative
//!                                                                  deadline shorter than the period only)
//! becomes runnable              else                               goes on as it was
//! runs                          left used up, or it yields         throttled until the period ends
//! period ends while throttled                                      deadline + period, left + runtime, as often
//!                                                                  as it takes until something is left
//! ```
//!
//! An overrun (the end of the runtime is noticed late) is therefore paid back in the next period. An entity that
//! never sleeps gets `runtime/period` in the long run.
//!
//! An entity that leaves the class keeps its deadline and runtime until its *zero-lag time*, when it would have
//! been entitled to no more than it has had. If it returns before that, it continues where it was. So toggling the
//! policy gains nothing.

use crate::config::Ns;

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cbs {
    runtime: Ns,
    deadline: Ns,
    period: Ns,
    /// Left of the runtime; below 0 after an overrun.
    left: i64,
    /// Absolute deadline; 0 before the first activation.
    due: Ns,
    throttled: bool,
    yielded: bool,
}

impl Cbs {
    /// Sets the parameters, which hold from the next period on, as with `sched_setattr`. Deadline and remaining runtime
    /// stay.
    pub(crate) fn set_params(&mut self, runtime: Ns, deadline: Ns, period: Ns) {
        // Replenishment would never end otherwise; `check_reservation` excludes it.
        self.runtime = runtime.max(1);
        self.deadline = deadline.max(1);
        self.period = period.max(self.deadline);
    }

    /// The absolute deadline.
    #[inline]
    pub(crate) fn due(&self) -> Ns {
        self.due
    }

    /// Waits for its next period.
    #[inline]
    pub(crate) fn is_throttled(&self) -> bool {
        self.throttled
    }

    /// The remaining runtime.
    #[inline]
    pub(crate) fn left(&self) -> i64 {
        self.left
    }

    /// When the period ends.
    #[inline]
    pub(crate) fn next_period(&self) -> Ns {
        (self.due + self.period).saturating_sub(self.deadline)
    }

    fn is_implicit(&self) -> bool {
        self.deadline == self.period
    }

    fn new_period(&mut self, now: Ns) {
        self.due = now + self.deadline;
        self.left = self.runtime as i64;
    }

    /// `left/(due - now) > runtime/deadline`, the deadline not having passed.
    fn overflows(&self, now: Ns) -> bool {
        let left = u128::from(self.left.max(0) as u64);
        left * u128::from(self.deadline) > u128::from(self.due - now) * u128::from(self.runtime)
    }

    /// It becomes runnable after a sleep. Afterwards it is throttled, or its deadline is in the future.
    pub(crate) fn wake(&mut self, now: Ns) {
        if !self.settle(now) {
            return;
        }
        if self.due == 0 || self.due < now {
            self.new_period(now);
        } else if self.overflows(now) {
            if self.is_implicit() {
                self.new_period(now);
            } else {
                let laxity = u128::from(self.due - now);
                self.left = (laxity * u128::from(self.runtime) / u128::from(self.deadline)) as i64;
            }
        }
    }

    /// It comes from another policy, or has new parameters, being runnable all the time.
    pub(crate) fn join(&mut self, now: Ns) {
        if self.settle(now) && (self.due == 0 || self.due < now) {
            self.new_period(now);
        }
    }

    /// Updates throttling before it is queued. Returns whether it may run.
    fn settle(&mut self, now: Ns) -> bool {
        let late = self.due != 0 && self.due < now && now < self.next_period();
        if !self.throttled && !self.is_implicit() && late {
            // Replenished now, it would have its runtime twice in this period.
            self.throttled = true;
            self.left = self.left.min(0);
        }
        if self.throttled && now >= self.next_period() {
            self.replenish(now);
        }
        !self.throttled
    }

    /// It ran. True if nothing is left.
    #[inline]
    pub(crate) fn charge(&mut self, ran: Ns) -> bool {
        self.left -= ran as i64;
        self.left <= 0
    }

    /// Gives up the remaining runtime until the next period.
    pub(crate) fn give_up(&mut self) {
        self.yielded = true;
    }

    /// The runtime is used up or given up: throttled until the period ends. If that is over already, the next period
    /// begins, and this returns false.
    pub(crate) fn throttle(&mut self, now: Ns) -> bool {
        if now >= self.next_period() {
            self.replenish(now);
            return false;
        }
        self.throttled = true;
        true
    }

    /// Its period has ended: goes on to the next period in which it has runtime.
    pub(crate) fn replenish(&mut self, now: Ns) {
        if self.yielded {
            self.left = self.left.min(0);
        }
        if self.left <= 0 {
            let periods = self.left.unsigned_abs() / self.runtime + 1;
            self.due += periods * self.period;
            self.left += (periods * self.runtime) as i64;
        }
        if self.due < now {
            // It is late by more than a period: it was stopped, or timers were late.
            self.new_period(now);
        }
        self.throttled = false;
        self.yielded = false;
    }

    /// Time until which its bandwidth counts after it has left the class or exited.
    pub(crate) fn zero_lag(&self) -> Ns {
        let left = i128::from(self.left) * i128::from(self.period) / i128::from(self.runtime);
        u64::try_from(i128::from(self.due) - left).unwrap_or(0)
    }

    /// The zero-lag time has passed outside the class: resets it.
    pub(crate) fn forget(&mut self) {
        (self.due, self.left) = (0, 0);
        (self.throttled, self.yielded) = (false, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Ns = 1_000_000;

    fn cbs(runtime: Ns, deadline: Ns, period: Ns) -> Cbs {
        let mut c = Cbs::default();
        c.set_params(runtime * MS, deadline * MS, period * MS);
        c
    }

    fn state(c: &Cbs) -> (i64, Ns, bool) {
        (c.left / MS as i64, c.due / MS, c.throttled)
    }

    #[test]
    fn wake_up_keeps_what_fits() {
        let mut c = cbs(4, 10, 10);
        c.wake(100 * MS);
        assert_eq!(state(&c), (4, 110, false));
        assert!(!c.charge(3 * MS));
        // 1 ms left of 4, at 107: 1/3 is not more than 4/10.
        c.wake(107 * MS);
        assert_eq!(state(&c), (1, 110, false));
        // At 108: 1/2 is.
        c.wake(108 * MS);
        assert_eq!(state(&c), (4, 118, false));
        // Its deadline has passed while it slept.
        c.wake(118 * MS + 1);
        assert_eq!(state(&c), (4, 128, false));
    }

    #[test]
    fn wake_up_of_a_constrained_deadline_is_cut_to_its_density() {
        let mut c = cbs(4, 8, 20);
        c.wake(100 * MS);
        assert_eq!(state(&c), (4, 108, false));
        assert!(!c.charge(MS));
        // 3 ms left, at 104: 3/4 is more than 4/8, so 2 ms remain. No new period.
        c.wake(104 * MS);
        assert_eq!(state(&c), (2, 108, false));
        // Awake after the deadline: nothing before the next period, which begins at 120.
        c.wake(110 * MS);
        assert_eq!(state(&c), (0, 108, true));
        assert_eq!(c.next_period(), 120 * MS);
        c.wake(119 * MS);
        assert!(c.is_throttled());
        c.wake(120 * MS);
        assert_eq!(state(&c), (4, 128, false));
        // After the whole period the plain rule holds.
        c.wake(150 * MS);
        assert_eq!(state(&c), (4, 158, false));
    }

    #[test]
    fn overruns_are_carried() {
        let mut c = cbs(2, 10, 10);
        c.wake(0);
        assert!(c.charge(3 * MS));
        assert!(c.throttle(3 * MS));
        c.replenish(10 * MS);
        assert_eq!(state(&c), (1, 20, false));
        // More than two periods' worth at once: two periods go by before anything is left.
        assert!(c.charge(6 * MS));
        assert!(c.throttle(16 * MS));
        c.replenish(20 * MS);
        assert_eq!(state(&c), (1, 50, false));
        // Noticed after the period has ended: the next one begins at once.
        assert!(c.charge(MS));
        assert!(!c.throttle(51 * MS));
        assert_eq!(state(&c), (2, 60, false));
    }

    #[test]
    fn a_yield_gives_up_the_rest_only() {
        let mut c = cbs(2, 10, 10);
        c.wake(5 * MS);
        c.charge(MS);
        c.give_up();
        assert!(c.throttle(6 * MS));
        c.replenish(15 * MS);
        assert_eq!(state(&c), (2, 25, false));
    }

    #[test]
    fn who_comes_back_before_its_zero_lag_time_goes_on_where_it_was() {
        let mut c = cbs(2, 10, 10);
        c.join(100 * MS);
        c.charge(MS);
        // 1 ms of 2 left is worth half a period.
        assert_eq!(c.zero_lag(), 105 * MS);
        c.join(104 * MS);
        assert_eq!(state(&c), (1, 110, false));
        c.forget();
        c.join(104 * MS);
        assert_eq!(state(&c), (2, 114, false));
    }
}
