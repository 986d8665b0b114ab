//! DKMS, as Debian has it, on trees of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::debian::{self, Apt, KEPT};
use crate::error::StockError;
use crate::host::{output, program};
use crate::module::{DRIVER, Headers};

/// Its packages; the second one has what tells the version of a module.
const PACKAGES: [&str; 3] = ["dkms", "kmod", "libkmod2"];

/// A DKMS that is not installed, with vcoop's driver among its sources.
#[derive(Debug)]
pub struct Dkms {
    /// Where its packages are unpacked.
    programs: PathBuf,
    trees: TempDir,
}

impl Dkms {
    /// Unpacks its packages, the first time from Debian's mirror, and has `make install-sources` put the driver's
    /// sources into a folder of its own.
    ///
    /// # Errors
    ///
    /// [`StockError::Missing`] where the packages or make cannot be had.
    pub fn get() -> Result<Self, StockError> {
        let make = program("make", "make")?;
        let _lock = debian::lock()?;
        let programs = std::path::absolute(Path::new(KEPT).join("dkms"))
            .map_err(StockError::io("target/stock"))?;
        if !programs.exists() {
            let work = tempfile::tempdir_in(KEPT).map_err(StockError::file(&programs))?;
            Apt::of_host().unpack(&PACKAGES.map(str::to_owned), work.path()).map_err(|error| {
                StockError::Missing {
                    what: format!("no DKMS: {error}"),
                    remedy: "run `apt-get update`".to_owned(),
                }
            })?;
            fs::rename(work.keep(), &programs).map_err(StockError::file(&programs))?;
        }
        let trees = tempfile::tempdir().map_err(StockError::io("a folder for temporary files"))?;
        let folder = trees.path();
        let own = folder.join("dkms");
        fs::create_dir(&own).map_err(StockError::file(&own))?;
        output(
            Command::new(make)
                .args(["-s", "-C", DRIVER, "install-sources"])
                .arg(format!("DESTDIR={}", folder.display())),
            "make install-sources",
        )?;
        Ok(Self { programs, trees })
    }

    /// Runs `dkms COMMAND` about the driver for the kernel of some headers; what it says.
    ///
    /// # Errors
    ///
    /// It fails.
    pub fn run(&self, command: &str, headers: &Headers) -> Result<String, StockError> {
        let at = |name: &str| self.trees.path().join(name);
        let unpacked = |name: &str| self.programs.join(name).display().to_string();
        // Without it, that kernel is not there.
        let modules = at("modules").join(&headers.release);
        fs::create_dir_all(&modules).map_err(StockError::file(&modules))?;
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{}:{path}", unpacked("sbin"), unpacked("bin"));
        output(
            Command::new("bash")
                .arg(self.programs.join("usr/sbin/dkms"))
                .args([
                    command,
                    "vcoop/0.1.0",
                    "--no-depmod",
                    "-k",
                    &headers.release,
                    "--kernelsourcedir",
                ])
                .arg(&headers.folder)
                .arg("--sourcetree")
                .arg(at("usr/src"))
                .arg("--dkmstree")
                .arg(at("dkms"))
                .arg("--installtree")
                .arg(at("modules"))
                .env("PATH", path)
                .env("LD_LIBRARY_PATH", unpacked("lib/x86_64-linux-gnu")),
            &format!("dkms {command}"),
        )
    }

    /// The modules that it has installed.
    ///
    /// # Errors
    ///
    /// The folder cannot be read.
    pub fn installed(&self) -> Result<Vec<PathBuf>, StockError> {
        let mut folders = vec![self.trees.path().join("modules")];
        let mut modules = Vec::new();
        while let Some(folder) = folders.pop() {
            for path in debian::files(&folder)? {
                if path.is_dir() { folders.push(path) } else { modules.push(path) }
            }
        }
        Ok(modules)
    }
}
