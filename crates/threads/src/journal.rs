//! What threads had, written down for a later process.
//!
//! Whoever changes the threads of others writes first what each had. If it dies, another process
//! reads the file and gives everything back.
//!
//! The file holds the threads that are changed at the moment, a line each, and is replaced whole: a
//! reader finds either all of a record or none of it. It is not synced to a disk. It has to survive
//! its writer, not the kernel, with which the threads end as well.
//!
//! ```text
//! vcoop-journal 1 boot=2ca0…c1 pidns=4026531836
//! thread TID START policy=0 flags=0 priority=0 runtime=0 deadline=0 period=0 util=0-1024 nice=0 cpus=0-3,7 .
//! ```
#![allow(unsafe_code, reason = "geteuid has no safe wrapper")]

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::affinity::{cpu_list, parse_cpu_list};
use crate::attributes::Attributes;
use crate::captured::{Baseline, Captured, NotRestored, Restored};
use crate::namespace::pid_namespace;

/// Name of the file.
const NAME: &str = "threads.journal";
/// What it begins with; the number is the format's.
const MAGIC: &str = "vcoop-journal 1 ";
/// Most threads of a journal: more vCPUs than a host has VMs with.
const MOST_THREADS: usize = 16_384;
/// Most bytes that are read. A line has some 150 and the CPUs.
const MOST_BYTES: u64 = 16 << 20;

/// In place of the CPUs of a thread whose CPUs are not to be given back.
const NO_CPUS: &str = "any";

/// Why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The file is not a journal, or one of a later version.
    #[error("{0} is not a journal that this version reads")]
    Unknown(PathBuf),
    /// Others than this user can write the file: nothing in it is to be believed.
    #[error("{0} can be written by other users; it is not used")]
    Untrusted(PathBuf),
    /// The file was written in another PID namespace, where the numbers are those of other threads.
    #[error("{0} is of another PID namespace; read it there")]
    Elsewhere(PathBuf),
    /// The journal holds as many threads as it can.
    #[error("the journal is full: {MOST_THREADS} threads")]
    Full,
}

/// Where the numbers in a journal have their meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Origin {
    /// `/proc/sys/kernel/random/boot_id`: numbers and start times are of one boot.
    boot: String,
    /// Inode of the PID namespace.
    pidns: u64,
}

/// What a journal's file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    origin: Origin,
    /// The threads, by number.
    pub threads: BTreeMap<i32, Baseline>,
    /// Lines that are no thread.
    pub damaged: usize,
}

/// Threads that are changed, and what they had. See the [module](self).
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    contents: Contents,
}

/// How one thread of a journal fared.
pub type Outcome = Result<Restored, NotRestored>;

impl Journal {
    /// Starts an empty one in a directory.
    ///
    /// # Errors
    ///
    /// [`JournalError::Io`], with [`AlreadyExists`](io::ErrorKind::AlreadyExists) if there is one: it has
    /// to be [read](Self::read) and restored first.
    pub fn create(dir: &Path) -> Result<Self, JournalError> {
        let path = dir.join(NAME);
        let origin = Origin::here().map_err(io_error(&path))?;
        let contents = Contents { origin, threads: BTreeMap::new(), damaged: 0 };
        let journal = Self { path, contents };
        // Whole from its first moment, whenever this process is killed, and never over another one.
        let new = journal.written()?;
        let linked = fs::hard_link(&new, &journal.path);
        let removed = fs::remove_file(&new);
        linked.and(removed).map_err(io_error(&journal.path))?;
        Ok(journal)
    }

    /// Reads one that another process has left. Of an earlier boot it is empty: its threads ended then.
    ///
    /// # Errors
    ///
    /// [`JournalError`].
    pub fn read(path: &Path) -> Result<Self, JournalError> {
        let at = io_error(path);
        let open = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(path);
        let read = open.and_then(|file| {
            let meta = file.metadata()?;
            let mut bytes = Vec::new();
            file.take(MOST_BYTES).read_to_end(&mut bytes)?;
            Ok((meta, bytes, Origin::here()?))
        });
        let (meta, bytes, here) = read.map_err(at)?;
        // SAFETY: no arguments, cannot fail.
        if meta.uid() != unsafe { libc::geteuid() } || meta.mode() & 0o022 != 0 {
            return Err(JournalError::Untrusted(path.to_owned()));
        }
        let unknown = || JournalError::Unknown(path.to_owned());
        let mut contents = Contents::parse(&bytes).ok_or_else(unknown)?;
        if contents.origin.boot != here.boot {
            contents = Contents { origin: here, threads: BTreeMap::new(), damaged: 0 };
        } else if contents.origin != here {
            return Err(JournalError::Elsewhere(path.to_owned()));
        }
        Ok(Self { path: path.to_owned(), contents })
    }

