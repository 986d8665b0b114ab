//! All host schedulers behind one interface.

use vcoop_credit1::Credit1;
use vcoop_model::plan::HostSched;
use vcoop_model::rng::Stream;
use vcoop_powervm::Pool;
use vcoop_sched::config::Policy;
use vcoop_sched::{
    Attr, ConfigError, CpuId, CpuSet, DirectedYield, EntId, EntStats, LeaveReason, Level, Note,
    Refusal, Waker,
};

use crate::queue::Ns;

/// The scheduler of a host: Linux's classes, Xen's credit1 or PowerVM's pool. Guests always have a [`Level`].
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "one a host, never moved")]
pub(crate) enum Scheduler {
    /// RT and fair classes.
    Linux(Level),
    /// Xen's credit1.
    Credit1(Credit1),
    /// A shared processor pool.
    Pool(Pool),
}

macro_rules! either {
    ($self:ident, $s:ident => $call:expr) => {
        match $self {
            Self::Linux($s) => $call,
            Self::Credit1($s) => $call,
            Self::Pool($s) => $call,
        }
    };
}

impl Scheduler {
    /// The scheduler of a plan, idle. The phases of quotas' periods are drawn from `seed` (the kernel's
    /// `init_cfs_bandwidth` draws them, too).
    ///
    /// # Errors
    ///
    /// [`ConfigError`] says which field is impossible.
    pub(crate) fn new(plan: &HostSched, seed: u64) -> Result<Self, ConfigError> {
        Ok(match plan {
            HostSched::Linux(level) => {
                let mut level = level.clone();
                for (i, group) in level.groups.iter_mut().enumerate() {
                    if let Some(quota) = &mut group.quota {
                        quota.phase_ns = Stream::quota(seed, i).below(quota.period_ns);
                    }
                }
                Self::Linux(Level::new(&level)?)
            }
            HostSched::Credit1(credit1) => Self::Credit1(Credit1::new(credit1)?),
            HostSched::Pool(pool) => Self::Pool(Pool::new(pool)?),
        })
    }

    /// See [`Level::prefetch`].
    #[inline]
    pub(crate) fn prefetch(&self, cpu: CpuId, e: EntId) {
        match self {
            Self::Linux(level) => level.prefetch(cpu, e),
            Self::Credit1(credit1) => credit1.prefetch(cpu, e),
            Self::Pool(_) => {}
        }
    }

    /// [`Level::try_add`]; the other schedulers accept all. For credit1 `attr.group` is the domain, for a pool the
    /// partition.
    ///
    /// # Errors
    ///
    /// [`Refusal`]; the scheduler has not changed.
    pub(crate) fn try_add(&mut self, attr: Attr, home: CpuId) -> Result<EntId, Refusal> {
        match self {
            Self::Linux(s) => s.try_add(attr, home),
            Self::Credit1(s) => Ok(s.add(attr, home)),
            Self::Pool(s) => Ok(s.add(attr, home)),
        }
    }

    /// [`Level::wake`], or [`Level::wake_sync`]. Linux asks only which CPU did it, and whether it is about to sleep.
    #[inline]
    pub(crate) fn wake(&mut self, now: Ns, e: EntId, by: Waker) -> Option<CpuId> {
        match self {
            Self::Linux(s) => match by.cpu.filter(|_| by.sync) {
                Some(cpu) => s.wake_sync(now, e, cpu),
                None => s.wake(now, e, by.cpu),
            },
            Self::Credit1(s) => s.wake(now, e, by),
            Self::Pool(s) => s.wake(now, e),
        }
    }

    /// [`Level::schedule`].
    #[inline]
    pub(crate) fn schedule(&mut self, now: Ns, cpu: CpuId, leave: LeaveReason) -> Option<EntId> {
        either!(self, s => s.schedule(now, cpu, leave))
    }

    /// [`Level::stopped`]; 0 for the others, which move no running thread that way.
    #[inline]
    pub(crate) fn stopped(&self) -> u64 {
        self.linux().map_or(0, Level::stopped)
    }

    /// [`Level::yield_to`]; the others have no target: the current one just yields.
    pub(crate) fn yield_to(&mut self, now: Ns, cpu: CpuId, to: EntId) -> DirectedYield {
        self.linux_mut().map_or(DirectedYield::Done, |s| s.yield_to(now, cpu, to))
    }

    /// [`Pool::confer`]; the others know no such hypercall.
    pub(crate) fn confer(&mut self, now: Ns, e: EntId, to: Option<EntId>) {
        if let Self::Pool(s) = self {
            s.confer(now, e, to);
        }
    }

    /// [`Level::take_woken`]; the others have no wake lists.
    #[inline]
    pub(crate) fn take_woken(&mut self, now: Ns, cpu: CpuId) -> Option<EntId> {
        self.linux_mut()?.take_woken(now, cpu)
    }

    /// [`Level::has_woken`].
    pub(crate) fn has_woken(&self, cpu: CpuId) -> bool {
        self.linux().is_some_and(|s| s.has_woken(cpu))
    }

    /// [`Level::tick`]; the others have timers of their own.
    #[inline]
    pub(crate) fn tick(&mut self, now: Ns, cpu: CpuId) {
        if let Self::Linux(s) = self {
            s.tick(now, cpu);
        }
    }

