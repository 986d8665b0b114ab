//! Xen's credit1: a scheduler of vCPUs on pCPUs, with the rules of Xen 4.2 or of today.
//!
//! Every pCPU has a queue ordered by four priorities: BOOST (woke up and may preempt), UNDER (has credit), OVER (has
//! none) and, if the queue is empty, idle. Running burns credit; every timeslice (30 ms) an accounting distributes new
//! credit by weight and decides which vCPUs are UNDER and which OVER. A tick (10 ms) samples the running vCPU, ends
//! boosts, and sorts queues after an accounting.
//!
//! ```text
//! Blocked --wake--> Queued --schedule--> Running --block--> Blocked
//!    |                 ^ |                  |
//!    | wake while      | | cap used up      | cap used up
//!    v parked          | v                  v
//!    +--------------> Parked <--------------+        any --exit--> Dead
//! ```
//!
//! Sources: `xen/common/sched_credit.c` (4.2), `xen/common/sched/credit.c` (today). Only run queues grow with the
//! number of waiting entities; everything else is bitmaps.

mod account;
mod change;
mod check;
mod config;
mod patches;
mod place;
mod queue;
mod run;
mod steal;
mod tickle;
mod timer;
mod validate;

use std::collections::VecDeque;

use vcoop_sched::config::{Ns, Policy};
use vcoop_sched::{Attr, ConfigError, CpuId, CpuSet, EntId, EntStats, Note, Notes, Waker};

pub use config::{BoostPreempts, Burn, Credit1Config, Domain, Patch, Patches, XenVersion};
pub use patches::{NamedPatch, find_patch, patches};

/// Time one credit is worth (`CSCHED_CREDITS_PER_MSEC` = 10).
const CREDIT_NS: Ns = 100_000;

/// The pCPU that runs the accounting.
const MASTER: CpuId = CpuId(0);

/// "No entity".
const NONE: u32 = u32::MAX;

/// "No timer".
const NEVER: Ns = Ns::MAX;

/// Priority of a vCPU, worst first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pri {
    /// Idle: no vCPU runs.
    Idle,
    /// Out of credit.
    Over,
    /// Has credit.
    #[default]
    Under,
    /// Woke up recently, and had credit.
    Boost,
}

/// Decision of a credit scheduler: the events of its trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Decision {
    /// The entity woke up and was boosted.
    Boost,
    /// The running entity stayed because of the ratelimit.
    RatelimitHold,
    /// The CPU was told that the entity waits.
    Tickle,
    /// The idle CPU was told that the entity waits, on its own queue or elsewhere.
    TickleIdler,
    /// The CPU took the entity from another CPU's queue.
    Steal,
    /// The entity's domain used up its cap.
    Park,
    /// Its cap allows it to run again.
    Unpark,
    /// The entity yielded.
    Yield,
    /// The running entity was told to look for a better CPU.
    Migrate,
}

impl Decision {
    /// The name of the event in [`Note::Decision`].
    pub fn name(self) -> &'static str {
        match self {
            Self::Boost => "credit1 boost",
            Self::RatelimitHold => "credit1 ratelimit hold",
            Self::Tickle => "credit1 tickle",
            Self::TickleIdler => "credit1 tickle idler",
            Self::Steal => "credit1 steal",
            Self::Park => "credit1 park",
            Self::Unpark => "credit1 unpark",
            Self::Yield => "credit1 yield",
            Self::Migrate => "credit1 migrate",
        }
    }
}

/// Counters of a credit scheduler since it was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CreditCounters {
    /// Wake-ups that were boosted.
    pub boosts: u64,
    /// Times that the ratelimit kept the running entity.
    pub ratelimit_holds: u64,
    /// CPUs that were told of waiting work.
    pub tickles: u64,
    /// Of these: idle CPUs.
    pub idle_tickles: u64,
    /// Entities taken from another CPU's queue.
    pub steals: u64,
    /// Entities parked.
    pub parks: u64,
    /// Entities that changed their CPU, for any reason.
    pub migrations: u64,
    /// Yields.
    pub yields: u64,
    /// Accountings.
    pub accountings: u64,
}

