//! Any scheduler of a host, behind one set of calls.

use crate::config::{Ns, Policy};
use crate::credit1::Waker;
use crate::{
    Attr, CpuId, CpuSet, Credit1, DirectedYield, EntId, EntStats, Leave, Level, Note, Pool, Refusal,
};

/// The scheduler of a host: Linux's classes, Xen's credit1 or PowerVM's pool. Guests are [`Level`]s
/// always.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "one a host, never moved")]
pub enum Scheduler {
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
    /// See [`Level::prefetch`].
    #[cfg(feature = "prefetch")]
    #[inline]
    pub fn prefetch(&self, cpu: CpuId, e: EntId) {
        match self {
            Self::Linux(level) => level.prefetch(cpu, e),
            Self::Credit1(credit1) => credit1.prefetch(cpu, e),
            Self::Pool(_) => {}
        }
    }

    /// [`Level::add`]; for credit1 `attr.group` is the domain, for a pool the partition.
    pub fn add(&mut self, attr: Attr, home: CpuId) -> EntId {
        either!(self, s => s.add(attr, home))
    }

    /// [`Level::try_add`]; the others as [`add`](Self::add).
    ///
    /// # Errors
    ///
    /// [`Refusal`]; the scheduler is as it was.
    pub fn try_add(&mut self, attr: Attr, home: CpuId) -> Result<EntId, Refusal> {
        match self {
            Self::Linux(s) => s.try_add(attr, home),
            Self::Credit1(s) => Ok(s.add(attr, home)),
            Self::Pool(s) => Ok(s.add(attr, home)),
        }
    }

    /// [`Level::wake`]. Linux asks only which CPU did it.
    #[inline]
    pub fn wake(&mut self, now: Ns, e: EntId, by: Waker) -> Option<CpuId> {
        match self {
            Self::Linux(s) => s.wake(now, e, by.cpu),
            Self::Credit1(s) => s.wake(now, e, by),
            Self::Pool(s) => s.wake(now, e),
        }
    }

    /// [`Level::schedule`].
    #[inline]
    pub fn schedule(&mut self, now: Ns, cpu: CpuId, leave: Leave) -> Option<EntId> {
        either!(self, s => s.schedule(now, cpu, leave))
    }

    /// [`Level::yield_to`]; the others know no target: the current one just yields.
    pub fn yield_to(&mut self, now: Ns, cpu: CpuId, to: EntId) -> DirectedYield {
        match self {
            Self::Linux(s) => s.yield_to(now, cpu, to),
            Self::Credit1(_) | Self::Pool(_) => DirectedYield::Done,
        }
    }

    /// [`Level::tick`].
    #[inline]
    pub fn tick(&mut self, now: Ns, cpu: CpuId) {
        either!(self, s => s.tick(now, cpu))
    }

    /// [`Level::tick_needed`]: never under the others, which have timers of their own.
    #[inline]
    pub fn tick_needed(&self, cpu: CpuId) -> bool {
        either!(self, s => s.tick_needed(cpu))
    }

    /// [`Level::set_nohz_full`]; the others have no ticks.
    pub fn set_nohz_full(&mut self, cpus: &CpuSet) {
        match self {
            Self::Linux(s) => s.set_nohz_full(cpus),
            Self::Credit1(_) | Self::Pool(_) => {}
        }
    }

    /// [`Level::charge`].
    #[inline]
    pub fn charge(&mut self, now: Ns, cpu: CpuId) {
        either!(self, s => s.charge(now, cpu))
    }

    /// [`Level::stolen`].
    pub fn stolen(&mut self, cpu: CpuId, ns: Ns) {
        either!(self, s => s.stolen(cpu, ns))
    }

    /// [`Level::set_policy`]; without effect under the others.
    pub fn set_policy(&mut self, now: Ns, e: EntId, policy: Policy) {
        either!(self, s => s.set_policy(now, e, policy))
    }

