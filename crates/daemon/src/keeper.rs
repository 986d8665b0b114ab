//! The process that takes boosts back when their owner cannot.
//!
//! The owner starts it (`vcoop keeper`), sends it each thread before the first change, and keeps a few words for it in
//! shared memory. It acts in two cases:
//!
//! * **The owner has died**, by whatever signal: the pipe between the two ends. Every thread is restored to what it
//!   had.
//! * **The owner stalls.** Every [`LOOK`] the keeper checks the boosted threads. A thread whose boost should have ended
//!   [`GRACE_NS`] ago, or that has run for [`RAN_NS`] since the owner last acted on it, is restored.
//!
//! It also ends the boosts of a thread that *lends* them. A thread that sleeps is not charged for its boost. But if it
//! sleeps in a PI futex, the holder of that futex runs at its priority meanwhile, for as long as both want.
//!
//! So a boost that its owner does not end lasts for at most some 100 ms. A boost for life (`static`) ends when its
//! owner dies, but not when it stalls.
//!
//! The keeper holds the owner's lock as well, so no other process can own the threads before it is done. If both are
//! killed at once, the journal remains, for the next owner or for `vcoop restore`.
//!
//! ```text
//! hold SLOT thread TID START policy=... .     a thread that may be changed from now on
//! drop SLOT                                   it has what it had
//! end                                         the owner ends, and all threads have what they had
//! ```
#![allow(
    unsafe_code,
    reason = "maps the shared words, and changes what signals do to this process"
)]

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use vcoop_policy::thread::Policy;
use vcoop_threads::clock::monotonic;
use vcoop_threads::journal::{Journal, MOST_THREADS};
use vcoop_threads::{Attributes, Baseline, Captured, Ns, RunTimes, SleepsIn};

use crate::place::Place;

/// Time between two looks at boosted threads.
pub const LOOK: Duration = Duration::from_millis(40);
/// An owner that is late by this much has stalled.
pub const GRACE_NS: Ns = 45_000_000;
/// A boosted thread without an armed timer may run for this long: it was asleep, and its owner has missed its wake-up.
/// Owners are told of runs shorter than a boost only when these add up. Time in the kernel's context switches, which
/// the thread pays for, does not count towards that sum: it is most of the time of a thread whose runs take some 10 us.
pub const RAN_NS: Ns = 20_000_000;

/// A look that finds a thread lending its boost adds this; any other look takes one away. More than [`MOST_LENT`] is no
/// accident of a lock that is used now and then.
const LENT: u32 = 8;
const MOST_LENT: u32 = 2 * LENT;

/// Real-time priority of the keeper. It mostly sleeps, and must not wait when it wakes up.
const PRIORITY: u8 = 99;
/// A keeper that lived for less has died at once. After `MOST_SHORT` such keepers in a row none is started.
const LIVES: Duration = Duration::from_secs(1);
const MOST_SHORT: u32 = 3;