impl CreditCounters {
    /// Each counter with its name in results.
    pub fn named(&self) -> [(&'static str, u64); 8] {
        [
            ("boosts", self.boosts),
            ("ratelimit_holds", self.ratelimit_holds),
            ("tickles", self.tickles),
            ("tickles.idle", self.idle_tickles),
            ("steals", self.steals),
            ("parks", self.parks),
            ("migrations", self.migrations),
            ("yields", self.yields),
        ]
    }
}

/// Observations of one entity since it was added: the input of a policy that sets ratelimits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntityCounters {
    /// Wake-ups.
    pub wakes: u64,
    /// Runs that ended by blocking.
    pub blocks: u64,
    /// Of these: runs with less CPU time than [`Credit1Config::short_run_ns`].
    pub short_runs: u64,
    /// CPU time.
    pub run_ns: Ns,
    /// Times that a more urgent entity woke up for the CPU on which this one was running, and so can be delayed by its
    /// ratelimit. The length of the ratelimit changes how long these wait, not how many there are.
    pub challenges: u64,
    /// Of these: by entities whose last run was short, so that running them first costs little.
    pub short_challenges: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Blocked,
    Queued,
    Running,
    /// It could run, but its cap is used up. Xen calls such a vCPU offline.
    Parked,
    Dead,
}

/// The fields that wake-ups and switches read are in its first cache line.
#[derive(Clone, Debug, Default)]
#[repr(C, align(64))]
struct Ent {
    domain: u16,
    dom0: bool,
    state: State,
    pri: Pri,
    /// It is on the accounting's list.
    active: bool,
    parked: bool,
    /// It was told to go to another CPU (`_VPF_migrating`).
    migrating: bool,
    yielding: bool,
    /// The flag of the I/O-completion patch.
    io: bool,
    /// It waits because it woke up, not because it was preempted.
    woke: bool,
    /// Its last run to a block was short.
    brief: bool,
    fresh: bool,
    cpu: CpuId,
    /// Number of CPUs that it may use.
    allowed: u32,
    credit: i64,
    /// CPU time not yet charged as credit; negative if 4.2 rounded up.
    carry: i64,
    queued_at: Ns,
    /// When it was last switched in.
    since: Ns,
    /// CPU time since its wake-up.
    run_ns: Ns,
    last_ran: Ns,
    stats: EntStats,
    seen: EntityCounters,
    policy: Policy,
}

#[derive(Clone, Debug, Default)]
#[repr(align(64))]
struct Cpu {
    /// The running entity, or [`NONE`].
    curr: u32,
    kicked: bool,
    queue: VecDeque<u32>,
    /// Number of queued entities better than OVER.
    better: u32,
    /// Number of dom0's entities, queued or running.
    dom0: u32,
    charged_to: Ns,
    burned_to: Ns,
    slice_end: Ns,
    tick_at: Ns,
    /// The tick is currently ten times slower.
    slow_tick: bool,
    /// The deadline that the driver knows.
    armed: Ns,
    /// Number of the accounting up to which the queue is sorted.
    sorted: u64,
    /// Time of the last look for work at peers.
    balanced: Ns,
    idle_bias: u32,
    /// Idle CPU that it last tickled.
    last_tickled: u32,
}

#[derive(Clone, Debug)]
struct DomainState {
    cfg: Domain,
    /// vCPUs on the accounting's list.
    active: Vec<u32>,
    /// Its own ratelimit, set while running.
    ratelimit: Option<Ns>,
}

/// A credit1 scheduler. It is driven like a [`Level`](vcoop_sched::Level), except that its ticks are timers of its own.
#[derive(Clone, Debug)]
pub struct Credit1 {
    cfg: Credit1Config,
    ents: Vec<Ent>,
    masks: Vec<CpuSet>,
    cpus: Vec<Cpu>,
    doms: Vec<DomainState>,
    /// Domains with active vCPUs, in the order of the accounting.
    active: Vec<u16>,
    /// Sum of the weights of all active vCPUs.
    weight: u64,
    /// Sum of the credit of all active vCPUs after the last accounting.
    balance: i64,
    accountings: u64,
    master_at: Ns,
    /// All CPUs.
    all: CpuSet,
    /// Idle CPUs that have not been told of work.
    idlers: CpuSet,
    /// CPUs with a running and a waiting entity.
    crowded: CpuSet,
    /// Of these: CPUs where an entity better than OVER waits.
    urgent: CpuSet,
    /// CPUs with a dom0 vCPU, running or waiting.
    dom0_on: CpuSet,
    cores: Vec<CpuSet>,
    sockets: Vec<CpuSet>,
    /// Where a search for work to steal starts, by socket.
    bias: Vec<u32>,
    counters: CreditCounters,
    trace: bool,
    notes: Notes,
}

