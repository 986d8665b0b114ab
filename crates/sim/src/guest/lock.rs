//! Spinlocks of a guest: who holds which, and who waits for it.
//!
//! They are queued: waiters get one in the order in which they came (MCS). The head of a paravirtual lock's queue
//! *claims* the lock while it spins (the pending bit of Linux's hybrid pv qspinlock). A head that is halted, or that has
//! not run since it became the head, does not: then who comes first takes the lock.

use std::collections::VecDeque;

use crate::attribution::track::NONE;

/// A spinlock.
#[derive(Clone, Debug)]
struct Lock {
    /// The task that has it.
    holder: u32,
    /// Those who want it, in their order.
    queue: VecDeque<u32>,
    /// The first of them keeps it from others.
    claimed: bool,
}

/// The spinlocks of a guest.
#[derive(Clone, Debug)]
pub(crate) struct Locks(Vec<Lock>);

impl Locks {
    /// So many, all free.
    pub(crate) fn new(n: u32) -> Self {
        let free = Lock { holder: NONE, queue: VecDeque::new(), claimed: false };
        Self(vec![free; n as usize])
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A task takes a spinlock: true if it has it, else it is in line. `steals`: before those in line, unless their head
    /// claims it.
    pub(crate) fn take(&mut self, l: u32, t: u32, steals: bool) -> bool {
        let lock = &mut self.0[l as usize];
        let free = lock.holder == NONE && (lock.queue.is_empty() || steals && !lock.claimed);
        if free {
            lock.holder = t;
        } else {
            lock.queue.push_back(t);
        }
        free
    }

    /// A task spins for a spinlock: it claims it if it is next in line.
    pub(crate) fn spins(&mut self, l: u32, t: u32) {
        let lock = &mut self.0[l as usize];
        lock.claimed |= lock.queue.front() == Some(&t);
    }

    /// A task halts for a spinlock: it claims it no more. Who is behind it in line.
    pub(crate) fn halts(&mut self, l: u32, t: u32) -> Option<u32> {
        let lock = &mut self.0[l as usize];
        lock.claimed &= lock.queue.front() != Some(&t);
        let at = lock.queue.iter().position(|&other| other == t)?;
        lock.queue.get(at + 1).copied()
    }

    /// Who is in line for a spinlock before this task, unless that is the first.
    pub(crate) fn before(&self, l: u32, t: u32) -> Option<u32> {
        let queue = &self.0[l as usize].queue;
        let at = queue.iter().position(|&other| other == t)?;
        queue.get(at.checked_sub(1)?).copied()
    }

    /// A task releases a spinlock, which is free until it is handed over; who is next in line.
    pub(crate) fn release(&mut self, l: u32, t: u32) -> Option<u32> {
        let lock = &mut self.0[l as usize];
        if lock.holder != t {
            return None;
        }
        lock.holder = NONE;
        lock.queue.front().copied()
    }

    /// Whether who is next in line claims a spinlock.
    pub(crate) fn is_claimed(&self, l: u32) -> bool {
        self.0[l as usize].claimed
    }

    /// Who is next in line has a spinlock now; who is next in line after it.
    pub(crate) fn hand_over(&mut self, l: u32) -> Option<u32> {
        let lock = &mut self.0[l as usize];
        if let Some(head) = lock.queue.pop_front() {
            lock.holder = head;
        }
        lock.claimed = false;
        lock.queue.front().copied()
    }

    /// Whether nobody has a spinlock.
    pub(crate) fn is_free(&self, l: u32) -> bool {
        self.0[l as usize].holder == NONE
    }

    /// Those who want a spinlock, in the order in which they came.
    pub(crate) fn line(&self, l: u32) -> impl Iterator<Item = u32> {
        self.0[l as usize].queue.iter().copied()
    }

    /// A task has a free spinlock, wherever in line it was.
    pub(crate) fn hand_to(&mut self, l: u32, t: u32) {
        let lock = &mut self.0[l as usize];
        lock.queue.retain(|&other| other != t);
        lock.holder = t;
    }

    /// Whether a spinlock is free, and this task is next in line.
    pub(crate) fn is_next(&self, l: u32, t: u32) -> bool {
        let lock = &self.0[l as usize];
        lock.holder == NONE && lock.queue.front() == Some(&t)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spinlock_goes_from_one_to_the_next_in_line() {
        let mut locks = Locks::new(1);
        assert!(locks.take(0, 7, false));
        assert!(!locks.take(0, 8, false) && !locks.take(0, 9, false));
        assert_eq!((locks.before(0, 8), locks.before(0, 9)), (None, Some(8)));
        assert_eq!(locks.release(0, 8), None, "it does not hold it");
        assert_eq!(locks.release(0, 7), Some(8));
        assert!(locks.is_next(0, 8) && !locks.is_next(0, 9));
        assert!(!locks.take(0, 6, false), "who comes now waits behind those in line");
        assert_eq!(locks.hand_over(0), Some(9));
        assert!(!locks.is_next(0, 8), "it has it");
        assert_eq!(locks.release(0, 8), Some(9));
    }

    #[test]
    fn only_a_head_that_spins_keeps_a_spinlock_from_others() {
        let mut locks = Locks::new(1);
        assert!(locks.take(0, 1, true));
        assert!(!locks.take(0, 2, true) && !locks.take(0, 3, true));
        locks.spins(0, 2);
        locks.spins(0, 3);
        assert_eq!(locks.release(0, 1), Some(2));
        assert!(!locks.take(0, 4, true), "the head claims it");
        assert_eq!(locks.hand_over(0), Some(3));
        assert!(!locks.is_claimed(0), "the new head has not run since");
        locks.release(0, 2);
        assert!(locks.take(0, 5, true), "stolen");
        locks.spins(0, 3);
        assert!(locks.is_claimed(0));
        assert_eq!((locks.halts(0, 3), locks.halts(0, 4)), (Some(4), None));
        locks.release(0, 5);
        assert!(locks.take(0, 6, true), "a halted head does not hold others up");
    }
}
