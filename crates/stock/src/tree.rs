//! A distribution's kernel with its modules, unpacked.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::debian::{self, Apt};
use crate::error::StockError;
use crate::host::{program, raw_output};
use crate::kernel::Kernel;
use crate::release::{self, CLOUD, RT};

/// A series of kernels: prefix of its releases, their flavour, suite, and packages of one kernel.
const SERIES: [(&str, &str, &str, &[&str]); 3] = [
    ("6.12", CLOUD, "bookworm-backports", &["linux-image-"]),
    ("7", CLOUD, "trixie-backports", &["linux-binary-", "linux-modules-", "linux-base-"]),
    ("7-rt", RT, "trixie-backports", &["linux-binary-", "linux-modules-", "linux-base-"]),
];

/// A kernel with its modules.
#[derive(Clone, Debug)]
pub struct KernelTree {
    /// Its release, as printed by `uname -r`.
    pub release: String,
    /// Its image.
    pub kernel: Kernel,
    modules: PathBuf,
}

impl KernelTree {
    /// The available series.
    pub fn series() -> impl Iterator<Item = &'static str> {
        SERIES.iter().map(|(series, ..)| *series)
    }

    /// The newest kernel of one of [`Self::series`]. It is downloaded from Debian's mirror the first time and kept
    /// under `target/stock`; nothing is installed.
    ///
    /// # Errors
    ///
    /// [`StockError::Missing`] if it is not available.
    pub fn newest(series: &str) -> Result<Self, StockError> {
        let unknown = || {
            let known: Vec<_> = Self::series().collect();
            let remedy = format!("name one of {}", known.join(", "));
            StockError::missing(format!("no kernel {series} is known"), remedy)
        };
        let (series, flavour, suite, parts) =
            SERIES.iter().find(|known| known.0 == series).ok_or_else(unknown)?;
        Self::kept(series, || {
            let apt = Apt::suite(suite)?;
            let names = apt.names(parts[0], flavour)?;
            let releases = names.iter().filter_map(|name| name.strip_prefix(parts[0]));
            let newest = release::newest(releases, series)
                .ok_or_else(|| apt.unknown(&format!("{}{series}*{flavour}", parts[0])))?;
            Ok((apt, parts.iter().map(|part| format!("{part}{newest}")).collect()))
        })
    }

    /// The kernel of a release that this host's apt has, such as `6.12.117+deb12-cloud-amd64`. It is kept as that of
    /// [`Self::newest`].
    ///
    /// # Errors
    ///
    /// [`StockError::Missing`] if its package is not available.
    pub fn of(release: &str) -> Result<Self, StockError> {
        Self::kept(release, || Ok((Apt::of_host(), vec![format!("linux-image-{release}")])))
    }

    /// The kernel kept under a name; the first time it is unpacked from these packages.
    fn kept(
        name: &str,
        packages: impl FnOnce() -> Result<(Apt, Vec<String>), StockError>,
    ) -> Result<Self, StockError> {
        let kept = debian::kept(&format!("kernel-{name}"), |work| {
            let (apt, packages) = packages()?;
            let remedy = "run `apt-get update`, and look whether Debian's mirror can be reached";
            apt.unpack(&packages, work)
                .map_err(|error| error.or_missing(&format!("no kernel {name}"), remedy))
        })?;
        Self::unpacked(&kept)
    }

    /// The kernel in an unpacked package.
    fn unpacked(root: &Path) -> Result<Self, StockError> {
        let no = |what: &str| {
            let error = std::io::Error::new(std::io::ErrorKind::NotFound, what.to_owned());
            StockError::file(root)(error)
        };
        let modules = ["lib/modules", "usr/lib/modules"]
            .iter()
            .filter_map(|folder| debian::files(&root.join(folder)).ok()?.pop())
            .next_back()
            .ok_or_else(|| no("no modules in it"))?;
        let boot = debian::files(&root.join("boot")).unwrap_or_default();
        let begins = |path: &&PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz"))
        };
        let image = boot.iter().find(begins).cloned().unwrap_or_else(|| modules.join("vmlinuz"));
        if !image.exists() {
            return Err(no("no kernel in it"));
        }
        let release = modules.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { release, kernel: Kernel { image }, modules })
    }

    /// Unpacks modules and their dependencies into a folder; returns their files in an order in which they can be
    /// loaded. Modules built into the kernel are left out.
    ///
    /// # Errors
    ///
    /// A file cannot be read or written, or a module cannot be decompressed.
    pub fn modules(&self, wanted: &[&str], folder: &Path) -> Result<Vec<PathBuf>, StockError> {
        let files = debian::files_below(&self.modules.join("kernel"))?.into_iter();
        let files: BTreeMap<String, PathBuf> =
            files.filter_map(|path| Some((module_name(&path)?, path))).collect();
        let mut loaded: Vec<(String, PathBuf)> = Vec::new();
        let mut queue: VecDeque<String> =
            wanted.iter().map(|name| name.replace('-', "_")).collect();
        while let Some(name) = queue.pop_front() {
            let Some(path) = files.get(&name) else { continue };
            // A module already in the list is needed earlier now.
            let again = loaded.iter().position(|(there, _)| *there == name);
            let file = match again {
                Some(at) => loaded.remove(at).1,
                None => decompress(path, &folder.join(format!("{name}.ko")))?,
            };
            let content = fs::read(&file).map_err(StockError::file(&file))?;
            queue.extend(needs(&content));
            loaded.push((name, file));
        }
        Ok(loaded.into_iter().rev().map(|(_, file)| file).collect())
    }
}

