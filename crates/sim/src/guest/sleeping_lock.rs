//! Sleeping locks of a guest: which task holds which lock, which tasks spin for it, and which sleep.
//!
//! The rules are those of Linux's mutex and read-write semaphore (`kernel/locking/mutex.c`, `rwsem.c`,
//! `osq_lock.c`; 5.12 and later). A released lock is free until a task takes it. A task that spins for it is faster
//! than the first sleeper, which is woken at each release. The sleeper asks for a *handoff* when it was woken in
//! vain (mutex) or has waited for 4 ms (semaphore); then it gets the lock before all others. Readers do not spin.
//! Sleeping readers get the lock from the task that releases it, all at once.
//!
//! Whoever takes or releases a semaphore writes its word with an atomic addition, readers as well. The word's cache line
//! is with one CPU at a time, so that readers, who do not wait for each other, still wait for the line in turn.
//!
//! A mutex of user space (futex) has neither. Waiters sleep, and each release wakes the one that has slept longest.
//! If another task was faster, it sleeps again behind all others.

use std::collections::VecDeque;

use vcoop_model::plan::LockKind;

use crate::attribution::track::NONE;
use crate::queue::Ns;

/// How long the first waiter of a semaphore lets others go first (`RWSEM_WAIT_TIMEOUT`).
const HANDOFF_AFTER_NS: Ns = 4_000_000;

/// Readers that make a waiting writer spin for longer, at most (`rwsem_rspin_threshold`).
const MAX_READERS: Ns = 30;

/// Result of asking for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acquired {
    Has,
    Spins,
    Sleeps,
}

/// Holder of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Nobody,
    Task(u32),
    /// Readers. Whether they run is not known.
    Readers,
    /// Readers that have had it for too long to spin for it.
    SlowReaders,
}

/// What a spinning task watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpinsOn {
    /// The lock.
    Lock,
    /// The task before it in line.
    Before(u32),
}

/// A task that sleeps for a lock, or is about to.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    task: u32,
    reads: bool,
    since: Ns,
    /// Woken to ask once more.
    woken: bool,
    /// It spins, for a handoff.
    spins: bool,
}

/// Cache line of a lock's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// pCPU that wrote it last, or [`NONE`].
    at: u32,
    /// When that pCPU has written it.
    written: Ns,
}

impl Line {
    /// pCPU that wrote it last, if any has.
    pub(crate) fn last_writer(&self) -> Option<u32> {
        (self.at != NONE).then_some(self.at)
    }

    /// A pCPU writes it: the time until it has done so. `transfer`: from the last writer to this one, if nobody else
    /// waits for it.
    pub(crate) fn write(&mut self, by: u32, now: Ns, transfer: Ns) -> Ns {
        if std::mem::replace(&mut self.at, by) == by {
            return 0;
        }
        self.written = self.written.max(now) + transfer;
        self.written - now
    }
}

#[derive(Clone, Debug)]
struct Lock {
    kind: LockKind,
    line: Line,
    owner: u32,
    readers: u32,
    /// Readers have had it for so long that no task spins for it.
    slow: bool,
    /// Only the first waiter may take it.
    handoff: bool,
    /// Tasks that have been given it and do not know yet.
    given: Vec<u32>,
    /// Spinning tasks; the first watches the lock, each other one the task before it.
    spinners: VecDeque<u32>,
    waiters: VecDeque<Waiter>,
}

impl Lock {
    const FREE: Self = Self {
        kind: LockKind::Mutex,
        line: Line { at: NONE, written: 0 },
        owner: NONE,
        readers: 0,
        slow: false,
        handoff: false,
        given: Vec::new(),
        spinners: VecDeque::new(),
        waiters: VecDeque::new(),
    };

    /// Whether a task can get it now in this way; `first`: it is the first waiter.
    fn admits(&self, kind: LockKind, first: bool) -> bool {
        let free = self.owner == NONE;
        match kind {
            LockKind::Read => {
                let before = self.waiters.is_empty() || self.readers == 0;
                free && before && !self.handoff
            }
            _ => free && self.readers == 0 && (first || !self.handoff),
        }
    }

