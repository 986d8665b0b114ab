//! Averages of load, by which CPUs and groups are compared (PELT, per-entity load tracking).
//!
//! Time is divided into periods of about a millisecond. Of what an entity does in a period, a weight of `y^n` is left
//! after `n` periods, where `y^32` is one half. An entity's average is the part of the time, weighted in this way, in
//! which it was on a queue: running, waiting, or delayed. Its load is this part of its weight. A queue's average load
//! is that of all entities that are on it, or slept off it: a sleeper's part remains until it has decayed, or until
//! the sleeper wakes up elsewhere. Entities that move take their average along ([`FairClass::attach`]).
//!
//! Between two changes of what is on a queue its average follows in closed form, so nothing is updated by ticks, and no
//! queue's average is ever out of date. All averages of a level have one clock. The kernel has a clock for each CPU,
//! which stands still in time that is stolen from the CPU.
//!
//! A group has no average of its own, but the sum of what its queues last told of theirs ([`FairClass::tell`]). As in the
//! kernel that sum is out of date: a queue tells when something happens on it, and an idle one every 34 ms.
//!
//! The entity of a group is on its queue while one of the group is. If an entity of the group moves, the group's
//! entities on both CPUs get what is likely to be theirs afterwards (`update_tg_cfs_load`).
//!
//! A level with one CPU has nothing to compare, and keeps no averages.

use super::{FairClass, weight};
use crate::class::Enqueue;
use crate::config::Ns;
use crate::heap::NONE;
use crate::{CpuId, EntId};

/// Averages count time in units of this many bits of nanoseconds, so that the sum of a queue fits into 64 bits.
const UNIT: u32 = 6;

/// Units of a period: 1024 * 1024 ns.
const PERIOD: u64 = 1 << (20 - UNIT);

/// Periods in which half is forgotten (`LOAD_AVG_PERIOD`).
const HALF_LIFE: u64 = 32;

/// Bits to which loads are compared: those of the kernel's loads at nice 0.
const LOAD_BITS: u32 = 10;

/// `y^n`, with 32 fraction bits.
const POWERS: [u64; HALF_LIFE as usize] = powers();

/// The sum of an entity that has always been on a queue, at the end of a period: `PERIOD * (1 + y + y^2 + ...)`.
const WHOLE: u64 = (PERIOD << 32) / ((1 << 32) - POWERS[1]);

const fn powers() -> [u64; HALF_LIFE as usize] {
    const ONE: u128 = 1 << 60;
    // The square root of a half, five times.
    let (mut y, mut n) = (ONE / 2, 1);
    while n < HALF_LIFE {
        y = (y * ONE).isqrt();
        n *= 2;
    }
    let (mut all, mut power, mut n) = ([0; HALF_LIFE as usize], ONE, 0);
    while n < all.len() {
        all[n] = ((power + (1 << 27)) >> 28) as u64;
        power = power * y / ONE;
        n += 1;
    }
    all
}

/// `sum * y^periods`, rounded down.
#[inline]
fn decayed(sum: u64, periods: u64) -> u64 {
    let halves = periods / HALF_LIFE;
    if halves >= 64 {
        return 0;
    }
    let left = u128::from(sum >> halves) * u128::from(POWERS[(periods % HALF_LIFE) as usize]);
    (left >> 32) as u64
}

/// A weighted sum over the past of something that has a level: of an entity, whether it is on a queue; of a queue, the
/// weight that is on it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Average {
    sum: u64,
    /// The time of the sum, in units.
    since: u64,
}

impl Average {
    /// Of something that has always had level 1.
    fn full(now: Ns) -> Self {
        let since = now >> UNIT;
        Self { sum: Self::most(since), since }
    }

    /// The sum of what has always had level 1.
    #[inline]
    fn most(since: u64) -> u64 {
        WHOLE - PERIOD + since % PERIOD
    }

    /// Brings the sum up to date; the level since then was `level`.
    #[inline]
    pub(super) fn advance(&mut self, now: Ns, level: u64) {
        let now = now >> UNIT;
        let begun = self.since % PERIOD;
        let Some(passed) = now.checked_sub(self.since) else { return };
        let periods = (begun + passed) / PERIOD;
        self.since = now;
        if periods == 0 {
            self.sum += level * passed;
            return;
        }
        self.sum = decayed(self.sum, periods);
        if level > 0 {
            // The rest of the period at the begin, whole periods, and the begin of this one.
            let whole = WHOLE - PERIOD - decayed(WHOLE, periods);
            self.sum += level * (decayed(PERIOD - begun, periods) + whole + now % PERIOD);
        }
    }

