//! Who uses the host: this process, or others.

use std::fs;

use crate::Ns;

/// CPU time since boot, in clock ticks.
#[derive(Clone, Copy, Debug)]
pub struct HostUse {
    all: f64,
    busy: f64,
    /// By this process, its children, and theirs.
    own: f64,
    cpus: usize,
}

impl HostUse {
    /// So far.
    pub fn now() -> Self {
        let Host { all, busy, cpus } = Host::now();
        Self { all, busy, own: family(std::process::id()), cpus }
    }

    /// What others have used from then to now: the part of the host's CPU time, and how many CPUs that is. What a child
    /// used that has ended and that nobody has waited for is theirs.
    pub fn by_others(&self) -> (f64, f64) {
        let now = Self::now();
        let others = (now.busy - self.busy) - (now.own - self.own);
        let part = (others / (now.all - self.all).max(1.0)).max(0.0);
        (part, part * self.cpus as f64)
    }
}

/// CPU time of the whole host that was not idle since boot, in nanoseconds.
pub fn host_busy_ns() -> Ns {
    // Ticks of user space's clock are a hundredth of a second.
    (Host::now().busy * 1e7) as Ns
}

struct Host {
    /// Of all CPUs, idle or not.
    all: f64,
    /// Not idle; stolen time is somebody's, too.
    busy: f64,
    cpus: usize,
}

impl Host {
    fn now() -> Self {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let mut lines = stat.lines();
        let cpus = ticks(lines.next().unwrap_or_default().trim_start_matches("cpu"));
        // user, nice, system, idle, iowait, irq, softirq, steal; guest time is in the first two.
        let all: f64 = cpus.iter().take(8).sum();
        let idle: f64 = cpus.iter().skip(3).take(2).sum();
        let cpus = lines.take_while(|line| line.starts_with("cpu")).count();
        Self { all, busy: all - idle, cpus }
    }
}

/// CPU time of a process and of all below it.
fn family(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // utime, stime, cutime, cstime: fields 14 to 17, of which two end with the name.
    let stat = ticks(stat.rsplit(')').next().unwrap_or_default());
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children: f64 = threads
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|list| list.split_whitespace().flat_map(str::parse).collect::<Vec<u32>>())
        .map(family)
        .sum();
    stat.iter().skip(11).take(4).sum::<f64>() + children
}

/// The numbers of a line; what is none is 0.
fn ticks(line: &str) -> Vec<f64> {
    line.split_whitespace().map(|word| word.parse().unwrap_or(0.0)).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::family;

    #[test]
    fn what_children_do_is_ones_own() {
        let before = family(std::process::id());
        // A child of a child.
        let script = "while :; do :; done & echo $!; wait";
        let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
        let began = Instant::now();
        while family(child.id()) < 20.0 && began.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(family(std::process::id()) >= before + 20.0);
        let list = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id()));
        for pid in list.unwrap().split_whitespace() {
            assert!(Command::new("kill").arg(pid).status().unwrap().success());
        }
        child.wait().unwrap();
    }
}
