//! Spreading fair entities over CPUs.
//!
//! Four ways, as in the kernel:
//! - a CPU about to go idle *pulls* from a CPU where an entity waits (newidle balancing);
//! - a busy CPU's tick hands a waiting entity to an idle CPU whose turn it is to balance. In the kernel an idle CPU is
//!   woken to balance for all of them (nohz idle balancing); the outcome is the same;
//! - the tick of a CPU where no entity waits moves the running entity to a better CPU ([`super::active`]);
//! - at intervals, a busy CPU compares its load with that of the busiest CPU of its LLC, and the first CPU of a
//!   busy LLC compares the LLC's load with that of the busiest LLC. They pull what evens the loads out (periodic
//!   balancing).
//!
//! The second walks over the idle CPUs, and the last over all CPUs, at intervals that grow with their number. The
//! rules of the last are those of `update_sd_lb_stats`, `sched_balance_find_src_group` and `calculate_imbalance` of
//! `kernel/sched/fair.c` (5.10 to 6.18) for a CPU that is not idle, and entities are looked at in the order of
//! `detach_tasks`. Loads are averages ([`crate::fair`]).

use alloc::vec::Vec;
use core::cmp::Reverse;

use super::Level;
use crate::config::{Balance, CfsRelease, ClassId, Fair, Ns};
use crate::{CpuId, CpuSet, EntId};

/// Capacity of a CPU that fair entities have to themselves.
pub(super) const FULL: u64 = 1024;

/// Balancing domains: the LLC, and the whole level.
pub(super) const DOMAINS: usize = 2;

/// Averaging window of capacity and utilisation: the kernel's averages have this half-life.
const AVERAGE_WINDOW: Ns = 32_000_000;

/// Crowded CPUs that a CPU about to go idle checks in its LLC, and then elsewhere. More would find a slightly busier
/// one, at a cost that grows with the machine.
const NEWIDLE_SCAN: usize = 8;

/// Entities moved by one periodic balancing at most (`sched_nr_migrate`).
const MAX_MOVES: usize = 32;

/// After this many failures even a cache-hot entity moves (`cache_nice_tries`).
pub(super) const NICE_TRIES: u32 = 1;

/// A millisecond of interval for every CPU of a domain.
pub(super) const INTERVAL_PER_CPU: Ns = 1_000_000;

/// The balancing of one domain by one CPU.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Domain {
    /// When it was last done.
    at: Ns,
    /// The domain was balanced then.
    even: bool,
    /// Failures to move anything since the last success.
    failed: u32,
}

/// How long a CPU is idle before a thread is woken there (`avg_idle`).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IdleTimes {
    /// When it went idle, if nothing has been woken since.
    since: Option<Ns>,
    mean: Ns,
}

impl IdleTimes {
    pub(super) fn new(cfg: &Balance) -> Self {
        Self { since: None, mean: Self::most(cfg) }
    }

    /// Bound of the mean.
    fn most(cfg: &Balance) -> Ns {
        2 * cfg.migration_cost_ns
    }

    /// A thread is woken there: an eighth of the new mean is this idle time.
    pub(super) fn end(&mut self, now: Ns, cfg: &Balance) {
        let Some(since) = self.since.take() else { return };
        self.mean = (self.mean - self.mean / 8 + (now - since) / 8).min(Self::most(cfg));
    }
}

/// What should move to a CPU (`calculate_imbalance`): load, if the CPU is used up as well, so that loads are as on
/// average; else within an LLC half of the difference in entities, and between LLCs what fills it.
#[derive(Clone, Copy, Debug)]
enum Imbalance {
    Load(u64),
    /// Out of [`FULL`] for each CPU.
    Utilisation(u64),
    Entities(u64),
}

impl Imbalance {
    fn amount(self) -> u64 {
        let (Self::Load(n) | Self::Utilisation(n) | Self::Entities(n)) = self;
        n
    }
}

/// State of a CPU, or of all CPUs of an LLC that take part.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Group {
    cpus: u32,
    /// Capacity that RT, deadline entities and steal leave, the part that fair entities use, and the fair load.
    capacity: u64,
    util: u64,
    load: u64,
    /// Runnable entities, and how many of these are fair.
    runnable: u32,
    fair: u32,
}

