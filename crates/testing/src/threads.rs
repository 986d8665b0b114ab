use std::fs;
use std::thread::sleep;
use std::time::Duration;

use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

/// Asserts that no thread of this process has a name for which `such` holds, or that such threads are gone within ten
/// seconds: the kernel takes a moment to remove a thread that has ended.
///
/// # Panics
///
/// There is one after that time.
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

/// Takes CAP_SYS_NICE from the current thread.
///
/// # Panics
///
/// The kernel refuses.
pub fn drop_cap_sys_nice() {
    let mut sets = capabilities(None).expect("it can be read");
    sets.effective.remove(CapabilitySet::SYS_NICE);
    sets.permitted.remove(CapabilitySet::SYS_NICE);
    set_capabilities(None, sets).expect("fewer are granted");
}
