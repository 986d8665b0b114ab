//! A distribution's kernel, from its package.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::debian::{self, Apt, KEPT};
use crate::error::StockError;
use crate::module::Headers;

/// Names a kernel image to boot instead of Debian's.
const OWN: &str = "VCOOP_STOCK_KERNEL";

/// Debian's package that depends on its newest kernel for VMs.
const META_PACKAGE: &str = "linux-image-cloud-amd64";

/// Offset in an image of the pointer to its release; the pointer is relative to the second constant.
const RELEASE_POINTER: usize = 0x20e;
const RELEASE_BASE: usize = 0x200;

/// A kernel's image.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The file that QEMU boots.
    pub image: PathBuf,
}

impl Kernel {
    /// The kernel that `VCOOP_STOCK_KERNEL` names, or Debian's, which is downloaded the first time and kept under
    /// `target/stock`. apt is used as configured on this host; nothing is installed. Another kernel needs built-in
    /// drivers for two 16550 serial ports, and devtmpfs.
    ///
    /// # Errors
    ///
    /// [`StockError::Missing`] if the package is not available.
    pub fn get() -> Result<Self, StockError> {
        if let Some(own) = std::env::var_os(OWN) {
            return Ok(Self { image: own.into() });
        }
        let _lock = debian::lock()?;
        let image = Path::new(KEPT).join("vmlinuz");
        if !image.exists() {
            let apt = Apt::of_host();
            let found = apt.depends(META_PACKAGE, "linux-image-")?.into_iter().next();
            let package = found.ok_or_else(|| apt.unknown(META_PACKAGE))?;
            let remedy = format!("run `apt-get update`, or set {OWN} to a kernel image");
            download(&package, &image)
                .map_err(|error| error.or_missing("no kernel for a stock guest", remedy))?;
        }
        Ok(Self { image })
    }

    /// vcoop's driver for this kernel, built with its headers; see [`Headers`].
    ///
    /// # Errors
    ///
    /// [`StockError::Missing`] if the headers or a compiler are not available; or the error of make.
    pub fn driver(&self) -> Result<PathBuf, StockError> {
        Headers::get(&self.release()?)?.build_driver()
    }

    /// Its release, as printed by `uname -r`.
    ///
    /// # Errors
    ///
    /// The file is not the image of an x86 kernel.
    pub fn release(&self) -> Result<String, StockError> {
        let mut head = Vec::new();
        File::open(&self.image)
            .and_then(|file| file.take(1 << 16).read_to_end(&mut head))
            .map_err(StockError::file(&self.image))?;
        release(&head)
            .ok_or_else(|| std::io::Error::other("not the image of a kernel"))
            .map_err(StockError::file(&self.image))
    }
}

fn release(head: &[u8]) -> Option<String> {
    let pointer = head.get(RELEASE_POINTER..RELEASE_POINTER + 2)?;
    let at = usize::from(u16::from_le_bytes([pointer[0], pointer[1]])) + RELEASE_BASE;
    let text: Vec<u8> =
        head.get(at..)?.iter().copied().take_while(|b| b.is_ascii_graphic()).collect();
    String::from_utf8(text).ok().filter(|text| text.starts_with(|c: char| c.is_ascii_digit()))
}

/// Unpacks the kernel of a package into a file.
fn download(package: &str, image: &Path) -> Result<(), StockError> {
    let work = tempfile::tempdir_in(KEPT).map_err(StockError::file(image))?;
    Apt::of_host().unpack(&[package.to_owned()], work.path())?;
    let is_kernel = |path: &PathBuf| {
        path.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.starts_with("vmlinuz"))
    };
    let found = debian::files(&work.path().join("boot"))?
        .into_iter()
        .find(is_kernel)
        .ok_or_else(|| std::io::Error::from(std::io::ErrorKind::NotFound))
        .map_err(StockError::io(format!("unpacking {package}")))?;
    fs::rename(&found, image).map_err(StockError::file(image))
}

#[cfg(test)]
mod tests {
    use super::release;

    #[test]
    fn an_image_says_its_release() {
        let mut head = vec![0; 0x1000];
        head[0x20e..0x210].copy_from_slice(&0x600_u16.to_le_bytes());
        head[0x800..0x815].copy_from_slice(b"6.1.0-56-cloud-amd64 ");
        assert_eq!(release(&head).as_deref(), Some("6.1.0-56-cloud-amd64"));
        for none in [&head[..0x100], &head[..0x700], &[0; 0x1000]] {
            assert_eq!(release(none), None);
        }
    }
}
