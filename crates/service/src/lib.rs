//! Shared by long-running commands that change something outside of themselves: a folder under `/run` with a lock that
//! one of them holds, a page of metrics, and a log that nobody has to read.
#![cfg(target_os = "linux")]

mod folder;
mod log;
pub mod metrics;

use std::io;
use std::thread;
use std::time::Duration;

pub use folder::{FolderError, lock, usual};
pub use log::{Log, write_at_once};

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

#[cfg(test)]
mod tests {
    use super::{PAUSE, accepted};
    use std::io;
    use std::time::Instant;

    #[test]
    fn an_error_that_stays_is_not_met_again_at_once() {
        let began = Instant::now();
        assert!(accepted::<()>(Err(io::Error::from_raw_os_error(24))).is_none());
        assert!(began.elapsed() >= PAUSE);
        assert_eq!(accepted(Ok(7)), Some(7));
    }
}
