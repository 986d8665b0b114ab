//! Spinlocks of a guest: which task holds which lock, and which tasks wait for it.
//!
//! They are queued: waiters get the lock in the order of their arrival (MCS, tickets). The head of a paravirtual
//! lock's queue *claims* the lock while it spins (the pending bit of Linux's hybrid pv qspinlock). A head that is
//! halted, or that has not run since it became the head, does not claim it. Tasks that arrive then spin *outside*
//! the queue, never halt, and take the lock as soon as it is free. They join the queue when its head claims the
//! lock, or when the queue is empty. All waiters of a test-and-set lock are outside the queue, and none of a lock at which
//! time is conferred, whose head claims it only while its vCPU runs.

use std::collections::VecDeque;

use vcoop_model::plan::virt::SpinLocks;

use crate::attribution::track::NONE;

/// A spinlock.
#[derive(Clone, Debug)]
struct Lock {
    /// The task that has it.
    holder: u32,
    /// Waiters in the queue, in order.
    queue: VecDeque<u32>,
    /// The head of the queue claims it.
    claimed: bool,
    /// Waiters outside the queue.
    outside: VecDeque<u32>,
}

impl Lock {
    /// Moves the waiters outside into the queue.
    fn join(&mut self) -> VecDeque<u32> {
        let joined = std::mem::take(&mut self.outside);
        self.queue.extend(&joined);
        joined
    }
}

/// The spinlocks of a guest.
#[derive(Clone, Debug)]
pub(crate) struct Locks(Vec<Lock>);