/// The name of the module in a file.
fn module_name(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    let file = file.strip_suffix(".xz").unwrap_or(file);
    Some(file.strip_suffix(".ko")?.replace('-', "_"))
}

fn decompress(from: &Path, to: &Path) -> Result<PathBuf, StockError> {
    let content = if from.extension().is_some_and(|e| e == "xz") {
        let what = format!("decompressing {}", from.display());
        raw_output(Command::new(program("xz", "xz-utils")?).arg("-dc").arg(from), &what)?
    } else {
        fs::read(from).map_err(StockError::file(from))?
    };
    fs::write(to, content).map_err(StockError::file(to))?;
    Ok(to.to_owned())
}

/// The direct dependencies of a module, from its `.modinfo`: `depends=kvm,ccp`.
fn needs(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|bytes| bytes == KEY) else {
        return Vec::new();
    };
    let list = module[at + KEY.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    let names = String::from_utf8_lossy(list);
    names.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{KernelTree, needs};

    #[test]
    fn modules_come_after_what_they_need() {
        let root = tempfile::tempdir().unwrap();
        let modules = root.path().join("usr/lib/modules/7.3.4");
        fs::create_dir_all(modules.join("kernel/arch")).unwrap();
        fs::write(modules.join("vmlinuz"), "").unwrap();
        for (name, depends) in
            [("kvm-amd", "kvm,ccp"), ("kvm", "irqbypass"), ("ccp", "kvm"), ("irqbypass", "")]
        {
            let text = format!("x\0license=GPL\0depends={depends}\0name={name}\0");
            fs::write(modules.join(format!("kernel/arch/{name}.ko")), text).unwrap();
        }
        let tree = KernelTree::unpacked(root.path()).unwrap();
        assert_eq!(tree.release, "7.3.4");
        let out = tempfile::tempdir().unwrap();
        let files = tree.modules(&["kvm-amd", "built-in"], out.path()).unwrap();
        let names: Vec<_> =
            files.iter().map(|f| f.file_stem().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["irqbypass", "kvm", "ccp", "kvm_amd"]);
    }

    #[test]
    fn a_module_that_needs_none_says_so() {
        assert_eq!(needs(b"a\0depends=\0"), [""; 0]);
        assert_eq!(needs(b"no module"), [""; 0]);
    }
}
