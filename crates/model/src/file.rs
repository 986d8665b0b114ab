//! Files that users name. Regular files only are read, with a bound on their bytes: a device or a pipe could be
//! endless, and opening a pipe can block. Files are written as a whole or not at all.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Most bytes of a scenario or of a sweep.
pub const MOST_TEXT: u64 = 4 << 20;

/// Most bytes of a file that a scenario names, but for captures: a profile, an rt-app workload.
pub const MOST_NAMED: u64 = 1 << 20;

/// Most bytes of a document that vcoop writes: `result.json`, `manifest.json`.
pub const MOST_DOCUMENT: u64 = 256 << 20;

/// Why this module refuses a file that the system would read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Refusal {
    /// It is not a regular file, but of this kind.
    #[error("it is {0}, not a regular file")]
    Kind(&'static str),
    /// It has more bytes than this.
    #[error("it is larger than {} MiB", .0 >> 20)]
    Large(u64),
    /// It is not UTF-8.
    #[error("it is not text: it has bytes that are not UTF-8")]
    NotText,
}

/// Opens a regular file for reading, without blocking.
///
/// # Errors
///
/// The file cannot be opened, or is not a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    // To open some devices has effects, so the kind is looked at before, and again behind the file
    // descriptor: another file may have taken the name.
    regular(&fs::metadata(path)?)?;
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    regular(&file.metadata()?)?;
    Ok(file)
}

/// The bytes of a regular file of at most `most` bytes.
///
/// # Errors
///
/// As [`open`], or the file is larger.
pub fn bytes(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let large = || io::Error::new(io::ErrorKind::FileTooLarge, Refusal::Large(most));
    if file.metadata()?.len() > most {
        return Err(large());
    }
    // A file may grow while it is read.
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(large()) } else { Ok(bytes) }
}

/// The text of a regular file, `most` bytes at most.
///
/// # Errors
///
/// As [`bytes`], or the text is not UTF-8.
pub fn text(path: &Path, most: u64) -> io::Result<String> {
    let not_text = |_| io::Error::new(io::ErrorKind::InvalidData, Refusal::NotText);
    String::from_utf8(bytes(path, most)?).map_err(not_text)
}

/// Writes a file under a temporary name, and renames it when `write` has returned. If that fails, what was
/// there stays, and nothing else is left. A pipe, a device or a link is written through: a file must not replace it.
///
/// # Errors
///
/// The file cannot be made or renamed, or `write` fails.
pub fn write_whole<T>(path: &Path, write: impl FnOnce(File) -> io::Result<T>) -> io::Result<T> {
    if !is_replaced(path) {
        return File::create(path).and_then(write);
    }
    let part = part(path);
    let written = File::create(&part).and_then(write);
    let written = written.and_then(|written| fs::rename(&part, path).map(|()| written));
    if written.is_err() {
        let _ = fs::remove_file(&part);
    }
    written
}

/// The name of a file while [`write_whole`] writes it.
fn part(path: &Path) -> PathBuf {
    path.with_file_name(format!(".{}.part", path.file_name().unwrap_or_default().to_string_lossy()))
}

/// Whether [`write_whole`] can write a file. No content changes, and nothing is left.
///
/// # Errors
///
/// Why it cannot.
pub fn can_write_whole(path: &Path) -> io::Result<()> {
    // To open a pipe blocks, and its reader would take the probe for the content.
    if fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo()) {
        return Ok(());
    }
    can_write(path)?;
    if is_replaced(path) { can_write(&part(path)) } else { Ok(()) }
}

fn can_write(path: &Path) -> io::Result<()> {
    let is_new = fs::symlink_metadata(path).is_err();
    OpenOptions::new().append(true).create(true).open(path)?;
    if is_new { fs::remove_file(path) } else { Ok(()) }
}

fn is_replaced(path: &Path) -> bool {
    fs::symlink_metadata(path).map_or(true, |found| found.is_file())
}

/// Locks a folder, for as long as the result is held; `None` if another process holds the lock. The lock is on the
/// folder itself, because files in it come and go by renaming.
///
/// # Errors
///
/// The folder cannot be opened, or its file system has no locks.
pub fn lock_folder(dir: &Path) -> io::Result<Option<File>> {
    let lock = File::open(dir)?;
    match lock.try_lock() {
        Ok(()) => Ok(Some(lock)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(e)) => Err(e),
    }
}

/// The remedy for an error of this module, as a sentence without its full stop; `None` if the system's message is
/// enough.
pub fn remedy(error: &io::Error) -> Option<&'static str> {
    match error.get_ref()?.downcast_ref::<Refusal>()? {
        Refusal::Kind("a directory") => Some("name a file in it"),
        Refusal::Kind(_) => Some("save what it gives in a file, and name that"),
        Refusal::Large(_) => Some("name the file that was meant, or split it"),
        Refusal::NotText => Some("name a text file, in UTF-8"),
    }
}

/// The error and its remedy, as the end of a message: `why\n  remedy: what`.
pub fn error_text(error: &io::Error) -> String {
    let remedy = remedy(error).map(|what| format!("\n  remedy: {what}"));
    format!("{error}{}", remedy.unwrap_or_default())
}

/// The same in one line, for messages that are wrapped again.
pub fn sentence(error: &io::Error) -> String {
    remedy(error).map_or_else(|| error.to_string(), |what| format!("{error}; {what}"))
}

fn regular(about: &fs::Metadata) -> io::Result<()> {
    let kind = about.file_type();
    let what = match () {
        () if kind.is_file() => return Ok(()),
        () if kind.is_dir() => "a directory",
        () if kind.is_fifo() => "a named pipe",
        () if kind.is_socket() => "a socket",
        () => "a device",
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, Refusal::Kind(what)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_read_and_so_many_bytes_of_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, "12345").unwrap();
        assert_eq!(text(&path, 5).unwrap(), "12345");
        let why = text(&path, 4).unwrap_err();
        assert_eq!(why.kind(), io::ErrorKind::FileTooLarge);
        assert!(remedy(&why).is_some());
        fs::write(&path, b"\xff").unwrap();
        assert!(error_text(&text(&path, 4).unwrap_err()).contains("UTF-8\n  remedy: "));
        // Nothing is read of a file that is too large: this one would take hours.
        File::create(&path).unwrap().set_len(1 << 42).unwrap();
        assert_eq!(bytes(&path, MOST_TEXT).unwrap_err().to_string(), "it is larger than 4 MiB");
    }

    #[test]
    fn devices_pipes_sockets_and_directories_are_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let (pipe, socket) = (dir.path().join("pipe"), dir.path().join("socket"));
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let _bound = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for (path, kind) in [
            (Path::new("/dev/zero"), "a device"),
            (&pipe, "a named pipe"),
            (&socket, "a socket"),
            (dir.path(), "a directory"),
        ] {
            let why = open(path).unwrap_err();
            assert_eq!(why.to_string(), format!("it is {kind}, not a regular file"));
            assert!(remedy(&why).is_some(), "{kind}");
        }
        assert_eq!(open(&dir.path().join("no")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