impl Locks {
    /// `n` locks, all free.
    pub(crate) fn new(n: u32) -> Self {
        let (queue, outside) = (VecDeque::new(), VecDeque::new());
        let free = Lock { holder: NONE, queue, claimed: false, outside };
        Self(vec![free; n as usize])
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A task takes a spinlock: true if it has it, else it waits from now on.
    pub(crate) fn take(&mut self, l: u32, t: u32, kind: SpinLocks) -> bool {
        let lock = &mut self.0[l as usize];
        let (open, empty) = (!kind.in_order() && !lock.claimed, lock.queue.is_empty());
        let free = lock.holder == NONE && (empty || open);
        if free {
            lock.holder = t;
        } else if open && kind.spins_outside(empty) {
            lock.outside.push_back(t);
        } else {
            lock.queue.push_back(t);
        }
        free
    }

    /// A task spins for a spinlock: it claims it if it is the head of the queue. Returns tasks that join the queue
    /// because of that.
    pub(crate) fn spins(&mut self, l: u32, t: u32) -> VecDeque<u32> {
        let lock = &mut self.0[l as usize];
        lock.claimed |= lock.queue.front() == Some(&t);
        if lock.claimed { lock.join() } else { VecDeque::new() }
    }

    /// Whether a waiter is outside the queue.
    pub(crate) fn is_outside(&self, l: u32, t: u32) -> bool {
        self.0[l as usize].outside.contains(&t)
    }

    /// Waiters outside the queue, in order of arrival.
    pub(crate) fn outside(&self, l: u32) -> impl Iterator<Item = u32> {
        self.0[l as usize].outside.iter().copied()
    }

    /// A task halts for a spinlock: it does not claim it any more.
    pub(crate) fn halts(&mut self, l: u32, t: u32) {
        let lock = &mut self.0[l as usize];
        lock.claimed &= lock.queue.front() != Some(&t);
    }

    /// The task that holds a spinlock.
    pub(crate) fn holder(&self, l: u32) -> Option<u32> {
        Some(self.0[l as usize].holder).filter(|&t| t != NONE)
    }

    /// The waiters in the queues of all spinlocks that a task holds.
    pub(crate) fn waiters_of(&self, t: u32) -> impl Iterator<Item = u32> {
        self.0.iter().filter(move |lock| lock.holder == t).flat_map(|lock| &lock.queue).copied()
    }

    /// The task behind this one in the queue.
    pub(crate) fn after(&self, l: u32, t: u32) -> Option<u32> {
        let queue = &self.0[l as usize].queue;
        let at = queue.iter().position(|&other| other == t)?;
        queue.get(at + 1).copied()
    }

    /// The task before this one in the queue, unless that is the head.
    pub(crate) fn before(&self, l: u32, t: u32) -> Option<u32> {
        let queue = &self.0[l as usize].queue;
        let at = queue.iter().position(|&other| other == t)?;
        queue.get(at.checked_sub(1)?).copied()
    }

    /// A task releases a spinlock, which is free until it is handed over. Returns the head of the queue.
    pub(crate) fn release(&mut self, l: u32, t: u32) -> Option<u32> {
        let lock = &mut self.0[l as usize];
        if lock.holder != t {
            return None;
        }
        lock.holder = NONE;
        lock.queue.front().copied()
    }

    /// Whether the head of the queue claims a spinlock.
    pub(crate) fn is_claimed(&self, l: u32) -> bool {
        self.0[l as usize].claimed
    }

    /// The head of the queue gets a spinlock. Returns the next head, and tasks that join the queue because of that.
    pub(crate) fn hand_over(&mut self, l: u32) -> (Option<u32>, VecDeque<u32>) {
        let lock = &mut self.0[l as usize];
        if let Some(head) = lock.queue.pop_front() {
            lock.holder = head;
        }
        lock.claimed = false;
        let joined = if lock.queue.is_empty() { lock.join() } else { VecDeque::new() };
        (lock.queue.front().copied(), joined)
    }

    /// Whether no task holds a spinlock.
    pub(crate) fn is_free(&self, l: u32) -> bool {
        self.0[l as usize].holder == NONE
    }

    /// A task outside the queue gets a free spinlock.
    pub(crate) fn hand_to(&mut self, l: u32, t: u32) {
        let lock = &mut self.0[l as usize];
        lock.outside.retain(|&other| other != t);
        lock.holder = t;
    }

    /// Whether a spinlock is free, and this task is the head of its queue.
    pub(crate) fn is_next(&self, l: u32, t: u32) -> bool {
        let lock = &self.0[l as usize];
        lock.holder == NONE && lock.queue.front() == Some(&t)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAIR: SpinLocks = SpinLocks::Queued;
    const PV: SpinLocks = SpinLocks::Pv;
    const PV_TICKET: SpinLocks = SpinLocks::PvTicket;

    #[test]
    fn a_spinlock_goes_from_one_to_the_next_in_line() {
        let mut locks = Locks::new(1);
        assert!(locks.take(0, 7, FAIR));
        assert!(!locks.take(0, 8, FAIR) && !locks.take(0, 9, FAIR));
        assert_eq!((locks.before(0, 8), locks.before(0, 9)), (None, Some(8)));
        assert_eq!(locks.release(0, 8), None, "it does not hold it");
        assert_eq!(locks.release(0, 7), Some(8));
        assert!(locks.is_next(0, 8) && !locks.is_next(0, 9));
        assert!(!locks.take(0, 6, FAIR), "who comes now waits behind those in line");
        assert_eq!(locks.hand_over(0).0, Some(9));
        assert!(!locks.is_next(0, 8), "it has it");
        assert_eq!(locks.release(0, 8), Some(9));
    }

    #[test]
    fn a_halted_head_keeps_its_ticket() {
        let mut locks = Locks::new(1);
        assert!(locks.take(0, 1, PV_TICKET) && !locks.take(0, 2, PV_TICKET));
        locks.halts(0, 2);
        assert_eq!(locks.release(0, 1), Some(2));
        assert!(!locks.take(0, 3, PV_TICKET) && !locks.is_outside(0, 3));
        assert!(locks.is_next(0, 2));
    }

    #[test]
    fn only_a_head_that_spins_keeps_a_spinlock_from_others() {
        let mut locks = Locks::new(1);
        assert!(locks.take(0, 1, PV));
        assert!(!locks.take(0, 2, PV));
        locks.spins(0, 2);
        assert!(!locks.take(0, 3, PV) && !locks.is_outside(0, 3), "the head spins: it is in line");
        assert_eq!(locks.release(0, 1), Some(2));
        assert!(!locks.take(0, 4, PV), "the head claims it");
        assert_eq!(locks.hand_over(0).0, Some(3));
        assert!(!locks.is_claimed(0), "the new head has not run since");
        locks.release(0, 2);
        assert!(locks.take(0, 5, PV), "stolen");
        locks.spins(0, 3);
        assert!(locks.is_claimed(0));
        assert_eq!((locks.after(0, 3), locks.after(0, 4)), (Some(4), None));
        locks.halts(0, 3);
        locks.release(0, 5);
        assert!(locks.take(0, 6, PV), "a halted head does not hold others up");
    }

    #[test]
    fn where_time_is_conferred_a_head_without_a_pcpu_keeps_nobody_off() {
        let mut locks = Locks::new(1);
        let confer = SpinLocks::Confer;
        assert!(locks.take(0, 1, confer) && !locks.take(0, 2, confer));
        assert_eq!((locks.holder(0), locks.waiters_of(1).collect::<Vec<_>>()), (Some(1), vec![2]));
        locks.spins(0, 2);
        locks.halts(0, 2);
        assert_eq!(locks.release(0, 1), Some(2));
        assert!(locks.take(0, 3, confer), "stolen");
        assert!(!locks.take(0, 4, confer) && !locks.is_outside(0, 4), "in line at once");
    }

    #[test]
    fn who_comes_while_the_head_is_halted_spins_outside_until_the_head_spins() {
        let mut locks = Locks::new(1);
        assert!(locks.take(0, 1, PV) && !locks.take(0, 2, PV));
        locks.halts(0, 2);
        assert!(!locks.take(0, 3, PV) && !locks.take(0, 4, PV));
        assert!(locks.is_outside(0, 3) && locks.outside(0).eq([3, 4]));
        assert_eq!((locks.before(0, 3), locks.release(0, 1)), (None, Some(2)));
        locks.hand_to(0, 3);
        assert!(locks.outside(0).eq([4]) && !locks.is_free(0));
        assert_eq!(locks.spins(0, 2), [4], "it gets in line");
        assert_eq!((locks.before(0, 4), locks.outside(0).count()), (Some(2), 0));
        // No waiter is left.
        locks.release(0, 3);
        assert_eq!(locks.hand_over(0).0, Some(4));
        assert!(!locks.take(0, 5, PV) && locks.is_outside(0, 5));
        assert_eq!(locks.release(0, 2), Some(4));
        let (next, joined) = locks.hand_over(0);
        assert_eq!((next, joined), (Some(5), VecDeque::from([5])));
    }
}