impl Credit1 {
    /// Builds an idle scheduler.
    ///
    /// # Errors
    /// [`ConfigError`] names the invalid field and its valid range.
    pub fn new(cfg: &Credit1Config) -> Result<Self, ConfigError> {
        validate::validate(cfg)?;
        let n = cfg.topology.cpus();
        let cpu = Cpu {
            curr: NONE,
            slice_end: NEVER,
            tick_at: NEVER,
            armed: NEVER,
            idle_bias: n - 1,
            ..Cpu::default()
        };
        let threads = cfg.topology.threads_per_core;
        let per_llc = threads * cfg.topology.cores_per_llc;
        let slices =
            |size: u32| (0..n / size).map(move |i| CpuSet::range(i * size, (i + 1) * size));
        let mut this = Self {
            cfg: cfg.clone(),
            ents: Vec::new(),
            masks: Vec::new(),
            cpus: vec![cpu; n as usize],
            doms: cfg
                .domains
                .iter()
                .map(|&cfg| DomainState { cfg, active: Vec::new(), ratelimit: None })
                .collect(),
            active: Vec::with_capacity(cfg.domains.len()),
            weight: 0,
            balance: 0,
            accountings: 0,
            master_at: cfg.tslice_ns,
            all: CpuSet::first_n(n),
            idlers: CpuSet::first_n(n),
            crowded: CpuSet::EMPTY,
            urgent: CpuSet::EMPTY,
            dom0_on: CpuSet::EMPTY,
            cores: slices(threads).collect(),
            sockets: slices(per_llc).collect(),
            bias: (0..cfg.topology.llcs).map(|l| l * per_llc).collect(),
            counters: CreditCounters::default(),
            trace: false,
            notes: Notes::default(),
        };
        this.rearm(MASTER);
        Ok(this)
    }

    /// See [`Level::prefetch`](vcoop_sched::Level::prefetch).
    #[inline]
    pub fn prefetch(&self, cpu: CpuId, e: EntId) {
        use core::slice::from_ref;
        use prefetch_index::prefetch_index;
        if let (Some(ent), Some(c)) = (self.ents.get(e.index()), self.cpus.get(cpu.index())) {
            prefetch_index(from_ref(ent), 0);
            prefetch_index(from_ref(&ent.last_ran), 0);
            prefetch_index(from_ref(c), 0);
            prefetch_index(from_ref(&c.armed), 0);
        }
    }

    /// Adds a blocked entity, and returns its id: dense from 0, in order of addition. `attr.group` is its domain;
    /// `attr.policy` is stored, but has no effect. Its first wake-up chooses its CPU and prefers `home` among equals.
    ///
    /// # Panics
    /// If `home` or the domain is not in the scheduler.
    pub fn add(&mut self, attr: Attr, home: CpuId) -> EntId {
        assert!(home.index() < self.cpus.len(), "{home} is not in the scheduler");
        let domain = attr.group.unwrap_or(0);
        assert!(usize::from(domain) < self.doms.len(), "no such domain");
        let e = EntId(self.ents.len() as u32);
        let mask = self.clip(attr.cpus);
        let dom = &mut self.doms[usize::from(domain)];
        dom.active.reserve(1);
        let dom0 = dom.cfg.privileged;
        let boosted = dom0 && self.cfg.patches.dom0_always_boosted;
        self.ents.push(Ent {
            policy: attr.policy,
            domain,
            dom0,
            cpu: if mask.contains(home) { home } else { mask.first().unwrap_or(home) },
            pri: if boosted { Pri::Boost } else { Pri::Under },
            fresh: true,
            allowed: mask.len(),
            ..Ent::default()
        });
        self.masks.push(mask);
        e
    }

    /// Restricts an affinity to the scheduler's CPUs; an empty result means all of them.
    fn clip(&self, cpus: CpuSet) -> CpuSet {
        let cut = cpus.and(&self.all);
        if cut.is_empty() { self.all } else { cut }
    }

    /// Whether an entity may use a CPU.
    #[inline]
    fn may_use(&self, e: EntId, cpu: CpuId) -> bool {
        self.is_free(e) || self.masks[e.index()].contains(cpu)
    }

    /// Whether an entity may use every CPU: most may, and then its mask need not be read.
    #[inline]
    fn is_free(&self, e: EntId) -> bool {
        self.ents[e.index()].allowed as usize == self.cpus.len()
    }

    /// The idle CPUs that an entity may use.
    #[inline]
    fn idlers_for(&self, e: EntId) -> CpuSet {
        if self.is_free(e) { self.idlers } else { self.idlers.and(&self.masks[e.index()]) }
    }

