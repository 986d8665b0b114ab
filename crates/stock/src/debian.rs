//! Debian's packages, unpacked and not installed. apt is used as this host has it configured, or with
//! another suite of the same mirror and a state of its own.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::error::StockError;
use crate::host::{output, program};

/// Where kernels, headers and what was built are kept.
pub(crate) const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/stock");

/// Seconds for a download of some 50 MB.
const DOWNLOAD: &str = "180";

/// How long the lists of another suite are taken for current.
const LISTS_STAY: Duration = Duration::from_secs(24 * 3600);

/// What Debian's lists are signed with.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Keeps other processes out of what is kept until it is dropped: tests run in several at once.
pub(crate) fn lock() -> Result<File, StockError> {
    let kept = Path::new(KEPT);
    fs::create_dir_all(kept).map_err(StockError::file(kept))?;
    let lock = kept.join("lock");
    let lock = File::create(&lock).map_err(StockError::file(&lock))?;
    lock.lock().map_err(StockError::io("locking target/stock"))?;
    Ok(lock)
}

/// The folder that is kept under a name. `fill` is given the one that becomes it, the first time.
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

/// Where packages come from.
#[derive(Clone, Debug)]
pub(crate) struct Apt {
    /// What makes apt use another suite; empty for this host's own configuration.
    options: Vec<String>,
    /// What to do about a package that it does not know.
    remedy: &'static str,
}

impl Apt {
    /// As this host has it configured.
    pub(crate) fn of_host() -> Self {
        Self { options: Vec::new(), remedy: "run `apt-get update`" }
    }

    /// Another suite of the mirror that this host uses, such as `trixie-backports`. Its lists are fetched the
    /// first time and after [`LISTS_STAY`], and are kept under `target/stock`: apt's own state stays as it is.
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

    /// The packages that one depends on, where they begin so.
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

    /// The known packages whose names begin and end so.
    pub(crate) fn names(&self, begin: &str, end: &str) -> Result<Vec<String>, StockError> {
        program("apt-cache", "apt")?;
        let told = output(self.cache().args(["pkgnames", begin]), "apt-cache pkgnames")?;
        Ok(told.lines().filter(|name| name.ends_with(end)).map(str::to_owned).collect())
    }

    /// A package that cannot be had.
    pub(crate) fn unknown(&self, package: &str) -> StockError {
        StockError::missing(format!("apt knows no package {package}"), self.remedy)
    }

    /// Downloads packages and unpacks them into a folder.
    pub(crate) fn unpack(&self, packages: &[String], folder: &Path) -> Result<(), StockError> {
        let debs = tempfile::tempdir_in(KEPT).map_err(StockError::file(folder))?;
        let names = packages.join(", ");
        output(
            // As root, apt would download as another user, who may not write here.
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

    /// apt-get, which ends in time.
    fn timed(&self) -> Result<Command, StockError> {
        let mut command = Command::new("timeout");
        command.arg(DOWNLOAD).arg(program("apt-get", "apt")?).arg("-oAcquire::Retries=3");
        command.args(&self.options);
        Ok(command)
    }
}

/// The mirror of Debian's own packages in this host's configuration of apt.
fn mirror() -> Result<String, StockError> {
    let told = output(
        Command::new("apt-get").args(["indextargets", "--format", "$(SITE) $(RELEASE) $(ORIGIN)"]),
        "apt-get indextargets",
    )?;
    // A suite of security updates has a mirror of its own.
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

/// What is in a folder.
pub(crate) fn files(folder: &Path) -> Result<Vec<PathBuf>, StockError> {
    let entries = fs::read_dir(folder).map_err(StockError::file(folder))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    Ok(files)
}