impl Group {
    /// Its load, scaled to full capacity.
    fn average(&self) -> u64 {
        self.load * FULL / self.capacity.max(1)
    }

    pub(super) fn runnable(&self) -> u32 {
        self.runnable
    }

    pub(super) fn is_crowded(&self) -> bool {
        self.runnable > self.cpus
    }

    /// Whether its entities leave some of its capacity.
    fn has_room(&self, pct: u64) -> bool {
        self.capacity * 100 > self.util * pct
    }

    /// Whether it has more entities than CPUs, and they use up its capacity (`group_is_overloaded`).
    fn is_overloaded(&self, pct: u64) -> bool {
        self.is_crowded() && self.capacity * 100 < self.util * pct
    }

    /// Whether it could take more (`group_has_capacity`).
    fn has_spare(&self, pct: u64) -> bool {
        self.runnable < self.cpus || self.has_room(pct)
    }

    fn add(&mut self, other: Self) {
        self.cpus += other.cpus;
        self.capacity += other.capacity;
        self.util += other.util;
        self.load += other.load;
        self.runnable += other.runnable;
        self.fair += other.fair;
    }
}

impl Level {
    /// Capacity that RT, deadline entities and steal leave of a CPU, out of [`FULL`].
    #[inline]
    pub(super) fn capacity(&self, cpu: CpuId) -> u64 {
        self.cpus[cpu.index()].capacity
    }

    /// Fair load of a CPU, scaled to full capacity.
    #[inline]
    pub(super) fn scaled_load(&self, cpu: CpuId) -> u64 {
        self.fair.load(cpu) * FULL / self.capacity(cpu)
    }

    /// Whether a CPU pulls depends on how long it is idle on average.
    pub(super) fn pull_depends_on_idle(&self) -> bool {
        matches!(&self.cfg.fair, Fair::Cfs(cfs) if cfs.release == CfsRelease::V5_15)
    }

    /// A CPU about to go idle takes one waiting entity from another. True if it did.
    pub(super) fn pull_newidle(&mut self, now: Ns, cpu: CpuId) -> bool {
        if !self.pull_depends_on_idle() {
            return self.pull(now, cpu);
        }
        let is_long = self.cpus[cpu.index()].idle_times.mean >= self.cfg.balance.migration_cost_ns;
        let pulled = is_long && self.pull(now, cpu);
        self.cpus[cpu.index()].idle_times.since = (!pulled).then_some(now);
        pulled
    }

    fn pull(&mut self, now: Ns, cpu: CpuId) -> bool {
        let (lo, hi) = self.llc(cpu);
        let all = self.cpus.len() as u32;
        // Own LLC, then the CPUs above it, then those below.
        self.pull_from(now, cpu, lo, hi)
            || self.pull_from(now, cpu, hi, all)
            || self.pull_from(now, cpu, 0, lo)
    }

    /// The same, from the busiest of a few crowded CPUs of `lo..hi`.
    fn pull_from(&mut self, now: Ns, cpu: CpuId, lo: u32, hi: u32) -> bool {
        let start = if (lo..hi).contains(&cpu.0) { cpu.0 + 1 } else { lo };
        let mut seen = [(0, CpuId(0)); NEWIDLE_SCAN];
        let mut n = 0;
        for (a, b) in [(start, hi), (lo, start)] {
            let mut at = a;
            while n < NEWIDLE_SCAN
                && let Some(src) = self.sets.crowded.find(None, at, b)
            {
                seen[n] = (self.cpus[src.index()].nr_fair, src);
                n += 1;
                at = src.0 + 1;
            }
        }
        let mut left = &mut seen[..n];
        while let Some(best) = (0..left.len()).max_by_key(|&i| (left[i].0, usize::MAX - i)) {
            let src = left[best].1;
            let fits = |e| self.may_use(e, cpu) && !self.is_hot(now, e, cpu);
            if let Some(e) = self.fair.first_by_turn(src, fits) {
                self.transfer(now, e, cpu);
                return true;
            }
            let last = left.len() - 1;
            left.swap(best, last);
            left = &mut left[..last];
        }
        false
    }