    /// Where a journal in this directory is.
    pub fn path_in(dir: &Path) -> PathBuf {
        dir.join(NAME)
    }

    /// The threads in it, and what of the file could not be read.
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// Writes a thread down; it may be changed once this has returned. What is known of it already
    /// stays: that is from before the first change.
    ///
    /// # Errors
    ///
    /// [`JournalError::Io`], [`JournalError::Full`]. The thread is not in the journal then.
    pub fn record(&mut self, captured: &Captured) -> Result<(), JournalError> {
        let new = captured.baseline();
        let threads = &mut self.contents.threads;
        // Of the same number but another start: a thread that has ended.
        if threads.get(&new.tid).is_some_and(|old| old.start == new.start) {
            return Ok(());
        }
        if threads.len() >= MOST_THREADS {
            return Err(JournalError::Full);
        }
        threads.insert(new.tid, new.clone());
        let written = self.write();
        if written.is_err() {
            self.contents.threads.remove(&new.tid);
        }
        written
    }

    /// A thread that is in it has another baseline: somebody else has changed it.
    ///
    /// # Errors
    ///
    /// [`JournalError::Io`]: the file still has the earlier one.
    pub fn rewrite(&mut self, baseline: &Baseline) -> Result<(), JournalError> {
        self.contents.threads.insert(baseline.tid, baseline.clone());
        self.write()
    }

    /// Takes out a thread that has its baseline again.
    ///
    /// # Errors
    ///
    /// [`JournalError::Io`]: the file still has it, which does no harm.
    pub fn forget(&mut self, captured: &Captured) -> Result<(), JournalError> {
        self.contents.threads.remove(&captured.baseline().tid);
        self.write()
    }

    /// Gives every thread back what it had. Those that have it, or have ended, are taken out of the
    /// journal; the others can be tried again.
    ///
    /// # Errors
    ///
    /// [`JournalError::Io`]: the file was not brought up to date. All threads were tried all the same.
    pub fn restore_all(&mut self) -> (Vec<(i32, Outcome)>, Result<(), JournalError>) {
        let mut outcomes = Vec::with_capacity(self.contents.threads.len());
        self.contents.threads.retain(|tid, thread| {
            let outcome = match Captured::again(thread.clone()) {
                Ok(Some(captured)) => captured.restore(),
                Ok(None) => Ok(Restored::Gone),
                // It may live, changed: it stays written down.
                Err(why) => Err(NotRestored { tid: *tid, attributes: Some(why), affinity: None }),
            };
            let left = outcome.is_err();
            outcomes.push((*tid, outcome));
            left
        });
        let written = self.write();
        (outcomes, written)
    }

    /// Removes the file.
    ///
    /// # Errors
    ///
    /// [`JournalError::Io`].
    pub fn remove(self) -> Result<(), JournalError> {
        fs::remove_file(&self.path).map_err(io_error(&self.path))
    }

    /// Replaces the file.
    fn write(&self) -> Result<(), JournalError> {
        fs::rename(self.written()?, &self.path).map_err(io_error(&self.path))
    }

    /// Writes it to a file beside its own.
    fn written(&self) -> Result<PathBuf, JournalError> {
        let text = self.contents.to_string();
        if text.len() as u64 > MOST_BYTES {
            return Err(JournalError::Full);
        }
        let new = self.path.with_extension("journal.new");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let file = options.open(&new);
        file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(io_error(&self.path))?;
        Ok(new)
    }
}

fn io_error(path: &Path) -> impl Fn(io::Error) -> JournalError + use<> {
    let path = path.to_owned();
    move |source| JournalError::Io { path: path.clone(), source }
}

