//! What a policy tells its driver to do.

use core::ops::Deref;

use vcoop_abi::Status;

use crate::config::{Means, Ns};

/// One thing to do. A driver carries actions out in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Publish this interrupt ticket. Comes before the interrupt itself is made visible to the
    /// guest, so that the guest's handler finds it.
    Ticket(u64),
    /// Publish this status. Only policies that the guest takes part in say so; with the others the
    /// guest's status word stays disabled.
    Status(Status),
    /// Give the vCPU thread these means.
    Boost(Means),
    /// Give the vCPU thread its captured baseline back, as far as it [rests](Self::Rest) at it.
    Restore,
    /// From now on the thread rests like this: at once if it is not boosted, else with the next
    /// [`Restore`](Self::Restore).
    Rest(Rest),
    /// Have [`Event::Timer`](crate::Event::Timer) at this time. Replaces an earlier one.
    ArmTimer(Ns),
    /// No timer.
    CancelTimer,
    /// After all the above, and after the interrupt that caused the call is visible to the guest:
    /// fence, read the guest's words again, feed [`Event::Recheck`](crate::Event::Recheck).
    Recheck,
    /// A boost was due and is not given. For counters; nothing to do.
    Denied(Reason),
}

/// What a thread has while it is not boosted, as a difference from its captured baseline. Means nothing
/// for a baseline that is not fair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rest {
    /// Nice levels below it, as far as nice goes.
    pub levels: u8,
    /// EEVDF slice in its place.
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
    /// The policy has just begun, and first sees what the vCPU has without boosts: see
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
    /// Most actions one call can give.
    pub const CAPACITY: usize = 8;

    /// None.
    #[inline]
    pub const fn new() -> Self {
        Self { list: [Action::CancelTimer; Self::CAPACITY], len: 0 }
    }

    /// Appends. The machines emit each kind at most once a call, and no boost with a restore or a rest, so it
    /// never overflows.
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
