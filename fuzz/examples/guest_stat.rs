//! Any bytes, as `/proc/stat` of a guest and as a list of CPUs: read or left out, never a panic, and
//! never a CPU that cannot be.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vcoop_guest_governor::cpus::{self, MOST_CPUS};
use vcoop_guest_governor::stat::Stat;

fuzz_target!(|bytes: &[u8]| {
    let stat = Stat::parse(bytes);
    assert!(stat.cpus.keys().all(|cpu| *cpu < MOST_CPUS));
    let sum = stat.sum();
    // Counters may go back.
    let none = stat.cpus.values().map(|of| of.time.since(sum)).all(|since| since.busy_ns == 0);
    assert!(none);
    let Some(list) = std::str::from_utf8(bytes).ok().and_then(cpus::parse) else { return };
    assert!(list.iter().all(|cpu| *cpu < MOST_CPUS));
    assert_eq!(cpus::parse(&cpus::show(&list)), Some(list));
});
