//! File descriptors that run out, and a pipe without room.
#![allow(unsafe_code, reason = "unshare has no safe wrapper")]

use std::fs::File;
use std::io::{PipeReader, PipeWriter, Write as _, pipe};
use std::thread;

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Some systems have so high a limit that no test gets there.
const MOST: usize = 1 << 20;

/// Runs `prepare` and then `run` in a thread with file descriptors of its own. After `prepare` all of them are in use;
/// `run` gets files that it can close. `None`: this host's limit is too high for a test.
///
/// # Panics
///
/// If the thread does.
pub fn without_files<P, R: Send + 'static>(
    prepare: impl FnOnce() -> P + Send + 'static,
    run: impl FnOnce(P, Vec<File>) -> R + Send + 'static,
) -> Option<R> {
    let alone = thread::spawn(|| {
        // SAFETY: this thread has files of its own from here on; nobody else's are changed.
        unsafe { unshare_unsafe(UnshareFlags::FILES) }.expect("a thread may have its own files");
        let prepared = prepare();
        let mut all = Vec::new();
        while all.len() < MOST
            && let Ok(file) = File::open("/dev/null")
        {
            all.push(file);
        }
        (all.len() < MOST).then(|| run(prepared, all))
    });
    alone.join().expect("the thread has ended well")
}

/// A pipe that takes no more bytes, and blocks who writes: for output that nobody reads.
///
/// # Panics
///
/// No pipe can be made.
pub fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reads, mut writes) = pipe().expect("a pipe can be made");
    rustix::io::ioctl_fionbio(&writes, true).expect("a pipe can be non-blocking");
    while writes.write(b"x").is_ok() {}
    rustix::io::ioctl_fionbio(&writes, false).expect("a pipe can be blocking");
    (reads, writes)
}
