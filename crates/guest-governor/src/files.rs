//! The files of a guest that are read and written.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, fstat, open, openat};
use rustix::path::Arg;

use crate::cpus::{self, Cpus};

/// Most bytes of a small file that are read: a list of every second CPU of 8192.
const MOST_BYTES: u64 = 64 << 10;
/// Most bytes of `/proc/stat` that are read: 8192 CPUs come first, with some 130 each.
const MOST_STAT: u64 = 2 << 20;

/// Where the kernel's file systems are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots {
    /// procfs.
    pub proc: PathBuf,
    /// sysfs.
    pub sys: PathBuf,
    /// cgroup v2.
    pub cgroup: PathBuf,
}

impl Roots {
    /// Those of this system.
    pub fn usual() -> Self {
        Self::in_tree(Path::new("/"))
    }

    /// Those of a tree, at the usual places.
    pub fn in_tree(tree: &Path) -> Self {
        let (proc, sys) = (tree.join("proc"), tree.join("sys"));
        Self { proc, cgroup: sys.join("fs/cgroup"), sys }
    }

    /// The folder of all CPUs.
    pub(crate) fn cpus(&self) -> PathBuf {
        self.sys.join("devices/system/cpu")
    }

    /// The CPUs of the root cgroup: those that are online, but for those of partitions of cpusets. `None`: the root cgroup
    /// does not say.
    pub(crate) fn shared(&self) -> Option<Cpus> {
        effective(&self.cgroup).filter(|cpus| !cpus.is_empty())
    }

    /// The file that says whether a CPU is online.
    pub(crate) fn online(&self, cpu: u32) -> PathBuf {
        self.cpus().join(format!("cpu{cpu}/online"))
    }

    /// A file that only root may open, on every Linux. It is only locked, not written.
    pub(crate) fn lock(&self) -> PathBuf {
        self.sys.join("bus/cpu/uevent")
    }

    /// What `/proc/stat` says.
    pub(crate) fn stat(&self) -> io::Result<Vec<u8>> {
        bytes(&self.proc.join("stat"), MOST_STAT)
    }

    /// File with the CPUs that the host prefers to be used, of vcoop's driver.
    pub(crate) fn preferred(&self) -> PathBuf {
        self.sys.join("module/vcoop/parameters/preferred")
    }

    /// `major.minor` of the kernel's version, if it is known.
    pub(crate) fn kernel(&self) -> Option<(u32, u32)> {
        let release = read(&self.proc.join("sys/kernel/osrelease")).ok()?;
        let mut numbers = release.split(['.', '-']).map(str::parse);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    }

    /// Id of this boot: numbers in a journal are valid for one boot.
    pub(crate) fn boot(&self) -> String {
        read(&self.proc.join("sys/kernel/random/boot_id")).unwrap_or_default()
    }
}

fn bytes(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a small file, without spaces around it.
pub(crate) fn read(path: &Path) -> io::Result<String> {
    let bytes = bytes(path, MOST_BYTES)?;
    let text =
        String::from_utf8(bytes).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
    Ok(text.trim_ascii().to_owned())
}

/// Reads a list of CPUs; `None`: the file has none.
pub(crate) fn list(path: &Path) -> Option<Cpus> {
    cpus::parse(&read(path).ok()?)
}

/// The CPUs that a cgroup has; `None`: it has no cpuset.
pub(crate) fn effective(cgroup: &Path) -> Option<Cpus> {
    list(&cgroup.join("cpuset.cpus.effective"))
}

/// Writes a small existing file in one call: the kernel takes each call for a request. A relative path begins at
/// `folder`.
pub(crate) fn write(folder: impl AsFd, path: impl Arg, text: &str) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(openat(folder, path, flags, Mode::empty())?);
    // Without an end of line a request for nothing would be no write at all.
    file.write_all(format!("{text}\n").as_bytes())
}

/// Opens a folder, which must have this inode number. The handle refers to the same folder even if another one replaces
/// it at the path.
pub(crate) fn hold(path: &Path, inode: u64) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = open(path, flags, Mode::empty())?;
    if fstat(&folder)?.st_ino == inode { Ok(folder) } else { Err(io::ErrorKind::NotFound.into()) }
}

/// Whether this process may write a file. It may not if the file system is read-only.
pub(crate) fn may_write(path: &Path) -> io::Result<()> {
    Ok(rustix::fs::access(path, rustix::fs::Access::WRITE_OK)?)
}

/// Replaces a file of our own.
pub(crate) fn replace(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension("journal.new");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    options.open(&new)?.write_all(text.as_bytes())?;
    fs::rename(&new, path)
}
