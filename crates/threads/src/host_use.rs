//! CPU time of the host, used by this process and by others.

use std::fs;

use crate::Ns;

/// CPU time since boot, in clock ticks.
#[derive(Clone, Copy, Debug)]
pub struct HostUse {
    all: f64,
    busy: f64,
    niced: f64,
    /// CPU time of this process, its children, and their descendants.
    own: f64,
    cpus: usize,
}

impl HostUse {
    /// Values as of now.
    pub fn now() -> Self {
        let Host { all, busy, niced, cpus } = Host::now();
        Self { all, busy, niced, own: family(std::process::id()), cpus }
    }

    /// CPU time of others since then: as a part of the host's CPU time, and as a number of CPUs. Includes the time of
    /// ended children that were not waited for.
    pub fn by_others(&self) -> (f64, f64) {
        self.by_others_until(&Self::now())
    }

    /// As the part of [`Self::by_others`], without those of lower priority than this process, if this one has the usual
    /// priority: they use what is left.
    pub fn by_competitors(&self) -> f64 {
        let now = Self::now();
        if nice() <= 0.0 { self.by_competitors_until(&now) } else { self.by_others_until(&now).0 }
    }

    fn by_competitors_until(&self, now: &Self) -> f64 {
        let busy = now.busy - (now.niced - self.niced);
        self.by_others_until(&Self { busy, ..*now }).0
    }

    fn by_others_until(&self, now: &Self) -> (f64, f64) {
        let others = (now.busy - self.busy) - (now.own - self.own);
        let part = (others / (now.all - self.all).max(1.0)).max(0.0);
        (part, part * self.cpus as f64)
    }
}

/// CPU time of the whole host that was not idle since boot, in nanoseconds.
pub fn host_busy_ns() -> Ns {
    Host::now().busy as Ns * USER_TICK_NS
}

/// Time since boot in which these CPUs ran no thread, in nanoseconds: their sum. The kernel counts that of each in steps
/// of [`USER_TICK_NS`].
pub fn idle_ns(cpus: &[u32]) -> Ns {
    idle_in(&fs::read_to_string("/proc/stat").unwrap_or_default(), cpus)
}

/// A tick of the clock by which the kernel tells CPU time to user space (`USER_HZ`).
pub const USER_TICK_NS: Ns = 10_000_000;

fn idle_in(stat: &str, cpus: &[u32]) -> Ns {
    let lines = stat.lines().filter_map(|line| line.strip_prefix("cpu")?.split_once(' '));
    let of = |(cpu, line): (&str, &str)| {
        let is_one = cpu.parse().is_ok_and(|cpu| cpus.contains(&cpu));
        is_one.then(|| idle(&ticks(line)) as Ns * USER_TICK_NS)
    };
    lines.filter_map(of).sum()
}

struct Host {
    /// All CPUs together, idle or not.
    all: f64,
    /// Not idle; includes stolen time.
    busy: f64,
    /// In user space, at a nice value above 0.
    niced: f64,
    cpus: usize,
}

impl Host {
    fn now() -> Self {
        Self::parse(&fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    fn parse(stat: &str) -> Self {
        let mut lines = stat.lines();
        let cpus = ticks(lines.next().unwrap_or_default().trim_start_matches("cpu"));
        // Guest time is in the first two.
        let (all, idle): (f64, f64) = (cpus.iter().take(8).sum(), idle(&cpus));
        let niced = cpus.get(1).copied().unwrap_or_default();
        let cpus = lines.take_while(|line| line.starts_with("cpu")).count();
        Self { all, busy: all - idle, niced, cpus }
    }
}

/// `/proc/PID/stat` from its third field on, which follows the name.
fn stat(pid: u32) -> Vec<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    ticks(stat.rsplit(')').next().unwrap_or_default())
}

/// The nice value of this process.
fn nice() -> f64 {
    stat(std::process::id()).get(16).copied().unwrap_or_default()
}

/// CPU time of a process and all its descendants.
fn family(pid: u32) -> f64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children: f64 = threads
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|list| list.split_whitespace().flat_map(str::parse).collect::<Vec<u32>>())
        .map(family)
        .sum();
    // utime, stime, cutime, cstime.
    stat(pid).iter().skip(11).take(4).sum::<f64>() + children
}

/// Ticks without a thread, of a CPU's line in `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal.
fn idle(cpu: &[f64]) -> f64 {
    cpu.iter().skip(3).take(2).sum()
}

/// The numbers in a line; other words count as 0.
fn ticks(line: &str) -> Vec<f64> {
    line.split_whitespace().map(|word| word.parse().unwrap_or(0.0)).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::{Host, HostUse, family, host_busy_ns};

    #[test]
    fn what_this_process_does_not_use_others_do() {
        let before = HostUse { all: 1_000.0, busy: 300.0, niced: 0.0, own: 50.0, cpus: 4 };
        let after = HostUse { all: 1_400.0, busy: 500.0, niced: 0.0, own: 130.0, cpus: 4 };
        assert_eq!(before.by_others_until(&after), (0.3, 1.2));
        assert_eq!(
            before.by_others_until(&HostUse { own: 90.0, busy: 300.0, ..after }),
            (0.0, 0.0)
        );
        assert_eq!(before.by_others_until(&before), (0.0, 0.0));
        assert_eq!(before.by_competitors_until(&HostUse { niced: 80.0, ..after }), 0.1);
        assert_eq!(before.by_competitors_until(&HostUse { niced: 300.0, ..after }), 0.0);
    }

    #[test]
    fn a_cpu_is_busy_unless_it_is_idle_or_waits_for_io() {
        let stat = "cpu  10 20 30 400 50 6 7 8 9 9\ncpu0 1 2\ncpu1 3 4\nintr 5 6\ncpu2 7\n";
        let Host { all, busy, niced, cpus } = Host::parse(stat);
        assert_eq!((all, busy, niced, cpus), (531.0, 81.0, 20.0, 2));
        let host = Host::now();
        let ns = host_busy_ns() as f64;
        assert!((host.busy * 1e7..=host.all * 1e7).contains(&ns), "{ns} of {} ticks", host.busy);
    }

    #[test]
    fn cpus_are_idle_if_they_run_nothing_or_wait_for_io() {
        let stat =
            "cpu  9 9 9 999 9\ncpu0 1 2 3 400 50 6\ncpu1 1 2 3 30 4 5\ncpu10 1 1 1 7 0\nintr 5 6\n";
        let ms = |cpus: &[u32]| super::idle_in(stat, cpus) / 1_000_000;
        assert_eq!([ms(&[0]), ms(&[0, 1]), ms(&[1, 2]), ms(&[])], [4_500, 4_840, 340, 0]);
    }

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
        assert!(family(child.id()) >= 20.0);
        assert!(family(std::process::id()) >= before + 20.0);
        let list = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id()));
        for pid in list.unwrap().split_whitespace() {
            assert!(Command::new("kill").arg(pid).status().unwrap().success());
        }
        child.wait().unwrap();
    }
}