    /// The configuration from which the scheduler was built.
    pub fn config(&self) -> &Credit1Config {
        &self.cfg
    }

    /// Takes the oldest note; `None` if there is none.
    #[inline]
    pub fn pop_note(&mut self) -> Option<Note> {
        self.notes.pop_front()
    }

    /// Whether decisions become [`Note::Decision`] notes. Initially off.
    pub fn set_trace(&mut self, on: bool) {
        self.trace = on;
    }

    /// The counters so far.
    pub fn counters(&self) -> CreditCounters {
        self.counters
    }

    /// Observations of an entity.
    pub fn observed(&self, e: EntId) -> EntityCounters {
        self.ents[e.index()].seen
    }

    /// The entity that runs on `cpu`.
    #[inline]
    pub fn current(&self, cpu: CpuId) -> Option<EntId> {
        let c = self.cpus[cpu.index()].curr;
        (c != NONE).then_some(EntId(c))
    }

    /// The CPU on which an entity runs or waits, or did so last.
    #[inline]
    pub fn cpu_of(&self, e: EntId) -> CpuId {
        self.ents[e.index()].cpu
    }

    /// The policy that the entity was given. It has no effect.
    pub fn policy(&self, e: EntId) -> Policy {
        self.ents[e.index()].policy
    }

    /// The entity's priority.
    pub fn pri(&self, e: EntId) -> Pri {
        self.ents[e.index()].pri
    }

    /// The entity's credit; one credit is 100 us of CPU time.
    pub fn credit(&self, e: EntId) -> i64 {
        self.ents[e.index()].credit
    }

    /// The CPUs the entity may use.
    pub fn cpus(&self, e: EntId) -> &CpuSet {
        &self.masks[e.index()]
    }

    /// Whether the entity can run but has no CPU, including parked ones.
    #[inline]
    pub fn is_queued(&self, e: EntId) -> bool {
        matches!(self.ents[e.index()].state, State::Queued | State::Parked)
    }

    /// Whether the entity has a CPU.
    #[inline]
    pub fn is_running(&self, e: EntId) -> bool {
        self.ents[e.index()].state == State::Running
    }

    /// Whether only its domain's cap keeps the entity from running.
    #[inline]
    pub fn is_parked(&self, e: EntId) -> bool {
        self.ents[e.index()].state == State::Parked
    }

    /// Number of runnable entities of `cpu`: the running one and those that wait.
    #[inline]
    pub fn nr_running(&self, cpu: CpuId) -> u32 {
        let c = &self.cpus[cpu.index()];
        c.queue.len() as u32 + u32::from(c.curr != NONE)
    }

    /// The entities that wait on `cpu`, next first.
    pub fn waiting(&self, cpu: CpuId) -> impl Iterator<Item = EntId> + '_ {
        self.cpus[cpu.index()].queue.iter().map(|&e| EntId(e))
    }

    /// Counters of an entity, without running and waiting that has not ended.
    pub fn stats(&self, e: EntId) -> EntStats {
        self.ents[e.index()].stats
    }

    /// How long an entity has waited for a CPU since its last wake-up or switch, in nanoseconds; 0: it does not wait.
    pub fn waits_for(&self, now: Ns, e: EntId) -> Ns {
        let ent = &self.ents[e.index()];
        let waits = matches!(ent.state, State::Queued | State::Parked);
        if waits { now.saturating_sub(ent.queued_at) } else { 0 }
    }

    fn modern(&self) -> bool {
        self.cfg.version == XenVersion::Current
    }

    /// Records a decision, if the trace is on.
    #[inline]
    fn note(&mut self, what: Decision, ent: EntId, cpu: CpuId) {
        if self.trace {
            self.notes.push_back(Note::Decision { what: what.name(), ent, cpu });
        }
    }

    fn moved(&mut self, e: EntId, to: CpuId) {
        let ent = &mut self.ents[e.index()];
        let from = core::mem::replace(&mut ent.cpu, to);
        if from != to {
            ent.stats.migrations += 1;
            self.counters.migrations += 1;
            self.notes.push_back(Note::Moved { ent: e, from, to });
        }
    }

    /// Asks a CPU to schedule, once.
    fn kick(&mut self, cpu: CpuId) {
        let c = &mut self.cpus[cpu.index()];
        if !c.kicked {
            c.kicked = true;
            self.notes.push_back(Note::Kick { cpu, eager: true });
        }
    }
}
