//! Folds as far as the steal shows, keeps the CPU time that it had, and measures again.

use super::{Cores, CpuTime, GovernorConfig, GovernorInput, Ns, ROOM_PCT};

/// vCPUs in use are saturated when they wanted to run for this many percent of the time.
const SATURATED_PCT: u128 = 90;
/// vCPUs that had room at full width are crowded when they are busy for more than this many percent of the time.
const CROWDED_PCT: u128 = 80;
/// Intervals before the first try; they double with each try that fails.
const FIRST_HOLD: u32 = 2;

/// State of a [`Proportional`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// All cores are in use.
    Open,
    /// Some are not in use.
    Folded,
    /// One more than before is in use for an interval, to see whether it is still contended.
    Trying,
    /// Fewer are in use for two intervals, to see whether that still costs CPU time.
    Narrowing,
    /// All are in use for two intervals, to see what CPU time they would get now.
    Measuring,
}

/// The governor of a guest that knows nothing but its own steal and CPU time.
///
/// Pressure is that of [`GovernorInput::pressure_bp`] on the vCPUs in use. `had` is the CPU time at full width under pressure.
/// The governor *loses* when its vCPUs are saturated and have less than `keep` percent of `had`.
///
/// How far it may fold depends on what the guest did with all its vCPUs. A guest that saturated them keeps as many as
/// hold `keep` percent of `had`: what waits then would wait anyway. A guest that did not has tasks that come and go,
/// which would wait for each other: it keeps as many vCPUs as are busy for [`ROOM_PCT`] percent of the time, and is
/// *crowded* when they are busy for much more.
///
/// | state | seen | next |
/// | --- | --- | --- |
/// | `Open` | pressure above `high` | `Folded`: that share of the cores less, but enough as said above |
/// | `Open` | the same, after folding turned out to lose at any width, hold over | `Narrowing` |
/// | `Open` | pressure up to `low` | what was learned is forgotten |
/// | `Folded` | crowded | wider by as much as that is too much |
/// | `Folded` | loses | wider by as much as it lost (`Open` if that is all); not narrower again |
/// | `Folded` | for `patience` intervals, whatever the pressure | `Measuring`: all cores |
/// | `Folded` | saturated, had room at full width, hold over | `Measuring` |
/// | `Folded` | pressure above `high`, room above the narrowest | narrower by that share |
/// | `Folded` | the same at the narrowest, has all of `had`, hold over | `Narrowing`: one core less, or twice as many as last time |
/// | `Folded` | pressure up to `low`, hold over | `Trying`: one core more |
/// | `Trying` | pressure up to `low` | `Open` |
/// | `Trying` | more | as before; the hold doubles |
/// | `Narrowing` | loses, or is crowded | as before; the hold doubles |
/// | `Narrowing` | does not | `Folded` |
/// | `Measuring` | pressure up to `low` | `Open` |
/// | `Measuring` | more, and while held back it had less than `keep` percent of this CPU time | `Open`, as if folding had lost at any width |
/// | `Measuring` | more, and no such loss | as before, with a new `had`; the hold is `patience` |
///
/// The first look after a change of width does not judge CPU time, only whether a try or a measurement found no
/// pressure: tasks are still moving to other vCPUs, and under a CPU quota the width before has used a part of this
/// period's quota.
///
/// `had` is out of date when the competitors of that time have gone, and while folded neither pressure nor CPU time
/// shows that. So it is measured again: all cores for two intervals, where a failed try would have been due. A measured
/// loss counts only if the governor was *held back* before, by vCPUs that were saturated or under pressure above `low`:
/// a VM that had all it wanted runs more by chance.
///
/// No steal while folded means either that the contention is over or that the width is just right; steal cannot tell
/// which. So the governor has to try: one more core for one interval. A try that fails doubles the time to the next, up
/// to `patience` intervals. Opening that turns out wrong is a failed try, too. So in a steady state there are at most
/// two changes in `patience` intervals. Another VM's try is a change of the load: it can cost three more (`Folded`,
/// `Trying`, `Open`).
///
/// Where the host is fair to threads rather than VMs, a guest that folds gets less. `keep` bounds the loss: against a
/// VM that does not fold this governor does not fold either. Two such governors that measure at different times end
/// near full width there, since each gains by being wide while the other is folded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proportional {
    cores: Cores,
    config: GovernorConfig,
    state: State,
    used: u32,
    /// It does not fold below this many cores. invariant: `floor <= narrowest <= all`.
    narrowest: u32,
    /// Cores that `had` needs; and whether that includes room.
    least: u32,
    roomy: bool,
    /// CPU time a second at full width, in nanoseconds.
    had: Ns,
    /// Intervals until the next try, and the value that they start from, which is never less.
    hold: u32,
    next_hold: u32,
    /// Cores that the next narrowing takes; also those that a failed one gives back.
    step: u32,
    /// It opened, and has not yet seen whether that was right.
    just_opened: bool,
    /// The last look chose another width.
    just_changed: bool,
    /// Intervals since all cores were in use.
    age: u32,
    /// What to go back to if measuring shows no loss.
    folded: Folded,
}

