//! DKMS, as Debian has it, on trees of its own.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::debian::{self, Apt};
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
        let programs = debian::kept("dkms", |work| {
            let unpacked = Apt::of_host().unpack(&PACKAGES.map(str::to_owned), work);
            unpacked.map_err(|error| {
                StockError::missing(format!("no DKMS: {error}"), "run `apt-get update`")
            })
        })?;
        let programs = std::path::absolute(programs).map_err(StockError::io("target/stock"))?;
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
        debian::files_below(&self.trees.path().join("modules"))
    }
}