    /// Whether an entity should rather stay where it is than move to a CPU: because of its cache, or because it does
    /// not fit to what the core of that CPU runs.
    fn is_hot(&self, now: Ns, e: EntId, to: CpuId) -> bool {
        self.is_cache_hot(now, e) || !self.fits_core(e, to)
    }

    /// Whether an entity ran so recently that its cache is worth more than a CPU now.
    fn is_cache_hot(&self, now: Ns, e: EntId) -> bool {
        let ent = &self.ents[e.index()];
        ent.stats.switches_in > 0
            && now.saturating_sub(ent.last_ran) < self.cfg.balance.migration_cost_ns
    }

    /// The balancing part of a busy CPU's tick.
    pub(super) fn balance_tick(&mut self, now: Ns, cpu: CpuId, e: EntId) {
        self.update_averages(now, cpu);
        if self.sets.crowded.contains(cpu) {
            self.offload(now, cpu);
        } else {
            self.active_balance(now, cpu, e);
        }
        for d in self.domains() {
            if self.is_due(now, cpu, d, true) {
                let even = self.balance(now, cpu, d);
                let domain = &mut self.cpus[cpu.index()].domains[d];
                (domain.at, domain.even) = (now, even);
                self.update_idle_scan(now, cpu, d);
            }
        }
    }

    /// The domains that a CPU balances.
    fn domains(&self) -> impl Iterator<Item = usize> + use<> {
        let spans = self.spans();
        (0..DOMAINS).filter(move |&d| spans[d] > 1 && (d == 0 || spans[0] < spans[1]))
    }

    /// CPUs of each domain.
    fn spans(&self) -> [u32; DOMAINS] {
        [self.llc_cpus, self.cpus.len() as u32]
    }

    /// Whether a CPU balances a domain now (`get_sd_balance_interval`): less often if the domain was balanced. The
    /// interval of a busy CPU is one tick less than a multiple of slices, so that it does not meet the same entity each
    /// time.
    fn is_due(&self, now: Ns, cpu: CpuId, d: usize, busy: bool) -> bool {
        let last = self.cpus[cpu.index()].domains[d];
        let least = u64::from(self.spans()[d]) * INTERVAL_PER_CPU * (1 + u64::from(last.even));
        let tick = self.cfg.tick_ns;
        let ticks = if busy {
            let factor = u64::from(self.cfg.balance.busy_factor.max(1));
            (least * factor).div_ceil(tick).saturating_sub(1).max(1)
        } else {
            least.div_ceil(tick)
        };
        now / tick >= last.at / tick + ticks
    }

    /// Brings capacity and utilisation of a CPU up to date, at most once a window.
    pub(super) fn update_averages(&mut self, now: Ns, cpu: CpuId) {
        let c = &mut self.cpus[cpu.index()];
        let window = now - c.window;
        if window < AVERAGE_WINDOW {
            return;
        }
        let taken = (c.taken * FULL / window).min(FULL - 1);
        // If nothing was taken in the window, the capacity is full again; else it is the mean of old and new.
        c.capacity = if taken == 0 { FULL } else { (c.capacity + FULL - taken).div_ceil(2) };
        let used = (c.used * FULL / window).min(FULL);
        let old = (window / AVERAGE_WINDOW).min(63);
        c.util = used - (used >> old) + (c.util >> old);
        (c.taken, c.used) = (0, 0);
        c.window = now;
    }

    /// After balancing an LLC, sets how many CPUs a wake-up may check there for an idle one: all of an idle LLC, none
    /// from a utilisation of 85 % on (`update_idle_cpu_scan`, Linux 6.0).
    fn update_idle_scan(&mut self, now: Ns, cpu: CpuId, d: usize) {
        if d > 0 {
            return;
        }
        let (lo, hi) = self.llc(cpu);
        let mut util = 0;
        for cpu in (lo..hi).map(CpuId) {
            self.update_averages(now, cpu);
            util += self.cpus[cpu.index()].util;
        }
        let (cpus, pct) = (u64::from(hi - lo), u64::from(self.cfg.balance.imbalance_pct));
        let mean = util / cpus;
        let busy = (mean * mean * pct * pct / (10_000 * FULL)).min(FULL);
        self.idle_scan[(lo / self.llc_cpus) as usize] = ((FULL - busy) * cpus / FULL) as u32;
    }

