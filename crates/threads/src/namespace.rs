//! The PID namespace and the time namespace of this process.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;

/// Inode of the initial PID namespace: `PROC_PID_INIT_INO` of `linux/proc_ns.h`.
const FIRST: u64 = 0xEFFF_FFFC;

/// Inode of this process's PID namespace.
pub(crate) fn pid_namespace() -> io::Result<u64> {
    Ok(fs::metadata("/proc/self/ns/pid")?.ino())
}

/// Seconds and nanoseconds that this process's time namespace adds to the time since boot, and so to all start times
/// that the process reads.
pub(crate) fn boot_offset() -> String {
    let [seconds, ns] = offset("boottime");
    format!("{seconds},{ns}")
}

/// Nanoseconds that this process's time namespace adds to CLOCK_MONOTONIC.
pub(crate) fn monotonic_offset() -> i64 {
    let [seconds, ns] = offset("monotonic");
    seconds * 1_000_000_000 + ns
}

/// Seconds and nanoseconds that this process's time namespace adds to a clock. The file is about the namespace of the
/// process's children, which is its own if it has started in it.
fn offset(clock: &str) -> [i64; 2] {
    let offsets = fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    let words = offsets.lines().find_map(|line| line.strip_prefix(clock)).unwrap_or_default();
    let mut words = words.split_ascii_whitespace().map(|word| word.parse().unwrap_or(0));
    [(); 2].map(|()| words.next().unwrap_or(0))
}

/// Whether the kernel's trace events and BPF programs use the same thread numbers as this process.
///
/// # Errors
///
/// They do not: the reason, and the remedy.
pub fn numbers_of_events() -> Result<(), (&'static str, &'static str)> {
    // A kernel without such namespaces has no file.
    are_known_in(pid_namespace().unwrap_or(FIRST))
}

fn are_known_in(namespace: u64) -> Result<(), (&'static str, &'static str)> {
    if namespace == FIRST {
        return Ok(());
    }
    Err((
        "the kernel's events name threads by other numbers than this process, which is in a PID namespace of its own",
        "run vcoop in the host's PID namespace (docker run --pid=host)",
    ))
}

#[cfg(test)]
mod tests {
    use super::{FIRST, are_known_in, boot_offset, numbers_of_events, pid_namespace};

    #[test]
    fn in_a_namespace_of_its_own_no_number_is_taken_from_events() {
        assert!(are_known_in(FIRST).is_ok());
        assert!(are_known_in(FIRST - 1).is_err());
        let own = pid_namespace().unwrap();
        let link = std::fs::read_link("/proc/self/ns/pid").unwrap();
        assert_eq!(link.to_str(), Some(format!("pid:[{own}]").as_str()));
        assert_eq!(numbers_of_events().is_ok(), own == FIRST);
    }

    #[test]
    fn the_offset_of_start_times_is_two_numbers() {
        let (seconds, ns) =
            boot_offset().split_once(',').map(|(s, ns)| (s.parse(), ns.parse())).unwrap();
        let (_, ns): (i64, u32) = (seconds.unwrap(), ns.unwrap());
        assert!(ns < 1_000_000_000);
    }
}
