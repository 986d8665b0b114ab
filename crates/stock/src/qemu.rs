//! The QEMU that runs guests.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::debian::{self, Apt};
use crate::error::StockError;
use crate::host::{dies_with_caller, output, program};

const PROGRAM: &str = "qemu-system-x86_64";

/// The first release used here for several emulated vCPUs, each in its own thread. In 7.2 a vCPU can go on with code
/// that the kernel has patched meanwhile: three of four guests with 4 vCPUs hung within 25 loads of the driver, and an
/// emulated KVM host failed at a former breakpoint of the patching.
const RECENT: u32 = 9;

/// The suite with a newer QEMU, and its packages.
const SUITE: &str = "bookworm-backports";
const PACKAGES: [&str; 3] = ["qemu-system-x86", "qemu-system-common", "qemu-system-data"];

/// Firmware that a guest of type `q35` or `microvm` needs to boot a kernel given to QEMU.
const FIRMWARE: [&str; 4] =
    ["bios-256k.bin", "bios-microvm.bin", "linuxboot_dma.bin", "kvmvapic.bin"];

/// A QEMU for x86.
#[derive(Clone, Debug)]
pub struct Qemu {
    program: PathBuf,
    /// Folder of its firmware, if not its default one.
    data: Vec<PathBuf>,
}

impl Qemu {
    /// The QEMU that is installed on this host.
    ///
    /// # Errors
    ///
    /// [`StockError::Missing`] if there is none.
    pub fn of_host() -> Result<Self, StockError> {
        Ok(Self { program: program(PROGRAM, "qemu-system-x86")?, data: Vec::new() })
    }

    /// A QEMU that emulates several vCPUs well: the host's if recent, or else a newer one from Debian's mirror,
    /// downloaded the first time and kept under `target/stock`.
    ///
    /// # Errors
    ///
    /// [`StockError::Missing`] if neither is available.
    pub fn recent() -> Result<Self, StockError> {
        // The newer one needs the libraries that the host's depends on.
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

    /// Its firmware files for guests that boot a kernel.
    ///
    /// # Errors
    ///
    /// [`StockError::Missing`] if a file is in none of the usual folders.
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

    /// The QEMU from Debian's mirror.
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
