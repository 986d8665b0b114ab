//! A shared processor pool with PowerVM's rules: entitlements are kept in every dispatch window, and the rest of it is
//! divided by weight.
//!
//! The unit of dispatch is a *virtual processor*: as many vCPUs of one partition as a core has threads, together on the
//! threads of one core. They also leave the core together, and a core runs threads of only one virtual processor at a
//! time. A virtual processor whose threads are all asleep cedes its core at once; if some are awake it keeps the core,
//! and the other hardware threads idle.
//!
//! Every window (10 ms) each virtual processor may use a core for its share: its partition's entitlement, divided
//! equally. Unused entitlement is lost. A virtual processor that has used up its share runs on time that others leave,
//! if its partition is uncapped, by the partition's weight.
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
//! Order: virtual processors with entitlement left go first, first come first served. One that wakes up takes the core
//! of one that runs on spare time, but of no other. That alone would not keep all entitlements on several cores,
//! because a virtual processor can use only one core. So one that has been able to run since the window began is
//! *steady*, and takes a core at the last moment at which it can still get its share: when the rest of the window
//! equals the rest of its share. It never has to take the core from another such one: at the first moment with more of
//! them than cores, all cores would have done only entitled work since either the window began (then the entitlements
//! exceed the pool) or some core was free (then all steady ones ran at that moment, on fewer cores than there are, and
//! no more become steady until the window ends).
//!
//! IBM publishes what is promised (see [`PoolConfig`]), but not the order inside a window: that order, and the rules
//! for wake-ups and cores, are this crate's own.

mod check;
mod confer;
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

/// Counters of a pool since it was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCounters {
    /// Virtual processors that got a core.
    pub dispatches: u64,
    /// Of these: dispatches on spare time.
    pub spare_dispatches: u64,
    /// Cores taken from a virtual processor that could have gone on.
    pub preemptions: u64,
    /// Of these: preemptions for one that would otherwise miss its share in this window.
    pub rushes: u64,
    /// Cores given back because all threads slept.
    pub cedes: u64,
    /// Cores given up for another virtual processor of the partition.
    pub confers: u64,
    /// Virtual processors of capped partitions held until the next window.
    pub parks: u64,
    /// Dispatches to another core than the last one.
    pub migrations: u64,
}

