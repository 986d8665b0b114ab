//! Debian's DKMS, on separate trees.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::debian::{self, Apt};
use crate::error::StockError;
use crate::host::{output, program};
use crate::module::{DRIVER, Headers};

/// Its packages; the second one has the tool that reads a module's version.
const PACKAGES: [&str; 3] = ["dkms", "kmod", "libkmod2"];

/// An uninstalled DKMS, with vcoop's driver among its sources.
#[derive(Debug)]
pub struct Dkms {
    /// Folder of its unpacked packages.
    programs: PathBuf,
    trees: TempDir,
}

impl Dkms {
    /// Unpacks its packages, the first time from Debian's mirror, and runs `make install-sources` to put the driver's
    /// sources into a separate folder.
    ///
    /// # Errors
    ///
    /// [`StockError::Missing`] if the packages or make are not available.
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

    /// Runs `dkms COMMAND` on the driver for the kernel of some headers; returns its output.
    ///
    /// # Errors
    ///
    /// The command fails.
    pub fn run(&self, command: &str, headers: &Headers) -> Result<String, StockError> {
        let at = |name: &str| self.trees.path().join(name);
        let unpacked = |name: &str| self.programs.join(name).display().to_string();
        // DKMS needs this folder to accept the kernel as installed.
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
