//! The folder of vcoop's state on this machine, and locks in it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

/// How long to wait for a lock: a process that restores what a dead owner changed holds that owner's lock meanwhile.
const PATIENCE: Duration = Duration::from_millis(500);

/// Why the folder, or a lock in it, is not available.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// Another process holds the lock.
    #[error("vcoop already runs, in process {0}\n  remedy: {1}")]
    Busy(String, &'static str),
    /// The process that took the lock has ended, and one that it started still holds it.
    #[error(
        "process {0} has ended, and process {1}, which restores what it changed, has not\n  remedy: let that go on \
         (kill -CONT {1}), or end it (kill -KILL {1}) and try again"
    )]
    Inherited(String, u32),
    /// The folder belongs to root, and this process is not root.
    #[error("{} belongs to root\n  remedy: run it as root", .0.display())]
    Roots(PathBuf),
    /// Others could write in the folder.
    #[error("{} belongs to somebody else, or others can write in it\n  remedy: remove it", .0.display())]
    Untrusted(PathBuf),
    /// A file could not be read or written.
    #[error("{path}: {why}{hint}", path = .0.display(), why = .1, hint = hint(.1))]
    Io(PathBuf, io::Error),
}

impl FolderError {
    /// Whether another user, mostly root, may use the folder.
    pub fn is_denied(&self) -> bool {
        match self {
            Self::Roots(_) => true,
            Self::Io(_, e) => e.kind() == io::ErrorKind::PermissionDenied,
            Self::Busy(..) | Self::Inherited(..) | Self::Untrusted(_) => false,
        }
    }
}

fn hint(e: &io::Error) -> &'static str {
    if e.kind() == io::ErrorKind::PermissionDenied { "\n  remedy: run it as root" } else { "" }
}

/// Path of the folder: `VCOOP_RUN_DIR`, or `/run/vcoop`.
pub fn usual() -> PathBuf {
    std::env::var_os("VCOOP_RUN_DIR").map_or_else(|| "/run/vcoop".into(), PathBuf::from)
}

/// Makes the folder, and takes the lock `name` in it: a file that is locked as long as it is open in any process, and
/// begins with the process id of the process that took it. `remedy`: advice for the case that another process has the
/// lock.
///
/// # Errors
///
/// [`FolderError`].
pub fn lock(dir: &Path, name: &str, remedy: &'static str) -> Result<File, FolderError> {
    let at = |e| FolderError::Io(dir.to_owned(), e);
    match fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(at(e)),
        _ => {}
    }
    let meta = fs::symlink_metadata(dir).map_err(at)?;
    let (own, safe) = (rustix::process::geteuid(), meta.is_dir() && meta.mode() & 0o022 == 0);
    if safe && meta.uid() == 0 && !own.is_root() {
        return Err(FolderError::Roots(dir.to_owned()));
    }
    if !safe || meta.uid() != own.as_raw() {
        return Err(FolderError::Untrusted(dir.to_owned()));
    }
    let path = dir.join(name);
    let at = |e| FolderError::Io(path.clone(), e);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let mut lock = options.custom_flags(libc::O_NOFOLLOW).open(&path).map_err(at)?;
    if !lock_soon(&lock).map_err(at)? {
        let mut pid = String::new();
        let _ = (&mut lock).take(20).read_to_string(&mut pid);
        let digits: String = pid.chars().take_while(char::is_ascii_digit).collect();
        let holders = holders(&lock);
        return Err(match holders.first() {
            Some(heir) if !holders.iter().any(|pid| is_called(*pid, &digits)) => {
                FolderError::Inherited(digits, *heir)
            }
            _ => FolderError::Busy(digits, remedy),
        });
    }
    lock.set_len(0).and_then(|()| lock.rewind()).map_err(at)?;
    lock.write_all(format!("{}\n", std::process::id()).as_bytes()).map_err(at)?;
    Ok(lock)
}

/// Processes that hold the lock of a file, as far as they can be seen: the one that took it, and those that it started.
fn holders(lock: &File) -> Vec<u32> {
    let file = |of: &fs::Metadata| (of.dev(), of.ino());
    let Ok(own) = lock.metadata().map(|of| file(&of)) else { return Vec::new() };
    let holds = |pid: &u32| {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let same = files.filter(|of| fs::metadata(of.path()).is_ok_and(|of| file(&of) == own));
        let info = |of: fs::DirEntry| {
            fs::read_to_string(format!("/proc/{pid}/fdinfo/{}", of.file_name().display()))
        };
        same.map(info).any(|info| info.is_ok_and(|info| info.contains("FLOCK")))
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|process| process.file_name().to_str()?.parse().ok());
    pids.filter(holds).collect()
}

/// Whether a process calls itself by this number: it may be in a PID namespace of its own.
fn is_called(pid: u32, number: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mut lines = status.lines().filter_map(|line| line.strip_prefix("NSpid:"));
    lines.any(|pids| pids.split_whitespace().last() == Some(number))
}

/// Takes the lock of an open file; whether it was to be had soon.
///
/// # Errors
///
/// The file cannot be locked.
pub fn lock_soon(file: &File) -> io::Result<bool> {
    let began = Instant::now();
    while let Err(e) = flock(file, FlockOperation::NonBlockingLockExclusive) {
        if e != rustix::io::Errno::WOULDBLOCK {
            return Err(e.into());
        }
        if began.elapsed() > PATIENCE {
            return Ok(false);
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(true)
}
