//! Sleeping until an exact time.
//!
//! A sleep ends late: its timer fires late, and a halted CPU takes long to wake. So [`PreciseSleep`] sleeps until
//! shortly before an exact time and spins for the rest. It spins for as long as its recent sleeps were late.

use crate::Ns;
use crate::clock::monotonic;
use crate::kick::Kick;
use crate::tsc::{Clock, tsc};

/// Bounds of the time spun before an exact time.
const SPIN_NS: (Ns, Ns) = (5_000, 80_000);

/// Longest time spun before an exact time; a sleep that is not exact may be late by as much.
pub const MOST_SPIN_NS: Ns = SPIN_NS.1;

/// When a wait ends, on the sleeper's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitLimits {
    /// Latest end of the wait; it may end late.
    pub look: Ns,
    /// Exact end of the wait, if that comes first.
    pub exact: Ns,
    /// Up to this time the thread does not sleep but [watches](Duty::is_over).
    pub watch: Ns,
}

/// Work done between two waits.
pub trait Duty {
    /// Error of the work.
    type Error;

    /// Does what is due, and returns when the next wait ends.
    ///
    /// # Errors
    ///
    /// Those of the work.
    fn perform(&mut self) -> Result<WaitLimits, Self::Error>;

    /// Whether the awaited event has come. Called in a loop.
    fn is_over(&self) -> bool;
}

/// Exact sleeps of one thread, between which it does its [`Duty`].
#[derive(Debug)]
pub struct PreciseSleep {
    clock: Clock,
    /// Whether the thread may spin.
    spins: bool,
    spin: Ns,
}

impl PreciseSleep {
    /// A sleeper on this clock. `spins`: spinning takes CPU time from no other thread.
    pub fn new(clock: Clock, spins: bool) -> Self {
        Self { clock, spins, spin: SPIN_NS.1 }
    }

    /// Does what is due, and waits until more is, or for a kick. A kick after the beginning of this call ends its wait,
    /// because the duty may have looked before the event that the kick is about.
    /// at it.
    ///
    /// # Errors
    ///
    /// The duty's.
    pub fn round<D: Duty>(&mut self, kick: &Kick, duty: &mut D) -> Result<(), D::Error> {
        let armed = kick.arm();
        let until = duty.perform()?;
        self.wait(kick, armed, until, || duty.is_over());
        Ok(())
    }

    fn wait(&mut self, kick: &Kick, armed: u32, until: WaitLimits, is_over: impl Fn() -> bool) {
        let WaitLimits { look, exact, watch } = until;
        if !self.spins {
            self.spin = 0;
        }
        let wake = look.min(exact.saturating_sub(self.spin));
        let mut now = self.clock.now();
        if now < watch {
            let until = self.clock.tsc_at(watch.min(exact));
            while tsc() < until {
                if kick.arm() != armed || is_over() {
                    return;
                }
            }
            now = self.clock.now();
        }
        if wake > now {
            kick.wait_until(armed, monotonic() + (wake - now));
            if kick.arm() != armed {
                return;
            }
            // How late it is, the next spin must cover; forgotten slowly.
            let late = self.clock.now().saturating_sub(wake);
            self.spin = (self.spin - self.spin / 16).max(late).clamp(SPIN_NS.0, SPIN_NS.1);
        }
        if exact.saturating_sub(self.clock.now()) > self.spin {
            return;
        }
        let until = self.clock.tsc_at(exact);
        while tsc() < until && kick.arm() == armed {
            std::hint::spin_loop();
        }
    }
}

/// Things that are watched, each until a time of its own.
#[derive(Debug)]
pub struct Attention<T>(Vec<(T, Ns)>);

impl<T: PartialEq> Attention<T> {
    /// No things.
    pub fn none() -> Self {
        Self(Vec::new())
    }

    /// Watches a thing until `until`. Replaces an earlier time.
    pub fn watch(&mut self, it: T, until: Ns) {
        self.forget(&it);
        self.0.push((it, until));
    }

    /// Stops watching a thing.
    pub fn forget(&mut self, it: &T) {
        self.0.retain(|(other, _)| other != it);
    }

