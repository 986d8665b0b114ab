//! Downloads and unpacks packages of Debian without installing them. apt is used as configured on this host, or with
//! another suite of the same mirror and a separate state.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::error::StockError;
use crate::host::{output, program};

/// Folder for kernels, headers and built files.
pub(crate) const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/stock");

/// Seconds for a download of some 50 MB.
const DOWNLOAD: &str = "180";

/// How long the lists of another suite count as current.
const LISTS_STAY: Duration = Duration::from_secs(24 * 3600);

/// The keys that sign Debian's lists.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Locks the kept files against other processes, because several tests run at once, until the result is dropped.
pub(crate) fn lock() -> Result<File, StockError> {
    let kept = Path::new(KEPT);
    fs::create_dir_all(kept).map_err(StockError::file(kept))?;
    let lock = kept.join("lock");
    let lock = File::create(&lock).map_err(StockError::file(&lock))?;
    lock.lock().map_err(StockError::io("locking target/stock"))?;
    Ok(lock)
}

/// The folder kept under a name. The first time `fill` fills it.
pub(crate) fn kept(
    name: &str,
    fill: impl FnOnce(&Path) -> Result<(), StockError>,
) -> Result<PathBuf, StockError> {
    let _lock = lock()?;
    let kept = Path::new(KEPT).join(name);
    if !kept.exists() {
        let work = tempfile::tempdir_in(KEPT).map_err(StockError::file(&kept))?;
        fill(work.path())?;
        fs::rename(work.keep(), &kept).map_err(StockError::file(&kept))?;
    }
    Ok(kept)
}

/// A source of packages.
#[derive(Clone, Debug)]
pub(crate) struct Apt {
    /// Options for another suite; empty for this host's own configuration.
    options: Vec<String>,
    /// Advice if a package is not known.
    remedy: &'static str,
}

impl Apt {
    /// apt as configured on this host.
    pub(crate) fn of_host() -> Self {
        Self { options: Vec::new(), remedy: "run `apt-get update`" }
    }

    /// Another suite of this host's mirror, such as `trixie-backports`. Its lists are fetched the first time and after
    /// [`LISTS_STAY`], and are kept under `target/stock`: apt's own state does not change.
    pub(crate) fn suite(suite: &str) -> Result<Self, StockError> {
        let folder = std::path::absolute(Path::new(KEPT).join(format!("apt-{suite}")))
            .map_err(StockError::io("target/stock"))?;
        let file = |name: &str| folder.join(name);
        for part in ["lists/partial", "cache/archives/partial", "parts"] {
            fs::create_dir_all(file(part)).map_err(StockError::file(&folder))?;
        }
        let line = format!("deb [signed-by={KEYRING}] {} {suite} main\n", mirror()?);
        for (name, text) in [("sources.list", line.as_str()), ("status", "")] {
            fs::write(file(name), text).map_err(StockError::file(&file(name)))?;
        }
        let set = |key: &str, name: &str| format!("-oDir::{key}={}", file(name).display());
        let apt = Self {
            options: vec![
                set("Etc::sourcelist", "sources.list"),
                set("Etc::sourceparts", "parts"),
                set("Etc::preferencesparts", "parts"),
                set("State::lists", "lists"),
                set("State::status", "status"),
                set("Cache", "cache"),
                "-oAPT::Sandbox::User=root".to_owned(),
            ],
            remedy: "look whether Debian's mirror can be reached",
        };
        let updated = file("updated");
        let fresh = |m: fs::Metadata| m.modified().ok()?.elapsed().ok().map(|t| t < LISTS_STAY);
        if !updated.metadata().ok().and_then(fresh).unwrap_or(false) {
            let get = apt.timed()?.args(["-q", "update"]).output();
            let get = get.map_err(StockError::io("apt-get update"))?;
            if !get.status.success() {
                return Err(apt.unknown(&format!("of {suite}")));
            }
            fs::write(&updated, "").map_err(StockError::file(&updated))?;
        }
        Ok(apt)
    }

    /// The dependencies of a package whose names begin with `begin`.
    pub(crate) fn depends(&self, package: &str, begin: &str) -> Result<Vec<String>, StockError> {
        let told = output(self.cache().args(["depends", package]), package);
        let found: Vec<String> = told
            .unwrap_or_default()
            .lines()
            .filter_map(|line| line.trim().trim_start_matches('|').strip_prefix("Depends: "))
            .filter(|package| package.starts_with(begin))
            .map(str::to_owned)
            .collect();
        if found.is_empty() { Err(self.unknown(package)) } else { Ok(found) }
    }

    /// The known packages whose names begin with `begin` and end with `end`.
    pub(crate) fn names(&self, begin: &str, end: &str) -> Result<Vec<String>, StockError> {
        program("apt-cache", "apt")?;
        let told = output(self.cache().args(["pkgnames", begin]), "apt-cache pkgnames")?;
        Ok(told.lines().filter(|name| name.ends_with(end)).map(str::to_owned).collect())
    }

    /// The error that a package is not available.
    pub(crate) fn unknown(&self, package: &str) -> StockError {
        StockError::missing(format!("apt knows no package {package}"), self.remedy)
    }

    /// Downloads packages and unpacks them into a folder.
    pub(crate) fn unpack(&self, packages: &[String], folder: &Path) -> Result<(), StockError> {
        let debs = tempfile::tempdir_in(KEPT).map_err(StockError::file(folder))?;
        let names = packages.join(", ");
        output(
            // As root, apt would download as another user, who cannot write here.
            self.timed()?
                .args(["-q", "-oAPT::Sandbox::User=root", "download"])
                .args(packages)
                .current_dir(&debs),
            &format!("downloading {names}"),
        )?;
        for deb in files(debs.path())? {
            output(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(folder), "dpkg-deb -x")?;
        }
        Ok(())
    }

    fn cache(&self) -> Command {
        let mut command = Command::new("apt-cache");
        command.args(&self.options);
        command
    }

    /// apt-get, with a time limit.
    fn timed(&self) -> Result<Command, StockError> {
        let mut command = Command::new("timeout");
        command.arg(DOWNLOAD).arg(program("apt-get", "apt")?).arg("-oAcquire::Retries=3");
        command.args(&self.options);
        Ok(command)
    }
}

/// The mirror of Debian's own packages, from this host's apt configuration.
fn mirror() -> Result<String, StockError> {
    let told = output(
        Command::new("apt-get").args(["indextargets", "--format", "$(SITE) $(RELEASE) $(ORIGIN)"]),
        "apt-get indextargets",
    )?;
    // A suite of security updates has another mirror.
    let own = |line: &str| {
        let mut words = line.split(' ');
        let (site, release) = (words.next()?, words.next()?);
        let debian = words.next()? == "Debian" && !release.contains("security");
        debian.then(|| site.trim_end_matches('/').to_owned())
    };
    told.lines().find_map(own).ok_or_else(|| {
        let remedy = "run on Debian, after `apt-get update`";
        StockError::missing("apt has no mirror of Debian here", remedy)
    })
}

/// All files below a folder.
pub(crate) fn files_below(folder: &Path) -> Result<Vec<PathBuf>, StockError> {
    let (mut folders, mut found) = (vec![folder.to_owned()], Vec::new());
    while let Some(folder) = folders.pop() {
        for path in files(&folder)? {
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    Ok(found)
}

/// The entries of a folder.
pub(crate) fn files(folder: &Path) -> Result<Vec<PathBuf>, StockError> {
    let entries = fs::read_dir(folder).map_err(StockError::file(folder))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    Ok(files)
}
