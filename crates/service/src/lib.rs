//! Shared by long-running commands that change something outside of themselves: a folder under `/run` with a lock that
//! one of them holds, a page of metrics, and a log that nobody has to read.

mod folder;
mod log;
pub mod metrics;

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

pub use folder::{FolderError, lock, lock_soon, usual};
pub use log::{Log, WholeLineWriter, write_at_once};

/// Wait after an `accept` that failed, for example for lack of file descriptors: the connection is still pending, and
/// an immediate retry would use a whole CPU.
const PAUSE: Duration = Duration::from_millis(100);

/// The connection that `accept` returned; `None`, after a pause, if it failed.
pub fn accepted<S>(stream: io::Result<S>) -> Option<S> {
    if stream.is_err() {
        thread::sleep(PAUSE);
    }
    stream.ok()
}

/// Listens on a Unix socket that only its owner may connect to. It takes the place of a socket on which nobody listens
/// any more.
///
/// # Errors
///
/// Somebody listens there, or there is another kind of file.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            let why = "there is a file of this name, which is no socket";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        }
        Ok(_) => {
            let connected = UnixStream::connect(path);
            if connected.is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused) {
                let _ = fs::remove_file(path);
            }
        }
        Err(_) => {}
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::{PAUSE, accepted, bind};
    use std::fs;
    use std::io;
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::Instant;

    #[test]
    fn an_error_that_stays_is_not_met_again_at_once() {
        let began = Instant::now();
        assert!(accepted::<()>(Err(io::Error::from_raw_os_error(24))).is_none());
        assert!(began.elapsed() >= PAUSE);
        assert_eq!(accepted(Ok(7)), Some(7));
    }

    #[test]
    fn a_socket_takes_the_place_of_a_dead_one_only() {
        let dir = tempfile::tempdir().unwrap();
        let [socket, file] = ["socket", "file"].map(|name| dir.path().join(name));
        let listens = bind(&socket).unwrap();
        let mode = fs::metadata(&socket).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "it is for nobody else");
        assert_eq!(bind(&socket).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(listens);
        bind(&socket).unwrap();
        fs::write(&file, "somebody's").unwrap();
        assert_eq!(bind(&file).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&file).unwrap(), "somebody's");
    }
}