    /// Drops what is over at `now`. Returns until when to watch the rest, 0 if nothing is left.
    pub fn until(&mut self, now: Ns) -> Ns {
        self.0.retain(|(_, until)| now < *until);
        self.0.iter().map(|(_, until)| *until).max().unwrap_or(0)
    }

    /// What is watched.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|(it, _)| it)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::convert::Infallible;

    use super::{Attention, Duty, PreciseSleep, WaitLimits};
    use crate::Kick;
    use crate::clock::monotonic;
    use crate::tsc::{Clock, tsc};

    const LONG_NS: u64 = 5_000_000_000;

    /// The TSC in nanoseconds, whatever its rate.
    fn clock() -> Clock {
        let (tsc_before, before) = (tsc(), monotonic());
        while monotonic() < before + 5_000_000 {}
        let khz = (tsc() - tsc_before) * 1_000_000 / (monotonic() - before);
        Clock::new(tsc(), khz as u32)
    }

    /// Does one thing, then waits.
    struct OneShot<'a> {
        act: &'a dyn Fn(),
        until: WaitLimits,
        watched: Cell<u32>,
    }

    impl Duty for OneShot<'_> {
        type Error = Infallible;

        fn perform(&mut self) -> Result<WaitLimits, Infallible> {
            (self.act)();
            Ok(self.until)
        }

        fn is_over(&self) -> bool {
            self.watched.set(self.watched.get() + 1);
            self.watched.get() == 100
        }
    }

    /// How long a round takes.
    fn round(sleep: &mut PreciseSleep, kick: &Kick, act: &dyn Fn(), until: WaitLimits) -> u64 {
        let start = monotonic();
        let Ok(()) = sleep.round(kick, &mut OneShot { act, until, watched: Cell::new(0) });
        monotonic() - start
    }

    #[test]
    fn a_kick_in_the_middle_of_the_duty_ends_the_wait() {
        let (clock, kick) = (clock(), Kick::default());
        for spins in [false, true] {
            let mut sleep = PreciseSleep::new(clock, spins);
            let far = clock.now() + LONG_NS;
            // Asleep, watching, and spinning for the exact time.
            for (look, exact, watch) in [(far, far, 0), (far, far, far)] {
                let until = WaitLimits { look, exact, watch };
                let took = round(&mut sleep, &kick, &|| kick.kick(), until);
                assert!(took < LONG_NS / 2, "{took} ns");
            }
        }
    }

    #[test]
    fn an_exact_time_is_not_missed_by_much_and_never_early() {
        let (clock, kick) = (clock(), Kick::default());
        let mut sleep = PreciseSleep::new(clock, true);
        let best = (0..50).map(|_| {
            let exact = clock.now() + 1_000_000;
            round(&mut sleep, &kick, &|| (), WaitLimits { look: u64::MAX, exact, watch: 0 });
            let now = clock.now();
            assert!(now + 1 >= exact, "{now} before {exact}");
            now.saturating_sub(exact)
        });
        // The others may have lost their CPU.
        let best = best.min().unwrap();
        assert!(best < 20_000, "{best} ns late at best");
    }

    #[test]
    fn a_wait_ends_at_the_look_and_with_what_is_watched_for() {
        let (clock, kick) = (clock(), Kick::default());
        let mut sleep = PreciseSleep::new(clock, true);
        let now = clock.now();
        let soon = WaitLimits { look: now + 2_000_000, exact: u64::MAX, watch: 0 };
        let took = round(&mut sleep, &kick, &|| (), soon);
        assert!(took < LONG_NS && clock.now() + 1 >= soon.look);
        let far = clock.now() + LONG_NS;
        let watch = WaitLimits { look: far, exact: far, watch: far };
        assert!(round(&mut sleep, &kick, &|| (), watch) < LONG_NS / 2, "the 100th look says so");
    }

    #[test]
    fn attention_ends_one_by_one() {
        let mut attention = Attention::none();
        attention.watch('a', 10);
        attention.watch('b', 30);
        attention.watch('a', 20);
        assert_eq!((attention.until(15), attention.iter().count()), (30, 2));
        attention.forget(&'b');
        assert_eq!(attention.until(19), 20);
        assert_eq!((attention.until(20), attention.iter().count()), (0, 0));
    }
}
