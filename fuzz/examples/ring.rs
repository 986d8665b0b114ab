//! Any words in a sample ring, changed between any two reads: the reader never panics, hands out no
//! more than one ring a call, and its account of lost samples only grows.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vcoop_guest::ring::{CAPACITY, Reader, Ring};

fuzz_target!(|bytes: &[u8]| {
    let (ring, mut reader) = (Box::new(Ring::new()), Reader::new());
    for step in bytes.chunks_exact(12) {
        let at = u32::from_le_bytes([step[0], step[1], step[2], step[3]]) as usize;
        let word = u64::from_le_bytes(step[4..].try_into().expect("eight bytes"));
        // One step in two stores: half of those into the count, near what it can mean.
        match at % 4 {
            0 => ring.scribble(at / 4 % Ring::WORDS, word),
            1 if at & 4 != 0 => ring.scribble(0, word),
            1 => ring.scribble(0, word % (4 * CAPACITY)),
            _ => {
                let (lost, mut seen) = (reader.lost(), 0);
                reader.read(&ring, |_| seen += 1);
                assert!(seen <= CAPACITY && reader.lost() >= lost);
            }
        }
    }
});
