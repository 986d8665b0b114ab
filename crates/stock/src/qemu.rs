//! The QEMU that runs guests.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::debian::{self, Apt};
use crate::error::StockError;
use crate::host::{dies_with_caller, output, program};

const PROGRAM: &str = "qemu-system-x86_64";

/// The first release with which several emulated vCPUs, each in a thread of its own, are run here. Under 7.2 one
/// goes on with code that the kernel has patched meanwhile: three of four guests with 4 vCPUs hung within 25 loads of
/// the driver, and an emulated KVM host failed in what had been a breakpoint of the patching.
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

    /// One that emulates several vCPUs well: that of the host if it is recent, or a newer one from Debian's mirror,
    /// which is downloaded the first time and kept under `target/stock`.
    ///
    /// # Errors
    ///
    /// [`StockError::Missing`] if neither can be had.
    pub fn recent() -> Result<Self, StockError> {
        // The newer one is made for what that of the host depends on.
        let own = Self::of_host()?;
        if own.version()? >= RECENT {
            return Ok(own);
        }
        let newer = Self::unpacked().and_then(|newer| newer.version().map(|_| newer));
        newer.map_err(|error| {
            StockError::missing(
                format!("several vCPUs are emulated reliably by QEMU {RECENT} and later ({error})"),
                format!(
                    "install QEMU {RECENT} or later, or run where Debian's {SUITE} can be reached"
                ),
            )
        })
    }

    /// The major number of its version.
    fn version(&self) -> Result<u32, StockError> {
        let told = output(Command::new(&self.program).arg("--version"), PROGRAM)?;
        let major = |told: &str| told.split_once("version ")?.1.split('.').next()?.parse().ok();
        major(&told)
            .ok_or_else(|| std::io::Error::other("its version is not known"))
            .map_err(StockError::file(&self.program))
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
                let remedy = "apt-get install qemu-system-data seabios";
                StockError::missing(format!("QEMU's firmware {name} is not there"), remedy)
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

    /// The one from Debian's mirror.
    fn unpacked() -> Result<Self, StockError> {
        let kept = debian::kept("qemu", |work| {
            Apt::suite(SUITE)?.unpack(&PACKAGES.map(str::to_owned), work)
        })?;
        let data = vec![
            kept.join("usr/share/qemu"),
            "/usr/share/seabios".into(),
            "/usr/lib/ipxe/qemu".into(),
        ];
        Ok(Self { program: kept.join("usr/bin").join(PROGRAM), data })
    }
}
