//! Locks of a guest: who holds which, and who waits for it.
//!
//! A spinlock is queued: waiters get it in the order in which they came (MCS). At a paravirtual lock whose
//! head of the queue is halted, who comes first takes it (Linux's hybrid pv qspinlock); else it is handed
//! over in order. A sleeping lock is held by one, or by any number to read.

use std::collections::VecDeque;

use crate::attribution::track::NONE;

/// Marks who waits to read.
const READS: u32 = 1 << 31;

/// A lock.
#[derive(Clone, Debug)]
struct Lock {
    /// The task that has it.
    holder: u32,
    /// How many have it to read.
    readers: u32,
    /// Those who want it, in their order; with [`READS`] to read.
    queue: VecDeque<u32>,
}

/// The locks of a guest.
#[derive(Clone, Debug)]
pub(crate) struct Locks(Vec<Lock>);

impl Locks {
    /// So many, all free.
    pub(crate) fn new(n: u32) -> Self {
        let free = Lock { holder: NONE, readers: 0, queue: VecDeque::new() };
        Self(vec![free; n as usize])
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A task takes a spinlock: true if it has it, else it is in line. `is_halted` says of who is at the head
    /// of the queue whether its vCPU halts for the lock.
    pub(crate) fn take(&mut self, l: u32, t: u32, is_halted: impl Fn(u32) -> bool) -> bool {
        let lock = &mut self.0[l as usize];
        let free = lock.holder == NONE && lock.queue.front().is_none_or(|&head| is_halted(head));
        if free {
            lock.holder = t;
        } else {
            lock.queue.push_back(t);
        }
        free
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

    /// Who is next in line has a spinlock now.
    pub(crate) fn hand_over(&mut self, l: u32) {
        let lock = &mut self.0[l as usize];
        if let Some(head) = lock.queue.pop_front() {
            lock.holder = head;
        }
    }

    /// Whether a spinlock is free, and this task is next in line.
    pub(crate) fn is_next(&self, l: u32, t: u32) -> bool {
        let lock = &self.0[l as usize];
        lock.holder == NONE && lock.queue.front() == Some(&t)
    }

    /// A task acquires a sleeping lock, alone or to read: true if it has it, else it is in line.
    pub(crate) fn acquire(&mut self, l: u32, t: u32, reads: bool) -> bool {
        let lock = &mut self.0[l as usize];
        let free = lock.holder == NONE && lock.queue.is_empty() && (reads || lock.readers == 0);
        match (free, reads) {
            (true, true) => lock.readers += 1,
            (true, false) => lock.holder = t,
            (false, _) => lock.queue.push_back(if reads { t | READS } else { t }),
        }
        free
    }

    /// A task releases a sleeping lock; those who have it instead. If nobody has it any more, the next in line
    /// has; if that one reads, all who wait to read, as with Linux's rwsem.
    pub(crate) fn let_go(&mut self, l: u32, t: u32) -> Vec<u32> {
        let lock = &mut self.0[l as usize];
        if lock.holder == t {
            lock.holder = NONE;
        } else if lock.readers > 0 {
            lock.readers -= 1;
        } else {
            return Vec::new();
        }
        if lock.readers > 0 {
            return Vec::new();
        }
        let Some(&next) = lock.queue.front() else { return Vec::new() };
        if next & READS == 0 {
            lock.queue.pop_front();
            lock.holder = next;
            return vec![next];
        }
        let mut readers = Vec::new();
        lock.queue.retain(|waiter| {
            let reads = waiter & READS != 0;
            readers.extend(reads.then_some(waiter & !READS));
            !reads
        });
        lock.readers = readers.len() as u32;
        readers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spinlock_goes_from_one_to_the_next_in_line() {
        let mut locks = Locks::new(1);
        let runs = |_| false;
        assert!(locks.take(0, 7, runs));
        assert!(!locks.take(0, 8, runs) && !locks.take(0, 9, runs));
        assert_eq!(locks.release(0, 8), None, "it does not hold it");
        assert_eq!(locks.release(0, 7), Some(8));
        assert!(locks.is_next(0, 8) && !locks.is_next(0, 9));
        assert!(!locks.take(0, 6, runs), "who comes now waits behind those in line");
        locks.hand_over(0);
        assert!(!locks.is_next(0, 8), "it has it");
        assert_eq!(locks.release(0, 8), Some(9));
        assert!(locks.take(0, 5, |head| head == 9), "a halted head does not hold others up");
    }

    #[test]
    fn readers_share_a_sleeping_lock_and_wait_behind_a_writer() {
        let mut locks = Locks::new(1);
        assert!(locks.acquire(0, 1, true) && locks.acquire(0, 2, true));
        assert!(!locks.acquire(0, 3, false), "it wants it alone");
        assert!(!locks.acquire(0, 4, true) && !locks.acquire(0, 5, true), "behind the writer");
        assert!(locks.let_go(0, 1).is_empty());
        assert_eq!(locks.let_go(0, 2), [3]);
        assert_eq!(locks.let_go(0, 3), [4, 5]);
        assert!(locks.let_go(0, 4).is_empty());
        assert!(locks.let_go(0, 5).is_empty());
        assert!(locks.let_go(0, 9).is_empty(), "nobody holds it");
        assert!(locks.acquire(0, 3, false));
    }
}
