//! What a policy tells its driver to do.

use core::ops::Deref;

use vcoop_abi::Status;

use crate::config::{Means, Ns};

/// One thing for the driver to do. The driver carries actions out in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Publish this interrupt ticket. Comes before the interrupt itself is made visible to the
    /// guest, so that the guest's handler finds it.
    Ticket(u64),
    /// Publish this status. Only `dynamic` emits it; under the other policies the guest's status word stays disabled.
    Status(Status),
    /// Boost the vCPU thread by these means.
    Boost(Means),
    /// Give the vCPU thread its captured baseline back, as changed by the last [`Rest`](Self::Rest).
    Restore,
    /// What the thread has from now on while it is not boosted. Takes effect at once if it is not boosted, else with
    /// the next [`Restore`](Self::Restore).
    Rest(Rest),
    /// Feed [`Event::Timer`](crate::Event::Timer) at this time. Replaces a time asked for earlier.
    ArmTimer(Ns),
    /// Feed no [`Event::Timer`](crate::Event::Timer).
    CancelTimer,
    /// After all the above, and after the interrupt that caused the call is visible to the guest:
    /// fence, read the guest's words again, feed [`Event::Recheck`](crate::Event::Recheck).
    Recheck,
    /// A boost was due and was not given. For counters; the driver does nothing.
    Denied(Reason),
}

/// What a thread has while it is not boosted, as a difference from its captured baseline. Ignored for a baseline that
/// is not SCHED_OTHER.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rest {
    /// Nice levels added to the baseline's nice value, up to nice 19.
    pub levels: u8,
    /// EEVDF slice that replaces the baseline's; `None`: the baseline's own.
    pub slice_ns: Option<Ns>,
}

/// Why a boost was not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// The vCPU's bucket is empty, or has not yet recovered.
    VcpuBudget,
    /// The VM's bucket is empty, or has not yet recovered.
    VmBudget,
    /// The vCPU was boosted for as long as it may be at once, and the gap after that is not over.
    Longest,
    /// The only reason was a preempt-disabled section that is older than the bound.
    LongSection,
    /// The baseline already outranks the means: a boost would lower it.
    Baseline,
    /// The policy has just begun, and does not boost until it has seen what the vCPU gets without boosts: see
    /// [`repay`](crate::repay).
    Learning,
    /// The host refused the means: see [`Means::Deadline`].
    Refused,
}

/// The actions of one call: a list of at most [`Actions::CAPACITY`] on the stack.
#[derive(Clone, Copy, Debug)]
pub struct Actions {
    list: [Action; Self::CAPACITY],
    len: u8,
}

impl Actions {
    /// Most actions that one call can give.
    pub const CAPACITY: usize = 8;

    /// An empty list.
    #[inline]
    pub const fn new() -> Self {
        Self { list: [Action::CancelTimer; Self::CAPACITY], len: 0 }
    }

    /// Appends. The policies emit each kind at most once a call, and never a boost together with a restore or a rest,
    /// so the list never overflows.
    pub(crate) fn push(&mut self, action: Action) {
        debug_assert!((self.len as usize) < Self::CAPACITY, "an action kind was emitted twice");
        if let Some(slot) = self.list.get_mut(self.len as usize) {
            *slot = action;
            self.len += 1;
        }
    }
}

impl Default for Actions {
    fn default() -> Self {
        Self::new()
    }
}

impl Deref for Actions {
    type Target = [Action];

    #[inline]
    fn deref(&self) -> &[Action] {
        &self.list[..self.len as usize]
    }
}

impl<'a> IntoIterator for &'a Actions {
    type Item = &'a Action;
    type IntoIter = core::slice::Iter<'a, Action>;

    #[inline]
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl IntoIterator for Actions {
    type Item = Action;
    type IntoIter = core::iter::Take<core::array::IntoIter<Action, { Actions::CAPACITY }>>;

    fn into_iter(self) -> Self::IntoIter {
        self.list.into_iter().take(self.len as usize)
    }
}
