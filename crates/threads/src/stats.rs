//! What the kernel counts of a thread.

use std::fs;

/// CPU time used and time waited for a CPU by a thread, in nanoseconds; zeros if it is gone.
pub fn schedstat(tid: i32) -> (u64, u64) {
    let text = read(&format!("/proc/{tid}/schedstat"));
    let mut words = text.split(' ').map(|w| w.parse().unwrap_or(0));
    (words.next().unwrap_or(0), words.next().unwrap_or(0))
}

/// How often a thread of this process lost its CPU while it could have gone on.
pub fn preemptions(tid: i32) -> u64 {
    let text = read(&format!("/proc/self/task/{tid}/status"));
    let count = text.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
    count.and_then(|n| n.trim().parse().ok()).unwrap_or(0)
}

/// Whether a thread of this process sleeps: then it uses no CPU, whatever its guest says.
pub fn is_asleep(tid: i32) -> bool {
    let text = read(&format!("/proc/self/task/{tid}/stat"));
    // The name, in parentheses, may contain anything.
    text.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['S', 'D']))
}

/// A file's text; empty if it cannot be read.
fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::is_asleep;
    use crate::gettid;

    #[test]
    fn sees_who_sleeps() {
        assert!(!is_asleep(gettid()));
        let (tid, tids) = mpsc::channel();
        let (wake, woken) = mpsc::channel::<()>();
        let sleeper = std::thread::spawn(move || {
            tid.send(gettid()).unwrap();
            let _ = woken.recv();
        });
        let tid = tids.recv().unwrap();
        assert!((0..200).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            is_asleep(tid)
        }));
        drop(wake);
        sleeper.join().unwrap();
    }
}
