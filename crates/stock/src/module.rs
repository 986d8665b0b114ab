//! Kernel modules and programs for the guest, built on this host.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::debian::{self, Apt, KEPT};
use crate::error::StockError;
use crate::host::{output, program};
use crate::release;

/// Debian's headers: `linux-headers-RELEASE`.
const HEADERS: &str = "linux-headers-";

/// vcoop's driver for Linux guests.
pub(crate) const DRIVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../guest/linux");

/// The headers of a kernel, unpacked but not installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Headers {
    /// The release of their kernel, as printed by `uname -r`.
    pub release: String,
    pub(crate) folder: PathBuf,
}

impl Headers {
    /// The same headers, as those of another release.
    #[must_use]
    pub fn called(&self, release: &str) -> Self {
        Self { release: release.to_owned(), folder: self.folder.clone() }
    }

    /// The releases of a flavour ([`CLOUD`](crate::CLOUD), [`RT`](crate::RT)) whose headers this host's apt has: the
    /// newest of each of these series (such as `6.1`) and the newest of all, each once, in no order.
    ///
    /// # Errors
    ///
    /// This host has no apt.
    pub fn newest(flavour: &str, series: &[&str]) -> Result<Vec<String>, StockError> {
        let names = Apt::of_host().names(HEADERS, flavour)?;
        let releases = || names.iter().filter_map(|name| name.strip_prefix(HEADERS));
        // The empty series matches every release.
        let series = series.iter().chain([&""]);
        let found = series.filter_map(|series| release::newest(releases(), series));
        Ok(found.map(str::to_owned).collect::<BTreeSet<_>>().into_iter().collect())
    }

    /// The headers of a release, downloaded the first time and kept under `target/stock`.
    ///
    /// # Errors
    ///
    /// [`StockError::Missing`] if the packages are not available.
    pub fn get(release: &str) -> Result<Self, StockError> {
        let package = format!("{HEADERS}{release}");
        let folder = Path::new("usr/src").join(&package);
        let name = format!("headers-{release}");
        let kept = debian::kept(&name, |work| {
            let apt = Apt::of_host();
            let mut packages = apt.depends(&package, "linux-")?;
            packages.retain(|p| p.starts_with(HEADERS) || p.starts_with("linux-kbuild-"));
            packages.push(package.clone());
            apt.unpack(&packages, work).map_err(|error| {
                let what = format!("no headers for Linux {release}: {error}");
                StockError::missing(what, "run `apt-get update`")
            })?;
            relocate(&work.join(&folder).join("Makefile"), &Path::new(KEPT).join(&name))
        })?;
        Ok(Self { release: release.to_owned(), folder: kept.join(folder) })
    }

    /// Builds vcoop's driver for the kernel of these headers, in a copy of its folder with links resolved. The result,
    /// `vcoop.ko`, is kept under `target/stock` until a source changes.
    ///
    /// # Errors
    ///
    /// [`StockError::Missing`] without make and a compiler; or the error of make.
    pub fn build_driver(&self) -> Result<PathBuf, StockError> {
        let kept = Path::new(KEPT).join(format!("modules-{}", self.release));
        let module = kept.join("vcoop.ko");
        let sources = debian::files(Path::new(DRIVER))?;
        if is_newer(&module, &sources) {
            return Ok(module);
        }
        let make = program("make", "make")?;
        program("gcc", "gcc")?;
        fs::create_dir_all(&kept).map_err(StockError::file(&kept))?;
        let work = tempfile::tempdir_in(KEPT).map_err(StockError::file(&kept))?;
        for file in sources.iter().filter(|file| file.is_file()) {
            let copy = work.path().join(file.file_name().unwrap_or_default());
            fs::copy(file, copy).map_err(StockError::file(file))?;
        }
        output(
            Command::new(make)
                .arg("-C")
                .arg(&self.folder)
                .arg(format!("M={}", work.path().display()))
                // The host may have no pahole, and the module needs no types of its own.
                .args(["CONFIG_DEBUG_INFO_BTF_MODULES=", "KCFLAGS=-Werror", "modules"]),
            &format!("building the driver for Linux {}", self.release),
        )?;
        // Renamed, because another process may be reading the old file.
        fs::rename(work.path().join("vcoop.ko"), &module).map_err(StockError::file(&module))?;
        Ok(module)
    }
}

/// Whether a file was written after the last change of all its sources.
fn is_newer(built: &Path, sources: &[PathBuf]) -> bool {
    let changed = |path: &Path| path.metadata().and_then(|file| file.modified()).ok();
    let built = changed(built);
    built.is_some() && sources.iter().all(|source| changed(source) < built)
}

/// The makefile of the headers includes another one by its installed path.
fn relocate(makefile: &Path, root: &Path) -> Result<(), StockError> {
    let root = std::path::absolute(root).map_err(StockError::file(root))?;
    let text = fs::read_to_string(makefile).map_err(StockError::file(makefile))?;
    let here = format!("{}/usr/src/", root.display());
    fs::write(makefile, text.replace("/usr/src/", &here)).map_err(StockError::file(makefile))
}

/// Builds a static program from one C file, for the guest's /bin. It has the file's name and is kept under
/// `target/stock` until a file beside it or one folder up changes.
///
/// # Errors
///
/// [`StockError::Missing`] without a compiler; or the compiler's error.
pub fn guest_program(source: &Path) -> Result<PathBuf, StockError> {
    let compiler = program("cc", "gcc")?;
    let _lock = debian::lock()?;
    let folder = Path::new(KEPT).join("programs");
    fs::create_dir_all(&folder).map_err(StockError::file(&folder))?;
    let built = folder.join(source.file_stem().unwrap_or_default());
    let beside = source.parent().unwrap_or(source);
    let sources = [debian::files(beside)?, debian::files(&beside.join(".."))?].concat();
    if is_newer(&built, &sources) {
        return Ok(built);
    }
    output(
        Command::new(compiler)
            .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-o"])
            .arg(&built)
            .arg(source),
        &format!("building {}", source.display()),
    )?;
    Ok(built)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::{Duration, SystemTime};

    use super::is_newer;

    #[test]
    fn what_is_older_than_a_source_is_built_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, age: u64| {
            let path = folder.path().join(name);
            let time = SystemTime::now() - Duration::from_secs(age);
            File::create(&path).unwrap().set_modified(time).unwrap();
            path
        };
        let (old, built, new) = (file("old", 3), file("built", 2), file("new", 1));
        assert!(is_newer(&built, std::slice::from_ref(&old)));
        assert!(!is_newer(&built, &[old.clone(), new]));
        assert!(!is_newer(&built, std::slice::from_ref(&built)));
        assert!(!is_newer(&folder.path().join("none"), &[old]));
    }
}
