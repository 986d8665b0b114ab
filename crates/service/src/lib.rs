//! What commands share that stay and change something outside of themselves: a folder under `/run`
//! with a lock that one of them holds, and a page of metrics.
#![cfg(target_os = "linux")]

mod folder;
pub mod metrics;

use std::io;
use std::thread;
use std::time::Duration;

pub use folder::{FolderError, lock, usual};

/// After a connection that could not be had, as without room for another file: it is still there, and asking for it
/// again at once would take a CPU.
const PAUSE: Duration = Duration::from_millis(100);

/// A connection, as `accept` gave it; where that gave none, `None` after a pause.
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
