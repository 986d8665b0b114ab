//! A shared processor pool with PowerVM's rules: entitlements kept in every dispatch window, and what is
//! left of it by weight.
//!
//! What is dispatched is a *virtual processor*: as many vCPUs of one partition as a core has threads, on
//! the threads of one core, together. They leave the core together, too, and it runs threads of one
//! virtual processor only. One whose threads are all asleep cedes its core at once; one that has some
//! threads awake keeps it, the threads of the others idle.
//!
//! Every window (10 ms) each virtual processor may use a core for its share: its partition's entitlement,
//! evenly spread. What it does not use is gone. Who has used it up runs on what others leave, if its
//! partition is uncapped, by the partition's weight.
//!
//! ```text
//!            wake                 dispatch                  share used up
//!   Away ------------> Ready ------------------> On --------------------> Spare | Parked (capped)
//!    ^                  ^ |                      | ^                        |        |
//!    |                  | +--- all sleep         | +------- dispatch -------+        |
//!    +------------------|------- cede -----------+                          |        |
//!                       +------------------ the next window ----------------+--------+
//! ```
//!
//! Order: those with entitlement left first, first come first served; one that wakes up takes the core of
//! one that runs on spare time, but of nobody else. That alone would not keep promises on several
//! cores, as a virtual processor can use one only. So one that has been able to run since the window began
//! is *steady*, and takes a core when it would otherwise not get its share any more: when what is left
//! of the window is what is left of its share. It never has to take it from another such: at the first
//! moment with more of them than cores, all cores would have done nothing but entitled work since either
//! the window began (then more than the pool was promised) or some core was free (then all
//! steady ones ran at that moment, on fewer cores than there are, and no more of them come until the
//! window ends).
//!
//! IBM publishes what is promised (see [`PoolConfig`]), not the order inside a window: that is ours, and
//! so are the rules for wake-ups and cores.

mod check;
mod config;
mod run;
mod spare;
mod validate;
mod window;

use std::collections::{BTreeSet, VecDeque};

use vcoop_sched::config::{Ns, Policy};
use vcoop_sched::{Attr, ConfigError, CpuId, CpuSet, EntId, EntStats, Note, Notes};

pub use config::{Partition, PoolConfig};

/// "None".
const NONE: u32 = u32::MAX;

/// "No timer".
const NEVER: Ns = Ns::MAX;

/// What a pool did since it was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCounters {
    /// Virtual processors that got a core.
    pub dispatches: u64,
    /// Of these: on spare time.
    pub spare_dispatches: u64,
    /// Cores taken from a virtual processor that could have gone on.
    pub preemptions: u64,
    /// Of these: so that another one would have its share before the window ends.
    pub rushes: u64,
    /// Cores given back as all threads slept.
    pub cedes: u64,
    /// Virtual processors of capped partitions held until the next window.
    pub parks: u64,
    /// Dispatches to another core than the last.
    pub migrations: u64,
}

