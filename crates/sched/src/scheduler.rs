//! Either scheduler of a host, behind one set of calls.

use crate::config::{Ns, Policy};
use crate::credit::Waker;
use crate::{
    Attr, CpuId, CpuSet, Credit1, DirectedYield, EntId, EntStats, Leave, Level, Note, Refusal,
};

/// The scheduler of a host: Linux's classes or Xen's credit1. Guests are [`Level`]s always.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "one a host, never moved")]
pub enum Scheduler {
    /// RT and fair classes.
    Linux(Level),
    /// Xen's credit1.
    Credit1(Credit1),
}

macro_rules! either {
    ($self:ident, $s:ident => $call:expr) => {
        match $self {
            Self::Linux($s) => $call,
            Self::Credit1($s) => $call,
        }
    };
}

impl Scheduler {
    /// [`Level::add`]; for credit1 `attr.group` is the domain.
    pub fn add(&mut self, attr: Attr, home: CpuId) -> EntId {
        either!(self, s => s.add(attr, home))
    }

    /// [`Level::try_add`]; for credit1 as [`add`](Self::add).
    ///
    /// # Errors
    ///
    /// [`Refusal`]; the scheduler is as it was.
    pub fn try_add(&mut self, attr: Attr, home: CpuId) -> Result<EntId, Refusal> {
        match self {
            Self::Linux(s) => s.try_add(attr, home),
            Self::Credit1(s) => Ok(s.add(attr, home)),
        }
    }

    /// [`Level::wake`]. Linux asks only which CPU did it.
    #[inline]
    pub fn wake(&mut self, now: Ns, e: EntId, by: Waker) -> Option<CpuId> {
        match self {
            Self::Linux(s) => s.wake(now, e, by.cpu),
            Self::Credit1(s) => s.wake(now, e, by),
        }
    }

    /// [`Level::schedule`].
    #[inline]
    pub fn schedule(&mut self, now: Ns, cpu: CpuId, leave: Leave) -> Option<EntId> {
        either!(self, s => s.schedule(now, cpu, leave))
    }

    /// [`Level::yield_to`]; Xen's credit1 knows no target: the current one just yields.
    pub fn yield_to(&mut self, now: Ns, cpu: CpuId, to: EntId) -> DirectedYield {
        match self {
            Self::Linux(s) => s.yield_to(now, cpu, to),
            Self::Credit1(_) => DirectedYield::Done,
        }
    }

    /// [`Level::tick`].
    #[inline]
    pub fn tick(&mut self, now: Ns, cpu: CpuId) {
        either!(self, s => s.tick(now, cpu))
    }

    /// [`Level::tick_needed`]: never under credit1, which has timers of its own.
    #[inline]
    pub fn tick_needed(&self, cpu: CpuId) -> bool {
        either!(self, s => s.tick_needed(cpu))
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

    /// [`Level::set_policy`]; without effect under credit1.
    pub fn set_policy(&mut self, now: Ns, e: EntId, policy: Policy) {
        either!(self, s => s.set_policy(now, e, policy))
    }

    /// [`Level::try_set_policy`]; without effect under credit1, which refuses nothing.
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
        }
    }

    /// [`Level::set_cpus`].
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

    /// [`Level::policy`]; under credit1 what was set last, which decides nothing.
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

    /// Whether the entity waits, but is held back: by RT throttling, or by its domain's cap.
    #[inline]
    pub fn is_throttled(&self, e: EntId) -> bool {
        match self {
            Self::Linux(s) => s.is_throttled(e),
            Self::Credit1(s) => s.is_parked(e),
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
            Self::Linux(_) => None,
            Self::Credit1(s) => Some(s),
        }
    }

    /// The same, to be changed.
    pub fn credit1_mut(&mut self) -> Option<&mut Credit1> {
        match self {
            Self::Linux(_) => None,
            Self::Credit1(s) => Some(s),
        }
    }
}
