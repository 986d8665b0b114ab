use std::fs;
use std::thread::sleep;
use std::time::Duration;

/// Asserts that no thread of this process has such a name, or that it is gone in ten seconds: the kernel takes a
/// moment to forget a thread that has ended.
///
/// # Panics
///
/// There is one.
#[track_caller]
pub fn assert_no_thread(such: impl Fn(&str) -> bool) {
    let left = || -> Vec<String> {
        let tasks = fs::read_dir("/proc/self/task").expect("procfs is mounted").flatten();
        let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
        names.filter(|name| such(name)).collect()
    };
    let forgotten = (0..2_000).any(|_| {
        sleep(Duration::from_millis(5));
        left().is_empty()
    });
    assert!(forgotten, "threads left behind: {:?}", left());
}
