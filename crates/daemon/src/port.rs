//! The port of a vCPU of a real VM, for the driver of its policy.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use vcoop_abi::{GuestArea, GuestWords, HostArea, Status, Word};
use vcoop_policy::VmShared;
use vcoop_policy::config::Ns;
use vcoop_policy::driver::{Port, SetError, VcpuDriver};
use vcoop_policy::thread::Policy;
use vcoop_threads::clock::monotonic;
use vcoop_threads::{Attributes, Baseline, Captured, Error, NotRestored, RunTime, nice};

use crate::keeper::Keeper;
use crate::protocol::VmId;

/// Time in which the kernel cannot give a thread's number to another one.
const MOMENT_NS: Ns = 1_000_000;

/// Why a vCPU's thread cannot be driven any more.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The thread has ended.
    Gone,
    /// The kernel does not let the thread be changed.
    Refused(Error),
    /// The thread was changed from outside, or it lends its boosts.
    Foreign,
}

/// Something that is due at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DueAction {
    /// The policy timer of a vCPU: number of its VM, index in it.
    Policy(u64, usize),
    /// A look at the page of a vCPU whose guest has a deadline.
    Deadline(u64, usize),
    /// A look at the pages of a VM whose guest cannot ring, or has rung too often.
    Look(u64),
    /// A look of a VM's governor.
    Govern(u64),
    /// Accounts for the vCPUs of a VM.
    Account(u64),
    /// A check of the attributes of a VM's threads.
    Check(u64),
    /// The begin of a rest: no thread has waited for a CPU for a while.
    Rest,
}

/// What is due, by time.
pub(crate) type DueActions = BTreeSet<(Ns, DueAction)>;

/// A vCPU.
#[derive(Debug)]
pub(crate) struct Vcpu {
    pub(crate) index: u32,
    pub(crate) driver: VcpuDriver,
    pub(crate) captured: Captured,
    /// Attributes that the thread was last given.
    pub(crate) has: Attributes,
    /// The thread's nice value, which a boost to a real-time priority hides and does not change.
    pub(crate) nice: i32,
    /// The thread's slot with the keeper.
    pub(crate) slot: usize,
    /// If it is boosted as long as the policy is in force: what its thread had used before.
    pub(crate) for_life: Option<RunTime>,
    /// Time of the last call of its policy.
    pub(crate) called: Ns,
    /// Time of its policy timer in [`DueActions`].
    pub(crate) armed: Option<Ns>,
    /// Time of its next deadline in [`DueActions`].
    pub(crate) awaits: Option<Ns>,
    /// Number of deadlines for which it was boosted.
    pub(crate) deadlines: u64,
    /// Its place in `scx_vcoop`, if that decides about its boosts.
    pub(crate) ext: Option<u32>,
}

impl Vcpu {
    pub(crate) fn tid(&self) -> i32 {
        self.captured.baseline().tid
    }

    /// The nice value that the thread was given from outside while its boost hides it.
    pub(crate) fn reniced(&self) -> Option<i32> {
        let has = self.has.to_policy();
        let hidden = has.is_rt() || has.is_deadline();
        let now = if hidden { nice(self.tid()).ok() } else { None };
        now.filter(|now| *now != self.nice)
    }

    /// Restores what the thread had, unless it was changed from outside to something else than a part of its boost.
    /// `vm`: its VM. `first`: what the first thread of its process was last given, if that is driven, too.
    ///
    /// # Errors
    ///
    /// Something could not be restored.
    pub(crate) fn give_back(&self, vm: &VmId, first: Option<Policy>) -> Result<(), NotRestored> {
        let is_ours = |now: Policy| now == self.has.to_policy() || self.keeps_boost(now);
        let is_ours = |tid| Attributes::get(tid).ok().filter(|now| is_ours(now.to_policy()));
        if self.captured.is_alive() {
            let is_ours = is_ours(self.tid()).is_some();
            return if is_ours { self.captured.restore().map(drop) } else { Ok(()) };
        }
        // A thread that executes another program (execve(2)) keeps its attributes, and gets the number and the start
        // of its process's first thread.
        let tid = vm.pid.cast_signed();
        let was = self.captured.baseline();
        let differs = self.has.to_policy() != was.attributes.to_policy();
        let has_boost =
            |now: Attributes| now.end_at_fork() && first.is_none_or(|own| own != now.to_policy());
        if !differs || !is_ours(tid).is_some_and(has_boost) {
            return Ok(());
        }
        match Captured::again(Baseline { tid, start: vm.start_ticks, ..was.clone() }) {
            Ok(Some(heir)) => heir.restore().map(drop),
            Ok(None) => Ok(()),
            Err(why) => Err(NotRestored { tid, attributes: Some(why), affinity: None }),
        }
    }

    /// Whether the attributes that the thread has `now` are a part of its boost, kept by its own process.
    ///
    /// A process needs no privilege to lower the real-time priority of a thread or to raise its nice value
    /// (`__sched_setscheduler` of the kernel). So a VMM can turn a boost into attributes that the engine does not
    /// recognize as its own.
    pub(crate) fn keeps_boost(&self, now: Policy) -> bool {
        use Policy::{Fifo, Idle, Normal, Rr};
        let (lent, had) = (self.has.to_policy(), self.captured.baseline().attributes.to_policy());
        if lent == now || lent == had {
            return false;
        }
        match (lent, now) {
            // With RLIMIT_RTPRIO the process may also change between FIFO and RR.
            (Fifo(lent) | Rr(lent), Fifo(now) | Rr(now)) => !had.is_rt() && now <= lent,
            // A slice can be changed without privilege, so only the nice value shows a kept boost.
            (Normal { nice: lent, .. }, Normal { nice: now, .. }) => match had {
                Normal { nice: had, .. } => lent <= now && now < had,
                Idle => lent <= now,
                _ => false,
            },
            // A SCHED_IDLE thread needs a privilege to leave that policy, but not to return from a boost.
            (_, Normal { .. }) => had == Idle,
            _ => false,
        }
    }
}

