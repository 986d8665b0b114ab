//! The QEMU that runs guests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::debian::{self, Apt, KEPT};
use crate::error::StockError;
use crate::host::{dies_with_caller, output, program};

const PROGRAM: &str = "qemu-system-x86_64";

/// The first release under which emulated hosts boot reliably: in 7.2, `thread=multi` loses CPU flags now and
/// then, and a boot in eight ended in an oops.
const RECENT: u32 = 9;

/// Where a newer QEMU comes from, and its packages.
const SUITE: &str = "bookworm-backports";
const PACKAGES: [&str; 3] = ["qemu-system-x86", "qemu-system-common", "qemu-system-data"];

/// Firmware that a guest of type `q35` or `microvm` needs, which boots a kernel given to QEMU.
const FIRMWARE: [&str; 4] =
    ["bios-256k.bin", "bios-microvm.bin", "linuxboot_dma.bin", "kvmvapic.bin"];

/// A QEMU for x86.
#[derive(Clone, Debug)]
pub struct Qemu {
    program: PathBuf,
    /// Where its firmware is, if not where it looks by itself.
    data: Vec<PathBuf>,
}

impl Qemu {
    /// The one that this host has installed.
    ///
    /// # Errors
    ///
    /// [`StockError::Missing`] without one.
    pub fn of_host() -> Result<Self, StockError> {
        Ok(Self { program: program(PROGRAM, "qemu-system-x86")?, data: Vec::new() })
    }

    /// That of the host if it is recent; or a newer one from Debian's mirror, which is downloaded the first time
    /// and kept under `target/stock`, if it can be had and runs here; or that of the host.
    ///
    /// # Errors
    ///
    /// As [`Self::of_host`]: the newer one takes its firmware from it.
    pub fn recent() -> Result<Self, StockError> {
        let own = Self::of_host()?;
        if own.is_recent() {
            return Ok(own);
        }
        let newer = Self::unpacked()?;
        Ok(newer.filter(|newer| newer.version().is_some()).unwrap_or(own))
    }

    /// Whether it is one that emulates a KVM host well.
    pub fn is_recent(&self) -> bool {
        self.version().is_some_and(|major| major >= RECENT)
    }

    /// The major number of its version; none if it does not run.
    pub fn version(&self) -> Option<u32> {
        let told = output(Command::new(&self.program).arg("--version"), PROGRAM).ok()?;
        told.split_once("version ")?.1.split('.').next()?.parse().ok()
    }

    /// Its program.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Its firmware for guests that boot a kernel, as files.
    ///
    /// # Errors
    ///
    /// [`StockError::Missing`] for a file that is in none of the usual folders.
    pub fn firmware(&self) -> Result<Vec<PathBuf>, StockError> {
        let usual = ["/usr/share/qemu", "/usr/share/seabios"].map(PathBuf::from);
        let find = |name: &&str| {
            let folders = self.data.iter().chain(&usual);
            folders.map(|folder| folder.join(name)).find(|file| file.exists()).ok_or_else(|| {
                StockError::Missing {
                    what: format!("QEMU's firmware {name} is not there"),
                    remedy: "apt-get install qemu-system-data seabios".to_owned(),
                }
            })
        };
        FIRMWARE.iter().map(find).collect()
    }

    /// A command that runs it until the calling thread ends.
    pub(crate) fn command(&self) -> Command {
        let mut command = dies_with_caller("KILL", &self.program);
        for folder in &self.data {
            command.arg("-L").arg(folder);
        }
        command
    }

    /// The newer one; none if it cannot be had.
    fn unpacked() -> Result<Option<Self>, StockError> {
        let _lock = debian::lock()?;
        let kept = Path::new(KEPT).join("qemu");
        if !kept.exists() {
            let work = tempfile::tempdir_in(KEPT).map_err(StockError::file(&kept))?;
            let packages = PACKAGES.map(str::to_owned);
            if Apt::suite(SUITE).and_then(|apt| apt.unpack(&packages, work.path())).is_err() {
                return Ok(None);
            }
            fs::rename(work.keep(), &kept).map_err(StockError::file(&kept))?;
        }
        let data = vec![
            kept.join("usr/share/qemu"),
            "/usr/share/seabios".into(),
            "/usr/lib/ipxe/qemu".into(),
        ];
        Ok(Some(Self { program: kept.join("usr/bin").join(PROGRAM), data }))
    }
}