    /// Moves a waiting entity of a crowded CPU to an idle CPU that balances now, of its own LLC if possible.
    fn offload(&mut self, now: Ns, cpu: CpuId) {
        for d in self.domains() {
            let (lo, hi) = if d == 0 { self.llc(cpu) } else { (0, self.cpus.len() as u32) };
            let mut due = CpuSet::EMPTY;
            let mut at = lo;
            while let Some(idle) = self.sets.idle.find(None, at, hi) {
                // Between LLCs nothing moves within one.
                let apart = d == 0 || self.llc(idle) != self.llc(cpu);
                if apart && self.is_due(now, idle, d, false) {
                    due.insert(idle);
                }
                at = idle.0 + 1;
            }
            if !due.is_empty() && self.hand_over(now, cpu, d, &due, (lo, hi)) {
                return;
            }
        }
    }

    /// Moves a waiting entity of `cpu` to one of the CPUs in `due`, on an idle core if there is one. True if it did.
    fn hand_over(&mut self, now: Ns, cpu: CpuId, d: usize, due: &CpuSet, span: (u32, u32)) -> bool {
        let (mut found, mut hot) = (None, None);
        for e in self.fair.by_turn(cpu, false).into_iter().take(MAX_MOVES) {
            if let Some(to) = self.best_idle(e, cpu, due, span) {
                let failed = self.cpus[to.index()].domains[d].failed;
                if failed > NICE_TRIES || !self.is_cache_hot(now, e) {
                    found = Some((e, to));
                    break;
                }
                hot = Some(to);
            }
            self.fair.pass_over(e);
        }
        let Some(by) = found.map(|(_, to)| to).or(hot) else { return false };
        let domain = &mut self.cpus[by.index()].domains[d];
        let failed = if found.is_some() { 0 } else { domain.failed + 1 };
        *domain = Domain { at: now, even: false, failed };
        self.update_idle_scan(now, by, d);
        if let Some((e, to)) = found {
            self.transfer(now, e, to);
        }
        found.is_some()
    }

    /// An idle CPU in `due` for an entity, the next from `cpu` on; on an idle core if there is one.
    fn best_idle(&self, e: EntId, cpu: CpuId, due: &CpuSet, (lo, hi): (u32, u32)) -> Option<CpuId> {
        let mut first = None;
        for (from, to) in [(cpu.0, hi), (lo, cpu.0)] {
            let mut at = from;
            while let Some(idle) = due.find(self.mask(e), at, to) {
                at = idle.0 + 1;
                if !self.fits_core(e, idle) {
                    continue;
                }
                let t = self.topology();
                if self.cores[t.core(idle.0) as usize].idle == t.threads_per_core {
                    return Some(idle);
                }
                first = first.or(Some(idle));
            }
        }
        first
    }

    /// Pulls load to `cpu` that balances domain `d`. Returns whether the domain was balanced.
    fn balance(&mut self, now: Ns, cpu: CpuId, d: usize) -> bool {
        // CPUs from which no entity may come do not count.
        let mut pinned = CpuSet::EMPTY;
        let (src, imbalance) = loop {
            let Some((src, imbalance)) = self.busiest(cpu, d, &pinned) else {
                self.cpus[cpu.index()].domains[d].failed = 0;
                return true;
            };
            let runs = self.current(src).filter(|&e| self.class(e) == ClassId::Fair);
            if runs.is_some_and(|e| self.may_use(e, cpu))
                || self.fair.any_queued(src, |e| self.may_use(e, cpu))
            {
                break (src, imbalance);
            }
            pinned.insert(src);
        };
        let failed = self.cpus[cpu.index()].domains[d].failed;
        let mut moves = Vec::new();
        let mut left = imbalance.amount();
        let delayed = matches!(imbalance, Imbalance::Load(_)) && !self.fair.has_quotas();
        for e in self.fair.by_turn(src, delayed).into_iter().take(MAX_MOVES) {
            let hot = failed <= NICE_TRIES && self.is_hot(now, e, cpu);
            // With each failed attempt larger entities than the imbalance may move. Otherwise a CPU
            // that has one entity more than the others would keep it for ever.
            let (size, tries) = match imbalance {
                Imbalance::Load(_) => (self.fair.load_of(e).max(1), failed.min(63)),
                Imbalance::Utilisation(_) => (self.fair.part_of(e, FULL), failed.min(63)),
                Imbalance::Entities(_) => (1, 0),
            };
            if self.may_use(e, cpu) && !hot && size >> tries <= left {
                moves.push(e);
                left = left.saturating_sub(size);
                if left == 0 {
                    break;
                }
            } else {
                self.fair.pass_over(e);
            }
        }
        for &e in &moves {
            if self.fair.is_delayed(e) {
                self.transfer_delayed(now, e, cpu);
            } else {
                self.transfer(now, e, cpu);
            }
        }
        let failed = &mut self.cpus[cpu.index()].domains[d].failed;
        *failed = if moves.is_empty() { *failed + 1 } else { 0 };
        false
    }

