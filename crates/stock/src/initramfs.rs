//! The guest's file system: busybox, programs of this host with their libraries, and /init.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cpio::Archive;
use crate::error::StockError;
use crate::host::{output, program};

const INIT: &[u8] = include_bytes!("../guest/init");
const LATENCY: &[u8] = include_bytes!("../guest/latency");
const LATENCY_AWK: &[u8] = include_bytes!("../guest/latency.awk");

/// What a guest's file system contains besides busybox and cyclictest.
#[derive(Clone, Debug, Default)]
pub(crate) struct Contents {
    /// Programs of this host with their libraries, for /bin.
    pub programs: Vec<PathBuf>,
    /// Kernel modules for /lib/modules.
    pub modules: Vec<PathBuf>,
    /// Kernel modules for /lib/modules that /init loads, in this order.
    pub loaded: Vec<PathBuf>,
    /// Files of this host, and their paths in the guest.
    pub files: Vec<(PathBuf, String)>,
}

/// Writes an initramfs. It is not compressed: decompression in an emulated guest takes longer than reading a larger
/// file on this host.
pub(crate) fn write(path: &Path, contents: &Contents) -> Result<(), StockError> {
    let busybox = program("busybox", "busybox-static")?;
    if !libraries(&busybox)?.is_empty() {
        let what = "`busybox` needs shared libraries, which it could not install before it runs";
        return Err(StockError::missing(what, "apt-get install busybox-static"));
    }
    let cyclictest = program("cyclictest", "rt-tests")?;
    let read = |path: &Path| fs::read(path).map_err(StockError::file(path));
    let mut files =
        vec![("/init".to_owned(), INIT.to_vec()), ("/bin/busybox".to_owned(), read(&busybox)?)];
    for program in [&cyclictest].into_iter().chain(&contents.programs) {
        files.push((format!("/bin/{}", file_name(program)), read(program)?));
        for library in libraries(program)? {
            let name = library.to_string_lossy().into_owned();
            if files.iter().all(|(there, _)| *there != name) {
                files.push((name, read(&library)?));
            }
        }
    }
    let mut load = String::new();
    for module in &contents.loaded {
        load += &format!("/lib/modules/{}\n", file_name(module));
    }
    files.push(("/etc/load".to_owned(), load.into_bytes()));
    for module in contents.modules.iter().chain(&contents.loaded) {
        files.push((format!("/lib/modules/{}", file_name(module)), read(module)?));
    }
    for (file, name) in &contents.files {
        files.push((name.clone(), read(file)?));
    }
    files.push(("/bin/latency".to_owned(), LATENCY.to_vec()));
    files.push(("/bin/latency.awk".to_owned(), LATENCY_AWK.to_vec()));
    archive(path, &files).map_err(StockError::file(path))
}

fn file_name(path: &Path) -> std::borrow::Cow<'_, str> {
    path.file_name().unwrap_or_default().to_string_lossy()
}

fn archive(path: &Path, files: &[(String, Vec<u8>)]) -> io::Result<()> {
    let mut archive = Archive::new(io::BufWriter::new(fs::File::create_new(path)?));
    for folder in ["proc", "sys", "tmp"] {
        archive.folder(folder)?;
    }
    // For init's own output until it has mounted /dev.
    archive.device("dev/console", 5, 1)?;
    for (name, content) in files {
        archive.file(name, content)?;
    }
    archive.finish()?.into_inner()?.sync_all()
}

/// The loader and the shared libraries that a program names; empty if it is static.
fn libraries(program: &Path) -> Result<Vec<PathBuf>, StockError> {
    let name = program.display();
    let told = output(Command::new("ldd").arg(program).env("LC_ALL", "C"), &format!("ldd {name}"));
    match told {
        Ok(told) => Ok(paths(&told)),
        Err(StockError::Io { source, .. })
            if source.to_string().contains("not a dynamic executable") =>
        {
            Ok(Vec::new())
        }
        Err(error) => Err(error),
    }
}

/// The paths in the output of `ldd`: `libc.so.6 => /lib/libc.so.6 (0x…)`, `/lib64/ld.so (0x…)`.
fn paths(told: &str) -> Vec<PathBuf> {
    let path = |line: &str| {
        let path = line.rsplit_once("=> ").map_or(line, |(_, path)| path).trim();
        let path = path.split(" (").next()?;
        path.starts_with('/').then(|| PathBuf::from(path))
    };
    told.lines().filter_map(path).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::path::Path;
    use std::process::{Command, Stdio};

    use super::{LATENCY_AWK, paths};
    use vcoop_testing::Skip;

    #[test]
    fn libraries_are_those_with_a_path() {
        let told = "\tlinux-vdso.so.1 (0x00007ffc8a9f2000)\n\
                    \tlibnuma.so.1 => /lib/x86_64-linux-gnu/libnuma.so.1 (0x00007f1)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f0)\n\tlibgone.so => not found\n";
        let expected = ["/lib/x86_64-linux-gnu/libnuma.so.1", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(paths(told), expected.map(|p| Path::new(p).to_owned()));
    }

    /// The summary that the guest's awk makes of a histogram.
    fn summary(histogram: &str) -> Option<String> {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("latency.awk");
        std::fs::write(&script, LATENCY_AWK).unwrap();
        let awk = Command::new("busybox")
            .args(["awk", "-f"])
            .arg(&script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let Ok(mut awk) = awk else {
            Skip::because("apt-get install busybox-static").tell();
            return None;
        };
        awk.stdin.take().unwrap().write_all(histogram.as_bytes()).unwrap();
        Some(String::from_utf8(awk.wait_with_output().unwrap().stdout).unwrap())
    }

    #[test]
    fn a_histogram_is_summed_up_exactly() {
        // 98 samples of 10 us, one of 100, one of 9000: the 99th is the second last.
        let told = "# Histogram\n000000 000000\n000010\t000098\n000100 000001\n009000 000001\n\
                    # Total: 000000100\n# Min Latencies: 00010\n# Avg Latencies: 00100\n\
                    # Max Latencies: 09000\n# Histogram Overflows: 00000\n";
        let Some(summary) = summary(told) else { return };
        let expected =
            "mean_us=100.800\np50_us=10\np99_us=100\nmax_us=9000\ncount=100\noverflows=0\n";
        assert_eq!(summary, expected);
    }

    #[test]
    fn what_overflows_the_histogram_counts() {
        let told = "000010 000098\n# Avg Latencies: 01010\n# Max Latencies: 050000\n\
                    # Histogram Overflows: 00002\n";
        let Some(summary) = summary(told) else { return };
        let expected =
            "mean_us=1010.000\np50_us=10\np99_us=50000\nmax_us=50000\ncount=100\noverflows=2\n";
        assert_eq!(summary, expected);
    }
}