    /// [`Level::tick_needed`]: never under the others, which have timers of their own.
    #[inline]
    pub(crate) fn tick_needed(&self, cpu: CpuId) -> bool {
        self.linux().is_some_and(|s| s.tick_needed(cpu))
    }

    /// [`Level::set_nohz_full`]; the others have no ticks.
    pub(crate) fn set_nohz_full(&mut self, cpus: &CpuSet) {
        if let Self::Linux(s) = self {
            s.set_nohz_full(cpus);
        }
    }

    /// [`Level::charge`].
    #[inline]
    pub(crate) fn charge(&mut self, now: Ns, cpu: CpuId) {
        either!(self, s => s.charge(now, cpu))
    }

    /// [`Level::set_policy`]; without effect under the others.
    pub(crate) fn set_policy(&mut self, now: Ns, e: EntId, policy: Policy) {
        either!(self, s => s.set_policy(now, e, policy))
    }

    /// [`Level::try_set_policy`]; without effect under the others, which refuse nothing.
    ///
    /// # Errors
    ///
    /// [`Refusal`]; the entity has not changed.
    pub(crate) fn try_set_policy(
        &mut self,
        now: Ns,
        e: EntId,
        policy: Policy,
    ) -> Result<(), Refusal> {
        if let Self::Linux(s) = self {
            return s.try_set_policy(now, e, policy);
        }
        self.set_policy(now, e, policy);
        Ok(())
    }

    /// [`Level::set_cookie`]; without effect under the others, which have other means against siblings.
    pub(crate) fn set_cookie(&mut self, e: EntId, cookie: u32) {
        if let Self::Linux(s) = self {
            s.set_cookie(e, cookie);
        }
    }

    /// [`Level::forced_idle`]; none under the others.
    pub(crate) fn forced_idle(&self, now: Ns) -> Ns {
        self.linux().map_or(0, |s| s.forced_idle(now))
    }

    /// [`Level::deadline`].
    #[inline]
    pub(crate) fn deadline(&self, cpu: CpuId) -> Option<Ns> {
        either!(self, s => s.deadline(cpu))
    }

    /// [`Level::on_deadline`].
    #[inline]
    pub(crate) fn on_deadline(&mut self, now: Ns, cpu: CpuId) {
        either!(self, s => s.on_deadline(now, cpu))
    }

    /// [`Level::pop_note`].
    #[inline]
    pub(crate) fn pop_note(&mut self) -> Option<Note> {
        either!(self, s => s.pop_note())
    }

    /// [`Level::cpu_of`].
    #[inline]
    pub(crate) fn cpu_of(&self, e: EntId) -> CpuId {
        either!(self, s => s.cpu_of(e))
    }

    /// [`Level::policy`]; under the others the policy set last, which has no effect.
    #[inline]
    pub(crate) fn policy(&self, e: EntId) -> Policy {
        either!(self, s => s.policy(e))
    }

    /// [`Level::is_queued`]; a parked entity is queued, too.
    #[inline]
    pub(crate) fn is_queued(&self, e: EntId) -> bool {
        either!(self, s => s.is_queued(e))
    }

    /// [`Level::is_running`].
    #[inline]
    pub(crate) fn is_running(&self, e: EntId) -> bool {
        either!(self, s => s.is_running(e))
    }

    /// Whether the entity waits because of RT throttling, a quota or a cap.
    #[inline]
    pub(crate) fn is_throttled(&self, e: EntId) -> bool {
        match self {
            Self::Linux(s) => s.is_throttled(e),
            Self::Credit1(s) => s.is_parked(e),
            Self::Pool(s) => s.is_parked(e),
        }
    }

    /// [`Level::has_single`].
    pub(crate) fn has_single(&self, cpu: CpuId) -> bool {
        match self {
            Self::Linux(level) => level.has_single(cpu),
            other => other.nr_running(cpu) == 1,
        }
    }

    /// [`Level::nr_running`].
    pub(crate) fn nr_running(&self, cpu: CpuId) -> u32 {
        either!(self, s => s.nr_running(cpu))
    }

    /// [`Level::stats`].
    pub(crate) fn stats(&self, e: EntId) -> EntStats {
        either!(self, s => s.stats(e))
    }

    /// [`Level::waits_for`].
    pub(crate) fn waits_for(&self, now: Ns, e: EntId) -> Ns {
        either!(self, s => s.waits_for(now, e))
    }

    /// Linux's classes, if it is they.
    fn linux(&self) -> Option<&Level> {
        if let Self::Linux(s) = self { Some(s) } else { None }
    }

    /// The same, mutable.
    fn linux_mut(&mut self) -> Option<&mut Level> {
        if let Self::Linux(s) = self { Some(s) } else { None }
    }

    /// The credit scheduler, if it is one.
    pub(crate) fn credit1(&self) -> Option<&Credit1> {
        if let Self::Credit1(s) = self { Some(s) } else { None }
    }

    /// The credit scheduler, mutable, if it is one.
    pub(crate) fn credit1_mut(&mut self) -> Option<&mut Credit1> {
        if let Self::Credit1(s) = self { Some(s) } else { None }
    }

    /// Its counters, named as in results. Linux's are those of its entities.
    pub(crate) fn counts(&self) -> Vec<(&'static str, u64)> {
        match self {
            Self::Linux(_) => Vec::new(),
            Self::Credit1(s) => s.counters().named().to_vec(),
            Self::Pool(s) => s.counters().named().to_vec(),
        }
    }
}