    /// The average, as a part of `of`.
    #[inline]
    fn part(mut self, now: Ns, level: u64, of: u64) -> u64 {
        self.advance(now, level);
        weight::share(of, self.sum, Self::most(self.since))
    }

    /// The average.
    #[inline]
    pub(super) fn value(self, now: Ns, level: u64) -> u64 {
        self.part(now, level, 1)
    }

    /// The average with [`SHIFT`](weight::SHIFT) fraction bits.
    pub(super) fn fine(self, now: Ns, level: u64) -> u64 {
        self.part(now, level, 1 << weight::SHIFT)
    }
}

/// A load or weight to so many bits: otherwise equals differ by how their sums were rounded.
pub(super) fn rounded(load: u64, bits: u32) -> u64 {
    let digits = (u64::BITS - load.leading_zeros()).saturating_sub(bits);
    (load + (1 << digits >> 1)) >> digits << digits
}

impl FairClass {
    /// An entity comes onto its queue, or leaves it.
    #[inline]
    pub(super) fn set_on_rq(&mut self, s: usize, on_rq: bool) {
        let (now, tracks, se) = (self.clock, self.tracks, &mut self.ses[s]);
        if tracks {
            se.average.advance(now, u64::from(se.on_rq));
        }
        se.on_rq = on_rq;
    }

    /// Changes the weight on the queue.
    #[inline]
    pub(super) fn change_load(&mut self, r: usize, old: u64, new: u64) {
        let rq = &mut self.rqs[r];
        if self.tracks {
            rq.average.advance(self.clock, rq.load);
        }
        rq.load = rq.load - old + new;
    }

    /// Replaces a part of the sum of a queue.
    fn change_sum(&mut self, r: usize, old: u64, new: u64) {
        let rq = &mut self.rqs[r];
        rq.average.advance(self.clock, rq.load);
        // Sums are rounded at different times, so that a part can exceed the sum slightly.
        rq.average.sum = (rq.average.sum + new).saturating_sub(old);
    }

    /// Tells a queue's group of its average if it has changed by more than 1/64, and the last time was long enough ago
    /// (`update_tg_load_avg`).
    pub(super) fn tell(&mut self, r: usize) {
        let rq = &self.rqs[r];
        if !self.tracks || rq.group == NONE || self.clock - rq.told_at < self.tells_after {
            return;
        }
        let average = self.average_load(r);
        let rq = &mut self.rqs[r];
        if average.abs_diff(rq.told) > rq.told / 64 {
            let all = &mut self.groups[rq.group as usize].told;
            *all = *all - rq.told + average;
            (rq.told, rq.told_at) = (average, self.clock);
        }
    }

    /// Tells the groups from queue `r` outwards.
    pub(super) fn tell_up(&mut self, mut r: usize) {
        while let Some(g) = self.group_entity(r) {
            self.tell(r);
            r = self.ses[g].rq as usize;
        }
    }

    /// Tells the groups of all queues now and then, also of those on which nothing happens: a CPU that balances does so
    /// (`update_blocked_averages`), and one of them for those that are idle.
    #[inline]
    pub(crate) fn tell_all(&mut self) {
        if self.clock - self.all_told_at >= (HALF_LIFE * PERIOD) << UNIT {
            self.all_told_at = self.clock;
            (self.cpus..self.rqs.len()).for_each(|r| self.tell(r));
        }
    }

    /// The weight with which an entity counts in its queue's load.
    fn counted_weight(&self, s: usize) -> u64 {
        let se = &self.ses[s];
        if se.owns == NONE { se.own } else { se.weight }
    }

    fn advanced_sum(&mut self, s: usize) -> u64 {
        let se = &mut self.ses[s];
        se.average.advance(self.clock, u64::from(se.on_rq));
        se.average.sum
    }

    /// An entity's weight changes, on the queue or off it: what it is of the average of its queue changes with it.
    pub(super) fn reweigh_average(&mut self, s: usize, old: u64, new: u64) {
        let r = self.ses[s].counts_in;
        if self.tracks && r != NONE {
            let sum = self.advanced_sum(s);
            self.change_sum(r as usize, old * sum, new * sum);
        }
    }

