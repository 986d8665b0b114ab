//! Debian's packages, unpacked and not installed. apt is used as this host has it configured.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::StockError;
use crate::host::{output, program};

/// Where kernels, headers and what was built are kept.
pub(crate) const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/stock");

/// Seconds for a download of some 30 MB.
const DOWNLOAD: &str = "180";

/// Keeps other processes out of what is kept until it is dropped: tests run in several at once.
pub(crate) fn lock() -> Result<File, StockError> {
    let kept = Path::new(KEPT);
    fs::create_dir_all(kept).map_err(StockError::file(kept))?;
    let lock = kept.join("lock");
    let lock = File::create(&lock).map_err(StockError::file(&lock))?;
    lock.lock().map_err(StockError::io("locking target/stock"))?;
    Ok(lock)
}

/// The packages that one depends on, where they begin so.
pub(crate) fn depends(package: &str, begin: &str) -> Result<Vec<String>, StockError> {
    let told = output(Command::new("apt-cache").args(["depends", package]), package);
    let found: Vec<String> = told
        .unwrap_or_default()
        .lines()
        .filter_map(|line| line.trim().trim_start_matches('|').strip_prefix("Depends: "))
        .filter(|package| package.starts_with(begin))
        .map(str::to_owned)
        .collect();
    if found.is_empty() { Err(unknown(package)) } else { Ok(found) }
}

/// The packages whose names begin and end so, that this host's apt knows.
pub(crate) fn names(begin: &str, end: &str) -> Result<Vec<String>, StockError> {
    program("apt-cache", "apt")?;
    let told = output(Command::new("apt-cache").args(["pkgnames", begin]), "apt-cache pkgnames")?;
    Ok(told.lines().filter(|name| name.ends_with(end)).map(str::to_owned).collect())
}

/// A package that cannot be had.
pub(crate) fn unknown(package: &str) -> StockError {
    StockError::Missing {
        what: format!("this host's apt knows no package {package}"),
        remedy: "run `apt-get update`".to_owned(),
    }
}

/// Downloads packages and unpacks them into a folder.
pub(crate) fn unpack(packages: &[String], folder: &Path) -> Result<(), StockError> {
    let apt_get = program("apt-get", "apt")?;
    let debs = tempfile::tempdir_in(KEPT).map_err(StockError::file(folder))?;
    let names = packages.join(", ");
    output(
        Command::new("timeout")
            .arg(DOWNLOAD)
            .arg(apt_get)
            // As root, apt would download as another user, who may not write here.
            .args(["-q", "-o", "APT::Sandbox::User=root", "download"])
            .args(packages)
            .current_dir(&debs),
        &format!("downloading {names}"),
    )?;
    for deb in files(debs.path())? {
        output(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(folder), "dpkg-deb -x")?;
    }
    Ok(())
}

/// What is in a folder.
pub(crate) fn files(folder: &Path) -> Result<Vec<PathBuf>, StockError> {
    let entries = fs::read_dir(folder).map_err(StockError::file(folder))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    Ok(files)
}
