//! A level: CPUs, entities, and everything that concerns more than one queue.

mod active;
mod avoid;
mod balance;
mod change;
mod charge;
mod check;
mod core_sched;
mod dl_move;
mod hrtick;
mod place;
mod quota;
mod rt_move;
mod run;
#[cfg(test)]
mod tests;
mod woken;
mod yield_to;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use crate::config::{ClassId, GroupConfig, LevelConfig, Ns, Policy, Quota, RtGuard, Topology};
use crate::dl::{DlClass, NEVER};
use crate::fair::{FairClass, weight};
use crate::guard::Guard;
use crate::heap::NONE;
use crate::notes::Notes;
use crate::rt::{CpuPri, RtClass};
use crate::{Attr, ConfigError, CpuId, CpuSet, EntId, EntStats, Note, Refusal};
use active::PullAttempts;
use core_sched::CoreSched;

/// State of an entity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Blocked,
    /// Placed on a CPU, and on its wake list.
    Waking,
    Queued,
    Running,
    Dead,
}

/// Every switch uses only its first cache line: a large simulation has hundreds of levels.
#[derive(Clone, Debug, Default)]
#[repr(C, align(64))]
struct Ent {
    /// Class of its policy, which every call needs. The policy itself is stored separately ([`Level::policies`]): with
    /// the parameters of a reservation it is half as long as this.
    class: ClassId,
    /// SCHED_IDLE.
    idle: bool,
    state: State,
    /// It has not woken up yet.
    fresh: bool,
    /// Where it runs, waits, or last ran.
    cpu: CpuId,
    /// Number of CPUs that it should use: those of [`Level::open`].
    allowed: u32,
    /// When it last stopped running.
    last_ran: Ns,
    /// Since when it has been waiting.
    queued_at: Ns,
    stats: EntStats,
    /// The entity that it woke last, how often that changed recently, and when that count was last halved.
    wakee: u32,
    flips: u32,
    flips_at: Ns,
    /// Its CPU before a wake-up last moved it.
    recent: CpuId,
}

/// Whether a CPU was asked to schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum ReschedRequest {
    #[default]
    No,
    Lazy,
    Eager,
    /// It is in `schedule` now.
    Serving,
}

/// Every event uses only its first cache line.
#[derive(Clone, Debug, Default)]
#[repr(C, align(64))]
struct Cpu {
    /// The running entity, or [`NONE`].
    curr: u32,
    kicked: ReschedRequest,
    /// To be avoided, or offline.
    spared: bool,
    nohz_full: bool,
    /// Whether its wake list has entities. Stored here because every change of the queue needs it.
    has_woken: bool,
    /// Time up to which the current entity is charged.
    charged_to: Ns,
    /// When the timer of the current fair entity's request fires; [`NEVER`] if it is not armed.
    hrtick: Ns,
    /// Reported as stolen, and not yet used by a charge.
    stolen: Ns,
    /// Runnable entities, the running one included.
    nr_rt: u32,
    /// Entities of the deadline class that are not throttled, or still run.
    nr_dl: u32,
    /// Entities of the deadline class that are throttled.
    nr_held: u32,
    nr_fair: u32,
    /// Of `nr_fair`: SCHED_IDLE.
    nr_idle: u32,
    /// The entity that the tick wants pushed off, or [`NONE`].
    push: u32,
    /// Capacity that RT, deadline entities and steal leave, out of [`balance::FULL`].
    capacity: u64,
    /// Part of it that fair entities use, out of [`balance::FULL`].
    util: u64,
    /// Time used by each since `window`, when both averages were last computed.
    taken: Ns,
    used: Ns,
    window: Ns,
    domains: [balance::Domain; balance::DOMAINS],
    idle_times: balance::IdleTimes,
}

/// A core with SMT.
#[derive(Clone, Debug)]
struct Core {
    /// Number of its idle CPUs.
    idle: u32,
    /// Attempts of idle cores to pull an entity from here, since two of its CPUs are busy.
    tries: PullAttempts,
}