    fn place(&self, t: u32) -> Option<usize> {
        self.waiters.iter().position(|waiter| waiter.task == t)
    }

    /// A task is to sleep for it, behind all others.
    fn queue(&mut self, task: u32, reads: bool, since: Ns) {
        self.waiters.push_back(Waiter { task, reads, since, woken: false, spins: false });
    }

    /// Gives it to a task alone, which does not know yet.
    fn give(&mut self, t: u32) {
        self.owner = t;
        self.slow = false;
        self.given.push(t);
    }

    /// Gives it to all sleeping readers.
    fn give_to_readers(&mut self) -> impl Iterator<Item = u32> {
        let given = self.given.len();
        let Self { waiters, given: to, .. } = self;
        waiters.retain(|waiter| {
            to.extend(waiter.reads.then_some(waiter.task));
            !waiter.reads
        });
        self.readers = (self.given.len() - given) as u32;
        self.handoff = false;
        self.given[given..].iter().copied()
    }
}

/// The sleeping locks of a guest.
#[derive(Clone, Debug, Default)]
pub(crate) struct SleepingLocks {
    locks: Vec<Lock>,
    /// How many tasks spin for them.
    spinning: u32,
}

impl SleepingLocks {
    /// `n` locks, all free.
    pub(crate) fn new(n: u32) -> Self {
        Self { locks: vec![Lock::FREE; n as usize], spinning: 0 }
    }

    pub(crate) fn owner(&self, l: u32) -> Owner {
        let lock = &self.locks[l as usize];
        match lock {
            _ if lock.owner != NONE => Owner::Task(lock.owner),
            Lock { readers: 0, .. } => Owner::Nobody,
            Lock { slow: true, .. } => Owner::SlowReaders,
            _ => Owner::Readers,
        }
    }

    /// The cache line of a semaphore's word; `None` for other locks.
    pub(crate) fn word(&mut self, l: u32) -> Option<&mut Line> {
        let Lock { kind, line, .. } = &mut self.locks[l as usize];
        matches!(kind, LockKind::Read | LockKind::Write).then_some(line)
    }

    /// A task asks for a lock, for the first time or again after it has spun or slept. `may_spin`: Linux's conditions
    /// for spinning hold.
    pub(crate) fn acquire(
        &mut self,
        l: u32,
        t: u32,
        kind: LockKind,
        now: Ns,
        may_spin: bool,
    ) -> Acquired {
        let lock = &mut self.locks[l as usize];
        lock.kind = kind;
        if let Some(at) = lock.given.iter().position(|&given| given == t) {
            lock.given.swap_remove(at);
            return Acquired::Has;
        }
        let place = lock.place(t);
        let reads = kind == LockKind::Read;
        if lock.admits(kind, place == Some(0)) {
            if let Some(at) = place {
                lock.waiters.remove(at);
                lock.handoff &= at != 0;
            }
            match reads {
                true => lock.readers += 1,
                false => (lock.owner, lock.slow) = (t, false),
            }
            return Acquired::Has;
        }
        let spins = match place {
            None if may_spin && matches!(kind, LockKind::Mutex | LockKind::Write) => {
                lock.spinners.push_back(t);
                true
            }
            None => {
                lock.queue(t, reads, now);
                false
            }
            Some(at) => {
                let waiter = &mut lock.waiters[at];
                let in_vain = std::mem::take(&mut waiter.woken) && at == 0;
                lock.handoff |= match kind {
                    LockKind::Mutex => in_vain,
                    LockKind::Write => in_vain && now - waiter.since >= HANDOFF_AFTER_NS,
                    _ => false,
                };
                // Only a writer can be worth to spin for.
                waiter.spins = in_vain && lock.handoff && may_spin && lock.readers == 0;
                waiter.spins
            }
        };
        self.spinning += u32::from(spins);
        if spins { Acquired::Spins } else { Acquired::Sleeps }
    }

