//! What the owner says of each thread, in memory that it shares with the keeper.
#![allow(unsafe_code, reason = "maps the shared words")]

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use vcoop_threads::Ns;
use vcoop_threads::journal::MOST_THREADS;

/// An owner that is late by this much has stalled.
pub const GRACE_NS: Ns = 45_000_000;
/// A boosted thread without an armed timer may run for this long: it was asleep, and its owner has missed its wake-up.
/// Owners are told of runs shorter than a boost only when these add up. Time in the kernel's context switches, which
/// the thread pays for, does not count towards that sum: it is most of the time of a thread whose runs take some 10 us.
pub const RAN_NS: Ns = 20_000_000;

/// Most threads of an owner: as many as it can write down.
pub(super) const MOST_SLOTS: usize = MOST_THREADS;
/// The slots begin behind the first page of the lock's file.
const OFFSET: u64 = 4096;

/// A thread has what it had before, or what a rest gives it.
const REST: u64 = 0;
/// It is boosted for a while.
const BOOSTED: u64 = 1;
/// It is boosted for as long as its policy is in force.
const FOR_LIFE: u64 = 2;

/// What the owner says of a thread in shared memory.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Slot {
    state: AtomicU64,
    /// When the owner has to act on the thread; `u64::MAX`: nothing is armed.
    due: AtomicU64,
    /// How often the owner has acted on the thread.
    acts: AtomicU64,
    /// Written by the keeper; not 0 if the thread has lent its boosts.
    lends: AtomicU64,
}

impl Slot {
    /// The thread is about to be boosted at time `now`. `for_life`: until its policy is taken away.
    pub(crate) fn boosted(&self, for_life: bool, now: Ns) {
        // The time of the last boost may be left over. It does not end this boost, whose own time is set later.
        if self.due.load(Ordering::Relaxed) <= now {
            self.due(None);
        }
        self.state.store(if for_life { FOR_LIFE } else { BOOSTED }, Ordering::Release);
    }

    /// Nothing is known of the thread yet.
    pub(super) fn clear(&self) {
        self.rests();
        self.due(None);
        self.lends.store(0, Ordering::Release);
    }

    /// The thread has lent its boosts.
    pub(crate) fn lent(&self) {
        self.lends.store(1, Ordering::Release);
    }

    /// Whether the thread has lent its boosts, and must not be boosted any more.
    pub(crate) fn lends(&self) -> bool {
        self.lends.load(Ordering::Acquire) != 0
    }

    /// The thread is not boosted any more.
    pub(crate) fn rests(&self) {
        self.state.store(REST, Ordering::Release);
    }

    /// Sets when the owner has to act on the thread.
    pub(crate) fn due(&self, at: Option<Ns>) {
        self.due.store(at.unwrap_or(u64::MAX), Ordering::Release);
    }

    /// The owner has acted on the thread.
    pub(crate) fn acts(&self) {
        // The only writer.
        self.acts.store(self.acts.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// Whether the thread is boosted for a while.
    pub(super) fn is_boosted(&self) -> bool {
        self.state.load(Ordering::Acquire) == BOOSTED
    }

    /// Ends a boost that the owner should have ended. The owner may have woken up: what it stores from now on stays.
    pub(super) fn end_boost(&self) {
        let _ = self.state.compare_exchange(BOOSTED, REST, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Whether the owner of a boosted thread, which has `ran` nanoseconds in all, has missed something. `since`: `acts`
    /// and CPU time as of the look at which `acts` last changed.
    pub(super) fn stall(&self, now: Ns, ran: Ns, since: &mut Option<(u64, Ns)>) -> Option<Stall> {
        let acts = self.acts.load(Ordering::Acquire);
        let due = self.due.load(Ordering::Acquire);
        let (_, ran_then) = *since.insert(since.filter(|s| s.0 == acts).unwrap_or((acts, ran)));
        if due != u64::MAX {
            let late = now.saturating_sub(due);
            return (late > GRACE_NS).then_some(Stall::Late(late));
        }
        let unheard = ran.saturating_sub(ran_then);
        (unheard > RAN_NS).then_some(Stall::Unheard(unheard))
    }
}

/// Why a boost is taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stall {
    /// The owner should have acted this long ago.
    Late(Ns),
    /// The thread has run for this long without an action of the owner.
    Unheard(Ns),
    /// The thread sleeps in locks whose holders have its priority meanwhile.
    Lends,
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Late(ns) => write!(f, "the owner stalls: it is {} ms late", ns / 1_000_000),
            Self::Unheard(ns) => {
                write!(f, "the owner stalls: it has missed a run of {} ms", ns / 1_000_000)
            }
            Self::Lends => f.write_str("a boost is lent to whoever holds a lock"),
        }
    }
}

/// The words of all threads, shared by owner and keeper.
#[derive(Debug)]
pub(super) struct Slots(NonNull<Slot>);

// SAFETY: a mapping that lives as long as this value; its words are atomics.
unsafe impl Send for Slots {}
// SAFETY: as above.
unsafe impl Sync for Slots {}

impl Slots {
    const BYTES: usize = MOST_SLOTS * size_of::<Slot>();

