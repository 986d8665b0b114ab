//! Baselines of changed threads, in a file for a later process.
//!
//! A process that changes threads of others first writes down what each had. If it dies, another process reads the file
//! and restores the threads.
//!
//! The file holds the threads that are changed at the moment, a line each, and is replaced as a whole: a reader finds a
//! complete version. It is not synced to disk: it has to survive its writer, not the kernel, with which the threads end
//! as well.
//!
//! ```text
//! vcoop-journal 1 boot=2ca0…c1 pidns=4026531836 boottime=0,0
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
use crate::namespace::{boot_offset, pid_namespace};

/// Name of the file.
const NAME: &str = "threads.journal";
/// First bytes of the file, with the version of the format.
const MAGIC: &str = "vcoop-journal 1 ";
/// Most threads of a journal: more than the vCPUs of any host.
pub const MOST_THREADS: usize = 16_384;
/// Most bytes that are read. A line has some 150 bytes beside the CPUs.
const MOST_BYTES: u64 = 16 << 20;

/// Stands for the CPUs of a thread whose CPUs are not captured.
const NO_CPUS: &str = "any";

/// Why a journal cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The file is not a journal, or one of a later version.
    #[error("{0} is not a journal that this version reads")]
    Unknown(PathBuf),
    /// Other users can write the file: its content cannot be trusted.
    #[error("{0} can be written by other users; it is not used")]
    Untrusted(PathBuf),
    /// The file was written in another PID namespace, where thread numbers have another meaning, or in a time namespace
    /// where start times have.
    #[error("{0} is of another PID or time namespace; read it there")]
    Elsewhere(PathBuf),
    /// The journal holds as many threads as it can.
    #[error("the journal is full: {MOST_THREADS} threads")]
    Full,
}

/// Where the thread numbers of a journal are valid.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Origin {
    /// `/proc/sys/kernel/random/boot_id`: numbers and start times are valid for one boot.
    boot: String,
    /// Inode of the PID namespace.
    pidns: u64,
    /// What the time namespace adds to start times.
    boottime: String,
}

/// In the initial time namespace, and in files from before this was written down.
const NO_OFFSET: &str = "0,0";

/// Content of a journal's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    origin: Origin,
    /// The threads, by number.
    pub threads: BTreeMap<i32, Baseline>,
    /// Lines that could not be parsed.
    pub damaged: usize,
}

/// Threads that are changed, and their baselines. See the [module](self).
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    contents: Contents,
    /// Threads were forgotten or got another baseline since the file was written.
    stale: bool,
}

/// Result of restoring one thread of a journal.
pub type Outcome = Result<Restored, NotRestored>;

impl Journal {
    /// Creates an empty journal in a directory.
    ///
    /// # Errors
    ///
    /// [`JournalError::Io`], with [`AlreadyExists`](io::ErrorKind::AlreadyExists) if the directory has a journal: read
    /// and restore that one first.
    pub fn create(dir: &Path) -> Result<Self, JournalError> {
        let path = dir.join(NAME);
        let origin = Origin::here().map_err(io_error(&path))?;
        let contents = Contents { origin, threads: BTreeMap::new(), damaged: 0 };
        let journal = Self { path, contents, stale: false };
        // Whole from its first moment, whenever this process is killed, and never over another one.
        let new = journal.written()?;
        let linked = fs::hard_link(&new, &journal.path);
        let removed = fs::remove_file(&new);
        linked.and(removed).map_err(io_error(&journal.path))?;
        Ok(journal)
    }