    /// What a task that spins for a lock watches; `None`: it can have the lock.
    pub(crate) fn sees(&self, l: u32, t: u32) -> Option<SpinsOn> {
        let lock = &self.locks[l as usize];
        match lock.spinners.iter().position(|&other| other == t) {
            Some(at) if at > 0 => Some(SpinsOn::Before(lock.spinners[at - 1])),
            at => (!lock.admits(LockKind::Write, at.is_none())).then_some(SpinsOn::Lock),
        }
    }

    /// The task behind a spinning task in line.
    pub(crate) fn behind(&self, l: u32, t: u32) -> Option<u32> {
        let spinners = &self.locks[l as usize].spinners;
        let at = spinners.iter().position(|&other| other == t)?;
        spinners.get(at + 1).copied()
    }

    /// How much longer a task that has spun this long spins: without limit while one task holds the lock, and for a
    /// short time while several read (`rwsem_rspin_threshold`).
    pub(crate) fn patience(&self, l: u32, t: u32, spun: Ns) -> Option<Ns> {
        let lock = &self.locks[l as usize];
        let limit = 500 * (20 + MAX_READERS.min(lock.readers.into()));
        (lock.readers > 0 && lock.spinners.front() == Some(&t)).then(|| limit.saturating_sub(spun))
    }

    /// A task stops spinning: it asks once more, and then sleeps. `slow`: readers have held it for too long.
    pub(crate) fn stops_spinning(&mut self, l: u32, t: u32, now: Ns, slow: bool) {
        let lock = &mut self.locks[l as usize];
        lock.slow |= slow;
        match lock.place(t) {
            Some(at) => lock.waiters[at].spins = false,
            None => {
                lock.spinners.retain(|&other| other != t);
                lock.queue(t, false, now);
            }
        }
        self.spinning -= 1;
    }

    /// Tasks that spin and watch a lock that a task holds.
    pub(crate) fn watchers(&self, t: u32) -> Vec<u32> {
        if self.spinning == 0 {
            return Vec::new();
        }
        let held = self.locks.iter().filter(|lock| lock.owner == t);
        let watch = |lock: &Lock| {
            let first = lock.waiters.front().filter(|waiter| waiter.spins);
            [lock.spinners.front().copied(), first.map(|waiter| waiter.task)]
        };
        held.flat_map(watch).flatten().collect()
    }