    /// A task that comes onto a queue, `how`, counts in its average: in that of the queue `r`.
    #[inline]
    pub(super) fn attach(&mut self, s: usize, r: usize, how: Enqueue) {
        self.take_turn(s);
        if self.tracks && self.ses[s].counts_in != r as u32 {
            self.attach_anew(s, r, how);
        }
    }

    fn attach_anew(&mut self, s: usize, mut r: usize, how: Enqueue) {
        // The CPU where it was tells its group later.
        self.detach(s);
        if how == Enqueue::Initial {
            // It counts in full until it is known.
            self.ses[s].average = Average::full(self.clock);
        }
        let mut more = self.advanced_sum(s);
        self.ses[s].counts_in = r as u32;
        let mut weight = self.counted_weight(s);
        loop {
            self.change_sum(r, 0, weight * more);
            let Some(g) = self.group_entity(r) else { return };
            let sum = self.advanced_sum(g);
            let se = &mut self.ses[g];
            more = more.min(Average::most(se.average.since).saturating_sub(sum));
            se.average.sum += more;
            (r, weight) = (se.counts_in as usize, se.weight);
        }
    }

    /// A task counts no more in the average of the queue where it was.
    fn detach(&mut self, s: usize) {
        let r = core::mem::replace(&mut self.ses[s].counts_in, NONE);
        if r == NONE {
            return;
        }
        let (mut r, mut less) = (r as usize, self.advanced_sum(s));
        let mut weight = self.counted_weight(s);
        loop {
            self.change_sum(r, weight * less, 0);
            let Some(g) = self.group_entity(r) else { return };
            let sum = self.advanced_sum(g);
            // Entities that are awake are assumed to be so at the same times, and others one after another.
            let of = if self.rqs[r].load > 0 { self.rqs[r].load } else { weight::NICE_0 };
            let left = sum.min(self.rqs[r].average.sum / of);
            let se = &mut self.ses[g];
            se.average.sum = left;
            (r, weight, less) = (se.counts_in as usize, se.weight, sum - left);
        }
    }

    /// A task is about to move from where it waits, leaves the class, or ends.
    pub(crate) fn take_load(&mut self, e: EntId) {
        let s = self.se_of(e);
        let r = self.ses[s].counts_in;
        if r != NONE {
            self.detach(s);
            self.tell_up(r as usize);
        }
    }

    fn group_entity(&self, r: usize) -> Option<usize> {
        let g = self.rqs[r].se;
        (g != NONE).then_some(g as usize)
    }

    /// Average load of a queue.
    #[inline]
    pub(super) fn average_load(&self, r: usize) -> u64 {
        self.rqs[r].average.value(self.clock, self.rqs[r].load)
    }

    /// The average load of an entity among those of its queue.
    fn load_in_queue(&self, s: usize) -> u64 {
        let se = &self.ses[s];
        se.average.part(self.clock, u64::from(se.on_rq), self.counted_weight(s))
    }

    /// Average load of the root queue of `cpu` (`cpu_load`).
    #[inline]
    pub(crate) fn load(&self, cpu: CpuId) -> u64 {
        rounded(self.average_load(cpu.index()), LOAD_BITS)
    }

    /// What the entity adds to the load of the CPU where it is or last was: its own average load, times the parts that
    /// its groups have there of theirs (`task_h_load`).
    pub(crate) fn load_of(&self, e: EntId) -> u64 {
        let s = self.se_of(e);
        let (mut load, mut r) = (self.load_in_queue(s), self.ses[s].counts_in);
        while r != NONE
            && let Some(g) = self.group_entity(r as usize)
        {
            let of = self.average_load(r as usize) + 1;
            load = weight::share(load, self.load_in_queue(g), of);
            r = self.ses[g].counts_in;
        }
        rounded(load, LOAD_BITS)
    }

    /// The part of `whole` that is the part of the time in which the entity was queued: not less than what it used.
    pub(crate) fn part_of(&self, e: EntId, whole: u64) -> u64 {
        let se = &self.ses[self.se_of(e)];
        se.average.part(self.clock, u64::from(se.on_rq), whole)
    }

