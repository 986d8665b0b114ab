//! The PID namespace of this process.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;

/// Inode of the initial PID namespace: `PROC_PID_INIT_INO` of `linux/proc_ns.h`.
const FIRST: u64 = 0xEFFF_FFFC;

/// Inode of this process's PID namespace.
pub(crate) fn pid_namespace() -> io::Result<u64> {
    Ok(fs::metadata("/proc/self/ns/pid")?.ino())
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
    use super::{FIRST, are_known_in, numbers_of_events, pid_namespace};

    #[test]
    fn in_a_namespace_of_its_own_no_number_is_taken_from_events() {
        assert!(are_known_in(FIRST).is_ok());
        assert!(are_known_in(FIRST - 1).is_err());
        let own = pid_namespace().unwrap();
        let link = std::fs::read_link("/proc/self/ns/pid").unwrap();
        assert_eq!(link.to_str(), Some(format!("pid:[{own}]").as_str()));
        assert_eq!(numbers_of_events().is_ok(), own == FIRST);
    }
}
