//! Kernel modules and programs for the guest, built on this host.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::debian::{self, KEPT};
use crate::error::StockError;
use crate::host::{output, program};

/// Debian's headers for its kernels for VMs: `linux-headers-RELEASE`.
const HEADERS: &str = "linux-headers-";
const FLAVOUR: &str = "-cloud-amd64";

/// The headers of a kernel, unpacked and not installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Headers {
    /// What `uname -r` says under their kernel.
    pub release: String,
    folder: PathBuf,
}

impl Headers {
    /// The releases whose headers this host's apt knows: the newest of each of these series (such as
    /// `6.1`) and the newest of all, each once, in no order.
    ///
    /// # Errors
    ///
    /// This host has no apt.
    pub fn newest(series: &[&str]) -> Result<Vec<String>, StockError> {
        let names = debian::names(HEADERS, FLAVOUR)?;
        Ok(newest(names.iter().filter_map(|name| name.strip_prefix(HEADERS)), series))
    }

    /// The headers of a release, which are downloaded the first time and kept under `target/stock`.
    ///
    /// # Errors
    ///
    /// [`StockError::Missing`] where the packages cannot be had.
    pub fn get(release: &str) -> Result<Self, StockError> {
        let _lock = debian::lock()?;
        let kept = Path::new(KEPT).join(format!("headers-{release}"));
        let package = format!("{HEADERS}{release}");
        let folder = kept.join("usr/src").join(&package);
        if !kept.exists() {
            let mut packages = debian::depends(&package, "linux-")?;
            packages.retain(|p| p.starts_with(HEADERS) || p.starts_with("linux-kbuild-"));
            packages.push(package.clone());
            let work = tempfile::tempdir_in(KEPT).map_err(StockError::file(&kept))?;
            debian::unpack(&packages, work.path()).map_err(|error| StockError::Missing {
                what: format!("no headers for Linux {release}: {error}"),
                remedy: "run `apt-get update`".to_owned(),
            })?;
            relocate(&work.path().join("usr/src").join(&package).join("Makefile"), &kept)?;
            fs::rename(work.keep(), &kept).map_err(StockError::file(&kept))?;
        }
        Ok(Self { release: release.to_owned(), folder })
    }

    /// Builds a module in a copy of its folder, in which links are files. The result is
    /// `NAME.ko` under `target/stock`, for the kernel of these headers.
    ///
    /// # Errors
    ///
    /// [`StockError::Missing`] without make and a compiler; or what make says.
    pub fn build(&self, source: &Path, name: &str) -> Result<PathBuf, StockError> {
        let make = program("make", "make")?;
        program("gcc", "gcc")?;
        let kept = Path::new(KEPT).join(format!("modules-{}", self.release));
        fs::create_dir_all(&kept).map_err(StockError::file(&kept))?;
        let work = tempfile::tempdir_in(KEPT).map_err(StockError::file(&kept))?;
        for file in debian::files(source)?.iter().filter(|file| file.is_file()) {
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
            &format!("building {name} for Linux {}", self.release),
        )?;
        let file = format!("{name}.ko");
        // Renamed, because another process may read the one before.
        let module = kept.join(&file);
        fs::rename(work.path().join(&file), &module).map_err(StockError::file(&module))?;
        Ok(module)
    }
}

/// The makefile of the headers includes another one by its path where it would be installed.
fn relocate(makefile: &Path, root: &Path) -> Result<(), StockError> {
    let root = std::path::absolute(root).map_err(StockError::file(root))?;
    let text = fs::read_to_string(makefile).map_err(StockError::file(makefile))?;
    let here = format!("{}/usr/src/", root.display());
    fs::write(makefile, text.replace("/usr/src/", &here)).map_err(StockError::file(makefile))
}

fn newest<'a>(releases: impl Iterator<Item = &'a str>, series: &[&str]) -> Vec<String> {
    // Packages that only depend on others have fewer numbers.
    let mut releases: Vec<&str> = releases.filter(|release| numbers(release).len() > 2).collect();
    releases.sort_by_cached_key(|release| numbers(release));
    let of = |series: &&str| {
        let wanted = numbers(series);
        releases.iter().rfind(|release| numbers(release).starts_with(&wanted))
    };
    let mut found: Vec<String> =
        series.iter().filter_map(of).chain(releases.last()).map(|r| (*r).to_owned()).collect();
    found.sort();
    found.dedup();
    found
}

/// The numbers of a release, by which it is ordered: `6.12.117+deb12` after `6.12.95+deb12`.
fn numbers(release: &str) -> Vec<u64> {
    let parts = release.trim_end_matches(FLAVOUR).split(|c: char| !c.is_ascii_digit());
    parts.filter_map(|part| part.parse().ok()).collect()
}

/// Builds a program of one C file, without shared libraries, for the guest's /bin. It has the file's
/// name and is kept under `target/stock`.
///
/// # Errors
///
/// [`StockError::Missing`] without a compiler; or what the compiler says.
pub fn guest_program(source: &Path) -> Result<PathBuf, StockError> {
    let compiler = program("cc", "gcc")?;
    let _lock = debian::lock()?;
    let folder = Path::new(KEPT).join("programs");
    fs::create_dir_all(&folder).map_err(StockError::file(&folder))?;
    let built = folder.join(source.file_stem().unwrap_or_default());
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
    use super::newest;

    #[test]
    fn releases_are_compared_by_their_numbers() {
        let known = [
            "cloud-amd64",
            "6.12-cloud-amd64",
            "6.12.95+deb12-cloud-amd64",
            "6.1.0-56-cloud-amd64",
            "6.1.0-9-cloud-amd64",
        ];
        let of = |series: &[&str]| newest(known.into_iter(), series);
        assert_eq!(of(&["6.1", "6.12"]), ["6.1.0-56-cloud-amd64", "6.12.95+deb12-cloud-amd64"]);
        assert_eq!(of(&["6.1", "5.10"]), ["6.1.0-56-cloud-amd64", "6.12.95+deb12-cloud-amd64"]);
        assert_eq!(newest([].into_iter(), &["6.1"]), [""; 0]);
    }
}