    /// Makes room in a file, and maps it.
    pub(super) fn new(file: &File) -> io::Result<Self> {
        let length = OFFSET + Self::BYTES as u64;
        file.set_len(length)?;
        // Without room for a slot's page, the first write to it would kill this process. A file system that cannot set
        // room aside is ramfs.
        match fallocate(file, FallocateFlags::empty(), 0, length) {
            Ok(()) | Err(Errno::OPNOTSUPP) => {}
            Err(e) => return Err(e.into()),
        }
        Self::map(file)
    }

    /// Maps a file that has the room.
    pub(super) fn map(file: impl AsFd) -> io::Result<Self> {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice, of a file that is long enough.
        let map = unsafe { mmap(std::ptr::null_mut(), Self::BYTES, access, flags, file, OFFSET) }?;
        NonNull::new(map.cast()).map(Self).ok_or_else(|| io::ErrorKind::Other.into())
    }

    pub(super) fn get(&self, slot: usize) -> &Slot {
        assert!(slot < MOST_SLOTS, "slot {slot}");
        // SAFETY: inside of the mapping, aligned, of atomics.
        unsafe { self.0.add(slot).as_ref() }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, with this length.
        let _ = unsafe { rustix::mm::munmap(self.0.as_ptr().cast(), Self::BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::{BOOSTED, GRACE_NS, Ns, RAN_NS, Slot, Stall};
    use crate::keeper::LOOK;

    const LOOK_NS: Ns = LOOK.as_nanos() as Ns;

    fn boosted() -> Slot {
        let [state, due, acts, lends] = [BOOSTED, u64::MAX, 0, 0].map(AtomicU64::new);
        Slot { state, due, acts, lends }
    }

    #[test]
    fn an_owner_that_acts_late_stalls() {
        let (slot, mut since) = (boosted(), None);
        slot.due(Some(1_000));
        assert_eq!(slot.stall(1_000 + GRACE_NS, 0, &mut since), None);
        assert_eq!(slot.stall(1_001 + GRACE_NS, 0, &mut since), Some(Stall::Late(GRACE_NS + 1)));
    }

    #[test]
    fn what_was_due_of_an_earlier_boost_is_no_stall() {
        let (slot, mut since) = (boosted(), None);
        slot.due(Some(1_000));
        slot.rests();
        let now = 1_000 + 2 * GRACE_NS;
        slot.boosted(false, now);
        assert_eq!(slot.stall(now, 0, &mut since), None);
        slot.rests();
        slot.due(Some(now + 1));
        slot.boosted(false, now);
        assert!(slot.stall(now + 2 + GRACE_NS, 0, &mut since).is_some(), "it holds for this one");
    }

    #[test]
    fn an_owner_that_misses_a_run_stalls_by_the_next_look() {
        let (slot, mut since) = (boosted(), None);
        // It sleeps, and runs from shortly before a look on.
        assert_eq!(slot.stall(0, 0, &mut since), None);
        assert_eq!(slot.stall(LOOK_NS, RAN_NS, &mut since), None);
        let ran = RAN_NS + LOOK_NS;
        assert_eq!(slot.stall(2 * LOOK_NS, ran, &mut since), Some(Stall::Unheard(ran)));
    }

    #[test]
    fn short_runs_of_which_the_owner_hears_seldom_are_no_stall() {
        let (slot, mut since) = (boosted(), None);
        // An eighth of the time; the owner learns of it at each third look.
        for look in 1..1_000 {
            if look % 3 == 0 {
                slot.acts();
            }
            assert_eq!(slot.stall(look * LOOK_NS, look * LOOK_NS / 8, &mut since), None);
        }
        assert!(slot.stall(0, 2_000 * LOOK_NS, &mut since).is_some(), "without a word");
    }
}