impl PoolCounters {
    /// Each counter with its name in results.
    pub fn named(&self) -> [(&'static str, u64); 8] {
        [
            ("dispatches", self.dispatches),
            ("dispatches.spare", self.spare_dispatches),
            ("core_preemptions", self.preemptions),
            ("rushes", self.rushes),
            ("cedes", self.cedes),
            ("confers", self.confers),
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
    /// The virtual processor to which it confers its time, or [`NONE`].
    confers_to: u32,
    stats: EntStats,
}

/// State of a virtual processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VpState {
    /// None of its threads can run.
    Away,
    /// It waits, and has entitlement left.
    Ready,
    /// It waits for spare time.
    Spare,
    /// It waits for the next window.
    Parked,
    /// It has a core.
    On,
}

#[derive(Clone, Debug)]
struct Vp {
    partition: u16,
    place: VpState,
    /// Its core, or its last one.
    core: u32,
    /// Core time that it is entitled to in a window, and the rest of it in this one.
    share: Ns,
    left: Ns,
    /// It has been able to run since the window began.
    steady: bool,
    /// It waits, and gets the next core: its time to take one has come.
    rushed: bool,
    /// Position among those that wait with entitlement left.
    seq: u64,
    /// Number of threads that can run, or run.
    runnable: u32,
}

#[derive(Clone, Debug)]
struct Core {
    /// The virtual processor dispatched, or [`NONE`].
    vp: u32,
    /// Its threads are asked to leave; no other starts before all have left.
    leaving: bool,
    /// It runs on spare time.
    spare: bool,
    /// The virtual processor for which the present one gives it up, or [`NONE`].
    heir: u32,
    /// The virtual processor whose share is used, or [`NONE`]: that of `vp`.
    payer: u32,
    /// Number of CPUs on which a thread runs.
    running: u32,
    charged_to: Ns,
    /// When the rest of the share is used up, unless it leaves earlier.
    used_up_at: Ns,
}

impl Core {
    /// The virtual processor whose share is used.
    fn pays(&self) -> u32 {
        if self.payer == NONE { self.vp } else { self.payer }
    }
}

#[derive(Clone, Debug)]
struct Cpu {
    /// The running entity, or [`NONE`].
    curr: u32,
    kicked: bool,
    charged_to: Ns,
    /// The deadline that the driver knows.
    armed: Ns,
}

#[derive(Clone, Debug)]
struct PartitionState {
    weight: u32,
    share: Ns,
    vcpus: u32,
    /// Number of entities so far.
    added: u32,
    /// The virtual processor of the next entity.
    vp: u32,
    /// Virtual processors that wait for spare time.
    waiting: VecDeque<u32>,
    /// Number of its cores on spare time.
    spare_on: u32,
    /// Spare time used, divided by weight.
    pass: u128,
}

/// A shared processor pool. It is driven like a [`Level`](vcoop_sched::Level), but has its own timers and no ticks.
#[derive(Clone, Debug)]
pub struct Pool {
    cfg: PoolConfig,
    threads: u32,
    ents: Vec<Ent>,
    vps: Vec<Vp>,
    /// Entities of a virtual processor by lane; [`NONE`] if not added yet.
    lanes: Vec<u32>,
    cores: Vec<Core>,
    cpus: Vec<Cpu>,
    parts: Vec<PartitionState>,
    /// Cores (not CPUs) without a virtual processor.
    idle: CpuSet,
    /// Cores on spare time that have not been taken away yet.
    spare: CpuSet,
    /// Virtual processors that wait with entitlement left, in order.
    ready: BTreeSet<(u64, u32)>,
    /// Of these, steady ones that are not rushed, with the latest time at which each has to run.
    urgent: BTreeSet<(Ns, u32)>,
    /// Of these, the rushed ones.
    rush: VecDeque<u32>,
    /// Number of virtual processors that wait for spare time.
    spare_waits: u32,
    /// Number of entities that confer their time.
    conferring: u32,
    /// The highest minimum so far of the passes of partitions that want spare time.
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
    /// [`ConfigError`] names the invalid field and its valid range.
    pub fn new(cfg: &PoolConfig) -> Result<Self, ConfigError> {
        validate::validate(cfg)?;
        let (threads, cpus) = (cfg.topology.threads_per_core, cfg.topology.cpus());
        let cores = cpus / threads;
        let core = Core {
            vp: NONE,
            leaving: false,
            spare: false,
            heir: NONE,
            payer: NONE,
            running: 0,
            charged_to: 0,
            used_up_at: NEVER,
        };
        let cpu = Cpu { curr: NONE, kicked: false, charged_to: 0, armed: NEVER };
        let part = |p: &config::Partition| PartitionState {
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
            conferring: 0,
            floor: 0,
            window_end: cfg.window_ns,
            seq: 0,
            counters: PoolCounters::default(),
            notes: Notes::default(),
        };
        this.rearm(CpuId(0));
        Ok(this)
    }

    /// Adds a blocked entity, and returns its id: dense from 0, in order of addition. `attr.group` is its partition,
    /// whose virtual processors are filled one after the other, lane by lane; policy and affinity are stored, but have
    /// no effect. `home` is the preferred first core of its virtual processor.
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
                place: VpState::Away,
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
            confers_to: NONE,
            stats: EntStats::default(),
        });
        e
    }

    /// The configuration from which the pool was built.
    pub fn config(&self) -> &PoolConfig {
        &self.cfg
    }

    /// The counters so far.
    pub fn counters(&self) -> PoolCounters {
        self.counters
    }

    /// Takes the oldest note; `None` if there is none.
    #[inline]
    pub fn pop_note(&mut self) -> Option<Note> {
        self.notes.pop_front()
    }

    /// The entity that runs on `cpu`.
    #[inline]
    pub fn current(&self, cpu: CpuId) -> Option<EntId> {
        let c = self.cpus[cpu.index()].curr;
        (c != NONE).then_some(EntId(c))
    }

    /// The CPU on which an entity runs, or did so last, or that it will have on its core.
    #[inline]
    pub fn cpu_of(&self, e: EntId) -> CpuId {
        self.ents[e.index()].cpu
    }

    /// The virtual processor that an entity belongs to.
    pub fn vp_of(&self, e: EntId) -> u32 {
        self.ents[e.index()].vp
    }

    /// The policy that the entity was given. It has no effect.
    pub fn policy(&self, e: EntId) -> Policy {
        self.ents[e.index()].policy
    }

    /// Stores the policy for [`Pool::policy`]. It has no other effect: a pool has no policies.
    pub fn set_policy(&mut self, _now: Ns, e: EntId, policy: Policy) {
        self.ents[e.index()].policy = policy;
    }

    /// Whether the entity can run but does not, including parked ones.
    #[inline]
    pub fn is_queued(&self, e: EntId) -> bool {
        self.ents[e.index()].state == State::Ready
    }

    /// Whether the entity has a CPU.
    #[inline]
    pub fn is_running(&self, e: EntId) -> bool {
        self.ents[e.index()].state == State::Running
    }

    /// Whether only its partition's cap keeps the entity from running.
    #[inline]
    pub fn is_parked(&self, e: EntId) -> bool {
        let ent = &self.ents[e.index()];
        ent.state == State::Ready && self.vps[ent.vp as usize].place == VpState::Parked
    }

    /// Number of entities that run on `cpu` (0 or 1), plus the virtual processors that wait for a core: they wait for
    /// the whole pool.
    #[inline]
    pub fn nr_running(&self, cpu: CpuId) -> u32 {
        let running = u32::from(self.cpus[cpu.index()].curr != NONE);
        running + self.ready.len() as u32 + self.spare_waits
    }

    /// Whether `cpu` was kicked and has not scheduled since.
    pub fn is_kicked(&self, cpu: CpuId) -> bool {
        self.cpus[cpu.index()].kicked
    }

    /// Counters of an entity, without running and waiting that has not ended.
    pub fn stats(&self, e: EntId) -> EntStats {
        self.ents[e.index()].stats
    }

    /// How long an entity has waited for a CPU since its last wake-up or switch, in nanoseconds; 0: it does not wait.
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