    /// Panics if the average of a queue is not the sum of those of its entities, as far as sums that are rounded at
    /// different times can agree.
    pub(super) fn check_loads(&self) {
        if !self.tracks {
            return;
        }
        let now = self.clock;
        let close = |a: u64, b: u64, what: &str, i: usize| {
            let least = (weight::NICE_0 * WHOLE) / 100;
            assert!(a.abs_diff(b) <= least + a / 100, "average load of {what} {i}: {a}, not {b}");
        };
        let sum = |average: &Average, level| {
            let mut average = *average;
            average.advance(now, level);
            average.sum
        };
        let mut parts = alloc::vec![0; self.rqs.len()];
        for (s, se) in self.ses.iter().enumerate() {
            let own = sum(&se.average, u64::from(se.on_rq));
            let most = Average::most(now >> UNIT);
            assert!(own <= most + most / 1000, "entity {s} was queued for longer than always");
            if se.counts_in != NONE {
                parts[se.counts_in as usize] += self.counted_weight(s) * own;
            }
        }
        let mut told = alloc::vec![0; self.groups.len()];
        for (r, rq) in self.rqs.iter().enumerate() {
            let queue = sum(&rq.average, rq.load);
            close(queue, parts[r], "queue", r);
            if let Some(of) = told.get_mut(rq.group as usize) {
                *of += rq.told;
            }
        }
        for (g, group) in self.groups.iter().enumerate() {
            assert_eq!(group.told, told[g], "what group {g} was told");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::level;
    use super::*;
    use crate::class::{Class, Dequeue};
    use crate::config::{CfsTunables, Fair, Policy};

    const MS: Ns = 1 << 20;

    /// An average in thousandths.
    fn thousandths(average: Average, now: Ns, level: u64) -> u64 {
        average.part(now, level, 1000)
    }

    #[test]
    fn a_power_is_a_half_after_the_half_life() {
        for (n, &power) in POWERS.iter().enumerate() {
            let exact = libm::exp2(32.0 - n as f64 / 32.0);
            assert!((power as f64 - exact).abs() <= 1.0, "y^{n}");
        }
        assert_eq!([0, 32, 64, 96].map(|n| decayed(1000, n)), [1000, 500, 250, 125]);
        assert_eq!(decayed(u64::MAX, 64 * 32), 0);
        // The sum of all powers is 1 / (1 - y) = 46.668.
        assert_eq!(WHOLE * 1000 / PERIOD, 46_668);
    }

    #[test]
    fn what_differs_by_rounding_only_is_equal() {
        assert_eq!(
            [0, 5, 1023, 1025, 1026, 2051].map(|load| rounded(load, 10)),
            [0, 5, 1023, 1026, 1026, 2052]
        );
        assert_eq!(
            [-99, 99].map(|off| rounded(weight::NICE_0.wrapping_add_signed(off), 10)),
            [weight::NICE_0; 2]
        );
    }

    #[test]
    fn what_runs_for_ever_has_its_level_and_what_sleeps_loses_half_in_32_ms() {
        let mut average = Average::default();
        for (ms, part) in [(0, 0), (32, 500), (64, 750), (96, 875), (320, 999)] {
            let all = thousandths(average, ms * MS, 1);
            assert!(all.abs_diff(part) <= 1, "{ms} ms: {all}");
        }
        average.advance(2000 * MS, 1);
        assert!(thousandths(average, 2000 * MS, 1) >= 999);
        let at = |ms: u64| thousandths(average, (2000 + ms) * MS, 0);
        for (ms, part) in [(0, 1000), (16, 707), (32, 500), (64, 250), (320, 1)] {
            assert!(at(ms).abs_diff(part) <= 1, "{ms} ms asleep: {}", at(ms));
        }
        assert!(thousandths(Average::full(3 * MS + 12_345), 40 * MS, 1).abs_diff(1000) <= 1);
    }

    #[test]
    fn half_of_the_time_is_a_half_however_it_is_cut() {
        // 5 ms on, 5 ms off: seen at the end of each part, the average is above and below by a fixed factor.
        let (mut average, mut now) = (Average::default(), 0);
        for turn in 0..200 {
            now += 5 * MS;
            average.advance(now, (turn + 1) % 2);
        }
        let (low, high) = (thousandths(average, now, 0), thousandths(average, now + 5 * MS, 1));
        // With q = y^5: q / (1 + q) and 1 / (1 + q).
        assert!(low.abs_diff(473) <= 1 && high.abs_diff(527) <= 1, "{low} {high}");
        // Advancing more often changes nothing but the last digits.
        let (mut often, mut now) = (Average::default(), 777_777);
        let mut once = often;
        once.advance(now, 0);
        often.advance(now, 0);
        for _ in 0..1000 {
            now += 99_999;
            often.advance(now, 3);
        }
        once.advance(now, 3);
        assert!(often.sum.abs_diff(once.sum) <= once.sum / 1000, "{} {}", often.sum, once.sum);
        assert_eq!(often.since, once.since);
    }

    /// Three tasks, the last two in a group that is in another, on two CPUs.
    fn class() -> FairClass {
        let fair = Fair::Cfs(CfsTunables::for_cpus(2));
        let mut cfg = level(fair, 1_000_000, 2, [1024, 1024].into());
        cfg.groups[1].parent = Some(0);
        let mut c = FairClass::new(&cfg);
        for (e, group) in (0..).zip([None, Some(1), Some(1)]) {
            c.add(EntId(e), Policy::NORMAL, group);
        }
        c
    }

    /// Loads of both CPUs, of which a task of nice 0 that is always awake has 1000.
    fn loads(c: &mut FairClass, now: Ns) -> [u64; 2] {
        c.clock = now;
        c.check();
        [0, 1].map(|cpu| c.average_load(cpu) * 1000 / weight::NICE_0)
    }

    fn near<const N: usize>(found: [u64; N], expected: [u64; N]) {
        assert!(found.iter().zip(expected).all(|(a, b)| a.abs_diff(b) <= 2), "{found:?}");
    }

    #[test]
    fn a_sleeper_counts_where_it_ran_and_takes_its_load_along() {
        let mut c = class();
        c.enqueue(CpuId(0), EntId(0), Enqueue::Wakeup);
        near(loads(&mut c, 0), [0, 0]);
        near(loads(&mut c, 32 * MS), [500, 0]);
        c.dequeue(CpuId(0), EntId(0), Dequeue::Sleep);
        near(loads(&mut c, 64 * MS), [250, 0]);
        assert!((c.load_of(EntId(0)) >> weight::SHIFT).abs_diff(255) <= 1);
        // It wakes up elsewhere.
        c.enqueue(CpuId(1), EntId(0), Enqueue::Wakeup);
        near(loads(&mut c, 64 * MS), [0, 250]);
        near(loads(&mut c, 96 * MS), [0, 625]);
        // In another class it counts nowhere, and less the longer it is there.
        c.dequeue(CpuId(1), EntId(0), Dequeue::Save);
        near(loads(&mut c, 96 * MS), [0, 0]);
        c.clock = 128 * MS;
        c.enqueue(CpuId(0), EntId(0), Enqueue::Restore);
        near(loads(&mut c, 128 * MS), [312, 0]);
        // Another nice value changes all of it: 3121 instead of 1024.
        c.set_policy(EntId(0), Policy::Normal { nice: -5, slice_ns: None });
        near(loads(&mut c, 128 * MS), [952, 0]);
        // A new one counts in full.
        let mut c = class();
        c.enqueue(CpuId(0), EntId(0), Enqueue::Initial);
        near(loads(&mut c, 0), [1000, 0]);
        c.dequeue(CpuId(0), EntId(0), Dequeue::Exit);
        near(loads(&mut c, 0), [0, 0]);
    }

    #[test]
    fn a_load_in_groups_is_a_part_of_that_of_the_group() {
        let mut c = class();
        for e in 0..3 {
            c.enqueue(CpuId(0), EntId(e), Enqueue::Wakeup);
        }
        let later = 1000 * MS;
        near(loads(&mut c, later), [2000, 0]);
        let of = |c: &FairClass| [0, 1, 2].map(|e| c.load_of(EntId(e)) >> weight::SHIFT);
        near(of(&c), [1023, 511, 511]);
        // One moves: each CPU has half of the group, once weights are renewed.
        c.dequeue(CpuId(0), EntId(2), Dequeue::Save);
        c.enqueue(CpuId(1), EntId(2), Enqueue::Restore);
        for e in [1, 2, 1, 2] {
            let r = c.own_queue(c.se_of(EntId(e))) as usize;
            c.update_group_weights(r);
        }
        near(loads(&mut c, later), [1500, 500]);
        near(of(&c), [1023, 511, 511]);
        // The other one leaves as well: of the group nothing is left there.
        c.dequeue(CpuId(0), EntId(1), Dequeue::Exit);
        near(loads(&mut c, later), [1000, 500]);
        // If the last one sleeps, its group's load decays.
        c.dequeue(CpuId(1), EntId(2), Dequeue::Sleep);
        near(loads(&mut c, later + 64 * MS), [1000, 125]);
    }
}