/// Most threads of an owner: as many as it can write down.
pub(crate) const MOST_SLOTS: usize = MOST_THREADS;
/// Open files of the keeper for each thread in its care, and for everything else.
const FILES: usize = 4;
const OTHER_FILES: usize = 32;
/// Longest message.
const MOST_LINE: usize = 4096;
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

    /// The thread has lent its boosts.
    #[cfg(test)]
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

    /// Whether the owner of a boosted thread, which has `ran` nanoseconds in all, has missed something. `since`: `acts`
    /// and CPU time as of the look at which `acts` last changed.
    fn stall(&self, now: Ns, ran: Ns, since: &mut Option<(u64, Ns)>) -> Option<Stall> {
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
enum Stall {
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
struct Slots(NonNull<Slot>);

// SAFETY: a mapping that lives as long as this value; its words are atomics.
unsafe impl Send for Slots {}
// SAFETY: as above.
unsafe impl Sync for Slots {}

impl Slots {
    const BYTES: usize = MOST_SLOTS * size_of::<Slot>();

    fn map(file: impl AsFd) -> io::Result<Self> {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice, of a file that is long enough.
        let map = unsafe { mmap(std::ptr::null_mut(), Self::BYTES, access, flags, file, OFFSET) }?;
        NonNull::new(map.cast()).map(Self).ok_or_else(|| io::ErrorKind::Other.into())
    }

    fn get(&self, slot: usize) -> &Slot {
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

/// The owner's end.
#[derive(Debug)]
pub(crate) struct Keeper {
    child: Child,
    pipe: UnixStream,
    slots: Slots,
    held: BTreeMap<usize, Baseline>,
    /// Slots without a thread.
    free: Vec<usize>,
    program: Program,
    /// When the process was started, and how many before it have died at once.
    began: Instant,
    short: u32,
}

/// Command to run for a journal's path.
pub(crate) type Program = fn(&Path) -> Command;

/// `vcoop keeper JOURNAL`, by this program.
fn itself(journal: &Path) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg("keeper").arg(journal);
    command
}

impl Keeper {
    /// Starts the process: this program, as keeper.
    ///
    /// # Errors
    ///
    /// The process does not start.
    pub(crate) fn start(place: &Place) -> io::Result<Self> {
        Self::start_as(itself, place)
    }

    /// As [`start`](Self::start), with another program.
    pub(crate) fn start_as(program: Program, place: &Place) -> io::Result<Self> {
        let lock = place.lock();
        let length = OFFSET + Slots::BYTES as u64;
        lock.set_len(length)?;
        // Without room for a slot's page, the first write to it would kill this process. A file system that cannot set
        // room aside is ramfs.
        match fallocate(lock, FallocateFlags::empty(), 0, length) {
            Ok(()) | Err(Errno::OPNOTSUPP) => {}
            Err(e) => return Err(e.into()),
        }
        let slots = Slots::map(lock)?;
        let (child, pipe) = spawn(program, lock, &place.journal_path())?;
        let (held, began) = (BTreeMap::new(), Instant::now());
        // It may open as many files as this process.
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let files = usize::try_from(files).unwrap_or(usize::MAX).saturating_sub(OTHER_FILES);
        let free = (0..MOST_SLOTS.min(files / FILES)).rev().collect();
        Ok(Self { child, pipe, slots, held, free, program, began, short: 0 })
    }

    /// Becomes readable when the process ends.
    pub(crate) fn ends(&self) -> &UnixStream {
        &self.pipe
    }

    /// Starts another process, because the last one has ended unasked.
    ///
    /// # Errors
    ///
    /// It does not start, or those before it have died at once.
    pub(crate) fn again(&mut self, place: &Place) -> io::Result<()> {
        let _ = self.child.wait();
        self.short = if self.began.elapsed() < LIVES { self.short + 1 } else { 0 };
        if self.short >= MOST_SHORT {
            return Err(io::Error::other("it ends as soon as it has begun"));
        }
        self.began = Instant::now();
        (self.child, self.pipe) = spawn(self.program, place.lock(), &place.journal_path())?;
        let held: Vec<_> = self.held.iter().map(|(slot, b)| (*slot, b.clone())).collect();
        held.iter().try_for_each(|(slot, baseline)| self.say(*slot, baseline))
    }

    fn say(&mut self, slot: usize, baseline: &Baseline) -> io::Result<()> {
        // In one call: the pipe has no buffer on this side.
        self.pipe.write_all(format!("hold {slot} {baseline}\n").as_bytes())
    }

    /// Puts a thread under the keeper's care. Returns the thread's slot.
    ///
    /// # Errors
    ///
    /// No slot is left, or the process has ended.
    pub(crate) fn hold(&mut self, baseline: &Baseline) -> io::Result<usize> {
        let full = || {
            let most = self.held.len();
            io::Error::other(format!(
                "it has {most} threads, and no room or open files for more (ulimit -Hn)"
            ))
        };
        let slot = *self.free.last().ok_or_else(full)?;
        let words = self.slots.get(slot);
        words.rests();
        words.due(None);
        words.lends.store(0, Ordering::Release);
        self.hold_anew(slot, baseline)?;
        self.free.pop();
        Ok(slot)
    }

    /// Sends a new baseline of a thread in its care.
    ///
    /// # Errors
    ///
    /// The process has ended.
    pub(crate) fn hold_anew(&mut self, slot: usize, baseline: &Baseline) -> io::Result<()> {
        self.say(slot, baseline)?;
        self.held.insert(slot, baseline.clone());
        Ok(())
    }

    /// The words of a thread.
    pub(crate) fn slot(&self, slot: usize) -> &Slot {
        self.slots.get(slot)
    }

    /// Ends the care of a thread.
    pub(crate) fn drop(&mut self, slot: usize) {
        self.slots.get(slot).rests();
        self.free.extend(self.held.remove(&slot).map(|_| slot));
        // A process that has ended restores no thread.
        let _ = self.pipe.write_all(format!("drop {slot}\n").as_bytes());
    }

    /// Somebody ends the process.
    #[cfg(test)]
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it lives");
    }

    /// Everything has been restored: ends the process.
    pub(crate) fn end(mut self) {
        let _ = self.pipe.write_all(b"end\n");
        let _ = self.pipe.shutdown(std::net::Shutdown::Both);
        let _ = self.child.wait();
    }
}

fn spawn(program: Program, lock: &File, journal: &Path) -> io::Result<(Child, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    // The pipe and the lock are its stdin and stdout: nothing else has to be handed down.
    let mut command = program(journal);
    command.stdin(OwnedFd::from(theirs)).stdout(OwnedFd::from(lock.try_clone()?));
    let child = command.stderr(Stdio::inherit()).spawn()?;
    Ok((child, ours))
}

/// A thread that the keeper takes care of.
#[derive(Debug)]
struct Held {
    captured: Captured,
    times: Option<RunTimes>,
    sleeps_in: Option<SleepsIn>,
    lending: Lending,
    /// `acts`, and CPU time when that was first seen, if the thread was boosted at each look since.
    since: Option<(u64, Ns)>,
}

impl Held {
    fn new(
        captured: Captured,
        times: io::Result<RunTimes>,
        sleeps_in: io::Result<SleepsIn>,
    ) -> Self {
        let (times, sleeps_in) = (times.ok(), sleeps_in.ok());
        Self { captured, times, sleeps_in, lending: Lending::default(), since: None }
    }
}

/// Whether a boosted thread lends its boost.
#[derive(Clone, Copy, Debug, Default)]
struct Lending {
    /// How much it has done so lately: see [`LENT`].
    lent: u32,
    /// Its CPU time at the last look, if it did not lend then.
    without: Option<Ns>,
}

impl Lending {
    /// A look at a thread that has `ran` so long in all; `None`: not known. Returns whether it lends too often.
    ///
    /// `lends` asks the kernel, which takes most of the time of a look. A thread that has not run since it did not lend
    /// has not gone to sleep in a lock. The opposite does not hold: the time of a thread that runs may be old.
    fn look(&mut self, ran: Option<Ns>, lends: impl FnOnce() -> bool) -> bool {
        let lends = (ran.is_none() || self.without != ran) && lends();
        // Where the kernel does not count, it is 0.
        self.without = ran.filter(|ran| !lends && *ran > 0);
        self.lent = if lends { self.lent + LENT } else { self.lent.saturating_sub(1) };
        self.lent > MOST_LENT
    }
}

/// Writes a line to stderr.
macro_rules! say {
    ($($line:tt)*) => { write_line(io::stderr(), format_args!($($line)*)) };
}

/// Writes a line if that is possible at once. Neither a reader that has gone nor one that does not read may keep the
/// keeper from restoring threads.
fn write_line(to: impl AsFd, line: fmt::Arguments<'_>) {
    let mut polled = [PollFd::new(&to, PollFlags::OUT)];
    let ready = poll(&mut polled, Some(&rustix::time::Timespec::default()));
    if ready.is_ok() && polled[0].revents().contains(PollFlags::OUT) {
        let _ = rustix::io::write(&to, format!("vcoop keeper: {line}\n").as_bytes());
    }
}

/// The keeper's main function: `vcoop keeper JOURNAL`, with a pipe as stdin and the lock as stdout.
///
/// # Errors
///
/// The process was not started by an owner.
pub fn run(journal: &Path) -> io::Result<()> {
    let slots = Slots::map(io::stdout())?;
    outlive();
    serve(io::stdin(), &slots, journal)
}

/// Serves the owner until it has ended or died.
fn serve(pipe: impl AsFd, slots: &Slots, journal: &Path) -> io::Result<()> {
    let mut held: BTreeMap<usize, Held> = BTreeMap::new();
    let mut bytes = Vec::new();
    let mut next_look = Instant::now() + LOOK;
    loop {
        let left = next_look.saturating_duration_since(Instant::now());
        let timeout = rustix::time::Timespec::try_from(left).unwrap_or_default();
        let timeout = (!held.is_empty()).then_some(&timeout);
        let ready = match poll(&mut [PollFd::new(&pipe, PollFlags::IN)], timeout) {
            Ok(ready) => ready > 0,
            Err(Errno::INTR) => false,
            Err(e) => return Err(e.into()),
        };
        if ready {
            let goes_on = read(&pipe, &mut bytes);
            while let Some(end) = bytes.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = bytes.drain(..=end).collect();
                if listen(&mut held, &String::from_utf8_lossy(&line)) {
                    return Ok(());
                }
            }
            if !goes_on {
                restore_all(held, journal);
                return Ok(());
            }
        }
        if Instant::now() >= next_look {
            look(slots, &mut held);
            next_look = Instant::now() + LOOK;
        }
    }
}

/// Reads some of the owner's messages. Returns whether the owner lives. Reads the pipe itself: `poll` would not report
/// what a buffer of stdin held back.
fn read(pipe: impl AsFd, bytes: &mut Vec<u8>) -> bool {
    let mut some = [0; MOST_LINE];
    match rustix::io::read(pipe, &mut some) {
        Ok(n) => {
            bytes.extend_from_slice(&some[..n]);
            n > 0
        }
        // Nothing was read; the data is still there.
        Err(Errno::INTR | Errno::AGAIN) => true,
        // An owner that was killed resets the connection.
        Err(_) => false,
    }
}

/// Makes the keeper outlive its owner: it ignores the terminal's signals and those of a careless stop, it is not paged
/// out, and the OOM killer takes other processes first.
fn outlive() {
    let _ = rustix::process::setsid();
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGPIPE] {
        // SAFETY: ignoring a signal runs no code of ours.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    // SAFETY: plain numbers. What fails here only makes the keeper less certain to be in time.
    unsafe { libc::mlockall(libc::MCL_CURRENT) };
    let _ = fs::write("/proc/self/oom_score_adj", "-1000");
    let _ = Attributes::from_policy(&Policy::Fifo(PRIORITY)).set(0);
}

/// Handles a message. Returns whether the owner has ended.
fn listen(held: &mut BTreeMap<usize, Held>, line: &str) -> bool {
    let (verb, rest) = line.trim_end().split_once(' ').unwrap_or((line.trim_end(), ""));
    let (slot, thread) = rest.split_once(' ').unwrap_or((rest, ""));
    match (verb, slot.parse::<usize>()) {
        ("end", _) => return true,
        ("drop", Ok(slot)) => _ = held.remove(&slot),
        ("hold", Ok(slot)) if slot < MOST_SLOTS => {
            match Baseline::parse(thread).map(Captured::again) {
                Some(Ok(Some(captured))) => {
                    let tid = captured.baseline().tid;
                    let new = Held::new(captured, RunTimes::open(tid), SleepsIn::open(tid));
                    // The same thread with a new baseline: its process may change that at any time.
                    let lending = held.get(&slot).map_or(new.lending, |held| held.lending);
                    held.insert(slot, Held { lending, ..new });
                }
                // It has ended.
                Some(Ok(None)) => {}
                Some(Err(why)) => say!("not watched: {thread}: {why}"),
                None => say!("not understood: {line:?}"),
            }
        }
        _ => say!("not understood: {line:?}"),
    }
    false
}

/// Takes back the boosts that a stalled owner should have ended.
fn look(slots: &Slots, held: &mut BTreeMap<usize, Held>) {
    let now = monotonic();
    for (slot, thread) in held.iter_mut() {
        let words = slots.get(*slot);
        // Mostly no vCPU is boosted. A look then reads only a few words.
        if words.state.load(Ordering::Acquire) != BOOSTED {
            thread.since = None;
            continue;
        }
        let ran = thread.times.as_ref().map(|times| times.read().ran_ns);
        let stall = words.stall(now, ran.unwrap_or(0), &mut thread.since);
        let sleeps_in = thread.sleeps_in.as_ref();
        let lends = || sleeps_in.is_some_and(SleepsIn::lends);
        let stall = stall.or_else(|| thread.lending.look(ran, lends).then_some(Stall::Lends));
        if let Some(stall) = stall {
            if stall == Stall::Lends {
                words.lends.store(1, Ordering::Release);
            }
            // The owner may have woken up: what it stores from now on stays.
            let _ =
                words.state.compare_exchange(BOOSTED, REST, Ordering::AcqRel, Ordering::Relaxed);
            let tid = thread.captured.baseline().tid;
            let done = match thread.captured.restore() {
                Ok(_) => "it is not boosted any more".to_owned(),
                Err(why) => why.to_string(),
            };
            say!("{stall}; thread {tid}: {done}");
        }
    }
}

/// The owner is gone: restores all threads.
fn restore_all(held: BTreeMap<usize, Held>, journal: &Path) {
    let mut whole = true;
    for thread in held.values() {
        if let Err(why) = thread.captured.restore() {
            whole = false;
            say!("{why}");
        }
    }
    say!("the owner has died; {} threads have what they had", held.len());
    // Their files may be all that this process can open, and the journal's threads want some, too.
    drop(held);
    // The journal may have threads that the pipe did not tell of. Mostly there are none.
    match Journal::read(journal) {
        Ok(mut left) => {
            let (outcomes, written) = left.restore_all();
            if whole && written.is_ok() && outcomes.iter().all(|(_, outcome)| outcome.is_ok()) {
                let _ = left.remove();
            }
        }
        Err(why) => say!("{why}"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::path::Path;
    use std::sync::atomic::{AtomicU32, AtomicU64};
    use std::sync::{Arc, mpsc};
    use std::thread;
    use std::time::Duration;

    use vcoop_policy::thread::Policy;
    use vcoop_testing::{Skip, until};
    use vcoop_threads::{Attributes, Captured, RunTimes, SleepsIn, gettid};

    use super::{
        BOOSTED, GRACE_NS, Held, LOOK, Lending, MOST_LINE, Ns, OFFSET, RAN_NS, Slot, Slots, Stall,
        look, serve, write_line,
    };

    const LOOK_NS: Ns = LOOK.as_nanos() as Ns;

    fn boosted() -> Slot {
        let [state, due, acts, lends] = [BOOSTED, u64::MAX, 0, 0].map(AtomicU64::new);
        Slot { state, due, acts, lends }
    }

    #[test]
    fn who_does_not_read_what_it_says_does_not_stop_it() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        write_line(&ours, format_args!("{}", 7));
        let mut text = [0; 16];
        theirs.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"vcoop keeper: 7\n");
        ours.set_nonblocking(true).unwrap();
        while (&ours).write(&[b'x'; 4096]).is_ok() {}
        ours.set_nonblocking(false).unwrap();
        write_line(&ours, format_args!("nobody reads"));
        drop(theirs);
        write_line(&ours, format_args!("nobody is there"));
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

    /// `futex(2)` with an operation on a word.
    fn futex(word: &AtomicU32, operation: libc::c_int) {
        // SAFETY: the word outlives the call, which has no other pointer.
        let rc = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, 0, 0, 0, 0) };
        assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
    }

    /// Whether a thread runs as a real-time one, by whatever right: field 18 of its `stat`.
    fn is_urgent(tid: i32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap();
        let priority = stat.rsplit(')').next().unwrap().split_ascii_whitespace().nth(15).unwrap();
        priority.parse::<i32>().unwrap() < 0
    }

    #[test]
    fn a_boost_that_a_sleeping_thread_lends_is_taken_back_for_good() {
        let word = Arc::new(AtomicU32::new(0));
        let (tell, told) = mpsc::channel();
        let (go, may_go) = mpsc::channel::<()>();
        let (lock, say) = (word.clone(), tell.clone());
        let holder = thread::spawn(move || {
            futex(&lock, libc::FUTEX_LOCK_PI);
            say.send(gettid()).unwrap();
            let _ = may_go.recv();
            futex(&lock, libc::FUTEX_UNLOCK_PI);
        });
        let held_by = told.recv().unwrap();
        let vcpu = thread::spawn(move || {
            tell.send(gettid()).unwrap();
            futex(&word, libc::FUTEX_LOCK_PI);
            futex(&word, libc::FUTEX_UNLOCK_PI);
        });
        let tid = told.recv().unwrap();
        let captured = Captured::of(tid).unwrap().without_cpus();
        until("it sleeps", || captured.is_asleep());
        let was = Attributes::get(tid).unwrap();
        let file = tempfile::tempfile().unwrap();
        file.set_len(OFFSET + Slots::BYTES as u64).unwrap();
        let slots = Slots::map(&file).unwrap();
        let ended = || {
            drop(go);
            holder.join().unwrap();
            vcpu.join().unwrap();
        };
        if let Err(why) = Attributes::from_policy(&Policy::Rr(8)).set(tid) {
            ended();
            return Skip::because(why).tell();
        }
        assert!(is_urgent(held_by), "it has what the other one was lent");
        slots.get(0).due(None);
        slots.get(0).boosted(false, 0);
        let held = Held::new(captured, RunTimes::open(tid), SleepsIn::open(tid));
        let mut held = BTreeMap::from([(0, held)]);
        let looks = (1..=25).find(|_| {
            look(&slots, &mut held);
            !is_urgent(held_by)
        });
        let has = Attributes::get(tid).unwrap();
        ended();
        assert_eq!((looks, has), (Some(3), was));
        assert!(slots.get(0).lends(), "who owns it is told");
    }

    #[test]
    fn the_kernel_is_not_asked_again_about_a_thread_that_has_not_run_since() {
        let (mut lending, mut asked) = (Lending::default(), 0);
        let mut look = |ran, lends| {
            let before = asked;
            let too_often = lending.look(ran, || {
                asked += 1;
                lends
            });
            (asked > before, too_often)
        };
        assert_eq!(look(Some(5), false), (true, false));
        assert_eq!([(); 20].map(|()| look(Some(5), false)), [(false, false); 20]);
        assert_eq!(look(Some(6), true), (true, false));
        // It may run by now.
        assert_eq!(look(Some(6), false), (true, false));
        assert_eq!([(); 2].map(|()| look(Some(0), false)), [(true, false); 2], "not counted");
        assert_eq!([(); 2].map(|()| look(None, true)), [(true, false), (true, true)]);
    }

    #[test]
    fn a_new_baseline_is_no_excuse() {
        let me = Captured::of(gettid()).unwrap();
        let line = format!("hold 3 {}\n", me.baseline());
        let mut held = BTreeMap::new();
        super::listen(&mut held, &line);
        held.get_mut(&3).unwrap().lending.lent = 7;
        super::listen(&mut held, &line);
        assert_eq!(held[&3].lending.lent, 7);
        super::listen(&mut held, "drop 3\n");
        super::listen(&mut held, &line);
        assert_eq!(held[&3].lending.lent, 0);
    }

    #[test]
    fn a_backlog_longer_than_one_read_is_heard_to_its_end() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(OFFSET + Slots::BYTES as u64).unwrap();
        let slots = Slots::map(&file).unwrap();
        let (mut owner, pipe) = UnixStream::pair().unwrap();
        let me = Captured::of(gettid()).unwrap();
        let (mut all, mut slot) = (String::new(), 0);
        while all.len() < MOST_LINE + 1_000 {
            all += &format!("hold {slot} {}\n", me.baseline());
            slot += 1;
        }
        all += "end\n";
        owner.write_all(all.as_bytes()).unwrap();
        let (tell, ended) = mpsc::channel();
        thread::spawn(move || tell.send(serve(pipe, &slots, Path::new("/nowhere"))));
        // The owner goes on, so only that line reports the end.
        ended.recv_timeout(Duration::from_secs(10)).unwrap().unwrap();
    }
}