    /// Reads the journal of another process. A journal of an earlier boot counts as empty: its threads ended then.
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
        if meta.uid() != rustix::process::geteuid().as_raw() || meta.mode() & 0o022 != 0 {
            return Err(JournalError::Untrusted(path.to_owned()));
        }
        let unknown = || JournalError::Unknown(path.to_owned());
        let mut contents = Contents::parse(&bytes).ok_or_else(unknown)?;
        if contents.origin.boot != here.boot {
            contents = Contents { origin: here, threads: BTreeMap::new(), damaged: 0 };
        } else if contents.origin != here {
            return Err(JournalError::Elsewhere(path.to_owned()));
        }
        Ok(Self { path: path.to_owned(), contents, stale: false })
    }

    /// Path of the journal in a directory.
    pub fn path_in(dir: &Path) -> PathBuf {
        dir.join(NAME)
    }

    /// The threads in the journal, and how much of the file could not be parsed.
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// Writes threads down, all in one write, because each write is of the whole journal; they may be changed once this
    /// has returned. A baseline that is already in the journal is kept: it is from before the first change. Returns the
    /// threads that were not in it.
    ///
    /// # Errors
    ///
    /// [`JournalError::Io`], [`JournalError::Full`]. None of those threads is in the journal then.
    pub fn record<'a>(
        &mut self,
        captured: impl IntoIterator<Item = &'a Captured>,
    ) -> Result<Vec<i32>, JournalError> {
        let threads = &mut self.contents.threads;
        let mut new = Vec::new();
        for thread in captured.into_iter().map(Captured::baseline) {
            // Of the same number but another start: a thread that has ended.
            if threads.get(&thread.tid).is_none_or(|old| old.start != thread.start) {
                threads.insert(thread.tid, thread.clone());
                new.push(thread.tid);
            }
        }
        let written = match threads.len() {
            _ if new.is_empty() => Ok(()),
            ..=MOST_THREADS => self.write(),
            _ => Err(JournalError::Full),
        };
        if written.is_err() {
            new.iter().for_each(|tid| _ = self.contents.threads.remove(tid));
        }
        written.map(|()| new)
    }

    /// Replaces the baseline of a thread in the journal, after a change from outside. The file has the earlier one
    /// until the next write, or [`settle`](Self::settle).
    pub fn replace(&mut self, baseline: &Baseline) {
        self.contents.threads.insert(baseline.tid, baseline.clone());
        self.stale = true;
    }

    /// Removes a thread that has its baseline again. The file has it until the next write, or
    /// [`settle`](Self::settle).
    pub fn forget(&mut self, tid: i32) {
        self.stale |= self.contents.threads.remove(&tid).is_some();
    }

    /// Writes the file if threads were forgotten or got another baseline since the last write.
    ///
    /// # Errors
    ///
    /// [`JournalError::Io`]: the file still has what they had. For those that were forgotten this does no harm.
    pub fn settle(&mut self) -> Result<(), JournalError> {
        if self.stale { self.write() } else { Ok(()) }
    }

    /// Restores every thread. Threads that were restored or have ended are removed from the journal; the others can be
    /// tried again. Without others the file stays as it is, for [`remove`](Self::remove), which needs no room on its
    /// file system.
    ///
    /// # Errors
    ///
    /// [`JournalError::Io`]: the file was not updated. All threads were tried all the same.
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
        let written = if self.contents.threads.is_empty() { Ok(()) } else { self.write() };
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
    fn write(&mut self) -> Result<(), JournalError> {
        fs::rename(self.written()?, &self.path).map_err(io_error(&self.path))?;
        self.stale = false;
        Ok(())
    }

    /// Writes a temporary file beside the journal's.
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
        Ok(Self { boot, pidns: pid_namespace()?, boottime: boot_offset() })
    }
}

impl Contents {
    /// Parses a file's bytes, which are not trusted; `None` if they do not begin like a journal of this version. A line
    /// that cannot be parsed is counted and left out.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut lines = bytes.split(|b| *b == b'\n');
        let first = str::from_utf8(lines.next()?).ok()?.strip_prefix(MAGIC)?;
        let (boot, pidns) = first.split_once(' ')?;
        let (pidns, boottime) = pidns.split_once(" boottime=").unwrap_or((pidns, NO_OFFSET));
        let origin = Origin {
            boot: boot.strip_prefix("boot=").filter(|id| !id.is_empty())?.to_owned(),
            pidns: pidns.strip_prefix("pidns=")?.parse().ok()?,
            boottime: boottime.to_owned(),
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
        let Origin { boot, pidns, boottime } = &self.origin;
        writeln!(f, "{MAGIC}boot={boot} pidns={pidns} boottime={boottime}")?;
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
    /// Parses a line of a journal, which is not trusted.
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

/// A number in the exact form that `Display` writes.
fn number<T: FromStr + fmt::Display>(word: &str) -> Option<T> {
    word.parse().ok().filter(|n: &T| n.to_string() == word)
}

/// The CPUs of a [`cpu_list`] in the exact form that it writes, or none for [`NO_CPUS`]; `None` for any other text.
fn cpus(list: &str) -> Option<Vec<u32>> {
    if list == NO_CPUS {
        return Some(Vec::new());
    }
    let cpus: Vec<u32> = parse_cpu_list(list)?.into_iter().collect();
    (!cpus.is_empty() && cpu_list(&cpus) == list).then_some(cpus)
}

#[cfg(test)]
mod tests;