/// Sets of CPUs, so that placement needs no walk. A level with one CPU does not maintain them.
#[derive(Clone, Debug)]
struct CpuSets {
    /// Nothing runs and nothing waits (except throttled entities).
    idle: CpuSet,
    /// First CPU of every core all of whose CPUs are in `idle`. Only kept with SMT.
    idle_cores: CpuSet,
    /// All entities there are SCHED_IDLE.
    only_idle: CpuSet,
    /// Two or more entities are runnable, and one of them is fair.
    crowded: CpuSet,
}

/// One scheduler: CPUs, entities, and the kernel's rules for which entity runs where.
///
/// See the crate documentation for what a driver has to do.
///
/// The fields that every call uses come first: with the sets of CPUs in between they would be on twice as many cache
/// lines.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Level {
    cpus: Vec<Cpu>,
    ents: Vec<Ent>,
    pushed_off: u64,
    stopped: u64,
    /// CPUs of an LLC.
    llc_cpus: u32,
    /// Set if an entity has a cookie.
    core: Option<Box<CoreSched>>,
    notes: Notes,
    guard: Guard,
    fair: FairClass,
    masks: Vec<CpuSet>,
    policies: Vec<Policy>,
    /// Affinities without CPUs to avoid; unchanged if that would leave none.
    open: Vec<CpuSet>,
    cores: Vec<Core>,
    /// Attempts to spread running entities, for each LLC.
    spread: Vec<PullAttempts>,
    /// How many CPUs of each LLC a wake-up may check for an idle one.
    idle_scan: Vec<u32>,
    cfg: LevelConfig,
    rt: RtClass,
    sets: CpuSets,
    pri: CpuPri,
    /// Last, because most levels have no deadline entities.
    dl: DlClass,
    /// Buffer for entities that a timer brings back.
    back: Vec<EntId>,
    /// For each CPU, woken entities that it has to queue itself.
    wake_lists: Vec<VecDeque<EntId>>,
    avoided: CpuSet,
    offline: CpuSet,
    /// CPUs that have no CPU of the level below, if the driver reports that.
    away: Option<Box<CpuSet>>,
    /// First CPU of every core with a CPU that is neither avoided nor offline; `None`: all of them.
    open_cores: Option<CpuSet>,
}

impl Level {
    /// Builds an idle level.
    ///
    /// # Errors
    /// [`ConfigError`] says which field is impossible, and what is allowed.
    pub fn new(cfg: &LevelConfig) -> Result<Self, ConfigError> {
        validate(cfg)?;
        let n = cfg.topology.cpus();
        let (hrtick, capacity) = (NEVER, balance::FULL);
        let idle_times = balance::IdleTimes::new(&cfg.balance);
        let cpu = Cpu { curr: NONE, push: NONE, hrtick, capacity, idle_times, ..Cpu::default() };
        let threads = cfg.topology.threads_per_core;
        let cores = n / threads;
        Ok(Self {
            cfg: cfg.clone(),
            llc_cpus: threads * cfg.topology.cores_per_llc,
            ents: Vec::new(),
            policies: Vec::new(),
            masks: Vec::new(),
            open: Vec::new(),
            cpus: vec![cpu; n as usize],
            cores: vec![Core { idle: threads, tries: PullAttempts::default() }; cores as usize],
            spread: vec![PullAttempts::default(); cfg.topology.llcs as usize],
            idle_scan: vec![threads * cfg.topology.cores_per_llc; cfg.topology.llcs as usize],
            sets: CpuSets {
                idle: CpuSet::first_n(n),
                idle_cores: (0..cores).map(|c| CpuId(c * threads)).collect(),
                only_idle: CpuSet::EMPTY,
                crowded: CpuSet::EMPTY,
            },
            dl: DlClass::new(cfg),
            rt: RtClass::new(cfg),
            fair: FairClass::new(cfg),
            core: None,
            guard: Guard::new(cfg.rt_guard, n),
            pri: CpuPri::new(n),
            notes: Notes::default(),
            back: Vec::new(),
            wake_lists: vec![VecDeque::new(); n as usize],
            avoided: CpuSet::EMPTY,
            offline: CpuSet::EMPTY,
            away: None,
            open_cores: None,
            pushed_off: 0,
            stopped: 0,
        })
    }