/// The last interval before measuring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Folded {
    /// Cores in use.
    used: u32,
    /// CPU time a second.
    rate: Ns,
    /// More cores could have got more CPU time.
    held_back: bool,
}

impl Proportional {
    pub(crate) fn new(config: &GovernorConfig, vcpus: u32, threads: u32) -> Self {
        let cores = Cores::new(config, vcpus, threads);
        Self {
            cores,
            config: *config,
            state: State::Open,
            used: cores.all,
            narrowest: cores.floor,
            least: cores.floor,
            roomy: false,
            had: 0,
            hold: 0,
            next_hold: FIRST_HOLD,
            step: 1,
            just_opened: false,
            just_changed: false,
            age: 0,
            folded: Folded::default(),
        }
    }

    /// Where it is.
    pub fn state(&self) -> State {
        self.state
    }

    pub(crate) fn width(&self) -> u32 {
        self.cores.width(self.used)
    }

    pub(crate) fn on(&mut self, seen: &GovernorInput<'_>) {
        let now = seen.sum(self.width());
        let wanted = u128::from(now.busy_ns) + u128::from(now.steal_ns);
        let pressure = seen.pressure_bp(self.width());
        let high = pressure > self.config.high_bp;
        let low = pressure <= self.config.low_bp;
        let rate = per_second(now.busy_ns, seen.elapsed_ns);
        // CPU time that the vCPUs in use could have: a core may have fewer vCPUs than others.
        let open = u128::from(seen.elapsed_ns) * u128::from(seen.count(self.width()));
        let saturated = wanted * 100 >= open * SATURATED_PCT;
        let crowded = self.roomy && u128::from(now.busy_ns) * 100 > open * CROWDED_PCT;
        let loses = saturated && u128::from(rate) * 100 < self.kept();
        self.hold = self.hold.saturating_sub(1);
        self.age = if self.used == self.cores.all { 0 } else { self.age.saturating_add(1) };
        let before = self.used;
        match self.state {
            State::Trying | State::Measuring if low => self.open(),
            State::Trying => {
                self.used -= 1;
                self.settle();
                self.fail();
            }
            _ if self.just_changed => {}
            State::Open if high => {
                self.learn(rate, saturated);
                self.pressed(rate, now);
            }
            State::Open if low => {
                // No VM competes: what was learned before does not hold any more.
                self.narrowest = self.cores.floor;
                self.next_hold = FIRST_HOLD;
                self.hold = 0;
                self.just_opened = false;
            }
            State::Open => self.just_opened = false,
            State::Narrowing if loses || crowded => {
                self.used += self.step;
                self.narrowest = self.used;
                self.step = 1;
                self.settle();
                self.fail();
            }
            State::Narrowing => {
                self.step *= 2;
                self.settle();
            }
            State::Measuring => self.measured(rate, saturated),
            State::Folded if crowded => {
                self.used = self.with_room(rate).max(self.used + 1);
                self.narrowest = self.used;
                self.least = self.used;
                self.settle();
                self.fail();
            }
            State::Folded if loses => self.widen(rate),
            State::Folded if self.is_outdated(saturated) => {
                let held_back = saturated || !low;
                self.folded = Folded { used: self.used, rate, held_back };
                self.used = self.cores.all;
                self.state = State::Measuring;
            }
            State::Folded if high && self.used > self.narrowest => self.fold(now),
            State::Folded if high => self.narrow(rate),
            State::Folded if low && self.hold == 0 => {
                self.used += 1;
                self.state = State::Trying;
            }
            State::Folded => {}
        }
        self.just_changed = self.used != before;
    }

    /// What it gets at full width under pressure.
    fn learn(&mut self, rate: Ns, saturated: bool) {
        self.had = rate;
        self.roomy = !saturated;
        self.least = if self.roomy { self.with_room(rate) } else { self.least_for(rate) };
    }

