//! Any bytes, as a journal of threads: read or refused, never a panic, and what is read can be written
//! and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vcoop_threads::journal::Contents;

fuzz_target!(|bytes: &[u8]| {
    let Some(mut read) = Contents::parse(bytes) else { return };
    assert!(read.threads.iter().all(|(tid, thread)| *tid == thread.tid && *tid > 0));
    assert!(read.threads.len() + read.damaged <= bytes.len());
    read.damaged = 0;
    assert_eq!(Contents::parse(read.to_string().as_bytes()), Some(read));
});