    /// Prefetches what a wake-up of `e` or a tick on `cpu` will use. Changes nothing, and does not wait: for a driver
    /// of hundreds of entities or levels that knows slightly ahead which is next. A wrong guess costs little.
    #[cfg(feature = "prefetch")]
    #[inline]
    pub fn prefetch(&self, cpu: CpuId, e: EntId) {
        use core::slice::from_ref;
        use prefetch_index::prefetch_index;
        prefetch_index(from_ref(&self.guard), 0);
        prefetch_index(from_ref(&self.cfg), 0);
        prefetch_index(&self.cpus, cpu.index());
        prefetch_index(&self.ents, e.index());
        self.fair.prefetch(cpu, e);
    }

    /// Adds an entity, blocked at first, and returns its id: dense from 0, in order of addition.
    ///
    /// Its first wake-up places it on an idle or the least loaded CPU, `home` before its equals.
    ///
    /// # Panics
    /// If `home` or the group is not in the level, or [`Level::try_add`] would refuse.
    pub fn add(&mut self, attr: Attr, home: CpuId) -> EntId {
        match self.try_add(attr, home) {
            Ok(e) => e,
            Err(refusal) => panic!("{refusal}"),
        }
    }

    /// [`Level::add`], with the kernel's tests of a deadline policy.
    ///
    /// # Errors
    /// [`Refusal`]; the level has not changed.
    ///
    /// # Panics
    /// If `home` or the group is not in the level.
    pub fn try_add(&mut self, attr: Attr, home: CpuId) -> Result<EntId, Refusal> {
        assert!(home.index() < self.cpus.len(), "{home} is not in the level");
        let groups = self.cfg.groups.len();
        assert!(attr.group.is_none_or(|g| usize::from(g) < groups), "no such group");
        let e = EntId(self.ents.len() as u32);
        let mask = self.clip(attr.cpus);
        let allowed = mask.len();
        self.dl.admit(0, e, attr.policy, &mask)?;
        self.masks.push(mask);
        self.open.push(mask);
        self.policies.push(attr.policy);
        self.ents.push(Ent {
            class: ClassId::of(&attr.policy),
            idle: attr.policy == Policy::Idle,
            cpu: if mask.contains(home) { home } else { mask.first().unwrap_or(home) },
            allowed,
            fresh: true,
            wakee: NONE,
            recent: home,
            ..Ent::default()
        });
        self.dl.add(e, allowed > 1);
        self.dl.set_policy(e, attr.policy);
        self.rt.add(e, attr.policy, allowed > 1);
        self.fair.add(e, attr.policy, attr.group);
        if self.open_cores.is_some() {
            self.reopen(e);
        }
        Ok(e)
    }

    /// An affinity, restricted to the level; if nothing is left, all CPUs.
    fn clip(&self, cpus: CpuSet) -> CpuSet {
        let all = CpuSet::first_n(self.cpus.len() as u32);
        let cut = cpus.and(&all);
        if cut.is_empty() { all } else { cut }
    }

    /// The configuration that the level was built from, with the current group weights.
    pub fn config(&self) -> &LevelConfig {
        &self.cfg
    }

    /// Takes the oldest note; `None` when there is none left.
    #[inline]
    pub fn pop_note(&mut self) -> Option<Note> {
        self.notes.pop_front()
    }

    /// When [`Level::on_deadline`] is due on `cpu`. [`Note::DeadlineChanged`] reports changes.
    #[inline]
    pub fn deadline(&self, cpu: CpuId) -> Option<Ns> {
        let at = self.guard.deadline(cpu).min(self.dl.timer(cpu)).min(self.fair.quota_timer(cpu));
        let at = at.min(self.cpus[cpu.index()].hrtick);
        (at != NEVER).then_some(at)
    }