/// The pages of a vCPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page<'a> {
    pub(crate) guest: &'a GuestArea,
    pub(crate) host: &'a HostArea,
}

/// A vCPU, and everything that its port needs.
#[derive(Debug)]
pub(crate) struct VcpuPort<'a> {
    pub(crate) vcpu: &'a mut Vcpu,
    pub(crate) shared: &'a mut VmShared,
    pub(crate) keeper: &'a Keeper,
    pub(crate) dues: &'a mut DueActions,
    pub(crate) due: DueAction,
    /// Its pages, if its guest cooperates.
    pub(crate) page: Option<Page<'a>>,
    /// Time of the event that the policy is told about. The policy was not called since.
    pub(crate) since: Ns,
    /// When all threads that had ended were last reported.
    pub(crate) ends_told: Ns,
}

impl VcpuPort<'_> {
    /// Boosts the thread once and takes that back, so that a refusal by the kernel is known at once. The first real
    /// boost may come long after the policy has begun.
    ///
    /// # Errors
    /// The thread has ended, it was changed from outside, or the kernel refuses. A lack of bandwidth for a reservation
    /// is no error.
    pub(crate) fn try_means(&mut self) -> Result<(), Stop> {
        let driver = &self.vcpu.driver;
        let boosted = driver.boosted();
        // One that is not boosted now may be reniced later.
        if boosted.is_some() || driver.outranks() {
            self.vcpu.captured.baseline().attributes.can_come_back().map_err(Stop::Refused)?;
        }
        let Some(boosted) = boosted else { return Ok(()) };
        let baseline = self.vcpu.driver.baseline();
        [boosted, baseline].into_iter().try_for_each(|policy| match self.set_thread(policy) {
            Ok(()) | Err(SetError::Refused(_)) => Ok(()),
            Err(SetError::Failed(stop)) => Err(stop),
        })
    }
}

impl Port for VcpuPort<'_> {
    type Error = Stop;

    fn now(&mut self) -> Ns {
        self.since
    }

    fn driver(&mut self) -> &mut VcpuDriver {
        &mut self.vcpu.driver
    }

    fn with<R>(&mut self, f: impl FnOnce(&mut VcpuDriver, &mut VmShared) -> R) -> R {
        f(&mut self.vcpu.driver, self.shared)
    }

    fn store_ticket(&mut self, ticket: u64) {
        if let Some(page) = self.page {
            page.host.ticket.store(ticket, Ordering::Release);
        }
    }

    fn store_status(&mut self, status: Status) {
        if let Some(page) = self.page {
            page.host.status.store(status.to_word(), Ordering::Release);
        }
    }

    fn store_budget(&mut self, left: Ns) {
        if let Some(page) = self.page {
            page.host.budget_left_ns.store(left, Ordering::Release);
        }
    }

    fn set_thread(&mut self, policy: Policy) -> Result<(), SetError<Stop>> {
        let captured = &self.vcpu.captured;
        let told = monotonic().saturating_sub(self.ends_told) < MOMENT_NS;
        let lives = (told && captured.ends().is_some()) || captured.is_alive();
        if !lives {
            return Err(SetError::Failed(Stop::Gone));
        }
        let captured = self.vcpu.captured.baseline();
        // Attributes that another process has set must not be overwritten.
        let is_ours = |now: Attributes| now.to_policy() == self.vcpu.has.to_policy();
        let lends = self.keeper.slot(self.vcpu.slot).lends();
        if lends || !Attributes::get(captured.tid).is_ok_and(is_ours) {
            return Err(SetError::Failed(Stop::Foreign));
        }
        let attributes = if policy == self.vcpu.driver.baseline() {
            captured.attributes
        } else {
            Attributes::from_policy(&policy)
        };
        let (slot, boosted) =
            (self.keeper.slot(self.vcpu.slot), self.vcpu.driver.policy().is_boosted());
        if boosted {
            // Before the boost: the process that restores it must know what to restore.
            slot.boosted(self.vcpu.for_life.is_some(), self.since);
        }
        let set = attributes.set(captured.tid);
        if !boosted || set.is_err() {
            slot.rests();
        }
        match set {
            Ok(()) => {
                self.vcpu.has = attributes.as_got();
                if let Policy::Normal { nice, .. } = attributes.to_policy() {
                    self.vcpu.nice = nice.into();
                }
                Ok(())
            }
            Err(e) if e.source.raw_os_error() == Some(libc::ESRCH) => {
                Err(SetError::Failed(Stop::Gone))
            }
            // Deadline bandwidth is the host's, and other threads may have it now.
            Err(e) if attributes.is_deadline() && e.source.raw_os_error() == Some(libc::EBUSY) => {
                Err(SetError::Refused(Stop::Refused(e)))
            }
            Err(e) => Err(SetError::Failed(Stop::Refused(e))),
        }
    }

    fn arm(&mut self, at: Option<Ns>) {
        self.keeper.slot(self.vcpu.slot).due(at);
        if let Some(before) = std::mem::replace(&mut self.vcpu.armed, at) {
            self.dues.remove(&(before, self.due));
        }
        if let Some(at) = at {
            self.dues.insert((at, self.due));
        }
    }

    fn fire(&mut self) -> Result<(), Stop> {
        // Interrupts of such a VM come from its VMM; none is injected here.
        Ok(())
    }

    fn words(&mut self) -> GuestWords {
        let Some(page) = self.page else { return GuestWords::SILENT };
        GuestArea::fence();
        page.guest.read()
    }
}