impl PoolCounters {
    /// Each count by its name in results.
    pub fn named(&self) -> [(&'static str, u64); 7] {
        [
            ("dispatches", self.dispatches),
            ("dispatches.spare", self.spare_dispatches),
            ("core_preemptions", self.preemptions),
            ("rushes", self.rushes),
            ("cedes", self.cedes),
            ("parks", self.parks),
            ("migrations", self.migrations),
        ]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Blocked,
    Ready,
    Running,
    Dead,
}

#[derive(Clone, Debug)]
struct Ent {
    policy: Policy,
    vp: u32,
    lane: u32,
    state: State,
    cpu: CpuId,
    queued_at: Ns,
    stats: EntStats,
}

/// Where a virtual processor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// None of its threads can run.
    Away,
    /// It waits, and has entitlement left.
    Ready,
    /// It waits for what others leave.
    Spare,
    /// It waits for the next window.
    Parked,
    /// It has a core.
    On,
}

#[derive(Clone, Debug)]
struct Vp {
    partition: u16,
    place: Place,
    /// Its core, or the last it had.
    core: u32,
    /// Core time it is entitled to in a window, and what is left of it in this one.
    share: Ns,
    left: Ns,
    /// It has been able to run since the window began.
    steady: bool,
    /// It waits, and is next: its time to take a core has come.
    rushed: bool,
    /// Place in the line of those who wait with entitlement left.
    seq: u64,
    /// Threads that can run, or do.
    runnable: u32,
}

#[derive(Clone, Debug)]
struct Core {
    /// Who is dispatched, or [`NONE`].
    vp: u32,
    /// Its threads are asked to leave; nobody begins to run before all have.
    leaving: bool,
    /// It runs on spare time.
    spare: bool,
    /// CPUs on which a thread runs.
    running: u32,
    charged_to: Ns,
    /// When what is left of the share is used up, unless it leaves before.
    used_up_at: Ns,
}

#[derive(Clone, Debug)]
struct Cpu {
    /// The running entity, or [`NONE`].
    curr: u32,
    kicked: bool,
    charged_to: Ns,
    /// The deadline the driver knows of.
    armed: Ns,
}

#[derive(Clone, Debug)]
struct Part {
    weight: u32,
    share: Ns,
    vcpus: u32,
    /// Entities so far.
    added: u32,
    /// The virtual processor that takes the next entity.
    vp: u32,
    /// Who waits for spare time.
    waiting: VecDeque<u32>,
    /// Cores that it has on spare time.
    spare_on: u32,
    /// Spare time used, over weight.
    pass: u128,
}

/// A shared processor pool. It is driven like a [`Level`](vcoop_sched::Level), but has timers of its own
/// and no ticks.
#[derive(Clone, Debug)]
pub struct Pool {
    cfg: PoolConfig,
    threads: u32,
    ents: Vec<Ent>,
    vps: Vec<Vp>,
    /// Entities of a virtual processor by lane; [`NONE`] where there is none yet.
    lanes: Vec<u32>,
    cores: Vec<Core>,
    cpus: Vec<Cpu>,
    parts: Vec<Part>,
    /// Cores (not CPUs) without anybody.
    idle: CpuSet,
    /// Cores on spare time that nobody has asked for yet.
    spare: CpuSet,
    /// Who waits with entitlement left, first come first.
    ready: BTreeSet<(u64, u32)>,
    /// Of these, the steady ones that are not rushed: when each has to run.
    urgent: BTreeSet<(Ns, u32)>,
    /// Of these, the rushed ones.
    rush: VecDeque<u32>,
    /// How many wait for spare time.
    spare_waits: u32,
    /// The least pass of those who wanted spare time, at any moment.
    floor: u128,
    window_end: Ns,
    seq: u64,
    counters: PoolCounters,
    notes: Notes,
}

impl Pool {
    /// Builds an idle pool.
    ///
    /// # Errors
    /// [`ConfigError`] says which field cannot be, and what it may be.
    pub fn new(cfg: &PoolConfig) -> Result<Self, ConfigError> {
        validate::validate(cfg)?;
        let (threads, cpus) = (cfg.topology.threads_per_core, cfg.topology.cpus());
        let cores = cpus / threads;
        let core = Core {
            vp: NONE,
            leaving: false,
            spare: false,
            running: 0,
            charged_to: 0,
            used_up_at: NEVER,
        };
        let cpu = Cpu { curr: NONE, kicked: false, charged_to: 0, armed: NEVER };
        let part = |p: &config::Partition| Part {
            weight: p.weight,
            share: cfg.share_ns(p),
            vcpus: p.vcpus,
            added: 0,
            vp: NONE,
            waiting: VecDeque::new(),
            spare_on: 0,
            pass: 0,
        };
        let mut this = Self {
            cfg: cfg.clone(),
            threads,
            ents: Vec::new(),
            vps: Vec::new(),
            lanes: Vec::new(),
            cores: vec![core; cores as usize],
            cpus: vec![cpu; cpus as usize],
            parts: cfg.partitions.iter().map(part).collect(),
            idle: CpuSet::first_n(cores),
            spare: CpuSet::EMPTY,
            ready: BTreeSet::new(),
            urgent: BTreeSet::new(),
            rush: VecDeque::new(),
            spare_waits: 0,
            floor: 0,
            window_end: cfg.window_ns,
            seq: 0,
            counters: PoolCounters::default(),
            notes: Notes::default(),
        };
        this.rearm(CpuId(0));
        Ok(this)
    }

