//! The part of a host description that needs no measuring.
//!
//! Everything comes from files of procfs and sysfs (and of debugfs if it is mounted and readable). [`HostFacts::read`]
//! takes their parent directory, so that tests can use trees of their own. Nothing here fails: what cannot be read is
//! inferred, and a [`Fact`] says which.

mod idle;
mod kernel;
pub(crate) mod sched_ext;
pub(crate) mod timers;
mod topology;

#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use vcoop_model::plan::{Ns, Preemption};
use vcoop_policy::config::HostPollConfig;
use vcoop_sched::config::{Fair, RtGuard, Topology};

pub use idle::{IdleFacts, IdleState};
pub use kernel::Release;
pub use sched_ext::SchedExt;

/// A value, and how it is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fact<T> {
    /// The value.
    pub value: T,
    /// Its source: `read from ...`, or `inferred: ...`.
    pub source: String,
    /// Whether it was read from this host, rather than inferred.
    pub read: bool,
}

impl<T> Fact<T> {
    pub(crate) fn read(value: T, from: &str) -> Self {
        Self { value, source: format!("read from {from}"), read: true }
    }

    pub(crate) fn inferred(value: T, why: &str) -> Self {
        Self { value, source: format!("inferred: {why}"), read: false }
    }
}

/// This host, as a scenario's `[host]` would have to say it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostFacts {
    /// CPU model, as the processor names itself.
    pub cpu_model: Option<String>,
    /// Whether this host is itself a guest: then its hypervisor's costs are in every number.
    pub is_guest: bool,
    /// Kernel release (`6.18.44-generic`).
    pub release: String,
    /// CPUs that this process may use, in the order of the simulator's numbering (threads of a core
    /// side by side, then cores, then caches): the simulator's CPU `i` is the kernel's `cpus[i]`.
    pub cpus: Vec<u32>,
    /// Their topology. If the real one is not regular: one cache of single threads.
    pub topology: Fact<Topology>,
    /// Tick period: `1/HZ`, in nanoseconds.
    pub tick_ns: Fact<Ns>,
    /// Preemption model.
    pub preemption: Fact<Preemption>,
    /// Fair class and its tunables.
    pub fair: Fact<Fair>,
    /// The sched_ext scheduler that is loaded, if one is.
    pub sched_ext: Option<SchedExt>,
    /// Slice of SCHED_RR, in nanoseconds.
    pub rr_slice_ns: Fact<Ns>,
    /// What keeps real-time threads from starving the rest.
    pub rt_guard: Fact<RtGuard>,
    /// `sched_rt_runtime_us` and `sched_rt_period_us` in nanoseconds; `None` = no limit. On 6.12 and
    /// later without `CONFIG_RT_GROUP_SCHED` they bound admission only.
    pub rt_limit: Option<(Ns, Ns)>,
    /// How long KVM polls for a halted vCPU.
    pub halt_poll: Fact<HostPollConfig>,
    /// Idle states.
    pub idle: IdleFacts,
}

impl HostFacts {
    /// Reads the facts below `root`, for the CPUs `allowed`. `tick_ns`: the resolution of a coarse clock, which is the
    /// tick's period, if known.
    pub fn read(root: &Path, allowed: &[u32], tick_ns: Option<Ns>) -> Self {
        let root = Root::new(root);
        let release = root.text("proc/sys/kernel/osrelease").unwrap_or_default();
        let version = Release::parse(&release);
        let config = kernel::Config::load(&root, &release);
        let (cpus, topology) = topology::read(&root, allowed);
        let n = u32::try_from(cpus.len()).unwrap_or(1);
        Self {
            cpu_model: root.cpuinfo("model name"),
            is_guest: root.is_guest(),
            cpus,
            topology,
            tick_ns: kernel::tick(tick_ns, &config),
            preemption: kernel::preemption(&root, &config),
            fair: kernel::fair(&root, version, n),
            sched_ext: sched_ext::read(&root),
            rr_slice_ns: kernel::rr_slice(&root),
            rt_guard: kernel::rt_guard(&root, version, &config),
            rt_limit: kernel::rt_limit(&root),
            halt_poll: kernel::halt_poll(&root),
            idle: idle::read(&root),
            release,
        }
    }

    /// Kernel release as two numbers.
    pub fn version(&self) -> Release {
        Release::parse(&self.release)
    }

    /// Tick rate, in hertz.
    pub fn hz(&self) -> u64 {
        1_000_000_000 / self.tick_ns.value.max(1)
    }
}

/// This host's facts.
pub fn host_facts() -> HostFacts {
    let allowed = vcoop_threads::allowed_cpus().unwrap_or_default();
    HostFacts::read(Path::new("/"), &allowed, Some(vcoop_threads::clock::tick_ns()))
}

/// The parent directory of procfs and sysfs.
#[derive(Debug)]
pub(crate) struct Root(PathBuf);

impl Root {
    pub(crate) fn new(root: &Path) -> Self {
        Self(root.to_owned())
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    /// A file's text without surrounding space; `None` if it is empty, cannot be read, or is
    /// `(null)`, which is how the kernel prints a CPU list that was never set.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        let text = fs::read_to_string(self.path(path)).ok()?;
        Some(text.trim().to_owned()).filter(|s| !s.is_empty() && s != "(null)")
    }

    fn number<T: std::str::FromStr>(&self, path: &str) -> Option<T> {
        self.text(path)?.parse().ok()
    }

    pub(crate) fn cpuinfo(&self, key: &str) -> Option<String> {
        let text = fs::read_to_string(self.path("proc/cpuinfo")).ok()?;
        let line = text.lines().find(|l| l.split(':').next().is_some_and(|k| k.trim() == key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    }

    /// Whether this host is a guest itself.
    pub(crate) fn is_guest(&self) -> bool {
        let flags = self.cpuinfo("flags");
        flags.is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor"))
    }

    /// This process's path in the cgroup hierarchy whose controllers are `wanted`.
    pub(crate) fn cgroup(&self, wanted: impl Fn(&str) -> bool) -> Option<String> {
        let text = self.text("proc/self/cgroup")?;
        text.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            fields.next().filter(|controllers| wanted(controllers))?;
            fields.next().map(str::to_owned)
        })
    }

    /// Stolen time and total time of all CPUs since boot, in ticks of user space's clock.
    pub(crate) fn steal(&self) -> Option<(u64, u64)> {
        let text = self.text("proc/stat")?;
        let numbers = text.lines().next()?.strip_prefix("cpu ")?;
        // user nice system idle iowait irq softirq steal; guest time is in user time already.
        let n: Vec<u64> =
            numbers.split_whitespace().take(8).map_while(|w| w.parse().ok()).collect();
        Some((*n.get(7)?, n.iter().sum()))
    }
}
