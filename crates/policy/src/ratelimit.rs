//! `ratelimit-auto`: a ratelimit for each domain of a Xen host, from what its vCPUs do.
//!
//! The idea is from "Performance of Xen VCPU Scheduling" (Xen wiki, 2013), which had no code for it. A VM that boots
//! blocks often and runs for short times. A VM that computes hardly ever blocks, and loses little if it runs in many
//! short slices instead of a long one.
//!
//! A ratelimit protects the vCPU that *runs*: nobody preempts it for this time after a switch. So a domain's ratelimit
//! affects the other domains:
//!
//! * if a vCPU that computes is protected, short I/O work of others waits, each time for up to the ratelimit; if it is
//!   not protected, there are more context switches, at most `1 / ratelimit` per second;
//! * if a vCPU that runs briefly is protected, nobody waits for long, because it soon blocks by itself; if it is not
//!   protected, its work is interrupted without a gain.
//!
//! So a domain that runs briefly is protected for the length of its runs. A domain that computes and is challenged by
//! short work has the smallest ratelimit. A domain that computes and is not challenged has the largest.
//!
//! Challenges are counted per second, whatever the domain's size. Each costs two switches, on however many vCPUs they
//! are, and vCPUs that are not challenged lose nothing.
//!
//! # Why it does not oscillate
//!
//! How often a domain is challenged does not depend on its ratelimit. How often the ratelimit delays others does: that
//! number falls with the ratelimit, and a controller based on it raises the ratelimit again. The coupling that remains
//! has the other sign: work that waits less comes back sooner, and challenges more. The rate is averaged, every
//! threshold is a pair, a change of phase must be confirmed, and a ratelimit moves towards its target by steps and ends
//! on it.

use crate::config::{Ns, RATELIMIT_FLOOR_NS, RatelimitConfig};

/// An interval with fewer blocks than this is no evidence of how long runs are,
const LEAST_BLOCKS: u64 = 8;
/// unless the domain had as much CPU time as this.
const LEAST_RUN_NS: Ns = 1_000_000;
/// Ratelimit of a brief domain, in mean runs: nearly all of its runs end within it.
const RUNS: Ns = 2;
/// A ratelimit falls by up to this factor an interval, because others wait,
const DOWN: Ns = 4;
/// and rises by up to this one, because no vCPU waits.
const UP: Ns = 2;
/// Weight of the past in the averaged rate of challenges: seven parts to one of the last interval.
const PAST: u64 = 7;
/// The average is capped at this many times the threshold, so that it comes down in time.
const HEIGHT: u64 = 4;

/// Counters of a domain's vCPUs since they were added, summed. They never fall.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DomainCounters {
    /// Runs that ended by blocking.
    pub blocks: u64,
    /// CPU time, in nanoseconds.
    pub run_ns: Ns,
    /// Times that a more urgent vCPU woke up for the CPU on which one of them ran, where the waker's run before was
    /// shorter than [`RatelimitConfig::brief_ns`].
    pub short_challenges: u64,
}

/// Kind of load that a domain is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Not known yet: the scheduler's own ratelimit holds.
    Watching,
    /// Runs briefly and blocks: it boots, or does I/O.
    Brief,
    /// Computes, and others need its CPUs for short times.
    Pressed,
    /// Computes, and is not challenged.
    Free,
}

/// The machine of one domain.
///
/// | phase | an interval shows | phase, once confirmed | target |
/// | --- | --- | --- | --- |
/// | any | neither 8 blocks nor 1 ms of CPU time | same; it counts with the next | same |
/// | any | mean run at most `brief` | `Brief` | twice the mean run, as a power of two of 100 us |
/// | `Brief` | mean run below `busy` | `Brief` | the same; kept while it is within a factor of 2 |
/// | others | on average `pressed` short challenges a second, or more | `Pressed` | `min` |
/// | `Pressed` | on average more than `calm` of them | `Pressed` | `min` |
/// | others | none of these | `Free` | `max` |
///
/// The ratelimit falls to a quarter or doubles towards its target each interval. Targets lie
/// between `min` and `max`.
///
/// With the same counts in every interval (enough of them for a verdict) the average is settled on
/// its side of the thresholds after [`Ratelimit::most_averaged`] intervals, the phase `confirm`
/// intervals later, and the ratelimit [`Ratelimit::most_steps`] after that; from then on nothing
/// changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ratelimit {
    config: RatelimitConfig,
    phase: Phase,
    /// What the last intervals showed, and how many in a row.
    verdict: Phase,
    agreed: u32,
    /// The scheduler's own until the first change.
    limit_ns: Ns,
    /// invariant: between `min` and `max`, once the phase is not `Watching`.
    target_ns: Ns,
    /// Averaged short challenges in a thousand seconds.
    pressure: u64,
    /// Counters at the last verdict.
    last: DomainCounters,
    /// End of the last interval, and its count of short challenges.
    at: Ns,
    short: u64,
    changes: u64,
}

impl Ratelimit {
    /// Watching since `now`; `own_ns` is the ratelimit the scheduler gives to all domains. Bounds of
    /// the configuration that contradict each other are brought in order: `min` gives way to `max`.
    pub fn new(config: RatelimitConfig, own_ns: Ns, now: Ns) -> Self {
        let mut config = config;
        config.max_ns = config.max_ns.max(RATELIMIT_FLOOR_NS);
        if config.min_ns != 0 {
            config.min_ns = config.min_ns.clamp(RATELIMIT_FLOOR_NS, config.max_ns);
        }
        config.calm_per_s = config.calm_per_s.min(config.pressed_per_s);
        config.busy_ns = config.busy_ns.max(config.brief_ns);
        Self {
            config,
            phase: Phase::Watching,
            verdict: Phase::Watching,
            agreed: 0,
            limit_ns: own_ns,
            target_ns: own_ns,
            pressure: 0,
            last: DomainCounters::default(),
            at: now,
            short: 0,
            changes: 0,
        }
    }