    /// Whether `had` is old; or the guest had room at full width, and saturates fewer cores now that would leave it
    /// room: it does more than it did.
    fn is_outdated(&self, saturated: bool) -> bool {
        self.age >= self.config.patience.max(FIRST_HOLD)
            || self.roomy && saturated && self.hold == 0
    }

    /// All cores were in use, under pressure.
    fn measured(&mut self, rate: Ns, saturated: bool) {
        let had_room = self.roomy;
        self.learn(rate, saturated);
        let lost = u128::from(self.folded.rate) * 100 < self.kept();
        if lost && self.folded.held_back {
            self.narrowest = self.cores.all;
        } else {
            self.used = self.folded.used;
            if had_room && !self.roomy {
                // The narrowest was chosen for a guest that needs room.
                self.narrowest = self.least;
            }
        }
        self.settle();
        self.next_hold = self.config.patience.max(FIRST_HOLD);
        self.hold = self.next_hold;
    }

    /// Pressure at full width.
    fn pressed(&mut self, rate: Ns, now: CpuTime) {
        let just_opened = core::mem::take(&mut self.just_opened);
        if self.narrowest == self.cores.all && !just_opened {
            // Folding cost too much a while ago.
            return self.narrow(rate);
        }
        self.narrowest = self.least;
        if just_opened {
            self.fail();
        }
        self.fold(now);
    }

    /// Now and then tries fewer cores, if `had` could be kept with them.
    fn narrow(&mut self, rate: Ns) {
        let all = u128::from(self.had) * u128::from(100 + self.config.keep_pct) / 2;
        let has_all = u128::from(rate) * 100 >= all;
        let room = self.used.saturating_sub(self.least);
        if self.hold == 0 && has_all && room > 0 {
            self.step = self.step.min(room);
            self.used -= self.step;
            self.narrowest = self.used;
            self.state = State::Narrowing;
        }
    }

    /// `Folded`, or `Open` if all cores are in use.
    fn settle(&mut self) {
        self.state = if self.used == self.cores.all { State::Open } else { State::Folded };
    }

    /// A hundred times the CPU time a second below which it loses.
    fn kept(&self) -> u128 {
        u128::from(self.had) * u128::from(self.config.keep_pct)
    }

    /// The fewest cores that can hold what is to be kept of `rate`.
    fn least_for(&self, rate: Ns) -> u32 {
        let kept = u128::from(rate) * u128::from(self.config.keep_pct) / 100;
        self.cores.holding(u64::try_from(kept).unwrap_or(u64::MAX), 1_000_000_000)
    }

    /// The fewest cores on which `rate` leaves room.
    fn with_room(&self, rate: Ns) -> u32 {
        let wanted = u128::from(rate) * 100 / u128::from(ROOM_PCT);
        self.cores.holding(u64::try_from(wanted).unwrap_or(u64::MAX), 1_000_000_000)
    }

    /// Narrower by the share of time that was stolen, of which there is some.
    fn fold(&mut self, now: CpuTime) {
        let wanted = u128::from(now.busy_ns) + u128::from(now.steal_ns);
        let less = u128::from(self.used) * u128::from(now.steal_ns) / wanted;
        let used = self.used - u32::try_from(less).unwrap_or(0).min(self.used);
        self.used = used.max(self.narrowest);
        self.settle();
        self.hold = self.next_hold;
    }

    /// Wider by what was lost, and not narrower again.
    fn widen(&mut self, rate: Ns) {
        let wanted = u128::from(self.used) * u128::from(self.had);
        let used = wanted.div_ceil(u128::from(rate.max(1)));
        let used = u32::try_from(used).unwrap_or(u32::MAX);
        self.used = used.min(self.cores.all);
        self.narrowest = self.used;
        self.settle();
        self.fail();
    }

    fn open(&mut self) {
        self.used = self.cores.all;
        self.state = State::Open;
        self.just_opened = true;
    }

    /// A try was wrong: the next one comes later.
    fn fail(&mut self) {
        self.next_hold = (2 * self.next_hold).min(self.config.patience.max(FIRST_HOLD));
        self.hold = self.next_hold;
    }
}

fn per_second(ns: Ns, elapsed_ns: Ns) -> Ns {
    let rate = u128::from(ns) * 1_000_000_000 / u128::from(elapsed_ns.max(1));
    u64::try_from(rate).unwrap_or(u64::MAX)
}
