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
//! ```
//!
//! An owner that ends has restored all threads, and kills the keeper.

mod process;
mod slots;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};
use vcoop_threads::Baseline;

pub use self::process::{LOOK, run};
pub(crate) use self::slots::Slot;
pub use self::slots::{GRACE_NS, RAN_NS};
use self::slots::{MOST_SLOTS, Slots};
use crate::run_folder::RunFolder;

/// A keeper that lived for less has died at once. After `MOST_SHORT` such keepers in a row none is started.
const LIVES: Duration = Duration::from_secs(1);
const MOST_SHORT: u32 = 3;

/// A keeper that reads nothing of a full pipe for so long is no keeper. One on a busy host takes a while to begin.
const READS: Duration = Duration::from_secs(3);

/// Open files of the keeper for each thread in its care, and for everything else.
const FILES: usize = 4;
const OTHER_FILES: usize = 32;

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
    pub(crate) fn start(place: &RunFolder) -> io::Result<Self> {
        Self::start_as(itself, place)
    }

    /// As [`start`](Self::start), with another program.
    pub(crate) fn start_as(program: Program, place: &RunFolder) -> io::Result<Self> {
        let lock = place.lock();
        let slots = Slots::new(lock)?;
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
    pub(crate) fn again(&mut self, place: &RunFolder) -> io::Result<()> {
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
        self.write(&format!("hold {slot} {baseline}\n"))
    }

    /// Sends a message. A process that does not read any more, as one that somebody has stopped, is killed: it restores
    /// no thread, and another takes its place.
    fn write(&mut self, message: &str) -> io::Result<()> {
        // In one call: the pipe has no buffer on this side.
        let written = self.pipe.write_all(message.as_bytes());
        if written.as_ref().is_err_and(|why| why.kind() == io::ErrorKind::WouldBlock) {
            let _ = self.child.kill();
        }
        written
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
        self.slots.get(slot).clear();
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
        let _ = self.write(&format!("drop {slot}\n"));
    }

    /// Somebody ends the process.
    #[cfg(test)]
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it lives");
    }

    /// Somebody stops the process.
    #[cfg(test)]
    pub(crate) fn stop(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("it lives");
    }

    /// Everything has been restored: ends the process, even if somebody has stopped it.
    pub(crate) fn end(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(program: Program, lock: &File, journal: &Path) -> io::Result<(Child, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_write_timeout(Some(READS))?;
    // The pipe and the lock are its stdin and stdout: nothing else has to be handed down.
    let mut command = program(journal);
    command.stdin(OwnedFd::from(theirs)).stdout(OwnedFd::from(lock.try_clone()?));
    let child = command.stderr(Stdio::inherit()).spawn()?;
    Ok((child, ours))
}