    /// Kind of load that the domain is taken for.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The ratelimit in force, in nanoseconds; 0 = off.
    pub fn limit_ns(&self) -> Ns {
        self.limit_ns
    }

    /// Times the ratelimit was changed.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Most intervals a ratelimit takes from one end of its range to the other.
    pub fn most_steps(&self) -> u32 {
        // Up is the longer way, and begins with one step from off to the floor.
        (self.config.max_ns / RATELIMIT_FLOOR_NS).ilog2() + 2
    }

    /// Most intervals of equal counts until the averaged rate has passed all thresholds that it will.
    pub fn most_averaged(&self) -> u32 {
        // Each interval takes an eighth of the way, and a distance below 8 is none: 6 intervals more
        // than halve it.
        6 * (self.ceiling().max(8).ilog2() + 1)
    }

    fn ceiling(&self) -> u64 {
        HEIGHT * 1000 * u64::from(self.config.pressed_per_s)
    }

    /// The counters at time `now`. Returns the ratelimit to set from now on, if it changes. Calls before the interval
    /// is over change nothing; a late call covers a longer interval.
    pub fn on(&mut self, now: Ns, seen: DomainCounters) -> Option<Ns> {
        let elapsed = now.saturating_sub(self.at);
        if elapsed < self.config.interval_ns {
            return None;
        }
        self.at = now;
        self.average(seen.short_challenges, elapsed);
        self.look(seen);
        (self.phase != Phase::Watching).then(|| self.step()).flatten()
    }

    /// Adds an interval's challenges to the average.
    fn average(&mut self, short: u64, elapsed: Ns) {
        let new = u128::from(short.saturating_sub(self.short)) * 1_000_000_000_000;
        self.short = short;
        let ceiling = self.ceiling();
        let rate = (new / u128::from(elapsed.max(1))).min(u128::from(ceiling)) as u64;
        self.pressure = (PAST * self.pressure + rate) / (PAST + 1);
    }

    /// Comes to a verdict, if there is enough evidence.
    fn look(&mut self, seen: DomainCounters) {
        let blocks = seen.blocks.saturating_sub(self.last.blocks);
        let run_ns = seen.run_ns.saturating_sub(self.last.run_ns);
        if blocks < LEAST_BLOCKS && run_ns < LEAST_RUN_NS {
            return;
        }
        self.last = seen;
        let mean = run_ns.checked_div(blocks).unwrap_or(Ns::MAX);
        let verdict = self.judge(mean);
        if verdict == self.phase {
            self.agreed = 0;
        } else {
            self.agreed = if verdict == self.verdict { self.agreed.saturating_add(1) } else { 1 };
            if self.agreed >= self.config.confirm {
                self.phase = verdict;
                self.agreed = 0;
                self.aim(mean);
            }
        }
        self.verdict = verdict;
        if self.phase == Phase::Brief && verdict == Phase::Brief {
            self.aim_again(mean);
        }
    }

    /// What an interval shows by itself, given what the domain is taken for.
    fn judge(&self, mean: Ns) -> Phase {
        let c = &self.config;
        let brief = if self.phase == Phase::Brief { mean < c.busy_ns } else { mean <= c.brief_ns };
        if brief {
            return Phase::Brief;
        }
        let at = |per_s: u32| 1000 * u64::from(per_s);
        let pressed = self.pressure > 0 && self.pressure >= at(c.pressed_per_s);
        if pressed || self.phase == Phase::Pressed && self.pressure > at(c.calm_per_s) {
            Phase::Pressed
        } else {
            Phase::Free
        }
    }

    /// Sets the target of a new phase.
    fn aim(&mut self, mean: Ns) {
        self.target_ns = match self.phase {
            Phase::Watching => self.limit_ns,
            Phase::Brief => self.cover(mean),
            Phase::Pressed => self.config.min_ns,
            Phase::Free => self.config.max_ns,
        };
    }

    /// Sets a new target for runs that are still brief but got much longer or shorter.
    fn aim_again(&mut self, mean: Ns) {
        let wanted = self.cover(mean);
        let target = self.target_ns;
        if wanted > 2 * target || 2 * wanted < target {
            self.target_ns = wanted;
        }
    }

    /// The protection that covers runs of this mean length.
    fn cover(&self, mean: Ns) -> Ns {
        let c = &self.config;
        let floors = mean.saturating_mul(RUNS).div_ceil(RATELIMIT_FLOOR_NS).max(1);
        let wanted =
            floors.checked_next_power_of_two().unwrap_or(1).saturating_mul(RATELIMIT_FLOOR_NS);
        wanted.clamp(c.min_ns.max(RATELIMIT_FLOOR_NS), c.max_ns)
    }

    /// One step towards the target.
    fn step(&mut self) -> Option<Ns> {
        // The scheduler's own may lie outside the bounds.
        let c = &self.config;
        let from = self.limit_ns.clamp(c.min_ns, c.max_ns);
        let to = if from > self.target_ns {
            let lower = (from / DOWN).max(self.target_ns);
            if lower < RATELIMIT_FLOOR_NS { self.target_ns } else { lower }
        } else {
            from.saturating_mul(UP).max(RATELIMIT_FLOOR_NS).min(self.target_ns)
        };
        if to == self.limit_ns {
            return None;
        }
        self.limit_ns = to;
        self.changes += 1;
        Some(to)
    }
}