    /// A task releases a lock. Returns tasks to notify: they have the lock, or may ask once more. `spins_now`: whether
    /// a spinning task does so at this moment.
    pub(crate) fn release(
        &mut self,
        l: u32,
        t: u32,
        now: Ns,
        spins_now: impl Fn(u32) -> bool,
    ) -> Vec<u32> {
        let lock = &mut self.locks[l as usize];
        if lock.owner == t {
            lock.owner = NONE;
        } else if lock.readers > 0 {
            lock.readers -= 1;
        } else {
            return Vec::new();
        }
        if lock.readers > 0 {
            return Vec::new();
        }
        if lock.kind == LockKind::Futex {
            return lock.waiters.pop_front().map(|waiter| waiter.task).into_iter().collect();
        }
        let mut told = Vec::new();
        let first = lock.waiters.front().filter(|waiter| !waiter.reads).copied();
        let handed = first.filter(|first| {
            lock.handoff && (lock.kind == LockKind::Mutex || first.spins && spins_now(first.task))
        });
        if let Some(first) = handed {
            lock.waiters.pop_front();
            lock.handoff = false;
            self.spinning -= u32::from(first.spins);
            lock.give(first.task);
            return vec![first.task];
        }
        let quick = lock.spinners.front().copied().filter(|&task| !lock.handoff && spins_now(task));
        if let Some(task) = quick {
            lock.spinners.pop_front();
            self.spinning -= 1;
            lock.give(task);
            told.push(task);
        }
        match lock.waiters.front_mut() {
            Some(waiter) if !waiter.reads => {
                waiter.woken = true;
                // One that spins sees that the lock is free when it runs.
                told.extend((!waiter.spins).then_some(waiter.task));
            }
            Some(waiter) if quick.is_some() => {
                lock.handoff |= now - waiter.since >= HANDOFF_AFTER_NS;
            }
            Some(_) => told.extend(lock.give_to_readers()),
            None => {}
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Ns = 1_000_000;

    /// One lock that is always taken in one way.
    struct One(SleepingLocks, Ns);

    impl One {
        fn new() -> Self {
            Self(SleepingLocks::new(1), 0)
        }

        fn asks(&mut self, t: u32, kind: LockKind, may_spin: bool) -> Acquired {
            self.0.acquire(0, t, kind, self.1, may_spin)
        }

        /// Releases it while all spinning tasks spin.
        fn released(&mut self, t: u32) -> Vec<u32> {
            self.0.release(0, t, self.1, |_| true)
        }

        /// Releases it while no spinning task has a pCPU.
        fn released_alone(&mut self, t: u32) -> Vec<u32> {
            self.0.release(0, t, self.1, |_| false)
        }
    }

    #[test]
    fn a_line_is_with_one_cpu_at_a_time() {
        let mut line = Line { at: NONE, written: 0 };
        assert_eq!([line.write(0, 1_000, 100), line.write(0, 1_200, 100)], [100, 0]);
        // Three at once, in turn; and one who comes when nobody waits.
        let waits = [1, 2, 0].map(|by| line.write(by, 2_000, 100));
        assert_eq!((waits, line.write(1, 9_000, 100)), ([100, 200, 300], 100));
    }

    #[test]
    fn who_spins_has_a_mutex_before_who_sleeps() {
        let kind = LockKind::Mutex;
        let mut one = One::new();
        assert_eq!(one.asks(1, kind, true), Acquired::Has);
        assert_eq!(one.asks(2, kind, false), Acquired::Sleeps);
        assert_eq!(
            (one.asks(3, kind, true), one.asks(4, kind, true)),
            (Acquired::Spins, Acquired::Spins)
        );
        let sees = |one: &One, t| one.0.sees(0, t);
        assert_eq!((sees(&one, 3), sees(&one, 4)), (Some(SpinsOn::Lock), Some(SpinsOn::Before(3))));
        assert_eq!((one.0.behind(0, 3), one.0.watchers(1)), (Some(4), vec![3]));
        assert_eq!(one.released(1), [3, 2], "the sleeper is woken all the same");
        assert_eq!((one.0.owner(0), one.0.watchers(3)), (Owner::Task(3), vec![4]));
        assert_eq!(one.asks(3, kind, false), Acquired::Has, "it knows now");
        // Woken in vain: no waiter is before it any more.
        assert_eq!(one.asks(2, kind, false), Acquired::Sleeps);
        assert_eq!(one.released(3), [2]);
        assert_eq!(one.0.owner(0), Owner::Task(2), "though another spins");
        assert_eq!(one.asks(2, kind, false), Acquired::Has);
        assert_eq!((one.released(2), one.asks(4, kind, false)), (vec![4], Acquired::Has));
        assert_eq!((one.released(4), one.0.owner(0)), (vec![], Owner::Nobody));
        assert_eq!(one.0.spinning, 0);
    }

    #[test]
    fn a_mutex_is_free_until_somebody_takes_it() {
        let kind = LockKind::Mutex;
        let mut one = One::new();
        one.asks(1, kind, false);
        assert_eq!(
            (one.asks(2, kind, true), one.asks(3, kind, false)),
            (Acquired::Spins, Acquired::Sleeps)
        );
        assert_eq!(one.released_alone(1), [3], "who spins has no pCPU");
        assert_eq!((one.0.owner(0), one.0.sees(0, 2)), (Owner::Nobody, None));
        assert_eq!(one.asks(4, kind, false), Acquired::Has, "before all who wait");
        one.0.stops_spinning(0, 2, 0, false);
        assert_eq!(one.asks(2, kind, true), Acquired::Sleeps, "it has given spinning up");
        // The first waiter spins, as the holder runs. Then that one does not any more.
        assert_eq!((one.asks(3, kind, true), one.0.watchers(4)), (Acquired::Spins, vec![3]));
        one.0.stops_spinning(0, 3, 0, false);
        assert_eq!((one.asks(3, kind, true), one.0.spinning), (Acquired::Sleeps, 0));
        assert_eq!((one.released(4), one.0.owner(0)), (vec![3], Owner::Task(3)));
    }

    #[test]
    fn readers_share_a_semaphore_and_wait_behind_a_writer() {
        let (read, write) = (LockKind::Read, LockKind::Write);
        let mut one = One::new();
        assert_eq!(
            (one.asks(1, read, false), one.asks(2, read, false)),
            (Acquired::Has, Acquired::Has)
        );
        assert_eq!((one.0.owner(0), one.asks(3, write, false)), (Owner::Readers, Acquired::Sleeps));
        assert_eq!(
            (one.asks(4, read, true), one.asks(5, read, true)),
            (Acquired::Sleeps, Acquired::Sleeps)
        );
        assert!(one.released(1).is_empty());
        assert_eq!((one.released(2), one.asks(3, write, false)), (vec![3], Acquired::Has));
        assert_eq!(one.asks(6, write, false), Acquired::Sleeps);
        assert_eq!(one.released(3), [4, 5], "all who wait to read, before the next writer");
        assert_eq!(
            (one.asks(4, read, false), one.asks(5, read, false)),
            (Acquired::Has, Acquired::Has)
        );
        assert!(one.released(4).is_empty());
        assert_eq!(one.released(5), [6]);
        assert_eq!(one.asks(7, read, false), Acquired::Has, "the writer was not there yet");
        assert_eq!(one.asks(6, write, false), Acquired::Sleeps);
        assert!(one.released(9) == [6] && one.released(9).is_empty(), "nobody holds it");
    }

    #[test]
    fn the_first_writer_waits_4_ms_before_nobody_may_be_before_it() {
        let (read, write) = (LockKind::Read, LockKind::Write);
        let mut one = One::new();
        one.asks(1, write, false);
        assert_eq!(
            (one.asks(2, write, false), one.asks(3, read, false)),
            (Acquired::Sleeps, Acquired::Sleeps)
        );
        for at in [MS, 3 * MS] {
            one.1 = at;
            assert_eq!((one.released(1), one.asks(1, write, false)), (vec![2], Acquired::Has));
            assert_eq!(one.asks(2, write, false), Acquired::Sleeps);
        }
        one.1 = 4 * MS;
        assert_eq!((one.released(1), one.asks(1, write, false)), (vec![2], Acquired::Has));
        assert_eq!(one.asks(2, write, true), Acquired::Spins);
        assert!(one.released_alone(1).is_empty(), "it will see that it may have it");
        assert_eq!(one.asks(1, write, true), Acquired::Spins);
        assert_eq!((one.0.sees(0, 1), one.0.sees(0, 2)), (Some(SpinsOn::Lock), None));
        one.0.stops_spinning(0, 2, one.1, false);
        assert_eq!(one.asks(2, write, true), Acquired::Has);
        assert_eq!(one.released(2), [1], "who spins is faster than readers");
        assert_eq!(one.asks(1, write, true), Acquired::Has);
        assert_eq!(one.asks(6, write, true), Acquired::Spins);
        assert_eq!(one.released(1), [3], "the reader has waited for long enough");
        assert_eq!(one.0.patience(0, 6, 4_000), Some(6_500));
        one.0.stops_spinning(0, 6, one.1, true);
        assert_eq!(one.0.owner(0), Owner::SlowReaders);
    }

    #[test]
    fn a_futex_lets_who_comes_be_faster() {
        let kind = LockKind::Futex;
        let mut one = One::new();
        one.asks(1, kind, true);
        assert_eq!(
            (one.asks(2, kind, true), one.asks(3, kind, true)),
            (Acquired::Sleeps, Acquired::Sleeps)
        );
        assert_eq!((one.released(1), one.asks(1, kind, true)), (vec![2], Acquired::Has));
        assert_eq!(one.asks(2, kind, true), Acquired::Sleeps);
        assert_eq!((one.released(1), one.asks(3, kind, true)), (vec![3], Acquired::Has));
        assert_eq!((one.released(3), one.asks(2, kind, true)), (vec![2], Acquired::Has));
        assert!(one.released(2).is_empty());
    }
}