    /// Adds an entity, blocked at first, and returns its id: dense from 0, in order of addition.
    /// `attr.group` is its partition, whose virtual processors are filled one after the other, lane
    /// by lane; policy and affinity are kept, but mean nothing here. `home` says on which core its virtual
    /// processor would like to start.
    ///
    /// # Panics
    /// If `home` or the partition is not in the pool, or the partition has all its vCPUs.
    pub fn add(&mut self, attr: Attr, home: CpuId) -> EntId {
        assert!(home.index() < self.cpus.len(), "{home} is not in the pool");
        let partition = attr.group.unwrap_or(0);
        let Some(part) = self.parts.get_mut(usize::from(partition)) else {
            panic!("no such partition")
        };
        assert!(part.added < part.vcpus, "the partition has all its vCPUs");
        let e = EntId(self.ents.len() as u32);
        let lane = part.added % self.threads;
        part.added += 1;
        if lane == 0 {
            part.vp = self.vps.len() as u32;
            self.vps.push(Vp {
                partition,
                place: Place::Away,
                core: home.0 / self.threads,
                share: part.share,
                left: part.share,
                steady: false,
                rushed: false,
                seq: 0,
                runnable: 0,
            });
            self.lanes.resize(self.lanes.len() + self.threads as usize, NONE);
        }
        let vp = part.vp;
        self.lanes[(vp * self.threads + lane) as usize] = e.0;
        let cpu = CpuId(self.vps[vp as usize].core * self.threads + lane);
        self.ents.push(Ent {
            policy: attr.policy,
            vp,
            lane,
            state: State::Blocked,
            cpu,
            queued_at: 0,
            stats: EntStats::default(),
        });
        e
    }

    /// What the pool was built from.
    pub fn config(&self) -> &PoolConfig {
        &self.cfg
    }

    /// What was done so far.
    pub fn counters(&self) -> PoolCounters {
        self.counters
    }

    /// Takes the oldest note; `None` when there is none left.
    #[inline]
    pub fn pop_note(&mut self) -> Option<Note> {
        self.notes.pop_front()
    }

    /// Who runs on `cpu`.
    #[inline]
    pub fn current(&self, cpu: CpuId) -> Option<EntId> {
        let c = self.cpus[cpu.index()].curr;
        (c != NONE).then_some(EntId(c))
    }

    /// The CPU an entity runs on, or the last it did, or that of its core it will have.
    #[inline]
    pub fn cpu_of(&self, e: EntId) -> CpuId {
        self.ents[e.index()].cpu
    }

    /// The virtual processor that an entity belongs to.
    pub fn vp_of(&self, e: EntId) -> u32 {
        self.ents[e.index()].vp
    }

    /// The policy the entity was given. It decides nothing.
    pub fn policy(&self, e: EntId) -> Policy {
        self.ents[e.index()].policy
    }

    /// Keeps the policy, to be asked for by [`Pool::policy`]. A pool has none: nothing else happens.
    pub fn set_policy(&mut self, _now: Ns, e: EntId, policy: Policy) {
        self.ents[e.index()].policy = policy;
    }

    /// Whether the entity can run, but does not; a parked one is among them.
    #[inline]
    pub fn is_queued(&self, e: EntId) -> bool {
        self.ents[e.index()].state == State::Ready
    }

    /// Whether the entity has a CPU.
    #[inline]
    pub fn is_running(&self, e: EntId) -> bool {
        self.ents[e.index()].state == State::Running
    }

    /// Whether the entity could run, but its capped partition has used up its share.
    #[inline]
    pub fn is_parked(&self, e: EntId) -> bool {
        let ent = &self.ents[e.index()];
        ent.state == State::Ready && self.vps[ent.vp as usize].place == Place::Parked
    }

    /// Who runs on `cpu`, if somebody does, and the virtual processors that wait for a core: the pool
    /// has one line for all.
    #[inline]
    pub fn nr_running(&self, cpu: CpuId) -> u32 {
        let running = u32::from(self.cpus[cpu.index()].curr != NONE);
        running + self.ready.len() as u32 + self.spare_waits
    }

    /// Whether `cpu` was kicked and has not scheduled since.
    pub fn is_kicked(&self, cpu: CpuId) -> bool {
        self.cpus[cpu.index()].kicked
    }

    /// Counters of an entity. Running and waiting that has not ended yet is not in them.
    pub fn stats(&self, e: EntId) -> EntStats {
        self.ents[e.index()].stats
    }

    /// How long an entity has waited for a CPU since its last wake-up or switch; 0: it does not wait.
    pub fn waits_for(&self, now: Ns, e: EntId) -> Ns {
        let ent = &self.ents[e.index()];
        if ent.state == State::Ready { now.saturating_sub(ent.queued_at) } else { 0 }
    }

    /// Asks a CPU to schedule, once.
    fn kick(&mut self, cpu: u32) {
        let c = &mut self.cpus[cpu as usize];
        if !c.kicked {
            c.kicked = true;
            self.notes.push_back(Note::Kick { cpu: CpuId(cpu), eager: true });
        }
    }

    /// The entities of a virtual processor.
    fn members(&self, v: u32) -> impl Iterator<Item = u32> + use<> {
        let first = (v * self.threads) as usize;
        let own: Vec<u32> = self.lanes[first..first + self.threads as usize].to_vec();
        own.into_iter().filter(|&e| e != NONE)
    }
}