impl Origin {
    fn here() -> io::Result<Self> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
        Ok(Self { boot, pidns: pid_namespace()? })
    }
}

impl Contents {
    /// Of a file's bytes, whoever wrote them; `None` if they do not begin as a journal of this version
    /// does. A line that is no thread is counted and left out.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut lines = bytes.split(|b| *b == b'\n');
        let first = str::from_utf8(lines.next()?).ok()?.strip_prefix(MAGIC)?;
        let (boot, pidns) = first.split_once(' ')?;
        let origin = Origin {
            boot: boot.strip_prefix("boot=").filter(|id| !id.is_empty())?.to_owned(),
            pidns: pidns.strip_prefix("pidns=")?.parse().ok()?,
        };
        let mut contents = Self { origin, threads: BTreeMap::new(), damaged: 0 };
        for line in lines.filter(|line| !line.is_empty()) {
            let thread = str::from_utf8(line).ok().and_then(Baseline::parse);
            let threads = &mut contents.threads;
            match thread.filter(|t| threads.len() < MOST_THREADS && !threads.contains_key(&t.tid)) {
                Some(thread) => _ = threads.insert(thread.tid, thread),
                None => contents.damaged += 1,
            }
        }
        Some(contents)
    }
}

impl fmt::Display for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Origin { boot, pidns } = &self.origin;
        writeln!(f, "{MAGIC}boot={boot} pidns={pidns}")?;
        for thread in self.threads.values() {
            writeln!(f, "{thread}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Baseline {
    /// A line of a journal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tid, start, attributes: a, nice, cpus } = self;
        write!(
            f,
            "thread {tid} {start} policy={} flags={} priority={} runtime={} deadline={} period={} \
             util={}-{} nice={nice} cpus={} .",
            a.policy,
            a.flags,
            a.priority,
            a.runtime,
            a.deadline,
            a.period,
            a.util_min,
            a.util_max,
            if cpus.is_empty() { NO_CPUS.to_owned() } else { cpu_list(cpus) },
        )
    }
}

impl Baseline {
    /// What a line of a journal says, if it is one; whoever wrote it.
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let mut next = |name: &str| words.next()?.strip_prefix(name);
        next("thread").filter(|rest| rest.is_empty())?;
        let tid = number(next("")?).filter(|tid: &i32| *tid > 0)?;
        let start = number(next("")?)?;
        let (policy, flags) = (number(next("policy=")?)?, number(next("flags=")?)?);
        let (priority, runtime) = (number(next("priority=")?)?, number(next("runtime=")?)?);
        let (deadline, period) = (number(next("deadline=")?)?, number(next("period=")?)?);
        let (util_min, util_max) = next("util=")?.split_once('-')?;
        let (util_min, util_max) = (number(util_min)?, number(util_max)?);
        let nice = number(next("nice=")?).filter(|nice: &i32| (-20..=19).contains(nice))?;
        let cpus = cpus(next("cpus=")?)?;
        // A line without its end was cut off, and its last number may be a part of one.
        next(".").filter(|rest| rest.is_empty())?;
        if words.next().is_some() {
            return None;
        }
        let plain = Attributes::of(0, 0, 0, 0);
        let mut attributes =
            Attributes { policy, flags, priority, runtime, util_min, util_max, ..plain };
        (attributes.deadline, attributes.period) = (deadline, period);
        // The kernel names it with the attributes where it is in force.
        attributes.nice = if attributes.is_fair() { nice } else { 0 };
        Some(Baseline { tid, start, attributes, nice, cpus })
    }
}

/// A number as the kernel and `Display` write it.
fn number<T: FromStr + fmt::Display>(word: &str) -> Option<T> {
    word.parse().ok().filter(|n: &T| n.to_string() == word)
}

/// The CPUs of a [`cpu_list`], in the one form that it writes: at least one; or none at all.
fn cpus(list: &str) -> Option<Vec<u32>> {
    if list == NO_CPUS {
        return Some(Vec::new());
    }
    let cpus: Vec<u32> = parse_cpu_list(list)?.into_iter().collect();
    (!cpus.is_empty() && cpu_list(&cpus) == list).then_some(cpus)
}

#[cfg(test)]
mod tests;