    /// The busiest CPU of the busiest group of domain `d`, without the CPUs in `pinned`, and what would balance that
    /// group with the one of `cpu`. The groups are the CPUs of the LLC, or the LLCs.
    fn busiest(&self, cpu: CpuId, d: usize, pinned: &CpuSet) -> Option<(CpuId, Imbalance)> {
        let (span, (lo, hi)) = match d {
            0 => (1, self.llc(cpu)),
            _ => (self.llc_cpus, (0, self.cpus.len() as u32)),
        };
        let own = cpu.0 / span * span;
        // Of several CPUs an idle one would do it, and else the first.
        let takes_part = |c: &u32| !self.cpus[*c as usize].spared;
        let mut mates = (own..own + span).filter(takes_part);
        if d > 0
            && (mates.next() != Some(cpu.0) || mates.any(|c| self.sets.idle.contains(CpuId(c))))
        {
            return None;
        }
        let local = self.group(own, span, pinned);
        if d == 0 && local.fair == 0 && self.fair.is_eevdf() {
            // It runs RT or deadline entities only, so it has room for fair ones. Since 6.6 only idle CPUs fill such
            // room within an LLC.
            return None;
        }
        // Round the domain from the next one on: among equals each CPU begins with another.
        let others = (own + span..hi).chain(lo..own).step_by(span as usize);
        let pct = u64::from(self.cfg.balance.imbalance_pct);
        let (mut all, mut busiest, mut at) = (local, Group::default(), own);
        for first in others {
            let group = self.group(first, span, pinned);
            all.add(group);
            if group.is_overloaded(pct) && group.average() > busiest.average() {
                (busiest, at) = (group, first);
            }
        }
        if at == own {
            return None;
        }
        let imbalance = if !local.has_spare(pct) {
            let (most, mean, here) = (busiest.average(), all.average(), local.average());
            if most <= here || here >= mean {
                return None;
            }
            if local.is_overloaded(pct) && most * 100 <= pct * here {
                return None;
            }
            // Neither end should cross the mean. That counts groups that are not overloaded as well, so it may be
            // above `most`.
            let take = (mean - here) * local.capacity;
            let give = if most > mean { (most - mean) * busiest.capacity } else { take };
            Imbalance::Load(take.min(give) / FULL)
        } else if d == 0 {
            Imbalance::Entities(u64::from(busiest.runnable.saturating_sub(local.runnable) / 2))
        } else {
            Imbalance::Utilisation(local.capacity.saturating_sub(local.util))
        };
        let crowded = (at..at + span).filter(takes_part).map(CpuId);
        let crowded = crowded.filter(|&c| self.sets.crowded.contains(c) && !pinned.contains(c));
        // The first of equals.
        let src = crowded.max_by_key(|&c| (self.scaled_load(c), Reverse(c.0)));
        src.filter(|_| imbalance.amount() > 0).map(|c| (c, imbalance))
    }

    /// State of `span` CPUs from `first` on, without some.
    pub(super) fn group(&self, first: u32, span: u32, without: &CpuSet) -> Group {
        let mut sum = Group::default();
        for cpu in (first..first + span).map(CpuId) {
            let c = &self.cpus[cpu.index()];
            if !c.spared && !without.contains(cpu) {
                sum.add(Group {
                    cpus: 1,
                    capacity: c.capacity,
                    util: c.util,
                    load: self.fair.load(cpu),
                    runnable: c.nr_fair + c.nr_rt + c.nr_dl,
                    fair: c.nr_fair,
                });
            }
        }
        sum
    }
}
