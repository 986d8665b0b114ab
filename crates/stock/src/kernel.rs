//! A distribution's kernel, out of its package.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::StockError;
use crate::host::{output, program};

/// Names a kernel image to boot instead of Debian's.
const OWN: &str = "VCOOP_STOCK_KERNEL";

/// Debian's package that depends on its newest kernel for VMs.
const META_PACKAGE: &str = "linux-image-cloud-amd64";

/// Where kernels are kept.
const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/stock");

/// Seconds for a download of some 27 MB.
const DOWNLOAD: &str = "180";

/// A kernel's image.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The file that QEMU boots.
    pub image: PathBuf,
}

impl Kernel {
    /// The kernel that `VCOOP_STOCK_KERNEL` names, or Debian's, which is downloaded the first time
    /// and kept under `target/stock`. apt is used as this host has it configured; nothing is
    /// installed. A kernel of one's own needs drivers for two 16550 serial ports and devtmpfs
    /// built in.
    ///
    /// # Errors
    ///
    /// [`StockError::Missing`] where the package cannot be had.
    pub fn get() -> Result<Self, StockError> {
        if let Some(own) = std::env::var_os(OWN) {
            return Ok(Self { image: own.into() });
        }
        let kept = Path::new(KEPT);
        fs::create_dir_all(kept).map_err(StockError::file(kept))?;
        // Tests run in several processes at once.
        let lock = kept.join("lock");
        let lock = File::create(&lock).map_err(StockError::file(&lock))?;
        lock.lock().map_err(StockError::io("locking target/stock"))?;
        let image = kept.join("vmlinuz");
        if !image.exists() {
            download(&image).map_err(|e| match e {
                missing @ StockError::Missing { .. } => missing,
                other => StockError::Missing {
                    what: format!("no kernel for a stock guest: {other}"),
                    remedy: format!("run `apt-get update`, or set {OWN} to a kernel image"),
                },
            })?;
        }
        Ok(Self { image })
    }
}

/// Unpacks the newest kernel that this host's apt knows, as a file.
fn download(image: &Path) -> Result<(), StockError> {
    let apt_get = program("apt-get", "apt")?;
    let package = output(Command::new("apt-cache").args(["depends", META_PACKAGE]), META_PACKAGE)?;
    let package = package
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|package| package.starts_with("linux-image-"))
        .ok_or_else(|| StockError::Missing {
            what: format!("this host's apt knows no package {META_PACKAGE}"),
            remedy: format!("run `apt-get update`, or set {OWN} to a kernel image"),
        })?
        .to_owned();
    let work = tempfile::tempdir_in(KEPT).map_err(StockError::file(image))?;
    output(
        Command::new("timeout")
            .arg(DOWNLOAD)
            .arg(apt_get)
            // As root, apt would download as another user, who may not write here.
            .args(["-q", "-o", "APT::Sandbox::User=root", "download", &package])
            .current_dir(&work),
        &format!("downloading {package}"),
    )?;
    let file_in = |folder: &Path, is: fn(&str) -> bool| {
        let mut files = fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path());
        files
            .find(|path| path.file_name().and_then(|n| n.to_str()).is_some_and(is))
            .ok_or_else(|| std::io::Error::from(std::io::ErrorKind::NotFound))
            .map_err(StockError::io(format!("unpacking {package}")))
    };
    let deb = file_in(work.path(), |name| name.ends_with(".deb"))?;
    output(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(work.path()), "dpkg-deb -x")?;
    let found = file_in(&work.path().join("boot"), |name| name.starts_with("vmlinuz"))?;
    fs::rename(&found, image).map_err(StockError::file(image))
}