    /// The entity that runs on `cpu`.
    #[inline]
    pub fn current(&self, cpu: CpuId) -> Option<EntId> {
        let c = self.cpus[cpu.index()].curr;
        (c != NONE).then_some(EntId(c))
    }

    /// The CPU an entity runs or waits on, or the last it did.
    #[inline]
    pub fn cpu_of(&self, e: EntId) -> CpuId {
        self.ents[e.index()].cpu
    }

    /// The entity's policy.
    #[inline]
    pub fn policy(&self, e: EntId) -> Policy {
        self.policies[e.index()]
    }

    /// Whether the entity's policy is a real-time or deadline policy.
    #[inline]
    pub fn is_urgent(&self, e: EntId) -> bool {
        self.class(e) != ClassId::Fair
    }

    /// The class of the entity's policy.
    #[inline]
    fn class(&self, e: EntId) -> ClassId {
        self.ents[e.index()].class
    }

    /// The CPUs the entity may use.
    pub fn cpus(&self, e: EntId) -> &CpuSet {
        &self.masks[e.index()]
    }

    /// Whether the entity is runnable and has no CPU.
    #[inline]
    pub fn is_queued(&self, e: EntId) -> bool {
        self.ents[e.index()].state == State::Queued
    }

    /// Whether the entity is on the wake list of its CPU: runnable, but on no queue yet.
    #[inline]
    pub fn is_waking(&self, e: EntId) -> bool {
        self.ents[e.index()].state == State::Waking
    }

    /// Whether the entity has a CPU.
    #[inline]
    pub fn is_running(&self, e: EntId) -> bool {
        self.ents[e.index()].state == State::Running
    }

    /// Whether the entity waits because it is throttled: an RT entity by the guard of its CPU, a
    /// deadline entity by its own reservation, a fair entity by the quota of its group.
    pub fn is_throttled(&self, e: EntId) -> bool {
        let ent = &self.ents[e.index()];
        ent.state == State::Queued
            && match ent.class {
                ClassId::Dl => self.dl.is_held(e),
                ClassId::Rt => self.guard.holds_rt(ent.cpu),
                ClassId::Fair => self.fair.is_held(e, ent.cpu),
            }
    }

    /// Absolute deadline of an entity with a deadline policy, and its remaining runtime as of its last charge (negative
    /// after an overrun). `None` for other policies.
    pub fn reservation(&self, e: EntId) -> Option<(Ns, i64)> {
        let own = self.class(e) == ClassId::Dl;
        own.then(|| (self.dl.due(e), self.dl.runtime_left(e)))
    }

    /// Runnable entities of `cpu`, running or waiting; without sleepers that EEVDF keeps queued for their negative lag,
    /// and without entities throttled by a quota.
    #[inline]
    pub fn nr_running(&self, cpu: CpuId) -> u32 {
        let c = &self.cpus[cpu.index()];
        c.nr_dl + c.nr_held + c.nr_rt + c.nr_fair
    }

    /// Whether the run queue of `cpu` has one entity (`single_task_running`). Sleepers that EEVDF keeps queued for
    /// their negative lag count here, as in the kernel's `nr_running`.
    #[inline]
    pub fn has_single(&self, cpu: CpuId) -> bool {
        self.nr_running(cpu) == 1 && !self.fair.has_delayed(cpu)
    }

    /// Whether `cpu` needs ticks: it is not idle, nor a full-nohz CPU on which no tick could change who
    /// runs (`sched_can_stop_tick`): one entity alone that has no quota, or a FIFO entity, or the only RR entity.
    #[inline]
    pub fn tick_needed(&self, cpu: CpuId) -> bool {
        let c = &self.cpus[cpu.index()];
        let needed = c.curr != NONE;
        if c.nohz_full { needed && self.tick_needed_nohz(cpu) } else { needed }
    }

    #[cold]
    fn tick_needed_nohz(&self, cpu: CpuId) -> bool {
        let c = &self.cpus[cpu.index()];
        let needed = match self.policies[c.curr as usize] {
            Policy::Fifo(_) => false,
            Policy::Rr(_) => c.nr_rt > 1,
            Policy::Deadline { .. } => true,
            Policy::Normal { .. } | Policy::Idle => {
                !self.has_single(cpu) || self.fair.has_quota(EntId(c.curr))
            }
        };
        needed || c.spared
    }

