//! Writes cpio archives of the `newc` format, the format of an initramfs.

use std::collections::BTreeSet;
use std::io::{self, Write};

const FOLDER: u32 = 0o040_755;
const FILE: u32 = 0o100_755;
const CHARACTER_DEVICE: u32 = 0o020_600;

/// An archive that is being written. All its entries belong to root, and files are executable.
pub(crate) struct Archive<W> {
    out: W,
    entries: u32,
    folders: BTreeSet<String>,
}

impl<W: Write> Archive<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { out, entries: 0, folders: BTreeSet::new() }
    }

    /// Adds a folder and its parents, unless they exist.
    pub(crate) fn folder(&mut self, path: &str) -> io::Result<()> {
        let path = path.trim_matches('/');
        if path.is_empty() || self.folders.contains(path) {
            return Ok(());
        }
        self.parent(path)?;
        self.folders.insert(path.to_owned());
        self.entry(path, FOLDER, (0, 0), &[])
    }

    /// Adds a file and its parent folders.
    pub(crate) fn file(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
        let path = path.trim_matches('/');
        self.parent(path)?;
        self.entry(path, FILE, (0, 0), content)
    }

    /// Adds the node of a character device.
    pub(crate) fn device(&mut self, path: &str, major: u32, minor: u32) -> io::Result<()> {
        let path = path.trim_matches('/');
        self.parent(path)?;
        self.entry(path, CHARACTER_DEVICE, (major, minor), &[])
    }

    /// Ends the archive.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.entry("TRAILER!!!", 0, (0, 0), &[])?;
        Ok(self.out)
    }

    fn parent(&mut self, path: &str) -> io::Result<()> {
        path.rsplit_once('/').map_or(Ok(()), |(parent, _)| self.folder(parent))
    }

    fn entry(
        &mut self,
        name: &str,
        mode: u32,
        device: (u32, u32),
        content: &[u8],
    ) -> io::Result<()> {
        let size = u32::try_from(content.len())
            .map_err(|_| io::Error::new(io::ErrorKind::FileTooLarge, name))?;
        self.entries += 1;
        // Magic; number, mode, uid, gid, links, time, size, device of the file, device that the
        // file is, length of the name with its end, checksum: unused in this format.
        let fields = [
            self.entries,
            mode,
            0,
            0,
            1,
            0,
            size,
            0,
            0,
            device.0,
            device.1,
            name.len() as u32 + 1,
            0,
        ];
        self.out.write_all(b"070701")?;
        for field in fields {
            write!(self.out, "{field:08x}")?;
        }
        self.out.write_all(name.as_bytes())?;
        self.out.write_all(b"\0")?;
        self.pad(6 + 8 * fields.len() + name.len() + 1)?;
        self.out.write_all(content)?;
        self.pad(content.len())
    }

    /// Pads headers with their name, and contents, to a multiple of 4.
    fn pad(&mut self, written: usize) -> io::Result<()> {
        self.out.write_all(&[0; 3][..written.next_multiple_of(4) - written])
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use super::Archive;
    use vcoop_testing::Skip;

    /// busybox, another implementation of the format, unpacks the archive.
    #[test]
    fn others_can_read_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut archive = Archive::new(Vec::new());
        archive.file("/a/b/odd", b"12345").unwrap();
        archive.file("a/b/even", b"1234").unwrap();
        archive.file("/init", b"").unwrap();
        archive.folder("/a/b").unwrap();
        archive.folder("proc").unwrap();
        let bytes = archive.finish().unwrap();
        let cpio = Command::new("busybox")
            .args(["cpio", "-i"])
            .current_dir(&dir)
            .stdin(Stdio::piped())
            .spawn();
        let Ok(mut cpio) = cpio else {
            Skip::because("apt-get install busybox-static").tell();
            return;
        };
        cpio.stdin.take().unwrap().write_all(&bytes).unwrap();
        assert!(cpio.wait().unwrap().success());
        let read = |path: &str| std::fs::read_to_string(dir.path().join(path)).unwrap();
        assert_eq!(
            (read("a/b/odd"), read("a/b/even"), read("init")),
            ("12345".into(), "1234".into(), String::new())
        );
        assert!(dir.path().join("proc").is_dir());
    }
}
