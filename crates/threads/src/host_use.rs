//! Who uses the host: this process, or others.

use std::fs;

use crate::Ns;

/// CPU time since boot, in clock ticks.
#[derive(Clone, Copy, Debug)]
pub struct HostUse {
    /// Of all CPUs, idle or not.
    all: f64,
    /// Not idle; stolen time is somebody's, too.
    busy: f64,
    /// By this process and the children it has waited for.
    own: f64,
    cpus: usize,
}

impl HostUse {
    /// So far.
    pub fn now() -> Self {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let mut lines = stat.lines();
        let cpus = ticks(lines.next().unwrap_or_default().trim_start_matches("cpu"));
        // user, nice, system, idle, iowait, irq, softirq, steal; guest time is in the first two.
        let all: f64 = cpus.iter().take(8).sum();
        let idle: f64 = cpus.iter().skip(3).take(2).sum();
        let own = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // utime, stime, cutime, cstime: fields 14 to 17, of which two end with the name.
        let own = ticks(own.rsplit(')').next().unwrap_or_default());
        let cpus = lines.take_while(|line| line.starts_with("cpu")).count();
        Self { all, busy: all - idle, own: own.iter().skip(11).take(4).sum(), cpus }
    }

    /// CPU time that was not idle, in nanoseconds.
    pub fn busy_ns(&self) -> Ns {
        // Ticks of user space's clock are a hundredth of a second.
        (self.busy * 1e7) as Ns
    }

    /// What others have used from then to now: the part of the host's CPU time, and how many CPUs that is.
    pub fn by_others(&self) -> (f64, f64) {
        let now = Self::now();
        let others = (now.busy - self.busy) - (now.own - self.own);
        let part = (others / (now.all - self.all).max(1.0)).max(0.0);
        (part, part * self.cpus as f64)
    }
}

/// The numbers of a line; what is none is 0.
fn ticks(line: &str) -> Vec<f64> {
    line.split_whitespace().map(|word| word.parse().unwrap_or(0.0)).collect()
}