    /// Counters of an entity, without a run or wait that still lasts: [`Level::charge`] updates `exec_ns`, `wait_ns`
    /// grows when the wait ends.
    pub fn stats(&self, e: EntId) -> EntStats {
        self.ents[e.index()].stats
    }

    /// How long an entity has waited for a CPU since its last wake-up or switch; 0: it does not wait.
    pub fn waits_for(&self, now: Ns, e: EntId) -> Ns {
        let ent = &self.ents[e.index()];
        if ent.state == State::Queued { now.saturating_sub(ent.queued_at) } else { 0 }
    }

    fn topology(&self) -> &Topology {
        &self.cfg.topology
    }

    /// First and one-past-last CPU of the LLC of `cpu`.
    #[inline]
    fn llc(&self, cpu: CpuId) -> (u32, u32) {
        let first = cpu.0 - cpu.0 % self.llc_cpus;
        (first, first + self.llc_cpus)
    }

    /// Whether an entity may be put on a CPU: all decisions about affinity use this.
    #[inline]
    fn may_use(&self, e: EntId, cpu: CpuId) -> bool {
        self.mask(e).is_none_or(|mask| mask.contains(cpu))
    }

    /// Whether there is only one CPU, so that there is nothing to place or balance.
    #[inline]
    fn is_single(&self) -> bool {
        self.cpus.len() == 1
    }

    /// Where the entity may be put, or `None` if anywhere.
    #[inline]
    fn mask(&self, e: EntId) -> Option<&CpuSet> {
        let all = self.ents[e.index()].allowed as usize == self.cpus.len();
        (!all).then(|| &self.open[e.index()])
    }
}

fn validate(cfg: &LevelConfig) -> Result<(), ConfigError> {
    cfg.topology.validate()?;
    let guard = match cfg.rt_guard {
        RtGuard::Off => (1, 1),
        RtGuard::Throttle(of) | RtGuard::FairServer(of) | RtGuard::Both(of) => {
            (of.runtime_ns, of.period_ns)
        }
    };
    let (min_gran, latency) = match cfg.fair {
        crate::config::Fair::Cfs(c) => (c.min_granularity_ns, c.sched_latency_ns),
        crate::config::Fair::Eevdf(t) => (t.base_slice_ns, 1),
    };
    for (field, value) in [
        ("tick_ns", cfg.tick_ns),
        ("rr_slice_ns", cfg.rr_slice_ns),
        ("runtime_ns", guard.0),
        ("period_ns", guard.1),
        ("min_granularity_ns or base_slice_ns", min_gran),
        ("sched_latency_ns", latency),
    ] {
        if value == 0 {
            return Err(ConfigError::Zero { field });
        }
    }
    if guard.0 > guard.1 {
        return Err(ConfigError::RuntimeOverPeriod { runtime_ns: guard.0, period_ns: guard.1 });
    }
    if cfg.groups.len() > usize::from(u16::MAX) {
        return Err(ConfigError::TooManyGroups { groups: cfg.groups.len() });
    }
    for (group, &GroupConfig { weight, quota, parent }) in cfg.groups.iter().enumerate() {
        if parent.is_some_and(|parent| usize::from(parent) >= group) {
            return Err(ConfigError::GroupParent { group });
        }
        if !(weight::MIN_GROUP..=weight::MAX_GROUP).contains(&weight) {
            return Err(ConfigError::GroupWeight { group, weight });
        }
        if let Some(quota) = quota {
            ConfigError::range("period_ns", quota.period_ns, Quota::LEAST_NS, Quota::LONGEST_NS)?;
            ConfigError::range("runtime_ns", quota.runtime_ns, Quota::LEAST_NS, Ns::MAX >> 2)?;
            ConfigError::range("burst_ns", quota.burst_ns, 0, quota.runtime_ns)?;
        }
    }
    Ok(())
}