    /// [`Level::try_set_policy`]; without effect under the others, which refuse nothing.
    ///
    /// # Errors
    ///
    /// [`Refusal`]; the entity is as it was.
    pub fn try_set_policy(&mut self, now: Ns, e: EntId, policy: Policy) -> Result<(), Refusal> {
        match self {
            Self::Linux(s) => s.try_set_policy(now, e, policy),
            Self::Credit1(s) => {
                s.set_policy(now, e, policy);
                Ok(())
            }
            Self::Pool(s) => {
                s.set_policy(now, e, policy);
                Ok(())
            }
        }
    }

    /// [`Level::set_cpus`]; without effect in a pool, which pins nobody.
    pub fn set_cpus(&mut self, now: Ns, e: EntId, cpus: CpuSet) {
        either!(self, s => s.set_cpus(now, e, cpus))
    }

    /// [`Level::deadline`].
    #[inline]
    pub fn deadline(&self, cpu: CpuId) -> Option<Ns> {
        either!(self, s => s.deadline(cpu))
    }

    /// [`Level::on_deadline`].
    #[inline]
    pub fn on_deadline(&mut self, now: Ns, cpu: CpuId) {
        either!(self, s => s.on_deadline(now, cpu))
    }

    /// [`Level::pop_note`].
    #[inline]
    pub fn pop_note(&mut self) -> Option<Note> {
        either!(self, s => s.pop_note())
    }

    /// [`Level::current`].
    #[inline]
    pub fn current(&self, cpu: CpuId) -> Option<EntId> {
        either!(self, s => s.current(cpu))
    }

    /// [`Level::cpu_of`].
    #[inline]
    pub fn cpu_of(&self, e: EntId) -> CpuId {
        either!(self, s => s.cpu_of(e))
    }

    /// [`Level::cpus`].
    pub fn cpus(&self, e: EntId) -> &CpuSet {
        either!(self, s => s.cpus(e))
    }

    /// [`Level::policy`]; under the others what was set last, which decides nothing.
    #[inline]
    pub fn policy(&self, e: EntId) -> Policy {
        either!(self, s => s.policy(e))
    }

    /// [`Level::is_queued`]; a parked entity is queued, too.
    #[inline]
    pub fn is_queued(&self, e: EntId) -> bool {
        either!(self, s => s.is_queued(e))
    }

    /// [`Level::is_running`].
    #[inline]
    pub fn is_running(&self, e: EntId) -> bool {
        either!(self, s => s.is_running(e))
    }

    /// Whether the entity waits, but is held back: by RT throttling, or by a cap.
    #[inline]
    pub fn is_throttled(&self, e: EntId) -> bool {
        match self {
            Self::Linux(s) => s.is_throttled(e),
            Self::Credit1(s) => s.is_parked(e),
            Self::Pool(s) => s.is_parked(e),
        }
    }

    /// [`Level::is_kicked`].
    pub fn is_kicked(&self, cpu: CpuId) -> bool {
        either!(self, s => s.is_kicked(cpu))
    }

    /// [`Level::nr_running`].
    pub fn nr_running(&self, cpu: CpuId) -> u32 {
        either!(self, s => s.nr_running(cpu))
    }

    /// [`Level::stats`].
    pub fn stats(&self, e: EntId) -> EntStats {
        either!(self, s => s.stats(e))
    }

    /// [`Level::check`].
    pub fn check(&self) {
        either!(self, s => s.check())
    }

    /// The credit scheduler, if it is one.
    pub fn credit1(&self) -> Option<&Credit1> {
        match self {
            Self::Credit1(s) => Some(s),
            Self::Linux(_) | Self::Pool(_) => None,
        }
    }

    /// The shared processor pool, if it is one.
    pub fn pool(&self) -> Option<&Pool> {
        match self {
            Self::Pool(s) => Some(s),
            Self::Linux(_) | Self::Credit1(_) => None,
        }
    }

    /// The same, to be changed.
    pub fn credit1_mut(&mut self) -> Option<&mut Credit1> {
        match self {
            Self::Credit1(s) => Some(s),
            Self::Linux(_) | Self::Pool(_) => None,
        }
    }
}
